"""The exact oracle against examples worked out by hand, and against itself over split streams and batches.

X marks a don't-care element: as an input it would make the oracle raise if it were read, in an expectation
it is what the oracle has to return for an unspecified element.
"""

import ast
import inspect
import math
import sys
from fractions import Fraction
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.qsa_prepare import naive
from reference.qsa_prepare.naive import qsa_prepare, rotary_width, to_float64

X = None
NAN, INF = math.nan, math.inf


def cells(nested: Any, *shape: int) -> np.ndarray:
    """An object array of that shape, all X when nested is X; a nested list alone cannot say [1, 0, 2]."""
    array = np.full(shape, X, dtype=object)
    if array.size and nested is not X:
        assert np.shape(nested) == shape
        for index in np.ndindex(*shape):
            value = nested
            for i in index:
                value = value[i]
            array[index] = value
    return array


def call(
    raw: Any,
    S: Any,
    r: int,
    *,
    Di: int = 2,
    Bp: int = 0,
    past_blocks: Any = X,
    cos: Any = X,
    sin: Any = X,
    weight: Any = X,
    past_raw: Any = X,
    past_rope: Any = X,
    epsilon: float = 0,
) -> dict[str, Any]:
    """One call from nested lists. What is left out is unspecified (state) or switched off (rope, weight)."""
    N = len(raw)
    L = len(raw[0]) if raw else 0
    Dr = len(cos[0][0]) if cos else 0
    inputs = {
        "raw_index_keys": cells(raw, N, L, Di),
        "past_block_index_keys": cells(past_blocks, N, Bp, Di),
        "key_length": np.array(S, dtype=np.int64),
        "rope_cos": cells(cos, N, L, Dr) if Dr else cells(X, 0),
        "rope_sin": cells(sin, N, L, Dr) if Dr else cells(X, 0),
        "k_norm_weight": cells(weight, Di) if weight else cells(X, 0),
        "past_incomplete_raw_keys": cells(past_raw, N, r - 1, Di),
        "past_incomplete_rope": cells(past_rope, N, 2 * Dr) if Dr else cells(X, 0),
    }
    return {name: output.tolist() for name, output in qsa_prepare(inputs, r, epsilon).items()}


def keys(outputs: dict[str, Any]) -> Any:
    return outputs["block_index_keys"]


def state(outputs: dict[str, Any]) -> Any:
    return outputs["present_incomplete_raw_keys"]


def rope(outputs: dict[str, Any]) -> Any:
    return outputs["present_incomplete_rope"]


# Worked out by hand -------------------------------------------------------------------------------------------


def test_blocks_are_means_and_the_rest_waits() -> None:
    out = call([[[1, 10], [3, 20], [5, 0], [6, 1], [7, 8]]], [5], 2)
    # (1 + 3) / 2 = 2, (10 + 20) / 2 = 15; (5 + 6) / 2 = 11/2, (0 + 1) / 2 = 1/2; the fifth key waits
    assert keys(out) == [[[2, 15], [Fraction(11, 2), Fraction(1, 2)]]]
    assert state(out) == [[[7, 8]]]
    assert rope(out) == []


def test_mean_of_a_block_that_is_no_power_of_two() -> None:
    out = call([[[1], [1], [2], [0], [0], [0], [1]]], [7], 7, Di=1)
    assert keys(out) == [[[Fraction(5, 7)]]]  # 1 + 1 + 2 + 1 = 5


def test_straddling_block_takes_its_first_keys_from_the_state() -> None:
    out = call(
        [[[9, 0], [2, 2]]],
        [6],  # past 4 = 1 * 3 + 1, so one block is finished and one key waits; q' = 0
        3,
        Bp=1,
        past_blocks=[[[7, 7]]],
        past_raw=[[[1, 4], [X, X]]],
    )
    assert keys(out) == [[[7, 7], [4, 2]]]  # (1 + 9 + 2) / 3, (4 + 0 + 2) / 3
    assert state(out) == [[[X, X], [X, X]]]


def test_straddling_block_a_whole_one_and_an_open_one() -> None:
    out = call([[[5], [1], [2], [6], [8]]], [7], 3, Di=1, past_raw=[[[1], [3]]])
    assert keys(out) == [[[3], [3]]]  # t0 t1 | t2: (1 + 3 + 5) / 3; t3 t4 t5: (1 + 2 + 6) / 3
    assert state(out) == [[[8], [X]]]


