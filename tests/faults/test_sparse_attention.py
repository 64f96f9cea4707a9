"""The catalogue of SparseAttention: every fault is killed by the cases that name it, and no variant is failed."""

import pytest

from conformance.faults import catalogue
from conformance.faults.trial import Trial, killed
from conformance.library.reading import load_library
from conformance.library.selection import select

LIBRARY = load_library("sparse_attention")
FAULTS = catalogue.faults("SparseAttention")
VARIANTS = catalogue.variants("SparseAttention")
QUICK = [case for case in select(LIBRARY, quick=True) if not case.refusal and not case.audits]


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial(LIBRARY.operation)


def test_the_catalogue_is_of_the_size_that_is_asked_for() -> None:
    assert len(FAULTS) >= 60
    assert len(VARIANTS) >= 15


@pytest.mark.parametrize("topic", sorted({fault.topic for fault in FAULTS}))
def test_every_fault_is_killed_by_a_case_that_names_it(topic: str, trial: Trial) -> None:
    alive = [
        fault.id
        for fault in FAULTS
        if fault.topic == topic
        and not any(
            killed(trial.run(fault, case), fault, LIBRARY.operation) for case in LIBRARY.cases if fault.id in case.kills
        )
    ]
    assert alive == []


@pytest.mark.parametrize("name", [variant.id for variant in VARIANTS])
def test_no_variant_is_failed(name: str, trial: Trial) -> None:
    variant = next(variant for variant in VARIANTS if variant.id == name)
    outcomes = [trial.run(variant, case) for case in QUICK]
    assert [(o.case, o.clause, o.reason) for o in outcomes if o.status in ("fail", "error")] == []
