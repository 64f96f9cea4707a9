"""Faults in which row of cos and sin a block is rotated with, and in the row that is carried."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from reference.qsa_prepare.operation import Call, QSAPrepare

# Which row


@fault("F45", "A block is rotated with the row of its last token.", "ROT-3")
class RowOfLastToken(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        row = np.minimum(self.new_row(call, n, b * self.r + self.r - 1), call.L - 1)
        return (call.rope_cos[n, row], call.rope_sin[n, row]) if call.L else super().rope(call, n, b)


@fault(
    "F47",
    "All blocks of a call are rotated with its first row.",
    "ROT-3",
    "hw-native-sys/pypto-lib#462",
)
class FirstRowOfTheCall(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        row = call.lengths.pad[n]
        right = super().rope(call, n, b)
        return (call.rope_cos[n, row % call.L], call.rope_sin[n, row % call.L]) if call.L else right


@fault("F47c", "A begun block is rotated with the first row of the call instead of the carried one.", "ROT-4")
class CarriedRowIgnored(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        cos, sin = super().rope(call, n, b)
        begun = b * self.r < call.lengths.past[n]
        if call.L:
            cos[begun], sin[begun] = call.rope_cos[n[begun], 0], call.rope_sin[n[begun], 0]
        return cos, sin


@fault("F47g", "The first block of a sequence is rotated with a row of the call, also when it began before.", "ROT-4")
class CarriedRowIgnoredInFirstBlock(CarriedRowIgnored):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        right, wrong = QSAPrepare.rope(self, call, n, b), super().rope(call, n, b)
        first = (b == 0)[:, None]
        return np.where(first, wrong[0], right[0]), np.where(first, wrong[1], right[1])


@fault("F47l", "A call of one token rotates with that token's row, not with the carried one.", "ROT-4 STA-4")
class OwnRowOfOneToken(CarriedRowIgnored):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        return super().rope(call, n, b) if call.L == 1 else QSAPrepare.rope(self, call, n, b)


@fault(
    "F47a", "All blocks that a call completes after a begun one are rotated with the carried row too.", "ROT-3 ROT-4"
)
class CarriedRowForAll(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        begun = np.where(call.lengths.q[n] > 0, call.lengths.c[n], b)
        return super().rope(call, n, begun)


@fault(
    "F48p",
    "The angles are computed from the number of the block's first token, with base 10,000.",
    "ROT-3 ROT-5",
    "ggml-org/llama.cpp#27879 tetherto/qvac-fabric-llm.cpp#218",
)
class AnglesRecomputed(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        half = call.Dr // 2
        angle = (b * self.r)[:, None] * 1e4 ** (-np.arange(half) / half)
        with np.errstate(over="ignore"):
            cos, sin = (np.tile(f(angle), 2).astype(call.dtype) for f in (np.cos, np.sin))
        return cos, sin


@fault(
    "F48q",
    "Blocks of a sequence with equal rows of cos and sin are taken for one block.",
    "ROT-3 BLK-1",
    "unslothai/llama.cpp#143 ggml-org/llama.cpp#27941",
)
class MergedByRow(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        if call.rotates and len(n) > 1:
            cos, sin = self.rope(call, n, b)
            same = (n[1:] == n[:-1]) & (cos[1:] == cos[:-1]).all(axis=1) & (sin[1:] == sin[:-1]).all(axis=1)
            for k in np.nonzero(same)[0].tolist():
                out[k + 1] = out[k]
        return out


@fault("F49", "past_incomplete_rope is read as sin, then cos.", "ROT-4")
class CarriedHalvesExchanged(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        cos, sin = super().rope(call, n, b)
        begun = b * self.r < call.lengths.past[n]
        cos[begun], sin[begun] = sin[begun], cos[begun]
        return cos, sin


@fault("F49b", "The rope is carried as sin, then cos, and read back so.", "STA-2 ROT-4")
class CarriedSineFirst(CarriedHalvesExchanged):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        return np.concatenate((out[:, call.Dr :], out[:, : call.Dr]), axis=1) if call.rotates else out


@fault("F49i", "The rope is carried as pairs of a cos and a sin.", "STA-2 ROT-4")
class CarriedInPairs(QSAPrepare):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        carried = inputs["past_incomplete_rope"]
        if carried.ndim == 2:
            carried = np.concatenate((carried[:, ::2], carried[:, 1::2]), axis=1)
        return super().call({**inputs, "past_incomplete_rope": carried})

    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        return out.reshape(call.N, 2, call.Dr).swapaxes(1, 2).reshape(out.shape) if call.rotates else out


@fault(
    "F50",
    "The i-th block of a call is rotated with the i-th row of the call.",
    "ROT-3",
    "tetherto/qvac-fabric-llm.cpp#218",
)
class RowIsBlockIndex(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        cos, sin = super().rope(call, n, b)
        new = np.nonzero(b * self.r >= call.lengths.past[n])[0]
        if call.L and len(new):
            row = np.minimum((b - call.lengths.c[n])[new], call.L - 1)
            cos[new], sin[new] = call.rope_cos[n[new], row], call.rope_sin[n[new], row]
        return cos, sin


@fault("F52", "With the rotation off the block keys are zero.", "OFF-1")
class ZeroWithoutRope(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        return out if call.rotates else np.zeros_like(out)


@fault("F52m", "With the rotation off the keys are not normalized either.", "OFF-1 NRM-1")
class NormNeedsRope(QSAPrepare):
    def normalizes(self, call: Call) -> bool:
        return super().normalizes(call) and call.rotates


@fault("F52n", "With the normalization off the keys are not rotated either.", "OFF-2 ROT-1")
class RopeNeedsNorm(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        return super().block_keys(call, n, b) if self.normalizes(call) else self.mean(self.members(call, n, b))


# The carried row


@fault("F53", "The row of the call's last token is carried.", "STA-2")
class LastRowCarried(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates and call.L:
            out[:] = np.concatenate((call.rope_cos[:, -1], call.rope_sin[:, -1]), axis=1)
        return out


@fault("F54", "After a completion the old rope is still carried.", "STA-2")
class StaleRowCarried(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates:
            stale = call.lengths.q > 0
            out[stale] = call.past_incomplete_rope[stale]
        return out


@fault("F55", "The row of the call's first token is carried.", "STA-2")
class FirstRowCarried(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates and call.L:
            n = np.arange(call.N)
            row = np.minimum(call.lengths.pad, call.L - 1)
            out[:] = np.concatenate((call.rope_cos[n, row], call.rope_sin[n, row]), axis=1)
        return out


@fault("F55b", "The row of the block completed last is carried.", "STA-2")
class LastBlockRowCarried(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        n = np.nonzero(call.lengths.c_after > call.lengths.c)[0]
        if call.rotates:
            out[n] = np.concatenate(self.rope(call, n, call.lengths.c_after[n] - 1), axis=1)
        return out


@fault("F55f", "The carried rope passes through f16.", "STA-2", types="f32 bf16")
class CarriedRowThroughHalf(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return super().rope_state(call).astype(np.float16).astype(call.dtype)


@fault("F55z", "A call that completes nothing drops the carried rope.", "STA-2 STA-4")
class CarriedRowDropped(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates:
            out[(call.lengths.c_after == call.lengths.c) & (call.lengths.q > 0)] = 0
        return out
