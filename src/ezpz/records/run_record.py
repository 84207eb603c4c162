"""Say what ``run.json`` of a run folder holds, which `ezpz.track.run_folder` writes, with a part for each watcher."""

from __future__ import annotations

from ezpz.fields import (
    EMPTY,
    Part,
    Real,
    flag_field,
    json_field,
    list_field,
    map_field,
    number_field,
    part_field,
    real_field,
    text_field,
)
from ezpz.records.hardware_record import HardwareSummary
from ezpz.records.stored_files import LONGEST, Stored, text

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = [
    "Effective",
    "Finding",
    "JournalEnds",
    "Machine",
    "NotedSpeed",
    "RecordingProcess",
    "RecordingRanks",
    "RunRecord",
    "epoch",
]


_SENTENCE = text()


class RecordingRanks(Stored):
    """Who the process that records is.

    Attributes:
        rank: Its rank.
        world_size: How many ranks there are.
        local_rank: Its rank on its host.
        local_world_size: How many ranks its host has.
        host_index: The number of its host.
        family: The launcher that told so.
    """

    rank: int | None = number_field(default=None)
    world_size: int | None = number_field(default=None)
    local_rank: int | None = number_field(default=None)
    local_world_size: int | None = number_field(default=None)
    host_index: int | None = number_field(default=None)
    family: str = text_field(LONGEST, default="")


class RecordingProcess(Stored):
    """The process that records, by which readers know whether it still lives.

    Attributes:
        pid: Its number.
        host: Its host.
        birth: Its start as the kernel counts it; empty where that is not told, null where it was gone.
        began: Its start in epoch seconds.
    """

    pid: int = number_field(default=0)
    host: str = text_field(LONGEST, default="")
    birth: str | None = text_field(LONGEST, default=None)
    began: float | None = real_field(default=None)


class Effective(Stored):
    """What the objects given to `History.log_config` do; docs/history.md lists all names, such as ``dropout.h.0``.

    Attributes:
        problems: What could not be read, and why.
    """

    problems: Sequence[Any] = json_field(list, default=())


class Machine(Stored):
    """The machine below a run, as far as it can change numbers or speed.

    Attributes:
        modules: The loaded modules.
        driver: Versions of drivers by name.
        library: Versions of the libraries below torch and MPI.
        system: The operating system.
        variables: Variables that choose devices, threads, algorithms or transports.
    """

    modules: Sequence[Any] = json_field(list, default=())
    driver: Any = json_field(default=None)
    library: Any = json_field(default=None)
    system: str = text_field(LONGEST, default="")
    variables: Any = json_field(default=None)


class NotedSpeed(Stored):
    """How fast a run was.

    Attributes:
        metric: The metric that it was worked out from.
        value: What was done per second.
        unit: Of what: ``tok/s``, ``samples/s``, ``it/s``.
        of_time: Whether the metric is the time of a step.
    """

    metric: str = text_field(LONGEST, default="")
    value: float | None = real_field(default=None)
    unit: str | None = text_field(LONGEST, default=None)
    of_time: bool = flag_field(default=False)


class JournalEnds(Stored):
    """The first rows and the last ones of a run's journal, for who lists thousands of runs.

    Attributes:
        size: The bytes of the journal when they were read.
        first_step: The step of its first row.
        first_time: The time of that, in epoch seconds.
        last_step: The step of its last row of training.
        last_time: The time of its last row.
        steps: How many steps were made, as far as these rows tell.
        metric: The metric that is shown as the loss.
        loss: Its last value; one that is not finite is text, as in the journal.
        rate: What was done per second in the last rows.
        rate_unit: Of what.
    """

    size: int = number_field(default=0)
    first_step: int | None = number_field(default=None)
    first_time: float | None = real_field(default=None)
    last_step: int | None = number_field(default=None)
    last_time: float | None = real_field(default=None)
    steps: int | None = number_field(default=None)
    metric: str | None = text_field(LONGEST, default=None)
    loss: Any = json_field(default=None)
    rate: float | None = real_field(default=None)
    rate_unit: str | None = text_field(LONGEST, default=None)


