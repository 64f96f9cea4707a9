"""The library's language: strict YAML, expressions, expansion, and errors that say where."""

from __future__ import annotations

import itertools

import pytest

from conformance.errors import LibraryError
from conformance.library import strict_yaml
from conformance.library.expansion import missing_combinations
from conformance.library.reading import load_file
from conformance.spec.expression import ExpressionError, evaluate
from conformance.spec.streams import all_partitions, random_partition

CASE = """cases:
  - id: one
    says: It works.
    clauses: [BLK-1]
"""


@pytest.fixture
def cases(tmp_path, operation):
    def load(text):
        folder = tmp_path / "07-topic"
        folder.mkdir(exist_ok=True)
        path = folder / "file.yaml"
        path.write_text(text, encoding="utf-8")
        return load_file(path, operation, "file.yaml")[0]

    return load


def problem(cases, text):
    with pytest.raises(LibraryError) as caught:
        cases(text)
    return str(caught.value)


class TestStrictYaml:
    def scalars(self, tmp_path, text):
        path = tmp_path / "x.yaml"
        path.write_text(text, encoding="utf-8")
        return strict_yaml.load(path)[0]

    def test_scalars_are_those_of_yaml_1_2(self, tmp_path):
        text = (
            "[1e-6, 1.0e-6, no, on, yes, y, 010, 0o10, 0x1F, 12:30:00, 2020-01-01, ~, null, true, .inf, -.inf, 1_000]"
        )
        assert self.scalars(tmp_path, text) == [
            1e-6, 1e-6, "no", "on", "yes", "y", 10, 8, 31, "12:30:00", "2020-01-01", None, None, True,
            float("inf"), float("-inf"), "1_000",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("text", "place", "words"),
        [
            ("a: 1\nb: 2\na: 3\n", "x.yaml:3:1", "key 'a' appears twice"),
            ("a: [1, 2\nb: 3\n", "x.yaml:2:2", "is not valid YAML"),
            ("a: {b: 1, b: 2}\n", "x.yaml:1:11", "key 'b' appears twice"),
            ("? [1]\n: 2\n", "x.yaml:1:3", "a key must be a plain word"),
            ("a: &x [*x]\n", "x.yaml", "is nested too deeply"),
            ("a: !!python/object:os.system {}\n", "x.yaml:1:1", "is not allowed"),
            ("a: 1\n---\nb: 2\n", "x.yaml:2:1", "is not valid YAML"),
        ],
    )
    def test_errors_have_file_line_and_column(self, tmp_path, text, place, words):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        with pytest.raises(LibraryError) as caught:
            strict_yaml.load(path, "x.yaml")
        assert str(caught.value).startswith(place)
        assert words in str(caught.value)

    def test_files_that_cannot_be_read(self, tmp_path):
        with pytest.raises(LibraryError, match="cannot be read: No such file"):
            strict_yaml.load(tmp_path / "none.yaml")
        (tmp_path / "latin.yaml").write_bytes(b"a: \xff\xfe")
        with pytest.raises(LibraryError, match="not UTF-8"):
            strict_yaml.load(tmp_path / "latin.yaml")

    def test_a_million_brackets_are_an_error_and_no_crash(self, tmp_path):
        path = tmp_path / "deep.yaml"
        path.write_text("[" * 5000)
        with pytest.raises(LibraryError):
            strict_yaml.load(path)


class TestExpressions:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("2*r + 1", 9),
            ("max(r - 6, 0)", 0),
            ("min(r, 3)", 3),
            ("L // r % 2", 0),
            ("top(c)", 5),
            (7, 7),
            ("2**r", 16),
        ],
    )
    def test_values(self, text, value):
        assert evaluate(text, {"r": 4, "L": 9, "c": [1, 5]}) == value

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("r +", "is not an expression"),
            ("q", "unknown symbol q (known: r)"),
            ("r.real", "Attribute is not allowed"),
            ("__import__('os')", "only the functions"),
            ("(lambda: 1)()", "only the functions"),
            ("'a'", "is not a number"),
            ("r // 0", "division"),
            ("[r for r in (1,)]", "not allowed"),
        ],
    )
    def test_refusals(self, text, words):
        with pytest.raises(ExpressionError) as caught:
            evaluate(text, {"r": 4})
        assert words in str(caught.value)


