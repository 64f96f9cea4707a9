"""The report as JUnit XML, for CI systems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from conformance.judging.engine import Outcome
from conformance.record.log import Log, Surprise
from conformance.reporting import table

# Characters that XML 1.0 cannot hold.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(logs: Sequence[Log]) -> str:
    """One test suite a log, one test case a case; what was never run is counted as an error of the suite.

    An expected failure is skipped, and every surprise is a failure.
    """
    root = Xml.Element("testsuites", name="qsa-conformance")
    for log, title in zip(logs, table.titles(logs), strict=True):
        root.append(_suite(log, title))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(log: Log, title: str) -> Xml.Element:
    surprises = log.assessment.surprises if log.assessment else ()
    by_case = {surprise.case: surprise for surprise in surprises if surprise.case}
    elements = [_case(log, outcome, by_case.get(outcome.case)) for outcome in log.outcomes]
    for surprise in surprises:
        if not surprise.case:
            element = Xml.Element("testcase", classname="expectations", name=_clean(surprise.says), time="0")
            Xml.SubElement(element, "failure", message=surprise.kind)
            elements.append(element)
    missing = log.header.cases - len(log.results)
    if missing:
        element = Xml.Element("testcase", classname=log.header.operation, name="the whole run", time="0")
        Xml.SubElement(element, "error", message=f"{missing} of {log.header.cases} cases were not run")
        elements.append(element)
    suite = Xml.Element(
        "testsuite",
        name=_clean(title),
        tests=str(len(elements)),
        failures=_number_of(elements, "failure"),
        errors=_number_of(elements, "error"),
        skipped=_number_of(elements, "skipped"),
        time=f"{sum(o.seconds for o in log.outcomes):.3f}",
        timestamp=log.header.started,
    )
    properties = Xml.SubElement(suite, "properties")
    for name, value in {
        **log.header.environment,
        "library": log.header.library,
        "verdict": table.verdict_of(log),
    }.items():
        Xml.SubElement(properties, "property", name=_clean(name), value=_clean(value))
    suite.extend(elements)
    return suite


def _number_of(elements: Sequence[Xml.Element], kind: str) -> str:
    return str(sum(element.find(kind) is not None for element in elements))


def _case(log: Log, outcome: Outcome, surprise: Surprise | None) -> Xml.Element:
    case = log.cases[outcome.case].case
    element = Xml.Element("testcase", classname=_clean(case.topic), name=_clean(case.id), time=f"{outcome.seconds:.6f}")
    text = f"{outcome.clause} {outcome.where}: {outcome.reason}".strip()
    if surprise:
        text = f"{surprise.kind}: {surprise.says}"
    repeat = table.repeat_of(log, outcome)
    body = _clean(f"{case.says}\n{text}\n{log.cases[outcome.case].summary}\n{repeat}\n{outcome.detail}".rstrip())
    expected = log.expected.get(outcome.case)
    if expected:
        Xml.SubElement(element, "skipped", message=_clean(f"expected: {expected}"))
    elif outcome.status == "error":
        Xml.SubElement(element, "error", message=_clean(text)).text = body
    elif surprise or outcome.status == "fail":
        Xml.SubElement(element, "failure", message=_clean(text)).text = body
    elif outcome.status in ("unsupported", "not-run"):
        Xml.SubElement(element, "skipped", message=_clean(outcome.reason or outcome.status))
    elif outcome.status == "quality-warning":
        Xml.SubElement(element, "system-out").text = body
    return element


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
