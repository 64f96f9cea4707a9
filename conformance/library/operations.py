"""Operations as they stand in the library: where their folders are, and what an operation.yaml must fulfil."""

from __future__ import annotations

import keyword
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from conformance.errors import LibraryError, UsageError, nearest
from conformance.library.files import content_of
from conformance.spec.expression import FUNCTIONS, ExpressionError, evaluate, gathered_by, symbols_of
from conformance.spec.operation import ELEMENT, LENGTH, Number, Operation, Tensor
from conformance.spec.types import TENSOR_TYPES

FILE = "operation.yaml"
DEFAULT = "qsa_prepare"
PATH = "QSA_CONFORMANCE_LIBRARY"  # environment variable: folders with operations of one's own, listed as in PATH


def cases_root() -> Path:
    """Folder of the case library: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parents[1]
    inside, beside = here / "cases", here.parent / "cases"
    return inside if inside.is_dir() else beside


def operations(root: Path | None = None) -> tuple[str, ...]:
    """Folders of the operations that a library has, in the order of their names."""
    return tuple(sorted(path.parent.name for path in (root or cases_root()).glob(f"*/{FILE}")))


def own_roots() -> tuple[Path, ...]:
    """Folders with operations of one's own, from the environment: processes that are started inherit them."""
    return tuple(Path(one) for one in os.environ.get(PATH, "").split(os.pathsep) if one)


def include(root: Path) -> None:
    """Know the operations of a folder by their names from now on, and find the modules that they name in it."""
    root = root.absolute()
    if root not in own_roots():
        os.environ[PATH] = os.pathsep.join(map(str, (root, *own_roots())))
    importable(root)


def importable(root: Path) -> None:
    """Let the modules that operations of one's own name be found in their folder, after all others."""
    if root != cases_root() and str(root.absolute()) not in sys.path:
        sys.path.append(str(root.absolute()))


def own_operations() -> Iterator[Operation]:
    """The operations of one's own that are known by name."""
    for root in own_roots():
        for folder in operations(root):
            yield load_operation(folder, root)


def recorded(name: str, own: str) -> str:
    """The name of the operation that a log is of, found in the folder `own` of its library where it is not known."""
    try:
        located(name)
    except UsageError:
        if not own or not _holds(Path(own), name):
            raise
        include(Path(own))
    return name


def _holds(root: Path, name: str) -> bool:
    try:
        return any(name in (folder, name_of(folder, root)) for folder in operations(root))
    except (OSError, ValueError):  # what a log says need not be a path
        return False


def folder_of(name: str, root: Path | None = None) -> str:
    """The folder of an operation, which is asked for by its folder or by its own name. Raises `UsageError`."""
    return located(name, root)[1]


def located(name: str, root: Path | None = None) -> tuple[Path, str]:
    """The root and the folder of an operation, by its folder or its name; in any root unless one is given."""
    folders: list[str] = []
    names: list[str] = []
    for one in [root] if root else [*own_roots(), cases_root()]:
        known = operations(one)
        if name in known:
            return one, name
        named = {_name_in(one / folder / FILE): folder for folder in known}
        if name in named:
            return one, named[name]
        folders += known
        names += filter(None, named)
    raise UsageError(f"no operation '{name}'{nearest(name, [*folders, *names])}; known: {', '.join(folders) or 'none'}")


def is_bundled(name: str) -> bool:
    """Whether an operation is one of this package, by its name."""
    return any(name == name_of(folder) for folder in operations())


def name_of(folder: str, root: Path | None = None) -> str:
    """The name of the operation in a folder, without reading all that the file says."""
    return _name_in((root or cases_root()) / folder / FILE)


def _name_in(path: Path) -> str:
    """The operation that a file describes, read off one line: most commands need no more of other operations."""
    try:
        lines = content_of(path).decode("utf-8", errors="replace").splitlines()
    except (OSError, RuntimeError):
        return ""
    values = (line.partition(":")[2] for line in lines if line.startswith("operation:"))
    return next(values, "").partition(" #")[0].strip().strip("'\"")


def load_operation(name: str = DEFAULT, root: Path | None = None) -> Operation:
    """An operation of the library, by its folder or its name. Raises `UsageError` or `LibraryError`."""
    return _found(name, root, own_roots())


