"""Faults in where a query token stands: lengths, the past, padding."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention_indexer.planting import Array, fault
from reference.sparse_attention_indexer.operation import Call, SparseAttentionIndexer


@fault("I01", "Query tokens are counted from the start of the call, as if nothing had come before.", "LEN-1",
       "onnx/onnx#8054 gittensor-ai-lab/sparkinfer#14")  # fmt: skip
class AnchoredAtTheCall(SparseAttentionIndexer):
    def positions(self, call: Call) -> Array:
        S = self.key_lengths(call)[:, None]
        row = np.arange(call.L)[None, :] - np.maximum(call.L - S, 0)
        return np.asarray(np.minimum(row, S - 1))


@fault("I02", "The length is taken for the past alone, so that tokens stand L places too late.", "LEN-1 VIS-1")
class LengthIsThePast(SparseAttentionIndexer):
    def positions(self, call: Call) -> Array:
        return super().positions(call) + call.L

    def visible(self, call: Call) -> Array:
        return np.minimum(super().visible(call), call.B)


@fault("I03", "With a past, only as many blocks as the call's own tokens fill are scored.", "LEN-1 VIS-1",
       "hw-native-sys/pypto-lib#592")  # fmt: skip
class OnlyTheCallsBlocks(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        return np.minimum(super().visible(call), call.L // self.r)


@fault("I04", "The causal limit is off by one: a token stands one place too early.", "LEN-1 VIS-2",
       "flashinfer-ai/flashinfer#348")  # fmt: skip
class OneTooEarly(SparseAttentionIndexer):
    def positions(self, call: Call) -> Array:
        return super().positions(call) - 1


@fault("I05", "A token stands one place too late, so that it may see a block one token before its end.", "LEN-1 VIS-1")
class OneTooLate(SparseAttentionIndexer):
    def positions(self, call: Call) -> Array:
        return super().positions(call) + 1

    def visible(self, call: Call) -> Array:
        return np.minimum(super().visible(call), call.B)


@fault("I06", "One length given for all sequences is used for the first alone; the others have none.", "LEN-2")
class OneLengthForTheFirst(SparseAttentionIndexer):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call).copy()
        if len(call.key_length) == 1:
            S[1:] = 0
        return S


@fault("I07", "Every sequence has the length of the first.", "LEN-1 SEP-1", "jundot/omlx#3293 jundot/omlx#3264")
class LengthOfTheFirst(SparseAttentionIndexer):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call)
        return np.minimum(np.full_like(S, S[0] if len(S) else 0), (call.B + 1) * self.r - 1)


@fault("I08", "Every sequence has the length of the longest.", "LEN-1 SEP-1 VIS-4",
       "NVIDIA/TensorRT-LLM#18585 youssofal/MTPLX#380")  # fmt: skip
class LengthOfTheLongest(SparseAttentionIndexer):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call)
        return np.full_like(S, S.max(initial=0))


@fault("I09", "A sequence has the length of the next one.", "LEN-1 SEP-1")
class LengthOfTheNext(SparseAttentionIndexer):
    def key_lengths(self, call: Call) -> Array:
        return np.roll(super().key_lengths(call), -1)


@fault("I10", "Lengths of 64 bits are read as if they had 32.", "LEN-3")
class LengthsAsWords(SparseAttentionIndexer):
    def key_lengths(self, call: Call) -> Array:
        if call.key_length.dtype == np.int32 or len(call.key_length) != call.N:
            return super().key_lengths(call)
        return np.ascontiguousarray(call.key_length).view(np.int32)[: call.N].astype(np.int64)


@fault("I11", "Positions are held in f32.", "LEN-1 VIS-1")
class PositionsInSingle(SparseAttentionIndexer):
    def positions(self, call: Call) -> Array:
        return super().positions(call).astype(np.float32).astype(np.int64)


@fault("I12", "Positions are held in f16.", "LEN-1 VIS-1")
class PositionsInHalf(SparseAttentionIndexer):
    def positions(self, call: Call) -> Array:
        exact = super().positions(call)
        return np.where(np.abs(exact) > 2048, np.clip(exact.astype(np.float16), -60000, 60000).astype(np.int64), exact)

    def visible(self, call: Call) -> Array:
        return np.minimum(super().visible(call), call.B)


@fault("I13", "The tokens of a padded sequence are taken to stand at the start of the call's rows.", "LEN-4 VIS-3",
       "ggml-org/llama.cpp#27879 ggml-org/llama.cpp#27941")  # fmt: skip
class PaddedAtTheEnd(SparseAttentionIndexer):
    def positions(self, call: Call) -> Array:
        S = self.key_lengths(call)[:, None]
        row = np.arange(call.L)[None, :]
        return np.where(S < call.L, np.where(row < S, row, -1), super().positions(call))


@fault("I14", "Blocks of a padded sequence are counted from the first row of the call, padding included.", "LEN-4",
       "ggml-org/llama.cpp#27879")  # fmt: skip
class BlocksFromThePadding(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        pad = np.maximum(call.L - self.key_lengths(call), 0)[:, None]
        shifted = (call.p + pad + 1) // self.r - -(-pad // self.r)
        return np.where(pad > 0, np.maximum(shifted, 0), super().visible(call))


@fault("I15", "The number of visible blocks may be negative: floor division without a lower limit.", "VIS-3 CNT-1")
class NegativeCount(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        return np.asarray((call.p + 1) // self.r)


@fault("I16", "A negative position counts by its absolute value.", "VIS-3 CNT-1")
class AbsolutePosition(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        return np.asarray(np.minimum(np.abs(call.p + 1) // self.r, call.B))


@fault("I17", "Rows of padding are treated as the first token.", "VIS-3")
class PaddingIsTheFirstToken(SparseAttentionIndexer):
    def positions(self, call: Call) -> Array:
        return np.maximum(super().positions(call), 0)


@fault("I18", "Rows of padding see what the last token sees.", "VIS-3 CNT-1", "radixark/miles#2079")
class PaddingSeesAll(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        v = super().visible(call)
        return np.where(call.p < 0, v[:, -1:], v)


@fault("I19", "A length of zero is taken as not given, and L is used.", "LEN-4 VIS-3")
class ZeroLengthIsUnknown(SparseAttentionIndexer):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call)
        return np.where(S == 0, np.minimum(call.L, (call.B + 1) * self.r - 1), S)


@fault("I20", "A length beyond 65,535 loses its upper bits.", "LEN-1")
class SixteenBitLengths(SparseAttentionIndexer):
    def key_lengths(self, call: Call) -> Array:
        return super().key_lengths(call) & 0xFFFF


@fault("I21", "The product of block and block size overflows 31 bits, and no block is visible there.", "VIS-1 LEN-1")
class OverflowingEnd(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        return np.minimum(super().visible(call), (1 << 30) // self.r)
