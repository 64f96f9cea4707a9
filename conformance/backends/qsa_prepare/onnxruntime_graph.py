"""QSAPrepare as a graph of standard ONNX operators, run by ONNX Runtime on the CPU (connect string ``onnxruntime``).

One model per configuration, every dimension dynamic. Arithmetic is in float32 with one rounding to T at the end; what
is carried over is gathered in T, so that its bits stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from conformance.backends import refusals
from conformance.backends.onnx.nodes import Nodes, Shape, model_of, type_of
from conformance.backends.onnx.runtime import URL, VENDOR, Model, version
from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.ports import DEFAULT_EPSILON, OUTPUTS

if TYPE_CHECKING:
    from conformance.backends.protocol import Array
    from conformance.backends.refusals import Check


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
            features=("rope", "norm", "left_padding"),
            url=URL,
        )

    def prepare(self, config: OperationConfig) -> OnnxRuntimeSession:
        """Build, check and load the model; raises `Rejected` for attributes out of range (ERR-1)."""
        return OnnxRuntimeSession(config, refusals.checker(config, OPERATION).check)


class OnnxRuntimeSession:
    """A loaded model."""

    def __init__(self, config: OperationConfig, check: Check) -> None:
        self._config, self._check = config, check
        self._model = Model(build_model(config))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call: the eight ports in, the three outputs out; raises `Rejected` (ERR-2 to ERR-5)."""
        self._check(inputs)
        results = self._model.run(inputs)
        if "rope" in self._config.disabled:
            results["present_incomplete_rope"] = np.empty(0, inputs["raw_index_keys"].dtype)
        return results

    def close(self) -> None:
        """Nothing is held."""


def build_model(config: OperationConfig) -> bytes:
    """The serialized ONNX model of one configuration, checked by the ONNX checker."""
    graph = _Graph(config)
    graph.compose()
    rope, norm = "rope" not in config.disabled, "norm" not in config.disabled
    T, rows = config.element_type, graph.r - 1
    inputs: dict[str, tuple[str, Shape]] = {
        "raw_index_keys": (T, ["N", "L", "Di"]),
        "past_block_index_keys": (T, ["N", "Bp", "Di"]),
        "key_length": (config.length_type, ["lengths"]),
        **({"rope_cos": (T, ["N", "L", "Dr"]), "rope_sin": (T, ["N", "L", "Dr"])} if rope else {}),
        **({"k_norm_weight": (T, ["Di"])} if norm else {}),
        "past_incomplete_raw_keys": (T, ["N", rows, "Di"]),
        **({"past_incomplete_rope": (T, ["N", "Dr2"])} if rope else {}),
    }
    outputs: dict[str, tuple[str, Shape]] = {
        "block_index_keys": (T, ["N", "B", "Di"]),
        "present_incomplete_raw_keys": (T, ["N", rows, "Di"]),
        **({"present_incomplete_rope": (T, ["N", "Dr2"])} if rope else {}),
    }
    return model_of(config.operation, graph, inputs, outputs)


