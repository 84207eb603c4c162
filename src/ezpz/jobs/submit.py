"""Run ``ezpz submit``: write the job file for a command, check what the scheduler would refuse, and queue it."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import time
from argparse import REMAINDER, ArgumentTypeError
from contextlib import suppress
from pathlib import Path

from ezpz import durations
from ezpz.cli_parser import option, positive_float, positive_int, run_verb, show_help_alone
from ezpz.cluster import SCHEDULERS, detect, probe
from ezpz.cluster.programs import find
from ezpz.cluster.scheduler import scheduler, schedulers
from ezpz.cluster.site import load, recognise
from ezpz.cluster.site_shell import shell_functions
from ezpz.errors import EzpzError, MachineError, UsageError, end_with, nearest
from ezpz.fields import Record
from ezpz.files import find_program, make_closed_folder, write_whole
from ezpz.jobs import refusals
from ezpz.jobs.job_file import (
    WITHOUT_SCHEDULER,
    Asked,
    JobFile,
    clock,
    hosts_of,
    options,
    queue_option,
    read_option,
    resources,
    unfilled,
    value_of,
)
from ezpz.jobs.job_handler import HANDLED, handler, lack
from ezpz.jobs.queued_jobs import NotQueuedError
from ezpz.jobs.submit_words import BEHIND, translate
from ezpz.launch.command import refuse_other_launchers, why_missing, with_python
from ezpz.launch.options import parse
from ezpz.verbs import make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence

    from ezpz.cluster.scheduler import Scheduler
    from ezpz.cluster.site import Site
    from ezpz.jobs.job_file import Option
    from ezpz.jobs.job_handler import JobScript, Queues

_MOST_JOBS = 10  # of a chain, where nothing else is given
_PATIENCE = 10.0  # seconds for the scheduler to tell its limits
_CHAIN_FILE = "chain.json"
_NAME = r"[A-Za-z][A-Za-z0-9._-]{0,63}"
_NO_SCHEDULER = "none"


def _seconds(text: str) -> int:
    try:
        seconds = durations.read_of_job(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if seconds is None or seconds < 1:
        raise ArgumentTypeError(f"{text!r} is no time of a job; expected e.g. 30m, 6h, 1d, HH:MM:SS or D-HH:MM:SS")
    return int(seconds)


def _job_name(text: str) -> str:
    if not re.fullmatch(_NAME, text):
        raise ArgumentTypeError(
            f"{text!r} is no name of a job; expected a letter, then letters, digits, dots, - and _ (64 at most)"
        )
    return text


def _word(text: str) -> str:
    if not re.fullmatch(r"[^\s'\"\\#$`;&|<>]+", text):
        raise ArgumentTypeError(f"{text!r} is no such name; expected one word without quotes")
    return text


def _job_option(text: str) -> str:
    if not text.startswith("-") or not text.isprintable():
        raise ArgumentTypeError(
            f"{text!r} is no option of a job; expected e.g. --gpus-per-node=4 or '-l place=scatter'"
        )
    return text


def _scheduler(text: str) -> str:
    if text in SCHEDULERS and text not in HANDLED:
        raise ArgumentTypeError(lack(text, "submit"))
    return text


_USAGE = "[options] [--] COMMAND ..."
_JOB, _CHAIN = "what the job asks for", "a training of several jobs"
_OPTIONS = (
    option("--nhosts", type=positive_int, default=1, metavar="N", group=_JOB, help="how many hosts"),
    option(
        "--time",
        type=_seconds,
        default="1h",
        metavar="TIME",
        group=_JOB,
        help="its longest time: 30m, 6h, 1d, HH:MM:SS, 1-12:00:00; no bare number",
    ),
    option("-A", "--account", type=_word, metavar="ACCOUNT", group=_JOB, help="account that is charged"),
    option(
        "-q", "--queue", type=_word, metavar="QUEUE", group=_JOB, help="queue, partition or QOS, as the site calls it"
    ),
    option(
        "--filesystems",
        type=_word,
        metavar="LIST",
        group=_JOB,
        help="file systems that the job needs, where the site asks for them: home:eagle",
    ),
    option(
        "--name", type=_job_name, metavar="NAME", group=_JOB, help="its name; that of the script or program by default"
    ),
    option(
        "-O",
        "--option",
        dest="more",
        type=_job_option,
        action="append",
        default=[],
        metavar="OPTION",
        group=_JOB,
        help="one more option of the scheduler's, as a job file has it: -O=--gpus-per-node=4; repeatable",
    ),
    option("--jobs", type=positive_int, metavar="N", group=_CHAIN, help="at most N jobs, one after the other"),
    option(
        "--until-done",
        action="store_true",
        group=_CHAIN,
        help=f"queue further jobs until the training is done: at most --jobs, {_MOST_JOBS} if that is not given",
    ),
    option(
        "--node-hours",
        type=positive_float,
        metavar="H",
        group=_CHAIN,
        help="all jobs together ask for at most so many hosts times hours",
    ),
    option("--output", default="", metavar="DIR", help="folder for the job file and the job's output"),
    option("--venv", default=None, metavar="DIR", help="virtual environment of the job; the present one by default"),
    option("--site", metavar="SITE", help="write it for this site of `ezpz sites`"),
    option(
        "--scheduler",
        type=_scheduler,
        choices=(*HANDLED, _NO_SCHEDULER),
        help="write it for this scheduler, on no site",
    ),
    option("--force", action="store_true", help="submit what is refused for a limit, a folder or a chain"),
    option("--json", action="store_true", help="print path, ids and folder as one JSON object"),
    option("--dry-run", action="store_true", help="print the job file; make and submit nothing"),
    option("command", nargs=REMAINDER, metavar="COMMAND", help="what launch starts on every rank"),
)
_ABOUT = """\
The job file asks for what the site wants, sets up a Python as `ezpz_setup_env` does, and starts COMMAND under launch
in this folder. Its path and the job's id are printed. What the scheduler would refuse, or never start, is refused
before anything is queued. Options of sbatch and qsub are understood as well: -N 2, -p QUEUE, -l select=2."""
_EXAMPLES = (
    ("ezpz submit --nhosts 2 --time 6h -A PROJECT -- python3 train.py", "queue one job"),
    ("ezpz submit --until-done --time 6h -A PROJECT -- python3 train.py", "and the next ones until it is done"),
    ("ezpz submit --dry-run --site frontier -- python3 train.py", "look at a job file for another machine"),
)
_EXITS = (
    ("0", "queued, or printed"),
    ("2", "refused: the line says what to type"),
    ("125", "no scheduler here, or it has not taken the job"),
)


def main(argv: Sequence[str]) -> int:
    """Write and queue a job, print its file and its id, and return the exit code."""
    parser = make_verb_parser(
        "submit", _OPTIONS, _ABOUT, usage=_USAGE, examples=_EXAMPLES, exits=_EXITS, allow_abbrev=False
    )
    if not argv:
        return show_help_alone(parser)
    try:
        words, notes = translate(argv, _own_options())
    except UsageError as error:
        return end_with(error)
    return run_verb(parser, words, lambda asked: _submit(asked, words, os.environ, notes))


def _own_options() -> dict[str, bool]:
    """Return our options, and whether a value follows each."""
    rows = {name: keywords for names, keywords in _OPTIONS for name in names if name.startswith("-")}
    flags = {name: keywords.get("action") != "store_true" for name, keywords in rows.items()}
    return {**flags, "-h": False, "--help": False}


class _Machine(Record):
    """For which machine a job is written, who says so, and whether it is this one."""

    scheduler: str
    site: Site | None
    origin: str
    is_here: bool

    @property
    def around(self) -> Scheduler:
        """The scheduler."""
        return scheduler(self.scheduler)

    @property
    def kind(self) -> JobScript:
        """How its job files are written."""
        known = handler(self.scheduler)
        return known.script if known else WITHOUT_SCHEDULER

    @property
    def title(self) -> str:
        """What people call it."""
        if self.site:
            return f"{self.site.name} ({self.site.centre})" if self.site.centre else self.site.name
        return f"any {self.around.title} cluster"


def _submit(asked: Namespace, argv: list[str], environ: Mapping[str, str], notes: Sequence[str]) -> int:
    command = _command(asked.command, argv[: len(argv) - len(asked.command)])
    machine = _machine(asked, environ)
    asked.queue, of_queue = _queue_of_site(asked, machine)
    job = _asked(asked, machine, command, environ)
    found = options(machine.kind, machine.site, job, template=False)
    is_chain = asked.until_done or asked.jobs is not None or asked.node_hours is not None
    _check_options(machine, job, is_chain=is_chain)
    if not asked.dry_run:
        _refuse_another(machine, environ)
    folder = _folder(asked.output, job.name, is_chain=is_chain)
    jobs = _most_jobs(asked) if is_chain else 1
    kept_in = "" if asked.dry_run and not is_chain else folder
    for note in [*notes, *of_queue]:
        _note(note)
    _check(asked, machine, found, job, command, folder=kept_in, is_chain=is_chain)
    if not asked.dry_run:
        job = _with_folder(job, folder)
        found = options(machine.kind, machine.site, job)
    chain = str(Path(folder).absolute()) if is_chain else ""
    is_own = machine.is_here or not machine.kind.program  # else paths of this machine mean nothing there
    file = JobFile(
        kind=machine.kind,
        site=machine.site,
        title=machine.title,
        options=tuple(found),
        command=command,
        utils=_below(shell_functions()),
        venv=_venv(asked.venv, environ) if is_own or asked.venv else "",
        conda=_conda(environ) if is_own and asked.venv is None else "",
        chain=chain,
        programs=_folder_of_programs(machine.kind, environ) if machine.is_here else "",
    )
    if asked.dry_run:
        paths = [path for path in (file.utils, file.chain) if Path(path).is_absolute() and not is_own]
        if paths:
            _note(
                f"{' and '.join(paths)} in it: of this machine. Write the like of {machine.title}, where `ezpz shell` "
                "tells the first, and name its environment with --venv"
            )
        show(file.text().rstrip("\n"))
        return 0
    path = f"{folder}/{job.name}{Path(machine.kind.file).suffix}"
    made = [each for each in (Path(folder), *Path(folder).parents) if not each.exists()]
    _write(path, file.text())
    if is_chain:
        hours = jobs * job.hosts * job.seconds / 3600
        each = f"{job.hosts} host{'s' * (job.hosts > 1)} and {clock(job.seconds)}"
        _note(f"at most {jobs} job{'s' * (jobs > 1)} of {each}: {_rounded(hours)} node-hours")
    written = f"{path}: written for {machine.title} ({machine.origin})"
    output = ("", "") if asked.json else (written, _place(found, machine, job))
    try:
        ids = _queue(path, machine, job, jobs=jobs if is_chain else 0, output=output)
    except NotQueuedError:
        _forget(path, made)
        raise
    if asked.json:
        show(json.dumps({"file": path, "folder": folder, "jobs": ids, "chain": is_chain}))
    return 0


def _command(words: list[str], front: list[str]) -> tuple[str, ...]:
    """Return what launch starts: the words behind --, and behind `launch` where they begin with it.

    Args:
        words: What is behind our options; it may begin with --.
        front: Our options, as they were given.

    Raises:
        UsageError: There are none, they hold options of ours, launch would refuse them, or the script is not there.
    """
    is_marked = "--" in (*words[:1], *front[-1:])
    words = words[words[:1] == ["--"] :]
    front = front[: len(front) - (front[-1:] == ["--"])]
    for start in (["launch"], ["ezpz", "launch"]):
        if words[: len(start)] == start:
            words = words[len(start) :]
    options_of_launch = parse(words, {}) if words and words[0].startswith("-") else None
    program = list(options_of_launch.command) if options_of_launch else words
    if not program:
        raise UsageError(
            "no command (from the command line); expected `ezpz submit [options] -- COMMAND`, such as "
            "`ezpz submit --time 1h -- python3 train.py`."
        )
    if options_of_launch and not options_of_launch.starts_ranks:
        raise UsageError(
            f"an option of launch that runs nothing: {shlex.join(words)} (from the command line); expected a job that "
            "trains. Leave out --dry-run, --explain or --json of launch."
        )
    refuse_other_launchers(program, shlex.join(["ezpz", "submit", *front, "--"]))
    if not is_marked:
        _refuse_own_options(program, words[: len(words) - len(program)], front)
    if _is_python(program[0]):
        script = _script(program)
        options_only = program[1 : program.index(script)] if script else []
        if script.endswith(".py") and not {"-m", "-c", "-W", "-X"} & set(options_only) and not Path(script).exists():
            raise UsageError(
                f"no such script: {script} in {Path.cwd()} (from the command line); expected a file there, because the "
                "job runs in this folder. Correct the path, or call this in its folder."
            )
    return tuple(words)


def _refuse_own_options(program: list[str], of_launch: list[str], front: list[str]) -> None:
    """Refuse options of ours behind a command without --: whose they are meant to be is not known.

    Args:
        program: The command.
        of_launch: Options of launch in front of it.
        front: Our options.

    Raises:
        UsageError: There is one.
    """
    own = {**_own_options(), **dict.fromkeys(BEHIND, True)}
    begins = program.index(_script(program)) if _is_python(program[0]) and _script(program) else 0
    moved: list[str] = []
    kept, index = program[: begins + 1], begins + 1
    end = program.index("--", index) if "--" in program[index:] else len(program)  # all behind is the command's own
    while index < end:
        name, equals, _ = program[index].partition("=")
        taken = 1 + (not equals and own.get(name, False))
        value = program[index + 1] if index + 1 < end else "-"
        is_ours = name in own and (taken == 1 or not value.startswith("-"))  # else it lacks the value of ours
        (moved if is_ours else kept).extend(program[index : index + taken])
        index += taken
    kept += program[index:]
    if not moved:
        return
    ours, whole = ["ezpz", "submit", *front], [*of_launch, *program]
    missing = _why_missing(_program(program)[0], None)
    if missing:
        raise UsageError(f"{missing} Write `{shlex.join([*ours, *moved, '--'])} COMMAND`.")
    raise UsageError(
        f"{moved[0]} stands behind the command (from the command line), whose own it would be; expected options of "
        f"`ezpz submit` in front of it. Write `{shlex.join([*ours, *moved, '--', *of_launch, *kept])}`, or, if it is "
        f"the command's own, `{shlex.join([*ours, '--', *whole])}`."
    )


def _is_python(program: str) -> bool:
    return re.fullmatch(r"python[0-9.]*", Path(program).name) is not None


def _script(program: Sequence[str]) -> str:
    """Return the first word behind a Python that is no option: its script, or the name of its module."""
    return next((word for word in program[1:] if not word.startswith("-")), "")


def _program(words: Sequence[str]) -> list[str]:
    """Return the program and its words behind the options of launch, as `launch` starts them."""
    command = parse(list(words), {}).command if words[0].startswith("-") else words
    return with_python(command, os.environ)


def _why_missing(program: str, venv: str | None) -> str:
    """Return why a program is not on this machine, nor in the environment of the job; empty where it is.

    Args:
        program: The first word of the command.
        venv: The environment that the user names.
    """
    folders = filter(None, (venv, os.environ.get("VIRTUAL_ENV"), sys.prefix))
    if _is_python(program) or any(find_program(f"{folder}/bin/{program}") for folder in folders):
        return ""  # the job's environment has a Python of any name
    return why_missing(program, "ezpz submit … --")[0]


def _check_program(command: Sequence[str], venv: str | None) -> None:
    """Refuse a program that is missing, which a module of the job may bring.

    Raises:
        UsageError: It is not there, or no program.
    """
    reason = _why_missing(_program(command)[0], venv)
    if reason:
        raise UsageError(f"{reason}{refusals.FORCE}")


def _machine(asked: Namespace, environ: Mapping[str, str]) -> _Machine:
    """Return for which machine the job is written.

    Raises:
        UsageError: There is no such site, or its scheduler has no job files here.
        MachineError: There is no scheduler, or there are variables of two sites.
    """
    if asked.site and asked.scheduler:
        raise UsageError(
            f"both --site {asked.site} and --scheduler {asked.scheduler} (from the command line); expected one of "
            "them. Leave out one."
        )
    if asked.scheduler:
        has = find(_kind_of(asked.scheduler, "--scheduler").program or "-", environ)
        return _Machine(asked.scheduler, None, "from --scheduler", bool(has))
    match = recognise(environ, probe.read, environ.get("EZPZ_JOBID", "")) if not asked.site else None
    site = _site(asked.site, environ) if asked.site else match.site if match else None
    if site is not None:
        program = _kind_of(site.scheduler, f"site {site.name}").program or "-"
        here = bool(find(program, environ))
        if asked.site:
            now = recognise(environ, probe.read).site
            here = here and (now is None or now.name == site.name)
        return _Machine(site.scheduler, site, f"from {match.origin}" if match else "from --site", here)
    try:
        job = detect(environ, probe.read, probe.run_nothing)
    except MachineError:  # the job's hosts, which are not needed here
        for one in (one for one in schedulers() if one.is_marked(environ)):
            _kind_of(one.name, "this job")
        raise
    if job.scheduler in SCHEDULERS:
        program = _kind_of(job.scheduler, "this job").program
        return _Machine(job.scheduler, None, f"from {job.origin.get('scheduler')}", bool(find(program, environ)))
    programs = {name: _kind_of(name, "PATH").program for name in HANDLED}
    clients = [name for name, program in programs.items() if find(program, environ)]
    if clients:
        name = _answering(clients)
        return _Machine(name, None, f"{programs[name]} is here", True)
    for one in schedulers():
        if found := [program for program in (*one.programs, *one.commands) if find(program, environ)]:
            _kind_of(one.name, f"{found[0]} on PATH")
    raise MachineError(
        f"no scheduler here: {' and '.join(programs.values())} are not on PATH (from PATH); expected a login host of a "
        "cluster. "
        "Run it here with `launch COMMAND`, or look at a job file with `ezpz submit --dry-run --site SITE -- COMMAND`."
    )


def _answering(names: Sequence[str]) -> str:
    """Return the first of some schedulers that tells its queues, else the first: a client alone may be left over."""
    from ezpz.cluster.questions import Questions

    known = [one for one in map(handler, names) if one is not None] if names[1:] else []
    return next((one.name for one in known if one.queues(one.script.queues[0], Questions(_PATIENCE))), names[0])


def _refuse_another(machine: _Machine, environ: Mapping[str, str]) -> None:
    """Refuse to queue with a program of another scheduler that is called as the one of this.

    Raises:
        UsageError: It is here.
    """
    from ezpz.cluster.questions import Questions

    known = handler(machine.scheduler) if machine.is_here else None
    other = known.is_another(environ, Questions(_PATIENCE)) if known else ""
    if known and other:
        raise UsageError(
            f"{known.script.program} here is that of {other} (from its variables, and because no queue of "
            f"{machine.around.title} is known here); expected {machine.around.title}. ezpz does not submit jobs of "
            f"{other}; write the job script yourself and call `launch` inside it."
        )


def _kind_of(name: str, who: str) -> JobScript:
    if name == _NO_SCHEDULER:
        return WITHOUT_SCHEDULER
    known = handler(name)
    if known is None:
        others = " or ".join(HANDLED)
        raise UsageError(f"{lack(name, 'submit')} (from {who}), or name {others} with --scheduler to see their files.")
    return known.script


def _site(name: str, environ: Mapping[str, str]) -> Site:
    sites = load(environ, probe.read)
    if name not in sites:
        near = nearest(name, sites, 3)
        raise UsageError(
            f"unknown site: {name!r} (from --site); expected a name of `ezpz sites`"
            f"{'; near it: ' + ', '.join(near) if near else ''}."
        )
    return sites[name]


def _queue_of_site(asked: Namespace, machine: _Machine) -> tuple[str, list[str]]:
    """Return the queue of a job for another machine, and what to say of it where the usual one does not take it."""
    site = machine.site
    given = any(read_option(text, machine.kind).name in machine.kind.queues for text in asked.more)
    known = refusals.queues_of_site(site, asked.nhosts) if site and not machine.is_here else None
    if asked.queue or given or site is None or known is None:
        return asked.queue or "", []
    found = [read_option(line, machine.kind) for line in site.job]
    usual = value_of(found, queue_option(machine.kind, site))
    fits = refusals.fitting_queue(known, usual, asked.nhosts, asked.time)
    if fits in {usual, ""}:
        return "", []
    hosts = f"{asked.nhosts} host{'s' * (asked.nhosts > 1)}"
    return fits, [f"queue {fits} in place of {usual}, which takes no {hosts} for {clock(asked.time)} ({known.origin})"]


def _asked(asked: Namespace, machine: _Machine, command: Sequence[str], environ: Mapping[str, str]) -> Asked:
    kind = machine.kind
    if asked.filesystems and not kind.filesystems:
        raise UsageError(
            f"--filesystems {asked.filesystems} (from the command line) is not asked for by {machine.around.title}; "
            "expected none. Name what the site wants with -O, such as `-O=--licenses=scratch`."
        )
    account = asked.account or (environ.get(kind.account_variable, "") if kind.account_variable else "")
    return Asked(
        hosts=asked.nhosts,
        seconds=asked.time,
        name=asked.name or _name_of(command),
        account=account,
        queue=asked.queue or "",
        filesystems=asked.filesystems or "",
        more=(*_outliving(machine.around, command), *asked.more),
    )


def _outliving(around: Scheduler, command: Sequence[str]) -> tuple[str, ...]:
    """Return the option without which the job would end with the first host that dies, where launch is to go on."""
    goes_on = command[0].startswith("-") and parse(list(command), {}).attempts > 1
    return (around.outliving,) if goes_on and around.outliving else ()


def _check_options(machine: _Machine, job: Asked, *, is_chain: bool) -> None:
    """Refuse further options of another scheduler, or for other hosts or another time than is checked and counted.

    Raises:
        UsageError: One does.
    """
    kind = machine.kind
    for text in job.more:
        if kind.foreign and text.startswith(kind.foreign):
            raise UsageError(
                f"{text} (from -O) is no option of {machine.around.title}; expected one that {kind.program} takes. "
                "Leave it out, or name what it asks for in that scheduler's words."
            )
        for one in resources(read_option(text, kind)):
            if one.name == kind.hosts and hosts_of(one.value) != job.hosts:
                wanted, flag = f"--nhosts {job.hosts}", "--nhosts N"
            elif one.name == kind.time and one.value != clock(job.seconds):
                wanted, flag = f"--time {clock(job.seconds)}", "--time TIME"
            elif is_chain and one.name in kind.arrays:
                raise UsageError(
                    f"an array in a chain: {text} (from -O); expected one job at a time, which trains further than the "
                    "one before. Leave it out, or leave out --jobs, --until-done and --node-hours."
                )
            else:
                continue
            raise UsageError(
                f"{text} (from -O) is not {wanted}; expected the same in both, because limits and node-hours are "
                f"counted from the latter. Say it with `{flag}`."
            )


def _with_folder(job: Asked, folder: str) -> Asked:
    from ezpz.fields import replace

    return replace(job, folder=f"{folder}/")


def _name_of(command: Sequence[str]) -> str:
    """Return the name of a command's script or module, else that of its program.

    It is train of ``python3 train.py`` and of ``bash train.sh``, and fsdp of ``python3 -m a.fsdp``.
    """
    program, *words = _program(command)
    name = program
    script = next((word for word in words if not word.startswith("-")), "")
    if "-m" in words[:-1] and not script.endswith(".py"):
        name = words[words.index("-m") + 1].rpartition(".")[2]
    elif "-c" not in words and Path(script).suffix in {".py", ".sh"}:
        name = script[:-3]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", Path(name).name)[:64]
    return name if re.fullmatch(_NAME, name) else f"job-{name}"[:64]


def _folder(output: str, name: str, *, is_chain: bool) -> str:
    """Return the folder for the job file and the job's output, which is not there yet unless the user has named it.

    Raises:
        UsageError: It is that of another chain.
    """
    if output:
        folder = output.rstrip("/") or "/"
        if is_chain and Path(folder, _CHAIN_FILE).exists():
            raise UsageError(
                f"a chain is in {folder} already (from --output, where {_CHAIN_FILE} is); expected a folder of its "
                "own for each. Name another with --output, or leave it out."
            )
        return f"./{folder}" if folder.startswith("-") else folder
    base = f"outputs/{name}/{'chain' if is_chain else 'job'}-{time.strftime('%Y-%m-%d-%H%M%S')}"
    taken = [number for number in range(2, 1000) if not os.path.lexists(f"{base}-{number}")]
    return base if not os.path.lexists(base) else f"{base}-{taken[0]}"


def _rounded(hours: float) -> str:
    """Return node-hours as people write them, 0.83 or 1234.5; what is less than 0.01 to one digit."""
    return f"{hours:.2f}".rstrip("0").rstrip(".") if hours >= 0.01 else f"{hours:.1g}"


def _most_jobs(asked: Namespace) -> int:
    """Return how many jobs a chain may have.

    Raises:
        UsageError: Not even one is within --node-hours.
    """
    most: int = asked.jobs or _MOST_JOBS
    if asked.node_hours is None:
        return most
    each = asked.nhosts * asked.time / 3600
    within = int(asked.node_hours / each + 1e-9)
    if within < 1:
        raise UsageError(
            f"too little: --node-hours {asked.node_hours:g} (from the command line); expected at least "
            f"{_rounded(math.ceil(round(each * 100, 6)) / 100)}, which one job of {asked.nhosts} hosts and "
            f"{clock(asked.time)} asks for. Raise it, or shorten --time."
        )
    return min(most, within)


def _check(
    asked: Namespace,
    machine: _Machine,
    found: list[Option],
    job: Asked,
    command: Sequence[str],
    *,
    folder: str,
    is_chain: bool,
) -> None:
    """Refuse what would be refused later, or would never run; say what is only advised against.

    Raises:
        UsageError: Something is wrong, and --force does not pass it.
    """
    kind, site = machine.kind, machine.site
    notes: list[str] = []  # printed when nothing is refused, so that a refusal is one line

    def unless_forced(check: Callable[[], None]) -> None:
        try:
            check()
        except UsageError as error:
            if not (asked.force or asked.dry_run):
                raise
            passed = "--force" if asked.force else "this would be refused"
            notes.append(f"{passed}: {refusals.without_hint(error)}")

    who = f"the table of site {site.name}" if site and site.job else "the command line"
    missing = unfilled(found)
    flags = {kind.account: "-A", queue_option(kind, site): "-q"}
    if missing and asked.dry_run:
        notes.append(f"to be filled in: {', '.join(option.line() for option in missing)}")
    else:
        refusals.check_filled_in(missing, kind.program, flags, who)
    notes += _about_account(machine, job.account)
    queue = value_of(found, queue_option(kind, site))
    origin = "-q" if asked.queue else who
    limits = _limits(machine, job.hosts)
    if limits is not None and (machine.is_here or queue in limits.by_name):
        unless_forced(lambda: refusals.check_queue(limits, queue, origin, job.hosts, job.seconds))
    elif not asked.dry_run:
        name = queue or "(the default one)"
        notes.append(f"the limits of queue {name} were not checked: {machine.around.title} did not tell them")
    if machine.is_here:
        folders = [(str(Path.cwd()), "the working folder"), *_output_of(command)]
        folders += [(folder, "--output")] * bool(folder)
        user = os.environ.get("USER", "")
        unless_forced(lambda: _check_program(command, asked.venv))
        unless_forced(lambda: refusals.check_shared(folders, site, user, probe.read))
    if is_chain:
        words = refusals.about_chain(site, queue)
        unless_forced(lambda: refusals.check_chain(words, queue, site))
        if words:
            notes.append(f"about chains in queue {queue}: {words}")
    if not asked.dry_run and not machine.is_here:
        raise _not_here(machine)
    for note in notes:
        _note(note)


def _not_here(machine: _Machine) -> MachineError:
    program = machine.kind.program
    if not program:
        return MachineError(
            "nothing to queue with: --scheduler none writes a script for the machine in front of you (from the command "
            "line); expected --dry-run with it, which prints the script. Add `--dry-run`."
        )
    return MachineError(
        f"{program} of {machine.title} is not here ({machine.origin}); expected a login host of that machine. Add "
        "`--dry-run` to print the job file."
    )


def _limits(machine: _Machine, hosts: int) -> Queues | None:
    """Return the queues of a machine: from its scheduler where it is here, else from the site's table."""
    from ezpz.cluster.questions import Questions

    if not machine.is_here:
        return refusals.queues_of_site(machine.site, hosts) if machine.site else None

    known = handler(machine.scheduler)
    return known.queues(queue_option(machine.kind, machine.site), Questions(_PATIENCE)) if known else None


