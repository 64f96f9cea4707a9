"""Published reports: every log kept, every link live, a first screen that says who conforms, to what, since when."""

from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from logs import FROZEN, made, mixed, outcome, part, passing, reseal, timed

from conformance.errors import UsageError
from conformance.library.reading import Library, load_library
from conformance.record.log import PerfRecord, read_log
from conformance.reporting import publish
from conformance.reporting.html.performance import of_logs
from conformance.reporting.origin import OWN, origin_of
from conformance.reporting.publish import history, pages, store

REPORTS = Path(__file__).parents[2] / "reports"


@pytest.fixture(scope="module")
def few():
    return part(load_library())


@pytest.fixture(scope="module")
def other():
    return part(load_library("sparse_attention"))


def taking(library, seconds, status="pass", **more):
    """Outcomes of a run of its own: no two runs take the same times."""
    return [outcome(case, status, seconds=seconds, **more) for case in library.cases]


def at(path, started, **more):
    """Give a log another time, and other facts of its header."""
    lines = path.read_text().splitlines(keepends=True)
    head = json.loads(lines[0]) | {"started": started} | more
    path.write_text(json.dumps(head, separators=(",", ":")) + "\n" + "".join(lines[1:]))
    reseal(path)
    return path


@pytest.fixture
def root(few, other, tmp_path):
    """Three backends, two operations, two versions, a quick run, a failing one."""
    own(tmp_path / "a.jsonl", few, taking(few, 0.1), connect="numpy", version="1.0")
    own(tmp_path / "b.jsonl", few, taking(few, 0.2), connect="numpy", version="2.0 on x")
    made(few, taking(few, 0.3), tmp_path / "c.jsonl", connect="torch", complete=False, filters={"--quick": "yes"})
    mixed(few, tmp_path / "d.jsonl", connect="mlx-vlm:batch")
    own(tmp_path / "e.jsonl", other, taking(other, 0.1, headroom={}), connect="numpy", version="2.0 on x")
    at(tmp_path / "a.jsonl", "2026-01-02T03:04:05+00:00")
    root = tmp_path / "reports"
    for name in "abcde":
        publish.add(root, tmp_path / f"{name}.jsonl")
    publish.render(root)
    return root


def own(path, library, *arguments, **more):
    """A log of a backend that names this project as its vendor."""
    log = made(library, *arguments, path, **more)
    backend = msgspec.to_builtins(msgspec.structs.replace(log.header.backend, vendor=OWN))
    at(path, log.header.started, backend=backend)


def add_timed(root, source, records, *, footer=True):
    """Add a log with these times, as `perf --conformance` writes it."""
    lines = source.read_bytes().splitlines(keepends=True)
    perf = [msgspec.json.encode(record) + b"\n" for record in records]
    path = source.with_name(f"{source.stem}.perf.jsonl")
    path.write_bytes(b"".join([*lines[:-1], *perf, *(lines[-1:] if footer else [])]))
    reseal(path)
    return publish.add(root, path)


