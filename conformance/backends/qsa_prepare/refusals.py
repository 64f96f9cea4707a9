"""What QSAPrepare refuses (ERR-1 to ERR-5), for adapters whose runtime does not say it in the contract's terms.

Looks at types and shapes before values, and at no element but those of key_length: it is on the path of every call.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from conformance.backends.protocol import OperationConfig, Rejected

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

RANKS = {
    "raw_index_keys": 3,
    "past_block_index_keys": 3,
    "key_length": 1,
    "rope_cos": 3,
    "rope_sin": 3,
    "k_norm_weight": 1,
    "past_incomplete_raw_keys": 3,
    "past_incomplete_rope": 2,
}
PORTS = tuple(RANKS)
ROPE_PORTS = ("rope_cos", "rope_sin", "past_incomplete_rope")
ELEMENT_TYPES = ("f32", "f16", "bf16")
LENGTH_TYPES = ("i32", "i64")
DEFAULT_EPSILON = 1e-6

# By kind and size, as NumPy writes them after the byte order; ml_dtypes.bfloat16 is the only V2 that has one.
_TYPE_NAMES = {"f4": "f32", "f2": "f16", "V2": "bf16", "i4": "i32", "i8": "i64"}


def check_attributes(config: OperationConfig) -> None:
    """ERR-1, and the part of ERR-3 that is known before any call.

    Raises `Rejected` at "prepare": "attribute" for key_block_size not an integer above 1 and for epsilon negative or
    NaN, "type" for a T that is not f32, f16 or bf16 and for a key_length that is not i32 or i64.
    """
    block_size, epsilon = config.attributes.get("key_block_size"), config.attributes.get("epsilon", DEFAULT_EPSILON)
    wrong = []
    if _integer(block_size) < 2:
        wrong.append("key_block_size")
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not epsilon >= 0:
        wrong.append("epsilon")
    if wrong:
        raise Rejected("attribute", "prepare", tuple(wrong))
    if config.element_type not in ELEMENT_TYPES:
        raise Rejected("type", "prepare", ("raw_index_keys",))
    if config.length_type not in LENGTH_TYPES:
        raise Rejected("type", "prepare", ("key_length",))


def check_call(config: OperationConfig, inputs: Mapping[str, Array]) -> None:
    """ERR-2 to ERR-5 for one call, in the order types, presence of the rope, ranks, dimensions, values.

    `inputs` holds all eight ports by contract name. Raises `Rejected` at "call" with kind "type", "rope", "shape" or
    "value" and the ports at fault; where dimensions contradict each other, the ports that are in the minority.
    """
    missing = tuple(name for name in PORTS if name not in inputs)
    if missing:
        raise Rejected("shape", "call", missing)
    _check_types(config, inputs)
    rotates = _check_rope(config, inputs)
    normalizes = "norm" not in config.disabled
    if not normalizes and not is_empty(inputs["k_norm_weight"].shape):
        raise Rejected("shape", "call", ("k_norm_weight",))
    shapes = {
        name: inputs[name].shape
        for name in PORTS
        if (rotates or name not in ROPE_PORTS) and (normalizes or name != "k_norm_weight")
    }
    _check_ranks(shapes)
    _check_dimensions(shapes, int(config.attributes["key_block_size"]) - 1)
    if rotates:
        _check_rotary_width(shapes)
    _check_values(config, inputs)


def is_empty(shape: tuple[int, ...]) -> bool:
    """OFF-3: whether a port of this shape is switched off: [0], [0, 0], [N, L, 0], but not [N, 0, Dr] with Dr > 0."""
    return bool(shape) and shape[-1] == 0


@lru_cache(maxsize=64)
def type_name(dtype: Any) -> str | None:
    """The contract's name of a NumPy dtype ("f32", "f16", "bf16", "i32", "i64"), None when it has none."""
    return _TYPE_NAMES.get(dtype.str[1:]) if dtype.isnative and dtype.str[0] != "|" else None


def _integer(value: object) -> int:
    """The value when it is an integer, else 0; True is no integer."""
    if isinstance(value, bool):
        return 0
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return 0


def _check_types(config: OperationConfig, inputs: Mapping[str, Array]) -> None:
    wrong = tuple(
        name
        for name in PORTS
        if type_name(inputs[name].dtype) != (config.length_type if name == "key_length" else config.element_type)
    )
    if wrong:
        raise Rejected("type", "call", wrong)


