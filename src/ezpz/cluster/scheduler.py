"""Describe a scheduler: the questions that all of ezpz asks of one, with answers for a scheduler that needs no special
care.

`ezpz.cluster.SCHEDULERS` names the schedulers in the order of detection. ``cluster/NAME.py`` holds one instance of a
class of its own, called ``SCHEDULER``. Nothing outside these files compares a scheduler's name: whoever needs a fact
asks for it here. Submitting, listing and cancelling jobs is a second class (`ezpz.jobs.job_handler`), which a
scheduler need not have and this file does not import.
"""

from __future__ import annotations

from importlib import import_module

from ezpz.fields import Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.cluster.allocation import Allocation, Grant, Read, Run


class RemoteShellAccess(Record):
    """Whether a scheduler's remote shell can be used from here, and as whom.

    Attributes:
        problem: Why it cannot be used; empty where it can.
        process: The process of the job on this host whose variables it needs; 0 where this process has them.
    """

    problem: str = ""
    process: int = 0


class Scheduler:
    """The facts of one scheduler; what is empty here need not be overridden.

    Attributes:
        name: In answers and variables, e.g. ``pbs``; also the name of its file.
        title: As people write it, e.g. ``PBS``.
        job_variables: Variables that hold the job's id, the preferred one first: it is set for a launcher where the job
            was found
            without variables.
        array_variables: Hold the index of a task of an array; tasks may share a job id.
        other_marks: More variables that only a job's processes have.
        ancestor_prefixes: How the names of the programs above a job's processes begin: the nearest one tells the inner
            of two jobs.
        hides_others: Whether its jobs always lie inside those of other schedulers, never around them.
        bootstrap: How Hydra calls the scheduler as what starts its proxies on other hosts; empty where it knows none.
        remote_shell: Words that run a command on one host of the job when the host and the command follow them.
        job_option: By which `remote_shell` is told the job from outside of it; empty where it cannot be.
        passes_output: Whether `remote_shell` passes on what the command prints.
        remote_needs: Variables without one of which `remote_shell` cannot work.
        agent_flavour: The flavour that starts agents of ours by that remote shell, where no MPI is installed; empty
            for none.
        mpiexec_mark: What its own ``mpiexec`` prints to ``--version``: a script that passes on to an MPI behind it.
        submit_path: Holds the PATH of the shell that submitted the job, which that script searches.
        own_launcher: The flavour that starts ranks inside its jobs; empty where that is the site's ``mpiexec``.
        programs: Its commands that are asked about jobs, the one that lists them first.
        commands: All its commands that are also looked for in its own `folders`.
        kept_variables: More variables that a second shell of the job gets; no secrets.
        listing: A command that answers whenever the server is within reach: a job that it did not find here is over.
        end_variable: Holds the end of the job in seconds since 1970-01-01 UTC.
        start_variable: Holds the start of the job, likewise.
        slots_option: The option or resource by which a user asks for more slots.
        component_option: By which its launcher and its remote shell choose a component of a heterogeneous job.
        host_variable: Holds the scheduler's name of this host where it may be another than the host's own.
        threads_variable: The CPUs of the whole host, to which the scheduler sets ``OMP_NUM_THREADS``: it asks for no
            number of threads of a rank.
        device_variables: Tell the devices that were granted; of a job of another scheduler they mean nothing.
        signalling_daemon: Name of its program that signals the processes of a job on each host; empty where it
            signals its launcher alone.
        configuration: A command that prints how the scheduler is set up, for `kill_wait`.
        of_job: How the names of variables begin that speak of the job around the shell, which a job that is queued
            from inside it would inherit; empty where none is inherited.
        lasting: Those of them that speak of no job.
        output_variables: How the names of variables begin by which users change what its `programs` print.
        outliving: The option with which a job outlives the death of one of its hosts; empty where none is needed.
        singletons_cause: What usually makes each task of its own launcher a world of one.
    """

    name = "none"
    title = "no scheduler"
    job_variables: tuple[str, ...] = ()
    array_variables: tuple[str, ...] = ()
    other_marks: tuple[str, ...] = ()
    ancestor_prefixes: tuple[str, ...] = ()
    hides_others = False
    bootstrap = ""
    remote_shell: tuple[str, ...] = ()
    job_option = ""
    passes_output = True
    remote_needs: tuple[str, ...] = ()
    agent_flavour = ""
    mpiexec_mark = ""
    submit_path = ""
    own_launcher = ""
    programs: tuple[str, ...] = ()
    commands: frozenset[str] = frozenset()
    kept_variables: tuple[str, ...] = ()
    listing: tuple[str, ...] = ()
    end_variable = ""
    start_variable = ""
    slots_option = ""
    component_option = ""
    host_variable = ""
    threads_variable = ""
    device_variables: tuple[str, ...] = ()
    signalling_daemon = ""
    configuration: tuple[str, ...] = ()
    of_job = ""
    lasting: tuple[str, ...] = ()
    output_variables: tuple[str, ...] = ()
    outliving = ""
    singletons_cause = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """All variables of which one is set in every process of a job."""
        return (*self.job_variables, *self.other_marks)

    @property
    def second_shell(self) -> tuple[str, ...]:
        """All variables that a second shell of the job gets."""
        return (*self.marks, *self.kept_variables)

    def folders(self, environ: Mapping[str, str], read: Read) -> tuple[str, ...]:
        """Return the folders in which its `commands` are besides those of PATH.

        Args:
            environ: The environment to read.
            read: Returns the text of a file or None.
        """
        del environ, read
        return ()

    def is_marked(self, environ: Mapping[str, str]) -> bool:
        """Tell whether a process has a variable of a job."""
        return any(environ.get(name) for name in self.marks)

    def tells_of_job(self, name: str) -> bool:
        """Tell whether a variable speaks of the job around the shell, and misleads a command meant for another."""
        return bool(self.of_job) and name.startswith(self.of_job) and name not in self.lasting

    def job_id(self, environ: Mapping[str, str]) -> str:
        """Return the job's id as the variables have it; empty when they do not."""
        return next(filter(None, map(environ.get, self.job_variables)), "")

    def detect(self, environ: Mapping[str, str], read: Read, run: Run, *, more: bool = False) -> Allocation | None:
        """Return the job that ``environ`` describes, or None outside any.

        Args:
            environ: The environment to read.
            read: Returns the text of a file or None.
            run: Returns what a command printed or None.
            more: Ask also for what only people want to know: the end of the job.

        Raises:
            MachineError: There is a job, but its hosts cannot be found.
            UsageError: A host expression cannot be read.
        """
        del environ, read, run, more
        return None

    def about_host(self, host: str, user: str) -> list[list[str]]:
        """Return the commands that `find` begins with, so that several schedulers can be asked at the same time."""
        del host, user
        return []

    def find(self, host: str, user: str, run: Run) -> Allocation | None:
        """Return the user's job that runs on a host, for a shell without variables of it; None where there is none.

        Raises:
            MachineError: Several of the user's jobs run there.
        """
        del host, user, run
        return None

    def running(self, user: str, run: Run) -> Mapping[str, Sequence[str]]:
        """Return the user's running jobs, each with its hosts, as far as `find` has learned of them on its way."""
        del user, run
        return {}

    def doubt(self, environ: Mapping[str, str], run: Run) -> str:
        """Return why it is not certain that a shell in which no job was found is in none; empty where it is."""
        del environ, run
        return ""

    def granted(self, environ: Mapping[str, str], *, here: bool) -> Grant | None:
        """Return the devices of each host that the job's variables grant; None where they name none.

        Args:
            environ: The environment to read.
            here: Whether this host is one of the job's, so that variables about "this host" count.

        Raises:
            UsageError: A variable cannot be read.
        """
        del environ, here
        return None

    def signals_ranks(self, environ: Mapping[str, str], read: Read) -> bool:
        """Tell whether its daemon signals ranks too, and not just the processes that it has started itself."""
        del environ, read
        return bool(self.signalling_daemon)

    def script_in_front(self) -> int:
        """Return the pid of the script that is signalled in place of this process and would take it along; else 0."""
        return 0

    def kill_wait(self, text: str) -> float:
        """Return how long it lets processes end before SIGKILL, in seconds; 0 where that is not known.

        Args:
            text: What the command in ``configuration`` printed.
        """
        del text
        return 0.0

    def reach(self, environ: Mapping[str, str], job: str) -> RemoteShellAccess:
        """Tell whether `remote_shell` works from a shell with these variables; one without needs does.

        Args:
            environ: The variables of the shell.
            job: The job's id.
        """
        del environ, job
        return RemoteShellAccess("" if self.remote_shell else f"{self.title} starts no programs on other hosts")

    def mask(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the devices of this host as the scheduler's own mask names them; empty where nothing tells them."""
        del environ
        return ()


_NONE = Scheduler()


def scheduler(name: str) -> Scheduler:
    """Return a scheduler by its name; for ``none`` one whose answers are all empty."""
    from ezpz.cluster import SCHEDULERS

    if name not in SCHEDULERS:
        return _NONE
    known: Scheduler = import_module(f"ezpz.cluster.{name}").SCHEDULER
    return known


def schedulers() -> list[Scheduler]:
    """Return all schedulers in the order of detection."""
    from ezpz.cluster import SCHEDULERS

    return [scheduler(name) for name in SCHEDULERS]


def plain_output(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the commands of schedulers print what is read here, whatever the user prefers."""
    changing = tuple(name for one in schedulers() for name in one.output_variables)
    return {name: value for name, value in environ.items() if not name.startswith(changing)}
