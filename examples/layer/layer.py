"""An attention layer of the published model, and the same layer with its three steps as OpenVINO operations.

`Qwen4ExpTextAttention` of transformers, with weights drawn from a seed, stands beside OpenVINO, where QSAPrepare,
SparseAttentionIndexer and SparseAttention, in one compiled model, take the place of its index keys, its selection and
its attention. Both get the same tokens, a prefill and then one token at a time, each with its own state; outputs are
compared, and decode steps are timed with a long past.

    python examples/layer/layer.py                               # compares, and times at 4 Ki tokens
    python examples/layer/layer.py --tokens 4096 32768 131072    # some minutes and 6 GB at the largest

It needs a C++ compiler, CMake, and the extra `peers`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino
import torch
from openvino import opset15 as ops
from openvino.utils.node_factory import NodeFactory
from transformers.models.qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextAttention

from conformance.backends.openvino.build import build_native

HIDDEN, H, HKV, E = 1024, 24, 2, 256  # heads and widths of the released model; its hidden size is larger
HI, DI, DR = 4, 128, 64  # index heads, their width, rotary width
R, BUDGET, EPSILON = 16, 2048, 1e-6
STEPS = 5  # decode steps that are timed
STATE = ("past_block_index_keys", "past_incomplete_raw_keys", "past_incomplete_rope")
PROJECTED = ("query", "gate", "index_query", "raw_index_keys")
CACHES = ("key", "value")

Array = np.ndarray[Any, np.dtype[Any]]


# The layer itself


def make_layer(seed: int) -> Any:
    """The model's layer with random weights, those of its norms too."""
    config = Qwen4ExpTextConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        layer_types=["indexed_attention"],
        num_attention_heads=H,
        num_key_value_heads=HKV,
        head_dim=E,
        partial_rotary_factor=DR / E,
        rms_norm_eps=EPSILON,
        indexer_n_heads=HI,
        indexer_kv_heads=1,
        indexer_head_dim=DI,
        indexer_budget=BUDGET,
        indexer_compress_ratio=R,
    )
    config._attn_implementation = "sdpa"
    layer = Qwen4ExpTextAttention(config, 0).eval()
    random = torch.Generator().manual_seed(seed)
    for name, weight in layer.named_parameters():
        scale = 0.2 if name.endswith("norm.weight") else weight.shape[-1] ** -0.5
        weight.data = torch.randn(weight.shape, generator=random) * scale
    return layer


class Caches:
    """Raw index keys, keys and values of all tokens; each grows by concatenation."""

    def __init__(self, raw: Any = None, key: Any = None, value: Any = None) -> None:
        self.raw, self.key, self.value = raw, key, value

    def update_indexer(self, raw: Any, layer: int) -> Any:
        self.raw = raw if self.raw is None else torch.cat([self.raw, raw], dim=1)
        return self.raw

    def update(self, key: Any, value: Any, layer: int, **_: Any) -> tuple[Any, Any]:
        self.key = key if self.key is None else torch.cat([self.key, key], dim=2)
        self.value = value if self.value is None else torch.cat([self.value, value], dim=2)
        return self.key, self.value


def run_layer(layer: Any, hidden: Array, past: int, caches: Caches) -> Array:
    """The layer's output [1, L, HIDDEN] for new tokens behind `past` others."""
    L, S = hidden.shape[1], past + hidden.shape[1]
    cos, sin = (torch.from_numpy(table) for table in rope(0, S))
    mask = (torch.arange(S) <= past + torch.arange(L)[:, None])[None, None]
    with torch.inference_mode():
        output, _ = layer(torch.from_numpy(hidden), (cos, sin), mask, caches)
    result: Array = output.numpy()
    return result


