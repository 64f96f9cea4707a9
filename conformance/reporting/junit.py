"""The report as JUnit XML, for CI systems."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from conformance.errors import plural
from conformance.judging.engine import Outcome
from conformance.record.log import Log, Surprise
from conformance.record.verdict import standing
from conformance.reporting import table
from conformance.reporting.plain import presentable

# Characters that XML 1.0 cannot hold.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(logs: Sequence[Log]) -> str:
    """One test suite a log, one test case a case; what was never run is counted as an error of the suite.

    An expected failure is skipped, and every surprise is a failure.
    """
    logs = [presentable(log) for log in logs]
    root = JUnitXml("qsa-conformance")
    for log, title in zip(logs, table.titles(logs), strict=True):
        root.add_testsuite(_suite(log, title))
    root.update_statistics()
    text: str = root.tostring().decode()
    return text if text.endswith("\n") else text + "\n"


def _suite(log: Log, title: str) -> TestSuite:
    found = standing(log)
    suite = TestSuite(_clean(title))
    suite.timestamp = _clean(log.header.started)
    properties = log.header.environment | {
        "library": log.header.library,
        "verdict": found.verdict,
        "judged": found.share,
        "left out": "; ".join(found.left_out),
        "clauses for which nothing was judged": ", ".join(found.unjudged),
    }
    for name, value in properties.items():
        if value:
            suite.add_property(_clean(name), _clean(value))
    for case in _cases(log):
        suite.add_testcase(case)
    suite.update_statistics()
    return suite


def _cases(log: Log) -> Iterator[TestCase]:
    surprises = log.assessment.surprises if log.assessment else ()
    by_case = {surprise.case: surprise for surprise in surprises if surprise.case}
    for outcome in log.outcomes:
        yield _case(log, outcome, by_case.get(outcome.case))
    for surprise in surprises:
        if not surprise.case:
            yield _made("expectations", surprise.says, 0.0, [Failure(_clean(surprise.kind))])
    missing = log.header.cases - len(log.results)
    if missing > 0 and (log.interrupted or log.header.seed is None):
        message = f"{missing:,} of {plural(log.header.cases, 'case')} were not run"
        yield _made(log.header.operation, "the whole run", 0.0, [Error(message)])


def _case(log: Log, outcome: Outcome, surprise: Surprise | None) -> TestCase:
    case = log.cases[outcome.case].case
    text = f"{outcome.clause} {outcome.where}: {outcome.reason}".strip()
    if surprise:
        text = f"{surprise.kind}: {surprise.says}"
    repeat = table.repeat_of(log, outcome)
    body = f"{case.says}\n{text}\n{log.cases[outcome.case].summary}\n{repeat}\n{outcome.detail}".rstrip()
    expected = log.expected.get(outcome.case)
    results: list[Error | Failure | Skipped] = []
    if expected:
        results = [Skipped(_clean(f"expected: {expected}"))]
    elif outcome.status == "error":
        results = [_with_text(Error(_clean(text)), body)]
    elif surprise or outcome.status == "fail":
        results = [_with_text(Failure(_clean(text)), body)]
    elif outcome.status in ("unsupported", "not-run"):
        results = [Skipped(_clean(outcome.reason or outcome.status))]
    made = _made(case.topic, case.id, outcome.seconds, results)
    if outcome.status == "quality-warning":
        made.system_out = _clean(body)
    return made


def _with_text(result: Error | Failure, body: str) -> Error | Failure:
    result.text = _clean(body)
    return result


def _made(classname: str, name: str, seconds: float, results: Sequence[Error | Failure | Skipped]) -> TestCase:
    case = TestCase(_clean(name), _clean(classname), round(seconds, 6))
    case.result = list(results)
    return case


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
