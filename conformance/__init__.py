"""Conformance suite and harness for operations described as data."""

__version__ = "0.2.0"
