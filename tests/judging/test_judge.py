"""The judge decides; so it is tested hardest: it never passes what is wrong and never fails what is right."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from conformance.judging.judge import judge, same_bits
from reference.expected import Expected
from reference.parts import Bounded, Copy

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
TYPES = [F32, F16, BF16]
dtypes = st.sampled_from(TYPES)


def one(value, bound, quality=None, dtype=F32):
    """An output of a single element with a bound."""
    value, bound = np.array([[value]], dtype=np.float64), np.array([[bound]], dtype=np.float64)
    quality = bound if quality is None else np.array([[quality]], dtype=np.float64)
    return Expected((1, 1), dtype, (Bounded("all", "AVG-1", (np.array([0]), slice(0, None)), value, bound, quality),))


def copy(values, dtype=F32):
    """A row that must be copied bit for bit."""
    array = np.asarray(values).astype(dtype).reshape(1, -1)
    return Expected(array.shape, dtype, (Copy("copied", "OUT-1", (np.array([0]),), array),))


def verdict(got, expected, dtype=F32):
    with np.errstate(over="ignore"):
        return judge("keys", np.asarray(got).astype(dtype).reshape(expected.shape), expected)


class TestBounds:
    @given(dtypes, st.floats(-1e4, 1e4), st.floats(-4, 4), st.floats(1e-3, 10))
    def test_passes_exactly_within_the_bound(self, dtype, value, offset, bound):
        stored = float(np.float64(value + offset * bound).astype(dtype))
        error = abs(stored - value)
        status = verdict([[stored]], one(value, bound, dtype=dtype), dtype).status
        assert (status == "pass") == (error <= bound)
        assert (status == "fail") == (error > bound)

    def test_bound_zero_asks_for_the_very_value(self):
        assert verdict([[1.0]], one(1.0, 0.0)).status == "pass"
        assert verdict([[np.nextafter(np.float32(1), np.float32(2))]], one(1.0, 0.0)).status == "fail"

    def test_signed_zeros_are_equal_as_numbers(self):
        assert verdict([[-0.0]], one(0.0, 0.0)).status == "pass"

    def test_infinite_bound_is_not_judged(self):
        for got in (np.nan, np.inf, -np.inf, 0.0, 3e38):
            assert verdict([[got]], one(1.0, np.inf)).status == "pass"
            assert verdict([[got]], one(np.nan, np.inf)).status == "pass"

    def test_quality_tier_warns_inside_the_bound(self):
        result = verdict([[1.5]], one(1.0, 1.0, 0.25))
        assert (result.status, result.worst.ratio) == ("quality-warning", 0.5)
        assert verdict([[1.25]], one(1.0, 1.0, 0.25)).status == "pass"

    def test_headroom_is_the_largest_ratio(self):
        assert verdict([[1.5]], one(1.0, 1.0)).headroom == {"AVG-1": 0.5}
        value, bound = np.array([[1.0, 1.0]]), np.array([[1.0, 4.0]])
        parts = [
            Bounded("a", "AVG-1", (np.array([0]), slice(d, d + 1)), value[:, [d]], bound[:, [d]], bound[:, [d]])
            for d in (0, 1)
        ]
        assert verdict([[1.5, 2.0]], Expected((1, 2), F32, tuple(parts))).headroom == {"AVG-1": 0.5}

    def test_headroom_of_what_is_exact_unjudged_or_infinite_is_nothing(self):
        assert verdict([[1.0]], one(1.0, 1.0)).headroom == {"AVG-1": 0.0}
        assert verdict([[5.0]], one(1.0, np.inf)).headroom == {"AVG-1": 0.0}
        assert verdict([[np.nan]], one(1.0, 1.0)).headroom == {"AVG-1": 0.0}

    def test_a_passing_verdict_counts_and_names_nothing_wrong(self):
        result = verdict([[1.0]], one(1.0, 1.0))
        assert (result.compared, result.wrong, result.worst, result.reason, result.clause) == (1, 0, None, "", "")

    def test_an_unjudged_element_is_never_the_worst(self):
        value, bound = np.array([[1.0, 1.0]]), np.array([[np.inf, 0.5]])
        part = Bounded("all", "AVG-1", (np.array([0]), slice(0, 2)), value, bound, bound)
        result = verdict([[9.0, 1.75]], Expected((1, 2), F32, (part,)))
        assert (result.worst.index, result.worst.ratio, result.wrong) == ((0, 1), 1.5, 1)

    def test_at_the_bound_itself_the_quality_tier_still_warns(self):
        assert verdict(2.0, one(1.0, 1.0, 0.5)).status == "quality-warning"


class TestSpecialValues:
    def test_infinity_is_too_much_where_the_largest_number_is_within_reach(self):
        largest = 65504.0
        assert verdict(np.inf, one(largest - 1, 1.0, dtype=F16), F16).status == "fail"
        assert verdict(np.inf, one(largest - 1, 2.0, dtype=F16), F16).status == "pass"

    def test_an_overflow_that_is_due_takes_no_headroom(self):
        assert verdict(np.inf, one(1e6, 1.0, dtype=F16), F16).headroom == {"AVG-1": 0.0}

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("got", [np.nan, np.inf, -np.inf])
    def test_finite_wanted_and_special_got_fails(self, dtype, got):
        assert verdict([[got]], one(1.0, 1e3, dtype=dtype), dtype).status == "fail"

    @pytest.mark.parametrize("dtype", TYPES)
    def test_special_wanted_must_come_back_as_such(self, dtype):
        special = [np.nan, np.inf, -np.inf]
        for want in special:
            for got in [*special, 0.0, 1.0]:
                same = (np.isnan(want) and np.isnan(got)) or want == got
                assert (verdict([[got]], one(want, 1.0, dtype=dtype), dtype).status == "pass") == same, (want, got)

    @pytest.mark.parametrize("dtype", TYPES)
    def test_overflow_to_the_right_infinity_only(self, dtype):
        top = float(ml_dtypes.finfo(dtype).max)
        assert verdict([[np.inf]], one(top * 0.999, top * 0.01, dtype=dtype), dtype).status == "pass"
        assert verdict([[-np.inf]], one(top * 0.999, top * 0.01, dtype=dtype), dtype).status == "fail"
        assert verdict([[np.inf]], one(top * 0.5, top * 0.01, dtype=dtype), dtype).status == "fail"
        assert verdict([[np.inf]], one(top * 4, top * 0.01, dtype=dtype), dtype).status == "pass"
        assert verdict([[np.nan]], one(top * 4, top * 0.01, dtype=dtype), dtype).status == "fail"
        assert verdict([[0.0]], one(top * 4, top * 0.01, dtype=dtype), dtype).status == "fail"
        assert verdict([[-np.inf]], one(top * -4, top * 0.01, dtype=dtype), dtype).status == "pass"
        assert verdict([[np.inf]], one(top * -4, top * 0.01, dtype=dtype), dtype).status == "fail"


class TestCopies:
    @given(dtypes, st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=8), st.data())
    def test_any_other_bit_fails(self, dtype, bits, data):
        unsigned = np.dtype(f"u{dtype.itemsize}")
        shift = 8 * dtype.itemsize - 16
        wanted = (np.array(bits, dtype=np.uint64) << np.uint64(shift)).astype(unsigned).view(dtype)
        expected = copy(wanted, dtype)
        assert judge("keys", wanted.reshape(1, -1).copy(), expected).status == "pass"
        at = data.draw(st.integers(0, len(bits) - 1))
        bit = data.draw(st.integers(0, 8 * dtype.itemsize - 1))
        spoilt = wanted.copy()
        spoilt.view(unsigned)[at] ^= unsigned.type(1 << bit)
        assume(not (np.isnan(spoilt[at].astype(np.float64)) and np.isnan(wanted[at].astype(np.float64))))
        result = judge("keys", spoilt.reshape(1, -1), expected)
        assert result.status == "fail"
        assert result.worst.index == (0, at)
        assert result.wrong == 1

    def test_other_bits_of_a_nan_are_warned_of(self):
        quiet, other = np.uint32(0x7FC00000), np.uint32(0xFFC12345)
        got = np.array([[other]], dtype=np.uint32).view(np.float32)
        assert judge("keys", got, copy(np.array([quiet]).view(np.float32))).status == "quality-warning"

    @pytest.mark.parametrize("dtype", TYPES)
    def test_nan_is_no_number_and_a_number_no_nan(self, dtype):
        assert verdict([[np.nan]], copy([1.0], dtype), dtype).status == "fail"
        assert verdict([[1.0]], copy([np.nan], dtype), dtype).status == "fail"
        # Another element that is NaN in both does not excuse it.
        result = verdict([[np.nan, np.nan]], copy([np.nan, 2.0], dtype), dtype)
        assert (result.status, result.wrong, result.worst.index) == ("fail", 1, (0, 1))

    def test_zero_signs_are_bits(self):
        assert verdict([[-0.0]], copy([0.0])).status == "fail"

    def test_same_bits_of_empty_arrays(self):
        assert same_bits(np.zeros((0, 3), np.float16), np.zeros((0, 3), np.float16)).shape == (0, 3)


class TestForm:
    @pytest.mark.parametrize(("got", "wanted"), [(a, b) for a in TYPES for b in TYPES if a != b])
    def test_no_type_stands_for_another(self, got, wanted):
        result = judge("keys", np.ones((1, 1), got), one(1, 1, dtype=wanted))
        assert (result.status, result.compared, result.wrong, result.headroom) == ("fail", 0, 0, {})

    def test_not_an_array(self):
        result = judge("keys", [[1.0]], one(1.0, 1.0), "OUT-3")
        assert (result.status, result.clause, result.reason) == ("fail", "OUT-3", "keys is a list, not an array")

    def test_wrong_type(self):
        result = judge("keys", np.ones((1, 1), np.float64), one(1.0, 1.0, dtype=BF16), "OUT-3")
        assert result.reason == "keys is of type float64, not bf16"

    @given(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    @example([1, 1, 1])
    def test_wrong_shape(self, shape):
        assume(tuple(shape) != (1, 1))
        result = judge("keys", np.ones(shape, np.float32), one(1.0, 1e9), "OUT-3")
        assert (result.status, result.clause) == ("fail", "OUT-3")

    def test_any_empty_shape_will_do_where_the_output_is_off(self):
        off = Expected((0,), F32, ())
        assert judge("rope", np.zeros((2, 0), np.float32), off).status == "pass"
        assert judge("rope", np.zeros((2, 1), np.float32), off).status == "fail"

    def test_empty_output_passes(self):
        nothing = np.zeros(0, int)
        part = Bounded("all", "AVG-1", (nothing,), np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3)))
        assert judge("keys", np.zeros((2, 3), np.float32), Expected((2, 3), F32, (part,))).status == "pass"


class TestDontCare:
    @given(dtypes, st.integers(0, 5), st.sampled_from([np.nan, np.inf, -1e30, 0.0]))
    def test_unspecified_rows_are_never_looked_at(self, dtype, row, rest):
        value, bound = np.ones((1, 3)), np.full((1, 3), 0.01)
        expected = Expected((6, 3), dtype, (Bounded("all", "AVG-1", (np.array([row]),), value, bound, bound),))
        with np.errstate(over="ignore"):
            got = np.full((6, 3), rest, dtype=np.float64).astype(dtype)
        got[row] = 1.0
        assert judge("keys", got, expected).status == "pass"
        got[row, 1] = 2.0
        result = judge("keys", got, expected)
        assert (result.status, result.worst.index, result.wrong) == ("fail", (row, 1), 1)


class TestWorst:
    def test_names_the_element_that_is_furthest_off(self):
        value = np.zeros((2, 4))
        bound = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 0.001, 1.0, 1.0]])
        index = (np.array([0, 2]), np.array([1, 0]), slice(4, 8))
        expected = Expected((3, 2, 8), F32, (Bounded("rotated", "ROT-1", index, value, bound, bound),))
        got = np.zeros((3, 2, 8), np.float32)
        got[0, 1, 6], got[2, 0, 5] = 2.0, 0.5
        worst = judge("keys", got, expected).worst
        assert (worst.index, worst.clause, worst.region) == ((2, 0, 5), "ROT-1", "rotated")
        assert (worst.got, worst.want, worst.error, worst.bound) == ("0.5", "0", 0.5, 0.001)
        assert worst.ratio == pytest.approx(500)
        assert (worst.got_hex, worst.want_hex) == ("0x3F000000", "0x00000000")

    def test_counts_units_in_the_last_place(self):
        worst = verdict([[1.0 + 2**-7]], one(1.0, 1e-4, dtype=BF16), BF16).worst
        assert (worst.ulps, worst.got_hex, worst.want_hex) == (1.0, "0x3F81", "0x3F80")

    def test_ulps_may_be_a_fraction(self):
        assert verdict([[1.0]], one(1.0 + 2**-9, 1e-4, dtype=BF16), BF16).worst.ulps == 0.25

    def test_the_index_adds_the_start_of_a_slice(self):
        value = np.zeros((1, 4))
        expected = Expected((1, 7), F32, (Bounded("tail", "NRM-1", (np.array([0]), slice(3, 7)), value, value, value),))
        got = np.zeros((1, 7), np.float32)
        got[0, 4] = 1.0
        assert judge("keys", got, expected).worst.index == (0, 4)

    def test_the_sentence_says_how_far_off_and_how_many(self):
        assert verdict([[1.5]], one(1.0, 0.25)).reason == (
            "keys[0, 0] (all) is 1.5, not 1: off by 0.5, 2 times the bound"
        )
        assert verdict([[2.0, 3.0]], copy([1.0, 1.0])).reason == (
            "keys[0, 0] (copied) is 2, not 1 bit for bit; 2 elements are wrong"
        )
        assert verdict([[1.5]], one(1.0, 1.0, 0.25)).reason == (
            "keys[0, 0] (all) is 1.5, not 1: off by 0.5, within the bound (0.5 of it) but beyond the quality tier"
        )

    def test_an_infinite_ratio_outranks_any_other(self):
        expected = copy([1.0, 2.0, 3.0])
        result = verdict([[1.0, 5.0, 3.0]], expected)
        assert (result.worst.index, result.worst.ratio, result.worst.bound) == ((0, 1), None, None)

    def test_a_failing_part_is_named_before_a_warned_one(self):
        ones = np.ones((1, 1))
        warned = Bounded("a", "ROT-1", (np.array([0]), slice(0, 1)), ones, ones, ones * 0.1)
        failed = Bounded("b", "NRM-1", (np.array([0]), slice(1, 2)), ones, ones * 0.01, ones * 0.01)
        result = verdict([[1.9, 1.02]], Expected((1, 2), F32, (warned, failed)))
        assert (result.status, result.clause, result.worst.region, result.wrong) == ("fail", "NRM-1", "b", 1)

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_a_part_that_only_warns_does_not_soften_one_that_fails(self, order):
        ones = np.ones((1, 1))
        parts = [
            Bounded("a", "NRM-1", (np.array([0]), slice(0, 1)), ones, ones * 0.01, ones * 0.01),
            Bounded("b", "ROT-1", (np.array([0]), slice(1, 2)), ones, ones, ones * 0.1),
        ]
        result = verdict([1.5, 1.5], Expected((1, 2), F32, tuple(parts[i] for i in order)))
        assert (result.status, result.clause, result.wrong) == ("fail", "NRM-1", 1)

    def test_only_what_is_beyond_its_bound_counts_as_wrong(self):
        value, bound = np.zeros((1, 4)), np.ones((1, 4))
        part = Bounded("all", "AVG-1", (np.array([0]),), value, bound, bound)
        assert verdict([0.5, 1, 2, 3], Expected((1, 4), F32, (part,))).wrong == 2

    def test_later_parts_are_judged_whatever_the_first_is(self):
        wrong = Bounded("b", "NRM-1", (np.array([0]), slice(1, 2)), np.ones((1, 1)), np.zeros((1, 1)), np.zeros((1, 1)))
        empty = Bounded("a", "AVG-1", (np.array([], int), slice(0, 1)), *[np.zeros((0, 1))] * 3)
        copied = Copy("a", "OUT-1", (np.array([0]), slice(0, 1)), np.ones((1, 1), np.float32))
        for first in (empty, copied):
            assert verdict([1, 2], Expected((1, 2), F32, (first, wrong))).status == "fail"

    @pytest.mark.parametrize(("errors", "region"), [((3, 2), "a"), ((2, 3), "b"), ((2, 2), "a")])
    def test_of_two_failing_parts_the_worse_is_named_the_first_of_equals(self, errors, region):
        zero, one = np.zeros((1, 1)), np.ones((1, 1))
        parts = [
            Bounded(name, "NRM-1", (np.array([0]), slice(i, i + 1)), zero, one, one) for i, name in enumerate("ab")
        ]
        assert verdict(errors, Expected((1, 2), F32, tuple(parts))).worst.region == region

    def test_a_warning_names_the_element_that_it_is_about(self):
        value, quality = np.zeros((1, 2)), np.array([[1, 0.1]])
        part = Bounded("all", "AVG-1", (np.array([0]),), value, np.ones((1, 2)), quality)
        result = verdict([0.9, 0.5], Expected((1, 2), F32, (part,)))
        assert (result.status, result.worst.index) == ("quality-warning", (0, 1))

    def test_every_axis_has_its_place_in_the_index(self):
        value = np.zeros((1, 2, 3))
        part = Bounded("all", "AVG-1", (np.array([1]), slice(1, 3), slice(2, 5)), value, value, value)
        got = np.zeros((2, 4, 6), np.float32)
        got[1, 2, 3] = 1
        assert judge("keys", got, Expected((2, 4, 6), F32, (part,))).worst.index == (1, 2, 3)

    @pytest.mark.parametrize(("want", "ulps"), [(1.0, 16.0), (8.0, 2.0), (0.125, 128.0)])
    def test_units_in_the_last_place_are_those_at_the_wanted_value(self, want, ulps):
        assert verdict([want + 2**-19], one(want, 0)).worst.ulps == ulps