@lru_cache(maxsize=64)  # custom operations ask for theirs whenever shapes are inferred, which is at every call
def _found(name: str, root: Path | None, _roots: tuple[Path, ...]) -> Operation:
    return _loaded(*located(name, root))


@lru_cache(maxsize=16)
def _loaded(root: Path, folder: str) -> Operation:
    from conformance.library import strict_yaml

    importable(root)
    path = root / folder / FILE
    data, places = strict_yaml.load(path, f"cases/{folder}/{FILE}" if root == cases_root() else str(path), root)
    operation = strict_yaml.convert(data, Operation, places.at)
    if any(stage.operation for stage in operation.stages):
        from conformance.library.pipelines import composed

        operation = composed(operation, root, places.at)
    for keys, problem in _problems(operation):
        raise LibraryError(problem, places.at(*keys))
    return operation


Problem = tuple[Sequence[Any], str]


def _problems(operation: Operation) -> Iterator[Problem]:
    yield from _symbols(operation)
    yield from _names(operation)
    yield from _tensors(operation)
    yield from _rules(operation)
    yield from _values(operation)


def _symbols(operation: Operation) -> Iterator[Problem]:
    """Symbols are words of their own, and use only symbols that stand before."""
    seen: dict[str, str] = {}
    given: list[tuple[Sequence[Any], str, str]] = [
        (("attributes", name, "symbol"), attribute.symbol, "attribute")
        for name, attribute in operation.attributes.items()
    ]
    given += [(("dims", name), name, "dimension") for name in operation.dims]
    given += [(("length",), operation.length, "length")] if operation.history else []
    given += [(("symbols", name), name, "symbol") for name in operation.symbols]
    given += [(("totals", name), name, "total") for name in operation.totals]
    for keys, name, kind in given:
        if (
            not name.isidentifier()
            or keyword.iskeyword(name)
            or name.startswith("_")
            or name in (*FUNCTIONS, "n", "row")
        ):
            yield keys, f"'{name}' cannot be used as a symbol: it is a keyword, a function, or not a plain word"
        if name in seen:
            yield keys, f"the symbol '{name}' is taken by the {seen[name]} of that name"
        seen[name] = kind
    if operation.symbols and not operation.history:
        yield ("symbols",), "'symbols' follow from the length of a sequence; this operation has no 'history'"


def _unknown(text: Number, known: Sequence[str] | set[str]) -> str:
    """What is wrong with an expression, an empty text when it may stand there."""
    try:
        unknown = sorted(symbols_of(text) - set(known))
    except ExpressionError as error:
        return str(error)
    hint = nearest(unknown[0], list(known)) if unknown else ""
    return f"'{text}': unknown symbol {', '.join(unknown)}{hint}" if unknown else ""


