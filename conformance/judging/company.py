"""Whether a failure is a case's own, or needs other cases to come before it in the same process.

Such a failure is one of the rule "instances_shared", whatever value it shows in; the cases that it needs are recorded,
so that it can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from conformance.judging.outcome import Kind, Outcome
from conformance.spec.case import Case

# Runs cases in this order in a fresh process, or one as good, and gives the outcome of the last one.
Retry = Callable[[Sequence[Case]], Outcome]

CONFIRMED = 2  # failures of one signature that are looked at in a fresh process; more are taken to be as those were
PATIENCE = 40.0  # seconds of one engine for runs in fresh processes, and for the searches
SEARCHES = 4  # failures for which the cases that they need are looked for
TRIES = 40  # runs of a search
REMEMBERED = 4096  # cases that may have left something behind
GOOD = ("pass", "quality-warning")
BAD = ("fail", "error")


class Again(Protocol):
    """Runs cases on fresh sessions of the same backend."""

    def __call__(self, cases: Sequence[Case], *, fresh: bool = False) -> Outcome: ...


class Company:
    """Decides it for one engine; `again` runs cases in this process, `retry`, where there is one, in fresh ones."""

    def __init__(self, again: Again, retry: Retry | None = None) -> None:
        self._again, self._retry = again, retry
        self._past: list[Case] = []
        self._confirmed: dict[tuple[str, str, str], int] = {}
        self._shared: dict[tuple[str, str, str], int] = {}
        self._spent = 0.0
        self._known: list[tuple[Case, ...]] = []
        self._searches = 0

    def remember(self, case: Case) -> None:
        """A case was run."""
        if len(self._past) < REMEMBERED:
            self._past.append(case)

    def settled(self, case: Case, first: Outcome, earlier: Sequence[str], clause: str) -> Outcome:
        """What to say of a failure; `earlier` are the cases that its session served before."""
        if earlier:
            alone = self._again((case,))
            if first.lost or alone.status in GOOD:
                told = in_company(first, alone, earlier[-1], clause)
                return (
                    self._with_needed(case, told, earlier[-1]) if told.kind is Kind.ALONE and not first.lost else told
                )
            first = alone
        if self._retry is None or first.lost or not self._past:
            return first
        signature = first.signature
        own, shared = self._confirmed.get(signature, 0), self._shared.get(signature, 0)
        if own >= CONFIRMED or (self._spent > PATIENCE and not shared):
            return first
        if shared >= CONFIRMED or self._spent > PATIENCE:
            return self._taken_for_shared(first, clause)
        started = time.monotonic()
        try:
            alone = self._retry((case,))
            if alone.status not in GOOD:
                self._confirmed[signature] = own + 1
                return first
            self._shared[signature] = shared + 1
            before = self._past[-1].id
            told = in_company(first, alone, before, clause, fresh="in a fresh process", same="in one process")
            return self._with_needed(case, told, before)
        finally:
            self._spent += time.monotonic() - started

    def _taken_for_shared(self, first: Outcome, clause: str) -> Outcome:
        """A failure as those that passed in a fresh process, without another look: `after` stays empty."""
        reason = f"as others that pass in a fresh process: {first.reason}"
        return msgspec.structs.replace(first, clause=clause, reason=reason, kind=Kind.ALONE)

    def _with_needed(self, case: Case, told: Outcome, before: str) -> Outcome:
        """The outcome with the cases that it needs, where they are found; `before` is the one it is said to need."""
        needed = self._needed(case)
        if not needed:
            return told
        reason = told.reason.replace(before, needed[-1].id, 1)
        return msgspec.structs.replace(told, reason=reason, after=tuple(one.id for one in needed))

    def _needed(self, case: Case) -> tuple[Case, ...]:
        tries = 0

        def fails(cases: Sequence[Case]) -> bool:
            nonlocal tries
            tries += 1
            if self._retry is not None:
                return self._retry((*cases, case)).status in BAD
            return self._again((*cases, case), fresh=True).status in BAD

        for known in self._known:
            if fails(known):
                return known
        self._searches += 1
        past = [one for one in self._past if one.id != case.id]
        if self._searches > SEARCHES or not past:
            return ()
        size = 1
        while not fails(past[-size:]):
            if size >= len(past):
                return ()
            size *= 4
        kept = past[-size:]
        if not fails(kept[:1]):
            step = max(len(kept) // 2, 1)
            while step and tries < TRIES:  # leave out ever smaller pieces that make no difference
                start = 0
                while start < len(kept) and tries < TRIES:
                    rest = kept[:start] + kept[start + step :]
                    if rest and fails(rest):
                        kept = rest
                    else:
                        start += step
                step //= 2
        else:
            kept = kept[:1]
        found = tuple(kept)
        self._known.append(found)
        return found


def in_company(
    first: Outcome,
    alone: Outcome,
    before: str,
    clause: str,
    *,
    fresh: str = "on a fresh session",
    same: str = "on the same one",
) -> Outcome:
    """What to say of a case that failed after others, the last of them `before`, and was then run alone.

    If it passes alone, the failure is one of `clause`; a warning only when its process was ended from outside or for
    what it took, as that can be the machine's fault.
    """
    if alone.status not in GOOD:
        return alone
    same = "in the same process" if first.lost else same
    reason = f"passes {fresh}, fails after {before} {same}: {first.reason}"
    told = first if first.lost in ("", "crash") else msgspec.structs.replace(alone, status="quality-warning")
    return msgspec.structs.replace(
        told, clause=clause, where=first.where, reason=reason, lost=first.lost, stderr=first.stderr, kind=Kind.ALONE
    )
