"""QSAPrepare as an OpenVINO custom operation in C++ (connect string ``openvino-cpu-op``).

The operation itself is in ``native/``. It checks everything that the contract wants refused and says so in a fixed
form; this module only carries arrays in and out, and what it raises as `Rejected` is what the operation said.
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

import ml_dtypes
import numpy as np
import openvino
from openvino import opset15 as ops
from openvino.utils.node_factory import NodeFactory

from conformance.backends.openvino.build import FEATURE, build_native, find_toolchain
from conformance.backends.openvino.runtime import PRECISION, URL, Device, Inputs, cores, model_of, type_of
from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected, serve_only
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.ports import FEATURES, OUTPUTS, RANKS, SWITCHED
from conformance.errors import BackendError

if TYPE_CHECKING:
    from conformance.backends.openvino.kernel_timing import Part
    from conformance.backends.protocol import Array

LENGTHS = list(RANKS).index("key_length")

# From this size on outputs stay in the memory that the operation wrote them to; below it a copy costs less.
LENT_BYTES = 256 << 10
IDLE_REQUESTS = 4
FEW_LENGTHS = 64  # up to here Python's min and max are quicker than NumPy's
ACCEPTED_KEPT = 1024  # calls that are known to be fit

_REFUSAL = re.compile(r"QSAPrepare\[ERR-\d (\w+) ([\w,]+)\]")

Port = tuple[str, tuple[int, ...]]  # element type and shape; -1 for a dimension that is not fixed
Signature = tuple[Port, ...]


class OpenVINOCpuOp:
    """The C++ operation, run by the CPU plug-in.

    Raises `Unsupported` when there is no compiler to build it with, `BackendError` when the build fails. `threads`
    limits the threads of a call; by default it may use all cores that the process may use.
    """

    def __init__(self, threads: int | str | None = None, operation: str = OPERATION) -> None:
        """`operation` may be "EmptyOp": the same ports, outputs shaped like the state, nothing computed."""
        tools = find_toolchain()
        self._device = Device(FEATURE, "CPU")
        if threads is not None:
            self._device.hints["INFERENCE_NUM_THREADS"] = int(threads)
        self._operation = operation
        # With a single thread OpenVINO's executor loses what an operation throws, or aborts on it. There the operation
        # is asked before a call, on a model of the call's own shapes and lengths, where nothing is lost.
        self.asks_first = operation == OPERATION and int(threads or cores()) == 1
        self._factory: Any = None
        self.compiled = lru_cache(maxsize=128)(self._compile)
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
            outputs=OUTPUTS,
            features=("rope", "norm", "left_padding"),
            url=URL,
        )

    def prepare(self, config: OperationConfig) -> CpuOpSession:
        """The model of a configuration. Raises `Rejected` for ERR-1, `Unsupported` for another operation."""
        serve_only(config, OPERATION)
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
        """What `perf` times next to this backend: the kernel alone, and an operation that computes nothing."""
        from conformance.backends.openvino.kernel_timing import parts

        return parts(OpenVINOCpuOp(threads, "EmptyOp").prepare, threads)

    def plain_copy(self, threads: int) -> Callable[[Array, Array], None]:
        """A copy of one dense array onto another by as many threads, for `perf` to compare with."""
        from conformance.backends.openvino.kernel import Kernel

        return Kernel(threads).plain_copy

    def model(
        self, attributes: tuple[tuple[str, int | float], ...], signature: Signature, lengths: Array | None = None
    ) -> openvino.Model:
        """A model of the one operation. Ports whose last dimension is zero are empty constants (OFF-3).

        With `lengths` the key lengths are a constant, whose values the operation sees, too. Raises `Rejected` at
        "prepare" for what the operation refuses about attributes, types and known dimensions.
        """
        nodes = {}
        for (name, _), (element, shape) in zip(RANKS.items(), signature, strict=True):
            if name in SWITCHED and shape and shape[-1] == 0:
                nodes[name] = ops.constant(np.zeros(shape, np.float32), type_of(element))
            elif name == "key_length" and lengths is not None:
                nodes[name] = ops.constant(lengths)
            else:
                nodes[name] = ops.parameter(openvino.PartialShape(list(shape)), type_of(element), name=name)
                nodes[name].output(0).set_names({name})
        with refusals("prepare"):
            chosen = dict(attributes) if self._operation == OPERATION else {}
            node = self._factory.create(self._operation, [node.output(0) for node in nodes.values()], chosen)
        return model_of(nodes, node.outputs(), OUTPUTS, OPERATION)

    def _compile(self, attributes: tuple[tuple[str, int | float], ...], signature: Signature) -> Any:
        """The compiled model of a signature; kept, as sessions of equal configuration share it."""
        model = self.model(attributes, signature)
        if signature[0][0] == "f16" and self._f16_precision == "f16":
            compiled = self._device.core.compile_model(model, "CPU", self._device.hints | {PRECISION: "f16"})
            if compiled.get_property(PRECISION) == openvino.Type.f16:
                return compiled
        return self._device.compile(model)


class CpuOpSession:
    """One configuration of the operation: any shapes, state in the tensors only."""

    def __init__(self, backend: OpenVINOCpuOp, config: OperationConfig) -> None:
        self._backend = backend
        self._attributes = tuple(sorted(config.attributes.items()))
        off = {name for feature in config.disabled for name in FEATURES[feature]}
        self._expected = tuple(
            (config.length_type if name == "key_length" else config.element_type, (0,) if name in off else (-1,) * rank)
            for name, rank in RANKS.items()
        )
        self._requests: dict[Signature, _Requests] = {}
        self._accepted: set[tuple[Signature, bytes]] = set()
        self._latest: tuple[list[Any], _Requests] = [], self._of(self._expected)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5); the arrays returned are the caller's own (PLG-2)."""
        arrays = [inputs[name] for name in RANKS]
        arrays[LENGTHS] = _within_i32(arrays[LENGTHS])
        forms = [(array.dtype, array.shape) for array in arrays]
        latest, requests = self._latest
        if forms != latest or self._backend.asks_first:
            requests = self._fit(arrays)
            self._latest = forms, requests
        return requests.run(arrays)

    def _fit(self, arrays: list[Array]) -> _Requests:
        """The requests for a call; what is not as the session was prepared for is shown to the operation first."""
        signature = tuple(_port(name, array) for name, array in zip(RANKS, arrays, strict=True))
        if self._backend.asks_first:
            self._ask(signature, arrays)
        elif signature not in self._requests:
            with refusals("call"):
                self._backend.model(self._attributes, _shaped(signature, arrays))
        return self._of(signature)

    def _ask(self, signature: Signature, arrays: list[Array]) -> None:
        """Have the operation check a call before it is made, unless one like it was accepted before."""
        lengths = arrays[LENGTHS]
        call = _shaped(signature, arrays), lengths.tobytes()
        if call in self._accepted:
            return
        with refusals("call"):
            self._backend.model(self._attributes, call[0], lengths)
        if len(self._accepted) == ACCEPTED_KEPT:
            self._accepted.clear()
        self._accepted.add(call)

    def _of(self, signature: Signature) -> _Requests:
        if signature not in self._requests:
            self._requests[signature] = _Requests(self._backend.compiled(self._attributes, signature), signature)
        return self._requests[signature]

    def close(self) -> None:
        """Let the requests go; the compiled model stays with the backend."""
        self._requests.clear()


