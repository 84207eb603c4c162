"""Read the command line of ``launch``: options first, then the command, which is passed on as it is.

`OPTIONS` is the only list of them: parsing, errors and ``--help`` are made from it. A launch does without argparse,
whose import costs 5 ms and more; it is there for ``--help``.
"""

from __future__ import annotations

import re
import shlex
import sys

from ezpz import durations
from ezpz.errors import UsageError, nearest
from ezpz.launch.hostfile import HOST
from ezpz.ranks import CONTRACT

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn, TextIO

    from ezpz.launch.other_launchers import ForeignOption

# Values of options, each read by a function whose error says what was expected.


def _argument_error() -> type[Exception]:
    """Return the error whose words argparse shows as they are, for tables of other verbs; its module costs 5 ms."""
    from argparse import ArgumentTypeError

    return ArgumentTypeError


def _refused(reason: str) -> Exception:
    return _argument_error()(reason)


class UnknownOptionError(UsageError):
    """A word is no option of launch, nor of another launcher.

    Attributes:
        word: It, as it was given.
    """

    def __init__(self, word: str, names: Sequence[str]) -> None:
        self.word = word
        near = next(iter(nearest(word.split("=", 1)[0], names)), "")
        hint = f" Did you mean {near}?" if near else ""
        after = f"Options of the command come after it: `launch [options] COMMAND {word}`."
        super().__init__(f"unknown option {word} (from the command line).{hint} {after}")


_MOST = 999_999_999


def _whole(text: str, least: int) -> int:
    if re.fullmatch(r"0*[1-9][0-9]{9,}", text):
        from ezpz.visible import shorten

        raise _refused(f"{shorten(text, 40)!r} is too large; expected a whole number of at most {_MOST}")
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


def assignment(text: str) -> tuple[tuple[str, str], ...]:
    """Return the name and the value of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise _refused(f"{text!r} is no variable with a value; expected NAME=VALUE, e.g. NCCL_DEBUG=INFO")
    names(name)
    from ezpz.launch.contract import OURS

    if name.strip() in OURS:
        raise _refused(f"{name} is what launch itself tells the ranks; expected another name")
    return ((name.strip(), value),)


def port(text: str) -> str:
    """Return the number of a port."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise _refused(f"{text!r} is no port; expected 1 to 65535")
    return text


def mpi(text: str) -> str:
    """Return ``yes``, ``no`` or ``site``."""
    if text in {"none", "pmi2", "pmix", "pmix_v3", "pmix_v4", "pmix_v5", "cray_shasta"}:
        raise _refused(
            f"{text!r} is a plugin of srun; expected yes, no or site. Write `--launcher-args=--mpi={text}` for srun's"
        )
    if text not in {"yes", "no", "site"}:
        raise _refused(f"{text!r} is not known; expected yes, no or site")
    return text


def check(text: str) -> str:
    """Return ``fast``, ``full`` or ``off``."""
    if text not in {"fast", "full", "off"}:
        raise _refused(f"{text!r} is not known; expected fast, full or off")
    return text


def comm_env(text: str) -> str:
    """Return ``site`` or ``none``."""
    if text not in {"site", "none"}:
        raise _refused(f"{text!r} is not known; expected site or none")
    return text


