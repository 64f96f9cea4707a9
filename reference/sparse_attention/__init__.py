"""SparseAttention: the operation in float64, its bounds, and a second oracle in fractions and decimals."""

from reference.sparse_attention.operation import SparseAttention

__all__ = ["SparseAttention"]
