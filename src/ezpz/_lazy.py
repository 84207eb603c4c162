"""Import a package's public names when they are first used (PEP 562), so that importing the package costs next to
nothing.

    __getattr__, __dir__ = attach(__name__)

Each name is written once, in the stub file beside the package, where editors and type checkers look for it:

    from ezpz.dist.backend import get_torch_backend as get_torch_backend
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

__all__ = ["attach"]


def attach(
    package: str, *, stub: str = "", unknown: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``; the former also answers ``__all__``.

    Its stub is read when the first name is asked for. What that imports from the package itself are files and packages
    in it, which are not in ``__all__``; of another package ``*`` takes all public names.

    Args:
        package: ``__name__`` of the package, or of a module.
        stub: A file in the package instead of its stub, which would hide its own code from type checkers.
        unknown: The module whose ``refuse`` answers for names that are not here.
    """
    home_of: dict[str, str] = {}

    def homes() -> dict[str, str]:
        if not home_of:
            module = sys.modules[package]
            home_of.update(_read_stub(f"{module.__path__[0]}/{stub}" if stub else f"{module.__file__}i"))
        return home_of

    def every_name() -> list[str]:
        own = {name for name, home in homes().items() if home != package and name != "*"}
        return sorted({*own, *(_import(home_of["*"]).__all__ if "*" in home_of else ())})

    def find(name: str) -> object:
        home = homes().get(name)
        if home == package:
            value: object = _import(f"{package}.{name}")
        elif home:
            value = getattr(_import(home), name)
        elif name == "__all__":
            value = every_name()
        elif "*" in home_of and not name.startswith("__") and name in _import(home_of["*"]).__all__:
            value = getattr(_import(home_of["*"]), name)
        elif unknown and not name.startswith("_") and not _asks_for_file(sys._getframe(1)):  # noqa: SLF001  # who asks
            _import(unknown).refuse(package, name, every_name(), sys._getframe(1))  # noqa: SLF001  # as above
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes(), *every_name()} - {"*"})

    return find, names


def _read_stub(path: str) -> dict[str, str]:
    """Return the module of each name that a stub imports, in lines such as the one above."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123  # pathlib would cost every shim 10 ms
        imports = [line.split(maxsplit=3) for line in file if line.startswith("from ")]
    return {word.split()[0]: home for _, home, _, words in imports for word in words.split(",")}


def _asks_for_file(caller: FrameType) -> bool:
    """Tell whether Python itself asks, which then looks for a file of that name."""
    return caller.f_code.co_filename.startswith("<frozen importlib")


def _import(name: str) -> ModuleType:
    __import__(name)  # importlib would cost every shim 1 ms
    return sys.modules[name]
