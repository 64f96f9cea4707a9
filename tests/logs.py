"""Logs for tests of the reports: real cases, outcomes made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
from conformance.judging.engine import Outcome
from conformance.judging.judge import Worst
from conformance.library.reading import Library
from conformance.record.log import Log, PerfRecord
from conformance.record.writer import resealed
from conformance.running.run import Plan, execute

FROZEN = Path(__file__).parent / "data" / "log-schema-1.jsonl"

WORST = Worst(
    output="block_index_keys",
    region="rotated",
    clause="ROT-1",
    index=(0, 1, 2),
    got="1.25",
    want="-0.5",
    got_hex="0x3FA00000",
    want_hex="0xBF000000",
    error=1.75,
    bound=1e-6,
    ratio=1.75e6,
    ulps=2.9e7,
)


def reseal(path: Path) -> None:
    """Give an edited log the digest of what it holds now, as whoever forges one would."""
    path.write_bytes(resealed(path.read_bytes()))


def outcome(case, status="pass", **more):
    """An outcome of a case, by default one that passed with a third of the bound used."""
    plain = {"verdicts": 3, "headroom": {"ROT-1": 0.3}, "seconds": 0.001}
    if status == "fail":
        plain |= {"clause": case.clauses[0], "where": "single call", "reason": "it is wrong", "worst": WORST}
    if status == "error":
        plain |= {"clause": case.clauses[0], "where": "single call", "reason": "raises OSError: gone"}
    if status == "unsupported":
        plain |= {"feature": "f16", "reason": "mine takes f32 only"}
    return Outcome(case=case.id, digest=case.digest, status=status, **{**plain, **more})


def part(library: Library, count: int = 12) -> Library:
    """A library of a few cases of the whole one, spread over it."""
    return Library(library.operation, library.cases[:: len(library.cases) // count][:count], count)


def made(library: Library, outcomes, path: Path | None = None, *, connect="mine", version="1.0", **plan) -> Log:
    """The log of a complete run of this library with these outcomes, as `run` writes it."""
    info = replace(NumPyReference().describe(), name=connect, version=version, vendor="me")
    plan = {"complete": True, **plan}
    return execute(Plan(connect, library.cases, **plan), library, info, outcomes, path)


def passing(library: Library, path: Path | None = None, **more) -> Log:
    """A log in which everything passed."""
    return made(library, [outcome(case) for case in library.cases], path, **more)


def mixed(library: Library, path: Path | None = None, **more) -> Log:
    """A log in which the statuses take turns: fail, error, quality-warning, unsupported, pass, pass."""
    turns = ("fail", "error", "quality-warning", "unsupported", "pass", "pass")
    outcomes = [outcome(case, turns[i % len(turns)]) for i, case in enumerate(library.cases)]
    return made(library, outcomes, path, **more)


def interrupted(log: Log, keep: int) -> Log:
    """The log as it is when the run ends after this many cases."""
    results = dict(list(log.results.items())[:keep])
    return msgspec.structs.replace(log, results=results, footer=None)


def timed(log: Log, **numbers) -> Log:
    """The log with a perf record for each of three lengths; numbers in place of the usual ones."""
    records = []
    for tokens in (1024, 4096, 16384):
        usual = {
            "backend": log.header.backend.connect, "tokens": tokens, "sequences": 1, "element_type": "f32",
            "block_size": 4, "width": 128, "median_s": tokens * 1e-7, "low_s": tokens * 0.9e-7,
            "high_s": tokens * 1.1e-7, "bytes": tokens * 640, "bytes_per_s": 6.4e9, "copy_bytes_per_s": 1e10,
            "share": 0.64, "ratio": 0.25, "ratio_says": "faster", "ratio_p": 0.001,
            "peak_bytes": 1 << 20, "growth": 1.0,
        }  # fmt: skip
        records.append(PerfRecord(f"prefill[L={tokens}]", {**usual, **numbers}))
    return msgspec.structs.replace(log, perf=tuple(records))
