"""A walk over the guides: every command in them is executed as it stands, or is listed with the reason why not.

A command is a line of an indented block, or of a block fenced as a shell's, and every such block is either one of
commands or named below. The commands of a page run one after the other in a folder made for the page. A word such as
BACKEND stands for what `scene` puts there; whole-library commands run on the toy operation, whose library is small.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from conformance.cli import VERBS, cli
from conformance.record.log import read_log
from conformance.reporting.documents import GENERATED

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
    if not (ROOT / page).read_text(encoding="utf-8").startswith(GENERATED)
]
PROGRAMS = r"(?:[\w.]+/)*(?:qsa-conformance|pip|pytest|python3?|tox|cp|c\+\+|cmake|run)"
SHELLS = ("bash", "sh", "shell", "console")


class Run(NamedTuple):
    """A command that is executed: words that make it shorter, and the exit code that it ends with."""

    words: str = ""
    code: int = 0


NETWORK = "installs packages from the network"
LONG = "times for minutes; tests/timing does it shorter"
CI = "CI itself, in environments of its own: minutes"

# Page, command as it stands there, and a Run or the reason why it is not executed here.
COMMANDS: dict[str, dict[str, Run | str]] = {
    "README.md": {
        "python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 '.[native,peers]' && "
        ".venv/bin/qsa-conformance run": "gigabytes from the network, then the whole library on every backend",
        "python3 -m venv --clear .venv-tests && .venv-tests/bin/pip install -e '.[dev,distributed,native]' && "
        ".venv-tests/bin/python -m pytest -n auto": "all of these tests, in an environment of its own",
        "qsa-conformance new-backend mine.py": Run(),
        "qsa-conformance run -b py:mine.py:Mine --quick": Run(code=4),
        "qsa-conformance run -b py:mine.py:Mine": Run("-k by-hand --jobs 1", 4),
        "pytest --pyargs conformance --backend py:mine.py:Mine": Run("-q -p no:cacheprovider --case by-hand"),
    },
    "CONTRIBUTING.md": {
        ".ci/run": CI,
        "tox -e lint,types,architecture": CI,
        "tox -e tests -- tests/judging": CI,
        "tox -e faults": CI,
        "tox -e peers": CI,
        "tox -e site": CI,
    },
    "docs/adding-an-operation.md": {
        "qsa-conformance cases lint --library tests/toy --operation Pick": Run(),
        "qsa-conformance run --library tests/toy -b py:tests/toy/pick_backend.py:Pick": Run(),
        "qsa-conformance faults --library tests/toy --operation Pick": Run("--jobs 1"),
        "qsa-conformance fuzz --library tests/toy --operation Pick -b py:tests/toy/pick_backend.py:Last": Run(
            "--fresh", 1
        ),
    },
    "docs/fuzzing.md": {
        "qsa-conformance fuzz -b BACKEND": Run("--operation Pick --fresh --jobs 1", 1),
        "qsa-conformance fuzz -b BACKEND --seconds 600 --keep-going -o logs": Run(
            "--operation Pick --fresh --jobs 1 --seed 1 --seconds 3", 1
        ),
        "pytest --pyargs conformance --backend BACKEND --fuzz-examples 500": (
            Run("-q -p no:cacheprovider --case by-hand/bias --fuzz-examples 60", 1)
        ),
        "qsa-conformance run -b BACKEND --from-log LOG --case generated/3da70936cbbe": Run(code=1),
        "qsa-conformance shrink LOG generated/3da70936cbbe": Run(),
        "qsa-conformance repro LOG generated/3da70936cbbe": Run(),
        "qsa-conformance fuzz -b BACKEND --wear 100000": Run("--operation Pick --wear 500 --seed 3729697810", 1),
        "pip install 'qsa-conformance[distributed]'": NETWORK,
        "qsa-conformance fuzz -b BACKEND --examples 1000000 --keep-going --scheduler tcp://HOST:8786 -o logs": (
            "needs a cluster; the tests of running and fuzzing start one"
        ),
    },
    "docs/native-operation.md": {
        "qsa-conformance build-native": "half a minute of compiling; the tests of the C++ operations do it",
    },
    "docs/pytest-and-ci.md": {
        "pytest --pyargs conformance --backend py:mine.py:Mine": Run("-q -p no:cacheprovider", 1),
        "qsa-conformance run -b py:mine.py:Mine --quick --allow-incomplete": Run("-k negative"),
        "qsa-conformance expectations -b py:mine.py:Mine --expectations known.yaml --update "
        "--reason TEXT --url URL": Run("--operation Pick"),
        "qsa-conformance run -b py:mine.py:Mine --expectations known.yaml": Run(),
        "qsa-conformance run -b cmd:./mine -o logs": Run("--quick --jobs 1", 4),
        "qsa-conformance report logs/*.jsonl --format junit -o junit.xml": Run(),
        "qsa-conformance report logs/*.jsonl --format html -o report.html": Run(),
    },
    "docs/reading-a-report.md": {
        "qsa-conformance run -b BACKEND -o logs": Run(code=1),
        "qsa-conformance report logs/*.jsonl": Run(),
        "qsa-conformance report logs/*.jsonl --format html -o page.html": Run(),
        "qsa-conformance report logs/*.jsonl --format markdown": Run(),
        "qsa-conformance report logs/*.jsonl --format junit -o junit.xml": Run(),
        "qsa-conformance report LOG --format badge -o badge.svg": Run(),
        "qsa-conformance compare OLD NEW": Run(),
        "qsa-conformance publish -o reports": "the whole library of all operations on every backend",
        "qsa-conformance publish -o reports -b mine": "needs an installed backend `mine`; tests publish others",
        "qsa-conformance publish -o reports logs other/a.jsonl": Run(),
        "qsa-conformance publish -o reports --render": Run(),
        "qsa-conformance run -b BACKEND --expectations FILE": Run(),
        "qsa-conformance expectations LOG --expectations FILE --update --reason TEXT --url URL": Run(),
        "pytest --pyargs conformance --backend BACKEND --expectations FILE": Run("-q -p no:cacheprovider"),
    },
    "docs/timing.md": {
        "qsa-conformance perf -b openvino-cpu-op -b openvino-graph --quick": LONG,
        "qsa-conformance perf -b openvino-cpu-op --workload 'prefill' --workload 'decode[N=32,closes=0]' "
        "--threads 2 -o logs": LONG,
        "qsa-conformance perf --list": Run(),
        "qsa-conformance perf -b openvino-cpu-op -b mlx-vlm --conformance FIRST --conformance SECOND -o times": (
            "needs mlx-vlm; tests/timing times others by their logs"
        ),
        "qsa-conformance publish times -o reports": "tests/reporting adds times to published logs",
    },
    "docs/write-a-backend.md": {
        "qsa-conformance new-backend mine.py": Run(),
        "qsa-conformance new-backend mine.cpp": Run(),
        "qsa-conformance new-backend mine.py --operation QSAPrepare": Run("--force"),
        # A skeleton answers no call yet.
        "qsa-conformance backend check py:mine.py:Mine": Run(code=1),
        "qsa-conformance run -b py:mine.py:Mine --quick": Run(code=4),
        "qsa-conformance run -b py:mine.py:Mine": "the whole library; the line with --quick is executed",
        "pip install examples/entry_point": "tests/test_examples.py installs it from a copy, without a network",
        "qsa-conformance run -b example": "needs the package installed; the same tests run it",
        "cp examples/cpp/qsa_prepare_plugin.cpp mine.cpp": Run(),
        "c++ -std=c++17 -O2 -o mine mine.cpp": Run(),
        'qsa-conformance backend check "cmd:./mine"': Run(),
        'qsa-conformance run -b "cmd:./mine" --quick': Run("--jobs 1", 4),
        'qsa-conformance run -b "cmd:./mine"': "the whole library; the line with --quick is executed",
        "cp examples/python/qsa_prepare_plugin.py plugin.py": Run(),
        'qsa-conformance backend check "cmd:python3 plugin.py"': Run(),
        "qsa-conformance run -b \"cmd:valgrind -q ./mine\" --case 'ID'": "needs valgrind",
        "qsa-conformance run -b py:mine.py:Mine --case 'ID'": Run(code=4),
        "qsa-conformance cases show 'ID'": Run(),
    },
    "docs/writing-a-case.md": {
        "qsa-conformance cases lint": Run(),
        "qsa-conformance cases show 'topic/id' --tensors": Run(),
        "qsa-conformance run -b numpy --case 'topic/id'": Run(code=4),
        "qsa-conformance docs": Run(),
    },
}

# First lines of the other blocks, and what they are.
OTHERS = {
    "conformance/   the harness; CONTRIBUTING.md shows its packages and the path of a case through them": "folders",
    "cases/OPERATION/NN-topic/*.yaml": "folders",
    "commands > failures > faults > (timing | fuzzing) > (running | reporting) > backends.* > record > library > "
    "judging > backends.protocol > spec > errors": "imports",
    "rules:": "YAML",
    "attributes:": "YAML",
    "- name: block_indices": "YAML",
    "stages:": "YAML",
    '{"type": "f32", "shape": [1, 3, 1], "data": "AACAPwAAAEAAAEBA"}': "JSON",
    "conformance/backends/openvino/native/": "folders",
    "QSAPrepare[ERR-2 shape rope_sin]: L is 8 there, but 9 in raw_index_keys": "a message",
    "fail, 53 cases: ROT-1  block_index_keys (rotated)": "output",
    '[project.entry-points."qsa_conformance.backends"]': "TOML",
}

TOY = "py:tests/toy/pick_backend.py:Last"
CASE = "by-hand/rot-first-token-of-the-block[element_type=f32]"
STANDS_FOR = {"BACKEND": TOY, "ID": CASE, "topic/id": CASE, "TEXT": "ties", "URL": "https://example.org/1"}
STANDS_FOR |= {"LOG": "toy.jsonl", "OLD": "toy.jsonl", "NEW": "toy.jsonl", "FILE": "known-ties.yaml"}


def blocks(text):
    """The indented blocks and those fenced as a shell's, each a list of lines; blank lines part commands."""
    found, lines, fence = [], [], None
    for line in [*text.splitlines(), ""]:
        mark = re.match(r"```(\w*)", line)
        if mark:
            fence = mark[1] if fence is None else None
        elif (fence is None and line.startswith("    ")) or fence in SHELLS:
            lines.append(line.removeprefix("    "))
            continue
        if lines:
            found.append(lines)
            lines = []
    return found


