"""Notice several ranks that each run a program for one process: torch is loaded, and nothing connects them."""
