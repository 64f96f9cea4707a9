"""SparseAttentionPipeline: QSAPrepare, SparseAttentionIndexer and SparseAttention one after the other."""

from reference.sparse_attention_pipeline.operation import SparseAttentionPipeline

__all__ = ["SparseAttentionPipeline"]