def _output_of(command: Sequence[str]) -> list[tuple[str, str]]:
    """Return the run folder that the command's own words name, where they do."""
    found = []
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in {"--outdir", "outdir"} and (equals or following):
            found.append((value if equals else following, f"{name} of the command"))
    return found


def _about_account(machine: _Machine, account: str) -> list[str]:
    """Return what is odd of an account: those of GPU hosts may have an ending of their own."""
    site, kind = machine.site, machine.kind
    if not account or site is None:
        return []
    wanted = next((found.value for line in site.job if (found := read_option(line, kind)).name == kind.account), "")
    ending = wanted.partition("_")[2]
    if not ending or account.endswith(f"_{ending}"):
        return []
    return [f"account {account} does not end with _{ending}, as {site.name} has it for these hosts (from {wanted})"]


def _below(path: str) -> str:
    """Return a path from the working folder where it is below it."""
    here = f"{str(Path.cwd()).rstrip('/')}/"
    return path.removeprefix(here) if path.startswith(here) else path


def _folder_of_programs(kind: JobScript, environ: Mapping[str, str]) -> str:
    """Return the folder of the program that submits jobs, where one that launch needs lies beside it; else nothing."""
    program = find(kind.program, environ)
    folders = dict.fromkeys(str(path.parent) for path in (Path(program), Path(program).resolve()) if program)
    return next((folder for folder in folders if kind.beside and find_program(f"{folder}/{kind.beside}")), "")


