"""What the C++ skeleton needs of an operation's description: its expressions, checks and shapes as C++."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conformance.backends.refusals import kinds_of_presence, linear
from conformance.spec.expression import symbols_of

if TYPE_CHECKING:
    from conformance.spec.operation import Attribute, Operation, Port

OPERATORS: Mapping[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.BitAnd: "&&", ast.BitOr: "||", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
CALLS: Mapping[type, str] = {ast.FloorDiv: "floor_div", ast.Mod: "floor_mod"}


def cpp(expression: Any) -> str:
    """An expression of the description in C++. Raises `KeyError` for one with a function that C++ lacks."""
    return _printed(ast.parse(str(expression), mode="eval").body)


def _printed(node: ast.expr) -> str:
    match node:
        case ast.BinOp(left, operator, right):
            a, b = _printed(left), _printed(right)
            if type(operator) in CALLS:
                return f"{CALLS[type(operator)]}({a}, {b})"
            return f"({a} {OPERATORS[type(operator)]} {b})"
        case ast.Compare(left, operators, others):
            values = [left, *others]
            pairs = zip(values, operators, others, strict=False)
            return " && ".join(f"({_printed(a)} {OPERATORS[type(o)]} {_printed(b)})" for a, o, b in pairs)
        case ast.UnaryOp(ast.USub(), operand):
            return f"(-{_printed(operand)})"
        case ast.UnaryOp(ast.Invert(), operand):
            return f"(!{_printed(operand)})"
        case ast.Call(ast.Name("where"), [condition, yes, no]):
            return f"({_printed(condition)} ? {_printed(yes)} : {_printed(no)})"
        case ast.Call(ast.Name(function), [a, b]):
            return f"std::{ {'max': 'max', 'min': 'min'}[function] }<Int>({_printed(a)}, {_printed(b)})"
        case ast.Name(name):
            return name
        case ast.Constant(value):
            return str(value)
    raise KeyError(ast.unparse(node))


def attribute(operation: Operation, name: str, described: Attribute) -> dict[str, Any]:
    """How an attribute is declared, read and checked."""
    kind = {"integer": "Int", "number": "double", "boolean": "bool"}[described.type]
    read = f'number_of(given["{name}"])'
    symbols = {one.symbol for one in operation.attributes.values()}
    tests = []
    if described.least is not None:
        tests.append(f"{described.symbol} >= {cpp(described.least)}")
    if described.valid and symbols_of(described.valid) <= symbols:
        tests.append(cpp(described.valid))
    return {
        "cpp_type": kind,
        "cpp_read": f"{read} != 0" if kind == "bool" else read if kind == "double" else f"static_cast<Int>({read})",
        "cpp_tests": tests,
    }


def port(operation: Operation, described: Port) -> dict[str, Any]:
    """How presence, type, rank and dimensions of a port are checked."""
    name, feature = described.name, described.feature
    symbol = operation.types.get(described.type)
    allowed = {"T": ["type_"], "I": ["length_type_"]}.get(
        described.type, [f'"{one}"' for one in (symbol.choices if symbol else (described.type,))]
    )
    forms = [form for form in described.forms.values() if all(isinstance(size, int) for size in form)]
    forms += [(1,)] if name == operation.lengths else []
    ranks = sorted({len(described.shape), *map(len, forms)})
    fixed = [f'shape("{name}") != Shape{{{", ".join(map(str, form))}}}' for form in forms]
    on = f'on("{feature}") && ' if feature else ""
    axes = []
    for axis, size in enumerate(described.shape):
        found = linear(size, operation.dims)
        at = f'shape("{name}")[{axis}]'
        if found:
            factor = f", {found[1]}" if found[1] != 1 else ""
            axes.append(f'dims.say("{found[0]}", "{name}", {at}{factor});')
        elif not symbols_of(size) & operation.dims.keys():
            axes.append(f'dims.expect("{name}", {at}, {cpp(size)});')
    return {
        "cpp_may_miss": f' && on("{feature}")' if described.optional else "",
        "cpp_wrong_type": " && ".join(f'in.at("{name}").type != {one}' for one in allowed),
        "cpp_on": on,
        "cpp_wrong_rank": " && ".join(f'shape("{name}").size() != {rank}' for rank in ranks),
        "cpp_axes": axes,
        "cpp_usual": " && ".join([*([f'on("{feature}")'] if feature else []), *fixed]),
    }


def checks(operation: Operation) -> dict[str, Any]:
    """Presence of features' ports, and the conditions on a call and on its sequences."""
    presence = []
    for feature, kind in kinds_of_presence(operation).items():
        ports = [p for p in operation.ports if p.feature == feature]
        if len(ports) > 1 or ports[0].optional:
            names = ", ".join(f'"{p.name}"' for p in ports)
            presence.append({"name": feature, "kind": kind, "cpp_ports": names, "optional": ports[0].optional})
        else:
            presence.append({"name": feature, "kind": kind, "cpp_ports": f'"{ports[0].name}"', "optional": False})
    lines = [_derived(operation, p, axis) for p in operation.ports for axis in range(len(p.shape))]
    lines += [_condition(condition) for condition in operation.conditions if not _of_sequences(operation, condition)]
    for name, described in operation.attributes.items():
        if described.valid and symbols_of(described.valid) & operation.dims.keys():
            lines.append(f'if (!({cpp(described.valid)})) throw Refused{{"attribute", "call", {{"{name}"}}}};')
    sequences = [c for c in operation.conditions if _of_sequences(operation, c)]
    if sequences and operation.lengths:
        optional = operation.port[operation.lengths].optional
        guard = f'if (there("{operation.lengths}")) ' if optional else ""
        lines.append(f'{guard}for (const Int {operation.length} : integers_of(in.at("{operation.lengths}"))) {{')
        lines.append(f"    if ({operation.batch} == 0) break;")
        lines += [
            f"    [[maybe_unused]] const Int {name} = {cpp(symbol.expression)};"
            for name, symbol in operation.symbols.items()
        ]
        lines += [f"    {_condition(condition)}" for condition in sequences]
        lines.append("}")
    return {"presence": presence, "cpp_dims": list(operation.dims), "cpp_conditions": list(filter(None, lines))}


def _derived(operation: Operation, described: Port, axis: int) -> str:
    """The check of a dimension that follows from several others; nothing for any other dimension."""
    size = described.shape[axis]
    if linear(size, operation.dims) or not symbols_of(size) & operation.dims.keys():
        return ""
    on = f'on("{described.feature}") && ' if described.feature else ""
    name = described.name
    return f'if ({on}shape("{name}")[{axis}] != {cpp(size)}) throw Refused{{"shape", "call", {{"{name}"}}}};'


def _of_sequences(operation: Operation, condition: Any) -> bool:
    return bool(symbols_of(condition.holds) & {operation.length, *operation.symbols})


def _condition(condition: Any) -> str:
    names = ", ".join(f'"{name}"' for name in condition.names)
    on = f'on("{condition.when}") && ' if condition.when else ""
    return f'if ({on}!({cpp(condition.holds)})) throw Refused{{"{condition.kind}", "call", {{{names}}}}};'
