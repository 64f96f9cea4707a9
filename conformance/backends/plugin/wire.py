"""Messages of the plug-in protocol, version 1: one JSON object a line, requests in, answers out.

The structs are the definition; the JSON Schemas under docs/schemas/backend-protocol are generated from them by
`python -m conformance.backends.plugin.schemas FOLDER`.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.errors import article, plain
from conformance.spec.types import dtype, name_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

PROTOCOL = 1
INLINE = 64 << 10  # bytes up to which tensors stand in the message itself

Id = Annotated[int, Meta(ge=0, description="Number of the request; its answer carries the same.")]
SessionNumber = Annotated[int, Meta(ge=0, description="Chosen by the suite at `prepare`; not used again later.")]
ElementType = Literal["f32", "f16", "bf16"]
TensorType = Literal["f32", "f16", "bf16", "f64", "i32", "i64", "i16", "i8", "u8", "u16", "u32", "u64", "bool"]
Value = Annotated[
    bool | int | float | Literal["nan", "inf", "-inf"],
    Meta(description="What JSON has no number for is written as a word."),
]
Size = Annotated[int, Meta(ge=0)]


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Elements in C order, little-endian; bf16 as its 16 bits, bool as a byte of 0 or 1.

    Exactly one of `data` and `file` is there.
    """

    type: TensorType
    shape: tuple[Size, ...]
    data: Annotated[bytes, Meta(description="The elements in base64, with padding.")] | UnsetType = UNSET
    file: (
        Annotated[str, Meta(description="Name of a file in the directory of `hello`: the elements, nothing else.")]
        | UnsetType
    ) = UNSET


class Request(msgspec.Struct, frozen=True, tag_field="message", kw_only=True):
    """From the suite to the plug-in. A plug-in ignores fields that it does not know."""

    id: Id


class Hello(Request, frozen=True, tag="hello", kw_only=True):
    """First request: who are you, and what can you do? Answered by `hello`."""

    protocol: Annotated[int, Meta(description="Version of this protocol.")] = PROTOCOL
    suite: Annotated[str, Meta(description="Name and version of the suite.")]
    directory: Annotated[str, Meta(description="Absolute path of a directory for tensor files, of this run alone.")]
    inline: Annotated[int, Meta(description="The suite sends tensors of more bytes than this as files.")] = INLINE


class Prepare(Request, frozen=True, tag="prepare", kw_only=True):
    """Build an instance; no shapes are given, as it must serve any. Answered by `prepared`."""

    session: SessionNumber
    operation: str
    attributes: dict[str, Value]
    element_type: str
    length_type: str
    disabled: Annotated[
        tuple[str, ...],
        Meta(description="Features that are switched off: their ports are empty or, where optional, missing."),
    ]


class Run(Request, frozen=True, tag="run", kw_only=True):
    """One call of an instance, with all ports; those switched off have no elements or, where optional, are missing.

    Answered by `done`.
    """

    session: SessionNumber
    inputs: dict[str, Tensor]


class Release(Request, frozen=True, tag="release", kw_only=True):
    """The instance is not used again. Answered by `released`."""

    session: SessionNumber


class Bye(Request, frozen=True, tag="bye", kw_only=True):
    """Last request. Answered by `bye`; then the plug-in ends with exit code 0."""


