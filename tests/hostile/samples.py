"""The hostile inputs: case files, operation files, command lines, plug-ins, logs, and what the system may do."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ESCAPES = "\x1b[31mred\x1b[0m \x07 \u202eright to left"
FEW = ["--case", "by-hand/blk-none-completed", "--case", "by-hand/blk-many-completed", "--case", "refusals/epsilon"]


def nothing(folder: Path) -> None:
    """No files."""


@dataclass(frozen=True)
class Sample:
    """One run of the command. `make` writes what it needs into the folder that it runs in."""

    name: str
    arguments: tuple[str, ...]
    codes: tuple[int, ...]
    make: Callable[[Path], object] = nothing
    says: str = ""
    seconds: float = 60.0
    stdout: Path | None = None
    shows_traceback: bool = False  # a close-up of a single case shows the plug-in's own


def all_samples() -> Iterator[Sample]:
    """Every sample of every kind."""
    yield from case_files()
    yield from operation_files()
    yield from command_lines()
    yield from plug_ins()
    yield from processes()
    yield from logs()
    yield from system()


# Case files

HEAD = "cases:\n  - id: one\n    says: It works.\n    clauses: [BLK-1]\n"
CASE_LINES = {
    "truth": "dims: {L: true}",
    "no-number": "dims: {L: !!int abc}",
    "many-digits": "dims: {L: " + "9" * 5000 + "}",
    "beyond-64-bits": "seed: 36893488147419103232",
    "deep-expression": "dims: {L: " + "(" * 50_000 + "1" + ")" * 50_000 + "}",
    "long-expression": "dims: {L: 1" + "+1" * 60_000 + "}",
    "tower": "dims: {L: 9**9**9}",
    "complex": "dims: {L: (0-1)**0.5}",
    "division": "dims: {L: 1//0}",
    "huge": "dims: {L: 10**9, Di: 10**9}",
    "trillion": "dims: {N: 1000000000000}",
    "negative-strength": "cover: {strength: -2, axes: {L: [1, 2]}}",
    "excluding": "cover: {strength: 2, axes: {L: [1, 2], x: [1, 2]}, except: ['1//x*0+(1//(x-x))']}",
    "nine-axes": "matrix: {" + ", ".join(f"a{i}: 0..9" for i in range(9)) + "}",
    "range": "matrix: {L: 0..1000000000}",
    "inject-word": "data: {raw_index_keys: {aim: bell, inject: foo}}",
    "inject-far": "data: {raw_index_keys: {aim: bell, inject: [{at: [99, 99, 99], value: 1}]}}",
    "every-zero": "data: {raw_index_keys: {aim: spikes, every: 0}}",
    "unknown-aim": "data: {raw_index_keys: {aim: nothing}}",
    "escapes": f"element_type: {json.dumps(ESCAPES)}",
    "streams": "streams: {cuts: 100000000}",
    "streams-of-words": "streams: [[a, b]]",
    "past-mapping": "past: {a: 1}",
    "null": "dims: null",
    "list-of-clauses": "clauses: {BLK-1: yes}",
}
DOCUMENTS = {
    "binary": bytes(random.Random(1).randrange(256) for _ in range(5000)),
    "not-utf8": b"cases: [\xff\xfe]",
    "empty": b"",
    "number": b"42",
    "list": b"[1, 2, 3]",
    "deep": b"[" * 200_000,
    "alias-bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(
        f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n".encode() for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "twice": b"cases: []\ncases: []",
    "python-tag": b"cases: !!python/object/apply:os.system ['echo hello']",
    "tabs": b"cases:\n\t- id: a",
    "large": b"says: " + b"x" * (40 << 20),
}


def case_files() -> Iterator[Sample]:
    """Own case files that are wrong, each read by lint and by run."""

    def written(content: bytes) -> Callable[[Path], object]:
        def make(folder: Path) -> None:
            (folder / "own" / "01-mine").mkdir(parents=True)
            (folder / "own" / "01-mine" / "a.yaml").write_bytes(content)

        return make

    for name, line in CASE_LINES.items():
        make = written(f"{HEAD}    {line}\n".encode("utf-8", "surrogatepass"))
        yield Sample(f"case/{name}", ("cases", "lint", "--library", "own", "--no-bundled"), (1, 2), make, says="a.yaml")
    for name, content in DOCUMENTS.items():
        make = written(content)
        yield Sample(f"file/{name}", ("run", "-b", "numpy", "--library", "own", "--no-bundled"), (1, 2), make)

    def fifo(folder: Path) -> None:
        (folder / "own" / "01-mine").mkdir(parents=True)
        os.mkfifo(folder / "own" / "01-mine" / "a.yaml")

    def device(folder: Path) -> None:
        (folder / "own" / "01-mine").mkdir(parents=True)
        (folder / "own" / "01-mine" / "a.yaml").symlink_to("/dev/zero")

    def folder_as_file(folder: Path) -> None:
        (folder / "own" / "01-mine" / "a.yaml").mkdir(parents=True)

    for name, make in (("fifo", fifo), ("device", device), ("folder", folder_as_file)):
        yield Sample(f"file/{name}", ("cases", "lint", "--library", "own", "--no-bundled"), (1, 2), make)


# Operation files


@cache
def toy() -> str:
    """The toy operation's description, to be spoilt."""
    return (Path(__file__).parents[1] / "toy" / "pick" / "operation.yaml").read_text(encoding="utf-8")


