"""QSAPrepare as a custom OpenVINO operation written in Python (connect string ``openvino-python-op``).

The operation has everything that a built-in one has: attributes, type and shape inference, an evaluation, and a form in
OpenVINO IR. Every model goes through IR before it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import openvino

from conformance.backends import refusals
from conformance.backends.openvino.python_op import checker_of, through_ir
from conformance.backends.openvino.runtime import URL, CompiledSession, Device, model_of, port_nodes
from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.ports import DEFAULT_EPSILON, OUTPUTS, PORTS, RANKS, ROPE_PORTS, SWITCHED
from conformance.backends.refusals import Checker, is_empty

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

ELEMENT_TYPES = {openvino.Type.f32: np.float32, openvino.Type.f16: np.float16, openvino.Type.bf16: ml_dtypes.bfloat16}
LENGTH_TYPES = (openvino.Type.i32, openvino.Type.i64)


class OpenVINOPythonOp:
    """The Python operation, run by the CPU plug-in."""

    def __init__(self) -> None:
        self._device = Device("openvino-python-op", "CPU")
        self._device.core.add_extension(QSAPrepare)
        self.environment = self._device.environment | {"numpy": np.__version__}

    def describe(self) -> BackendInfo:
        """Every output, type and feature of the contract."""
        return BackendInfo(
            name="openvino-python-op",
            version=self._device.version,
            vendor="qsa-conformance",
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=("rope", "norm", "left_padding"),
            url=URL,
        )

    def prepare(self, config: OperationConfig) -> CompiledSession:
        """Build the model, pass it through IR and compile it; raises `Rejected` for attributes out of range (ERR-1)."""
        checker = refusals.checker(config, OPERATION)

        def make() -> Any:
            return self._device.compile(through_ir(self._device.core, build_model(checker)))

        return CompiledSession(checker, self._device.compiled(config.key, make), OUTPUTS, self._device.feature)


def build_model(checker: Checker) -> openvino.Model:
    """A model of the one operation, with empty constants where a feature is switched off."""
    config, ports = checker.config, port_nodes(checker)
    operation = QSAPrepare(
        list(ports.values()),
        key_block_size=int(config.attributes["key_block_size"]),
        epsilon=float(config.attributes.get("epsilon", DEFAULT_EPSILON)),
    )
    return model_of(ports, operation.outputs(), OUTPUTS, OPERATION)


class QSAPrepare(openvino.Op):  # type: ignore[misc]  # openvino ships no usable types
    """The operation; its inputs are the contract's eight in order, a feature is off where its inputs are empty."""

    def __init__(self, inputs: Sequence[Any] | None = None, key_block_size: int = 0, epsilon: float = DEFAULT_EPSILON):
        # Without inputs when it is read from IR; the attributes then arrive in `visit_attributes`.
        self._attributes: dict[str, Any] = {"key_block_size": key_block_size, "epsilon": epsilon}
        super().__init__(self, inputs)

    def visit_attributes(self, visitor: Any) -> bool:
        visitor.on_attributes(self._attributes)
        return True

    def clone_with_new_inputs(self, new_inputs: Sequence[Any]) -> QSAPrepare:
        return QSAPrepare(new_inputs, **self._attributes)

    def validate_and_infer_types(self) -> None:
        """Raises `Rejected` at "prepare" for what types and static dimensions show to be wrong (ERR-1 to ERR-4)."""
        checker_of(OPERATION, **self._attributes)
        self.set_output_size(len(OUTPUTS))
        element_type = self._infer_type()
        shapes = {name: self.get_input_partial_shape(index) for index, name in enumerate(PORTS)}
        for index, shape in enumerate(infer_shapes(shapes, self._attributes["key_block_size"])):
            self.set_output_type(index, element_type, shape)

    def _infer_type(self) -> openvino.Type:
        types = {name: self.get_input_element_type(index) for index, name in enumerate(PORTS)}
        lengths = types.pop("key_length")
        if lengths.is_static() and lengths not in LENGTH_TYPES:
            raise Rejected("type", "prepare", ("key_length",))
        known = {name: element for name, element in types.items() if element.is_static()}
        element_type = next(iter(known.values()), openvino.Type.dynamic)
        wrong = tuple(
            name for name, element in known.items() if element not in ELEMENT_TYPES or element != element_type
        )
        if wrong:
            raise Rejected("type", "prepare", wrong)
        return element_type

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: Sequence[openvino.Tensor], inputs: Sequence[openvino.Tensor]) -> bool:
        """Compute in the type that the inputs come in; the number of block keys is known only now."""
        arrays = [_array(tensor) for tensor in inputs]
        for tensor, result in zip(outputs, prepare_keys(*arrays, **self._attributes), strict=True):
            tensor.shape = result.shape
            if result.size:
                _array(tensor)[...] = result
        return True


