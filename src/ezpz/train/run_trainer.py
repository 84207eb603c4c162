"""Run a trainer: from its command line to its exit code."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ezpz.errors import EzpzError, UsageError, end_with
from ezpz.log import get_logger
from ezpz.save_requests import AskedToEnd
from ezpz.train.trainer_options import is_first_rank, parse

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ezpz.track import History
    from ezpz.train.trainer_options import Parser


logger = get_logger("ezpz.train")

# What the user typed wrong is wrong on every rank. Rank 0 says it; until this time has passed a launcher has ended the
# others. A rank that is alone with its error says it then.
_FIRST_SPEAKS = 1.0  # seconds
_FIRST_SPEAKS_FOR_ALL = 60.0  # the same for an error that all ranks are known to meet: a busy machine takes long

_SHOWN = ("WORLD_SIZE", "NUM_HOSTS", "DEVICE", "BACKEND", "LAUNCHER", "MESH", "TORCH")  # of the ranks, in a log


def run_main(run: Callable[[Namespace], object], parser: Parser, argv: Sequence[str] | None = None) -> int:
    """Parse, train, and return the exit code; an error of ezpz is one line on stderr.

        sys.exit(run_main(run, options()))

    ``--peak_flops`` becomes ``EZPZ_PEAK_FLOPS``. The process group is left after success.

    Args:
        run: Called with what was parsed.
        parser: From `make_parser`.
        argv: Words after the program's name; by default those of this process.

    Returns:
        0, the error's exit code, or 130 after Ctrl-C.
    """
    from ezpz.dist.ending import cleanup

    try:
        try:
            args = parse(parser, argv)
        except UsageError as error:  # every rank reads the same words
            raise error.everywhere() from error
        if args.peak_flops:
            os.environ["EZPZ_PEAK_FLOPS"] = repr(args.peak_flops)
        run(args)
    except EzpzError as error:
        if isinstance(error, UsageError) and not is_first_rank():
            time.sleep(_FIRST_SPEAKS_FOR_ALL if error.on_all_ranks else _FIRST_SPEAKS)
        return end_with(error, parser.prog)
    except KeyboardInterrupt:
        logger.info("interrupted; what was recorded until now is written")
        return 130
    except AskedToEnd:  # every rank has saved
        pass
    cleanup()
    return 0


def log_setup(args: Namespace) -> None:
    """Log the configuration in effect and what this world is, on rank 0; call it when ranks and mesh are made."""
    from ezpz.dist import get_dist_info, log_dict_as_bulleted_list

    left_out = {"typed", "config", "origins"}
    config = {name: value for name, value in vars(args).items() if value is not None and name not in left_out}
    if hasattr(args, "origins"):
        config |= _settings(args)
    info = get_dist_info()
    log_dict_as_bulleted_list(config, "CONFIG")
    log_dict_as_bulleted_list({name: info[name] for name in _SHOWN if info[name]}, "dist_info")


def _settings(args: Namespace) -> dict[str, str]:
    """Return settings with their origins: those that were given, or all if ``job.print_args`` asks for them."""
    every = getattr(getattr(args.config, "job", None), "print_args", False)
    shown: dict[str, str] = {}
    for key, origin in args.origins.items():
        section, _, name = key.partition(".")
        if every or origin != "default":
            shown[key] = f"{getattr(getattr(args.config, section), name)} ({origin})"
    return shown


def loop_options(args: Namespace) -> dict[str, Any]:
    """Return the arguments of `Loop` that are options."""
    given = {
        "accumulate": args.accumulate,
        "max_norm": args.max_norm,
        "dtype": args.dtype,
        "save_every": args.save_freq,
        "sync_timing": args.sync_timing,
        "on_nan": args.on_nan,
    }
    if hasattr(args, "max_iters"):
        given |= {"eval_every": args.eval_freq, "log_every": args.log_freq}
    return given


def schedule_options(args: Namespace) -> dict[str, Any]:
    """Return the arguments of `make_schedule` that are options."""
    return {"kind": args.schedule, "warmup": args.warmup_iters, "min_ratio": args.min_lr_ratio}


def checkpoint_options(args: Namespace) -> dict[str, Any]:
    """Return the arguments of `ezpz.checkpoint.Checkpoints` that are options."""
    return {"keep": args.keep, "asynchronous": args.async_save, "verify": not args.no_verify}


def finish_run(history: History, *, plots: bool = True, files: Iterable[Path] = ()) -> None:
    """Finalize a history, whose card ends the run's output; only rank 0 does anything.

    Args:
        history: Is finalized.
        plots: Draw.
        files: Further files that were written, such as profiles.
    """
    from ezpz.dist import get_rank

    if get_rank() != 0:
        return
    for file in files:
        logger.info(f"profile: {file}")
    history.finalize(plots=plots)
