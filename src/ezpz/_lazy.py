"""Import a package's public names when they are first used (PEP 562), so that importing the package costs next to
nothing.

    __getattr__, __dir__ = attach(__name__, {"backend": "get_torch_backend", "ezpz.log": "get_logger"})

Each name is written once, in that table, under the file that holds it. For editors and type checkers `make names`
writes the same imports into the package, between two marker lines.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, ModuleType

__all__ = ["attach"]


def attach(
    package: str, homes: Mapping[str, str], *, own: str = "", modules: str = "", also: str = "", unknown: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``; the former also answers ``__all__``.

    Args:
        package: ``__name__`` of the package.
        homes: For a file of the package, or an absolute module that begins with ``ezpz.``, its public names, separated
            by spaces.
        own: Further public names, which the package itself defines.
        modules: Files and packages in it that are imported when they are asked for, but are not in ``__all__``.
        also: A package all of whose public names are this one's, too.
        unknown: The module whose ``refuse`` answers for names that are not here.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def every_name() -> list[str]:
        return sorted({*home_of, *own.split(), *(_import(also).__all__ if also else ())})

    def find(name: str) -> object:
        if name in home_of:
            home = home_of[name]
            value = getattr(_import(home if home.startswith("ezpz.") else f"{package}.{home}"), name)
        elif name in modules.split():
            value = _import(f"{package}.{name}")
        elif name == "__all__":
            value = every_name()
        elif also and not name.startswith("__") and name in _import(also).__all__:
            value = getattr(_import(also), name)
        elif unknown and not name.startswith("_") and not _asks_for_file(sys._getframe(1)):  # noqa: SLF001  # who asks
            _import(unknown).refuse(package, name, every_name(), sys._getframe(1))  # noqa: SLF001  # as above
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *every_name(), *modules.split()})

    return find, names


def _asks_for_file(caller: FrameType) -> bool:
    """Tell whether Python itself asks, which then looks for a file of that name."""
    return caller.f_code.co_filename.startswith("<frozen importlib")


def _import(name: str) -> ModuleType:
    __import__(name)  # importlib would cost every shim 1 ms
    return sys.modules[name]
