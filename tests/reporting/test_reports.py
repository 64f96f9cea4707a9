"""Views of logs: what they must say, and what they must not let through."""

from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree

import msgspec
import pytest
from logs import FROZEN, interrupted, made, mixed, outcome, part, passing, timed

from conformance.errors import UsageError
from conformance.library.reading import Library
from conformance.record.log import read_log
from conformance.reporting import badge, html, plots, table
from conformance.reporting.compare import compare, render
from conformance.reporting.junit import junit
from conformance.reporting.markdown import markdown

HOSTILE = '</script><script>alert(1)</script> <img src=x onerror=alert(2)> "quoted" & ```'


@pytest.fixture(scope="module")
def few():
    from conformance.library.reading import load_library

    return part(load_library())


@pytest.fixture(scope="module")
def good(few):
    return passing(few)


@pytest.fixture(scope="module")
def bad(few):
    return mixed(few)


def hostile(few, path=None):
    """A log whose every text that comes from a backend, or from a case, tries to break out of its place."""
    cases = [msgspec.structs.replace(case, says=HOSTILE) for case in few.cases]
    library = Library(few.operation, tuple(cases), few.written)
    outcomes = [
        outcome(case, "fail", reason=HOSTILE, where=HOSTILE, detail=HOSTILE, stderr=HOSTILE + "\x00\x1b[0m")
        for case in cases
    ]
    return made(library, outcomes, path, connect=f"py:{HOSTILE}:X", version=HOSTILE)


def test_timings_stand_below_the_matrix_in_text_and_markdown(good, operation):
    for text, row in (
        (table.report([timed(good)], operation), r"^mine +102 µs +0\.25 faster"),
        (markdown([timed(good)], operation), r"^\| mine +\| 102 µs +\| 0\.25 faster"),
    ):
        assert re.search(row, text, re.MULTILINE), text
    assert "prefill" not in table.report([good], operation) + markdown([good], operation)


