"""The kill matrix: which case shows which fault to be wrong, and whether any variant is wrongly failed.

The fast form stops at the first case that kills a fault; the whole form runs every case on every entry, and then holds
what the cases claim against what they do.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import msgspec

from conformance.backends.plugin.process import Limits
from conformance.backends.protocol import Backend
from conformance.errors import BackendError, Lost
from conformance.faults import catalogue, layers
from conformance.faults.entry import ELEMENT_TYPES, Entry, Kind
from conformance.faults.trial import LARGE, Trial, killed
from conformance.judging.engine import Outcome
from conformance.library.reading import Library
from conformance.library.selection import size
from conformance.running.place import Isolation, Ready, place
from conformance.spec.case import Case
from conformance.spec.operation import Operation

Item = TypeVar("Item")

LIBRARY = "library"
PROVEN = 40  # cases with the most kills so far that are tried early
SHARES = 12  # tasks that the work is cut into, for each worker


class Alarm(msgspec.Struct, frozen=True):
    """A conforming variant that a case fails."""

    case: str
    status: str
    where: str
    reason: str


@dataclass(frozen=True)
class Claim:
    """`kills` of a written case: the fault that one of its cases kills, they say."""

    place: str
    fault: str


@dataclass
class Matrix:
    """What came out. `kills` holds the cases that kill a fault, in the library's order, or one in the fast form."""

    library: Library
    whole: bool
    faults: tuple[Entry, ...]
    variants: tuple[Entry, ...]
    kills: dict[str, tuple[Case, ...]] = field(default_factory=dict)
    alarms: dict[str, tuple[Alarm, ...]] = field(default_factory=dict)
    headroom: dict[str, dict[str, float]] = field(default_factory=dict)  # of a variant, by element type
    layers: dict[str, frozenset[str]] = field(default_factory=dict)  # layer to the faults that it kills alone

    @property
    def survivors(self) -> list[Entry]:
        """Faults that no case of the library kills."""
        return [entry for entry in self.faults if not self.kills.get(entry.id)]

    @property
    def false_alarms(self) -> list[Entry]:
        """Variants that a case fails."""
        return [entry for entry in self.variants if self.alarms.get(entry.id)]

    @property
    def wrong_claims(self) -> list[Claim]:
        """Claims about the faults at hand that do not hold, and such about faults that there are not."""
        known = {entry.id for entry in catalogue.faults(self.library.operation.operation)}
        at_hand = {entry.id for entry in self.faults}
        kept = {(case.place, fault) for fault, cases in self.kills.items() for case in cases}
        return [
            claim
            for claim in claims(self.library.cases)
            if claim.fault not in known
            or (self.whole and claim.fault in at_hand and (claim.place, claim.fault) not in kept)
        ]

    def not_killed_in(self, fault: Entry) -> list[str]:
        """Element types in which the fault can show, and no case of them kills it; of use in the whole form."""
        killing = {case.element_type for case in self.kills.get(fault.id, ())}
        return [T for T in fault.element_types if T not in killing]

    @property
    def candidates(self) -> list[str]:
        """Places of written cases that kill nothing that others do not kill, nor cite a clause that others do not."""
        killing: dict[str, set[str]] = {}
        for fault, cases in self.kills.items():
            killing[fault] = {case.place for case in cases}
        citing: dict[str, set[str]] = {}
        for case in self.library.cases:
            for clause in case.clauses:
                citing.setdefault(clause, set()).add(case.place)
        needed = {next(iter(places)) for group in (killing, citing) for places in group.values() if len(places) == 1}
        return [place for place in dict.fromkeys(case.place for case in self.library.cases) if place not in needed]

    @property
    def idle(self) -> list[str]:
        """Places of written cases that kill no fault at all."""
        busy = {case.place for cases in self.kills.values() for case in cases}
        return [place for place in dict.fromkeys(case.place for case in self.library.cases) if place not in busy]

    @property
    def good(self) -> bool:
        """No survivor, no false alarm, no claim that does not hold."""
        return not (self.survivors or self.false_alarms or self.wrong_claims)


def claims(cases: Iterable[Case]) -> list[Claim]:
    """What the written cases say they kill."""
    return list(dict.fromkeys(Claim(case.place, fault) for case in cases for fault in case.kills))


# The work


class Task(msgspec.Struct, frozen=True):
    """A share of the work. Faults are run until the first kill, or by every case; variants by every case."""

    kind: str  # "first" | "all" | "variants" | a layer
    entries: tuple[str, ...]
    cases: tuple[int, ...] = ()  # numbers of the cases in the library
    again: bool = False  # because its process was lost


class Found(msgspec.Struct):
    """What a share of the work came to."""

    task: Task
    kills: dict[str, list[int]] = {}  # fault to numbers of cases
    alarms: dict[str, list[Alarm]] = {}
    headroom: dict[str, dict[str, float]] = {}
    layer: set[str] = set()  # faults that a layer kills


