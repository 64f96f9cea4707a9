"""SparseAttention as a graph of standard ONNX operators in ONNX Runtime (connect string ``onnxruntime``).

Dense attention in f32 under the mask that the selection means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from conformance.backends import refusals
from conformance.backends.onnx.nodes import Nodes, Shape, model_of, type_of
from conformance.backends.onnx.runtime import URL, VENDOR, Model, version
from conformance.backends.protocol import BackendInfo, OperationConfig

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


class OnnxRuntimeGraph:
    """ONNX Runtime as the implementation under test."""

    def __init__(self) -> None:
        """Raises `ImportError` where the runtime, or what builds its models, is missing."""
        self._version = version()

    def describe(self) -> BackendInfo:
        """Every type and feature of the contract."""
        return BackendInfo(
            name="onnxruntime",
            version=self._version,
            vendor=VENDOR,
            element_types=("f32", "f16", "bf16"),
            outputs=("attention_output",),
            features=("key_length", "scale", "sinks", "left_padding"),
            url=URL,
            operation="SparseAttention",
        )

    def prepare(self, config: OperationConfig) -> OnnxRuntimeSession:
        """One session; raises `Rejected` for attributes out of range (ERR-1)."""
        return OnnxRuntimeSession(config)


class OnnxRuntimeSession:
    """Loaded models, one for each type of the indices and rank of the scale."""

    def __init__(self, config: OperationConfig) -> None:
        self._config = config
        self._check = refusals.checker(config, "SparseAttention").check
        self._models: dict[tuple[str, int], Model] = {}

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call; raises `Rejected` (ERR-2 to ERR-5)."""
        self._check(inputs)
        index_type = "i32" if inputs["block_indices"].dtype == np.int32 else "i64"
        form = index_type, inputs["scale"].ndim if "scale" in inputs else -1
        if form not in self._models:
            self._models[form] = Model(build_model(self._config, *form))
        return self._models[form].run(inputs)

    def close(self) -> None:
        """Nothing is held."""


def build_model(config: OperationConfig, index_type: str, scale_rank: int) -> bytes:
    """The serialized ONNX model of one configuration, every dimension dynamic."""
    r = int(config.attributes["key_block_size"])
    qb = int(config.attributes.get("query_block_size", 1))
    causal = bool(config.attributes.get("causal", True))
    on = {name for name in ("key_length", "scale", "sinks") if name not in config.disabled}
    g = Nodes()
    op = g.op
    N, H, L, E = g.dims("query", 4)
    _, Hkv, S, _ = g.dims("key", 4)
    _, Hs, Lq, KB = g.dims("block_indices", 4)

    # LEN-2, LEN-3: token of every row, [N, S]; negative before a sequence's first.
    Sn = op("Expand", g.cast("key_length", "i64") if "key_length" in on else S, N)
    token = op("Sub", g.unsqueeze(g.range(S), 0), g.unsqueeze(op("Sub", S, Sn), 1))
    valid = op("GreaterOrEqual", token, g.ints(0))
    blocks = op("Div", op("Add", S, g.ints(r - 1)), g.ints(r))
    block = op("Where", valid, op("Div", op("Max", token, g.ints(0)), g.ints(r)), blocks)

    # SEL-1, SEL-4: a mark for every listed block; entries from the count on go to a place behind the last block.
    counted = op("Less", op("Reshape", g.range(KB), g.ints(1, 1, 1, -1)), g.unsqueeze(g.cast("block_count", "i64"), 3))
    entry = g.cast("block_indices", "i64")
    named = op(
        "And", op("GreaterOrEqual", entry, g.ints(0)), op("Less", entry, blocks)
    )  # rows of padding hold anything
    entry = op("Where", op("And", counted, named), entry, blocks)
    places = g.shape(N, Hs, Lq, op("Add", blocks, g.ints(1)))
    marks = op("Expand", g.ints(0), places)
    marks = op("ScatterElements", marks, entry, op("Expand", g.ints(1), g.shape(N, Hs, Lq, KB)), axis=3)
    beyond = op("Less", op("Reshape", g.range(op("Add", blocks, g.ints(1))), g.ints(1, 1, 1, -1)), blocks)
    marks = op("Where", beyond, marks, g.ints(0))
    listed = op("GatherElements", marks, op("Expand", g.unsqueeze(block, 1, 2), g.shape(N, Hs, Lq, S)), axis=3)
    listed = op("Gather", listed, op("Div", g.range(L), g.ints(qb)), axis=2)  # SEL-3
    listed = op("Gather", listed, op("Div", g.range(H), op("Div", H, Hs)), axis=1)  # SEL-2
    attended = op("Equal", listed, g.ints(1))  # [N, H, L, S]
    token = g.unsqueeze(token, 1, 2)
    if causal:  # OPN-1, OPN-2
        position = g.unsqueeze(op("Add", g.unsqueeze(op("Sub", Sn, L), 1), g.range(L)), 1, 3)
        opens = op("Mul", op("Div", op("Max", op("Add", position, g.ints(1)), g.ints(0)), g.ints(r)), g.ints(r))
        inside = op("And", op("GreaterOrEqual", token, opens), op("LessOrEqual", token, position))
        attended = op("Or", op("And", attended, op("Less", token, opens)), inside)
    attended = op("And", attended, g.unsqueeze(valid, 1, 2))

    # ATT-1 to ATT-5.
    head = op("Div", g.range(H), op("Div", H, Hkv))
    keys = op("Transpose", op("Gather", g.wide("key"), head, axis=1), perm=[0, 1, 3, 2])
    logits = op("MatMul", g.wide("query"), keys)
    scale = g.wide("scale") if "scale" in on else op("Div", g.floats(1), op("Sqrt", g.cast(E, "f32")))
    lowest = g.floats(-math.inf)
    logits = op("Where", attended, op("Mul", logits, scale), lowest)
    sinks = op("Reshape", g.wide("sinks"), g.ints(1, -1, 1, 1)) if "sinks" in on else lowest
    behind = op("Expand", sinks, g.shape(N, H, L, g.ints(1)))
    most = op("ReduceMax", op("Concat", logits, behind, axis=3), g.ints(3), keepdims=1)
    most = op("Where", op("Equal", most, lowest), g.floats(0), most)
    weights = op("Where", attended, op("Exp", op("Sub", logits, most)), g.floats(0))
    total = op("Add", op("ReduceSum", weights, g.ints(3), keepdims=1), op("Exp", op("Sub", sinks, most)))
    summed = op("MatMul", weights, op("Gather", g.wide("value"), head, axis=1))
    nothing = op("Equal", total, g.floats(0))
    result = op("Div", summed, op("Where", nothing, g.floats(1), total))
    op("Cast", result, to=type_of(config.element_type), output="attention_output")

    T = config.element_type
    optional: dict[str, tuple[str, Shape]] = {
        "key_length": (config.length_type, ["lengths"]),
        "scale": (T, [1] * scale_rank),
        "sinks": (T, ["H"]),
    }
    inputs: dict[str, tuple[str, Shape]] = {
        "query": (T, ["N", "H", "L", "E"]),
        "key": (T, ["N", "Hkv", "S", "E"]),
        "value": (T, ["N", "Hkv", "S", "Ev"]),
        "block_indices": (index_type, ["N", "Hs", "Lq", "KB"]),
        "block_count": (index_type, ["N", "Hs", "Lq"]),
        **{name: described for name, described in optional.items() if name in on},
    }
    return model_of(config.operation, g, inputs, {"attention_output": (T, ["N", "H", "L", "Ev"])})
