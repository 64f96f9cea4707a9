"""An operation as a custom OpenVINO operation written in Python (connect string ``openvino-python-op``).

The operation has everything that a built-in one has: attributes, type and shape inference, an evaluation, and a form in
OpenVINO IR. Every model goes through IR before it is compiled. Shapes follow from the operation's description.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino

from conformance.backends import refusals
from conformance.backends.openvino.runtime import (
    URL,
    CompiledSession,
    Device,
    model_of,
    numpy_type,
    port_nodes,
    type_of,
)
from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected
from conformance.backends.refusals import Checker, operation_called
from conformance.spec.expression import evaluate, symbols_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array
    from conformance.spec.operation import Operation

# Attributes and inputs by contract name, ports that are left out missing; outputs by contract name.
Compute = Callable[[Mapping[str, Any], Mapping[str, "Array"]], Mapping[str, "Array"]]


class OpenVINOPythonOp:
    """One operation in Python, run by the CPU plug-in."""

    def __init__(self, operation: str, compute: Compute) -> None:
        self.operation = operation_called(operation)
        self._node = node_type(self.operation, compute)
        self._device = Device("openvino-python-op", "CPU")
        self._device.core.add_extension(self._node)
        self.environment = self._device.environment | {"numpy": np.__version__}

    def describe(self) -> BackendInfo:
        """Every output, type and feature of the contract."""
        return BackendInfo(
            name="openvino-python-op",
            version=self._device.version,
            vendor="qsa-conformance",
            element_types=("f32", "f16", "bf16"),
            outputs=tuple(output.name for output in self.operation.outputs),
            features=tuple(self.operation.features),
            url=URL,
            operation=self.operation.operation,
        )

    def prepare(self, config: OperationConfig) -> PythonOpSession:
        """The model, passed through IR and compiled; raises `Rejected` for attributes out of range."""
        return PythonOpSession(self, refusals.checker(config, self.operation.operation))

    def session(self, checker: Checker, forms: Mapping[str, tuple[str, int]]) -> CompiledSession:
        """The compiled model for these types and ranks of ports for which the configuration leaves several."""
        config, names = checker.config, [output.name for output in self.operation.outputs]

        def make() -> Any:
            ports = port_nodes(checker, forms)
            node = self._node(list(ports.values()), **config.attributes)
            model = model_of(ports, node.outputs(), names, self.operation.operation)
            return self._device.compile(through_ir(self._device.core, model))

        model = self._device.compiled((config.key, *sorted(forms.items())), make)
        return CompiledSession(checker, model, names, self._device.feature)


class PythonOpSession:
    """One configuration; a model for every choice of types and ranks that it leaves, the usual one from the start."""

    def __init__(self, backend: OpenVINOPythonOp, checker: Checker) -> None:
        self._backend, self._checker = backend, checker
        types = backend.operation.types
        self._open = {
            port.name: (checker.type_of(port.name), len(port.shape))
            for port in backend.operation.ports
            if not checker.is_off(port.name) and (port.type in types or len(checker.ranks(port.name)) > 1)
        }
        usual = tuple(self._open.values())
        self._models = {usual: backend.session(checker, {})}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call; raises `Rejected`."""
        self._checker.check(inputs)
        forms = tuple((refusals.type_name(inputs[name].dtype) or "", inputs[name].ndim) for name in self._open)
        if forms not in self._models:
            self._models[forms] = self._backend.session(self._checker, dict(zip(self._open, forms, strict=True)))
        return self._models[forms].run(inputs)

    def close(self) -> None:
        """Let the models go."""
        for model in self._models.values():
            model.close()


def through_ir(core: openvino.Core, model: openvino.Model) -> openvino.Model:
    """The model written as OpenVINO IR and read back; `core` knows the operation as an extension."""
    with tempfile.TemporaryDirectory() as folder:
        xml, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        openvino.serialize(model, xml, weights)
        return core.read_model(xml.read_bytes(), weights.read_bytes())


