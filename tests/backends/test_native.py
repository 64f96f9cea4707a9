"""The C++ operation: how it is built and kept, what it infers and refuses, and values worked out by hand."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino
import pytest
from openvino.utils.node_factory import NodeFactory

from conformance.backends.openvino import build as native_build
from conformance.backends.openvino.build import CACHE_VARIABLE, LIBRARY, build_native, find_toolchain, key_of
from conformance.backends.openvino.cpu_op import LENT_BYTES, CpuOpSession
from conformance.backends.openvino.kernel import ISAS
from conformance.backends.protocol import OperationConfig, Rejected, Unsupported
from conformance.backends.qsa_prepare.kernel import Kernel
from conformance.backends.qsa_prepare.openvino_cpu_op import OpenVINOCpuOp
from conformance.backends.qsa_prepare.ports import RANKS
from conformance.errors import BackendError

try:
    find_toolchain()
except Unsupported as missing:
    if "no C++ compiler" not in missing.reason:
        raise
    pytest.skip("no C++ compiler", allow_module_level=True)

DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
OUTPUTS = ("block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope")


@pytest.fixture(scope="module")
def backend() -> OpenVINOCpuOp:
    backend = OpenVINOCpuOp()
    backend.prepare(config())
    return backend


def config(r: int = 4, element_type: str = "f32", *disabled: str, epsilon: float = 1e-6) -> OperationConfig:
    attributes = {"key_block_size": r, "epsilon": epsilon}
    return OperationConfig("QSAPrepare", attributes, element_type, "i64", frozenset(disabled))


def random_inputs(
    lengths: list[int], L: int, Di: int = 8, Dr: int = 4, r: int = 4, element_type: str = "f32", Bp: int | None = None
) -> dict[str, Any]:
    """Inputs of a call with random numbers everywhere."""
    random, dtype, N = np.random.default_rng(7), DTYPES[element_type], len(lengths)
    finished = max((max(S - L, 0) // r for S in lengths), default=0)

    def array(*shape: int) -> Any:
        return random.standard_normal(shape).astype(dtype)

    return {
        "raw_index_keys": array(N, L, Di),
        "past_block_index_keys": array(N, finished if Bp is None else Bp, Di),
        "key_length": np.array(lengths, np.int64),
        "rope_cos": array(N, L, Dr),
        "rope_sin": array(N, L, Dr),
        "k_norm_weight": array(Di),
        "past_incomplete_raw_keys": array(N, r - 1, Di),
        "past_incomplete_rope": array(N, 2 * Dr),
    }


def same(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


# Values


@pytest.mark.parametrize("element_type", DTYPES)
def test_values_by_hand(backend: OpenVINOCpuOp, element_type: str) -> None:
    """r = 2, five tokens: two blocks and an open one, every number exact in all types."""
    dtype = DTYPES[element_type]
    keys = np.array([[1, 5, 2, 0], [3, -1, 2, 4], [-4, 4, 0, 8], [-4, 4, 8, 0], [9, 9, 9, 9]], dtype)[None]
    # Means (2, 2, 2, 2) and (-4, 4, 4, 4): root mean squares 2 and 4, so (1, 1, 1, 1) and (-1, 1, 1, 1).
    cos = np.array([[2, 3], [99, 99], [0.5, 1], [99, 99], [7, 8]], dtype)[None]
    sin = np.array([[1, -1], [99, 99], [2, 4], [99, 99], [5, 6]], dtype)[None]
    outputs = backend.prepare(config(2, element_type, epsilon=0.0)).run(
        {
            "raw_index_keys": keys,
            "past_block_index_keys": np.zeros((1, 0, 4), dtype),
            "key_length": np.array([5], np.int64),
            "rope_cos": cos,
            "rope_sin": sin,
            "k_norm_weight": np.array([1, 2, 3, 4], dtype),
            "past_incomplete_raw_keys": np.full((1, 1, 4), np.nan, dtype),
            "past_incomplete_rope": np.full((1, 4), np.nan, dtype),
        }
    )
    # Weighted (1, 2, 3, 4) and (-1, 2, 3, 4). First: 1*2 - 2*1, 2*3 + 1*-1; second: -1*0.5 - 2*2, 2*1 + -1*4.
    wanted = np.array([[[0, 5, 3, 4], [-4.5, -2, 3, 4]]], dtype)
    assert same(outputs["block_index_keys"], wanted)
    assert same(outputs["present_incomplete_raw_keys"], keys[:, 4:])
    assert same(outputs["present_incomplete_rope"], np.array([[7, 8, 5, 6]], dtype))


@pytest.mark.parametrize("element_type", DTYPES)
def test_features_switched_off(backend: OpenVINOCpuOp, element_type: str) -> None:
    inputs = random_inputs([3], L=3, r=3, element_type=element_type)
    empty = np.empty(0, DTYPES[element_type])
    inputs |= dict.fromkeys(("rope_cos", "rope_sin", "k_norm_weight", "past_incomplete_rope"), empty)
    inputs["raw_index_keys"][...] = np.array([6, 3, 0])[None, :, None]
    outputs = backend.prepare(config(3, element_type, "rope", "norm")).run(inputs)
    assert (outputs["block_index_keys"] == 3).all()
    assert outputs["present_incomplete_rope"].shape == (0,)


@pytest.mark.parametrize("element_type", DTYPES)
def test_copies_keep_every_bit(backend: OpenVINOCpuOp, element_type: str) -> None:
    """Subnormals, infinities, both zeros and NaN of all kinds pass through history and state (OUT-1, STA-1, STA-2)."""
    inputs = random_inputs([4 * 300 + 2], L=1, Di=256, element_type=element_type, Bp=300)
    for name in ("past_block_index_keys", "past_incomplete_raw_keys", "past_incomplete_rope", "raw_index_keys"):
        array = inputs[name]
        bits = np.random.default_rng(3).integers(0, 2 ** (8 * array.itemsize), array.shape, np.uint64)
        inputs[name] = bits.astype(f"u{array.itemsize}").view(array.dtype)
    if element_type == "f16":
        pass_through = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if "FP16" not in pass_through:  # converted to f32 and back on the way: signalling NaN become quiet
            for name in ("past_block_index_keys", "past_incomplete_raw_keys", "past_incomplete_rope", "raw_index_keys"):
                bits = inputs[name].view(np.uint16)
                bits[np.isnan(inputs[name])] |= 0x200
    outputs = backend.prepare(config(element_type=element_type)).run(inputs)
    assert same(outputs["block_index_keys"], inputs["past_block_index_keys"])
    state = outputs["present_incomplete_raw_keys"]
    assert same(state[:, :1], inputs["past_incomplete_raw_keys"][:, :1])
    assert same(state[:, 1:2], inputs["raw_index_keys"])
    assert same(outputs["present_incomplete_rope"], inputs["past_incomplete_rope"])


@pytest.mark.parametrize("element_type", DTYPES)
@pytest.mark.parametrize("calls", [[1] * 23, [7, 0, 9, 7], [22, 1]])
def test_a_stream_gives_the_bits_of_the_single_call(
    backend: OpenVINOCpuOp, element_type: str, calls: list[int]
) -> None:
    session = backend.prepare(config(element_type=element_type))
    whole = random_inputs([23, 23], L=23, element_type=element_type)
    state = {
        port: whole[port] for port in ("past_block_index_keys", "past_incomplete_raw_keys", "past_incomplete_rope")
    }
    start = 0
    for step in calls:
        tokens = slice(start, start + step)
        new = {name: whole[name][:, tokens] for name in ("raw_index_keys", "rope_cos", "rope_sin")}
        outputs = session.run({**whole, **state, **new, "key_length": np.array([start + step])})
        state = dict(zip(state, (outputs[name] for name in OUTPUTS), strict=True))
        start += step
    single = session.run(whole)
    assert same(outputs["block_index_keys"], single["block_index_keys"])
    assert same(outputs["present_incomplete_raw_keys"][:, :3], single["present_incomplete_raw_keys"][:, :3])
    assert same(outputs["present_incomplete_rope"], single["present_incomplete_rope"])


@pytest.mark.parametrize(
    ("lengths", "L", "blocks"),
    [([], 5, 0), ([], 0, 0), ([9, 3], 0, 2), ([0, 0], 6, 0), ([3], 3, 0), ([2, 12], 12, 3)],
    ids=["no sequences", "nothing at all", "no tokens", "padding only", "no block", "left padding"],
)
def test_sizes_of_zero(backend: OpenVINOCpuOp, lengths: list[int], L: int, blocks: int) -> None:
    inputs = random_inputs(lengths, L)
    outputs = backend.prepare(config()).run(inputs)
    assert outputs["block_index_keys"].shape == (len(lengths), blocks, 8)
    assert outputs["present_incomplete_raw_keys"].shape == (len(lengths), 3, 8)
    assert outputs["present_incomplete_rope"].shape == (len(lengths), 8)
    if L == 0 and lengths:
        assert same(outputs["block_index_keys"][0], inputs["past_block_index_keys"][0])
        assert same(outputs["present_incomplete_raw_keys"][1], inputs["past_incomplete_raw_keys"][1])


def test_more_blocks_than_sixteen_bits_count(backend: OpenVINOCpuOp) -> None:
    """Block b holds b in its first element; 70,000 blocks from two sequences."""
    blocks = 70_000
    inputs = random_inputs([2 * blocks, 2 * blocks], L=2 * blocks, Di=2, Dr=2, r=2)
    inputs["raw_index_keys"][...] = np.repeat(np.arange(blocks), 2)[None, :, None]
    inputs |= {name: np.empty(0, np.float32) for name in ("rope_cos", "rope_sin", "k_norm_weight")}
    inputs["past_incomplete_rope"] = np.empty(0, np.float32)
    outputs = backend.prepare(config(2, "f32", "rope", "norm")).run(inputs)
    assert (outputs["block_index_keys"] == np.arange(blocks)[None, :, None]).all()


def test_one_thread_gives_the_bits_of_all(backend: OpenVINOCpuOp) -> None:
    inputs = random_inputs([3000, 40, 2001], L=2000, Di=128, Dr=64, Bp=250)
    many = backend.prepare(config()).run(inputs)
    one = OpenVINOCpuOp(threads=1).prepare(config()).run(inputs)
    assert all(same(one[name], many[name]) for name in OUTPUTS)


# Outputs belong to the caller


@pytest.mark.parametrize("L", [8, 4 * LENT_BYTES // (4 * 128)], ids=["copied", "lent"])
def test_outputs_do_not_change_after_later_calls(backend: OpenVINOCpuOp, L: int) -> None:
    session = backend.prepare(config())
    inputs = random_inputs([L], L, Di=128, Dr=64)
    first = session.run(inputs)
    views = [first["block_index_keys"][:, 1:], first["present_incomplete_raw_keys"]]
    before = [view.tobytes() for view in views]
    del first
    for _ in range(6):
        inputs["raw_index_keys"] = inputs["raw_index_keys"] + 1
        session.run(inputs)
    assert [view.tobytes() for view in views] == before


def test_requests_are_used_again_once_their_outputs_are_gone(backend: OpenVINOCpuOp) -> None:
    """A stream of large calls, each on the outputs of the one before, needs no more than a few requests."""
    session = backend.prepare(config())
    inputs = random_inputs([4096], 4096, Di=128, Dr=64)
    (requests,) = session._requests.values()
    taken = set()
    for call in range(8):
        outputs = session.run(inputs)
        taken.add(id(requests._idle[-1]))
        inputs = {**random_inputs([4096 + call], 1, Di=128, Dr=64), "key_length": np.array([4097 + call])}
        inputs |= {
            "past_block_index_keys": outputs["block_index_keys"],
            "past_incomplete_raw_keys": outputs["present_incomplete_raw_keys"],
        }
    assert len(taken) <= 3


# OpenVINO's view of the operation


def test_ir_saves_loads_and_runs(backend: OpenVINOCpuOp, tmp_path: Path) -> None:
    signature = tuple(("i64" if name == "key_length" else "f32", (-1,) * rank) for name, rank in RANKS.items())
    model = backend.model((("epsilon", 1e-5), ("key_block_size", 4)), signature)
    openvino.serialize(model, tmp_path / "model.xml")
    text = (tmp_path / "model.xml").read_text(encoding="utf-8")
    assert 'type="QSAPrepare"' in text
    assert 'key_block_size="4"' in text

    core = openvino.Core()
    core.add_extension(build_native())
    compiled = core.compile_model(core.read_model(tmp_path / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    inputs = random_inputs([9, 6], L=6)
    wanted = backend.prepare(config(epsilon=1e-5)).run(inputs)
    results = compiled(inputs)
    assert all(same(results[name], wanted[name]) for name in OUTPUTS)


def node(r: int = 4, epsilon: float = 1e-6, **ports: Any) -> Any:
    """The operation on Parameters of these shapes, or (type, shape); arrays become Constants."""
    factory = NodeFactory()
    factory.add_extension(str(build_native()))
    shapes: dict[str, Any] = {
        "raw_index_keys": [2, 9, 8],
        "past_block_index_keys": [2, 5, 8],
        "key_length": [2],
        "rope_cos": [2, 9, 6],
        "rope_sin": [2, 9, 6],
        "k_norm_weight": [8],
        "past_incomplete_raw_keys": [2, 3, 8],
        "past_incomplete_rope": [2, 12],
    } | ports
    nodes = []
    for name in RANKS:
        given = shapes[name]
        if isinstance(given, np.ndarray):
            nodes.append(openvino.opset15.constant(given))
            continue
        usual = "i64" if name == "key_length" else "f32"
        element, shape = given if isinstance(given, tuple) else (usual, given)
        nodes.append(openvino.opset15.parameter(openvino.PartialShape(shape), getattr(openvino.Type, element)))
    attributes = {"key_block_size": r, "epsilon": epsilon}
    return factory.create("QSAPrepare", [one.output(0) for one in nodes], attributes)


def inferred(**ports: Any) -> list[str]:
    return [str(output.get_partial_shape()).replace(" ", "") for output in node(**ports).outputs()]


EMPTY_ROPE = {"rope_cos": [0], "rope_sin": [0], "past_incomplete_rope": [0]}


@pytest.mark.parametrize(
    ("ports", "shapes"),
    [
        ({}, ["[2,..8,8]", "[2,3,8]", "[2,12]"]),  # 5 + (9 + 3) div 4
        ({"key_length": np.array([14, 3])}, ["[2,3,8]", "[2,3,8]", "[2,12]"]),
        ({"key_length": np.array([29], np.int32)}, ["[2,7,8]", "[2,3,8]", "[2,12]"]),
        ({"raw_index_keys": "[?,?,?]"}, ["[2,..8,8]", "[2,3,8]", "[2,12]"]),  # the other ports say the same
        (
            {"raw_index_keys": "[2,4..5,8]", "rope_cos": "[2,?,6]", "rope_sin": "[2,?,6]"},
            ["[2,..7,8]", "[2,3,8]", "[2,12]"],
        ),
        ({"past_block_index_keys": "[2,1..6,8]"}, ["[2,..9,8]", "[2,3,8]", "[2,12]"]),
        ({"past_block_index_keys": "[2,?,8]"}, ["[2,?,8]", "[2,3,8]", "[2,12]"]),
        ({"past_block_index_keys": "[2,?,8]", "key_length": np.array([14, 3])}, ["[2,3,8]", "[2,3,8]", "[2,12]"]),
        ({"rope_cos": "[2,9,?]", "rope_sin": "[2,9,?]", "past_incomplete_rope": "[2,4..12]"},
         ["[2,..8,8]", "[2,3,8]", "[2,4..12]"]),
        (EMPTY_ROPE, ["[2,..8,8]", "[2,3,8]", "[0]"]),
        ({"rope_cos": [2, 9, 0], "rope_sin": [0, 0, 0], "past_incomplete_rope": [2, 0]},
         ["[2,..8,8]", "[2,3,8]", "[2,0]"]),
        ({"k_norm_weight": [0]}, ["[2,..8,8]", "[2,3,8]", "[2,12]"]),
    ],
)  # fmt: skip
def test_shapes_are_inferred(ports: dict[str, Any], shapes: list[str]) -> None:
    assert inferred(**ports) == shapes


def test_no_sequences_and_unknown_types_and_ranks() -> None:
    none: dict[str, Any] = {
        name: [0, *shape]
        for name, shape in {
            "raw_index_keys": (9, 8), "past_block_index_keys": (5, 8), "rope_cos": (9, 6), "rope_sin": (9, 6),
            "past_incomplete_raw_keys": (3, 8), "past_incomplete_rope": (12,),
        }.items()
    }  # fmt: skip
    assert inferred(**none, key_length=[0]) == ["[0,0,8]", "[0,3,8]", "[0,12]"]
    unknown = node(**dict.fromkeys(RANKS, ("dynamic", "...")))
    assert [output.get_element_type().to_string() for output in unknown.outputs()] == ["dynamic"] * 3
    assert [str(output.get_partial_shape()) for output in unknown.outputs()] == ["[?,?,?]", "[?,3,?]", "[...]"]


@pytest.mark.parametrize(
    ("ports", "says"),
    [
        ({"r": 1}, r"ERR-1 attribute key_block_size\]: it is 1, but must be at least 2"),
        ({"epsilon": -1.0}, r"ERR-1 attribute epsilon\]: it is -1, "),
        ({"epsilon": float("nan")}, r"ERR-1 attribute epsilon\]: it is nan, "),
        ({"raw_index_keys": [2, 72]}, r"ERR-2 shape raw_index_keys\]: its shape is \[2,72\], but it has 3 dimensions"),
        ({"key_length": [2, 1]}, r"ERR-2 shape key_length\]: its shape is \[2,1\], but it has 1 dimensions"),
        ({"past_block_index_keys": [3, 5, 8]},
         r"ERR-2 shape past_block_index_keys\]: N is 3 there, but 2 in raw_index_keys"),
        ({"raw_index_keys": [3, 9, 8]}, r"ERR-2 shape raw_index_keys\]: N is 3 there, but 2 in past_block_index_keys"),
        ({"key_length": [3]}, r"ERR-2 shape key_length\]: N is 3 there, but 2 in raw_index_keys"),
        ({"rope_sin": [2, 8, 6]}, r"ERR-2 shape rope_sin\]: L is 8 there, but 9 in raw_index_keys"),
        ({"rope_sin": [2, 9, 4]}, r"ERR-2 shape rope_sin\]: Dr is 4 there, but 6 in rope_cos"),
        ({"past_incomplete_rope": [2, 6]}, r"ERR-2 shape past_incomplete_rope\]: Dr is 3 there, but 6 in rope_cos"),
        ({"past_incomplete_rope": [2, 11]}, r"ERR-2 shape past_incomplete_rope\]: its last dimension is 11"),
        ({"k_norm_weight": [7]}, r"ERR-2 shape k_norm_weight\]: Di is 7 there, but 8 in raw_index_keys"),
        ({"past_incomplete_raw_keys": [2, 4, 8]},
         r"ERR-2 shape past_incomplete_raw_keys\]: .* the second dimension is key_block_size - 1 = 3"),
        ({"raw_index_keys": "[2,1..8,8]"}, r"ERR-2 shape raw_index_keys\]: L is 1..8 there, but 9 in"),
        ({"raw_index_keys": ("f16", [2, 9, 8])},
         r"ERR-3 type raw_index_keys\]: its type is f16, but the other inputs are f32"),
        ({"rope_sin": ("bf16", [2, 9, 6])}, r"ERR-3 type rope_sin\]: its type is bf16"),
        ({"k_norm_weight": ("f64", [8])}, r"ERR-3 type k_norm_weight\]: its type is f64, but must be f32, f16 or bf16"),
        ({"key_length": ("u8", [2])}, r"ERR-3 type key_length\]: its type is u8, but must be i32 or i64"),
        ({"rope_sin": [0]}, r"ERR-4 rope rope_sin\]: rope_sin has no elements while rope_cos,past_incomplete_rope has"),
        ({"rope_cos": [0], "rope_sin": [0]}, r"ERR-4 rope past_incomplete_rope\]: "),
        ({"rope_cos": [2, 9, 5], "rope_sin": [2, 9, 5], "past_incomplete_rope": [2, 10]},
         r"ERR-4 rope .*\]: Dr is 5, but the rotary width is even"),
        ({"rope_cos": [2, 9, 10], "rope_sin": [2, 9, 10], "past_incomplete_rope": [2, 20]},
         r"ERR-4 rope .*\]: Dr is 10, but an index key has only 8 elements"),
        ({"key_length": np.array([9, -1])}, r"ERR-5 value key_length\]: key_length\[1\] is -1, but"),
        ({"key_length": np.array([9, 33])},
         r"ERR-5 value past_block_index_keys\]: it holds Bp = 5 block keys, but key_length\[1\] = 33 with L = 9 means"),
    ],
)  # fmt: skip
def test_refusals_say_what_is_wrong(ports: dict[str, Any], says: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        node(**ports)
    assert re.search(r"QSAPrepare\[" + says, str(caught.value)), str(caught.value)


def test_a_call_is_refused_as_the_contract_says(backend: OpenVINOCpuOp) -> None:
    session = backend.prepare(config())

    def refused(**other: Any) -> tuple[str, str, tuple[str, ...]]:
        with pytest.raises(Rejected) as caught:
            session.run(random_inputs([30, 9], L=9, Bp=6) | other)
        return caught.value.kind, caught.value.phase, caught.value.names

    f32 = np.float32
    assert refused(key_length=np.array([30, -2])) == ("value", "call", ("key_length",))
    assert refused(key_length=np.array([9, 2**32 + 9])) == ("value", "call", ("past_block_index_keys",))
    assert refused(key_length=np.array([-(2**32) + 9, 9])) == ("value", "call", ("key_length",))
    assert refused(past_block_index_keys=np.zeros((2, 4, 8), f32)) == ("value", "call", ("past_block_index_keys",))
    assert refused(rope_sin=np.zeros((2, 8, 4), f32)) == ("shape", "call", ("rope_sin",))
    assert refused(rope_sin=np.zeros((18, 4), f32)) == ("shape", "call", ("rope_sin",))
    assert refused(rope_sin=np.zeros(0, f32)) == ("rope", "call", ("rope_sin",))
    assert refused(rope_sin=np.zeros((2, 9, 4), np.float16)) == ("type", "call", ("rope_sin",))
    assert refused(key_length=np.array([30, 9], np.uint8)) == ("type", "call", ("key_length",))
    with pytest.raises(Rejected) as caught:
        backend.prepare(config(r=1))
    assert (caught.value.kind, caught.value.phase) == ("attribute", "prepare")
    assert session.run(random_inputs([30, 9], L=9))["block_index_keys"].shape == (2, 7, 8)  # it still works


def test_a_call_is_refused_with_a_single_thread() -> None:
    """In a process of its own: there OpenVINO's executor may end the process when the operation throws."""
    on_one_cpu = """if True:
        import os, sys, pytest
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        sys.exit(pytest.main("--pyargs conformance --backend openvino-cpu-op --clause ERR -q".split()))
    """
    done = subprocess.run([sys.executable, "-c", on_one_cpu], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"\d{3} passed", done.stdout)


