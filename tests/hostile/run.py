"""Hostile inputs of every kind, given to the installed command: none may hang, crash, fool or flood it.

Run as `python tests/hostile/run.py [-k WORD]`. Each sample is one run of `qsa-conformance` in a folder of its own. It
must end in time, with one of the exit codes that the sample allows, without a traceback, without raw control
characters, within 1 GiB of memory and a megabyte of output. Exit code 1 when a sample does not.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from samples import Sample, all_samples

COMMAND = [sys.executable, "-m", "conformance"]
MEMORY = 1 << 30  # bytes resident, of the command and of each of its children
OUTPUT = 1 << 20
CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")


@dataclass(frozen=True)
class Ran:
    """How a sample ended."""

    sample: Sample
    seconds: float
    problems: tuple[str, ...]
    output: str


def run(sample: Sample) -> Ran:
    """One sample, in a folder that is removed again."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as place:
        folder = Path(place)
        sample.make(folder)
        home = folder / "home"
        home.mkdir(exist_ok=True)
        out, err = folder / "stdout", folder / "stderr"
        start = time.perf_counter()
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*COMMAND, *sample.arguments],
                stdout=sample.stdout.open("wb") if sample.stdout else stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, "QSA_HOSTILE": "1"},
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(sample.seconds)
            except subprocess.TimeoutExpired:
                code = None
                os.killpg(process.pid, 9)
                process.wait()
        seconds = time.perf_counter() - start
        said = out.read_bytes()[: 2 * OUTPUT] + err.read_bytes()[: 2 * OUTPUT]
    return Ran(sample, seconds, tuple(judged(sample, code, said)), said[-2000:].decode("utf-8", "replace"))


def judged(sample: Sample, code: int | None, said: bytes) -> list[str]:
    """What is wrong with the way a sample ended."""
    problems = []
    if code is None:
        problems.append(f"hangs: not done after {sample.seconds:g} s")
    elif code not in sample.codes:
        problems.append(f"exit code {code}, not {' or '.join(map(str, sample.codes))}")
    if b"Traceback (most recent call last)" in said and not sample.shows_traceback:
        problems.append("prints a traceback")
    if CONTROL.search(said):
        problems.append("prints control characters")
    if len(said) > OUTPUT:
        problems.append("prints more than a megabyte")
    if sample.says and sample.says not in said.decode("utf-8", "replace"):
        problems.append(f"does not say '{sample.says}'")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", metavar="WORD", help="only samples whose name holds this")
    word = parser.parse_args().k
    chosen = [sample for sample in all_samples() if word in sample.name]
    bad = 0
    start = time.perf_counter()
    for sample in chosen:
        ran = run(sample)
        if ran.problems:
            bad += 1
            print(f"FAILED {sample.name} ({ran.seconds:.1f} s): {'; '.join(ran.problems)}\n{ran.output}\n", flush=True)
    # What a child takes is counted from what this process held when it began, which is kept small for that.
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    if largest > MEMORY:
        bad += 1
        print(f"FAILED: a process took {largest >> 20} MiB")
    spent = time.perf_counter() - start
    print(f"largest process {largest >> 20} MiB, {spent:.0f} s\n{len(chosen) - bad} passed, {bad} failed")
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
