"""Faults in what is refused: wrong inputs that are computed with, right ones that are not, wrong ways to say no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from conformance.backends.protocol import OperationConfig, Rejected
from conformance.faults.planted import AttributeErrors, BrokenAfterRefusal, CallErrors
from conformance.faults.sparse_attention.planting import Admission, Array, fault

Inputs = Mapping[str, Array]


class Lenient(Admission):
    """Does not look at some ports, or not in some way, and computes with what fits."""

    ports: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("shape",)

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        try:
            return super().call(config, inputs)
        except Rejected as rejected:
            if rejected.kind in self.kinds and (not self.ports or set(rejected.names) & set(self.ports)):
                return self.accepted(config, inputs)
            raise

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        """The refused inputs, brought into a form that can be computed with."""
        return fitted(config, inputs)


def fitted(config: OperationConfig, inputs: Inputs) -> Inputs:
    """Inputs in the shapes that the query asks for, whatever was given."""
    query = inputs["query"] if inputs["query"].ndim == 4 else np.resize(inputs["query"], (1, 1, 1, 1))
    N, H, L, E = query.shape
    key = inputs["key"]
    S = key.shape[2] if key.ndim > 2 else 1
    Hkv = next(h for h in range(max(key.shape[1] if key.ndim > 1 else 1, 1), 0, -1) if H % h == 0)
    Ev = inputs["value"].shape[-1] if inputs["value"].ndim else 1
    entries = inputs["block_indices"]
    Hs = next(h for h in range(max(entries.shape[1] if entries.ndim > 1 else 1, 1), 0, -1) if H % h == 0)
    KB = entries.shape[-1] if entries.ndim else 0
    Lq = -(-L // max(int(config.attributes["query_block_size"]), 1))
    shapes = {
        "query": (N, H, L, E), "key": (N, Hkv, S, E), "value": (N, Hkv, S, Ev), "block_indices": (N, Hs, Lq, KB),
        "block_count": (N, Hs, Lq), "key_length": (N,), "scale": (1,), "sinks": (H,),
    }  # fmt: skip
    return {
        name: np.resize(array, shapes[name]) if array.size else np.zeros(shapes[name], dtype=array.dtype)
        for name, array in inputs.items()
    }


def usable(config: OperationConfig) -> OperationConfig:
    """The configuration with block sizes that can be computed with."""
    sizes = {name: max(int(config.attributes[name]), 1) for name in ("key_block_size", "query_block_size")}
    return replace(config, attributes={**config.attributes, **sizes})


class AnyAttribute(Admission):
    """Computes with some attribute out of range."""

    name = ""

    def configuration(self, config: OperationConfig) -> None:
        if int(config.attributes[self.name]) < 1:
            config = usable(config)
        super().configuration(config)


@fault("A160", "A key_block_size below 1 is accepted.", "ERR-1")
class AnyKeyBlockSize(AnyAttribute):
    name = "key_block_size"


@fault("A161", "A query_block_size below 1 is accepted.", "ERR-1")
class AnyQueryBlockSize(AnyAttribute):
    name = "query_block_size"


@fault("A162", "The shape of key is not looked at.", "ERR-2")
class AnyKey(Lenient):
    ports = ("key",)


@fault("A163", "The shape of value is not looked at.", "ERR-2")
class AnyValue(Lenient):
    ports = ("value",)


@fault("A164", "The shape of block_indices is not looked at.", "ERR-2")
class AnyIndices(Lenient):
    ports = ("block_indices",)


@fault("A165", "The shape of block_count is not looked at.", "ERR-2")
class AnyCount(Lenient):
    ports = ("block_count",)


@fault("A166", "The shape of key_length is not looked at.", "ERR-2")
class AnyLengths(Lenient):
    ports = ("key_length",)


@fault("A167", "The shape of scale is not looked at.", "ERR-2")
class AnyScale(Lenient):
    ports = ("scale",)

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return (
            super().call(config, inputs) if "scale" in inputs or "sinks" not in inputs else self.refuse(config, inputs)
        )

    def refuse(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return Admission.call(self, config, inputs)


@fault("A168", "The shape of sinks is not looked at.", "ERR-2")
class AnySinks(Lenient):
    ports = ("sinks",)


@fault("A169", "The rank and shape of the query are not looked at.", "ERR-2")
class AnyQuery(Lenient):
    ports = ("query",)


@fault("A170", "Heads that key-value heads do not divide are accepted; some are left out.", "ERR-2",
       "fla-org/flash-linear-attention#1029")  # fmt: skip
class AnyHeads(Lenient):
    ports = ("key", "value", "block_indices", "query")

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        H, Hkv, Hs = inputs["query"].shape[1], inputs["key"].shape[1], inputs["block_indices"].shape[1]
        if inputs["value"].shape[1] != Hkv or inputs["block_count"].shape[1] != Hs or (H % Hkv == 0 and H % Hs == 0):
            return Admission.call(self, config, inputs)
        return fitted(config, inputs)


@fault("A171", "Inputs of other types are converted instead of refused.", "ERR-3")
class TypesConverted(Lenient):
    kinds = ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        kind = inputs["query"].dtype
        kind = kind if kind.kind in "fV" else np.dtype(np.float32)
        whole = ("block_indices", "block_count", "key_length")
        with np.errstate(all="ignore"):
            return {name: array.astype(np.int64 if name in whole else kind) for name, array in inputs.items()}


@fault("A172", "A block_count of another type than block_indices is accepted.", "ERR-3")
class AnyCountType(Lenient):
    ports, kinds = ("block_count",), ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "block_count": inputs["block_count"].astype(inputs["block_indices"].dtype)}


@fault("A173", "Lengths of any type are accepted.", "ERR-3")
class AnyLengthType(Lenient):
    ports, kinds = ("key_length",), ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "key_length": inputs["key_length"].astype(np.int64)}


@fault("A174", "Sinks without a scale are accepted.", "ERR-4")
class SinksWithoutScale(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        if "sinks" in inputs and "scale" not in inputs:
            return inputs
        return super().call(config, inputs)


@fault("A175", "Values out of range are cut to it, not refused.", "ERR-5", "NVIDIA/cudnn-frontend#676")
class ValuesCut(Lenient):
    kinds = ("value",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        S, KB = inputs["key"].shape[2], inputs["block_indices"].shape[3]
        lengths = {"key_length": inputs["key_length"].clip(0, S)} if "key_length" in inputs else {}
        return {**inputs, **lengths, "block_count": inputs["block_count"].clip(0, KB)}


# The wrong way to refuse


@fault("A176", "What is wrong is found by an error somewhere inside, not refused.", "ERR-2 ERR-3 ERR-4")
class ErrorsInsteadOfRefusals(CallErrors, Admission):
    pass


@fault("A177", "An attribute out of range is found by an error inside.", "ERR-1")
class ErrorsInsteadOfAttributeRefusals(AttributeErrors, Admission):
    pass


@fault("A178", "After a call was refused, the instance serves none any more.", "PLG-3")
class BrokenByRefusal(BrokenAfterRefusal, Admission):
    pass


# Right inputs that are refused


class Refused(Admission):
    """Refuses calls that are valid."""

    kind, names = "shape", ("query",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        """Whether the call is refused."""
        raise NotImplementedError

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        inputs = super().call(config, inputs)
        if self.wrong(config, inputs):
            raise Rejected(self.kind, "call", self.names)
        return inputs


@fault("A179", "A block size that is not a power of two is refused.", "BLK-1")
class PowersOfTwoOnly(Admission):
    def configuration(self, config: OperationConfig) -> None:
        super().configuration(config)
        r = int(config.attributes["key_block_size"])
        if r & (r - 1):
            raise Rejected("attribute", "prepare", ("key_block_size",))


@fault("A180", "A block size of 1 is refused.", "BLK-1")
class SingleTokensRefused(Admission):
    def configuration(self, config: OperationConfig) -> None:
        super().configuration(config)
        if config.attributes["key_block_size"] == 1:
            raise Rejected("attribute", "prepare", ("key_block_size",))


@fault("A181", "A query_block_size above 1 is refused in the causal mode.", "SEL-3")
class GroupsRefused(Admission):
    def configuration(self, config: OperationConfig) -> None:
        super().configuration(config)
        if config.attributes["causal"] and config.attributes["query_block_size"] > 1:
            raise Rejected("attribute", "prepare", ("query_block_size",))


@fault("A182", "Query tokens that are not a multiple of query_block_size are refused.", "SEL-3",
       reading="short_group=refused")  # fmt: skip
class ShortGroupRefused(Refused):
    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return bool(inputs["query"].shape[2] % int(config.attributes["query_block_size"]))


@fault("A183", "key_length of shape [1] is refused for more than one sequence.", "LEN-2", "microsoft/onnxruntime#28031")
class SharedLengthRefused(Refused):
    names = ("key_length",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return "key_length" in inputs and inputs["key_length"].shape[0] != inputs["query"].shape[0]


@fault("A184", "A key_length below the number of key rows is refused.", "LEN-3")
class ShorterRefused(Refused):
    kind, names = "value", ("key_length",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return "key_length" in inputs and bool((inputs["key_length"] < inputs["key"].shape[2]).any())


@fault("A185", "More query tokens than valid keys are refused.", "LEN-4")
class PaddingRefused(Refused):
    kind, names = "value", ("key_length",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return "key_length" in inputs and bool((inputs["key_length"] < inputs["query"].shape[2]).any())


@fault("A186", "A scale of shape [] is refused.", "ATT-2")
class ScalarRefused(Refused):
    names = ("scale",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return "scale" in inputs and inputs["scale"].ndim == 0


@fault("A187", "A call without key_length is refused.", "LEN-2")
class LengthNeeded(Refused):
    names = ("key_length",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return "key_length" not in inputs


@fault("A188", "Values that are not as wide as the keys are refused.", "ATT-1")
class EqualWidthsOnly(Refused):
    names = ("value",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return bool(inputs["value"].shape[3] != inputs["query"].shape[3])


@fault("A189", "Indices in i32 are refused.", "SEL-1")
class LongIndicesOnly(Refused):
    kind, names = "type", ("block_indices",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return inputs["block_indices"].dtype != np.int64


@fault("A190", "More room for entries than there are blocks is refused.", "SEL-1")
class SpareRoomRefused(Refused):
    names = ("block_indices",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        r = int(config.attributes["key_block_size"])
        return bool(inputs["block_indices"].shape[3] > -(-inputs["key"].shape[2] // r))


@fault("A191", "A call without query tokens is refused.", "SEP-3", "openvinotoolkit/openvino#37963")
class EmptyCallRefused(Refused):
    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return bool(inputs["query"].shape[2] == 0)


@fault("A192", "A sink of minus infinity is refused.", "NUM-5")
class NoSinkRefused(Refused):
    kind, names = "value", ("sinks",)

    def wrong(self, config: OperationConfig, inputs: Inputs) -> bool:
        return "sinks" in inputs and bool(np.isinf(inputs["sinks"]).any())
