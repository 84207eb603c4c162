"""Choose the Python that runs scripts and modules of ranks where the command line names none.

It is the one that runs `launch`, as with torchrun. Where ezpz has an environment of its own beside the user's, as a
tool of uv or pipx or through ``pip install --user``, it is ``python3`` of the user's.
"""

from __future__ import annotations

import os
import sys

from ezpz.errors import UsageError
from ezpz.files import find_program
from ezpz.interpreter import module_line

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

# What marks the environment of a tool: of `uv tool install` (uv 0.13) and of pipx (1.7), in the folder of the venv.
_UV, _PIPX = "uv-receipt.toml", "pipx_metadata.json"
# Prints the version of a Python, and which of the modules that it is given it does not find.
_FIND = """
import importlib.util, sys
sys.path = [folder for folder in sys.path if folder]
def lacks(name):
    try:
        return not importlib.util.find_spec(name)
    except ImportError:
        return True
print("%d.%d" % sys.version_info[:2], *filter(lacks, sys.argv[1:]))
"""


def python_of_ranks(environ: Mapping[str, str]) -> str:
    """Return the Python for scripts and modules of ranks.

    Args:
        environ: ``VIRTUAL_ENV``, ``CONDA_PREFIX`` and ``PATH`` tell which environment is active, ``UV`` that uv runs
            this, which `uvx` does without making its environment the active one.
    """
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX") or ""
    is_other = bool(active) and os.path.realpath(active) != os.path.realpath(sys.prefix)
    is_tool = _is_marked(_UV) or _is_marked(_PIPX)
    is_beside = is_other or is_tool or ("UV" in environ and not active)
    if not is_beside or (_has_torch() and not (is_tool and is_other)):
        return sys.executable
    folders = environ.get("PATH", "").split(os.pathsep)
    venv = environ.get("VIRTUAL_ENV")
    if venv and os.path.join(venv, "bin") not in folders:
        folders.insert(0, os.path.join(venv, "bin"))
    own = os.path.realpath(os.path.dirname(sys.executable))  # which `uvx` puts in front
    others = [folder for folder in folders if folder and os.path.realpath(folder) != own]
    return find_program("python3", os.pathsep.join(others)) or sys.executable


def _is_marked(name: str) -> bool:
    return os.path.exists(os.path.join(sys.prefix, name))


def _has_torch() -> bool:
    """Tell whether this Python has torch, by its folder alone."""
    return any(os.path.isdir(os.path.join(folder, "torch")) for folder in sys.path if folder)


def module_line_of_ranks(module: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words that run a module of ezpz in ranks, by `python_of_ranks`.

    Raises:
        UsageError: That Python has no such ezpz, or no torch.
    """
    program = python_of_ranks(environ)
    if program == sys.executable:
        return module_line(module)
    import subprocess  # 10 ms, which only a tool needs

    line = [program, "-c", _FIND, module, "torch"]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    version, *missing = done.stdout.split() or [""]
    if done.returncode or missing:
        lacks = " and ".join(name.partition(".")[0] for name in missing) or "ezpz that can be imported"
        is_uv = "UV" in environ or _is_marked(_UV)
        install = f"uv pip install --python {program}" if is_uv else f"{program} -m pip install"
        raise UsageError(
            f"{program} has no {lacks} (from the environment); expected ezpz and torch there, because the ezpz that "
            f"runs this has an environment of its own, {sys.prefix}. Run `{install} {_source()} torch`."
        )
    return module_line(module, program, tuple(map(int, version.split("."))))


def _source() -> str:
    """Return the checkout or wheel from which the ezpz that runs this was installed, or a word that stands for it."""
    import json
    from importlib import metadata
    from shlex import quote

    try:
        text = metadata.distribution("ezpz").read_text("direct_url.json")  # PEP 610: {"url": "file:///…", …}
        url = str(json.loads(text or "{}").get("url", ""))
    except (AttributeError, ValueError, metadata.PackageNotFoundError):
        url = ""
    return quote(url.removeprefix("file://")) if url.startswith("file://") else "CHECKOUT"  # others may hold a secret
