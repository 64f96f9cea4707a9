"""The pytest plug-in: same ids, same outcomes, same filters as the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # noqa: F401

# Imported here, as pytester forgets modules of the run inside it, and the C parts of NumPy and yaml load only once.
import conformance.running.run  # noqa: F401

FAKES = Path(__file__).parent / "fakes.py"


@pytest.fixture
def few(library):
    chosen = [c for c in library.cases if not c.refusal and c.element_type == "f32" and c.level == "required"][:4]
    return [argument for case in chosen for argument in ("--case", case.id)], chosen


def test_one_test_a_case_with_its_id(pytester, few):
    arguments, cases = few
    result = pytester.runpytest("--pyargs", "conformance", "--backend", "numpy", "-v", *arguments)
    result.assert_outcomes(passed=len(cases), skipped=1)
    text = result.stdout.str()
    for case in cases:
        assert f"test_case[{case.id}]" in text
    assert f"qsa-conformance: numpy INCOMPLETE, {len(cases)} cases" in text


def test_a_failure_says_clause_element_and_command(pytester, few):
    arguments, _ = few
    result = pytester.runpytest(
        "--pyargs", "conformance", "--backend", f"py:{FAKES}:SlightlyOff", *arguments, "--no-diagnosis"
    )
    assert result.ret == 1
    text = result.stdout.str()
    assert "block_index_keys[" in text
    assert "qsa-conformance run -b" in text
    assert "NOT CONFORMANT" in text
    assert "def check(" not in text  # the harness' own frames are of no use to an author


def test_unsupported_cases_are_skipped_with_the_reason(pytester, library):
    case = next(c for c in library.cases if c.element_type == "f16" and not c.refusal)
    backend = f"py:{FAKES}:OnlyF32"
    result = pytester.runpytest("--pyargs", "conformance", "--backend", backend, "-rs", "--case", case.id)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*takes f32 only*"])


def test_several_backends_side_by_side(pytester, few):
    arguments, cases = few
    backends = ("--backend", "numpy", "--backend", f"py:{FAKES}:Honest")
    result = pytester.runpytest("--pyargs", "conformance", *backends, "-v", *arguments)
    result.assert_outcomes(passed=2 * len(cases), skipped=1)
    assert f"[numpy::{cases[0].id}]" in result.stdout.str()


def test_keyword_expressions_mean_the_same(pytester, library):
    from conformance.library.selection import select

    expression = "streams and (f16 or bf16) and not chunk"
    wanted = {case.id for case in select(library, expression=expression)}
    result = pytester.runpytest(
        "--pyargs",
        "conformance",
        "--backend",
        "numpy",
        "-k",
        expression,
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
    )
    lines = result.stdout.str().splitlines()
    got = {line.split("test_case[", 1)[1][:-1] for line in lines if "test_case[" in line}
    assert got == wanted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the implementation under test"),
        (["--backend", "nunpy"], "did you mean 'numpy'?"),
        (["--backend", "numpy", "--case", "none"], "no case 'none'"),
        (["--backend", "numpy", "--clause", "XYZ-1"], "no clause 'XYZ-1'"),
    ],
)
def test_wrong_usage_is_one_sentence(pytester, arguments, words):
    result = pytester.runpytest("--pyargs", "conformance", *arguments)
    assert result.ret != 0
    assert words in result.stdout.str() + result.stderr.str()


def test_other_peoples_tests_are_left_alone(pytester):
    pytester.makepyfile("def test_mine(): pass")
    result = pytester.runpytest()
    result.assert_outcomes(passed=1)
    assert "qsa-conformance" not in result.stdout.str().split("\n", 6)[-1]


class TestExpectations:
    @pytest.fixture
    def run(self, pytester, library, operation):
        """Run one case that the backend fails, with an entry for it: `changes` are made to a right one."""
        from fakes import SlightlyOff

        from conformance.judging.engine import Engine
        from conformance.record.expectations import Entry, Signature, text

        case = next(
            c for c in library.cases if not c.refusal and Engine(operation, SlightlyOff()).run(c).status == "fail"
        )
        signature = Signature.of(Engine(operation, SlightlyOff()).run(case))

        def run(backend="SlightlyOff", **changes):
            right = {"case": case.id, "signature": signature, "reason": "off", "url": "https://example.org/1"}
            Path("known.yaml").write_text(text([Entry(**right | changes)], "known"), encoding="utf-8")
            line = (
                "--backend",
                f"py:{FAKES}:{backend}",
                "--expectations",
                "known.yaml",
                "--case",
                case.id,
                "-rx",
                "--no-diagnosis",
            )
            return pytester.runpytest("--pyargs", "conformance", *line, "-rx", "--no-diagnosis")

        return run

    def test_an_expected_failure_is_xfailed(self, run):
        result = run()
        result.assert_outcomes(xfailed=1, skipped=1)
        result.stdout.fnmatch_lines(["*off (https://example.org/1)*"])

    def test_an_unexpected_pass_fails(self, run):
        result = run(backend="Honest")
        result.assert_outcomes(failed=1, skipped=1)
        result.stdout.fnmatch_lines(["*unexpected pass: expected to fail (off), and is pass now*"])

    def test_another_signature_fails(self, run):
        from conformance.record.expectations import Signature

        result = run(signature=Signature(clause="STA-1"))
        result.assert_outcomes(failed=1, skipped=1)
        result.stdout.fnmatch_lines(["*changed signature: expected: STA-1; now: *"])

    def test_what_has_expired_fails_as_it_is(self, run):
        result = run(expires="2020-01-01")
        result.assert_outcomes(failed=1, skipped=1)
        assert "block_index_keys[" in result.stdout.str()

    def test_a_file_of_one_backend_is_not_taken_for_two(self, pytester):
        backends = ("--backend", "numpy", "--backend", f"py:{FAKES}:Honest")
        result = pytester.runpytest("--pyargs", "conformance", *backends, "--expectations", "known.yaml")
        assert result.ret == pytest.ExitCode.INTERRUPTED
        result.stdout.fnmatch_lines(["*speaks of one backend*"])


def test_a_backend_without_cases_says_how_to_collect_them(pytester):
    pytester.makepyfile("def test_mine(): pass")
    result = pytester.runpytest("--backend", "numpy")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*collect them with: pytest --pyargs conformance --backend numpy*"])


def test_markers_of_clauses_groups_and_refusals(pytester, library):
    chosen = [c for c in library.cases if any(x.startswith("ROT-") for x in c.clauses) and c.refusal is None][:3]
    others = [c for c in library.cases if c.refusal and not any(x.startswith("ROT-") for x in c.clauses)][:2]
    arguments = [argument for case in (*chosen, *others) for argument in ("--case", case.id)]
    for expression, number in (("ROT", 3), ("refusal", 2), (chosen[0].clauses[0], None), ("ROT or refusal", 5)):
        line = ("--pyargs", "conformance", "--backend", "numpy", *arguments, "-m", expression, "--strict-markers")
        result = pytester.runpytest(*line)
        wanted = number or sum(expression in case.clauses for case in (*chosen, *others))
        result.assert_outcomes(passed=wanted, deselected=len(chosen) + len(others) + 1 - wanted)


def test_the_end_is_that_of_the_command_line_also_with_xdist(pytester, few):
    arguments, cases = few
    line = ("--pyargs", "conformance", "--backend", f"py:{FAKES}:SlightlyOff", *arguments, "--no-diagnosis")
    for more in (("-p", "no:xdist"), ("-n", "2")):
        result = pytester.runpytest_subprocess(*line, *more)
        text = result.stdout.str()
        assert result.ret == 1
        assert f"qsa-conformance: py:{FAKES}:SlightlyOff NOT CONFORMANT, {len(cases)} cases" in text
        end = text[text.index("NOT CONFORMANT") :]
        assert "fail, " in end
        assert "block_index_keys" in end
        assert "qsa-conformance run -b" in end


def test_numpy_may_not_warn_of_our_poison_even_where_warnings_are_errors(pytester, library):
    case = next(
        c for c in library.cases if c.poison == "mixed" and not c.refusal and c.element_type == "f16" and c.dims["L"]
    )
    backend = pytester.makepyfile(
        mine="import numpy as np, warnings\n"
        "from conformance.backends.qsa_prepare.numpy_reference import NumPyReference\n"
        "class Mine(NumPyReference):\n"
        "    def prepare(self, config):\n"
        "        inner = super().prepare(config)\n"
        "        class Session:\n"
        "            def run(self, inputs):\n"
        "                np.float32([np.inf]) - np.float32([np.inf]); np.float32([3e38]) * np.float32([3e38])\n"
        "                return inner.run(inputs)\n"
        "            def close(self): inner.close()\n"
        "        return Session()\n"
    )
    result = pytester.runpytest(
        "--pyargs", "conformance", "--backend", f"py:{backend}:Mine", "--case", case.id, "-W", "error"
    )
    result.assert_outcomes(passed=1, skipped=1)
