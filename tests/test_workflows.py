"""The workflows of CI, as far as that can be told without a runner: what they run, hand on and are allowed to do."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("website_pages", ROOT / "website" / "pages.py")
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yml"))}
JOBS = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"]]
TOX = configparser.ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini")
WRITES = {"publish": ROOT / "reports", "site": pages.SITE}  # by an environment of tox
# What a job may ask for beyond reading; GitHub Pages needs both.
WIDER = {("pages", "deploy"): {"pages": "write", "id-token": "write"}}


def steps(name: str, job: str) -> list[dict]:
    return WORKFLOWS[name]["jobs"][job]["steps"]


def commands(name: str, job: str) -> list[list[str]]:
    lines = [line for step in steps(name, job) for line in step.get("run", "").splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines]


def environments(name: str, job: str) -> list[str]:
    """Those of tox that a job runs, in their order."""
    named = [words[words.index("-e") + 1] for words in commands(name, job) if words[0] == "tox"]
    return [one for names in named for one in names.split(",")]


def uploaded(name: str, job: str) -> list[Path]:
    found = [step["with"]["path"] for step in steps(name, job) if "/upload-" in step.get("uses", "")]
    return [ROOT / path for path in found]


def test_there_are_workflows_with_jobs():
    assert WORKFLOWS.keys() == {"conformance", "pages"}
    assert [one for one in JOBS if one[0] == "pages"] == [("pages", "build"), ("pages", "deploy")]


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_every_command_is_one_that_there_is(name, job):
    for words in commands(name, job):
        if words[0] == "tox":
            assert words[1] == "run" and "-e" in words
        elif words[:4] == ["python", "-m", "pip", "install"]:
            assert words[4:] == [TOX["tox"]["requires"]], "tox, in the version that tox.ini asks for"
        else:
            program, path, *rest = words
            assert (program, rest) == ("cat", [">>", "$GITHUB_STEP_SUMMARY"])
            assert (ROOT / path).is_file()


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_every_environment_is_one_of_tox(name, job):
    assert {f"testenv:{one}" for one in environments(name, job)} <= set(TOX.sections())


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_what_tox_runs_is_there(name, job):
    """Programs of this repository by their path, and modules of it by their name."""
    for one in environments(name, job):
        for line in TOX[f"testenv:{one}"].get("commands", TOX["testenv"]["commands"]).split("\n"):
            words = line.split()
            if words[:1] == ["python"] and words[1].endswith(".py"):
                assert (ROOT / words[1]).is_file()
            if words[:2] == ["python", "-m"] and words[2].startswith("conformance"):
                assert (ROOT / f"{words[2].replace('.', '/')}.py").is_file()


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_a_job_uploads_what_its_environment_of_tox_writes(name, job):
    assert uploaded(name, job) == [WRITES[one] for one in environments(name, job) if one in WRITES]


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_actions_have_a_version_and_the_code_is_there_before_it_is_run(name, job):
    uses = [step["uses"] for step in steps(name, job) if "uses" in step]
    assert uses and all(re.fullmatch(r"actions/[\w-]+@v\d+", one) for one in uses)
    if commands(name, job):
        assert [one.partition("@")[0] for one in uses[:2]] == ["actions/checkout", "actions/setup-python"]
        assert "uses" in steps(name, job)[0] and "uses" in steps(name, job)[1]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_read_and_its_jobs_no_more_than_they_need(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for job, told in WORKFLOWS[name]["jobs"].items():
        assert told.get("permissions", {}) == WIDER.get((name, job), {})


def test_pages_are_deployed_from_the_main_branch_alone_after_they_were_built():
    workflow = WORKFLOWS["pages"]
    build_job, deploy = workflow["jobs"]["build"], workflow["jobs"]["deploy"]
    assert deploy["needs"] == "build"
    assert "github.event_name != 'pull_request'" in deploy["if"] and "github.ref == 'refs/heads/main'" in deploy["if"]
    assert deploy["environment"]["name"] == "github-pages"
    (action,) = deploy["steps"]
    assert action["uses"].startswith("actions/deploy-pages@")
    assert deploy["environment"]["url"] == f"${{{{ steps.{action['id']}.outputs.page_url }}}}"
    (upload,) = [step for step in build_job["steps"] if "upload-pages-artifact" in step.get("uses", "")]
    assert upload["if"] == "github.event_name != 'pull_request'", "a pull request builds and hands nothing on"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_the_version_of_python_is_one_that_the_package_takes(name):
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    least = re.search(r'requires-python = ">=3\.(\d+)"', text)
    for job in WORKFLOWS[name]["jobs"]:
        for step in steps(name, job):
            if "setup-python" in step.get("uses", ""):
                major, minor = step["with"]["python-version"].split(".")
                assert least and (major, int(minor) >= int(least[1])) == ("3", True)
                assert (ROOT / step["with"]["cache-dependency-path"]).is_file()
