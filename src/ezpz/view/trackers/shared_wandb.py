"""Start a wandb run that the program itself uses as well, to which every row of a history is logged too: `setup_wandb`.

Reads WANDB_MODE, WANDB_DISABLED and WANDB_PROJECT (WB_PROJECT in older scripts), and to know whether wandb has a key
WANDB_API_KEY, WANDB_IDENTITY_TOKEN_FILE, WANDB_BASE_URL and NETRC; all else is between wandb and the user. A run that
only the history writes is started by ``History(trackers="wandb")`` (`ezpz.view.trackers.to_wandb`).
"""

from __future__ import annotations

import os
import sys
from threading import RLock
from time import time
from typing import TYPE_CHECKING, Any

from ezpz.log import get_logger
from ezpz.ranks import from_environ
from ezpz.redact import redact_argv, redact_config, redact_text
from ezpz.track.at_end import everywhere
from ezpz.track.run_facts import script_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.track.tracker_protocol import About
    from ezpz.track.values import Value
    from ezpz.view.trackers.worker import Worker

_TRUE = {"1", "true", "t", "yes", "y", "on"}  # what wandb itself takes for true

_PROJECTS = ("WANDB_PROJECT", "WB_PROJECT")
_PATIENCE = 1.0  # seconds that `update` waits for a row to reach wandb, so that rows of both sides keep their order

run: Any = None  # the run that `setup_wandb` started; History.update logs to it
claimed: Any = None  # the run that the tracker of a history started: it gets that history's rows from there
starting = RLock()  # one wandb.init at a time
_worker: Worker | None = None  # towards `run`


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

    Without a key, and where nothing else is asked for, the run is kept offline; ``wandb sync`` sends it later. A second
    call adds its configuration to the run of the first, as long as that has not ended, and returns it.

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
    global run, _worker
    if from_environ(os.environ).rank != 0:
        return None
    logger = get_logger(__name__)
    switch = switched_off()
    if switch:
        logger.info(f"wandb is off ({switch})")
        return None
    try:
        import wandb

        if run is not None and getattr(wandb, "run", None) is run:
            return _add_to_run(config, project=project or project_name, name=name)
        with starting:
            hidden = {} if "settings" in more else hidden_arguments(wandb)
            started = wandb.init(
                project=project_of(project or project_name, script_name()),
                config=redact_config(config) if config is not None else None,
                name=name,
                dir=os.fspath(outdir or dir or "") or None,
                **({"settings": wandb.Settings(**hidden)} if hidden else {}),
                **({} if "settings" in more else mode_without_key()) | more,
            )
            run, _worker = (None if started is claimed else started), None
            everywhere["wandb"] = sys.modules[__name__]
    # Anything may come: ImportError of it or of a library below it, its own errors without a network or a key.
    except Exception as error:  # noqa: BLE001
        logger.warning(
            f"wandb is off: {type(error).__name__}: {redact_text(str(error))}; metrics are recorded here as ever."
        )
        run = started = None
    return started


def _add_to_run(config: object, **asked: str | None) -> Any:
    """Add a configuration to the run that an earlier call has started, and return that one.

    Args:
        config: As for `setup_wandb`.
        asked: Project and name of the later call; those of the first stay, which is one line where they differ.
    """
    if config is not None:
        run.config.update(redact_config(config), allow_val_change=True)
    kept = [
        f"{what} {getattr(run, what)!r}, not {wanted!r}"
        for what, wanted in asked.items()
        if wanted and getattr(run, what, wanted) not in {wanted, None}
    ]
    if kept:
        get_logger(__name__).warning(f"wandb: the run that setup_wandb has started keeps its {' and its '.join(kept)}.")
    return run


def verify_wandb() -> bool:
    """Tell whether `setup_wandb` could start a run here that reaches a server, or is set to stay offline.

    Neither wandb is imported nor a network used.

    Returns:
        False when ``WANDB_DISABLED`` or ``WANDB_MODE=disabled`` says so, when wandb is not installed, and when it has
        no key: none in ``WANDB_API_KEY`` and none for its server in ``~/.netrc`` (or ``NETRC``). True otherwise;
        ``WANDB_MODE=offline`` needs no key.
    """
    from importlib.util import find_spec

    if switched_off() or (sys.modules.get("wandb") is None and find_spec("wandb") is None):
        return False
    return os.environ.get("WANDB_MODE", "").lower() in {"offline", "dryrun"} or has_key()


