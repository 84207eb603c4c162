"""Find the rank that the others wait for: when each came to its last collectives, and what its host did meanwhile."""
