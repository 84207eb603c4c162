"""Compare two runs: settings that differ, the step from which curves differ, and the likely cause.

    opening       a path -> a run, ours or another tool's
    settings      a run -> its settings by dotted name, each of a kind
    differences   two runs' settings -> what differs, in the order in which it changes numbers
    curves        two runs -> one metric at their common steps
    divergence    curves -> how far apart two equal runs may be, and the step at which these part
    cause         differences and divergence -> the likely cause
    verdict       all of it -> one sentence and an exit code

docs/compare.md explains formulas and thresholds. Nothing here loads torch or writes, except `pictures`.
"""
