"""QSAPrepare as a graph of standard ONNX operators, run by ONNX Runtime on the CPU (connect string ``onnxruntime``).

One model per configuration, every dimension dynamic. Arithmetic is in float32 with one rounding to T at the end; what
is carried over is gathered in T, so that its bits stay as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.backends.qsa_prepare.refusals import DEFAULT_EPSILON, check_attributes, check_call

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

OPSET = 23  # the first with RMSNormalization
IR_VERSION = 11  # what opset 23 was released with
OUTPUTS = ("block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope")
ONNX_TYPES = {"f32": "FLOAT", "f16": "FLOAT16", "bf16": "BFLOAT16", "i32": "INT32", "i64": "INT64"}


class OnnxRuntimeGraph:
    """ONNX Runtime as the implementation under test."""

    def __init__(self) -> None:
        import onnx
        import onnxruntime

        self._onnx = onnx
        self._runtime = onnxruntime

    def describe(self) -> BackendInfo:
        """Every output, type and feature of the contract."""
        return BackendInfo(
            name="onnxruntime",
            version=f"{self._runtime.__version__} (onnx {self._onnx.__version__}, opset {OPSET})",
            vendor="Microsoft",
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=("rope", "norm", "left_padding"),
            url="https://github.com/microsoft/onnxruntime/issues",
        )

    def prepare(self, config: OperationConfig) -> OnnxRuntimeSession:
        """Build, check and load the model; raises `Rejected` for attributes out of range (ERR-1)."""
        check_attributes(config)
        return OnnxRuntimeSession(self._runtime, config, build_model(config))


class OnnxRuntimeSession:
    """A loaded model."""

    def __init__(self, runtime: Any, config: OperationConfig, model: bytes) -> None:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._runtime = runtime
        self._config = config
        self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._ports = [port.name for port in self._session.get_inputs()]
        self._outputs = [port.name for port in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call: the eight ports in, the three outputs out; raises `Rejected` (ERR-2 to ERR-5)."""
        check_call(self._config, inputs)
        feeds = {name: self._value(inputs[name]) for name in self._ports}
        values = self._session.run_with_ort_values(self._outputs, feeds)
        results = {name: self._array(value) for name, value in zip(self._outputs, values, strict=True)}
        if "rope" in self._config.disabled:
            results["present_incomplete_rope"] = np.empty(0, inputs["raw_index_keys"].dtype)
        return results

    def close(self) -> None:
        """Nothing is held."""

    def _value(self, array: Array) -> Any:
        array = np.ascontiguousarray(array)
        if array.dtype.name == "bfloat16":  # not a NumPy type of the runtime: hand over the bits and name the type
            from onnx import TensorProto

            return self._runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                array.view(np.uint16), TensorProto.BFLOAT16
            )
        return self._runtime.OrtValue.ortvalue_from_numpy(array)

    def _array(self, value: Any) -> Array:
        if value.element_type() != _type("bf16"):
            array: Array = np.array(value.numpy())
            return array
        import ml_dtypes

        shape = tuple(value.shape())
        bits = ctypes.string_at(value.data_ptr(), int(np.prod(shape)) * 2) if np.prod(shape) else b""
        return np.frombuffer(bits, ml_dtypes.bfloat16).reshape(shape).copy()


def build_model(config: OperationConfig) -> bytes:
    """The serialized ONNX model of one configuration, checked by the ONNX checker."""
    import onnx
    from onnx import helper

    graph = _Graph(config)
    graph.compose()
    rope = "rope" not in config.disabled
    norm = "norm" not in config.disabled
    shapes: dict[str, list[str | int]] = {
        "raw_index_keys": ["N", "L", "Di"],
        "past_block_index_keys": ["N", "Bp", "Di"],
        "key_length": ["lengths"],
        **({"rope_cos": ["N", "L", "Dr"], "rope_sin": ["N", "L", "Dr"]} if rope else {}),
        **({"k_norm_weight": ["Di"]} if norm else {}),
        "past_incomplete_raw_keys": ["N", graph.r - 1, "Di"],
        **({"past_incomplete_rope": ["N", "Dr2"]} if rope else {}),
    }
    results: dict[str, list[str | int]] = {
        "block_index_keys": ["N", "B", "Di"],
        "present_incomplete_raw_keys": ["N", graph.r - 1, "Di"],
        **({"present_incomplete_rope": ["N", "Dr2"]} if rope else {}),
    }

    def port(name: str, shape: list[str | int]) -> Any:
        element = config.length_type if name == "key_length" else config.element_type
        return helper.make_tensor_value_info(name, _type(element), shape)

    proto = helper.make_graph(
        graph.nodes,
        config.operation,
        [port(name, shape) for name, shape in shapes.items()],
        [port(name, shape) for name, shape in results.items()],
        graph.constants,
    )
    model = helper.make_model(
        proto,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="qsa-conformance",
    )
    onnx.checker.check_model(model, full_check=True)
    serialized: bytes = model.SerializeToString()
    return serialized


