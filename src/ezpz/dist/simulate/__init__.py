"""Simulate one rank of a large job without its devices or its data."""
