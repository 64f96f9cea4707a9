"""Logs of the shards of one campaign, seen as one log."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from conformance.record.log import CaseRecord, Footer, Log, ResultRecord, count, verdict


def joined(logs: Sequence[Log]) -> list[Log]:
    """The logs, with those of one campaign put together where the first of them stood. Every example counts once."""
    groups: dict[object, list[Log]] = {}
    for number, log in enumerate(logs):
        groups.setdefault(campaign_of(log) or number, []).append(log)
    return [group[0] if len(group) == 1 else together(group) for group in groups.values()]


def campaign_of(log: Log) -> object:
    """What logs of one campaign have in common; None for any other log."""
    head = log.header
    if head.seed is None or not head.shard:
        return None
    backend = msgspec.json.encode(head.backend)
    return head.seed, head.suite, head.library, backend, tuple(head.filters.items()), tuple(head.readings.items())


def together(logs: Sequence[Log]) -> Log:
    """One log of several shards; it has a footer when all of them have."""
    results: dict[str, ResultRecord] = {}
    origins: dict[str, str] = {}
    cases: dict[str, CaseRecord] = {}
    for log in logs:
        cases |= log.cases
        results |= log.results
        origins |= dict.fromkeys(log.results, log.path)
    shards = dict.fromkeys(log.header.shard for log in logs)
    planned = {log.header.shard: log.header.cases for log in logs}
    header = msgspec.structs.replace(logs[0].header, shard=", ".join(shards), cases=sum(planned.values()))
    footer = None
    if not any(log.interrupted for log in logs):
        outcomes = [record.outcome for record in results.values()]
        counts = count(outcomes)
        footer = Footer(
            counts=counts,
            verdicts=sum(outcome.verdicts for outcome in outcomes),
            seconds=max(log.footer.seconds for log in logs if log.footer),
            verdict=verdict(counts, complete=False),
        )
    return Log(logs[0].path, header, cases, results, (), footer, origins)