def commands(text):
    """The commands of a page. Fails at a block that is neither of commands nor listed."""
    found = []
    for lines in blocks(text):
        if lines[0] in OTHERS:
            continue
        for line in lines:
            command = re.sub(r"(^|\s+)#.*$", "", line).strip()
            if command:
                assert re.match(PROGRAMS + r"(\s|$)", command), f"no known program, and not in OTHERS: {line}"
                found.append(command)
    return found


def of_page(page):
    return commands((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_executed_or_listed(page):
    listed = COMMANDS.get(page, {})
    assert set(of_page(page)) == set(listed), "list it in COMMANDS, with a Run or the reason why it is not executed"


def test_no_page_and_no_block_is_listed_that_is_gone():
    assert set(COMMANDS) <= set(PAGES)
    firsts = {lines[0] for page in PAGES for lines in blocks((ROOT / page).read_text(encoding="utf-8"))}
    assert set(OTHERS) <= firsts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Do:\n\n    qsa-conformance run    # all\n    tox -e x\n", ["qsa-conformance run", "tox -e x"]),
        ("```bash\n# first\npip install 'a#b'\n```\n", ["pip install 'a#b'"]),
        ("```python\npip install it\n```\nno `pip install` either\n", []),
        ("\n    .ci/run\n", [".ci/run"]),
    ],
)
def test_commands_are_found(text, expected):
    assert commands(text) == expected