def duration(text: str) -> float | None:
    """Return seconds, or None for a limit that is switched off: ``0``, ``off`` or ``none``."""
    try:
        return durations.read(text)
    except ValueError as error:
        raise _refused(str(error)) from None


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
    _row("--depth", type=count, metavar="N", group=_LAUNCHER, help="N CPUs for each rank, in order"),
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
    _row("--env", type=assignment, **_LIST, metavar="NAME=VALUE", group=_LAUNCHER, help="a variable of the ranks' own"),
    _row("--master-addr", type=word, metavar="ADDR", group=_LAUNCHER, help="where the ranks meet"),
    _row("--master-port", type=port, metavar="PORT", group=_LAUNCHER, help="at which port"),
    _row(
        "-m",
        "--module",
        dest="module",
        type=word,
        metavar="MODULE",
        group=_LAUNCHER,
        help="python3 -m MODULE; its words follow",
    ),
    _row("--label", **_FLAG, group=_ENDS, help="begin each line of output with its rank"),
    _row("--log-dir", type=word, metavar="DIR", group=_ENDS, help="a file per rank, and run.json, in DIR"),
    _row("--attempts", type=count, metavar="N", group=_ENDS, help="start again after a failure, N starts in all (1)"),
    _row(
        "--check",
        type=check,
        metavar="fast|full|off",
        group=_ENDS,
        help="look at each host before its ranks begin (fast); full: all of `ezpz doctor`",
    ),
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
    _row(
        "--no-save-at-end",
        **_FLAG,
        group=_ENDS,
        help="ask the ranks neither to save and to end before the job ends, nor to save before a SIGTERM from outside",
    ),
    _row("--dry-run", **_FLAG, group=_SHOW, help="the line that would run, to paste by hand"),
    _row("--explain", **_FLAG, group=_SHOW, help="every flag and variable with value and origin"),
    _row("--json", **_FLAG, group=_SHOW, help="both for machines"),
    _row("--verbose", **_FLAG, group=_SHOW, help="what --explain shows, on stderr, and then run"),
    _row("-h", "--help", action="help", group=_SHOW, help="this page"),
)

