"""Which cases a backend can be asked: those within the types, features and outputs that it declares."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.backends.protocol import UNCHECKED, BackendInfo, Unsupported
from conformance.spec.case import Case
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation


def check_support(case: Case, operation: Operation, info: BackendInfo, readings: Mapping[str, str]) -> None:
    """Raises `Unsupported` for a case that a backend does not claim to answer: a type, a feature, all it is about.

    Also for one that nothing is asked of under switched readings.
    """
    if case.element_type not in info.element_types:
        types = ", ".join(info.element_types)
        raise Unsupported(case.element_type, f"{info.name} takes {types} only", info.url)
    if case.refusal and UNCHECKED in info.features:
        raise Unsupported(UNCHECKED, f"{info.name} leaves checking its inputs to its callers", info.url)
    needed = list(case.disabled) + [
        name
        for name, feature in operation.features.items()
        if feature.when and Geometry(case, operation).holds_somewhere(feature.when)
    ]
    for feature in needed:
        if feature not in info.features:
            raise Unsupported(feature, f"{info.name} does not declare the feature '{feature}'", info.url)
    for reading in operation.readings:
        without = reading.without.get(readings.get(reading.name, reading.default))
        if without in (*needed, *(case.refusal.names if case.refusal else ())):
            raise Unsupported(without, f"not asked for when {reading.says} is read as '{reading.name}'")
    missing = [o for o in operation.outputs if o.name not in info.outputs]
    spoken_of = {c for o in operation.outputs if o.name in info.outputs for c in o.clauses}
    lost = {c for o in missing for c in o.clauses} - spoken_of
    if not case.refusal and set(case.clauses) <= lost:
        names = ", ".join(o.name for o in missing)
        raise Unsupported(names, f"{info.name} does not return {names}", info.url)
