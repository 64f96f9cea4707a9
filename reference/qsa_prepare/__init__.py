"""QSAPrepare: the operation in float64, its bounds, and a second oracle in fractions."""

from reference.qsa_prepare.operation import QSAPrepare

__all__ = ["QSAPrepare"]
