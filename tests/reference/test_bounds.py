"""The bound, derived again element by element in plain floats, and what it must and must not let through."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from reference.qsa_prepare.bounds import F32_MAX, TINY, TYPES, Oracle

DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
ETA = {"f32": TINY, "f16": 2.0**-24, "bf16": TINY}
UA = 2.0**-24


def call(T, x, w=None, cos=None, sin=None, epsilon=1e-6):
    """Inputs of one block of one sequence without history; x is [r, Di]."""
    dtype = DTYPES[T]
    x = np.asarray(x, dtype=np.float64)
    r, Di = x.shape
    empty = np.zeros(0, dtype)

    def rows(a):
        return empty if a is None else np.repeat(np.asarray(a, dtype=np.float64)[None, None], r, axis=1).astype(dtype)

    Dr = 0 if cos is None else len(cos)
    inputs = {
        "raw_index_keys": x[None].astype(dtype),
        "past_block_index_keys": np.zeros((1, 0, Di), dtype),
        "key_length": np.array([r]),
        "rope_cos": rows(cos),
        "rope_sin": rows(sin),
        "k_norm_weight": empty if w is None else np.asarray(w, dtype=np.float64).astype(dtype),
        "past_incomplete_raw_keys": np.zeros((1, r - 1, Di), dtype),
        "past_incomplete_rope": np.zeros((1, 2 * Dr), dtype) if Dr else empty,
    }
    return inputs, Oracle({"key_block_size": r, "epsilon": epsilon}).expect(inputs)["block_index_keys"]


def table(expected, Di):
    """value, bound and quality of the one block key, each [Di]."""
    out = np.full((3, Di), np.nan)
    for part in expected.parts:
        for row, array in zip(out, (part.value, part.bound, part.quality), strict=True):
            row[part.index[2]] = array[0]
    return out


def by_formula(T, x, w, cos, sin, epsilon, tier):
    """The published formulas for one block, in plain floats and loops."""
    u, eta, r, Di = UNIT[T], ETA[T], len(x), len(x[0])

    def g(k):
        return k * UA if tier == "required" else 3 * math.sqrt(k) * UA

    m = [math.fsum(row[d] for row in x) / r for d in range(Di)]
    em = [g(r + 1) * math.fsum(abs(row[d]) for row in x) / r + u * abs(m[d]) + eta for d in range(Di)]
    y, ey = m, em
    if w is not None:
        ms = math.fsum(v * v for v in m) / Di
        v = ms + epsilon
        ev = math.fsum(2 * abs(a) * e + e * e for a, e in zip(m, em, strict=True)) / Di + g(Di + 2) * ms + UA * v + TINY
        if ev >= v:
            return [math.inf] * Di
        rel = 1 / math.sqrt(1 - ev / v) - 1 + 4 * UA
        y = [a / math.sqrt(v) * b for a, b in zip(m, w, strict=True)]
        ey = [
            abs(b) / math.sqrt(v) * e * (1 + rel) + abs(o) * (rel + 2 * UA + 2 * u) + 2 * eta * (1 + abs(b))
            for b, e, o in zip(w, em, y, strict=True)
        ]
    o, eo = list(y), list(ey)
    for j in range(len(cos or []) // 2):
        k = j + len(cos) // 2
        for here, there, sign in ((j, k, -1), (k, j, 1)):
            o[here] = y[here] * cos[here] + sign * y[there] * sin[here]
            products = abs(y[here] * cos[here]) + abs(y[there] * sin[here])
            eo[here] = abs(cos[here]) * ey[here] + abs(sin[here]) * ey[there] + 2 * u * products + 3 * eta
    return [(e + u * (abs(a) + e) + eta) * (1 + 8 * u) for a, e in zip(o, eo, strict=True)]


SHAPES = [(2, 1, 0), (3, 4, 2), (4, 6, 4), (5, 7, 6), (7, 16, 16), (16, 33, 2), (128, 8, 8)]


@pytest.mark.parametrize("T", UNIT)
@pytest.mark.parametrize(("r", "Di", "Dr"), SHAPES)
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("scale", "epsilon"), [(1.0, 1e-6), (1e-3, 1e-3), (100.0, 0.0)])
def test_both_tiers_follow_the_published_formulas(T, r, Di, Dr, norm, scale, epsilon):
    rng = np.random.default_rng(r * 1000 + Di)
    x = (rng.standard_normal((r, Di)) * scale).astype(DTYPES[T]).astype(np.float64)
    w = (rng.uniform(-2, 2, Di)).astype(DTYPES[T]).astype(np.float64) if norm else None
    cos, sin = (rng.uniform(-1.5, 1.5, Dr).astype(DTYPES[T]).astype(np.float64) if Dr else None for _ in range(2))
    _, expected = call(T, x, w, cos, sin, epsilon)
    _, bound, quality = table(expected, Di)
    plain = [None if a is None else a.tolist() for a in (x, w, cos, sin)]
    required = by_formula(T, *plain, epsilon, "required")
    assert bound == pytest.approx(required, rel=1e-9)
    assert quality == pytest.approx(np.minimum(required, by_formula(T, *plain, epsilon, "quality")), rel=1e-9)


class TestUnjudged:
    """Elements that a conforming implementation may answer in any way have an infinite bound, and no others."""

    def test_zero_block_without_epsilon(self):
        _, expected = call("f32", np.zeros((2, 3)), np.ones(3), epsilon=0.0)
        assert np.isinf(table(expected, 3)[1]).all()

    def test_zero_block_with_epsilon_is_zero(self):
        for T in UNIT:
            value, bound, _ = table(call(T, np.zeros((4, 3)), np.ones(3))[1], 3)
            assert (value == 0).all()
            assert (bound < 1e-3).all()

    def test_squares_below_the_range_of_f32_without_epsilon(self):
        assert np.isinf(table(call("f32", np.full((2, 3), 1e-20), np.ones(3), epsilon=0.0)[1], 3)[1]).all()
        assert np.isfinite(table(call("f32", np.full((2, 3), 1e-16), np.ones(3), epsilon=0.0)[1], 3)[1]).all()

    def test_mean_square_beyond_f32(self):
        assert np.isinf(table(call("f32", np.full((2, 3), 1e20), np.ones(3))[1], 3)[1]).all()
        assert np.isfinite(table(call("f32", np.full((2, 3), 1e18), np.ones(3))[1], 3)[1]).all()

    @pytest.mark.parametrize(("Di", "fits"), [(3, True), (4, False)])
    def test_sum_of_squares_beyond_f32(self, Di, fits):
        # Of the sums of two keys, which may be divided by r afterwards.
        bound = table(call("f32", np.full((2, Di), 5e18), np.ones(Di))[1], Di)[1]
        assert np.isfinite(bound).tolist() == [fits] * Di
        if not fits:  # nor does a weight that is too large as well bring it back
            assert np.isinf(table(call("f32", np.full((2, Di), 5e18), np.full(Di, 1e38))[1], Di)[1]).all()

    @pytest.mark.parametrize(
        ("keys", "weight", "fits"), [(0.9, 3.2e38, False), (0.5, 3.2e38, False), (1.0, 1.6e38, True)]
    )
    def test_the_weight_times_the_root_at_the_edge(self, keys, weight, fits):
        bound = table(call("f32", np.full((2, 2), keys), [weight, 1.0])[1], 2)[1]
        assert np.isfinite(bound).tolist() == [fits, True]

    def test_what_flushing_may_take_from_nothing(self):
        """From each of four keys, and from the mean and the result in f32."""
        bound = table(call("f32", np.zeros((4, 2)))[1], 2)[1]
        assert bound.tolist() == pytest.approx([6 * 2.0**-126] * 2, rel=1e-5, abs=0)

    def test_a_special_key_beyond_three_pairs_is_judged(self):
        x = [[1.0] * 7 + [np.inf], [1.0] * 8]
        value, bound, _ = table(call("f32", x, cos=[1.0] * 6, sin=[0.0] * 6)[1], 8)
        assert (value[7], bound[7]) == (np.inf, 0.0)
        assert np.isfinite(bound).all()

    def test_the_weight_times_either_factor_beyond_f32(self):
        # Whoever multiplies 1e38 by the reciprocal root of 1e-4, or by a mean of 10, first leaves f32's range.
        for keys, weight in ((1e-4, 1e38), (10.0, 1e38)):
            _, bound, _ = table(call("f32", np.full((2, 2), keys), [weight, 1.0])[1], 2)
            assert np.isinf(bound).tolist() == [True, False]
        assert np.isfinite(table(call("f32", np.full((2, 2), 1.0), [1e38, 1.0])[1], 2)[1]).all()
        # Whoever turns 2 * 1e38 by cos and sin of 1 before the division by r is done has 4e38 on the way.
        pair = [np.full((2, 2), 1.0), [1e38, 1e38]]
        assert np.isinf(table(call("f32", *pair, [1.0] * 2, [1.0] * 2)[1], 2)[1]).all()
        assert np.isfinite(table(call("f32", *pair, [0.7] * 2, [0.7] * 2)[1], 2)[1]).all()
        # The rotation carries it to the other element of the pair, whatever sin is.
        _, bound, _ = table(call("f32", np.full((2, 6), 10.0), [1e38, *[1.0] * 5], [1.0] * 4, [0.0] * 4)[1], 6)
        assert np.isinf(bound).tolist() == [True, False, True, False, False, False]

    def test_the_weight_times_a_table_beyond_f32(self):
        """Though the keys beside them are zeros, and so is the result: infinity times zero is none."""
        x, w = [[0.0, 0.0, 100.0]] * 2, [2.4e38, 2.4e38, 1.0]
        assert np.isinf(table(call("f32", x, w, [2.0, 2.0], [2.0, 2.0])[1], 3)[1]).tolist() == [True, True, False]
        assert np.isfinite(table(call("f32", x, w, [1.0, 1.0], [0.4, 0.4])[1], 3)[1]).all()
        # One product of a pair is enough, and an element outside the pair is judged.
        w = [2.4e38, 1.0, 1.0]
        assert np.isinf(table(call("f32", x, w, [2.0, 1.0], [0.0, 0.0])[1], 3)[1]).tolist() == [True, True, False]

    def test_the_root_of_the_sums_beyond_f32(self):
        assert np.isinf(table(call("f32", np.ones((4, 2)), [1.0, 1.0], epsilon=3e37)[1], 2)[1]).all()
        assert np.isfinite(table(call("f32", np.ones((4, 2)), [1.0, 1.0], epsilon=1e37)[1], 2)[1]).all()

    @pytest.mark.parametrize("epsilon", [1e-8, 2.0**-126])
    def test_a_zero_block_is_judged_for_any_epsilon_that_f32_can_hold(self, epsilon):
        for T in UNIT:
            value, bound, _ = table(call(T, np.zeros((4, 3)), [0.5, 1.0, 2.0], epsilon=epsilon)[1], 3)
            assert (value == 0).all()
            assert np.isfinite(bound).all()

    @pytest.mark.parametrize("keys", [1e-15, 1e15])
    def test_flushed_products_in_any_order_are_within_the_bound(self, keys):
        """A weight of 1e-30 times a mean of 1e-15 is next to nothing, and so it is times the root of 1e-30."""
        value, bound, _ = table(call("f32", np.full((2, 2), keys), [1e-30, 1.0])[1], 2)
        assert 0 < np.abs(value[0]) <= bound[0] < 1e-19 < value[1]

    def test_keys_whose_shares_are_flushed_are_within_the_bound(self):
        value, bound, _ = table(call("f32", np.full((4, 2), 2.0**-125))[1], 2)  # a fourth of it is no normal number
        assert (np.abs(value) <= bound).all()

    def test_sum_beyond_f32_without_normalization(self):
        _, bound, _ = table(call("f32", [[3e38, 1.0], [3e38, 1.0]])[1], 2)
        assert np.isinf(bound).tolist() == [True, False]

    def test_rotation_through_values_beyond_f16(self):
        # y = 40000 * 2 overflows f16 after the normalization, though cos brings it back.
        w, x = [60000.0, 1.0], [[1.0, 1.0], [1.0, 1.0]]
        _, bound, _ = table(call("f16", x, w, [0.5, 0.5], [0.0, 0.0])[1], 2)
        assert np.isfinite(bound).all()
        _, bound, _ = table(call("f16", x, [65504.0, 1.0], [4.0, 1.0], [0.0, 0.0])[1], 2)
        assert np.isinf(bound).tolist() == [True, True]
        _, bound, _ = table(call("f32", x, [65504.0, 1.0], [4.0, 1.0], [0.0, 0.0])[1], 2)
        assert np.isfinite(bound).all()

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_block_with_a_special_key_is_outside_the_domain_when_it_is_normalized(self, bad):
        assert np.isinf(table(call("f32", [[1.0, bad, 2.0], [1.0, 1.0, 1.0]], np.ones(3))[1], 3)[1]).all()

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_without_normalization_only_the_special_element_is_special(self, bad):
        value, bound, _ = table(call("f32", [[1.0, bad, 2.0], [1.0, 1.0, 1.0]])[1], 3)
        assert value[[0, 2]].tolist() == [1.0, 1.5]
        assert np.isfinite(bound).all()
        assert value[1] == bad or np.isnan(value[1])

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_rotated_pair_with_a_special_key_is_outside_the_domain(self, bad):
        for at in (0, 2):
            x = [[1.0, 1.0, 2.0, 3.0, 4.0, bad], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]
            x[0][at] = bad
            value, bound, _ = table(call("f32", x, cos=[0.5, 2, 0.5, 2], sin=[1.0, 1, 1, 1])[1], 6)
            assert np.isinf(bound).tolist() == [True, False, True, False, False, False]
        assert value[1] == 2 * 1.0 - 1 * 2.0
        assert value[5] == bad or np.isnan(value[5])

    def test_finite_keys_beyond_f32_next_to_an_infinite_one(self):
        _, bound, _ = table(call("f32", [[3e38, np.inf], [3e38, 1.0], [-np.inf, 1.0]])[1], 2)
        assert np.isinf(bound).tolist() == [True, False]


def test_types_are_those_of_ieee():
    assert TYPES[DTYPES["f16"]].largest == 65504
    assert TYPES[DTYPES["bf16"]].largest == pytest.approx(3.3895e38, rel=1e-4)
    assert TYPES[DTYPES["f32"]].largest == F32_MAX == float(np.finfo(np.float32).max)
    for name, dtype in DTYPES.items():
        assert TYPES[dtype].unit == UNIT[name] == float(ml_dtypes.finfo(dtype).eps) / 2


class TestCatches:
    """Planted errors of the smallest kind that a type can show exceed the bound."""

    def test_a_twelve_bit_root_in_f32(self):
        x = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
        value, bound, _ = table(call("f32", x, np.ones(64))[1], 64)
        assert (np.abs(value) * 3e-4 > bound).all()

    def test_cancellation_widens_the_bound_and_nothing_else_does(self):
        plain = table(call("f32", [[1.0, 1.0]] * 4)[1], 2)[1]
        wide = table(call("f32", [[1001.0, 1.0], [-999.0, 1.0], [1001.0, 1.0], [-999.0, 1.0]])[1], 2)[1]
        assert wide[0] > 100 * plain[0]
        assert wide[1] == plain[1]


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_do_not_show(chunk, monkeypatch):
    from test_reference import case_of

    from conformance.library.operations import load_operation
    from conformance.spec.inputs import inputs_of
    from reference.qsa_prepare import bounds

    case = case_of(dims={"N": 3, "L": 13, "Di": 6, "Dr": 4, "Bp": 2}, past=(0, 5, 8), pad=(0, 0, 0))
    oracle = bounds.Oracle(case.attributes)
    inputs = inputs_of(case, load_operation())
    whole = oracle.expect(inputs)["block_index_keys"]
    monkeypatch.setattr(bounds, "CHUNK", chunk)
    for one, other in zip(oracle.expect(inputs)["block_index_keys"].parts, whole.parts, strict=True):
        for name in ("value", "bound", "quality"):  # a copy has no bound
            assert np.array_equal(getattr(one, name, 0), getattr(other, name, 0))


@pytest.mark.parametrize(("w", "passed"), [(np.ones(7), "NRM-1"), (None, "AVG-1")])
def test_the_regions_of_a_key_and_their_clauses(w, passed):
    _, expected = call("f32", np.ones((2, 7)), w, [1.0] * 4, [0.0] * 4)
    regions = [(part.region, part.clause, part.index[2], part.value.shape[1]) for part in expected.parts]
    assert regions == [("rotated", "ROT-1", slice(4), 4), ("not rotated", passed, slice(4, None), 3)]
    _, expected = call("f32", np.ones((2, 4)), None, [1.0] * 4, [0.0] * 4)
    assert [part.region for part in expected.parts] == ["rotated"]
    inputs, _ = call("f32", np.ones((2, 9)), None, [1.0] * 4, [0.0] * 4)
    half = Oracle({"key_block_size": 2, "epsilon": 1e-6}, {"rope_width": "half"}).expect(inputs)["block_index_keys"]
    assert [part.index[2] for part in half.parts] == [slice(8), slice(8, None)]


def test_unused_state_is_specified_under_a_narrower_reading():
    from test_reference import case_of

    from conformance.library.operations import load_operation
    from conformance.spec.inputs import inputs_of

    case = case_of(
        dims={"N": 2, "L": 6, "Di": 6, "Dr": 4, "Bp": 1}, past=(0, 2), pad=(0, 0)
    )  # 2 and 0 open tokens, r = 4
    inputs = inputs_of(case, load_operation())
    for unused, there in (("unspecified", False), ("zeros", True), ("carried", True)):
        expected = Oracle(case.attributes, {"unused": unused}).expect(inputs)
        raw = {part.region: part.index for part in expected["present_incomplete_raw_keys"].parts}
        rope = {part.region: part.index for part in expected["present_incomplete_rope"].parts}
        assert [index.tolist() for index in raw["open block"]] == [[0, 0], [0, 1]]
        assert [index.tolist() for index in rope["open block"]] == [[0]]
        assert ("unused rows" in raw, "unused rope" in rope) == (there, there)
        if there:
            assert [index.tolist() for index in raw["unused rows"]] == [[0, 1, 1, 1], [2, 0, 1, 2]]
            assert [index.tolist() for index in rope["unused rope"]] == [[1]]