def test_evaluation_outside_a_plugin() -> None:
    """Where shapes come out of the evaluation only, as in constant folding."""
    inputs = random_inputs([14, 3], L=9)
    constants = node(**inputs)
    assert str(constants.output(0).get_partial_shape()) == "[2,3,8]"
    model = openvino.Model([openvino.opset15.result(output) for output in constants.outputs()], [])
    results = [openvino.Tensor(openvino.Type.f32, output.shape) for output in model.outputs]
    assert model.evaluate(results, [])
    wanted = OpenVINOCpuOp().prepare(config()).run(inputs)
    assert all(same(result.data, wanted[name]) for result, name in zip(results, OUTPUTS, strict=True))


def test_f16_on_a_cpu_without_f16_arithmetic() -> None:
    """OpenVINO then converts to f32 and back around the operation: all numbers survive, subnormals too."""
    script = """
import numpy as np
from test_native import config, random_inputs, same
from conformance.backends.qsa_prepare.openvino_cpu_op import OpenVINOCpuOp
inputs = random_inputs([1024 * 4 + 2], L=1, Di=64, element_type="f16", Bp=1024)
every = np.arange(65536, dtype=np.uint16).view(np.float16)
inputs["past_block_index_keys"] = np.where(np.isnan(every), np.float16(1), every).reshape(1, 1024, 64)
outputs = OpenVINOCpuOp().prepare(config(4, "f16")).run(inputs)
assert same(outputs["block_index_keys"], inputs["past_block_index_keys"])
"""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_empty_operation_allocates_and_nothing_else(backend: OpenVINOCpuOp) -> None:
    inputs = random_inputs([18, 17], L=1, Bp=4)
    outputs = OpenVINOCpuOp(node="EmptyOp").prepare(config()).run(inputs)
    wanted = backend.prepare(config()).run(inputs)
    assert [outputs[name].shape for name in OUTPUTS] == [wanted[name].shape for name in OUTPUTS]


