"""A case in words and numbers: what it is made of, its shapes, the whole of it as YAML."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from conformance.spec.case import Case, as_plain
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation

LONGEST = 300  # characters of one fact of a case


def shapes(case: Case, operation: Operation) -> dict[str, str]:
    """Shape and type of every port of the single call; empty when the log's case does not fit this operation."""
    try:
        known = Geometry(case, operation)
        found = {}
        for port in operation.ports:
            shape: Sequence[Any] = known.shape(port)
            kind = known.type_of(port)
            change = case.change.get(port.name)
            if port.name == operation.lengths and case.length_shape == "one":
                shape = [1]
            if change and change.shape is not None:
                shape = change.shape
            if change and change.type:
                kind = change.type
            if known.is_on(port) or not port.optional:
                found[port.name] = f"[{', '.join(map(str, shape))}] {kind}"
    except (KeyError, ValueError):
        return {}
    return found


def expanded(case: Case, most: int = 2500) -> str:
    """The case as YAML with everything worked out, cut where literal numbers make it very long."""
    import yaml

    plain = {name: value for name, value in as_plain(case).items() if name not in ("id", "says", "kills")}
    text = yaml.dump(plain, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=100, default_flow_style=None)
    return text if len(text) <= most else text[:most] + f"\n... {len(text) - most} characters more are in the log\n"


def facts(case: Case, operation: Operation) -> dict[str, str]:
    """Everything that decides what is run, as short texts by kind, in the contract's symbols."""
    known = operation.attributes
    scalars = {known[name].symbol if name in known else name: value for name, value in case.attributes.items()}
    found = {name: f"{name}={value:g}" for name, value in (scalars | case.dims).items()}
    found["element_type"], found["length_type"] = case.element_type, case.length_type
    for name in ("past", "pad"):
        if any(getattr(case, name)):
            found[name] = f"{name}={','.join(map(str, getattr(case, name)))}"
    found["disabled"] = " ".join(f"no {feature}" for feature in case.disabled)
    if case.length_shape == "one":
        found["length_shape"] = f"{operation.lengths}[1]"
    if case.poison != "mixed":
        found["poison"] = f"poison={case.poison}"
    if case.streams:
        found["streams"] = f"streams {streams(case, 60)}"
    for port, spec in case.data.items():
        found[f"data {port}"] = f"{port}: {_flow(spec)};"
    for port, change in case.change.items():
        found[f"change {port}"] = f"{port} changed to {_flow(msgspec.to_builtins(change))};"
    if case.values:
        found["values"] = "expected by hand: " + ", ".join(case.values) + ";"
    if case.refusal:
        refusal = case.refusal
        found["refusal"] = f"refused: {refusal.kind} at {refusal.phase}, {', '.join(refusal.names)};"
    for name in ("relations", "audits"):
        if getattr(case, name):
            found[name] = f"{name}: {', '.join(getattr(case, name))};"
    if case.seed != zlib.crc32(case.id.encode()):  # the default
        found["seed"] = f"seed={case.seed}"
    return {name: text for name, text in found.items() if text}


def streams(case: Case, most: int) -> str:
    """The calls of the streams, cut to a length."""
    return _cut(" ".join("+".join(map(str, stream)) for stream in case.streams), most)


def _flow(value: Any) -> str:
    import yaml

    text = yaml.dump(value, Dumper=_dumper(), default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return _cut(text.removesuffix("...\n").strip(), LONGEST)


@cache
def _dumper() -> Any:
    """The dumper in C where PyYAML has it: a page dumps thousands of values."""
    import yaml

    return getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 2] + " …"
