"""The command line as a user meets it: what it prints, and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from conformance.cli import cli as group
from conformance.cli import main

HERE = Path(__file__).parents[1]
FAKES = str(HERE / "fakes.py")


@pytest.fixture
def cli(capsys):
    """Run a command line; gives exit code, standard output and error output."""

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return caught.value.code, out, err

    return run


@pytest.fixture
def few(library):
    """Three small cases: a plain one, one with streams, a refusal."""
    plain = next(c for c in library.cases if not c.refusal and c.element_type == "f32" and c.dims["L"] > 3)
    stream = next(c for c in library.cases if len(c.streams) > 2 and c.element_type == "f32" and c.level == "required")
    refusal = next(c for c in library.cases if c.refusal and c.level == "required")
    return [argument for case in (plain, stream, refusal) for argument in ("--case", case.id)]


class TestRun:
    def test_a_filtered_run_that_passes_is_incomplete(self, cli, few):
        code, out, err = cli("run", "-b", "numpy", *few)
        assert (code, err) == (4, "")
        assert "3 cases, not the whole library" in out
        assert "INCOMPLETE" in out

    def test_a_failure_is_shown_with_its_repeat_command(self, cli, few, tmp_path):
        connect = f"py:{FAKES}:SlightlyOff"
        code, out, _ = cli("run", "-b", connect, *few, "-o", tmp_path)
        assert code == 1
        assert "NOT CONFORMANT" in out
        assert "times the bound" in out or "bit for bit" in out
        line = next(line.strip() for line in out.splitlines() if "qsa-conformance run -b" in line)
        assert line.startswith(f"qsa-conformance run -b {connect} --case ")

    def test_the_log_holds_everything(self, cli, few, tmp_path):
        cli("run", "-b", "numpy", *few, "-o", tmp_path)
        records = [json.loads(line) for line in (tmp_path / "numpy.jsonl").read_text().splitlines()]
        assert [r["record"] for r in records] == ["header", *["case", "result"] * 3, "footer"]
        assert records[0]["backend"]["name"] == "numpy"
        assert records[0]["complete"] is False
        assert records[-1]["verdict"] == "INCOMPLETE"
        assert records[-1]["counts"]["pass"] == 3

    def test_fail_fast_stops(self, cli, tmp_path):
        code, _, _ = cli("run", "-b", f"py:{FAKES}:Raises", "--quick", "-x", "-o", tmp_path)
        log = next(tmp_path.glob("*.jsonl")).read_text()
        assert code == 1
        assert log.count('"record":"result"') < 10

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["run", "-k", "nothing-like-this"], "no case is left"),
            (["run", "-k", "a and"], "it ends too early"),
            (["run", "-k", "(a"], "a parenthesis is not closed"),
            (["run", "--case", "straddle"], "no case 'straddle'"),
            (["run", "--clause", "ROT1"], "no clause 'ROT1' (did you mean 'ROT-1'?)"),
            (["run", "--reading", "alinement=left"], "did you mean 'alignment'?"),
            (["run", "--reading", "alignment=middle"], "known: left, right"),
            (["run", "--level", "must"], "required"),
            (["rum"], "no command 'rum' (did you mean 'run'?)"),
            (["run", "--nosuch"], "--nosuch"),
            (["cases", "show", "nothing"], "no case 'nothing'"),
        ],
    )
    def test_wrong_usage_is_one_sentence_and_exit_2(self, cli, arguments, words):
        code, out, err = cli(*arguments)
        assert code == 2
        assert words in err
        assert out == ""

    @pytest.mark.parametrize(
        ("connect", "words"),
        [
            ("nunpy", "no backend 'nunpy' (did you mean 'numpy'?)"),
            ("numpy:fast", "takes nothing after its name"),
            ("py:", "needs something after the colon"),
            ("py:nofile.py:Mine", "there is no file nofile.py"),
            ("py:no_such_module:Mine", "ModuleNotFoundError"),
            (f"py:{FAKES}:Honesty", "(did you mean 'Honest'?)"),
            (f"py:{FAKES}:np", "is not a backend"),
            (f"py:{FAKES}:Honest,readings", "is not key=value"),
            (f"py:{FAKES}:Honest,speed=fast", "cannot be built: TypeError"),
            (f"py:{FAKES}", "does not name a class"),
        ],
    )
    def test_an_unusable_backend_is_one_sentence_and_exit_3(self, cli, few, connect, words):
        code, _, err = cli("run", "-b", connect, *few)
        assert code == 3
        assert words in err
        assert len(err.strip().splitlines()) == 1

    def test_an_unusable_backend_does_not_lose_the_others(self, cli, few):
        code, out, err = cli("run", "-b", "numpy", "-b", "nunpy", *few)
        assert code == 3
        assert "numpy" in out
        assert "no backend 'nunpy'" in err


class TestOtherVerbs:
    def test_cases_list_and_show(self, cli, library):
        code, out, _ = cli("cases", "list")
        assert (code, out.splitlines()) == (0, [case.id for case in library.cases])
        first = library.cases[0]
        code, out, _ = cli("cases", "show", first.id, "--tensors")
        assert code == 0
        assert first.says in out
        assert "raw_index_keys" in out

    def test_lint_of_the_shipped_library(self, cli):
        code, out, _ = cli("cases", "lint")
        assert code == 0, out
        assert "no problem" in out

    def test_coverage_lists_every_clause(self, cli, operation):
        code, out, _ = cli("coverage")
        assert code == 0
        for clause in operation.clauses:
            assert clause.id in out

    def test_backends_says_why_not(self, cli):
        code, out, _ = cli("backends")
        assert code == 0
        assert "numpy" in out
        native = next(line for line in out.splitlines() if "openvino-native" in line)
        assert "usable" in native or "unavailable" in native

    def test_doctor_finds_nothing_broken(self, cli):
        code, out, _ = cli("doctor")
        assert code == 0, out
        assert out.count("ok ") >= 5

    def test_every_option_of_every_verb_has_help(self):
        def commands(group, path=()):
            for name in group.list_commands(None):
                command = group.get_command(None, name)
                yield " ".join((*path, name)), command
                if isinstance(command, click.Group):
                    yield from commands(command, (*path, name))

        found = {
            f"{name} {option.opts[-1]}": option.help
            for name, command in commands(group)
            for option in command.params
            if isinstance(option, click.Option)
        }
        assert len(found) > 100
        assert [name for name, says in found.items() if not says] == []

    def test_help_names_every_verb(self, cli):
        from conformance.cli import VERBS

        code, out, _ = cli("--help")
        assert code == 0
        for verb in VERBS:
            assert verb in out


def test_a_broken_library_file_is_named(tmp_path):
    """The whole way, in a process of its own: a broken YAML file gives one sentence with its place and exit 2."""
    import shutil

    from conformance.library.operations import cases_root

    root = tmp_path / "cases"
    shutil.copytree(cases_root(), root)
    broken = next(root.glob("qsa_prepare/0*/*.yaml"))
    broken.write_text(broken.read_text() + "  - id: [unclosed\n")
    code = (
        "import conformance.library.operations as o, conformance.library.reading as l, pathlib\n"
        f"o.cases_root = l.cases_root = lambda: pathlib.Path({str(root)!r})\n"
        "from conformance.cli import main\nmain(['cases', 'list'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert broken.name in done.stderr
    assert "is not valid YAML" in done.stderr
    assert "Traceback" not in done.stderr