class TestFrozenLog:
    """A log of the first schema, kept as it was written then."""

    def test_it_renders_as_ever(self, operation):
        text = table.report([read_log(FROZEN)], operation)
        assert text + "\n" == FROZEN.with_suffix(".txt").read_text()

    def test_every_other_view_takes_it(self, operation):
        log = read_log(FROZEN)
        page = html.page([log, log], operation)
        assert "every key is larger by one part in a thousand" in page
        assert "signal 11" in markdown([log], operation)
        ElementTree.fromstring(junit([log]).encode())
        assert not compare(log, log).worse

    def test_a_gzipped_log_is_the_same_log_and_may_be_cut_off(self, tmp_path):
        packed = gzip.compress(FROZEN.read_bytes())
        (tmp_path / "a.jsonl.gz").write_bytes(packed)
        assert read_log(tmp_path / "a.jsonl.gz").results == read_log(FROZEN).results
        (tmp_path / "b.jsonl.gz").write_bytes(packed[: len(packed) * 2 // 3])
        cut = read_log(tmp_path / "b.jsonl.gz")
        assert cut.interrupted
        assert 0 < len(cut.results) < len(read_log(FROZEN).results)

    def test_a_broken_archive_is_refused_in_a_sentence(self, tmp_path):
        (tmp_path / "a.gz").write_bytes(b"\x1f\x8b" + b"nonsense" * 4)
        with pytest.raises(UsageError, match="cannot be unpacked"):
            read_log(tmp_path / "a.gz")


class TestTitles:
    def test_say_as_little_as_tells_them_apart(self, few):
        old, new, other = passing(few), passing(few, version="2.0"), passing(few, connect="other")
        assert table.titles([old, new, other]) == ["mine 1.0", "mine 2.0", "other"]
        assert len(set(table.titles([old, old, old]))) == 3


class TestMarkdown:
    def test_says_what_was_run_and_what_was_not(self, operation, good, bad):
        text = markdown([good, interrupted(bad, 7)], operation)
        assert text.splitlines()[0] == "# Conformance of QSAPrepare"
        assert "CONFORMANT" in text
        assert "**Interrupted**: 7 of 12 cases were run." in text
        assert "unsupported, 1 case: f16: mine takes f32 only" in text

    def test_a_table_row_has_a_cell_for_every_log(self, operation, good, bad):
        rows = [line for line in markdown([good, bad], operation).splitlines() if line.startswith("|")]
        assert {row.count("|") for row in rows} == {4}

    def test_text_of_a_backend_cannot_end_its_block(self, operation, few):
        text = markdown([hostile(few)], operation)
        fence = re.search("^(`+)text$", text, re.MULTILINE).group(1)
        assert len(fence) > 3
        assert text.count(f"\n{fence}") == 2


class TestJUnit:
    def test_counts_and_properties(self, bad):
        suite = ElementTree.fromstring(junit([bad]).encode()).find("testsuite")
        assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
            "tests": "12", "failures": "2", "errors": "2", "skipped": "2",
        }  # fmt: skip
        assert len(suite.findall("testcase/failure")) == 2
        names = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
        assert names["verdict"] == "NOT CONFORMANT"
        assert names["library"] == bad.header.library

    def test_what_was_not_run_is_an_error(self, bad):
        suite = ElementTree.fromstring(junit([interrupted(bad, 5)]).encode()).find("testsuite")
        assert suite.get("tests") == "6"
        assert suite.findall("testcase")[-1].find("error").get("message") == "7 of 12 cases were not run"

    def test_hostile_text_stays_text(self, few):
        root = ElementTree.fromstring(junit([hostile(few)]).encode())
        assert "onerror" in root.find("testsuite/testcase/failure").get("message")
        assert not root.findall(".//script")


class TestBadge:
    def test_says_the_verdict(self, good, bad):
        assert json.loads(badge.endpoint(good)) == {
            "schemaVersion": 1, "label": f"QSAPrepare contract {good.header.contract}", "message": "mine conformant",
            "color": "brightgreen",
        }  # fmt: skip
        svg = ElementTree.fromstring(badge.svg(bad))
        assert "not conformant" in svg.get("aria-label")

    def test_is_refused_for_what_was_not_complete(self, few, good):
        with pytest.raises(UsageError, match="was interrupted"):
            badge.svg(interrupted(good, 3))
        with pytest.raises(UsageError, match="not of the whole library"):
            badge.endpoint(passing(few, complete=False, filters={"--quick": "yes"}))


class TestCompare:
    def logs(self, few, before, after):
        """Two logs that differ in the statuses of the first cases."""
        pairs = []
        for statuses in (before, after):
            rest = ["pass"] * (len(few.cases) - len(statuses))
            outcomes = [outcome(c, s) for c, s in zip(few.cases, [*statuses, *rest], strict=True)]
            pairs.append(made(few, outcomes))
        return pairs

    @pytest.mark.parametrize(
        ("before", "after", "category", "worse"),
        [
            ("pass", "fail", "newly_failing", True),
            ("pass", "error", "newly_failing", True),
            ("unsupported", "fail", "newly_failing", True),
            ("pass", "unsupported", "no_longer_run", True),
            ("pass", "not-run", "no_longer_run", True),
            ("fail", "error", "still_failing", False),
            ("error", "pass", "fixed", False),
            ("unsupported", "pass", "other", False),
            ("pass", "quality-warning", "other", False),
        ],
    )
    def test_by_status(self, few, before, after, category, worse):
        old, new = self.logs(few, [before], [after])
        result = compare(old, new)
        assert getattr(result, category) == [few.cases[0].id]
        assert result.worse == worse
        others = {name for name in categories() if getattr(result, name)} - {category}
        assert not others
        assert few.cases[0].id in render(old, new, result, format="github")

    def test_cases_that_came_went_and_changed(self, few, good):
        changed = msgspec.structs.replace(few.cases[0], seed=1)
        library = Library(few.operation, (changed, *few.cases[1:-1]), few.written)
        result = compare(good, passing(library))
        assert result.changed == [changed.id]
        assert result.gone == [few.cases[-1].id]
        assert compare(passing(library), good).new == [few.cases[-1].id]
        assert not compare(passing(library), good).worse
        assert result.lost == [few.cases[-1].id]
        assert result.worse, "a case that passed is gone"
        assert "1 case that passed is gone" in render(good, passing(library), result)

    def test_what_failed_and_is_gone_is_not_worse(self, few):
        old = made(few, [outcome(c, "fail" if c is few.cases[-1] else "pass") for c in few.cases])
        assert not compare(old, passing(Library(few.operation, few.cases[:-1], few.written))).worse

    def test_what_fails_alike_is_one_line_with_a_count(self, library, good):
        old, new = passing(library), made(library, [outcome(c, "fail", clause="ROT-1") for c in library.cases])
        text = render(old, new, compare(old, new), labels=("before", "after"))
        assert len(text.splitlines()) < 30
        assert f"{len(library.cases):,}" in text
        assert "before" in text.splitlines()[0]

    def test_labels_and_wrong_usage(self, cli, few, tmp_path):
        passing(few, tmp_path / "a.jsonl")
        log = tmp_path / "a.jsonl"
        code, out, _ = cli("compare", log, log, "--label", "main", "--label", "mine")
        assert (code, out.split()[:2]) == (0, ["main", "mine"])
        assert cli("compare", log, log, "--label", "main")[0] == 2
        assert "theirs" in cli("report", log, "--label", "theirs")[1]

    def test_headroom_that_moved(self, few, good):
        moved = made(few, [outcome(case, headroom={"ROT-1": 0.31, "NRM-1": 0.2}) for case in few.cases])
        more = made(few, [outcome(case, headroom={"ROT-1": 0.62, "NRM-1": 0.1}) for case in few.cases])
        assert compare(good, moved).moved == {}
        assert compare(moved, more).moved == {"ROT-1": (0.31, 0.62), "NRM-1": (0.2, 0.1)}

    @pytest.mark.parametrize(("factor", "says"), [(1.1, "no difference shown"), (1.3, "slower"), (0.7, "faster")])
    def test_times_differ_only_when_the_intervals_lie_apart(self, good, factor, says):
        old, new = timed(good), timed(good)
        scaled = tuple(
            msgspec.structs.replace(
                r, numbers={k: v * factor if k.endswith("_s") and k[0] in "mlh" else v for k, v in r.numbers.items()}
            )
            for r in new.perf
        )
        new = msgspec.structs.replace(new, perf=scaled)
        result = compare(old, new)
        assert len(result.timings) == 3
        assert all(t.says.startswith(says) for t in result.timings)
        assert says in render(old, new, result)

    def test_times_of_other_processors_are_not_compared(self, good):
        new = timed(good)
        head = msgspec.structs.replace(new.header, environment={**new.header.environment, "cpu": "another"})
        result = compare(timed(good), msgspec.structs.replace(new, header=head))
        assert not result.timings
        assert "cpu was" in result.untimed


def categories():
    from conformance.reporting.compare import TITLES

    return TITLES


class Reader(HTMLParser):
    """Collects what the tests ask about, and checks that tags that need an end have one."""

    NEED_END = (
        "table",
        "details",
        "summary",
        "ul",
        "section",
        "figure",
        "svg",
        "a",
        "span",
        "dl",
        "pre",
        "script",
        "b",
    )

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads, self.scripts, self.open = [], [], [], 0, []
        self.headers_without_scope = self.columns = 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        plain = dict(attributes)
        self.ids += [plain["id"]] if "id" in plain else []
        self.loads += [
            v for k, v in attributes if k in ("src", "srcset", "data", "poster") or (tag, k) == ("link", "href")
        ]
        self.loads += [k for k, v in attributes if k.startswith("on")]
        self.links += [plain["href"]] if tag == "a" else []
        self.scripts += tag == "script"
        self.headers_without_scope += tag == "th" and "scope" not in plain
        if tag in self.NEED_END:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.NEED_END:
            assert self.open.pop() == tag, self.getpos()


class TestPage:
    def test_is_whole_and_loads_nothing(self, operation, good, bad):
        text = html.page([timed(good), bad], operation)
        page = Reader(text)
        assert not page.open
        assert page.loads == ["data:,"]
        assert page.scripts == 1
        assert page.headers_without_scope == 0
        assert not re.search(r"@import|url\(|https?://(?!docs\.openvino\.ai)", text)
        assert [href for href in page.links if not href.startswith("#")] == [operation.page]

    def test_ids_are_unique_and_every_link_within_the_page_leads_somewhere(self, operation, good, bad):
        from urllib.parse import unquote

        page = Reader(html.page([good, bad], operation))
        assert len(page.ids) == len(set(page.ids))
        missing = {href for href in page.links if href.startswith("#") and unquote(href[1:]) not in page.ids}
        assert not missing

    def test_every_clause_and_every_case_that_was_run_is_there(self, operation, few, bad):
        page = Reader(html.page([bad], operation))
        assert set(operation.clause) <= set(page.ids)
        assert {case.id.partition("[")[0] for case in few.cases} <= set(page.ids)

    def test_a_failure_is_drilled_down_into(self, operation, few, bad):
        text = html.page([bad], operation)
        case = few.cases[0]
        assert f'id="1:{case.id}"' in text
        for words in ("it is wrong", "block_index_keys[0, 1, 2], rotated", "0x3FA00000", "1.75e+06", "--case"):
            assert words in text

    def test_says_what_it_is_not(self, operation, few, good):
        partial = passing(few, complete=False, filters={"-k": "rotation"})
        text = html.page([interrupted(good, 4), partial], operation)
        assert "Interrupted: 4 of 12 cases were run." in text
        assert "Not the whole library: -k rotation." in text

    def test_hostile_text_stays_text(self, operation, few):
        text = html.page([hostile(few)], operation)
        page = Reader(text)
        assert page.scripts == 1
        assert page.loads == ["data:,"]
        assert "alert(1)" in text

    def test_what_is_unsupported_is_told_with_the_reason(self, operation, bad):
        assert re.search(
            r'mine<td data-head="what">f16<td data-head="cases">2<td data-head="reason">mine takes f32 only',
            html.page([bad], operation),
        )

    def test_pictures(self, operation, few, good):
        turns = ["fail", "pass"] * len(few.cases)
        more = [{"clause": "ROT-1"} if status == "fail" else {} for status in turns]
        bad = made(few, [outcome(c, s, **m) for c, s, m in zip(few.cases, turns, more, strict=False)])
        text = html.page([timed(good), timed(bad, share=None, ratio=None)], operation)
        labels = re.findall(r'<svg viewBox[^>]* aria-label="([^"]*)"', text)
        assert any(
            label.startswith("Largest error over bound, ROT-1") and "failed at 1.75e+06" in label for label in labels
        )
        assert any(label.startswith("Time of a call by new tokens") and "16 Ki 1.64 ms" in label for label in labels)
        assert not any("…" in label for label in labels)

    def test_a_clause_that_only_a_log_knows_is_shown(self, operation, few):
        case = msgspec.structs.replace(few.cases[0], clauses=("OLD-7",))
        log = passing(Library(few.operation, (case,), 1))
        assert "not in this version of the contract" in html.page([log], operation)


class TestSize:
    """Under a megabyte for five backends with the whole library, however many fail."""

    def test_when_all_is_well(self, operation, library):
        page = html.page([passing(library, connect=f"openvino-backend-{i}") for i in range(5)], operation)
        assert len(page.encode()) < 900_000

    def test_when_everything_fails_everywhere(self, operation, library):
        outcomes = [outcome(case, "fail", reason="it is wrong in a long sentence " * 4) for case in library.cases]
        page = html.page([made(library, outcomes, connect=f"openvino-backend-{i}") for i in range(5)], operation)
        assert len(page.encode()) < 1_000_000
        assert "more are marked in the list of cases" in page
        assert " more, a line each" in page
        ids = set(re.findall(r' id="?([^"> ]+)', page))
        links = set(re.findall(r'<a href="#([^"]+)"', page))
        assert len(links) > 50 and {unquote(one) for one in links} <= ids, "they lead somewhere without a script"


def test_cases_that_fared_alike_are_told_in_one_line(operation, library):
    cases = [case for case in library.cases if case.id.startswith("rotation/widths[")][:4]
    own = Library(operation, tuple(cases), 1)
    passed = passing(own, connect="a")
    left = made(own, [outcome(case, "unsupported") for case in cases], connect="b")
    text = html.page([passed, left], operation)
    box = text[text.index('id="rotation/widths"') :]
    assert "<p>✓ a; ○ b" in box and box.count("<li><b>") == 4 and "<th scope=row>" not in box
    mixed_up = made(own, [outcome(c, "unsupported" if i else "pass") for i, c in enumerate(cases)], connect="b")
    box = html.page([passed, mixed_up], operation)
    assert box.count("<th scope=row>") == 4 and "<p>✓ a" not in box


class TestPerformance:
    """A row a workload: what is slow is seen by its colour, and no text lies under a line."""

    def page(self, operation, few, *times):
        logs = []
        for number, seconds in enumerate(times):
            log = timed(passing(few, connect=f"mine-{number}"))
            record = log.perf[0]
            numbers = {**record.numbers, "fast_s": seconds, "backend": f"mine-{number}"}
            logs.append(msgspec.structs.replace(log, perf=(msgspec.structs.replace(record, numbers=numbers),)))
        return html.page(logs, operation)

    def test_a_workload_is_one_row_with_a_cell_for_every_backend(self, operation, few):
        text = self.page(operation, few, 1e-4, 3e-4, 2e-3)
        assert text.count('<th scope="row">prefill[L=1024]') == 1 + 3
        cells = re.findall(r'<td class="(h\d)" data-head="(mine-\d)"[^>]*><b>([^<]*)</b> ([^<]*)<', text)
        assert cells == [
            ("h0", "mine-0", "100 µs", "1 x"), ("h2", "mine-1", "300 µs", "3 x"), ("h3", "mine-2", "2 ms", "20 x"),
        ]  # fmt: skip

    def test_a_part_that_is_timed_alone_is_not_the_fastest_backend(self, operation, few):
        log = timed(passing(few, connect="mine"))
        part = {**log.perf[0].numbers, "fast_s": 1e-6, "backend": "mine, kernel alone"}
        whole = {**log.perf[0].numbers, "fast_s": 1e-4, "backend": "mine"}
        records = tuple(msgspec.structs.replace(log.perf[0], numbers=numbers) for numbers in (part, whole))
        text = html.page([msgspec.structs.replace(log, perf=records)], operation)
        assert re.search(r'<td data-head="mine, kernel alone"[^>]*><b>1 µs</b> <', text)
        assert re.search(r'<td class="h0" data-head="mine"[^>]*><b>100 µs</b> 1 x', text)


class TestRounding:
    """Where a backend rounds, as its run told it, and what is used of the bounds in each type."""

    def test_is_a_row_in_every_view(self, operation, few, good):
        footer = msgspec.structs.replace(good.footer, rounding="after <every> step")
        log = msgspec.structs.replace(good, footer=footer)
        assert re.search(r"^rounds to its type +after <every> step", table.report([log], operation), re.MULTILINE)
        assert "after &lt;every&gt; step" in html.page([log], operation)
        assert "after <every> step" not in html.page([log], operation)
        assert "rounds to its type" not in table.report([good], operation)

    def test_headroom_is_told_by_type(self, operation, library):
        cases = [next(case for case in library.cases if case.element_type == name) for name in ("f32", "f16", "bf16")]
        used = dict(zip([case.id for case in cases], (0.25, 0.5, 0.0021), strict=True))
        log = made(
            Library(operation, tuple(cases), 3),
            [outcome(c, headroom={"ROT-1": used[c.id]}) for c in cases],
            connect="a",
        )
        text = table.report([log], operation)
        for name, share in (("f32", "0.25"), ("f16", "0.50"), ("bf16", "0.002")):
            assert re.search(rf"^error / bound, {name} +{share}$", text, re.MULTILINE), text
        assert 'largest error / bound, bf16<td class="chip" data-head="a">0.002' in html.page([log], operation)

    def test_whose_code_it_is_is_told_where_that_differs(self, operation, few):
        logs = [passing(few, connect="torch"), passing(few, connect="mlx-vlm")]
        assert re.search(r"^code +foreign +foreign", table.report([logs[1], logs[1]], operation), re.MULTILINE) is None
        assert re.search(r"^code +composed +foreign", table.report(logs, operation), re.MULTILINE)


def test_a_matrix_that_is_too_wide_for_a_terminal_is_several(operation, few):
    logs = [passing(few, connect=f"a-backend-of-a-long-name-{number}") for number in range(7)]
    text = table.matrix(logs, operation)
    assert max(map(len, text.splitlines())) <= table.WIDE
    assert text.count("all cases") > 1
    assert all(f"name-{number}" in text for number in range(7))
    assert table.matrix(logs, operation, format="github").count("all cases") == 1


class TestPlots:
    @pytest.mark.parametrize(
        ("seconds", "text"), [(2.5, "2.5 s"), (0.99999, "1 s"), (0.0123, "12.3 ms"), (4.2e-5, "42 µs"), (3e-9, "3 ns")]
    )
    def test_durations(self, seconds, text):
        assert plots.duration(seconds) == text

    @pytest.mark.parametrize(("tokens", "text"), [(1, "1"), (1024, "1 Ki"), (3 << 20, "3 Mi"), (1500, "1500")])
    def test_tokens(self, tokens, text):
        assert plots.tokens_text(tokens) == text

    def test_the_bound_is_where_the_axis_says(self):
        svg = ElementTree.fromstring(plots.headroom("ROT-1", [plots.Room("a", 1.0, 1.0), plots.Room("b", failed=3.0)]))
        bound = float(next(e for e in svg if e.get("class") == "bound").get("x1"))
        assert float(next(e for e in svg if e.tag == "circle").get("cx")) == bound
        assert float(next(e for e in svg if e.get("class") == "cross").get("x")) > bound

    def test_labels_are_never_cut_to_the_same_text(self):
        titles = [f"py:/a/long/way/to/a/folder/of/plugins/{name}.py:Mine" for name in ("first", "second")]
        titles += [f"a-name-that-begins-alike{'-' * 9}{n}{'-' * 9}and-ends-alike-as-well" for n in "12"]
        cut = plots.distinct(titles, 30)
        assert len(set(cut)) == 4
        assert max(map(len, cut)) <= 30
        svg = plots.headroom("ROT-1", [plots.Room(title, 0.1, 0.2) for title in titles])
        assert all(f">{text}</text>" in svg for text in cut)

    def test_all_within_the_picture(self):
        rooms = [plots.Room("a", 0.0, 1e-30), plots.Room("b", 1e9, 1e9, float("inf"))]
        svg = ElementTree.fromstring(plots.headroom("ROT-1", rooms))
        xs = [float(e.get(k)) for e in svg.iter() for k in ("x", "x1", "x2", "cx") if e.get(k)]
        assert min(xs) >= 0
        assert max(xs) <= plots.WIDTH
