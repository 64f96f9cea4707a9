"""Scripts that show a failure: short, alone with NumPy, right about right functions and wrong about wrong ones."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import types
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest
from fakes import Honest, Jittery, ModifiesInputs, NeverRefuses, Raises, RefusesAsShape, ReusesOutputs

from conformance.backends.connect import connect
from conformance.backends.protocol import OperationConfig
from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
from conformance.errors import UsageError
from conformance.failures.calls import made
from conformance.failures.reproduce import LINES, function_name, script
from conformance.faults import catalogue
from conformance.faults.layers import examples
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind
from conformance.library.reading import load_library
from conformance.record.log import CaseRecord, Log, ResultRecord
from conformance.record.recorded import Recorded
from conformance.running.run import Plan, header
from conformance.spec.case import Change, Refusal

ROOT = Path(__file__).parents[2]
BF16 = np.dtype(ml_dtypes.bfloat16)
replace = msgspec.structs.replace

PLAIN = "by-hand/blk-many-completed[element_type=f32]"

# Runs a script as if this project and ml_dtypes were not installed.
ALONE = """
import runpy, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("conformance", "reference", "ml_dtypes", "msgspec", "yaml", "click"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Blocked())
runpy.run_path(sys.argv[1], run_name="__main__")
"""

# Functions to be judged. The arithmetic is the reference's, loaded from its file under another name.
FUNCTIONS = """
import importlib.util
import sys

import numpy as np

spec = importlib.util.spec_from_file_location("arithmetic", {reference!r})
arithmetic = importlib.util.module_from_spec(spec)
sys.modules["arithmetic"] = arithmetic
spec.loader.exec_module(arithmetic)


def wide(x):
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def narrow(x):
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def run(operation, inputs, key_block_size, epsilon):
    bf16 = inputs["raw_index_keys"].dtype == np.uint16
    outputs = operation(key_block_size, epsilon).run({{name: wide(x) for name, x in inputs.items()}})
    return tuple(narrow(x) if bf16 else x for x in outputs.values())


def right(*, key_block_size, epsilon, **inputs):
    return run(arithmetic.QSAPrepare, inputs, key_block_size, epsilon)