class Links(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        plain = dict(attributes)
        self.links += [plain["href"]] if tag == "a" else []
        self.ids += [plain["id"]] if plain.get("id") else []


class TestFolder:
    def test_files(self, root):
        files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
        whole = {"log.jsonl.gz", "report.html", "badge.svg", "badge.json"}
        assert files == {
            "index.html", "latest.html", "README.md", "qsa_prepare/latest.html", "sparse_attention/latest.html",
            *(f"qsa_prepare/{name}/changes.html" for name in ("numpy", "torch", "mlx-vlm_batch")),
            *(f"qsa_prepare/{name}/history.jsonl" for name in ("numpy", "mlx-vlm_batch")),
            *(f"sparse_attention/numpy/{name}" for name in ("changes.html", "history.jsonl")),
            *(f"qsa_prepare/numpy/1.0/{name}" for name in whole),
            *(f"qsa_prepare/numpy/2.0_on_x/{name}" for name in whole),
            *(f"qsa_prepare/mlx-vlm_batch/1.0/{name}" for name in whole),
            *(f"sparse_attention/numpy/2.0_on_x/{name}" for name in whole),
            "qsa_prepare/torch/1.0/log.jsonl.gz", "qsa_prepare/torch/1.0/report.html",
        }  # fmt: skip

    def test_every_link_of_every_page_leads_somewhere(self, root):
        pages = {path: Links(path.read_text()) for path in root.rglob("*.html")}
        assert len(pages) > 10
        for path, page in pages.items():
            for href in page.links:
                address, _, name = href.partition("#")
                if not address.startswith("https:"):
                    target = (path.parent / unquote(address)).resolve() if address else path.resolve()
                    assert target.is_file(), f"{path}: {href}"
                    if name:
                        assert unquote(name) in Links(target.read_text()).ids, f"{path}: {href}"
        text = (root / "README.md").read_text()
        links = re.findall(r"\]\(([^)]*)\)", text)
        assert len(links) > 10
        assert all((root / href).is_file() for href in links)

    def test_ids_are_unique(self, root):
        for name in ("latest.html", "index.html"):
            ids = Links((root / name).read_text()).ids
            assert len(ids) == len(set(ids))

    def test_pages_can_be_left_out(self, root):
        for path in root.rglob("report.html"):
            path.unlink()
        publish.render(root, pages=False)
        assert not list(root.rglob("report.html"))

    def test_what_is_rendered_again_is_the_same(self, root):
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        publish.render(root)
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


class TestFirstScreen:
    def test_says_who_conforms_to_what_since_when(self, root):
        log = read_log(root / "qsa_prepare" / "numpy" / "2.0_on_x" / publish.LOG)
        text = (root / "latest.html").read_text()
        table = text[: text.index("</table>")]
        assert origin_of(log).word == "this project"
        assert re.findall(r"scope=\"rowgroup\"[^>]*>([\w ]+?) <", table) == ["foreign", "composed", "this project"]
        assert table.index("mlx-vlm:batch") < table.index("torch") < table.index("numpy")
        assert re.search(
            r'class="bad" data-head="QSAPrepare"><a href="#[^"]*">✗ NOT CONFORMANT</a>.*4 of 10 fail', table
        )
        assert re.search(r">… INCOMPLETE<", table)
        assert re.search(r">✓ CONFORMANT</a><br><span class=\"soft\"><nobr>12 cases, since 2026-01-02<", table)
        assert re.findall(r'<th scope="col"><a href="#(\w+)">(\w+)', table) == [
            ("qsa_prepare", "QSAPrepare"), ("sparse_attention", "SparseAttention"),
        ]  # fmt: skip

    def test_partial_says_what_was_left_out(self, root, few, tmp_path):
        outcomes = taking(few, 0.4)
        outcomes[0] = outcome(few.cases[0], "unsupported", reason="mine takes f32 only (https://example.org/1)")
        made(few, outcomes, tmp_path / "p.jsonl", connect="onnxruntime")
        publish.add(root, tmp_path / "p.jsonl")
        publish.render(root)
        assert "unsupported, 1 case: f16: mine takes f32 only</div>" in (root / "latest.html").read_text()
        assert "mine takes f32 only" in (root / "README.md").read_text()

    def test_a_newer_quick_run_does_not_take_the_place_of_a_whole_one(self, root, few, tmp_path):
        made(few, taking(few, 0.5), tmp_path / "q.jsonl", connect="numpy", version="3.0", complete=False,
             filters={"--quick": "yes"})  # fmt: skip
        publish.add(root, tmp_path / "q.jsonl")
        (one,) = [e for e in publish.current(publish.find(root)) if e.backend == "numpy" and "qsa" in e.folder]
        assert one.log.header.backend.version == "2.0 on x"


class TestAdding:
    def logs(self, root):
        return sorted(path.relative_to(root).as_posix() for path in root.rglob(publish.LOG))

    def test_another_log_of_the_same_backend_and_version_is_kept_beside_the_first(self, root, few, tmp_path):
        before = self.logs(root)
        made(few, taking(few, 0.6), tmp_path / "x.jsonl", connect="numpy", version="1.0")
        target = publish.add(root, tmp_path / "x.jsonl")
        assert self.logs(root) == sorted([*before, target.relative_to(root).as_posix()])

    def test_the_same_log_is_added_once(self, root, tmp_path):
        before = self.logs(root)
        publish.add(root, tmp_path / "b.jsonl")
        assert self.logs(root) == before

    def test_times_come_to_the_log_of_their_run_and_stay_when_it_is_added_again(self, root, tmp_path):
        before = self.logs(root)
        target = add_timed(root, tmp_path / "b.jsonl", timed(read_log(tmp_path / "b.jsonl")).perf)
        publish.add(root, tmp_path / "b.jsonl")
        assert self.logs(root) == before
        log = read_log(target)
        assert len(log.perf) == 3
        assert log.header.started == read_log(tmp_path / "b.jsonl").header.started

    def test_of_times_on_the_same_workload_the_later_one_stays(self, root, tmp_path):
        def records(when, time, *workloads):
            return [PerfRecord(one, {"backend": "numpy", "timed": when, "fast_s": time}) for one in workloads]

        add_timed(root, tmp_path / "b.jsonl", records("2026-02-02", 2.0, "w", "v"))
        add_timed(root, tmp_path / "b.jsonl", records("2026-03-03", 3.0, "w", "x"))
        target = add_timed(root, tmp_path / "b.jsonl", records("2026-01-01", 1.0, "w", "y"))
        times = [(one.workload, one.numbers["fast_s"]) for one in read_log(target).perf]
        assert times == [("w", 3.0), ("v", 2.0), ("x", 3.0), ("y", 1.0)]
        content = target.read_bytes()
        publish.add(root, target)
        assert target.read_bytes() == content

    def test_an_interrupted_timing_does_not_take_the_place_of_the_whole_run(self, root, tmp_path):
        perf = timed(read_log(tmp_path / "b.jsonl")).perf
        log = read_log(add_timed(root, tmp_path / "b.jsonl", perf, footer=False))
        assert not log.interrupted and len(log.perf) == 3

    def test_the_whole_log_takes_the_place_of_an_interrupted_one_with_its_times(self, few, tmp_path):
        made(few, taking(few, 0.1), tmp_path / "b.jsonl", connect="numpy")
        root, perf = tmp_path / "reports", timed(read_log(tmp_path / "b.jsonl")).perf
        add_timed(root, tmp_path / "b.jsonl", perf, footer=False)
        log = read_log(publish.add(root, tmp_path / "b.jsonl"))
        assert not log.interrupted and len(log.perf) == 3

    def test_with_replace_an_earlier_log_goes_and_its_line_in_the_history_stays(self, root, few, tmp_path):
        made(few, taking(few, 0.7, "fail"), tmp_path / "x.jsonl", connect="numpy", version="1.0")
        before = self.logs(root)
        target = publish.add(root, tmp_path / "x.jsonl", replace=True)
        assert self.logs(root) == before
        assert read_log(target).outcomes[0].status == "fail"
        verdicts = [one.verdict for one in history.read(target.parent.parent)]
        assert sorted(verdicts) == ["CONFORMANT", "CONFORMANT", "NOT CONFORMANT"]

    def test_a_later_log_is_not_replaced(self, root, few, tmp_path):
        made(few, taking(few, 0.7), tmp_path / "x.jsonl", connect="numpy", version="1.0")
        at(tmp_path / "x.jsonl", "2025-01-01T00:00:00+00:00")
        with pytest.raises(UsageError, match=r"is of a later run .2026-01-02.*, and is kept"):
            publish.add(root, tmp_path / "x.jsonl", replace=True)

    def test_backends_whose_names_give_one_file_name_do_not_share_a_folder(self, root, few, tmp_path):
        made(few, taking(few, 0.8), tmp_path / "x.jsonl", connect="mlx-vlm/batch")
        assert publish.add(root, tmp_path / "x.jsonl").parents[1].name == "mlx-vlm_batch_2"

    def test_a_log_of_generated_cases_is_refused(self, root, few, tmp_path):
        passing(few, tmp_path / "x.jsonl")
        at(tmp_path / "x.jsonl", "2026-01-01T00:00:00+00:00", seed=7)
        with pytest.raises(UsageError, match="is of generated cases"):
            publish.add(root, tmp_path / "x.jsonl")

    def test_folders_of_this_machine_are_left_out(self, few, tmp_path):
        here = str(Path.cwd())
        made(few, [outcome(few.cases[0], "error", detail=f"File {here}/x.py")], tmp_path / "d.jsonl", complete=False)
        log = read_log(publish.add(tmp_path / "reports", tmp_path / "d.jsonl"))
        assert log.outcomes[0].detail == "File ./x.py"

    def test_nothing_to_publish_is_said(self, tmp_path):
        with pytest.raises(UsageError, match="holds no published log"):
            publish.render(tmp_path)

    def test_a_page_that_is_too_large_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="a published file may have"):
            pages.write(tmp_path / "x.html", "x" * (store.LARGEST + 1))


