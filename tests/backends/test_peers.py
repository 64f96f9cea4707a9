"""The backends of the `peers` extra: PyTorch, ONNX Runtime and the published model in transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.backends.protocol import Backend, OperationConfig, Rejected, Unsupported
from reference.parts import Copy
from reference.qsa_prepare.bounds import expect
from reference.qsa_prepare.operation import QSAPrepare

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = dict[str, Array]

EXTRA = "needs the extra qsa-conformance[peers]"
TYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
EPSILON = 1e-6


def torch_eager(mode: str = "") -> Backend:
    pytest.importorskip("torch", reason=EXTRA)
    from conformance.backends.qsa_prepare.torch_eager import TorchEager

    return TorchEager(mode)


def onnxruntime_graph() -> Backend:
    pytest.importorskip("onnx", reason=EXTRA)
    pytest.importorskip("onnxruntime", reason=EXTRA)
    from conformance.backends.qsa_prepare.onnxruntime_graph import OnnxRuntimeGraph

    return OnnxRuntimeGraph()


def transformers_model() -> Backend:
    pytest.importorskip("torch", reason=EXTRA)
    pytest.importorskip("transformers", minversion="5.18", reason=EXTRA)
    from conformance.backends.qsa_prepare.transformers_model import TransformersModel

    return TransformersModel()


PEERS: dict[str, Callable[[], Backend]] = {
    "torch": torch_eager,
    "torch-exact": lambda: torch_eager("exact"),
    "torch-native": lambda: torch_eager("native"),
    "onnxruntime": onnxruntime_graph,
    "transformers": transformers_model,
}


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield PEERS[request.param]()


def configuration(
    element_type: str, r: int, *disabled: str, length_type: str = "i64", epsilon: float = EPSILON
) -> OperationConfig:
    attributes = {"key_block_size": r, "epsilon": epsilon}
    return OperationConfig("QSAPrepare", attributes, element_type, length_type, frozenset(disabled))


def run(peer: Backend, config: OperationConfig, inputs: Inputs) -> Mapping[str, Array]:
    """One call on a new session; skips the test where the peer says that it cannot do this."""
    try:
        session = peer.prepare(config)
        outputs = session.run(inputs)
    except Unsupported as answer:
        pytest.skip(str(answer))
    session.close()
    assert set(outputs) == set(peer.describe().outputs)
    return outputs


def random_inputs(
    config: OperationConfig, lengths: list[int], L: int, Di: int, Dr: int, N: int = 0, seed: int = 0
) -> Inputs:
    """Random inputs with NaN in everything that the contract says has no effect."""
    rng = np.random.default_rng(seed)
    dtype = TYPES[config.element_type]
    r = int(config.attributes["key_block_size"])
    N = N or len(lengths)
    S = np.broadcast_to(lengths, (N,))
    past, pad = np.maximum(S - L, 0), np.maximum(L - S, 0)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    none = np.zeros(0, dtype)
    rope, norm = "rope" not in config.disabled, "norm" not in config.disabled
    inputs = {
        "raw_index_keys": normal(N, L, Di),
        "past_block_index_keys": normal(N, int(max(past // r, default=0)) + 1, Di),
        "key_length": np.array(lengths, np.int32 if config.length_type == "i32" else np.int64),
        "rope_cos": normal(N, L, Dr) if rope else none,
        "rope_sin": normal(N, L, Dr) if rope else none,
        "k_norm_weight": (1 + 0.2 * normal(Di)).astype(dtype) if norm else none,
        "past_incomplete_raw_keys": normal(N, r - 1, Di),
        "past_incomplete_rope": normal(N, 2 * Dr) if rope else none,
    }
    for n in range(N):
        padding = ["raw_index_keys"] + (["rope_cos", "rope_sin"] if rope else [])
        for name in padding:
            inputs[name][n, : pad[n]] = np.nan
        if rope and not past[n] % r:
            inputs["past_incomplete_rope"][n] = np.nan
        inputs["past_block_index_keys"][n, past[n] // r :] = np.nan
        inputs["past_incomplete_raw_keys"][n, past[n] % r :] = np.nan
    return inputs


def assert_conforms(config: OperationConfig, inputs: Inputs, outputs: Mapping[str, Array]) -> None:
    """Every specified element within the reference's required bound, every copy equal bit for bit."""
    operation = QSAPrepare(int(config.attributes["key_block_size"]), float(config.attributes["epsilon"]))
    expected = expect(operation, inputs)
    for name, got in outputs.items():
        assert (got.shape, got.dtype) == (expected[name].shape, expected[name].dtype), name
        for part in expected[name].parts:
            region = got[part.index]
            if isinstance(part, Copy):
                assert region.tobytes() == part.value.astype(got.dtype).tobytes(), (name, part.region)
            else:
                error = np.abs(region.astype(np.float64) - part.value)
                assert (error <= part.bound).all(), (name, part.region, error.max(), part.clause)


