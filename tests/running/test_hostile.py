"""Nothing that a plug-in does ends a run, fools the judge or outlives it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

FAKES = Path(__file__).parent / "hostile.py"
CASES = ("-k", "by-hand and nrm-mean and f32")


def run(name, *arguments, verb="run", cases=CASES):
    command = [sys.executable, "-m", "conformance", verb, "-b", f"py:{FAKES}:{name}", *cases, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def results(folder):
    (path,) = Path(folder).glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [line["outcome"] for line in lines if line["record"] == "result"]


PLACES = [("--jobs", 1), ("--jobs", 2), ("--isolate",)]
ERRORS = {
    "RaisesSystemExit": "raises SystemExit",
    "RaisesGeneratorExit": "raises GeneratorExit",
    "RaisesKeyboardInterrupt": "raises KeyboardInterrupt",
    "RaisesUnprintable": "raises Unprintable",
    "RaisesSurrogate": r"raises ValueError: \ud800 \x1b[31m red \u202e",
    "UnsupportedByNumber": "raises Unsupported",
    "RejectedByNumber": "raises Rejected",
    "BadMapping": "raises SystemExit",
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(map(str, place)))
@pytest.mark.parametrize("name", ERRORS)
def test_what_is_raised_is_an_error_of_the_case(name, place, tmp_path):
    done = run(name, *place, "-o", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    found = results(tmp_path)
    assert found
    assert all(one["status"] == "error" and one["reason"].startswith(ERRORS[name]) for one in found), found


@pytest.mark.parametrize("place", [(), ("--jobs", 2), ("--isolate",)], ids=lambda place: "-".join(map(str, place)))
@pytest.mark.parametrize("name", ["Exits", "ClosesDescriptors"])
def test_a_process_that_is_lost_costs_its_cases(name, place, tmp_path):
    done = run(name, *place, "-o", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert {one["status"] for one in results(tmp_path)} == {"error"}
    assert {one["lost"] for one in results(tmp_path)} == {"crash"}


@pytest.mark.parametrize("place", [("--jobs", 2), ("--isolate",)], ids=lambda place: "-".join(map(str, place)))
def test_writing_to_every_descriptor_does_not_end_the_run(place, tmp_path):
    done = run("WritesDescriptors", *place, "-o", tmp_path)
    assert done.returncode in (1, 4)
    assert "Traceback" not in done.stderr
    assert results(tmp_path)


def test_printing_is_harmless(tmp_path):
    done = run("Prints", "--isolate", "-o", tmp_path)
    assert {one["status"] for one in results(tmp_path)} == {"pass"}
    assert "hello" not in done.stdout


@pytest.mark.parametrize("place", [("--jobs", 1), ("--jobs", 2), ("--isolate",)], ids=lambda p: "-".join(map(str, p)))
@pytest.mark.parametrize("name", ["ExitsInInit", "HangsInInit", "HangsInDescribe"])
def test_a_backend_that_does_not_get_ready_is_unusable(name, place):
    done = run(name, *place, "--time-limit", 2)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_backend_that_ends_its_process_at_once_is_unusable():
    assert run("DiesInInit").returncode == 3


def test_a_judge_that_the_plugin_replaces_is_not_asked(tmp_path):
    done = run("Forges", "--isolate", "-o", tmp_path)
    assert done.returncode == 1
    assert {one["status"] for one in results(tmp_path)} == {"fail"}


@pytest.mark.parametrize("place", [("--jobs", 2), ("--isolate",)], ids=lambda place: "-".join(map(str, place)))
def test_children_in_sessions_of_their_own_are_ended(place, tmp_path):
    mark = tmp_path / "mark"
    run(f"LeavesAChild,mark={mark}", *place)
    number = int(mark.read_text())
    end = time.monotonic() + 5
    while psutil.pid_exists(number) and psutil.Process(number).status() != "zombie" and time.monotonic() < end:
        time.sleep(0.05)
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == "zombie"


VOLATILE = ("seconds", "started", "argv", "digest")  # the digest is of results with their times


def plain(record):
    return {name: value for name, value in record.items() if name not in VOLATILE}


@pytest.mark.parametrize("connect", ["numpy", "fault:F23"])
def test_all_places_write_the_same_records(connect, tmp_path):
    found = {}
    for number, place in enumerate(PLACES):
        folder = tmp_path / str(number)
        command = [
            sys.executable,
            "-m",
            "conformance",
            "run",
            "--operation",
            "QSAPrepare",
            "-b",
            connect,
            "-k",
            "by-hand",
            *map(str, place),
        ]
        subprocess.run([*command, "-o", folder], capture_output=True, timeout=120)
        (path,) = folder.glob("*.jsonl")
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        found[place] = {
            "cases": {r["case"]["id"] if isinstance(r["case"], dict) else r["digest"]: r
                      for r in lines if r["record"] == "case"},
            "results": sorted(
                json.dumps({**plain(r), "outcome": plain(r["outcome"])}, sort_keys=True)
                 for r in lines if r["record"] == "result"
            ),
            "rest": [plain(r) for r in lines if r["record"] in ("header", "footer")],
        }  # fmt: skip
    first = found[PLACES[0]]
    assert first["results"]
    for place in PLACES[1:]:
        for what, records in found[place].items():
            assert records == first[what], (place, what)