def test_ragged_batch_counts_per_sequence() -> None:
    out = call(
        [[[1], [2]], [[3], [9]], [[4], [5]]],
        [2, 3, 6],  # past 0, 1, 4: c 0 0 1, q 0 1 1; c' 0 1 2, q' 2 0 0
        3,
        Di=1,
        Bp=1,
        past_blocks=[[[X]], [[X]], [[77]]],
        past_raw=[[[X], [X]], [[6], [X]], [[0], [X]]],
    )
    assert keys(out) == [[[X], [X]], [[6], [X]], [[77], [3]]]  # (6 + 3 + 9) / 3; (0 + 4 + 5) / 3
    assert state(out) == [[[1], [2]], [[X], [X]], [[X], [X]]]


def test_one_length_for_the_batch() -> None:
    out = call([[[1], [3]], [[5], [9]]], [2], 2, Di=1)
    assert keys(out) == [[[2]], [[7]]]


def test_left_padding_shifts_the_first_token() -> None:
    out = call(
        [[[X, X], [2, 0], [4, 6], [5, 5]]],
        [3],  # pad 1: tokens are rows 1, 2, 3
        2,
        cos=[[[X, X], [1, 1], [X, X], [3, 4]]],
        sin=[[[X, X], [2, 0], [X, X], [5, 6]]],
    )
    # m = [3, 3], rope of row 1: 3 * 1 - 3 * 2 = -3, 3 * 1 + 3 * 0 = 3
    assert keys(out) == [[[-3, 3]]]
    assert state(out) == [[[5, 5]]]
    assert rope(out) == [[3, 4, 5, 6]]


