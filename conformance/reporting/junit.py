"""The report as JUnit XML, for CI systems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from conformance.engine import Outcome
from conformance.reporting import table
from conformance.reporting.log import Log, count

# Characters that XML 1.0 cannot hold.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(logs: Sequence[Log]) -> str:
    """One test suite a log, one test case a case; what was never run is counted as an error of the suite."""
    root = Xml.Element("testsuites", name="qsa-conformance")
    for log, title in zip(logs, table.titles(logs), strict=True):
        root.append(_suite(log, title))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(log: Log, title: str) -> Xml.Element:
    counts = count(log.outcomes)
    missing = log.header.cases - len(log.results)
    suite = Xml.Element(
        "testsuite",
        name=_clean(title),
        tests=str(len(log.results) + bool(missing)),
        failures=str(counts["fail"]),
        errors=str(counts["error"] + bool(missing)),
        skipped=str(counts["unsupported"] + counts["not-run"]),
        time=f"{sum(o.seconds for o in log.outcomes):.3f}",
        timestamp=log.header.started,
    )
    properties = Xml.SubElement(suite, "properties")
    for name, value in {
        **log.header.environment,
        "library": log.header.library,
        "verdict": table.verdict_of(log),
    }.items():
        Xml.SubElement(properties, "property", name=name, value=_clean(value))
    for outcome in log.outcomes:
        suite.append(_case(log, outcome))
    if missing:
        case = Xml.SubElement(suite, "testcase", classname=log.header.operation, name="the whole run", time="0")
        Xml.SubElement(case, "error", message=f"{missing} of {log.header.cases} cases were not run")
    return suite


def _case(log: Log, outcome: Outcome) -> Xml.Element:
    case = log.cases[outcome.case].case
    element = Xml.Element("testcase", classname=case.topic, name=_clean(case.id), time=f"{outcome.seconds:.6f}")
    text = f"{outcome.clause} {outcome.where}: {outcome.reason}".strip()
    repeat = table.repeat(log.header.backend.connect, outcome.case)
    body = _clean(f"{case.says}\n{text}\n{log.cases[outcome.case].summary}\n{repeat}\n{outcome.detail}".rstrip())
    if outcome.status == "fail":
        Xml.SubElement(element, "failure", message=_clean(text)).text = body
    elif outcome.status == "error":
        Xml.SubElement(element, "error", message=_clean(text)).text = body
    elif outcome.status in ("unsupported", "not-run"):
        Xml.SubElement(element, "skipped", message=_clean(outcome.reason or outcome.status))
    elif outcome.status == "quality-warning":
        Xml.SubElement(element, "system-out").text = body
    return element


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
