"""A badge: SVG, and the JSON that shields-style badge services read. Only for complete runs."""

from __future__ import annotations

import json
from html import escape

from conformance.errors import UsageError
from conformance.record.log import Log
from conformance.reporting.table import verdict_of

COLOURS = {
    "CONFORMANT": ("#1a7f37", "brightgreen"),
    "PARTIAL": ("#8a6100", "yellow"),
    "INCOMPLETE": ("#555e68", "lightgrey"),
    "NOT CONFORMANT": ("#b42318", "red"),
}


def message(log: Log) -> tuple[str, str, str]:
    """Left text, right text and verdict. Raises `UsageError` for a run that was not complete."""
    head = log.header
    if log.interrupted or not head.complete:
        what = "was interrupted" if log.interrupted else "is not of the whole library"
        raise UsageError(f"{log.path}: no badge: the run {what}")
    verdict = verdict_of(log)
    return f"{head.operation} contract {head.contract}", f"{head.backend.name} {verdict.lower()}", verdict


def endpoint(log: Log) -> str:
    """JSON of the shields endpoint schema."""
    label, text, verdict = message(log)
    return json.dumps({"schemaVersion": 1, "label": label, "message": text, "color": COLOURS[verdict][1]}) + "\n"


def svg(log: Log) -> str:
    """A flat badge, readable without a web font."""
    label, text, verdict = message(log)
    left, right = (int(6.6 * len(part)) + 14 for part in (label, text))
    label, text = escape(label), escape(text)
    colour = COLOURS[verdict][0]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {text}"><title>{label}: {text}</title>'
        f'<clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        f'<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14">{label}</text><text x="{left + right / 2}" y="14">{text}</text></g></svg>\n'
    )
