"""The static site: its navigation, the pages made for what documentation links to, and the search for dead links."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def module(name):
    spec = importlib.util.spec_from_file_location(f"website_{name}", ROOT / "website" / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


pages, links = module("pages"), module("links")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    pages.write_pages(folder)
    return folder


def in_navigation(entries):
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else in_navigation(value)


def test_every_page_of_the_documentation_is_in_the_navigation(written):
    named = list(in_navigation(pages.configuration()["nav"]))
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= set(named)
    assert len(named) == len(set(named))
    assert [name for name in named if not (written / name).is_file() and name != pages.REPORTS] == []


def test_pages_of_operations_are_named_by_them():
    (contracts,) = (entry["Contracts"] for entry in pages.configuration()["nav"] if "Contracts" in entry)
    assert {"QSAPrepare": "docs/contract.md"} in contracts
    assert {"SparseAttentionPipeline": "docs/contract-sparse-attention-pipeline.md"} in contracts


def test_a_link_to_a_line_leads_to_it_on_a_page_that_shows_the_file(written):
    original, made = ((folder / "docs" / "cases-qsa-prepare.md").read_text() for folder in (ROOT, written))
    name, line = re.search(r"\]\(\.\./(cases/[^)#]*)#L(\d+)\)", original).groups()
    assert f"](../{name}.md#__codelineno-0-{line})" in made and "#L" not in made
    text = (written / f"{name}.md").read_text()
    assert (ROOT / name).read_text() in text and "search:\n  exclude: true" in text


def test_a_folder_is_listed_with_a_page_for_each_of_its_files(written):
    assert "](reference/index.md)" in (written / "README.md").read_text()
    listed = re.findall(r"^- \[([^]]*)\]\((.*)\)$", (written / "reference" / "index.md").read_text(), re.MULTILINE)
    assert {name for name, _ in listed} >= {"expected.py", "parts.py"}
    assert all((written / "reference" / target).is_file() for _, target in listed)


def test_links_between_pages_stay_as_they_are(written):
    page = "docs/write-a-backend.md"
    assert "](backend-protocol.md)" in (written / page).read_text()
    assert "](docs/write-a-backend.md)" in (written / "README.md").read_text()


def test_dead_links_are_found(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "index.html").write_text('<h1 id="top"><a href="below/#here"><a href="https://example.org/none"></h1>')
    (tmp_path / "below" / "index.html").write_text('<p id="here"><a href="../index.html#top"><img src="../a%20b.png">')
    (tmp_path / "a b.png").write_text("")
    assert links.dead_links(tmp_path) == (3, [])
    (tmp_path / "more.html").write_text('<a href="none.html"><a href="below/index.html#gone"><a href="#gone">')
    wrong = ["more.html: #gone", "more.html: below/index.html#gone", "more.html: none.html"]
    assert links.dead_links(tmp_path) == (6, wrong)
