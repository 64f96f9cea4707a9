"""QSAPrepare as a graph of standard OpenVINO operations, run by a plug-in (connect string ``openvino-graph[:DEVICE]``).

Every dimension is dynamic and the attributes are inputs: one model serves all configurations of its types and features.
Arithmetic is in f32 with one rounding to T at the end; what is carried over is gathered in T. No element that does not
count takes part in any arithmetic: rows are picked by index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import openvino
from openvino import opset15 as ops

from conformance.backends import refusals
from conformance.backends.openvino.nodes import Node, divided_with_rest, ints, rounded, size, steps
from conformance.backends.openvino.runtime import (
    URL,
    CompiledSession,
    Device,
    model_of,
    numpy_type,
    port_nodes,
    type_of,
)
from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.ports import DEFAULT_EPSILON, OUTPUTS
from conformance.backends.refusals import Checker

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

END = 2**31 - 1  # of an axis, for Slice
ATTRIBUTES = {"key_block_size": "i32", "epsilon": "f32"}


class OpenVINOGraph:
    """Standard operations as the implementation under test; also the peer that custom operations are measured against.

    Raises `Unsupported` when OpenVINO has no such device.
    """

    def __init__(self, device: str = "CPU") -> None:
        self._device = Device("openvino-graph", device)
        self.environment = self._device.environment

    def describe(self) -> BackendInfo:
        """Every output, type and feature of the contract."""
        return BackendInfo(
            name="openvino-graph",
            version=self._device.version,
            vendor="Intel",
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=("rope", "norm", "left_padding"),
            device=self._device.name.lower(),
            url=URL,
        )

    def prepare(self, config: OperationConfig) -> CompiledSession:
        """Build and compile the model; raises `Rejected` for attributes out of range (ERR-1)."""
        checker = refusals.checker(config, OPERATION)
        key = config.element_type, config.length_type, config.disabled
        model = self._device.compiled(key, lambda: self._device.compile(build_model(checker)))
        return CompiledSession(checker, model, OUTPUTS, self._device.feature, _attributes(config))


def _attributes(config: OperationConfig) -> dict[str, Array]:
    """The values of the inputs that stand for the attributes, each of shape [1]."""
    values = {"epsilon": DEFAULT_EPSILON, **config.attributes}
    return {name: np.array([values[name]], numpy_type(type_of(kind))) for name, kind in ATTRIBUTES.items()}


def build_model(checker: Checker) -> openvino.Model:
    """The model for the types and features of a configuration, under the contract's names."""
    return _Graph(checker).model()


