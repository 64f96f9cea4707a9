"""Nodes and constants of an ONNX graph; a value is named by the text that stands for it in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OPSET = 23  # the first with RMSNormalization
IR_VERSION = 11  # what opset 23 was released with
ONNX_TYPES = {"f32": "FLOAT", "f16": "FLOAT16", "bf16": "BFLOAT16", "i32": "INT32", "i64": "INT64", "bool": "BOOL"}

Shape = Sequence[str | int]


def type_of(name: str) -> int:
    """ONNX' number of an element type."""
    from onnx import TensorProto

    value: int = getattr(TensorProto, ONNX_TYPES[name])
    return value


class Nodes:
    """What is appended to a graph while it is written down."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[str, tuple[float, ...]], str] = {}

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append one node with one output and return the name of that."""
        return self.ops(kind, *inputs, outputs=(output or f"{kind}_{len(self.nodes)}",), **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: Sequence[str], **attributes: Any) -> tuple[str, ...]:
        """Append one node with several outputs and return their names."""
        from onnx import helper

        node = helper.make_node(kind, list(inputs), list(outputs), name=f"node_{len(self.nodes)}", **attributes)
        self.nodes.append(node)
        return tuple(outputs)

    def ints(self, *values: int) -> str:
        """An i64 constant of rank 1."""
        return self._constant("i64", values)

    def floats(self, *values: float) -> str:
        """An f32 constant of rank 1."""
        return self._constant("f32", values)

    def _constant(self, element: str, values: tuple[float, ...]) -> str:
        from onnx import helper

        if (element, values) not in self._known:
            name = f"{element}_{len(self._known)}"
            self.constants.append(helper.make_tensor(name, type_of(element), [len(values)], values))
            self._known[element, values] = name
        return self._known[element, values]

    def dims(self, tensor: str, rank: int) -> tuple[str, ...]:
        """Every dimension of a tensor, each as an i64 tensor of shape [1]."""
        return tuple(self.op("Shape", tensor, start=axis, end=axis + 1) for axis in range(rank))

    def shape(self, *dims: str) -> str:
        """Dimensions, each of shape [1], as one shape."""
        return self.op("Concat", *dims, axis=0)

    def range(self, count: str, step: int = 1) -> str:
        """0, step, ... of the given count ([1] tensor)."""
        stop = self.op("Squeeze", self.op("Mul", count, self.ints(step)))
        return self.op("Range", self.op("Squeeze", self.ints(0)), stop, self.op("Squeeze", self.ints(step)))

    def unsqueeze(self, tensor: str, *axes: int) -> str:
        """New axes of size 1."""
        return self.op("Unsqueeze", tensor, self.ints(*axes))

    def cast(self, tensor: str, element: str) -> str:
        """Another element type."""
        return self.op("Cast", tensor, to=type_of(element))

    def wide(self, tensor: str) -> str:
        """To float32."""
        return self.cast(tensor, "f32")

    def zeros(self, element: str, *dims: str) -> str:
        """Zeros of an element type; dims are [1] tensors."""
        from onnx import helper

        zero = helper.make_tensor("zero", type_of(element), [1], [0])
        return self.op("ConstantOfShape", self.shape(*dims), value=zero)


def model_of(
    name: str, nodes: Nodes, inputs: Mapping[str, tuple[str, Shape]], outputs: Mapping[str, tuple[str, Shape]]
) -> bytes:
    """The serialized model, checked by the ONNX checker; ports are (element type, shape) by name."""
    import onnx
    from onnx import helper

    def ports(described: Mapping[str, tuple[str, Shape]]) -> list[Any]:
        return [helper.make_tensor_value_info(n, type_of(element), list(s)) for n, (element, s) in described.items()]

    graph = helper.make_graph(nodes.nodes, name, ports(inputs), ports(outputs), nodes.constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="qsa-conformance"
    )
    onnx.checker.check_model(model, full_check=True)
    serialized: bytes = model.SerializeToString()
    return serialized
