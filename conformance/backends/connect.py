"""The connect mini-language: a string in, a backend out.

numpy   openvino-graph[:DEVICE]   openvino-python-op   openvino-cpu-op   openvino-native[:DEVICE]
transformers   torch   onnxruntime                      published models and peers (extra `peers`)
fault:ID   variant:ID                                   a faulty or conforming implementation of the catalogue
py:MODULE_OR_FILE.py:CLASS[,key=value...]               a class of yours
cmd:COMMAND LINE                                        a process that speaks the JSON-lines protocol
replay:LOG.jsonl                                        the results recorded in a log (`run` alone)
NAME                                                    registered under the entry points qsa_conformance.backends
"""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.backends.embedded import embedded, names, operations
from conformance.backends.protocol import (
    Backend,
    BackendInfo,
    OperationConfig,
    Session,
    Unsupported,
    close,
    environment_of,
    infos_of,
    listed,
)
from conformance.errors import BackendError, nearest, plain, text_of
from conformance.spec.types import ELEMENT_TYPES

if TYPE_CHECKING:
    from conformance.backends.plugin.process import Limits

GROUP = "qsa_conformance.backends"
# Prefix to the module with a `backend(kind, id, operation)`, named and not imported: it stands above this one.
CATALOGUES: Mapping[str, str] = {"fault": "conformance.faults.catalogue", "variant": "conformance.faults.catalogue"}
PREFIXES = (*CATALOGUES, "py", "cmd", "replay")
# What goes on as it is; all else that a plug-in raises is reported, SystemExit and the like included.
THROUGH = (BackendError, Unsupported, KeyboardInterrupt)


def usable(
    text: str, limits: Limits | None = None, operation: str = "", *, isolate: bool = False
) -> tuple[Backend, BackendInfo]:
    """The backend that a connect string names, and what it says of itself for an operation, by default its first.

    With `isolate` it runs in a process of its own; nothing of it is loaded here. Raises `BackendError` when there is
    none, it cannot be built or describes itself in a way that nothing can be run on; `Unsupported` when this
    machine lacks what it needs or it does not serve the operation.
    """
    embedded_for = operations(text.partition(":")[0])
    backend, infos = ready(text, limits, operation or next(iter(embedded_for), ""), isolate=isolate)
    for info in infos:
        if operation in ("", info.operation):
            return backend, info
    served = listed([info.operation for info in infos])
    raise Unsupported(operation, f"'{text}' does not serve {operation}; it serves {served}")


def ready(
    text: str, limits: Limits | None = None, operation: str = "", *, isolate: bool = False
) -> tuple[Backend, tuple[BackendInfo, ...]]:
    """As `usable`, with all that it says of itself; what is not bundled meets the time limit in this."""
    from conformance.judging.border import Raised, at_the_border, within

    isolate = isolate and not text.startswith("cmd:")  # which is in a process of its own anyway
    seconds = limits.seconds if limits and not isolate and text.partition(":")[0] not in names() else None
    with within(seconds, f"'{text}': what connects and describes it"):
        try:
            with at_the_border():
                if isolate:
                    from conformance.backends.plugin.isolated import Isolated

                    backend: Backend = Isolated(text, limits, operation)
                else:
                    backend = connect(text, limits, operation)
                return backend, described(backend, text)
        except Raised as error:
            raise BackendError(f"'{text}' cannot be used: {type(error).__name__}: {error}") from error


def operations_of(text: str, limits: Limits | None = None, *, isolate: bool = False) -> tuple[str, ...]:
    """The operations that the backend of a connect string serves. Raises as `usable` does.

    What stands after the colon of a bundled one leaves those whose adapter takes it.
    """
    name, _, rest = text.partition(":")
    if bundled := operations(name):
        return tuple(one for one in bundled if not rest or embedded()[name, one][1].argument) or bundled
    backend, infos = ready(text, limits, isolate=isolate)
    close(backend)
    return tuple(info.operation for info in infos)


