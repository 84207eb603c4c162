"""The command line of ``launch``: options first, then the command, which is never looked into."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ezpz.errors import UsageError, nearest
from ezpz.launch.hostfile import HOST
from ezpz.ranks import CONTRACT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


# The values that options of ``launch`` take, each read by a function that says what was expected.

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_LONGEST = 1000 * _UNITS["d"]  # more is a mistake, and beyond what a selector can wait for


def _whole(text: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def count(text: str) -> int:
    return _whole(text, 1)


def devices(text: str) -> int:
    return _whole(text, 0)


def word(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the value is empty; expected one, or leave the option out")
    return text


def hosts(text: str) -> tuple[str, ...]:
    from ezpz.cluster import expand

    try:
        names = expand(text)
    except UsageError as error:
        reason = str(error).split("\n", 1)[0].partition(": ")[2]
        raise argparse.ArgumentTypeError(f"cannot read {text!r}: {reason}; expected e.g. n01,n02 or n[01-04]") from None
    odd = next((name for name in names if not HOST.fullmatch(name)), None)
    if odd is not None:
        raise argparse.ArgumentTypeError(f"{odd!r} is not a host name; expected e.g. n01,n02 or n[01-04]")
    return tuple(names)


def some_hosts(text: str) -> tuple[str, ...]:
    return hosts(word(text))


def words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:  # "No closing quotation"
        reason = str(error).lower()
        raise argparse.ArgumentTypeError(
            f"cannot read {text!r}: {reason}; expected words as a shell reads them"
        ) from None


def names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    odd = next((name for name in found if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)), None)
    if odd is not None:
        raise argparse.ArgumentTypeError(f"{odd!r} is not the name of a variable; expected e.g. NCCL_DEBUG,FI_PROVIDER")
    own = next((name for name in found if name in CONTRACT), None)
    if own is not None:
        raise argparse.ArgumentTypeError(
            f"{own} is what launch itself tells every rank; expected other names. Write `env -u {own}` in front of the program"
        )
    return found


def comm_env(text: str) -> str:
    if text not in {"site", "none"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not known; expected site or none")
    return text


def duration(text: str) -> float | None:
    """Return seconds, or None for a limit that is switched off: ``0``, ``off`` or ``none``."""
    seconds = 0.0
    clock = re.fullmatch(r"([0-9]{1,9}):([0-5][0-9]):([0-5][0-9])", text)
    if text in {"off", "none"}:
        return None
    if re.fullmatch(_NUMBER, text):
        seconds = float(text)
    elif clock:
        hours, minutes, rest = map(int, clock.groups())
        seconds = 3600.0 * hours + 60 * minutes + rest
    elif text and re.fullmatch("".join(f"(?:{_NUMBER}{unit})?" for unit in _UNITS), text):
        parts = re.findall(rf"({_NUMBER})([dhms])", text)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; expected seconds (90), 90s, 10m, 2h, 1d, 1h30m, HH:MM:SS, or off"
        )
    if seconds > _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than 1000 days; expected less, or off")
    return seconds or None


__all__ = ["Wishes", "count", "devices", "duration", "parse", "word"]

_EPILOG = """\
Options end at the first word that is not one, or at --; the rest is COMMAND,
byte for byte. The program's own options come behind it and stay its own.

examples:
  launch python3 train.py --lr 0.1      a rank per device of the job's hosts,
                                        or a few where there are no devices
  launch -n 8 python3 train.py          eight ranks, hosts filled in order
  launch --nhosts 2 --ppn 4 python3 train.py      four ranks on each of two
  launch --exclude n07 python3 train.py           leave a broken host out
  launch --dry-run python3 train.py     show the line that would run