class Answer(msgspec.Struct, frozen=True, tag_field="answer", forbid_unknown_fields=True, kw_only=True):
    """From the plug-in to the suite: one for every request, in their order."""

    id: Id


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who the plug-in is and what it can do in one operation; the fields of `BackendInfo`."""

    name: Annotated[str, Meta(min_length=1)]
    version: str
    vendor: str
    element_types: Annotated[tuple[ElementType, ...], Meta(min_length=1)]
    outputs: Annotated[tuple[str, ...], Meta(min_length=1, description="What it returns, by contract name.")]
    features: Annotated[tuple[str, ...], Meta(description="What it can do without, or beyond.")] = ()
    device: str = "cpu"
    url: Annotated[str, Meta(description="Where its issues go.")] = ""
    operation: Annotated[str, Meta(min_length=1)] = "QSAPrepare"


class Described(Answer, frozen=True, tag="hello", kw_only=True):
    """Who the plug-in is and what it can do; the fields of `BackendInfo`, and those of further operations."""

    protocol: Annotated[int, Meta(description="Version of this protocol that the plug-in speaks.")]
    name: Annotated[str, Meta(min_length=1)]
    version: str
    vendor: str
    element_types: Annotated[tuple[ElementType, ...], Meta(min_length=1)]
    outputs: Annotated[tuple[str, ...], Meta(min_length=1, description="What it returns, by contract name.")]
    features: Annotated[tuple[str, ...], Meta(description="What it can do without, or beyond.")] = ()
    device: str = "cpu"
    url: Annotated[str, Meta(description="Where its issues go.")] = ""
    operation: Annotated[str, Meta(min_length=1)] = "QSAPrepare"
    also: Annotated[tuple[Description, ...], Meta(description="Further operations that it serves.")] = ()


class Prepared(Answer, frozen=True, tag="prepared", kw_only=True):
    """The instance is there."""


class Done(Answer, frozen=True, tag="done", kw_only=True):
    """What the call computed: the declared outputs, all of them."""

    outputs: dict[str, Tensor]


class Released(Answer, frozen=True, tag="released", kw_only=True):
    """The instance is gone."""


class Farewell(Answer, frozen=True, tag="bye", kw_only=True):
    """The last answer."""


class Unsupported(Answer, frozen=True, tag="unsupported", kw_only=True):
    """To `prepare` or `run`: the plug-in cannot do this, and says so. Never counted as passed."""

    feature: Annotated[str, Meta(min_length=1)]
    reason: str
    url: str = ""


class Rejected(Answer, frozen=True, tag="rejected", kw_only=True):
    """To `prepare` or `run`: the contract forbids it. Right for a refusal case alone."""

    kind: Literal["attribute", "shape", "type", "rope", "value"]
    phase: Literal["prepare", "call"]
    names: Annotated[tuple[str, ...], Meta(description="The offending attributes or ports, by contract name.")] = ()


class Failed(Answer, frozen=True, tag="error", kw_only=True):
    """To anything: it went wrong, or the request is not known. The plug-in lives on."""

    reason: Annotated[str, Meta(min_length=1)]
    detail: Annotated[str, Meta(description="A trace or the like, for the log.")] = ""


class Numbered(msgspec.Struct, frozen=True):
    """What can be read of any request, known or not."""

    id: Id


REQUESTS: tuple[type[Request], ...] = (Hello, Prepare, Run, Release, Bye)
ANSWERS: tuple[type[Answer], ...] = (
    Described, Prepared, Done, Released, Farewell, Unsupported, Rejected, Failed,
)  # fmt: skip
Kind = type[Request] | type[Answer]
AnyRequest = Hello | Prepare | Run | Release | Bye
AnyAnswer = Described | Prepared | Done | Released | Farewell | Unsupported | Rejected | Failed

_encoder = msgspec.json.Encoder()
_answers = msgspec.json.Decoder(AnyAnswer)
_numbered = msgspec.json.Decoder(Numbered)
_requests = msgspec.json.Decoder(AnyRequest)


class ProtocolError(Exception):
    """A message that the protocol does not allow; the text says what is wrong with it."""


def encode(message: Request | Answer) -> bytes:
    """The message as one line, without its end."""
    return _encoder.encode(message)


def decode_answer(line: bytes) -> AnyAnswer:
    """Raises `ProtocolError` with a sentence for what is not an answer."""
    answer: AnyAnswer = _decoded(_answers, line, "answer", ANSWERS)
    return answer


def decode_request(line: bytes) -> AnyRequest:
    """Raises `ProtocolError` with a sentence for what is not a request."""
    request: AnyRequest = _decoded(_requests, line, "request", REQUESTS)
    return request


def number_of(line: bytes) -> int:
    """The number of a request that is not understood, 0 when it has none."""
    try:
        return _numbered.decode(line).id
    except msgspec.DecodeError:
        return 0


def _decoded(decoder: msgspec.json.Decoder[Any], line: bytes, what: str, kinds: Sequence[Kind]) -> Any:
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        text = str(error).replace("`", "'").replace("Object missing required", "there is no").replace("$.", "")
        text = text.replace("Object contains", "there is an")
        hint = f"; known: {', '.join(map(tag, kinds))}" if "Invalid value '" in text else ""
        raise ProtocolError(f"something that is not {article(what)} of this protocol: {text}{hint}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ProtocolError(f"a line that is not JSON: {shown(line)}") from None


def shown(line: bytes) -> str:
    """The beginning of a line, for a message."""
    text = line[:80].decode(errors="replace")
    return repr(text) + (" ..." if len(line) > 80 else "")


# Tensors


def to_tensor(array: Array, directory: Path, name: str, inline: int = INLINE) -> Tensor:
    """A tensor of an array's type and shape, its elements in the message or, beyond `inline` bytes, in a new file."""
    kind: Any = name_of(array.dtype)
    if array.nbytes <= inline:
        return Tensor(kind, array.shape, data=array.tobytes())
    with (directory / name).open("wb") as file:
        file.write(as_bytes(array).data)
    return Tensor(kind, array.shape, file=name)


