"""QSAPrepare as an OpenVINO custom operation in C++ (connect string ``openvino-cpu-op``)."""

from __future__ import annotations

from conformance.backends.openvino import cpu_op
from conformance.backends.openvino.kernel_timing import Part
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.kernel import Kernel


class OpenVINOCpuOp(cpu_op.OpenVINOCpuOp):
    """The C++ operation; `node` may be "EmptyOp": the same ports, outputs shaped like the state, nothing computed."""

    def __init__(self, threads: int | str | None = None, node: str = "") -> None:
        super().__init__(OPERATION, Kernel, threads, node)

    def timing_targets(self, threads: int) -> tuple[Part, ...]:
        """What `perf` times next to this backend: the kernel alone, and an operation that computes nothing."""
        empty = Part("empty operation", OpenVINOCpuOp(threads, "EmptyOp").prepare, moves=False)
        return (*super().timing_targets(threads), empty)
