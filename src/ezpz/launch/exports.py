"""Print the job in shell words, every value quoted: the answer of ``python3 -m ezpz.cluster --sh``.

export NHOSTS=2
export DIST_LAUNCH='mpiexec -n 4 -f /tmp/ezpz-1000/job-7-n01/hosts-MPICH-3f80c2d1'
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import time

from ezpz.broken_pipe import ending_with_the_reader
from ezpz.cluster import detect, probe
from ezpz.cluster.devices import devices_on
from ezpz.cluster.probe import is_same_host
from ezpz.cluster.questions import Questions
from ezpz.cluster.scheduler import scheduler, schedulers
from ezpz.errors import EzpzError, LaunchError, end_with
from ezpz.files import own_folder, private_folder, state_folder, write_lines, write_whole
from ezpz.launch.contract import named_hosts
from ezpz.launch.options import LaunchOptions, parse
from ezpz.launch.planning import PlanBuilder, missing_job_variable
from ezpz.launch.survey import Survey, survey
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Our own variables that tell a second shell whose file it is.
OURS = ("EZPZ_SCHEDULER", "EZPZ_JOBID", "EZPZ_SITE", "EZPZ_HOSTS", "EZPZ_JOB_END")
# The user's own answers about the job's hosts, which hold in a second shell unless that has others.
CHOICES = ("EZPZ_NGPU_PER_HOST",)


def main(argv: list[str]) -> int:
    """Print the exports and return the exit code: the command line of ``python3 -m ezpz.cluster``.

    Without a launch line the rest is of use, and is printed; the exit code tells that it is missing.
    """
    if argv not in (["--sh"], ["--sh", "--second"]):
        print("usage: python3 -m ezpz.cluster --sh [--second]     (for people: ezpz where)", file=sys.stderr)
        return 2
    return ending_with_the_reader(lambda: _print(second="--second" in argv))


def _print(*, second: bool) -> int:
    try:
        lines, problem = exports(second=second)
    except EzpzError as error:
        return end_with(error)
    print("\n".join(lines))
    return end_with(problem) if problem else 0


def exports(*, second: bool = False) -> tuple[list[str], LaunchError | None]:
    """Return the lines for the job that this process is in, and why DIST_LAUNCH is empty in them, if it is.

    They are saved for a second shell.

    A host file is written where the scheduler's own is not plain: the launch line may name it later.

    Args:
        second: This is a second shell of a job: take the variables that the first one saved.

    Raises:
        EzpzError: The job's hosts cannot be found.
    """
    # What an earlier shell found is asked for anew: a job may have begun on this host since.
    environ = {name: value for name, value in os.environ.items() if name != "EZPZ_SCHEDULER"}
    asked = Questions()  # whose answers serve the second shell's question and the survey
    taken = _taken(environ, asked) if second else {}
    taken = {name: value for name, value in taken.items() if name not in CHOICES or not environ.get(name)}
    environ |= taken
    os.environ.update(taken)  # the launcher that is looked for below reads it
    surveyed = survey(parse([], environ), environ, asked)
    for note in surveyed.notes:
        _say(f"note: {note}")
    values, problem = _values(surveyed, environ)
    if asked.unanswered and not surveyed.allocation.job_id:
        values["EZPZ_SCHEDULER"] = ""  # unknown: "none" would keep `launch` from asking again
    _save(environ, surveyed, values)
    names = {*_kept_names(), *CHOICES}
    given = {name: value for name, value in taken.items() if name in names}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in {**given, **values}.items()]
    # A list of hosts that is too long for the environment of a program is still a variable of the shell; an earlier,
    # shorter one may have been exported.
    hosts = surveyed.allocation.hosts
    how = "export" if named_hosts(hosts) else "unset EZPZ_HOSTS;"
    return [*lines, f"{how} EZPZ_HOSTS={shlex.quote(','.join(hosts))}"], problem


def _values(surveyed: Survey, environ: Mapping[str, str]) -> tuple[dict[str, str], LaunchError | None]:
    allocation, devices, placement, site, _ = surveyed
    hosts = allocation.hosts
    # The name becomes a word of DIST_LAUNCH, which shells split and glob: no brackets of an array job in it.
    job = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in allocation.job_id or "none")
    folder = private_folder(f"job-{job}-{os.uname().nodename}")
    line, problem = _prefix(surveyed, folder, environ)
    values = {
        "EZPZ_SCHEDULER": allocation.scheduler,
        "EZPZ_JOBID": allocation.job_id,
        "EZPZ_SITE": site.site.name if site.site else "",
        "EZPZ_NRANKS": str(placement.world_size),
        "NHOSTS": str(len(hosts)),
        "NGPU_PER_HOST": str(devices.count),
        "NGPUS": str(sum(devices_on(devices, allocation))),
        "HOSTFILE": allocation.hostfile or write_lines(os.path.join(folder, "hostfile"), hosts),
        "DIST_LAUNCH": line,
        "LAUNCH": line,
    }
    if "RANK" not in environ:  # in a rank that is another one's
        values["WORLD_SIZE"] = str(placement.world_size)
        # `launch` reads a WORLD_SIZE as the user's choice, unless it is this one.
        values["EZPZ_WORLD_SIZE"] = "" if placement.origin == "WORLD_SIZE" else values["WORLD_SIZE"]
    return values, problem


def _prefix(surveyed: Survey, folder: str, environ: Mapping[str, str]) -> tuple[str, LaunchError | None]:
    """Return the plain launch line; empty, with the reason, where no launcher is known."""
    try:
        # A plain line starts each rank itself, whatever the site wants of `launch`.
        builder = PlanBuilder(surveyed, LaunchOptions(mpi=""), environ)
        builder.write_hostfile(folder)
        return " ".join(builder.build().prefix()), None
    except LaunchError as error:
        return "", error


def _taken(environ: Mapping[str, str], asked: Questions) -> dict[str, str]:
    """Return the scheduler's variables that an earlier shell of this host's job saved, unless this shell has its
    own.
    """
    if any(environ.get(name) for name in _kept_names()):
        return {}
    here = detect(environ, run=asked)
    if here.job_id:
        return {
            **read(state_file(environ, here.scheduler, here.job_id)),
            **missing_job_variable(scheduler(here.scheduler), here.job_id),
        }
    able = [one for one in schedulers() if one.listing]
    asked.begin([list(one.listing) for one in able], tries=1)
    answering = [one.name for one in able if asked(list(one.listing)) is not None]
    variables, path = load(environ, probe.host_name(probe.read), answering)
    if path:
        _say(f"note: job {variables.get('EZPZ_JOBID')} is taken from {path}; no scheduler was asked")
    return variables


def _save(environ: Mapping[str, str], surveyed: Survey, values: Mapping[str, str]) -> None:
    allocation = surveyed.allocation
    path = state_file(environ, allocation.scheduler, allocation.job_id) if allocation.job_id else ""
    ours = {**values, "EZPZ_HOSTS": ",".join(allocation.hosts), "EZPZ_JOB_END": str(allocation.end_time or "")}
    try:
        if path:
            save(environ, path, ours)
    except OSError as error:
        _say(f"note: a second shell will not find this job: {error}")


def _say(text: str) -> None:
    show(f"ezpz: {text}", sys.stderr)


# The file of a job, for a second shell of it. ``ezpz_setup_job`` writes it, ``ezpz_get_job_env`` takes it: on compute
# hosts without the scheduler's commands nothing else tells a shell that was opened by ssh which job it is in. One line
# of shell per variable of a fixed list, so that no secret is ever kept, and only its user can read it:
#
# export PBS_JOBID=1.head
# export EZPZ_HOSTS='n01,n02'


def _kept_names() -> set[str]:
    """Return the names of the schedulers' variables that a second shell gets."""
    return {name for one in schedulers() for name in one.second_shell}


