"""Operations whose stages are operations: what is taken from the stages, and what is wrong with a file."""

from __future__ import annotations

import shutil

import pytest

from conformance.errors import LibraryError
from conformance.library.operations import cases_root, load_operation

FOLDERS = ("qsa_prepare", "sparse_attention_indexer", "sparse_attention", "sparse_attention_pipeline")


def test_clauses_of_the_stages_are_clauses_of_the_pipeline():
    pipeline, stage = load_operation("sparse_attention_pipeline"), load_operation("sparse_attention_indexer")
    assert pipeline.clause["INDEX-SEL-2"].says == stage.clause["SEL-2"].says
    assert pipeline.clause["INDEX-ORD-1"].level == "recommended"
    assert pipeline.groups["INDEX"] == "SparseAttentionIndexer"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("operation: SparseAttentionIndexer\n", "operation: SparseAttentionIndex\n", "no operation"),
        ("{block_index_keys: block_index_keys}", "{block_index_key: block_index_keys}", "has no port"),
        ("{block_index_keys: block_index_keys}", "{block_index_keys: block_keys}", "no earlier stage gives"),
        ("{block_index_keys: block_index_keys}", "{}", "neither fed by a stage nor a port"),
        ("fixed: {query_block_size: 1, causal: true}", "fixed: {causal: true}", "neither an attribute"),
        ("fixed: {query_block_size: 1, causal", "fixed: {query_blocks: 1, query_block_size: 1, causal", "no attribute"),
        ("clauses: [LEN-4, ATT-1,", "clauses: [LEN-4, ATT-99,", "has no clause"),
    ],
)
def test_stages_that_do_not_fit_are_told_with_their_place(tmp_path, old, new, says):
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        shutil.copy(cases_root() / folder / "operation.yaml", tmp_path / folder)
    path = tmp_path / FOLDERS[-1] / "operation.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(LibraryError, match=says) as problem:
        load_operation(FOLDERS[-1], tmp_path)
    assert "operation.yaml" in str(problem.value)
