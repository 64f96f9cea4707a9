"""An operation as an OpenVINO custom operation in C++ (connect string ``openvino-cpu-op``).

The operations are in ``native/``. Each checks everything that its contract wants refused and says so in a fixed form;
this module only carries arrays in and out, and what it raises as `Rejected` is what the operation said.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino
from openvino import opset15 as ops
from openvino.utils.node_factory import NodeFactory

from conformance.backends import foreign, refusals
from conformance.backends.openvino.build import FEATURE, build_native, find_toolchain
from conformance.backends.openvino.kernel import ELEMENT_TYPES, Workers
from conformance.backends.openvino.kernel_timing import Part, kernel_alone
from conformance.backends.openvino.runtime import (
    PRECISION,
    URL,
    Device,
    Inputs,
    cores,
    model_of,
    numpy_type,
    tensor_of,
    type_of,
)
from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected, serve_only
from conformance.backends.refusals import is_empty, operation_called
from conformance.errors import BackendError

if TYPE_CHECKING:
    from conformance.backends.openvino.kernel import Kernel
    from conformance.backends.protocol import Array

# From this size on outputs stay in the memory that the operation wrote them to; below it a copy costs less.
LENT_BYTES = 256 << 10
IDLE_REQUESTS = 4
FEW_NUMBERS = 64  # up to here Python's min and max are quicker than NumPy's
ACCEPTED_KEPT = 1024  # calls that are known to be fit

_REFUSAL = re.compile(r"\w+\[ERR-\d (\w+) ([\w,]+)\]")

Form = tuple[str, tuple[int, ...]] | None  # element type and shape, -1 for any dimension; None: the port is left out
Signature = tuple[Form, ...]
Attributes = tuple[tuple[str, int | float], ...]


class OpenVINOCpuOp:
    """One operation in C++, run by the CPU plug-in.

    `operation` is the contract's name. `threads` limits the threads of a call; by default it may use all cores that the
    process may use. Raises `Unsupported` when there is no compiler to build it with.
    """

    def __init__(
        self, operation: str, kernel: Callable[[int], Kernel], threads: int | str | None = None, node: str = ""
    ) -> None:
        """`kernel` makes the bare kernel on a number of threads. `node` is another node of the same ports to run."""
        tools = find_toolchain()
        self.operation = operation_called(operation)
        self._kernel, self._node = kernel, node or operation
        self._device = Device(FEATURE, "CPU")
        if threads is not None:
            self._device.hints["INFERENCE_NUM_THREADS"] = int(threads)
        # With a single thread OpenVINO's executor loses what an operation throws, or aborts on it. There the operation
        # is asked before a call, outside the executor.
        self.asks_first = not node and int(threads or cores()) == 1
        self._factory: Any = None
        # With the hint f16 the plug-in hands f16 tensors to the operation as they are; with f32 it converts every input
        # and output on the way. The operation itself computes in f32 either way.
        native = "FP16" in self._device.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        self._f16_precision = "f16" if native else "f32"
        self.environment = self._device.environment | {
            "inference precision of f16 models": self._f16_precision,
            "compiler": tools.identity,
        }

    def describe(self) -> BackendInfo:
        """Every output, type and feature of the contract. Builds the library when there is none yet.

        Raises `BackendError` when it does not build: then there is nothing to judge.
        """
        self._load()
        return BackendInfo(
            name=FEATURE,
            version=self._device.version,
            vendor="qsa-conformance",
            element_types=("f32", "f16", "bf16"),
            outputs=tuple(output.name for output in self.operation.outputs),
            features=tuple(self.operation.features),
            url=URL,
            operation=self.operation.operation,
        )

    def prepare(self, config: OperationConfig) -> CpuOpSession:
        """The model of a configuration. Raises `Rejected`, and `Unsupported` for another operation."""
        serve_only(config, self.operation.operation)
        self._load()
        return CpuOpSession(self, config)

    def _load(self) -> None:
        """The library as an extension of this device's OpenVINO, built when there is none yet."""
        if self._factory is not None:
            return
        library = build_native(lambda text: print(f"qsa-conformance: {text}", file=sys.stderr))
        factory = NodeFactory()
        try:
            self._device.core.add_extension(library)
            factory.add_extension(library)
        except RuntimeError as error:
            raise BackendError(f"OpenVINO does not load the C++ operation in {library}: {error}") from error
        self._factory = factory

    def timing_targets(self, threads: int) -> tuple[Part, ...]:
        """What `perf` times next to this backend: the kernel alone."""
        return (kernel_alone(self._kernel, threads),)

    def plain_copy(self, threads: int) -> Callable[[Array, Array], None]:
        """A copy of one dense array onto another by as many threads, for `perf` to compare with."""
        return Workers(threads).plain_copy

    def nodes(self, signature: Signature) -> dict[str, Any]:
        """The inputs of a signature: parameters, and empty constants for ports that are switched off."""
        nodes = {}
        for port, form in zip(self.operation.ports, signature, strict=True):
            if form is None:
                continue
            element, shape = form
            if port.feature and is_empty(shape):
                nodes[port.name] = ops.constant(np.zeros(shape, np.float32), type_of(element))
            else:
                nodes[port.name] = ops.parameter(openvino.PartialShape(list(shape)), type_of(element), name=port.name)
                nodes[port.name].output(0).set_names({port.name})
        return nodes

    def node(self, attributes: Attributes, nodes: Mapping[str, Any]) -> Any:
        """The operation on these inputs. Raises `Rejected` for what it refuses about attributes, types and shapes."""
        with refused_at("prepare"):
            chosen = dict(attributes) if self._node == self.operation.operation else {}
            return self._factory.create(self._node, [node.output(0) for node in nodes.values()], chosen)

    def model(self, attributes: Attributes, signature: Signature) -> openvino.Model:
        """A model of the one operation. Raises `Rejected` as `node` does."""
        nodes = self.nodes(signature)
        names = [output.name for output in self.operation.outputs]
        return model_of(nodes, self.node(attributes, nodes).outputs(), names, self.operation.operation)

    def compiled(self, attributes: Attributes, signature: Signature) -> Any:
        """The compiled model of a signature; sessions of equal configuration share it."""
        return self._device.compiled((attributes, signature), lambda: self._compile(attributes, signature))

    def _compile(self, attributes: Attributes, signature: Signature) -> Any:
        model = self.model(attributes, signature)
        if any(form and form[0] == "f16" for form in signature) and self._f16_precision == "f16":
            compiled = self._device.core.compile_model(model, "CPU", self._device.hints | {PRECISION: "f16"})
            if compiled.get_property(PRECISION) == openvino.Type.f16:
                return compiled
        return self._device.compile(model)


