"""Faults that leave out exactly one check of what is refused, and compute with what then comes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

from conformance.backends import refusals
from conformance.backends.protocol import OperationConfig, Rejected
from conformance.faults.qsa_prepare.planting import Admission, Array, fault

Inputs = Mapping[str, Array]

TYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
ROPE_PORTS = ("rope_cos", "rope_sin", "past_incomplete_rope")
RANKS = {
    "raw_index_keys": 3,
    "past_block_index_keys": 3,
    "key_length": 1,
    "rope_cos": 3,
    "rope_sin": 3,
    "k_norm_weight": 1,
    "past_incomplete_raw_keys": 3,
    "past_incomplete_rope": 2,
}


class Unchecked(Admission):
    """Brings one port into the form that is due when `overlooked` says so; then all checks are made."""

    port = ""

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        array, due = inputs[self.port], self.due(config, inputs)
        if due is not None and self.overlooked(array, due, config):
            inputs = {**inputs, self.port: self.fitted(array, due)}
        return super().call(config, inputs)

    def overlooked(self, array: Array, due: tuple[int, ...], config: OperationConfig) -> bool:
        raise NotImplementedError

    def fitted(self, array: Array, due: tuple[int, ...]) -> Array:
        return np.resize(array, due) if array.size else np.zeros(due, array.dtype)

    def due(self, config: OperationConfig, inputs: Inputs) -> tuple[int, ...] | None:
        """The shape that the other ports ask for; None where they do not tell."""
        keys, past, state = (inputs[n] for n in ("raw_index_keys", "past_block_index_keys", "past_incomplete_raw_keys"))
        table = inputs["rope_sin" if self.port == "rope_cos" else "rope_cos"]
        r = int(config.attributes["key_block_size"])
        if self.port == "raw_index_keys":
            return (*table.shape[:2], state.shape[2]) if table.ndim == 3 else None
        if keys.ndim != 3:
            return None
        N, L, Di = keys.shape
        if self.port == "past_block_index_keys":
            return N, past.shape[1] if past.ndim > 2 else past.shape[-1] // max(Di, 1) if past.ndim == 2 else L, Di
        if self.port in ROPE_PORTS and table.ndim != 3:
            return None
        return {
            "key_length": (N,),
            "rope_cos": (N, L, table.shape[-1] if table.ndim else 0),
            "rope_sin": (N, L, table.shape[-1] if table.ndim else 0),
            "k_norm_weight": (Di,),
            "past_incomplete_raw_keys": (N, r - 1, Di),
            "past_incomplete_rope": (N, 2 * table.shape[-1] if table.ndim else 0),
        }[self.port]


def unchecked(
    id: str, says: str, port: str, overlooked: Callable[[Array, tuple[int, ...]], bool], clause: str = "ERR-2"
) -> None:
    """Register a fault that overlooks some shapes of a port."""

    def test(self: Unchecked, array: Array, due: tuple[int, ...], config: OperationConfig) -> bool:
        return array.shape != due and overlooked(array, due)

    fault(id, says, clause)(type(id, (Unchecked,), {"port": port, "overlooked": test, "__module__": __name__}))


def rank(array: Array, due: tuple[int, ...]) -> bool:
    return array.ndim not in (0, len(due))


def scalar(array: Array, due: tuple[int, ...]) -> bool:
    return array.ndim == 0


def along(axis: int) -> Callable[[Array, tuple[int, ...]], bool]:
    """Whether the shape is wrong along this axis and no other."""

    def test(array: Array, due: tuple[int, ...]) -> bool:
        if array.ndim != len(due):
            return False
        return all((size != due[a]) == (a == axis) for a, size in enumerate(array.shape))

    return test


def one_along(axis: int) -> Callable[[Array, tuple[int, ...]], bool]:
    """Whether there is one place along this axis, which is repeated."""

    def test(array: Array, due: tuple[int, ...]) -> bool:
        return along(axis)(array, due) and array.shape[axis] == 1

    return test


for letter, port in zip("abcdefgh", RANKS, strict=True):
    unchecked(f"F220{letter}", f"The rank of {port} is not looked at, as long as there is one.", port, rank)
    unchecked(f"F221{letter}", f"A scalar is taken for {port}, and stands in all its elements.", port, scalar)

AXES = {
    "F222a": ("past_block_index_keys", 0, "number of sequences"),
    "F222b": ("past_block_index_keys", 2, "width"),
    "F222c": ("key_length", 0, "number of elements"),
    "F222d": ("rope_cos", 0, "number of sequences"),
    "F222e": ("rope_cos", 1, "number of rows"),
    "F222f": ("rope_sin", 0, "number of sequences"),
    "F222g": ("rope_sin", 1, "number of rows"),
    "F222h": ("rope_sin", 2, "width"),
    "F222i": ("k_norm_weight", 0, "width"),
    "F222j": ("past_incomplete_raw_keys", 0, "number of sequences"),
    "F222k": ("past_incomplete_raw_keys", 1, "number of rows"),
    "F222l": ("past_incomplete_raw_keys", 2, "width"),
    "F222m": ("past_incomplete_rope", 0, "number of sequences"),
    "F222n": ("past_incomplete_rope", 1, "width"),
    "F222o": ("raw_index_keys", 0, "number of sequences"),
    "F222p": ("raw_index_keys", 1, "number of rows"),
    "F222q": ("raw_index_keys", 2, "width"),
    "F222r": ("rope_cos", 2, "width"),
}
for id, (port, axis, called) in AXES.items():
    unchecked(id, f"The {called} of {port} is not looked at, and what is there is repeated or cut.", port, along(axis))

ONES = {
    "F223a": ("rope_cos", 0, "A cos table of one sequence serves all."),
    "F223b": ("rope_sin", 1, "A sin table of one row serves all tokens."),
    "F223c": ("k_norm_weight", 0, "A weight of one element scales all."),
    "F223d": ("past_incomplete_raw_keys", 0, "Waiting keys of one sequence serve all."),
    "F223e": ("past_incomplete_rope", 0, "A carried rope of one sequence serves all."),
    "F223f": ("past_block_index_keys", 0, "A past of one sequence serves all."),
}
for id, (port, axis, says) in ONES.items():
    unchecked(id, says, port, one_along(axis))


# Types


class TypeUnchecked(Admission):
    """Converts some ports of some types instead of refusing them."""

    ports: tuple[str, ...] = ()
    types: tuple[str, ...] = ()  # of NumPy, all when empty

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        kind = TYPES.get(config.element_type, np.dtype(np.float32))
        length = np.dtype(np.int32 if config.length_type == "i32" else np.int64)
        changed = {}
        for name in self.ports or tuple(inputs):
            due = length if name == "key_length" else kind
            if inputs[name].dtype != due and (not self.types or inputs[name].dtype.name in self.types):
                with np.errstate(all="ignore"):
                    changed[name] = inputs[name].astype(due)
        return super().call(config, {**inputs, **changed})


for letter, port in zip("abcdefgh", RANKS, strict=True):
    fault(f"F224{letter}", f"The type of {port} is not looked at: it is converted.", "ERR-3")(
        type(f"F224{letter}", (TypeUnchecked,), {"ports": (port,), "__module__": __name__})
    )


@fault("F225", "Lengths of unsigned whole numbers are taken for signed ones.", "ERR-3")
class UnsignedLengths(TypeUnchecked):
    ports, types = ("key_length",), ("uint32", "uint64")


@fault("F225u", "Lengths in u64 are taken for i64.", "ERR-3")
class UnsignedLongLengths(TypeUnchecked):
    ports, types = ("key_length",), ("uint64",)


@fault("F225w", "Lengths in u32 are taken for i32.", "ERR-3")
class UnsignedShortLengths(TypeUnchecked):
    ports, types = ("key_length",), ("uint32",)


@fault("F225i", "Lengths in i16 are widened.", "ERR-3")
class ShortLengths(TypeUnchecked):
    ports, types = ("key_length",), ("int16",)


@fault("F225d", "An operation in f64 is computed in the configured type.", "ERR-3")
class Doubles(TypeUnchecked):
    types = ("float64",)


@fault("F225h", "A port in f16 beside others in f32 is widened.", "ERR-3", "openvinotoolkit/openvino#33425")
class HalvesWidened(TypeUnchecked):
    types = ("float16",)


@fault("F225n", "A weight in f32 is taken beside keys of 16 bits.", "ERR-3")
class WideWeight(TypeUnchecked):
    ports, types = ("k_norm_weight",), ("float32",)


# Attributes


class AttributeUnchecked(Admission):
    """Does not refuse some attributes at the preparation; what comes in is checked as ever."""

    name, default = "key_block_size", 4.0

    def overlooked(self, value: float) -> bool:
        raise NotImplementedError

    def configuration(self, config: OperationConfig) -> None:
        if self.overlooked(config.attributes[self.name]):
            valid = {**config.attributes, self.name: type(config.attributes[self.name])(self.default)}
            config = OperationConfig(config.operation, valid, config.element_type, config.length_type, config.disabled)
        super().configuration(config)


@fault("F226", "A block size of one is accepted.", "ERR-1")
class BlocksOfOne(AttributeUnchecked):
    def overlooked(self, value: float) -> bool:
        return value == 1


@fault("F226z", "A block size of zero is accepted until a call divides by it.", "ERR-1")
class BlocksOfNone(AttributeUnchecked):
    def overlooked(self, value: float) -> bool:
        return value == 0


@fault("F226n", "A negative block size is accepted until a call is made.", "ERR-1")
class NegativeBlocks(AttributeUnchecked):
    def overlooked(self, value: float) -> bool:
        return value < 0


@fault("F226c", "Attributes are looked at by the first call only.", "ERR-1")
class AttributesAtTheCall(Admission):
    def configuration(self, config: OperationConfig) -> None:
        self.late: Rejected | None = None
        try:
            super().configuration(config)
        except Rejected as rejected:
            self.late = rejected

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        if self.late:
            raise Rejected(self.late.kind, "call", self.late.names)
        return super().call(config, inputs)


@fault("F226e", "A negative epsilon is accepted.", "ERR-1")
class NegativeEpsilon(AttributeUnchecked):
    name, default = "epsilon", 0.0

    def overlooked(self, value: float) -> bool:
        return value < 0


@fault("F226t", "A negative epsilon above -1e-9 is taken for a rounding error of zero.", "ERR-1")
class EpsilonTolerance(NegativeEpsilon):
    def overlooked(self, value: float) -> bool:
        return -1e-9 < value < 0


@fault("F226i", "An epsilon of minus infinity is accepted.", "ERR-1")
class InfiniteEpsilon(NegativeEpsilon):
    def overlooked(self, value: float) -> bool:
        return value == -np.inf


# Rope


class RopeUnchecked(Admission):
    """With one rope input missing, all are taken as missing."""

    missing = "rope_cos"

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        empty = {name for name in ROPE_PORTS if refusals.is_empty(inputs[name].shape)}
        if empty == {self.missing}:
            none = np.zeros((0,), inputs["raw_index_keys"].dtype)
            config = OperationConfig(
                config.operation, config.attributes, config.element_type, config.length_type,
                config.disabled | {"rope"},
            )  # fmt: skip
            inputs = {**inputs, **dict.fromkeys(ROPE_PORTS, none)}
        return super().call(config, inputs)


@fault("F227", "Without cos there is no rotation, whatever sin and the carried rope are.", "ERR-4")
class CosineDecides(RopeUnchecked):
    pass


@fault("F227s", "Without sin there is no rotation, whatever cos and the carried rope are.", "ERR-4")
class SineDecides(RopeUnchecked):
    missing = "rope_sin"


@fault("F227r", "Without a carried rope there is no rotation, whatever cos and sin are.", "ERR-4")
class CarriedRopeDecides(RopeUnchecked):
    missing = "past_incomplete_rope"


@fault("F227o", "With the rotation off, rope inputs that are there are not looked at.", "ERR-4")
class RopeLeftOver(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        if "rope" in config.disabled:
            none = np.zeros((0,), inputs["raw_index_keys"].dtype)
            inputs = {**inputs, **dict.fromkeys(ROPE_PORTS, none)}
        return super().call(config, inputs)


# Values


class ValueUnchecked(Admission):
    """Makes something of values that are recommended to be refused."""

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        try:
            return super().call(config, inputs)
        except Rejected as rejected:
            if rejected.kind != "value":
                raise
            return super().call(config, self.mended(config, inputs, rejected))

    def mended(self, config: OperationConfig, inputs: Inputs, rejected: Rejected) -> Inputs:
        raise NotImplementedError


@fault("F228", "A negative length is taken for zero.", "ERR-5", "microsoft/onnxruntime#28031")
class NegativeLengthIsZero(ValueUnchecked):
    def mended(self, config: OperationConfig, inputs: Inputs, rejected: Rejected) -> Inputs:
        return {**inputs, "key_length": np.maximum(inputs["key_length"], 0)}


@fault("F228p", "Past rows that are missing are taken for zeros.", "ERR-5", "microsoft/onnxruntime#28259")
class MissingPastIsZero(ValueUnchecked):
    most = 1 << 16

    def mended(self, config: OperationConfig, inputs: Inputs, rejected: Rejected) -> Inputs:
        past, L = inputs["past_block_index_keys"], inputs["raw_index_keys"].shape[1]
        due = (int(inputs["key_length"].max()) - L) // int(config.attributes["key_block_size"])
        if rejected.names != ("past_block_index_keys",) or due > self.most:
            raise rejected
        longer = np.zeros((past.shape[0], due, past.shape[2]), past.dtype)
        longer[:, : past.shape[1]] = past
        return {**inputs, "past_block_index_keys": longer}