# The kernel alone


@pytest.mark.parametrize("element_type", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_alone_computes_the_same(backend: OpenVINOCpuOp, element_type: str, threads: int) -> None:
    inputs = random_inputs([700, 801], L=600, Di=72, Dr=20, element_type=element_type)
    wanted = backend.prepare(config(element_type=element_type)).run(inputs)
    kernel = Kernel(threads)
    call = kernel.bind(config(element_type=element_type), inputs)
    assert all(same(call.outputs[name], wanted[name]) for name in OUTPUTS)
    for isa in ISAS[1:]:
        try:
            other = kernel.bind(config(element_type=element_type), inputs, isa)
        except ValueError:
            continue
        got, all_wanted = (array["block_index_keys"].astype(np.float64) for array in (other.outputs, wanted))
        assert np.abs(got - all_wanted).max() <= ml_dtypes.finfo(DTYPES[element_type]).eps * 8
    kernel.close()


def test_bytes_that_must_move() -> None:
    """f32, two sequences: one finishes a block with 3 + 1 keys, the other gets its first two keys."""
    inputs = random_inputs([8, 2], L=1, Bp=1)
    inputs["key_length"] = np.array([8, 1])
    call = Kernel().bind(config(), inputs)
    keys = (1 + 3 + 1 + 2) + (1 + 1)  # read 1 + 3, written 1, history in and out; one key in and out
    rope = 2 + 4  # the finished block's cos and sin; cos and sin of the open block in and out
    assert call.bytes_to_move == 4 * (keys * 8 + rope * 4)


def test_plain_copy() -> None:
    source = np.arange(100_003, dtype=np.uint8)
    to = np.zeros_like(source)
    kernel = Kernel(2)
    kernel.plain_copy(to, source)
    assert (to == source).all()


def test_parts_for_timing(backend: OpenVINOCpuOp) -> None:
    """The kernel computes what the operation does; the empty operation takes the call and moves nothing."""
    inputs = random_inputs([700, 9], L=9, Bp=180)
    kernel, empty = backend.timing_targets(2)
    assert (kernel.moves, empty.moves) == (True, False)
    session: Any = kernel.prepare(config())
    wanted = backend.prepare(config()).run(inputs)
    assert all(same(session.run(inputs)[name], wanted[name]) for name in OUTPUTS)
    assert session.bind(inputs)() is None
    session.close()
    assert empty.prepare(config()).run(inputs)["block_index_keys"].shape == (2, 180, 8)


# Building


TINY = """\
cmake_minimum_required(VERSION 3.18)
project(tiny LANGUAGES CXX)
execute_process(COMMAND ${{CMAKE_COMMAND}} -E sleep 0.5)
file(APPEND "{log}" "built\\n")
add_library(qsa_extension MODULE tiny.cpp)
set_target_properties(qsa_extension PROPERTIES PREFIX "")
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[tuple[Path, Path, Path]]:
    """Sources that build in a moment, a cache of their own, and a file with a line for every build."""
    sources, cache, log = tmp_path / "sources", tmp_path / "cache", tmp_path / "log"
    sources.mkdir()
    (sources / "CMakeLists.txt").write_text(TINY.format(log=log), encoding="utf-8")
    (sources / "tiny.cpp").write_text('extern "C" int answer() { return 42; }\n', encoding="utf-8")
    yield sources, cache, log


def builds(log: Path) -> int:
    return len(log.read_text(encoding="utf-8").splitlines())


def test_two_processes_that_build_at_once(tiny: tuple[Path, Path, Path]) -> None:
    sources, cache, log = tiny
    script = f"""
from pathlib import Path
from conformance.backends.openvino.build import build_native
print(build_native(sources=Path({str(sources)!r})))
"""
    environment = os.environ | {CACHE_VARIABLE: str(cache)}
    processes = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert said[0] == said[1]
    assert Path(said[0]).is_file()
    assert builds(log) == 1
    assert not list(cache.glob("building-*"))


def test_built_again_only_when_the_key_changes(tiny: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sources, cache, log = tiny
    reports: list[str] = []
    first = build_native(reports.append, sources=sources, cache=cache)
    assert build_native(reports.append, sources=sources, cache=cache) == first
    assert (builds(log), len(reports)) == (1, 1)

    (sources / "tiny.cpp").write_text('extern "C" int answer() { return 43; }\n', encoding="utf-8")
    second = build_native(sources=sources, cache=cache)
    monkeypatch.setattr(native_build, "_cpu", lambda: "another CPU")
    third = build_native(sources=sources, cache=cache)
    monkeypatch.setattr(openvino, "get_version", lambda: "2099.1.0-1")
    fourth = build_native(sources=sources, cache=cache)
    assert len({first, second, third, fourth}) == 4
    assert builds(log) == 4
    assert "openvino-2099.1.0-" in str(fourth)


def _record(library: Path, **changed: object) -> None:
    path = library.parent / native_build.RECORD
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def _not_a_library(library: Path) -> None:
    library.write_bytes(b"not a library")
    _record(library, checksum=hashlib.sha256(library.read_bytes()).hexdigest())


def _a_file_for_the_folder(library: Path) -> None:
    shutil.rmtree(library.parent)
    library.parent.write_text("")


DAMAGE = {
    "truncated": (lambda library: library.write_bytes(library.read_bytes()[:5000]), "does not have its checksum"),
    "empty": (lambda library: library.write_bytes(b""), "does not have its checksum"),
    "one bit": (lambda library: library.write_bytes(library.read_bytes()[:-1] + b"\x55"), "does not have its checksum"),
    "missing": (Path.unlink, "cannot be read"),
    "a folder": (lambda library: (library.unlink(), library.mkdir()), "cannot be read"),
    "no record": (lambda library: (library.parent / native_build.RECORD).unlink(), "cannot be read"),
    "a record that is not JSON": (lambda library: (library.parent / native_build.RECORD).write_text("{"), "cannot be"),
    "a record of another kind": (
        lambda library: (library.parent / native_build.RECORD).write_text("[]"),
        "something else",
    ),
    "for another OpenVINO": (lambda library: _record(library, openvino="2020.1"), "was built from something else"),
    "of other sources": (lambda library: _record(library, sources="0"), "was built from something else"),
    "no checksum": (lambda library: _record(library, checksum=None), "does not have its checksum"),
    "not a library": (_not_a_library, "cannot be loaded"),
    "a file for the folder": (_a_file_for_the_folder, "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_build_is_built_again(tiny: tuple[Path, Path, Path], damage: str) -> None:
    sources, cache, log = tiny
    reports: list[str] = []
    made = build_native(sources=sources, cache=cache)
    cache = shutil.copytree(cache, cache.with_name("copy"))  # of which this process has loaded nothing
    library = cache / made.relative_to(made.parents[1])
    spoil, words = DAMAGE[damage]
    spoil(library)
    assert build_native(reports.append, sources=sources, cache=cache) == library
    assert builds(log) == 2
    assert words in reports[0]
    assert ctypes.CDLL(str(library)).answer() == 42
    assert build_native(sources=sources, cache=cache) == library
    assert builds(log) == 2


def test_a_build_that_does_not_load_is_not_kept_as_usable(tiny: tuple[Path, Path, Path]) -> None:
    sources, cache, _ = tiny
    (sources / "tiny.cpp").write_text(
        'int nowhere(); extern "C" int answer() { return nowhere(); }\n', encoding="utf-8"
    )
    with pytest.raises(BackendError, match="cannot be loaded"):
        build_native(sources=sources, cache=cache)


def test_another_compiler_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = key_of(find_toolchain())
    other = tmp_path / "c++"
    other.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "other 1.0" || exec {find_toolchain().compiler} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    assert find_toolchain().identity == "other 1.0"
    assert key_of(find_toolchain()).name != usual.name


def test_a_failing_build_shows_the_compilers_words(tiny: tuple[Path, Path, Path]) -> None:
    sources, cache, _ = tiny
    (sources / "tiny.cpp").write_text("int answer() { return fourty_two; }\n", encoding="utf-8")
    with pytest.raises(BackendError, match="fourty_two") as caught:
        build_native(sources=sources, cache=cache)
    assert "tiny.cpp:1" in str(caught.value)
    assert not list(cache.rglob(LIBRARY))
    assert not list(cache.glob("building-*"))


def test_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="no C\\+\\+ compiler"):
        OpenVINOCpuOp()
    assert native_build.main([]) == 3
    assert "no C++ compiler" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written(tiny: tuple[Path, Path, Path], tmp_path: Path) -> None:
    sources, _, _ = tiny
    (tmp_path / "file").touch()
    with pytest.raises(BackendError, match=CACHE_VARIABLE):
        build_native(sources=sources, cache=tmp_path / "file")


def test_sessions_share_a_compiled_model(backend: OpenVINOCpuOp) -> None:
    first, second = (CpuOpSession(backend, config(7)) for _ in range(2))
    assert next(iter(first._requests.values()))._compiled is next(iter(second._requests.values()))._compiled


def test_inputs_are_read_again_when_they_stay_in_place(backend: OpenVINOCpuOp) -> None:
    """An array that is passed again is not handed to OpenVINO again; what was written into it counts all the same."""
    session = backend.prepare(config())
    inputs = random_inputs([30, 9], L=9, Bp=6)
    strided = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in inputs.items()}
    for given in (inputs, strided):
        first = session.run(given)["block_index_keys"]
        for scale in (2, 4):
            given["k_norm_weight"][...] = given["k_norm_weight"] * 2
            keys = session.run(given)["block_index_keys"]
            new = np.array([5, 6])  # blocks of the first sequence that end in this call
            assert (keys[0, new] == scale * first[0, new]).all()
            assert (keys[0, :5] == first[0, :5]).all()
        weight = given["k_norm_weight"]
        given["k_norm_weight"] = weight[:0]
        assert (session.run(given)["block_index_keys"][0, new] != keys[0, new]).any()
        given["k_norm_weight"] = weight
        assert (session.run(given)["block_index_keys"] == keys).all()
