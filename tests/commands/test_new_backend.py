"""`new-backend`: what it writes runs at once, refuses by the operation's data, and can be filled in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.backends.protocol import OperationConfig
from conformance.backends.skeleton.render import FOLDER, class_name
from conformance.record.log import read_log

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp" / "qsa_prepare_plugin.cpp"
FULL_PYTHON = (('("f32",),', '("f32", "f16", "bf16"),'), ('# "rope",', '"rope",'), ('# "norm",', '"norm",'),
               ('# "left_padding",', '"left_padding",'))  # fmt: skip
FULL_CPP = (('["f32"]', '["f32","f16","bf16"]'), ('"features":[]', '"features":["rope","norm","left_padding"]'))


@pytest.fixture
def written(cli, tmp_path, monkeypatch):
    """Writes a skeleton; its text with some replacements."""
    monkeypatch.chdir(tmp_path)

    def write(file, replacements=()):
        code, out, err = cli("new-backend", file)
        assert (code, err) == (0, "")
        path = tmp_path / file
        text = path.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return path, out

    return write


@pytest.fixture(scope="session")
def compiler():
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("there is no C++ compiler")
    return found


def run(cli, connect, folder, *filters):
    code, out, err = cli("run", "-b", connect, "-o", folder, "--no-diagnosis", *filters)
    (path,) = Path(folder).glob("*.jsonl")
    return code, {outcome.case: outcome for outcome in read_log(path).outcomes}, out + err


def connected(path, compiler=None):
    if path.suffix == ".py":
        return f"py:{path}:Mine"
    program = path.with_suffix("")
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    subprocess.run([compiler, *flags, "-o", program, path], check=True)
    return f"cmd:{program}"


@pytest.mark.parametrize("file", ["mine.py", "mine.cpp"])
def test_it_runs_at_once_and_says_what_is_missing(cli, written, compiler, tmp_path, file):
    path, out = written(file)
    assert "next:" in out
    code, outcomes, said = run(cli, connected(path, compiler), tmp_path / "log", "--quick")
    assert code == 4
    assert {outcome.status for outcome in outcomes.values()} == {"pass", "unsupported"}
    assert "does not compute anything yet" in said


@pytest.mark.parametrize(("file", "full"), [("mine.py", FULL_PYTHON), ("mine.cpp", FULL_CPP)])
def test_every_refusal_is_the_right_one(cli, written, compiler, tmp_path, library, file, full):
    path, _ = written(file, full)
    _, outcomes, _ = run(cli, connected(path, compiler), tmp_path / "log", "-k", "refusals")
    assert len(outcomes) == sum(case.refusal is not None for case in library.cases)
    assert {id: o.reason for id, o in outcomes.items() if o.status != "pass"} == {}


def test_where_it_is_filled_in_it_is_judged(cli, written, tmp_path):
    body = "from reference.qsa_prepare import QSAPrepare; return QSAPrepare(r, self.epsilon).run(inputs)"
    empty = 'raise Unsupported("QSAPrepare", "this skeleton does not compute anything yet")'
    path, _ = written("mine.py", [*FULL_PYTHON, (empty, body)])
    code, outcomes, _ = run(cli, connected(path), tmp_path / "log", "--quick")
    assert (code, {outcome.status for outcome in outcomes.values()}) == (4, {"pass"})


def test_zeros_fail(cli, written, tmp_path):
    """Without the sentence that says so, the empty place fails; shapes and types are right as they stand."""
    path, _ = written("mine.py", [*FULL_PYTHON, ("raise Unsupported(", "max(")])
    code, outcomes, _ = run(cli, connected(path), tmp_path / "log", "--quick")
    assert code == 1
    reasons = {o.reason for o in outcomes.values() if o.status == "fail"}
    assert reasons and not any("shape" in reason or "type" in reason for reason in reasons)


def test_it_passes_every_check_but_for_calls(cli, written):
    path, _ = written("mine.py")
    code, out, _ = cli("backend", "check", f"py:{path}:Mine")
    assert (code, "does not compute anything yet" in out) == (1, True)


def test_a_file_is_not_overwritten(cli, written, tmp_path):
    path, _ = written("mine.py")
    path.write_text("precious")
    code, _, err = cli("new-backend", "mine.py")
    assert (code, path.read_text()) == (2, "precious")
    assert "'mine.py' is there already; --force overwrites it" in err
    assert cli("new-backend", "mine.py", "--force")[0] == 0
    assert "class Mine" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine.rs"], "'mine.rs' has to end in .py"),
        (["mine"], "has to end in .py"),
        (["nowhere/mine.py"], "cannot be written: No such file or directory"),
        (["mine.py", "--operation", "QSAPrepar"], "no operation 'QSAPrepar' (did you mean 'QSAPrepare'?)"),
    ],
)
def test_wrong_usage(cli, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("new-backend", *arguments)
    assert (code, words in err) == (2, True), err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("stem", "name"),
    [("mine", "Mine"), ("my-kernel", "MyKernel"), ("my_kernel_2", "MyKernel2"), ("2nd", "Backend2nd"), ("...", "Mine")],
)
def test_names_of_classes(stem, name):
    assert class_name(stem) == name


def test_the_class_is_named_after_its_file(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = cli("new-backend", "my-kernel.py")
    assert (code, "py:my-kernel.py:MyKernel" in out) == (0, True)
    assert "class MyKernel:" in (tmp_path / "my-kernel.py").read_text()


def test_another_operation_is_unsupported(cli, written, monkeypatch):
    path, _ = written("mine.py")
    monkeypatch.syspath_prepend(path.parent)
    from conformance.backends.connect import connect
    from conformance.backends.protocol import Unsupported

    with pytest.raises(Unsupported):
        connect(f"py:{path}:Mine").prepare(OperationConfig("Other", {}, "f32", "i64", frozenset()))


def test_the_general_parts_of_both_programs_are_the_same():
    """JSON, base64 and tensors stand in the example and in the skeleton: a mistake is mended in both."""
    template = (FOLDER / "backend.cpp.jinja").read_text().replace("[[maybe_unused]] Tensor zeros", "Tensor zeros")
    for heading in ("JSON", "base64", "tensors"):
        parts = [
            re.search(rf"// -+ {heading}\n(.*?)\n// ---", text, re.DOTALL) for text in (template, EXAMPLE.read_text())
        ]
        assert parts[0] and parts[1] and parts[0][1] == parts[1][1]


def test_a_skeleton_is_tidy(written):
    path, _ = written("mine.py")
    assert max(map(len, path.read_text().splitlines())) <= 120
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore", "F841,I001", path], check=False
    )
    assert done.returncode == 0
