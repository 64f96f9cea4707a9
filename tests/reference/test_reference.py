"""The float64 reference against the exact oracle, over the whole library, and its streams against its single calls."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.judging.judge import same_bits
from conformance.spec.case import Case
from conformance.spec.inputs import inputs_of
from conformance.spec.streams import call_inputs, spans
from conformance.spec.types import dtype
from reference.parts import Copy
from reference.qsa_prepare import naive
from reference.qsa_prepare.bounds import Oracle
from reference.qsa_prepare.operation import QSAPrepare, Readings

EXACT_LIMIT = 3000  # elements of new keys that the fraction oracle can do quickly


def exact_cases(library):
    """Cases small enough for fractions, in f32: the values are the same numbers in every type."""
    for case in library.cases:
        elements = case.dims["N"] * case.dims["L"] * case.dims["Di"]
        if not case.refusal and elements <= EXACT_LIMIT and case.dims["Bp"] * case.dims["Di"] <= EXACT_LIMIT:
            yield case


def test_value_agrees_with_the_exact_oracle_on_every_small_case(library, operation):
    """Every specified element: copies to the bit, block keys to float64 accuracy scaled by the bound's own terms."""
    checked = compared = 0
    for case in list(exact_cases(library))[::3]:
        inputs = inputs_of(case, operation)
        exact = naive.qsa_prepare(inputs, int(case.attributes["key_block_size"]), float(case.attributes["epsilon"]))
        expected = Oracle(case.attributes).expect(inputs)
        for name, cells in exact.items():
            values, specified = naive.to_float64(cells)
            one = expected[name]
            assert one.shape == values.shape, (case.id, name)
            if case.attributes["epsilon"] > 0:
                assert np.array_equal(one.defined(), specified), (case.id, name)
            for part in one.parts:
                want = values[part.index]
                if isinstance(part, Copy):
                    assert np.array_equal(part.value.astype(np.float64), want, equal_nan=True), (case.id, name)
                else:
                    judged = np.isfinite(part.bound)
                    with np.errstate(invalid="ignore"):
                        close = np.abs(part.value - want) <= 1e-6 * part.bound
                    special = (part.value == want) | (np.isnan(part.value) & np.isnan(want))
                    assert (close | special | ~judged).all(), (case.id, name, part.region)
                    compared += int(judged.sum())
        checked += 1
    assert checked > 100
    assert compared > 2000


def test_streams_of_the_reference_are_its_single_call(library, operation):
    """STA-4 for the reference itself: bit for bit, for every partition in the library that is not long."""
    seen = 0
    for case in list(exact_cases(library))[::5]:
        oracle = Oracle(case.attributes)
        whole = inputs_of(case, operation)
        single = oracle.expect(whole)
        for stream in case.streams[:8]:
            carried = {}
            for start, end in spans(stream):
                outputs = oracle.run(call_inputs(whole, case, operation, start, end, carried))
                carried = {port: outputs[output] for port, output in operation.carried.items()}
            want = oracle.run(whole)
            for name, one in single.items():
                for part in one.parts:
                    got, wanted = outputs[name][part.index], want[name][part.index]
                    assert got.tobytes() == wanted.tobytes(), (case.id, stream, name)
            seen += 1
    assert seen > 50


def case_of(**changes) -> Case:
    plain = {
        "id": "t/x", "says": "x.", "clauses": ("BLK-1",), "operation": "QSAPrepare",
        "attributes": {"key_block_size": 4, "epsilon": 1e-6}, "dims": {"N": 2, "L": 6, "Di": 6, "Dr": 4, "Bp": 1},
        "past": (2, 5), "pad": (0, 0),
    }  # fmt: skip
    return Case(**{**plain, **changes})