def test_describes_itself(peer: Backend) -> None:
    info = peer.describe()
    assert info.element_types == ("f32", "f16", "bf16")
    assert info.outputs[0] == "block_index_keys"
    assert {"rope", "left_padding"} <= set(info.features)
    assert info.version and info.url.startswith("https://")


@pytest.mark.parametrize("element_type", TYPES)
def test_hand_computed_block_key(peer: Backend, element_type: str) -> None:
    # mean [2, -2, 2, -2] of root mean square 2, so the normalized key is weight * [1, -1, 1, -1] = [1, -2, 3, -4];
    # the leading two turn to 1*0.5 - (-2)*4 = 8.5 and -2*2 + 1*0.25 = -3.75
    config = configuration(element_type, 2, epsilon=0.0)
    dtype = TYPES[element_type]
    nan = float("nan")
    inputs = {
        "raw_index_keys": np.array([[[1, -3, 0, -2], [3, -1, 4, -2], [7, 8, 9, 10]]], dtype),
        "past_block_index_keys": np.zeros((1, 0, 4), dtype),
        "key_length": np.array([3], np.int64),
        "rope_cos": np.array([[[0.5, 2], [nan, nan], [5, 6]]], dtype),
        "rope_sin": np.array([[[4, 0.25], [nan, nan], [7, 8]]], dtype),
        "k_norm_weight": np.array([1, 2, 3, 4], dtype),
        "past_incomplete_raw_keys": np.full((1, 1, 4), nan, dtype),
        "past_incomplete_rope": np.full((1, 4), nan, dtype),
    }
    outputs = run(peer, config, inputs)
    np.testing.assert_allclose(outputs["block_index_keys"].astype(np.float64), [[[8.5, -3.75, 3, -4]]], rtol=1e-6)
    if len(outputs) == 3:
        assert outputs["present_incomplete_raw_keys"].tolist() == [[[7, 8, 9, 10]]]
        assert outputs["present_incomplete_rope"].tolist() == [[5, 6, 7, 8]]


def test_hand_computed_block_that_began_earlier(peer: Backend) -> None:
    # One key waits: mean of it and the new one is [3, 3]; with the carried row cos = [0, 1], sin = [1, 2] the
    # normalized [1, 1] turns to [0 - 1, 1 + 2]
    config = configuration("f32", 2, epsilon=0.0)
    inputs: Inputs = {
        "raw_index_keys": np.array([[[5, 1]]], np.float32),
        "past_block_index_keys": np.array([[[20, 30], [40, 50]]], np.float32),
        "key_length": np.array([4], np.int64),
        "rope_cos": np.full((1, 1, 2), np.nan, np.float32),
        "rope_sin": np.full((1, 1, 2), np.nan, np.float32),
        "k_norm_weight": np.ones(2, np.float32),
        "past_incomplete_raw_keys": np.array([[[1, 5]]], np.float32),
        "past_incomplete_rope": np.array([[0, 1, 1, 2]], np.float32),
    }
    keys = run(peer, config, inputs)["block_index_keys"]
    assert keys.shape == (1, 2, 2)
    assert keys[0, 0].tolist() == [20, 30]
    np.testing.assert_allclose(keys[0, 1], [-1, 3], rtol=1e-6)


@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize(
    "disabled", [(), ("rope",), ("norm",), ("rope", "norm")], ids=lambda names: "+".join(names) or "all"
)
@pytest.mark.parametrize(
    ("r", "L", "lengths"),
    [
        (4, 9, [9]),  # a first call with one token left over
        (4, 9, [4, 0, 13, 30]),  # padding, nothing valid, one block before, a waiting key
        (3, 5, [7, 5, 2, 11]),
        (2, 1, [2, 1, 9, 8]),  # one token at a time
        (5, 0, [0, 4, 5, 23]),  # no new token
        (7, 20, [20, 27, 26, 6]),
    ],
)  # fmt: skip
def test_agrees_with_the_reference(
    peer: Backend, element_type: str, disabled: tuple[str, ...], r: int, L: int, lengths: list[int]
) -> None:
    config = configuration(element_type, r, *disabled, length_type="i32" if L % 2 else "i64")
    inputs = random_inputs(config, lengths, L, Di=12, Dr=6)
    assert_conforms(config, inputs, run(peer, config, inputs))