def node_type(operation: Operation, compute: Compute) -> Any:
    """The class of the operation's nodes; its inputs are the contract's ports in order, the last may be missing."""
    defaults = {name: attribute.default for name, attribute in operation.attributes.items()}

    class Node(openvino.Op):  # type: ignore[misc]  # openvino ships no usable types
        def __init__(self, inputs: Sequence[Any] | None = None, **attributes: Any) -> None:
            # Without inputs when it is read from IR; the attributes then arrive in `visit_attributes`.
            self._attributes = defaults | attributes
            super().__init__(self, inputs)

        def visit_attributes(self, visitor: Any) -> bool:
            visitor.on_attributes(self._attributes)
            return True

        def clone_with_new_inputs(self, new_inputs: Sequence[Any]) -> Any:
            return Node(new_inputs, **self._attributes)

        def validate_and_infer_types(self) -> None:
            """Raises `Rejected` at "prepare" for what types and static dimensions show to be wrong."""
            count = self.get_input_size()
            types = [self.get_input_element_type(i) for i in range(count)]
            shapes = [self.get_input_partial_shape(i) for i in range(count)]
            inferred = infer(operation, self._attributes, types, shapes)
            self.set_output_size(len(inferred))
            for index, (element_type, shape) in enumerate(inferred):
                self.set_output_type(index, element_type, shape)

        def has_evaluate(self) -> bool:
            return True

        def evaluate(self, outputs: Sequence[openvino.Tensor], inputs: Sequence[openvino.Tensor]) -> bool:
            arrays = {port.name: array_on(tensor) for port, tensor in zip(operation.ports, inputs, strict=False)}
            results = compute(self._attributes, arrays)
            for output, tensor in zip(operation.outputs, outputs, strict=True):
                result = results[output.name]
                tensor.shape = result.shape
                if result.size:
                    array_on(tensor)[...] = result
            return True

    Node.__name__ = Node.__qualname__ = operation.operation  # by which OpenVINO calls the operation
    return Node


def array_on(tensor: openvino.Tensor) -> Array:
    """A view of the tensor's memory; OpenVINO itself shows bf16 as f16."""
    array: Array = tensor.data
    return array.view(numpy_type(tensor.element_type))


@lru_cache(maxsize=64, typed=True)  # OpenVINO infers shapes at every call
def checker_of(operation: str, /, **attributes: Any) -> Checker:
    """The checker of an operation's attributes for shape inference. Raises `Rejected` for those out of range."""
    return refusals.checker(OperationConfig(operation, attributes, "f32", "i32", frozenset()))


def infer(
    operation: Operation, attributes: Mapping[str, Any], types: Sequence[Any], shapes: Sequence[Any]
) -> list[tuple[Any, Any]]:
    """Element type and shape of every output from those of the inputs, as far as they are known.

    Raises `Rejected` at "prepare": "attribute", "type" for mixed types, "shape" for ranks and
    dimensions that contradict each other.
    """
    checker = checker_of(operation.operation, **attributes)
    symbols: dict[str, Any] = dict(checker.scalars)
    element_type = openvino.Type.dynamic
    for port, given, shape in zip(operation.ports, types, shapes, strict=False):
        if port.type == "T" and given.is_static():
            if element_type.is_static() and given != element_type:
                raise Rejected("type", "prepare", (port.name,))
            element_type = given
        if shape.rank.is_dynamic:
            continue
        if shape.rank.get_length() not in checker.ranks(port.name):
            raise Rejected("shape", "prepare", (port.name,))
        if port.name == operation.lengths or shape.rank.get_length() != len(port.shape):
            continue
        for expression, dimension in zip(port.shape, shape, strict=True):
            free = dimension.is_static and expression in operation.dims
            if free and symbols.setdefault(str(expression), dimension.get_length()) != dimension.get_length():
                raise Rejected("shape", "prepare", (port.name,))
    return [
        (
            element_type if output.type == "T" else type_of(output.type),
            openvino.PartialShape([_size(expression, symbols) for expression in output.shape]),
        )
        for output in operation.outputs
    ]


def _size(expression: Any, symbols: Mapping[str, Any]) -> int:
    return int(evaluate(expression, symbols)) if symbols_of(expression) <= symbols.keys() else -1
