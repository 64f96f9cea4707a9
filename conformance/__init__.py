"""Conformance suite and harness for operations described as data, QSAPrepare first."""

__version__ = "0.1.0"
