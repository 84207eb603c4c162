"""Run ``ezpz shell``: print the line that brings the functions of ``utils.sh`` into a shell."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from ezpz.cli import make_verb_parser
from ezpz.cli_parser import run_verb
from ezpz.errors import MachineError
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

_ABOUT = """\
The line names the utils.sh of this ezpz, also of one that pip installed. bash and zsh read it; the functions are
ezpz_setup_env, ezpz_setup_job, launch and a few more."""
_EXAMPLES = (
    ('eval "$(ezpz shell)"', "have the functions in this shell"),
    ("ezpz shell >>~/.bashrc", "in every shell of yours"),
)


def utils() -> str:
    """Return the path of ``utils.sh`` of this ezpz.

    Raises:
        MachineError: It is not there.
    """
    path = Path(__file__).absolute().parents[1] / "bin" / "utils.sh"
    if not os.access(path, os.R_OK):
        raise MachineError(
            f"no utils.sh in this ezpz: {path} (from where ezpz is installed) cannot be read; expected it beside its "
            "modules. Install ezpz again."
        )
    return str(path)


def main(argv: Sequence[str]) -> int:
    """Print the line and return the exit code."""
    return run_verb(make_verb_parser("shell", (), _ABOUT, examples=_EXAMPLES), argv, _print_line)


def _print_line(options: Namespace) -> int:  # noqa: ARG001  # as every verb
    show(f"source {shlex.quote(utils())}")
    if sys.stdout.isatty():
        show('ezpz: that line brings the functions; or type  eval "$(ezpz shell)"', sys.stderr)
    return 0