def has_key() -> bool:
    """Tell whether wandb would find a key for its server without asking for one."""
    from urllib.parse import urlsplit

    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    server = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    return any(_names(path, server) for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc") if path)


def _names(path: str, server: str) -> bool:
    from netrc import NetrcParseError, netrc

    try:
        return server in netrc(os.path.expanduser(path)).hosts  # noqa: PTH111  # netrc takes text
    except (OSError, NetrcParseError, UnicodeDecodeError):  # absent or broken: wandb finds no key there either
        return False


def mode_without_key() -> dict[str, str]:
    """Return ``{"mode": "offline"}`` where wandb would stop to ask for a key, else nothing."""
    return {} if os.environ.get("WANDB_MODE") or has_key() else {"mode": "offline"}


def hidden_arguments(wandb: Any) -> dict[str, bool]:
    """Return the setting that keeps wandb from collecting the program's arguments, where these hold a secret, else
    nothing.

    wandb reads ``sys.argv`` itself, and has no other switch than that for all it collects about program and machine
    (``_disable_meta`` before its version 0.19).
    """
    if redact_argv(sys.argv) == sys.argv:
        return {}
    get_logger(__name__).info("wandb collects nothing about program and machine: the arguments hold a secret")
    known = getattr(wandb.Settings, "model_fields", {})
    return {"x_disable_meta" if "x_disable_meta" in known else "_disable_meta": True}


def project_of(given: str | None, otherwise: str) -> str:
    """Return the project that was given, that the environment names, or the other one."""
    return given or next(filter(None, map(os.environ.get, _PROJECTS)), otherwise)


def switched_off() -> str | None:
    """Return the variable that switches wandb off, as ``NAME=value``, or None."""
    if os.environ.get("WANDB_MODE", "").lower() == "disabled":
        return "WANDB_MODE=disabled"
    if os.environ.get("WANDB_DISABLED", "").lower() in _TRUE:
        return f"WANDB_DISABLED={os.environ['WANDB_DISABLED']}"
    return None


def hand_over_run() -> Any:
    """Return the run of `setup_wandb`, if there is one, for a tracker that logs to it from now on instead of `log`."""
    global run
    taken, run = run, None
    return taken


def log(step: int, values: Mapping[str, Value]) -> None:
    """Pass one row on to the run; the first failure is one warning, after which the run is left alone.

    The program may log to the same run by itself, and wandb refuses steps that step back, so this waits until wandb has
    the row. It waits for a wandb that hangs once, for a second; from then on rows wait, or are dropped and counted.
    """
    if run is None:
        return
    worker = _towards_run()
    row = (step, time(), values)
    if worker.has_all:
        worker.put_now(row, _PATIENCE)
    else:
        worker.put(row)


def config(config: Mapping[str, object]) -> None:
    """Add to the run's configuration what is free of secrets already."""
    if run is not None:
        _towards_run().put_config(config)


def _towards_run() -> Worker:
    global _worker
    if _worker is None:
        import atexit
        from pathlib import Path

        from ezpz.track.tracker_protocol import About
        from ezpz.view.trackers.chosen import seconds_to_wait
        from ezpz.view.trackers.worker import Worker

        worker = _worker = Worker(StartedRun(run), About(script_name(), Path(), {}, {}, ""))
        limit = seconds_to_wait()
        atexit.register(lambda: worker.end("exited", limit))
    return _worker


class StartedRun:
    """A wandb run as a tracker; who started it ends it."""

    name = "wandb"

    def __init__(self, started: Any = None) -> None:
        self.run = started

    def start(self, about: About) -> dict[str, object]:  # noqa: ARG002  # it was started before
        """Do nothing."""
        return {}

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Log one row; wandb wants steps that do not step back. Histograms become wandb's own objects."""
        row: dict[str, Any] = dict(values)
        for key, value in row.items():
            if getattr(value, "edges", None) is not None:
                import numpy as np
                import wandb

                row[key] = wandb.Histogram(np_histogram=(np.asarray(value.counts), np.asarray(value.edges)))
        self.run.log(row, step=step)

    def config(self, config: Mapping[str, object]) -> None:
        """Add to the run's configuration."""
        self.run.config.update(dict(config), allow_val_change=True)

    def finish(self, state: str) -> None:
        """Do nothing."""
