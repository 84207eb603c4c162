"""A second, remote copy of the metrics at Weights & Biases, when there is one; training never depends on it.

Reads WANDB_MODE, WANDB_DISABLED and WANDB_PROJECT; all else is between wandb and the user. The one place that wandb
holds rows is a block in its memory, so the journal stays the truth.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ezpz.log import get_logger
from ezpz.ranks import from_environ
from ezpz.track.facts import redact_config, script_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.track.values import Value

__all__ = ["log", "setup_wandb"]

_TRUE = {"1", "true", "t", "yes", "y", "on"}  # what wandb itself takes for true

run: Any = None  # the run that `setup_wandb` started; History.update logs to it


def setup_wandb(
    project: str | None = None,
    *,
    config: object = None,
    name: str | None = None,
    outdir: str | os.PathLike[str] | None = None,
) -> Any:
    """Start a wandb run on rank 0, to which every later `History.update` logs too.

    Args:
        project: The project; otherwise ``WANDB_PROJECT``, otherwise the program's name.
        config: A mapping, namespace or dataclass to show with the run; values named like secrets are left out.
        name: The run's name; otherwise wandb makes one up.
        outdir: Folder for wandb's own files; otherwise wandb decides.

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
            project=project or os.environ.get("WANDB_PROJECT") or script_name(),
            config=redact_config(config) if config is not None else None,
            name=name,
            dir=None if outdir is None else os.fspath(outdir),
        )
    # Anything may come: ImportError of it or of a library below it, its own errors without a network or a key.
    except Exception as error:  # noqa: BLE001
        logger.warning(f"wandb is off: {type(error).__name__}: {error}; metrics are recorded here as ever.")
        run = None
    return run


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
