"""OpenVINO's own QSAPrepare (connect string ``openvino-native[:DEVICE]``), where the installed OpenVINO has it."""

from __future__ import annotations

import importlib
from typing import Any

import openvino

from conformance.backends import refusals
from conformance.backends.openvino.runtime import URL, CompiledSession, Device, model_of, port_nodes
from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected, Unsupported
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.ports import DEFAULT_EPSILON, OUTPUTS

FEATURE = "openvino-native"
OPSET, FACTORY = "openvino.opset17", "qsa_prepare"


class OpenVINONative:
    """`openvino.opset17.qsa_prepare` as the implementation under test.

    Raises `Unsupported` when the installed OpenVINO has no such operation or no such device.
    """

    def __init__(self, device: str = "CPU") -> None:
        self._factory = find_factory()
        self._device = Device(FEATURE, device)
        self.environment = self._device.environment

    def describe(self) -> BackendInfo:
        """As many outputs as the operation's node has, in the contract's order."""
        config = OperationConfig(OPERATION, {"key_block_size": 2}, "f32", "i32", frozenset())
        return BackendInfo(
            name=FEATURE,
            version=self._device.version,
            vendor="Intel",
            element_types=("f32", "f16", "bf16"),
            outputs=self._names(self._node(config, port_nodes(refusals.checker(config)))),
            features=("rope", "norm", "left_padding"),
            device=self._device.name.lower(),
            url=URL,
        )

    def prepare(self, config: OperationConfig) -> CompiledSession:
        """Build and compile a model of the one operation.

        Raises `Rejected` for attributes out of range (ERR-1) and `Unsupported` where the plug-in cannot compile it.
        """
        checker = refusals.checker(config, OPERATION)
        ports = port_nodes(checker)
        node = self._node(config, ports)
        try:
            compiled = self._device.compile(model_of(ports, node.outputs(), OUTPUTS, OPERATION))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise Unsupported(FEATURE, f"{self._device.name} cannot compile the operation: {reason}", URL) from error
        return CompiledSession(checker, compiled, self._names(node))

    def _node(self, config: OperationConfig, ports: dict[str, Any]) -> Any:
        """The operation on these inputs, all positional, as its documentation has them."""
        r, epsilon = config.attributes["key_block_size"], config.attributes.get("epsilon", DEFAULT_EPSILON)
        try:
            return self._factory(*ports.values(), int(r), float(epsilon))
        except RuntimeError as error:  # a check of the operation's own on attributes that the contract allows
            raise Rejected("attribute", "prepare", ()) from error

    def _names(self, node: Any) -> tuple[str, ...]:
        return OUTPUTS[: node.get_output_size()]


def find_factory() -> Any:
    """`openvino.opset17.qsa_prepare`; raises `Unsupported` where the installed OpenVINO lacks it."""
    try:
        factory = getattr(importlib.import_module(OPSET), FACTORY, None)
    except ImportError:
        factory = None
    if factory is None:
        reason = f"the installed OpenVINO {openvino.get_version()} has no {OPSET}.{FACTORY}"
        raise Unsupported(FEATURE, reason, URL)
    return factory
