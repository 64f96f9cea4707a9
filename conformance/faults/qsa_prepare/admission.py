"""Faults in what is refused: wrong inputs that are computed with, right ones that are not, wrong ways to say no."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from conformance.backends.protocol import OperationConfig, Rejected
from conformance.faults.planted import AttributeErrors, BrokenAfterRefusal, CallErrors
from conformance.faults.qsa_prepare.planting import Admission, Array, fault

Inputs = Mapping[str, Array]


class Lenient(Admission):
    """Does not look at some ports, or not in some way, and computes with what fits."""

    ports: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("shape",)

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        try:
            return super().call(config, inputs)
        except Rejected as rejected:
            if rejected.kind in self.kinds and (not self.ports or set(rejected.names) <= set(self.ports)):
                return self.accepted(config, inputs)
            raise

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        """The refused inputs, brought into a form that can be computed with."""
        return inputs


# Wrong inputs that are accepted


@fault("F200", "A key_block_size below 2 is accepted.", "ERR-1")
class AnyBlockSize(Admission):
    def configuration(self, config: OperationConfig) -> None:
        if config.attributes["key_block_size"] >= 2:
            super().configuration(config)

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return super().call(config, inputs) if config.attributes["key_block_size"] >= 2 else inputs


@fault("F201", "A negative epsilon, or NaN, is accepted.", "ERR-1")
class AnyEpsilon(Admission):
    def configuration(self, config: OperationConfig) -> None:
        super().configuration(
            OperationConfig(
                config.operation,
                {**config.attributes, "epsilon": 0.0},
                config.element_type,
                config.length_type,
                config.disabled,
            )
        )


@fault("F201n", "Epsilon is refused when it is below zero, which NaN is not.", "ERR-1")
class NanEpsilon(AnyEpsilon):
    def configuration(self, config: OperationConfig) -> None:
        if np.isnan(config.attributes["epsilon"]):
            super().configuration(config)
        else:
            Admission.configuration(self, config)


@fault("F202", "A weight that is too long or has two dimensions is accepted.", "ERR-2")
class AnyWeight(Lenient):
    ports = ("k_norm_weight",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        Di = inputs["raw_index_keys"].shape[2]
        return {**inputs, "k_norm_weight": np.resize(inputs["k_norm_weight"], (Di,))}


@fault("F203", "More or fewer than r-1 waiting rows are accepted.", "ERR-2", "sgl-project/sglang#40337")
class AnyStateRows(Lenient):
    ports = ("past_incomplete_raw_keys",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        N, _, Di = inputs["raw_index_keys"].shape
        shape = N, int(config.attributes["key_block_size"]) - 1, Di
        return {**inputs, "past_incomplete_raw_keys": np.resize(inputs["past_incomplete_raw_keys"], shape)}


@fault("F204", "The shape of rope_sin is not looked at.", "ERR-2")
class AnySine(Lenient):
    ports = ("rope_sin",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "rope_sin": np.resize(inputs["rope_sin"], inputs["rope_cos"].shape)}


@fault("F204c", "The shape of rope_cos is not looked at.", "ERR-2")
class AnyCosine(Lenient):
    ports = ("rope_cos",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "rope_cos": np.resize(inputs["rope_cos"], inputs["rope_sin"].shape)}


@fault("F205", "The shape of past_incomplete_rope is not looked at.", "ERR-2")
class AnyCarriedRope(Lenient):
    ports = ("past_incomplete_rope",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        N, _, Dr = inputs["rope_cos"].shape
        return {**inputs, "past_incomplete_rope": np.resize(inputs["past_incomplete_rope"], (N, 2 * Dr))}


@fault(
    "F206", "Sequences and width of past_block_index_keys are not looked at.", "ERR-2", "flashinfer-ai/flashinfer#4018"
)
class AnyPast(Lenient):
    ports = ("past_block_index_keys",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        N, _, Di = inputs["raw_index_keys"].shape
        past = inputs["past_block_index_keys"]
        rows = past.shape[1] if past.ndim > 1 else 0
        return {**inputs, "past_block_index_keys": np.resize(past, (N, rows, Di))}


@fault("F207", "A key_length with more entries than there are sequences, or of two dimensions, is accepted.", "ERR-2",
       "microsoft/onnxruntime#28031 microsoft/onnxruntime#28259")  # fmt: skip
class AnyLengthShape(Lenient):
    ports = ("key_length",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        N = inputs["raw_index_keys"].shape[0]
        return {**inputs, "key_length": np.resize(inputs["key_length"], (N,))}


@fault("F207r", "raw_index_keys of two or four dimensions are brought into three.", "ERR-2")
class AnyKeyRank(Lenient):
    ports = ("raw_index_keys",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        N, L = inputs["rope_cos"].shape[:2]
        Di = inputs["past_incomplete_raw_keys"].shape[2]
        return {**inputs, "raw_index_keys": np.resize(inputs["raw_index_keys"], (N, L, Di))}


@fault("F208", "Inputs of other types are converted instead of refused.", "ERR-3")
class TypesConverted(Lenient):
    kinds = ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        kind = inputs["raw_index_keys"].dtype
        kind = kind if kind.kind in "fV" else np.dtype(np.float32)
        with np.errstate(all="ignore"):
            return {name: array.astype(np.int64 if name == "key_length" else kind) for name, array in inputs.items()}


@fault("F208l", "Lengths of any integer or float type are accepted.", "ERR-3")
class AnyLengthType(Lenient):
    ports, kinds = ("key_length",), ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "key_length": inputs["key_length"].astype(np.int64)}


@fault("F208w", "A weight of another type than the keys is converted.", "ERR-3", "pytorch/executorch#22444")
class AnyWeightType(Lenient):
    ports, kinds = ("k_norm_weight",), ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "k_norm_weight": inputs["k_norm_weight"].astype(inputs["raw_index_keys"].dtype)}


@fault("F209", "When one of the rope inputs is empty, the rotation is off.", "ERR-4")
class PartialRopeIsOff(Lenient):
    kinds = ("rope",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        none = np.zeros((0,), dtype=inputs["raw_index_keys"].dtype)
        return {**inputs, "rope_cos": none, "rope_sin": none, "past_incomplete_rope": none}


@fault("F209o", "An odd rotary width is accepted; its last column is not used.", "ERR-4")
class OddRotaryWidth(Lenient):
    kinds = ("rope",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        Dr = inputs["rope_cos"].shape[-1]
        if Dr % 2 == 0 or Dr > inputs["raw_index_keys"].shape[2]:
            raise Rejected("rope", "call", ("rope_cos", "rope_sin", "past_incomplete_rope"))
        return rope_of_width(inputs, Dr - 1)


@fault(
    "F209w", "A rotary width above Di is accepted; what does not fit is not used.", "ERR-4", "vllm-project/vllm#43676"
)
class WideRotaryWidth(Lenient):
    kinds = ("rope",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        Dr, Di = inputs["rope_cos"].shape[-1], inputs["raw_index_keys"].shape[2]
        if Dr % 2 or Dr <= Di:
            raise Rejected("rope", "call", ("rope_cos", "rope_sin", "past_incomplete_rope"))
        return rope_of_width(inputs, Di // 2 * 2)


def rope_of_width(inputs: Inputs, width: int) -> Inputs:
    """The inputs with the first `width` columns of cos and sin."""
    Dr, carried = inputs["rope_cos"].shape[-1], inputs["past_incomplete_rope"]
    return {
        **inputs,
        "rope_cos": inputs["rope_cos"][..., :width],
        "rope_sin": inputs["rope_sin"][..., :width],
        "past_incomplete_rope": np.concatenate((carried[:, :width], carried[:, Dr : Dr + width]), axis=1),
    }


@fault(
    "F93",
    "Lengths are not checked: rows outside the arrays are asked for.",
    "ERR-5",
    "microsoft/onnxruntime#28031 microsoft/onnxruntime#28259",
)
class LengthsNotChecked(Lenient):
    kinds = ("value",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        raise IndexError("index is out of bounds")


# The wrong way to refuse


@fault("F210", "What is wrong is found by an error somewhere inside, not refused.", "ERR-2 ERR-3 ERR-4")
class ErrorsInsteadOfRefusals(CallErrors, Admission):
    pass


@fault("F210a", "An attribute out of range is found by an error inside.", "ERR-1")
class ErrorsInsteadOfAttributeRefusals(AttributeErrors, Admission):
    pass


@fault("F210b", "After a call was refused, the instance serves none any more.", "PLG-3")
class BrokenByRefusal(BrokenAfterRefusal, Admission):
    pass


# Right inputs that are refused


@fault("F211", "A block size that is no power of two is refused.", "AVG-1")
class PowersOfTwoOnly(Admission):
    def configuration(self, config: OperationConfig) -> None:
        super().configuration(config)
        r = int(config.attributes["key_block_size"])
        if r & (r - 1):
            raise Rejected("attribute", "prepare", ("key_block_size",))


@fault("F211e", "An epsilon of zero is refused.", "NRM-1")
class ZeroEpsilonRefused(Admission):
    def configuration(self, config: OperationConfig) -> None:
        super().configuration(config)
        if config.attributes["epsilon"] == 0:
            raise Rejected("attribute", "prepare", ("epsilon",))


@fault("F211b", "A block size above 64 is refused.", "AVG-1")
class LargeBlocksRefused(Admission):
    def configuration(self, config: OperationConfig) -> None:
        super().configuration(config)
        if config.attributes["key_block_size"] > 64:
            raise Rejected("attribute", "prepare", ("key_block_size",))


@fault("F212", "More past rows than finished blocks are refused.", "OUT-1")
class SparePastRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        super().call(config, inputs)
        L, r = inputs["raw_index_keys"].shape[1], int(config.attributes["key_block_size"])
        finished = max(0, int(inputs["key_length"].max(initial=0)) - L) // r
        if inputs["raw_index_keys"].shape[0] and inputs["past_block_index_keys"].shape[1] > finished:
            raise Rejected("value", "call", ("past_block_index_keys",))
        return inputs


@fault("F213", "A width that is no multiple of 16 is refused.", "AVG-1", "ggml-org/llama.cpp#26708")
class WholeVectorsOnly(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        super().call(config, inputs)
        if inputs["raw_index_keys"].shape[2] % 16:
            raise Rejected("shape", "call", ("raw_index_keys",))
        return inputs


@fault("F214", "key_length of shape [1] is refused for more than one sequence.", "LEN-2", "microsoft/onnxruntime#28031")
class SharedLengthRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        super().call(config, inputs)
        if inputs["key_length"].shape[0] != inputs["raw_index_keys"].shape[0]:
            raise Rejected("shape", "call", ("key_length",))
        return inputs


@fault("F215", "A call without tokens is refused.", "SEP-3 STA-4", "openvinotoolkit/openvino#37963")
class EmptyCallRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        super().call(config, inputs)
        if inputs["raw_index_keys"].shape[1] == 0:
            raise Rejected("shape", "call", ("raw_index_keys",))
        return inputs


@fault("F215n", "A batch without sequences is refused.", "SEP-3", "openvinotoolkit/openvino#37965")
class EmptyBatchRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        super().call(config, inputs)
        if inputs["raw_index_keys"].shape[0] == 0:
            raise Rejected("shape", "call", ("raw_index_keys",))
        return inputs


@fault("F216", "Lengths in i32 are refused.", "LEN-4")
class LongLengthsOnly(Admission):
    def configuration(self, config: OperationConfig) -> None:
        super().configuration(config)
        if config.length_type == "i32":
            raise Rejected("type", "prepare", ("key_length",))


@fault("F217", "An empty weight is refused.", "OFF-2")
class EmptyWeightRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        super().call(config, inputs)
        if inputs["k_norm_weight"].size == 0:
            raise Rejected("shape", "call", ("k_norm_weight",))
        return inputs


@fault("F218", "A sequence with no valid token is refused.", "LEN-3")
class EmptySequenceRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        super().call(config, inputs)
        if (inputs["key_length"] == 0).any() and inputs["raw_index_keys"].shape[1]:
            raise Rejected("value", "call", ("key_length",))
        return inputs


@fault("F219", "NaN or infinity in a key is refused.", "SEP-2")
class NonFiniteRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        super().call(config, inputs)
        if not np.isfinite(inputs["raw_index_keys"]).all():
            raise Rejected("value", "call", ("raw_index_keys",))
        return inputs
