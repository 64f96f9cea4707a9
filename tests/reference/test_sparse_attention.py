"""The staged reference of SparseAttention against the exact oracle, hand-worked values, and conforming evaluations."""

import ast
import inspect
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference.sparse_attention.naive
from conformance.faults.sparse_attention import planting, variants
from reference.hull import Hull
from reference.parts import Bounded
from reference.sparse_attention.bounds import Oracle, expect
from reference.sparse_attention.naive import sparse_attention
from reference.sparse_attention.operation import Call, Readings, Rows, SparseAttention, repeats

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
VARIANTS = [entry for entry in planting.SHELF.entries.values() if entry.kind == "variant"]
assert variants  # importing it fills the shelf


def drawn(
    seed: int, T: Any = np.float32, *, r: int = 4, qb: int = 1, causal: bool = True, size: float = 1.0, **dims: int
) -> dict[str, np.ndarray]:
    """A valid call of random numbers; with groups the call starts at one."""
    rng = np.random.default_rng(seed)
    N, H, Hkv, Hs, L, S, E, Ev, KB = (
        dims.get(name, default)
        for name, default in (
            ("N", 2), ("H", 6), ("Hkv", 2), ("Hs", 3), ("L", 5), ("S", 23), ("E", 3), ("Ev", 2), ("KB", 3),
        )
    )  # fmt: skip
    lengths = np.array([S - (n % 3) * qb if causal else S for n in range(N)])
    if qb > 1 and causal:
        lengths -= (lengths - L) % qb
    Lq = -(-L // qb)
    indices, counts = np.full((N, Hs, Lq, KB), -7), np.zeros((N, Hs, Lq), dtype=np.int64)
    for n, h, row in np.ndindex(N, Hs, Lq):
        first = max(int(lengths[n]) - L + row * qb, 0)
        visible = (first + 1) // r if causal else -(-int(lengths[n]) // r)
        blocks = rng.permutation(visible)[:KB]
        indices[n, h, row, : len(blocks)] = blocks
        counts[n, h, row] = rng.integers(0, len(blocks) + 1)
    return {
        "query": (rng.normal(size=(N, H, L, E)) * size).astype(T),
        "key": rng.normal(size=(N, Hkv, S, E)).astype(T),
        "value": rng.normal(size=(N, Hkv, S, Ev)).astype(T),
        "block_indices": indices,
        "block_count": counts,
        "key_length": lengths,
        "scale": np.array([0.75]).astype(T),
        "sinks": rng.normal(size=H).astype(T),
    }


def without(inputs: dict[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    return {name: array for name, array in inputs.items() if name not in names}


CALLS = {
    "all ports": {},
    "groups of three, the last short": {"qb": 3, "L": 7, "S": 25},
    "not causal": {"causal": False, "S": 22},
    "not causal, groups of two": {"causal": False, "qb": 2, "S": 22, "L": 5},
    "blocks of one": {"r": 1, "KB": 5},
    "padding": {"L": 9, "S": 8, "KB": 2},
    "one selection, one head": {"H": 4, "Hkv": 1, "Hs": 1},
    "more heads of keys than of selections": {"H": 6, "Hkv": 3, "Hs": 2},
    "no blocks": {"KB": 0},
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("missing", [(), ("sinks",), ("sinks", "scale"), ("sinks", "scale", "key_length")], ids=len)
def test_the_reference_gives_what_the_exact_oracle_gives(name: str, missing: tuple[str, ...]) -> None:
    options = dict(CALLS[name])
    r, qb, causal = options.get("r", 4), options.get("qb", 1), options.get("causal", True)
    inputs = without(drawn(1, **options), *missing)
    exact = sparse_attention(inputs, r, qb, causal)
    op = SparseAttention(r, qb, causal)
    known = np.array([cell is not None for cell in exact.flat]).reshape(exact.shape)
    call = Call(**inputs)
    rows = op.rows(call)
    chosen = rows.where(op.specified(call, rows))
    specified = np.zeros(exact.shape, dtype=bool)
    specified[chosen.n, chosen.h, chosen.l] = True
    assert (specified == known).all()
    assert known.any() or missing == ("sinks", "scale", "key_length")
    values = op.attend(call, chosen)
    wanted = exact[chosen.n, chosen.h, chosen.l].astype(np.float64)
    assert np.abs(values - wanted).max(initial=0) < 1e-13


def test_the_exact_oracle_shares_no_code_with_the_reference() -> None:
    imported = set()
    for node in ast.walk(ast.parse(inspect.getsource(reference.sparse_attention.naive))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {node.module} if isinstance(node, ast.ImportFrom) else {alias.name for alias in node.names}
    assert imported <= {"collections.abc", "decimal", "fractions", "typing", "numpy", "numpy.typing"}


# Values worked out by hand: keys of zero make all weights equal, so that results are plain means.


def plain(values: list[float], blocks: list[int], *, L: int = 1, **more: Any) -> dict[str, np.ndarray]:
    """One sequence and head; the tokens have these values, all weights are equal."""
    S = len(values)
    return {
        "query": np.ones((1, 1, L, 1), dtype=np.float32),
        "key": np.zeros((1, 1, S, 1), dtype=np.float32),
        "value": np.array(values, dtype=np.float32).reshape(1, 1, S, 1),
        "block_indices": np.array([blocks] * L).reshape(1, 1, L, -1),
        "block_count": np.full((1, 1, L), len(blocks)),
        "key_length": np.array([S]),
        **more,
    }


def answer(inputs: dict[str, np.ndarray], r: int, **options: Any) -> list[float]:
    return SparseAttention(r, **options).run(inputs)["attention_output"].reshape(-1).tolist()


def test_a_query_attends_to_its_open_block_and_to_what_is_listed() -> None:
    # p = 5, r = 4: tokens 4 and 5 are open, block 0 is listed.
    assert answer(plain([1, 2, 3, 4, 50, 60], []), 4) == [55]
    assert answer(plain([1, 2, 3, 4, 50, 60], [0]), 4) == [20]


def test_at_the_end_of_a_block_only_the_listed_blocks_count() -> None:
    # p = 7: no block is open, and block 1, which holds the query, counts only where it is listed.
    values = [1.0, 2, 3, 4, 10, 20, 30, 40]
    assert answer(plain(values, [0]), 4) == [2.5]
    assert answer(plain(values, [1]), 4) == [25]
    assert answer(plain(values, []), 4) == [0]


def test_without_causality_the_last_block_is_cut_and_nothing_is_open() -> None:
    values = [1.0, 2, 3, 4, 50, 60]
    assert answer(plain(values, [1]), 4, causal=False) == [55]
    assert answer(plain(values, []), 4, causal=False) == [0]


def test_a_sink_joins_the_denominator_unscaled() -> None:
    # One token with logit 0 and a sink of ln 3: 8 / (1 + 3) = 2.
    more = {"scale": np.array(0.125, dtype=np.float32), "sinks": np.array([math.log(3)], dtype=np.float32)}
    assert answer(plain([8], [], **more), 4) == pytest.approx([2], rel=1e-7)
    assert answer(plain([8], [], **(more | {"sinks": np.array([-np.inf], dtype=np.float32)})), 4) == [8]


def test_the_default_scale_is_that_of_the_keys() -> None:
    # Logits ln 3 * 2 / sqrt(4) and 0: weights 3/4 and 1/4.
    inputs = plain([8, 0], [])
    inputs["query"] = np.full((1, 1, 1, 4), math.log(3) / 2, dtype=np.float32)
    inputs["key"] = np.array([1.0, 0], dtype=np.float32).reshape(1, 1, 2, 1) * np.ones(4, dtype=np.float32)
    assert answer(inputs, 4) == pytest.approx([6], rel=1e-6)


def test_the_last_rows_are_the_valid_ones() -> None:
    inputs = plain([900, 900, 1, 2, 3, 4, 50, 60], [0])
    inputs["key_length"] = np.array([6])
    assert answer(inputs, 4) == [20]
    first = SparseAttention(4, readings=Readings(valid_rows="first"))
    assert first.run(plain([1, 2, 3, 4, 50, 60, 900, 900], [0], key_length=np.array([6])))["attention_output"] == 20


def test_a_token_that_is_listed_and_open_counts_once() -> None:
    # qb = 2, L = 3, S = 9: the last query stands alone in its group, at p = 8; block 2 is cut to its one open token.
    inputs = plain([1, 1, 1, 1, 1, 1, 1, 1, 9], [], L=3)
    inputs["block_indices"] = np.array([[[[0, 1], [1, 2]]]])
    inputs["block_count"] = np.array([[[0, 2]]])
    assert answer(inputs, 4, query_block_size=2)[2] == pytest.approx(13 / 5)


def test_repeated_entries_are_found_among_those_that_count() -> None:
    blocks = np.array([[3, 1, 3, 1], [0, 0, 0, 0], [5, 5, 7, 7]])
    counted = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 1]], dtype=bool)
    assert repeats(blocks, counted).tolist() == [[False, False, True, False], [False] * 4, [False, False, False, True]]


@pytest.mark.parametrize(
    ("readings", "spoil", "wanted"),
    [
        (Readings(beyond="ignored"), [1], 55.0),
        (Readings(beyond="attended"), [1], 55.0),
        (Readings(out_of_range="ignored"), [-1], 55.0),
        (Readings(out_of_range="ignored"), [99], 55.0),
        (Readings(duplicates="once"), [0, 0], 20.0),
        (Readings(duplicates="twice"), [0, 0], 13.0),
    ],
)
def test_what_is_undefined_follows_a_reading(readings: Readings, spoil: list[int], wanted: float) -> None:
    inputs = plain([1, 2, 3, 4, 50, 60], spoil)
    attributes = {"key_block_size": 4, "query_block_size": 1, "causal": True}
    assert expect(SparseAttention(4), inputs)["attention_output"].parts == ()
    parts = Oracle(attributes, {k: v for k, v in vars(readings).items() if v != getattr(Readings(), k)}).expect(inputs)
    bounded = [part for part in parts["attention_output"].parts if isinstance(part, Bounded)]
    assert [part.value.item() for part in bounded] == [wanted]


@pytest.mark.parametrize(("reaching", "wanted"), [("masked", [5.0, 15.0]), ("attended", [15.0, 15.0])])
def test_a_block_that_reaches_past_a_query_of_its_group_follows_a_reading(reaching: str, wanted: list[float]) -> None:
    # qb = 2, p = 2 and 3, r = 2: block 1 ends at 3, past the first query.
    inputs = plain([0, 0, 5, 25], [1], L=2)
    inputs["block_indices"], inputs["block_count"] = np.array([[[[1]]]]), np.array([[[1]]])
    assert expect(SparseAttention(2, 2), inputs)["attention_output"].parts == ()
    op = SparseAttention(2, 2, readings=Readings(reaching=reaching))
    assert op.run(inputs)["attention_output"].reshape(-1).tolist() == wanted


# Bounds


def shares(entry: Any, inputs: dict[str, np.ndarray], r: int, qb: int, causal: bool) -> tuple[float, float, float]:
    """The largest shares of the required bound, of the quality bound and of the hull that a variant uses."""
    with np.errstate(all="ignore"):
        got = entry.implementation(r, qb, causal).run(inputs)["attention_output"]
    required = quality = hull = 0.0
    for part in expect(SparseAttention(r, qb, causal), inputs)["attention_output"].parts:
        values = got[part.index]
        ratio = float(part.compare(values).ratio.max(initial=0))
        if isinstance(part, Hull):
            hull = max(hull, ratio)
        elif isinstance(part, Bounded):
            required = max(required, ratio)
            error = np.abs(values.astype(np.float64) - part.value)
            with np.errstate(all="ignore"):
                quality = max(quality, float(np.where(error > 0, error / part.quality, 0).max(initial=0)))
    return required, quality, hull


BOUND_CALLS: list[tuple[dict[str, Any], int, int, bool]] = [
    ({}, 4, 1, True),
    ({"L": 7, "S": 25, "E": 16, "Ev": 5}, 4, 3, True),
    ({"S": 90, "KB": 12, "E": 8, "size": 4.0}, 4, 1, True),
    ({"S": 200, "KB": 40, "E": 5, "size": 0.1, "L": 2}, 4, 1, True),
    ({"S": 40, "E": 64, "size": 30.0}, 3, 1, False),
    ({"S": 8, "L": 9}, 2, 1, True),
]


@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize("entry", VARIANTS, ids=lambda entry: entry.id)
def test_a_conforming_evaluation_stays_within_the_bounds(entry: Any, element_type: str) -> None:
    worst = [0.0, 0.0, 0.0]
    for seed, (dims, r, qb, causal) in enumerate(BOUND_CALLS):
        inputs = drawn(seed, TYPES[element_type], r=r, qb=qb, causal=causal, **dims)
        worst = [max(pair) for pair in zip(worst, shares(entry, inputs, r, qb, causal), strict=True)]
    print(entry.id, element_type, *(f"{share:.3f}" for share in worst))
    assert worst[0] < (0.25 if element_type == "f32" else 0.8)
    assert worst[2] < 1


def test_the_bound_is_void_where_weights_are_lost_in_rounding_and_the_hull_stays() -> None:
    inputs = drawn(3, ml_dtypes.bfloat16, size=3e4)
    parts = expect(SparseAttention(4), inputs)["attention_output"].parts
    bounded = [part for part in parts if isinstance(part, Bounded) and part.region != "rows without tokens"]
    hulls = [part for part in parts if isinstance(part, Hull)]
    assert any(np.isinf(part.bound).any() for part in bounded)
    assert all(np.isfinite(part.low).all() and np.isfinite(part.slack).all() for part in hulls)


def test_rows_outside_the_domain_are_not_specified() -> None:
    inputs = drawn(3, np.float16)
    inputs["query"][0, 0, 2] = 6e4
    index = expect(SparseAttention(4), inputs)["attention_output"].parts
    there = {row for part in index for row in zip(*(axis.tolist() for axis in part.index), strict=True)}
    assert (0, 0, 2) not in there
    assert (0, 0, 3) in there


def test_a_missing_token_is_far_outside_the_bound_of_a_small_budget() -> None:
    class WithoutItself(SparseAttention):
        def opened(self, call: Call, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
            tokens, mask = super().opened(call, rows)
            return tokens, mask & (tokens < self.positions(call, rows)[:, None])

    inputs = drawn(5)
    got = WithoutItself(4).run(inputs)["attention_output"]
    parts = expect(SparseAttention(4), inputs)["attention_output"].parts
    assert max(float(part.compare(got[part.index]).ratio.max()) for part in parts) > 1e4


# The hull


def hull() -> Hull:
    index = (np.array([0, 1]),)
    return Hull("rows", "NUM-4", index, np.array([1.0, -2.0]), np.array([2.0, -1.0]), np.array([0.5, 0.25]))


def test_a_hull_measures_how_far_an_element_lies_outside() -> None:
    got = np.array([2.25, -3.0], dtype=np.float32)
    compared = hull().compare(got)
    assert compared.ratio.tolist() == [0.5, 1.75]
    assert compared.wrong.tolist() == [False, True]
    assert not hull().agrees(got)
    assert hull().agrees(np.array([1.5, -1.0], dtype=np.float32))
    detail = hull().detail(got, (1,))
    assert (detail.clause, detail.want, detail.error, detail.bound) == ("NUM-4", -2.0, 1.0, 0.25)
    assert "range -2 to -1" in detail.says


def test_nan_and_infinity_lie_in_no_hull() -> None:
    assert hull().compare(np.array([np.nan, np.inf], dtype=np.float32)).wrong.all()
    assert not hull().agrees(np.array([np.nan, -1.5], dtype=np.float32))


def test_a_hull_follows_the_other_parts_through_a_relation() -> None:
    assert hull().scaled(8, 2).high.tolist() == [4.0, -2.0]
    assert hull().pick(np.array([False, True])).low.tolist() == [-2.0]
    assert hull().pick(np.array([False, True])).index[0].tolist() == [1]
    other = hull().answered(np.array([9.0, 9.0]))
    assert isinstance(other, Hull) and other.high.tolist() == [2.0, -1.0]
    assert hull().repeated(np.array([1.5, -1.5], dtype=np.float32)).value.tolist() == [1.5, -1.5]
    assert hull().filled(np.dtype(np.float32)).tolist() == [1.5, -1.5]