class TestCases:
    def test_defaults_are_not_benign(self, cases):
        (case,) = cases(CASE)
        assert case.id == "topic/one"
        assert case.dims == {"N": 2, "L": 9, "Di": 6, "Dr": 4, "Bp": 1}
        assert case.past == (2, 5)
        assert (case.place, case.level) == ("file.yaml:2", "required")
        assert len(case.streams) == 1
        assert sum(case.streams[0]) == 9

    def test_expressions_use_symbols_and_axes(self, cases):
        text = CASE + "    past: 2*r + q\n    matrix: {q: [0, 3], r: [3, 5], L: 1..2}\n    dims: {Bp: top(c) + 2}\n"
        found = {case.id: case for case in cases(text)}
        assert len(found) == 8
        case = found["topic/one[q=3,r=5,L=2]"]
        assert (case.attributes["key_block_size"], case.dims["L"], case.past) == (5, 2, (13, 13))
        assert case.dims["Bp"] == 2 + 2

    def test_labelled_axes_patch_the_case(self, cases):
        text = (
            CASE
            + "    matrix: {at: {tiny: {data: {raw_index_keys: {aim: bell, scale: 1e-4}}}, off: {disabled: [norm]}}}\n"
        )
        tiny, off = cases(text)
        assert (tiny.id, off.id) == ("topic/one[at=tiny]", "topic/one[at=off]")
        assert tiny.data["raw_index_keys"]["scale"] == 1e-4
        assert off.disabled == ("norm",)

    def test_file_defaults_are_merged_by_key(self, cases):
        text = "defaults: {dims: {Di: 8, Dr: 2}, element_type: f16}\n" + CASE + "    dims: {Dr: 6}\n"
        (case,) = cases(text)
        assert (case.dims["Di"], case.dims["Dr"], case.element_type) == (8, 6, "f16")

    def test_streams(self, cases):
        text = CASE + "    dims: {L: 4}\n    streams: [all, [0, 4, 0], {chunk: 3}, {cuts: 3, seed: 5}]\n"
        (case,) = cases(text)
        assert (1, 1, 1, 1) in case.streams
        assert (0, 4, 0) in case.streams
        assert (3, 1) in case.streams
        assert (4,) not in case.streams
        assert all(sum(stream) == 4 for stream in case.streams)

    def test_left_padding_has_no_history(self, cases):
        (case,) = cases(CASE + "    pad: [0, 3]\n")
        assert (case.past, case.pad) == ((2, 0), (0, 3))

    @pytest.mark.parametrize(
        ("lines", "place", "words"),
        [
            ("    klauses: [X]\n", "file.yaml:5:5", "unknown field 'klauses' (did you mean 'clauses'?)"),
            ("    dims: {Dj: 3}\n", "file.yaml:5:12", "unknown name 'Dj' in dims"),
            ("    dims: {Di: 1.5}\n", "file.yaml:5:12", "must be a whole number"),
            ("    dims: {Di: x + 1}\n", "file.yaml:5:12", "unknown symbol x"),
            ("    dims: {Di: -3}\n", "file.yaml:5:12", "dimension Di is -3"),
            ("    data: {raw_keys: {}}\n", "file.yaml:5:12", "(did you mean 'raw_index_keys'?)"),
            ("    disabled: [rotation]\n", "file.yaml:5:5", "unknown name 'rotation' in disabled"),
            ("    element_type: f64\n", "file.yaml:5:5", "unknown name 'f64'"),
            ("    past: [1]\n    dims: {N: 2}\n", "file.yaml:5:5", "1 numbers for 2 sequences"),
            ("    past: [1, 2]\n    pad: [1, 0]\n", "file.yaml:6:5", "1 past and 1 padding tokens"),
            ("    pad: [10, 0]\n", "file.yaml:5:5", "10 padding tokens of 9 new ones"),
            ("    length_shape: one\n", "file.yaml:5:5", "one length for all sequences, but they are [11, 14]"),
            ("    streams: [[3, 3]]\n", "file.yaml:5:15", "adds up to 6, not to the 9"),
            ("    streams: sometimes\n", "file.yaml:5:5", "is not a partition"),
            ("    streams: all\n", "file.yaml:5:5", "are too many"),
            ("    level: maybe\n", "file.yaml:5:5", "invalid enum value"),
            ("    matrix: {L: 1..x}\n", "file.yaml:5:14", "not a range of integers"),
            ("    matrix: {L: []}\n", "file.yaml:5:14", "needs a list"),
            ("    cover: {strength: 2, axes: {L: [1]}, except: [q > 1]}\n", "file.yaml:5:5", "q, which is not an axis"),
            ("    expect: {refusal: {kind: shapes, phase: call, names: []}}\n", "file.yaml:5:24", "invalid enum value"),
        ],
    )
    def test_errors_say_where_and_what(self, cases, lines, place, words):
        text = problem(cases, CASE + lines)
        assert text.startswith(place), text
        assert words in text, text

    def test_missing_fields(self, cases):
        assert "file.yaml:2" in problem(cases, "cases:\n  - id: a\n    says: X.\n")

    def test_unknown_clause(self, cases):
        assert "(did you mean 'BLK-1'?)" in problem(cases, CASE.replace("BLK-1", "BLK1"))


