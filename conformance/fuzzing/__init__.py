"""Generated cases: how they are drawn, run and counted."""
