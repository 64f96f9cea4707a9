"""The toy operation as a function, with a mistake: for a script that shows a failure."""

import numpy as np


def last(values, count, bias=None, *, largest, copies):
    """Takes the last of equal values."""
    best = []
    for row, n in zip(np.asarray(values, np.float64) + (0 if bias is None else bias), count, strict=True):
        seen = row[:n]
        wanted = seen.max() if largest else seen.min()
        best.append(np.nonzero(seen == wanted)[0][-1])
    return np.repeat(np.array(best, np.int32)[:, None], copies, axis=1)
