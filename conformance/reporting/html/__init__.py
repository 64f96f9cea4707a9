"""The report as one static page that opens from disk: no script is needed to read it, nothing is loaded.

Cases are listed once for all logs, by the case they were written as: what its instances have in common once, then what
sets each apart. Failures are drilled down into; when there are very many, the smallest ones of each kind are.
"""

from __future__ import annotations

from conformance.reporting.html.frame import page, templates

__all__ = ["page", "templates"]
