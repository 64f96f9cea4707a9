"""The reference of SparseAttentionIndexer: by hand, against the oracle in fractions, and its bounds at their edges."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from indexer_calls import call, random_call

from reference.sparse_attention_indexer import naive
from reference.sparse_attention_indexer.bounds import UA, score_bounds
from reference.sparse_attention_indexer.operation import Readings, SparseAttentionIndexer
from reference.sparse_attention_indexer.oracle import expect

BF16 = np.dtype(ml_dtypes.bfloat16)


def run(inputs, r=1, budget=1, Hs=1, readings=None):
    return {k: v.tolist() for k, v in SparseAttentionIndexer(r, budget, Hs, readings).run(inputs).items()}


def test_positions_count_from_the_end_and_blocks_from_the_first_token():
    """Three query tokens at positions 2, 3, 4 with blocks of two tokens: one, two and two blocks are complete."""
    got = run(call([[[1], [2], [7]]], [[[[1], [1], [1]]]], [5]), r=2, budget=4)
    assert got == {"block_indices": [[[[0, -1], [1, 0], [1, 0]]]], "block_count": [[[1, 2, 2]]]}


def test_rows_of_padding_select_nothing():
    """S = 3 of L = 5: positions -2 to 2; floor division of the negative ones would see block -1."""
    got = run(call([[[1]]], [[[[1]] * 5]], [3]), r=2, budget=2)
    assert got["block_count"] == [[[0, 0, 0, 1, 1]]]
    assert got["block_indices"] == [[[[-1], [-1], [-1], [0], [0]]]]


def test_heads_are_rectified_then_weighted_then_summed():
    """Two heads. Block 0: max(2, 0)*1 + max(-3, 0)*5 = 2. Block 1: max(-1, 0)*1 + max(1, 0)*5 = 5."""
    inputs = call([[[2, -3], [-1, 1]]], [[[[1, 0]], [[0, 1]]]], [2], weights=[[[1, 5]]])
    assert run(inputs)["block_indices"] == [[[[1]]]]
    negative = call([[[2, -3], [-1, 1]]], [[[[1, 0]], [[0, 1]]]], [2], weights=[[[1, -5]]])
    assert run(negative)["block_indices"] == [[[[0]]]]


def test_a_selection_has_consecutive_heads():
    """Heads 0 and 1 see only the first element of the keys, heads 2 and 3 only the second."""
    queries = [[[[1, 0]], [[1, 0]], [[0, 1]], [[0, 1]]]]
    assert run(call([[[3, 1], [1, 3]]], queries, [2]), Hs=2)["block_indices"] == [[[[0]], [[1]]]]


def test_one_length_is_for_every_sequence_and_both_types_are_the_same():
    inputs = call([[[1], [2]]] * 2, [[[[1]]]] * 2, [2])
    both = {**inputs, "key_length": np.array([2, 2], dtype=np.int32)}
    assert run(inputs) == run(both) == {"block_indices": [[[[1]]], [[[1]]]], "block_count": [[[1]], [[1]]]}


@pytest.mark.parametrize(("N", "L", "B"), [(0, 3, 2), (2, 0, 2), (2, 3, 0), (0, 0, 0)])
def test_sizes_of_zero(N, L, B):
    inputs = {
        "index_query": np.ones((N, 2, L, 4), dtype=np.float32),
        "block_index_keys": np.ones((N, B, 4), dtype=np.float32),
        "key_length": np.zeros(N, dtype=np.int64),
    }
    got = SparseAttentionIndexer(2, 6, 2).run(inputs)
    assert got["block_indices"].shape == (N, 2, L, 3)
    assert got["block_count"].shape == (N, 2, L)
    assert (got["block_indices"] == -1).all()
    for one in expect(SparseAttentionIndexer(2, 6, 2), inputs).values():
        assert one.dtype == np.int32


def test_hidden_keys_are_never_looked_at():
    keys = np.ones((1, 6, 4), dtype=np.float32)
    inputs = {
        "index_query": np.full((1, 2, 4, 4), -1, dtype=np.float32),
        "block_index_keys": keys,
        "key_length": np.array([9]),
        "index_weights": np.full((1, 4, 2), -1, dtype=np.float32),
    }
    want = SparseAttentionIndexer(2, 4, 1).run(inputs)
    for value in (np.nan, np.inf, 3e38):
        keys[:, 4:] = value
        assert np.array_equal(SparseAttentionIndexer(2, 4, 1).run(inputs)["block_indices"], want["block_indices"])


def test_readings_of_width_type_budget_and_order():
    inputs = call([[[1], [2]]], [[[[1]]]], [2])
    assert run(inputs, budget=4)["block_indices"] == [[[[1, 0, -1, -1]]]]
    assert run(inputs, budget=4, readings=Readings(width="keys"))["block_indices"] == [[[[1, 0]]]]
    assert run(inputs, budget=4, readings=Readings(order="ascending"))["block_indices"] == [[[[0, 1, -1, -1]]]]
    assert run(inputs, r=2, budget=3, readings=Readings(budget="floor"))["block_indices"] == [[[[0]]]]
    for choice, dtype in (("i32", np.int32), ("i64", np.int64), ("lengths", np.int64)):
        got = SparseAttentionIndexer(1, 1, 1, Readings(output_type=choice)).run(inputs)
        assert {one.dtype for one in got.values()} == {np.dtype(dtype)}


def test_readings_of_what_is_not_specified():
    inputs = call([[[1]]], [[[[1]] * 3]], [1])
    op = SparseAttentionIndexer(1, 2, 1, Readings(beyond="unspecified"))
    assert [part.region for part in expect(op, inputs)["block_indices"].parts] == ["selected"]
    op = SparseAttentionIndexer(1, 2, 1, Readings(padding_rows="unspecified"))
    assert expect(op, inputs)["block_count"].defined().tolist() == [[[False, False, True]]]
    assert expect(op, inputs)["block_indices"].defined()[0, 0, :, 0].tolist() == [False, False, True]


def test_the_reference_is_the_oracle_in_fractions():
    rng = np.random.default_rng(11)
    for number in range(120):
        inputs, attributes = random_call(rng, (np.float32, np.float16, BF16)[number % 3])
        order = ("key_block_size", "token_budget", "num_selection_heads")
        exact = naive.sparse_attention_indexer(inputs, *(attributes[name] for name in order))
        got = SparseAttentionIndexer(*(attributes[name] for name in order)).run(inputs)
        assert {name: array.tolist() for name, array in got.items()} == exact


def test_scores_and_errors_are_those_of_the_oracle_in_fractions():
    rng = np.random.default_rng(12)
    exact = rounded = 0
    for number in range(120):
        inputs, attributes = random_call(rng, (np.float32, np.float16, BF16)[number % 3])
        op = SparseAttentionIndexer(*attributes.values())
        rows = naive.rows(inputs, attributes["key_block_size"], op.Hs, attributes["token_budget"])
        for (n, g, token), row in rows.items():
            scored = score_bounds(op, op.call(inputs), n, g, np.array([token])).scored
            np.testing.assert_allclose(scored.s[0], [float(s) for s in row.score], rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(scored.e[0], [float(e) for e in row.error], rtol=1e-9, atol=0)
            exact += sum(e == 0 for e in row.error)
            rounded += sum(e > 0 for e in row.error)
    assert min(exact, rounded) > 500


def error(query, key, weights=None):
    """The error of one score, from query rows [G, Di] and a key [Di]."""
    inputs = call([[key]], [[[row] for row in query]], [1], weights=None if weights is None else [[weights]])
    op = SparseAttentionIndexer(1, 1, 1)
    return float(score_bounds(op, op.call(inputs), 0, 0, np.array([0])).scored.e[0, 0])


def test_small_whole_numbers_are_exact_when_width_and_heads_allow_it():
    assert error([[1, 2, 3, 4]] * 2, [1, 1, 1, 1]) == 0  # width 4, two heads
    assert error([[1, 2]] * 2, [1, 1]) > 0  # width 2: 1/sqrt(2) may be multiplied in early
    assert error([[1, 2, 3, 4]] * 3, [1, 1, 1, 1]) > 0  # three heads: so may 1/3
    assert error([[1]], [1]) == 0


def test_the_sum_of_an_exact_score_has_less_than_22_bits_of_its_unit():
    assert error([[2.0**21 + 1]], [1]) == 0
    assert error([[2.0**22 + 1]], [1]) > 0
    assert error([[2.0**22]], [1]) == 0  # its unit is 2^22
    assert error([[2.0**21 + 1]], [1], [3]) > 0
    assert error([[2.0**-100]], [2.0**-30]) > 0  # the product is subnormal
    assert error([[2.0**-100]], [2.0**-26]) == 0


def test_a_head_that_is_surely_negative_adds_no_error():
    assert error([[-1, -1, -1]], [1, 1, 1]) == 0
    assert error([[-1.1, -1, -1]] * 2, [1, 1.3, 1]) == 0
    assert error([[-1.1, 1, 0.1]], [1, 1, 1]) > 0  # about zero: it may come out on either side


def test_zero_keys_queries_and_weights_are_exact():
    assert error([[0, 0, 0]], [1.1, 1, 1]) == error([[1.1, 1, 1]], [0, 0, 0]) == 0
    assert error([[1.1, 1, 1]] * 2, [1, 1, 1], [0, 0]) == 0


def test_the_worst_case_grows_with_width_and_heads():
    ones = [1.1, 1.1, 1.1]
    one = np.float32(1.1).astype(np.float64)
    assert error([ones], ones) == pytest.approx((3 + 1 + 4) * UA * 3 * one**2)
    assert error([ones] * 5, ones, [-2] * 5) == pytest.approx((3 + 5 + 4) * UA * 30 * one**2)


def test_scores_are_never_held_for_all_queries_and_blocks_at_once():
    """A prefill whose scores would take 128 MB stays below 48 MB."""
    rng = np.random.default_rng(0)
    inputs = {
        "index_query": rng.normal(size=(1, 4, 1024, 16)).astype(np.float32),
        "block_index_keys": rng.normal(size=(1, 4096, 16)).astype(np.float32),
        "key_length": np.array([4096]),
    }
    tracemalloc.start()
    SparseAttentionIndexer(1, 64, 1).run(inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48e6