def test_rotation_pairs_the_halves_of_the_rotary_width() -> None:
    out = call(
        [[[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]],
        [2],
        2,
        Di=5,
        cos=[[[1, 2, 3, 4], [X] * 4]],
        sin=[[[10, 20, 30, 40], [X] * 4]],
    )
    # pairs (1, 3) and (2, 4); 5 passes: 1 - 3 * 10, 2 * 2 - 4 * 20, 3 * 3 + 1 * 30, 4 * 4 + 2 * 40
    assert keys(out) == [[[-29, -76, 39, 96, 5]]]


def test_carried_rope_serves_the_straddling_block_only() -> None:
    out = call(
        [[[4, 2], [1, 1], [3, 1], [8, 9]]],
        [5],
        2,
        past_raw=[[[2, 2]]],
        past_rope=[[1, 0, 2, 3]],
        cos=[[[X, X], [1, 1], [X, X], [5, 6]]],
        sin=[[[X, X], [1, 4], [X, X], [7, 8]]],
    )
    # block 0: m = [3, 2], carried cos [1, 0], sin [2, 3]: 3 - 2 * 2 = -1, 0 + 3 * 3 = 9
    # block 1: m = [2, 1], row 1: 2 - 1 * 1 = 1, 1 + 2 * 4 = 9; row 3 opens the next block
    assert keys(out) == [[[-1, 9], [1, 9]]]
    assert state(out) == [[[8, 9]]]
    assert rope(out) == [[5, 6, 7, 8]]


def test_carried_rope_is_handed_on_while_the_block_stays_open() -> None:
    out = call(
        [[[3, 4]]],
        [2],
        3,
        past_raw=[[[1, 2], [X, X]]],
        past_rope=[[5, 6, 7, 8]],
        cos=[[[X, X]]],
        sin=[[[X, X]]],
    )
    assert keys(out) == [[]]
    assert state(out) == [[[1, 2], [3, 4]]]
    assert rope(out) == [[5, 6, 7, 8]]


def test_normalization_by_a_perfect_square() -> None:
    out = call([[[1, 5], [1, 9]]], [2], 2, weight=[10, -5])
    # m = [1, 7], (1 + 49) / 2 = 25, root 5: 1 / 5 * 10 = 2, 7 / 5 * -5 = -7
    assert keys(out) == [[[2, -7]]]


def test_epsilon_stands_inside_the_root() -> None:
    out = call([[[2, 4], [2, 4]]], [2], 2, weight=[1, 1], epsilon=6)
    # (4 + 16) / 2 + 6 = 16, root 4
    assert keys(out) == [[[Fraction(1, 2), 1]]]


def test_mean_square_runs_over_the_unrotated_elements_too() -> None:
    out = call(
        [[[3, 3, 9, 15], [0, 0, 0, 0], [0, 0, 0, 0]]],
        [3],
        3,
        Di=4,
        cos=[[[1, 1], [X, X], [X, X]]],
        sin=[[[1, 2], [X, X], [X, X]]],
        weight=[3, 6, 9, 12],
    )
    # m = [1, 1, 3, 5], (1 + 1 + 9 + 25) / 4 = 9, root 3: y = [1, 2, 9, 20]; 1 - 2 * 1 = -1, 2 + 1 * 2 = 4
    assert keys(out) == [[[-1, 4, 9, 20]]]


def test_zero_block_gives_zeros_with_a_positive_epsilon() -> None:
    out = call([[[4, -1], [-4, 1]]], [2], 2, weight=[3, 3], epsilon=1)
    assert keys(out) == [[[0, 0]]]


def test_past_keys_are_copied_and_the_rows_beyond_them_ignored() -> None:
    out = call([[[1, 1]]], [5], 2, Bp=4, past_blocks=[[[NAN, 2], [-INF, 4], [X, X], [X, X]]], weight=[1, 1])
    assert str(keys(out)) == "[[[nan, Fraction(2, 1)], [-inf, Fraction(4, 1)]]]"  # str, for NaN is no equal of itself
    assert state(out) == [[[1, 1]]]


def test_no_new_tokens_hand_everything_on() -> None:
    out = call([[]], [3], 2, Bp=1, past_blocks=[[[1, 2]]], past_raw=[[[3, 4]]])
    assert keys(out) == [[[1, 2]]]
    assert state(out) == [[[3, 4]]]


# Edges --------------------------------------------------------------------------------------------------------


def empty_call(N: int, L: int, Dr: int, S: list[int], r: int = 3) -> dict[str, np.ndarray]:
    inputs = {
        "raw_index_keys": np.zeros((N, L, 4), np.float32),
        "past_block_index_keys": np.zeros((N, 0, 4), np.float32),
        "key_length": np.array(S, np.int32),
        "rope_cos": np.zeros((N, L, Dr), np.float32),
        "rope_sin": np.zeros((N, L, Dr), np.float32),
        "k_norm_weight": np.ones(4, np.float32),
        "past_incomplete_raw_keys": np.zeros((N, r - 1, 4), np.float32),
        "past_incomplete_rope": np.zeros((N, 2 * Dr), np.float32),
    }
    return qsa_prepare(inputs, r)


@pytest.mark.parametrize(
    ("N", "L", "S"), [(0, 0, []), (0, 3, [5]), (2, 0, [0, 0]), (2, 0, [0]), (2, 5, [0, 0]), (1, 2, [2])]
)
def test_nothing_to_compute(N: int, L: int, S: list[int]) -> None:
    out = empty_call(N, L, 2, S)
    shapes = {name: output.shape for name, output in out.items()}
    assert shapes == {
        "block_index_keys": (N, 0, 4),
        "present_incomplete_raw_keys": (N, 2, 4),
        "present_incomplete_rope": (N, 4),
    }


@pytest.mark.parametrize(
    ("shape", "Dr"), [((0,), 0), ((0, 0), 0), ((0, 0, 0), 0), ((2, 3, 0), 0), ((2, 0, 6), 6), ((0, 3, 2), 2)]
)
def test_which_shapes_of_cos_switch_rotation_off(shape: tuple[int, ...], Dr: int) -> None:
    assert rotary_width(np.zeros(shape)) == Dr


@pytest.mark.parametrize(
    ("dtype", "smallest", "third"),
    [
        (np.float32, Fraction(1, 2**149), Fraction(11184811, 2**25)),
        (np.float16, Fraction(1, 2**24), Fraction(1365, 2**12)),
        (ml_dtypes.bfloat16, Fraction(1, 2**133), Fraction(171, 2**9)),
    ],
)
def test_elements_are_the_exact_values_of_their_type(dtype: Any, smallest: Fraction, third: Fraction) -> None:
    raw = np.array([[[0, 1 / 3], [0, 1]]], dtype)
    raw[0, 0, 0] = float(smallest)
    off = np.zeros(0, dtype)
    inputs = {
        "raw_index_keys": raw,
        "past_block_index_keys": np.zeros((1, 0, 2), dtype),
        "key_length": np.array([2], np.int32),
        "rope_cos": off,
        "rope_sin": off,
        "k_norm_weight": off,
        "past_incomplete_raw_keys": np.full((1, 1, 2), np.nan, dtype),
        "past_incomplete_rope": off,
    }
    assert keys(qsa_prepare(inputs, 2)).tolist() == [[[smallest / 2, (third + 1) / 2]]]


def test_root_is_right_to_sixty_digits() -> None:
    out = call([[[1], [1]]], [2], 2, Di=1, weight=[1], epsilon=1)
    reciprocal_root_of_two = Fraction("0.707106781186547524400844362104849039284835937688474036588339868995")
    assert abs(keys(out)[0][0][0] - reciprocal_root_of_two) < Fraction(1, 10**65)


def test_epsilon_is_the_exact_value_of_the_float() -> None:
    out = call([[[1], [1]]], [2], 2, Di=1, weight=[1], epsilon=0.1)
    square = keys(out)[0][0][0] ** 2
    assert abs(square * (1 + Fraction(0.1)) - 1) < Fraction(1, 10**70)
    assert abs(square * (1 + Fraction(1, 10)) - 1) > Fraction(1, 10**18)


def test_zero_over_zero_is_unspecified() -> None:
    out = call([[[0, 0], [0, 0], [1, 1], [1, 1]]], [4], 2, weight=[1, 1], epsilon=0)
    assert keys(out) == [[[X, X], [1, 1]]]


def test_non_finite_keys_stay_in_their_block() -> None:
    raw = [[[INF, 1], [-INF, 2], [INF, 4], [0, 0], [2, 2], [2, 4]]]
    assert str(call(raw, [6], 2)["block_index_keys"]) == (
        "[[[nan, Fraction(3, 2)], [inf, Fraction(2, 1)], [Fraction(2, 1), Fraction(3, 1)]]]"
    )
    normalized = call(raw, [6], 2, weight=[4, 4], epsilon=9.5)  # (4 + 9) / 2 + 9.5 = 16
    assert str(normalized["block_index_keys"]) == (
        "[[[nan, nan], [nan, Fraction(0, 1)], [Fraction(2, 1), Fraction(3, 1)]]]"
    )


def test_non_finite_rope_follows_the_rules_of_floats() -> None:
    out = call([[[2, 0], [2, 0]]], [2], 2, cos=[[[INF, 1], [X, X]]], sin=[[[INF, -INF], [X, X]]])
    assert str(keys(out)) == "[[[nan, -inf]]]"  # 2 * inf - 0 * inf = NaN, 0 * 1 + 2 * -inf = -inf


@pytest.mark.parametrize("row", [0, 1])
def test_reading_a_dont_care_element_raises(row: int) -> None:
    raw = [[[1, 1], [1, 1]]]
    raw[0][row] = [1, X]  # type: ignore[list-item]
    with pytest.raises(ValueError, match="unspecified"):
        call(raw, [2], 2)


def test_to_float64_rounds_correctly_and_masks() -> None:
    array = cells([[Fraction(1, 3), X, INF], [NAN, Fraction(2**60 + 1), Fraction(0)]], 2, 3)
    values, specified = to_float64(array)
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, [[1 / 3, NAN, INF], [NAN, 2.0**60, 0]])
    np.testing.assert_array_equal(specified, [[True, False, True], [True, True, True]])