def rope(start: int, stop: int) -> tuple[Array, Array]:
    """cos and sin [1, tokens, DR] of the positions from `start` on."""
    rates = 1e4 ** (-np.arange(DR // 2) / (DR // 2))
    angles = np.arange(start, stop)[None, :, None] * np.concatenate([rates, rates])
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


# The layer with the three operations


def number(value: Any) -> Any:
    """An f32 constant."""
    return ops.constant(np.asarray(value, np.float32))


def whole(*values: int) -> Any:
    """An i64 constant of rank 1."""
    return ops.constant(np.array(values, np.int64))


def part(x: Any, start: int, stop: int) -> Any:
    """Elements start..stop-1 of the last axis."""
    return ops.slice(x, whole(start), whole(stop), whole(1), whole(-1))


def projected(x: Any, weight: Any, heads: int) -> Any:
    """x @ weight.T as [1, L, heads, width]."""
    rows = weight.detach().numpy()
    product = ops.matmul(x, number(rows), False, True)
    return ops.reshape(product, whole(0, 0, heads, rows.shape[0] // heads), True)


def normalized(x: Any, weight: Any) -> Any:
    """RMS norm over the last axis, times 1 + weight."""
    square = ops.reduce_mean(ops.multiply(x, x), whole(-1), True)
    root = ops.sqrt(ops.add(square, number(EPSILON)))
    return ops.multiply(ops.divide(x, root), number(1 + weight.detach().numpy()))


def rotated(x: Any, cos: Any, sin: Any, width: int) -> Any:
    """The first DR elements of x [1, L, heads, width] rotated (rotate-half)."""
    turned, rest = part(x, 0, DR), part(x, DR, width)
    halves = ops.concat([ops.negative(part(turned, DR // 2, DR)), part(turned, 0, DR // 2)], -1)
    cos, sin = (ops.unsqueeze(table, whole(2)) for table in (cos, sin))
    return ops.concat([ops.add(ops.multiply(turned, cos), ops.multiply(halves, sin)), rest], -1)


def by_heads(x: Any) -> Any:
    """[1, L, heads, width] as [1, heads, L, width]."""
    return ops.transpose(x, whole(0, 2, 1, 3))


class Replaced:
    """The layer with its three steps replaced.

    One compiled model projects new tokens, as the layer does, and one holds the three steps and what follows them. Keys
    and values lie in memory with room for `most` tokens, one array for each head: a call writes its own rows and reads
    the rows that were selected, so that nothing of the past is copied.
    """

    def __init__(self, layer: Any, most: int) -> None:
        core = openvino.Core()
        library = build_native(print)
        core.add_extension(library)
        factory = NodeFactory()
        factory.add_extension(library)
        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        self._project = core.compile_model(projections(layer), "CPU", exact).create_infer_request()
        steps = core.compile_model(three_steps(layer, factory), "CPU", exact)
        # Two requests in turn: the state that one of them returned is what the other one takes.
        self._requests = [steps.create_infer_request() for _ in range(2)]
        self.tokens = 0
        self.caches = {f"{kind}_{g}": np.zeros((1, 1, most, E), np.float32) for kind in CACHES for g in range(HKV)}
        self.state: dict[str, Any] = {
            "past_block_index_keys": np.zeros((1, 0, DI), np.float32),
            "past_incomplete_raw_keys": np.zeros((1, R - 1, DI), np.float32),
            "past_incomplete_rope": np.zeros((1, 2 * DR), np.float32),
        }
        self.key_weight: Array = 1 + layer.indexer.k_layernorm.weight.detach().numpy()
        self.selected: Array = np.zeros((1, 1, 0, BUDGET // R), np.int32)  # of the latest call

    def run(self, hidden: Array) -> Array:
        """The layer's output [1, L, HIDDEN] for new tokens."""
        first, last = self.tokens, self.tokens + hidden.shape[1]
        cos, sin = rope(first, last)
        *given, key, value = self._project.infer([hidden, cos, sin], share_outputs=True).to_tuple()
        for kind, new in zip(CACHES, (key, value), strict=True):
            for g in range(HKV):
                self.caches[f"{kind}_{g}"][0, 0, first:last] = new[0, g]
        self.tokens = last
        inputs = dict(zip(PROJECTED, given, strict=True)) | self.state
        inputs |= {"cos": cos, "sin": sin, "key_length": np.array([last], np.int64)}
        inputs |= {name: cache[:, :, :last] for name, cache in self.caches.items()}
        request = self._requests[0]
        self._requests.reverse()
        for name, array in inputs.items():
            tensor = openvino.Tensor(array, shared_memory=True) if isinstance(array, np.ndarray) else array
            request.set_tensor(name, tensor)
        request.infer()
        output, *state, selected = (request.get_output_tensor(i) for i in range(5))
        self.state = dict(zip(STATE, state, strict=True))
        self.selected = selected.data.copy()
        result: Array = output.data.copy()
        return result

    def remember(self, raw: Array, key: Array, value: Array) -> None:
        """Begin with tokens whose raw index keys [1, S, DI], keys and values [1, HKV, S, E] are given."""
        self.tokens = raw.shape[1]
        self.state |= block_keys(raw, self.key_weight)
        for kind, rows in zip(CACHES, (key, value), strict=True):
            for g in range(HKV):
                self.caches[f"{kind}_{g}"][0, 0, : self.tokens] = rows[0, g]


def parameter(name: str, shape: list[int], kind: Any = openvino.Type.f32) -> Any:
    """An input of a model."""
    node = ops.parameter(openvino.PartialShape(shape), kind, name=name)
    node.output(0).set_names({name})
    return node


def projections(layer: Any) -> openvino.Model:
    """What the layer makes of new tokens: projections, norms and RoPE."""
    hidden, cos, sin = (
        parameter("hidden", [1, -1, HIDDEN]),
        parameter("cos", [1, -1, DR]),
        parameter("sin", [1, -1, DR]),
    )
    both = projected(hidden, layer.q_proj.weight, H)
    query = by_heads(rotated(normalized(part(both, 0, E), layer.q_norm.weight), cos, sin, E))
    gate = ops.reshape(part(both, E, 2 * E), whole(0, 0, H * E), True)
    key = normalized(projected(hidden, layer.k_proj.weight, HKV), layer.k_norm.weight)
    key = by_heads(rotated(key, cos, sin, E))
    value = by_heads(projected(hidden, layer.v_proj.weight, HKV))
    weight = layer.indexer.index_qk_proj.weight
    index_query = normalized(projected(hidden, weight[: HI * DI], HI), layer.indexer.q_layernorm.weight)
    index_query = by_heads(rotated(index_query, cos, sin, DI))
    raw_keys = ops.squeeze(projected(hidden, weight[HI * DI :], 1), whole(2))
    results = [ops.result(one) for one in (query, gate, index_query, raw_keys, key, value)]
    return openvino.Model(results, [hidden, cos, sin], "projections")


def three_steps(layer: Any, factory: NodeFactory) -> openvino.Model:
    """The three operations one after the other, the output gate and the output projection."""
    shapes = {
        "query": [1, H, -1, E],
        "gate": [1, -1, H * E],
        "index_query": [1, HI, -1, DI],
        "raw_index_keys": [1, -1, DI],
        "cos": [1, -1, DR],
        "sin": [1, -1, DR],
        "past_block_index_keys": [1, -1, DI],
        "past_incomplete_raw_keys": [1, R - 1, DI],
        "past_incomplete_rope": [1, 2 * DR],
    }
    given = {name: parameter(name, shape) for name, shape in shapes.items()}
    given["key_length"] = parameter("key_length", [1], openvino.Type.i64)
    given |= {f"{kind}_{g}": parameter(f"{kind}_{g}", [1, 1, -1, E]) for kind in CACHES for g in range(HKV)}

    def operation(name: str, ports: list[Any], attributes: Mapping[str, Any]) -> Any:
        outputs = [port if isinstance(port, openvino.Output) else port.output(0) for port in ports]
        return factory.create(name, outputs, dict(attributes))

    names = ("raw_index_keys", "past_block_index_keys", "key_length", "cos", "sin")
    weight = number(1 + layer.indexer.k_layernorm.weight.detach().numpy())
    prepared = operation(
        "QSAPrepare",
        [*(given[name] for name in names), weight, given[STATE[1]], given[STATE[2]]],
        {"key_block_size": R, "epsilon": EPSILON},
    )
    selected = operation(
        "SparseAttentionIndexer",
        [given["index_query"], prepared.output(0), given["key_length"]],
        {"key_block_size": R, "token_budget": BUDGET, "num_selection_heads": 1},
    )
    attended = [
        operation(
            "SparseAttention",
            [
                query,
                given[f"key_{g}"],
                given[f"value_{g}"],
                selected.output(0),
                selected.output(1),
                given["key_length"],
            ],
            {"key_block_size": R, "query_block_size": 1, "causal": True},
        )
        for g, query in enumerate(ops.split(given["query"], ops.constant(1), HKV).outputs())
    ]
    heads = ops.concat([one.output(0) for one in attended], 1)
    rows = ops.reshape(by_heads(heads), whole(0, 0, H * E), True)
    last = number(layer.o_proj.weight.detach().numpy())
    output = ops.matmul(ops.multiply(rows, ops.sigmoid(given["gate"])), last, False, True)
    results = [output.output(0), *(prepared.output(i) for i in range(3)), selected.output(0)]
    return openvino.Model([ops.result(one) for one in results], list(given.values()), "three steps")


# Comparison and timing


def compare(layer: Any, tokens: int, steps: int) -> tuple[float, int, int]:
    """A prefill and some decode steps of both.

    The largest difference in rows of the same selection, as a share of the largest output; rows of another selection,
    as where blocks are tied; all rows.
    """
    hidden = np.random.default_rng(1).standard_normal((1, tokens + steps, HIDDEN)).astype(np.float32)
    replaced, caches, masks = Replaced(layer, tokens + steps), Caches(), []
    hook = layer.indexer.register_forward_hook(lambda module, given, mask: masks.append(mask[0, 0].numpy()))
    worst = largest = 0.0
    others, past = 0, 0
    for count in (tokens, *[1] * steps):
        now = hidden[:, past : past + count]
        want, got = run_layer(layer, now, past, caches)[0], replaced.run(now)[0]
        largest = max(largest, float(np.abs(want).max()))
        for row in range(count):
            blocks = (past + row + 1) // R
            theirs = np.flatnonzero(masks[-1][row, : blocks * R].reshape(-1, R).any(axis=1))
            ours = replaced.selected[0, 0, row]
            if set(theirs) == set(ours[ours >= 0]):
                worst = max(worst, float(np.abs(want[row] - got[row]).max()))
            else:
                others += 1
        past += count
    hook.remove()
    return worst / largest, others, past


def timed(call: Callable[[Array], Any]) -> float:
    """The median seconds of a decode step, after one that is not counted."""
    random = np.random.default_rng(2)
    times = []
    for _ in range(STEPS + 1):
        token = random.standard_normal((1, 1, HIDDEN)).astype(np.float32)
        start = time.perf_counter()
        call(token)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def decode(layer: Any, tokens: int) -> tuple[float, float, float]:
    """Seconds of a decode step of the layer and of the model with the three operations, and how far they differ.

    The past is random: `tokens` raw index keys, keys and values. The block keys of the replaced layer are built from
    the same raw keys by its own operation.
    """
    random = np.random.default_rng(3)
    raw = random.standard_normal((1, tokens, DI), dtype=np.float32)
    key, value = (random.standard_normal((1, HKV, tokens, E), dtype=np.float32) for _ in range(2))
    replaced = Replaced(layer, tokens + STEPS + 2)
    replaced.remember(raw, key, value)
    caches = Caches(*(torch.from_numpy(array) for array in (raw, key, value)))
    token = random.standard_normal((1, 1, HIDDEN), dtype=np.float32)
    want, got = run_layer(layer, token, tokens, caches), replaced.run(token)
    off = float(np.abs(want - got).max() / np.abs(want).max())
    ours = timed(replaced.run)
    del replaced
    past = iter(range(tokens + 1, tokens + 1 + STEPS + 1))
    theirs = timed(lambda one: run_layer(layer, one, next(past), caches))
    return theirs, ours, off


def block_keys(raw: Array, weight: Array) -> dict[str, Array]:
    """The three states after the tokens of some raw index keys."""
    from conformance.backends.connect import connect
    from conformance.backends.protocol import OperationConfig

    config = OperationConfig("QSAPrepare", {"key_block_size": R, "epsilon": EPSILON}, "f32", "i64", frozenset())
    cos, sin = rope(0, raw.shape[1])
    outputs = connect("openvino-cpu-op", operation="QSAPrepare").prepare(config).run({
        "raw_index_keys": raw,
        "past_block_index_keys": np.zeros((1, 0, DI), np.float32),
        "key_length": np.array([raw.shape[1]], np.int64),
        "rope_cos": cos,
        "rope_sin": sin,
        "k_norm_weight": weight,
        "past_incomplete_raw_keys": np.zeros((1, R - 1, DI), np.float32),
        "past_incomplete_rope": np.zeros((1, 2 * DR), np.float32),
    })  # fmt: skip
    names = ("block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope")
    return {state: np.array(outputs[name]) for state, name in zip(STATE, names, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[4096], help="tokens of the past to time with [4096]")
    parser.add_argument("--prefill", type=int, default=2150, help="tokens of the prefill that is compared [2150]")
    parser.add_argument("--steps", type=int, default=8, help="decode steps that are compared [8]")
    chosen = parser.parse_args()
    layer = make_layer(seed=0)
    off, others, rows = compare(layer, chosen.prefill, chosen.steps)
    print(
        f"prefill of {chosen.prefill:,} tokens, {chosen.steps} decode steps: {rows - others:,} of {rows:,} rows select"
    )
    print(f"the same blocks and are off by at most {off:.1e} of the largest output; {others} select others")
    print(f"{'past tokens':>12} {'layer':>12} {'operations':>12} {'times':>7} {'off by':>9}")
    for tokens in chosen.tokens:
        theirs, ours, off = decode(layer, tokens)
        print(f"{tokens:12,} {theirs * 1e3:9.1f} ms {ours * 1e3:9.1f} ms {theirs / ours:7.1f} {off:9.1e}", flush=True)


if __name__ == "__main__":
    main()
