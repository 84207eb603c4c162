"""Profiles: what is asked for, when it begins, and who makes it."""
