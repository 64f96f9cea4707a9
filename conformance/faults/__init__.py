"""Faulty implementations, and conforming ones that differ: what a suite must catch and what it must not."""
