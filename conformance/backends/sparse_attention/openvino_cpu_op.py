"""SparseAttention as an OpenVINO custom operation in C++ (connect string ``openvino-cpu-op``)."""

from __future__ import annotations

from conformance.backends.openvino import cpu_op
from conformance.backends.sparse_attention import OPERATION
from conformance.backends.sparse_attention.kernel import Kernel


class OpenVINOCpuOp(cpu_op.OpenVINOCpuOp):
    """The C++ operation, run by the CPU plug-in."""

    def __init__(self, threads: int | str | None = None) -> None:
        super().__init__(OPERATION, Kernel, threads)
