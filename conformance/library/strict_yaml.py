"""YAML as the library means it: YAML 1.2 scalars, no key twice, and a place for every value.

`1e-6` is a number, `no` and `on` are strings, `010` is ten, and a duplicate key is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from conformance.errors import LibraryError, Place, nearest
from conformance.library.files import content_of

try:
    from yaml import CSafeLoader as _Base
except ImportError:  # a PyYAML that was built without libyaml
    from yaml import SafeLoader as _Base  # type: ignore[assignment]


VALUES = 200_000  # of a file
DEPTH = 60  # levels of a file
TAGS = ("str", "int", "float", "bool", "null")  # of a scalar
DIGITS = 40  # of a whole number, leading zeros included


class _Loader(_Base):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern, re.ASCII), list(first))


_resolve("null", r"^(?:~|null|Null|NULL|)$", "~nN")
_Loader.yaml_implicit_resolvers[""] = [("tag:yaml.org,2002:null", re.compile(r"^$"))]
_resolve("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_resolve("int", r"^[-+]?[0-9]+$|^0o[0-7]+$|^0x[0-9a-fA-F]+$", "-+0123456789")
_resolve(
    "float",
    r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$",
    "-+0123456789.",
)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    digits = text[2:] if base != 10 else text
    # Python refuses to read more digits than some thousands, in words that are not about this file.
    if len(digits) > DIGITS or not -(2**63) <= (number := int(digits, base)) < 2**63:
        raise ValueError("a whole number beyond 64 bits")
    return number


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


class _Dumper(yaml.SafeDumper):
    """Quotes a string that would be read as something else."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def flow(value: Any, width: int) -> str:
    """A value in flow style, on lines of about `width`; further lines are indented."""
    text: str = yaml.dump(
        [value], Dumper=_Dumper, default_flow_style=True, width=width, sort_keys=False, allow_unicode=True
    )
    return text.strip()[1:-1].replace("\n", "\n ")


