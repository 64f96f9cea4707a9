"""A failing case of a log as a file of the library, with where it was found, read back before it is given out."""

from __future__ import annotations

import re
import tempfile
import textwrap
from pathlib import Path

import msgspec

from conformance.errors import LibraryError, UsageError
from conformance.library.lint import SENTENCE, problems
from conformance.library.reading import Library, load_file
from conformance.library.writing import as_yaml
from conformance.record.recorded import Recorded
from conformance.spec.case import Case
from conformance.spec.operation import Operation

ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
WIDTH = 118


def promote(found: Recorded, library: Library, folder: Path, id: str = "", says: str = "") -> tuple[str, str]:
    """The text of a library file with the case, and the case's id in that folder.

    Without `id` it is named after clause, output and digest; without `says` it says what the clause says. Raises
    `UsageError` when the library has the case already, or could not read or would not accept the file.
    """
    case = renamed(found, library.operation, folder, id, says)
    for other in library.cases:
        if other.digest == case.digest:
            raise UsageError(f"the library has this case already: {other.id} ({other.place})")
        if other.id == case.id:
            raise UsageError(f"the library has a case '{case.id}' already ({other.place}); give another --id")
    text = "\n".join(
        [
            *(f"# {line}" for line in provenance(found)),
            "cases:",
            textwrap.indent(as_yaml(case, library.operation), "  "),
            "",
        ]
    )
    _check(text, case, library)
    return text, case.id


def renamed(found: Recorded, operation: Operation, folder: Path, id: str, says: str) -> Case:
    """The case under its new name, and with a sentence."""
    case, clause = found.case, found.outcome.clause or found.case.clauses[0]
    name = id or slug(f"{clause} {found.outcome.worst.output if found.outcome.worst else ''} {case.digest}")
    if not ID.fullmatch(name):
        raise UsageError(f"--id {name}: an id is of small letters, digits and single hyphens, such as late-first-block")
    topic = folder.resolve().name.lstrip("0123456789-")
    if not topic:
        raise UsageError(f"--to {folder}: the folder's name is the topic of its cases, and this one is only a number")
    sentence = says or first_sentence(operation.clause[clause].says)
    return msgspec.structs.replace(case, id=f"{topic}/{name}", says=sentence, kills=(), place="")


def first_sentence(text: str) -> str:
    """What a clause says, as one sentence for a case: its first one, or as much of it as there is room for."""
    sentence = re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".!?")
    if len(sentence) >= SENTENCE:
        # Up to a pause, where there is one, and else up to a word.
        room = sentence[: SENTENCE - 1]
        cut = max(room.rfind(mark) for mark in (";", ":", ","))
        sentence = room[: cut if cut > SENTENCE // 3 else room.rfind(" ")]
    return f"{sentence.rstrip(' ,;:')}."


def slug(text: str) -> str:
    """Text as an id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def provenance(found: Recorded) -> list[str]:
    """Where a case is from, in lines for people."""
    head, outcome = found.log.header, found.outcome
    seed = f", seed {head.seed}" if head.seed is not None else ""
    example = found.log.results[found.case.id].example
    origin = f", shrunk from {head.filters['shrink']}" if "shrink" in head.filters else ""
    facts = [
        f"Found on {found.source}, by qsa-conformance {head.suite} with library {head.library}{seed}"
        + (f", example {example}." if example else "."),
        f"There it was {found.case.id}{origin}, digest {found.case.digest}. Signature: {found.signature}.",
        f"{outcome.where}: {outcome.reason}",
    ]
    if head.readings:
        facts.append("Readings: " + ", ".join(f"{name}={choice}" for name, choice in head.readings.items()))
    return [line for fact in facts for line in textwrap.wrap(" ".join(fact.split()), WIDTH - 2)]


def _check(text: str, case: Case, library: Library) -> None:
    """The file must give the case again, and break no rule of the library."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / case.topic
        folder.mkdir()
        path = folder / "case.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            cases, _ = load_file(path, library.operation, "the case as written")
        except LibraryError as error:
            raise UsageError(f"{case.id} cannot be written as a case of the library: {error}") from None
    (again,) = cases
    if again.digest != case.digest:
        raise UsageError(f"{case.id} cannot be written as a case of the library: read back, it is another case")
    alone = Library(library.operation, (again,), 1)
    broken = [problem for problem in problems(alone) if problem.startswith(f"{again.place}: ")]
    if broken:
        rule = broken[0].removeprefix(f"{again.place}: {again.id}: ")
        raise UsageError(f"{case.id} would break a rule of the library: {rule}")