class TestTimes:
    """Two runs: a beside c in one, b beside c in the other; c was twice as slow then."""

    @staticmethod
    def record(backend, seconds, ratio, **more):
        numbers = {"backend": backend, "fast_s": seconds, "ratio": ratio, "ratio_to": "c", "tokens": 1}
        return PerfRecord("w", numbers | more)

    def factors(self, few, *records):
        """What a row says of each backend, by name."""
        logs = [(f"{r.numbers['backend']}", passing(few, connect=f"{r.numbers['backend']}")) for r in records]
        found = of_logs(
            [(n, msgspec.structs.replace(log, perf=(r,))) for (n, log), r in zip(logs, records, strict=True)]
        )
        ((_, cells),) = found.heat
        return dict(zip(found.names, (cell.factor for cell in cells), strict=True))

    def test_times_of_one_run_are_compared_as_they_are(self, few):
        records = [self.record(name, time, 7.0, timed="1") for name, time in (("a", 3.0), ("b", 2.0), ("c", 1.0))]
        assert self.factors(few, *records) == {"a": "3 x", "b": "2 x", "c": "1 x"}

    def test_times_of_several_runs_are_compared_by_their_ratios(self, few):
        records = [
            self.record("a", 6.0, 6.0, timed="1"),
            self.record("b", 8.0, 4.0, timed="2"),
            self.record("c", 2.0, 1.0, timed="2"),
        ]
        assert self.factors(few, *records) == {"a": "6 x", "b": "4 x", "c": "1 x"}

    def test_a_backend_alone_is_compared_with_the_one_it_was_timed_beside(self, few):
        assert self.factors(few, self.record("a", 6.0, 6.0, timed="1")) == {"a": "6 x c"}
        assert self.factors(few, self.record("c", 6.0, 1.0, timed="1")) == {"c": "1 x"}

    def test_earlier_logs_are_compared_by_their_times(self, few):
        records = [PerfRecord("w", {"backend": name, "median_s": time}) for name, time in (("a", 3.0), ("b", 2.0))]
        assert self.factors(few, *records) == {"a": "1.5 x", "b": "1 x"}

    def test_the_index_has_the_workloads_that_most_backends_were_timed_on(self, few, tmp_path):
        for number, name in enumerate(("numpy", "torch", "mlx-vlm"), 1):
            made(few, taking(few, float(number)), tmp_path / name, connect=name)
            alone = [PerfRecord("alone", {"backend": name, "fast_s": 9.0})] * (number == 1)
            add_timed(tmp_path / "reports", tmp_path / name, [self.record(name, float(number), 1.0, timed="1"), *alone])
        publish.render(tmp_path / "reports")
        text = (tmp_path / "reports" / "README.md").read_text()
        table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if " s, " in row]
        assert sorted(table) == [["mlx-vlm", "3 s, 3 x"], ["numpy", "1 s, 1 x"], ["torch", "2 s, 2 x"]]
        assert "`w`" in text and "`alone`" not in text
        assert "alone" in (tmp_path / "reports" / "latest.html").read_text()