def connect(text: str, limits: Limits | None = None, operation: str = "") -> Backend:
    """The backend that a connect string names; `limits` hold for one that is a process of its own.

    With an operation, an embedded backend is the adapter for it; all others serve what they serve. Raises
    `BackendError` when there is none or it cannot be built, `Unsupported` when this machine lacks what it needs.
    """
    kind, colon, rest = text.partition(":")
    if kind in names():
        return _embedded(kind, text, rest, operation)
    if kind in PREFIXES and not rest:
        raise BackendError(f"'{text}' needs something after the colon, as in {_example(kind)}")
    if kind in CATALOGUES:
        made: Backend = importlib.import_module(CATALOGUES[kind]).backend(kind, rest, operation)
        return made
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
    raise BackendError(f"no backend '{text}'{_suggestion(text)}; known: {', '.join(_known())}")


def _known() -> list[str]:
    return [*names(), *(f"{prefix}:" for prefix in PREFIXES), *(p.name for p in entry_points(group=GROUP))]


def _suggestion(text: str) -> str:
    """What was probably meant: a name that is close, or the prefix that was left out."""
    kind, colon, rest = text.partition(":")
    if kind.endswith(".py"):
        return f" (did you mean 'py:{text if rest else kind + ':CLASS'}'?)"
    if colon and rest.partition(",")[0].isidentifier() and all(part.isidentifier() for part in kind.split(".")):
        hint = nearest(kind, [*names(), *PREFIXES])
        return hint or f" (did you mean 'py:{text}'?)"
    if shutil.which(text.partition(" ")[0]):
        return f" (did you mean 'cmd:{text}'?)"
    return nearest(text, _known())


def _example(kind: str) -> str:
    return {
        "fault": "fault:F23",
        "variant": "variant:float64",
        "py": "py:my_module.py:MyBackend",
        "cmd": "cmd:./my-backend --fast",
        "replay": "replay:log.jsonl",
    }[kind]


# Embedded backends


def _embedded(name: str, text: str, rest: str, operation: str) -> Backend:
    served = operations(name)
    if operation and operation not in served:
        raise Unsupported(operation, f"'{name}' does not serve {operation}; it serves {listed(served)}")
    if operation or len(served) == 1:
        return _adapter(name, text, rest, operation or served[0])
    return Family({one: _adapter(name, text, rest, one) for one in served})


def _adapter(name: str, text: str, rest: str, operation: str) -> Backend:
    package, entry = embedded()[name, operation]
    if rest and not entry.argument:
        raise BackendError(f"'{text}': this backend takes nothing after its name")
    try:
        factory = getattr(importlib.import_module(f"{package}.{entry.module}"), entry.factory)
        return _made(factory, {entry.argument: rest} if rest else {}, text)
    except ImportError as error:
        hint = f"; pip install 'qsa-conformance[{entry.extra}]'" if entry.extra else ""
        raise Unsupported(text, f"{error.name or error} is not installed{hint}") from error


class Family:
    """The adapters of one name as one backend that serves all their operations."""

    def __init__(self, members: Mapping[str, Backend]) -> None:
        self.members = members
        self.environment = {key: value for one in members.values() for key, value in environment_of(one).items()}

    def describe(self) -> tuple[BackendInfo, ...]:
        """One entry for each operation."""
        return tuple(info for one in self.members.values() for info in infos_of(one))

    def prepare(self, config: OperationConfig) -> Session:
        """As the adapter of the operation does. Raises `Unsupported` for another one."""
        if config.operation not in self.members:
            raise Unsupported(config.operation, f"this backend serves {listed([*self.members])} only")
        return self.members[config.operation].prepare(config)


# What a backend says of itself


