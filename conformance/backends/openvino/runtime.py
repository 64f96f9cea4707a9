"""What the OpenVINO adapters share: a device with explicit hints, tensors without copies, requests that are reused."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import openvino
from openvino import opset15 as ops

from conformance.backends import foreign
from conformance.backends.protocol import Unsupported
from conformance.backends.refusals import Checker

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

URL = "https://github.com/openvinotoolkit/openvino/issues"
PRECISION = "INFERENCE_PRECISION_HINT"
SHOWN = {
    "device": "FULL_DEVICE_NAME",
    "inference precision": PRECISION,
    "execution mode": "EXECUTION_MODE_HINT",
    "streams": "NUM_STREAMS",
    "threads": "INFERENCE_NUM_THREADS",
    "denormals optimization": "CPU_DENORMALS_OPTIMIZATION",
}

COMPILED_KEPT = 128  # compiled models of a device: compiling takes as long as hundreds of calls

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_TYPES = {
    np.dtype(np.float32): openvino.Type.f32,
    np.dtype(np.float16): openvino.Type.f16,
    _BFLOAT16: openvino.Type.bf16,
    np.dtype(np.int32): openvino.Type.i32,
    np.dtype(np.int64): openvino.Type.i64,
}


def type_of(name: str) -> Any:
    """The `openvino.Type` of a type by its contract name, such as "f32", "bf16" or "i64"."""
    return getattr(openvino.Type, "boolean" if name == "bool" else name)


def port_nodes(checker: Checker, forms: Mapping[str, tuple[str, int]] = {}) -> dict[str, Any]:
    """The inputs of a configuration by contract name, all dimensions dynamic.

    A port that is switched off is an empty constant or, where it is optional, missing. `forms` are type and rank of
    ports, by name, for which the configuration leaves several.
    """
    nodes = {}
    for port in checker.operation.ports:
        name, rank = forms.get(port.name) or (checker.type_of(port.name), len(port.shape))
        element_type, off = type_of(name), checker.is_off(port.name)
        if not off:
            nodes[port.name] = ops.parameter([-1] * rank, element_type, name=port.name)
            nodes[port.name].output(0).set_names({port.name})
        elif not port.optional:
            nodes[port.name] = ops.constant(np.empty(0, np.float32), element_type)
    return nodes


def model_of(ports: Mapping[str, Any], outputs: Sequence[Any], names: Sequence[str], title: str) -> openvino.Model:
    """The model from these inputs to these outputs, the outputs under these names."""
    results = [ops.result(output) for output in outputs]
    for result, name in zip(results, names, strict=False):
        result.output(0).set_names({name})
    parameters = [node for node in ports.values() if node.get_type_name() == "Parameter"]
    return openvino.Model(results, parameters, title)


def numpy_type(element_type: Any) -> np.dtype[Any]:
    """The NumPy type of an `openvino.Type`."""
    known: np.dtype[Any] = np.dtype(
        ml_dtypes.bfloat16 if element_type == openvino.Type.bf16 else element_type.to_dtype()
    )
    return known


def tensor_of(array: Array) -> Any:
    """An `openvino.Tensor` on the memory of a contiguous array, whatever its type and whether it may be written to."""
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    # OpenVINO knows no NumPy type for bf16: it takes the bits, and the element type by name.
    bits = array.view(np.uint16) if array.dtype == _BFLOAT16 else array
    return openvino.Tensor(bits, array.shape, _TYPES[array.dtype])


class Inputs:
    """The input tensors of an infer request."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self._bound: dict[int, tuple[Array | None, tuple[int, ...], Any]] = {}

    def bind(self, arrays: Iterable[Array]) -> None:
        """Give the request its inputs. An array that it has already is not given again: OpenVINO reads its memory."""
        for index, array in enumerate(arrays):
            kept, shape, _ = self._bound.get(index, (None, (), None))
            if kept is array and shape == array.shape:
                continue
            tensor = tensor_of(array)
            self.request.set_input_tensor(index, tensor)
            # The tensor keeps its memory alive. That of an array with strides is a copy: it must be made anew.
            self._bound[index] = array if array.flags.c_contiguous else None, array.shape, tensor


