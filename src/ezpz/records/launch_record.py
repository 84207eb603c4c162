"""Say what ``run.json`` of a launch holds, which `ezpz.launch.record` writes, with a part for each watcher."""

from __future__ import annotations

from ezpz.fields import (
    EMPTY,
    Number,
    Part,
    Real,
    Record,
    Row,
    Text,
    flag_field,
    json_field,
    list_field,
    map_field,
    number_field,
    pair_field,
    part_field,
    real_field,
    replace,
    text_field,
)
from ezpz.records.hardware_record import HardwareSummary
from ezpz.records.stored_files import LONGEST, Stored, text

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = [
    "Arrivals",
    "AskedRank",
    "AskedRanks",
    "AskedToSave",
    "Attempt",
    "Check",
    "Failure",
    "FoundCause",
    "Group",
    "Hang",
    "HostShares",
    "Kernel",
    "LagRow",
    "LaunchRecord",
    "LaunchedPlan",
    "PlaceInChain",
    "ProbedHost",
    "Room",
    "Shares",
    "StageReached",
    "Window",
]

_LATEST = 253402300800.0  # epoch seconds: the year 10000
_MOST_RANKS = 10_000_000
_LARGE = 1 << 62


class Room(Record):
    """A file system on which a rank could not write.

    Attributes:
        path: Where it is mounted.
        free: Bytes that are free.
        size: Bytes that it has.
        files: Files that it has room for; -1 where they are not counted.
    """

    path: str = text_field(LONGEST)
    free: float = real_field()
    size: float = real_field()
    files: float = real_field(default=-1)


class Kernel(Record):
    """What the kernel of a rank's host has counted of memory: when the rank had just begun, and at its end.

    Attributes:
        group: The control group of the rank.
        oom_kill: Processes killed for want of memory in that group.
        host_oom_kill: The same on the whole host.
        peak: The most bytes that the group has used.
        limit: Its limit in bytes.
    """

    group: str = text_field(LONGEST, default="")
    oom_kill: tuple[int | None, int | None] = pair_field(default=(None, None))
    host_oom_kill: tuple[int | None, int | None] = pair_field(default=(None, None))
    peak: float | None = real_field(default=None)
    limit: float | None = real_field(default=None)


class Failure(Record):
    """How a rank, a host or the launch failed.

    Attributes:
        text: Its line on stderr.
        rank: The rank that failed.
        host: Its host.
        pid: Its process.
        code: Its exit code.
        signal: The signal that killed it.
        log: The file of its output.
        words: The last that it wrote.
        why: What its code does not explain.
        step: The last step that it reported.
        kernel: What the kernel of its host has counted of memory.
        room: File systems, where it could not write: first that of the file which its exception names, then all others
            of the host that are full.
    """

    text: str = text_field(LONGEST, default="")
    rank: int | None = number_field(default=None)
    host: str = text_field(LONGEST, default="")
    pid: int | None = number_field(default=None)
    code: int | None = number_field(default=None)
    signal: str = text_field(LONGEST, default="")
    log: str = text_field(LONGEST, default="")
    words: str = text_field(LONGEST, default="")
    why: str = text_field(LONGEST, default="")
    step: int | None = number_field(default=None)
    kernel: Kernel = part_field(Kernel, default=Kernel())
    room: Sequence[Room] = list_field(Part(Room), default=())


_NO_FAILURE = Failure()


class LaunchedPlan(Record):
    """What was decided before the first process started.

    Attributes:
        hosts: The hosts, in the order of ranks.
        ranks_per_host: How many ranks each has.
        world_size: All of them.
        flavour: The launcher.
        program: Its path.
        reason: Why it was chosen.
        mpi: The value of ``mpi`` in ``launch --json``.
        line: What was run.
        scheduler: The scheduler, inside a job.
        job_id: The job.
        master: Where the ranks were told to meet: MASTER_ADDR, a colon, MASTER_PORT.
    """

    hosts: Sequence[str] = list_field(text(), default=())
    ranks_per_host: Sequence[int] = list_field(Number(0, _MOST_RANKS), default=())
    world_size: int = number_field(0, _MOST_RANKS, default=0)
    flavour: str = text_field(LONGEST, default="")
    program: str = text_field(LONGEST, default="")
    reason: str = text_field(LONGEST, default="")
    mpi: str = text_field(LONGEST, default="")
    line: str = text_field(LONGEST, default="")
    scheduler: str = text_field(LONGEST, default="")
    job_id: str = text_field(LONGEST, default="")
    master: str = text_field(LONGEST, default="")