class TestGrids:
    """Nine backends: one has workloads to itself, and a part that is timed alone."""

    @pytest.fixture
    def grids(self, few):
        logs = []
        for number, name in enumerate("abcdefghi"):
            perf = [PerfRecord("w", {"backend": name, "fast_s": 10.0**number})]
            if name == "a":
                perf += [PerfRecord("w", {"backend": "a, part", "fast_s": 1.0})]
                perf += [PerfRecord(f"alone-{i}", {"backend": name, "fast_s": 1.0}) for i in range(2)]
            logs.append((name, msgspec.structs.replace(passing(few, connect=name), perf=tuple(perf))))
        return of_logs(logs).grids

    def test_the_workloads_of_most_backends_come_first_and_are_the_columns_where_backends_are_more(self, grids):
        first, _ = grids
        assert (first.title, first.heads) == ("backend", ("w",))
        cells = [(name, cell.factor, cell.level) for name, (cell,) in first.rows]
        assert cells[:5] == [
            ("a", "1 x", 0),
            ("a, part", "", -1),
            ("b", "10 x", 3),
            ("c", "100 x", 4),
            ("d", "1,000 x", 5),
        ]
        assert cells[-1] == ("i", "100,000,000 x", 5)

    def test_who_has_no_time_in_a_grid_is_left_out_of_it(self, grids):
        _, second = grids
        assert (second.title, second.heads) == ("workload", ("a",))
        assert [name for name, _ in second.rows] == ["alone-0", "alone-1"]