class Device:
    """An OpenVINO device and the hints that every model is compiled with.

    Raises `Unsupported` when the device is not there.
    """

    def __init__(self, feature: str, name: str) -> None:
        self.feature, self.name, self.core = feature, name, openvino.Core()
        self._lock = Lock()
        self._compiled: OrderedDict[Hashable, Any] = OrderedDict()
        try:
            supported = self.core.get_property(name, "SUPPORTED_PROPERTIES")
        except RuntimeError as error:
            there = ", ".join(self.core.available_devices) or "none"
            raise Unsupported(feature, f"OpenVINO finds no device '{name}'; available: {there}", URL) from error
        # Sums in f32 on every machine, subnormals kept; a latency of one call at a time, on all cores.
        wanted = {
            PRECISION: "f32",
            "EXECUTION_MODE_HINT": "ACCURACY",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": cores(),
            "ENABLE_CPU_PINNING": False,
            "CPU_DENORMALS_OPTIMIZATION": False,
        }
        self.hints = {key: value for key, value in wanted.items() if key in supported}
        self.core.set_property(name, self.hints)
        self.environment = {"openvino": openvino.get_version(), "hints": ", ".join(self.hints)} | {
            label: _text(self.core.get_property(name, key)) for label, key in SHOWN.items() if key in supported
        }

    @property
    def version(self) -> str:
        """The version of OpenVINO and the precision read back from the device."""
        return (
            f"{openvino.get_version()} ({self.name} {self.environment.get('inference precision', 'precision unknown')})"
        )

    def compiled(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The compiled model of a key, of those used last; made when it is not among them.

        Sessions of equal configuration share it, each with requests of its own. Raises as `make` does.
        """
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
        made = make()
        with self._lock:
            self._compiled[key] = made
            while len(self._compiled) > COMPILED_KEPT:
                self._compiled.popitem(last=False)
        return made

    def compile(self, model: Any) -> Any:
        """A compiled model; raises `Unsupported` when the device does not keep to f32."""
        compiled = self.core.compile_model(model, self.name, self.hints)
        if PRECISION in self.hints and _text(compiled.get_property(PRECISION)) != "f32":
            precision = _text(compiled.get_property(PRECISION))
            raise Unsupported(self.feature, f"{self.name} computes in {precision} although f32 was asked for", URL)
        return compiled


class CompiledSession:
    """A compiled model as a session: any shapes, one call at a time a request, idle requests kept for the next call."""

    def __init__(
        self,
        checker: Checker,
        compiled: Any,
        outputs: Sequence[str],
        adapter: str,
        attributes: Mapping[str, Array] = {},
    ) -> None:
        """`outputs` are the contract's names of what the backend returns; those the model lacks come back empty.

        `adapter` is the name under which errors of the plug-in are told. `attributes` are the values of the model's
        inputs that are not ports.
        """
        self._attributes = attributes
        self.checker, self._adapter = checker, adapter
        self.compiled_model = compiled
        self._ports = [port.any_name for port in compiled.inputs]
        self._outputs = [port.any_name for port in compiled.outputs]
        self._types = [port.get_element_type() for port in compiled.outputs]
        self._absent = [name for name in outputs if name not in self._outputs]
        self._empty = numpy_type(type_of(checker.config.element_type))
        self._shapes = [openvino.Shape([0] * port.partial_shape.rank.get_length()) for port in compiled.outputs]
        self._idle = [Inputs(compiled.create_infer_request())]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call. Raises `Rejected`; the arrays returned are the caller's own."""
        self.checker.check(inputs)
        bound = self._idle.pop() if self._idle else Inputs(self.compiled_model.create_infer_request())
        given = {**inputs, **self._attributes}
        bound.bind(given[name] for name in self._ports)
        request = bound.request
        # Output memory is new for every call and belongs to the arrays on it, which is cheaper than a copy.
        for index, (element_type, shape) in enumerate(zip(self._types, self._shapes, strict=True)):
            request.set_output_tensor(index, openvino.Tensor(element_type, shape))
        try:
            results = request.infer(share_outputs=True).to_tuple()
        except Exception as error:
            raise foreign.told(self._adapter, error) from error
        # For bf16 OpenVINO's arrays have the right bits and the wrong type.
        outputs = {
            name: array.view(_BFLOAT16) if element_type == openvino.Type.bf16 else array
            for name, element_type, array in zip(self._outputs, self._types, results, strict=True)
        }
        for name in self._absent:
            outputs[name] = np.empty(0, self._empty)
        self._idle.append(bound)
        return outputs

    def close(self) -> None:
        """Let the requests and the model go."""
        self._idle.clear()
        self.compiled_model = None


def cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _text(value: Any) -> str:
    if isinstance(value, openvino.Type):
        return str(value.to_string())
    return str(getattr(value, "name", value))