# Properties ---------------------------------------------------------------------------------------------------

small = st.integers(-3, 3)


@st.composite
def streams(draw: st.DrawFn) -> dict[str, Any]:
    """A whole stream of T rows of small integers, left-padded per sequence, with X wherever nothing is to be read."""
    N, T = draw(st.integers(1, 3)), draw(st.integers(0, 9))
    Di = draw(st.integers(1, 3))
    Dr = draw(st.sampled_from([d for d in (0, 2) if d <= Di]))

    def integers(*shape: int) -> np.ndarray:
        count = math.prod(shape)
        return np.array(draw(st.lists(small, min_size=count, max_size=count)), object).reshape(shape)

    r = draw(st.integers(2, 5))
    pads = draw(st.lists(st.integers(0, T), min_size=N, max_size=N))
    raw, cos, sin = integers(N, T, Di), integers(N, T, Dr), integers(N, T, Dr)
    for n, pad in enumerate(pads):
        raw[n, :pad] = X
        for row in range(T):
            if row < pad or (row - pad) % r:  # padding, or not the first token of its block
                cos[n, row] = sin[n, row] = X
    return {
        "r": r,
        "epsilon": draw(st.sampled_from([0.0, 1.0, 1e-6])),
        "pad": pads,
        "raw": raw,
        "cos": cos,
        "sin": sin,
        "weight": integers(draw(st.sampled_from([0, Di]))),
    }


