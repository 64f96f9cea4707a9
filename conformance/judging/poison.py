"""Where a number that cannot be right came from, when it came from an element that is not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends.protocol import Session
from conformance.judging.calling import Array, Caller, Inputs
from conformance.judging.judge import Worst, hexadecimal
from conformance.judging.scene import unread
from conformance.spec.case import Case

if TYPE_CHECKING:
    from reference.expected import Expected

FAR = 1e3  # times what is wanted: a number that poison may have brought


def source(
    engine: Caller, case: Case, session: Session, whole: Inputs, expected: Mapping[str, Expected], worst: Worst
) -> str:
    """The port and the row whose poison a wrong number came from, as text; empty when it came from elsewhere.

    The call is made again with zeros in place of poison, port by port and then row by row: where the number changes,
    there it came from. The outcome does not depend on these calls, whatever happens in them.
    """
    if case.poison == "zero" or not _suspicious(worst):
        return ""
    try:
        return _traced(engine, case, session, whole, worst)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""


def _suspicious(worst: Worst) -> bool:
    try:
        got, want = float(worst.got), float(worst.want)
    except ValueError:
        return False
    return bool(np.isfinite(want)) and not abs(got) <= FAR * max(abs(want), 1.0)


def _traced(engine: Caller, case: Case, session: Session, whole: Inputs, worst: Worst) -> str:
    def changes(port: str, places: Array) -> bool:
        array = whole[port].copy()
        array[tuple(places.T)] = 0
        handed: dict[str, Any] = {name: one.copy() for name, one in whole.items()} | {port: array}
        got = session.run(handed)[worst.output][worst.index]
        return hexadecimal(got) != worst.got_hex

    for name in whole:
        mask = unread(engine.operation, case, whole, name)
        if mask is None or not mask.any():
            continue
        places = np.argwhere(mask)
        if not changes(name, places):
            continue
        while len(places) > 1:
            half = len(places) // 2
            if changes(name, places[:half]):
                places = places[:half]
            elif changes(name, places[half:]):
                places = places[half:]
            else:
                return name
        return f"{name}[{', '.join(map(str, places[0]))}]"
    return ""
