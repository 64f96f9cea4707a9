"""Faults in the scale and in the sinks."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention.planting import Array, Faulty, fault
from conformance.faults.sparse_attention.variants import F32
from reference.sparse_attention.operation import Call, Rows

# Scale


@fault("A80", "The default scale follows from the width of the values.", "ATT-2")
class ScaleOfValues(Faulty):
    def scale(self, call: Call) -> float:
        return super().scale(call) if call.scale is not None else 1 / float(np.sqrt(call.Ev))


@fault("A81", "A given scale comes on top of 1 / sqrt(E).", "ATT-2")
class ScaleOnTop(Faulty):
    def scale(self, call: Call) -> float:
        return super().scale(call) / (float(np.sqrt(call.E)) if call.scale is not None else 1.0)


@fault("A82", "A given scale is ignored.", "ATT-2")
class ScaleIgnored(Faulty):
    def scale(self, call: Call) -> float:
        return 1 / float(np.sqrt(call.E))


@fault("A83", "Without a scale the logits are not scaled.", "ATT-2")
class NoDefaultScale(Faulty):
    def scale(self, call: Call) -> float:
        return super().scale(call) if call.scale is not None else 1.0


@fault("A84", "Logits are divided by a given scale.", "ATT-2")
class DividedByScale(Faulty):
    def scale(self, call: Call) -> float:
        return 1 / super().scale(call) if call.scale is not None else super().scale(call)


@fault("A85", "The default scale is 1 / E.", "ATT-2")
class ScaleWithoutRoot(Faulty):
    def scale(self, call: Call) -> float:
        return super().scale(call) if call.scale is not None else 1 / call.E


@fault("A86", "A scale of shape [] is taken for 1.", "ATT-2")
class ScalarScaleIgnored(Faulty):
    def scale(self, call: Call) -> float:
        return 1.0 if call.scale is not None and call.scale.ndim == 0 else super().scale(call)


# Sinks


@fault("A87", "The sink is scaled like a logit.", "ATT-4", reading="sink=scaled")
class SinkScaled(Faulty):
    def sink(self, call: Call, rows: Rows) -> Array:
        return super().sink(call, rows) * self.scale(call)


@fault("A88", "The sink is left out.", "ATT-4", "kekzl/imp#1303")
class NoSink(Faulty):
    def sink(self, call: Call, rows: Rows) -> Array:
        return np.full(len(rows), -np.inf)


@fault("A89", "The sink comes in twice.", "ATT-4")
class SinkTwice(Faulty):
    def sink(self, call: Call, rows: Rows) -> Array:
        return np.asarray(super().sink(call, rows) + np.log(2.0))


@fault("A90", "The sink comes in once for every block that is attended to.", "ATT-4")
class SinkPerBlock(Faulty):
    def sink(self, call: Call, rows: Rows) -> Array:
        return np.asarray(super().sink(call, rows) + np.log(np.maximum(self.listed(call, rows)[1].sum(axis=1), 1)))


@fault("A91", "Every head takes the sink of the first.", "ATT-4")
class SinkOfTheFirst(Faulty):
    def sink(self, call: Call, rows: Rows) -> Array:
        return super().sink(call, Rows(rows.n, np.zeros_like(rows.h), rows.l))


@fault("A92", "The sink is taken by key-value head.", "ATT-4")
class SinkOfKeyHead(Faulty):
    def sink(self, call: Call, rows: Rows) -> Array:
        return super().sink(call, Rows(rows.n, self.key_head(call, rows.h), rows.l))


@fault("A93", "The sink is taken for a term of the denominator, not for its logarithm.", "ATT-4")
class SinkIsNoLogit(Faulty):
    def sink(self, call: Call, rows: Rows) -> Array:
        return np.log(np.abs(super().sink(call, rows)))


@fault("A94", "Where there is a sink it is taken for the maximum: logits far above it overflow.", "ATT-4 ATT-1")
class SinkIsMaximum(Faulty):
    def weights(self, z: Array, mask: Array, sink: Array) -> Array:
        with np.errstate(all="ignore"):
            top = np.where(sink > -np.inf, sink, self.maximum(z, mask, sink)).astype(F32)
            e = np.where(mask, np.exp(z.astype(F32) - top[:, None]), np.float32(0))
            total = e.sum(axis=1, keepdims=True) + np.exp(sink.astype(F32) - top)[:, None]
            return np.where(mask, e / total, np.float32(0)).astype(np.float64)


@fault("A95", "A sink of minus infinity gives NaN.", "ATT-4 NUM-5", "NVIDIA/cudnn-frontend#333")
class NoSinkIsNaN(Faulty):
    def weights(self, z: Array, mask: Array, sink: Array) -> Array:
        return np.asarray(super().weights(z, mask, sink) + (0 * sink)[:, None])

    def sink(self, call: Call, rows: Rows) -> Array:
        return super().sink(call, rows) if call.sinks is not None else np.zeros(len(rows)) - 1e9


@fault("A96", "A sink gives the value of the first key row its weight.", "ATT-4")
class SinkHasAValue(Faulty):
    def weighted(self, weights: Array, value: Array) -> Array:
        weights = weights.copy()
        if weights.shape[1]:
            some = weights.sum(axis=1) > 0
            weights[:, 0] += np.where(some, 1 - weights.sum(axis=1), 0)
        return super().weighted(weights, value)


@fault("A97", "A row without tokens is NaN when there are sinks.", "ATT-5")
class EmptyWithSinkIsNaN(Faulty):
    def attend(self, call: Call, rows: Rows) -> Array:
        values = super().attend(call, rows)
        if call.sinks is not None:
            values[~self.attended(call, rows)[1].any(axis=1)] = np.nan
        return values
