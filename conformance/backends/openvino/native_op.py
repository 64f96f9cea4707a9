"""OpenVINO's own operations (connect string ``openvino-native[:DEVICE]``), where the installed OpenVINO has them."""

from __future__ import annotations

import importlib
from typing import Any

import openvino

from conformance.backends import refusals
from conformance.backends.openvino.runtime import URL, CompiledSession, Device, model_of, port_nodes
from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected, Unsupported
from conformance.backends.refusals import operation_called

FEATURE = "openvino-native"
OPSET = "openvino.opset17"


class OpenVINONative:
    """A factory of `openvino.opset17` as the implementation under test.

    Raises `Unsupported` when the installed OpenVINO has no such operation or no such device.
    """

    def __init__(self, operation: str, factory: str, device: str = "CPU") -> None:
        self._factory = find_factory(factory)
        self.operation = operation_called(operation)
        self._all = tuple(output.name for output in self.operation.outputs)
        self._device = Device(FEATURE, device)
        self.environment = self._device.environment

    def describe(self) -> BackendInfo:
        """As many outputs as the operation's node has, in the contract's order."""
        attributes = self.operation.attributes_of({})
        config = OperationConfig(self.operation.operation, attributes, "f32", "i32", frozenset())
        return BackendInfo(
            name=FEATURE,
            version=self._device.version,
            vendor="Intel",
            element_types=("f32", "f16", "bf16"),
            outputs=self._names(self._node(config, port_nodes(refusals.checker(config)))),
            features=tuple(self.operation.features),
            device=self._device.name.lower(),
            url=URL,
            operation=self.operation.operation,
        )

    def prepare(self, config: OperationConfig) -> CompiledSession:
        """Build and compile a model of the one operation.

        Raises `Rejected` for attributes out of range and `Unsupported` where the plug-in cannot compile it.
        """
        checker = refusals.checker(config, self.operation.operation)
        ports = port_nodes(checker)
        node = self._node(config, ports)
        try:
            compiled = self._device.compile(model_of(ports, node.outputs(), self._all, self.operation.operation))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise Unsupported(FEATURE, f"{self._device.name} cannot compile the operation: {reason}", URL) from error
        return CompiledSession(checker, compiled, self._names(node), FEATURE)

    def _node(self, config: OperationConfig, ports: dict[str, Any]) -> Any:
        """The operation on these inputs, positional, and its attributes by name, as its documentation has them."""
        try:
            return self._factory(*ports.values(), **config.attributes)
        except RuntimeError as error:  # a check of the operation's own on attributes that the contract allows
            raise Rejected("attribute", "prepare", ()) from error

    def _names(self, node: Any) -> tuple[str, ...]:
        return self._all[: node.get_output_size()]


def find_factory(name: str) -> Any:
    """A factory of the opset; raises `Unsupported` where the installed OpenVINO lacks it."""
    try:
        factory = getattr(importlib.import_module(OPSET), name, None)
    except ImportError:
        factory = None
    if factory is None:
        raise Unsupported(FEATURE, f"the installed OpenVINO {openvino.get_version()} has no {OPSET}.{name}", URL)
    return factory
