"""Backends of QSAPrepare."""