def test_where_the_tokens_of_every_sequence_lie():
    keys, empty = np.zeros((3, 4, 1), np.float32), np.zeros(0, np.float32)
    lengths = QSAPrepare(3).call({
        "raw_index_keys": keys, "past_block_index_keys": keys[:, :2], "key_length": np.array([1, 5, 9]),
        "rope_cos": empty, "rope_sin": empty, "k_norm_weight": empty, "past_incomplete_raw_keys": keys[:, :2],
        "past_incomplete_rope": empty,
    }).lengths  # fmt: skip
    found = {name: getattr(lengths, name).tolist() for name in ("S", "pad", "past", "c", "q", "c_after", "q_after")}
    assert found == {
        "S": [1, 5, 9], "pad": [3, 0, 0], "past": [0, 1, 5],
        "c": [0, 0, 1], "q": [0, 1, 2], "c_after": [0, 1, 3], "q_after": [1, 2, 0],
    }  # fmt: skip


def test_outputs_are_the_expected_values_rounded_once(library, operation):
    for case in [c for c in library.cases if not c.refusal and not c.change and c.dims["N"] * c.dims["L"] < 2000][::40]:
        oracle = operation.oracle(case.attributes)
        inputs = inputs_of(case, operation)
        outputs, expected = oracle.run(inputs), oracle.expect(inputs)
        for name, one in expected.items():
            assert (outputs[name].shape, outputs[name].dtype) == (one.shape, one.dtype)
            for part in one.parts:
                with np.errstate(over="ignore"):
                    wanted = part.value.astype(one.dtype)
                assert same_bits(outputs[name][part.index], wanted).all(), (case.id, name, part.region)


