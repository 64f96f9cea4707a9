"""What SparseAttentionIndexer refuses (ERR-1 to ERR-5), for adapters whose runtime does not say it in these terms.

Looks at types and shapes before values, and at no element but those of key_length: it is on the path of every call.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from conformance.backends.protocol import OperationConfig, Rejected

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

# Ports in order, and the dimensions of each by symbol.
AXES: Mapping[str, tuple[str, ...]] = {
    "index_query": ("N", "Hi", "L", "Di"),
    "block_index_keys": ("N", "B", "Di"),
    "key_length": ("N",),
    "index_weights": ("N", "L", "Hi"),
}
WEIGHTS = "index_weights"
ELEMENT_TYPES = ("f32", "f16", "bf16")
LENGTH_TYPES = ("i32", "i64")

# By kind and size, as NumPy writes them after the byte order; ml_dtypes.bfloat16 is the only V2 that has one.
_TYPE_NAMES = {"f4": "f32", "f2": "f16", "V2": "bf16", "i4": "i32", "i8": "i64"}


def check_attributes(config: OperationConfig, *, floor_budget: bool = False) -> None:
    """ERR-1 as far as no shape is needed, and the part of ERR-3 that is known before any call.

    Raises `Rejected` at "prepare": "attribute" for a key_block_size, token_budget or num_selection_heads below 1 and a
    budget that is not a multiple of the block size (with `floor_budget`: that holds no block), "type" for types outside
    the contract.
    """
    r, budget, heads = (
        _integer(config.attributes.get(name, default))
        for name, default in (("key_block_size", 0), ("token_budget", 0), ("num_selection_heads", 1))
    )
    wrong = []
    if r < 1:
        wrong.append("key_block_size")
    if budget < 1 or (r >= 1 and (budget < r if floor_budget else budget % r != 0)):
        wrong.append("token_budget")
    if heads < 1:
        wrong.append("num_selection_heads")
    if wrong:
        raise Rejected("attribute", "prepare", tuple(wrong))
    if config.element_type not in ELEMENT_TYPES:
        raise Rejected("type", "prepare", ("index_query",))
    if config.length_type not in LENGTH_TYPES:
        raise Rejected("type", "prepare", ("key_length",))


def check_call(config: OperationConfig, inputs: Mapping[str, Array]) -> None:
    """ERR-1 to ERR-5 for one call, in the order presence, types, ranks, dimensions, heads, values.

    `inputs` holds the ports by contract name, without index_weights when they are left out. Raises `Rejected` at "call"
    with kind "shape", "type", "attribute" or "value" and what is at fault; where dimensions contradict each other, the
    ports in the minority.
    """
    check_presence(config, inputs)
    check_types(config, inputs)
    check_shapes(inputs)
    check_heads(config, inputs)
    check_values(config, inputs)


def check_presence(config: OperationConfig, inputs: Mapping[str, Array]) -> None:
    """Every port is there but the weights, which are there unless they are switched off."""
    missing = tuple(name for name in AXES if name not in inputs and name != WEIGHTS)
    if missing:
        raise Rejected("shape", "call", missing)
    if (WEIGHTS in inputs) == ("weights" in config.disabled):
        raise Rejected("shape", "call", (WEIGHTS,))


def check_types(config: OperationConfig, inputs: Mapping[str, Array]) -> None:
    """ERR-3."""
    wrong = tuple(
        name
        for name in AXES
        if name in inputs
        and type_name(inputs[name].dtype) != (config.length_type if name == "key_length" else config.element_type)
    )
    if wrong:
        raise Rejected("type", "call", wrong)


def check_shapes(inputs: Mapping[str, Array]) -> None:
    """ERR-2: ranks, then N, L, Hi and Di, the same wherever they stand."""
    shapes = {name: inputs[name].shape for name in AXES if name in inputs}
    wrong = tuple(name for name, shape in shapes.items() if len(shape) != len(AXES[name]))
    if wrong:
        raise Rejected("shape", "call", wrong)
    if shapes["key_length"] == (1,):
        del shapes["key_length"]
    at_fault = set()
    for symbol in ("N", "Hi", "L", "Di"):
        said = {name: shape[AXES[name].index(symbol)] for name, shape in shapes.items() if symbol in AXES[name]}
        at_fault.update(_minority(said))
    if at_fault:
        raise Rejected("shape", "call", tuple(name for name in AXES if name in at_fault))


def check_heads(config: OperationConfig, inputs: Mapping[str, Array]) -> None:
    """ERR-1: num_selection_heads divides Hi."""
    if inputs["index_query"].shape[1] % int(config.attributes.get("num_selection_heads", 1)):
        raise Rejected("attribute", "call", ("num_selection_heads",))


def check_values(config: OperationConfig, inputs: Mapping[str, Array]) -> None:
    """ERR-5: no negative length, and a key for every complete block."""
    N = inputs["index_query"].shape[0]
    lengths = inputs["key_length"].tolist()
    if not N:
        return
    if min(lengths) < 0:
        raise Rejected("value", "call", ("key_length",))
    if inputs["block_index_keys"].shape[1] < max(lengths) // int(config.attributes["key_block_size"]):
        raise Rejected("value", "call", ("block_index_keys",))


@lru_cache(maxsize=64)
def type_name(dtype: Any) -> str | None:
    """The contract's name of a NumPy dtype ("f32", "f16", "bf16", "i32", "i64"), None when it has none."""
    return _TYPE_NAMES.get(dtype.str[1:]) if dtype.isnative and dtype.str[0] != "|" else None


def _integer(value: object) -> int:
    """The value when it is an integer, else 0; True is not an integer."""
    if isinstance(value, bool):
        return 0
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return 0


def _minority(said: Mapping[str, int]) -> list[str]:
    """The ports whose dimension most others contradict; on a tie the first is believed."""
    counts = Counter(said.values())
    most = max(counts.values(), default=0)
    believed = next((value for value in said.values() if counts[value] == most), 0)
    return [name for name, value in said.items() if value != believed]
