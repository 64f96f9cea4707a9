"""The examples and the guide do what they say: they are built, checked and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from conformance.backends.plugin.schemas import schemas
from conformance.record.log import read_log

ROOT = Path(__file__).parents[1]
EXAMPLES, DOCS = ROOT / "examples", ROOT / "docs"
# The whole library on every example takes a minute or two; without this a spread of it is run.
WHOLE = bool(os.environ.get("QSA_WHOLE_LIBRARY"))


def conformance(*arguments, **more):
    environment = {**os.environ, **more}
    line = [sys.executable, "-m", "conformance", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="session")
def cpp(tmp_path_factory):
    """Connect string of the C++ example, built without a warning."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    program = tmp_path_factory.mktemp("cpp") / "qsa_prepare_plugin"
    source = EXAMPLES / "cpp" / "qsa_prepare_plugin.cpp"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    subprocess.run([compiler, *flags, "-o", program, source], check=True)
    return f"cmd:{program}"


@pytest.fixture(scope="session")
def python():
    return f"cmd:{sys.executable} {EXAMPLES / 'python' / 'qsa_prepare_plugin.py'}"


def run(connect, folder, **more):
    """The log of a run on a spread of the library, or on all of it."""
    done = conformance("run", "-b", connect, "-o", folder, *([] if WHOLE else ["--quick"]), **more)
    assert done.returncode == (0 if WHOLE else 4), done.stdout + done.stderr
    (path,) = folder.glob("*.jsonl")
    log = read_log(path)
    assert log.footer.verdict == ("CONFORMANT" if WHOLE else "INCOMPLETE")
    return log


@pytest.mark.parametrize("example", ["cpp", "python"])
def test_a_plugin_conforms_in_all_types_and_features(example, request, tmp_path):
    log = run(request.getfixturevalue(example), tmp_path)
    assert {outcome.status for outcome in log.outcomes} == {"pass"}
    cases = [record.case for record in log.cases.values()]
    assert {case.element_type for case in cases} == {"f32", "f16", "bf16"}
    assert {feature for case in cases for feature in case.disabled} == {"rope", "norm"}
    assert any(case.refusal for case in cases)
    assert any(any(case.pad) for case in cases)


@pytest.mark.parametrize("example", ["cpp", "python"])
def test_a_plugin_has_follows_the_protocol(example, request):
    done = conformance("backend", "check", request.getfixturevalue(example))
    assert "17 checks: 17 ok, 0 note, 0 wrong" in done.stdout
    assert done.returncode == 0


HOSTILE = [
    b"",
    b"{",
    b"nonsense",
    b'"text"',
    b"[1, 2",
    b'{"id": 1}',
    b'{"id": 1, "message": "run", "session": 9}',
    b'{"id": 1, "message": "a\\u00e9\\ud83d\\ude00\\n"}',
    b'{"id": 1, "message": "prepare", "session": 1}',
    b'{"id": 1, "message": "prepare", "session": 1, "attributes": {}, "element_type": "f32"}',
]


@pytest.mark.parametrize("line", HOSTILE)
def test_the_cpp_example_answers_anything_with_an_error(cpp, line):
    done = subprocess.run(cpp.removeprefix("cmd:"), input=line + b'\n{"id":2,"message":"bye"}\n', capture_output=True)
    assert done.returncode == 0
    first, last = map(json.loads, done.stdout.splitlines())
    jsonschema.Draft202012Validator(schemas()["answers/error.json"]).validate(first)
    assert last == {"id": 2, "answer": "bye"}


def install(folder):
    """Install the package in folder/source into folder/target, without a network."""
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]
    line = [sys.executable, "-m", "pip", "install", *options, "--target", folder / "target", folder / "source"]
    subprocess.run(line, check=True)
    return folder / "target"


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Folder that the example package is installed into, from a copy."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(EXAMPLES / "entry_point", folder / "source")
    return install(folder)