class TestReadings:
    """Every alternative reading differs from the default where it must, and only there."""

    def outputs(self, operation, case, **readings):
        return QSAPrepare(4, 1e-6, Readings(**readings)).run(inputs_of(case, operation))

    def test_right_alignment_differs_only_between_empty_and_full(self, operation):
        for past, differs in ((1, True), (2, True), (3, False)):
            case = case_of(dims={"N": 1, "L": 0, "Di": 2, "Dr": 2, "Bp": 0}, past=(past,), pad=(0,), poison="zero")
            left = self.outputs(operation, case)["present_incomplete_raw_keys"]
            right = self.outputs(operation, case, alignment="right")["present_incomplete_raw_keys"]
            # The rows of the input that count are others under the other reading: only full states agree.
            assert np.array_equal(left, right) != differs

    def test_unit_weight_normalizes(self, operation):
        case = case_of(disabled=("norm", "rope"))
        off = self.outputs(operation, case)["block_index_keys"][0, 0].astype(np.float64)
        unit = self.outputs(operation, case, empty_weight="unit")["block_index_keys"][0, 0]
        assert unit == pytest.approx(off / np.sqrt((off**2).mean() + 1e-6), rel=1e-6)

    def test_row_count_from_shapes(self, operation):
        case = case_of(dims={"N": 2, "L": 6, "Di": 6, "Dr": 4, "Bp": 3})
        assert self.outputs(operation, case)["block_index_keys"].shape[1] == 2
        assert self.outputs(operation, case, rows="bound")["block_index_keys"].shape[1] == 3 + 2

    @pytest.mark.parametrize(("L", "new"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
    def test_row_count_from_shapes_at_the_edges_of_blocks(self, operation, L, new):
        case = case_of(dims={"N": 2, "L": L, "Di": 6, "Dr": 4, "Bp": 3})
        assert self.outputs(operation, case, rows="bound")["block_index_keys"].shape[1] == 3 + new

    def test_all_unused_rows_of_the_history_may_be_carried(self, operation):
        case = case_of(poison="huge", dims={"N": 2, "L": 2, "Di": 6, "Dr": 4, "Bp": 3}, past=(2, 13))
        carried = self.outputs(operation, case, unused="carried")["block_index_keys"]
        assert np.array_equal(carried[0, 1:], inputs_of(case, operation)["past_block_index_keys"][0, 1:])

    @pytest.mark.parametrize(("unused", "rows"), [("zeros", [0, 1, 2, 3]), ("carried", [0, 1])])
    def test_rows_that_another_reading_specifies(self, operation, unused, rows):
        case = case_of(dims={"N": 2, "L": 9, "Di": 6, "Dr": 4, "Bp": 2}, past=(0, 8), pad=(7, 0))  # 0 and 4 blocks
        op = QSAPrepare(4, 1e-6, Readings(unused=unused))
        (n, b), values = op.unused_rows(op.call(inputs_of(case, operation)))
        assert (n.tolist(), b.tolist(), len(values)) == ([0] * len(rows), rows, len(rows))

    def test_unused_rows(self, operation):
        case = case_of(poison="huge", dims={"N": 2, "L": 2, "Di": 6, "Dr": 4, "Bp": 3}, past=(2, 9))
        top = np.finfo(np.float32).max
        zeros = self.outputs(operation, case, unused="zeros")
        carried = self.outputs(operation, case, unused="carried")
        assert (zeros["block_index_keys"][0, 1] == 0).all()
        assert (np.abs(carried["block_index_keys"][0, 1]) == top).all()
        assert (zeros["present_incomplete_raw_keys"][0] == 0).all()
        assert (np.abs(carried["present_incomplete_raw_keys"][0, 2]) == top).all()
        # Sequence 0 completes its block, so that nothing is open: the rope is unused.
        assert (zeros["present_incomplete_rope"][0] == 0).all()
        past_rope = inputs_of(case, operation)["past_incomplete_rope"][0]
        assert np.array_equal(carried["present_incomplete_rope"][0], past_rope)

    def test_half_width_and_interleaved_pairing_by_hand(self):
        y, cos, sin = np.array([[1.0, 2, 3, 4, 9]]), np.array([[0.0, 1]]), np.array([[1.0, 2]])
        half = QSAPrepare(2, 0, Readings(rope_width="half")).rotate(y, cos, sin)
        # pairs (0,2) with cos 0, sin 1 and (1,3) with cos 1, sin 2
        assert half.tolist() == [[-3, 2 - 8, 1, 4 + 4, 9]]
        three = QSAPrepare(2, 0, Readings(rope_width="half")).rotate(
            np.array([[1.0, 2, 3, 4, 5, 6, 9]]), np.array([[0.0, 0, 0]]), np.array([[1.0, 2, 3]])
        )
        assert three.tolist() == [[-4, -10, -18, 1, 4, 9, 9]]  # pairs (0,3), (1,4), (2,5)
        wide = np.array([[0.0, 0, 1, 1]]), np.array([[1.0, 1, 2, 2]])
        interleaved = QSAPrepare(2, 0, Readings(pairing="interleaved")).rotate(y, *wide)
        # pairs (0,1) with cos 0, sin 1 and (2,3) with cos 1, sin 2
        assert interleaved.tolist() == [[-2, 1, 3 - 8, 4 + 6, 9]]
        first, second, *_ = QSAPrepare(2, 0, Readings(pairing="interleaved")).pairs(8)
        assert (first.tolist(), second.tolist()) == ([0, 2, 4, 6], [1, 3, 5, 7])

    def test_a_right_aligned_state_is_read_as_it_was_written(self, operation):
        case = case_of(dims={"N": 1, "L": 7, "Di": 6, "Dr": 4, "Bp": 0}, past=(0,), pad=(0,))
        op, whole = QSAPrepare(4, 1e-6, Readings(alignment="right")), inputs_of(case, operation)
        single, carried = op.run(whole), {}
        for start, end in ((0, 2), (2, 3), (3, 7)):
            out = op.run(call_inputs(whole, case, operation, start, end, carried))
            carried = {port: out[output] for port, output in operation.carried.items()}
        for name, array in single.items():
            assert np.array_equal(out[name], array), name

    def test_epsilon_is_as_the_contract_has_it_by_default(self):
        assert QSAPrepare(4).epsilon == 1e-6


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_outputs_have_the_element_type(operation, name):
    outputs = QSAPrepare(4).run(inputs_of(case_of(element_type=name), operation))
    assert {array.dtype for array in outputs.values()} == {dtype(name)}
