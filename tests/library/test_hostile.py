"""Hostile and mistaken files: always one sentence with file, line and column, at once, and no array is made."""

from __future__ import annotations

import os

import pytest

from conformance.errors import LibraryError
from conformance.library import cache, strict_yaml
from conformance.library.operations import cases_root, load_operation
from conformance.library.reading import load_file, load_library

HEAD = "cases:\n  - id: one\n    says: It works.\n    clauses: [BLK-1]\n"


@pytest.fixture
def written(tmp_path, operation):
    def load(text):
        path = tmp_path / "01-topic" / "file.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        with pytest.raises(LibraryError) as caught:
            load_file(path, operation, "file.yaml")
        return str(caught.value)

    return load


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ("dims: {L: true}", "5:12", "truth value"),
        ("dims: {L: [3]}", "5:12", "not a list"),
        ("attributes: {epsilon: [1]}", "5:18", "not a list"),
        ("attributes: {key_block_size: 2.5}", "5:18", "a whole number"),
        ("attributes: {key_block_size: true}", "5:18", "a whole number"),
        ("change: {key_length: {shape: [true, {}]}}", "5:41", "not a mapping"),
        ("dims: {L: !!int abc}", "5:12", "not of the type !!int"),
        ("dims: {L: " + "9" * 5000 + "}", "5:12", "beyond 64 bits"),
        ("seed: 18446744073709551616", "5:5", "beyond 64 bits"),
        ("dims: {L: " + "(" * 50_000 + "1" + ")" * 50_000 + "}", "5:12", "characters"),
        ("dims: {L: 9**9**9}", "5:12", "beyond 64 bits"),
        ("dims: {L: 9**9**9**9}", "5:12", "beyond 64 bits"),
        ("dims: {L: (0-8)**0.5}", "5:12", "root of a negative"),
        ("dims: {L: 1.5}", "5:12", "whole number"),
        ("dims: {L: 1000000000}", "5:5", "bytes of inputs and outputs"),
        ("dims: {Di: 1000000000000}", "5:5", "bytes of inputs and outputs"),
        ("dims: {N: 1000000000}", "5:12", "not 0 to"),
        ("past: 10**18", "2:5", "bytes of inputs and outputs"),
        ("{past: 10**10, length_type: i32}", "5:5", "does not fit i32"),
        ("streams: {cuts: 1000000000}", "5:5", "too many"),
        ("streams: {cuts: true}", "5:5", "not a partition"),
        ("matrix: {q: 0..1000000000}", "5:14", "at most"),
        ("matrix: {q: 1..x}", "5:14", "not a range"),
        ("matrix: {" + ", ".join(f"a{i}: 0..9" for i in range(9)) + "}", "5:5", "1,000,000,000 cases"),
        ("cover: {strength: -2, axes: {L: [1]}}", "5:13", ">= 1"),
        ("cover: {strength: 2, axes: {L: [1], q: [0, 1]}, except: [1//q]}", "5:62", "division"),
        ("cover: {strength: 2, axes: {L: [1], q: [0]}, except: ['1==1']}", "5:50", "no row"),
        ("cover: {strength: 2, axes: {" + ", ".join(f"a{i}: 0..99" for i in range(9)) + "}}", "5:5", "too many"),
        ("data: {raw_index_keys: {aim: spikes, every: 0}}", "5:12", "division by zero"),
        ("data: {raw_index_keys: {aim: bell, inject: foo}}", "5:12", "is a list of"),
        ("data: {raw_index_keys: {aim: bell, inject: [{at: [0, 99, 0], value: 1}]}}", "5:12", "no element at"),
        ("data: {raw_index_keys: {aim: bell, inject: [{at: x, value: 1}]}}", "5:12", "no element at"),
        ("data: {raw_index_keys: {aim: bell, scale: big}}", "5:12", ""),
        ("data: {raw_index_keys: {aim: choice, values: []}}", "5:12", ""),
        ("data: {raw_index_keys: {aim: circle, part: tan}}", "5:12", ""),
        ("data: {raw_index_keys: {aim: nothing}}", "5:12", "unknown aim"),
        ("data: {raw_index_keys: [1, [2]]}", "5:12", "lists of equal length"),
        ("data: {raw_index_keys: [1, 2]}", "5:12", "needs values of shape"),
        ("data: {raw_index_keys: words}", "5:12", "numbers or null"),
        ("expect: {values: {block_index_keys: [[1]]}}", "5:23", "needs values of shape"),
        ("change: {key_length: {shape: [10**12]}}", "5:27", "cannot have the shape"),
        ("change: {key_length: {type: f99}}", "5:27", "is not a type"),
        ("change: {key_length: {inject: [{at: [9], value: 1}]}}", "5:27", "no element at"),
        ("types: {J: i32}", "5:13", "unknown name 'J'"),
        ("forms: {key_length: other}", "5:13", "unknown name"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(written, line, place, words):
    text = written(HEAD + "    " + (line[1:-1].replace(", ", "\n    ") if line.startswith("{") else line) + "\n")
    assert text.startswith(f"file.yaml:{place}: ") and words in text
    assert "\n" not in text and len(text) < 2000


def test_a_mistake_in_the_defaults_is_found_there(written):
    assert written("defaults:\n  dims: {L: true}\n" + HEAD).startswith("file.yaml:2:10: ")


def test_an_alias_stands_for_all_that_it_names(written):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert "more than 200,000 values" in written("\n".join(lines) + "\n" + HEAD)


@pytest.mark.parametrize("make", ["fifo", "device", "large", "out", "loop", "folder"])
def test_only_regular_files_of_a_limited_size_inside_the_library_are_read(tmp_path, make):
    path = tmp_path / "lib" / "x.yaml"
    path.parent.mkdir()
    if make == "fifo":
        os.mkfifo(path)
    elif make == "folder":
        path.mkdir()
    elif make == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        (tmp_path / "y.yaml").write_text("a: 1")
        path.symlink_to({"device": "/dev/zero", "out": tmp_path / "y.yaml", "loop": path}[make])
    with pytest.raises(LibraryError, match="cannot be read"):
        strict_yaml.load(path, "x.yaml", path.parent)


def replaced(tmp_path, *changes):
    """An operation.yaml like QSAPrepare's with some texts replaced, and what loading it says."""
    text = (cases_root() / "qsa_prepare" / "operation.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "operation.yaml").write_text(text)
    with pytest.raises(LibraryError) as caught:
        load_operation("other", tmp_path)
    assert "operation.yaml:" in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("batch: N ", "batch: Q ", "'Q' is not a dimension"),
        ("tokens: L ", "tokens: T ", "'T' is not a dimension"),
        ("lengths: key_length ", "lengths: length ", "'length' is not a port"),
        ("block: key_block_size ", "block: block_size ", "did you mean 'key_block_size'"),
        ("least: 2, shapes: 1, default: 4", "least: 0, default: 0", "is a block size"),
        ("least: 2, shapes: 1, default: 4", "least: 1, default: 0", "below its least value"),
        ("default: 4, says", "default: 4.5, says", "not of the type integer"),
        ("  c: {is: past // r", "  if: {is: past // r", "cannot be used as a symbol"),
        ("  c: {is: past // r", "  max: {is: past // r", "cannot be used as a symbol"),
        ("  c: {is: past // r", "  N: {is: past // r", "is taken by the dimension"),
        ("{is: past // r", "{is: c + past // r", "unknown symbol c"),
        ("{is: past // r", "{is: past // (r - r)", "division"),
        ("history: 3 * n + 2", "history: 9**9**9", "beyond 64 bits"),
        ("Bp: {says: rows of past block keys, default: top(c)", "Bp: {says: x, default: top(d)", "unknown symbol d"),
        ("reads: row >= pad\n", "reads: rows >= pad\n", "unknown symbol rows"),
        ("repeatable: PLG-1", "repeatable: PLG-9", "'PLG-9' is not a clause"),
        ("shape: [N, L, Di]\n    type: T", "shape: [N, L, Dx]\n    type: T", "unknown symbol Dx"),
        ("type: T\n    token", "type: f23\n    token", "'f23' is not a type"),
        ("feature: rope\n", "feature: rpoe\n", "is not a feature"),
    ],
)
def test_a_mistake_in_an_operation_is_one_sentence_with_its_place(tmp_path, old, new, words):
    assert words in replaced(tmp_path, (old, new))


