"""Faults in how memory is read: strides, order of the axes, alignment, read-only arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from reference.qsa_prepare.operation import QSAPrepare

Outputs = dict[str, Array]

VECTOR = 16  # bytes that are loaded at once


class Reader(QSAPrepare):
    """Reads some ports in a way of its own."""

    ports: tuple[str, ...] = ("raw_index_keys",)

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        read = {name: self.read(inputs[name], inputs) for name in self.ports or tuple(inputs)}
        return super().run({**inputs, **read})

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        """The numbers that are taken for those of the array."""
        raise NotImplementedError


def memory(array: Array, strides: Sequence[int], shift: int = 0) -> Array:
    """What a kernel finds that goes from the array's first element by these strides, in bytes.

    Nothing outside the allocation is read: zeros stand there.
    """
    if array.size == 0 or (shift == 0 and tuple(strides) == array.strides):
        return array
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    low, high = np.lib.array_utils.byte_bounds(root)
    size = array.itemsize
    start = int(array.__array_interface__["data"][0]) + shift
    places = np.full((1,) * array.ndim, start - low, dtype=np.int64)
    for axis, (count, step) in enumerate(zip(array.shape, strides, strict=True)):
        places = places + (np.arange(count) * step).reshape(-1, *(1,) * (array.ndim - 1 - axis))
    inside = (places >= 0) & (places <= high - low - size)
    everything = np.ctypeslib.as_array((ctypes.c_ubyte * (high - low)).from_address(low))
    taken = everything[np.where(inside, places, 0)[..., None] + np.arange(size)]
    found: Array = np.ascontiguousarray(taken).view(array.dtype).reshape(array.shape)
    found[~inside] = 0
    return found


def dense(array: Array) -> tuple[int, ...]:
    """The strides of a dense array of this shape."""
    return tuple(array.itemsize * int(np.prod(array.shape[axis + 1 :])) for axis in range(array.ndim))


# Strides of single ports


class DenseAssumed(Reader):
    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        return memory(array, dense(array))


@fault("F301", "key_length is read without its stride.", "PLG-5")
class LengthStrideIgnored(DenseAssumed):
    ports = ("key_length",)


@fault("F301w", "The weight is read without its stride.", "PLG-5", "ml-explore/mlx#1340")
class WeightStrideIgnored(DenseAssumed):
    ports = ("k_norm_weight",)


@fault("F301s", "Strides of the waiting keys are ignored.", "PLG-5", "vllm-project/vllm#54359")
class StateStridesIgnored(DenseAssumed):
    ports = ("past_incomplete_raw_keys",)


@fault("F301r", "Strides of past_incomplete_rope are ignored.", "PLG-5", "vllm-project/vllm#54359")
class RopeStateStridesIgnored(DenseAssumed):
    ports = ("past_incomplete_rope",)


@fault("F301t", "Strides of cos and sin are ignored.", "PLG-5", "ggml-org/llama.cpp#12960")
class TableStridesIgnored(DenseAssumed):
    ports = ("rope_cos", "rope_sin")


# Two ports that belong together


class StridesOfAnother(Reader):
    other = "rope_sin"

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        return memory(array, inputs[self.other].strides) if inputs[self.other].ndim == array.ndim else array


@fault("F302", "cos is read with the strides of sin.", "PLG-5", "ModelTC/LightLLM#1467")
class CosineWithStridesOfSine(StridesOfAnother):
    ports = ("rope_cos",)


@fault("F302s", "sin is read with the strides of cos.", "PLG-5", "ModelTC/LightLLM#1467")
class SineWithStridesOfCosine(StridesOfAnother):
    ports, other = ("rope_sin",), "rope_cos"


@fault("F302k", "Waiting keys are read with the row stride of the new ones, when that is not dense.", "PLG-5",
       "ModelTC/LightLLM#1467")  # fmt: skip
class WaitingWithStrideOfNew(Reader):
    ports = ("past_incomplete_raw_keys",)

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        keys = inputs["raw_index_keys"]
        if keys.strides == dense(keys):
            return array
        row = keys.strides[1]
        return memory(array, (row * array.shape[1], row, keys.strides[2]))


# Single axes


class BatchStrideFromShape(Reader):
    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        return memory(array, (array.shape[1] * array.strides[1], *array.strides[1:])) if array.ndim == 3 else array


@fault("F303", "The raw keys of a sequence begin L rows behind those of the one before, whatever the stride.", "PLG-5",
       "openvinotoolkit/openvino#9334")  # fmt: skip
class KeysBatchStride(BatchStrideFromShape):
    pass


@fault("F303p", "Past block keys of a sequence begin Bp rows behind those of the one before.", "PLG-5")
class PastBatchStride(BatchStrideFromShape):
    ports = ("past_block_index_keys",)


@fault("F303t", "cos and sin rows of a sequence begin L rows behind those of the one before.", "PLG-5",
       "openvinotoolkit/openvino#38246")  # fmt: skip
class TableBatchStride(BatchStrideFromShape):
    ports = ("rope_cos", "rope_sin")


@fault("F304", "The elements of a raw key are read one behind the other, whatever the stride of the last axis.",
       "PLG-5", "ggml-org/llama.cpp#13031")  # fmt: skip
class ElementStrideIgnored(Reader):
    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        return memory(array, (*array.strides[:-1], array.itemsize))


@fault("F304r", "The rows of cos and sin are read one behind the other, the rest by strides.", "PLG-5",
       "ggml-org/llama.cpp#19296")  # fmt: skip
class RowStrideIgnored(Reader):
    ports = ("rope_cos", "rope_sin")

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        if array.ndim != 3:
            return array
        return memory(array, (array.strides[0], array.shape[2] * array.strides[2], array.strides[2]))


# Kinds of strides


@fault("F305", "An array that is dense in any order of its axes is read as if it were in C order.", "PLG-5",
       "ml-explore/mlx#1340")  # fmt: skip
class AnyOrderIsC(Reader):
    ports = ()

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        return memory(array, dense(array)) if array.flags.f_contiguous else array


@fault("F305t", "In raw keys whose token axis is outermost sequence and token are exchanged.", "PLG-5",
       "openvinotoolkit/openvino#37961")  # fmt: skip
class TokenMajorMisread(Reader):
    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        s = array.strides
        if array.size and s[1] > s[0] >= s[2] > 0:
            return memory(array, (s[1], s[0], s[2]))
        return array


@fault("F306", "A negative stride is taken for a positive one.", "PLG-5", "openvinotoolkit/openvino#9334")
class NegativeStrides(Reader):
    ports = ()

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        return memory(array, [abs(step) for step in array.strides])


@fault("F307", "A stride of zero is taken for one that was not given: the array is read as dense.", "PLG-5",
       "ggml-org/llama.cpp#19296")  # fmt: skip
class ZeroStrides(Reader):
    ports = ()

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        repeats = any(step == 0 and count > 1 for step, count in zip(array.strides, array.shape, strict=True))
        return memory(array, dense(array)) if repeats else array


@fault("F307b", "A batch stride of zero is taken for that of a dense array, in the raw keys only.", "PLG-5",
       "openvinotoolkit/openvino#38246")  # fmt: skip
class ZeroBatchStride(Reader):
    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        repeats = array.shape[0] > 1 and array.strides[0] == 0
        return memory(array, (dense(array)[0], *array.strides[1:])) if repeats else array


@fault("F312", "Strides in bytes are divided by four, whatever the size of an element.", "PLG-5", types="f16 bf16")
class StridesOfSinglePrecision(Reader):
    ports = ()

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        if array.itemsize != 2 or array.strides == dense(array):
            return array
        return memory(array, [step // 4 * array.itemsize for step in array.strides])


# Alignment and ownership


def offset(array: Array) -> int:
    """Bytes by which an array begins behind a whole vector."""
    return int(array.__array_interface__["data"][0]) % VECTOR


@fault("F308", "Raw keys whose rows are whole vectors are read from the last aligned address.", "PLG-5",
       "microsoft/onnxruntime#24980")  # fmt: skip
class AlignedLoads(Reader):
    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        whole = array.size > 0 and array.shape[-1] * array.itemsize % VECTOR == 0
        return memory(array, array.strides, -offset(array)) if whole else array


@fault("F308w", "The weight is read from the last aligned address.", "PLG-5", "microsoft/onnxruntime#24980")
class AlignedWeight(Reader):
    ports = ("k_norm_weight",)

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        return memory(array, array.strides, -offset(array))


@fault("F308p", "Of an array that does not begin at a whole vector the elements up to the next one are lost.", "PLG-5",
       "ggml-org/llama.cpp#26708")  # fmt: skip
class PeeledElementsLost(Reader):
    ports = ("past_block_index_keys", "past_incomplete_raw_keys")

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        lost = -offset(array) % VECTOR // array.itemsize
        if not lost or not array.size:
            return array
        out = array.copy()
        out.reshape(-1)[:lost] = 0
        return out


@fault("F309", "An array that may not be written to raises an error.", "PLG-5")
class ReadOnlyRefused(Reader):
    ports = ()

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        if not array.flags.writeable:
            raise ValueError("buffer source array is read-only")
        return array


@fault("F309b", "Of a view the array below it is used when it has as many elements.", "PLG-5",
       "openvinotoolkit/openvino#38246")  # fmt: skip
class BaseOfView(Reader):
    ports = ()

    def read(self, array: Array, inputs: Mapping[str, Array]) -> Array:
        base = array.base
        if isinstance(base, np.ndarray) and base.size == array.size and base.dtype == array.dtype:
            return base.reshape(array.shape)
        return array
