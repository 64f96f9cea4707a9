"""Which package may import which, and that generic code knows no operation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from conformance.library.operations import load_operation, operations

ROOT = Path(__file__).parents[1]
CODE = ROOT / "conformance"
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
# The operation of a plug-in that names none, as the protocol has it, and the folder that it is in.
DEFAULTS = {
    "backends/protocol.py": {"QSAPrepare"},
    "backends/plugin/wire.py": {"QSAPrepare"},
    "library/operations.py": {"qsa_prepare"},
}

LINES = 400
# What is longer, and why.
LONGER = {"reference/parts.py": "the kinds of parts of an output, each with the same methods"}


def children(folder):
    """The modules and packages of a package."""
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()} - {
        "__init__"
    }


@pytest.fixture
def copy(tmp_path):
    """The packages with the contracts on their imports, to break one."""
    for name in ("conformance", "reference"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def linted(folder):
    """The exit code and the output of the check that CI makes."""
    script = f"import sys; sys.path.insert(0, {str(folder)!r}); from importlinter.cli import lint_imports; "
    script += "sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_forbidden_import_is_found(copy):
    code, output = linted(copy)
    assert code == 0, output
    with (copy / "conformance" / "spec" / "case.py").open("a") as file:
        file.write("\n\ndef late():\n    from conformance.commands import run\n    return run\n")
    with (copy / "reference" / "parts.py").open("a") as file:
        file.write("\nimport conformance\n")
    code, output = linted(copy)
    assert code == 1 and "conformance.spec is not allowed to import conformance.commands" in output
    assert "reference is not allowed to import conformance" in output


def test_every_package_has_its_layer():
    named = {name.strip() for layer in LAYERS for name in re.split("[|:]", layer)}
    assert {f"conformance.{name}" for name in children(CODE) - {"backends"}} <= named
    assert {f"conformance.backends.{name}" for name in children(CODE / "backends")} <= named


def words():
    """What only the folders of an operation may name: operations, ports, outputs, clauses."""
    found = set()
    for folder in operations():
        operation = load_operation(folder)
        found |= {operation.operation, folder, *operation.clause}
        found |= {name for name in (*operation.port, *operation.output) if "_" in name}
    return found


def test_generic_code_names_no_operation_port_output_or_clause():
    names = "|".join(sorted(map(re.escape, words()), key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w.-])(?:{names})(?![\w-])")
    wrong = []
    for path in sorted(
        [*CODE.rglob("*.py"), *CODE.rglob("*.jinja"), *CODE.rglob("*.html"), *(ROOT / "reference").glob("*.py")]
    ):
        if set(path.parts) & set(operations()):
            continue
        allowed = DEFAULTS.get(path.relative_to(CODE).as_posix() if path.is_relative_to(CODE) else "", set())
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := set(pattern.findall(line)) - allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {', '.join(sorted(found))}")
    assert wrong == []


def test_generic_code_imports_nothing_of_one_operation():
    pattern = re.compile(rf"^\s*(?:from|import) [\w.]+\.(?:{'|'.join(operations())})\b", re.MULTILINE)
    paths = [path for path in CODE.rglob("*.py") if not set(path.parts) & set(operations())]
    assert len(paths) > 100
    assert [path.relative_to(ROOT).as_posix() for path in paths if pattern.search(path.read_text())] == []


def test_modules_stay_readable():
    paths = [*CODE.rglob("*.py"), *(ROOT / "reference").rglob("*.py")]
    long = {p.relative_to(ROOT).as_posix() for p in paths if len(p.read_text().splitlines()) > LINES}
    assert long == set(LONGER)
