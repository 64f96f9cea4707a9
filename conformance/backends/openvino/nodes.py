"""Nodes that recur in graphs of standard OpenVINO operations. Index arithmetic is in i32."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset15 as ops

Node = Any  # openvino ships no usable types


def ints(*values: int) -> Node:
    """An i32 constant of rank 1."""
    return ops.constant(np.array(values, np.int32))


def size(x: Node, axis: int) -> Node:
    """A dimension, of shape [1]."""
    return ops.gather(ops.shape_of(x, "i32"), ints(axis), ints(0))


def steps(stop: Node) -> Node:
    """0, 1, ... up to a number of shape [1]."""
    zero, one = (ops.constant(np.int32(value)) for value in (0, 1))
    return ops.range(zero, ops.squeeze(stop, ints(0)), one, "i32")


def divided_with_rest(x: Node, r: Node) -> tuple[Node, Node]:
    """x div r and x mod r, exact up to 2^31. The CPU plug-in divides integers in f32, hence the second step."""
    near = ops.divide(x, r)
    rest = ops.subtract(x, ops.multiply(near, r))  # small, but negative where `near` is too large
    remainder = ops.floor_mod(rest, r)
    return ops.add(near, ops.divide(ops.subtract(rest, remainder), r)), remainder


def divided(x: Node, r: Node) -> Node:
    """x div r, exact up to 2^31."""
    return divided_with_rest(x, r)[0]


def rounded(x: Node, element_type: Any) -> Node:
    """f32 to the nearest number of another type."""
    if element_type == openvino.Type.bf16:
        # The CPU plug-in's Convert cuts off half of what it should round up. Splitting x in two at the eighth bit
        # leaves it nothing to round; what would overflow here, infinity included, it gets as it is.
        wide = ops.multiply(x, ops.constant(np.float32(2**16 + 1)))
        nearest = ops.subtract(wide, ops.subtract(wide, x))
        x = ops.select(ops.less(ops.abs(x), ops.constant(np.float32(2.0**100))), nearest, x)
    return x if element_type == openvino.Type.f32 else ops.convert(x, element_type)
