"""The composite GitHub Action: its steps, executed in a clean folder as a runner would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def execute(folder: Path, **inputs: str) -> tuple[dict[str, dict[str, str]], int]:
    """Run the steps that have a script, but for the installation; outputs by step, and the code of the last one."""
    given = {name: one.get("default", "") for name, one in ACTION["inputs"].items()} | inputs
    outputs: dict[str, dict[str, str]] = {}
    code = 0
    for step in ACTION["runs"]["steps"]:
        if "run" not in step or step["name"] == "Install":
            continue

        def filled(text: str) -> str:
            text = re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: given[m[1]], text)
            return re.sub(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", lambda m: outputs[m[1]][m[2]], text)

        out = folder / "outputs"
        out.write_text("")
        environment = os.environ | {name: filled(text) for name, text in step.get("env", {}).items()}
        environment |= {"GITHUB_OUTPUT": str(out), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        assert "${{" not in step["run"], "scripts take inputs from the environment, so that none is executed"
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        code = done.returncode
        outputs[step.get("id", step["name"])] = dict(line.split("=", 1) for line in out.read_text().splitlines())
        if step["name"] != "Judge":
            assert code == 0, done.stdout + done.stderr
    return outputs, code


@pytest.mark.parametrize(
    ("backend", "verdict", "code"), [("numpy", "INCOMPLETE", 4), ("fault:F02", "NOT CONFORMANT", 1)]
)
def test_the_steps_of_the_action(tmp_path, backend, verdict, code):
    few = "--case by-hand/blk-none-completed --case by-hand/blk-many-completed --jobs 1"
    outputs, ended = execute(tmp_path, backend=backend, operation="QSAPrepare", arguments=few)
    assert (outputs["reports"]["verdict"], ended) == (verdict, code)
    kinds = {path.suffix for path in (tmp_path / "conformance").iterdir()}
    assert kinds == {".jsonl", ".xml", ".html"}
    assert "clauses" in (tmp_path / "summary.md").read_text()
