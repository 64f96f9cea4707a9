"""NumPy references of the operations; usable and readable alone."""