class TestHistory:
    def test_a_log_of_the_first_schema_is_the_earlier_version(self, root, tmp_path):
        target = publish.add(root, REPORTS / "qsa_prepare" / "numpy" / "0.1.0_on_NumPy_2.4.6" / publish.LOG)
        publish.render(root)
        text = (target.parents[1] / "changes.html").read_text()
        assert re.findall(r"<h2 id=.change-[^>]*>(.*)</h2>", text) == [
            "0.1.0 on NumPy 2.4.6 to 2.0 on x", "1.0 to 0.1.0 on NumPy 2.4.6",
        ]  # fmt: skip
        assert "PARTIAL" not in text

    def test_says_what_changed_from_one_log_to_the_next_and_by_which_command(self, few, tmp_path):
        root = tmp_path / "reports"
        less = Library(few.operation, few.cases[:-1], few.written)
        for name, library, day in (("a", few, "2026-01-01"), ("b", less, "2026-02-01")):
            made(library, taking(library, 0.1), tmp_path / f"{name}.jsonl", version=name)
            publish.add(root, at(tmp_path / f"{name}.jsonl", f"{day}T00:00:00+00:00"))
        publish.render(root)
        text = (root / "qsa_prepare" / "mine" / "changes.html").read_text()
        assert "Worse: 1 gone; 1 case that passed is gone." in text
        assert "qsa-conformance compare qsa_prepare/mine/a/log.jsonl.gz qsa_prepare/mine/b/log.jsonl.gz" in text
        assert re.findall(r'<th scope="row">(2026-\d\d-\d\d)', text) == ["2026-02-01", "2026-01-01"]

    def test_a_verdict_holds_since_it_was_first_given_under_this_contract(self, few, tmp_path):
        root = tmp_path / "reports"
        turns = (
            ("2026-01-01", "fail", 2),
            ("2026-02-01", "pass", 1),
            ("2026-03-01", "pass", 2),
            ("2026-04-01", "pass", 2),
        )
        for number, (day, status, contract) in enumerate(turns):
            path = tmp_path / f"{number}.jsonl"
            made(few, taking(few, 0.1 + number, status), path, version=str(number))
            publish.add(root, at(path, f"{day}T00:00:00+00:00", contract=contract))
        assert [one.since for one in publish.current(publish.find(root))] == ["2026-03-01"]