def _names(operation: Operation) -> Iterator[Problem]:
    """Names that the file uses are defined in it."""
    ports, outputs, clauses = list(operation.port), list(operation.output), list(operation.clause)
    readings = [reading.name for reading in operation.readings]
    # What a refusal may name: in a pipeline also a port of a stage that an earlier one feeds.
    named = [*ports, *operation.attributes, *(port for stage in operation.stages for port in stage.feeds)]

    def known(keys: Sequence[Any], names: Any, there: Sequence[str], kind: str) -> Iterator[Problem]:
        for name in names:
            if name not in there:
                where = (*keys, name) if isinstance(names, Mapping) else keys
                yield where, f"'{name}' is not {kind} of this operation{nearest(str(name), list(there))}"

    a_clause, a_port, a_feature = "a clause", "a port", "a feature"
    fields: list[tuple[str, Sequence[str], str]] = [
        ("batch", list(operation.dims), "a dimension"),
        ("tokens", list(operation.dims), "a dimension"),
        ("lengths", ports, a_port),
        ("block", list(operation.attributes), "an attribute"),
    ]
    for field, there, kind in fields:
        value = getattr(operation, field)
        yield from known((field,), [value] if value else [], there, kind)
    if operation.lengths and not operation.history:
        yield (
            ("lengths",),
            "a port that counts tokens needs a 'history': tokens that a sequence has seen by default",
        )
    for field, clause in msgspec.structs.asdict(operation.rules).items():
        yield from known(("rules", field), [clause] if clause else [], clauses, a_clause)
    for i, one in enumerate(operation.clauses):
        yield from known(("clauses", i, "id"), [one.group], list(operation.groups), "a group")
    for i, output in enumerate(operation.outputs):
        yield from known(("outputs", i, "clauses"), [*output.clauses, output.shape_clause], clauses, a_clause)
        yield from known(("outputs", i, "feeds"), [output.feeds] if output.feeds else [], ports, a_port)
    for name, feature in operation.features.items():
        yield from known(("features", name, "needs"), feature.needs, list(operation.features), a_feature)
    for i, rule in enumerate(operation.refusals):
        yield from known(("refusals", i, "clause"), [rule.clause], clauses, a_clause)
        yield from known(("refusals", i, "names"), rule.names, named, "a port or an attribute")
        yield from known(("refusals", i, "attributes"), rule.attributes, list(operation.attributes), "an attribute")
        for field in ("shapes", "types", "values"):
            yield from known(("refusals", i, field), getattr(rule, field), ports, a_port)
        yield from known(("refusals", i, "absent"), rule.absent, ports, a_port)
    for i, condition in enumerate(operation.conditions):
        here = ("conditions", i)
        yield from known((*here, "names"), condition.names, named, "a port or an attribute")
        yield from known(
            (*here, "when"), [condition.when] if condition.when else [], list(operation.features), a_feature
        )
    for i, filling in enumerate(operation.draws.fillings):
        yield from known(("draws", "fillings", i, "ports"), filling.ports, ports, a_port)
    for i, relation in enumerate(operation.relations):
        here = ("relations", i)
        yield from known((*here, "clause"), [relation.clause], clauses, a_clause)
        yield from known((*here, "bits"), [relation.bits] if relation.bits else [], clauses, a_clause)
        yield from known((*here, "blames"), list(relation.blames.values()), clauses, a_clause)
        yield from known((*here, "blames"), relation.blames, ports, a_port)
        yield from known((*here, "ports"), relation.ports, ports, a_port)
        yield from known((*here, "values"), relation.values, ports, a_port)
        yield from known((*here, "touches"), relation.touches, outputs, "an output")
        yield from known((*here, "copied"), relation.copied, outputs, "an output")
        yield from known((*here, "features"), relation.features, list(operation.features), a_feature)
        yield from known((*here, "unless"), relation.unless, readings, "a reading")
    for i, stage in enumerate(operation.stages):
        yield from known(("stages", i, "off"), stage.off, list(operation.features), a_feature)


def _tensors(operation: Operation) -> Iterator[Problem]:
    """Types, features, shapes and masks of ports and outputs."""
    scalars = {a.symbol for a in operation.attributes.values()} | operation.dims.keys()
    symbols = scalars | operation.symbols.keys() | operation.totals.keys() | set(operation.switchable)
    symbols |= {operation.length} if operation.history else set()
    types = (ELEMENT, LENGTH, *operation.types, *TENSOR_TYPES)
    for field, tensors in (("ports", operation.ports), ("outputs", operation.outputs)):
        names = [tensor.name for tensor in tensors]
        for i, tensor in enumerate(tensors):
            here = (field, i)
            if names.count(tensor.name) > 1:
                yield (*here, "name"), f"there are two {field} called '{tensor.name}'"
            if tensor.type not in types:
                yield (
                    (*here, "type"),
                    f"'{tensor.type}' is not a type{nearest(tensor.type, types)}; known: {', '.join(types)}",
                )
            if tensor.feature and tensor.feature not in operation.features:
                yield (*here, "feature"), f"'{tensor.feature}' is not a feature of this operation"
            if tensor.axes and len(tensor.axes) != len(tensor.shape):
                yield (*here, "axes"), f"{len(tensor.axes)} names for {len(tensor.shape)} axes"
            for size in tensor.shape:
                if problem := _unknown(size, symbols):
                    yield (*here, "shape"), problem
    for i, port in enumerate(operation.ports):
        known = symbols | operation.counted | set(port.axes or ("row",))
        for key in ("reads", "token"):
            text = getattr(port, key)
            if text and (problem := _unknown(text, known)):
                yield ("ports", i, key), problem
            for name in ((symbols_of(text) & operation.counted) - gathered_by(text)) if text else ():
                if missing := _unlaid(operation.port[name], port):
                    yield ("ports", i, key), f"'{text}': {name} has an axis '{missing}' that {port.name} has not"
        if port.optional and not port.feature:
            yield ("ports", i, "optional"), "an optional port needs a 'feature', which is off where it is left out"
    for name, symbol in operation.types.items():
        if symbol.default not in symbol.choices or set(symbol.choices) - set(TENSOR_TYPES):
            yield ("types", name), f"'default' is one of 'of', and these are types: {', '.join(TENSOR_TYPES)}"