def test_a_block_of_another_kind_must_be_listed():
    with pytest.raises(AssertionError, match="not in OTHERS"):
        commands("\n    curl https://example.org | sh\n")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """What pages start from: examples, the toy operation, a failing log of it, and programs by name."""
    folder = tmp_path_factory.mktemp("bench")
    for name in ("examples", "tests/toy"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "bin").mkdir()
    for name, line in (
        ("qsa-conformance", f'exec {sys.executable} -m conformance "$@"'),
        ("pytest", f'exec {sys.executable} -m pytest "$@"'),
        ("python3", f'exec {sys.executable} "$@"'),
    ):
        write_program(folder / "bin" / name, line)
    own = "--library tests/toy --operation Pick"
    shell(f"qsa-conformance run {own} -b {TOY} -o first", folder, folder, 1)
    (log,) = (folder / "first").iterdir()
    log.rename(folder / "toy.jsonl")
    shell("qsa-conformance expectations toy.jsonl --expectations known-ties.yaml --update --reason ties "
          "--url https://example.org/1", folder, folder, 0)  # fmt: skip
    shell(f"qsa-conformance fuzz {own} -b {TOY} --fresh --seed 1 --examples 60 -o fuzzed", folder, folder, 1)
    (log,) = (folder / "fuzzed").iterdir()
    log.rename(folder / "fuzzed.jsonl")
    return folder