class TestCommand:
    def test_logs_and_folders_of_logs_of_several_operations_come_together(self, cli, few, other, tmp_path):
        made(few, taking(few, 0.1), tmp_path / "logs" / "deep" / "a.jsonl", connect="numpy")
        passing(other, tmp_path / "logs" / "b.jsonl", connect="numpy")
        (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(FROZEN.read_bytes()))
        code, out, err = cli("publish", tmp_path / "logs", tmp_path / "c.jsonl.gz", "-o", tmp_path / "r", "--no-pages")
        assert code == 0, err
        assert "3 reports" in out
        assert len(list((tmp_path / "r").rglob(publish.LOG))) == 3
        code, out, _ = cli("publish", "--render", "-o", tmp_path / "r")
        assert code == 0
        assert len(list((tmp_path / "r").rglob("report.html"))) == 3

    def test_an_empty_folder_is_said(self, cli, tmp_path):
        assert cli("publish", tmp_path, "-o", tmp_path / "r")[2].startswith(f"error: {tmp_path}: holds no log")

    def test_logs_are_not_given_with_backends(self, cli, few, tmp_path):
        passing(few, tmp_path / "a.jsonl")
        code, _, err = cli("publish", tmp_path / "a.jsonl", "-b", "numpy", "-o", tmp_path / "r")
        assert (code, "logs are added as they are" in err) == (2, True)

    def test_a_backend_is_run_on_every_operation_it_serves(self, cli, tmp_path):
        code, out, err = cli("publish", "-b", "numpy", "--quick", "-o", tmp_path / "r", "--no-pages")
        assert code == 4, err
        folders = {path.parent.parent.parent.name for path in (tmp_path / "r").rglob(publish.LOG)}
        assert folders == {"qsa_prepare", "sparse_attention", "sparse_attention_indexer", "sparse_attention_pipeline"}
        assert "4 reports" in out


def test_the_published_logs_of_this_project_can_be_read():
    found = publish.find(REPORTS)
    assert 1 in {one.log.header.schema for one in found}, "those of version 0.1.0 stay"
    assert all(one.standing.verdict in ("CONFORMANT", "PARTIAL", "NOT CONFORMANT") for one in found)


def test_a_log_that_is_refused_does_not_keep_the_others_out(cli, few, tmp_path):
    passing(few, tmp_path / "good.jsonl", connect="numpy")
    (tmp_path / "bad.jsonl").write_text("nonsense\n")
    code, out, err = cli("publish", tmp_path / "bad.jsonl", tmp_path / "good.jsonl", "-o", tmp_path / "r")
    assert (code, "1 report" in out) == (2, True)
    assert err.startswith("error: ") and "is not a line of a log" in err
    code, _, err = cli("publish", tmp_path / "bad.jsonl", "-o", tmp_path / "none")
    assert (code, err.count("\n")) == (2, 1)


def test_a_folder_of_this_machine_is_taken_out_and_no_id_with_it(monkeypatch):
    monkeypatch.setenv("HOME", "/sums")
    text = b'{"case":"normalization/sums-of-five","detail":"File \\"/sums/mine.py\\"","at":"/sums","other":"/sumset"}'
    told = json.loads(store._impersonal(text))
    assert told == {
        "case": "normalization/sums-of-five", "detail": 'File "~/mine.py"', "at": "~", "other": "/sumset"
    }  # fmt: skip


@pytest.mark.parametrize("path", sorted(REPORTS.glob("*/*/*/log.jsonl.gz")), ids=str)
def test_published_logs_are_of_cases_that_there_are(path):
    log = read_log(path)
    library = load_library(log.header.operation)
    if log.header.library == library.digest:
        assert {o.case for o in log.outcomes} <= {case.id for case in library.cases}