def _check_rope(config: OperationConfig, inputs: Mapping[str, Array]) -> bool:
    """ERR-4: all three rope ports are there, or none, as the configuration says. Returns whether they are."""
    rotates = "rope" not in config.disabled
    wrong = tuple(name for name in ROPE_PORTS if is_empty(inputs[name].shape) == rotates)
    if wrong:
        raise Rejected("rope", "call", wrong)
    return rotates


def _check_ranks(shapes: Mapping[str, tuple[int, ...]]) -> None:
    wrong = tuple(name for name, shape in shapes.items() if len(shape) != RANKS[name])
    if wrong:
        raise Rejected("shape", "call", wrong)


def _check_dimensions(shapes: Mapping[str, tuple[int, ...]], waiting_rows: int) -> None:
    """ERR-2: N, L, Di, Dr and r - 1 are the same wherever they stand."""
    N, L, Di = shapes["raw_index_keys"]
    expected: dict[str, tuple[int, ...]] = {
        "past_block_index_keys": (N, shapes["past_block_index_keys"][1], Di),
        "past_incomplete_raw_keys": (N, waiting_rows, Di),
    }
    if "k_norm_weight" in shapes:
        expected["k_norm_weight"] = (Di,)
    if shapes["key_length"] != (1,):
        expected["key_length"] = (N,)
    if "rope_cos" in shapes:
        Dr = shapes["rope_cos"][2]
        expected |= {"rope_cos": (N, L, Dr), "rope_sin": (N, L, Dr), "past_incomplete_rope": (N, 2 * Dr)}
    if any(shapes[name] != shape for name, shape in expected.items()):
        raise Rejected("shape", "call", _contradicting(shapes, waiting_rows))


def _contradicting(shapes: Mapping[str, tuple[int, ...]], waiting_rows: int) -> tuple[str, ...]:
    """The ports whose dimensions most others contradict; on a tie the raw index keys are believed."""
    at: dict[str, dict[str, float]] = {
        "N": {name: shape[0] for name, shape in shapes.items() if name != "k_norm_weight"},
        "L": {name: shapes[name][1] for name in ("raw_index_keys", "rope_cos", "rope_sin") if name in shapes},
        "Di": {
            name: shapes[name][-1]
            for name in ("raw_index_keys", "past_block_index_keys", "past_incomplete_raw_keys", "k_norm_weight")
            if name in shapes
        },
        "Dr": {
            name: shapes[name][-1] / (2 if name == "past_incomplete_rope" else 1)
            for name in ROPE_PORTS
            if name in shapes
        },
    }
    if shapes["key_length"] == (1,):
        del at["N"]["key_length"]
    wrong = {name for said in at.values() for name in _minority(said)}
    if shapes["past_incomplete_raw_keys"][1] != waiting_rows:
        wrong.add("past_incomplete_raw_keys")
    return _in_order(wrong)


def _minority(said: Mapping[str, float]) -> list[str]:
    counts = Counter(said.values())
    if len(counts) < 2:
        return []
    most = max(counts.values())
    believed = [value for value, count in counts.items() if count == most]
    value = said["raw_index_keys"] if said.get("raw_index_keys") in believed else believed[0]
    return [name for name in said if said[name] != value]


def _check_rotary_width(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """ERR-4: Dr is even and at most Di."""
    Dr = shapes["rope_cos"][2]
    if Dr % 2 or Dr > shapes["raw_index_keys"][2]:
        raise Rejected("rope", "call", ROPE_PORTS)


def _check_values(config: OperationConfig, inputs: Mapping[str, Array]) -> None:
    """ERR-5: no negative length, and a row of past_block_index_keys for every block finished before this call."""
    lengths = inputs["key_length"].tolist()
    if lengths and min(lengths) < 0:
        raise Rejected("value", "call", ("key_length",))
    N, L, _ = inputs["raw_index_keys"].shape
    if not N:
        return
    finished = max(max(lengths) - L, 0) // int(config.attributes["key_block_size"])
    if inputs["past_block_index_keys"].shape[1] < finished:
        raise Rejected("value", "call", ("past_block_index_keys",))


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    chosen = set(names)
    return tuple(name for name in PORTS if name in chosen)
