"""Values of all ranks: how they reach rank 0 without a collective, and what is made of them there."""
