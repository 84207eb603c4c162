"""Run jobs of a scheduler: submit them, list, follow and end them, chain them, and start a launch again on other hosts.

Knows `ezpz.launch`, `ezpz.cluster` and `ezpz.track`; `launch` finds what it uses of it in `ezpz.beside`.
"""

from __future__ import annotations

from ezpz._lazy import attach

__getattr__, __dir__ = attach(__name__, unknown="ezpz.compat")  # the older package had a module of this name