class CpuOpSession:
    """One configuration of the operation: any shapes, state in the tensors only."""

    def __init__(self, backend: OpenVINOCpuOp, config: OperationConfig) -> None:
        self._backend = backend
        self._attributes = tuple(sorted(config.attributes.items()))
        checker = refusals.Checker(config, backend.operation)
        ports = backend.operation.ports
        self._names = tuple(port.name for port in ports)
        self._whole = tuple(i for i, port in enumerate(ports) if port.type not in ("T", *ELEMENT_TYPES))
        self._expected = tuple(
            None
            if checker.is_off(port.name) and port.optional
            else (checker.type_of(port.name), (0,) if checker.is_off(port.name) else (-1,) * len(port.shape))
            for port in ports
        )
        self._requests: dict[Signature, _Requests] = {}
        self._nodes: dict[Signature, Any] = {}
        self._accepted: set[Any] = set()
        self._latest: tuple[list[Any], _Requests] = [], self._of(self._expected)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call. Raises `Rejected`; the arrays returned are the caller's own."""
        arrays = [inputs.get(name) for name in self._names]
        for i in self._whole:
            arrays[i] = _within_i32(arrays[i])
        forms = [None if array is None else (array.dtype, array.shape) for array in arrays]
        latest, requests = self._latest
        if forms != latest or self._backend.asks_first:
            requests = self._fit(arrays)
            self._latest = forms, requests
        return requests.run(arrays)

    def _fit(self, arrays: list[Array | None]) -> _Requests:
        """The requests for a call; what is not as the session was prepared for is shown to the operation first."""
        self._check_presence(arrays)
        signature = tuple(
            None if array is None else (_element(array.dtype), self._shape(i, array)) for i, array in enumerate(arrays)
        )
        if self._backend.asks_first:
            self._ask(signature, arrays)
        elif signature not in self._requests:
            exact = tuple(None if array is None else (_element(array.dtype), array.shape) for array in arrays)
            with refused_at("call"):
                self._backend.node(self._attributes, self._backend.nodes(exact))
        return self._of(signature)

    def _check_presence(self, arrays: list[Array | None]) -> None:
        """The ports are those that the session was prepared for. Raises `Rejected` naming those that are not."""
        wrong = tuple(
            name
            for name, array, expected in zip(self._names, arrays, self._expected, strict=True)
            if (array is None) != (expected is None)
        )
        if wrong:
            raise Rejected("shape", "call", wrong)

    def _shape(self, i: int, array: Array) -> tuple[int, ...]:
        port = self._backend.operation.ports[i]
        return array.shape if port.feature and is_empty(array.shape) else (-1,) * array.ndim

    def _ask(self, signature: Signature, arrays: list[Array | None]) -> None:
        """Have the operation check a call before it is made, unless one like it was accepted before."""
        whole = tuple(array.tobytes() for i in self._whole if (array := arrays[i]) is not None)
        call = signature, tuple(array is not None and array.shape for array in arrays), whole
        if call in self._accepted:
            return
        with refused_at("call"):
            if signature not in self._nodes:
                self._nodes[signature] = self._backend.node(self._attributes, self._backend.nodes(signature))
            node = self._nodes[signature]
            outputs = [
                openvino.Tensor(one.get_element_type(), openvino.Shape([0] * one.get_partial_shape().rank.get_length()))
                for one in node.outputs()
            ]
            node.evaluate(outputs, [tensor_of(array) for array in arrays if array is not None])
        if len(self._accepted) == ACCEPTED_KEPT:
            self._accepted.clear()
        self._accepted.add(call)

    def _of(self, signature: Signature) -> _Requests:
        if signature not in self._requests:
            compiled = self._backend.compiled(self._attributes, signature)
            self._requests[signature] = _Requests(compiled, self._names, self._backend.operation.outputs)
        return self._requests[signature]

    def close(self) -> None:
        """Let the requests go; the compiled model stays with the backend."""
        self._requests.clear()
        self._nodes.clear()


