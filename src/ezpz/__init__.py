"""Start distributed PyTorch the same way everywhere, and tell the truth about what happened.

Every public name below is imported when it is first used (PEP 562), so that ``import ezpz`` costs milliseconds and
loads neither torch nor numpy. The stub beside this file lists them.
"""

from __future__ import annotations

from ezpz._lazy import attach

__version__ = "0.1.0"
__path__.append(f"{__path__[0]}/compat/gone")  # modules of the older package, which answer with what to use

__getattr__, __dir__ = attach(__name__, unknown="ezpz.compat")
