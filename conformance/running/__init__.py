"""Where and how cases are run: here, in workers, from a log."""