"""

# Ours, and the words of other launchers for the same idea. What is nearly ours is found by its spelling.
_SAME_IDEA = {
    "-n": "--ntasks --nprocs --nproc --num_processes",
    "--ppn": "--nproc-per-node --nproc_per_node --npernode --ntasks-per-node -perhost",
    "--devices-per-host": "--gpus-per-node",
    "--nhosts": "-N --nnodes --nodes --num_machines",
    "--hosts": "-w -H --host --nodelist",
    "--exclude": "-x",
    "--hostfile": "-f --machinefile -machinefile",
    "--label": "-l -prepend-rank --prepend-rank --tag-output",
    "--log-dir": "-o --output --log_dir --redirects --tee -outfile-pattern",
    "--timeout": "--time --walltime",
    "--exit-timeout": "-W --wait",
}


@dataclass(frozen=True)
class Wishes:
    """What the user asked for.

    Attributes:
        ranks: Total number of ranks, or None.
        ranks_origin: ``-n`` or ``WORLD_SIZE``.
        per_host: Ranks per host, or None.
        nhosts: How many hosts to use, the first ones, or None for all.
        hosts: Hosts to use, in this order, or None.
        exclude: Hosts to leave out.
        hostfile: Path of the user's host file, or empty.
        devices_per_host: Accelerators of each host, or None to count them.
        oversubscribe: Whether hosts may hold more ranks than devices or slots.
        flavour: Name of the launcher's flavour, or empty; not checked here.
        cpu_bind: How ranks are bound to CPUs, or empty; not checked here.
        launcher_args: More words for the launcher itself.
        comm_env: ``site`` or ``none``: whether ranks get the site's communication environment.
        unset: Variables that ranks shall not see.
        label: Whether each line of output begins with its rank.
        log_dir: Folder for a file per rank and run.json, or empty.
        start_timeout: Seconds within which every rank must have come up; None for no limit, like the three below.
        timeout: Seconds within which the run must have ended.
        idle_timeout: Seconds that a rank may be without a heartbeat.
        exit_timeout: Seconds that the other ranks have when the first has ended with 0.
        explain: Show every flag and variable with its origin, and run nothing.
        json: Show plan and reasons for machines, and run nothing.
        dry_run: Print the line instead of running it.
        command: The program and its arguments; empty for a bare ``launch``.
    """

    ranks: int | None = None
    ranks_origin: str = "-n"
    per_host: int | None = None
    nhosts: int | None = None
    hosts: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    hostfile: str = ""
    devices_per_host: int | None = None
    oversubscribe: bool = False
    flavour: str = ""
    cpu_bind: str = ""
    launcher_args: tuple[str, ...] = ()
    comm_env: str = "site"
    unset: tuple[str, ...] = ()
    label: bool = False
    log_dir: str = ""
    start_timeout: float | None = 600.0
    timeout: float | None = None
    idle_timeout: float | None = None
    exit_timeout: float | None = None
    explain: bool = False
    json: bool = False
    dry_run: bool = False
    command: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. Run `launch --help` for the options.")


def _format(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=79)


def _parser() -> _Parser:
    parser = _Parser(
        prog="launch",
        usage="launch [options] [--] COMMAND [ARG ...]",
        description="Start COMMAND once per rank, on every host and device of the job.",
        epilog=_EPILOG,
        formatter_class=_format,
        argument_default=argparse.SUPPRESS,  # the defaults are those of Wishes
        allow_abbrev=False,
        add_help=False,
    )
    _add_ranks(parser.add_argument_group("how many ranks"))
    _add_hosts(parser.add_argument_group("which hosts (LIST: n01,n02 or n[01-04])"))
    _add_launcher(parser.add_argument_group("how they are started"))
    _add_ends(parser.add_argument_group("how it ends, and what is kept (TIME: 90, 90s, 10m, 1h30m, HH:MM:SS, off)"))
    show = parser.add_argument_group("show, and run nothing")
    show.add_argument("--dry-run", action="store_true", help="the line that would run, to paste by hand")
    show.add_argument("--explain", action="store_true", help="every flag and variable with value and origin")
    show.add_argument("--json", action="store_true", help="both for machines")
    show.add_argument("-h", "--help", action="help", help="this page")
    return parser


def _add_ranks(group: Any) -> None:
    add: Callable[..., object] = group.add_argument
    add("-n", "--np", "-np", dest="ranks", type=count, metavar="N", help="ranks in total")
    add("--ppn", "-ppn", dest="per_host", type=count, metavar="N", help="ranks per host")
    add("--devices-per-host", type=devices, metavar="N", help="devices of each host instead of the counted ones")
    add("--oversubscribe", action="store_true", help="allow more ranks on a host than devices or slots")


def _add_hosts(group: Any) -> None:
    add: Callable[..., object] = group.add_argument
    add("--nhosts", type=count, metavar="N", help="the first N hosts")
    add("--hosts", type=some_hosts, metavar="LIST", help="these hosts, in this order")
    add("--exclude", type=hosts, action="append", metavar="LIST", help="all but these; may be repeated")
    add("--hostfile", type=word, metavar="FILE", help="hosts of a file: n01, n01:4 or n01 slots=4 a line")


def _add_launcher(group: Any) -> None:
    add: Callable[..., object] = group.add_argument
    add("--flavour", type=word, metavar="NAME", help="kind of launcher instead of the one found")
    add("--cpu-bind", type=word, metavar="SPEC", help="CPUs of each rank instead of the planned ones")
    add(
        "--launcher-args",
        type=words,
        action="append",
        metavar="WORDS",
        help="more words for mpiexec or srun, quoted as one; may be repeated",
    )
    add(
        "--comm-env",
        type=comm_env,
        metavar="site|none",
        help="the site's communication variables (default), or none",
    )
    add(
        "--unset",
        type=names,
        action="append",
        metavar="NAMES",
        help="variables that ranks shall not see; may be repeated",
    )


def _add_ends(group: Any) -> None:
    add: Callable[..., object] = group.add_argument
    add("--label", action="store_true", help="begin each line of output with its rank")
    add("--log-dir", type=word, metavar="DIR", help="a file per rank, and run.json, in DIR")
    add("--start-timeout", type=duration, metavar="TIME", help="all ranks must be up by then (10m)")
    add("--timeout", type=duration, metavar="TIME", help="the run must have ended by then")
    add("--idle-timeout", type=duration, metavar="TIME", help="no rank may be without a heartbeat for longer")
    add("--exit-timeout", type=duration, metavar="TIME", help="when one rank has ended with 0, the others must follow")


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Wishes:
    """Read the command line.

    ``WORLD_SIZE=12 launch …`` without ``RANK`` is a wish for 12 ranks, weaker than ``-n``; with ``RANK`` it is a
    leftover of an outer launcher and ignored.

    Raises:
        UsageError: An option is unknown, its value is not as expected, or two of them contradict each other.
        SystemExit: After ``--help``, with 0.
    """
    parser = _parser()
    options, command = _split(list(argv), parser)
    given = vars(parser.parse_args(options))
    if "hosts" in given and "hostfile" in given:
        raise UsageError(
            f"--hosts and --hostfile {given['hostfile']} both name the hosts (from the command line); expected one of them. "
            "Leave one out; `--exclude` removes single hosts of a file."
        )
    for name in given.keys() & {"exclude", "launcher_args", "unset"}:  # given several times: one list
        given[name] = tuple(word for words in given[name] for word in words)
    wish = environ.get("WORLD_SIZE", "")
    if "ranks" not in given and wish and "RANK" not in environ:
        try:
            given.update(ranks=count(wish), ranks_origin="WORLD_SIZE")
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"argument WORLD_SIZE: {error} (from the environment). Run `unset WORLD_SIZE`.") from None
    return Wishes(**given, command=tuple(command))


def _split(argv: list[str], parser: _Parser) -> tuple[list[str], list[str]]:
    """Part our options from the command at the first word that is neither an option nor an option's value.

    Options come back as ``--name=value``: argparse takes a value that begins with a dash only there.
    """
    takes_value = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}  # noqa: SLF001  # argparse offers no other list
    options: list[str] = []
    index = 0
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "--":
        word = argv[index]
        if re.fullmatch(r"-n[0-9]+", word):  # srun's -n4
            word = f"-n={word[2:]}"
        name, equals, value = word.partition("=")
        if name not in takes_value:
            raise UsageError(_unknown(word, list(takes_value)))
        if takes_value[name] and not equals and index + 1 < len(argv):
            index += 1
            value = argv[index]
            if value.partition("=")[0] in takes_value:
                raise UsageError(
                    f"{name} needs a value, but {value} follows (from the command line); expected `{name} VALUE`. "
                    f"Write `{name}={value}` if that is the value."
                )
            word = f"{name}={value}"
        if takes_value[name] and value == "--":
            raise UsageError(f"{name} needs a value, but -- follows (from the command line); expected `{name} VALUE`.")
        options.append(word)
        index += 1
    return options, argv[index + (argv[index : index + 1] == ["--"]) :]


def _unknown(word: str, names: list[str]) -> str:
    name = word.split("=", 1)[0]
    near = next(iter(nearest(name, names)), "")
    same = next((ours for ours, words in _SAME_IDEA.items() if name in words.split()), near)
    hint = f" Did you mean {same}?" if same else ""
    return f"unknown option {word} (from the command line).{hint} Options of the command come after it: `launch [options] COMMAND {word}`."
