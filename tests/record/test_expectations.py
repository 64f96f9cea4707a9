"""Expected failures: what is accepted, what is a surprise, what is refused, and what is written."""

from __future__ import annotations

import datetime

import msgspec
import pytest
from logs import WORST, interrupted, made, outcome, part, reseal
from test_cli import FAKES, cli, few  # noqa: F401  fixtures

from conformance.errors import LibraryError, UsageError
from conformance.judging.engine import Outcome
from conformance.library.operations import cases_root
from conformance.record.expectations import (
    MOST,
    Entry,
    Expectations,
    Ground,
    Signature,
    assess,
    check_updatable,
    default_file,
    find,
    load,
    matching,
    text,
    updated,
)
from conformance.record.log import read_log
from conformance.reporting import html, table
from conformance.reporting.junit import junit
from conformance.reporting.markdown import markdown

URL = "https://example.org/issues/1"
TODAY = datetime.date(2027, 1, 15)
SIGNATURE = Signature(clause="BLK-1", output=WORST.output, region=WORST.region)


@pytest.fixture(scope="module")
def twelve(library):
    return part(library)


def entry(case, **changes):
    plain = {"case": case, "signature": SIGNATURE, "reason": "known", "url": URL}
    return Entry(**{**plain, **changes})


def of(*entries, cases):
    """Expectations with these entries, as if read from a file."""
    by_case = {name: one for one, names in zip(entries, cases, strict=True) for name in names}
    return Expectations("mine.yaml", entries, tuple(map(tuple, cases)), "", by_case)


def failed(case, **more):
    return outcome(case, "fail", **{"clause": "BLK-1", **more})


class TestAssess:
    @pytest.fixture
    def case(self, twelve):
        return twelve.cases[0]

    def one(self, result, case, **changes):
        """Kinds of the surprises when a case has this result, and whether the failure is taken as expected."""
        found = assess(of(entry(case.id, **changes), cases=[[case.id]]), [result], TODAY)
        return [surprise.kind for surprise in found.surprises], case.id in found.expected

    def test_a_failure_as_expected(self, case):
        assert self.one(failed(case), case) == ([], True)

    def test_an_unexpected_failure(self, case, twelve):
        assert self.one(failed(twelve.cases[1]), case) == (["unexpected failure"], False)

    @pytest.mark.parametrize("status", ["pass", "quality-warning", "unsupported"])
    def test_an_unexpected_pass(self, case, status):
        assert self.one(outcome(case, status), case) == (["unexpected pass"], False)

    @pytest.mark.parametrize(
        "changes",
        [
            {"clause": "ROT-1"},
            {"worst": msgspec.structs.replace(WORST, output="present_incomplete_rope")},
            {"worst": msgspec.structs.replace(WORST, region="history")},
            {"worst": None, "reason": "block_index_keys has shape [1, 2], not [1, 3]"},
        ],
    )
    def test_a_changed_signature(self, case, changes):
        assert self.one(failed(case, **changes), case) == (["changed signature"], False)

    def test_an_expired_entry(self, case):
        assert self.one(failed(case), case, expires="2027-01-14") == (["expired"], False)
        assert self.one(failed(case), case, expires="2027-01-15") == ([], True)

    def test_an_unused_entry(self, case):
        found = assess(of(entry("gone/case"), cases=[[]]), [outcome(case)], TODAY)
        assert [surprise.kind for surprise in found.surprises] == ["unused"]

    def test_what_was_not_run_is_left_alone(self, case):
        assert self.one(outcome(case, "not-run"), case) == ([], False)
        assert assess(of(entry(case.id), cases=[[case.id]]), [], TODAY).as_expected

    def test_errors_have_a_signature_too(self, case):
        result = outcome(case, "error", clause="BLK-1", reason="raises OSError: no device 17")
        assert self.one(result, case, signature=Signature.of(result)) == ([], True)


