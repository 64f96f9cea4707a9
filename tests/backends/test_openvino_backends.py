"""The OpenVINO backends against numbers worked out by hand, and against themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino
import pytest
from openvino import opset15 as ops

from conformance.backends.openvino.runtime import tensor_of
from conformance.backends.protocol import Backend, OperationConfig, Rejected, Session, Unsupported
from conformance.backends.qsa_prepare.openvino_graph import OpenVINOGraph
from conformance.backends.qsa_prepare.openvino_native import OpenVINONative
from conformance.backends.qsa_prepare.openvino_python_op import OpenVINOPythonOp, QSAPrepare, build_model, through_ir
from conformance.backends.refusals import checker

Array = np.ndarray[Any, np.dtype[Any]]
TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
LENGTHS: dict[str, Any] = {"i32": np.int32, "i64": np.int64}
NAN = math.nan


@pytest.fixture(scope="module", params=[OpenVINOGraph, OpenVINOPythonOp])
def backend(request: pytest.FixtureRequest) -> Backend:
    made: Backend = request.param()
    return made


def config(r: int, *disabled: str, T: str = "f32", lengths: str = "i64", epsilon: float = 1e-6) -> OperationConfig:
    return OperationConfig("QSAPrepare", {"key_block_size": r, "epsilon": epsilon}, T, lengths, frozenset(disabled))


def inputs(of: OperationConfig, raw: Any, S: Any, **given: Any) -> dict[str, Array]:
    """All ports; those not given are without past, NaN where nothing counts, and empty where switched off."""
    T, r = TYPES[of.element_type], int(of.attributes["key_block_size"])
    keys = np.asarray(raw, T)
    N, _, Di = keys.shape
    ports: dict[str, Any] = {
        "raw_index_keys": keys,
        "past_block_index_keys": np.zeros((N, 0, Di)),
        "rope_cos": np.zeros(0),
        "rope_sin": np.zeros(0),
        "k_norm_weight": np.zeros(0),
        "past_incomplete_raw_keys": np.full((N, r - 1, Di), NAN),
        "past_incomplete_rope": np.zeros(0),
    } | given
    arrays = {name: np.asarray(value).astype(T) for name, value in ports.items()}
    arrays["key_length"] = np.asarray(S, LENGTHS[of.length_type])
    return arrays


def call(backend: Backend, of: OperationConfig, raw: Any, S: Any, **given: Any) -> Mapping[str, Array]:
    session = backend.prepare(of)
    outputs = session.run(inputs(of, raw, S, **given))
    session.close()
    return outputs


def random_inputs(of: OperationConfig, N: int, L: int, S: Any, Di: int, Dr: int, seed: int = 0) -> dict[str, Array]:
    """Normal numbers in every element that can count, NaN in all others."""
    r, draw = int(of.attributes["key_block_size"]), np.random.default_rng(seed).standard_normal
    lengths = np.broadcast_to(S, N)
    past = np.maximum(lengths - L, 0)
    given = {
        "past_block_index_keys": draw((N, max(past // r, default=0) + 1, Di)),
        "past_incomplete_raw_keys": draw((N, r - 1, Di)),
        "rope_cos": draw((N, L, Dr)),
        "rope_sin": draw((N, L, Dr)),
        "past_incomplete_rope": draw((N, 2 * Dr)),
        "k_norm_weight": draw(Di),
    }
    raw = draw((N, L, Di))
    for n in range(N):
        raw[n, : max(L - lengths[n], 0)] = NAN
        given["past_block_index_keys"][n, past[n] // r :] = NAN
        given["past_incomplete_raw_keys"][n, past[n] % r :] = NAN
        if past[n] % r == 0:
            given["past_incomplete_rope"][n] = NAN
        token = np.arange(L) + lengths[n] - L
        for name in ("rope_cos", "rope_sin"):
            given[name][n, (token < 0) | (token % r != 0)] = NAN
    for names, feature in ((("rope_cos", "rope_sin", "past_incomplete_rope"), "rope"), (("k_norm_weight",), "norm")):
        if feature in of.disabled:
            given |= {name: np.zeros(0) for name in names}
    return inputs(of, raw, S, **given)


def bits(array: Array) -> Array:
    return array.view({2: np.uint16, 4: np.uint32}[array.itemsize])


def same_bits(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    return all(a[name].shape == b[name].shape and np.array_equal(bits(a[name]), bits(b[name])) for name in a)


# Values


def test_means_and_what_stays_open(backend: Backend) -> None:
    raw = [[[1, 10], [3, 20], [5, 30], [7, 40], [9, 50]]]
    out = call(backend, config(2, "rope", "norm"), raw, [5])
    assert out["block_index_keys"].tolist() == [[[2, 15], [6, 35]]]
    assert out["present_incomplete_raw_keys"].tolist() == [[[9, 50]]]
    assert out["present_incomplete_rope"].shape == (0,)


def test_normalization(backend: Backend) -> None:
    # Mean (3, 4), mean square 12.5, and epsilon 12.5 makes the root 5.
    out = call(backend, config(2, "rope", epsilon=12.5), [[[2, 5], [4, 3]]], [2], k_norm_weight=[1, 2])
    np.testing.assert_allclose(out["block_index_keys"], [[[0.6, 1.6]]], rtol=1e-6)


def test_rotation_with_four_independent_halves(backend: Backend) -> None:
    rope = {"rope_cos": [[[1, 2, 3, 4], [NAN] * 4]], "rope_sin": [[[5, 6, 7, 8], [NAN] * 4]]}
    raw = [[[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]]
    out = call(backend, config(2, "norm"), raw, [2], **rope, past_incomplete_rope=[[NAN] * 8])
    assert out["block_index_keys"].tolist() == [[[1 - 15, 4 - 24, 9 + 7, 16 + 16, 5]]]


def test_history_padding_and_a_batch_of_all_kinds(backend: Backend) -> None:
    # r = 3, L = 4. Sequence 0: 2 of 4 rows are padding. 1: 5 past tokens, 2 of them open; block 1 completes and block 2
    # too. 2: nothing valid. 3: 3 past tokens, block 1 completes with one key over.
    raw = np.arange(4 * 4).reshape(4, 4, 1) + 1.0
    raw[0, :2] = raw[2] = NAN
    past = [[[NAN]], [[100]], [[NAN]], [[300]]]
    waiting = [[[NAN], [NAN]], [[8], [9]], [[NAN], [NAN]], [[NAN], [NAN]]]
    given = {"past_block_index_keys": past, "past_incomplete_raw_keys": waiting}
    out = call(backend, config(3, "rope", "norm"), raw, [2, 9, 0, 7], **given)
    keys, state = out["block_index_keys"], out["present_incomplete_raw_keys"]
    assert keys.shape == (4, 3, 1)
    np.testing.assert_allclose(keys[1, :, 0], [100, (8 + 9 + 5) / 3, 7], rtol=1e-6)
    np.testing.assert_allclose(keys[3, :2, 0], [300, 14], rtol=1e-6)
    assert state[0, :, 0].tolist() == [3, 4]
    assert state[3, 0, 0] == 16
    # What is unspecified is zero here, so that no poison is handed on.
    assert not keys[[0, 2]].any() and keys[3, 2] == 0 and not state[[1, 2]].any() and state[3, 1] == 0


def test_rope_of_a_block_that_began_earlier_and_of_the_open_one(backend: Backend) -> None:
    of = config(3, "norm")
    given = {"past_incomplete_raw_keys": [[[1, 2], [NAN, NAN]]], "past_incomplete_rope": [[2, 3, 4, 5]]}
    cos, sin = [[[NAN] * 2, [NAN] * 2, [11, 12]]], [[[NAN] * 2, [NAN] * 2, [13, 14]]]
    out = call(backend, of, [[[1, 2], [1, 2], [7, 8]]], [4], rope_cos=cos, rope_sin=sin, **given)
    assert out["block_index_keys"].tolist() == [[[1 * 2 - 2 * 4, 2 * 3 + 1 * 5]]]
    assert out["present_incomplete_rope"].tolist() == [[11, 12, 13, 14]]
    still = call(backend, of, [[[1, 2]]], [2], rope_cos=[[[NAN] * 2]], rope_sin=[[[NAN] * 2]], **given)
    assert still["present_incomplete_rope"].tolist() == [[2, 3, 4, 5]]
    assert still["present_incomplete_raw_keys"].tolist() == [[[1, 2], [1, 2]]]


def test_a_length_of_one_element_counts_for_all(backend: Backend) -> None:
    of = config(2, "rope", "norm", lengths="i32")
    out = call(backend, of, [[[1], [3]], [[5], [7]]], [2])
    assert out["block_index_keys"].tolist() == [[[2]], [[6]]]
    assert call(backend, of, np.zeros((0, 2, 1)), [2])["block_index_keys"].shape == (0, 0, 1)


def test_an_epsilon_of_zero_and_a_block_of_zeros(backend: Backend) -> None:
    out = call(backend, config(2, "rope"), [[[0, 0], [0, 0]]], [2], k_norm_weight=[1, 1])
    assert out["block_index_keys"].tolist() == [[[0, 0]]]
    out = call(backend, config(2, "rope", epsilon=0.0), [[[1e-12, 0], [1e-12, 0]]], [2], k_norm_weight=[1, 1])
    np.testing.assert_allclose(out["block_index_keys"], [[[math.sqrt(2), 0]]], rtol=1e-6)


def test_lengths_beyond_the_integers_of_f32(backend: Backend) -> None:
    r, S = 4096, 4100 * 4096 - 1  # one token short of a block; in f32 arithmetic the block looks complete
    assert S > 2**24 and np.float32(S) == S + 1
    past = np.arange(4099.0).reshape(1, 4099, 1)
    state = np.arange(1.0, 4096.0).reshape(1, 4095, 1)
    given = {"past_block_index_keys": past, "past_incomplete_raw_keys": state}
    out = call(backend, config(r, "rope", "norm"), np.zeros((1, 1, 1)) + 7, [S], **given)
    assert np.array_equal(out["block_index_keys"], past)
    assert out["present_incomplete_raw_keys"][0, :, 0].tolist() == [*range(1, 4095), 7]


# Types and special values


@pytest.mark.parametrize(("T", "step"), [("bf16", 2.0**-7), ("f16", 2.0**-10)])
def test_means_are_rounded_once_to_nearest_even(backend: Backend, T: str, step: float) -> None:
    raw = [[[1, 1 + step], [1 + step, 1 + 2 * step]]]
    out = call(backend, config(2, "rope", "norm", T=T), raw, [2])["block_index_keys"]
    assert out.dtype == TYPES[T]
    assert out.astype(float).tolist() == [[[1, 1 + 2 * step]]]


@pytest.mark.parametrize("T", ["f16", "bf16"])
def test_means_are_rounded_to_nearest_whatever_their_size(backend: Backend, T: str) -> None:
    rng = np.random.default_rng(0)
    raw = (rng.uniform(1, 2, (1, 64, 64)) * 2.0 ** rng.integers(-13, 15, (1, 1, 64))).astype(TYPES[T])
    want = raw.astype(np.float32).reshape(1, 32, 2, 64).mean(axis=2).astype(TYPES[T])
    got = call(backend, config(2, "rope", "norm", T=T), raw, [64])["block_index_keys"]
    assert np.array_equal(bits(got), bits(want))


@pytest.mark.parametrize("T", ["f16", "bf16"])
def test_sums_are_not_rounded_to_the_element_type(backend: Backend, T: str) -> None:
    raw = np.ones((1, 4096, 1))  # in bf16 or f16 the sum would stick at 256 or 2048
    assert call(backend, config(4096, "rope", "norm", T=T), raw, [4096])["block_index_keys"].tolist() == [[[1]]]


def test_a_result_too_large_for_f16_is_infinite(backend: Backend) -> None:
    rope = {"rope_cos": [[[1, 1]] * 2], "rope_sin": [[[1, 1]] * 2], "past_incomplete_rope": [[NAN] * 4]}
    raw = [[[60000, -60000]] * 2]
    out = call(backend, config(2, "norm", T="f16"), raw, [2], **rope)["block_index_keys"]
    assert out.astype(float).tolist() == [[[math.inf, 0]]]


@pytest.mark.parametrize("T", TYPES)
def test_copies_keep_their_bits(backend: Backend, T: str) -> None:
    info = ml_dtypes.finfo(TYPES[T])
    small, top = float(info.smallest_subnormal), float(info.max)
    special = np.array([-0.0, math.inf, -math.inf, small, -small, top, -top, 1.5]).astype(TYPES[T])
    given = {"past_block_index_keys": special[None, None], "past_incomplete_raw_keys": np.tile(special, (1, 3, 1))}
    rope = {name: np.tile(special, (1, 1, 1)) for name in ("rope_cos", "rope_sin")}
    carried = np.concatenate([special, special[::-1]])[None]
    raw = special[None, None, ::-1]
    out = call(backend, config(4, "norm", T=T), raw, [6], **given, **rope, past_incomplete_rope=carried)
    assert np.array_equal(bits(out["block_index_keys"][0, 0]), bits(special))
    assert np.array_equal(bits(out["present_incomplete_raw_keys"][0, :2]), bits(np.stack([special, special[::-1]])))
    assert np.array_equal(bits(out["present_incomplete_rope"]), bits(carried))


@pytest.mark.parametrize("off", [(), ("rope",), ("norm",), ("rope", "norm")])
def test_what_does_not_count_has_no_effect(backend: Backend, off: tuple[str, ...]) -> None:
    of = config(3, *off)
    out = call_on(backend.prepare(of), random_inputs(of, 5, 6, [0, 2, 6, 11, 17], 8, 4))
    assert all(np.isfinite(array).all() for array in out.values())


def test_nan_and_infinity_stay_in_their_block(backend: Backend) -> None:
    of = config(2)
    clean = random_inputs(of, 2, 6, [6, 6], 4, 4)
    dirty = {name: array.copy() for name, array in clean.items()}
    dirty["raw_index_keys"][0, 2, 1], dirty["raw_index_keys"][1, 1, 0] = NAN, math.inf
    session = backend.prepare(of)
    want, got = (call_on(session, given)["block_index_keys"] for given in (clean, dirty))
    touched = np.array([[False, True, False], [True, False, False]])
    assert np.array_equal(bits(got[~touched]), bits(want[~touched]))
    assert not np.isfinite(got[touched]).all()


def call_on(session: Session, given: Mapping[str, Array]) -> Mapping[str, Array]:
    return session.run(given)


# Behaviour


@pytest.mark.parametrize("T", TYPES)
def test_a_stream_equals_the_single_call(backend: Backend, T: str) -> None:
    of = config(3, T=T)
    whole = random_inputs(of, 2, 14, 14, 8, 4) | {"key_length": np.array([14], np.int64)}
    session = backend.prepare(of)
    single = session.run(whole)
    state = {name: whole[name] for name in whole if name.startswith("past_")}
    state["past_block_index_keys"] = state["past_block_index_keys"][:, :0]
    start = 0
    for step in (0, 1, 1, 4, 0, 7, 1):
        new = {name: whole[name][:, start : start + step] for name in ("raw_index_keys", "rope_cos", "rope_sin")}
        start += step
        ends = {"k_norm_weight": whole["k_norm_weight"], "key_length": np.array([start, start])}
        out = session.run(new | state | ends)
        state = {
            "past_block_index_keys": out["block_index_keys"],
            "past_incomplete_raw_keys": out["present_incomplete_raw_keys"],
            "past_incomplete_rope": out["present_incomplete_rope"],
        }
    assert same_bits(out, single)


def test_a_row_of_a_batch_equals_the_row_alone(backend: Backend) -> None:
    of = config(4)
    batch = random_inputs(of, 3, 9, [9, 20, 5], 16, 8)
    session = backend.prepare(of)
    together = session.run(batch)
    for n, S in enumerate((9, 20, 5)):
        row = {name: array if name == "k_norm_weight" else array[n : n + 1] for name, array in batch.items()}
        alone = session.run(row)
        assert np.array_equal(bits(alone["block_index_keys"][0]), bits(together["block_index_keys"][n, : S // 4]))
        for name in ("present_incomplete_raw_keys", "present_incomplete_rope"):
            assert np.array_equal(bits(alone[name][0]), bits(together[name][n]))


@pytest.mark.parametrize("off", [(), ("rope",), ("rope", "norm")])
def test_nothing_of_anything(backend: Backend, off: tuple[str, ...]) -> None:
    of = config(3, *off)
    session = backend.prepare(of)
    for N, L, S in ((0, 0, []), (0, 5, []), (2, 0, [0, 0]), (2, 0, [3, 7]), (1, 2, [0]), (1, 2, [2]), (2, 4, [4, 9])):
        out = session.run(random_inputs(of, N, L, np.array(S, np.int64), 8, 4))
        assert out["block_index_keys"].shape == (N, max(S, default=0) // 3, 8)
        assert out["present_incomplete_raw_keys"].shape == (N, 2, 8)
        assert out["present_incomplete_rope"].shape == ((0,) if "rope" in off else (N, 8))


def test_widths_may_change_from_call_to_call(backend: Backend) -> None:
    # Splitting with lengths that are computed, the CPU plug-in kept stale ones after a call without elements.
    of = config(2, "norm")
    session = backend.prepare(of)
    for N, L, S, Dr in ((2, 7, [16, 16], 4), (0, 9, [], 8), (1, 4, [14], 4), (3, 1, [1, 2, 3], 2), (2, 7, [16, 16], 4)):
        given = random_inputs(of, N, L, np.array(S, np.int64), 8, Dr)
        assert same_bits(session.run(given), call_on(backend.prepare(of), given))


def test_outputs_and_inputs_are_the_callers(backend: Backend) -> None:
    of = config(3)
    session = backend.prepare(of)
    given = random_inputs(of, 2, 7, [7, 12], 8, 4)
    before = {name: array.copy() for name, array in given.items()}
    first = session.run(given)
    kept = {name: array.copy() for name, array in first.items()}
    for array in first.values():
        assert array.flags.writeable and array.flags.c_contiguous
        assert not any(np.shares_memory(array, other) for other in given.values())
    session.run(random_inputs(of, 2, 7, [7, 12], 8, 4, seed=1))
    session.run(random_inputs(of, 1, 30, [30], 8, 4, seed=2))
    session.close()
    assert same_bits(first, kept)
    assert all(array.tobytes() == before[name].tobytes() for name, array in given.items())


@pytest.mark.parametrize("T", TYPES)
def test_arrays_need_not_be_writable_or_contiguous(backend: Backend, T: str) -> None:
    of = config(3, T=T)
    session = backend.prepare(of)
    given = random_inputs(of, 2, 7, [7, 12], 8, 4)
    strided = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in given.items()}
    for array in given.values():
        array.flags.writeable = False
    assert same_bits(session.run(given), session.run(strided))


def test_calls_at_the_same_time(backend: Backend) -> None:
    of = config(3)
    session = backend.prepare(of)
    calls = [random_inputs(of, 1 + seed % 3, 5 + seed, 9 + seed, 8, 4, seed) for seed in range(8)]
    calls = [given | {"key_length": given["key_length"].reshape(1)} for given in calls]
    alone = [session.run(given) for given in calls]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(session.run, calls))
    assert all(same_bits(a, b) for a, b in zip(alone, together, strict=True))


def test_refusals(backend: Backend) -> None:
    with pytest.raises(Rejected) as caught:
        backend.prepare(config(1))
    assert (caught.value.kind, caught.value.phase) == ("attribute", "prepare")
    of = config(2, "rope", "norm")
    session = backend.prepare(of)
    given = inputs(of, np.zeros((1, 2, 4)), [2])
    for name, array, kind in (
        ("raw_index_keys", np.zeros((1, 2, 4), np.float16), "type"),
        ("past_incomplete_raw_keys", np.zeros((1, 2, 4), np.float32), "shape"),
        ("past_incomplete_rope", np.zeros((1, 4), np.float32), "rope"),
        ("key_length", np.array([-1]), "value"),
    ):
        with pytest.raises(Rejected) as caught:
            session.run(given | {name: array})
        assert (caught.value.kind, caught.value.phase, caught.value.names) == (kind, "call", (name,))
    assert session.run(given)["block_index_keys"].shape == (1, 1, 4)  # of use as before


def test_description(backend: Backend) -> None:
    info = backend.describe()
    assert info.element_types == ("f32", "f16", "bf16")
    assert info.outputs == ("block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope")
    assert openvino.get_version() in info.version and "f32" in info.version


def test_the_precision_is_read_back_from_the_compiled_model() -> None:
    session = OpenVINOGraph().prepare(config(2, T="bf16"))
    assert session.compiled_model.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.f32


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(Unsupported, match=r"no device 'NPU-9'.*CPU"):
        OpenVINOGraph("NPU-9")


@pytest.mark.parametrize("T", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.int64])
def test_tensors_share_the_memory_of_arrays(T: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(T)
    tensor = tensor_of(array)
    assert tuple(tensor.shape) == (2, 3)
    assert tensor.data.ctypes.data == array.ctypes.data


# The operation in Python


def test_the_operation_passes_through_ir(tmp_path: Path) -> None:
    of = config(3, "norm", T="bf16", epsilon=0.25)
    openvino.serialize(build_model(checker(of)), tmp_path / "model.xml", tmp_path / "model.bin")
    text = (tmp_path / "model.xml").read_text()
    assert 'type="QSAPrepare"' in text and 'key_block_size="3"' in text and 'epsilon="0.25"' in text
    with pytest.raises(RuntimeError):
        openvino.Core().read_model(tmp_path / "model.xml")  # nobody knows the operation
    core = openvino.Core()
    core.add_extension(QSAPrepare)
    again = through_ir(core, through_ir(core, core.read_model(tmp_path / "model.xml")))
    assert [port.any_name for port in again.outputs] == list(OpenVINOPythonOp().describe().outputs)
    request = core.compile_model(again, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    given = random_inputs(of, 2, 7, [7, 11], 8, 4)
    for port in again.inputs:
        request.set_tensor(port.any_name, tensor_of(given[port.any_name]))
    request.infer(share_outputs=True)
    for name, want in OpenVINOPythonOp().prepare(of).run(given).items():
        assert np.array_equal(bits(want), bits(request.get_tensor(name).data))


def operation(r: int = 4, **shapes: Any) -> QSAPrepare:
    given = {
        "raw_index_keys": [2, 9, 8],
        "past_block_index_keys": [2, 5, 8],
        "key_length": [2],
        "rope_cos": [2, 9, 4],
        "rope_sin": [2, 9, 4],
        "k_norm_weight": [8],
        "past_incomplete_raw_keys": [2, 3, 8],
        "past_incomplete_rope": [2, 8],
    } | shapes
    dtypes = [openvino.Type.i32 if name == "key_length" else openvino.Type.f16 for name in given]
    return QSAPrepare([ops.parameter(*pair) for pair in zip(given.values(), dtypes, strict=True)], key_block_size=r)


def shapes_of(node: QSAPrepare) -> list[str]:
    return [node.get_output_partial_shape(index).to_string() for index in range(node.get_output_size())]


def test_shape_inference() -> None:
    off: dict[str, Any] = {"rope_cos": [0], "rope_sin": [0], "past_incomplete_rope": [0]}
    assert shapes_of(operation()) == ["[2,..8,8]", "[2,3,8]", "[2,8]"]  # 5 past blocks, (9 + 3) div 4 new ones
    assert shapes_of(operation(**off, k_norm_weight=[0])) == ["[2,..8,8]", "[2,3,8]", "[0]"]
    assert shapes_of(operation(raw_index_keys=[-1, -1, -1])) == ["[2,..8,8]", "[2,3,8]", "[2,8]"]
    dynamic: dict[str, Any] = {
        "raw_index_keys": [-1, -1, -1],
        "past_block_index_keys": [-1, -1, -1],
        "key_length": [-1],
        "rope_cos": [-1, -1, -1],
        "rope_sin": [-1, -1, -1],
        "k_norm_weight": [-1],
        "past_incomplete_raw_keys": [-1, -1, -1],
        "past_incomplete_rope": [-1, -1],
    }
    assert shapes_of(operation(**dynamic)) == ["[?,?,?]", "[?,3,?]", "[?,?]"]
    assert operation(**dynamic).get_output_element_type(2) == openvino.Type.f16


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("shape", "raw_index_keys", [2, 9]),
        ("shape", "past_block_index_keys", [3, 5, 8]),
        ("shape", "key_length", [3]),
        ("shape", "past_incomplete_raw_keys", [2, 4, 8]),
        ("shape", "k_norm_weight", [9]),
        ("shape", "rope_sin", [2, 8, 4]),
        ("shape", "past_incomplete_rope", [2, 10]),
        ("rope", "rope_sin", [0]),
    ],
)
def test_static_shapes_are_refused_at_preparation(kind: str, name: str, shape: list[int]) -> None:
    with pytest.raises(Rejected) as caught:
        operation(4, **{name: shape})
    assert (caught.value.kind, caught.value.phase, caught.value.names) == (kind, "prepare", (name,))


def test_attributes_and_types_are_refused_at_preparation() -> None:
    with pytest.raises(Rejected, match="key_block_size"):
        operation(r=1)
    node = operation()
    mixed = [node.input_value(index) for index in range(8)]
    mixed[5] = ops.parameter([8], openvino.Type.f32).output(0)
    with pytest.raises(Rejected, match="type at prepare: k_norm_weight"):
        QSAPrepare(mixed, key_block_size=4)


# OpenVINO's own operation


@pytest.mark.skipif(hasattr(openvino.opset17, "qsa_prepare"), reason="this OpenVINO has the operation")
def test_without_the_native_operation() -> None:
    with pytest.raises(Unsupported) as caught:
        OpenVINONative()
    assert openvino.get_version() in caught.value.reason and "qsa_prepare" in caught.value.reason


def test_the_native_adapter_on_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(*ports: Any, key_block_size: int, epsilon: float = 1e-6) -> QSAPrepare:
        assert len(ports) == 8
        return QSAPrepare(ports, key_block_size, epsilon)

    monkeypatch.setattr(openvino.opset17, "qsa_prepare", stand_in, raising=False)
    native = OpenVINONative()
    assert native.describe().outputs == OpenVINOPythonOp().describe().outputs
    for of in (config(3), config(3, "rope", "norm", T="bf16", lengths="i32")):
        given = random_inputs(of, 2, 7, [7, 11], 8, 4)
        assert same_bits(native.prepare(of).run(given), OpenVINOPythonOp().prepare(of).run(given))


def test_the_native_adapter_declares_the_outputs_that_the_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino.opset17, "qsa_prepare", lambda *ports, **attributes: ops.relu(ports[1]), raising=False)
    native = OpenVINONative()
    assert native.describe().outputs == ("block_index_keys",)
    of = config(2, "rope", "norm")
    out = call(native, of, [[[1.0]]], [3], past_block_index_keys=[[[5]]])
    assert {name: array.tolist() for name, array in out.items()} == {"block_index_keys": [[[5]]]}
