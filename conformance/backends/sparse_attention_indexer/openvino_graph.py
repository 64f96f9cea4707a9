"""SparseAttentionIndexer as a graph of standard OpenVINO operations (connect string ``openvino-graph[:DEVICE]``).

One model per configuration, every dimension dynamic. Scores are in f32; hidden blocks are put at minus infinity before
the selection, whatever stands in their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino
from openvino import opset15 as ops

from conformance.backends import foreign
from conformance.backends.openvino.nodes import divided, ints, steps
from conformance.backends.openvino.runtime import URL, Device, Inputs, type_of
from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.backends.sparse_attention_indexer import refusals
from conformance.backends.sparse_attention_indexer.numpy_reference import FEATURES, OUTPUTS

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

RANKS = {name: len(axes) for name, axes in refusals.AXES.items()}


class OpenVINOGraph:
    """Standard operations as the implementation under test; also the peer that custom operations are measured against.

    Raises `Unsupported` when OpenVINO has no such device.
    """

    def __init__(self, device: str = "CPU") -> None:
        self._device = Device("openvino-graph", device)
        self.environment = self._device.environment

    def describe(self) -> BackendInfo:
        """Every output, type and feature of the contract."""
        return BackendInfo(
            name="openvino-graph",
            version=self._device.version,
            vendor="Intel",
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=FEATURES,
            device=self._device.name.lower(),
            url=URL,
            operation="SparseAttentionIndexer",
        )

    def prepare(self, config: OperationConfig) -> GraphSession:
        """Build and compile the model; raises `Rejected` for attributes out of range (ERR-1)."""
        refusals.check_attributes(config)
        model = self._device.compiled(config.key, lambda: self._device.compile(build_model(config)))
        return GraphSession(config, model)


class GraphSession:
    """A compiled model: any shapes, one call at a time a request."""

    def __init__(self, config: OperationConfig, compiled: Any) -> None:
        self._config, self._compiled = config, compiled
        self._ports = [port.any_name for port in compiled.inputs]
        self._idle = [Inputs(compiled.create_infer_request())]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call; raises `Rejected` (ERR-1 to ERR-5). The arrays returned are the caller's own (PLG-2)."""
        refusals.check_call(self._config, inputs)
        bound = self._idle.pop() if self._idle else Inputs(self._compiled.create_infer_request())
        bound.bind(inputs[name] for name in self._ports)
        with foreign.calls("openvino-graph"):
            results = bound.request.infer(share_outputs=True).to_tuple()
        outputs = {name: np.array(array) for name, array in zip(OUTPUTS, results, strict=True)}
        self._idle.append(bound)
        return outputs

    def close(self) -> None:
        """Let the requests and the model go."""
        self._idle.clear()
        self._compiled = None


def build_model(config: OperationConfig) -> openvino.Model:
    """The model of one configuration under the contract's names, without the weights where they are switched off."""
    r = int(config.attributes["key_block_size"])
    K = int(config.attributes["token_budget"]) // r
    Hs = int(config.attributes.get("num_selection_heads", 1))
    port = {}
    for name, rank in RANKS.items():
        if name == refusals.WEIGHTS and "weights" in config.disabled:
            continue
        element = config.length_type if name == "key_length" else config.element_type
        port[name] = ops.parameter([-1] * rank, type_of(element), name=name)
        port[name].output(0).set_names({name})
    f32 = {name: ops.convert(node, "f32") for name, node in port.items() if name != "key_length"}
    shape = ops.shape_of(port["index_query"], "i32")
    N, Hi, L = (ops.gather(shape, ints(axis), ints(0)) for axis in range(3))
    B = ops.gather(ops.shape_of(port["block_index_keys"], "i32"), ints(1), ints(0))
    heads = ops.constant(np.int32(Hs))

    # SCO-1: rectified per head, weighted, summed over the heads of a selection.
    products = ops.matmul(f32["index_query"], ops.unsqueeze(f32["block_index_keys"], ints(1)), False, True)
    scores = ops.relu(products)
    if refusals.WEIGHTS in f32:
        weights = ops.transpose(f32[refusals.WEIGHTS], ints(0, 2, 1))
        scores = ops.multiply(scores, ops.unsqueeze(weights, ints(3)))
    groups = ops.concat([N, ints(Hs), ops.divide(Hi, heads), L, B], 0)
    scores = ops.reduce_sum(ops.reshape(scores, groups, False), ints(2), False)

    # VIS-1, VIS-3: whole blocks among the p + 1 tokens up to the query.
    S = ops.broadcast(ops.convert(port["key_length"], "i32"), N)
    first = ops.unsqueeze(ops.subtract(S, L), ints(1))
    ends = ops.maximum(ops.add(ops.add(first, steps(L)), ints(1)), ints(0))
    visible = divided(ends, ints(r))
    column = ops.unsqueeze(visible, ints(1, 3))
    hidden = ops.greater_equal(ops.reshape(steps(B), ints(1, 1, 1, -1), False), column)
    lowest = ops.constant(np.float32(-np.inf))
    scores = ops.select(hidden, lowest, scores)

    # SEL-1, SEL-2, TIE-1: a stable TopK keeps the smaller index among equal scores; hidden columns make up the width.
    spare = ops.broadcast(lowest, ops.concat([N, ints(Hs), L, ints(K)], 0))
    best = ops.topk(ops.concat([scores, spare], 3), ops.constant(np.int32(K)), 3, "max", "value", "i32", stable=True)
    beyond = ops.greater_equal(ops.constant(np.arange(K, dtype=np.int32).reshape(1, 1, 1, K)), column)
    indices = ops.select(beyond, ops.constant(np.int32(-1)), best.output(1))
    few = ops.unsqueeze(ops.minimum(visible, ints(K)), ints(1))
    count = ops.broadcast(few, ops.concat([N, ints(Hs), L], 0))
    results = [ops.result(indices), ops.result(count)]
    for result, name in zip(results, OUTPUTS, strict=True):
        result.output(0).set_names({name})
    return openvino.Model(results, list(port.values()), config.operation)