def to_array(tensor: Tensor, directory: Path, *, delete: bool = False, most: int | None = None) -> Array:
    """The array of a tensor, fresh and writable.

    Raises `ProtocolError` when data, shape and type do not agree, or take more than `most` bytes, before any memory is
    taken for them.
    """
    kind = dtype(tensor.type)
    size = math.prod(tensor.shape) * kind.itemsize
    if isinstance(tensor.data, bytes) == isinstance(tensor.file, str):
        raise ProtocolError("has to have either data or a file")
    if most is not None and size > most:
        raise ProtocolError(f"has {size:,} bytes of elements; at most {most:,} are taken")
    if isinstance(tensor.file, str):
        data, there = _contents(tensor.file, directory, size, delete=delete)
    else:
        data = bytearray(tensor.data or b"")
        there = len(data)
    if there != size:
        what = f"type {tensor.type} and shape {list(tensor.shape)}"
        raise ProtocolError(f"has {there} bytes of elements, where {what} take {size}")
    return np.frombuffer(data, kind).reshape(tensor.shape)


def _contents(name: str, directory: Path, size: int, *, delete: bool) -> tuple[bytearray, int]:
    if Path(name).name != name or "\0" in name:
        raise ProtocolError(f"names the file '{plain(name)}', which is not a plain name in the directory of hello")
    path = directory / name
    try:
        data, there = contents(path, size)
        if delete:
            path.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProtocolError(f"names the file '{plain(name)}', which cannot be read: {reason}") from None
    return data, there


def contents(path: Path, size: int) -> tuple[bytearray, int]:
    """The bytes of a file of the other side when it has this size, else none; and its size.

    Raises `OSError` for what is not a regular file: a link is not followed, and a pipe or a device not waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if status.st_size != size:
            return bytearray(), status.st_size
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            got = file.readinto(view[at:])
            if not got:
                raise OSError(errno.EIO, "it became shorter while it was read")
            at += got
        return data, size


def as_bytes(array: Array) -> Array:
    """The elements of an array in C order, as uint8."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# To and from the Python protocol


def prepare(id: int, session: int, config: OperationConfig) -> Prepare:
    """The request for a configuration."""
    return Prepare(
        id=id,
        session=session,
        operation=config.operation,
        attributes={name: _word(value) for name, value in config.attributes.items()},
        element_type=config.element_type,
        length_type=config.length_type,
        disabled=tuple(sorted(config.disabled)),
    )


def config_of(message: Prepare) -> OperationConfig:
    """The configuration of a request."""
    attributes = {name: float(v) if isinstance(v, str) else v for name, v in message.attributes.items()}
    return OperationConfig(
        message.operation, attributes, message.element_type, message.length_type, frozenset(message.disabled)
    )


def infos_of(message: Described) -> tuple[BackendInfo, ...]:
    """The descriptions in an answer, one for each operation."""
    return tuple(
        BackendInfo(**{field.name: getattr(one, field.name) for field in fields(BackendInfo)})
        for one in (message, *message.also)
    )


def described(infos: Sequence[BackendInfo], id: int = 0) -> Described:
    """The answer to `hello` of a backend with these descriptions. Raises `msgspec.ValidationError`."""
    first, *others = map(asdict, infos)
    return msgspec.convert({"answer": "hello", "id": id, "protocol": PROTOCOL, **first, "also": others}, Described)


def _word(value: float) -> Any:
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def tag(message: Kind | Request | Answer) -> str:
    """What a kind of message is called in the protocol."""
    return str(message.__struct_config__.tag)
