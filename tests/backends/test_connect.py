"""Connect strings and operations: who serves what, and what is said of a backend that cannot be used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.backends import connect as connecting
from conformance.backends.connect import connect, operations_of, usable
from conformance.backends.embedded import embedded, names, operations
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported, info_for
from conformance.errors import BackendError

MINE = BackendInfo("mine", "1", "me", ("f32",), ("out",))
OTHER = replace(MINE, operation="Other", outputs=("first", "second"))


class Says:
    """A backend that describes itself as it is told."""

    said: object = MINE

    def describe(self):
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said

    def prepare(self, config):
        raise AssertionError


@pytest.fixture
def says(monkeypatch):
    def connected(said):
        monkeypatch.setattr(Says, "said", said)
        return f"py:{__name__}:Says"

    return connected


def test_the_description_of_the_operation_is_chosen(says):
    text = says((OTHER, MINE))
    assert operations_of(text) == ("Other", "QSAPrepare")
    assert usable(text)[1] == OTHER
    assert usable(text, operation="QSAPrepare")[1] == MINE
    assert info_for(connect(text), "QSAPrepare") == MINE
    with pytest.raises(Unsupported, match="does not serve Third; it serves Other and QSAPrepare"):
        usable(text, operation="Third")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "describe() returns a NoneType"),
        ((), "describe() returns an empty tuple"),
        ((MINE, "x"), "describe() returns a str"),
        ((MINE, MINE), "speaks of QSAPrepare more than once"),
        (replace(MINE, outputs=()), "declares no output for QSAPrepare"),
        (replace(MINE, element_types=()), "declares no element type for QSAPrepare"),
        ((MINE, replace(OTHER, outputs=())), "declares no output for Other"),
        (replace(MINE, version=1.5), "version = 1.5, which is not a text"),
        (replace(MINE, outputs="out"), "outputs = 'out', which is not a tuple of texts"),
        (replace(MINE, features=(3,)), "features = (3,), which is not a tuple of texts"),
        (replace(MINE, element_types=("f64",)), "declares the element type 'f64'; known: f32, f16, bf16"),
        (replace(MINE, name=""), "leaves name empty"),
        (SystemExit(0), "describe() raises SystemExit"),
        (GeneratorExit(), "describe() raises GeneratorExit"),
    ],
)
def test_what_nothing_can_be_run_on_is_unusable(says, said, words):
    with pytest.raises(BackendError) as caught:
        usable(says(said))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("mine.py:Mine", "py:mine.py:Mine"),
        ("folder/mine.py:Mine,a=b", "py:folder/mine.py:Mine,a=b"),
        ("mine.py", "py:mine.py:CLASS"),
        ("package.module:Mine", "py:package.module:Mine"),
        ("sh -c true", "cmd:sh -c true"),
        ("nunpy", "numpy"),
    ],
)
def test_what_was_probably_meant_is_suggested(text, meant):
    with pytest.raises(BackendError) as caught:
        connect(text)
    assert f"(did you mean '{meant}'?)" in str(caught.value)


def test_every_embedded_backend_is_in_the_table_of_its_folder():
    assert "numpy" in names() and "QSAPrepare" in operations()
    assert all(operation in operations(name) for name, operation in embedded())
    assert set(names("QSAPrepare")) <= set(names())


@pytest.mark.parametrize("name", ["numpy", "openvino-graph", "openvino-python-op", "openvino-cpu-op", "torch",
                                  "onnxruntime", "transformers"])  # fmt: skip
def test_an_embedded_backend_refuses_another_operation(name):
    try:
        backend, _ = usable(name, operation="QSAPrepare")
    except Unsupported as missing:
        pytest.skip(str(missing))
    with pytest.raises(Unsupported, match="SomethingElse"):
        backend.prepare(OperationConfig("SomethingElse", {}, "f32", "i64", frozenset()))


def test_an_embedded_backend_does_not_serve_every_operation():
    with pytest.raises(Unsupported, match="'numpy' does not serve Nothing; it serves"):
        connecting.usable("numpy", operation="Nothing")


def test_what_stands_after_the_colon_chooses_the_operations():
    assert set(operations_of("nemo-automodel")) > {"QSAPrepare", "SparseAttentionIndexer"}
    assert operations_of("nemo-automodel:packed") == ("QSAPrepare",)
