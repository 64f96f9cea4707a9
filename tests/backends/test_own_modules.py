"""Two plug-ins whose folders have modules of the same names are judged by their own."""

from __future__ import annotations

import pytest

from conformance.backends.connect import connect
from conformance.judging.engine import Engine

BACKEND = """
from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
import helper

class Mine(NumPyReference):
    def describe(self):
        from dataclasses import replace
        import later
        return replace(super().describe(), name=helper.NAME, version=later.NAME)
"""


@pytest.fixture
def folders(tmp_path):
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "mine.py").write_text(BACKEND)
        (folder / "helper.py").write_text(f"NAME = {name!r}\n")
        (folder / "later.py").write_text("import helper\nNAME = helper.NAME\n")
        found.append(f"py:{folder / 'mine.py'}:Mine")
    return found


@pytest.mark.parametrize("order", [1, -1])
def test_each_has_the_modules_of_its_folder(folders, order):
    made = [connect(text) for text in folders[::order]]
    said = [(info.name, info.version) for info in (one.describe() for one in made)]
    assert said == [("one", "one"), ("two", "two")][::order]


def test_a_module_of_another_folder_is_not_found(folders, tmp_path):
    connect(folders[0])
    (tmp_path / "two" / "helper.py").unlink()
    with pytest.raises(Exception, match="No module named 'helper'"):
        connect(folders[1])


def test_engines_of_both_run_side_by_side(folders, operation, library):
    case = next(case for case in library.cases if case.dims[operation.batch] == 1)
    engines = [Engine(operation, connect(text)) for text in folders]
    assert [engine.info.name for engine in engines] == ["one", "two"]
    assert {engine.run(case).status for engine in engines} == {"pass"}
