"""Refusals by an operation's data, on QSAPrepare (ERR-1 to ERR-5, OFF-3): who is refused, as what, and who is named."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.backends.protocol import OperationConfig, Rejected, Unsupported
from conformance.backends.refusals import checker, is_empty, type_name

N, L, Bp, Di, Dr, r = 3, 5, 4, 8, 6, 4
ROPE = ("rope_cos", "rope_sin", "past_incomplete_rope")
SHAPES: dict[str, tuple[int, ...]] = {
    "raw_index_keys": (N, L, Di),
    "past_block_index_keys": (N, Bp, Di),
    "key_length": (N,),
    "rope_cos": (N, L, Dr),
    "rope_sin": (N, L, Dr),
    "k_norm_weight": (Di,),
    "past_incomplete_raw_keys": (N, r - 1, Di),
    "past_incomplete_rope": (N, 2 * Dr),
}


def config(*disabled: str, element_type: str = "f32", length_type: str = "i64", **attributes: Any) -> OperationConfig:
    attributes = {"key_block_size": r, "epsilon": 1e-6} | attributes
    return OperationConfig("QSAPrepare", attributes, element_type, length_type, frozenset(disabled))


def inputs(**other: Any) -> dict[str, Any]:
    """Arrays of the shapes above; a tuple replaces a shape, anything else the array."""
    arrays: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        given = other.get(name, shape)
        dtype = np.int64 if name == "key_length" else np.float32
        arrays[name] = np.full(given, 7 if name == "key_length" else 0, dtype) if isinstance(given, tuple) else given
    return arrays


def check_attributes(config: OperationConfig) -> None:
    checker(config)


def check_call(config: OperationConfig, inputs: dict[str, Any]) -> None:
    checker(config).check(inputs)


def refused(call: Any, *arguments: Any) -> tuple[str, str, tuple[str, ...]]:
    with pytest.raises(Rejected) as caught:
        call(*arguments)
    return caught.value.kind, caught.value.phase, caught.value.names


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ({"key_block_size": 1}, ("key_block_size",)),
        ({"key_block_size": 0}, ("key_block_size",)),
        ({"key_block_size": -4}, ("key_block_size",)),
        ({"key_block_size": 4.0}, ("key_block_size",)),
        ({"key_block_size": True}, ("key_block_size",)),
        ({"key_block_size": None}, ("key_block_size",)),
        ({"epsilon": -1e-9}, ("epsilon",)),
        ({"epsilon": math.nan}, ("epsilon",)),
        ({"epsilon": None}, ("epsilon",)),
        ({"key_block_size": 1, "epsilon": -1.0}, ("key_block_size", "epsilon")),
    ],
)
def test_attributes_out_of_range(attributes: dict[str, Any], names: tuple[str, ...]) -> None:
    assert refused(check_attributes, config(**attributes)) == ("attribute", "prepare", names)


def test_attributes_in_range() -> None:
    check_attributes(config(key_block_size=2, epsilon=0.0))
    check_attributes(config(key_block_size=np.int64(3), epsilon=1))
    check_attributes(OperationConfig("QSAPrepare", {"key_block_size": 2}, "bf16", "i32", frozenset({"rope"})))


def test_types_that_are_known_at_preparation() -> None:
    assert refused(check_attributes, config(element_type="i32")) == ("type", "prepare", ("raw_index_keys",))
    assert refused(check_attributes, config(length_type="u64")) == ("type", "prepare", ("key_length",))


def test_names_of_types() -> None:
    known = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i32": np.int32, "i64": np.int64}
    assert {name: type_name(np.dtype(kind)) for name, kind in known.items()} == {name: name for name in known}
    assert {type_name(np.dtype(kind)) for kind in (np.float64, np.int16, np.uint8, np.uint32, np.uint64, bool)} == {
        "f64", "i16", "u8", "u32", "u64", "bool",
    }  # fmt: skip
    for other in (">f4", "V2", ml_dtypes.float8_e5m2, np.complex64, "S4"):
        assert type_name(np.dtype(other)) is None


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("other", [np.float16, np.float64, np.int8, ml_dtypes.bfloat16, ">f4", np.uint32, np.uint64])
def test_types_of_a_call(name: str, other: Any) -> None:
    given = inputs(**{name: np.zeros(SHAPES[name], other)})
    assert refused(check_call, config(), given) == ("type", "call", (name,))


def test_length_type_is_the_prepared_one() -> None:
    short = inputs(key_length=np.zeros(N, np.int32))
    assert refused(check_call, config(length_type="i64"), short) == ("type", "call", ("key_length",))
    check_call(config(length_type="i32"), short)


@pytest.mark.parametrize("name", SHAPES)
def test_wrong_rank(name: str) -> None:
    assert refused(check_call, config(), inputs(**{name: (*SHAPES[name], 1)})) == ("shape", "call", (name,))
    assert refused(check_call, config(), inputs(**{name: ()})) == ("shape", "call", (name,))
    if len(SHAPES[name]) > 1:
        assert refused(check_call, config(), inputs(**{name: SHAPES[name][1:]})) == ("shape", "call", (name,))


@pytest.mark.parametrize(
    ("name", "axis"), [(name, axis) for name, shape in SHAPES.items() for axis in range(len(shape))]
)
@pytest.mark.parametrize("step", [2, -2])
def test_the_one_port_that_contradicts_is_named(name: str, axis: int, step: int) -> None:
    shape = list(SHAPES[name])
    shape[axis] += step
    given = inputs(**{name: tuple(shape)})
    if (name, axis) == ("past_block_index_keys", 1):
        check_call(config(), given)  # Bp is free
        return
    if (name, shape) == ("key_length", [1]):
        check_call(config(), given)  # LEN-2
        return
    assert refused(check_call, config(), given) == ("shape", "call", (name,))


def test_believes_the_raw_keys_on_a_tie() -> None:
    off = config("rope", "norm")
    empty = dict.fromkeys((*ROPE, "k_norm_weight"), (0,))
    given = inputs(raw_index_keys=(2, L, Di), past_incomplete_raw_keys=(2, r - 1, Di), **empty)
    assert refused(check_call, off, given) == ("shape", "call", ("past_block_index_keys", "key_length"))


def test_a_missing_port_is_named() -> None:
    given = inputs()
    del given["rope_sin"]
    assert refused(check_call, config(), given) == ("shape", "call", ("rope_sin",))


@pytest.mark.parametrize("name", ROPE)
def test_rope_all_or_none(name: str) -> None:
    assert refused(check_call, config(), inputs(**{name: (0,)})) == ("rope", "call", (name,))
    rest = {other: (0,) for other in ROPE if other != name}
    assert refused(check_call, config("rope"), inputs(**rest)) == ("rope", "call", (name,))


@pytest.mark.parametrize("width", [5, 7, 10])
def test_rotary_width_odd_or_too_wide(width: int) -> None:
    rope = {"rope_cos": (N, L, width), "rope_sin": (N, L, width), "past_incomplete_rope": (N, 2 * width)}
    assert refused(check_call, config(), inputs(**rope)) == ("rope", "call", ("rope_cos", "rope_sin", ROPE[2]))


def test_rotary_width_up_to_the_key_width() -> None:
    for width in (2, Di):
        check_call(
            config(), inputs(rope_cos=(N, L, width), rope_sin=(N, L, width), past_incomplete_rope=(N, 2 * width))
        )


@pytest.mark.parametrize("cos", [(0,), (0, 0), (0, 0, 0), (N, L, 0)])
@pytest.mark.parametrize("state", [(0,), (N, 0), (0, 0)])
def test_shapes_that_switch_rope_off(cos: tuple[int, ...], state: tuple[int, ...]) -> None:
    check_call(config("rope"), inputs(rope_cos=cos, rope_sin=cos, past_incomplete_rope=state))


def test_no_tokens_or_no_sequences_is_not_off() -> None:
    assert not is_empty((N, 0, Dr)) and not is_empty((0, L, Dr)) and not is_empty(())
    no_tokens = {"raw_index_keys": (N, 0, Di), "rope_cos": (N, 0, Dr), "rope_sin": (N, 0, Dr)}
    check_call(config(), inputs(**no_tokens))
    assert refused(check_call, config("rope"), inputs(**no_tokens)) == (
        "rope",
        "call",
        ("rope_cos", "rope_sin", ROPE[2]),
    )
    nothing: dict[str, Any] = {name: (0, *shape[1:]) for name, shape in SHAPES.items() if name != "k_norm_weight"}
    check_call(config(), inputs(**nothing))


def test_norm_as_prepared() -> None:
    check_call(config("norm"), inputs(k_norm_weight=(0,)))
    assert refused(check_call, config("norm"), inputs()) == ("shape", "call", ("k_norm_weight",))
    assert refused(check_call, config(), inputs(k_norm_weight=(0,))) == ("shape", "call", ("k_norm_weight",))


def test_values() -> None:
    negative = inputs(key_length=np.array([7, -1, 7]))
    assert refused(check_call, config(), negative) == ("value", "call", ("key_length",))
    enough = np.array([0, L + Bp * r + r - 1, 3])
    check_call(config(), inputs(key_length=enough))
    assert refused(check_call, config(), inputs(key_length=enough + 1)) == ("value", "call", ("past_block_index_keys",))
    check_call(config(), inputs(key_length=np.array([L + Bp * r])))


def test_a_length_for_no_sequences_needs_no_past() -> None:
    nothing: dict[str, Any] = {name: (0, *shape[1:]) for name, shape in SHAPES.items() if name != "k_norm_weight"}
    check_call(config(), inputs(**(nothing | {"key_length": np.array([1000])})))


def test_types_are_looked_at_before_shapes_and_shapes_before_values() -> None:
    given = inputs(raw_index_keys=(N, L), key_length=np.full(N, -1), rope_sin=np.zeros((0,), np.float16))
    assert refused(check_call, config(), given)[0] == "type"
    given["rope_sin"] = np.zeros((0,), np.float32)
    assert refused(check_call, config(), given) == ("rope", "call", ("rope_sin",))
    given["rope_sin"] = np.zeros(SHAPES["rope_sin"], np.float32)
    assert refused(check_call, config(), given) == ("shape", "call", ("raw_index_keys",))
    given["raw_index_keys"] = np.zeros(SHAPES["raw_index_keys"], np.float32)
    assert refused(check_call, config(), given) == ("value", "call", ("key_length",))


def test_another_operation_is_unsupported() -> None:
    other = OperationConfig("SomethingElse", {}, "f32", "i64", frozenset())
    with pytest.raises(Unsupported, match="SomethingElse"):
        checker(other, "QSAPrepare")
    with pytest.raises(Unsupported, match="does not describe"):
        checker(other)


def test_what_was_accepted_is_not_accepted_with_other_lengths() -> None:
    check = checker(config()).check
    for _ in range(2):
        check(inputs())
        negative = inputs(key_length=np.array([7, -1, 7]))
        assert refused(check, negative) == ("value", "call", ("key_length",))


def test_many_lengths_are_checked_as_few_are() -> None:
    n = 50
    many: dict[str, Any] = {
        name: (n, *s[1:]) for name, s in SHAPES.items() if name not in ("k_norm_weight", "key_length")
    }
    check = checker(config()).check
    check(inputs(**many, key_length=np.arange(n) % (L + Bp * r + r)))
    assert refused(check, inputs(**many, key_length=np.arange(n) - 1)) == ("value", "call", ("key_length",))
    long = np.arange(n) + L + Bp * r
    assert refused(check, inputs(**many, key_length=long)) == ("value", "call", ("past_block_index_keys",))
