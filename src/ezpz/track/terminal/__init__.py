"""Runs on the terminal: plots made of characters, and a run followed while it goes on."""
