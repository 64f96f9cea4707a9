"""The skeleton of a backend as text, in Python or C++, from an operation's description."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.spec.expression import symbols_of
from conformance.spec.types import ELEMENT_TYPES

if TYPE_CHECKING:
    from conformance.spec.operation import Operation, Port

FOLDER = Path(__file__).parent
NUMPY = {"max": "np.maximum", "min": "np.minimum", "where": "np.where"}
# C++ is full of Jinja's own marks.
CPP_MARKS: dict[str, Any] = {
    "variable_start_string": "@{", "variable_end_string": "}@", "block_start_string": "@%", "block_end_string": "%@",
    "comment_start_string": "@#", "comment_end_string": "#@",
}  # fmt: skip
TYPES = {"T": "of type T", "I": "i32 or i64"}


def python_skeleton(operation: Operation, file: str, name: str) -> str:
    """A class with `describe` and `prepare`, and a session; it refuses by the operation's data and computes nothing."""
    return _rendered("backend.py.jinja", **_common(operation, file, name), **_of_python(operation))


def class_name(stem: str) -> str:
    """A class name from a file's stem: `my-kernel` gives `MyKernel`."""
    words = [word for word in re.split(r"[^0-9A-Za-z]+", stem) if word]
    name = "".join(word[0].upper() + word[1:] for word in words) or "Mine"
    return name if name.isidentifier() else f"Backend{name}"


def _rendered(template: str, **values: Any) -> str:
    import jinja2

    marks = {} if template.endswith(".py.jinja") else CPP_MARKS
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), keep_trailing_newline=True, undefined=jinja2.StrictUndefined, **marks
    )
    return environment.get_template(template).render(**values)


def _common(operation: Operation, file: str, name: str) -> dict[str, Any]:
    return {
        "operation": operation.operation,
        "says": operation.says,
        "file": file,
        "name": name,
        "element_types": ELEMENT_TYPES,
        "attributes": [{"name": n, "symbol": a.symbol, "says": a.says} for n, a in operation.attributes.items()],
        "features": [
            {"name": n, "says": f"{f.says}: {f.off}" if f.off else f.says} for n, f in operation.features.items()
        ],
        "ports": [_tensor(port) | {"optional": port.optional, "absence": _absence(port)} for port in operation.ports],
        "outputs": [_tensor(output) | {"python": _zeros(operation, output)} for output in operation.outputs],
    }


def _absence(port: Port) -> str:
    if not port.feature:
        return ""
    return f", left out without '{port.feature}'" if port.optional else f", empty without '{port.feature}'"


def _tensor(described: Any) -> dict[str, Any]:
    return {
        "name": described.name,
        "says": described.says,
        "feature": described.feature,
        "shape": f"[{', '.join(map(str, described.shape))}]",
        "type": TYPES.get(described.type, described.type),
    }


def _of_python(operation: Operation) -> dict[str, Any]:
    """The symbols of a call as assignments, in an order in which each finds what it needs."""
    sequence = {operation.length, *operation.symbols}
    lines = [f"{a.symbol} = self.{name}" for name, a in operation.attributes.items() if _is_used(operation, a.symbol)]
    known: set[str] = set()
    for port in operation.ports:
        new = {axis: size for axis, size in enumerate(port.shape) if size in operation.dims and size not in known}
        if not new:
            continue
        known |= set(map(str, new.values()))
        there = f'"{port.feature}" not in self.disabled' if port.feature else ""
        if len(new) == len(port.shape) and not there:
            lines.append(f"{', '.join(map(str, new.values()))} = {port.name}.shape")
        else:
            tail = f" if {there} else 0" if there else ""
            lines += [f"{size} = {port.name}.shape[{axis}]{tail}" for axis, size in new.items()]
    if operation.lengths:
        lengths, batch = operation.port[operation.lengths], operation.batch
        line = f"{operation.length} = np.broadcast_to({lengths.name}, ({batch},)).astype(np.int64)"
        if lengths.optional:
            line += f" if {lengths.name} is not None else np.full({batch}, {_numpy(operation.unsaid)})"
        lines.append(f"{line}  # {lengths.says}")
    if operation.lengths or not sequence & {s for d in operation.symbols.values() for s in symbols_of(d.expression)}:
        lines += [f"{n} = {_numpy(s.expression)}  # of every sequence: {s.says}" for n, s in operation.symbols.items()]
    lines += [f"{n} = {_numpy(s.expression)}  # {s.says}" for n, s in operation.totals.items()]
    return {"lines": lines}


def _is_used(operation: Operation, symbol: str) -> bool:
    texts: list[Any] = [size for described in (*operation.ports, *operation.outputs) for size in described.shape]
    texts += [d.expression for d in (*operation.symbols.values(), *operation.totals.values())]
    return any(symbol in symbols_of(text) for text in texts)


def _numpy(expression: Any) -> str:
    text = re.sub(r"\btop\(", "_top(", str(expression))
    return re.sub(r"\b(max|min|where)\(", lambda found: NUMPY[found[1]] + "(", text)


def _zeros(operation: Operation, output: Any) -> str:
    shape = ", ".join(map(_numpy, output.shape))
    shape = f"({shape},)" if len(output.shape) == 1 else f"({shape})"
    if output.feature:
        shape += f' if "{output.feature}" not in self.disabled else 0'
    kinds: Sequence[str] = [port.name for port in operation.ports if port.type == output.type]
    dtype = f"{kinds[0]}.dtype" if kinds else f"np.{_numpy_name(output.type)}"
    return f"{shape}, {dtype}"


def _numpy_name(kind: str) -> str:
    from conformance.spec.types import dtype

    return dtype(kind).name


def cpp_skeleton(operation: Operation, file: str, name: str) -> str:
    """A program that speaks the plug-in protocol; it refuses by checks written from the operation's data."""
    from conformance.backends.skeleton import cpp

    values = _common(operation, file, name) | cpp.checks(operation)
    values["stem"] = Path(file).stem
    for given, attribute in zip(values["attributes"], operation.attributes.items(), strict=True):
        given |= cpp.attribute(operation, *attribute)
    for given, port in zip(values["ports"], operation.ports, strict=True):
        given |= cpp.port(operation, port)
    return _rendered("backend.cpp.jinja", **values)