class TestFile:
    @pytest.mark.parametrize(
        ("pattern", "want"),
        [
            ("a/b[r=1]", ["a/b[r=1]"]),
            ("a/*", ["a/b[r=1]", "a/b[r=2]", "a/c"]),
            ("a/b[r=*]", ["a/b[r=1]", "a/b[r=2]"]),
            ("*/c", ["a/c", "x/c"]),
            ("*", []),
            ("a/b", []),
        ],
    )
    def test_patterns(self, pattern, want):
        assert list(matching(pattern, ["a/b[r=1]", "a/b[r=2]", "a/c", "x/c"])) == want

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"case": "a*b*/c"}, "more than one \\*"),
            ({"case": "*/*"}, f"an entry may stand for {MOST}"),
            ({"signature": {"clause": "ROT1"}}, "unknown clause 'ROT1'.*did you mean 'ROT-1'"),
            ({"signature": {"clause": "ROT-1", "output": "keys"}}, "unknown output 'keys'"),
            ({"reason": " "}, "needs a reason"),
            ({"url": "issue 5"}, "does not begin with https://"),
            ({"expires": "2027-02-30"}, "is not a date"),
            ({"until": "2027-02-28"}, "unknown field 'until'"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_place(self, library, tmp_path, changes, words):
        import yaml

        plain = {"case": library.cases[0].id, "signature": {"clause": "BLK-1"}, "reason": "known", "url": URL}
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({"entries": [{**plain, **changes}]}))
        with pytest.raises(LibraryError, match=rf"mine\.yaml:\d+:\d+: .*{words}"):
            load(path, library)

    def test_a_case_is_expected_once(self, library, tmp_path):
        case = library.cases[0].id
        path = tmp_path / "mine.yaml"
        path.write_text(text([entry(case), entry(case)], ""))
        with pytest.raises(LibraryError, match="is already expected by"):
            load(path, library)

    def test_what_is_written_is_read_back(self, library, tmp_path):
        path = tmp_path / "mine.yaml"
        entries = [entry(library.cases[0].id, expires="2027-06-30"), entry(library.cases[1].id, reason="a: b # c")]
        path.write_text(text(entries, "What is wrong."))
        assert list(load(path, library).entries) == entries

    def test_files_of_the_library_can_be_read(self, library):
        for path in (cases_root() / "qsa_prepare" / "expectations").glob("*.yaml"):
            load(path, library)

    def test_only_backends_of_this_package_have_a_file_of_their_own(self, library):
        assert default_file("torch").name == "torch.yaml"
        assert default_file("openvino-graph:GPU") is None
        assert default_file("py:torch.py:X") is None
        assert find("py:torch.py:X", None, library, {}) is None


class TestUpdate:
    def test_writes_exactly_the_failures(self, twelve):
        results = [failed(twelve.cases[0]), outcome(twelve.cases[1]), failed(twelve.cases[2])]
        entries = updated(Expectations("x"), results, Ground("new", URL, "2027-06-30"))
        assert [e.case for e in entries] == [twelve.cases[0].id, twelve.cases[2].id]
        assert {(e.reason, e.url, e.expires) for e in entries} == {("new", URL, "2027-06-30")}

    def test_keeps_what_still_holds_and_drops_what_does_not(self, twelve):
        a, b, c, d = twelve.cases[:4]
        old = of(entry("t/a-b", reason="both"), entry(c.id), entry(d.id), cases=[[a.id, b.id], [c.id], [d.id]])
        results = [failed(a), failed(b), failed(c, clause="ROT-1"), outcome(d)]
        entries = updated(old, results, Ground("changed", URL))
        assert [(e.case, e.reason) for e in entries] == [("t/a-b", "both"), (c.id, "changed")]

    def test_a_pattern_that_holds_in_part_is_split(self, twelve):
        a, b = twelve.cases[:2]
        old = of(entry("t/*", reason="both"), cases=[[a.id, b.id]])
        entries = updated(old, [failed(a), outcome(b)], Ground())
        assert [(e.case, e.reason) for e in entries] == [(a.id, "both")]

    def test_new_failures_need_a_reason(self, twelve):
        with pytest.raises(UsageError, match="say why they are to be expected: --reason"):
            updated(Expectations("x"), [failed(twelve.cases[0])], Ground(url=URL))

    def test_is_refused_for_anything_but_a_complete_run_of_this_library(self, twelve, library):
        results = [outcome(case) for case in twelve.cases]
        whole = made(twelve, results)
        check_updatable(whole, twelve)
        with pytest.raises(UsageError, match="is not complete"):
            check_updatable(interrupted(whole, 5), twelve)
        with pytest.raises(UsageError, match="is not complete"):
            check_updatable(made(twelve, results, complete=False), twelve)
        with pytest.raises(UsageError, match="cases of this library are not in it"):
            check_updatable(whole, library)
        generated = msgspec.structs.replace(twelve.cases[0], seed=7)
        log = made(type(twelve)(twelve.operation, (generated,), 1), [outcome(generated)])
        with pytest.raises(UsageError, match="is not a case of this library"):
            check_updatable(log, twelve)


