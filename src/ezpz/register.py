"""Find this user's launches: those that are recorded, and which of them run on this host or on another.

    ~/.local/state/ezpz/launches/2026-11-21-191256-5f3a90c2/run.json    a record (`ezpz.launch.record`)
    ~/.local/state/ezpz/launches/2026-11-21-191259-77aa0000             a link to one of --log-dir
    /tmp/ezpz-1000/records/…                                            both, where the home cannot be written
    @ezpz-launch-1000-8c736521-5f3a90c2                                 the socket of a running launch

A record says which process the launcher is: its pid, when it was born, because pids come again, and the table of
processes in which that holds, because hosts and containers share homes. Linux lists the sockets of this network
namespace (/proc/net/unix). Their names begin with the user's number and that of the folder of records, and they tell of
what no record does: a launch whose disk is full, one that lost its --log-dir to a later one, one in a container here.
"""

from __future__ import annotations

import os
import re
import sys
import time

from ezpz import proc
from ezpz.errors import UsageError
from ezpz.fields import Record, replace
from ezpz.files import LARGEST, open_regular, own_place, private_folder, state_folder, temporary_place

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Protocol

    from ezpz.records.launch_record import LaunchRecord

    class KnownJob(Protocol):
        """A job of this user that a scheduler knows: `ezpz.jobs.job_state.Job`."""

        @property
        def job(self) -> str: ...
        @property
        def state(self) -> str: ...
        @property
        def scheduler(self) -> str: ...
        def is_called(self, word: str) -> bool: ...
        def began_after(self, when: float) -> bool: ...


IN_HOME, IN_TEMPORARY = "launches", "records"  # folders of records: of the state folder, and of $TMPDIR/ezpz-UID
SHORTEST = 4  # characters of an id that may stand for it
_LISTED = 4  # names that an error shows
_LONGEST = 30 * 86400.0  # seconds: a launch that says it is running for longer was lost with its host
_LATE = 600.0  # seconds after the time of its job in which a launch may still end
_HEAD, _MORE = 512, 1 << 16  # bytes of a record that tell state and start, in ours and in those of older releases
_SKEW = 3600.0  # seconds by which clocks of hosts may differ
_STARTED = rb'"started": ?([0-9]{1,11}(?:\.[0-9]+)?)'  # compiled when it is first looked for
_STATE = rb'"state": ?"([a-z]+)"'


class Head(Record):
    """What the first bytes of a record tell.

    Attributes:
        started: When its launch began, in seconds since 1970.
        path: Its ``run.json``.
        is_running: Whether it tells of no end.
    """

    started: float
    path: str
    is_running: bool


class Launch(Record):
    """A launch of this user.

    Attributes:
        launch_id: Its id, ``outer/inner`` of one in a rank of another.
        folder: Of its record, links followed; empty where none is seen from here.
        is_running: Whether it has recorded no end.
        host: Where its launcher runs.
        scheduler: Of its job; empty without one.
        job: Its job; empty without one.
        hosts: Those of its ranks.
        ranks: How many it has; None where nothing tells.
        command: What was launched.
        started: When it began, in seconds since 1970; 0 where nothing tells.
        pid: Its launcher, in the table of processes of ``place``; 0 where nothing tells.
        born: When that process was born.
        place: The host, and its table of processes.
        socket: Where it is asked (`ezpz.launch.ask_launch`); empty where nothing tells.
        is_here: Whether it runs on this host.
    """

    launch_id: str
    folder: str = ""
    is_running: bool = True
    host: str = ""
    scheduler: str = ""
    job: str = ""
    hosts: tuple[str, ...] = ()
    ranks: int | None = None
    command: tuple[str, ...] = ()
    started: float = 0.0
    pid: int = 0
    born: str = ""
    place: str = ""
    socket: str = ""
    is_here: bool = False


def _no_job(word: str) -> KnownJob | None:
    del word
    return None


# The job that a word names, or None. Leaves and `ezpz.track` ask no scheduler; `ezpz.cli` puts in what does.
ask_job: Callable[[str], KnownJob | None] = _no_job


# What a launcher writes about itself.


def launcher(socket: str) -> dict[str, Any]:
    """Return which process this is and where it is asked, as a record keeps it."""
    pid = os.getpid()
    return {"pid": pid, "born": _born(pid), "place": _place(), "socket": socket}


def address(launch_id: str) -> str:
    """Return where a launch that this process begins is to be asked.

    Raises:
        MachineError: The folder of sockets is not this user's (macOS).
    """
    name = launch_id.replace("/", "+")
    if sys.platform != "linux":
        return os.path.join(private_folder("sockets"), f"launch-{name}.sock")  # macOS allows 104 bytes
    return f"{_begin()}{name}"


def _begin() -> str:
    """Return how the sockets of launches are called that keep their records where this process would (Linux)."""
    from binascii import crc32

    try:
        folder = os.path.realpath(_in_home() or temporary_place(IN_TEMPORARY))
    except OSError:  # no temporary folder either
        folder = ""
    return f"@ezpz-launch-{os.getuid()}-{crc32(os.fsencode(folder)):08x}-"


