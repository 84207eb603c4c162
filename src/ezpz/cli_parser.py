"""Read the command lines of verbs and trainers from tables of options; help and one-line errors come from them."""

from __future__ import annotations

import argparse
import math
import re
import sys
import textwrap
from argparse import ArgumentTypeError

from ezpz.broken_pipe import ENDED, give_up
from ezpz.errors import EzpzError, MachineError, UsageError, did_you_mean, end_with, nearest
from ezpz.visible import painter, use_color

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn

    Option = tuple[tuple[str, ...], dict[str, Any]]  # names, and argparse's keywords; `group` is the title above it

# Numbers on a command line, as `type=` of an option: what is out of range is refused with the reason.


def positive_int(text: str) -> int:
    """Return a whole number from 1 on.

    Raises:
        ArgumentTypeError: It is none.
    """
    return _whole(text, 1)


def non_negative_int(text: str) -> int:
    """Return a whole number from 0 on.

    Raises:
        ArgumentTypeError: It is none.
    """
    return _whole(text, 0)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a function that reads a whole number between two bounds, both included."""

    def read(text: str) -> int:
        if most is None:
            return _whole(text, least)
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return read


def positive_float(text: str) -> float:
    """Return a finite number above 0.

    Raises:
        ArgumentTypeError: It is none.
    """
    number = _finite(text, "number above 0")
    if number <= 0:
        raise ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def non_negative_float(text: str) -> float:
    """Return a finite number from 0 on.

    Raises:
        ArgumentTypeError: It is none.
    """
    number = _finite(text, "number from 0 on")
    if number < 0:
        raise ArgumentTypeError(f"{text!r} is no number from 0 on")
    return number


def ratio(text: str) -> float:
    """Return a number from 0 to 1.

    Raises:
        ArgumentTypeError: It is none.
    """
    number = _finite(text, "number from 0 to 1")
    if not 0 <= number <= 1:
        raise ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return number


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return int(text)


def _finite(text: str, wanted: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentTypeError(f"{text!r} is no {wanted}")
    return number


# The parser of every command line.

_SOURCE = "(from the command line)"


def option(*names: str, **keywords: Any) -> Option:
    """Return one row of an option table: names, then the keywords of `argparse.ArgumentParser.add_argument`.

    ``group="title"`` puts the option under a title of its own in the help.
    """
    return names, keywords


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that is filled from a table, raises `UsageError` and knows what is near a mistyped option.

    Attributes:
        expected: What a word may be, for errors; as the usage says by default.
        expected_option: The same of an option; one of the table by default.
    """

    expected = ""
    expected_option = ""

    def __init__(
        self,
        prog: str,
        description: str,
        *,
        options: Iterable[Option] = (),
        usage: str = "[options]",
        epilog: str = "",
        command: str = "",
        width: int = 79,
        allow_abbrev: bool = True,
    ) -> None:
        """Make a parser.

        Args:
            prog: Name of the program.
            description: What the program does; paragraphs that are too wide are wrapped.
            options: The table, rows of `option`.
            usage: What follows the command in the first line of the help.
            epilog: What follows the options: exit codes, examples.
            command: What is typed to start the program; ``prog`` by default.
            width: Columns of the help.
            allow_abbrev: Whether ``--outp`` may stand for ``--output``.
        """
        self.command = command or prog
        super().__init__(
            prog=prog,
            usage=f"{self.command} {usage}".replace("%", "%%"),
            description=description,
            epilog=epilog,
            formatter_class=lambda prog: _Help(prog, max_help_position=24 if width < 100 else 34, width=width),
            allow_abbrev=allow_abbrev,
        )
        self.color = False  # of Python 3.14 on; `print_help` colours, so that all versions look alike
        self._positionals.title = "arguments"
        self._by_title: dict[str, Any] = {}
        self.add(options)

    def add(self, options: Iterable[Option]) -> None:
        """Add the rows of a table."""
        for names, keywords in options:
            title = keywords.get("group")
            given = {name: value for name, value in keywords.items() if name != "group"}
            (self.group(title) if title else self).add_argument(*names, **given)

    def group(self, title: str) -> Any:
        """Return the group of options with this title, made when it is asked for first."""
        if title not in self._by_title:
            self._by_title[title] = self.add_argument_group(title)
        return self._by_title[title]

    def read(self, argv: Sequence[str]) -> Namespace:
        """Return what a verb's command line says; options and other words may alternate.

        Raises:
            UsageError: Something in it is wrong.
            SystemExit: After ``--help``, with 0.
        """
        if any(action.nargs == argparse.REMAINDER for action in self._actions):  # another program's words follow
            options, rest = self.parse_known_args(list(argv))
        else:
            options, rest = self.parse_known_intermixed_args(list(argv))
        self.refuse_unknown(rest)
        return options

    def print_help(self, file: Any = None) -> None:
        """Print the help.

        Raises:
            SystemExit: Who reads it has left (``| head``).
        """
        stream = file or sys.stdout
        if stream is None:  # it was closed
            return
        try:
            stream.write(colored_help(self.format_help(), stream))
            stream.flush()
        except BrokenPipeError:
            give_up(stream)
            raise SystemExit(ENDED) from None

    def known(self) -> dict[str, str]:
        """Return every option's name as it was registered, by its spelling with ``_`` alone."""
        return {name.replace("-", "_"): name for name in self._option_string_actions if name.startswith("--")}

    def takes_value(self) -> dict[str, bool]:
        """Return whether the next word always belongs to an option, by the option's spelling with ``_`` alone."""
        return {name.replace("-", "_"): action.nargs is None for name, action in self._option_string_actions.items()}

    def dests(self) -> list[str]:
        """Return the names that options have in the namespace, ``--help`` left out."""
        return [action.dest for action in self._actions if action.default != argparse.SUPPRESS]

    def near_option(self, name: str) -> str:
        """Return the question whether an option of a near name was meant, or nothing."""
        return self._nearest(name, self.known())

    def _nearest(self, name: str, known: Mapping[str, str]) -> str:
        """Return the question for the nearest of some options, given by their spelling with ``_`` alone."""
        plain = {spelling.removeprefix("__"): shown for spelling, shown in known.items()}
        near = nearest(name.lstrip("-").replace("-", "_"), plain)
        return f" Did you mean {plain[near[0]]}?" if near else ""

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Refuse words that no option takes.

        Raises:
            UsageError: There is one.
        """
        for word in words:
            name, equals, _ = word.partition("=")
            near = self.near_option(name)
            if name.startswith("-"):
                expected = self.expected_option or f"one of {', '.join(self._shown())}"
                self.error(f"unknown option {name} {_SOURCE}; expected {expected}.{near}")
            near = near if equals else ""
            self.error(f"unknown word {name!r} {_SOURCE}; expected {self.expected or f'`{self.usage}`'}.{near}")

    def _shown(self) -> list[str]:
        """Return the longest spelling of every option that the help shows."""
        shown = (action for action in self._actions if action.option_strings and action.help != argparse.SUPPRESS)
        return [max(action.option_strings, key=len) for action in shown]

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has refused.

        Raises:
            UsageError: Always.
        """
        text = message.removeprefix("argument ").replace(" with argument ", " with ")
        whole = text if "(from " in text else f"{text} {_SOURCE}."
        raise UsageError(f"{whole} Run `{self.command} --help` for the options.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[0] if action.option_strings else action.metavar
            names = [str(choice) for choice in action.choices]
            raise UsageError(
                f"unknown {name} {str(value)!r} {_SOURCE}; expected one of "
                f"{', '.join(names)}.{did_you_mean(str(value), names)}"
            )


_TITLE = re.compile(r"^(?:usage:|\S.*:$)", re.MULTILINE)
_TYPED = re.compile(r"^  ((?:-|(?:ezpz|launch|eval|python3) ).*?)(?=  |$)", re.MULTILINE)


def colored_help(text: str, stream: Any) -> str:
    """Return a help with its titles and with what can be typed in colour, where ``stream`` takes colours."""
    paint = painter(use_color(stream))
    text = _TITLE.sub(lambda found: paint(found[0], "title"), text)
    return _TYPED.sub(lambda found: f"  {paint(found[1], 'name')}", text)


def closing(
    examples: Sequence[tuple[str, str]] = (), exits: Sequence[tuple[str, str]] = (), page: str = "", width: int = 79
) -> str:
    """Return the text below the options of every help: examples, exit codes, and the page to read.

    Args:
        examples: Command lines, and what each does.
        exits: Exit codes, and what each means.
        page: The title of a page of the documentation.
        width: Columns of the help.
    """
    blocks = [
        "\n".join([f"{title}:", *_pairs(pairs, width)])
        for title, pairs in (("examples", examples), ("exit code", exits))
        if pairs
    ]
    return "\n\n".join([*blocks, *([f'more:\n  "{page}" in the documentation'] if page else [])])


def _pairs(pairs: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    side = min(max(len(name) for name, _ in pairs), width // 2 - 4)
    for name, text in pairs:
        first = f"  {name:<{side}}  "
        if len(name) > side:
            yield first.rstrip()
            first = " " * (side + 4)
        yield from textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * (side + 4))


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wrap paragraphs that are too wide, and show the default behind every text that does not name one itself."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        silent = action.default in (None, "", argparse.SUPPRESS) or isinstance(action.default, (bool, list))
        return text if text is None or silent else f"{text} (%(default)s)"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            textwrap.fill(part, width, break_on_hyphens=False) if max(map(len, part.split("\n"))) > width else part
            for part in super()._fill_text(text, width, indent).split("\n\n")
        )


# What verbs import when they need it (pyproject.toml).
_NEEDED = frozenset(
    ("filelock", "h5netcdf", "h5py", "matplotlib", "numpy", "plotext", "rich", "tomli", "torch", "xarray")
)


def _without_package(verb: str, package: str) -> MachineError:
    import shlex

    return MachineError(
        f"`{verb}` needs {package}, which {sys.executable} does not find (from its import); expected it installed. "
        f"Type `{shlex.join([sys.executable, '-m', 'pip', 'install', package])}`."
    )


def show_help_alone(parser: Parser) -> int:
    """Print the help of a verb behind which nothing was typed, and return the exit code of a wrong command line.

    A script whose ``ezpz submit $COMMAND`` was empty shall not go on as if done.
    """
    parser.print_help(sys.stderr)
    return UsageError.exit_code


def _about_folders(error: OSError) -> EzpzError | None:
    """Return in one line what a user can mend wherever a verb comes to it: a folder of another user's, or one that was
    removed; None for all else.
    """
    from ezpz.files import no_access, removed_folder

    if isinstance(error, PermissionError):
        return no_access(error.filename) if isinstance(error.filename, str) else None
    return removed_folder() if isinstance(error, FileNotFoundError) else None


def run_verb(parser: Parser, argv: Sequence[str], work: Callable[[Namespace], int], failure: int | None = None) -> int:
    """Read a verb's command line, do its work and return the exit code; an error is one line on stderr.

    Args:
        parser: The verb's.
        argv: The words after the verb.
        work: Takes the options and returns the exit code.
        failure: The exit code of every error, where 1 already has a meaning.
    """
    try:
        try:
            options = parser.read(argv)
        except SystemExit as end:  # the help is printed
            return int(end.code or 0)
        return work(options)
    except EzpzError as error:
        code = end_with(error)
        return code if failure is None else failure
    except OSError as error:
        told = _about_folders(error)
        if told is None:
            raise
        code = end_with(told)
        return code if failure is None else failure
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        code = end_with(_without_package(parser.prog, package))
        return code if failure is None else failure
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as a shell gives it
