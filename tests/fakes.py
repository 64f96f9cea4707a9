"""Backends that lie, each in one way: a class, and a line on how it misbehaves."""

from __future__ import annotations

import numpy as np

from conformance.backends.protocol import Rejected, Unsupported
from conformance.backends.qsa_prepare.numpy_reference import NumPyReference


class Honest(NumPyReference):
    """Does what the reference does; the others change one thing."""

    def prepare(self, config):
        return self.session(super().prepare(config), config)

    class session:  # noqa: N801  a factory
        def __init__(self, inner, config):
            self.inner, self.config, self.calls = inner, config, 0

        def run(self, inputs):
            self.calls += 1
            return self.answer(inputs)

        def answer(self, inputs):
            return self.inner.run(inputs)

        def close(self):
            self.inner.close()


class Raises(Honest):
    """Raises in every call."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            raise RuntimeError("the device is on fire\nsecond line")


class RaisesInPrepare(Honest):
    """Cannot be prepared."""

    def prepare(self, config):
        raise OSError("no such device")


class WrongNames(Honest):
    """Returns an output under another name."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            outputs["keys"] = outputs.pop("block_index_keys")
            return outputs


class NoMapping(Honest):
    """Returns a tuple."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            return tuple(self.inner.run(inputs).values())


class WrongShape(Honest):
    """Returns one row too many."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            keys = outputs["block_index_keys"]
            outputs["block_index_keys"] = np.concatenate([keys, keys[:, :1]], axis=1)
            return outputs


class WrongType(Honest):
    """Returns float64."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            return {name: array.astype(np.float64) for name, array in self.inner.run(inputs).items()}


class Lists(Honest):
    """Returns nested lists instead of arrays."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            return {name: array.tolist() for name, array in self.inner.run(inputs).items()}


class SlightlyOff(Honest):
    """Every new block key is one part in a thousand too large."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            outputs["block_index_keys"] = (outputs["block_index_keys"].astype(np.float64) * 1.001).astype(
                outputs["block_index_keys"].dtype
            )
            return outputs


class ModifiesInputs(Honest):
    """Overwrites the keys it was given after it has used them."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            inputs["raw_index_keys"][...] = 0
            return outputs


class ReusesOutputs(Honest):
    """Returns the same buffer for every call of the same shape."""

    class session(Honest.session):  # noqa: N801
        buffers: dict = {}

        def answer(self, inputs):
            outputs = {}
            for name, array in self.inner.run(inputs).items():
                buffer = self.buffers.setdefault((name, array.shape, array.dtype), array.copy())
                buffer[...] = array
                outputs[name] = buffer
            return outputs


class Forgetful(Honest):
    """Answers right only on the first call of a session; later calls are those of a model with stale sizes."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            if self.calls > 40:
                outputs["block_index_keys"] = outputs["block_index_keys"] * 0
            return outputs


class Jittery(Honest):
    """Differs by a unit in the last place from call to call."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            if self.calls % 2:
                keys = outputs["block_index_keys"]
                with np.errstate(invalid="ignore"):
                    outputs["block_index_keys"] = np.nextafter(keys, np.float32(0), dtype=keys.dtype)
            return outputs


class KeysOnly(Honest):
    """Returns the block keys and no state."""

    def describe(self):
        from dataclasses import replace

        return replace(super().describe(), outputs=("block_index_keys",))

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            return {"block_index_keys": self.inner.run(inputs)["block_index_keys"]}


class OnlyF32(Honest):
    """Takes f32 only, and cannot switch the normalization off."""

    def describe(self):
        from dataclasses import replace

        return replace(super().describe(), element_types=("f32",), features=("rope", "left_padding"))


class NeverRefuses(Honest):
    """Computes something for any input at all."""

    def prepare(self, config):
        return self.session(None, config)

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            return {"block_index_keys": np.zeros(1), "present_incomplete_raw_keys": 0, "present_incomplete_rope": 0}

        def close(self):
            return


class RefusesAsShape(Honest):
    """Calls every refusal one of shapes, and blames the lengths."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            try:
                return self.inner.run(inputs)
            except Rejected as rejected:
                raise Rejected("shape", rejected.phase, ("key_length",)) from None


class RefusesAll(Honest):
    """Refuses valid calls too."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            raise Rejected("shape", "call", ("raw_index_keys",))


class Shrugs(Honest):
    """Says that it cannot do anything."""

    def prepare(self, config):
        raise Unsupported("everything", "not written yet", "https://example.invalid/1")


class LeaksNaN(Honest):
    """Sums the waiting rows times a mask of zeros and ones, so that NaN in unused rows gets through (F16)."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            if np.isnan(inputs["past_incomplete_raw_keys"].astype(np.float64)).any():
                outputs["block_index_keys"] = outputs["block_index_keys"] * outputs["block_index_keys"].dtype.type(
                    np.nan
                )
            return outputs