def lives(launch: Launch) -> bool:
    """Tell whether the launcher of a launch that `is_here` still lives."""
    if not launch.pid:  # one of another container
        return launch.socket in _sockets()
    return bool(launch.born) and launch.pid > 0 and _born(launch.pid) == launch.born


def _born(pid: int) -> str:
    """Return when a process was born, in the system's own words; empty when it is gone or a zombie."""
    if sys.platform == "darwin":
        import subprocess

        done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], stdout=subprocess.PIPE, check=False)
        return done.stdout.decode(errors="replace").strip()
    return proc.start_time(pid)


def _place() -> str:
    """Return a name of this host's table of processes that no other host has."""
    return f"{os.uname().nodename} {proc.link('self', 'ns/pid')}".strip()


# Records.


def main_folder() -> str:
    """Return the folder in which records are, where nothing hinders."""
    return _in_home() or private_folder(IN_TEMPORARY)


def _in_home() -> str:
    base, _ = state_folder(os.environ)
    return os.path.join(base, IN_HOME) if base else ""


def _folders() -> list[str]:
    """Return the folders of records; a service without a home keeps them in the temporary one, also for who has one."""
    return [folder for folder in (_in_home(), own_place(IN_TEMPORARY)) if folder]


def _can_write(folder: str) -> bool:
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK | os.X_OK)


def heads(*, running: bool = False) -> list[Head]:
    """Return the beginnings of all records, those of the launches that started last first.

    Args:
        running: Only those that tell of no end.
    """
    found = []
    home = _in_home()
    for folder in _folders():
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        # Those of a service, which has no home, are of interest to a shell with one while they run.
        ended = not running and (folder == home or not _can_write(home))
        heads_there = [head for name in names if (head := _head(f"{folder}/{name}/run.json", name))]
        found += [head for head in heads_there if head.is_running or ended]
    now = time.time()
    return sorted(found, key=lambda head: (not_ahead(head.started, now), head.path), reverse=True)


def not_ahead(when: float, now: float) -> float:
    """Return a time to order by: 0 for one in the future, when a clock was ahead; it would be the newest for ever."""
    return when if when <= now + _SKEW else 0.0


