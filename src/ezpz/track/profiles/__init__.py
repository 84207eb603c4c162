"""Profile a run: specifications, windows of steps, and recorders."""
