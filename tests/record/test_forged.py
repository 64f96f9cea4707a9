"""A log is evidence: whatever contradicts its results is refused in a sentence, by every verb that reads one."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import resource
import subprocess
import sys

import pytest
from logs import FROZEN, made, mixed, outcome, part, passing, reseal

from conformance.errors import UsageError
from conformance.record.log import read_log
from conformance.record.verdict import standing

VERBS = (
    ("report", "{log}"),
    ("report", "{log}", "--format", "junit"),
    ("report", "{log}", "--format", "badge"),
    ("compare", "{log}", "{log}"),
    ("perf", "-b", "mine", "--conformance", "{log}"),
    ("publish", "{log}", "-o", "{folder}"),
    ("repro", "{log}", "{case}"),
    ("promote", "{log}", "{case}", "--to", "{folder}/x.yaml"),
    ("shrink", "{log}", "{case}"),
    ("run", "--resume", "{log}"),
    ("run", "--from-log", "{log}"),
    ("expectations", "{log}", "--expectations", "{folder}/x.yaml"),
)


@pytest.fixture(scope="module")
def few():
    from conformance.library.reading import load_library

    return part(load_library())


@pytest.fixture
def failing(few, tmp_path):
    """The lines of a log in which something fails, and its path."""
    log = mixed(few, tmp_path / "a.jsonl")
    return tmp_path / log.path


def edit(path, change):
    """Change the records of a log, without giving it another digest."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = change(lines) or lines
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def last_word(lines):
    lines[-1]["verdict"] = "CONFORMANT"


def counts(lines):
    wrong = lines[-1]["counts"]
    wrong["pass"] += wrong["fail"] + wrong["error"]
    wrong["fail"] = wrong["error"] = 0
    lines[-1]["verdict"] = "PARTIAL"


def results_turned(lines):
    """Statuses edited, and everything that follows from them."""
    for line in lines:
        if line["record"] == "result":
            line["outcome"]["status"] = "pass"
    lines[-1]["counts"] = dict.fromkeys(lines[-1]["counts"], 0) | {"pass": lines[0]["cases"]}
    lines[-1]["verdict"] = "CONFORMANT"


def failures_dropped(lines):
    bad = ("fail", "error")
    gone = [
        line["outcome"]["case"] for line in lines if line["record"] == "result" and line["outcome"]["status"] in bad
    ]
    kept = [x for x in lines if (x.get("outcome") or {}).get("case", (x.get("case") or {}).get("id")) not in gone]
    kept[-1]["counts"] |= dict.fromkeys(bad, 0)
    kept[-1]["verdict"] = "PARTIAL"
    kept[-1]["verdicts"] = sum(x["outcome"].get("verdicts", 0) for x in kept if x["record"] == "result")
    return kept


def twice(lines):
    return lines + lines


def headers(lines):
    return [lines[0], *lines]


def caseless(lines):
    return [line for line in lines if line["record"] != "case"]


def strange_status(lines):
    next(line for line in lines if line["record"] == "result")["outcome"]["status"] = "passed"


def swapped(lines):
    lines[1:5] = lines[3:5] + lines[1:3]


def other_header(lines):
    lines[0]["backend"]["name"] = "another"


def more_cases(lines):
    lines[0]["cases"] += 1


def result_added(lines):
    return [*lines[:-1], {"record": "result", "outcome": {**lines[2]["outcome"], "status": "pass"}}, lines[-1]]


def result_before_case(lines):
    lines[1], lines[2] = lines[2], lines[1]


FORGERIES = (
    last_word, counts, results_turned, failures_dropped, twice, headers, caseless, strange_status, swapped,
    other_header, more_cases, result_added, result_before_case,
)  # fmt: skip


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forged_log_is_refused(failing, forge):
    read_log(failing)
    edit(failing, forge)
    with pytest.raises(UsageError, match=re.escape(str(failing))) as caught:
        read_log(failing)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("forge", [f for f in FORGERIES if f not in (results_turned, swapped, other_header)])
def test_a_new_digest_does_not_help_what_contradicts_itself(failing, forge):
    edit(failing, forge)
    reseal(failing)
    with pytest.raises(UsageError):
        read_log(failing)


def test_a_digest_cannot_be_left_out(failing):
    edit(failing, lambda lines: lines[-1].pop("digest") and None)
    with pytest.raises(UsageError, match="was changed after it was written"):
        read_log(failing)


def test_a_log_of_two_runs_is_not_one(few, tmp_path):
    passing(few, tmp_path / "good.jsonl")
    mixed(few, tmp_path / "bad.jsonl", connect="other")
    for order in (("good", "bad"), ("bad", "good")):
        both = tmp_path / f"{order[0]}-first.jsonl"
        both.write_bytes(b"".join((tmp_path / f"{name}.jsonl").read_bytes() for name in order))
        with pytest.raises(UsageError, match="read logs one by one"):
            read_log(both)
    first, second = ((tmp_path / f"{name}.jsonl").read_bytes().splitlines(keepends=True) for name in ("good", "bad"))
    both.write_bytes(b"".join(first[:-1] + second))  # as if the first was resumed
    with pytest.raises(UsageError, match="second header"):
        read_log(both)