def compute(
    library: Library,
    entries: Sequence[Entry],
    *,
    whole: bool = False,
    jobs: int = 1,
    scheduler: str = "",
    advance: Callable[[int, int], None] | None = None,
) -> Matrix:
    """Run the entries. `advance` is told how many of how many shares are done."""
    faults = tuple(entry for entry in entries if entry.kind == "fault")
    variants = tuple(entry for entry in entries if entry.kind == "variant")
    matrix = Matrix(library, whole, faults, variants)
    kills: dict[str, list[int]] = {entry.id: [] for entry in faults}
    alarms: dict[str, list[Alarm]] = {entry.id: [] for entry in variants}
    by_layer: dict[str, set[str]] = {name: set() for name in layers.LAYERS} if whole else {}
    tasks = list(shares(library, faults, variants, whole=whole, jobs=jobs))
    for done, found in enumerate(_done(library, tasks, Isolation(jobs=jobs, scheduler=scheduler)), 1):
        for id, numbers in found.kills.items():
            kills[id] += numbers
        for id, some in found.alarms.items():
            alarms[id] += some
        for id, ratios in found.headroom.items():
            mine = matrix.headroom.setdefault(id, {})
            for element_type, ratio in ratios.items():
                mine[element_type] = max(mine.get(element_type, 0.0), ratio)
        if found.task.kind in by_layer:
            by_layer[found.task.kind] |= found.layer
        if advance:
            advance(done, len(tasks))
    matrix.kills = {id: tuple(library.cases[number] for number in sorted(numbers)) for id, numbers in kills.items()}
    matrix.alarms = {id: tuple(some) for id, some in alarms.items() if some}
    matrix.layers = {LIBRARY: frozenset(id for id, numbers in kills.items() if numbers)}
    matrix.layers |= {name: frozenset(ids) for name, ids in by_layer.items()}
    return matrix


def shares(
    library: Library, faults: Sequence[Entry], variants: Sequence[Entry], *, whole: bool, jobs: int
) -> Iterator[Task]:
    """The work in shares, those that take long first."""
    count = SHARES * max(jobs, 1)
    numbers = sorted(range(len(library.cases)), key=lambda i: (-size(library.cases[i], library.operation), i))
    all_faults, all_variants = tuple(f.id for f in faults), tuple(v.id for v in variants)
    if all_variants:
        for cases in _dealt(numbers, count):
            yield Task("variants-in-all-types" if whole else "variants", all_variants, cases)
    if whole and all_faults:
        for cases in _dealt(numbers, count):
            yield Task("all", all_faults, cases)
        for layer in layers.LAYERS:
            for some in _dealt(all_faults, count):
                yield Task(layer, some)
    elif all_faults:
        for some in _dealt(all_faults, count):
            yield Task("first", some)


def _dealt(items: Sequence[Item], count: int) -> list[tuple[Item, ...]]:
    """The items dealt like cards to at most `count` hands."""
    return [hand for hand in (tuple(items[i::count]) for i in range(min(count, len(items)))) if hand]


