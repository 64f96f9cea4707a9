"""QSAPrepare as a custom OpenVINO operation written in Python (connect string ``openvino-python-op``).

The operation has everything that a built-in one has: attributes, type and shape inference, an evaluation, and a form in
OpenVINO IR. Every model goes through IR before it is compiled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import openvino

from conformance.backends.openvino_runtime import OUTPUTS, URL, CompiledSession, Device, model_of, port_nodes
from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected
from conformance.backends.refusals import DEFAULT_EPSILON, PORTS, RANKS, ROPE_PORTS, check_attributes, is_empty

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
        check_attributes(config)
        model = through_ir(self._device.core, build_model(config))
        return CompiledSession(config, self._device.compile(model))


def build_model(config: OperationConfig) -> openvino.Model:
    """A model of the one operation, with empty constants where a feature is switched off."""
    ports = port_nodes(config)
    operation = QSAPrepare(
        list(ports.values()),
        key_block_size=int(config.attributes["key_block_size"]),
        epsilon=float(config.attributes.get("epsilon", DEFAULT_EPSILON)),
    )
    return model_of(ports, operation.outputs())


def through_ir(core: openvino.Core, model: openvino.Model) -> openvino.Model:
    """The model written as OpenVINO IR and read back; `core` knows the operation as an extension."""
    with tempfile.TemporaryDirectory() as folder:
        xml, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        openvino.serialize(model, xml, weights)
        return core.read_model(xml.read_bytes(), weights.read_bytes())


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
        check_attributes(OperationConfig("QSAPrepare", self._attributes, "f32", "i32", frozenset()))
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


def infer_shapes(shapes: dict[str, Any], r: int) -> tuple[Any, Any, Any]:
    """Output shapes from input shapes, all `openvino.PartialShape`; B is bounded by Bp + (L + r - 1) div r.

    Raises `Rejected` at "prepare": "shape" for ranks and dimensions that contradict each other, "rope" for ERR-4.
    """
    dims = {name: list(shape) if shape.rank.is_static else None for name, shape in shapes.items()}
    empty = {name: None if axes is None else _is_empty(axes) for name, axes in dims.items()}
    rope = {name: empty[name] for name in ROPE_PORTS}
    if True in rope.values() and False in rope.values():
        raise Rejected("rope", "prepare", tuple(name for name, off in rope.items() if off))
    off = {name for name in (*ROPE_PORTS, "k_norm_weight") if empty[name]}
    known = {name: axes for name, axes in dims.items() if axes is not None and name not in off}
    wrong = tuple(name for name, axes in known.items() if len(axes) != RANKS[name])
    if wrong:
        raise Rejected("shape", "prepare", wrong)

    def agreed(*places: tuple[str, int], also: Iterable[int] = ()) -> Any:
        return _merged([(name, known[name][axis]) for name, axis in places if name in known], also)

    raw, past, waiting = "raw_index_keys", "past_block_index_keys", "past_incomplete_raw_keys"
    batch = [(name, 0) for name in RANKS if name not in ("key_length", "k_norm_weight")]
    lengths = known.get("key_length")
    if lengths and lengths[0].is_static and lengths[0].get_length() != 1:
        batch.append(("key_length", 0))
    N, L = agreed(*batch), agreed((raw, 1), ("rope_cos", 1), ("rope_sin", 1))
    Di = agreed((raw, 2), (past, 2), (waiting, 2), ("k_norm_weight", 0))
    agreed((waiting, 1), also=[r - 1])
    Bp = agreed((past, 1))
    most = -1
    if Bp.get_max_length() >= 0 and L.get_max_length() >= 0:
        most = Bp.get_max_length() + (L.get_max_length() + r - 1) // r
    return (
        openvino.PartialShape([N, openvino.Dimension(0, most), Di]),
        openvino.PartialShape([N, r - 1, Di]),
        _rope_shape(dims[ROPE_PORTS[2]], agreed(("rope_cos", 2), ("rope_sin", 2)), N, Di),
    )


def _rope_shape(carried: Sequence[Any] | None, Dr: Any, N: Any, Di: Any) -> Any:
    """Shape of the carried rope: [N, 2 * Dr], or [0] where that is what switches rotation off."""
    if carried is None:
        return openvino.PartialShape.dynamic()
    if len(carried) < 2:
        return openvino.PartialShape([0])
    width = carried[1]
    if Dr.is_static:
        if Dr.get_length() % 2 or 0 <= Di.get_max_length() < Dr.get_length():
            raise Rejected("rope", "prepare", ROPE_PORTS)
        width = _merged([(ROPE_PORTS[2], width)], [2 * Dr.get_length()])
    return openvino.PartialShape([N, width])


def _is_empty(axes: Sequence[Any]) -> bool | None:
    """OFF-3 on dimensions; None where the last one is not known."""
    if not axes or axes[-1].is_static:
        return is_empty(tuple(axis.get_length() if axis.is_static else -1 for axis in axes))
    return None if axes[-1].get_min_length() == 0 else False


def _merged(places: Sequence[tuple[str, Any]], also: Iterable[int] = ()) -> Any:
    """The dimension that agrees with all of these; raises `Rejected` naming the first port that leaves none."""
    least, most = 0, -1
    for value in also:
        least, most = value, value
    for name, dim in places:
        least = max(least, dim.get_min_length())
        highest = dim.get_max_length()
        most = highest if most < 0 else most if highest < 0 else min(most, highest)
        if 0 <= most < least:
            raise Rejected("shape", "prepare", (name,))
    return openvino.Dimension(least, most)


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