def _head(path: str, name: str) -> Head | None:
    """Return the beginning of a record; None where there is none."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return None
    try:
        data = os.read(descriptor, _HEAD)
        started, state = re.search(_STARTED, data), re.search(_STATE, data)
        if not (started and state) and len(data) == _HEAD:
            data += os.read(descriptor, _MORE)
            started, state = re.search(_STARTED, data), re.search(_STATE, data)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    when = float(started[1]) if started else _time_in(name)
    return Head(when, path, state is not None and state[1] == b"running")


def _time_in(name: str) -> float:
    """Return the time that the name of a folder begins with; 0 without one."""
    try:
        return time.mktime(time.strptime(name[:17], "%Y-%m-%d-%H%M%S"))
    except (ValueError, OverflowError):
        return 0.0


def folders_of(launch_id: str) -> list[str]:
    """Return the folders that a record of this launch may be in, by their names; links to others may be among them."""
    end = f"-{launch_id.rpartition('/')[2][:8]}"
    found = []
    for folder in _folders():
        try:
            found += [f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(end)]
        except OSError:
            continue
    return found


def read(path: str) -> Launch | None:
    """Return the launch of a ``run.json``; None where it is none of a launch.

    One that others have written, or may write, as in a --log-dir of a group, names neither a process that may be
    killed nor a socket at which, on whichever host, anything is asked.
    """
    import json

    from ezpz.records.launch_record import Launcher, LaunchRecord  # 2 ms that no launch need pay for

    try:
        with open(path, "rb", opener=open_regular) as file:
            about = os.fstat(file.fileno())
            fields = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    record = LaunchRecord.of(fields) if isinstance(fields, dict) else LaunchRecord()
    if not record.launch_id:
        return None
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        record = replace(record, launcher=Launcher())
    return of_record(record, os.path.realpath(os.path.dirname(path)))


def of_record(record: LaunchRecord, folder: str = "") -> Launch:
    """Return the launch of a record in a folder; `read` asks whose that is."""
    plan, process = record.plan, record.launcher
    return Launch(
        record.launch_id,
        folder,
        is_running=record.state == "running",
        host=record.host or next(iter(plan.hosts), ""),
        scheduler=plan.scheduler,
        job=plan.job_id,
        hosts=tuple(plan.hosts),
        ranks=plan.world_size or None,
        command=tuple(record.command),
        started=record.started or 0.0,
        pid=process.pid,
        born=process.born,
        place=process.place,
        socket=process.socket,
    )


def recorded(*, running: bool = False, known: Iterable[Head] | None = None) -> Iterator[Launch]:
    """Yield the launches that are recorded, each once, those that started last first.

    Args:
        running: Only those that have recorded no end.
        known: What `heads` has returned, if it was asked already.
    """
    seen = set()
    for head in heads(running=running) if known is None else known:
        launch = read(head.path) if head.is_running or not running else None
        if launch is None or launch.launch_id in seen or (running and not launch.is_running):
            continue
        seen.add(launch.launch_id)  # several links may lead to one --log-dir
        yield launch


# Those that run.


def running(known: Iterable[Head] | None = None) -> tuple[list[Launch], list[Launch]]:
    """Return the launches that run on this host, and those that by their records run on others; the oldest first.

    A launch of neither list whose record tells of no end was killed, or lost with its host.

    Args:
        known: What `heads` has returned, if it was asked already.
    """
    here, elsewhere, sockets = [], [], _sockets()
    for launch in recorded(running=True, known=known):
        found = _here(launch, sockets)
        if found:
            here.append(found)
        elif launch.host != os.uname().nodename and time.time() - launch.started < _LONGEST:
            elsewhere.append(launch)
    ids = {launch.launch_id for launch in here}
    here += filter(None, (_by_socket(Launch(name, socket=where)) for where, name in sockets.items() if name not in ids))
    for launches in (here, elsewhere):
        launches.sort(key=lambda launch: launch.started)
    return here, elsewhere


def as_here(launch: Launch) -> Launch | None:
    """Return a launch as one that runs on this host; None where it does not."""
    return _here(launch, _sockets())


def may_run(record: LaunchRecord) -> bool:
    """Tell whether a launch may still run: its record tells of no end, and nothing else of one.

    One that was lost with another host counts as running until the time of its job is over.
    """
    if record.state != "running":
        return False
    launch = of_record(record)
    if launch.host == os.uname().nodename:
        return as_here(launch) is not None
    return record.job_ends is None or time.time() <= record.job_ends + _LATE


def _here(launch: Launch, sockets: Mapping[str, str]) -> Launch | None:
    if launch.place == _place() and launch.pid and lives(launch):
        return replace(launch, is_here=True)
    return _by_socket(launch) if launch.socket in sockets else None


def _sockets() -> dict[str, str]:
    """Return the sockets of launches that are listed here, and the id of each (Linux)."""
    begin = _begin().encode()
    lines = proc.read("self", "net/unix").split(b"\n")
    places = {os.fsdecode(line.rpartition(b" ")[2]) for line in lines if begin in line}
    return {where: where[len(begin) :].replace("+", "/") for where in places}


def _by_socket(launch: Launch) -> Launch | None:
    """Return a launch as the process tells it that listens at its socket; None where that is none of this user's."""
    from ezpz import local_socket  # with that of the system, 0.5 ms that few need

    try:
        connection = local_socket.reach(launch.socket, 0.0)
    except OSError:
        return None
    pid, _ = local_socket.credentials(connection)
    connection.close()
    found = replace(launch, pid=pid, born=_born(pid), host=os.uname().nodename, place=_place(), is_here=True)
    if found.started or not pid:  # its record told more; or it is a process of another container
        return found
    words = tuple(map(os.fsdecode, proc.read(pid, "cmdline").split(b"\0")[:-1]))
    try:
        return replace(found, command=words, started=os.stat(f"/proc/{pid}").st_mtime)
    except OSError:  # it has just ended
        return None


# Which one is meant.


def is_of_job(launch: Launch, word: str) -> bool:
    """Tell whether a word names the job of a launch: ``12.head``, or its number alone."""
    return bool(launch.job) and word in {launch.job, launch.job.partition(".")[0]}


def ambiguous(word: str, what: str, names: Sequence[str]) -> UsageError:
    """Return the error for a word that names several of something, for every verb."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return UsageError(
        f"{word!r} means {len(names)} {what} (from the command line): {', '.join(names[:_LISTED])}{more}; "
        "expected one. Type one of these, or more characters of it."
    )


def named(launches: Iterable[Launch], word: str, *, last: bool = False) -> Launch | None:
    """Return the launch that a word means: that of this job, or the one whose id begins so; None when there is none.

    A launch inside a rank of another is reached by its whole id, ``outer/inner``.

    Args:
        launches: Those that may be meant.
        word: What the user has typed.
        last: Of several in one job the one that started last is meant.

    Raises:
        UsageError: Several are meant.
    """
    all_of_them = list(launches)
    of_job = [launch for launch in all_of_them if is_of_job(launch, word)]
    if of_job and (last or len(of_job) == 1):
        return max(of_job, key=lambda launch: launch.started)
    if of_job:
        raise ambiguous(word, "launches", [launch.launch_id for launch in of_job])
    begin = {launch.launch_id: launch for launch in all_of_them if launch.launch_id.startswith(word)}
    if word in begin or len(word) < SHORTEST:
        return begin.get(word)
    outer = [name for name in sorted(begin) if not any(name.startswith(f"{other}/") for other in begin)]
    if len(outer) > 1:
        raise ambiguous(word, "launches", outer)
    return begin[outer[0]] if outer else None
