"""What the system may do to a run: full disks, closed pipes, taken names, and texts that terminals act on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conformance.record.log import read_log
from conformance.record.records import PerfRecord
from conformance.record.writer import LogWriter, file_name

FAKES = Path(__file__).parent.parent / "fakes.py"
HOSTILE = "\x1b[31mred\x1b[0m \u202eevil\u2066 \x00\x9b1m \ud800 \u2028"
RAW = ("\x1b", "\u202e", "\u2066", "\x00", "\x9b", "\ud800", "\u2028")


def command(*arguments, **more):
    line = [sys.executable, "-m", "conformance", *map(str, arguments)]
    return subprocess.run(line, **{"capture_output": True, "text": True, "timeout": 60, **more})


@pytest.fixture
def one(library):
    return ("--case", next(c.id for c in library.cases if not c.refusal and c.element_type == "f32"))


class TestOutput:
    def test_a_full_disk_behind_standard_output(self):
        with Path("/dev/full").open("w") as full:
            found = command("cases", "list", stdout=full, stderr=subprocess.PIPE, capture_output=False)
        assert (found.returncode, found.stderr.count("\n")) == (2, 1)
        assert "No space left on device" in found.stderr

    def test_a_closed_standard_output(self):
        found = command("cases", "list", preexec_fn=lambda: os.close(1), stdout=None, capture_output=False,
                        stderr=subprocess.PIPE)  # fmt: skip
        assert (found.returncode, found.stderr) == (
            2, "error: standard output is closed, so that nothing could be said\n",
        )  # fmt: skip

    @pytest.mark.parametrize("name", ["file", "file/below", "x" * 400])
    def test_a_folder_that_cannot_be(self, cli, one, tmp_path, name):
        (tmp_path / "file").touch()
        code, out, err = cli("run", "-b", "numpy", *one, "-o", tmp_path / name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "cannot be made a folder" in err

    def test_a_report_that_cannot_be_written(self, cli, one, tmp_path):
        cli("run", "-b", "numpy", *one, "-o", tmp_path)
        log = tmp_path / "numpy.jsonl"
        for target in ("/dev/full", log / "x.html", tmp_path / ("x" * 300)):
            code, _, err = cli("report", log, "--format", "html", "-o", target)
            assert (code, err.count("\n")) == (2, 1), err

    def test_a_disk_that_fills_up_loses_the_log_and_not_the_results(self, cli, one, tmp_path, monkeypatch):
        monkeypatch.setattr("conformance.record.writer.exclusive", lambda path: (path, open("/dev/full", "wb")))  # noqa: PTH123, SIM115
        code, out, err = cli("run", "-b", "numpy", *one, "-o", tmp_path)
        assert code == 2
        assert "numpy: INCOMPLETE" in out
        assert "No space left on device; what came out is above" in err


class TestNames:
    def test_an_earlier_log_is_kept(self, cli, one, tmp_path):
        cli("run", "-b", "numpy", *one, "-o", tmp_path)
        before = (tmp_path / "numpy.jsonl").read_bytes()
        _, out, _ = cli("run", "-b", "numpy", "-b", "numpy", *one, "-o", tmp_path)
        assert (tmp_path / "numpy.jsonl").read_bytes() == before
        assert "numpy-2.jsonl" in out
        logs = sorted(tmp_path.glob("*.jsonl"))
        assert [path.name for path in logs] == ["numpy-2.jsonl", "numpy-3.jsonl", "numpy.jsonl"]
        assert [len(read_log(path).results) for path in logs] == [1, 1, 1]

    def test_connect_strings_of_one_file_name(self, cli, one, tmp_path):
        twins = [f"py:{FAKES}:Honest", f"py:{FAKES}::Honest".replace("::", ":")]
        cli("run", "-b", twins[0], "-b", twins[1], *one, "-o", tmp_path)
        assert len(list(tmp_path.glob("*.jsonl"))) == 2

    def test_names_are_short_enough_for_a_file_system_and_stay_apart(self):
        a, b = (file_name("py:" + "ü" * 400 + end) for end in "ab")
        assert len(a.encode()) <= 110
        assert a != b

    def test_two_writers_at_once(self, tmp_path):
        with LogWriter(tmp_path / "a.jsonl") as first, LogWriter(tmp_path / "a.jsonl") as second:
            first.write(PerfRecord("one", {}))
            second.write(PerfRecord("two", {}))
        assert first.path != second.path
        assert b"one" in first.path.read_bytes()
        assert b"two" in second.path.read_bytes()


class TestArguments:
    @pytest.mark.parametrize("expression", ["(" * 5000 + "a", "not " * 5000 + "a", "(" * 5000 + "a" + ")" * 5000])
    def test_an_expression_that_is_nested_deeply(self, cli, expression):
        code, _, err = cli("run", "-b", "numpy", "-k", expression)
        assert (code, err.count("\n")) == (2, 1)
        assert len(err) < 300

    def test_an_expression_that_is_long(self, cli, library):
        name = library.cases[0].id.partition("[")[0]
        code, out, _ = cli("run", "-b", "numpy", "-k", " or ".join([name] * 3000))
        assert (code, "INCOMPLETE" in out) == (4, True)

    @pytest.mark.parametrize("value", ["nan", "inf", "-1", "0"])
    @pytest.mark.parametrize(
        "arguments",
        [["run", "-b", "numpy", "--time-limit"], ["fuzz", "-b", "numpy", "--seconds"],
         ["perf", "-b", "numpy", "--seconds"], ["perf", "-b", "numpy", "--noise-limit"],
         ["diagnose", "-b", "numpy", "--seconds"]],
    )  # fmt: skip
    def test_a_time_that_is_not_one(self, cli, arguments, value):
        code, _, err = cli(*arguments, value)
        assert code == 2
        assert value in err

    def test_memory_beyond_64_bits(self, cli):
        assert cli("run", "-b", "numpy", "--memory-limit", str(1 << 70))[0] == 2

    def test_memory_that_runs_out(self, cli, monkeypatch):
        def allocate(*arguments, **more):
            np.empty(1 << 60, np.uint8)

        monkeypatch.setattr("conformance.cli.cli.main", allocate)
        code, _, err = cli("doctor")
        assert code == 3
        assert err.startswith("error: out of memory: Unable to allocate 1.00 EiB")


class TestTexts:
    """Nothing that a plug-in says reaches a terminal raw."""

    @pytest.fixture
    def backend(self, tmp_path):
        path = tmp_path / "hostile.py"
        path.write_text(
            "from conformance.backends.protocol import BackendInfo\n"
            f"TEXT = {HOSTILE!r} + 'x' * 50_000\n"
            "class Hostile:\n"
            "    def describe(self):\n"
            "        features = ('rope', 'norm', 'left_padding')\n"
            "        return BackendInfo('h', TEXT, TEXT, ('f32',), ('block_index_keys',), features)\n"
            "    def prepare(self, config):\n"
            "        print(TEXT.encode('utf-8', 'replace').decode())\n"
            "        raise OSError(TEXT)\n"
        )
        return f"py:{path}:Hostile"

    def test_on_the_terminal(self, backend, one):
        for more in ([], ["--quick", "--no-diagnosis"]):
            arguments = ["run", "-b", backend, *([] if more else one), *more]
            found = command(*arguments, text=False)
            text = (found.stdout + found.stderr).decode("utf-8", "surrogatepass")
            assert found.returncode in (1, 3), text
            assert "\\x1b[31mred" in text
            assert not [char for char in RAW if char in text]

    def test_in_every_view_of_a_log(self, cli, library, operation, tmp_path):
        from logs import made, outcome, part

        few = part(library)
        results = [outcome(c, "fail", reason=HOSTILE, where=HOSTILE, stderr=HOSTILE, detail=HOSTILE) for c in few.cases]
        log = made(few, results, connect=f"py:{HOSTILE}", version=HOSTILE)
        from conformance.reporting import html, table
        from conformance.reporting.annotations import github
        from conformance.reporting.compare import compare, render
        from conformance.reporting.junit import junit
        from conformance.reporting.markdown import markdown

        for text in (
            table.report([log], operation), markdown([log], operation), html.page([log], operation), junit([log]),
            github([log]), render(log, log, compare(log, log)),
        ):  # fmt: skip
            assert "red" in text
            assert not [char for char in RAW if char in text]


class TestRunOptions:
    def test_what_passes_in_part_can_be_a_gate(self, cli, one):
        code, out, _ = cli("run", "-b", "numpy", *one, "--allow-incomplete")
        assert (code, "INCOMPLETE" in out) == (0, True)
        assert cli("run", "-b", f"py:{FAKES}:SlightlyOff", *one, "--allow-incomplete")[0] in (0, 1)

    def test_one_case_is_shown_close_up(self, cli, library):
        from fakes import SlightlyOff

        from conformance.judging.engine import Engine

        case = next(c for c in library.cases
                    if not c.refusal and Engine(library.operation, SlightlyOff()).run(c).status == "fail")  # fmt: skip
        code, out, _ = cli("run", "-b", f"py:{FAKES}:SlightlyOff", "--case", case.id, "--no-diagnosis")
        assert code == 1
        assert "all cases" not in out
        assert "<- the worst" in out
        for port in library.operation.ports:
            assert port.name in out
        assert "to repeat: qsa-conformance run -b" in out

    def test_an_exception_is_shown_with_its_traceback(self, cli, one):
        code, out, _ = cli("run", "-b", f"py:{FAKES}:Raises", *one, "--no-diagnosis")
        assert code == 1
        assert 'raise RuntimeError("the device is on fire' in out
        assert "fakes.py" in out

    def test_what_failed_last(self, cli, library, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        backend = f"py:{FAKES}:SlightlyOff"
        cli("run", "-b", backend, "-k", "by-hand", "--no-diagnosis", "--operation", "QSAPrepare", "-o", tmp_path / "a")
        failed = [o.case for o in read_log(next((tmp_path / "a").glob("*"))).outcomes if o.status == "fail"]
        assert failed
        cli("run", "--lf", "--no-diagnosis", "--operation", "QSAPrepare", "-o", tmp_path / "b")
        assert sorted(o.case for o in read_log(next((tmp_path / "b").glob("*"))).outcomes) == sorted(failed)

    def test_annotations(self, cli, library):
        _, out, _ = cli("run", "-b", f"py:{FAKES}:SlightlyOff", "-k", "by-hand", "--no-diagnosis",
                        "--output-format", "github")  # fmt: skip
        lines = [line for line in out.splitlines() if line.startswith("::")]
        assert lines[0].startswith("::error title=")
        assert lines[-1].startswith("::notice title=")
        assert "NOT CONFORMANT" in lines[-1]

    def test_a_group_of_cases_means_all_of_them(self, cli, library, tmp_path):
        name = next(c.id.partition("[")[0] for c in library.cases if "[" in c.id)
        cli("run", "-b", "numpy", "--case", name, "-o", tmp_path)
        wanted = [c.id for c in library.cases if c.id.startswith(f"{name}[")]
        assert [o.case for o in read_log(tmp_path / "numpy.jsonl").outcomes] == wanted
