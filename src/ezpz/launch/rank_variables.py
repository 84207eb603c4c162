"""Choose the variables that ranks get beside the user's own, each with its origin, and those that are taken away."""

from __future__ import annotations

import os
import re

from ezpz.cluster.administrator import SAMPLING, default
from ezpz.errors import UsageError
from ezpz.fields import Record
from ezpz.launch.flavours.request import Setting

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Allocation
    from ezpz.cluster.devices.device_answer import Devices
    from ezpz.cluster.site import Site

# What steers collectives and the fabric under them: shown by --explain wherever it comes from.
_STEERING = re.compile(r"(NCCL|RCCL|CCL|FI|GLOO|UCX|OFI|MPICH|ZE|HSA|TORCH_NCCL|TP)_")


class Communication(Record):
    """What the site wants of the ranks' environment.

    Attributes:
        settings: Variables that are set, because the user has not.
        unset: Variables that are taken away, with the reason.
        inherited: Steering variables of the user's environment, which stay; a note where the site advises otherwise.
    """

    settings: Mapping[str, Setting]
    unset: Mapping[str, str]
    inherited: Mapping[str, Setting]


def communication(
    environ: Mapping[str, str], site: Site | None, allocation: Allocation, *, use_site: bool, unset: tuple[str, ...]
) -> Communication:
    """Return the site's communication environment under the user's own.

    Args:
        environ: The environment of the launcher.
        site: The machine, if it is known.
        allocation: The job, whose id is part of some values.
        use_site: ``--comm-env site``; False for ``none``.
        unset: The names of ``--unset``.
    """
    active = site if use_site else None
    wanted = dict(active.environment) if active else {}
    taken = dict.fromkeys(unset, "--unset")
    if active:
        taken = {name: f"site {active.name}" for name in active.environment_unset if name in environ} | taken
    settings = {
        name: Setting(_filled(value, environ, allocation), f"site {active.name}")
        for name, value in wanted.items()
        if active and name not in environ and name not in taken
    }
    inherited = {
        name: Setting(value, _advice(name, value, site))
        for name, value in sorted(environ.items())
        if _STEERING.match(name) and name not in taken
    }
    return Communication(settings, taken, inherited)


def _filled(value: str, environ: Mapping[str, str], allocation: Allocation) -> str:
    if "{user}" in value:
        from getpass import getuser

        value = value.replace("{user}", environ.get("USER") or getuser())
    return value.replace("{jobid}", allocation.job_id or "nojob")


def _advice(name: str, value: str, site: Site | None) -> str:
    origin = "your environment"
    if site is None:
        return origin
    advised = site.environment.get(name)
    if name in site.environment_unset:
        return f"{origin}; site {site.name} advises to unset it"
    if advised is not None and advised != value and "{" not in advised:
        return f"{origin}; site {site.name} advises {advised!r}"
    return origin


def piped(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return variables that let ranks behave behind our pipes as they would on what the launcher itself writes to."""
    why = "ranks write into a pipe"
    variables = {} if environ.get("PYTHONUNBUFFERED") else {"PYTHONUNBUFFERED": Setting("1", why)}
    if os.isatty(1) and os.isatty(2):
        from shutil import get_terminal_size  # its import costs 8 ms

        size = get_terminal_size()
        wanted = {"COLUMNS": str(size.columns), "LINES": str(size.lines)}
        if "NO_COLOR" not in environ and environ.get("TERM", "dumb") != "dumb":
            wanted["FORCE_COLOR"] = "1"
        variables |= {
            name: Setting(value, f"{why}, and it is shown on a terminal")
            for name, value in wanted.items()
            if name not in environ
        }
    return variables


# Devices of vendors whom ezpz does not count, in /dev: Gaudi and TPU, Ascend, Trainium, Cambricon, Moore Threads.
_UNCOUNTED = ("accel", "davinci", "neuron", "cambricon", "mtgpu")


def without_devices(environ: Mapping[str, str], devices: Devices, world_size: int) -> dict[str, Setting]:
    """Return what lets ranks that have no devices train together where a library would look for devices first.

    accelerate 1.15 (and transformers' Trainer, which stands on it) makes a world of one in every rank without devices,
    whatever RANK says, but not with the variable that ``accelerate launch --cpu`` sets.

    Args:
        environ: The user's environment; what it sets is left alone.
        devices: Those of a host.
        world_size: How many ranks there are.
    """
    if world_size == 1 or devices.count or devices.assumed or "ACCELERATE_USE_CPU" in environ:
        return {}
    try:
        if any(name.startswith(_UNCOUNTED) for name in os.listdir("/dev")):
            return {}
    except OSError:
        pass  # nobody can tell
    return {"ACCELERATE_USE_CPU": Setting("true", "ranks have no devices")}


def flight_recorder(folder: str, environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return what lets torch keep a record of the last collectives, for a run that may be ended because it hangs.

    Args:
        folder: Where each host keeps the dumps of its ranks.
        environ: The user's environment; what it sets is left alone.
    """
    from ezpz.launch.host import rank_start

    variables = {"EZPZ_RECORDER": folder, **rank_start.settings(folder, environ)}
    return {name: Setting(value, "--timeout or --idle-timeout") for name, value in variables.items()}


# Collectives: four steps of a model with 60 buckets of gradients, which `ezpz.why.lag` compares. torch's own default is
# 2000, which costs every collective 2 µs more, and a dump 25 ms.
_RING = "256"


def last_collectives(folder: str, environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return what lets every rank keep its last collectives, and leave them where the agent of its host looks.

    Args:
        folder: Where each host keeps them while it runs.
        environ: The user's environment; what it sets is left alone.
    """
    variables = {"EZPZ_COLLECTIVES": Setting(folder, "for `ezpz why`")}
    if not {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}.intersection(environ):
        variables["TORCH_FR_BUFFER_SIZE"] = Setting(_RING, "for `ezpz why`")
    return variables


_NO = {"0", "no", "off", "false"}


def is_off(environ: Mapping[str, str], name: str) -> bool:
    """Tell whether a variable switches off what is on without it."""
    return environ.get(name, "").strip().lower() in _NO


_SAMPLING = 5.0  # seconds between two samples of the hardware
_SHORTEST_SAMPLING, _LONGEST_SAMPLING = SAMPLING


def sampling(environ: Mapping[str, str]) -> tuple[float, str]:
    """Return the seconds between two samples of the hardware, 0 for none, and who chose them: the user's EZPZ_HARDWARE,
    else the administrator's ``launch.sampling``.

    Raises:
        UsageError: The value is neither a word for none nor such a number.
    """
    variable = environ.get("EZPZ_HARDWARE", "").strip()
    text, origin = (variable, "EZPZ_HARDWARE") if variable else default("launch.sampling", environ, f"{_SAMPLING:g}")
    if text.lower() in {*_NO, "0.0"}:
        return 0.0, origin
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not _SHORTEST_SAMPLING <= seconds <= _LONGEST_SAMPLING:
        raise UsageError(
            f"cannot sample the hardware every {text!r} (from EZPZ_HARDWARE); expected 0 for never, or seconds from "
            f"{_SHORTEST_SAMPLING:g} to {_LONGEST_SAMPLING:g}. Run `unset EZPZ_HARDWARE` for {_SAMPLING:g}."
        )
    return seconds, origin


def has_input() -> bool:
    """Tell whether there is input to pass on: a pipe or a file, and neither a terminal nor the null device."""
    try:
        return not os.isatty(0) and os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev
    except OSError:  # closed
        return False
