"""Small arithmetic expressions of operation.yaml and the case library, over numbers or NumPy arrays.

Only names, numbers, `+ - * // % & | ~`, comparisons, and the functions `max`, `min` and `top` are let through.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Name, ast.Constant, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr, ast.USub, ast.Invert,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq,
)  # fmt: skip


class ExpressionError(ValueError):
    """The text is no expression of the allowed kind, or names an unknown symbol."""


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


FUNCTIONS: Mapping[str, Callable[..., Any]] = {"max": _greatest, "min": _least, "top": _top}
_GLOBALS = {"__builtins__": {}, **FUNCTIONS}


@lru_cache(maxsize=4096)
def _compiled(text: str) -> tuple[CodeType, frozenset[str]]:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ExpressionError(f"'{text}' is no expression: {error.msg}") from None
    names = set()
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ExpressionError(f"'{text}': {type(node).__name__} is not allowed in an expression")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS):
            raise ExpressionError(f"'{text}': only the functions {', '.join(sorted(FUNCTIONS))} can be called")
        if isinstance(node, ast.Constant) and type(node.value) not in (int, float):
            raise ExpressionError(f"'{text}': {node.value!r} is no number")
        if isinstance(node, ast.Name):
            names.add(node.id)
    return compile(tree, text, "eval"), frozenset(names - FUNCTIONS.keys())


def evaluate(text: str | int | float, symbols: Mapping[str, Any]) -> Any:
    """The value of an expression; a number stands for itself.

    Raises `ExpressionError` when the text is not an expression or uses a symbol that is not there.
    """
    if not isinstance(text, str):
        return text
    code, names = _compiled(text)
    try:
        return eval(code, _GLOBALS, symbols)
    except NameError:
        known, missing = ", ".join(sorted(symbols)), ", ".join(sorted(names - symbols.keys()))
        raise ExpressionError(f"'{text}': unknown symbol {missing} (known: {known})") from None
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ExpressionError(f"'{text}': {error}") from None


def symbols_of(text: str | int | float) -> frozenset[str]:
    """The symbols that an expression uses."""
    return _compiled(text)[1] if isinstance(text, str) else frozenset()
