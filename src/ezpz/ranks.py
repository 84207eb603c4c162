"""Read the rank of this process from what its launcher has set: one checked tuple from one launcher family.

Standard library only, and no module that is slow to import: the shim in front of every rank reads this file.

Families, innermost first; the variables of a family are read together or not at all:

    contract    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK         torchrun, ``ezpz launch``, by hand
    openmpi     OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}              Open MPI 4 and 5
    hydra       PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS              MPICH, Intel MPI
    pals        PALS_RANKID PALS_LOCAL_RANKID PALS_NODEID; sizes below         Cray PALS (Aurora, Polaris)
    flux        FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID                flux run
    slurm       SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_NODEID   a step of srun
    alone       nothing of the above: rank 0 of 1

PALS may tell no size at all (Aurora), flux tells no local one: then the launcher's plan does (EZPZ_PLACEMENT), or MPI
(`ezpz.dist.job_around`). A batch script of Slurm carries ``SLURM_PROCID=0`` without being a rank; it has no
``SLURM_STEP_NUM_TASKS``. A lone ``WORLD_SIZE`` without ``RANK`` is a request to the launcher and says nothing about
ranks.
"""

from __future__ import annotations

from ezpz.errors import RankError

TYPE_CHECKING = False  # `typing` costs 5 ms in every shim; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# What torchrun sets for every worker (torch 2.13, torch.distributed.run), in the order in which it is shown.
CONTRACT = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
)


