"""Run ``ezpz completion``: print what completes `ezpz` and `launch` in bash or zsh."""

from __future__ import annotations

import sys
from pathlib import Path

from ezpz.cli_parser import option, run_verb
from ezpz.errors import MachineError
from ezpz.verbs import make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

_SHELLS = ("bash", "zsh")
_OPTIONS = (option("shell", choices=_SHELLS, metavar="bash|zsh", help="the shell"),)
_ABOUT = """\
TAB then completes verbs, options, sites, hosts of the job, running launches and folders of runs, and after `launch
OPTIONS COMMAND` what the command itself completes. It never starts Python. Nothing is written: add the line to your
shell's start-up file where every shell shall have it."""
_EXAMPLES = (
    ('eval "$(ezpz completion bash)"', "in this bash"),
    ("ezpz completion zsh >DIR/_ezpz", "in every zsh; DIR is a folder of $fpath"),
)


def main(argv: Sequence[str]) -> int:
    """Print the completion of a shell and return the exit code."""
    parser = make_verb_parser("completion", _OPTIONS, _ABOUT, usage="bash|zsh", examples=_EXAMPLES)
    return run_verb(parser, argv, _print_file)


def _print_file(options: Namespace) -> int:
    path = Path(__file__).absolute().parents[1] / "bin" / f"completion.{options.shell}"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MachineError(
            f"cannot read {path} (from where ezpz is installed): {error.strerror}; expected it beside utils.sh. "
            "Install ezpz again."
        ) from None
    if sys.stdout.isatty():
        show(f'# to load it:  eval "$(ezpz completion {options.shell})"', sys.stderr)
    show(text.rstrip("\n"))
    return 0
