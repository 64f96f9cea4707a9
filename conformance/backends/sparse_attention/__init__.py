"""Bundled implementations of SparseAttention."""