class StageReached(Record):
    """When ranks reached a stage of the start, in seconds since the launch began.

    Attributes:
        ranks: How many did.
        min: The first.
        median: The median of the hosts' medians.
        max: The last.
        slowest_host: The host of the last.
        by_rank: When each rank did, or null, up to 4,096 ranks; absent in larger worlds.
    """

    ranks: int = number_field(0, _MOST_RANKS, default=0)
    min: float | None = real_field(default=None)
    median: float | None = real_field(default=None)
    max: float | None = real_field(default=None)
    slowest_host: str = text_field(LONGEST, default="")
    by_rank: Sequence[Any] = json_field(list, default=())


class Launcher(Record):
    """The process of a launch itself.

    Attributes:
        pid: Its number.
        born: When it was born, in the system's own words: numbers come again.
        place: The host, and its table of processes.
        socket: Where it is asked.
    """

    pid: int = number_field(default=0)
    born: str = text_field(LONGEST, default="")
    place: str = text_field(LONGEST, default="")
    socket: str = text_field(LONGEST, default="")


class AskedRank(Record):
    """What a rank was doing when it was asked.

    Attributes:
        rank: The rank.
        host: Its host.
        pid: Its process.
        where: The innermost line of the user's, or what the kernel says.
        frames: Its Python stack, innermost first: function, file, line.
        source: What stands in that line of the user's.
        mpi: Whether its Python has loaded mpi4py.
        cpu: Seconds of CPU that its Python had used; -1 where that is not known.
        switches: How often its main thread had gone to sleep; -1 where that is not known.
        child: The child that it waits for, and what the kernel says of it.
        worker: Where a worker of its loader is for which it waits, or threads that keep it at its end.
        words: The last that it wrote on stderr, where that has a traceback.
    """

    rank: int = number_field()
    host: str = text_field(LONGEST, default="")
    pid: int | None = number_field(default=None)
    where: str = text_field(LONGEST, default="")
    frames: Sequence[tuple[str, str, int]] = list_field(
        Row((Text(LONGEST), Text(LONGEST), Number(0, 1 << 31))), default=()
    )
    source: str = text_field(LONGEST, default="")
    mpi: bool = flag_field(default=False)
    cpu: float = real_field(default=-1.0)
    switches: int = number_field(default=-1)
    child: str = text_field(LONGEST, default="")
    worker: str = text_field(LONGEST, default="")
    words: str = text_field(LONGEST, default="")


class AskedRanks(Record):
    """What all ranks were doing when they were asked.

    Attributes:
        summary: How many ranks are where, in words.
        at: When they were asked, in epoch seconds.
        ranks: Each of them.
        left: The ranks that had ended with 0 before.
    """

    summary: str = text_field(LONGEST, default="")
    at: float | None = real_field(default=None)
    ranks: Sequence[AskedRank] = list_field(Part(AskedRank), default=())
    left: Sequence[int] = list_field(Number(0, _MOST_RANKS), default=())


class Hang(AskedRanks):
    """What the ranks of a run that stood still were doing.

    Attributes:
        apart: Seconds between two looks.
        earlier: What they were doing at the first.
    """

    apart: float = real_field(default=0.0)
    earlier: AskedRanks | None = part_field(AskedRanks, default=None)


class FoundCause(Record):
    """Why a launch ended, as ``ezpz why`` says.

    Attributes:
        cause: Its kind.
        certainty: 3: it was seen; 2: it was concluded; 1: it ended nothing.
        text: The sentence.
    """

    cause: str = text_field(LONGEST)
    certainty: int = number_field()
    text: str = text_field(LONGEST, default="")