@pytest.mark.parametrize("arguments", VERBS, ids=lambda arguments: " ".join(arguments[:1] + arguments[2:3]))
def test_every_verb_refuses_a_forged_log(cli, few, failing, tmp_path, arguments):
    edit(failing, last_word)
    places = {"log": failing, "folder": tmp_path / "out", "case": few.cases[0].id}
    code, out, err = cli(*(part.format(**places) for part in arguments))
    assert code == 2, out + err
    assert "its footer says CONFORMANT, and by its results it is NOT CONFORMANT" in err
    assert err.count("\n") == 1


def test_a_forged_log_is_not_replayed(cli, failing):
    edit(failing, last_word)
    code, out, err = cli("run", "-b", f"replay:{failing}")
    assert code == 3
    assert "its footer says CONFORMANT" in out + err


def test_bits_that_flip_are_noticed(failing):
    whole = failing.read_bytes()
    draw = random.Random(7)
    places = [draw.randrange(len(whole) - 1) for _ in range(150)] + list(range(len(whole) - 400, len(whole) - 1, 7))
    for at in places:
        failing.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        with pytest.raises(UsageError):
            read_log(failing)


def test_flips_in_an_archive_are_noticed(failing):
    packed = gzip.compress(failing.read_bytes(), mtime=0)
    whole = read_log(failing)
    draw = random.Random(8)
    for _ in range(100):
        at = draw.randrange(10, len(packed) - 8)
        failing.write_bytes(packed[:at] + bytes([packed[at] ^ 1 << draw.randrange(8)]) + packed[at + 1 :])
        try:
            log = read_log(failing)
        except UsageError:
            continue
        assert log.interrupted or log.outcomes == whole.outcomes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no header"),
        (b"\n", "is not a line of a log"),
        (os.urandom(4096).replace(b"\x1f", b"\x00"), "is not a log|is not a line"),
        (b"[" * 200_000 + b"]" * 200_000 + b"\n", "is not a line of a log"),
        (b'{"record":"case","case":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "is not a line of a log"),
        (b'{"record":"header","schema":2}\n', "is not a line of a log"),
        (b'{"record":"case","case":3}\n', "is not a line of a log"),
        (b'{"record":"case"}\n', "is not a line of a log"),
        (b'{"record":"case","case":{"data":' + b"9" * 6000 + b"}}\n", "is not a line of a log"),
        (b"\x1f\x8b" + b"nonsense" * 8, "cannot be unpacked"),
    ],
)
def test_what_is_not_a_log_is_refused_in_a_sentence(tmp_path, content, words):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        read_log(path)
    assert len(str(caught.value)) < 600


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/zero"):
        with pytest.raises(UsageError, match=r"not a regular file|cannot be read"):
            read_log(path)


def test_an_archive_that_grows_is_refused_in_bounded_memory(tmp_path, failing):
    """Four gigabytes, of one line, and of valid lines, are refused within 700 MiB."""
    header = failing.read_bytes().splitlines(keepends=True)[0]
    line = b'{"record":"perf","workload":"x","numbers":{}}\n'
    for name, start, repeated in (("zeros", b"", bytes(1 << 20)), ("lines", header, line * 20_000)):
        with gzip.open(tmp_path / f"{name}.gz", "wb", compresslevel=1) as file:
            file.write(start)
            for _ in range(400):
                file.write(repeated)
        limit = 700 << 20
        found = subprocess.run(
            [sys.executable, "-m", "conformance", "report", str(tmp_path / f"{name}.gz")],
            capture_output=True, text=True, timeout=120,
            preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        )  # fmt: skip
        assert found.returncode == 2, found.stderr
        assert found.stderr.startswith("error: ")
        assert found.stderr.count("\n") == 1


class TestSchemaOne:
    """Logs of before digests and before the word PARTIAL."""

    def test_is_read_and_checked_by_its_own_rule(self, tmp_path):
        assert standing(read_log(FROZEN)).verdict == "NOT CONFORMANT"
        path = tmp_path / "a.jsonl"
        path.write_text(FROZEN.read_text())
        edit(path, last_word)
        with pytest.raises(UsageError, match="by its results it is"):
            read_log(path)

    def test_what_was_conformant_in_part_is_partial_now(self, few, tmp_path):
        case, *others = few.cases
        made(few, [outcome(case, "unsupported"), *map(outcome, others)], tmp_path / "a.jsonl")

        def older(lines):
            lines[0]["schema"] = 1
            lines[0].pop("full")
            lines[-1] = {k: lines[-1][k] for k in ("record", "counts", "verdicts", "seconds")} | {
                "verdict": "CONFORMANT"
            }

        edit(tmp_path / "a.jsonl", older)
        found = standing(read_log(tmp_path / "a.jsonl"))
        assert (found.verdict, found.judged, found.cases) == ("PARTIAL", 11, 12)

    def test_a_run_that_was_resumed_has_two_headers(self, few, tmp_path):
        path = tmp_path / "a.jsonl"
        passing(few, path)

        def older(lines):
            lines[0]["schema"] = 1
            lines[-1].pop("digest")
            lines[-1].pop("judged")
            return [*lines[:5], {**lines[0], "started": "2027-01-01"}, *lines[5:]]

        edit(path, older)
        assert standing(read_log(path)).verdict == "CONFORMANT"