def _array(tensor: openvino.Tensor) -> Array:
    """A view of the tensor's memory; OpenVINO itself shows bf16 as f16."""
    array: Array = tensor.data
    return array.view(ml_dtypes.bfloat16) if tensor.element_type == openvino.Type.bf16 else array


# Shape inference

Interval = tuple[int, int]  # the least and the greatest value of a dimension
UNBOUNDED = 2**63 - 1  # what OpenVINO calls the greatest value of a dimension without a bound
ANY: Interval = (0, UNBOUNDED)


def infer_shapes(shapes: dict[str, Any], r: int) -> tuple[Any, Any, Any]:
    """Output shapes from input shapes, all `openvino.PartialShape`; B is bounded by Bp + (L + r - 1) div r.

    Raises `Rejected` at "prepare": "shape" for ranks and dimensions that contradict each other, "rope" for ERR-4.
    """
    dims = {name: _intervals(shape) for name, shape in shapes.items()}
    off = {name for name, axes in dims.items() if axes and axes[-1][1] == 0 and name in SWITCHED}
    missing = tuple(name for name in ROPE_PORTS if name in off)
    if any((dims[name] or (ANY,))[-1][0] > 0 for name in ROPE_PORTS) and missing:
        raise Rejected("rope", "prepare", missing)
    known = {name: axes for name, axes in dims.items() if axes is not None and name not in off}
    wrong = tuple(name for name, axes in known.items() if len(axes) != RANKS[name])
    if wrong:
        raise Rejected("shape", "prepare", wrong)

    def agreed(*places: tuple[str, int], start: Interval = ANY) -> Interval:
        return _merged([(name, known[name][axis]) for name, axis in places if name in known], start)

    raw, past, waiting, carried = "raw_index_keys", "past_block_index_keys", "past_incomplete_raw_keys", ROPE_PORTS[2]
    batch = [(name, 0) for name in (raw, past, *ROPE_PORTS, waiting)]
    if "key_length" in known and known["key_length"][0][0] != 1:  # LEN-2: a length of shape [1] is for all
        batch.append(("key_length", 0))
    N, L = agreed(*batch), agreed((raw, 1), ("rope_cos", 1), ("rope_sin", 1))
    Di = agreed((raw, 2), (past, 2), (waiting, 2), ("k_norm_weight", 0))
    agreed((waiting, 1), start=(r - 1, r - 1))
    Bp, Dr = agreed((past, 1)), agreed(("rope_cos", 2), ("rope_sin", 2))
    both = agreed((carried, 1), start=(2 * Dr[0], min(2 * Dr[1], UNBOUNDED)))
    if (Dr[0] == Dr[1] and Dr[0] % 2) or Dr[0] > Di[1]:
        raise Rejected("rope", "prepare", ROPE_PORTS)
    rope = openvino.PartialShape.dynamic()
    if dims[carried] is not None:
        rope = _shape(N, both) if len(dims[carried] or ()) == 2 else _shape((0, 0))
    most = Bp[1] + (L[1] + r - 1) // r if max(Bp[1], L[1]) < UNBOUNDED else UNBOUNDED
    return _shape(N, (0, most), Di), _shape(N, (r - 1, r - 1), Di), rope


def _intervals(shape: Any) -> tuple[Interval, ...] | None:
    """The dimensions of a shape, None when even their number is not known."""
    if shape.rank.is_dynamic:
        return None
    least, most = shape.get_min_shape(), shape.get_max_shape()
    return tuple((least[axis], most[axis]) for axis in range(len(least)))  # iterators over shapes are slow


