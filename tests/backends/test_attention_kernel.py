"""The bare kernel of SparseAttention on every instruction set that this CPU has, against plain sums in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.backends.openvino.kernel import ISAS
from conformance.backends.protocol import OperationConfig
from conformance.backends.sparse_attention.kernel import Kernel

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
H, HKV, S, R = 14, 2, 203, 4  # seven heads with a key-value head; the last three tokens are an open block


@pytest.fixture(scope="module", params=[1, 2])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    made = Kernel(request.param)
    yield made
    made.close()


def config(element_type: str) -> OperationConfig:
    return OperationConfig(
        "SparseAttention",
        {"key_block_size": R, "query_block_size": 1, "causal": True},
        element_type,
        "i32",
        frozenset(["scale", "sinks"]),
    )


def inputs_of(element_type: str, E: int, Ev: int, blocks: int) -> dict[str, Array]:
    """One query token at the end; it attends to `blocks` listed blocks and to its open one."""
    rng, dtype = np.random.default_rng(E), DTYPES[element_type]
    listed = rng.permutation(S // R)[:blocks].astype(np.int32)
    return {
        "query": rng.standard_normal((1, H, 1, E)).astype(dtype),
        "key": rng.standard_normal((1, HKV, S, E)).astype(dtype),
        "value": rng.standard_normal((1, HKV, S, Ev)).astype(dtype),
        "block_indices": listed.reshape(1, 1, 1, blocks),
        "block_count": np.array([[[blocks]]], np.int32),
        "key_length": np.array([S], np.int32),
    }


def by_hand(inputs: dict[str, Array]) -> tuple[Array, Array]:
    """The output in float64, [H, Ev], and the weighted sum of the magnitudes of the values."""
    tokens = [b * R + i for b in inputs["block_indices"].ravel() for i in range(R)] + [*range(S // R * R, S)]
    query, key, value = (inputs[name][0].astype(np.float64) for name in ("query", "key", "value"))
    outputs, sizes = [], []
    for h in range(H):
        k, v = key[h // (H // HKV)][tokens], value[h // (H // HKV)][tokens]
        logits = k @ query[h, 0] / np.sqrt(k.shape[1])
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        outputs.append(weights @ v)
        sizes.append(weights @ np.abs(v))
    return np.array(outputs), np.array(sizes)


def runs(kernel: Kernel, inputs: dict[str, Array], element_type: str) -> Iterator[tuple[str, Array]]:
    """The output under every instruction set that runs here."""
    for isa in ISAS:
        try:
            call = kernel.bind(config(element_type), inputs, isa)
        except ValueError:
            continue
        yield isa, call.outputs["attention_output"][0, :, 0].astype(np.float64)


@pytest.mark.parametrize("element_type", DTYPES)
@pytest.mark.parametrize(("E", "Ev"), [(64, 64), (41, 70), (1, 1), (256, 33)])
@pytest.mark.parametrize("blocks", [0, 1, 50])
def test_every_instruction_set(kernel: Kernel, element_type: str, E: int, Ev: int, blocks: int) -> None:
    inputs = inputs_of(element_type, E, Ev, blocks)
    wanted, size = by_hand(inputs)
    unit = float(ml_dtypes.finfo(DTYPES[element_type]).eps) / 2
    found = list(runs(kernel, inputs, element_type))
    assert {"automatic", "portable"} <= {isa for isa, _ in found}
    for isa, output in found:
        # Weights and output rounded to bf16, as NUM-2 allows; elsewhere the output alone.
        weights = 2 * unit if element_type == "bf16" else 0
        assert (np.abs(output - wanted) <= unit * np.abs(wanted) + (weights + 2e-5) * size).all(), isa


@pytest.mark.parametrize("element_type", DTYPES)
def test_equal_values_come_out_as_they_are(kernel: Kernel, element_type: str) -> None:
    """Whatever weights are rounded to, they are divided by their own sum."""
    inputs = inputs_of(element_type, 64, 64, 50)
    inputs["value"] = np.broadcast_to(inputs["value"][:, :, :1], inputs["value"].shape).copy()
    wanted = np.repeat(inputs["value"][0, :, 0].astype(np.float64), H // HKV, axis=0)
    for isa, output in runs(kernel, inputs, element_type):
        assert np.allclose(output, wanted, rtol=1e-6, atol=0), isa