class TestVerdict:
    def log(self, twelve, results, expectations, **more):
        return made(twelve, results, expectations=expectations, **more)

    def test_expected_failures_do_not_make_it_conformant(self, twelve, operation):
        case = twelve.cases[0]
        results = [failed(case), *(outcome(c) for c in twelve.cases[1:])]
        log = self.log(twelve, results, of(entry(case.id), cases=[[case.id]]))
        assert log.footer.verdict == "NOT CONFORMANT"
        assert log.assessment.as_expected
        assert "expected: known" in table.failures(log)
        assert "As expected" in table.report([log], operation)
        assert "As expected" in markdown([log], operation)
        assert 'message="expected: known"' in junit([log])
        assert 'failures="0"' in junit([log])
        page = html.page([log], operation)
        assert "<dt>expected<dd>known" in page
        assert "(✗)" in page

    def test_an_unexpected_pass_is_not_conformant(self, twelve, operation):
        case = twelve.cases[0]
        log = self.log(twelve, [outcome(c) for c in twelve.cases], of(entry(case.id), cases=[[case.id]]))
        assert log.footer.verdict == "NOT CONFORMANT"
        assert "unexpected pass" in table.report([log], operation)
        assert 'failures="1"' in junit([log])

    def test_an_unused_entry_is_told_in_every_view(self, twelve, operation):
        log = self.log(twelve, [outcome(c) for c in twelve.cases], of(entry("gone/x"), cases=[[]]))
        assert log.footer.verdict == "CONFORMANT"
        for view in (
            table.report([log], operation),
            markdown([log], operation),
            junit([log]),
            html.page([log], operation),
        ):
            assert "gone/x" in view


class TestCommand:
    """From a run that fails to one that is as expected."""

    def write(self, cli, log, path, *more):  # noqa: F811
        return cli("expectations", log, "--expectations", path, "--update", *more)

    def test_a_run_with_expectations(self, cli, few, tmp_path):  # noqa: F811
        connect = f"py:{FAKES}:SlightlyOff"
        cli("run", "-b", connect, *few, "--no-diagnosis", "-o", tmp_path)
        log = read_log(next(tmp_path.glob("*.jsonl")))
        failing = [o for o in log.outcomes if o.status == "fail"]
        assert failing
        path = tmp_path / "mine.yaml"
        path.write_text(text([entry(o.case, signature=Signature.of(o)) for o in failing], ""))
        code, out, _ = cli("run", "-b", connect, *few, "--no-diagnosis", "--expectations", path)
        assert (code, "As expected" in out, "NOT CONFORMANT" in out) == (4, True, True)
        code, out, _ = cli("run", "-b", "numpy", *few, "--no-diagnosis", "--expectations", path)
        assert (code, "unexpected pass" in out) == (1, True)
        path.write_text(text([entry(o.case, signature=Signature.of(o), expires="2020-01-01") for o in failing], ""))
        code, out, _ = cli("run", "-b", connect, *few, "--no-diagnosis", "--expectations", path)
        assert (code, "expired" in out) == (1, True)

    def test_a_log_is_checked_and_a_filtered_one_is_no_source(self, cli, few, tmp_path):  # noqa: F811
        cli("run", "-b", "numpy", *few, "-o", tmp_path)
        log, path = tmp_path / "numpy.jsonl", tmp_path / "mine.yaml"
        assert cli("expectations", log, "--expectations", path)[0] == 0
        code, _, err = self.write(cli, log, path)
        assert (code, "is not complete" in err) == (2, True)
        assert not path.exists()

    def test_a_complete_log_is_a_source(self, cli, library, tmp_path):  # noqa: F811
        case = library.cases[5]
        results = [failed(c) if c is case else outcome(c) for c in library.cases]
        made(library, results, tmp_path / "a.jsonl", connect="cmd:mine")
        path = tmp_path / "mine.yaml"
        code, _, err = self.write(cli, tmp_path / "a.jsonl", path)
        assert (code, "--reason TEXT --url URL" in err) == (2, True)
        assert self.write(cli, tmp_path / "a.jsonl", path, "--reason", "known", "--url", URL)[0] == 0
        assert [e.case for e in load(path, library).entries] == [case.id]
        assert cli("expectations", tmp_path / "a.jsonl", "--expectations", path)[0] == 0
        made(library, [outcome(c) for c in library.cases], tmp_path / "b.jsonl", connect="cmd:mine")
        code, out, _ = cli("expectations", tmp_path / "b.jsonl", "--expectations", path)
        assert (code, "unexpected pass" in out) == (1, True)
        assert self.write(cli, tmp_path / "b.jsonl", path)[0] == 0
        assert not path.exists()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["expectations"], "give either a LOG or -b"),
            (["expectations", "-b", "cmd:x"], "name a file: --expectations FILE"),
            (["run", "-b", "numpy", "-b", "torch", "-k", "blocks", "--expectations", "none.yaml"], "about one backend"),
        ],
    )
    def test_wrong_usage(self, cli, arguments, words):  # noqa: F811
        code, _, err = cli(*arguments)
        assert (code, words in err) == (2, True), err