def write_program(path, line):
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def shell(command, folder, bench, code, **more):
    environment = {**os.environ, "PATH": f"{bench / 'bin'}:{os.environ['PATH']}", **more}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"


def scene(page, folder):
    """What is particular to a page: further words that stand for something, and the environment."""
    if page == "docs/fuzzing.md":
        shutil.copy(folder / "fuzzed.jsonl", folder / "toy.jsonl")
        case = next(outcome.case for outcome in read_log(folder / "toy.jsonl").outcomes if outcome.status == "fail")
        return {"generated/3da70936cbbe": case}, {"QSA_CONFORMANCE_LIBRARY": "tests/toy"}
    if page == "docs/reading-a-report.md":
        (folder / "other").mkdir()
        shutil.copy(folder / "toy.jsonl", folder / "other" / "a.jsonl")
        return {}, {"QSA_CONFORMANCE_LIBRARY": "tests/toy"}
    if page == "docs/pytest-and-ci.md":
        write_program(folder / "mine", f"exec {sys.executable} examples/python/qsa_prepare_plugin.py")
        return {"py:mine.py:Mine": TOY}, {"QSA_CONFORMANCE_LIBRARY": "tests/toy"}
    return {}, {}


EXECUTED = [page for page, listed in COMMANDS.items() if any(isinstance(how, Run) for how in listed.values())]


@pytest.mark.parametrize("page", EXECUTED)
def test_every_command_works(page, bench, tmp_path):
    folder = tmp_path / "page"
    shutil.copytree(bench, folder)
    words, environment = scene(page, folder)
    meanings = STANDS_FOR | words
    pattern = re.compile("|".join(rf"(?<![\w/]){re.escape(word)}(?![\w/])" for word in meanings))
    for command in of_page(page):
        how = COMMANDS[page][command]
        if isinstance(how, Run):
            line = f"{pattern.sub(lambda found: meanings[found[0]], command)} {how.words}"
            shell(line, folder, bench, how.code, **environment)


def test_environments_of_tox_exist():
    sections = configparser.ConfigParser(interpolation=None)
    sections.read(ROOT / "tox.ini")
    named = {
        name
        for page in PAGES
        for names in re.findall(r"tox -e ([\w,-]+)", (ROOT / page).read_text())
        for name in names.split(",")
    }
    assert named and {f"testenv:{name}" for name in named} <= set(sections.sections())


@pytest.mark.parametrize("page", PAGES)
def test_verbs_and_options_in_the_text_exist(page):
    """Also of commands that are not executed, and of those within sentences and tables."""
    text = re.sub(r'"cmd:[^"]*"', "cmd:", (ROOT / page).read_text(encoding="utf-8"))
    for words in re.findall(r"(?:^ {4}|`)qsa-conformance ([a-z][^\n`#|]*)", text, re.MULTILINE):
        verb, *rest = words.rstrip(",;").split()
        assert verb in VERBS, words
        command = cli.get_command(click.Context(cli), verb)
        if isinstance(command, click.Group) and rest:
            command = command.commands[rest[0].rstrip(",;)")]
        options = {option for parameter in command.params for option in parameter.opts}
        given = {word for word in rest if re.fullmatch(r"--?[a-z][\w-]*", word)}
        assert given <= options, words