class Finding(Stored):
    """What stands out in the losses, batches, weights or times of a run; docs/why.md says more.

    Attributes:
        kind: ``non-finite-loss``, ``loss-rise``, ``loss-spike``, ``loss-still``, ``zero-lr``, ``same-batches`` or
            ``weights-differ``; of times ``slower-steps``, ``slow-every`` or ``slow-part``.
        key: The metric, ``batches``, ``weights`` or ``steps``.
        rank: The rank; null where all have it alike.
        step: The step.
        value: The value there, of a rise that at the end; one that is not finite is text, as in the journal.
        text: That in words.
        before: Of a lost loss: its last finite value.
        before_step: Of a lost loss: the step of that.
        beside: Of a lost loss: learning rates and norms of gradients at that step; of a rise: learning rates.
        ranks: Of a lost loss: how many ranks have lost it there; of batches: the ranks that share them; of weights: the
            ranks that differ, those from the others where most are the same.
        median: Of a spike: the median of the rows before; of a rise: the level from which it rose.
        spread: Of a spike: the spread of those.
        back: Of a spike: the step at which the loss was back; null where it is not.
        last_step: Of a rise, of a loss that stands still and of a learning rate of 0: the last step.
        last_equal: Of weights: the last step before which they were seen to be the same; null where there was none.
        different: Of batches: how many different ones were seen; of weights: in how many looks they differed.
        looks: Of batches and weights: how often they were looked at.
        part: Of times: the part of a step that is why, as a section is called; empty where none was measured.
        share: Of times: the share of the time that this part takes there, from 0 to 1.
        every: Of times: how many steps lie between two slow ones.
        seen: Of times: what shows it, in sentences.
    """

    kind: str = text_field(LONGEST, default="")
    key: str = text_field(LONGEST, default="")
    rank: int | None = number_field(default=None)
    step: int | None = number_field(default=None)
    value: Any = json_field(default=None)
    text: str = text_field(LONGEST, default="")
    before: float | None = real_field(default=None)
    before_step: int | None = number_field(default=None)
    beside: dict[str, Any] = json_field(dict, default=EMPTY)
    ranks: Any = json_field(default=None)
    median: float | None = real_field(default=None)
    spread: float | None = real_field(default=None)
    back: int | None = number_field(default=None)
    last_step: int | None = number_field(default=None)
    last_equal: int | None = number_field(default=None)
    different: int | None = number_field(default=None)
    looks: int | None = number_field(default=None)
    part: str = text_field(LONGEST, default="")
    share: float | None = real_field(default=None)
    every: int | None = number_field(default=None)
    seen: Sequence[str] = list_field(_SENTENCE, default=())


