"""The connect mini-language: a string in, a backend out.

numpy   openvino-graph[:DEVICE]   openvino-python-op   openvino-cpu-op   openvino-native[:DEVICE]
transformers   torch   onnxruntime                      published models and peers (extra `peers`)
fault:ID                                                a faulty implementation of the catalogue
py:MODULE_OR_FILE.py:CLASS[,key=value...]               a class of yours
cmd:COMMAND LINE                                        a process that speaks the JSON-lines protocol
replay:LOG.jsonl                                        the results recorded in a log (`run` alone)
NAME                                                    registered under the entry points qsa_conformance.backends
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.backends.protocol import Backend, Unsupported
from conformance.errors import BackendError, nearest

if TYPE_CHECKING:
    from conformance.running.process import Limits

GROUP = "qsa_conformance.backends"


@dataclass(frozen=True)
class Embedded:
    """A backend that this package brings along."""

    module: str
    factory: str
    says: str
    argument: str = ""  # keyword that the text after the colon is passed as
    extra: str = ""  # extra of this package that it needs


EMBEDDED: Mapping[str, Embedded] = {
    "numpy": Embedded("numpy_reference", "NumPyReference", "the reference itself, rounded once"),
    "openvino-graph": Embedded("openvino_graph", "OpenVINOGraph", "standard OpenVINO operations", "device"),
    "openvino-python-op": Embedded("openvino_python_op", "OpenVINOPythonOp", "an OpenVINO custom operation in Python"),
    "openvino-cpu-op": Embedded("openvino_cpu_op", "OpenVINOCpuOp", "an OpenVINO custom operation in C++"),
    "openvino-native": Embedded("openvino_native", "OpenVINONative", "OpenVINO's own opset17.qsa_prepare", "device"),
    "transformers": Embedded(
        "transformers_model", "TransformersModel", "the published model's own code", extra="peers"
    ),
    "torch": Embedded("torch_eager", "TorchEager", "eager PyTorch", "mode", extra="peers"),
    "onnxruntime": Embedded("onnxruntime_graph", "OnnxRuntimeGraph", "standard ONNX operators", extra="peers"),
}
PREFIXES = ("fault", "variant", "py", "cmd", "replay")


def connect(text: str, limits: Limits | None = None) -> Backend:
    """The backend that a connect string names; `limits` hold for one that is a process of its own.

    Raises `BackendError` when there is none or it cannot be built, `Unsupported` when this machine lacks what it needs.
    """
    kind, colon, rest = text.partition(":")
    if kind in EMBEDDED:
        return _embedded(EMBEDDED[kind], text, rest)
    if kind in PREFIXES and not rest:
        raise BackendError(f"'{text}' needs something after the colon, as in {_example(kind)}")
    if kind in ("fault", "variant"):
        from conformance.faults import catalogue

        return catalogue.backend("fault" if kind == "fault" else "variant", rest)
    if kind == "py":
        return _python(rest, text)
    if kind == "cmd":
        from conformance.backends.plugin.subprocess import CommandBackend

        return CommandBackend(rest, limits)
    if kind == "replay":
        raise BackendError(f"'{text}': a log holds results and no outputs; it can be run, and nothing else")
    if not colon:
        for point in entry_points(group=GROUP):
            if point.name == text:
                return _made(_loaded(point.load, text), {}, text)
    known = [*EMBEDDED, *(f"{prefix}:" for prefix in PREFIXES), *(p.name for p in entry_points(group=GROUP))]
    raise BackendError(f"no backend '{text}'{nearest(text, known)}; known: {', '.join(known)}")


def _example(kind: str) -> str:
    return {
        "fault": "fault:F23",
        "variant": "variant:float64",
        "py": "py:my_module.py:MyBackend",
        "cmd": "cmd:./my-backend --fast",
        "replay": "replay:log.jsonl",
    }[kind]


def _embedded(embedded: Embedded, text: str, rest: str) -> Backend:
    if rest and not embedded.argument:
        raise BackendError(f"'{text}': this backend takes nothing after its name")
    try:
        module = importlib.import_module(f"conformance.backends.qsa_prepare.{embedded.module}")
        factory = getattr(module, embedded.factory)
        return _made(factory, {embedded.argument: rest} if rest else {}, text)
    except ImportError as error:
        hint = f"; pip install 'qsa-conformance[{embedded.extra}]'" if embedded.extra else ""
        raise Unsupported(text, f"{error.name or error} is not installed{hint}") from error


def _python(rest: str, text: str) -> Backend:
    target, _, options = rest.partition(",")
    module_name, colon, class_name = target.rpartition(":")
    if not colon or not class_name.isidentifier():
        raise BackendError(f"'{text}' names no class; write {_example('py')}")
    module = _loaded(lambda: _module(module_name), text)
    factory = getattr(module, class_name, None)
    if factory is None:
        names = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise BackendError(f"'{text}': {module_name} has no '{class_name}'{nearest(class_name, names)}")
    arguments = {}
    for pair in filter(None, options.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise BackendError(f"'{text}': '{pair}' is no key=value")
        arguments[key] = value
    return _made(factory, arguments, text)


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise BackendError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise BackendError(f"{path} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _loaded(load: Callable[[], Any], text: str) -> Any:
    try:
        return load()
    except (BackendError, Unsupported):
        raise
    except Exception as error:
        raise BackendError(f"'{text}' cannot be loaded: {type(error).__name__}: {error}") from error


def _made(factory: Any, arguments: Mapping[str, str], text: str) -> Backend:
    """An instance, checked to have the methods of the protocol."""
    try:
        backend = factory(**arguments) if callable(factory) else factory
    except (BackendError, Unsupported, ImportError):
        raise
    except Exception as error:
        raise BackendError(f"'{text}' cannot be built: {type(error).__name__}: {error}") from error
    missing = [name for name in ("describe", "prepare") if not callable(getattr(backend, name, None))]
    if missing:
        raise BackendError(f"'{text}' is no backend: {type(backend).__name__} has no {' and no '.join(missing)}()")
    return backend  # type: ignore[no-any-return]
