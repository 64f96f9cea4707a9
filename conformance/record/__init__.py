"""What is kept of a run: logs, expectations, the environment."""
