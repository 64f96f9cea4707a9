"""QSAPrepare over exact fractions, in plain loops: the second oracle.

It shares no code with the staged reference and works token by token: every token is looked up where it lies
(the carried state or the new rows), and every block key is computed from its r tokens in rational arithmetic.
Only the root is rounded, to 240 significant bits (72 decimal digits), and not even that when it is rational.
It takes valid calls only; the refusals (ERR) are not decided here.

A cell of a result is one of
    Fraction     the value; also outside the domain of NUM-3 and beyond the largest finite number of T,
    float        NaN or an infinity, where one was copied or followed from non-finite operands as in IEEE 754,
    None         unspecified by the contract: never to be compared.
The sign of a zero is not kept. Results are accepted as inputs of the next call (STA-4); arithmetic on a cell
that is None raises ValueError, so that reading a don't-care element shows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Number = Fraction | float  # a float is NaN or an infinity, never a finite value
Cell = Number | None
Array = NDArray[Any]
Cells = NDArray[np.object_]

ROOT_BITS = 240


def qsa_prepare(inputs: Mapping[str, Array], key_block_size: int, epsilon: float = 1e-6) -> dict[str, Cells]:
    """The three outputs of one call, by contract name, as object arrays of cells (see the module docstring).

    inputs holds the eight ports by contract name: f32, f16, bf16 or f64 arrays, or object arrays of cells;
    key_length is integer, [N] or [1] (LEN-2, LEN-4). Rotation is off when rope_cos has no width (OFF-1),
    normalization when k_norm_weight has no elements (OFF-2). epsilon is the exact value of the float.

    block_index_keys            [N, B, Di], B = max S[n] div r
    present_incomplete_raw_keys [N, r-1, Di]
    present_incomplete_rope     [N, 2*Dr], or [0] when rotation is off

    Raises ValueError when a None is read by arithmetic.
    """
    N, L, Di = inputs["raw_index_keys"].shape
    r = key_block_size
    Dr = rotary_width(inputs["rope_cos"])
    lengths = inputs["key_length"]
    sequences = [
        _SequenceView(inputs, n, L, int(lengths[0] if len(lengths) == 1 else lengths[n]), r, Dr)  # LEN-2
        for n in range(N)
    ]
    B = max((s.blocks_after for s in sequences), default=0)

    keys = _unspecified(N, B, Di)
    raw_state = _unspecified(N, r - 1, Di)
    rope_state = _unspecified(N, 2 * Dr) if Dr else _unspecified(0)
    for n, sequence in enumerate(sequences):
        for b in range(sequence.blocks_before):  # OUT-1
            keys[n, b, :] = sequence.past_block(b)
        for b in range(sequence.blocks_before, sequence.blocks_after):  # BLK-2, OUT-2
            keys[n, b, :] = _block_key(sequence, b, inputs["k_norm_weight"], epsilon)
        first_open = sequence.blocks_after * r
        for row, token in enumerate(range(first_open, sequence.S)):  # STA-1
            raw_state[n, row, :] = sequence.raw_key(token)
        if Dr and first_open < sequence.S:  # STA-2
            cos, sin = sequence.rope(sequence.blocks_after)
            rope_state[n, :] = cos + sin
    return {
        "block_index_keys": keys,
        "present_incomplete_raw_keys": raw_state,
        "present_incomplete_rope": rope_state,
    }


def to_float64(cells: Cells) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The cells correctly rounded to float64 (NaN where unspecified), and which of them are specified."""
    values = np.full(cells.shape, np.nan, dtype=np.float64)
    specified = np.zeros(cells.shape, dtype=np.bool_)
    for index in np.ndindex(*cells.shape):
        if cells[index] is not None:
            values[index] = float(cells[index])
            specified[index] = True
    return values, specified


def rotary_width(rope_cos: Array) -> int:
    """Dr, or 0 when rotation is off: [0], [0, 0] and [.., .., 0] are empty, [N, 0, Dr > 0] is not (OFF-3)."""
    return int(rope_cos.shape[2]) if rope_cos.ndim == 3 else 0