def _type(name: str) -> int:
    from onnx import TensorProto

    value: int = getattr(TensorProto, ONNX_TYPES[name])
    return value


class _Graph:
    """Nodes and constants of the operation; values are named by the text that stands for them in the graph."""

    def __init__(self, config: OperationConfig) -> None:
        self.config = config
        self.r = int(config.attributes["key_block_size"])
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[str, tuple[int, ...]], str] = {}

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
        S = op("Expand", op("Cast", "key_length", to=_type("i64")), N)  # LEN-2
        pad = op("Max", op("Sub", L, S), zero)
        past = op("Max", op("Sub", S, L), zero)
        c, c_new = op("Div", past, block), op("Div", S, block)
        q, q_new = op("Mod", past, block), op("Mod", S, block)
        completed = op("Sub", c_new, c)
        B = op("ReduceMax", op("Concat", zero, c_new, axis=0), keepdims=1)
        K = op("ReduceMax", op("Concat", zero, completed, axis=0), keepdims=1)

        # Waiting rows, then new rows, then one row of zeros that everything unspecified is taken from.
        keys = op("Concat", "past_incomplete_raw_keys", raw, self.zeros(N, one, Di), axis=1)
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
            table = op("Concat", carried, rows, self.zeros(N, one, width), axis=1)
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
        computed = op("Cast", computed, to=_type(self.config.element_type))

        # OUT-1, OUT-2, OUT-3: copied rows, then computed ones, then zeros.
        b = op("Unsqueeze", self.range(B), zero)
        copied = op("Less", b, self.column(c))
        fresh = op("Less", b, self.column(c_new))
        source = op("Concat", past_blocks, computed, self.zeros(N, one, Di), axis=1)
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

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append one node with one output and return the name of that."""
        from onnx import helper

        name = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=f"node_{len(self.nodes)}", **attributes))
        return name

    def ints(self, *values: int) -> str:
        """An i64 constant of rank 1."""
        return self._constant("i64", values)

    def floats(self, *values: int) -> str:
        """An f32 constant of rank 1, from whole numbers."""
        return self._constant("f32", values)

    def _constant(self, element: str, values: tuple[int, ...]) -> str:
        from onnx import helper

        if (element, values) not in self._known:
            name = f"{element}_{'_'.join(str(value) for value in values)}"
            self.constants.append(helper.make_tensor(name, _type(element), [len(values)], values))
            self._known[element, values] = name
        return self._known[element, values]

    def dims(self, tensor: str, rank: int) -> tuple[str, ...]:
        """Every dimension of a tensor, each as an i64 tensor of shape [1]."""
        return tuple(self.op("Shape", tensor, start=axis, end=axis + 1) for axis in range(rank))

    def range(self, count: str, step: int = 1) -> str:
        """0, step, ... of the given count ([1] tensor)."""
        stop = self.op("Squeeze", self.op("Mul", count, self.ints(step)))
        return self.op("Range", self.op("Squeeze", self.ints(0)), stop, self.op("Squeeze", self.ints(step)))

    def column(self, per_sequence: str) -> str:
        """[N] to [N, 1]."""
        return self.op("Unsqueeze", per_sequence, self.ints(1))

    def zeros(self, *dims: str) -> str:
        """Zeros of type T; dims are [1] tensors."""
        from onnx import helper

        zero = helper.make_tensor("zero", _type(self.config.element_type), [1], [0])
        return self.op("ConstantOfShape", self.op("Concat", *dims, axis=0), value=zero)

    def wide(self, tensor: str) -> str:
        """To float32 (NUM-1)."""
        return self.op("Cast", tensor, to=_type("f32"))

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
