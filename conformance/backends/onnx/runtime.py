"""Models in ONNX Runtime on the CPU, bf16 included."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends import foreign
from conformance.backends.onnx.nodes import OPSET, type_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

URL = "https://github.com/microsoft/onnxruntime/issues"
VENDOR = "Microsoft"


def version() -> str:
    """The versions of the runtime and of what builds its models. Raises `ImportError` where one is missing."""
    import onnx
    import onnxruntime

    return f"{onnxruntime.__version__} (onnx {onnx.__version__}, opset {OPSET})"


class Model:
    """A loaded model."""

    def __init__(self, serialized: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # sums in one order on every machine
        options.log_severity_level = 3
        self._runtime = onnxruntime
        self._session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
        self._ports = [port.name for port in self._session.get_inputs()]
        self._outputs = [port.name for port in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call; inputs that the model does not have are passed over."""
        feeds = {name: self._value(inputs[name]) for name in self._ports}
        with foreign.calls("onnxruntime"):
            values = self._session.run_with_ort_values(self._outputs, feeds)
        return {name: _array(value) for name, value in zip(self._outputs, values, strict=True)}

    def _value(self, array: Array) -> Any:
        array = np.ascontiguousarray(array).reshape(array.shape)
        if array.dtype.name == "bfloat16":  # not a NumPy type of the runtime: hand over the bits and name the type
            return self._runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), type_of("bf16"))
        return self._runtime.OrtValue.ortvalue_from_numpy(array)


def _array(value: Any) -> Array:
    if value.element_type() != type_of("bf16"):
        array: Array = np.array(value.numpy())
        return array
    import ml_dtypes

    shape = tuple(value.shape())
    bits = ctypes.string_at(value.data_ptr(), int(np.prod(shape)) * 2) if np.prod(shape) else b""
    return np.frombuffer(bits, ml_dtypes.bfloat16).reshape(shape).copy()
