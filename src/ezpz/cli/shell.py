"""Run ``ezpz shell``: print the line that brings the functions of ``utils.sh`` into a shell."""

from __future__ import annotations

import shlex
import sys

from ezpz.cli_parser import run_verb
from ezpz.cluster.site_shell import shell_functions
from ezpz.verbs import make_verb_parser
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


def main(argv: Sequence[str]) -> int:
    """Print the line and return the exit code."""
    return run_verb(make_verb_parser("shell", (), _ABOUT, examples=_EXAMPLES), argv, _print_line)


def _print_line(options: Namespace) -> int:  # noqa: ARG001  # as every verb
    show(f"source {shlex.quote(shell_functions())}")
    if sys.stdout.isatty():
        show('ezpz: that line brings the functions; or type  eval "$(ezpz shell)"', sys.stderr)
    return 0