def run(stream: dict[str, Any], cuts: list[int]) -> dict[str, np.ndarray]:
    """The outputs of the last call when the rows are cut there; every call takes the outputs of the one before."""
    N, T, Di = stream["raw"].shape
    r, Dr = stream["r"], stream["cos"].shape[2]
    out = {
        "block_index_keys": np.full((N, 0, Di), X, dtype=object),
        "present_incomplete_raw_keys": np.full((N, r - 1, Di), X, dtype=object),
        "present_incomplete_rope": np.full((N, 2 * Dr) if Dr else (0,), X, dtype=object),
    }
    bounds = [0, *sorted(cuts), T]
    for begin, end in pairwise(bounds):
        inputs = {
            "raw_index_keys": stream["raw"][:, begin:end],
            "past_block_index_keys": out["block_index_keys"],
            "key_length": np.array([max(end - pad, 0) for pad in stream["pad"]], dtype=np.int64),
            "rope_cos": stream["cos"][:, begin:end],
            "rope_sin": stream["sin"][:, begin:end],
            "k_norm_weight": stream["weight"],
            "past_incomplete_raw_keys": out["present_incomplete_raw_keys"],
            "past_incomplete_rope": out["present_incomplete_rope"],
        }
        out = qsa_prepare(inputs, r, stream["epsilon"])
    return out


def as_lists(out: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: output.tolist() for name, output in out.items()}


@settings(max_examples=100, deadline=None)
@given(streams(), st.data())
def test_any_split_gives_the_single_call(stream: dict[str, Any], data: st.DataObject) -> None:
    T = stream["raw"].shape[1]
    cuts = data.draw(st.lists(st.integers(0, T), max_size=6), label="cuts")
    assert as_lists(run(stream, cuts)) == as_lists(run(stream, []))


@settings(max_examples=50, deadline=None)
@given(streams())
def test_one_token_at_a_time_gives_the_single_call(stream: dict[str, Any]) -> None:
    assert as_lists(run(stream, list(range(stream["raw"].shape[1])))) == as_lists(run(stream, []))


@settings(max_examples=50, deadline=None)
@given(streams(), st.integers(0, 9))
def test_a_sequence_alone_gives_its_row_of_the_batch(stream: dict[str, Any], cut: int) -> None:
    T = stream["raw"].shape[1]
    whole = run(stream, [min(cut, T)])
    for n, pad in enumerate(stream["pad"]):
        row = {name: stream[name][n : n + 1] for name in ("raw", "cos", "sin")}
        alone = run({**stream, **row, "pad": [pad]}, [min(cut, T)])
        blocks = (T - pad) // stream["r"]
        assert alone["block_index_keys"].shape[1] == blocks
        assert alone["block_index_keys"][0].tolist() == whole["block_index_keys"][n, :blocks].tolist()
        for name in ("present_incomplete_raw_keys", "present_incomplete_rope"):
            if whole[name].size:
                assert alone[name][0].tolist() == whole[name][n].tolist()


@settings(max_examples=50, deadline=None)
@given(streams())
def test_without_rope_and_weight_the_keys_are_plain_means(stream: dict[str, Any]) -> None:
    N, T, Di = stream["raw"].shape
    r = stream["r"]
    out = run({**stream, "cos": np.empty((N, T, 0)), "sin": np.empty((N, T, 0)), "weight": np.empty(0)}, [])
    for n, pad in enumerate(stream["pad"]):
        blocks = (T - pad) // r
        tokens = stream["raw"][n, pad : pad + blocks * r].reshape(blocks, r, Di)
        scaled = out["block_index_keys"][n, :blocks] * r
        assert scaled.tolist() == tokens.sum(axis=1).tolist()


def test_the_oracle_is_independent() -> None:
    tree = ast.parse(inspect.getsource(naive))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "fractions" in imported
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names | {"numpy"}
