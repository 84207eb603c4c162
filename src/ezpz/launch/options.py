"""Read the command line of ``launch``: options first, then the command, which is passed on as it is.

`OPTIONS` is the only list of them: parsing, errors and ``--help`` are made from it. A launch does without argparse,
whose import costs 5 ms and more; it is there for ``--help``.
"""

from __future__ import annotations

import re
import shlex

from ezpz.errors import UsageError, nearest
from ezpz.launch.hostfile import HOST
from ezpz.ranks import CONTRACT

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

# Values of options, each read by a function whose error says what was expected.

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_LONGEST = 1000 * _UNITS["d"]  # more is a mistake, and beyond what a selector can wait for


def _argument_error() -> type[Exception]:
    """Return the error whose words argparse shows as they are, for tables of other verbs; its module costs 5 ms."""
    from argparse import ArgumentTypeError

    return ArgumentTypeError


def _refused(reason: str) -> Exception:
    return _argument_error()(reason)


def _whole(text: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise _refused(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def count(text: str) -> int:
    """Return a whole number from 1 on."""
    return _whole(text, 1)


def devices(text: str) -> int:
    """Return a whole number from 0 on."""
    return _whole(text, 0)


def device_list(text: str) -> tuple[str, ...]:
    """Return devices of ``0,1``, ``2-3`` or ``GPU-8932f937,…``, each once."""
    entries: list[str] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", item.strip())
        if match:
            entries += map(str, range(int(match[1]), int(match[2] or match[1]) + 1))
        elif re.fullmatch(r"(?:GPU|MIG)-[A-Za-z0-9/-]+", item.strip()):
            entries.append(item.strip())
    if not entries or len(set(entries)) < len(entries) or len(entries) < len(text.split(",")):
        raise _refused(f"{text!r} is no list of devices; expected each once, e.g. 0,1 or 2-3 or GPU-8932f937")
    return tuple(entries)


def word(text: str) -> str:
    """Return a value that is not empty."""
    if not text.strip():
        raise _refused("the value is empty; expected one, or leave the option out")
    return text


def hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of ``n01,n02`` or ``n[01-04]``."""
    from ezpz.cluster import expand

    try:
        names = expand(text)
    except UsageError as error:
        reason = str(error).split("\n", 1)[0].partition(": ")[2]
        raise _refused(f"cannot read {text!r}: {reason}; expected e.g. n01,n02 or n[01-04]") from None
    odd = next((name for name in names if not HOST.fullmatch(name)), None)
    if odd is not None:
        raise _refused(f"{odd!r} is not a host name; expected e.g. n01,n02 or n[01-04]")
    return tuple(names)


def some_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list that is not empty."""
    return hosts(word(text))


def words(text: str) -> tuple[str, ...]:
    """Return words as a shell reads them."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:  # "No closing quotation"
        reason = str(error).lower()
        raise _refused(f"cannot read {text!r}: {reason}; expected words as a shell reads them") from None


def names(text: str) -> tuple[str, ...]:
    """Return names of variables, ``A,B``."""
    variables = tuple(name.strip() for name in text.split(",") if name.strip())
    odd = next((name for name in variables if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)), None)
    if odd is not None:
        raise _refused(f"{odd!r} is not the name of a variable; expected e.g. NCCL_DEBUG,FI_PROVIDER")
    own = next((name for name in variables if name in CONTRACT), None)
    if own is not None:
        raise _refused(
            f"{own} is what launch itself tells every rank; expected other names. "
            f"Write `env -u {own}` in front of the program"
        )
    return variables


def mpi(text: str) -> str:
    """Return ``yes``, ``no`` or ``site``."""
    if text not in {"yes", "no", "site"}:
        raise _refused(f"{text!r} is not known; expected yes, no or site")
    return text


def comm_env(text: str) -> str:
    """Return ``site`` or ``none``."""
    if text not in {"site", "none"}:
        raise _refused(f"{text!r} is not known; expected site or none")
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
        raise _refused(f"{text!r} is not a time; expected seconds (90), 90s, 10m, 2h, 1d, 1h30m, HH:MM:SS, or off")
    if seconds > _LONGEST:
        raise _refused(f"{text!r} is longer than 1000 days; expected less, or off")
    return seconds or None


# Names, and the keywords of argparse's add_argument; `group` is the title above them in the help.
_RANKS = "how many ranks"
_HOSTS = "which hosts (LIST: n01,n02 or n[01-04])"
_LAUNCHER = "how they are started"
_ENDS = "how it ends, and what is kept (TIME: 90, 90s, 10m, 1h30m, HH:MM:SS, off)"
_SHOW = "show, and run nothing"
_FLAG = {"action": "store_true"}
_LIST = {"action": "append"}


def _row(*names: str, **keywords: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, {"dest": names[0].strip("-").replace("-", "_"), **keywords}


OPTIONS = (
    _row("-n", "--np", "-np", dest="ranks", type=count, metavar="N", group=_RANKS, help="ranks in total"),
    _row("--ppn", "-ppn", dest="per_host", type=count, metavar="N", group=_RANKS, help="ranks per host"),
    _row(
        "--devices-per-host",
        type=devices,
        metavar="N",
        group=_RANKS,
        help="devices of each host instead of the counted ones",
    ),
    _row(
        "--devices",
        type=device_list,
        metavar="LIST",
        group=_RANKS,
        help="these of each host's devices: 0,1 or 2-3, counted among the visible ones",
    ),
    _row("--oversubscribe", **_FLAG, group=_RANKS, help="allow more ranks on a host than devices or slots"),
    _row("--nhosts", type=count, metavar="N", group=_HOSTS, help="the first N hosts"),
    _row("--hosts", type=some_hosts, metavar="LIST", group=_HOSTS, help="these hosts, in this order"),
    _row("--exclude", type=hosts, **_LIST, metavar="LIST", group=_HOSTS, help="all but these; may be repeated"),
    _row(
        "--hostfile",
        type=word,
        metavar="FILE",
        group=_HOSTS,
        help="hosts of a file: n01, n01:4 or n01 slots=4 a line",
    ),
    _row("--flavour", type=word, metavar="NAME", group=_LAUNCHER, help="kind of launcher instead of the one found"),
    _row(
        "--mpi",
        type=mpi,
        metavar="yes|no|site",
        group=_LAUNCHER,
        help="no: ranks start no MPI, and one agent per host forks them (site: as its table says, else yes)",
    ),
    _row(
        "--cpu-bind", type=word, metavar="SPEC", group=_LAUNCHER, help="CPUs of each rank instead of the planned ones"
    ),
    _row(
        "--launcher-args",
        type=words,
        **_LIST,
        metavar="WORDS",
        group=_LAUNCHER,
        help="more words for mpiexec or srun, quoted as one; may be repeated",
    ),
    _row(
        "--comm-env",
        type=comm_env,
        metavar="site|none",
        group=_LAUNCHER,
        help="the site's communication variables (default), or none",
    ),
    _row(
        "--unset",
        type=names,
        **_LIST,
        metavar="NAMES",
        group=_LAUNCHER,
        help="variables that ranks shall not see; may be repeated",
    ),
    _row("--label", **_FLAG, group=_ENDS, help="begin each line of output with its rank"),
    _row("--log-dir", type=word, metavar="DIR", group=_ENDS, help="a file per rank, and run.json, in DIR"),
    _row("--start-timeout", type=duration, metavar="TIME", group=_ENDS, help="all ranks must be up by then (10m)"),
    _row("--timeout", type=duration, metavar="TIME", group=_ENDS, help="the run must have ended by then"),
    _row(
        "--idle-timeout",
        type=duration,
        metavar="TIME",
        group=_ENDS,
        help="no rank may be without a heartbeat for longer",
    ),
    _row(
        "--exit-timeout",
        type=duration,
        metavar="TIME",
        group=_ENDS,
        help="when one rank has ended with 0, the others must follow",
    ),
    _row("--dry-run", **_FLAG, group=_SHOW, help="the line that would run, to paste by hand"),
    _row("--explain", **_FLAG, group=_SHOW, help="every flag and variable with value and origin"),
    _row("--json", **_FLAG, group=_SHOW, help="both for machines"),
    _row("-h", "--help", action="help", group=_SHOW, help="this page"),
)

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

# Ours, and the words of other launchers for the same idea. Near misses of ours are recognised by their spelling.
_SAME_IDEA = {
    "-n": "--ntasks --nprocs --nproc --num_processes",
    "--ppn": "--nproc-per-node --nproc_per_node --npernode --ntasks-per-node -perhost",
    "--devices-per-host": "--gpus-per-node",
    "--devices": "--gpu-ids --gpu_ids --gpus",
    "--nhosts": "-N --nnodes --nodes --num_machines",
    "--hosts": "-w -H --host --nodelist",
    "--exclude": "-x",
    "--hostfile": "-f --machinefile -machinefile",
    "--label": "-l -prepend-rank --prepend-rank --tag-output",
    "--log-dir": "-o --output --log_dir --redirects --tee -outfile-pattern",
    "--timeout": "--time --walltime",
    "--exit-timeout": "-W --wait",
}


class LaunchOptions:
    """What the user asked for; it cannot be changed.

    Attributes:
        ranks: Total number of ranks, or None.
        ranks_origin: ``-n`` or ``WORLD_SIZE``.
        per_host: Ranks per host, or None.
        nhosts: How many hosts to use, the first ones, or None for all.
        hosts: Hosts to use, in this order, or None.
        exclude: Hosts to leave out.
        hostfile: Path of the user's host file, or empty.
        devices_per_host: Accelerators of each host, or None to count them.
        devices: Which of each host's visible devices are used, by their places or UUIDs; empty for all.
        oversubscribe: Whether hosts may hold more ranks than devices or slots.
        flavour: Name of the launcher's flavour, or empty; not checked here.
        mpi: ``yes``, ``no`` or ``site``: whether ranks may start an MPI.
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
    devices: tuple[str, ...] = ()
    oversubscribe: bool = False
    flavour: str = ""
    mpi: str = "site"
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

    def __init__(self, **given: Any) -> None:
        unknown = given.keys() - LaunchOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        for name in LaunchOptions.__annotations__:
            self.__dict__[name] = given.get(name, getattr(LaunchOptions, name))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot set {name}: LaunchOptions do not change")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaunchOptions) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in vars(self).items() if value != getattr(LaunchOptions, name))
        return f"LaunchOptions({', '.join(given)})"


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchOptions:
    """Read the command line.

    ``WORLD_SIZE=12 launch …`` without ``RANK`` asks for 12 ranks, weaker than ``-n``; with ``RANK`` it is a leftover of
    an outer launcher and ignored.

    Raises:
        UsageError: An option is unknown, its value is not as expected, or two of them contradict each other.
        SystemExit: After ``--help``, with 0.
    """
    given, command = _read(list(argv))
    if "hosts" in given and "hostfile" in given:
        raise UsageError(
            f"--hosts and --hostfile {given['hostfile']} both name the hosts (from the command line); "
            "expected one of them. Leave one out; `--exclude` removes single hosts of a file."
        )
    wanted = environ.get("WORLD_SIZE", "")
    if "ranks" not in given and wanted and "RANK" not in environ:
        try:
            given.update(ranks=count(wanted), ranks_origin="WORLD_SIZE")
        except _argument_error() as error:
            raise UsageError(f"argument WORLD_SIZE: {error} (from the environment). Run `unset WORLD_SIZE`.") from None
    return LaunchOptions(**given, command=tuple(command))


def _read(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of our options, and the command: it begins at the first word that is neither.

    A value that begins with a dash is taken as it is, unless it is one of our options.
    """
    options = {name: (names, keywords) for names, keywords in OPTIONS for name in names}
    given: dict[str, Any] = {}
    index = 0
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "--":
        word = argv[index]
        if re.fullmatch(r"-n[0-9]+", word):  # srun's -n4
            word = f"-n={word[2:]}"
        name, equals, value = word.partition("=")
        if name not in options:
            raise UsageError(_unknown(word, list(options)))
        names, option = options[name]
        if "type" not in option:
            if equals:
                raise _wrong(names, f"ignored explicit argument {value!r}")
            if option["action"] == "help":
                _help()
            given[option["dest"]] = True
        else:
            if not equals:
                index += 1
                value = _next_word(argv, index, names, name, options)
            if value == "--":
                raise UsageError(
                    f"{name} needs a value, but -- follows (from the command line); expected `{name} VALUE`."
                )
            try:
                read = option["type"](value)
            except _argument_error() as error:
                raise _wrong(names, str(error)) from None
            given[option["dest"]] = given.get(option["dest"], ()) + read if "action" in option else read
        index += 1
    return given, argv[index + (argv[index : index + 1] == ["--"]) :]


def _next_word(argv: list[str], index: int, names: tuple[str, ...], name: str, options: Mapping[str, Any]) -> str:
    if index == len(argv):
        raise _wrong(names, "expected one argument")
    value = argv[index]
    if value.partition("=")[0] in options:
        raise UsageError(
            f"{name} needs a value, but {value} follows (from the command line); expected `{name} VALUE`. "
            f"Write `{name}={value}` if that is the value."
        )
    return value


def _wrong(names: tuple[str, ...], reason: str) -> UsageError:
    return UsageError(f"argument {'/'.join(names)}: {reason}. Run `launch --help` for the options.")


def _unknown(word: str, names: list[str]) -> str:
    name = word.split("=", 1)[0]
    near = next(iter(nearest(name, names)), "")
    same = next((ours for ours, words in _SAME_IDEA.items() if name in words.split()), near)
    hint = f" Did you mean {same}?" if same else ""
    after = f"Options of the command come after it: `launch [options] COMMAND {word}`."
    return f"unknown option {word} (from the command line).{hint} {after}"


def _help() -> NoReturn:
    """Print the help that `OPTIONS` make.

    Raises:
        SystemExit: Always, with 0.
    """
    from ezpz.cli_parser import Parser  # argparse: 10 ms

    usage, description = (
        "[options] [--] COMMAND [ARG ...]",
        "Start COMMAND once per rank, on every host and device of the job.",
    )
    options = [row for row in OPTIONS if row[1].get("action") != "help"]  # the parser has its own
    Parser("launch", description, options=options, usage=usage, epilog=_EPILOG).print_help()
    raise SystemExit(0)
