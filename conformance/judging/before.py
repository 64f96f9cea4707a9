"""Outcomes as version 0.1.0 wrote them: where and in which way a case failed stood in sentences only.

The one place in which sentences are read, and only those of that version, from logs and expectation files.
"""

from __future__ import annotations

import re
from typing import Any

PLACES = {
    "prepare": "prepare",
    "call": "call",
    "single call": "single",
    "repeated call": "repeated",
    "after the last call": "after",
    "worker process": "worker",
}
STARTS = {
    "passes on a fresh session": "passes alone",
    "computes instead of refusing": "computes instead of refusing",
    "refuses at the preparation": "refuses early",
    "refuses a valid case": "refuses a valid case",
    "refuses as": "refuses as something else",
    "names ": "refuses as something else",
    "the call modifies": "input modified",
    "raises ": "raised",
    "run() returns": "wrong outputs",
}


def where(text: str) -> dict[str, Any]:
    """The fields of a `Where`."""
    if text in PLACES:
        return {"at": PLACES[text]}
    head, *steps = text.split(", ")
    kind, _, name = head.partition(" ")
    if kind == "stream" and steps:
        call = re.fullmatch(r"call (\d+)", steps[0])
        return {"at": "stream", "label": name, "call": int(call[1]) if call else 0}
    if kind == "relations":
        return {"at": "together", "names": tuple(text.removeprefix("relations ").removesuffix(" together").split(", "))}
    if kind == "relation":
        name, _, label = name.partition(" ")
        return {"at": "relation", "names": (name,), "label": label, "steps": tuple(steps)}
    if kind == "audit":
        return {"at": "audit", "names": (name,), "steps": tuple(steps)}
    return {"steps": (text,)} if text else {}


def kind(status: str, reason: str, lost: str, *, valued: bool) -> str:
    """The value of a `Kind`."""
    for start, found in STARTS.items():
        if reason.startswith(start):
            return found
    if lost:
        return "lost process"
    if valued:
        return "wrong value"
    if "changed after it was returned" in reason:
        return "earlier output changed"
    if re.match(r"\S+ is (of type|a)\b", reason):
        return "wrong type"
    if re.match(r"\S+ has shape", reason):
        return "wrong shape"
    return "raised" if status == "error" else "differs when repeated"


def signed(status: str, reason: str) -> str:
    """The last part of a signature: the kind of error, or the sentence without its numbers."""
    reason = reason.replace("; an attribute refusal", "; a attribute refusal")  # as that version spelled it
    return reason.partition(":")[0] if status == "error" else re.sub(r"-?\d[\d.,e+-]*", "#", reason)