def test_an_installed_package_registers_its_backend(installed, tmp_path):
    log = run("example", tmp_path, PYTHONPATH=str(installed))
    statuses = {outcome.status for outcome in log.outcomes}
    assert statuses == {"pass", "unsupported"}
    assert log.header.backend.vendor == "qsa-conformance examples"
    unknown = conformance("run", "-b", "example", "--quick")
    assert (unknown.returncode, "no backend 'example'" in unknown.stderr) == (3, True)


def test_the_package_works_under_other_names(tmp_path):
    """Project, folder and backend are renamed, as whoever starts from the example does."""
    shutil.copytree(EXAMPLES / "entry_point", tmp_path / "source")
    (tmp_path / "source" / "qsa_example_backend").rename(tmp_path / "source" / "acme_sparse")
    project = tmp_path / "source" / "pyproject.toml"
    text = project.read_text()
    for old, new in (
        ('"qsa-example-backend"', '"acme-sparse"'),
        ('example = "qsa_example_backend:', 'acme = "acme_sparse:'),
    ):
        assert old in text
        text = text.replace(old, new)
    project.write_text(text)
    done = conformance("run", "-b", "acme", "--quick", "-k", "position", PYTHONPATH=str(install(tmp_path)))
    assert (done.returncode, done.stderr) == (4, "")
    assert "acme: INCOMPLETE" in done.stdout


def test_an_installed_package_runs_in_workers(installed, tmp_path):
    done = conformance("run", "-b", "example", "--quick", "-k", "position", "--jobs", 2, PYTHONPATH=str(installed))
    assert (done.returncode, done.stderr) == (4, "")


# The guide


def block(page, mark):
    """The code block of a page that follows a mark."""
    return re.search(rf"<!-- {mark} -->\n```\w*\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[1]


@pytest.mark.parametrize("page", ["write-a-backend.md", "../README.md"])
def test_the_class_of_the_guide_runs_as_it_stands(tmp_path, page):
    (tmp_path / "mine.py").write_text(block(page, "class"))
    log = run(f"py:{tmp_path / 'mine.py'}:Mine", tmp_path / "log")
    assert {outcome.status for outcome in log.outcomes} == {"pass", "unsupported"}


def test_the_conversation_of_the_page_is_true(cpp):
    lines = block("backend-protocol.md", "conversation").splitlines()
    requests = [line[2:] for line in lines if line.startswith("> ")]
    answers = [json.loads(line[2:]) for line in lines if line.startswith("< ")]
    assert len(requests) == len(answers) == len(lines) / 2
    for request, answer in zip(map(json.loads, requests), answers, strict=True):
        for folder, kind, message in (("requests", "message", request), ("answers", "answer", answer)):
            jsonschema.Draft202012Validator(schemas()[f"{folder}/{message[kind]}.json"]).validate(message)
    done = subprocess.run(cpp.removeprefix("cmd:"), input="\n".join(requests), capture_output=True, text=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == answers


def test_links_of_the_pages_lead_somewhere():
    for page in ("backend-protocol.md", "write-a-backend.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text()):
            assert (DOCS / target).exists(), f"{page}: {target}"


def test_the_guide_names_what_there_is():
    text = (DOCS / "write-a-backend.md").read_text()
    for path in re.findall(r"examples/[\w./]+", text):
        assert (ROOT / path).exists(), path
    entry = re.search(r'^    (example = ".*")$', text, re.MULTILINE)[1]
    assert entry in (EXAMPLES / "entry_point" / "pyproject.toml").read_text()


def test_an_example_needs_nothing_of_the_suite():
    for path in (EXAMPLES / "cpp", EXAMPLES / "python"):
        (source,) = path.iterdir() if path.name == "cpp" else path.glob("*.py")
        text = source.read_text()
        assert not re.search(r"import conformance|from conformance|import reference|from reference", text)
        includes = re.findall(r"#include (\S+)", text)
        assert all(re.fullmatch(r"<[a-z]+>", include) for include in includes)
