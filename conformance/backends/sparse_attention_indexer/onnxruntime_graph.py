"""SparseAttentionIndexer as a graph of standard ONNX operators in ONNX Runtime (connect string ``onnxruntime``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from conformance.backends.onnx.nodes import Nodes, Shape, model_of, type_of
from conformance.backends.onnx.runtime import URL, VENDOR, Model, version
from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.backends.sparse_attention_indexer import refusals
from conformance.backends.sparse_attention_indexer.numpy_reference import FEATURES, OUTPUTS

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


class OnnxRuntimeGraph:
    """ONNX Runtime as the implementation under test."""

    def __init__(self) -> None:
        """Raises `ImportError` where the runtime, or what builds its models, is missing."""
        self._version = version()

    def describe(self) -> BackendInfo:
        """Every output, type and feature of the contract."""
        return BackendInfo(
            name="onnxruntime",
            version=self._version,
            vendor=VENDOR,
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=FEATURES,
            url=URL,
            operation="SparseAttentionIndexer",
        )

    def prepare(self, config: OperationConfig) -> OnnxRuntimeSession:
        """Build, check and load the model; raises `Rejected` for attributes out of range (ERR-1)."""
        refusals.check_attributes(config)
        return OnnxRuntimeSession(config)


class OnnxRuntimeSession:
    """A loaded model."""

    def __init__(self, config: OperationConfig) -> None:
        self._config = config
        self._model = Model(build_model(config))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call; raises `Rejected` (ERR-1 to ERR-5)."""
        refusals.check_call(self._config, inputs)
        return self._model.run(inputs)

    def close(self) -> None:
        """Nothing is held."""


def build_model(config: OperationConfig) -> bytes:
    """The serialized ONNX model of one configuration, every dimension dynamic."""
    r = int(config.attributes["key_block_size"])
    K = int(config.attributes["token_budget"]) // r
    Hs = int(config.attributes.get("num_selection_heads", 1))
    weighted = "weights" not in config.disabled
    g = Nodes()
    op = g.op
    N, Hi, L, _ = g.dims("index_query", 4)
    B = op("Shape", "block_index_keys", start=1, end=2)

    # SCO-1: [N, Hi, L, B], rectified, weighted, summed over the heads of a selection.
    keys = op("Transpose", g.unsqueeze(g.wide("block_index_keys"), 1), perm=[0, 1, 3, 2])
    scores = op("Relu", op("MatMul", g.wide("index_query"), keys))
    if weighted:
        scores = op("Mul", scores, g.unsqueeze(op("Transpose", g.wide("index_weights"), perm=[0, 2, 1]), 3))
    groups = g.shape(N, g.ints(Hs), op("Div", Hi, g.ints(Hs)), L, B)
    scores = op("ReduceSum", op("Reshape", scores, groups, allowzero=1), g.ints(2), keepdims=0)

    # VIS-1, VIS-3: tokens up to the query, p + 1 of them, whole blocks of these.
    S = op("Expand", g.cast("key_length", "i64"), N)
    ends = op("Add", g.unsqueeze(op("Sub", S, L), 1), op("Add", g.range(L), g.ints(1)))
    visible = op("Div", op("Max", ends, g.ints(0)), g.ints(r))  # [N, L]
    column = g.unsqueeze(visible, 1, 3)
    hidden = op("GreaterOrEqual", op("Reshape", g.range(B), g.ints(1, 1, 1, -1)), column)
    scores = op("Where", hidden, g.floats(-np.inf), scores)

    # SEL-1, SEL-2, OUT-1: as many columns as the budget has, hidden ones where there are too few blocks. Of equal
    # scores TopK takes the one with the lower index (TIE-1).
    shape = g.shape(N, g.ints(Hs), L, g.ints(K))
    scores = op("Concat", scores, op("Expand", g.floats(-np.inf), shape), axis=3)
    order = g.ops("TopK", scores, g.ints(K), outputs=("best", "order"), axis=3, largest=1, sorted=1)[1]
    beyond = op("GreaterOrEqual", op("Reshape", g.range(g.ints(K)), g.ints(1, 1, 1, -1)), column)
    op("Cast", op("Where", beyond, g.ints(-1), order), to=type_of("i32"), output=OUTPUTS[0])
    count = op("Expand", g.unsqueeze(op("Min", visible, g.ints(K)), 1), g.shape(N, g.ints(Hs), L))
    op("Cast", count, to=type_of("i32"), output=OUTPUTS[1])

    T = config.element_type
    inputs: dict[str, tuple[str, Shape]] = {
        "index_query": (T, ["N", "Hi", "L", "Di"]),
        "block_index_keys": (T, ["N", "B", "Di"]),
        "key_length": (config.length_type, ["lengths"]),
        **({"index_weights": (T, ["N", "L", "Hi"])} if weighted else {}),
    }
    outputs: dict[str, tuple[str, Shape]] = {
        OUTPUTS[0]: ("i32", ["N", Hs, "L", K]),
        OUTPUTS[1]: ("i32", ["N", Hs, "L"]),
    }
    return model_of(config.operation, g, inputs, outputs)
