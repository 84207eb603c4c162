"""Show what a run has recorded: on a terminal, as a report, compared with others, and as copies at other places.

Reads `ezpz.records` and `ezpz.track`, and knows nothing of launches; a history finds it in `ezpz.beside` and
`ezpz.track.at_end`.
"""
