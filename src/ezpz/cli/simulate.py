"""``ezpz simulate``: a script as one rank of a world that is not there, and what that rank would need."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, NoReturn

from ezpz.cli.simulate_verdict import explain, silence, text, verdict
from ezpz.cli.simulate_world import World, imagine, rank_environ
from ezpz.dist import host_memory
from ezpz.errors import EzpzError, UsageError, end_with
from ezpz.files import read_object
from ezpz.launch.options import count, devices, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_HELP = """\
usage: ezpz simulate -n N [options] [--] COMMAND ...

Run COMMAND on this machine as one rank of a world of N that is not there: collectives do nothing, values mean nothing;
meshes, plans, shapes and memory per rank are real. Afterwards the memory that the rank's tensors took is shown.

  -n, --np N      size of the world
  --ppn N         ranks per host; by default as the site or the job tells, else 8
  --rank R        which rank to be (0); the last one has the smallest share where shares are uneven
  --memory SIZE   ask whether SIZE per rank is enough: 40GB, 64GiB; a GB is 10^9 bytes
  --no-data       tensors have shapes and no memory: any model fits here, and values do not even exist
  --timeout TIME  the script must have ended by then: 90, 90s, 10m, 1h30m
  --json          print the answer as one JSON object; the script's own output goes to stderr

Exit code: the script's own if that is not 0; else 1 when it does not fit or never called ezpz.setup_torch, 124 after
--timeout. docs/simulate.md tells what is counted.
"""
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {unit[0] + "iB": 2 ** (10 * power) for power, unit in enumerate(_UNITS) if power}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"{message} (from the command line); expected `ezpz simulate -n N [options] COMMAND`. "
            "Run `ezpz simulate --help` for the options."
        )


def main(argv: Sequence[str]) -> int:
    """Run a script as one simulated rank, print what it needed and return the exit code."""
    try:
        if not argv or argv[0] in {"-h", "--help"}:
            print(_HELP, end="")
            return 0
        wishes = _parse(argv)
        world = imagine(wishes.ranks, wishes.rank, wishes.per_host, os.environ)
        _check_device(world, data=wishes.data)
        return _simulate(wishes, world)
    except EzpzError as error:
        return end_with(error)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="ezpz simulate", add_help=False, allow_abbrev=False)
    parser.add_argument("-n", "--np", "-np", dest="ranks", type=count)
    parser.add_argument("--ppn", "-ppn", dest="per_host", type=count)
    parser.add_argument("--rank", type=devices, default=0)
    parser.add_argument("--memory", type=_size)
    parser.add_argument("--timeout", type=duration)
    parser.add_argument("--no-data", dest="data", action="store_false")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    wishes = parser.parse_args(list(argv))
    wishes.command = wishes.command[wishes.command[:1] == ["--"] :]
    if wishes.help:
        print(_HELP, end="")
        raise SystemExit(0)
    if wishes.ranks is None:
        parser.error("-n, the size of the world, is missing")
    if not wishes.command:
        parser.error("the command is missing")
    if wishes.rank >= wishes.ranks:
        raise UsageError(
            f"no rank {wishes.rank} in a world of {wishes.ranks} (from --rank, -n); expected 0 to {wishes.ranks - 1}. "
            f"The last one is `--rank {wishes.ranks - 1}`."
        )
    return wishes


def _check_device(world: World, *, data: bool) -> None:
    """Refuse tensors without data on a device: its allocator would not see them.

    Raises:
        UsageError: The device is not the CPU.
    """
    if not data and world.device != "cpu":
        raise UsageError(
            f"--no-data (from the command line) does not go with TORCH_DEVICE={world.device} (from the environment): no device is "
            "needed, and none is looked at; expected cpu. Type TORCH_DEVICE=cpu before the line."
        )


def _size(words: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([KMGT]?i?B?)", words.strip(), re.IGNORECASE)
    names = {name.lower(): size for name, size in _UNITS.items()}
    unit = names.get(match[2].lower() if match[2].lower().endswith("b") else match[2].lower() + "b") if match else None
    if match is None or unit is None or not match[2] or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{words!r} is not an amount of memory; expected e.g. 40GB, 64GiB or 512MB")
    return int(float(match[1]) * unit)


def _simulate(wishes: argparse.Namespace, world: World) -> int:
    missing = _missing(wishes.command[0])
    if missing:
        return missing
    from ezpz.cli.one_child import run  # what runs the child costs a bad command line nothing

    _tell(
        f"simulating rank {world.ranks.rank} of {world.ranks.world_size}: {world.shape} ({world.origin}), "
        f"device {world.device} ({world.device_origin})"
    )
    folder = tempfile.mkdtemp(prefix="ezpz-simulate-")  # only this user can enter it
    report = os.path.join(folder, "report.json")  # noqa: PTH118  # a plain word for the environment
    try:
        environ = rank_environ(world, report, os.environ, data=wishes.data)
        code = run(wishes.command, environ, wishes.timeout, stdout=sys.stderr if wishes.json else None)
        return _answer(wishes, world, report, code)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer(wishes: argparse.Namespace, world: World, report: str, code: int) -> int:
    if code == 124 and wishes.timeout:
        _tell(f"the script still ran after {wishes.timeout:g} s (from --timeout); it was ended, and there is no answer")
        return code
    told = read_object(report)
    if code:
        taken = max(told.get("resident", 0), _taken())
        _tell(explain(code, told, taken, host_memory.total(), data=wishes.data))
        return code
    if not told.get("finished"):
        _tell(silence(begun=bool(told)))
        return 1
    answer = verdict(told, world, wishes.memory)
    print(json.dumps(answer, indent=2) if wishes.json else text(answer), flush=True)
    return 0 if wishes.memory is None or answer["fits"] else 1


def _taken() -> int:
    """Return the most bytes that one of the processes that have ended had at once."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # getrusage(2): bytes on macOS, kilobytes elsewhere


def _missing(program: str) -> int:
    """Return 127 or 126 when the program cannot run here, as a shell does."""
    if shutil.which(program):
        return 0
    there = os.path.exists(program)  # noqa: PTH110  # a word of the command line
    reason, code = ("it is not executable", 126) if there else ("it is not found on PATH", 127)
    hint = f" Try `ezpz simulate … python3 {program}`." if program.endswith(".py") else ""
    _tell(f"cannot run {program} (from the command line): {reason}; expected a program.{hint}")
    return code


def _tell(line: str) -> None:
    """Speak on stderr: stdout belongs to the script and the answer."""
    try:
        print(f"ezpz: {line}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens any more