_EPILOG = """\
Options end at the first word that is not one, or at --; the rest is COMMAND,
byte for byte. The program's own options come after it and stay its own.

examples:
  launch python3 train.py --lr 0.1      a rank per device of the job's hosts,
                                        or a few where there are no devices
  launch -n 8 python3 train.py          eight ranks, hosts filled in order
  launch --nhosts 2 --ppn 4 python3 train.py      four ranks on each of two
  launch --exclude n07 python3 train.py           leave a broken host out
  launch --dry-run python3 train.py     show the line that would run

exit code:
  0         all ranks ended with 0
  2         the command line, a variable or a named file is wrong
  124       a time limit of a run that started
  125       the machine or the launcher failed, or ranks never started
  126, 127  the command cannot be executed, is not found
  other     that of the first rank that failed; 128 + n for signal n

more:
  "Launch" in the documentation
"""


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
        cpu_bind_origin: ``--cpu-bind``, ``--depth`` or ``CPU_BIND``.
        env: Names and values of variables that ranks get.
        master_addr: Where the ranks meet, or empty.
        master_port: The port of that, or empty.
        launcher_args: More words for the launcher itself.
        comm_env: ``site`` or ``none``: whether ranks get the site's communication environment.
        unset: Variables that ranks shall not see.
        label: Whether each line of output begins with its rank.
        log_dir: Folder for a file per rank and run.json, or empty.
        attempts: How many starts there may be in all.
        check: ``fast``, ``full`` or ``off``: what is looked at before ranks begin; empty where the user did not say.
        start_timeout: Seconds within which every rank must have come up; None for no limit, like the three below.
        timeout: Seconds within which the run must have ended.
        idle_timeout: Seconds that a rank may be without a heartbeat.
        exit_timeout: Seconds that the other ranks have when the first has ended with 0.
        no_save_at_end: Leave ranks alone before the end of the job.
        explain: Show every flag and variable with its origin, and run nothing.
        json: Show plan and reasons for machines, and run nothing.
        verbose: Show what ``explain`` shows, and run all the same.
        dry_run: Print the line instead of running it.
        notes: What other launchers' words mean here, where the user should know.
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
    cpu_bind_origin: str = "--cpu-bind"
    env: tuple[tuple[str, str], ...] = ()
    master_addr: str = ""
    master_port: str = ""
    launcher_args: tuple[str, ...] = ()
    comm_env: str = "site"
    unset: tuple[str, ...] = ()
    label: bool = False
    log_dir: str = ""
    attempts: int = 1
    check: str = ""
    start_timeout: float | None = 600.0
    timeout: float | None = None
    idle_timeout: float | None = None
    exit_timeout: float | None = None
    no_save_at_end: bool = False
    explain: bool = False
    json: bool = False
    verbose: bool = False
    notes: tuple[str, ...] = ()
    dry_run: bool = False
    command: tuple[str, ...] = ()

    def __init__(self, **given: Any) -> None:
        unknown = given.keys() - LaunchOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        for name in LaunchOptions.__annotations__:
            self.__dict__[name] = given.get(name, getattr(LaunchOptions, name))

    @property
    def starts_ranks(self) -> bool:
        """Whether ranks are started; else their plan is shown."""
        return bool(self.command) and not (self.dry_run or self.explain or self.json)

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
    an outer launcher and ignored, and so is the one that ``ezpz_setup_job`` has exported. ``CPU_BIND`` is the same as
    ``--cpu-bind``, and weaker.

    Raises:
        UsageError: An option is unknown, its value is not as expected, or two of them contradict each other.
        SystemExit: After ``--help``, with 0.
    """
    given, command, notes = _read(list(argv), environ)
    if "hosts" in given and "hostfile" in given:
        raise UsageError(
            f"--hosts and --hostfile {given['hostfile']} both name the hosts (from the command line); "
            "expected one of them. Leave one out; `--exclude` removes single hosts of a file."
        )
    wanted = environ.get("WORLD_SIZE", "")
    if "ranks" not in given and wanted and "RANK" not in environ and wanted != environ.get("EZPZ_WORLD_SIZE"):
        try:
            given.update(ranks=count(wanted), ranks_origin="WORLD_SIZE")
        except _argument_error() as error:
            raise UsageError(f"argument WORLD_SIZE: {error} (from the environment). Run `unset WORLD_SIZE`.") from None
    notes += _bind(given, environ)
    return LaunchOptions(**given, command=tuple(command), **({"notes": tuple(notes)} if notes else {}))


def _bind(given: dict[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Bring ``--cpu-bind``, ``--depth`` and ``CPU_BIND`` into one, and return what the user should know of that.

    Raises:
        UsageError: ``CPU_BIND`` holds other options.
    """
    depth, text = given.pop("depth", 0), environ.get("CPU_BIND", "").strip()
    if text and not depth and "cpu_bind" not in given:
        own = dict(given)
        if text.startswith("-"):
            try:
                own, rest, _ = _read(list(words(text)), environ)
            except (_argument_error(), UsageError):
                own, rest = {}, [""]
            if rest or not own.keys() <= {"cpu_bind", "depth"}:
                raise UsageError(
                    f"cannot read the binding {text!r} (from CPU_BIND); expected e.g. list:0-3:4-7 or depth:8. "
                    "Run `unset CPU_BIND`, or write `--cpu-bind SPEC`."
                )
            depth, text = own.pop("depth", 0), own.get("cpu_bind", "")
        given.update(cpu_bind=text or "depth", cpu_bind_origin="CPU_BIND")
    elif text:
        chosen = "--cpu-bind" if "cpu_bind" in given else "--depth"
        return [f"CPU_BIND={text} has no effect beside {chosen}", *_deepened(given, depth)]
    return _deepened(given, depth)


def _deepened(given: dict[str, Any], depth: int) -> list[str]:
    spec = given.get("cpu_bind", "")
    if not depth:
        return []
    if spec in {"", "depth"}:
        given["cpu_bind"] = f"depth:{depth}"
        if not spec:
            given["cpu_bind_origin"] = "--depth"
        return []
    return [f"--depth {depth} has no effect beside --cpu-bind {spec}"]


