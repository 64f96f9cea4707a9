"""SparseAttention as a graph of standard OpenVINO operations (connect string ``openvino-graph[:DEVICE]``).

Dense attention in f32 under the mask that the selection means. Every dimension is dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import openvino
from openvino import opset15 as ops

from conformance.backends import foreign, refusals
from conformance.backends.openvino.nodes import Node, divided, ints, rounded, size, steps
from conformance.backends.openvino.runtime import URL, Device, Inputs, type_of
from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.backends.sparse_attention.dense import DensePart

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

ROWS = {"query": 4, "key": 4, "value": 4, "block_indices": 4, "block_count": 3}
RANKS = {**ROWS, "key_length": 1, "scale": 0, "sinks": 1}
WHOLE = ("block_indices", "block_count")
DENSE_PORTS = ("query", "key", "value")


class OpenVINOGraph:
    """Standard operations as the implementation under test; also the peer that custom operations are measured against.

    Raises `Unsupported` when OpenVINO has no such device.
    """

    def __init__(self, device: str = "CPU") -> None:
        self._device = Device("openvino-graph", device)
        self.environment = self._device.environment

    def describe(self) -> BackendInfo:
        """Every type and feature of the contract."""
        return BackendInfo(
            name="openvino-graph",
            version=self._device.version,
            vendor="Intel",
            element_types=("f32", "f16", "bf16"),
            outputs=("attention_output",),
            features=("key_length", "scale", "sinks", "left_padding"),
            device=self._device.name.lower(),
            url=URL,
            operation="SparseAttention",
        )

    def timing_targets(self, threads: int) -> tuple[DensePart, ...]:
        """What `perf` times next to this backend: OpenVINO's own attention to all keys."""
        return (DensePart("dense ScaledDotProductAttention", lambda config: DenseSession(self._device, config)),)

    def prepare(self, config: OperationConfig) -> GraphSession:
        """One session; raises `Rejected` for attributes out of range (ERR-1)."""
        return GraphSession(self._device, config)