class Ranks(tuple):  # type: ignore[type-arg]  # of int and str; generic tuples name every place
    """Rank, world size, local rank, local world size, index of the host (None when not known), launcher family.

    A named tuple written out: `collections` would cost every shim 2 ms and half a megabyte.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        rank: int
        world_size: int
        local_rank: int
        local_world_size: int
        host_index: int | None
        family: str
    else:
        rank, world_size, local_rank, local_world_size, host_index, family = (
            property(lambda self, place=place: self[place]) for place in range(6)
        )

    def __new__(  # noqa: PLR0917, PYI034  # the six places of a tuple; Self needs Python 3.11
        cls, rank: int, world_size: int, local_rank: int, local_world_size: int, host_index: int | None, family: str
    ) -> Ranks:
        """Return the six as a tuple."""
        return tuple.__new__(cls, (rank, world_size, local_rank, local_world_size, host_index, family))

    def __repr__(self) -> str:
        """Return the six with their names."""
        return f"Ranks({', '.join(f'{name}={value!r}' for name, value in self.named().items())})"

    def named(self) -> dict[str, int | str | None]:
        """Return the six by their names."""
        names = ("rank", "world_size", "local_rank", "local_world_size", "host_index", "family")
        return dict(zip(names, self, strict=True))

    def at_host(self, index: int | None) -> Ranks:
        """Return the same rank with another index of its host."""
        return Ranks(self.rank, self.world_size, self.local_rank, self.local_world_size, index, self.family)


ALONE = Ranks(0, 1, 0, 1, 0, "alone")

_CONTRACT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPENMPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_PALS = (
    "PALS_RANKID",
    "PALS_SIZE",
    "PALS_LOCAL_RANKID",
    "PALS_LOCAL_SIZE",
    "PALS_NODEID",
    "PMI_LOCAL_RANK",
    "PMI_LOCAL_SIZE",
)
_FLUX = ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID")
_STEP = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")


def from_environ(environ: Mapping[str, str]) -> Ranks:
    """Return who this process is.

    Args:
        environ: The environment of the process.

    Returns:
        Ranks: One tuple from one family; rank 0 of 1 with family ``alone`` when no launcher speaks.

    Raises:
        RankError: A family is incomplete or out of range, or two families contradict each other.
    """
    outer = next(filter(None, (family.read(environ) for family in FAMILIES)), None)
    if "RANK" not in environ:
        return outer or ALONE
    if outer is not None and any(name not in environ for name in _CONTRACT):
        # No launcher sets a part of the contract: these are leftovers in front of a real one, or agree with it.
        given = (environ["RANK"], environ.get("WORLD_SIZE", str(outer.world_size)))
        _agree(environ, given, outer)
        return outer
    contract = _contract(environ)
    if outer is not None:
        _agree(environ, (str(contract.rank), str(contract.world_size)), outer)
    return contract


def of_this_launch(environ: Mapping[str, str]) -> bool:
    """Tell whether a process is a rank of the `ezpz launch` around it, and not of a launcher that was started inside
    it.

    A torchrun inside a rank has a world of its own, with a TORCHELASTIC_RUN_ID of its own; EZPZ_RUN_ID stays.
    """
    run_id = environ.get("EZPZ_RUN_ID", "")
    return bool(run_id) and "RANK" in environ and environ.get("TORCHELASTIC_RUN_ID") == run_id


def _contract(environ: Mapping[str, str]) -> Ranks:
    if environ.get("WORLD_SIZE") in {"1", environ.get("PET_NNODES")}:  # alone, or in a pod of a PyTorchJob
        environ = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **environ}
    elif "LOCAL_WORLD_SIZE" not in environ and environ.get("LOCAL_RANK", "").isdigit():
        # DeepSpeed's launcher calls it LOCAL_SIZE. Others tell the local rank alone; then only a lower bound is known.
        size = environ.get("LOCAL_SIZE", "")
        environ = {**environ, "LOCAL_WORLD_SIZE": size if size.isdigit() else str(int(environ["LOCAL_RANK"]) + 1)}
    group = environ.get("GROUP_RANK", "")
    return _checked("contract", environ, _CONTRACT, int(group) if group.isdigit() else None)


def _torchrun(environ: Mapping[str, str]) -> Ranks | None:
    """Read a worker of torchrun; others set the contract without its marker, as a PyTorchJob does for each pod."""
    is_one = "TORCHELASTIC_RUN_ID" in environ and all(name in environ for name in _CONTRACT)
    return _contract(environ) if is_one else None


def _openmpi(environ: Mapping[str, str]) -> Ranks | None:
    return _checked("openmpi", environ, _OPENMPI, None) if _OPENMPI[0] in environ and _OPENMPI[2] in environ else None


def _hydra(environ: Mapping[str, str]) -> Ranks | None:
    return _checked("hydra", environ, _HYDRA, None) if _HYDRA[0] in environ and _HYDRA[2] in environ else None


def _pals(environ: Mapping[str, str]) -> Ranks | None:
    """Read a rank of PALS; ``--pmi=pmix``, Aurora's default, sets neither PALS_SIZE nor PMI_SIZE
    (pytorch/torchcomms#79).
    """
    if "PALS_RANKID" not in environ:
        return None
    planned, local = _planned(environ, environ["PALS_RANKID"])
    if not planned and "RANK" in environ:  # what `setup_torch` has learnt by MPI, and written down
        planned, local = environ.get("WORLD_SIZE", ""), environ.get("LOCAL_WORLD_SIZE", "")
    variables = {
        "PALS_SIZE": environ.get("PMI_SIZE", planned),
        "PALS_LOCAL_SIZE": environ.get("PMI_LOCAL_SIZE", local),
        "PALS_LOCAL_RANKID": environ.get("PMI_LOCAL_RANK", ""),
        **environ,
    }
    host = environ.get("PALS_NODEID", "")
    return _checked("pals", variables, _PALS[:4], int(host) if host.isdigit() else None)


def _flux(environ: Mapping[str, str]) -> Ranks | None:
    """Read a task of ``flux run``, which spreads tasks evenly: FLUX_JOB_SIZE=8 FLUX_JOB_NNODES=2 has 4 per host."""
    if "FLUX_TASK_RANK" not in environ:
        return None
    _, local = _planned(environ, environ["FLUX_TASK_RANK"])
    size, hosts = environ.get("FLUX_JOB_SIZE", ""), environ.get("FLUX_JOB_NNODES", "")
    if not local and size.isdigit() and hosts.isdigit() and int(hosts) and int(size) % int(hosts) == 0:
        local = str(int(size) // int(hosts))
    variables = {**environ, "FLUX_LOCAL_SIZE": local}
    host = int(environ["FLUX_TASK_RANK"]) // int(local) if local and environ["FLUX_TASK_RANK"].isdigit() else None
    return _checked("flux", variables, (*_FLUX, "FLUX_LOCAL_SIZE"), host)


def _planned(environ: Mapping[str, str], rank: str) -> tuple[str, str]:
    """Return world size and local world size of a rank as `ezpz launch` planned them; empty without a plan."""
    if "EZPZ_PLACEMENT" not in environ or not rank.isdigit():
        return "", ""
    counts = list(expand_counts(environ["EZPZ_PLACEMENT"]))
    first = 0
    for count in counts:
        first += count
        if int(rank) < first:
            return str(sum(counts)), str(count)
    return str(sum(counts)), ""


def _slurm(environ: Mapping[str, str]) -> Ranks | None:
    """Read a step of srun, e.g. ``SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=3,1`` (22.05)."""
    if "SLURM_STEP_NUM_TASKS" not in environ or "SLURM_PROCID" not in environ:
        return None
    host = environ.get("SLURM_NODEID", "0")
    counts = list(expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", environ["SLURM_STEP_NUM_TASKS"])))
    if not host.isdigit() or int(host) >= len(counts):
        raise RankError(
            f"cannot tell the local world size: SLURM_NODEID={host} (from srun) does not index "
            f"SLURM_STEP_TASKS_PER_NODE={environ.get('SLURM_STEP_TASKS_PER_NODE')}; expected one count per host. "
            "Start the ranks with `ezpz launch`, or unset the variables of the outer step."
        )
    variables = {**environ, "SLURM_STEP_TASKS_PER_NODE": str(counts[int(host)])}
    return _checked("slurm", variables, _STEP, int(host))


def _checked(family: str, environ: Mapping[str, str], names: tuple[str, ...], host_index: int | None) -> Ranks:
    shown = " ".join(f"{name}={environ.get(name, '(unset)')}" for name in names)
    try:
        rank, world, local, local_world = (int(environ[name]) for name in names)
    except (KeyError, ValueError):
        raise RankError(
            f"incomplete rank variables: {shown} (from the environment); expected four whole numbers from one "
            f"launcher. Start the ranks with `ezpz launch`, or unset {' '.join(names)}."
        ) from None
    if not (0 <= rank < world and 0 <= local < local_world <= world):
        raise RankError(
            f"impossible rank variables: {shown} (from the environment); expected rank < world size and local rank < "
            f"local world size <= world size. Unset {' '.join(names)} or start the ranks with `ezpz launch`."
        )
    if host_index is None and local_world == world:
        host_index = 0
    return Ranks(rank, world, local, local_world, host_index, family)


def _agree(environ: Mapping[str, str], given: tuple[str, str], outer: Ranks) -> None:
    """Refuse a contract that was left over from another shell, which is how N ranks become N times rank 0."""
    same = given == (str(outer.rank), str(outer.world_size))
    one_agent_per_rank = environ.get("GROUP_WORLD_SIZE") == str(outer.world_size)  # torchrun started by an MPI or srun
    # A world of one is what an interactive shell inside a job looks like: whatever was started in it is inner.
    if same or outer.world_size == 1 or (one_agent_per_rank and "TORCHELASTIC_RUN_ID" in environ):
        return
    raise RankError(
        f"two launchers contradict each other: rank {given[0]} of {given[1]} (from RANK, WORLD_SIZE) but rank "
        f"{outer.rank} of {outer.world_size} (from {outer.family}); expected the same. "
        "Run `unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE` and start again."
    )


def expand_counts(text: str) -> Iterator[int]:
    """Expand a list of counts with repetitions, e.g. ``2(x3),1`` into 2 2 2 1 (Slurm's SLURM_TASKS_PER_NODE).

    Raises:
        RankError: The text is not such a list.
    """
    for item in text.split(","):
        count, _, times = item.strip().partition("(x")
        times = times[:-1] if times.endswith(")") else times or "1"
        if not (count.isdigit() and times.isdigit() and item.count("(") == item.count(")") <= 1):
            raise RankError(f"cannot read {text!r}: {item!r} is not a count; expected for example 2(x3),1.")
        for _ in range(int(times)):
            yield int(count)


class Family:
    """How one kind of launcher tells its ranks who they are.

    Attributes:
        name: As `Ranks.family` has it.
        variables: What it sets for each rank and is read here, the rank itself first.
        more_variables: What it sets besides that tells of ranks.
        alike: What ranks get in a job of its scheduler that other launchers start, with the field of `Ranks`: much code
            asks its variables before torchrun's. The others of its variables are taken away.
        job_variables: Of which one is set in a job of its scheduler.
        start_variable: Names one start of ranks: no other start in the same job has its value.
        is_mpi: Whether it starts ranks of an MPI, which finds them all.
        careless_starter: The program that starts the ranks of a host (/proc/PID/comm) where it lets them run when one
            has failed; empty where the launcher ends them.
        program: What a user types to start ranks.
        terminal_variable: Says that the first task has a terminal, where a person may have started a shell as a task.
        read: Returns the rank of an environment, or None where this launcher has not set it.
    """

    __slots__ = (
        "alike",
        "careless_starter",
        "is_mpi",
        "job_variables",
        "more_variables",
        "name",
        "program",
        "read",
        "start_variable",
        "terminal_variable",
        "variables",
    )

    def __init__(
        self,
        name: str,
        variables: tuple[str, ...],
        start_variable: str,
        read: Callable[[Mapping[str, str]], Ranks | None],
        *,
        is_mpi: bool = False,
        careless_starter: str = "",
        program: str = "mpiexec",
        terminal_variable: str = "",
        more_variables: tuple[str, ...] = (),
        alike: Mapping[str, str] | None = None,
        job_variables: tuple[str, ...] = (),
    ) -> None:
        self.name, self.variables, self.start_variable, self.read = name, variables, start_variable, read
        self.is_mpi, self.careless_starter = is_mpi, careless_starter
        self.program, self.terminal_variable = program, terminal_variable
        self.more_variables, self.alike, self.job_variables = more_variables, alike or {}, job_variables

    @property
    def every_variable(self) -> tuple[str, ...]:
        """All by which it tells a rank."""
        return (*self.variables, *self.more_variables)

    def is_alike(self, environ: Mapping[str, str]) -> bool:
        """Tell whether its names tell ranks of other launchers, too."""
        return any(environ.get(name) for name in self.job_variables)


# Innermost first. This is the one table of what launchers set for ranks; that of the schedulers is `ezpz.cluster`.
FAMILIES = (
    Family("openmpi", _OPENMPI, "PMIX_NAMESPACE", _openmpi, is_mpi=True, more_variables=("OMPI_COMM_WORLD_NODE_RANK",)),
    Family("hydra", _HYDRA, "I_MPI_HYDRA_UUID", _hydra, is_mpi=True, careless_starter="hydra_pmi_proxy"),
    Family("pals", _PALS, "PALS_APID", _pals, is_mpi=True),
    Family("flux", _FLUX, "FLUX_JOB_ID", _flux, program="flux run"),
    Family(
        "slurm",
        _STEP,
        "SLURM_STEP_ID",
        _slurm,
        careless_starter="slurmstepd",
        program="srun",
        terminal_variable="SLURM_PTY_PORT",
        more_variables=("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NODEID", "SLURM_GTIDS"),
        alike={
            "SLURM_PROCID": "rank",
            "SLURM_LOCALID": "local_rank",
            "SLURM_NODEID": "host_index",
            "SLURM_NTASKS": "world_size",
            "SLURM_NPROCS": "world_size",
        },
        job_variables=("SLURM_JOB_ID", "SLURM_JOBID"),
    ),
)
# Around a launch it is one as well; inside a rank the contract is read by itself.
TORCHRUN = Family("contract", _CONTRACT, "TORCHELASTIC_RUN_ID", _torchrun, program="torchrun")

# One of these is set in each task of a launcher, and in a pod of a PyTorchJob; most launches are in none.
OF_TASKS = frozenset((*(family.variables[0] for family in (*FAMILIES, TORCHRUN)), "PET_NNODES"))

# What launchers set that are not read here: MVAPICH 2 and 3; jsrun also sets Open MPI's.
UNREAD = (
    *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    *("MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_SIZE"),
    *("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
)
OF_ANY_MPI = "PMI_"  # how names begin that srun, flux and PALS set as well, each for the MPI that it starts

# The names by which launchers tell a rank: those of an outer launcher's ranks are not true of those started inside.
LAUNCHERS_OWN = frozenset((*UNREAD, *(name for family in FAMILIES for name in family.every_variable)))


def alike(ranks: Ranks, environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return what the names of launchers that have not started a rank are to tell of it; None for what is taken away.

    Args:
        ranks: The rank; the index of its host is known.
        environ: Its environment, which tells of the job.
    """
    told: dict[str, str | None] = {}
    for family in FAMILIES:
        if family.name != ranks.family and family.is_alike(environ):
            told |= dict.fromkeys(family.every_variable)
            told |= {name: str(getattr(ranks, field)) for name, field in family.alike.items()}
    return told


def family_of(ranks: Ranks) -> Family | None:
    """Return the launcher family that a rank was read from; None for the contract, MPI itself and no launcher at
    all.
    """
    return next((family for family in FAMILIES if family.name == ranks.family), None)
