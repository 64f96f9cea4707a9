"""SparseAttentionIndexer: the operation in float64, bounds of its scores, the judge of a selection, a second oracle."""

from reference.sparse_attention_indexer.operation import SparseAttentionIndexer

__all__ = ["SparseAttentionIndexer"]
