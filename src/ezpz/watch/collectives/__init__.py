"""Find out what every rank is doing: when a run hangs, when one has failed, and for ``ezpz stacks``."""
