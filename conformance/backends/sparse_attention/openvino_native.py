"""OpenVINO's own SparseAttention (connect string ``openvino-native[:DEVICE]``), where the installed OpenVINO has it."""

from __future__ import annotations

from conformance.backends.openvino import native_op
from conformance.backends.sparse_attention import OPERATION

FACTORY = "sparse_attention"


class OpenVINONative(native_op.OpenVINONative):
    """`openvino.opset17.sparse_attention` as the implementation under test."""

    def __init__(self, device: str = "CPU") -> None:
        super().__init__(OPERATION, FACTORY, device)