class _Requests:
    """The infer requests of one compiled model; each serves one call at a time."""

    def __init__(self, compiled: Any, signature: Signature) -> None:
        self._compiled = compiled
        self._ports = [list(RANKS).index(port.any_name) for port in compiled.inputs]
        self._nothing = [np.empty([0] * len(signature[i][1]), _dtype(signature[i][0])) for i in self._ports]
        self._dtype = _dtype(signature[0][0])
        self._lock = Lock()
        self._idle: list[_Request] = []

    def run(self, arrays: list[Array]) -> dict[str, Array]:
        request = self._take()
        request.bind([arrays[i] for i in self._ports])
        with refusals("call"):  # a request that failed is not used again
            results = request.request.infer(share_outputs=True).to_tuple()
        if sum(array.nbytes for array in results) < LENT_BYTES:
            outputs = [array.copy() for array in results]
        else:  # the request waits until nobody looks at its outputs any more
            outputs = list(results)
            request.lent = [weakref.ref(array) for array in results]
        with self._lock:
            self._idle.append(request)
            del self._idle[:-IDLE_REQUESTS]
        # For bf16 OpenVINO's arrays have the right bits and the wrong type.
        return {name: array.view(self._dtype) for name, array in zip(OUTPUTS, outputs, strict=True)}

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
def refusals(phase: str) -> Iterator[None]:
    """Translates what the operation throws; all other errors pass."""
    try:
        yield
    except Rejected as rejected:
        raise Rejected(rejected.kind, phase, rejected.names) from rejected
    except RuntimeError as error:
        said = _REFUSAL.search(str(error))
        if said is None:
            raise
        raise Rejected(said[1], phase, tuple(said[2].split(","))) from error


def _within_i32(lengths: Array) -> Array:
    """Lengths that the plug-in passes on as they are: it drops the upper half of i64, so that 2^32 + 5 becomes 5.

    Lengths outside i32 become its ends, which the operation refuses just the same (ERR-5).
    """
    if lengths.dtype != np.int64 or not lengths.size:
        return lengths
    least, most = -(2**31), 2**31 - 1
    ends = lengths.ravel().tolist() if lengths.size <= FEW_LENGTHS else [lengths.min(), lengths.max()]
    return lengths if least <= min(ends) and max(ends) <= most else lengths.clip(least, most)


def _port(name: str, array: Array) -> Port:
    shape = array.shape
    if name in SWITCHED and shape and shape[-1] == 0:
        return _element(array.dtype), shape
    return _element(array.dtype), (-1,) * len(shape)


def _shaped(signature: Signature, arrays: list[Array]) -> Signature:
    """A signature with the dimensions of these arrays."""
    return tuple((element, array.shape) for (element, _), array in zip(signature, arrays, strict=True))


@lru_cache(maxsize=64)
def _element(dtype: np.dtype[Any]) -> str:
    """OpenVINO's name of an element type."""
    return "bf16" if dtype == ml_dtypes.bfloat16 else str(openvino.Type(dtype).to_string())


def _dtype(element: str) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if element == "bf16" else type_of(element).to_dtype())
    return found
