"""A second, remote copy of the metrics at Weights & Biases, when there is one; training never depends on it.

Reads WANDB_MODE, WANDB_DISABLED and WANDB_PROJECT (WB_PROJECT in older scripts), and for `verify_wandb` WANDB_API_KEY,
WANDB_BASE_URL and NETRC; all else is between wandb and the user. The one place that wandb holds rows is a block in its
memory, so the journal stays the truth.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ezpz.log import get_logger
from ezpz.ranks import from_environ
from ezpz.track.facts import redact_config, script_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.track.values import Value

__all__ = ["log", "setup_wandb", "verify_wandb"]

_TRUE = {"1", "true", "t", "yes", "y", "on"}  # what wandb itself takes for true

_PROJECTS = ("WANDB_PROJECT", "WB_PROJECT")

run: Any = None  # the run that `setup_wandb` started; History.update logs to it


def setup_wandb(
    project: str | None = None,
    *,
    config: object = None,
    name: str | None = None,
    outdir: str | os.PathLike[str] | None = None,
    project_name: str | None = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002  # wandb's own name for it
    **more: Any,
) -> Any:
    """Start a wandb run on rank 0, to which every later `History.update` logs too.

    Args:
        project: The project; otherwise ``WANDB_PROJECT``, otherwise the program's name.
        config: A mapping, namespace or dataclass to show with the run; values named like secrets are left out.
        name: The run's name; otherwise wandb makes one up.
        outdir: Folder for wandb's own files; otherwise wandb decides.
        project_name: ``project`` under its older name.
        dir: ``outdir`` under wandb's name.
        more: Further keywords of ``wandb.init``, such as ``entity``, ``group``, ``tags``, ``mode``.

    Returns:
        The ``wandb`` run, or None: on other ranks, which do not import wandb; when ``WANDB_MODE=disabled`` or
        ``WANDB_DISABLED`` says so; and when wandb is missing or fails, which costs one warning.
    """
    global run
    if from_environ(os.environ).rank != 0:
        return None
    logger = get_logger(__name__)
    switch = _switched_off()
    if switch:
        logger.info(f"wandb is off ({switch})")
        return None
    try:
        import wandb

        run = wandb.init(
            project=project or project_name or next(filter(None, map(os.environ.get, _PROJECTS)), script_name()),
            config=redact_config(config) if config is not None else None,
            name=name,
            dir=os.fspath(outdir or dir or "") or None,
            **more,
        )
    # Anything may come: ImportError of it or of a library below it, its own errors without a network or a key.
    except Exception as error:  # noqa: BLE001
        logger.warning(f"wandb is off: {type(error).__name__}: {error}; metrics are recorded here as ever.")
        run = None
    return run


def verify_wandb() -> bool:
    """Tell whether `setup_wandb` could start a run here, without importing wandb and without a network.

    Returns:
        False when ``WANDB_DISABLED`` or ``WANDB_MODE=disabled`` says so, when wandb is not installed, and when it would
        ask for a key: none in ``WANDB_API_KEY`` and none for its server in ``~/.netrc`` (or ``NETRC``). True otherwise;
        ``WANDB_MODE=offline`` needs no key.
    """
    from importlib.util import find_spec
    from urllib.parse import urlsplit

    if _switched_off() or (sys.modules.get("wandb") is None and find_spec("wandb") is None):
        return False
    if os.environ.get("WANDB_MODE", "").lower() in {"offline", "dryrun"} or os.environ.get("WANDB_API_KEY"):
        return True
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    return any(_has_key(path, server) for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc") if path)


def _has_key(path: str, server: str) -> bool:
    from netrc import NetrcParseError, netrc

    try:
        return server in netrc(os.path.expanduser(path)).hosts  # noqa: PTH111  # netrc takes text
    except (OSError, NetrcParseError, UnicodeDecodeError):  # absent or broken: wandb finds no key there either
        return False


def _switched_off() -> str | None:
    if os.environ.get("WANDB_MODE", "").lower() == "disabled":
        return "WANDB_MODE=disabled"
    if os.environ.get("WANDB_DISABLED", "").lower() in _TRUE:
        return f"WANDB_DISABLED={os.environ['WANDB_DISABLED']}"
    return None


def log(step: int, values: Mapping[str, Value]) -> None:
    """Pass one row on to the run; the first failure is one warning, after which the run is left alone."""
    global run
    try:
        run.log(dict(values), step=step)
    except Exception as error:  # noqa: BLE001  # a lost service, a full disk, a value that wandb refuses
        run = None
        get_logger(__name__).warning(
            f"wandb is off from step {step}: {type(error).__name__}: {error}; metrics are recorded here as ever."
        )