class Group(Record):
    """Who came last to the collectives of a group, in a window.

    Attributes:
        group: The group, with the backend in front: ``gloo:0``.
        rank: Who was last most often.
        n: How many meetings were seen.
        size: Ranks of the group.
        last: Share of the meetings in which that rank was last.
        lag: Seconds that it came after the median of the others.
        step: Seconds from one such meeting to the next.
        wait: Share of the time in which the others waited for it.
        batches: Its mean lags in four parts of the window.
        host: In ``hosts``: the host that was last most often, whose first rank is ``rank``.
        of: In ``seldom``: all meetings; ``n`` are those that took most of the time that was waited.
    """

    group: str = text_field(LONGEST)
    rank: int = number_field()
    n: int = number_field()
    size: int = number_field()
    last: float = real_field()
    lag: float = real_field()
    step: float = real_field()
    wait: float = real_field()
    batches: Sequence[float] = list_field(Real(-_LARGE, _LARGE))
    host: str = text_field(LONGEST, default="")
    of: int = number_field(default=0)


class Window(Record):
    """Some seconds of a run, and who came last to collectives in it.

    Attributes:
        s: How long it is, in seconds.
        groups: Of each group, who came last.
        t: When it ended, in epoch seconds.
        hosts: Of each group on several hosts, which host came last.
        seldom: Of each group, who came last seldom, and late then.
    """

    s: float = real_field()
    groups: Sequence[Group] = list_field(Part(Group))
    t: float | None = real_field(default=None)
    hosts: Sequence[Group] = list_field(Part(Group), default=())
    seldom: Sequence[Group] = list_field(Part(Group), default=())


class Shares(Record):
    """Where the time of a rank went, as far as the kernel of its host tells.

    Attributes:
        throttled: The share in which its control group stopped it.
        steal: The share of its host's CPU time that went to other virtual machines.
        delay: The share in which it was ready to run and had no core.
        cpu: Seconds of CPU per second, of all its threads.
        loader: The share of the looks in which it was in its DataLoader.
        faults: Major page faults per second.
        here: The share of the looks in which its main thread was at ``where``.
        where: A place in the user's code: of a rank or host, the one at which it was more than the others.
        others_here: The share of the looks in which the others were there; null in older records.
    """

    throttled: float = real_field(default=0.0)
    steal: float = real_field(default=0.0)
    delay: float = real_field(default=0.0)
    cpu: float = real_field(default=0.0)
    loader: float = real_field(default=0.0)
    faults: float = real_field(default=0.0)
    here: float = real_field(default=0.0)
    where: str = text_field(LONGEST, default="")
    others_here: float | None = real_field(default=None)


class HostShares(Shares):
    """Where the time of a host's ranks went, the median of them, and what they run on.

    Attributes:
        ranks: How many ranks have told it.
        delay: The share in which a rank was ready to run and had no core, the lower median.
        cores: How many CPUs these ranks may use, each hardware thread of a core counted; 0 where that is not known.
        allowed: How many the launch may use on the host.
        there: How many the host has.
        threads: Threads with which torch computes in one rank, at most.
        omp: ``OMP_NUM_THREADS`` of that rank; 0 where it is not set.
    """

    ranks: int = number_field(0, _MOST_RANKS, default=0)
    cores: int = number_field(0, _MOST_RANKS, default=0)
    allowed: int = number_field(0, _MOST_RANKS, default=0)
    there: int = number_field(0, _MOST_RANKS, default=0)
    threads: int = number_field(0, _MOST_RANKS, default=0)
    omp: int = number_field(0, _MOST_RANKS, default=0)


class Arrivals(Record):
    """When ranks came to collectives, which ``watch/stragglers`` has summed up.

    Attributes:
        source: What told: ``wrapped`` or torch's own recorder.
        seconds: Over how long.
        windows: Windows of 30 s.
        ranks: Where the time of single ranks went.
        others: The same of all others, the median.
        hosts: Of hosts, the same: those whose ranks waited longest for a core, and those that came last.
    """

    source: str = text_field(LONGEST, default="")
    seconds: float | None = real_field(default=None)
    windows: Sequence[Window] = list_field(Part(Window), default=())
    ranks: Mapping[str, Shares] = map_field(Part(Shares), default=EMPTY)
    others: Shares = part_field(Shares, default=Shares())
    hosts: Mapping[str, HostShares] = map_field(Part(HostShares), default=EMPTY)


class LagRow(Record):
    """A row of ``arrivals.jsonl``: how long after the first rank each one came, in some seconds.

    Attributes:
        v: 1, the version of this format.
        t: When the seconds ended, in epoch seconds.
        s: How many they are.
        lag: Of each rank, its mean time after the first one, in seconds.
        source: ``device`` where the devices told; else the hosts did.
    """

    v: int = number_field(1, 1)
    t: float = real_field()
    s: float = real_field()
    lag: Mapping[str, float] = map_field(Real(-_LARGE, _LARGE))
    source: str = text_field(LONGEST, default="")


