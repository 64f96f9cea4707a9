"""Faults in the carried raw keys."""

from __future__ import annotations

import numpy as np

from conformance.faults.qsa_prepare.blocks import flushed
from conformance.faults.qsa_prepare.planting import Array, fault
from reference.qsa_prepare.operation import Call, QSAPrepare


@fault(
    "F08",
    "When no block is completed, the new raw keys replace the waiting ones instead of following them.",
    "STA-1 STA-4",
    "ddalcu/mlx-serve#381 ddalcu/mlx-serve#394 vllm-project/vllm-ascend#9111",
)
class WaitingReplaced(QSAPrepare):
    def open_rows(self, call: Call) -> tuple[Array, Array, Array]:
        n, t, row = super().open_rows(call)
        lengths = call.lengths
        replaced = (lengths.c_after[n] == lengths.c[n]) & (lengths.S[n] > lengths.past[n])
        row = np.where(replaced, row - lengths.q[n], row)
        kept = row >= 0
        return n[kept], t[kept], row[kept]


@fault("F09", "The waiting keys stay as they are when a block was completed.", "STA-1 STA-4")
class WaitingKept(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        done = call.lengths.c_after > call.lengths.c
        out[done] = call.past_incomplete_raw_keys[done]
        return out


@fault("F10", "The newest r-1 raw keys are carried, whether they belong to the open block or not.", "STA-1 STA-4")
class NewestKeysCarried(QSAPrepare):
    def open_rows(self, call: Call) -> tuple[Array, Array, Array]:
        first = np.maximum(call.lengths.S - (self.r - 1), call.lengths.c * self.r)
        n, row = np.nonzero(np.arange(self.r - 1)[None, :] < (call.lengths.S - first)[:, None])
        return n, first[n] + row, row


@fault("F10r", "The open block's raw keys are carried newest first.", "STA-1")
class NewestFirst(QSAPrepare):
    def open_rows(self, call: Call) -> tuple[Array, Array, Array]:
        n, t, row = super().open_rows(call)
        return n, t, call.lengths.q_after[n] - 1 - row

    def waiting_row(self, call: Call, n: Array, t: Array) -> Array:
        return call.lengths.q[n] - 1 - super().waiting_row(call, n, t)


@fault(
    "F10a",
    "The open block's raw keys are carried at the end of their rows, and read from there.",
    "STA-1 STA-3",
    reading="alignment=right",
)
class CarriedAtTheEnd(QSAPrepare):
    def open_rows(self, call: Call) -> tuple[Array, Array, Array]:
        n, t, row = super().open_rows(call)
        return n, t, row + self.r - 1 - call.lengths.q_after[n]

    def waiting_row(self, call: Call, n: Array, t: Array) -> Array:
        return super().waiting_row(call, n, t) + self.r - 1 - call.lengths.q[n]


@fault("F10n", "The open block's keys are carried normalized.", "STA-1 STA-4")
class NormalizedKeysCarried(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        n, _, row = self.open_rows(call)
        if self.normalizes(call):
            out[n, row] = self.store(self.normalize(out[n, row].astype(np.float64), self.weight(call)), call.dtype)
        return out


@fault("F10m", "Of several waiting keys only the oldest is kept when a call completes nothing.", "STA-1 STA-4")
class OldestWaitingOnly(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        lengths = call.lengths
        lost = (np.arange(self.r - 1)[None, :] > 0) & (np.arange(self.r - 1)[None, :] < lengths.q[:, None])
        out[lost & (lengths.c_after == lengths.c)[:, None]] = 0
        return out


@fault("F10f", "The carried raw keys pass through f16.", "STA-1", types="f32 bf16")
class StateThroughHalf(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        with np.errstate(over="ignore", invalid="ignore"):
            return out.astype(np.float16).astype(call.dtype)


@fault("F10z", "The carried raw keys are copied by adding zero, which turns -0 into 0.", "STA-1")
class StatePlusZero(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        return super().raw_state(call) + np.zeros(1, dtype=call.dtype)


@fault("F10d", "Subnormal elements of the carried raw keys are copied as zero.", "STA-1")
class StateFlushed(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        return flushed(super().raw_state(call))


@fault("F10i", "Infinity and NaN in the carried raw keys are replaced by finite numbers.", "STA-1 SEP-2")
class StateMadeFinite(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        return np.nan_to_num(out.astype(np.float32), nan=0, posinf=1e4, neginf=-1e4).astype(call.dtype)


@fault("F10w", "Only the first eight waiting keys are carried.", "STA-1 STA-4")
class EightWaitingKeys(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        out[:, 8:] = 0
        return out


@fault("F10l", "The last of the r-1 rows is never written.", "STA-1 STA-4")
class LastRowUnwritten(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        out[:, -1] = 0
        return out


@fault("F10v", "Raw keys are carried in groups of eight elements; a last group that is not full is lost.", "STA-1")
class StateInWholeGroups(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        if call.Di > 8:
            out[..., call.Di // 8 * 8 :] = 0
        return out