@pytest.mark.parametrize(("Di", "Dr"), [(1, 0), (3, 2), (7, 6), (33, 32), (128, 64)])
def test_odd_and_smallest_widths(peer: Backend, Di: int, Dr: int) -> None:
    config = configuration("f32", 3, *([] if Dr else ["rope"]))
    inputs = random_inputs(config, [5, 8, 14], 7, Di, Dr)
    assert_conforms(config, inputs, run(peer, config, inputs))


@pytest.mark.parametrize("N", [0, 3])
@pytest.mark.parametrize("L", [0, 6])
@pytest.mark.parametrize("disabled", [(), ("rope",)], ids=["rope", "no-rope"])
@pytest.mark.parametrize("element_type", TYPES)
def test_zero_sizes_and_one_length_for_all(
    peer: Backend, element_type: str, disabled: tuple[str, ...], L: int, N: int
) -> None:
    config = configuration(element_type, 3, *disabled)
    inputs = random_inputs(config, [L + 2], L, Di=4, Dr=2, N=N or 1)
    if not N:
        inputs = {
            name: a if name in ("key_length", "k_norm_weight") or a.ndim == 1 else a[:0] for name, a in inputs.items()
        }
    outputs = run(peer, config, inputs)
    assert outputs["block_index_keys"].shape == (N, (L + 2) // 3 if N else 0, 4)
    assert_conforms(config, inputs, outputs)


@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_stays_in_its_block(peer: Backend, element_type: str, bad: float) -> None:
    config = configuration(element_type, 4)
    inputs = random_inputs(config, [14, 19], 12, Di=8, Dr=4)
    clean = run(peer, config, inputs)["block_index_keys"]
    inputs["raw_index_keys"][0, 4, 3] = bad  # token 6, of block 1
    spoilt = run(peer, config, inputs)["block_index_keys"]
    assert not np.isfinite(spoilt[0, 1].astype(np.float32)).all()
    spoilt[0, 1] = clean[0, 1]
    assert spoilt[0, :3].tobytes() == clean[0, :3].tobytes()
    assert spoilt[1].tobytes() == clean[1].tobytes()


@pytest.mark.parametrize("split", [[17], [1] * 17, [4, 4, 4, 5], [3, 0, 1, 9, 4], [0, 16, 1]], ids=str)
@pytest.mark.parametrize("element_type", TYPES)
def test_a_split_stream_gives_the_same_keys(peer: Backend, element_type: str, split: list[int]) -> None:
    config = configuration(element_type, 4)
    whole = random_inputs(config, [17, 17], 17, Di=8, Dr=4)
    single = run(peer, config, whole)["block_index_keys"]
    reference = QSAPrepare(4, EPSILON)
    session = peer.prepare(config)
    state = {name: whole[name] for name in whole if name.startswith("past_")}
    seen = 0
    for step in split:
        new = {name: whole[name][:, seen : seen + step] for name in ("raw_index_keys", "rope_cos", "rope_sin")}
        seen += step
        call = {**whole, **new, **state, "key_length": np.array([seen], np.int64)}
        outputs = {
            **reference.run(call),
            **session.run(call),
        }  # the reference lends the state that a peer does not return
        assert_conforms(config, call, outputs)
        state = {
            "past_block_index_keys": outputs["block_index_keys"],
            "past_incomplete_raw_keys": outputs["present_incomplete_raw_keys"],
            "past_incomplete_rope": outputs["present_incomplete_rope"],
        }
    assert state["past_block_index_keys"].tobytes() == single.tobytes()


def test_inputs_and_earlier_outputs_stay_as_they_are(peer: Backend) -> None:
    config = configuration("f32", 4)
    session = peer.prepare(config)
    inputs = random_inputs(config, [14, 3], 12, Di=8, Dr=4)
    for array in inputs.values():
        array.setflags(write=False)
    before = {name: array.tobytes() for name, array in inputs.items()}
    first = session.run(inputs)
    kept = {name: array.tobytes() for name, array in first.items()}
    session.run(random_inputs(config, [14, 3], 12, Di=8, Dr=4, seed=1))
    assert {name: array.tobytes() for name, array in first.items()} == kept
    assert {name: array.tobytes() for name, array in inputs.items()} == before


def test_concurrent_calls_do_not_mix(peer: Backend) -> None:
    config = configuration("bf16", 4)
    session = peer.prepare(config)
    calls = [random_inputs(config, [14, 3, 30], 12, Di=8, Dr=4, seed=seed) for seed in range(8)]
    alone = [session.run(call)["block_index_keys"].tobytes() for call in calls]
    with ThreadPoolExecutor(4) as pool:
        together = [outputs["block_index_keys"].tobytes() for outputs in pool.map(session.run, calls * 4)]
    assert together == alone * 4


def test_refuses_attributes_and_shapes(peer: Backend) -> None:
    with pytest.raises(Rejected) as refusal:
        peer.prepare(configuration("f32", 1))
    assert (refusal.value.kind, refusal.value.names) == ("attribute", ("key_block_size",))
    config = configuration("f32", 4)
    inputs = random_inputs(config, [14], 12, Di=8, Dr=4)
    inputs["k_norm_weight"] = inputs["k_norm_weight"][:-1]
    with pytest.raises(Rejected) as refusal:
        peer.prepare(config).run(inputs)
    assert (refusal.value.kind, refusal.value.phase) == ("shape", "call")


def test_torch_knows_its_modes() -> None:
    with pytest.raises(ValueError, match="fast"):
        torch_eager("fast")


def test_torch_rounds_once_or_at_every_step() -> None:
    # bf16 has 8 bits: the mean 1 + 2^-8 of 1 and 1 + 2^-7 is a tie, which rounds to 1. Rounded there, it cancels
    # against the 1 of its partner in the rotation; kept, it leaves 2^-8.
    config = configuration("bf16", 2, "norm")
    dtype = TYPES["bf16"]
    none = np.zeros(0, dtype)
    inputs = {
        "raw_index_keys": np.array([[[1, 1], [1 + 2**-7, 1]]], dtype),
        "past_block_index_keys": np.zeros((1, 0, 2), dtype),
        "key_length": np.array([2], np.int64),
        "rope_cos": np.ones((1, 2, 2), dtype),
        "rope_sin": np.ones((1, 2, 2), dtype),
        "k_norm_weight": none,
        "past_incomplete_raw_keys": np.zeros((1, 1, 2), dtype),
        "past_incomplete_rope": np.zeros((1, 4), dtype),
    }
    first = {
        mode: float(run(torch_eager(mode), config, inputs)["block_index_keys"][0, 0, 0])
        for mode in ("exact", "native", "")
    }
    assert first == {"exact": 2.0**-8, "native": 0.0, "": 0.0}


def test_transformers_does_without_a_disabled_norm() -> None:
    with pytest.raises(Unsupported, match="norm"):
        transformers_model().prepare(configuration("f32", 4, "norm"))


@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize(
    "weight", [[-1.7, 0.1, 3e-5, 0.0], [-(2.0**-24), 1.0, -3.0, 2.0], [1.0, 1.25, 0.5, 700.0], [0.0] * 4], ids=str
)
def test_transformers_holds_weights_exactly(element_type: str, weight: list[float]) -> None:
    peer = transformers_model()
    config = configuration(element_type, 4)
    inputs = random_inputs(config, [9], 9, Di=4, Dr=2)
    inputs["k_norm_weight"] = np.array(weight, TYPES[element_type])
    assert_conforms(config, inputs, peer.prepare(config).run(inputs))


def test_transformers_says_which_weights_it_cannot_hold() -> None:
    peer = transformers_model()
    config = configuration("f32", 4)
    inputs = random_inputs(config, [9], 9, Di=4, Dr=2)
    inputs["k_norm_weight"][:2] = -1e-30, 1e30
    with pytest.raises(Unsupported, match="weight"):
        peer.prepare(config).run(inputs)


def test_transformers_leaves_the_model_as_it_was() -> None:
    peer = transformers_model()
    from transformers.models.qwen4_exp import modeling_qwen4_exp as modeling

    rotate = modeling.apply_rotary_pos_emb
    config = configuration("f32", 4)
    peer.prepare(config).run(random_inputs(config, [9], 9, Di=4, Dr=2))
    assert modeling.apply_rotary_pos_emb is rotate