class AskedToSave(Record):
    """What ranks were last asked for by ``watch/saving``.

    Attributes:
        because: The end of the job, SIGTERM, or a file.
        at: When, in epoch seconds.
        ends: Whether they were to end then.
        saved_at: When they had saved; null where they have not.
        step: The step.
        longest_save: Seconds of the longest save.
    """

    because: str = text_field(LONGEST, default="")
    at: float | None = real_field(default=None)
    ends: bool = flag_field(default=False)
    saved_at: float | None = real_field(default=None)
    step: int | None = number_field(default=None)
    longest_save: float | None = real_field(default=None)


class Check(Record):
    """What ``watch/preflight`` has looked at before ranks began.

    Attributes:
        level: How closely.
        origin: Who has chosen that.
        seconds: How long it took here.
        answered: Hosts that have answered.
        refused: Why no rank began; null where ranks did.
        notes: What else was seen.
        hosts: Facts of each, up to 1,024 hosts.
        doctor: Under ``full``: what ``ezpz doctor`` has found.
    """

    level: str = text_field(LONGEST, default="")
    origin: str = text_field(LONGEST, default="")
    seconds: float | None = real_field(default=None)
    answered: int | None = number_field(default=None)
    refused: str = text_field(LONGEST, default="")
    notes: Sequence[str] = list_field(text(), default=())
    hosts: Mapping[str, Any] = json_field(dict, default=EMPTY)
    doctor: Mapping[str, Any] = json_field(dict, default=EMPTY)


class PlaceInChain(Record):
    """Where a launch stands in a chain of jobs.

    Attributes:
        folder: That of the chain.
        number: Of this job in it.
        jobs: How many there may be.
        job: Its id.
    """

    folder: str = text_field(LONGEST, default="")
    number: int | None = number_field(default=None)
    jobs: int | None = number_field(default=None)
    job: str = text_field(LONGEST, default="")


class ProbedHost(Record):
    """What a probe between two attempts has found of a host.

    Attributes:
        answered: Whether it has answered.
        fails: What is broken; empty where nothing is.
        notes: What else was seen.
    """

    answered: bool = flag_field(default=False)
    fails: str = text_field(LONGEST, default="")
    notes: Sequence[str] = list_field(text(), default=())


class Attempt(Stored):
    """How an attempt of ``launch --attempts`` went, and every launch.

    Attributes:
        launch_id: ``EZPZ_LAUNCH_ID`` of every process of the launch; ``outer/inner`` for a launch inside a rank.
        state: ``running``, ``finished`` (exit code 0), ``failed``, or ``stopped`` (a signal or a limit of yours).
        started: When it began, in epoch seconds.
        ended: When it ended; null while it runs.
        seconds: How long it took.
        exit_code: Its exit code.
        cause: The earliest failure.
        hang: What ranks were doing, of a run that stood still.
        silent: Hosts that never reported anything.
        lost: Hosts whose agent went away before anything was stopped.
        blames: Where no rank could begin: each host that lacked what its ranks need, and what.
        stages: How far ranks came, by the name of the stage; those that none reached are absent.
        step: The furthest step that a rank reported.
        began: Whether the ranks were allowed to begin.
        verdict: ``again``: all was saved before the end of the job, and the same command goes on from there; ``stop``:
            the same, because of a file ``STOP``; null: neither.
        launcher_words: What ``mpiexec`` or ``srun`` itself said, or ssh's last line for each silent host.
        run_folder: Where rank 0 recorded the run.
        attempt: Its number, from 1 on.
        hosts: The hosts of an attempt.
        stopped: Whether an attempt was ended from outside.
        refused: Why no rank of an attempt began.
        decision: What was decided at the end of an attempt: ``again`` or ``stop``.
        because: Why.
        retired: The hosts that no later attempt uses, and why.
        probe: What a probe of hosts has found.
        probe_seconds: How long that took.
        host: Where ``launch`` runs.
    """

    launch_id: str = text_field(LONGEST, default="")
    state: str = text_field(LONGEST, default="")
    started: float | None = real_field(0.0, _LATEST, default=None)
    ended: float | None = real_field(0.0, _LATEST, default=None)
    seconds: float | None = real_field(default=None)
    exit_code: int | None = number_field(default=None)
    cause: Failure | None = part_field(Failure, default=None)
    hang: Hang | None = part_field(Hang, default=None)
    silent: Sequence[str] = list_field(text(), default=())
    lost: Sequence[str] = list_field(text(), default=())
    blames: Mapping[str, str] = map_field(text(), default=EMPTY)
    stages: Mapping[str, StageReached] = map_field(Part(StageReached), default=EMPTY)
    step: int | None = number_field(default=None)
    began: bool = flag_field(default=False)
    verdict: str = text_field(LONGEST, default="")
    launcher_words: str = text_field(LONGEST, default="")
    run_folder: str = text_field(LONGEST, default="")
    attempt: int | None = number_field(default=None)
    hosts: Sequence[str] = list_field(text(), default=())
    stopped: bool = flag_field(default=False)
    refused: str = text_field(LONGEST, default="")
    decision: str = text_field(LONGEST, default="")
    because: str = text_field(LONGEST, default="")
    retired: Mapping[str, str] = map_field(text(), default=EMPTY)
    probe: Mapping[str, ProbedHost] = map_field(Part(ProbedHost), default=EMPTY)
    probe_seconds: float | None = real_field(default=None)
    host: str = text_field(LONGEST, default="")

    @property
    def failure(self) -> Failure:
        """The earliest failure; one that says nothing where there was none."""
        return self.cause or _NO_FAILURE


