"""Run ``ezpz simulate``: start a script as one rank of a world that is not there, and show its needs."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from argparse import REMAINDER, ArgumentTypeError

from ezpz.cli_parser import option, run_verb, show_help_alone
from ezpz.dist import host_memory
from ezpz.dist.simulate.rank import RUN_ID
from ezpz.errors import UsageError
from ezpz.fields import Record
from ezpz.files import read_object
from ezpz.launch.command import why_missing, with_python
from ezpz.launch.contract import inherited, rank_variables
from ezpz.launch.options import count, devices, duration
from ezpz.ranks import Ranks
from ezpz.verbs import make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ezpz.cli_parser import Parser

_PER_HOST = 8  # devices of most accelerator hosts: DGX, HGX, MI300X; MI250X counted by half cards
_NO_PORT = "99999"  # no port: torch refuses it at once where a script meets by itself, and does not wait
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {unit[0] + "iB": 2 ** (10 * power) for power, unit in enumerate(_UNITS) if power}


def _size(words: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([KMGT]?i?B?)", words.strip(), re.IGNORECASE)
    names = {name.lower(): size for name, size in _UNITS.items()}
    unit = names.get(match[2].lower() if match[2].lower().endswith("b") else match[2].lower() + "b") if match else None
    if match is None or unit is None or not match[2] or not float(match[1]):
        raise ArgumentTypeError(f"{words!r} is not an amount of memory; expected e.g. 40GB, 64GiB or 512MB")
    return int(float(match[1]) * unit)


_USAGE = "-n N [options] [--] COMMAND ..."
_OPTIONS = (
    option("-n", "--np", "-np", dest="ranks", type=count, metavar="N", help="size of the world"),
    option(
        "--ppn",
        "-ppn",
        dest="per_host",
        type=count,
        metavar="N",
        help=f"ranks per host; by default as the site or the job has, else {_PER_HOST}",
    ),
    option(
        "--rank",
        type=devices,
        default=0,
        metavar="R",
        help="which rank to be; the last one has the smallest share where shares are uneven",
    ),
    option(
        "--memory",
        type=_size,
        metavar="SIZE",
        help="ask whether SIZE per rank is enough: 40GB, 64GiB; a GB is 10^9 bytes",
    ),
    option(
        "--no-data",
        dest="data",
        action="store_false",
        help="tensors have shapes and no memory: any model fits here, and values do not even exist",
    ),
    option("--timeout", type=duration, metavar="TIME", help="the script must have ended by then: 90, 90s, 10m, 1h30m"),
    option(
        "--json",
        action="store_true",
        help="print the answer as one JSON object; the script's own output goes to stderr",
    ),
    option("command", nargs=REMAINDER, metavar="COMMAND", help="the script, started on this machine once"),
)
_ABOUT = """\
COMMAND runs on this machine as one rank of a world of N that is not there: collectives do nothing, values mean
nothing; meshes, plans, shapes and memory per rank are real. Afterwards the memory that the rank's tensors took is
shown."""
_EXAMPLES = (
    ("ezpz simulate -n 64 python3 train.py", "rank 0 of 64"),
    ("ezpz simulate -n 64 --memory 80GB CMD", "does it fit?"),
)
_EXITS = (
    ("0", "it works, and fits"),
    ("1", "it does not fit, or never called ezpz.setup_torch"),
    ("2", "the command line is wrong"),
    ("124", "after --timeout"),
    ("other", "the script's own"),
)


def main(argv: Sequence[str]) -> int:
    """Run a script as one simulated rank, print what it needed and return the exit code."""
    parser = make_verb_parser(
        "simulate", _OPTIONS, _ABOUT, usage=_USAGE, examples=_EXAMPLES, exits=_EXITS, allow_abbrev=False
    )

    def work(options: Namespace) -> int:
        _check(parser, options)
        world = imagine(options.ranks, options.rank, options.per_host, os.environ)
        _check_device(world, data=options.data)
        return _simulate(options, world)

    return run_verb(parser, argv, work) if argv else show_help_alone(parser)


def _check(parser: Parser, options: Namespace) -> None:
    """Refuse a command line without world or command, or with a rank outside of the world."""
    options.command = options.command[options.command[:1] == ["--"] :]
    if options.ranks is None:
        parser.error(f"-n, the size of the world, is missing (from the command line); expected `{parser.usage}`.")
    if not options.command:
        parser.error(f"the command is missing (from the command line); expected `{parser.usage}`.")
    if options.rank >= options.ranks:
        raise UsageError(
            f"no rank {options.rank} in a world of {options.ranks} (from --rank, -n); expected 0 to "
            f"{options.ranks - 1}. The last one is `--rank {options.ranks - 1}`."
        )


def _check_device(world: World, *, data: bool) -> None:
    """Refuse tensors without data on a device: its allocator would not see them.

    Raises:
        UsageError: The device is not the CPU.
    """
    if not data and world.device != "cpu":
        raise UsageError(
            f"--no-data (from the command line) does not go with TORCH_DEVICE={world.device} (from the environment): "
            "no device is needed, and none is looked at; expected cpu. Type TORCH_DEVICE=cpu before the line."
        )


def _simulate(options: Namespace, world: World) -> int:
    options.command = with_python(options.command, os.environ)
    missing = _missing(options.command[0])
    if missing:
        return missing
    from ezpz.cli.one_child import run  # what runs the child costs a bad command line nothing
    from ezpz.launch.temporary import TemporaryFolder

    _print(
        f"simulating rank {world.ranks.rank} of {world.ranks.world_size}: {world.shape} ({world.origin}), "
        f"device {world.device} ({world.device_origin})"
    )
    with TemporaryFolder("simulate") as folder:
        path = os.path.join(folder, "report.json")  # noqa: PTH118  # a plain word for the environment
        environ = rank_environ(world, path, os.environ, data=options.data)
        code = run(options.command, environ, options.timeout, stdout=sys.stderr if options.json else None).code
        return _answer(options, world, path, code)


def _answer(options: Namespace, world: World, path: str, code: int) -> int:
    if code == 124 and options.timeout:
        _print(
            f"the script still ran after {options.timeout:g} s (from --timeout); it was ended, and there is no answer"
        )
        return code
    report = read_object(path)
    if code:
        taken = max(report.get("resident", 0), _taken())
        _print(explain(code, report, taken, host_memory.total(), data=options.data))
        return code
    if not report.get("finished"):
        _print(silence(begun=bool(report)))
        return 1
    answer = verdict(report, world, options.memory)
    show(json.dumps(answer, indent=2) if options.json else text(answer))
    return 0 if options.memory is None or answer["fits"] else 1


def _taken() -> int:
    """Return the most bytes that one of the processes that have ended had at once."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # getrusage(2): bytes on macOS, kilobytes elsewhere


