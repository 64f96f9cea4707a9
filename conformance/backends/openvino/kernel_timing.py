"""Parts of the C++ operation that are timed next to it: its kernel without OpenVINO, and OpenVINO without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.backends.openvino.kernel import Kernel
from conformance.backends.protocol import OperationConfig, Session

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


@dataclass(frozen=True)
class Part:
    """Something to be timed: `prepare` as of a backend; its outputs are not judged."""

    name: str
    prepare: Callable[[OperationConfig], Session]
    moves: bool  # whether it moves the bytes that the operation must move


class KernelSession:
    """The bare kernel: memory for the outputs is there before it starts, and nothing is checked."""

    def __init__(self, config: OperationConfig, kernel: Kernel) -> None:
        self._config, self._kernel = config, kernel

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], None]:
        """The call on these inputs, made ready."""
        return self._kernel.bind(self._config, inputs).run

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call; the outputs are the caller's own."""
        call = self._kernel.bind(self._config, inputs)
        call.run()
        return call.outputs

    def close(self) -> None:
        """Give the threads back."""
        self._kernel.close()


def kernel_alone(kernel: Callable[[int], Kernel], threads: int) -> Part:
    """The kernel of an operation, on so many threads."""
    return Part("kernel alone", lambda config: KernelSession(config, kernel(threads)), moves=True)