class TestReplay:
    """A log in the place of a backend."""

    def test_recorded_results_stand_for_cases_that_are_the_same(self, cli, few, tmp_path):  # noqa: F811
        connect = f"py:{FAKES}:SlightlyOff"
        cli("run", "-b", connect, *few, "--no-diagnosis", "-o", tmp_path)
        path = next(tmp_path.glob("*.jsonl"))
        path.write_text(path.read_text().replace('"diagnosis":""', '"diagnosis":"a mistake"'))
        reseal(path)
        recorded = read_log(path)
        code, out, _ = cli("run", "-b", f"replay:{path}", *few, "-o", tmp_path / "again")
        again = read_log(next((tmp_path / "again").glob("*.jsonl")))
        assert code == 1
        assert {o.case: o for o in again.outcomes} == {o.case: o for o in recorded.outcomes}
        wrong = {r.diagnosis for r in again.results.values() if r.outcome.status == "fail"}
        assert wrong == {"a mistake"}
        assert again.header.backend.version == recorded.header.backend.version
        assert "replay:" in out

    def test_other_cases_are_not_run(self, cli, few, library, tmp_path):  # noqa: F811
        cli("run", "-b", "numpy", *few, "-o", tmp_path)
        path = tmp_path / "numpy.jsonl"
        other = next(c.id for c in library.cases if c.id not in few)
        path.write_text(path.read_text().replace(f'"digest":"{library.find(few[1]).digest}"', '"digest":"0"'))
        reseal(path)
        code, _, _ = cli("run", "-b", f"replay:{path}", *few, "--case", other, "-o", tmp_path / "again")
        again = read_log(next((tmp_path / "again").glob("*.jsonl")))
        assert code == 4
        assert {o.case: o.reason for o in again.outcomes if o.status == "not-run"} == {
            few[1]: "the case is another one now",
            other: "the case is not in the log",
        }

    def test_a_log_of_other_readings_is_another_log(self, cli, few, tmp_path):  # noqa: F811
        cli("run", "-b", "numpy", *few, "--reading", "unused=zeros", "-o", tmp_path)
        code, out, err = cli("run", "-b", f"replay:{tmp_path / 'numpy.jsonl'}", *few)
        assert (code, "--reading unused=zeros" in out + err) == (3, True)

    @pytest.mark.parametrize("connect", ["replay:", "replay:none.jsonl"])
    def test_no_log_is_no_backend(self, cli, few, connect):  # noqa: F811
        assert cli("run", "-b", connect, *few)[0] == 3


def test_signatures_of_outcomes_are_whole():
    plain = Outcome(case="x", digest="", status="error", clause="PLG-1", reason="timeout: 60 s")
    assert Signature.of(plain) == Signature(clause="PLG-1", region="timeout")
