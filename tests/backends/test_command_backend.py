"""Plug-ins in processes of their own: what goes over the wire, and what becomes of those that misbehave."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import plugin_fakes
import pytest
from test_reference import case_of

from conformance.backends.connect import connect
from conformance.backends.plugin import subprocess as command
from conformance.backends.plugin import wire
from conformance.backends.plugin.check import check
from conformance.backends.plugin.process import MIB, Child, Limits
from conformance.backends.plugin.schemas import schemas
from conformance.backends.plugin.subprocess import CommandBackend
from conformance.backends.protocol import Rejected
from conformance.errors import BackendError, Lost
from conformance.judging.engine import Engine
from conformance.spec.inputs import inputs_of
from conformance.spec.types import TENSOR_TYPES, dtype

HERE = Path(__file__).parents[1]
FAKES = Path(__file__).parent / "plugin_fakes.py"
SCHEMAS = HERE.parent / "docs" / "schemas" / "backend-protocol"
LIMITS = Limits(seconds=10, memory=512 * MIB)
SHORT = Limits(seconds=0.4)


def line_of(name):
    return f"{sys.executable} {FAKES} {name}"


@pytest.fixture
def backend():
    """A fake by name, closed in the end."""
    made = []

    def make(name, limits=LIMITS):
        made.append(CommandBackend(line_of(name), limits))
        return made[-1]

    yield make
    for one in made:
        one.close()


def outcome_of(backend, operation, case=None):
    return Engine(operation, backend).run(case or case_of())


# Honest plug-ins


class TestHonest:
    def test_passes_and_is_described(self, backend, operation):
        honest = backend("honest")
        assert honest.describe().name == "example-python"
        assert outcome_of(honest, operation).status == "pass"

    @pytest.mark.parametrize("element_type", ["f32", "f16", "bf16"])
    def test_gives_the_bits_of_the_same_code_in_this_process(self, backend, operation, element_type):
        engine = Engine(operation, backend("honest"))
        case = case_of(element_type=element_type)
        inputs = inputs_of(case, operation)
        session = engine.session(case).session
        got = session.run({name: array.copy() for name, array in inputs.items()})
        here = plugin_fakes.example.Operation(case.attributes, element_type, "i64", ())
        stored = {
            name: array.view(np.uint16) if array.dtype == dtype("bf16") else array for name, array in inputs.items()
        }
        for name, array in here.run(stored).items():
            assert got[name].tobytes() == array.tobytes(), name
            assert got[name].dtype == dtype(element_type)

    def test_large_tensors_go_through_files_and_leave_none(self, backend, operation):
        honest = backend("honest")
        large = case_of(dims={"N": 2, "L": 600, "Di": 64, "Dr": 32, "Bp": 1})
        assert outcome_of(honest, operation, large).status == "pass"
        directory = honest.plugin().directory.path
        assert [path.name for path in directory.iterdir()] == [command.LOCK]
        honest.close()
        assert not directory.exists()

    def test_refusals_come_back_as_they_were_sent(self, backend):
        config = Engine.__new__(Engine).config(case_of(attributes={"key_block_size": 4, "epsilon": float("nan")}))
        with pytest.raises(Rejected) as caught:
            backend("honest").prepare(config)
        assert (caught.value.kind, caught.value.names) == ("attribute", ("epsilon",))

    def test_noise_on_stderr_is_kept_and_harmless(self, backend, operation):
        chatty = backend("chatters")
        assert outcome_of(chatty, operation).status == "pass"
        assert "got run" in chatty.stderr()
        assert chatty.stderr() == ""

    def test_sessions_survive_a_lost_process(self, backend, operation):
        honest = backend("honest")
        engine = Engine(operation, honest)
        assert engine.run(case_of()).status == "pass"
        first = honest.plugin()
        first.child.end()
        lost = engine.run(case_of(seed=1))
        assert (lost.status, lost.clause, lost.lost) == ("quality-warning", "PLG-3", "killed")
        assert honest.plugin() is not first
        assert engine.run(case_of(seed=2)).status == "pass"


def test_a_python_backend_is_served_as_a_plugin(operation):
    served = connect(f"cmd:{sys.executable} -m conformance.backends.plugin.serve py:{HERE / 'fakes.py'}:SlightlyOff")
    outcome = outcome_of(served, operation)
    served.close()
    assert (outcome.status, outcome.worst.output) == ("fail", "block_index_keys")


# Plug-ins that misbehave: the outcome of a case says how, and the next case finds a new process.

MISBEHAVIOUR = {
    "segfaults": "crash: ended by SIGSEGV",
    "aborts": "crash: ended by SIGABRT",
    "exits": "crash: exits with code 3 without being asked to",
    "sleeps": "timeout: no answer within 0.4 s",
    "allocates": "memory: takes more than 128 MiB",
    "floods_stdout": "output: writes an answer of more than 1 MiB",
    "floods_stderr": "output: prints more than 1 MiB",
    "prints_to_stdout": "answers 'run' with a line that is not JSON: 'here I am'",
    "cuts_its_answer": "answers 'run' with a line that is not JSON",
    "stops_in_its_answer": "timeout: no answer within 0.4 s",
    "answers_late": "timeout: no answer within 0.4 s",
    "answers_twice": "writes more than one answer to 'run'",
    "answers_nothing": "run() returns outputs without block_index_keys",
    "miscounts": "under the number",
    "mistakes_the_answer": "answers 'run' with 'prepared'",
    "invents_a_field": "there is an unknown field 'took'",
    "misshapes": "output 'block_index_keys' has ",
    "reshapes": "shape",
    "retypes": "int32",
    "renames": "run() returns outputs without block_index_keys and with keys",
    "points_elsewhere": "not a plain name in the directory",
    "fails": "PluginError: the device is on fire",
    "dies_when_idle": "crash: exits with code 0",
}
# Those that have to be waited for, and those that are stopped by another limit.
SPECIAL = {
    "sleeps": SHORT,
    "stops_in_its_answer": SHORT,
    "answers_late": SHORT,
    "allocates": Limits(seconds=10, memory=128 * MIB),
    "floods_stdout": Limits(seconds=10, answer=MIB),
    "floods_stderr": Limits(seconds=10, output=MIB),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
def test_misbehaviour_costs_one_case_and_is_named(backend, operation, name):
    bad = backend(name, LIMITS)
    bad.describe()  # the start of an interpreter is not to count as late
    bad.limits = bad.plugin().child.limits = SPECIAL.get(name, LIMITS)
    outcome = outcome_of(bad, operation)
    assert outcome.status in ("fail", "error")
    assert MISBEHAVIOUR[name] in outcome.reason
    assert bool(outcome.lost) == (outcome.reason.partition(":")[0] in ("crash", "timeout", "memory", "output"))
    if outcome.lost:
        bad.limits = LIMITS
        assert bad.describe().name == "example-python"


def test_every_fake_says_how_it_misbehaves():
    import ast

    functions = [node for node in ast.parse(FAKES.read_text()).body if isinstance(node, ast.FunctionDef)]
    fakes = [node for node in functions if node.name in plugin_fakes.FAKES]
    assert len(fakes) == len(plugin_fakes.FAKES)
    assert all(ast.get_docstring(node) for node in fakes)


def test_what_a_plugin_prints_is_kept_for_the_failure(backend, operation):
    bad = backend("segfaults")
    outcome_of(bad, operation)
    assert "about to read address zero" in bad.stderr()


def test_writing_into_an_input_file_is_seen(backend, operation):
    large = case_of(dims={"N": 2, "L": 600, "Di": 64, "Dr": 32, "Bp": 1})
    outcome = outcome_of(backend("scribbles"), operation, large)
    assert (outcome.status, outcome.clause) == ("fail", "PLG-2") or "modifies its input" in outcome.reason


def test_a_crash_in_company_is_not_blamed_on_the_case(backend, operation):
    tired = Engine(operation, backend("tires"))
    assert tired.run(case_of(id="t/first")).status == "pass"  # two calls
    outcome = tired.run(case_of(id="t/second", attributes={"key_block_size": 3, "epsilon": 1e-6}, past=(2, 4)))
    assert (outcome.status, outcome.clause, outcome.lost) == ("error", "PLG-3", "crash")
    assert "passes on a fresh session, fails after t/first in the same process" in outcome.reason


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "needs a command line"),
        ("./x 'y", "is not a command line: No closing quotation"),
        ("./there-is-no-such-program", "cannot be started: No such file or directory"),
        (line_of("says_nothing"), "cannot find libdevice.so"),
        (line_of("is_from_the_future"), "speaks version 2 of the protocol, this suite 1"),
    ],
)
def test_what_cannot_be_started_is_said_in_a_sentence(line, says):
    with pytest.raises(BackendError, match=says):
        CommandBackend(line, LIMITS).describe()


# Children


class TestChild:
    def test_what_a_child_started_ends_with_it(self):
        child = Child(["sh", "-c", "sleep 600 & echo $!; wait"], LIMITS)
        number = int(child.ask(b""))
        child.kill()
        assert gone(number)

    def test_it_ends_when_the_harness_is_killed(self):
        script = (
            "from conformance.backends.plugin.process import Child, Limits; import time\n"
            "child = Child(['sh', '-c', 'trap \"\" TERM HUP; sleep 600 & echo $$ $!; wait'], Limits())\n"
            "print(child.ask(b'').decode(), flush=True); time.sleep(600)"
        )
        harness = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        shell, sleep = map(int, harness.stdout.readline().split())
        harness.kill()
        harness.wait()
        assert gone(shell) and gone(sleep)

    def test_an_end_that_leaves_its_pipes_to_others_is_seen(self):
        child = Child(["sh", "-c", "sleep 600 & exit 3"], LIMITS)
        start = time.monotonic()
        with pytest.raises(Lost, match="exits with code 3"):
            child.ask(b"")
        assert time.monotonic() - start < 5

    def test_a_shells_word_for_a_signal_is_explained(self):
        with pytest.raises(Lost, match="SIGSEGV"):
            Child(["sh", "-c", "sh -c 'kill -SEGV $$'; exit $?"], LIMITS).ask(b"")

    def test_long_lines_go_both_ways(self):
        child = Child(["cat"], LIMITS)
        line = b"x" * (3 * MIB)
        assert child.ask(line) == line
        assert child.close() == 0


def gone(number, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_directory_that_a_killed_run_left_is_removed():
    script = (
        "from conformance.backends.plugin.subprocess import RunDirectory; import os\n"
        "print(RunDirectory().path, flush=True); os.kill(os.getpid(), 9)"
    )
    left = Path(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip())
    assert left.is_dir()
    mine = command.RunDirectory()
    try:
        assert not left.exists()
        command.RunDirectory().close()
        assert mine.path.is_dir(), "one that is in use stays"
    finally:
        mine.close()


# Messages and schemas


def test_the_published_schemas_are_those_of_the_messages():
    published = {str(path.relative_to(SCHEMAS)): json.loads(path.read_text()) for path in SCHEMAS.rglob("*.json")}
    assert published == json.loads(json.dumps(schemas())), (
        "run: python -m conformance.backends.plugin.schemas docs/schemas/backend-protocol"
    )


def test_all_that_is_said_keeps_to_the_schemas(operation, monkeypatch):
    said = []
    ask = Child.ask
    monkeypatch.setattr(
        Child, "ask", lambda self, line, *a: said.append((line, answer := ask(self, line, *a))) or answer
    )
    honest = CommandBackend(line_of("honest"), LIMITS)
    engine = Engine(operation, honest)
    engine.run(case_of())
    engine.run(case_of(attributes={"key_block_size": 4, "epsilon": float("inf")}))
    engine.run(case_of(dims={"N": 2, "L": 600, "Di": 64, "Dr": 32, "Bp": 1}))
    bad = case_of(attributes={"key_block_size": 1, "epsilon": 1e-6})
    with pytest.raises(Rejected):
        honest.prepare(engine.config(bad))
    engine.close()
    honest.close()
    seen = set()
    for request, answer in said:
        for folder, key, line in (("requests", "message", request), ("answers", "answer", answer)):
            message = json.loads(line)
            seen.add(message[key])
            schema = schemas()[f"{folder}/{message[key]}.json"]
            jsonschema.Draft202012Validator(schema).validate(message)
    assert seen == {"hello", "prepare", "run", "release", "bye", "prepared", "done", "released", "rejected"}


@pytest.mark.parametrize("name", schemas())
def test_schemas_are_valid_and_able_to_refuse(name):
    schema = schemas()[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(jsonschema.Draft202012Validator(schema).iter_errors({"id": -1}))


@pytest.mark.parametrize("kind", [name for name in TENSOR_TYPES if name != "bool"])
@pytest.mark.parametrize("inline", [0, wire.INLINE])
def test_tensors_come_back_bit_for_bit(tmp_path, kind, inline):
    bits = np.random.default_rng(1).integers(0, 256, (2, 3, dtype(kind).itemsize), dtype=np.uint8)
    array = bits.view(dtype(kind)).reshape(2, 3)
    tensor = wire.to_tensor(array, tmp_path, "x", inline)
    again = msgspec.json.decode(msgspec.json.encode(tensor), type=wire.Tensor)
    back = wire.to_array(again, tmp_path, delete=True)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not list(tmp_path.iterdir())
    back[...] = 0  # it can be written to


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (wire.Tensor("f32", (2,), data=b"123"), "has 3 bytes of elements, where type f32 and shape .2. take 8"),
        (wire.Tensor("f32", (2,)), "either data or a file"),
        (wire.Tensor("f32", (2,), data=b"12345678", file="x"), "either data or a file"),
        (wire.Tensor("f32", (2,), file="../x"), "not a plain name"),
        (wire.Tensor("f32", (2,), file="x"), "cannot be read: No such file"),
    ],
)
def test_tensors_that_do_not_add_up_are_refused(tmp_path, tensor, says):
    with pytest.raises(wire.ProtocolError, match=says):
        wire.to_array(tensor, tmp_path)


# Manners


def checked(name, library, limits=LIMITS, only=()):
    return {finding.check: finding for finding in check(line_of(name).split(), limits, library, only=only)}


@pytest.mark.parametrize(
    ("name", "where", "says"),
    [
        ("says_nothing", "says hello", "exits with code 1"),
        ("boasts", "says hello", "declares the output 'attention', which is not one"),
        ("renames", "answers calls", "declares the output block_index_keys, and does not return it"),
        ("retypes", "answers calls", "returns block_index_keys as int32"),
        ("reshapes", "answers calls", "returns block_index_keys of shape"),
        ("miscounts", "answers calls", "answers 'run' number"),
        ("segfaults", "answers calls", "crash: ended by SIGSEGV (Segmentation fault), instead of an answer to 'run'"),
        ("forgets_sessions", "several sessions", "'done' is due, while there is a session with other attributes"),
        ("releases_all", "two prepares", "once another session of the same configuration is released"),
        ("keeps_sessions", "release", "of a session that was released; 'error' is due"),
        ("is_easily_shocked", "unknown message", "crash: ended by SIGABRT"),
        ("is_picky", "unknown field", "it is to ignore it"),
        ("breaks_when_refusing", "refused call", "once it has refused a call on the same session"),
        ("slams_the_door", "bye", "ends with exit code 4 after bye; 0 is due"),
        ("stays", "bye", "says bye, and does not end"),
        ("outlives_its_input", "end of input", "could be left behind"),
    ],
)
def test_what_breaks_the_protocol_is_found_where_it_does(library, name, where, says):
    findings = checked(name, library, only=("says hello", where))
    assert {title: finding.status for title, finding in findings.items()} == {"says hello": "ok", where: "wrong"}
    assert says in findings[where].says
    assert bool(findings[where].printed) == (name in ("segfaults", "says_nothing"))


def test_one_fault_is_one_finding(library):
    wrong = [finding.check for finding in checked("keeps_sessions", library).values() if finding.status == "wrong"]
    assert wrong == ["release"]


def test_what_could_be_better_is_noted(library):
    for name, where, says in (
        ("litters", "tensors in files", "leaves files that no answer names: scratch-"),
        ("chatters", "noise", "characters in a plain call"),
        ("prepares_anything", "refused configuration", "which is to be rejected"),
        ("is_modest", "unsupported types", "better 'unsupported'"),
    ):
        findings = checked(name, library, only=(where,))
        assert (findings[where].status, says in findings[where].says) == ("note", True), findings[where]


def test_a_late_answer_is_late(library):
    findings = checked("answers_late", library, Limits(seconds=1.5))
    assert findings["answers calls"].says == "timeout: no answer within 1.5 s, instead of an answer to 'run'"


def test_an_honest_plugin_passes_every_check(library):
    findings = checked("honest", library)
    assert {finding.status for finding in findings.values()} == {"ok"}
    assert len(findings) == 17


@pytest.mark.parametrize(
    ("connect", "code", "line"),
    [
        (f"cmd:{line_of('honest')}", 0, "17 checks: 17 ok, 0 note, 0 wrong"),
        ("numpy", 0, "9 checks: 9 ok, 0 note, 0 wrong"),
        (f"py:{HERE / 'fakes.py'}:WrongType", 1, "wrong  answers calls: returns block_index_keys as float64"),
        ("nunpy", 3, "did you mean 'numpy'?"),
        ("py:no-such-file.py:Mine", 3, "error: there is no file no-such-file.py"),
        (f"py:{HERE / 'fakes.py'}:Nobody", 3, "has no 'Nobody'"),
        ("mine.py:Mine", 3, "did you mean 'py:mine.py:Mine'?"),
        ("cmd:./there-is-no-such-program", 3, "error: './there-is-no-such-program' cannot be started"),
    ],
)
def test_backend_check_says_what_is_wrong(connect, code, line):
    done = subprocess.run(
        [sys.executable, "-m", "conformance", "backend", "check", connect], capture_output=True, text=True
    )
    assert done.returncode == code
    assert line in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
