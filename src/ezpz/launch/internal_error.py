"""Say and record that `launch` itself broke: an error that was not foreseen, in whatever part of it, or the machine has
too little of something.

By then all processes of the run have been killed: those of this host by the supervisor, those of other hosts by their
agents, which do so when the launcher hangs up.
"""

from __future__ import annotations

import contextlib
import os
import sys

from ezpz.files import write_whole
from ezpz.launch import record
from ezpz.launch.limits import shortage

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.launch.plan import LaunchPlan

EXIT_CODE = 125
_TRACEBACK = "launch-traceback.txt"


class LaunchBrokeError(Exception):
    """`launch` broke when its ranks had been started, or could have been.

    Attributes:
        kept: The file with the traceback; empty where none could be written.
    """

    def __init__(self, error: Exception, kept: str) -> None:
        super().__init__(_said(error))
        self.kept = kept


def completed(error: Exception, folder: str, began: float, plan: LaunchPlan) -> LaunchBrokeError:
    """Write cause and end of a run into ``run.json``, and the traceback beside it; never raises.

    Args:
        error: What ended the launch.
        folder: Of its records; empty where none are kept.
        began: When it began, in seconds since 1970-01-01 UTC.
        plan: The plan of its last start.
    """
    kept = ""
    with contextlib.suppress(Exception):  # what broke may be what would write this; line and exit code still tell
        if folder:
            path = os.path.join(folder, _TRACEBACK)
            import traceback

            write_whole(path, "".join(traceback.format_exception(error)), private=True)
            kept = path
        record.complete(folder, plan, began, _said(error), code=EXIT_CODE)
    return LaunchBrokeError(error, kept)


def tell(error: Exception) -> int:
    """Say on stderr, in one line, that `launch` broke, and return its exit code; EZPZ_DEBUG=1 shows the traceback."""
    if isinstance(error, LaunchBrokeError):
        what, kept = f"{error}; all ranks were killed", error.kept
    else:
        what, kept = f"{_said(error)}; no rank was started", ""
    if os.environ.get("EZPZ_DEBUG") == "1":
        where = ""
        sys.__excepthook__(type(error), error, error.__traceback__)
    else:
        where = f" [traceback: {kept}]" if kept else ". `export EZPZ_DEBUG=1` shows where"
    try:
        print(f"ezpz: {what}{where}", file=sys.stderr, flush=True)
    except OSError:
        pass  # the reader is gone; the exit code still tells
    return EXIT_CODE


def _said(error: Exception) -> str:
    """Return the words that end a launch."""
    short = shortage(error)
    if short:
        return f"launch cannot go on: {_in_a_line(error)}: {short}"
    return f"launch itself broke: {_in_a_line(error)}"


def _in_a_line(error: Exception) -> str:
    """Return type, text and place of an error: ``KeyError: 'x' (launch/run/world.py:12)``."""
    last, place = error.__traceback__, ""
    while last and last.tb_next:
        last = last.tb_next
    if last:
        file = "/".join(last.tb_frame.f_code.co_filename.split(os.sep)[-3:]).rpartition("ezpz/")[2]
        place = f" ({file}:{last.tb_lineno})"
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}{': ' * bool(text)}{text}{place}"
