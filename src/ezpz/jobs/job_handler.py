"""Describe how jobs of a scheduler are submitted, listed and cancelled, for the schedulers that ezpz does this with.

`HANDLED` names them. ``cluster/NAME_jobs.py`` holds one instance of a class of its own, called ``HANDLER``. A scheduler
without one is detected, and `lack` says in one sentence what ezpz does not do with its jobs.
"""

from __future__ import annotations

from importlib import import_module

from ezpz.cluster.scheduler import Scheduler, scheduler
from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Run
    from ezpz.jobs.job_state import Call, Job

HANDLED = ("slurm", "pbs")

_INSTEAD = {
    "submit": "write the job script yourself and call `launch` inside it",
    "list": "ask its own commands for them",
    "cancel": "cancel them with its own command",
    "follow": "look at the job with its own commands",
    "chain": "run `launch` without a chain, with --attempts for failures",
}


class JobScript(Record):
    """How a job file is written and submitted: an option is a line behind the mark, ``--nodes=2`` or ``-l select=2``.

    Attributes:
        file: What `ezpz init` calls it.
        mark: What is in front of an option in it.
        options: Options of a job where the site's table names none. An upper-case ACCOUNT, PROJECT, PARTITION or QUEUE
            is to be filled in.
        program: What submits it.
        devices: The option for ``{count}`` devices on each of ``{hosts}`` hosts, where most clusters give none unasked;
            empty elsewhere.
        beside: A program that `launch` needs in a job, which lies beside the one that submits it; empty for none.
        first_line: The line that says which shell runs it.
        account: The option with the account that is charged.
        account_variable: A variable that names the account where no option does; empty where there is none.
        queues: The options that say where it waits, the usual one first.
        hosts: The option with the number of hosts, which is the first number of its value.
        time: The option with its length, HH:MM:SS.
        filesystems: The option that names file systems; empty where none does.
        name: The option with its name.
        output: The option for the file with what it prints.
        output_file: That file in a ``{folder}/``, which may be empty.
        written_to: The path of that file, of a ``{folder}/``, the ``{name}`` of the job and the ``{job}``'s id.
        literal: A character that begins a pattern in that option, and how it is written to mean itself.
        arrays: The options that make one file many jobs.
        always: Options of every job.
        quiet: Words behind the program that let it print the id alone.
        after: Words behind it that let the job wait until ``{job}`` has ended, however it ends.
        overriding: How the names of variables begin that stand above the file's lines; empty where there are none.
        listing: A command that lists jobs.
        also_called: Other spellings of options, and the ones that stand here for them.
        foreign: How options of other schedulers begin, which this one does not take.
        enter: Lines that go to the folder in which it was submitted.
        unfilled: Lines that end a job whose ``{value}`` of an ``{option}`` was not filled in; ``{line}`` is the whole.
    """

    file: str
    mark: str
    options: tuple[str, ...]
    program: str
    devices: str = ""
    beside: str = ""
    first_line: str = "#!/usr/bin/env bash"
    account: str = ""
    account_variable: str = ""
    queues: tuple[str, ...] = ()
    hosts: str = ""
    time: str = ""
    filesystems: str = ""
    name: str = ""
    output: str = ""
    output_file: str = ""
    written_to: str = ""
    literal: tuple[str, str] = ("", "")
    arrays: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    overriding: str = ""
    listing: tuple[str, ...] = ()
    also_called: tuple[tuple[str, str], ...] = ()
    foreign: tuple[str, ...] = ()
    enter: str = ""
    unfilled: str = ""


class Queue(Record):
    """What the scheduler says of one of its queues; None is a limit that it does not state.

    Attributes:
        name: As jobs name it.
        most_seconds: The longest time of a job.
        least_hosts: The fewest hosts of a job.
        most_hosts: The most hosts of a job.
        is_open: Whether it takes jobs.
        is_default: Whether it takes those that name none.
        leads_to: Queues into which it moves its jobs, one of which must suit them.
    """

    name: str
    most_seconds: int | None = None
    least_hosts: int | None = None
    most_hosts: int | None = None
    is_open: bool = True
    is_default: bool = False
    leads_to: tuple[str, ...] = ()


class Queues(Record):
    """All queues of a scheduler by name, and the command that listed them."""

    by_name: Mapping[str, Queue]
    origin: str


class JobHandler:
    """What ezpz does with the jobs of one scheduler.

    Attributes:
        name: The scheduler's.
        script: How a job is written and submitted.
        cancelling: Words that cancel the jobs that follow them.
    """

    name: str
    script: JobScript
    cancelling: tuple[str, ...]

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler whose jobs these are."""
        return scheduler(self.name)

    def question(self, user: str) -> list[str]:
        """Return the command that lists the user's own jobs, those that have just ended too."""
        raise NotImplementedError

    def question_without_history(self, user: str) -> list[str]:
        """Return the same where that is refused because ended jobs are not kept; empty where it never is."""
        del user
        return []

    def read(self, text: str, user: str) -> list[Job]:
        """Return the jobs of the user that `question` has listed."""
        raise NotImplementedError

    def job(self, job: str, run: Call) -> Job:
        """Return what has become of a job.

        Args:
            job: Its id.
            run: Runs a command within a time limit.
        """
        raise NotImplementedError

    def job_id(self, text: str) -> str:
        """Return the id in what the submitting program printed; empty where there is none.

        Sites put a script of theirs in its place, which prints more lines.
        """
        raise NotImplementedError

    def is_another(self, environ: Mapping[str, str], run: Run) -> str:
        """Return the title of another scheduler whose program of the same name is here; empty where it is this one's.

        Args:
            environ: The variables of this shell.
            run: Returns what a command printed or None.
        """
        del environ, run
        return ""

    def queues(self, option: str, run: Run) -> Queues | None:
        """Return the queues that an option of a job names; None where the scheduler does not tell.

        Args:
            option: One of ``script.queues``.
            run: Returns what a command printed or None.
        """
        raise NotImplementedError


def handler(name: str) -> JobHandler | None:
    """Return what handles a scheduler's jobs, by the scheduler's name; None where nothing does."""
    if name not in HANDLED:
        return None
    known: JobHandler = import_module(f"ezpz.jobs.{name}_jobs").HANDLER
    return known


def handlers() -> list[JobHandler]:
    """Return all of them."""
    return [known for name in HANDLED if (known := handler(name))]


def lack(name: str, verb: str) -> str:
    """Return in words that ezpz detects a scheduler's jobs but does nothing else with them, and what to do instead.

    Args:
        name: The scheduler's.
        verb: What is not done: ``submit``, ``list``, ``cancel``, ``follow`` or ``chain``.
    """
    return f"ezpz detects jobs of {scheduler(name).title} but does not {verb} them; {_INSTEAD[verb]}"