def _missing(program: str) -> int:
    """Return 127 or 126 when the program cannot run here, as a shell does."""
    reason, code = why_missing(program, "ezpz simulate …")
    if code:
        _print(reason)
    return code


def _print(line: str) -> None:
    """Print on stderr: stdout belongs to the script and the answer."""
    try:
        show(f"ezpz: {line}", sys.stderr)
    except OSError:
        pass  # the reader has left


# The world: its hosts, the one rank of it that runs, and the environment of that rank.


class World(Record):
    """A world of ranks, the one of them that runs, and where the numbers come from."""

    ranks: Ranks
    per_host: int
    hosts: int
    origin: str
    device: str
    device_origin: str

    @property
    def shape(self) -> str:
        """Return ``512 hosts x 8``, or with an uneven end ``2 hosts, 12 ranks each, 3 on the last``."""
        host = f"{self.hosts} host{'s'[: self.hosts > 1]}"
        last = self.ranks.world_size - (self.hosts - 1) * self.per_host
        if last == self.per_host or self.hosts == 1:
            return f"{host} x {last}"
        return f"{host} x {self.per_host}, {last} on the last"


def imagine(ranks: int, rank: int, per_host: int | None, environ: Mapping[str, str]) -> World:
    """Return a world of hosts that are filled in order.

    Args:
        ranks: Its size.
        rank: The rank that runs; less than ``ranks``.
        per_host: Ranks per host, or None to take the devices of the site's or the job's hosts.
        environ: The environment to read.

    Raises:
        EzpzError: There is a job that cannot be understood, or TORCH_DEVICE cannot.
    """
    number, origin = (per_host, "from --ppn") if per_host else _devices(environ)
    index = rank // number
    local = min(number, ranks - index * number)
    me = Ranks(rank, ranks, rank % number, local, index, "contract")
    named = environ.get("TORCH_DEVICE", "")
    # The only real device is the first one, whichever rank is played.
    device = named if named in {"", "cpu", "mps"} or ":" in named else f"{named}:0"
    return World(
        me,
        number,
        -(-ranks // number),
        origin,
        device or "cpu",
        "from TORCH_DEVICE" if named else "unless TORCH_DEVICE says otherwise",
    )


def rank_environ(world: World, path: str, environ: Mapping[str, str], *, data: bool = True) -> dict[str, str]:
    """Return the environment of the rank, without what a launcher or job around left in it.

    Args:
        world: The world.
        path: Where the rank shall write what it needed.
        environ: The environment to begin with.
        data: Whether tensors shall have memory and values.
    """
    kept = inherited(environ)
    return {
        **kept,
        **rank_variables(world.ranks, world.hosts, kept),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _NO_PORT,
        "TORCHELASTIC_RUN_ID": RUN_ID,
        "TORCH_DEVICE": world.device,
        "EZPZ_SIMULATE": str(world.ranks.world_size),
        "EZPZ_SIMULATE_REPORT": path,
        "EZPZ_SIMULATE_DATA": "yes" if data else "no",
        "EZPZ_LAUNCH_ID": f"simulate-{os.urandom(8).hex()}",  # by which all that the script starts is known
    }


def _devices(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the devices of a host of the job, of the site, or of this host if it has several; else a usual number."""
    from ezpz.cluster import count_devices, detect, probe, recognise

    known = {name: value for name, value in environ.items() if name != "TORCH_DEVICE"}  # the script's, not the world's
    allocation = detect(known)
    for note in allocation.notes:
        _print(f"note: {note}")
    site = recognise(known, probe.read, allocation.job_id).site
    here = count_devices(known, probe.read, probe.run, allocation, site)
    if allocation.job_id and here.count:
        return here.count, f"ranks per host from {here.origin}"
    if site and site.devices_per_host:
        return site.devices_per_host, f"ranks per host from site {site.name}"
    if here.count > 1:  # one is a desktop's, which is no model of a host with thousands of ranks
        return here.count, f"ranks per host from {here.origin}"
    return _PER_HOST, f"{_PER_HOST} ranks per host assumed; --ppn sets another number"


# Why a simulation has no answer: what the script's exit code and its report show.

_KILLED = 137  # 128 + SIGKILL, with which Linux ends what takes too much memory
_MOST = 0.5  # of the machine's memory: whoever took that and was killed was killed for it


def explain(code: int, report: Mapping[str, Any], taken: int, total: int, *, data: bool) -> str:
    """Return the line about a script that has failed.

    Args:
        code: Its exit code.
        report: Its report, {} when there is none.
        taken: The most bytes that it had at once.
        total: Bytes of this machine.
        data: Whether its tensors had data.
    """
    killed = code == _KILLED and taken > _MOST * total
    if not killed and not report.get("memory_ran_out"):
        return f"the script ended with {code}; no answer about its memory"
    how = "killed" if killed else "it could not have more memory"
    hint = "Add --no-data: its tensors then take no memory" if data else "Make what is large after ezpz.setup_torch()"
    return (
        f"the script ended with {code} ({how}), when it had {amount(taken)} of this machine's {amount(total)}; no "
        f"answer about its memory. {hint}."
    )


def silence(*, begun: bool) -> str:
    """Return the line about a script that has ended well, and reported nothing.

    Args:
        begun: Whether it became a rank.
    """
    if begun:
        return (
            "the script became a rank, but left without saying what it needed (os._exit, or exec?); expected an "
            "ordinary end. Let it return or call sys.exit."
        )
    return (
        "the script never called ezpz.setup_torch() in its own process, so nothing was simulated; expected that call "
        "instead of torch.distributed.init_process_group. Add `import ezpz; rank = ezpz.setup_torch()`, or name the "
        "script itself behind `ezpz simulate -n N python3`."
    )


# The answer: what the rank needed and whether that fits, as data, and as a table of 80 columns.

_NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "buffers": "buffers",
    "other": "activations and the rest",
}
_WIDTH = 25
# What a device needs besides tensors, see docs/simulate.md: bytes of its context, and what its allocator wastes per
# byte.
_APART, _WASTE = 2 * 10**9, 0.2


def verdict(report: Mapping[str, Any], world: World, memory: int | None) -> dict[str, Any]:
    """Return the whole answer.

    Args:
        report: What the rank wrote (`ezpz.dist.simulate.rank.write_report`), in bytes.
        world: What was simulated.
        memory: Bytes that a rank may use, or None when that was not asked.

    Returns:
        The report with ``hosts``, ``ranks_per_host``, ``need``, ``memory``, ``spare`` and ``fits``; the last three
        are None when nothing was asked or seen, ``spare`` is negative when it does not fit. ``notes`` are sentences.
    """
    # On an accelerator its allocator knows better: it rounds up, and sees what kernels take.
    need = max(report["peak"] + _late(report), report["allocator"] or 0)
    spare = None if memory is None or not report["peak"] else memory - need
    return {
        **{name: value for name, value in report.items() if name != "finished"},
        "hosts": world.hosts,
        "ranks_per_host": world.per_host,
        "ranks_per_host_origin": world.origin,
        "need": need,
        "memory": memory,
        "spare": spare,
        "fits": None if spare is None else spare >= 0,
        "notes": _notes(report),
        "shape": world.shape,
    }


def _notes(report: Mapping[str, Any]) -> list[str]:
    return [*_doubts(report), *_made_up(report), *_building(report)]


def _doubts(report: Mapping[str, Any]) -> list[str]:
    if not report["peak"]:
        return ["no tensor was seen: did anything run after setup_torch()?"]
    if report["steps"] == 0:
        return ["no optimizer took a step: this is not what training needs"]
    if _late(report):
        line = "one step only, its peak before the optimizer had its state:\n"
        return [line + f"      {amount(_late(report))} were added for the steps that follow"]
    return []


def _made_up(report: Mapping[str, Any]) -> list[str]:
    asked = report["made_up"]
    if not asked:
        return []
    numbers = "1 number was" if asked == 1 else f"{asked} numbers were"
    return [f"{numbers} asked of tensors without data, first in\n      {report['made_up_at']}; every one is 1"]


def _late(report: Mapping[str, Any]) -> int:
    """Return the bytes of optimizer state that a second step would have had in the way of its peak."""
    return int(report["largest"]["optimizer"] - report["at_peak"]["optimizer"]) if report["steps"] == 1 else 0


def _building(report: Mapping[str, Any]) -> list[str]:
    if report["before"] <= report["peak"] or report["allocator"] is not None:  # what an allocator saw was on the device
        return []
    line = f"before the first forward {amount(report['before'])} were alive at once, on the device only\n"
    return [line + '      if the script builds its model there; torch.device("meta") avoids it']


def text(answer: Mapping[str, Any]) -> str:
    """Return the answer as lines of at most 80 columns."""
    most, peak = answer["largest"], answer["at_peak"]
    lines = [
        f"rank {answer['rank']} of {answer['world_size']} ({answer['shape']}), simulated:",
        f"collectives did nothing, {'values are meaningless' if answer['data'] else 'tensors had no data'}",
        "",
        f"{'':{_WIDTH}}{'largest':>10}{'at the peak':>13}",
        *(
            f"{name:{_WIDTH}}{amount(most[kind]) if kind in most else '':>10}{amount(peak[kind]):>13}"
            for kind, name in _NAMES.items()
        ),
        f"{'all tensors':{_WIDTH}}{'':>10}{amount(answer['peak']):>13}  {answer['when']}",
    ]
    if answer["allocator"] is not None:
        lines.append(f"{'allocator of the device':{_WIDTH}}{'':>10}{amount(answer['allocator']):>13}")
    lines.append(f"{'this process, with torch':{_WIDTH}}{'':>10}{amount(answer['resident']):>13}")
    lines += ["", *(f"note: {note}" for note in answer["notes"])]
    return "\n".join([*lines, *_fits(answer)])


def _fits(answer: Mapping[str, Any]) -> list[str]:
    apart = [
        "Not counted: the device's context and kernels (1 to 2 GB), buffers of the",
        "communication library, fragmentation (up to a fifth more).",
    ]
    if answer["memory"] is None or not answer["need"]:
        return [f"a rank needs {amount(answer['need'])}; --memory 40GB asks whether that fits", *apart]
    word, rest = ("yes", "to spare") if answer["fits"] else ("no", "too much")
    if answer["fits"] and answer["spare"] < _APART + _WASTE * answer["peak"]:
        word = "yes, but only just"
    return [f"fits in {amount(answer['memory'])}: {word}, {amount(abs(answer['spare']))} {rest}", *apart]


def amount(size: float) -> str:
    """Return bytes as ``12.3 GB``, in powers of 1000 as memory is sold; ``0`` for none."""
    if not size:
        return "0"
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if abs(size) >= 0.9995 * scale:
            return f"{size / scale:.3g} {unit}" if size < 999.5 * scale else f"{size / scale:.0f} {unit}"
    return f"{size:.0f} B"
