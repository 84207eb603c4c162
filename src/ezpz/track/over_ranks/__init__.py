"""Gather values of all ranks at rank 0 without a collective, and summarize them there."""