class _Graph(Nodes):
    """Nodes and constants of the operation."""

    def __init__(self, config: OperationConfig) -> None:
        super().__init__()
        self.config = config
        self.r = int(config.attributes["key_block_size"])

    # -- the operation ------------------------------------------------------------------------------------------

    def compose(self) -> None:
        """Append the whole operation."""
        op, r = self.op, self.r
        rope = "rope" not in self.config.disabled
        raw, past_blocks = "raw_index_keys", "past_block_index_keys"

        N, L, Di = self.dims(raw, 3)
        _, Bp, _ = self.dims(past_blocks, 3)
        zero, one = self.ints(0), self.ints(1)
        block = self.ints(r)
        S = op("Expand", op("Cast", "key_length", to=type_of("i64")), N)  # LEN-2
        pad = op("Max", op("Sub", L, S), zero)
        past = op("Max", op("Sub", S, L), zero)
        c, c_new = op("Div", past, block), op("Div", S, block)
        q, q_new = op("Mod", past, block), op("Mod", S, block)
        completed = op("Sub", c_new, c)
        B = op("ReduceMax", op("Concat", zero, c_new, axis=0), keepdims=1)
        K = op("ReduceMax", op("Concat", zero, completed, axis=0), keepdims=1)

        # Waiting rows, then new rows, then one row of zeros that everything unspecified is taken from.
        keys = op("Concat", "past_incomplete_raw_keys", raw, self.zeros(self.config.element_type, N, one, Di), axis=1)
        no_key = op("Add", L, self.ints(r - 1))

        def key_row(token: str) -> str:
            """Row of `keys` that holds a token, counted from the first waiting one; token is [N, k]."""
            waiting = op("Less", token, self.column(q))
            new = op("Add", token, self.column(op("Add", op("Sub", pad, q), self.ints(r - 1))))
            return op("Where", waiting, token, new)

        table = no_rope = ""
        if rope:
            rows = op("Concat", "rope_cos", "rope_sin", axis=2)
            width = op("Shape", rows, start=2, end=3)
            carried = op("Unsqueeze", "past_incomplete_rope", one)
            table = op("Concat", carried, rows, self.zeros(self.config.element_type, N, one, width), axis=1)
            no_rope = op("Add", L, one)

        def rope_row(token: str) -> str:
            """Row of `table` for a token that stands first in its block (ROT-3, ROT-4); token is [N, k]."""
            waiting = op("Less", token, self.column(q))
            new = op("Add", token, self.column(op("Add", op("Sub", pad, q), one)))
            return op("Where", waiting, zero, new)

        # Block keys: token k*r + i for every member i of every block k that some sequence completes.
        finished = op("Mul", self.column(completed), block)  # tokens in the completed blocks, [N, 1]
        member = op("Unsqueeze", self.range(op("Mul", K, block)), zero)  # [1, K*r]
        row = op("Where", op("Less", member, finished), key_row(member), no_key)
        members = self.take(keys, row)  # [N, K*r, Di]
        shape = op("Concat", N, K, block, Di, axis=0)
        computed = self.mean(op("Reshape", self.wide(members), shape, allowzero=1))
        if "norm" not in self.config.disabled:
            computed = self.normalize(computed)
        if rope:
            first = op("Unsqueeze", self.range(K, step=r), zero)  # [1, K]
            row = op("Where", op("Less", first, finished), rope_row(first), no_rope)
            computed = self.rotate(computed, self.wide(self.take(table, row)))
        computed = op("Cast", computed, to=type_of(self.config.element_type))

        # OUT-1, OUT-2, OUT-3: copied rows, then computed ones, then zeros.
        b = op("Unsqueeze", self.range(B), zero)
        copied = op("Less", b, self.column(c))
        fresh = op("Less", b, self.column(c_new))
        source = op("Concat", past_blocks, computed, self.zeros(self.config.element_type, N, one, Di), axis=1)
        row = op("Where", fresh, op("Add", op("Sub", b, self.column(c)), Bp), op("Add", Bp, K))
        self.take(source, op("Where", copied, b, row), output=OUTPUTS[0])

        # STA-1, STA-2: the open block begins after the completed ones.
        i = op("Unsqueeze", self.range(self.ints(r - 1)), zero)
        held = op("Less", i, self.column(q_new))
        self.take(keys, op("Where", held, key_row(op("Add", finished, i)), no_key), output=OUTPUTS[1])
        if rope:
            open_block = op("Greater", self.column(q_new), zero)
            kept = self.take(table, op("Where", open_block, rope_row(finished), no_rope))
            op("Squeeze", kept, one, output=OUTPUTS[2])

    def mean(self, members: str) -> str:
        """[N, K, r, Di] to [N, K, Di] (AVG-1)."""
        return self.op("Div", self.op("ReduceSum", members, self.ints(2), keepdims=0), self.floats(self.r))

    def normalize(self, m: str) -> str:
        """NRM-1."""
        epsilon = float(self.config.attributes.get("epsilon", DEFAULT_EPSILON))
        return self.op("RMSNormalization", m, self.wide("k_norm_weight"), axis=-1, epsilon=epsilon)

    def rotate(self, y: str, rope: str) -> str:
        """ROT-1 and ROT-2 on [N, K, Di] with rows [N, K, 2*Dr], cos first."""
        op = self.op
        cos, sin = self.halves(rope)
        Dr = op("Shape", cos, start=2, end=3)
        axis, zero, end = self.ints(2), self.ints(0), self.ints(np.iinfo(np.int64).max)
        turning = op("Slice", y, zero, Dr, axis)
        passing = op("Slice", y, Dr, end, axis)
        upper, lower = self.halves(turning)
        turned = op("Concat", op("Neg", lower), upper, axis=2)
        return op("Concat", op("Add", op("Mul", turning, cos), op("Mul", turned, sin)), passing, axis=2)

    # -- building blocks ----------------------------------------------------------------------------------------

    def column(self, per_sequence: str) -> str:
        """[N] to [N, 1]."""
        return self.op("Unsqueeze", per_sequence, self.ints(1))

    def halves(self, tensor: str) -> tuple[str, str]:
        """The two halves along axis 2."""
        op, axis = self.op, self.ints(2)
        width = op("Shape", tensor, start=2, end=3)
        half = op("Div", width, self.ints(2))
        return op("Slice", tensor, self.ints(0), half, axis), op("Slice", tensor, half, width, axis)

    def take(self, rows: str, index: str, output: str = "") -> str:
        """Rows [N, k, D] of rows [N, M, D] at index [N, k], counted in each sequence."""
        op = self.op
        N, M, D = self.dims(rows, 3)
        flat = op("Reshape", rows, op("Concat", op("Mul", N, M), D, axis=0), allowzero=1)
        return op("Gather", flat, op("Add", index, self.column(op("Mul", self.range(N), M))), axis=0, output=output)