def state_file(environ: Mapping[str, str], scheduler: str, job: str) -> str:
    """Return the path of a job's file; empty where there is no home."""
    name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in f"{scheduler}-{job}")
    base, _ = state_folder(environ)
    return os.path.join(base, "jobs", f"{name}.sh") if base else ""


def save(environ: Mapping[str, str], path: str, values: Mapping[str, str]) -> None:
    """Write the scheduler's variables of this shell and our answer, for this user alone.

    Raises:
        OSError: The folder cannot be written.
    """
    variables = {name: environ[name] for one in schedulers() for name in one.second_shell if environ.get(name)}
    variables |= {name: values[name] for name in OURS if values.get(name)}
    variables |= {name: environ[name] for name in CHOICES if environ.get(name)}
    folder = os.path.dirname(path)
    _forget_old(own_folder(*os.path.split(folder)))
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    write_whole(path, "".join(lines), private=True)


def load(environ: Mapping[str, str], host: str, unknown_to: Iterable[str] = ()) -> tuple[dict[str, str], str]:
    """Return what the newest saved job that holds a host left for a second shell, and its file; empty when there is
    none.

    Args:
        environ: Tells where states are kept.
        host: This host's name.
        unknown_to: Schedulers that were asked and know of no job here: a saved job of theirs is over.
    """
    folder = os.path.join(state_folder(environ)[0], "jobs")
    try:
        paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".sh")]
        paths.sort(key=os.path.getmtime, reverse=True)
    except OSError:
        return {}, ""
    for path in paths:
        variables = read(path)
        end = variables.get("EZPZ_JOB_END", "")
        if (end.isdigit() and int(end) < time.time()) or variables.get("EZPZ_SCHEDULER", "") in unknown_to:
            continue
        if any(is_same_host(host, name) for name in variables.get("EZPZ_HOSTS", "").split(",")):
            return variables, path
    return {}, ""


def read(path: str) -> dict[str, str]:
    """Return the variables of a file; none when it is not the user's own, others may write it, or it holds anything
    else.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return {}
            lines = [shlex.split(line) for line in file]
    except (OSError, ValueError):  # ValueError: an unbalanced quote, text that is not UTF-8
        return {}
    allowed = {*_kept_names(), *OURS, *CHOICES}
    variables = {}
    for words in lines:
        name, equals, value = words[1].partition("=") if len(words) == 2 and words[0] == "export" else ("", "", "")
        if not equals or name not in allowed:
            return {}
        variables[name] = value
    return variables


def _forget_old(folder: str) -> None:
    """Remove files of a month ago: jobs are shorter."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.getmtime(path) < time.time() - 30 * 86400:
            os.remove(path)
