"""Backends of the toy operation: one that conforms, and one that takes the last of equal values."""

from __future__ import annotations

from pick_reference import Oracle

from conformance.backends.protocol import BackendInfo, Rejected, Unsupported


class Pick:
    """A backend that conforms."""

    oracle = Oracle

    def describe(self):
        return BackendInfo("pick", "1", "tests", ("f32", "f16", "bf16"), ("best",), ("bias",), operation="Pick")

    def prepare(self, config):
        if config.operation != "Pick":
            raise Unsupported(config.operation, "only Pick")
        if config.attributes["copies"] < 1:
            raise Rejected("attribute", "prepare", ("copies",))
        return Session(self.oracle(config.attributes))


class Last(Pick):
    """Takes the last of equal values."""

    @staticmethod
    def oracle(attributes):
        return Oracle(attributes, {"ties": "last"})


class Session:
    def __init__(self, oracle):
        self.oracle = oracle

    def run(self, inputs):
        if inputs["count"].shape != inputs["values"].shape[:1]:
            raise Rejected("shape", "call", ("count",))
        if (inputs["count"] < 0).any():
            raise Rejected("value", "call", ("count",))
        return self.oracle.run(inputs)

    def close(self):
        pass
