"""Files of a plug-in are read only when they are regular and of the expected size."""

from __future__ import annotations

import os

import numpy as np
import pytest

from conformance.backends.plugin.subprocess import _take_back
from conformance.backends.plugin.wire import ProtocolError, Tensor, to_array

GIB = 1 << 30


def fifo(path):
    os.mkfifo(path)


def link(path):
    path.with_name("other").write_bytes(bytes(16))
    path.symlink_to("other")


def device(path):
    path.symlink_to("/dev/zero")


def folder(path):
    path.mkdir()


def sparse(path):
    with path.open("wb") as file:
        file.truncate(3 * GIB)


def nothing(path):
    pass


KINDS = [fifo, link, device, folder, sparse, nothing]


@pytest.mark.parametrize("make", KINDS)
def test_an_answer_in_such_a_file_is_refused(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(ProtocolError):
        to_array(Tensor("f32", (4,), file="x"), tmp_path, delete=True)


@pytest.mark.parametrize("make", [fifo, link, device, folder, nothing])
def test_an_input_that_was_swapped_is_refused(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(ProtocolError, match="input 'keys'"):
        _take_back("keys", tmp_path / "x", np.zeros(4, np.float32))


def test_an_input_that_grew_was_modified(tmp_path):
    sparse(tmp_path / "x")
    array = np.zeros(4, np.float32)
    _take_back("keys", tmp_path / "x", array)
    assert (array.view(np.uint32) != 0).all()
    assert not (tmp_path / "x").exists()


def test_more_than_is_allowed_is_refused_before_it_is_read(tmp_path):
    sparse(tmp_path / "x")
    with pytest.raises(ProtocolError, match="at most 1,000 are taken"):
        to_array(Tensor("u8", (3 * GIB,), file="x"), tmp_path, most=1000)


def test_a_regular_file_is_read(tmp_path):
    numbers = np.arange(4, dtype=np.float32)
    (tmp_path / "x").write_bytes(numbers.tobytes())
    assert (to_array(Tensor("f32", (4,), file="x"), tmp_path, delete=True) == numbers).all()
    assert not (tmp_path / "x").exists()
