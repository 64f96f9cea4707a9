"""Functions that a script is given when it needs them, as texts in NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping

UNPACK = """
def unpack(t, kind, *shape): return np.frombuffer(zlib.decompress(base64.b64decode(t)), kind).reshape(shape).copy()
"""
NUMBERS = """
def numbers(start, shape):  # SplitMix64
    z = (np.arange(1, np.prod(shape) + 1, dtype=np.uint64) + np.uint64(start)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z
"""
UNIT = """
def unit(start, *shape): return ((numbers(start, shape) >> np.uint64(11)) * 2.0**-53).reshape(shape)
"""
BELL = """
def bell(start, *shape):
    total = numbers(start, shape).view(np.uint16).reshape(-1, 4).sum(1, dtype=np.uint32)
    return ((total - 131070.0) * (1.7320508075688772 / 65536.0)).reshape(shape)
"""
IGNORE = """
def ignore(x, mask, *values):  # other numbers in rows that have no effect
    rows = np.unpackbits(unpack(mask, np.uint8, -1), count=x.shape[0] * x.shape[1]).reshape(x.shape[:2]) == 1
    x[rows] = np.resize(values, x[rows].shape)
    return x
"""
NARROW = """
def narrow(x):  # to bf16: the upper half of a float32, rounded to even, as uint16
    bits = np.array(x, np.float32).view(np.uint32)
    return np.where(np.isnan(x), 0x7FC0, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
"""
WRONG = """
def wrong(name, got, shape, at, want, bound, kind=T):  # "" when the elements `at` are right; bound 0: the same bits
    got, at, want, bound = np.asarray(got), np.array(at, int), np.array(want, float), np.array(bound, float)
    if got.dtype != kind or (got.shape != shape and (got.size or shape != (0,))):
        return f"{name} is {got.dtype}{list(got.shape)}, not {np.dtype(kind)}{list(shape)}"
    x = WIDE.astype(float)
    with np.errstate(all="ignore"):
        off, over = abs(x - want), np.isinf(x) & (x * want > 0) & (abs(want) + bound > TOP) & (bound > 0)
        same = (x == want) & (np.signbit(x) == np.signbit(want)) | (x != x) & (want != want)
        share = np.where(same | over, 0, np.nan_to_num(off / bound, nan=np.inf))
    i = share.argmax() if share.max(initial=0) > 1 else None
    place = "" if i is None else [*map(int, np.unravel_index(at[i], shape))]
    return place and f"{name}{place} is {x[i]:.9g}, not {want[i]:.9g}: off by {off[i]:.3g}, allowed {bound[i]:.3g}"
"""
WRONG_WHOLE = """
def wrong(name, got, shape, at, want, bound, kind):  # "" when the elements `at` are right; a bound: judged below
    got = np.asarray(got)
    if got.dtype != kind or got.shape != shape:
        return f"{name} is {got.dtype}{list(got.shape)}, not {np.dtype(kind)}{list(shape)}"
    off = [(i, w) for i, w, b in zip(at, want, bound) if not b and got.flat[i] != w]
    place = off and [*map(int, np.unravel_index(off[0][0], shape))]
    return off and f"{name}{place} is {got.flat[off[0][0]]}, not {off[0][1]:g}"
"""
CHOICE = """
def unfit(name, got, start, count, score, error, ties):  # "" when `count` entries from `start` on are a right choice
    got, V = np.ravel(got)[start : start + count].tolist(), len(score)
    if len(set(got)) < count or min(got) < 0 or max(got) >= V:
        return f"{name} {got} are not {count} different ones of 0 to {V - 1}"
    for a, u in [(a, u) for a in got for u in range(V) if u not in got]:
        tie = ties and u < a and score[a] == score[u] and error[a] == error[u] == 0
        if tie or score[a] + error[a] < score[u] - error[u]:
            return f"{name} {got}: {a} scores {score[a]:.9g} and is taken, {u} scores {score[u]:.9g} and is left out"
"""
SEEN = """
def seen(x, at):  # the bits of what is specified; one NaN is as good as another
    x, nan = (x := np.ravel(x)[at]), NANS
    return np.where(nan, 0, x).astype(x.dtype).tobytes(), nan.tobytes()
"""
HELPERS = (UNPACK, NUMBERS, UNIT, BELL, IGNORE, NARROW)
NEEDS: Mapping[str, tuple[str, ...]] = {
    "unit(": (NUMBERS, UNIT),
    "bell(": (NUMBERS, BELL),
    "ignore(": (UNPACK, IGNORE),
    "narrow(": (NARROW,),
    "unpack(": (UNPACK,),
}