def operation_files() -> Iterator[Sample]:
    """Descriptions of an operation with something wrong in them."""
    changes = {
        "batch": lambda t: t.replace("batch: ", "batch: nowhere #", 1) if "batch: " in t else t + "\nbatch: nowhere\n",
        "tokens": lambda t: t + "\ntokens: nowhere\n",
        "reference": lambda t: _line(t, "reference", "no.such.module:Thing"),
        "reference-of-system": lambda t: _line(t, "reference", "os:system"),
        "unknown-key": lambda t: t + "\nsurprise: 1\n",
        "keyword-symbol": lambda t: t + "\nsymbols: {lambda: {is: '1', says: a}}\n",
        "itself": lambda t: t + "\ntotals: {Q: {is: Q + 1, says: a}}\n",
        "division": lambda t: t + "\ntotals: {Q: {is: 1 // 0, says: a}}\n",
        "tower": lambda t: t + "\ntotals: {Q: {is: 9**9**9, says: a}}\n",
        "empty": lambda t: "",
        "list": lambda t: "[1, 2]",
        "half": lambda t: t[: len(t) // 2],
        "escapes": lambda t: _line(t, "operation", json.dumps(ESCAPES)),
    }
    for name, change in changes.items():

        def make(folder: Path, change: Callable[[str], str] = change) -> None:
            own = folder / "own" / "pick"
            own.mkdir(parents=True)
            (own / "operation.yaml").write_text(change(toy()), encoding="utf-8")
            (own / "01-mine").mkdir()
            (own / "01-mine" / "a.yaml").write_text("cases: []\n", encoding="utf-8")

        yield Sample(f"operation/{name}", ("cases", "lint", "--library", "own", "--operation", "pick"), (0, 1, 2), make)


def _line(text: str, key: str, value: str) -> str:
    return "\n".join(f"{key}: {value}" if line.startswith(f"{key}:") else line for line in text.splitlines())


# Command lines


def command_lines() -> Iterator[Sample]:
    """Arguments that mean nothing, or too much."""
    lines = [
        ("-k", "(" * 5000), ("-k", "a and"), ("-k", "not " * 3000 + "a"), ("--clause", "XYZ-9"), ("--level", "none"),
        ("--case", "no/such"), ("--jobs", "0"), ("--jobs", "99999999999999999999"), ("--memory-limit", "1" + "0" * 30),
        ("--memory-limit", "nan"), ("--time-limit", "nan"), ("--time-limit", "-1"), ("--time-limit", "inf"),
        ("--reading", "alignment"), ("--reading", "x=y"), ("--expectations", "nowhere.yaml"), ("--resume", "nowhere"),
        ("--library", "nowhere"), ("--output-format", "nothing"), ("--operation", ESCAPES), ("-o", "a" * 5000),
    ]  # fmt: skip
    for number, line in enumerate(lines):
        yield Sample(f"run/{number}", ("run", "-b", "numpy", *line), (2, 3))
    others = [
        (("run", "-b", "nope"), (3,)), (("run", "-b", ""), (2, 3)), (("run", "-b", "py:"), (3,)),
        (("run", "-b", "py:no.py:X"), (3,)), (("run", "-b", "cmd:"), (3,)), (("run", "-b", "cmd:'"), (3,)),
        (("run", "-b", "replay:nowhere"), (2, 3)), (("run", "-b", "fault:none"), (3,)), (("run", "-b", ESCAPES), (3,)),
        (("backend", "check", "nope"), (3,)), (("backends", "extra"), (2,)), (("nothing",), (2,)),
        (("--nothing",), (2,)),
        (("fuzz", "-b", "numpy", "--seconds", "nan"), (2,)), (("fuzz", "-b", "numpy", "--examples", "-3"), (2,)),
        (("fuzz", "-b", "numpy", "--seed", "x"), (2,)), (("fuzz",), (2,)), (("perf",), (2,)),
        (("perf", "-b", "numpy", "--workload", "none"), (2,)), (("perf", "-b", "numpy", "--seconds", "nan"), (2,)),
        (("repro", "nowhere", "a"), (2,)), (("promote", "nowhere", "a"), (2,)), (("shrink", "nowhere", "a"), (2,)),
        (("report",), (2,)), (("report", "nowhere"), (2,)), (("compare", "nowhere", "nowhere"), (2,)),
        (("cases", "show", "no/such"), (2,)), (("cases", "list", "-k", ")"), (2,)), (("diagnose",), (2,)),
        (("expectations", "--expires", "foo"), (2,)), (("new-backend", "/dev/null/x.py"), (2, 3)),
        (("faults", "-k", "none-such"), (2,)), (("publish", "-o", "/dev/null/x"), (2, 3)),
    ]  # fmt: skip
    for arguments, codes in others:
        yield Sample(f"words/{' '.join(arguments)[:40]!a}", arguments, codes)


# Plug-ins in process

PLUGIN = """
import os, sys, time, signal, threading
import numpy as np
from conformance.backends.protocol import BackendInfo, Rejected, Unsupported

ALL = ("block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope")

class Mine:
    def __init__(self):
        {init}
    def describe(self):
        {describe}
        return BackendInfo("mine", "1", "me", ("f32", "f16", "bf16"), ALL, ("rope", "norm", "left_padding"))
    def prepare(self, config):
        {prepare}
        return Session(config)

class Session:
    def __init__(self, config):
        self.r = int(config.attributes["key_block_size"])
    def run(self, inputs):
        {run}
        N, L, Di = inputs["raw_index_keys"].shape
        S = np.broadcast_to(inputs["key_length"], (N,))
        T = inputs["raw_index_keys"].dtype
        rope = inputs["past_incomplete_rope"]
        return {{"block_index_keys": np.zeros((N, int((S // self.r).max(initial=0)), Di), T),
                "present_incomplete_raw_keys": np.zeros((N, self.r - 1, Di), T),
                "present_incomplete_rope": np.zeros(rope.shape, T)}}
    def close(self):
        {close}
"""
THROWN = {
    "exit": "sys.exit(0)",
    "system-exit": "raise SystemExit('0')",
    "generator-exit": "raise GeneratorExit",
    "base": "raise type('Odd', (BaseException,), {})()",
    "bad-text": "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0, '__repr__': lambda self: 1 / 0})()",
    "surrogate": "raise ValueError('\\ud800' + '\\x1b[31m' + '\\u202e')",
    "long": "raise ValueError('x' * 10_000_000)",
    "odd-unsupported": "raise Unsupported(3, None, 4)",
    "odd-rejected": "raise Rejected(None, 7, (object(),))",
    "stop": "raise StopIteration",
    "recursion": "(lambda f: f(f))(lambda f: f(f))",
    "prints": "print('\\x1b[2J' * 1000)",
}
RETURNS = {
    "none": "return None",
    "list": "return [1, 2]",
    "masked": "return {name: np.ma.masked_all((2, 2)) for name in ALL}",
    "objects": "return {name: np.array([object()]) for name in ALL}",
    "strings": "return {name: 'a' for name in ALL}",
    "endless": "return type('M', (dict,), {'items': lambda s: iter(int, 1), '__iter__': lambda s: iter(int, 1)})()",
    "matrix": "return {name: np.matrix([[1.0]]) for name in ALL}",
    "liar": "return {name: type('A', (np.ndarray,), {'shape': property(lambda s: 1 / 0)})((2,)) for name in ALL}",
    "names": "return {'\\x1b[31m': np.zeros(1), 3: np.zeros(1)}",
}
DESCRIBES = {
    "number": "return BackendInfo('mine', 1.5, 'me', ('f32',), ALL)",
    "none": "return None",
    "text": "return BackendInfo('mine', '1', 'me', 'f32', 'block_index_keys')",
    "nothing": "return BackendInfo('mine', '1', 'me', (), ())",
    "escapes": "return BackendInfo('\\x1b[31mmine', '\\u202e1', 'me', ('f32',), ALL)",
    "empty-tuple": "return ()",
}


def plug_ins() -> Iterator[Sample]:
    """Implementations that misbehave in this process."""

    def written(**lines: str) -> Callable[[Path], object]:
        known = dict.fromkeys(("init", "describe", "prepare", "run", "close"), "pass") | lines

        def make(folder: Path) -> None:
            (folder / "mine.py").write_text(PLUGIN.format(**known), encoding="utf-8")

        return make

    run = ("run", "-b", "py:mine.py:Mine", *FEW)
    for place in ("init", "describe", "prepare", "run", "close"):
        for name, line in THROWN.items():
            codes = (1, 3, 4) if place in ("prepare", "run", "close") or name == "prints" else (3,)
            yield Sample(f"plugin/{place}-{name}", run, codes, written(**{place: line}), shows_traceback=True)
    for name, line in RETURNS.items():
        yield Sample(f"plugin/returns-{name}", run, (1,), written(run=line), shows_traceback=True)
    for name, line in DESCRIBES.items():
        yield Sample(f"plugin/describes-{name}", run, (1, 3, 4), written(describe=line), shows_traceback=True)
    isolated = ("run", "--isolate", "--time-limit", "5", "--memory-limit", "700", "-b", "py:mine.py:Mine", *FEW)
    ends = {
        "os-exit": "os._exit(0)",
        "segfault": "import ctypes; ctypes.string_at(0)",
        "kill": "os.kill(os.getpid(), signal.SIGKILL)",
        "hang": "time.sleep(1000)",
        "memory": "self.x = np.ones(1 << 30, np.uint8)",
        "pipes": "os.write(1, b'junk' * 1000); os.write(2, b'junk' * 1000)",
        "closes": "[os.close(fd) for fd in range(3)]",
        "child": "os.spawnvp(os.P_NOWAIT, 'sh', ['sh', '-c', 'setsid sleep 300'])",
        "judge": "import conformance.judging.judge as j; j.judge = lambda *a, **k: None",
    }
    for name, line in ends.items():
        yield Sample(f"isolated/{name}", isolated, (1, 3, 4), written(run=line), seconds=120, shows_traceback=True)
    yield Sample("isolated/describe-hangs", isolated, (3,), written(describe="time.sleep(1000)"), seconds=120)


# Plug-ins in processes of their own

PROCESS = """
import json, os, sys
info = {"name": "mine", "version": "1", "vendor": "me", "element_types": ["f32"],
        "outputs": ["block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope"], "features": []}
for line in sys.stdin:
    request = json.loads(line)
    BODY
"""
BODIES = {
    "silent": "pass",
    "garbage": "print('hello'); sys.stdout.flush()",
    "bytes": "os.write(1, b'\\xff\\x00\\n')",
    "long-line": "os.write(1, b'{' + b'x' * (200 << 20) + b'\\n')",
    "deep": "os.write(1, b'[' * 1_000_000 + b'\\n')",
    "dies": "sys.exit(3)",
    "flood": "[os.write(2, b'x' * 65536) for _ in range(2000)]; sys.exit(1)",
    "number": "print('42'); sys.stdout.flush()",
}


def processes() -> Iterator[Sample]:
    """`cmd:` plug-ins that do not follow the protocol."""
    for name, body in BODIES.items():

        def make(folder: Path, body: str = body) -> None:
            (folder / "mine.py").write_text(PROCESS.replace("BODY", body), encoding="utf-8")

        line = f"cmd:{sys.executable} mine.py"
        yield Sample(
            f"process/{name}",
            ("run", "--time-limit", "5", "--memory-limit", "600", "-b", line, *FEW),
            (1, 3),
            make,
            seconds=90,
        )


# Logs


@cache
def log() -> bytes:
    """A log of a few cases of a faulty implementation, as the command writes it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "conformance",
            "run",
            "-b",
            "fault:F02",
            "-k",
            "by-hand",
            "--jobs",
            "1",
            "-o",
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        written = list(Path(folder).glob("*.jsonl"))
        if not written:
            raise SystemExit(f"the run that the logs are made from wrote none:\n{done.stderr}")
        return written[0].read_bytes()


def bomb(first: bytes, mebibytes: int = 1024) -> bytes:
    """A log of one line that goes on with so many mebibytes of blanks, packed piece by piece."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        file.write(first)
        for _ in range(mebibytes):
            file.write(b" " * (1 << 20))
    return packed.getvalue()


def logs() -> Iterator[Sample]:
    """Logs that were cut, changed, swapped, put together, or never were logs."""
    lines = log().splitlines(keepends=True)
    results = [i for i, line in enumerate(lines) if b'"record":"result"' in line]
    rng = random.Random(3)
    flipped = bytearray(log())
    for _ in range(20):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    changed = {
        "no-results": b"".join(line for i, line in enumerate(lines) if i not in results),
        "no-cases": b"".join(line for line in lines if b'"record":"case"' not in line),
        "status": log().replace(b'"status":"fail"', b'"status":"splendid"'),
        "passes": log().replace(b'"status":"fail"', b'"status":"pass"'),
        "verdict": log().replace(b"NOT CONFORMANT", b"CONFORMANT").replace(b"INCOMPLETE", b"CONFORMANT"),
        "dropped": b"".join(line for i, line in enumerate(lines) if i != results[0]),
        "swapped": b"".join([*lines[:-2], lines[-1], lines[-2]]),
        "twice": log() * 2,
        "flipped": bytes(flipped),
        "deep": lines[0] + b"[" * 500_000 + b"\n",
        "binary": bytes(rng.randrange(256) for _ in range(10_000)),
        "empty": b"",
        "numbers": b"1\n2\n3\n",
        "bomb": bomb(lines[0]),
        "long-line": lines[0][:-2] + b'"' + b"x" * (60 << 20),
        "not-a-gzip": b"\x1f\x8b" + b"x" * 1000,
        "escapes": log().replace(b"by-hand/", b"by-hand\\u001b[31m/"),
    }
    for name, content in changed.items():
        suffix = ".jsonl.gz" if name in ("bomb", "not-a-gzip") else ".jsonl"

        def make(folder: Path, content: bytes = content, suffix: str = suffix) -> None:
            (folder / f"a{suffix}").write_bytes(content)

        yield Sample(f"log/report-{name}", ("report", f"a{suffix}"), (2,), make)
        yield Sample(f"log/markdown-{name}", ("report", f"a{suffix}", "--format", "markdown"), (2,), make)
    for name in ("verdict", "passes", "dropped"):

        def make(folder: Path, content: bytes = changed[name]) -> None:
            (folder / "a.jsonl").write_bytes(content)
            (folder / "b.jsonl").write_bytes(log())

        for verb in (
            ("compare", "b.jsonl", "a.jsonl"),
            ("repro", "a.jsonl", "by-hand/blk-none-completed"),
            ("run", "-b", "replay:a.jsonl"),
            ("publish", "-o", "out", "a.jsonl"),
        ):
            yield Sample(f"log/{verb[0]}-{name}", verb, (2, 3), make)


# The system


def system() -> Iterator[Sample]:
    """Output that cannot be written."""

    def file_in_the_way(folder: Path) -> None:
        (folder / "out").write_text("a file")

    few = ("run", "-b", "numpy", "-k", "by-hand", "--jobs", "1")
    yield Sample("system/file-for-a-folder", (*few, "-o", "out"), (2, 3, 4), file_in_the_way)
    yield Sample("system/full-disk", few, (2, 3), stdout=Path("/dev/full"))
    yield Sample("system/twice", (*few, "-b", "numpy", "-o", "out"), (2, 4))
    yield Sample(
        "system/report-to-nowhere",
        ("report", "a.jsonl", "-o", "/dev/null/x"),
        (2, 3),
        lambda f: (f / "a.jsonl").write_bytes(log()),
    )