def _venv(given: str | None, environ: Mapping[str, str]) -> str:
    """Return the virtual environment of the job; empty for .venv of the working folder, which is found without."""
    if given is None:
        given = environ.get("VIRTUAL_ENV") or (sys.prefix if sys.prefix != sys.base_prefix else "")
    path = _below(os.path.normpath(given)) if given else ""
    return "" if path == ".venv" else path


def _conda(environ: Mapping[str, str]) -> str:
    """Return the user's own conda environment whose Python this is; empty in another, and in one of the site's."""
    folder = environ.get("CONDA_PREFIX", "")
    own = folder and not environ.get("VIRTUAL_ENV") and os.access(folder, os.W_OK)
    return folder if own and Path(sys.prefix) == Path(folder) else ""


def _write(path: str, text: str) -> None:
    """Write a file into the job's folder, which is made.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        make_closed_folder(Path(path).parent)
        write_whole(path, text, closed=True)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror} (from the working folder, or --output); expected a folder that you "
            "may write, with space. Call it in another one, or name one with --output."
        ) from None


def _forget(path: str, made: Sequence[Path]) -> None:
    """Remove the file of a job that was not queued, and the folders that were made for it, the innermost first."""
    with suppress(OSError):
        for each in (Path(path), Path(path).with_name(_CHAIN_FILE)):
            each.unlink(missing_ok=True)
        for folder in made:
            folder.rmdir()


def _place(found: list[Option], machine: _Machine, job: Asked) -> str:
    """Return where a job waits and where its output will be, in words, with ``{job}`` for its id."""
    kind = machine.kind
    queue = value_of(found, queue_option(kind, machine.site))
    output = kind.written_to.replace("{folder}", job.folder).replace("{name}", job.name)
    if any(read_option(line, kind).name in {kind.output, kind.name} for line in job.more):
        output = value_of(found, kind.output)  # the user's own
    return (
        f"queued{f' in {queue}' if queue else ''} for {job.hosts} host{'s' * (job.hosts > 1)} and "
        f"{clock(job.seconds)}; output: {output}"
    )


def _queue(path: str, machine: _Machine, job: Asked, *, jobs: int, output: tuple[str, str]) -> list[str]:
    """Queue the job, and all of a chain whose jobs cannot queue the next; return their ids.

    Args:
        path: The job file.
        machine: Where it is queued.
        job: What it asks for.
        jobs: How many a chain may have; 0 for a job alone.
        output: What to say of the file, and of the first job, with ``{job}`` for its id; empty to print nothing.
    """
    from ezpz.jobs.queued_jobs import submit

    all_at_once = machine.site is not None and machine.site.job_submits == "no"
    facts = {
        "file": Path(path).name,
        "jobs": jobs,
        "queued_at_once": all_at_once,
        "hosts": job.hosts,
        "seconds": job.seconds,
    }
    ids: list[str] = []
    if jobs:  # before the first job, which may start at once
        _keep_chain(path, facts, ids)
    for number in range(jobs if all_at_once and jobs else 1):
        try:
            ids.append(submit(path, after=ids[-1] if ids else ""))
        except MachineError as error:
            if not number:
                raise
            raise _take_back(path, machine, facts, ids, error) from None
        if jobs:
            _keep_chain(path, facts, ids)
        of_file, of_job = output
        if of_file and not number:
            show(of_file)
        if of_job:
            show(f"{ids[-1]}: {f'queued after {ids[-2]}' if number else of_job.replace('{job}', ids[0])}")
    return ids


def _take_back(
    path: str, machine: _Machine, facts: Mapping[str, object], ids: Sequence[str], error: EzpzError
) -> MachineError:
    """Cancel the jobs of a chain that cannot be queued as a whole, and return what to say."""
    from ezpz.jobs.queued_jobs import cancel

    left = cancel(machine.scheduler, ids[::-1])
    _keep_chain(path, facts, [job for job in ids if job in left])
    still = "".join(f" Job {job} still waits ({problem}): cancel it." for job, problem in left.items())
    return MachineError(
        f"of {facts['jobs']} jobs {len(ids)} were queued, and are cancelled, because the next is {error} For a chain "
        f"of those add `--jobs {len(ids)}`.{still}"
    )


def _keep_chain(path: str, facts: Mapping[str, object], ids: Sequence[str]) -> None:
    """Write what the chain is, and the jobs that are queued so far, beside the job file."""
    text = json.dumps({**facts, "ids": list(ids)}, indent=1)
    _write(str(Path(path).with_name(_CHAIN_FILE)), f"{text}\n")


def _note(text: str) -> None:
    show(f"ezpz: {text}", sys.stderr)