class LaunchRecord(Attempt):
    """``run.json`` of a launch; of several attempts it tells the newest one.

    Attributes:
        schema: 1.
        command: The program with its arguments.
        cwd: Where it was started.
        launcher: The process of ``launch``.
        output: The file that the stdout of ``launch`` is, as in a job.
        plan: What was decided before the first process started.
        job_ends: When the job ends, in epoch seconds, as far as it was known.
        job_started: When it started.
        ends_within: While ranks save before a SIGTERM: seconds from that to the end of the launch, at most.
        asked_to_save: What ranks were last asked for.
        chain: In a chain of jobs: where it stands there.
        most_attempts: How many attempts there may be.
        attempts: Those that have ended, each with the fields from ``launch_id`` to ``host``.
        failures: Other ranks that failed.
        causes: Why it ended, the most certain first.
        arrivals: Who came last to collectives.
        check: What was looked at before ranks began.
        notes: What else ``launch`` said.
        hardware: What the devices did, where rank 0 recorded no run.
    """

    schema: int = number_field(default=1)
    command: Sequence[str] = list_field(text(), default=())
    cwd: str = text_field(LONGEST, default="")
    launcher: Launcher = part_field(Launcher, default=Launcher())
    output: str = text_field(LONGEST, default="")
    plan: LaunchedPlan = part_field(LaunchedPlan, default=LaunchedPlan())
    job_ends: float | None = real_field(0.0, _LATEST, default=None)
    job_started: float | None = real_field(0.0, _LATEST, default=None)
    ends_within: float | None = real_field(default=None)
    asked_to_save: AskedToSave | None = part_field(AskedToSave, default=None)
    chain: PlaceInChain = part_field(PlaceInChain, default=PlaceInChain())
    most_attempts: int | None = number_field(default=None)
    attempts: Sequence[Attempt] = list_field(Part(Attempt), default=())
    failures: Sequence[Failure] = list_field(Part(Failure), default=())
    causes: Sequence[FoundCause] = list_field(Part(FoundCause), default=())
    arrivals: Arrivals | None = part_field(Arrivals, default=None)
    check: Check = part_field(Check, default=Check())
    notes: Sequence[str] = list_field(text(), default=())
    hardware: HardwareSummary = part_field(HardwareSummary, default=HardwareSummary())

    @property
    def failed(self) -> Sequence[Failure]:
        """The failures, that which ended it first."""
        return (*([self.cause] if self.cause else ()), *self.failures)

    def of_attempt(self, launch_id: str) -> LaunchRecord:
        """Return what is said of this attempt, over what is said of the newest."""
        mine = next((row for row in self.attempts if row.launch_id == launch_id), None)
        if mine is None:
            return self
        known = {name: getattr(mine, name) for name in mine.raw if name in Attempt.CHECKS}
        return replace(self, **known)