class GraphSession:
    """Compiled models, one for each type of the indices and rank of the scale; one call at a time a request."""

    def __init__(self, device: Device, config: OperationConfig) -> None:
        self._device, self._config = device, config
        self._check = refusals.checker(config, "SparseAttention").check
        self._requests: dict[tuple[str, int], tuple[list[str], Inputs]] = {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call; raises `Rejected` (ERR-2 to ERR-5). The array returned is the caller's own (PLG-2)."""
        self._check(inputs)
        index_type = "i32" if inputs["block_indices"].dtype == np.int32 else "i64"
        form = index_type, inputs["scale"].ndim if "scale" in inputs else 0
        if form not in self._requests:
            key = self._config.key, *form
            compiled = self._device.compiled(key, lambda: self._device.compile(build_model(self._config, *form)))
            names = [port.any_name for port in compiled.inputs]
            self._requests[form] = names, Inputs(compiled.create_infer_request())
        names, bound = self._requests[form]
        bound.bind(inputs[name] for name in names)
        with foreign.calls("openvino-graph"):
            result = bound.request.infer(share_outputs=True).to_tuple()[0]
        # For bf16 OpenVINO's arrays have the right bits and the wrong type.
        return {"attention_output": np.array(result).view(inputs["query"].dtype)}

    def close(self) -> None:
        """Let the requests and the models go."""
        self._requests.clear()


class DenseSession:
    """OpenVINO's ScaledDotProductAttention over all keys up to each query: what a sparse attention is held against."""

    def __init__(self, device: Device, config: OperationConfig) -> None:
        element = type_of(config.element_type)
        query, key, value = (ops.parameter([-1] * 4, element, name=name) for name in DENSE_PORTS)
        for node, name in zip((query, key, value), DENSE_PORTS, strict=True):
            node.output(0).set_names({name})
        H, Hkv, L, S = size(query, 1), size(key, 1), size(query, 2), size(key, 2)
        head = _group(H, Hkv)
        # The query tokens are the last ones; the operation's own causal mask counts them from the first key.
        position = ops.unsqueeze(ops.add(steps(L), ops.subtract(S, L)), ints(1))
        mask = ops.less_equal(ops.unsqueeze(steps(S), ints(0)), position)
        keys, values = (ops.gather(node, head, ints(1)) for node in (key, value))
        out = ops.scaled_dot_product_attention(query, keys, values, mask)
        result = ops.result(out)
        result.output(0).set_names({"attention_output"})
        model = openvino.Model([result], [query, key, value], "dense")
        self._bound = Inputs(device.compile(model).create_infer_request())

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call; selection and lengths are passed over."""
        self._bound.bind(inputs[name] for name in DENSE_PORTS)
        return {"attention_output": self._bound.request.infer(share_outputs=True).to_tuple()[0]}

    def close(self) -> None:
        """Nothing is held beyond the request."""


def build_model(config: OperationConfig, index_type: str, scale_rank: int) -> openvino.Model:
    """The model of one configuration under the contract's names, without the ports that are switched off."""
    r = int(config.attributes["key_block_size"])
    qb = int(config.attributes.get("query_block_size", 1))
    causal = bool(config.attributes.get("causal", True))
    port = {}
    for name, rank in {**RANKS, "scale": scale_rank}.items():
        if name in config.disabled:
            continue
        element = config.length_type if name == "key_length" else index_type if name in WHOLE else config.element_type
        port[name] = ops.parameter([-1] * rank, type_of(element), name=name)
        port[name].output(0).set_names({name})
    f32 = {n: ops.convert(p, "f32") for n, p in port.items() if n not in (*WHOLE, "key_length")}
    N, H, L, E = (size(port["query"], axis) for axis in range(4))
    Hkv, S = size(port["key"], 1), size(port["key"], 2)
    Hs, Lq, KB = (size(port["block_indices"], axis) for axis in (1, 2, 3))
    one = ints(1)

    # LEN-2, LEN-3: token of every row, [N, S]; negative before a sequence's first.
    length = ops.convert(port["key_length"], "i32") if "key_length" in port else S
    Sn = ops.broadcast(length, N)
    token = ops.subtract(ops.unsqueeze(steps(S), ints(0)), ops.unsqueeze(ops.subtract(S, Sn), one))
    valid = ops.greater_equal(token, ints(0))
    blocks = divided(ops.add(S, ints(r - 1)), ints(r))
    block = ops.select(valid, divided(ops.maximum(token, ints(0)), ints(r)), blocks)

    # SEL-1, SEL-4: a mark for every listed block; entries from the count on go to a place behind the last block.
    count = ops.unsqueeze(ops.convert(port["block_count"], "i32"), ints(3))
    counted = ops.less(ops.reshape(steps(KB), ints(1, 1, 1, -1), False), count)
    entry = ops.select(counted, ops.convert(port["block_indices"], "i32"), blocks)
    places = ops.concat([N, Hs, Lq, ops.add(blocks, one)], 0)
    marks = ops.broadcast(ops.constant(np.int32(0)), places)
    ones = ops.broadcast(ops.constant(np.int32(1)), ops.shape_of(entry, "i32"))
    marks = ops.scatter_elements_update(marks, entry, ones, ops.constant(np.int32(3)))
    before = ops.less(ops.reshape(steps(ops.add(blocks, one)), ints(1, 1, 1, -1), False), blocks)
    marks = ops.select(before, marks, ops.constant(np.int32(0)))
    column = ops.broadcast(ops.unsqueeze(block, ints(1, 2)), ops.concat([N, Hs, Lq, S], 0))
    listed = ops.gather_elements(marks, column, 3)
    listed = ops.gather(listed, divided(steps(L), ints(qb)), ints(2))  # SEL-3
    listed = ops.gather(listed, _group(H, Hs), one)  # SEL-2
    attended = ops.equal(listed, ops.constant(np.int32(1)))  # [N, H, L, S]
    token = ops.unsqueeze(token, ints(1, 2))
    if causal:  # OPN-1, OPN-2
        position = ops.add(ops.unsqueeze(ops.subtract(Sn, L), one), steps(L))
        position = ops.unsqueeze(position, ints(1, 3))
        whole = divided(ops.maximum(ops.add(position, one), ints(0)), ints(r))
        opens = ops.multiply(whole, ints(r))
        inside = ops.logical_and(ops.greater_equal(token, opens), ops.less_equal(token, position))
        attended = ops.logical_or(ops.logical_and(attended, ops.less(token, opens)), inside)
    attended = ops.logical_and(attended, ops.unsqueeze(valid, ints(1, 2)))

    # ATT-1 to ATT-5.
    head = _group(H, Hkv)
    logits = ops.matmul(f32["query"], ops.gather(f32["key"], head, one), False, True)
    number = ops.constant(np.float32(1))
    scale = f32["scale"] if "scale" in f32 else ops.divide(number, ops.sqrt(ops.convert(E, "f32")))
    lowest, zero = ops.constant(np.float32(-np.inf)), ops.constant(np.float32(0))
    logits = ops.select(attended, ops.multiply(logits, scale), lowest)
    sinks = ops.reshape(f32["sinks"], ints(1, -1, 1, 1), False) if "sinks" in f32 else lowest
    behind = ops.broadcast(sinks, ops.concat([N, H, L, one], 0))
    most = ops.reduce_max(ops.concat([logits, behind], 3), ints(3), True)
    most = ops.select(ops.equal(most, lowest), zero, most)
    weights = ops.select(attended, ops.exp(ops.subtract(logits, most)), zero)
    total = ops.add(ops.reduce_sum(weights, ints(3), True), ops.exp(ops.subtract(behind, most)))
    summed = ops.matmul(weights, ops.gather(f32["value"], head, one), False, False)
    out = ops.divide(summed, ops.select(ops.equal(total, zero), number, total))
    result = ops.result(rounded(out, type_of(config.element_type)))
    result.output(0).set_names({"attention_output"})
    return openvino.Model([result], list(port.values()), config.operation)


def _group(heads: Node, groups: Node) -> Node:
    """For every head the group that it belongs to, groups being consecutive."""
    return ops.convert(
        ops.floor(ops.divide(ops.convert(steps(heads), "f32"), ops.convert(ops.divide(heads, groups), "f32"))), "i32"
    )
