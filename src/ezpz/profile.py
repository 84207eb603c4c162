"""Offer the names of the older module `ezpz.profile`, beside the function `ezpz.profile`, which is this module, called.

with ezpz.profile("torch:steps=10-15"): …                 today
from ezpz.profile import get_context_manager              older scripts; profile.pyi lists their names
"""

from __future__ import annotations

import sys
from types import ModuleType

from ezpz._lazy import attach

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

__getattr__, __dir__ = attach(__name__, unknown="ezpz.compat")


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        from ezpz.track import profile

        return profile(*args, **keywords)


sys.modules[__name__].__class__ = _CallableModule
profile = sys.modules[__name__]
