"""Ask programs of a host whether they run: this Python for numpy and torch, the first on PATH, each ``mpiexec``.

Metadata of a package says nothing of a library that is cut off, one that the loader does not find, or a file of the
user's that hides a module of Python's. A process of its own, because an import can end it with a signal.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["first_python", "import_packages", "mpi_programs"]

_LIMIT = 20.0  # seconds for all imports
_TO_ANSWER = 5.0  # seconds for a program to say what it is
_PACKAGES = ("numpy", "torch")
_WORDS = 300  # characters of an error
_MARK = "\x01ezpz"  # begins our lines among those that packages print
# It imports nothing but built-in modules itself: the folder may hold a `json.py` of the user's, which is to be found.
# `numpy()` of a tensor fails where torch was built for another numpy; the import alone only warns.
_IMPORT = r"""
import sys, time
if not getattr(sys.flags, "safe_path", False):
    sys.path[:1] = [FOLDER] if FOLDER else []
def tell(*words):
    print(*[MARK] + [" ".join(str(word).split()) for word in words], sep="\t", flush=True)
def hidden(error):
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files.append(getattr(error, "filename", None))
    frames = getattr(error, "__traceback__", None)
    while frames is not None:
        files.append(frames.tb_frame.f_code.co_filename)
        frames = frames.tb_next
    own = [*getattr(sys, "stdlib_module_names", ()), *(NAMES if error else ())]
    places = {FOLDER + "/" + name + end: name for name in own for end in (".py", "/__init__.py")}
    return " ".join(sorted({places[file] for file in files if file in places}))
for name in NAMES:
    specs = (finder.find_spec(name, None) for finder in sys.meta_path)
    spec = next((each for each in specs if each is not None), None)
    tell("begins", name, getattr(spec, "origin", None) or "")
    begun = time.monotonic()
    try:
        module = __import__(name)
        if name == "torch":
            (module.ones(4, 4) @ module.ones(4, 4)).sum().item()
            if "numpy" in sys.modules:
                module.zeros(1).numpy()
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            tell("absent", name)
            continue
        lines = [line for line in str(error).splitlines() if line.strip()]
        tell("fails", name, ": ".join([type(error).__name__, *lines[-1:]]), hidden(error))
    else:
        tell("imported", name, time.monotonic() - begun, hidden(None))
"""

_WHERE = (
    "import sys; from importlib.util import find_spec; "
    "print(sys.prefix, sys.version.split()[0], find_spec('torch') is not None, sep='\\n')"
)


def import_packages(folder: str, environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Import numpy and torch with this Python, and let torch multiply two small matrices.

    Args:
        folder: Of the script, which Python looks through first.
        environ: The environment.

    Returns:
        For each package that is there: ``origin`` (the file that is imported), ``seconds`` (None where it fails),
        ``problem`` (why it fails, or an empty text), ``is_slow`` (it has not ended within 20 s) and ``hidden`` (names
        of modules that files in the folder hide; where it fails, it does not without the folder).
    """
    found = _imported(folder, environ)
    if any(each["problem"] and each["hidden"] for each in found.values()):
        alone = _imported("", environ)
        found = {name: alone[name] if alone.get(name, {}).get("problem") else each for name, each in found.items()}
    return found


def _imported(folder: str, environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    begin = f"MARK, FOLDER, NAMES = {_MARK!r}, {folder!r}, {_PACKAGES!r}\n"
    output, errors, code = _run([sys.executable, "-c", begin + _IMPORT], environ, _LIMIT)
    found: dict[str, dict[str, Any]] = {}
    begun = ""
    for line in output.splitlines():
        _, mark, told = line.partition(f"{_MARK}\t")
        word, name, *rest = [*told.split("\t"), "", "", ""] if mark else ["", "", ""]
        begun = name if word == "begins" else begun if not word else ""
        if word == "begins":
            found[name] = {"origin": rest[0], "seconds": None, "problem": "", "is_slow": False, "hidden": []}
        elif word == "absent":
            del found[name]
        elif word == "imported":
            found[name].update(seconds=round(float(rest[0]), 2), hidden=rest[1].split())
        elif word == "fails":
            found[name].update(problem=rest[0][:_WORDS], hidden=rest[1].split())
    if begun and code is None:
        found[begun]["is_slow"] = True
    elif begun:
        found[begun]["problem"] = _ended(code or 0, errors)
    return found


def _ended(code: int, errors: str) -> str:
    """Return how a process ended, and the last line that it wrote."""
    import signal

    why = f"its process ended with {signal.Signals(-code).name if code < 0 else code}"
    said = errors.strip().rpartition("\n")[2].strip()
    return f"{why}: {said}"[:_WORDS] if said else why


def _run(line: list[str], environ: Mapping[str, str], limit: float) -> tuple[str, str, int | None]:
    """Return what a command printed, on stdout and on stderr, and its exit code; None where it did not end in time."""
    import subprocess

    try:
        done = subprocess.run(
            line, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False
        )
    except OSError as error:
        return "", error.strerror or str(error), 126
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace"), "", None
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), done.returncode


def first_python(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the ``python3`` that a shell, and ``launch python3``, would start where it is not this one; else empty.

    Returns:
        ``path``, ``version`` and whether it ``has_torch``.
    """
    from ezpz.files import find_program

    path = os.path.abspath(find_program("python3", environ.get("PATH")) or sys.executable)
    if os.path.dirname(path) == os.path.dirname(os.path.abspath(sys.executable)):
        return {}
    output, _, code = _run([path, "-c", _WHERE], environ, _TO_ANSWER)
    words = output.splitlines()
    if code or len(words) != 3 or os.path.realpath(words[0]) == os.path.realpath(sys.prefix):
        return {}
    return {"path": path, "version": words[1], "has_torch": words[2] == "True"}


def mpi_programs(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return each ``mpiexec``, else ``mpirun``, in the folders of PATH, as `ezpz.launch` knows them.

    Returns:
        ``path``, ``name`` (the flavour and its version; empty where it does not say), ``problem`` (how it ended and
        its last line, where it does not run) and ``is_needed`` (whether no scheduler's own launcher starts ranks).
    """
    from ezpz.cluster.probe import run
    from ezpz.cluster.scheduler import schedulers
    from ezpz.launch.launcher_choice import identify

    paths: dict[str, str] = {}
    for folder in filter(None, environ.get("PATH", "").split(os.pathsep)):
        both = (os.path.join(folder, name) for name in ("mpiexec", "mpirun"))
        path = next((each for each in both if os.path.isfile(each) and os.access(each, os.X_OK)), "")
        if path:
            paths.setdefault(os.path.realpath(path), os.path.abspath(path))
    own = [name for one in schedulers() if one.own_launcher for name in one.job_variables]
    found: list[dict[str, Any]] = []
    for path in paths.values():
        identity = identify(path, environ, run)
        name, problem = " ".join([identity.name, ".".join(map(str, identity.version))]).strip(), ""
        if not identity.name and not identity.passes_on:
            _, errors, code = _run([path, "--version"], environ, _TO_ANSWER)
            problem = _ended(code, errors) if code else "it does not say which MPI it is" if code == 0 else ""
        is_needed = not any(map(environ.get, own))
        found.append({"path": path, "name": name if identity.name else "", "problem": problem, "is_needed": is_needed})
    return found