def described(backend: Backend, text: str) -> tuple[BackendInfo, ...]:
    """What a backend says of itself, checked. Raises `BackendError` with a sentence for what nothing can be run on."""
    try:
        said = backend.describe()
    except THROUGH:
        raise
    except BaseException as error:
        raise BackendError(f"'{text}': describe() raises {_said(error)}") from error
    infos: Sequence[object] = said if isinstance(said, tuple) and said else (said,)
    served = [_checked(info, text).operation for info in infos]
    twice = next((name for name in served if served.count(name) > 1), None)
    if twice:
        raise BackendError(f"'{text}': describe() speaks of {twice} more than once")
    return tuple(infos)  # type: ignore[arg-type]  # all are BackendInfo by now


def _checked(info: object, text: str) -> BackendInfo:
    if not isinstance(info, BackendInfo):
        what = f"a {type(info).__name__}" if info != () else "an empty tuple"
        raise BackendError(f"'{text}': describe() returns {what}, not a BackendInfo or a tuple of them")
    for field in fields(BackendInfo):
        value = getattr(info, field.name)
        if not str(field.type).startswith("tuple"):
            if not isinstance(value, str):
                raise BackendError(f"'{text}': describe() has {field.name} = {shown(value)}, which is not a text")
        elif not isinstance(value, tuple | list) or not all(isinstance(one, str) for one in value):
            raise BackendError(f"'{text}': describe() has {field.name} = {shown(value)}, which is not a tuple of texts")
    for what, names_given in (("output", info.outputs), ("element type", info.element_types)):
        if not names_given:
            raise BackendError(f"'{text}' declares no {what} for {info.operation}: there is nothing to judge")
    unknown = [name for name in info.element_types if name not in ELEMENT_TYPES]
    if unknown:
        raise BackendError(f"'{text}' declares the element type '{unknown[0]}'; known: {', '.join(ELEMENT_TYPES)}")
    if not info.name or not info.operation:
        raise BackendError(f"'{text}': describe() leaves {'name' if not info.name else 'operation'} empty")
    return info


def shown(value: object) -> str:
    """A value in a message, whatever its own text does."""
    try:
        return plain(repr(value), 80)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"a {type(value).__name__}"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"


# Classes of one's own


def _python(rest: str, text: str) -> Backend:
    target, _, options = rest.partition(",")
    module_name, colon, class_name = target.rpartition(":")
    if not colon or not class_name.isidentifier():
        raise BackendError(f"'{text}' does not name a class; write {_example('py')}")
    module = _loaded(lambda: _module(module_name), text)
    factory = getattr(module, class_name, None)
    if factory is None:
        names = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise BackendError(f"'{text}': {module_name} has no '{class_name}'{nearest(class_name, names)}")
    arguments = {}
    for pair in filter(None, options.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise BackendError(f"'{text}': '{pair}' is not key=value")
        arguments[key] = value
    try:
        return _made(factory, arguments, text)
    except ImportError as error:
        raise BackendError(f"'{text}' cannot be built: {_said(error)}") from error


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(name)
    from conformance.backends.own_modules import load

    return load(Path(name))


def _loaded(load: Callable[[], Any], text: str) -> Any:
    try:
        return load()
    except THROUGH:
        raise
    except BaseException as error:
        raise BackendError(f"'{text}' cannot be loaded: {_said(error)}") from error


def _made(factory: Any, arguments: Mapping[str, str], text: str) -> Backend:
    """An instance, checked to have the methods of the protocol."""
    try:
        backend = factory(**arguments) if callable(factory) else factory
    except (*THROUGH, ImportError):
        raise
    except BaseException as error:
        raise BackendError(f"'{text}' cannot be built: {_said(error)}") from error
    missing = [name for name in ("describe", "prepare") if not callable(getattr(backend, name, None))]
    if missing:
        raise BackendError(f"'{text}' is not a backend: {type(backend).__name__} has no {' and no '.join(missing)}()")
    return backend  # type: ignore[no-any-return]
