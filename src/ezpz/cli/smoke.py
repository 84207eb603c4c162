"""``ezpz test``: the smoke test under the launcher."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ezpz.launch.entry import main as launch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Launch ``python3 -m ezpz.test_dist`` with ``argv`` and return the exit code of the run."""
    if {"-h", "--help"} & set(argv):
        from ezpz.test_dist import parse_args

        parse_args(["--help"])
    return launch(["--", sys.executable, "-m", "ezpz.test_dist", *argv])