def _read(argv: list[str], environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the values of our options, the command, and notes: it begins at the first word that is no option.

    A value that begins with a dash is taken as it is, unless it is one of our options.
    """
    options = {name: (names, keywords) for names, keywords in OPTIONS for name in names}
    given: dict[str, Any] = {}
    notes: list[str] = []
    index, of_python = 0, False
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "--" and "module" not in given:
        word = argv[index]
        if re.fullmatch(r"-n[0-9]+", word):  # srun's -n4
            word = f"-n={word[2:]}"
        name, equals, value = word.partition("=")
        if name not in options and name.startswith("--") and f"--{name[2:].replace('_', '-')}" in options:
            name = f"--{name[2:].replace('_', '-')}"
            of_python = of_python or name.startswith("--master")
        if name in options:
            names, option = options[name]
            if "type" in option and not equals:
                index += 1
                value = _next_word(argv, index, name, options)
            _take(given, names, option, value if equals or "type" in option else None, name)
            index += 1
            continue
        from ezpz.launch.other_launchers import understand

        known = understand([word, *argv[index + 1 :]], environ)
        if known is None:
            known = _for_launcher(argv[index:], list(options))
        index += known.taken
        of_python = of_python or known.of_python
        if known.note:
            notes.append(known.note)
        if known.ours:
            names, option = options[known.ours]
            _take(given, names, option, known.value, word.partition("=")[0])
    command = argv[index + (argv[index : index + 1] == ["--"]) :]
    if "module" in given or (of_python and command and command[0].endswith(".py")):
        from ezpz.launch.python_of_ranks import python_of_ranks

        python = python_of_ranks(environ)
        command = [python, "-m", given.pop("module"), *argv[index:]] if "module" in given else [python, *command]
    return given, command, notes


def _take(
    given: dict[str, Any], names: tuple[str, ...], option: Mapping[str, Any], value: str | None, word: str
) -> None:
    """Add an option and its value, None for a flag.

    Args:
        given: What was read until now.
        names: The option's names.
        option: Its keywords.
        value: Its value as it was given.
        word: The name that the user wrote.
    """
    if "type" not in option:
        if value is not None:
            raise _wrong(names, f"ignored explicit argument {value!r}")
        if option["action"] == "help":
            print_help(sys.stdout)
            raise SystemExit(0)
        given[option["dest"]] = True
        return
    if value is None or value == "--":
        raise UsageError(f"{word} needs a value, but -- follows (from the command line); expected `{word} VALUE`.")
    try:
        read = option["type"](value)
    except _argument_error() as error:
        raise _wrong(names if word in names else (word,), str(error)) from None
    given[option["dest"]] = given.get(option["dest"], ()) + read if "action" in option else read


def _for_launcher(argv: list[str], names: list[str]) -> ForeignOption:
    """Return an option that nothing here knows as one for the launcher, where ``--`` shows that it is no command's.

    Raises:
        UnknownOptionError: Nothing says whose it is, or it is spelled like one of ours.
    """
    from ezpz.launch.other_launchers import ForeignOption

    name, equals, _ = argv[0].partition("=")
    own = argv[:1] if equals or len(argv) < 2 or argv[1].startswith("-") else argv[:2]
    behind = argv[len(own) : len(own) + 1]
    if "--" not in argv or (behind and not behind[0].startswith("-")) or nearest(name, names, cutoff=0.8):
        raise UnknownOptionError(argv[0], names)
    shown = shlex.join(own)
    return ForeignOption(
        "--launcher-args", shown, len(own), f"{shown} is passed on to the launcher, as `--launcher-args` would"
    )


def _next_word(argv: list[str], index: int, name: str, options: Mapping[str, Any]) -> str:
    if index == len(argv):
        raise UsageError(
            f"{name} needs a value, and nothing follows (from the command line); expected "
            f"`launch {name} {options[name][1]['metavar']} COMMAND`. "
            "Run `launch --help` for the options."
        )
    value = argv[index]
    if value.partition("=")[0] in options:
        raise UsageError(
            f"{name} needs a value, but {value} follows (from the command line); expected `{name} VALUE`. "
            f"Write `{name}={value}` if that is the value."
        )
    return value


def _wrong(names: tuple[str, ...], reason: str) -> UsageError:
    return UsageError(
        f"argument {'/'.join(names)}: {reason} (from the command line). Run `launch --help` for the options."
    )


def print_help(stream: TextIO) -> None:
    """Print the help that `OPTIONS` make."""
    from ezpz.cli_parser import Parser  # argparse: 10 ms

    usage, description = (
        "[options] [--] COMMAND [ARG ...]",
        "Start COMMAND once per rank, on every host and device of the job.",
    )
    options = [row for row in OPTIONS if row[1].get("action") != "help"]  # the parser has its own
    Parser("launch", description, options=options, usage=usage, epilog=_EPILOG).print_help(stream)