class Worker:
    """Does shares of the work in one process."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.operation: Operation = library.operation
        self.trial = Trial(library.operation)
        self.proven: Counter[int] = Counter()  # kills of a case so far
        self.large = [size(case, library.operation) >= LARGE for case in library.cases]

    def do(self, task: Task) -> Found:
        if task.kind == "first":
            return Found(task, kills={id: self._first(self._entry("fault", id)) for id in task.entries})
        if task.kind == "all":
            return self._all(task)
        if task.kind.startswith("variants"):
            return self._variants(task)
        faults = [self._entry("fault", id) for id in task.entries]
        return Found(task, layer=layers.LAYERS[task.kind](self.library, faults))

    def _entry(self, kind: Kind, id: str) -> Entry:
        return catalogue.find(kind, id, self.operation.operation)

    def _first(self, fault: Entry) -> list[int]:
        cases = self.library.cases
        order = sorted(range(len(cases)), key=lambda i: promise(fault, cases[i], large=self.large[i]))
        claimed = [number for number in order if fault.id in cases[number].kills]
        proven = [number for number, _ in self.proven.most_common(PROVEN)]
        for number in dict.fromkeys([*claimed, *proven, *order]):
            if killed(self.trial.run(fault, cases[number]), fault, self.trial.operation):
                self.proven[number] += 1
                return [number]
        return []

    def _all(self, task: Task) -> Found:
        found = Found(task)
        faults = [self._entry("fault", id) for id in task.entries]
        for number in task.cases:
            case = self.library.cases[number]
            for fault in faults:
                if killed(self.trial.run(fault, case), fault, self.trial.operation):
                    found.kills.setdefault(fault.id, []).append(number)
        return found

    def _variants(self, task: Task) -> Found:
        found = Found(task)
        variants = [self._entry("variant", id) for id in task.entries]
        types: dict[str, set[str]] = {}
        for case in self.library.cases:
            types.setdefault(case.place, set()).add(case.element_type)
        for number in task.cases:
            case = self.library.cases[number]
            for one in in_all_types(case, types[case.place]) if task.kind == "variants-in-all-types" else (case,):
                for variant in variants:
                    self._note(found, variant, one, self.trial.run(variant, one))
        return found

    def _note(self, found: Found, variant: Entry, case: Case, outcome: Outcome) -> None:
        if killed(outcome, variant, self.trial.operation):
            alarm = Alarm(case.id, outcome.status, str(outcome.where), outcome.reason)
            found.alarms.setdefault(variant.id, []).append(alarm)
        mine = found.headroom.setdefault(variant.id, {})
        for ratio in outcome.headroom.values():
            mine[case.element_type] = max(mine.get(case.element_type, 0.0), ratio)


def promise(fault: Entry, case: Case, *, large: bool) -> tuple[bool, bool, bool, int]:
    """Sorts cases by how soon they promise to kill: in a type the fault shows in, small, of its clauses; mixed."""
    return (
        case.element_type not in fault.element_types,
        large,
        not set(case.clauses) & set(fault.clauses),
        zlib.crc32(case.id.encode()),
    )


def in_all_types(case: Case, there: Iterable[str] = ()) -> tuple[Case, ...]:
    """The case, and the same in the element types that are not `there`, where nothing in it is written for one type."""
    if case.values or case.change or case.refusal:
        return (case,)
    missing = [T for T in ELEMENT_TYPES if T not in {case.element_type, *there}]
    return (case, *(msgspec.structs.replace(case, id=f"{case.id} in {T}", element_type=T) for T in missing))


# Where it is done


class Packed(msgspec.Struct, frozen=True):
    """A library on its way to a process."""

    operation: Operation
    cases: tuple[Case, ...]
    written: int


class ShareWork(msgspec.Struct, frozen=True):
    """Shares of a matrix: one `Found` for each."""

    library: Packed

    unit: ClassVar[Any] = Task
    result: ClassVar[Any] = Found
    about: ClassVar[str] = "the kill matrix"

    @contextmanager
    def open(self) -> Iterator[ShareBench]:
        yield ShareBench(Worker(Library(self.library.operation, self.library.cases, self.library.written)))

    def limits(self) -> Limits:
        return Limits(seconds=float("inf"), answer=1 << 30)

    def again(self, unit: Task, lost: Lost, said: str, before: str) -> Task | None:
        return None if unit.again else msgspec.structs.replace(unit, again=True)

    def given_up(self, unit: Task, lost: Lost, said: str) -> Found:
        raise BackendError(f"a process of the kill matrix is lost twice, in {self.name(unit)}: {lost}\n{said}".rstrip())

    def urgent(self, result: Found) -> bool:
        return False

    def name(self, unit: Task) -> str:
        return f"a share of '{unit.kind}' with {unit.entries[0]}"


@dataclass(frozen=True)
class ShareBench:
    """A worker as a place needs it."""

    worker: Worker
    ready: Ready = field(default_factory=Ready)
    backend: Backend | None = None

    def do(self, unit: Task, give: Callable[[Found], bool]) -> None:
        give(self.worker.do(unit))


def _done(library: Library, tasks: Sequence[Task], isolation: Isolation) -> Iterator[Found]:
    """What the shares come to, as they are done."""
    work = ShareWork(Packed(library.operation, library.cases, library.written))
    with closing(place(work, isolation)) as there:
        yield from there.results(tasks)


def as_plain(matrix: Matrix) -> Mapping[str, object]:
    """The matrix as plain data, for JSON."""
    library = matrix.library
    return {
        "operation": library.operation.operation,
        "library": library.digest,
        "cases": len(library.cases),
        "form": "whole" if matrix.whole else "fast",
        "good": matrix.good,
        "faults": [_plain_fault(matrix, entry) for entry in matrix.faults],
        "variants": [
            {
                "id": entry.id,
                "says": entry.says,
                "conformant": entry.id not in matrix.alarms,
                "headroom": matrix.headroom.get(entry.id, {}),
                "alarms": [msgspec.to_builtins(alarm) for alarm in matrix.alarms.get(entry.id, ())],
            }
            for entry in matrix.variants
        ],
        "layers": {name: len(ids) for name, ids in matrix.layers.items()},
        "survivors": [entry.id for entry in matrix.survivors],
        "false_alarms": [entry.id for entry in matrix.false_alarms],
        "wrong_claims": [{"place": claim.place, "fault": claim.fault} for claim in matrix.wrong_claims],
        "candidates": matrix.candidates if matrix.whole else None,
        "idle": matrix.idle if matrix.whole else None,
    }


def _plain_fault(matrix: Matrix, entry: Entry) -> Mapping[str, object]:
    kills = matrix.kills.get(entry.id, ())
    return {
        "id": entry.id,
        "says": entry.says,
        "topic": entry.topic,
        "clauses": entry.clauses,
        "reports": entry.reports,
        "reading": entry.reading,
        "element_types": entry.element_types,
        "kills": len(kills) if matrix.whole else None,
        "first": kills[0].id if kills else None,
        "killed_in": [T for T in ELEMENT_TYPES if any(case.element_type == T for case in kills)],
        "not_killed_in": matrix.not_killed_in(entry) if matrix.whole else None,
        "layers": [name for name, ids in matrix.layers.items() if entry.id in ids],
    }