@dataclass(frozen=True)
class _SequenceView:
    """Sequence n of a call, by token: where each of its tokens, ropes and past blocks lies."""

    inputs: Mapping[str, Array]
    n: int
    L: int
    S: int
    r: int
    Dr: int

    @property
    def past(self) -> int:
        return max(self.S - self.L, 0)

    @property
    def blocks_before(self) -> int:
        return self.past // self.r

    @property
    def blocks_after(self) -> int:
        return self.S // self.r

    def new_row(self, token: int) -> int:
        return token - self.S + self.L  # LEN-1; with S < L it skips the padding (LEN-3)

    def past_block(self, b: int) -> list[Cell]:
        return _cells(self.inputs["past_block_index_keys"][self.n, b])

    def raw_key(self, token: int) -> list[Cell]:
        if token < self.past:  # BLK-3, STA-3: waiting since an earlier call, in row token - c[n]*r
            row = token - self.blocks_before * self.r
            return _cells(self.inputs["past_incomplete_raw_keys"][self.n, row])
        return _cells(self.inputs["raw_index_keys"][self.n, self.new_row(token)])

    def rope(self, b: int) -> tuple[list[Cell], list[Cell]]:
        """cos and sin of the first token of block b (ROT-3), carried if that token is past (ROT-4)."""
        token = b * self.r
        if token < self.past:
            carried = _cells(self.inputs["past_incomplete_rope"][self.n])
            return carried[: self.Dr], carried[self.Dr :]
        row = self.new_row(token)
        return _cells(self.inputs["rope_cos"][self.n, row]), _cells(self.inputs["rope_sin"][self.n, row])


def _block_key(sequence: _SequenceView, b: int, weight: Array, epsilon: float) -> list[Cell]:
    r = sequence.r
    tokens = [_numbers(sequence.raw_key(token)) for token in range(b * r, (b + 1) * r)]  # BLK-1
    key = _mean(tokens)
    if weight.size:  # OFF-2
        scale = _mean_square_root(key, epsilon)
        if scale == 0:  # only with epsilon = 0 and zeros throughout: 0 / 0, which NRM-2 leaves open
            return [None] * len(key)
        weights = _numbers(_cells(weight))
        key = [_times(_over(m, scale), w) for m, w in zip(key, weights, strict=True)]  # NRM-1
    if sequence.Dr:  # OFF-1
        cos, sin = sequence.rope(b)
        key = _rotated(key, _numbers(cos), _numbers(sin))
    return list(key)


def _mean(tokens: Sequence[Sequence[Number]]) -> list[Number]:  # AVG-1
    means: list[Number] = []
    for elements in zip(*tokens, strict=True):
        total: Number = Fraction(0)
        for element in elements:
            total = _plus(total, element)
        means.append(_over(total, Fraction(len(tokens))))
    return means


def _mean_square_root(key: Sequence[Number], epsilon: float) -> Number:  # NRM-1, epsilon inside the root
    total: Number = Fraction(0)
    for m in key:
        total = _plus(total, _times(m, m))
    return _root(_plus(_over(total, Fraction(len(key))), _number(_cell(epsilon))))


def _rotated(y: Sequence[Number], cos: Sequence[Number], sin: Sequence[Number]) -> list[Number]:
    out = list(y)  # ROT-2: from Dr on as it is
    half = len(cos) // 2
    for j in range(half):  # ROT-1, with the halves of cos and sin independent (ROT-5)
        k = j + half
        out[j] = _plus(_times(y[j], cos[j]), _times(Fraction(-1), _times(y[k], sin[j])))
        out[k] = _plus(_times(y[k], cos[k]), _times(y[j], sin[k]))
    return out


def _unspecified(*shape: int) -> Cells:
    return np.full(shape, None, dtype=np.object_)


def _cell(x: Any) -> Cell:
    if x is None or isinstance(x, Fraction):
        return x
    value = float(x)
    return Fraction(value) if math.isfinite(value) else value


def _cells(row: Array) -> list[Cell]:
    return [_cell(x) for x in row]


def _number(cell: Cell) -> Number:
    if cell is None:
        raise ValueError("an unspecified element (None) was read; give a number wherever the contract reads the input")
    return cell


def _numbers(cells: Sequence[Cell]) -> list[Number]:
    return [_number(cell) for cell in cells]


def _plus(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a + b
    return _settled(_ieee(a) + _ieee(b))


def _times(a: Number, b: Number) -> Number:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a * b
    return _settled(_ieee(a) * _ieee(b))


def _over(a: Number, b: Number) -> Number:
    """a / b for b > 0 or NaN."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a / b
    return _settled(_ieee(a) / _ieee(b))


def _root(v: Number) -> Number:
    """The root of v >= 0: exact when rational, else with a relative error below 2**(1 - ROOT_BITS)."""
    if not isinstance(v, Fraction):
        return math.sqrt(v)
    square = v.numerator * v.denominator  # sqrt(p / q) = sqrt(p * q) / q
    shift = max(0, ROOT_BITS - square.bit_length() // 2)
    return Fraction(math.isqrt(square << 2 * shift), v.denominator << shift)


def _ieee(x: Number) -> float:
    """A stand-in for x beside a non-finite operand, where of a finite number only the sign matters."""
    if isinstance(x, Fraction):
        return float((x > 0) - (x < 0))
    return x


def _settled(x: float) -> Number:
    return Fraction(0) if x == 0 else x
