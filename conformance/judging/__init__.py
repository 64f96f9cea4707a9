"""Runs a case on a backend and judges what comes back."""
