"""Backends that lie, each in one way: a function, and a line on how it misbehaves.

A lie is given the session, whose `inner` is that of the reference, and the inputs; what it returns is the answer. Other
tests subclass `Honest` where one method is not enough.
"""

from __future__ import annotations

from dataclasses import replace

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


def backend(function, base=Honest, **methods):
    """A backend under the name of a function."""
    return type(function.__name__, (base,), {"__doc__": function.__doc__, "__module__": function.__module__, **methods})


def lie(function):
    """A backend that answers calls with this function."""
    return backend(function, session=type("session", (Honest.session,), {"answer": function}))


def declaring(**fields):
    """A backend that declares other things than the reference, and answers calls with this function."""

    def wrap(function):
        def describe(self):
            return replace(NumPyReference.describe(self), **fields)

        return backend(function, lie(function), describe=describe)

    return wrap


def preparing(function):
    """A backend that prepares sessions by this function."""
    return backend(function, prepare=function)


@lie
def Raises(session, inputs):
    """Raises in every call."""
    raise RuntimeError("the device is on fire\nsecond line")


@preparing
def RaisesInPrepare(backend, config):
    """Cannot be prepared."""
    raise OSError("no such device")


@lie
def WrongNames(session, inputs):
    """Returns an output under another name."""
    outputs = session.inner.run(inputs)
    outputs["keys"] = outputs.pop("block_index_keys")
    return outputs


@lie
def NoMapping(session, inputs):
    """Returns a tuple."""
    return tuple(session.inner.run(inputs).values())


@lie
def WrongShape(session, inputs):
    """Returns one row too many."""
    outputs = session.inner.run(inputs)
    keys = outputs["block_index_keys"]
    outputs["block_index_keys"] = np.concatenate([keys, keys[:, :1]], axis=1)
    return outputs


@lie
def WrongType(session, inputs):
    """Returns float64."""
    return {name: array.astype(np.float64) for name, array in session.inner.run(inputs).items()}


@lie
def Lists(session, inputs):
    """Returns nested lists instead of arrays."""
    return {name: array.tolist() for name, array in session.inner.run(inputs).items()}


@lie
def SlightlyOff(session, inputs):
    """Every new block key is one part in a thousand too large."""
    outputs = session.inner.run(inputs)
    keys = outputs["block_index_keys"]
    outputs["block_index_keys"] = (keys.astype(np.float64) * 1.001).astype(keys.dtype)
    return outputs


@lie
def ModifiesInputs(session, inputs):
    """Overwrites the keys it was given after it has used them."""
    outputs = session.inner.run(inputs)
    inputs["raw_index_keys"][...] = 0
    return outputs


@lie
def ReusesOutputs(session, inputs):
    """Returns the same buffer for every call of the same shape."""
    outputs = {}
    for name, array in session.inner.run(inputs).items():
        buffer = session.buffers.setdefault((name, array.shape, array.dtype), array.copy())
        buffer[...] = array
        outputs[name] = buffer
    return outputs


ReusesOutputs.session.buffers = {}


@lie
def Forgetful(session, inputs):
    """Answers right only on the first calls of a session; later ones are those of a model with stale sizes."""
    outputs = session.inner.run(inputs)
    if session.calls > 40:
        outputs["block_index_keys"] = outputs["block_index_keys"] * 0
    return outputs


@lie
def Jittery(session, inputs):
    """Differs by a unit in the last place from call to call."""
    outputs = session.inner.run(inputs)
    if session.calls % 2:
        keys = outputs["block_index_keys"]
        with np.errstate(invalid="ignore"):
            outputs["block_index_keys"] = np.nextafter(keys, np.float32(0), dtype=keys.dtype)
    return outputs


@declaring(outputs=("block_index_keys",))
def KeysOnly(session, inputs):
    """Returns the block keys and no state."""
    return {"block_index_keys": session.inner.run(inputs)["block_index_keys"]}


@declaring(element_types=("f32",), features=("rope", "left_padding"))
def OnlyF32(session, inputs):
    """Takes f32 only, and cannot switch the normalization off."""
    return session.inner.run(inputs)


class _Careless:
    """A session without the reference."""

    def run(self, inputs):
        return {"block_index_keys": np.zeros(1), "present_incomplete_raw_keys": 0, "present_incomplete_rope": 0}

    def close(self):
        return


@preparing
def NeverRefuses(backend, config):
    """Computes something for any input at all."""
    return _Careless()


@lie
def RefusesAsShape(session, inputs):
    """Calls every refusal one of shapes, and blames the lengths."""
    try:
        return session.inner.run(inputs)
    except Rejected as rejected:
        raise Rejected("shape", rejected.phase, ("key_length",)) from None


@lie
def RefusesAll(session, inputs):
    """Refuses valid calls too."""
    raise Rejected("shape", "call", ("raw_index_keys",))


@preparing
def Shrugs(backend, config):
    """Says that it cannot do anything."""
    raise Unsupported("everything", "not written yet", "https://example.invalid/1")


@lie
def LeaksNaN(session, inputs):
    """Sums the waiting rows times a mask of zeros and ones, so that NaN in unused rows gets through (F16)."""
    outputs = session.inner.run(inputs)
    keys = outputs["block_index_keys"]
    if np.isnan(inputs["past_incomplete_raw_keys"].astype(np.float64)).any():
        outputs["block_index_keys"] = keys * keys.dtype.type(np.nan)
    return outputs
