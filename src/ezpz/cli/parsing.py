"""The command line of a verb: what is wrong with it is one line, as with every other error."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ezpz.errors import UsageError

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """A parser that raises; its verb explains itself."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message} (from the command line). Run `{self.prog} --help` for the options.")
