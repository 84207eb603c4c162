"""Show runs on the terminal: plots made of characters, and a view that follows a run."""
