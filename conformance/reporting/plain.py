"""Texts of a plug-in, a log or a case file, made harmless before anybody sees them.

A terminal acts on control characters and ANSI sequences, and a bidirectional override makes a line read as something
else: they are shown as escapes. A text that is meant for one line stays on one, and is cut to a readable length.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from conformance.record.log import Log, ResultRecord
from conformance.spec.case import Case

# Control characters but for line feed and tab; marks, embeddings, overrides and isolates of bidirectional text;
# invisible characters that words can be hidden behind; line separators; surrogates, which no encoding can write.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
LINE = 1_000  # characters of a text that stands on one line
TEXT = 20_000  # characters of a text of several lines, such as a traceback
NAME = 200  # characters of a connect string, a version, a vendor

Value = TypeVar("Value")


def clean(text: str) -> str:
    """The text with every harmful character as an escape; line feeds and tabs stay."""
    return _HARMFUL.sub(_escape, text)


def line(text: str, most: int = LINE) -> str:
    """The text on one line, cut in the middle where it is longer than anybody reads."""
    return cut(clean(text).replace("\n", "\\n").replace("\t", " "), most)


def cut(text: str, most: int) -> str:
    """At most so many characters: the beginning and the end, and how many are missing between."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end]} [... {len(text) - most:,} characters ...] {text[len(text) - end :]}"


def presentable(log: Log) -> Log:
    """The log with all its texts harmless: what every view shows."""
    head = log.header
    backend = _each(head.backend, lambda text: line(text, NAME))
    header = msgspec.structs.replace(_each(head, line), backend=backend)
    results = {name: _result(record) for name, record in log.results.items()}
    cases = {
        name: msgspec.structs.replace(record, summary=line(record.summary), case=_case(record.case))
        for name, record in log.cases.items()
    }
    footer = log.footer
    if footer and footer.expectations:
        footer = msgspec.structs.replace(footer, expectations=_each(footer.expectations, line))
    if footer and footer.rounding:
        footer = msgspec.structs.replace(footer, rounding=line(footer.rounding, NAME))
    perf = tuple(_each(record, line) for record in log.perf)
    return msgspec.structs.replace(log, header=header, results=results, cases=cases, footer=footer, perf=perf)


def _result(record: ResultRecord) -> ResultRecord:
    outcome = record.outcome
    if outcome.status == "pass" and not record.diagnosis:
        return record
    texts: dict[str, Any] = {
        name: line(text)
        for name in ("clause", "where", "reason", "feature", "lost")
        if isinstance(text := getattr(outcome, name, ""), str) and text
    }
    texts |= {name: cut(clean(text), TEXT) for name in ("detail", "stderr") if (text := getattr(outcome, name))}
    if outcome.worst:
        texts["worst"] = _each(outcome.worst, line)
    return msgspec.structs.replace(
        record, outcome=msgspec.structs.replace(outcome, **texts), diagnosis=line(record.diagnosis)
    )


def _case(case: Case) -> Case:
    return case if not _HARMFUL.search(case.says) and "\n" not in case.says else msgspec.structs.replace(
        case, says=line(case.says)
    )  # fmt: skip


def _each(value: Value, change: Any) -> Value:
    """The value with every text in it changed."""
    found: Any = value
    if isinstance(value, str):
        return change(value)  # type: ignore[no-any-return]
    if isinstance(value, dict):
        found = {_each(key, change): _each(item, change) for key, item in value.items()}
    elif isinstance(value, tuple | list):
        found = type(value)(_each(item, change) for item in value)
    elif isinstance(value, msgspec.Struct):
        parts = {name: _each(getattr(value, name), change) for name in value.__struct_fields__}
        found = msgspec.structs.replace(value, **parts)
    return found  # type: ignore[no-any-return]


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