class RunRecord(Stored):
    """``run.json`` of a run folder; of a run that was started again it tells the newest attempt.

    Attributes:
        schema: 1.
        name: The name of the run.
        state: ``running``, ``finished``, ``failed``, ``stopped`` or ``exited``.
        cause: Why it failed or was stopped.
        started: When it began: local time in ISO 8601, with its zone.
        ended: When it ended.
        seconds: How long it took.
        attempt: The number of this start, as in the journal.
        host: Where rank 0 was.
        argv: The words of the program, its name first.
        cwd: The folder in which it was started.
        python: The version of Python.
        executable: The path of Python.
        git_commit: The commit of that folder.
        versions: Versions of libraries by name.
        ranks: Who the process that recorded is.
        process: The process that recorded.
        launch: ``EZPZ_LAUNCH_CMD``, ``EZPZ_LAUNCH_ID``, ``EZPZ_HOSTS``, ``EZPZ_SCHEDULER``, ``EZPZ_JOBID`` and
            ``EZPZ_CHAIN``, where it was launched.
        environment: The machine below it.
        config: What `History.log_config` was given.
        effective: What the objects that it was given do.
        timeline: Seconds from the birth of the process to ``setup``, ``group``, ``model``, ``first_step`` and more.
        speed: How fast it was.
        steps: How many steps of training it has made, those of earlier starts included.
        journal: The first rows of its journal and the last ones.
        findings: What stands out in the losses, batches and times.
        loader_workers: How many workers the DataLoader has that was asked last.
        hardware: What the devices did, from ``watch/hardware``.
        paths: What was written, relative to the folder.
        trackers: What trackers need to continue their copies.
        problems: What went wrong with the records themselves, in sentences.
        earlier: What runs in the same folder said before, oldest first; a text of one that could not be read.
        source: Of a run that another tool recorded: the tool.
    """

    schema: int = number_field(default=1)
    name: str = text_field(LONGEST, default="")
    state: str = text_field(LONGEST, default="")
    cause: str = text_field(LONGEST, default="")
    started: str = text_field(LONGEST, default="")
    ended: str = text_field(LONGEST, default="")
    seconds: float | None = real_field(default=None)
    attempt: int | None = number_field(default=None)
    host: str = text_field(LONGEST, default="")
    argv: Sequence[Any] = json_field(list, default=())
    cwd: str = text_field(LONGEST, default="")
    python: str = text_field(LONGEST, default="")
    executable: str = text_field(LONGEST, default="")
    git_commit: str = text_field(LONGEST, default="")
    versions: dict[str, Any] = json_field(dict, default=EMPTY)
    ranks: RecordingRanks = part_field(RecordingRanks, default=RecordingRanks())
    process: RecordingProcess = part_field(RecordingProcess, default=RecordingProcess())
    launch: dict[str, str] = map_field(text(), default=EMPTY)
    environment: Machine = part_field(Machine, default=Machine())
    config: dict[str, Any] = json_field(dict, default=EMPTY)
    effective: Effective = part_field(Effective, default=Effective())
    timeline: dict[str, float] = map_field(Real(-(2.0**63), 2.0**63), default=EMPTY)
    speed: NotedSpeed = part_field(NotedSpeed, default=NotedSpeed())
    steps: int | None = number_field(default=None)
    journal: JournalEnds = part_field(JournalEnds, default=JournalEnds())
    findings: Sequence[Finding] = list_field(Part(Finding), default=())
    loader_workers: int | None = number_field(default=None)
    hardware: HardwareSummary = part_field(HardwareSummary, default=HardwareSummary())
    paths: dict[str, Any] = json_field(dict, default=EMPTY)
    trackers: dict[str, Any] = json_field(dict, default=EMPTY)
    problems: Sequence[Any] = json_field(list, default=())
    earlier: Sequence[Any] = json_field(list, default=())
    source: str = text_field(LONGEST, default="")

    @property
    def before(self) -> list[RunRecord]:
        """What could be read of ``earlier``."""
        return [RunRecord.of(each) for each in self.earlier if type(each) is dict]

    @property
    def launch_id(self) -> str:
        """The id of its launch; empty where it was started without one."""
        return self.launch.get("EZPZ_LAUNCH_ID") or self.launch.get("launch_id") or ""  # the second of an older ezpz

    @property
    def started_at(self) -> float | None:
        """When it began, in epoch seconds."""
        return epoch(self.started)

    @property
    def ended_at(self) -> float | None:
        """When it ended, in epoch seconds."""
        return epoch(self.ended)

    @property
    def began_at(self) -> float | None:
        """When its process began, in epoch seconds."""
        if self.process.began:
            return self.process.began
        started, ready = self.started_at, self.timeline.get("history")
        return None if started is None or ready is None else started - ready  # of an older ezpz, to the second


def epoch(moment: str) -> float | None:
    """Return a time in ISO 8601 in epoch seconds; None where it is none."""
    from datetime import datetime  # not in every launch

    try:
        return datetime.fromisoformat(moment).timestamp() if moment else None
    except (ValueError, OverflowError):
        return None
