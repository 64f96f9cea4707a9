"""Two logs of one run as one: its results, and all that it was timed on.

`perf --conformance LOG` writes the results of a published log again, with times behind them. Added to the published
logs, its times go to where the results are.
"""

from __future__ import annotations

from conformance.record.log import PerfRecord, decode
from conformance.record.records import Header

PERF, FOOTER = b'{"record":"perf"', b'{"record":"footer"'


def together(there: bytes, other: bytes) -> bytes:
    """The text of the log that is there, or of the other if only that one is whole, with the times of both.

    Of two times of a backend, or a part of one, on the same workload the later one stays. A last line that was cut off
    goes. The digest is left as it was.
    """
    kept: dict[tuple[str, str], tuple[str, bytes]] = {}
    for text in (there, other):
        for key, when, line in _times(text):
            if key not in kept or when >= kept[key][0]:
                kept[key] = when, line
    base = there if _ends(there) or not _ends(other) else other
    lines = [line for line in base.splitlines(keepends=True) if not line.startswith(PERF) and line.endswith(b"\n")]
    last = [lines.pop()] if _ends(base) else []
    return b"".join([*lines, *(line for _, line in kept.values()), *last])


def _ends(text: bytes) -> bool:
    """Whether the log has a footer."""
    return text.splitlines()[-1].startswith(FOOTER)


def _times(text: bytes) -> list[tuple[tuple[str, str], str, bytes]]:
    """What was timed, when, and the line; earlier logs do not say when, so that it is the time of their header."""
    first, *lines = text.splitlines(keepends=True)
    head = decode(first)
    begun = head.started if isinstance(head, Header) else ""
    found = []
    for line in lines:
        if line.startswith(PERF) and line.endswith(b"\n") and isinstance(record := decode(line), PerfRecord):
            backend, when = (str(record.numbers.get(name) or "") for name in ("backend", "timed"))
            found.append(((record.workload, backend), when or begun, line))
    return found