class TestCovering:
    AXES = "{L: [1, 4, 9], r: [2, 3], q: [0, 1, 2], t: {a: {element_type: f16}, b: {element_type: bf16}}}"

    @pytest.mark.parametrize("strength", [2, 3])
    def test_every_allowed_combination_is_there(self, cases, strength):
        text = CASE + f"    past: q\n    cover: {{strength: {strength}, axes: {self.AXES}, except: [q >= r]}}\n"
        found = cases(text)
        rows = [dict(part.split("=") for part in case.id.split("[")[1][:-1].split(",")) for case in found]
        values = {"L": ["1", "4", "9"], "r": ["2", "3"], "q": ["0", "1", "2"], "t": ["a", "b"]}
        for names in itertools.combinations(values, strength):
            for combination in itertools.product(*(values[name] for name in names)):
                part = dict(zip(names, combination, strict=True))
                possible = int(part.get("q", 0)) < int(part.get("r", 3))
                there = any(all(row[k] == v for k, v in part.items()) for row in rows)
                assert there == possible, part
        assert len(found) < 3 * 2 * 3 * 2

    def test_a_missing_combination_is_found(self):
        indices = {"a": [0, 1], "b": [0, 1], "c": [0, 1]}
        rows = [dict(zip("abc", row, strict=True)) for row in itertools.product([0, 1], repeat=3)]
        assert missing_combinations(indices, rows, 2, lambda row: True) == []
        without = [row for row in rows if not (row["a"] == 1 and row["c"] == 0)]
        assert missing_combinations(indices, without, 2, lambda row: True) == [{"a": 1, "c": 0}]


def test_partitions():
    assert sorted(all_partitions(3)) == [(1, 1, 1), (1, 2), (2, 1), (3,)]
    assert list(all_partitions(0)) == [(0,)]
    assert len(list(all_partitions(8))) == 128
    assert all(sum(random_partition(7, 3, seed)) == 7 for seed in range(50))
    assert len({random_partition(7, 3, seed) for seed in range(50)}) > 20


class TestTheLibrary:
    """The library as it ships."""

    def test_keeps_its_own_rules(self, library):
        from conformance.library.lint import problems

        assert problems(library) == []

    def test_has_the_size_that_the_readme_names(self, library):
        assert library.written >= 150
        assert len(library.cases) >= 700
        by_hand = {case.id.partition("[")[0] for case in library.cases if case.values}
        assert len(by_hand) >= 30

    def test_every_refusal_rule_has_a_case(self, library):
        asked = {(c.refusal.kind, c.refusal.phase, c.clauses[0]) for c in library.cases if c.refusal}
        for rule in library.operation.refusals:
            assert (rule.kind, rule.phase, rule.clause) in asked, rule.id

    def test_digests_change_with_what_is_run_and_not_with_words(self, library):
        import msgspec

        case = library.cases[0]
        assert msgspec.structs.replace(case, says="Other words.", place="x").digest == case.digest
        assert msgspec.structs.replace(case, seed=case.seed + 1).digest != case.digest
