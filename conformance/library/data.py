"""The data of a case, checked when it is read: aims and their parameters, literal numbers and where they are put.

No array of the case's size is made for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from conformance.library.written import Origin
from conformance.spec.case import WORDS, Case
from conformance.spec.expression import ExpressionError, symbols_of
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation, Port

PLAIN = ("aim", "part", "pick", "order")  # keys of an aim whose values are words
SMALL, WIDE = 4, 256  # elements along an axis, and along the last one, of the array that an aim is tried on


def check_data(case: Case, here: Origin) -> None:
    """Raises `LibraryError` with the place of data that do not fit their port or output."""
    operation = here.operation
    known = Geometry(case, operation)
    for name, spec in case.data.items():
        port = operation.port[name]
        if not known.is_on(port):
            continue
        if name == operation.lengths:
            raise here.error(f"{case.id}: the lengths follow from 'past' and 'pad', not from data", "data", name)
        problem = _problem(spec, port, known.shape(port), case, operation)
        if problem:
            raise here.error(f"{case.id}: {problem}", "data", name)
    for name, spec in case.values.items():
        shape = known.outputs[name]
        if problem := _literal_problem(spec, name, shape, whole=True):
            raise here.error(f"{case.id}: {problem}", "expect", "values", name)
    for name, change in case.change.items():
        shape = known.shape(operation.port[name]) if name != operation.lengths else (len(known.lengths),)
        if change.values is not None and (problem := _literal_problem(change.values, name, None, whole=True)):
            raise here.error(f"{case.id}: {problem}", "change", name, "values")
        for item in change.inject:
            if problem := _place_problem(list(item.at), shape, name):
                raise here.error(f"{case.id}: {problem}", "change", name, "inject")


def bound(spec: Any, variables: Mapping[str, Any]) -> Any:
    """Data with the axes of a matrix or covering array, which no later step knows, put into its expressions."""
    if not variables or not isinstance(spec, Mapping):
        return spec
    result = {}
    for key, value in spec.items():
        if isinstance(value, Mapping):
            value = bound(value, variables)
        elif isinstance(value, str) and key not in PLAIN:
            value = re.sub(r"[^\W\d]\w*", lambda word: _inserted(word[0], variables), value)
        result[key] = value
    return result


def _inserted(word: str, variables: Mapping[str, Any]) -> str:
    value = variables.get(word)
    return word if value is None else f"({int(value) if isinstance(value, bool) else value!r})"


def _problem(spec: Any, port: Port, shape: tuple[int, ...], case: Case, operation: Operation) -> str:
    if not isinstance(spec, Mapping):
        return _literal_problem(spec, port.name, shape)
    inject = spec.get("inject", ())
    if not isinstance(inject, list | tuple):
        return f"'inject' for {port.name} is a list of {{at: [index, ...], value: number}}"
    for item in inject:
        if not isinstance(item, Mapping) or set(item) != {"at", "value"} or not _is_number(item["value"]):
            return f"'inject' for {port.name} is a list of {{at: [index, ...], value: number}}"
        if 0 not in shape and (problem := _place_problem(item["at"], shape, port.name)):
            return problem
    rest = {key: value for key, value in spec.items() if key != "inject"}
    small = (*(min(size, SMALL) for size in shape[:-1]), *(min(size, WIDE) for size in shape[-1:]))
    kind = Geometry(case, operation).type_of(port)
    counting = [axis for name in symbols_of(port.token) if (axis := port.axis(name)) is not None] if port.token else []
    depth = 1 + max(counting, default=0) if port.token else 0
    if problem := _aim_problem(json.dumps(rest, sort_keys=True, default=str), port.name, small, kind, depth):
        return problem
    axes = set(port.axes or ("row",))
    known = Geometry(case, operation).symbols.keys() | operation.counted | axes
    for key, value in rest.items():
        is_text = isinstance(value, str) and key not in PLAIN
        if is_text and (unknown := sorted(symbols_of(value) - known)):
            return f"'{value}': unknown symbol {', '.join(unknown)} (known: {', '.join(sorted(known))})"
    return ""


@lru_cache(maxsize=4096)
def _aim_problem(spec: str, port: str, shape: tuple[int, ...], kind: str, depth: int) -> str:
    """What is wrong with an aim, tried on a small array; expressions are 1 there, and tokens lie over `depth` axes."""
    import numpy as np

    from conformance.spec.aims import Draw, fill
    from conformance.spec.types import dtype, is_integer

    def one(text: str) -> int:
        symbols_of(text)
        return 1

    tokens = np.zeros(shape[:depth], dtype=np.int64) if depth else None
    try:
        values, _ = fill(json.loads(spec), Draw(0, port, shape, dtype(kind), 2, tokens, one))
    except ExpressionError as error:
        return f"{port}: {error}"
    except ValueError as error:
        return str(error)
    if values.shape != shape:
        return f"this aim does not fit {port}"
    finite = not is_integer(dtype(kind)) or bool((abs(values) < 2**63).all())
    return "" if finite else f"{port} holds whole numbers of 64 bits"


def _literal_problem(spec: Any, name: str, shape: tuple[int, ...] | None, *, whole: bool = False) -> str:
    """What is wrong with literal numbers; without `whole` they may leave out leading axes."""
    found = _shape_of(spec)
    if found is None:
        return f"{name} needs numbers or null, in lists of equal length"
    if shape is None or (0 in found and 0 in shape):
        return ""
    fits = found == shape if whole else found == shape[len(shape) - len(found) :]
    return "" if fits else f"{name} needs values of shape {list(shape)}, not {list(found)}"


def _shape_of(spec: Any) -> tuple[int, ...] | None:
    """The shape of nested lists of numbers; None when they are not that."""
    if isinstance(spec, list | tuple):
        shapes = {_shape_of(one) for one in spec}
        if len(shapes) > 1 or None in shapes:
            return None
        return (len(spec), *(next(iter(shapes)) or ())) if shapes else (0,)
    return () if spec is None or _is_number(spec) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and value in WORDS)


def _place_problem(at: Any, shape: tuple[int, ...], name: str) -> str:
    plain = isinstance(at, list | tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in at)
    if not plain or len(at) > len(shape) or any(not -size <= i < size for i, size in zip(at, shape, strict=False)):
        return f"{name} has no element at {at}; its shape is {list(shape)}"
    return ""