class Places:
    """Remembers where every mapping key and list item of a document stands."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.values = 0  # that were read
        self.marks: dict[tuple[Hashable, ...], tuple[int, int]] = {}

    def at(self, *keys: Hashable) -> Place:
        """The place of a value, or of the nearest value around it."""
        while keys and keys not in self.marks:
            keys = keys[:-1]
        line, column = self.marks.get(keys, (1, 1))
        return Place(self.path, line, column)


def load(path: Path, name: str = "", inside: Path | None = None) -> tuple[Any, Places]:
    """Plain data of a YAML file and the places of its values; `inside` is a folder that no link may lead out of.

    Raises `LibraryError` with file, line and column when the file cannot be read, is not YAML, has a key twice, or
    holds more than a file of the library ever does: values, levels, digits.
    """
    places = Places(name or str(path))
    try:
        text = content_of(path, inside).decode("utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise LibraryError(f"cannot be read: {reason}", Place(places.path)) from None
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:  # characters that YAML does not allow
        raise LibraryError(f"is not valid YAML: {str(error).splitlines()[0]}", Place(places.path)) from None
    try:
        node = loader.get_single_node()
        data = _build(loader, node, (), places) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(places.path, mark.line + 1, mark.column + 1) if mark else Place(places.path)
        raise LibraryError(f"is not valid YAML: {error.problem or error.context}", place) from None
    except yaml.YAMLError as error:
        raise LibraryError(f"is not valid YAML: {str(error).splitlines()[0]}", Place(places.path)) from None
    except RecursionError:
        raise LibraryError("is nested too deeply", Place(places.path)) from None
    finally:
        loader.dispose()
    return data, places


def _build(loader: Any, node: yaml.Node, keys: tuple[Hashable, ...], places: Places) -> Any:
    mark = node.start_mark
    places.marks.setdefault(keys, (mark.line + 1, mark.column + 1))
    if len(keys) > DEPTH:
        raise LibraryError("is nested too deeply", places.at(*keys[:DEPTH]))
    places.values += 1
    if places.values > VALUES:  # counted where they are used: an alias stands for all that it names
        raise LibraryError(f"has more than {VALUES:,} values, with those that aliases stand for", places.at(*keys))
    collection = "map" if isinstance(node, yaml.MappingNode) else "seq" if isinstance(node, yaml.SequenceNode) else ""
    allowed = (collection,) if collection else TAGS
    if node.tag.removeprefix("tag:yaml.org,2002:") not in allowed:
        raise LibraryError(f"the tag {node.tag[:60]} is not allowed here", places.at(*keys))
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here = Place(places.path, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                raise LibraryError("a key must be a plain word", here)
            key = key_node.value
            if key in result:
                raise LibraryError(f"key '{key}' appears twice", here)
            places.marks[(*keys, key)] = (here.line, here.column)
            result[key] = _build(loader, value_node, (*keys, key), places)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, item, (*keys, i), places) for i, item in enumerate(node.value)]
    try:
        return loader.construct_object(node)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        told = str(error) if "64 bits" in str(error) else f"'{str(node.value)[:40]}' is not of the type !!{kind}"
        raise LibraryError(told, places.at(*keys)) from None


_STEP = re.compile(r"\[(\.\.\.|\d+)\]|([^.\[\]]+)")
T = TypeVar("T")


def convert(data: Any, kind: type[T], at: Callable[..., Place]) -> T:
    """Plain data as a `kind`. Raises `LibraryError` with the place of what does not fit; `at` gives it for keys."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        text = str(error)
    message, _, path = text.partition(" - at `")
    steps: list[Hashable] = []
    node = data
    for index, word in _STEP.findall(path.rstrip("`").lstrip("$")):
        step: Hashable = int(index) if index.isdigit() else word or _culprit(data, steps, node, kind, text)
        if step is None:
            break
        steps.append(step)
        node = node[step]
    hint = ""
    if "unknown field" in message:
        unknown = message.split("`")[1]
        steps.append(unknown)
        hint = nearest(unknown, _fields(kind)) if len(steps) == 1 else ""
    raise LibraryError(_sentence(message) + hint, at(*steps)) from None


def _culprit(data: Any, steps: Sequence[Hashable], node: Any, kind: Any, text: str) -> str | None:
    """The key of a mapping whose value does not fit: msgspec does not name it, and fails again when it is alone."""
    for key in node if isinstance(node, dict) else ():
        try:
            msgspec.convert(_replaced(data, steps, {key: node[key]}), kind)
        except msgspec.ValidationError as error:
            if str(error) == text:
                return str(key)
    return None


def _replaced(data: Any, steps: Sequence[Hashable], value: Any) -> Any:
    """Plain data with another value at the end of the steps."""
    if not steps:
        return value
    first, rest = steps[0], steps[1:]
    if isinstance(data, dict):
        return {**data, first: _replaced(data[first], rest, value)}
    return [_replaced(one, rest, value) if i == first else one for i, one in enumerate(data)]


def _fields(kind: Any) -> list[str]:
    return [one.encode_name for one in msgspec.structs.fields(kind)] if issubclass(kind, msgspec.Struct) else []


WORDS = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "object": "a mapping",
    "array": "a list", "null": "nothing",
}  # fmt: skip


def _sentence(message: str) -> str:
    """What msgspec says, in the words of YAML."""
    found = re.fullmatch(r"Expected `(.+)`, got `(.+)`", message)
    if found:
        wanted, got = ([WORDS.get(word, f"'{word}'") for word in part.split(" | ")] for part in found.groups())
        return f"there must be {' or '.join(wanted)}, not {' or '.join(got)}"
    message = (
        message.replace("`", "'").replace("Object contains", "there is an").replace("Object missing", "there is no")
    )
    return message[:1].lower() + message[1:]
