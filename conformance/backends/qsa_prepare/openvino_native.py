"""OpenVINO's own QSAPrepare (connect string ``openvino-native[:DEVICE]``), where the installed OpenVINO has it."""

from __future__ import annotations

from conformance.backends.openvino import native_op
from conformance.backends.qsa_prepare import OPERATION

FACTORY = "qsa_prepare"


class OpenVINONative(native_op.OpenVINONative):
    """`openvino.opset17.qsa_prepare` as the implementation under test."""

    def __init__(self, device: str = "CPU") -> None:
        super().__init__(OPERATION, FACTORY, device)
