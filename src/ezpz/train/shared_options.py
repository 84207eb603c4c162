"""The options that a trainer has whether its others are options too or settings in sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.cli_parser import positive_float, positive_int
from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cli_parser import Parser

__all__ = ["add_data_dir", "add_output", "add_preset", "add_resume", "set_defaults"]


def add_preset(parser: Parser) -> None:
    """Add ``--preset``."""
    parser.add_argument("--preset", choices=tuple(parser.presets), help="values to start from, listed below")


def add_data_dir(group: Any) -> None:
    """Add ``--data_dir`` to a group of options."""
    group.add_argument(
        "--data_dir", metavar="DIR", help="folder of downloaded data ($EZPZ_DATA, else ~/.cache/ezpz/data)"
    )


def add_resume(group: Any) -> None:
    """Add ``--resume``."""
    group.add_argument(
        "--resume",
        default="none",
        metavar="WHAT",
        help="none, auto (the newest of this --name), or a run or checkpoint",
    )


def add_output(group: Any, *, log_freq: bool = False) -> None:
    """Add what says where a run is written and how it is measured; ``--log_freq`` where rows are steps."""
    from ezpz.track import add_profile_option

    add = group.add_argument
    if log_freq:
        add("--log_freq", type=positive_int, default=1, metavar="N", help="print every N-th step; all are recorded")
    add("--name", help="name of the run")
    add("--outdir", metavar="DIR", help="the run's folder (outputs/<name>/<time>)")
    add("--no_plots", action="store_true", help="draw nothing; the data is written all the same")
    add("--sync_timing", action="store_true", help="wait for the device in every part of a step: exact times, slower")
    add(
        "--peak_flops",
        type=positive_float,
        metavar="X",
        help="FLOP/s of one device, for the MFU of one that is unknown",
    )
    add_profile_option(group)


def set_defaults(parser: Parser, defaults: Mapping[str, object], source: str) -> None:
    """Give options other defaults.

    Raises:
        UsageError: One of them is no option.
    """
    unknown = defaults.keys() - set(parser.dests())
    if unknown:
        raise UsageError(
            f"unknown default {min(unknown)} (from {source}); expected one of {', '.join(parser.dests())}."
        )
    parser.set_defaults(**defaults)
