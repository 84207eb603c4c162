"""Offer the names of the older module `ezpz.profile`, beside the function `ezpz.profile`, which is this module, called.

with ezpz.profile("torch:steps=10-15"): …                 today
from ezpz.profile import get_context_manager              older scripts; `ezpz.compat.MODULES` lists their names
"""

from __future__ import annotations

import sys
from types import ModuleType

from ezpz.compat import offer

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

    from ezpz.track import profile as profile  # noqa: PLC0414  # what calling this module does

__getattr__, __dir__ = offer(__name__)


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        from ezpz.track import profile

        return profile(*args, **keywords)


sys.modules[__name__].__class__ = _CallableModule
if not TYPE_CHECKING:
    profile = sys.modules[__name__]
