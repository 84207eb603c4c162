"""Answer imports of modules that the older package had: each file here says what to use instead of the one of its name.

`ezpz` looks for its modules here last, so that ``import ezpz.jobs`` ends with that answer. `ezpz.compat.GONE` has the
words.
"""
