"""What parts of the suite other than the case library kill when they are alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from conformance.backends.protocol import info_for
from conformance.faults import catalogue
from conformance.faults.entry import Entry
from conformance.faults.trial import Trial, killed
from conformance.library.reading import Library
from conformance.library.selection import select
from conformance.spec.case import Case

EXAMPLES = 500
SEED = 0


def relations(library: Library, faults: Sequence[Entry]) -> set[str]:
    """The faults killed by relations between answers, without any value of a reference, on the cases of a quick run."""
    trial = Trial(library.operation, relations_only=True)
    cases = [case for case in select(library, quick=True) if not case.refusal]
    return _killed(trial, faults, cases)


def generator(library: Library, faults: Sequence[Entry]) -> set[str]:
    """The faults killed by generated cases, `EXAMPLES` of them."""
    return _killed(Trial(library.operation), faults, examples(library.operation.operation, EXAMPLES, SEED))


def _killed(trial: Trial, faults: Sequence[Entry], cases: Iterable[Case]) -> set[str]:
    alive = {fault.id: fault for fault in faults}
    for case in cases:
        for fault in list(alive.values()):
            if killed(trial.run(fault, case), fault, trial.operation):
                del alive[fault.id]
    return {fault.id for fault in faults} - alive.keys()


LAYERS: Mapping[str, Callable[[Library, Sequence[Entry]], set[str]]] = {
    "relations": relations,
    "generator": generator,
}


@lru_cache(maxsize=4)
def examples(operation_name: str, count: int, seed: int) -> tuple[Case, ...]:
    """Generated cases, the same at every time."""
    import hypothesis

    from conformance.fuzzing.strategies import Generator, configurations
    from conformance.library.operations import load_operation

    operation = load_operation(operation_name)
    info = info_for(catalogue.backend_of(catalogue.variants(operation_name)[0]), operation.operation)
    found: list[Case] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(Generator(operation, configurations(operation, info, seed)).examples())
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return tuple(found)