def _merged(places: Iterable[tuple[str, Interval]], start: Interval) -> Interval:
    """What all of these leave of a dimension; raises `Rejected` naming the first port that leaves nothing."""
    least, most = start
    for name, (low, high) in places:
        least, most = max(least, low), min(most, high)
        if most < least:
            raise Rejected("shape", "prepare", (name,))
    return least, most


def _shape(*dims: Interval) -> Any:
    return openvino.PartialShape([openvino.Dimension(low, high if high < UNBOUNDED else -1) for low, high in dims])


# Evaluation


def prepare_keys(
    raw_index_keys: Array,
    past_block_index_keys: Array,
    key_length: Array,
    rope_cos: Array,
    rope_sin: Array,
    k_norm_weight: Array,
    past_incomplete_raw_keys: Array,
    past_incomplete_rope: Array,
    *,
    key_block_size: int,
    epsilon: float,
) -> tuple[Array, Array, Array]:
    """The operation, one sequence after the other and all blocks of a sequence at once (SEP-1).

    Inputs and outputs have the shapes and types of the contract. Raises `ValueError` when past_block_index_keys has
    fewer rows than blocks that were finished before (ERR-5).
    """
    r, (N, L, Di), T = key_block_size, raw_index_keys.shape, raw_index_keys.dtype
    rotates = not is_empty(rope_cos.shape)
    weight = None if is_empty(k_norm_weight.shape) else k_norm_weight
    lengths = np.broadcast_to(key_length, (N,)).tolist()
    keys = np.zeros((N, max((S // r for S in lengths), default=0), Di), T)
    raw_state = np.zeros((N, r - 1, Di), T)
    rope_state = np.zeros((N, *past_incomplete_rope.shape[1:]) if past_incomplete_rope.ndim > 1 else 0, T)
    for n, S in enumerate(lengths):
        past, pad = max(S - L, 0), max(L - S, 0)
        c, q = divmod(past, r)
        new, q_after = S // r - c, S % r
        if c > past_block_index_keys.shape[1]:
            raise ValueError(f"past_block_index_keys holds fewer than the {c} finished blocks of sequence {n}")
        keys[n, :c] = past_block_index_keys[n, :c]
        tokens = raw_index_keys[n, pad:]  # from the open block's first token on
        if q:
            tokens = np.concatenate([past_incomplete_raw_keys[n, :q], tokens])
        raw_state[n, :q_after] = tokens[new * r :]
        rope = None
        if rotates:
            start = slice(pad + (r - q if q else 0), None, r)
            rope = np.concatenate([rope_cos[n, start], rope_sin[n, start]], axis=1)
            if q:
                rope = np.concatenate([past_incomplete_rope[n : n + 1], rope])
            if q_after:
                rope_state[n] = rope[new]
        if new:
            blocks = tokens[: new * r].reshape(new, r, Di)
            with np.errstate(all="ignore"):  # NaN, infinity and overflow are values here (SEP-2, NUM-3)
                keys[n, c : c + new] = block_keys(blocks, weight, None if rope is None else rope[:new], epsilon)
    return keys, raw_state, rope_state


def block_keys(blocks: Array, weight: Array | None, rope: Array | None, epsilon: float) -> Array:
    """Keys [K, Di] of blocks [K, r, Di], unrounded: sums in f32, the rest in f64 (NUM-1)."""
    y: Array = blocks.astype(np.float32, copy=False).mean(axis=1).astype(np.float64)
    if weight is not None:
        y = y / np.sqrt(np.mean(y * y, axis=1, keepdims=True) + epsilon) * weight.astype(np.float64)
    if rope is None:
        return y
    half = rope.shape[1] // 4
    cos_1, cos_2, sin_1, sin_2 = (part.astype(np.float64) for part in np.split(rope, 4, axis=1))
    first, second = y[:, :half], y[:, half : 2 * half]
    return np.concatenate(
        [first * cos_1 - second * sin_1, second * cos_2 + first * sin_2, y[:, 2 * half :]],
        axis=1,
    )
