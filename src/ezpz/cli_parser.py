"""Command lines whose mistakes are one line that names what is near."""

from __future__ import annotations

import argparse
import math
from argparse import ArgumentTypeError
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NoReturn

from ezpz.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Numbers on a command line, as `type=` of an argparse option: what is out of range is refused with the reason.


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


# The command line of a verb: what is wrong with it is one line, as with every other error.


class VerbParser(argparse.ArgumentParser):
    """A parser that raises; its verb explains itself."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message} (from the command line). Run `{self.prog} --help` for the options.")


__all__ = [
    "Parser",
    "VerbParser",
    "non_negative_float",
    "non_negative_int",
    "positive_float",
    "positive_int",
    "ratio",
]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are `UsageError`, and whose abbreviations are off.

    Attributes:
        presets: Name of a preset to the values that it gives to options, by their names in the namespace.
        expected: What a word may be, for errors.
    """

    expected = "options, which begin with --"

    def __init__(self, prog: str, description: str, presets: Mapping[str, Mapping[str, object]]) -> None:
        super().__init__(
            prog=prog,
            usage=f"[launch] python3 -m {prog} [OPTION ...]",
            description=f"{description}\n\nOptions may be spelled with _ or -: --data_dir, --data-dir.",
            epilog=_describe_presets(presets),
            formatter_class=_Help,
            allow_abbrev=False,
        )
        self.presets = presets
        self._by_title: dict[str, Any] = {}

    def group(self, title: str) -> Any:
        """Return the group of options with this title, made when it is asked for first."""
        if title not in self._by_title:
            self._by_title[title] = self.add_argument_group(title)
        return self._by_title[title]

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
        near = did_you_mean(f"__{name.removeprefix('--').replace('-', '_')}", known)
        for spelling, option in known.items():
            near = near.replace(f" {spelling}?", f" {option}?")
        return near

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Refuse words that no option takes.

        Raises:
            UsageError: There is one.
        """
        for word in words:
            name, equals, _ = word.partition("=")
            near = self.near_option(name)
            if name.startswith("-"):
                self.error(f"unknown option {name} (from the command line); expected one of this trainer.{near}")
            near = near if equals else ""
            self.error(f"unknown word {name!r} (from the command line); expected {self.expected}.{near}")

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong.

        Raises:
            UsageError: Always.
        """
        found = message.removeprefix("argument ")
        whole = found if "(from " in found else f"{found} (from the command line)."
        raise UsageError(f"{whole} python3 -m {self.prog} --help explains every option.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            raise UsageError(
                f"unknown {action.option_strings[0]} {str(value)!r} (from the command line); expected one of "
                f"{', '.join(names)}.{did_you_mean(str(value), names)}"
            )


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wide lines, and the default behind every text that does not name one itself."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **{"max_help_position": 34, "width": 120, **more})

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        silent = action.default in {None, "", argparse.SUPPRESS} or isinstance(action.default, bool)
        return text if text is None or silent else f"{text} (%(default)s)"


def _describe_presets(presets: Mapping[str, Mapping[str, object]]) -> str:
    lines = [
        line
        for name, values in presets.items()
        for line in wrap(
            " ".join(f"{key}={value}" for key, value in values.items()),
            width=120,
            initial_indent=f"  {name:8} ",
            subsequent_indent=" " * 11,
            break_on_hyphens=False,
        )
    ]
    return "\n".join(["presets (what is typed stands above them):", *lines]) if lines else ""
