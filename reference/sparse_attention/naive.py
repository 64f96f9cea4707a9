"""SparseAttention over exact numbers, in plain loops: the second oracle.

It shares no code with the staged reference. For every query row it goes through the tokens of the sequence one by one
and asks of each whether it is attended to; dot products are exact fractions, exponentials decimals of 60 digits. It
takes valid calls only; the refusals (ERR) are not decided here.

A cell of the result is one of
    Decimal      the value, with an error far below any element type's,
    None         unspecified by the contract: rows of padding, and rows whose selection is outside the contract.
"""

from collections.abc import Mapping
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Cells = NDArray[np.object_]

EXACT = Context(prec=60, Emin=-(10**9), Emax=10**9, traps=[])


def sparse_attention(
    inputs: Mapping[str, Array], key_block_size: int, query_block_size: int = 1, causal: bool = True
) -> Cells:
    """attention_output [N, H, L, Ev] as an object array of cells (see the module docstring).

    inputs holds the ports by contract name, those that are left out missing: query, key, value of finite numbers,
    block_indices, block_count and, all or the first of them, key_length, scale, sinks.
    """
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    indices, counts = inputs["block_indices"], inputs["block_count"]
    N, H, L, E = query.shape
    Hkv, S, Ev = value.shape[1:]
    Hs, r = indices.shape[1], key_block_size
    result = np.full((N, H, L, Ev), None, dtype=object)
    for n in range(N):
        length = S
        if "key_length" in inputs:
            given = inputs["key_length"]
            length = int(given[0] if len(given) == 1 else given[n])  # LEN-2
        for i in range(L):
            row = i // query_block_size  # SEL-3
            for h in range(H):
                chosen = h // (H // Hs)  # SEL-2
                listed = [int(indices[n, chosen, row, k]) for k in range(int(counts[n, chosen, row]))]  # SEL-1
                queries = range(row * query_block_size, min(L, (row + 1) * query_block_size))
                if not _defined(listed, [length - L + q for q in queries], length, S, r, query_block_size, causal):
                    continue
                p = length - L + i  # LEN-1
                if causal and p < 0:  # LEN-4
                    continue
                tokens = [t for t in range(length) if _attended(t, p, listed, r, causal)]
                head = h // (H // Hkv)  # ATT-3
                result[n, h, i] = _attention(
                    [_exact(x) for x in query[n, h, i]],
                    [[_exact(x) for x in key[n, head, S - length + t]] for t in tokens],  # LEN-3
                    [[_exact(x) for x in value[n, head, S - length + t]] for t in tokens],
                    _decimal(_exact(np.reshape(inputs["scale"], -1)[0])) if "scale" in inputs else _root(E),
                    _sink(inputs["sinks"][h]) if "sinks" in inputs else None,
                    Ev,
                )
    return result


def _defined(listed: list[int], group: list[int], length: int, S: int, r: int, qb: int, causal: bool) -> bool:
    """Whether a selection row is inside the contract for the positions of its group's queries."""
    if len(set(listed)) < len(listed):  # SEL-4
        return False
    if any(b < 0 or b * r >= length for b in listed):  # BLK-1
        return False
    if not causal:
        return length == S  # LEN-3
    valid = [p for p in group if p >= 0]
    if qb == 1:
        return all(b < (p + 1) // r for b in listed for p in valid)  # CAU-1
    if group[0] % qb:  # SEL-3
        return False
    return all(min(b * r + r, length) - 1 <= p for b in listed for p in valid)  # CAU-2


def _attended(t: int, p: int, listed: list[int], r: int, causal: bool) -> bool:
    """BLK-1, SEL-4, OPN-1 to OPN-3: whether token t belongs to A."""
    if t // r in listed:
        return True
    return causal and (p + 1) % r != 0 and t // r == p // r and t <= p


def _attention(
    query: list[Fraction],
    keys: list[list[Fraction]],
    values: list[list[Fraction]],
    scale: Decimal,
    sink: Decimal | None,
    width: int,
) -> list[Decimal]:
    """ATT-1, ATT-4, ATT-5 for one query row."""
    if not keys:
        return [Decimal(0)] * width
    logits = []
    for key in keys:
        product = sum((a * b for a, b in zip(query, key, strict=True)), Fraction(0))
        logits.append(EXACT.multiply(_decimal(product), scale))
    top = max([*logits, *([] if sink is None else [sink])])
    weights = [EXACT.exp(EXACT.subtract(z, top)) for z in logits]
    total = Decimal(0)
    for weight in weights:
        total = EXACT.add(total, weight)
    if sink is not None:
        total = EXACT.add(total, EXACT.exp(EXACT.subtract(sink, top)))
    result = []
    for d in range(width):
        mean = Decimal(0)
        for weight, value in zip(weights, values, strict=True):
            mean = EXACT.add(mean, EXACT.multiply(weight, _decimal(value[d])))
        result.append(EXACT.divide(mean, total))
    return result


def _exact(x: Any) -> Fraction:
    return Fraction(float(x))


def _decimal(x: Fraction) -> Decimal:
    return EXACT.divide(Decimal(x.numerator), Decimal(x.denominator))


def _root(E: int) -> Decimal:
    """ATT-2: 1 / sqrt(E)."""
    return EXACT.divide(Decimal(1), EXACT.sqrt(Decimal(E)))


def _sink(x: Any) -> Decimal | None:
    """ATT-4; None for minus infinity, which is not a sink."""
    return None if float(x) == -np.inf else _decimal(_exact(x))