class Late(arithmetic.QSAPrepare):
    def partition(self, call):
        from dataclasses import replace

        right = super().partition(call)
        return replace(right, c_after=np.maximum(right.c, (right.S - 1) // self.r))


def late(*, key_block_size, epsilon, **inputs):
    return run(Late, inputs, key_block_size, epsilon)


class Outside(arithmetic.QSAPrepare):
    def root(self, square):
        return np.sqrt(square) + self.epsilon


def outside(*, key_block_size, epsilon, **inputs):
    return run(Outside, inputs, key_block_size, epsilon)


class Forgotten(arithmetic.QSAPrepare):
    def new_blocks(self, call):
        n, b = super().new_blocks(call)
        computed = (b + 1) * self.r < call.lengths.S[n]
        return n[computed], b[computed]


def forgotten(*, key_block_size, epsilon, **inputs):
    return run(Forgotten, inputs, key_block_size, epsilon)


def refuses(*, key_block_size, epsilon, **inputs):
    raise ValueError("no")
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    path = tmp_path_factory.mktemp("user") / "functions.py"
    path.write_text(FUNCTIONS.format(reference=str(ROOT / "reference" / "qsa_prepare" / "operation.py")))
    return path


@pytest.fixture(scope="module")
def generated(operation):
    return examples(operation.operation, 60, 3)


@pytest.fixture
def recorded(library, operation):
    """Run a case on a backend, as a log would have it."""

    def record(case, backend, status=("fail", "error", "quality-warning")):
        info = backend.describe()
        outcome = Engine(operation, backend, info=info).run(case)
        assert outcome.status in status, outcome
        log = Log(
            "a.jsonl",
            header(Plan("py:mine.py:Mine", (case,), False), library, info),
            {case.id: CaseRecord(outcome.digest, "", case)},
            {case.id: ResultRecord(outcome)},
            (),
            None,
        )
        return Recorded(log, case, outcome)

    return record


def alone(text: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of a script in an empty environment."""
    path = folder / "script.py"
    path.write_text(text)
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH", "HOME")}
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, path], env=environment, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def here(text: str, backend, case) -> tuple[int, str]:
    """The same in this process, with a backend in the place of the function."""
    sessions = {}

    def call(**given):
        attributes = {name: given.pop(name) for name in case.attributes}
        inputs = {name: array.view(BF16) if array.dtype == np.uint16 else array for name, array in given.items()}
        off = frozenset({"norm"} if inputs["k_norm_weight"].shape == (0,) else ())
        off |= {"rope"} if inputs["past_incomplete_rope"].shape == (0,) and not case.refusal else set()
        lengths = "i32" if inputs["key_length"].dtype == np.int32 else "i64"
        element_type = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[inputs["raw_index_keys"].dtype.name]
        config = OperationConfig(case.operation, attributes, element_type, lengths, off)
        session = sessions.setdefault(repr(config), None) or backend.prepare(config)
        sessions[repr(config)] = session
        got = session.run(inputs)
        return {name: array.view(np.uint16) if array.dtype == BF16 else array for name, array in got.items()}

    return called(text, call)


def find(cases, **wanted):
    """The first case with these properties."""
    for case in cases:
        plain = {
            "type": case.element_type,
            "streams": bool(case.streams),
            "off": tuple(sorted(case.disabled)),
            "refusal": bool(case.refusal),
            "topic": case.topic,
        }
        if all(plain[name] == value for name, value in wanted.items()) and not case.change and case.dims["N"]:
            yield case


def test_the_function_is_named_after_the_operation(operation):
    assert function_name(operation) == "qsa_prepare"


# Alone, in a process that has NumPy and nothing of this project


@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("fault", "wrong"), [("F02", "late"), ("F23", "outside")])
def test_right_and_wrong_alone(type_, fault, wrong, recorded, operation, library, generated, functions, tmp_path):
    backend = catalogue.backend("fault", fault)
    pool = [*generated, *(case for case in library.cases if case.topic == "normalization")]
    case = next(c for c in find(pool, type=type_, refusal=False) if Engine(operation, backend).run(c).status == "fail")
    found = recorded(case, backend)
    for name, code, said in (("right", 0, "right"), (wrong, 1, "wrong: ")):
        text = script(found, operation, f"{functions}:{name}")
        assert len(text.splitlines()) <= LINES
        got, printed = alone(text, tmp_path)
        assert (got, printed.startswith(said)) == (code, True), printed
    if found.outcome.worst:
        name, index = found.outcome.worst.output, ", ".join(map(str, found.outcome.worst.index))
        assert f"{name}[{index}] is " in printed


@pytest.mark.parametrize("off", [("norm", "rope"), ("norm",), ("rope",)])
def test_disabled_features_alone(off, recorded, operation, library, functions, tmp_path):
    backend = catalogue.backend("fault", "F02z")
    cases = find(library.cases, off=off, refusal=False)
    case = next(c for c in cases if Engine(operation, backend).run(c).status == "fail")
    found = recorded(case, backend)
    assert alone(script(found, operation, f"{functions}:right"), tmp_path)[0] == 0
    assert alone(script(found, operation, f"{functions}:forgotten"), tmp_path)[0] == 1


def test_a_large_case_is_drawn_again_and_judged_in_places(recorded, operation, library, functions, tmp_path):
    case = library.find("limits/more-than-65536-new-blocks[element_type=bf16]")
    found = recorded(case, catalogue.backend("fault", "F02z"))
    text = script(found, operation, f"{functions}:right")
    assert len(text) < 30_000 and len(text.splitlines()) <= LINES
    assert "bell(0x" in text and "unit(0x" in text
    assert alone(text, tmp_path) == (0, "right\n")
    code, printed = alone(script(found, operation, f"{functions}:forgotten"), tmp_path)
    assert code == 1 and "block_index_keys[" in printed


def test_a_function_is_put_into_its_place(recorded, operation, generated, functions, tmp_path):
    case = next(find(generated, type="f32", refusal=False, streams=False))
    text = script(recorded(case, Raises()), operation)
    assert "PUT YOUR FUNCTION HERE" in text
    code, printed = alone(text, tmp_path)
    assert code == 2 and "put your function into this script" in printed
    stub = next(line for line in text.splitlines() if "sys.exit(print(" in line)
    call = f'sys.path.insert(0, {str(functions.parent)!r}); return __import__("functions").right(**locals())'
    own = text.replace(stub, f"    {call}")
    assert alone(own, tmp_path) == (0, "right\n")


@pytest.mark.parametrize("index", range(3))
def test_refusals_alone(index, recorded, operation, generated, functions, tmp_path):
    # A value refusal that is not made is a warning, and about its kind: no script shows it.
    refused = [
        case for case in generated if case.refusal and Engine(operation, NeverRefuses()).run(case).status == "fail"
    ]
    case = refused[index]
    found = recorded(case, NeverRefuses())
    assert alone(script(found, operation, f"{functions}:refuses"), tmp_path)[0] == 0
    if case.refusal.kind != "attribute" and not any(change.type for change in case.change.values()):
        return
    code, printed = alone(script(found, operation, f"{functions}:right"), tmp_path)
    assert code in (0, 1) and ("must be refused" in printed) == (code == 1)


# In this process, in all the ways that a case can fail


WAYS = {
    "F01": "a stream or a split: the state is handed on wrongly",
    "F82c": "sizes of an earlier call are used again",
    "F85n": "don't-care elements change the bits",
    "F86": "an input is modified",
    "F44": "the width that is not rotated",
    "F61": "sequences of a batch",
}


@pytest.mark.parametrize("fault", WAYS)
@pytest.mark.parametrize("type_", ["f32", "bf16"])
def test_scripts_of_all_kinds(fault, type_, recorded, operation, generated):
    cases = find(generated, type=type_, refusal=False)
    backend = catalogue.backend("fault", fault)
    for case in cases:
        if Engine(operation, catalogue.backend("fault", fault)).run(case).status in ("fail", "error"):
            break
    else:
        pytest.skip("nothing drawn in this type shows it")
    text = script(recorded(case, backend), operation, "user_function:call")
    assert len(script(recorded(case, backend), operation).splitlines()) <= LINES
    assert here(text, NumPyReference(), case) == (0, "right\n")
    code, printed = here(text, catalogue.backend("fault", fault), case)
    assert code == 1 and printed.startswith("wrong: "), printed


@pytest.mark.parametrize(
    ("fault", "id", "kind"),
    [
        ("F85t", "mistakes/served-after-a-refusal[disabled=none,element_type=f32]", Kind.DIFFERS),
        ("F39h", "memory/prepared-one-after-the-other[element_type=bf16,disabled=rope,length_type=i64]", Kind.VALUE),
    ],
)
def test_what_shows_after_a_refused_call_and_in_calls_of_other_types(fault, id, kind, recorded, operation, library):
    case, backend = library.find(id), catalogue.backend("fault", fault)
    found = recorded(case, backend)
    assert found.outcome.place.at == "audit" and found.outcome.kind is kind
    text = script(found, operation, "user_function:call")
    assert ("except Exception" in text) == ("refus" in id)
    assert here(text, NumPyReference(), case) == (0, "right\n")
    code, printed = here(text, catalogue.backend("fault", fault), case)
    assert code == 1 and printed.startswith("wrong: "), printed


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        (Jittery, "call 2 returns different bits than the identical call before it"),
        (ModifiesInputs, "call 1 modifies its input raw_index_keys"),
        (ReusesOutputs, " changed later"),
    ],
)
def test_what_shows_between_calls(backend, says, recorded, operation, library):
    case = replace(library.find(PLAIN), streams=())
    if backend is ReusesOutputs:
        case = next(c for c in find(library.cases, type="f32") if c.audits == ("interleave",) and not c.relations)
    ReusesOutputs.session.buffers.clear()
    found = recorded(case, backend())
    assert found.outcome.clause in ("PLG-1", "PLG-2")
    text = script(found, operation, "user_function:call")
    assert len(text.splitlines()) <= LINES
    assert here(text, Honest(), case) == (0, "right\n")
    ReusesOutputs.session.buffers.clear()
    code, printed = here(text, backend(), case)
    assert code == 1 and says in printed


def test_a_call_of_a_stream_is_shown_with_the_calls_before(recorded, operation, library):
    backend = catalogue.backend("fault", "F01")
    case = next(
        c for c in find(library.cases, type="f32", streams=True, refusal=False, topic="streams")
        if Engine(operation, backend).run(c).place.at == "stream"
    )  # fmt: skip
    found = recorded(case, backend)
    text = script(found, operation, "user_function:call")
    assert str(found.outcome.where) in text
    assert here(text, NumPyReference(), case)[0] == 0
    assert here(text, backend, case)[0] == 1


def test_the_calls_of_a_case_are_those_of_the_engine(operation, generated):
    case = next(find(generated, refusal=False, streams=True))
    calls = made(case, operation, {}, NumPyReference().describe())
    assert calls[0].where.at == "single" and calls[0].verdicts == 0
    assert [call.where for call in calls if call.where.at == "stream"]
    assert calls[-1].where.at == "repeated"
    assert [call.verdicts for call in calls] == sorted(call.verdicts for call in calls)


def test_what_a_function_cannot_show(recorded, operation, library, generated):
    refusal = next(c for c in generated if c.refusal and c.refusal.kind != "shape" and c.refusal.phase == "call")
    with pytest.raises(UsageError, match="a function has no way to say"):
        script(recorded(refusal, RefusesAsShape()), operation)
    strided = next(case for case in library.cases if "strided" in case.audits)
    with pytest.raises(UsageError, match="in no call of its own"):
        script(recorded(strided, catalogue.backend("fault", "F81")), operation)


def test_every_attribute_and_type_can_be_written(recorded, operation, generated):
    base = next(find(generated, type="bf16", refusal=False))
    for attributes, change, due in (
        ({"epsilon": float("nan")}, {}, Refusal(kind="attribute", phase="prepare", names=("epsilon",))),
        ({}, {"key_length": Change(type="u8")}, Refusal(kind="type", phase="call", names=("key_length",))),
        ({}, {"raw_index_keys": Change(type="other")}, Refusal(kind="type", phase="call", names=("raw_index_keys",))),
    ):
        case = replace(
            base,
            attributes={**base.attributes, **attributes},
            change=change,
            refusal=due,
            streams=(),
            relations=(),
            audits=(),
        )
        text = script(recorded(case, NeverRefuses()), operation, "user_function:call")
        code, printed = here(text, NumPyReference(), case)
        assert code == 0 and "Rejected" in printed


# On the command line


class TestCommand:
    def test_writes_a_file_and_overwrites_none(self, cli, library, operation, functions, tmp_path):
        case = library.find(PLAIN)
        assert cli("run", "-b", "fault:F02z", "--case", case.id, "-o", tmp_path)[0] == 1
        log, path = tmp_path / "fault_F02z.jsonl", tmp_path / "show.py"
        code, out, err = cli("repro", log, case.id, "--function", f"{functions}:forgotten", "-o", path)
        assert (code, err) == (0, "") and "lines; run it with: python" in out
        assert alone(path.read_text(), tmp_path)[0] == 1
        code, _, err = cli("repro", log, case.id, "-o", path)
        assert code == 2 and "is there already" in err
        code, out, _ = cli("repro", log, case.id)
        assert code == 0 and "PUT YOUR FUNCTION HERE" in out
        code, _, err = cli("repro", log, case.id, "--function", "no function")
        assert code == 2 and "write MODULE:NAME or FILE.py:NAME" in err
        code, _, err = cli("repro", log, case.id, "-o", tmp_path / "none" / "show.py")
        assert code == 2 and "cannot be written" in err
        assert cli("repro", log, "by-hand/unheard-of")[0] == 2


class TestChoices:
    """Scripts of an operation whose outputs are choices."""

    @pytest.mark.parametrize(
        ("fault", "id"),
        [
            ("I170", "selection/entries-after-the-count[r=1,Hs=1,element_type=f32]"),  # one that is no choice
            ("I49", "separation/all-relations-of-other-numbers[element_type=f32,disabled=weights]"),
        ],
    )
    def test_right_and_wrong(self, fault, id, recorded_choice):
        text, call, right = recorded_choice(fault, id)
        assert len(text.splitlines()) <= LINES
        code, printed = called(text, right)
        assert (code, printed) == (0, "right\n")
        code, printed = called(text, call)
        assert code == 1 and printed.startswith("wrong: "), printed


@pytest.fixture
def recorded_choice():
    """The script of a case of the indexer on a fault, the fault as a function, and the reference as one."""
    indexer = load_library("sparse_attention_indexer")

    def record(fault, id):
        entry = catalogue.find("fault", fault, indexer.operation.operation)
        case, backend = indexer.find(id), catalogue.backend_of(entry)
        info = backend.describe()
        outcome = Engine(indexer.operation, backend, info=info).run(case)
        assert outcome.status == "fail"
        log = Log(
            "a.jsonl",
            header(Plan("py:mine.py:Mine", (case,), False), indexer, info),
            {case.id: CaseRecord(outcome.digest, "", case)},
            {case.id: ResultRecord(outcome)},
            (),
            None,
        )
        text = script(Recorded(log, case, outcome), indexer.operation, "user_function:call")

        def function(backend):
            def call(**given):
                attributes = {name: given.pop(name) for name in case.attributes}
                lengths = "i32" if given["key_length"].dtype == np.int32 else "i64"
                disabled = frozenset() if "index_weights" in given else frozenset({"weights"})
                config = OperationConfig(case.operation, attributes, case.element_type, lengths, disabled)
                return backend.prepare(config).run(given)

            return call

        return text, function(backend), function(connect("numpy", operation=indexer.operation.operation))

    return record


def called(text, function):
    """Exit code and output of a script in this process."""
    sys.modules["user_function"] = types.ModuleType("user_function")
    sys.modules["user_function"].call = function
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as end:
        exec(compile(text, "script", "exec"), {"__name__": "__main__"})
    return int(end.value.code), printed.getvalue()
