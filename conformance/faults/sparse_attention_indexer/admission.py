"""Faults in what is refused: wrong inputs that are computed with, right ones that are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.backends.protocol import OperationConfig, Rejected
from conformance.backends.sparse_attention_indexer import refusals
from conformance.faults.sparse_attention_indexer.planting import Admission, Array, Inputs, fault


class Lenient(Admission):
    """Does not look at some ports, or not in some way, and computes with what fits."""

    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("shape",)

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        try:
            return super().call(config, inputs)
        except Rejected as rejected:
            if rejected.kind in self.kinds and set(rejected.names) <= set(self.names):
                return self.accepted(config, inputs)
            raise

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        """The refused inputs, brought into a form that can be computed with."""
        return inputs


class AnyAttribute(Admission):
    """Takes one attribute whatever it is, and computes with another value."""

    name = ""
    instead = 1

    def configuration(self, config: OperationConfig) -> None:
        super().configuration(self.changed(config))

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return super().call(self.changed(config), inputs)

    def changed(self, config: OperationConfig) -> OperationConfig:
        value = config.attributes[self.name]
        wrong = self.is_wrong(config)
        return replace(config, attributes={**config.attributes, self.name: self.instead if wrong else value})

    def is_wrong(self, config: OperationConfig) -> bool:
        return config.attributes[self.name] < 1


@fault("I240", "A key_block_size below one is accepted.", "ERR-1")
class AnyBlockSize(Admission):
    def configuration(self, config: OperationConfig) -> None:
        if config.attributes["key_block_size"] >= 1:
            super().configuration(config)

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        if config.attributes["key_block_size"] >= 1:
            return super().call(config, inputs)
        return {**inputs, "index_query": inputs["index_query"][:, :, :0], **_without_tokens(inputs)}


def _without_tokens(inputs: Inputs) -> dict[str, Array]:
    """An input without query tokens, which any block size can serve."""
    return {"index_weights": inputs["index_weights"][:, :0]} if "index_weights" in inputs else {}


@fault("I241", "A token_budget that is not a multiple of the block size is accepted.", "ERR-1",
       reading="budget=floor")  # fmt: skip
class BudgetFloored(Admission):
    def configuration(self, config: OperationConfig) -> None:
        refusals.check_attributes(config, floor_budget=True)


@fault("I242", "A token_budget below one is accepted.", "ERR-1")
class AnyBudget(AnyAttribute):
    name = "token_budget"

    def is_wrong(self, config: OperationConfig) -> bool:
        self.instead = int(config.attributes["key_block_size"])
        return super().is_wrong(config)


@fault("I243", "num_selection_heads below one is accepted.", "ERR-1")
class AnySelections(AnyAttribute):
    name = "num_selection_heads"


@fault("I244", "Heads that the selections do not divide are accepted; the last ones are left out.", "ERR-1",
       "fla-org/flash-linear-attention#1029")  # fmt: skip
class HeadsLeftOver(Lenient):
    names = ("num_selection_heads",)
    kinds = ("attribute",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        Hs = int(config.attributes["num_selection_heads"])
        Hi = max(inputs["index_query"].shape[1] // Hs, 1) * Hs
        fitted = {"index_query": np.resize(inputs["index_query"].swapaxes(0, 1), (Hi, *_rest(inputs))).swapaxes(0, 1)}
        if "index_weights" in inputs:
            weights = inputs["index_weights"]
            fitted["index_weights"] = np.resize(weights, (*weights.shape[:2], Hi))
        return {**inputs, **fitted}


def _rest(inputs: Inputs) -> tuple[int, int, int]:
    N, _, L, Di = inputs["index_query"].shape
    return N, L, Di


@fault("I245", "Keys of another width are accepted.", "ERR-2")
class AnyWidth(Lenient):
    names = ("block_index_keys",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        N, _, _, Di = inputs["index_query"].shape
        keys = inputs["block_index_keys"]
        rows = keys.shape[1] if keys.ndim > 1 else 0
        fitted = {**inputs, "block_index_keys": np.resize(keys, (N, rows, Di))}
        refusals.check_values(config, fitted)
        return fitted


@fault("I246", "Lengths of more entries than there are sequences, or of another rank, are accepted.", "ERR-2")
class AnyLengthShape(Lenient):
    names = ("key_length",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        N = inputs["index_query"].shape[0]
        return {**inputs, "key_length": np.resize(inputs["key_length"], (N,))}


@fault("I247", "The shape of index_weights is not looked at.", "ERR-2")
class AnyWeights(Lenient):
    names = ("index_weights",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        N, Hi, L, _ = inputs["index_query"].shape
        return {**inputs, "index_weights": np.resize(inputs["index_weights"], (N, L, Hi))}


@fault("I248", "Queries of another rank are brought into four dimensions.", "ERR-2")
class AnyQueryRank(Lenient):
    names = ("index_query",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        query = inputs["index_query"]
        N, Di = inputs["block_index_keys"].shape[0], inputs["block_index_keys"].shape[2]
        if "index_weights" in inputs:
            _, L, Hi = inputs["index_weights"].shape
        else:
            L, Hi = 1, int(config.attributes["num_selection_heads"])
        return {**inputs, "index_query": np.resize(query, (N, Hi, L, Di))}


@fault("I249", "Keys of another element type are converted.", "ERR-3")
class AnyKeyType(Lenient):
    names = ("block_index_keys",)
    kinds = ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "block_index_keys": inputs["block_index_keys"].astype(inputs["index_query"].dtype)}


@fault("I250", "Weights of another element type are converted.", "ERR-3")
class AnyWeightType(Lenient):
    names = ("index_weights",)
    kinds = ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "index_weights": inputs["index_weights"].astype(inputs["index_query"].dtype)}


@fault("I251", "Lengths of any type are converted.", "ERR-3")
class AnyLengthType(Lenient):
    names = ("key_length",)
    kinds = ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "key_length": inputs["key_length"].astype(np.int64)}


@fault("I252", "Queries of another element type are converted.", "ERR-3")
class AnyQueryType(Lenient):
    names = ("index_query",)
    kinds = ("type",)

    def accepted(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return {**inputs, "index_query": inputs["index_query"].astype(inputs["block_index_keys"].dtype)}


@fault("I255", "A call whose keys have no elements is refused.", "PLG-3 SEP-3")
class EmptyIsRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        if not inputs["block_index_keys"].size:
            raise Rejected("shape", "call", ("block_index_keys",))
        return super().call(config, inputs)


@fault("I256", "More keys than complete blocks are refused.", "VIS-4 OUT-1", reading="key_rows=exact")
class ExactKeys(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        accepted = super().call(config, inputs)
        most = max(inputs["key_length"].tolist(), default=0) // int(config.attributes["key_block_size"])
        if inputs["block_index_keys"].shape[0] and inputs["block_index_keys"].shape[1] != most:
            raise Rejected("value", "call", ("block_index_keys",))
        return accepted


@fault("I257", "Lengths below the number of query tokens are refused.", "LEN-4", reading="short_length=refused")
class ShortLengthsRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        accepted = super().call(config, inputs)
        N, _, L, _ = inputs["index_query"].shape
        if N and min(inputs["key_length"].tolist()) < L:
            raise Rejected("value", "call", ("key_length",))
        return accepted


@fault("I258", "A wrong shape is noticed when the instance is prepared for the next call, and that one is refused.",
       "PLG-3 ERR-2")  # fmt: skip
class RefusesTheNext(Admission):
    spoilt = False

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        if self.spoilt:
            self.spoilt = False
            raise Rejected("shape", "call", ("index_query",))
        try:
            return super().call(config, inputs)
        except Rejected:
            self.spoilt = True
            raise


@fault("I259", "A budget above the context is refused.", "SEL-1 OUT-1")
class BudgetAboveContextRefused(Admission):
    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        accepted = super().call(config, inputs)
        if int(config.attributes["token_budget"]) > inputs["block_index_keys"].shape[1] * int(
            config.attributes["key_block_size"]
        ):
            raise Rejected("attribute", "call", ("token_budget",))
        return accepted
