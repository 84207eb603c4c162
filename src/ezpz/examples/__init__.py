"""Trainers to read top to bottom and to copy: they use public names only (docs/trainers.md)."""