class _Requests:
    """The infer requests of one compiled model; each serves one call at a time."""

    def __init__(self, compiled: Any, names: tuple[str, ...], outputs: Any) -> None:
        self._compiled = compiled
        self._ports = [names.index(port.any_name) for port in compiled.inputs]
        self._nothing = [
            np.empty([0] * port.partial_shape.rank.get_length(), numpy_type(port.get_element_type()))
            for port in compiled.inputs
        ]
        # For bf16 OpenVINO's arrays have the right bits and the wrong type.
        types = [numpy_type(port.get_element_type()) for port in compiled.outputs]
        self._outputs = [(output.name, dtype) for output, dtype in zip(outputs, types, strict=True)]
        self._lock = Lock()
        self._idle: list[_Request] = []

    def run(self, arrays: list[Array | None]) -> dict[str, Array]:
        request = self._take()
        request.bind([array for i in self._ports if (array := arrays[i]) is not None])
        with refused_at("call"):  # a request that failed is not used again
            results = request.request.infer(share_outputs=True).to_tuple()
        if sum(array.nbytes for array in results) < LENT_BYTES:
            outputs = [array.copy() for array in results]
        else:  # the request waits until nobody looks at its outputs any more
            outputs = list(results)
            request.lent = [weakref.ref(array) for array in results]
        with self._lock:
            self._idle.append(request)
            del self._idle[:-IDLE_REQUESTS]
        return {name: array.view(dtype) for (name, dtype), array in zip(self._outputs, outputs, strict=True)}

    def _take(self) -> _Request:
        with self._lock:
            for index, request in enumerate(self._idle):
                if request.free:
                    return self._idle.pop(index)
            # In a stream the outputs of one request are the inputs of another, which then keeps them alive.
            for request in self._idle:
                request.bind(self._nothing)
            free = next((index for index, request in enumerate(self._idle) if request.free), None)
            if free is not None:
                return self._idle.pop(free)
        return _Request(self._compiled.create_infer_request())


class _Request(Inputs):
    """An infer request with the arrays on its own memory that were handed out."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.lent: list[weakref.ref[Array]] = []

    @property
    def free(self) -> bool:
        """Whether none of the arrays on the request's own memory is left."""
        return all(array() is None for array in self.lent)


@contextmanager
def refused_at(phase: str) -> Iterator[None]:
    """Translates what an operation throws; all other errors pass."""
    try:
        yield
    except Rejected as rejected:
        raise Rejected(rejected.kind, phase, rejected.names) from rejected
    except RuntimeError as error:
        said = _REFUSAL.search(str(error))
        if said is None:
            raise foreign.told(FEATURE, error) from error
        raise Rejected(said[1], phase, tuple(said[2].split(","))) from error


def _within_i32(numbers: Array | None) -> Array | None:
    """Numbers that the plug-in passes on as they are: it drops the upper half of i64, so that 2^32 + 5 becomes 5.

    Numbers outside i32 become its ends, which an operation refuses just the same.
    """
    if numbers is None or numbers.dtype != np.int64 or not numbers.size:
        return numbers
    least, most = -(2**31), 2**31 - 1
    ends = numbers.ravel().tolist() if numbers.size <= FEW_NUMBERS else [numbers.min(), numbers.max()]
    return numbers if least <= min(ends) and max(ends) <= most else numbers.clip(least, most)


@lru_cache(maxsize=64)
def _element(dtype: np.dtype[Any]) -> str:
    """OpenVINO's name of an element type."""
    return refusals.type_name(dtype) or str(openvino.Type(dtype).to_string())
