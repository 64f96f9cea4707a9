"""The verdict on a backend, always computed from the results of a run: what a log says of itself is only checked.

CONFORMANT is said when every required case of the full contract passed. Where nothing failed and something was
unsupported or undeclared the word is PARTIAL, and goes with what was left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.judging.engine import Outcome
from conformance.library.operations import is_bundled
from conformance.record.records import Assessment, Header, Log, count

JUDGED = ("pass", "quality-warning", "fail", "error")  # statuses by which something is known of the backend
FINE = ("CONFORMANT", "PARTIAL")  # verdicts of which nothing failed


@dataclass(frozen=True)
class Standing:
    """What a run shows of a backend, and how much of the contract that covers."""

    verdict: str
    judged: int  # cases
    cases: int
    left_out: tuple[str, ...] = ()  # what the backend does not do, in words
    unjudged: tuple[str, ...] = ()  # clauses for which nothing was judged

    @property
    def share(self) -> str:
        """How many of the cases were judged, as '1,553 of 2,017 cases (77 %)'."""
        if not self.cases:
            return "no case"
        percent = 100 * self.judged / self.cases
        shown = f"{percent:.0f}" if 1 <= percent <= 99 or self.judged in (0, self.cases) else f"{percent:.2f}"
        return f"{self.judged:,} of {self.cases:,} cases ({shown} %)"


def standing(log: Log) -> Standing:
    """What a log shows. An interrupted run is INCOMPLETE unless something failed."""
    cited = {name: record.case.clauses for name, record in log.cases.items()}
    return standing_of(log.header, log.outcomes, cited, log.assessment, finished=not log.interrupted)


def standing_of(
    header: Header,
    outcomes: Sequence[Outcome],
    cited: Mapping[str, Sequence[str]],
    assessment: Assessment | None = None,
    *,
    finished: bool = True,
) -> Standing:
    """What these results show; `cited` gives the clauses of every case by its id."""
    counts = count(outcomes)
    undeclared = tuple(_undeclared(header))
    word = verdict(
        counts,
        complete=is_whole(header) and finished,
        assessment=assessment,
        partial=bool(undeclared),
    )
    left_out = (*undeclared, *_unsupported(outcomes))
    return Standing(
        word, sum(counts[one] for one in JUDGED), len(outcomes), left_out, _unjudged(header, outcomes, cited)
    )


def is_whole(header: Header) -> bool:
    """Whether a run is of all cases by which its operation is judged: the bundled ones, where there are such."""
    return header.complete and not (header.own and is_bundled(header.operation))


def verdict(
    counts: Mapping[str, int], *, complete: bool, assessment: Assessment | None = None, partial: bool = False
) -> str:
    """CONFORMANT, PARTIAL, NOT CONFORMANT or INCOMPLETE.

    A failure or error counts whatever was run, expected or not, and so does a pass that was not expected. `partial`
    says that the backend does not declare all of the contract. Nothing judged at all is not conformance in any part.
    """
    if counts["fail"] or counts["error"] or unexpected_passes(assessment):
        return "NOT CONFORMANT"
    if not complete or counts["not-run"]:
        return "INCOMPLETE"
    if not counts["pass"] + counts["quality-warning"]:
        return "NOT CONFORMANT"
    return "PARTIAL" if partial or counts["unsupported"] else "CONFORMANT"


def verdict_before(counts: Mapping[str, int], *, complete: bool, assessment: Assessment | None = None) -> str:
    """The verdict as schema 1 had it: CONFORMANT whatever was unsupported. Footers of such logs are checked by it."""
    supported = {**counts, "unsupported": 0}
    return verdict(supported, complete=complete, assessment=assessment)


def unexpected_passes(assessment: Assessment | None) -> bool:
    """Whether something passed that was expected to fail."""
    return assessment is not None and any(one.kind == "unexpected pass" for one in assessment.surprises)


def _undeclared(header: Header) -> Iterator[str]:
    """What the backend does not even declare, of what the whole contract asks for."""
    full, backend = header.full, header.backend
    if full is None:
        return
    for what, all_of_them, declared in (
        ("output", tuple(full.outputs), backend.outputs),
        ("element type", full.element_types, backend.element_types),
        ("feature", full.features, backend.features),
    ):
        missing = [name for name in all_of_them if name not in declared]
        if missing:
            yield f"undeclared {what}{'s' * (len(missing) > 1)}: {', '.join(missing)}"


def _unsupported(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What was answered with Unsupported, by reason, with the number of cases."""
    reasons: dict[tuple[str, str], int] = {}
    for outcome in outcomes:
        if outcome.status == "unsupported":
            key = outcome.feature, outcome.reason
            reasons[key] = reasons.get(key, 0) + 1
    for (feature, reason), number in sorted(reasons.items(), key=lambda item: -item[1]):
        told = reason if not feature or reason.startswith(feature) else f"{feature}: {reason}"
        yield f"unsupported, {number:,} case{'s' * (number != 1)}: {told or 'no reason given'}"


def _unjudged(header: Header, outcomes: Sequence[Outcome], cited: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Clauses that cases cite, and of which no case was judged, or no output that shows them is returned."""
    known = dict.fromkeys(clause for clauses in cited.values() for clause in clauses)
    judged = {clause for o in outcomes if o.status in JUDGED for clause in cited.get(o.case, ())}
    if header.full:
        shown = {c for name, clauses in header.full.outputs.items() if name in header.backend.outputs for c in clauses}
        judged -= {c for clauses in header.full.outputs.values() for c in clauses} - shown
    return tuple(sorted(clause for clause in known if clause not in judged))