def test_a_damaged_cache_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    digest = load_library().digest
    (path,) = tmp_path.glob("*.msgpack")
    for damage in (lambda b: b[:-9], lambda b: b.replace(b"f32", b"f64", 1), lambda b: b"", lambda b: b[:40]):
        path.write_bytes(damage(path.read_bytes()))
        assert cache.read(path.stem) is None
        assert load_library().digest == digest
        assert cache.read(path.stem) is not None


class TestOwnCases:
    @pytest.fixture
    def own(self, tmp_path):
        folder = tmp_path / "own" / "my-topic"
        folder.mkdir(parents=True)
        (folder / "a.yaml").write_text(HEAD)
        return tmp_path / "own"

    def test_they_stand_beside_the_bundled_ones_or_alone(self, own, library):
        both, alone = load_library(extra=own), load_library(extra=own, only=True)
        assert [case.id for case in alone.cases] == ["my-topic/one"]
        assert [case.digest for case in both.cases] == [case.digest for case in library.cases + alone.cases]
        assert both.own == alone.own == str(own) and library.own == ""

    def test_lint_names_the_library_and_reads_on(self, own, cli):
        (own / "my-topic" / "b.yaml").write_text(HEAD.replace("one", "two") + "    dims: {L: true}\n")
        (own / "my-topic" / "c.yaml").write_text(HEAD.replace("one", "three").replace("works.", "works"))
        code, out, _ = cli("cases", "lint", "--library", own, "--no-bundled")
        assert code == 1 and f"read: {own}" in out and "2 cases from 2 written" in out
        assert "b.yaml:5:12" in out and "my-topic/three: 'says' must be" in out

    def test_they_are_run_and_prove_no_conformance(self, own, cli, tmp_path):
        code, out, _ = cli("run", "-b", "numpy", "--library", own, "--no-bundled", "-o", tmp_path / "logs")
        assert code == 4 and "INCOMPLETE" in out and str(own) in out
        assert f'"own":"{own}"' in (tmp_path / "logs" / "numpy.jsonl").read_text()

    def test_a_folder_without_cases_is_one_sentence(self, tmp_path, cli):
        for arguments in (["--library", tmp_path], ["--library", tmp_path / "none"], ["--no-bundled"]):
            code, _, err = cli("cases", "list", *arguments)
            assert code == 2 and err.count("\n") == 1

    def test_a_group_is_all_of_its_cases(self, cli):
        one = cli("cases", "list", "-k", "rotation/widths")[1].split()
        code, out, _ = cli("cases", "show", "rotation/widths")
        assert code == 0 and len(one) > 1 and all(f"{name}\n" in out for name in one)
