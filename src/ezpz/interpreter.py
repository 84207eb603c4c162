"""Start a Python of ours without importing from the working folder, which may hold a ``json.py`` of the user's.

``python3 -m MODULE`` and ``python3 -c CODE`` look there first. Switches and words of a command line concern one process
alone: a variable such as ``PYTHONSAFEPATH`` would reach the ranks, and ``-I`` would drop ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import NoReturn

_SAFE_PATH = (3, 11)  # the first Python that knows -P
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of Python that take the next word
# One word without anything that a shell splits or expands: it is in DIST_LAUNCH, which is used as ${DIST_LAUNCH}.
_RUN = (
    '__import__("sys").path.pop(0);__import__("sys").argv.pop(0);'
    '__import__("runpy").run_module(__import__("sys").argv.__getitem__(0),None,"__main__",True)'
)


def module_line(module: str, program: str = "", version: tuple[int, ...] = sys.version_info[:2]) -> list[str]:
    """Return the words that run a module; its arguments follow them.

    Args:
        module: Its name.
        program: A Python; by default the one that runs this.
        version: Its version.
    """
    return [program or sys.executable, *(("-P", "-m") if version >= _SAFE_PATH else ("-c", _RUN)), module]


def is_python(program: str) -> bool:
    """Tell whether a program is a Python, by its name."""
    name = os.path.basename(program)
    return name.startswith("python") and not name.removeprefix("python").strip("0123456789.")


def script_of(command: Sequence[str]) -> str:
    """Return the file that Python runs in a command line, as it is written; empty where that is none."""
    if not command or not is_python(command[0]):
        return ""
    words = iter(command[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, "")
        elif word.startswith(("-c", "-m")) or word == "-":
            return ""
        elif not word.startswith("-"):
            return word
    return ""


def leave_working_folder() -> None:
    """Import nothing more from the working folder where ``python3 -m`` has put it in front, typed by hand.

    What Python itself imports before our first line (`runpy`, and `types` with it) has come from there already.
    """
    if getattr(sys.flags, "safe_path", False) or not sys.path:
        return
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        folder = ""
    if sys.path[0] in {"", folder}:
        del sys.path[0]


def name_other_library() -> None:
    """Let PYTHONHOME be named, in one line, where it has the library of another Python, which lacks modules of ours."""
    home = os.environ.get("PYTHONHOME")
    if not home:
        return
    usual = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        name = getattr(error, "name", None)
        if not isinstance(error, ImportError) or name not in sys.stdlib_module_names:
            usual(kind, error, frames)
            return
        sys.stderr.write(
            f"ezpz: {sys.executable} finds no module {name} of its own in PYTHONHOME={home} (from the environment); "
            "expected the library of this Python. Run `unset PYTHONHOME`.\n"
        )
        sys.stderr.flush()
        os._exit(125)

    sys.excepthook = tell


def open_standard_files() -> None:
    """Open stdin, stdout and stderr into nothing where this process was started without (``2>&-``).

    The next socket or pipe would have their number, and whoever writes errors would write into that.
    """
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115  # it holds nothing


def collect_rarely() -> None:
    """Let the collector of cycles look 30 times less often: what a short program leaves behind ends with it.

    A start makes some 20,000 objects that stay, and each look goes over those again.
    """
    import gc

    gc.set_threshold(20_000, 50, 50)


def leave(code: int | str | None) -> NoReturn:
    """End this process as `sys.exit` does, without taking apart what it has made, which can cost 40 ms.

    What was registered with `atexit` runs, threads that are no daemons are waited for, and output is flushed. It is an
    ordinary exit under a profiler, a debugger or ``python -i``, which wait for one, and with torch, whose libraries in
    C++ may have output that only they can flush.
    """
    if _is_watched() or sys.flags.inspect or "torch" in sys.modules or not isinstance(code, int):
        sys.exit(code)
    threading = sys.modules.get("threading")
    if threading:
        threading._shutdown()  # noqa: SLF001  # as the interpreter does
    import atexit

    atexit._run_exitfuncs()  # noqa: SLF001  # as the interpreter does
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):  # as after `>&-`: it holds nothing
            continue
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # an object that cannot, or its reader has gone
            code = code or 120  # as the interpreter does
    os._exit(code & 0xFF)


def _is_watched() -> bool:
    """Tell whether a profiler, a debugger or a measurement of coverage is at work in this process."""
    if sys.getprofile() or sys.gettrace():
        return True
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on cProfile and coverage are found there alone
    return any(monitoring.get_tool(number) for number in range(6)) if monitoring else False  # it has six numbers
