"""The documentation against the code it speaks of."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from logs import FROZEN

from conformance.backends.plugin.wire import TensorType
from conformance.judging.audits import AUDITS
from conformance.judging.outcome import STATUSES
from conformance.library.lint import problems
from conformance.library.operations import operations
from conformance.library.reading import Library, load_file, load_library
from conformance.library.written import File, Written
from conformance.record.expectations import load
from conformance.reporting.documents import cases_page_of, documents, outdated, page_of
from conformance.spec.aims import AIMS
from conformance.spec.operation import Operation
from conformance.spec.types import dtype

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def table_after(text, heading):
    """Rows of the first table below a heading, as lists of cells."""
    rows = []
    for line in text[text.index(heading) :].splitlines()[1:]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    return rows[2:]


def names(cell):
    return re.findall(r"`([^`]*)`", cell)


class TestGenerated:
    def test_pages_are_up_to_date(self):
        late = outdated([load_library(name) for name in operations()], DOCS)
        assert not late, "run: qsa-conformance docs"

    def test_a_page_that_is_out_of_date_is_found(self, library, tmp_path):
        for name, text in documents([library]).items():
            (tmp_path / name).write_text(text)
        assert outdated([library], tmp_path) == []
        (tmp_path / "contract.md").write_text("old")
        (tmp_path / "log.schema.json").unlink()
        assert outdated([library], tmp_path) == ["contract.md", "log.schema.json"]

    @pytest.mark.parametrize("name", operations())
    def test_every_clause_links_its_cases(self, name):
        library = load_library(name)
        contract, cases = page(page_of(library)), page(cases_page_of(library))
        for clause in library.operation.clauses:
            section = contract[contract.index(f"#### {clause.id}\n") :].split("\n#### ")[0]
            assert clause.says in section.replace("\\*", "*")
            assert f"]({cases_page_of(library)}#{clause.id.lower()})" in section
            listed = cases[cases.index(f"\n### {clause.id}\n") :].split("\n## ")[0].split("\n### ")[1]
            found = set()
            for topic, line in re.findall(r"^- \*\*(.*?)\*\*: (.*)$", listed, re.MULTILINE):
                found |= {f"{topic}/{case}" for case in re.findall(r"\[([^]]*)\]\(\.\./cases", line)}
            assert found == {c.id.partition("[")[0] for c in library.cases if clause.id in c.clauses}

    @pytest.mark.parametrize("name", operations())
    def test_a_contract_can_be_read(self, name):
        """Lists of cases stand in a page of their own."""
        text = page(page_of(load_library(name)))
        assert "](../cases" not in text
        assert max(len(line) for line in text.splitlines() if not line.startswith("|")) < 600

    def test_the_rotation_is_in_the_contract(self):
        section = page("contract.md").split("#### ROT-1\n")[1].split("\n#### ")[0]
        assert "y[j + Dr/2] * sin[j]" in section and "+ y[j]        * sin[j + Dr/2]" in section

    def test_a_link_leads_to_the_line_of_its_case(self):
        links = re.findall(r"\[([^]]*)\]\(\.\./([^)#]*)#L(\d+)\)", page("cases-qsa-prepare.md"))
        assert len(links) > 300
        for name, path, line in links[::17]:
            written = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
            assert written.strip().lstrip("- ").startswith(f"id: {name}")

    def test_a_frozen_log_keeps_to_the_schema(self):
        validator = jsonschema.Draft202012Validator(json.loads(page("log.schema.json")))
        for line in FROZEN.read_text(encoding="utf-8").splitlines():
            validator.validate(json.loads(line))


class TestWritingACase:
    def test_every_key_is_explained_and_no_other(self):
        rows = table_after(page("writing-a-case.md"), "## Keys")
        assert [names(row[0])[0] for row in rows] == list(Written.__struct_fields__)

    def test_every_aim_is_explained_with_its_parameters(self):
        rows = {names(row[0])[0]: row[1] for row in table_after(page("writing-a-case.md"), "## Data")}
        assert set(rows) == set(AIMS)
        for name, aim in AIMS.items():
            parameters = list(inspect.signature(aim).parameters.values())[1:]
            written = dict(part.split(": ", 1) for part in names(rows[name]))
            assert list(written) == [p.name for p in parameters], name
            for parameter in parameters:
                if isinstance(parameter.default, float | int):
                    assert float(written[parameter.name]) == parameter.default

    def test_every_audit_is_explained(self):
        rows = table_after(page("writing-a-case.md"), "## Audits")
        assert [names(row[0])[0] for row in rows] == list(AUDITS)

    def test_the_examples_are_cases_without_a_problem(self, operation, tmp_path):
        examples = re.findall(r"<!-- example -->\n```yaml\n(.*?)```", page("writing-a-case.md"), re.DOTALL)
        assert len(examples) == 3
        cases = []
        for number, text in enumerate(examples):
            path = tmp_path / f"{number}0-topic-{number}" / "example.yaml"
            path.parent.mkdir()
            path.write_text(text)
            cases += load_file(path, operation, str(path))[0]
        found = problems(Library(operation, tuple(cases), 6))
        assert [problem for problem in found if "no case" not in problem] == []
        assert sum(case.id.startswith("topic-0/straddle[") for case in cases) == 9

    def test_the_keys_of_a_file_are_named(self):
        assert all(f"\n{key}:" in page("writing-a-case.md") for key in File.__struct_fields__)


class TestOtherPages:
    def test_every_key_of_an_operation_is_explained(self):
        rows = table_after(page("adding-an-operation.md"), "## operation.yaml")
        explained = [name for row in rows for name in names(row[0])]
        assert sorted(explained) == sorted(Operation.__struct_fields__)

    def test_every_type_of_a_tensor_is_named_with_its_size(self):
        rows = table_after(page("backend-protocol.md"), "## Tensors")
        sizes = {name: int(size) for row in rows for name, size in zip(names(row[0]), row[1].split(", "), strict=True)}
        assert sizes == {name: dtype(name).itemsize for name in get_args(TensorType)}

    def test_every_status_is_explained(self):
        rows = table_after(page("reading-a-report.md"), "| status |")
        assert [names(row[0])[0] for row in rows] == list(STATUSES)[1:]

    def test_the_file_of_expectations_can_be_read(self, library, tmp_path):
        text = re.search(r"```yaml\n(says: What mine.*?)```", page("reading-a-report.md"), re.DOTALL).group(1)
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        assert load(path, library).entries[0].expires == "2027-06-30"

    @pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
    def test_links_within_the_repository_lead_somewhere(self, name):
        links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page(name))
        missing = {link for link in links if "://" not in link and not (DOCS / link).exists()}
        assert not missing

    @pytest.mark.parametrize("name", ["reading-a-report.md", "writing-a-case.md", "adding-an-operation.md"])
    def test_commands_and_their_options_exist(self, name):
        import click

        from conformance.cli import VERBS, cli

        for words in re.findall(r"qsa-conformance ([^\n`#]*)", page(name)):
            verb, *rest = words.split()
            assert verb in VERBS
            command = cli.get_command(click.Context(cli), verb)
            if isinstance(command, click.Group):
                command = command.commands[rest[0]]
            options = {option for p in command.params for option in p.opts}
            assert {word for word in rest if re.fullmatch(r"--?[a-z][\w-]*", word)} <= options, words