class _Graph:
    """The operation's nodes. Index arithmetic is in i32; a symbol of the contract is a node of shape [1] or [N]."""

    def __init__(self, checker: Checker) -> None:
        config = checker.config
        self.attribute = {name: ops.parameter([1], type_of(kind), name=name) for name, kind in ATTRIBUTES.items()}
        for name, node in self.attribute.items():
            node.output(0).set_names({name})
        self.r, self.epsilon = self.attribute["key_block_size"], self.attribute["epsilon"]
        self.type = type_of(config.element_type)
        self.rotates, self.normalizes = "rope" not in config.disabled, "norm" not in config.disabled
        self.port = port_nodes(checker)

    def model(self) -> openvino.Model:
        self.sizes()
        self.lengths()
        self.window()
        outputs = [self.block_index_keys(), self.raw_state(), *([self.rope_state()] if self.rotates else [])]
        return model_of({**self.port, **self.attribute}, outputs, OUTPUTS, OPERATION)

    # Sizes and lengths

    def sizes(self) -> None:
        shape = ops.shape_of(self.port["raw_index_keys"], "i32")
        self.N, self.L, self.Di = (ops.gather(shape, ints(axis), ints(0)) for axis in range(3))
        self.Bp = size(self.port["past_block_index_keys"], 1)
        self.n = steps(self.N)
        self.rows_of_keys = ops.concat([ints(-1), self.Di], 0)
        self.rows_of_blocks = ops.concat([ints(-1), self.r], 0)
        self.less_one, self.minus_less_one = ops.subtract(self.r, ints(1)), ops.subtract(ints(1), self.r)
        if self.rotates:
            self.half = ops.divide(size(self.port["past_incomplete_rope"], 1), ints(4))
            self.Dr = ops.add(self.half, self.half)
            self.halves = ops.concat([ints(-1, 2), self.half], 0)

    def lengths(self) -> None:
        """LEN-1 to LEN-4, BLK-1: c and q before and after the call, and how many new blocks the grid must hold."""
        S = ops.broadcast(ops.convert(self.port["key_length"], "i32"), self.N)
        past = ops.maximum(ops.subtract(S, self.L), ints(0))
        self.S = S
        self.c, self.q = divided_with_rest(past, self.r)
        self.c_after, self.q_after = divided_with_rest(S, self.r)
        begun = ops.minimum(self.q, ints(1))
        self.first = ops.add(self.c, begun)  # the first block that lies in the new rows
        finishes = ops.minimum(ops.multiply(begun, ops.subtract(self.c_after, self.c)), ints(1))
        self.heads = self.largest(finishes)  # 1 when a sequence completes a block that began before this call
        self.width = self.largest(ops.subtract(self.c_after, self.first))
        self.B = self.largest(self.c_after)

    def largest(self, x: Node) -> Node:
        """The maximum over the sequences, at least 0; 0 without sequences (SEP-3)."""
        return ops.maximum(ops.reduce_max(x, ints(0), True), ints(0))

    # The block keys

    def block_index_keys(self) -> Node:
        """OUT-1 to OUT-3: past block keys, new ones and a row of zeros in one table; every row picks its own."""
        new_in_rows, new_from_past = self.blocks_in_new_rows(), self.blocks_from_past()
        past = self.key_rows(self.port["past_block_index_keys"])
        table = ops.concat([past, new_in_rows, new_from_past, self.zeros(ints(1), self.Di)], 0)
        at_new = ops.multiply(self.N, self.Bp)
        at_heads = ops.add(at_new, ops.multiply(self.N, self.width))
        at_zeros = ops.add(at_heads, ops.multiply(self.N, self.heads))
        b, n = self.row(steps(self.B)), self.column(self.n)
        from_past = ops.add(ops.multiply(n, self.Bp), b)
        own = ops.add(at_new, ops.subtract(ops.multiply(self.n, self.width), self.first))
        from_new = ops.select(ops.less(b, self.column(self.first)), ops.add(n, at_heads), ops.add(self.column(own), b))
        known = ops.select(ops.less(b, self.column(self.c)), from_past, from_new)
        return ops.gather(table, ops.select(ops.less(b, self.column(self.c_after)), known, at_zeros), ints(0))

    def blocks_in_new_rows(self) -> Node:
        """BLK-2: keys [N * width, Di] of the blocks whose tokens are all new; a sequence may leave some unused."""
        start = ops.add(ops.subtract(ops.multiply(self.first, self.r), self.S), self.L)
        start = ops.add(start, ops.multiply(self.n, self.L))
        tokens = steps(ops.multiply(self.width, self.r))
        last = ops.subtract(ops.multiply(self.N, self.L), ints(1))
        rows = ops.minimum(ops.add(self.column(start), self.row(tokens)), last)
        rows = ops.reshape(rows, self.rows_of_blocks, False)
        means = self.means(self.key_rows(self.port["raw_index_keys"]), rows)
        if not self.rotates:
            return self.finished(means)
        first = ops.squeeze(ops.gather(rows, ints(0), ints(1)), ints(1))
        rope_rows = ops.concat([ints(-1), self.Dr], 0)
        cos, sin = (
            ops.gather(ops.reshape(self.port[name], rope_rows, False), first, ints(0))
            for name in ("rope_cos", "rope_sin")
        )
        # Told apart by the reshape, as the plug-in merges a Gather with a Convert right behind it into a slow one.
        return self.finished(means, self.in_pairs(cos), self.in_pairs(sin))

    def window(self) -> None:
        """Rows that an open block can lie in: those waiting, the first and the last r - 1 new ones; then zeros."""
        raw = self.port["raw_index_keys"]
        first, last = self.slice(raw, ints(0), self.less_one, 1), self.slice(raw, self.minus_less_one, ints(END), 1)
        zeros = self.zeros(self.N, ints(1), self.Di)
        window = ops.concat([self.port["past_incomplete_raw_keys"], first, last, zeros], 1)
        width = size(window, 1)
        self.window_end = ops.subtract(width, ints(1))
        self.window_rows = self.key_rows(window)
        self.window_start = self.column(ops.multiply(self.n, width))

    def blocks_from_past(self) -> Node:
        """BLK-3, ROT-4: keys [N * heads, Di] of the blocks that began in an earlier call."""
        j = self.row(steps(ops.multiply(self.heads, self.r)))
        q = self.column(self.q)
        rows = ops.select(ops.less(j, q), j, ops.subtract(ops.add(j, self.less_one), q))
        rows = ops.add(ops.minimum(rows, self.window_end), self.window_start)
        means = self.means(self.window_rows, ops.reshape(rows, self.rows_of_blocks, False))
        if not self.rotates:
            return self.finished(means)
        rope = ops.gather(self.port["past_incomplete_rope"], steps(ops.multiply(self.N, self.heads)), ints(0))
        quarters = ops.reshape(rope, ops.concat([ints(-1, 4), self.half], 0), False)
        return self.finished(
            means, self.slice(quarters, ints(0), ints(2), 1), self.slice(quarters, ints(2), ints(4), 1)
        )

    def means(self, table: Node, rows: Node) -> Node:
        """AVG-1: means [K, Di] of the table's rows [K, r], summed in f32 from the oldest key on, none gathered."""
        return ops.embedding_bag_packed(self.f32(table), rows, reduction="mean")

    def finished(self, m: Node, cos: Node | None = None, sin: Node | None = None) -> Node:
        """NRM-1, ROT-1, ROT-2: means [K, Di] to block keys of type T; cos and sin are [K, 2, Dr / 2]."""
        scale = self.inverse_root(m) if self.normalizes else None
        weight = self.f32(self.port["k_norm_weight"]) if self.normalizes else None
        if not self.rotates:
            return self.rounded(self.scaled(m, scale, weight))
        pairs = self.in_pairs(self.slice(m, ints(0), self.Dr, 1))
        rest = self.slice(m, self.Dr, ints(END), 1)
        swapped = ops.gather(pairs, ints(1, 0), ints(1))
        signs = ops.constant(np.array([[-1], [1]], np.float32))
        if self.normalizes:
            column = ops.unsqueeze(scale, ints(2))
            own = self.in_pairs(self.slice(weight, ints(0), self.Dr, 0))
            pairs = self.scaled(pairs, column, own)
            swapped = self.scaled(swapped, column, ops.multiply(ops.gather(own, ints(1, 0), ints(1)), signs))
            rest = self.scaled(rest, scale, self.slice(weight, self.Dr, ints(END), 0))
        else:
            swapped = ops.multiply(swapped, signs)
        rotated = ops.add(ops.multiply(pairs, self.f32(cos)), ops.multiply(swapped, self.f32(sin)))
        flat = ops.reshape(rotated, ops.concat([ints(-1), self.Dr], 0), False)
        return self.rounded(ops.concat([flat, rest], 1))

    def inverse_root(self, m: Node) -> Node:
        """NRM-1: 1 / sqrt(mean(m^2) + epsilon), [K, 1]."""
        norm = ops.reduce_l2(m, ints(1), True)
        square = ops.divide(ops.multiply(norm, norm), ops.convert(self.Di, "f32"))
        root = ops.sqrt(ops.add(square, self.epsilon))
        return ops.divide(ops.constant(np.float32(1)), root)

    def scaled(self, m: Node, scale: Node | None, weight: Node | None) -> Node:
        return m if scale is None else ops.multiply(ops.multiply(m, scale), weight)

    # The state

    def raw_state(self) -> Node:
        """STA-1: the raw keys of the open block, zeros behind them."""
        j, q = self.row(steps(self.less_one)), self.column(self.q_after)
        waited = ops.less(j, ops.subtract(q, self.L))  # more keys are open than there are new ones
        new = ops.minimum(ops.add(ops.subtract(j, q), self.window_end), self.window_end)
        return ops.gather(self.window_rows, ops.add(ops.select(waited, j, new), self.window_start), ints(0))

    def rope_state(self) -> Node:
        """STA-2: cos and sin of the open block's first token, zeros when no block is open."""
        past = self.port["past_incomplete_rope"]
        both = size(past, 1)
        new = [self.slice(self.port[name], self.minus_less_one, ints(END), 1) for name in ("rope_cos", "rope_sin")]
        zeros = self.zeros(self.N, ints(1), both)
        window = ops.concat([ops.unsqueeze(past, ints(1)), ops.concat(new, 2), zeros], 1)
        width = size(window, 1)
        new_row = ops.subtract(ops.subtract(width, ints(1)), self.q_after)
        row = ops.select(ops.less(self.L, self.q_after), ints(0), new_row)
        table = ops.reshape(window, ops.concat([ints(-1), both], 0), False)
        return ops.gather(table, ops.add(row, ops.multiply(self.n, width)), ints(0))

    # Nodes that recur

    def zeros(self, *shape: Node) -> Node:
        """Zeros of type T; rows of a table, as a Select would flush subnormal numbers of bf16."""
        return ops.broadcast(ops.constant(np.float32(0), self.type), ops.concat(list(shape), 0))

    def f32(self, x: Node) -> Node:
        return x if self.type == openvino.Type.f32 else ops.convert(x, "f32")

    def rounded(self, x: Node) -> Node:
        return rounded(x, self.type)

    def key_rows(self, x: Node) -> Node:
        return ops.reshape(x, self.rows_of_keys, False)

    def in_pairs(self, x: Node) -> Node:
        """Rows of width Dr as [K, 2, Dr / 2]: ROT-1 pairs the elements with equal last index."""
        return ops.reshape(x, self.halves, False)

    def slice(self, x: Node, start: Node, stop: Node, axis: int) -> Node:
        return ops.slice(x, start, stop, ints(1), ints(axis))

    def column(self, x: Node) -> Node:
        return ops.unsqueeze(x, ints(1))

    def row(self, x: Node) -> Node:
        return ops.unsqueeze(x, ints(0))
