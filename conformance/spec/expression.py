"""Small arithmetic expressions of operation.yaml and the case library, over numbers or NumPy arrays.

Let through are names, numbers, `+ - * // % ** & | ~`, comparisons, and the functions `max`, `min`, `top` and `where`.
A text has a budget of characters, depth and operations, and a number one of 64 bits, so that nothing written in a file
can hang or exhaust the process.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any, cast

CHARACTERS = 1000  # of an expression
OPERATIONS = 200  # nodes of its tree
DEPTH = 40  # of its tree
LARGEST = 2**63 - 1  # absolute value of a whole number

_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Name, ast.Constant, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr, ast.USub, ast.UAdd, ast.Invert,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq,
)  # fmt: skip


class ExpressionError(ValueError):
    """The text is not an expression of the allowed kind, names an unknown symbol, or has no value."""


def _greatest(a: Any, b: Any) -> Any:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return max(a, b)
    import numpy as np

    return np.maximum(a, b)


def _least(a: Any, b: Any) -> Any:
    return -_greatest(-a, -b)


def _top(values: Any) -> int:
    """The largest value of a per-sequence symbol, 0 when there is no sequence."""
    return int(max(values, default=0))


def _where(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`."""
    if isinstance(condition, bool | int | float):
        return yes if condition else no
    import numpy as np

    return np.where(condition, yes, no)


def _power(base: Any, exponent: Any) -> Any:
    """A power, refused before it is computed where it would be beyond 64 bits."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if abs(base) > 1 and exponent * math.log2(abs(base)) >= 63:
            raise OverflowError("a number beyond 64 bits")
        return base**exponent
    if isinstance(base, int | float) and isinstance(exponent, int | float):
        if base < 0 and exponent != int(exponent):
            raise ValueError("a root of a negative number")
        return base**exponent
    if isinstance(exponent, int) and not 0 <= exponent <= 62:
        raise OverflowError("a power of an array beyond 62")
    return base**exponent


def _not(value: Any) -> Any:
    return not value if isinstance(value, bool) else ~value


def _among(numbers: Any, entries: Any, counts: Any) -> Any:
    """Whether a number is one of the first `counts` of the entries of some row, in the same sequence."""
    import numpy as np

    numbers, entries = np.asarray(numbers), np.asarray(entries)
    most = int(numbers.max(initial=-1)) + 1
    listed = (np.arange(entries.shape[-1]) < np.asarray(counts)[..., None]) & (entries >= 0) & (entries < most)
    table = np.zeros((len(entries), max(most, 1)), dtype=bool)
    table[np.nonzero(listed)[0], entries[listed]] = True
    sequence = np.arange(len(entries)).reshape(-1, *(1,) * (numbers.ndim - 1))
    return table[sequence, np.maximum(numbers, 0)] & (numbers >= 0)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "max": _greatest, "min": _least, "top": _top, "where": _where, "among": _among,
}  # fmt: skip
ARGUMENTS = {"max": 2, "min": 2, "top": 1, "where": 3, "among": 3}
GATHERED = {"among": (1, 2)}  # arguments that are the values of a port as they are, not laid along any axes
_GLOBALS = {"__builtins__": {}, "_power": _power, "_not": _not, **FUNCTIONS}


class _Guarded(ast.NodeTransformer):
    """Powers and negations as calls of functions that look at their arguments first."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return self._call("_power", node.left, node.right) if isinstance(node.op, ast.Pow) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self._call("_not", node.operand) if isinstance(node.op, ast.Invert) else node

    def _call(self, name: str, *arguments: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


@lru_cache(maxsize=4096)
def _compiled(text: str) -> tuple[CodeType, frozenset[str]]:
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    if len(text) > CHARACTERS:
        raise ExpressionError(f"'{shown}' has {len(text)} characters; an expression has at most {CHARACTERS}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ExpressionError(f"'{shown}' is not an expression: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionError(
            f"'{shown}' is not an expression: it is nested too deeply or has odd characters"
        ) from None
    names = set()
    count, waiting = 0, [(cast(ast.AST, tree), 0)]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > OPERATIONS or depth > DEPTH:
            raise ExpressionError(f"'{shown}' is too long or nested too deeply")
        if not isinstance(node, _NODES):
            raise ExpressionError(f"'{shown}': {type(node).__name__} is not allowed in an expression")
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS):
                raise ExpressionError(f"'{shown}': only the functions {', '.join(sorted(FUNCTIONS))} can be called")
            if node.keywords or len(node.args) != ARGUMENTS[node.func.id]:
                raise ExpressionError(f"'{shown}': {node.func.id} takes {ARGUMENTS[node.func.id]} arguments")
            waiting += [(argument, depth + 1) for argument in node.args]
            continue
        if isinstance(node, ast.Constant):
            if type(node.value) not in (int, float):
                raise ExpressionError(f"'{shown}': {node.value!r} is not a number")
            if isinstance(node.value, int) and node.value > LARGEST:
                raise ExpressionError(f"'{shown}': a number beyond 64 bits")
        if isinstance(node, ast.Name):
            if node.id in FUNCTIONS or node.id.startswith("_"):
                raise ExpressionError(f"'{shown}': '{node.id}' cannot be used as a symbol")
            names.add(node.id)
        waiting += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
    guarded = ast.fix_missing_locations(_Guarded().visit(tree))
    return compile(guarded, "expression", "eval"), frozenset(names)


def evaluate(text: str | int | float, symbols: Mapping[str, Any]) -> Any:
    """The value of an expression; a number stands for itself.

    Raises `ExpressionError` when the text is not an expression, uses a symbol that is not there, or has no value that
    fits 64 bits.
    """
    if not isinstance(text, str):
        return text
    code, names = _compiled(text)
    try:
        value = eval(code, _GLOBALS, symbols)
    except NameError:
        known, missing = ", ".join(sorted(symbols)), ", ".join(sorted(names - symbols.keys()))
        raise ExpressionError(f"'{text}': unknown symbol {missing} (known: {known})") from None
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ExpressionError(f"'{text}': {error}") from None
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ExpressionError(f"'{text}': a number beyond 64 bits")
    return value


def whole(text: str | int | float, symbols: Mapping[str, Any]) -> int:
    """The value of an expression that must be a whole number. Raises `ExpressionError`."""
    value = evaluate(text, symbols)
    try:
        number = operator.index(value)
    except TypeError:
        raise ExpressionError(f"'{text}' must be a whole number, and is {value!r}") from None
    if isinstance(text, bool):
        raise ExpressionError(f"'{text}' is a truth value, not a whole number")
    return number


@lru_cache(maxsize=1024)
def gathered_by(text: str) -> frozenset[str]:
    """The symbols that an expression takes the values of as they are, as arguments of `among`."""
    _compiled(text)
    calls = [node for node in ast.walk(ast.parse(text.strip(), mode="eval")) if isinstance(node, ast.Call)]
    arguments = [c.args[i] for c in calls if isinstance(c.func, ast.Name) for i in GATHERED.get(c.func.id, ())]
    return frozenset(node.id for node in arguments if isinstance(node, ast.Name))


def symbols_of(text: str | int | float) -> frozenset[str]:
    """The symbols that an expression uses. Raises `ExpressionError`."""
    return _compiled(text)[1] if isinstance(text, str) else frozenset()
