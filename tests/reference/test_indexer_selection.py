"""The judge of a selection: the pairwise rule against brute force, each clause in a row worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from indexer_calls import call, random_call

from reference.chosen import Repeated
from reference.sparse_attention_indexer import naive, selection
from reference.sparse_attention_indexer.operation import Readings, SparseAttentionIndexer
from reference.sparse_attention_indexer.oracle import Oracle, expect
from reference.sparse_attention_indexer.selection import Scored


def scored(s, e, m, v=None):
    """One row of scores with their errors."""
    s, e = np.array([s], dtype=np.float64), np.array([e], dtype=np.float64)
    return Scored(s, e, e, np.array([s.shape[1] if v is None else v]), np.array([m]))


def share(row, blocks):
    taken = np.zeros(row.s.shape, dtype=bool)
    taken[0, list(blocks)] = True
    return float(selection.worst_pairs(row, taken, row.seen & ~taken, row.e)[0][0])


def test_a_swap_within_the_errors_is_right_and_uses_its_share_of_them():
    row = scored([4.0, 3.0, 2.75], [0.5, 0.25, 0.25], 1)
    assert share(row, [0]) == 0
    assert share(row, [1]) == pytest.approx(1 / 0.75)
    assert share(scored([4.0, 3.0, 2.75], [0.5, 0.25, 0.25], 2), [0, 2]) == pytest.approx(0.5)


def test_scores_beyond_what_is_visible_do_not_matter():
    assert share(scored([4.0, 3.0, np.nan, np.inf], [0, 0, 0, 0], 1, v=2), [0]) == 0


def test_the_pairwise_rule_refuses_no_legitimate_ranking_but_a_rule_around_the_last_score_does():
    """4,000 rankings by scores drawn within their errors: each is one that a conforming implementation may give."""
    rng = np.random.default_rng(7)
    refused = refused_by_last = 0
    for _ in range(4000):
        v = int(rng.integers(2, 12))
        m = int(rng.integers(1, v))
        s = np.round(rng.normal(size=v) * 3) / 4
        e = rng.uniform(0, 0.5, size=v) * (rng.random(v) < 0.8)
        drawn = s + e * rng.uniform(-1, 1, size=v)
        blocks = np.argsort(-drawn, kind="stable")[:m]
        refused += share(scored(s, e, m), blocks) > 1
        last = np.sort(s)[-m]
        others = np.setdiff1d(np.arange(v), blocks)
        refused_by_last += bool((s[blocks] < last - e[blocks]).any() or (s[others] > last + e[others]).any())
    assert refused == 0
    assert refused_by_last > 60


def test_the_pairwise_rule_is_the_one_over_all_pairs():
    rng = np.random.default_rng(8)
    found = {True: 0, False: 0}
    for _ in range(3000):
        v = int(rng.integers(1, 9))
        m = int(rng.integers(1, v + 1))
        s, e = rng.integers(-3, 4, size=v) / 2, rng.integers(0, 3, size=v) / 8
        blocks = rng.permutation(v)[:m]
        others = np.setdiff1d(np.arange(v), blocks)
        right = all(s[a] + e[a] >= s[u] - e[u] for a in blocks for u in others)
        assert (share(scored(s, e, m), blocks) <= 1) == right
        found[right] += 1
    assert min(found.values()) > 500


# Blocks score 4, 2, 2, 1, and the last is hidden: S = 4, r = 1.
ROW = call([[[4], [2], [2], [1], [9]]], [[[[1]]]], [4])


def verdict(inputs, got, budget=2, readings=None, r=1):
    op = SparseAttentionIndexer(r, budget, 1, readings)
    part = expect(op, inputs)["block_indices"].parts[0]
    rows = np.array([got], dtype=part.value.dtype)
    found = part.compare(rows)
    detail = part.detail(rows, (0,)) if found.wrong[0] or found.warned[0] else None
    return bool(found.wrong[0]), bool(found.warned[0]), detail


@pytest.mark.parametrize(
    ("got", "clause", "says"),
    [
        ([0, 4], "VIS-1", "block 4 is selected; visible are 0 to 3"),
        ([0, -1], "SEL-1", "entry 1 holds no block, of 2 that are due"),
        ([-1, 0], "OUT-2", "entry 0 holds no block, of 2 that are due"),
        ([0, 0], "SEL-3", "block 0 is selected 2 times"),
        ([0, 3], "SEL-2", "block 1, which scores 2, is left out for block 3, which scores 1: a gap of 1, 0 allowed"),
        ([0, 2], "TIE-1", "block 1, which scores 2, scores the same, is smaller, and is left out for block 2"),
    ],
)
def test_each_clause_names_the_blocks_that_break_it(got, clause, says):
    wrong, _, detail = verdict(ROW, got)
    assert wrong
    assert detail.clause == clause
    assert says in detail.says


def test_what_is_wrong_is_told_with_how_far_the_set_is_off():
    assert "1 of 2 blocks differs from the right choice" in verdict(ROW, [0, 3])[2].says
    assert "2 of 2 blocks differ from the right choice" in verdict(ROW, [2, 3])[2].says
    detail = verdict(ROW, [2, 3])[2]
    assert (detail.got, detail.want) == ("[2 3]", "[0 1]")
    assert (detail.error, detail.bound) == (3.0, 0.0)


def test_order_is_recommended_and_a_reading_makes_it_required():
    assert verdict(ROW, [0, 1]) == (False, False, None)
    wrong, warned, detail = verdict(ROW, [1, 0])
    assert (wrong, warned, detail.clause) == (False, True, "ORD-1")
    assert verdict(ROW, [1, 0], readings=Readings(order="descending"))[0]
    ascending = Readings(order="ascending")
    assert verdict(call([[[1], [2], [4]]], [[[[1]]]], [3]), [2, 1], readings=ascending)[0]
    assert verdict(call([[[1], [2], [4]]], [[[[1]]]], [3]), [1, 2], readings=ascending) == (False, False, None)


def test_equal_scores_stand_in_ascending_index():
    wrong, warned, detail = verdict(ROW, [0, 2, 1], budget=3)
    assert (wrong, warned, detail.clause) == (False, True, "ORD-1")


def test_free_ties_are_a_reading():
    assert verdict(ROW, [0, 2], readings=Readings(ties="free")) == (False, False, None)
    assert verdict(ROW, [0, 3], readings=Readings(ties="free"))[0]


def test_a_tie_between_scores_that_may_round_is_not_judged():
    """Three heads: a mean over them folded into the weights breaks the tie."""
    inputs = call([[[1], [1]]], [[[[1]], [[1]], [[1]]]], [2])
    wrong, warned, detail = verdict(inputs, [1], budget=1)
    assert not wrong
    assert warned  # bit-equal keys are taken in order all the same, by recommendation
    assert detail.clause == "PLG-5"
    assert verdict(call([[[1], [-0.0], [1]]], [[[[1]], [[1]]]], [3]), [2], budget=1)[2].clause == "TIE-1"


def test_minus_zero_ties_with_zero():
    inputs = call([[[-0.0], [0.0], [-1.0]]], [[[[1]]]], [3])
    assert verdict(inputs, [0], budget=1) == (False, False, None)
    assert verdict(inputs, [1], budget=1)[2].clause == "TIE-1"
    assert verdict(inputs, [2], budget=1)[2].clause == "TIE-1"  # rectified to zero


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_outside_the_domain_only_range_and_uniqueness_are_recommended(value):
    inputs = call([[[4], [value], [2]]], [[[[2]]]], [3])
    assert verdict(inputs, [2, 0]) == (False, False, None)
    for got, clause in (([2, 2], "SEL-3"), ([2, 5], "VIS-1")):
        wrong, warned, detail = verdict(inputs, got)
        assert (wrong, warned, detail.clause) == (False, True, clause)


def test_a_subnormal_input_is_outside_the_domain_but_not_in_f16():
    tiny = 2.0**-130
    assert verdict(call([[[tiny], [0]]], [[[[1]]]], [2]), [1], budget=1)[0] is False
    assert verdict(call([[[2.0**-24], [0]]], [[[[1]]]], [2], T=np.float16), [1], budget=1)[0] is True


def test_products_beyond_f16_are_inside_the_domain():
    inputs = call([[[60000], [60001], [50000]]], [[[[60000]]]], [3], T=np.float16)
    assert verdict(inputs, [2], budget=1)[2].clause == "SEL-2"


def test_rounded_scores_are_a_reading_with_a_wider_error():
    inputs = call([[[1 + 2.0**-7], [1]]], [[[[1 + 2.0**-7]]]], [2], T=np.float16)
    assert verdict(inputs, [1], budget=1)[0]
    close = call([[[1 + 2.0**-10], [1]]], [[[[1]]]], [2], T=np.float16)
    assert verdict(close, [1], budget=1)[0]
    assert not verdict(close, [1], budget=1, readings=Readings(scores="rounded"))[0]


def test_an_equal_question_may_be_answered_by_another_set_within_the_errors():
    near = 1 + 2.0**-23
    inputs = call([[[1, 1, 1], [near, 1, 1], [0.5, 1, 1]]], [[[[1, 1, 1]]]], [3])
    part = Oracle({"key_block_size": 1, "token_budget": 1, "num_selection_heads": 1}).expect(inputs)["block_indices"]
    due = part.parts[0].answered(np.array([[0]], dtype=np.int32))
    assert due.agrees(np.array([[0]], dtype=np.int32))
    assert not due.compare(np.array([[1]], dtype=np.int32)).wrong.any()
    assert due.compare(np.array([[2]], dtype=np.int32)).wrong.all()


def test_to_a_wrong_answer_only_the_same_one_is_alike():
    part = expect(SparseAttentionIndexer(1, 2, 1), ROW)["block_indices"].parts[0]
    due = part.answered(np.array([[0, 9]], dtype=np.int32))
    assert not due.compare(np.array([[0, 9]], dtype=np.int32)).wrong.any()
    assert due.compare(np.array([[0, 1]], dtype=np.int32)).wrong.all()


def test_the_same_question_has_the_same_entries_and_an_equal_one_the_same_set():
    part = expect(SparseAttentionIndexer(1, 2, 1), ROW)["block_indices"].parts[0]
    got, turned = np.array([[0, 1]], dtype=np.int32), np.array([[1, 0]], dtype=np.int32)
    assert isinstance(part.repeated(got), Repeated)
    assert part.repeated(got).compare(turned).wrong.all()
    assert not part.alike(got).compare(turned).wrong.any()
    assert part.alike(got).compare(np.array([[0, 3]], dtype=np.int32)).wrong.all()


def test_rows_are_judged_as_the_oracle_in_fractions_judges_them():
    """Random, shuffled and perturbed selections: the same clause breaks, and order is warned of alike."""
    rng = np.random.default_rng(3)
    seen = {}
    for number in range(150):
        inputs, attributes = random_call(rng, (np.float32, np.float16)[number % 2])
        exact = naive.rows(inputs, *(attributes[a] for a in ("key_block_size", "num_selection_heads", "token_budget")))
        for part in Oracle(attributes).expect(inputs)["block_indices"].parts[:1]:
            if part.region != "selected":
                continue
            places = list(zip(*part.index, strict=True))
            for way in range(3):
                got = part.value.copy()
                for i, place in enumerate(places):
                    row = exact[place]
                    near = [
                        float(s + e * int(rng.integers(-8, 9)) / 8) for s, e in zip(row.score, row.error, strict=True)
                    ]
                    got[i, : row.m] = (
                        rng.permutation(row.v)[: row.m],
                        rng.integers(-1, row.v + 1, size=row.m),
                        sorted(range(row.v), key=lambda b, near=near: (-near[b], b))[: row.m],
                    )[way]
                found = part.compare(got)
                for i, place in enumerate(places):
                    chosen = got[i, : exact[place].m].tolist()
                    broken = exact[place].breaks(chosen)
                    seen[broken] = seen.get(broken, 0) + 1
                    assert found.wrong[i] == bool(broken)
                    if broken:
                        assert part.detail(got, (i,)).clause == broken
                    elif not exact[place].in_order(chosen):
                        assert found.warned[i]
    assert min(seen[clause] for clause in ("", "SEL-1", "OUT-2", "VIS-1", "SEL-3", "SEL-2", "TIE-1")) > 20