def _unlaid(port: Tensor, described: Tensor) -> str:
    """An axis of a port of whole numbers that another port does not have."""
    named = described.axes or tuple(str(size) for size in described.shape)
    own = port.axes or tuple(str(size) for size in port.shape)
    return next((name for name in own if name not in named), "")


def _rules(operation: Operation) -> Iterator[Problem]:
    """Refusal rules break something, in ways that fit together."""
    for i, rule in enumerate(operation.refusals):
        lists: list[list[Any]] = [
            *rule.attributes.values(),
            *rule.shapes.values(),
            *rule.types.values(),
            *rule.values.values(),
        ]
        if not lists and not rule.absent:
            yield ("refusals", i), "a rule breaks something: attributes, shapes, types, values or absent"
        if len({len(ways) for ways in lists}) > 1 or not all(lists):
            yield ("refusals", i), "what is spoilt together needs lists of the same length"


def _values(operation: Operation) -> Iterator[Problem]:
    """Defaults are of their type and in range, and every expression has a value for them."""
    known: dict[str, Any] = {}
    for name, attribute in operation.attributes.items():
        here = ("attributes", name)
        try:
            default = evaluate(attribute.default, known)
        except ExpressionError as error:
            yield (*here, "default"), str(error)
            return
        if not attribute.fits(default):
            yield (*here, "default"), f"the default {default!r} of '{name}' is not of the type {attribute.type}"
            return
        if (attribute.least is None) != (attribute.type == "boolean"):
            yield (
                here,
                f"'{name}' needs 'least', the smallest value" if attribute.least is None else "'least' is for numbers",
            )
            return
        if attribute.least is not None and not default >= attribute.least:
            yield (*here, "default"), f"the default {default} of '{name}' is below its least value {attribute.least}"
            return
        known[attribute.symbol] = int(default) if isinstance(default, bool) else default
    if operation.block:
        block = operation.attributes[operation.block]
        if block.type != "integer" or block.least is None or block.least < 1:
            yield ("block",), f"'{operation.block}' is a block size: an integer of at least 1"
    yield from _sizes(operation, known)


def _sizes(operation: Operation, known: dict[str, Any]) -> Iterator[Problem]:
    """Dimensions, symbols and totals in turn, for the default attributes and one sequence."""
    later: list[str] = []

    def value(keys: Sequence[Any], text: Number, symbols: Mapping[str, Any]) -> Iterator[Any]:
        try:
            yield evaluate(text, symbols)
        except ExpressionError as error:
            failed.append((keys, str(error)))

    failed: list[Problem] = []
    for name, dim in operation.dims.items():
        if dim.follows:
            later.append(name)
            continue
        for size in value(("dims", name, "default"), dim.default, known):
            known[name] = size
    if operation.history:
        row = dict(known)
        for past in value(("history",), operation.history, {**known, "n": 0}):
            row[operation.length] = past + (known.get(operation.tokens, 0) if operation.tokens else 0)
            for name, symbol in operation.symbols.items():
                for number in value(("symbols", name, "is"), symbol.expression, row):
                    row[name] = number
        known |= {name: [row[name]] for name in (operation.length, *operation.symbols) if name in row}
    for name in later:
        for size in value(("dims", name, "default"), operation.dims[name].default, known):
            known[name] = size
    for name, total in operation.totals.items():
        for number in value(("totals", name, "is"), total.expression, known):
            known[name] = number
    yield from failed
