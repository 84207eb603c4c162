"""Understand the options of other launchers: torchrun, mpiexec, srun, PALS, accelerate, and an older ``launch``.

Read only when a word is none of `ezpz.launch.options.OPTIONS`. Words of the same meaning become our option; words that
ask for what a launch does anyway are passed over with a note; words of another meaning are refused with a sentence that
names what to write. docs/older-scripts.md has the same tables.
"""

from __future__ import annotations

import os
import re

from ezpz.errors import UsageError
from ezpz.fields import EMPTY, Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    _T = TypeVar("_T")
    Special = Callable[[str, str, Sequence[str], Mapping[str, str]], tuple[str, str, int, str]]


class ForeignOption(Record):
    """What a foreign option means.

    Attributes:
        ours: Our option; empty for a word that changes nothing.
        value: Its value; None where ours takes none.
        taken: How many words of the command line that were.
        note: What the user should know.
        of_python: Whether the option is one of a launcher that starts Python itself, so that a script may follow.
    """

    ours: str
    value: str | None
    taken: int
    note: str = ""
    of_python: bool = False


class ForeignOptions(Record):
    """What the options of others mean on one of our command lines; names as `plain` has them.

    Attributes:
        same: Our option of the same meaning, with a value.
        flags: The same without a value; ours may have one, as ``--devices-per-host=0``.
        done_flags: What is done in any case, and why it need not be said.
        done_values: The same with a value.
        different: What has another meaning, and what to type.
        special: What reads a value: (name, value, what follows, environment) to (our option, its value, how many more
            words were taken, a note).
        of_python: Options of launchers that start Python themselves.
        advice: What an error about another meaning ends with.
    """

    same: Mapping[str, str]
    flags: Mapping[str, str]
    different: Mapping[str, str]
    special: Mapping[str, Special]
    advice: str
    done_flags: Mapping[str, str] = EMPTY
    done_values: Mapping[str, str] = EMPTY
    of_python: Mapping[str, str] = EMPTY

    def has(self, name: str) -> bool:
        """Tell whether an option is in one of the tables."""
        tables = (self.same, self.flags, self.done_flags, self.done_values, self.different, self.special)
        return any(plain(name) in words for words in tables)


def each(words: str, meaning: _T) -> dict[str, _T]:
    """Return a table in which several words mean the same."""
    return dict.fromkeys(words.split(), meaning)


def table(**rows: str) -> dict[str, str]:
    """Return a table of words by our options, whose names are the keywords."""
    return {word: f"--{ours.replace('_', '-')}" for ours, words in rows.items() for word in words.split()}


# Of the same meaning, with a value.
_SAME = table(
    np="--n --nproc --nprocs --ntasks --num_processes --world_size",
    ppn="--nproc_per_node --nproc_per_host --npernode -npernode --ntasks_per_node --tasks_per_node -perhost --perhost",
    nhosts="-nh --nh --nhost --nnode --num_machines --num_nodes",
    devices_per_host="--gpus_per_node --ngpu_per_host --num_gpus",
    devices="--gpu_ids",
    hosts="-w -H --host -host -hosts --nodelist",
    hostfile="-f -hostfile --machinefile -machinefile --host_file --hosts_file --nodefile",
    exit_timeout="-W --wait",
    cpu_bind="-cpu-bind",
    depth="-d -depth --cpus_per_task -c",
    launcher_args="--mpi_args --srun_args",
)
_FLAGS = {
    **table(
        label="-l --prepend_rank -prepend-rank --tag_output -tag-output",
        oversubscribe="-oversubscribe --overcommit -O",
        verbose="-v",
    ),
    **each("--cpu --use_cpu", "--devices-per-host=0"),
}
# torchrun's --numa-binding (torch 2.13, torch/numa/binding.py): the NUMA node of the rank's GPU, or its socket, or a
# part of that node's cores for each rank. Ours goes by the order of local ranks.
_NUMA = {"node": "numa", "socket": "sockets", "exclusive": "auto"}
# Open MPI's and Hydra's --bind-to.
_BIND_TO = {
    "none": "none",
    "core": "cores",
    "hwthread": "threads",
    "socket": "sockets",
    "package": "sockets",
    "numa": "numa",
    "user": "",
}
# Launchers that start Python themselves: what follows may be a script, or the name of a module behind -m.
_OF_PYTHON = each(
    "--nproc_per_node --nnodes --node_rank --standalone --max_restarts --monitor_interval --start_method --role "
    "--num_processes --num_machines --machine_rank --master_addr --master_port --local_addr --use_env --num_gpus --cpu "
    "--use_cpu --num_nodes --rdzv_backend --rdzv_endpoint --rdzv_id --rdzv_conf --main_process_ip --main_process_port "
    "--multi_gpu --no_python --module -m --numa_binding --signals_to_handle --event_log_handler",
    "Python",
)
# What is done in any case. Those with a value may be given as NAME=VALUE or NAME VALUE.
_ALL_VARIABLES = "ranks get the whole environment"
_MEETING = "launch finds where the ranks meet; MASTER_ADDR and MASTER_PORT decide it by hand"
_DONE_FLAGS = {
    **each(
        "--envall -envall -genvall --genvall --no_local_rank --use_env",
        f"{_ALL_VARIABLES}, LOCAL_RANK in it",
    ),
    **each("--standalone --multi_gpu", "launch starts the ranks of one job by itself"),
    **each("-u --unbuffered --line_buffer", "lines come out whole and at once"),
    **each("--allow_run_as_root -allow-run-as-root", "launch tells mpiexec so where it must"),
    **each("--quiet -Q", "launch says a few lines of its own, on stderr"),
    **each("--overlap --exclusive -K --kill_on_bad_exit", "launch chooses that for srun"),
    "--no_python": "the command is run as it is",
}
_DONE_VALUES = {
    **each("--rdzv_backend --rdzv_endpoint --rdzv_id --rdzv_conf --local_addr", _MEETING),
    **each("--genvlist -genvlist -envlist", _ALL_VARIABLES),
    **each("--monitor_interval --start_method --role --event_log_handler", "only torchrun's own agent needs it"),
    "--signals_to_handle": "SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to every rank",
    **each("-J --job_name", "the job has its name; for that of a step of srun: `--launcher-args=--job-name=NAME`"),
    "--tee": "ranks are shown, and with --log-dir kept",
}
# What has another meaning here, or none. `{value}` is what was given.
_JOB = "launch uses the job that is there: say it to salloc, sbatch or qsub"
_CONTAINER = (
    "launch starts no container, but a command that does: write `launch apptainer exec IMAGE python3 train.py`; for "
    "srun's own, with ezpz in the image: `--launcher-args=--container-image=IMAGE`"
)
_DIFFERENT = {
    "-N": "hosts to srun and ranks per host to Open MPI: write --nhosts or --ppn",
    "-t": "minutes to srun, output to torchrun: write `--timeout TIME` or `--log-dir DIR`",
    "--time": "minutes to srun, and seconds here: write --timeout 90, 10m or HH:MM:SS",
    "--walltime": "the time of a job: ask qsub for it; `--timeout` ends one launch",
    "--auto_retry": "write `--attempts N`, N starts in all; hosts of the job behind the first `--nhosts H` are spares",
    "--spare_nodes": "hosts of the job behind the first `--nhosts H` are spares of `--attempts N`: write these two",
    "--redirects": "output is shown in any case; `--log-dir DIR` keeps a file per rank",
    "-r": "output is shown in any case; `--log-dir DIR` keeps a file per rank",
    "--output": "a file to srun; here `--log-dir DIR` keeps a file per rank",
    "-o": "a file to srun; here `--log-dir DIR` keeps a file per rank",
    "--error": "a file to srun; here `--log-dir DIR` keeps a file per rank",
    "-e": "a file to srun; here `--log-dir DIR` keeps a file per rank",
    "-outfile-pattern": "launch names the files itself: `--log-dir DIR` keeps one per rank",
    "-errfile-pattern": "launch names the files itself: `--log-dir DIR` keeps one per rank",
    **each(
        "--filter --duplicate_stdout_filters --duplicate_stderr_filters",
        "launch filters no output: pipe it through grep; `--log-dir DIR` keeps a file per rank",
    ),
    "--logs_specs": "a class of torchrun's own; here `--log-dir DIR` keeps a file per rank",
    "--shutdown_timeout": (
        "behind SIGTERM ranks have 10 s, 3 s behind a failure, and longer where they save: `ezpz.on_save(function)`"
    ),
    "--virtual_local_rank": (
        "LOCAL_RANK numbers the ranks of a host, and each sees all of its devices: write "
        "`launch bash -c 'CUDA_VISIBLE_DEVICES=$LOCAL_RANK LOCAL_RANK=0 exec python3 train.py'`"
    ),
    "--local_ranks_filter": "launch shows all ranks; `--label` names them, `--log-dir DIR` parts them",
    "--map_by": "hosts are filled in order, `--ppn N` ranks each",
    "-map-by": "hosts are filled in order, `--ppn N` ranks each",
    "--rank_by": "ranks are numbered host by host",
    "--distribution": "hosts are filled in order, `--ppn N` ranks each",
    "--gpus": "a number of devices in all to srun, a list elsewhere: write `-n N` ranks, or `--devices 0,1`",
    "-G": "a number of devices in all to srun: write `-n N` ranks, or `--devices 0,1`",
    "--gpus_per_task": "each rank uses the device of its LOCAL_RANK; for srun: `--launcher-args=--gpus-per-task=N`",
    "--gpu_bind": "each rank uses the device of its LOCAL_RANK; for srun: `--launcher-args=--gpu-bind=…`",
    "--chdir": "ranks run in this folder: `cd DIR` first",
    "--wdir": "ranks run in this folder: `cd DIR` first",
    "-wdir": "ranks run in this folder: `cd DIR` first",
    "-D": "ranks run in this folder: `cd DIR` first",
    "--genvnone": "ranks get the whole environment: `--unset NAMES` takes variables away",
    "-genvnone": "ranks get the whole environment: `--unset NAMES` takes variables away",
    "--envnone": "ranks get the whole environment: `--unset NAMES` takes variables away",
    "--report_bindings": "`launch --explain COMMAND` shows the binding of each rank",
    "--display_map": "`launch --explain COMMAND` shows hosts and ranks",
    "--pty": "a single rank of the local launcher has the terminal; no other has one",
    "--multi_prog": "all ranks run one command",
    "--mixed_precision": "a matter of the script, not of its launch",
    "--config_file": "launch reads no file of accelerate: write -n, --nhosts and so on",
    "--use_deepspeed": "a matter of the script, not of its launch",
    "--run_path": "write `python3 FILE`, or `-m MODULE`",
    **each("-p --partition -A --account -q --qos --mem -C --constraint", _JOB),
    **each("--image --container --container_image --container_name --container_mounts --container_workdir", _CONTAINER),
}


def plain(name: str) -> str:
    """Return an option's name as the tables here have it: with ``_`` inside, where it begins with two dashes."""
    return f"--{name[2:].replace('-', '_')}" if name.startswith("--") else name


def understand(
    argv: Sequence[str], environ: Mapping[str, str], words: ForeignOptions | None = None
) -> ForeignOption | None:
    """Return what the first word of a command line means to others; None where nobody is known for it.

    Args:
        argv: The option, perhaps as ``NAME=VALUE``, and all that follows it.
        environ: Tells which variables there are, for ``-x``.
        words: The tables; those of launch by default.

    Raises:
        UsageError: It means something else here, or its value is missing or unusable.
    """
    words = words or LAUNCH
    given, equals, behind = argv[0].partition("=")
    name = plain(given)
    of_python = name in words.of_python
    if name in words.flags or name in words.done_flags:
        if equals and not (name == "--kill_on_bad_exit" and behind != "0"):
            raise UsageError(f"{given} takes no value, but {behind!r} was given (from the command line). Leave it out.")
        if name in words.flags:
            ours, has_value, value = words.flags[name].partition("=")
            return ForeignOption(ours, value if has_value else None, 1, of_python=of_python)
        return ForeignOption("", None, 1, f"{given} is not needed: {words.done_flags[name]}", of_python)
    if name in words.different:
        raise UsageError(
            f"{argv[0]} (from the command line) has no such meaning here: {words.different[name]}.{words.advice}"
        )
    special = words.special.get(name)
    if not (special or name in words.same or name in words.done_values):
        return None
    value, taken = (behind, 1) if equals else _next(argv, given)
    if name in words.done_values:
        return ForeignOption("", None, taken, f"{given} {value} is not needed: {words.done_values[name]}", of_python)
    if special:
        ours, value, more, note = special(given, value, argv[taken:], environ)
        return ForeignOption(ours, value or None, taken + more, note, of_python)
    return ForeignOption(words.same[name], value, taken, of_python=of_python)


def _next(argv: Sequence[str], given: str) -> tuple[str, int]:
    if len(argv) < 2 or argv[1] == "--":
        raise UsageError(f"{given} needs a value (from the command line); expected `{given} VALUE`.")
    return argv[1], 2


# Options whose value is read here: (name, value, what follows, environment) -> our option, its value, how many more
# words were taken, and a note.


def _per_host(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    if value in {"auto", "gpu", "xpu"}:
        return "", "", 0, f"{given} {value} is not needed: there is a rank per device, or a few where there is none"
    if value == "cpu":
        return "--ppn", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()), 0, ""
    return "--ppn", value, 0, ""


def number_of_hosts(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Read torchrun's ``--nnodes 2:2`` and Slurm's ``--nodes=2-2``, but no range.

    Raises:
        UsageError: It is one.
    """
    least, dash, most = value.partition(":" if ":" in value else "-")
    if dash and least and least != most:
        raise UsageError(
            f"{given} {value} (from the command line) is a range of hosts, and no rank can join or leave a launch; "
            f"expected one number. Write `--nhosts {most or least}`."
        )
    return "--nhosts", least or value, 0, ""


def _host_number(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    if value != "0":
        raise UsageError(
            f"{given} {value} (from the command line) numbers one of several commands, one per host, but launch starts "
            "the ranks of all hosts itself; expected 0, or nothing. Run it once, without this option."
        )
    return "", "", 0, f"{given} 0 is not needed: launch starts the ranks of all hosts itself"


def _variable(given: str, value: str, more: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Read ``-x NAME=VALUE``, ``-x NAME`` and ``-genv NAME VALUE``; srun's ``-x HOSTS`` is something else."""
    if "=" in value:
        return "--env", value, 0, ""
    if given != "-x" and more and more[0] != "--":
        return "--env", f"{value}={more[0]}", 1, ""
    if given == "-x" and value not in environ and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
        raise UsageError(
            f"-x {value} (from the command line): variables to Open MPI, hosts that are left out to srun, and {value} "
            f"is no variable here; expected -x NAME=VALUE. Write `--exclude {value}` or `--env {value}=VALUE`."
        )
    return "", "", 0, f"{given} {value} is not needed: {_ALL_VARIABLES}"


def _export(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Read srun's ``--export=ALL,A=1``."""
    first, _comma, rest = value.partition(",")
    if first != "ALL":
        raise UsageError(
            f"{given}={value} (from the command line) leaves variables out; expected ALL: {_ALL_VARIABLES}. "
            "Write `--unset NAMES`."
        )
    if not rest:
        return "", "", 0, f"{given}={value} is not needed: {_ALL_VARIABLES}"
    if "," in rest or "=" not in rest:
        raise UsageError(f"cannot read {given}={value} (from the command line); expected one `--env NAME=VALUE` each.")
    return "--env", rest, 0, ""


def _bind_to(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    kind = _BIND_TO.get(value.partition(":")[0], "")
    if not kind:
        raise UsageError(
            f"{given} {value} (from the command line) is no binding that is known here; expected one of "
            f"{', '.join(name for name, ours in _BIND_TO.items() if ours)}. Or write `--cpu-bind list:0-3:4-7`."
        )
    return "--cpu-bind", kind, 0, ""


def _numa(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    ours = _NUMA.get(value)
    if ours is None:
        raise UsageError(
            f"{given} {value} (from the command line) is no binding that is known here; expected one of "
            f"{', '.join(_NUMA)}. Write `--cpu-bind list:0-7:8-15`, the CPUs of each local rank."
        )
    return "--cpu-bind", ours, 0, f"{given} {value} is taken as --cpu-bind {ours}, in the order of local ranks"


def _parameter(given: str, value: str, more: Sequence[str], _: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Read Open MPI's ``--mca NAME VALUE``, which is for itself."""
    if not more or more[0] == "--":
        raise UsageError(f"{given} {value} needs a value (from the command line); expected `{given} NAME VALUE`.")
    from shlex import join

    return "--launcher-args", join([given, value, more[0]]), 1, ""


def _restarts(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Read a number of restarts, which are starts without the first."""
    if not (value.isascii() and value.isdigit()):
        raise UsageError(
            f"{given} {value} (from the command line) is no number of restarts; expected one, as in `{given} 3`, or "
            "`--attempts N`, N starts in all."
        )
    if not int(value):
        return "", "", 0, f"{given} 0 is not needed: nothing is started again without --attempts"
    attempts = str(int(value) + 1)
    return "--attempts", attempts, 0, f"{given} {value} is taken as --attempts {attempts}, the starts in all"


def _master(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    return ("--master-port" if given.endswith("port") else "--master-addr"), value, 0, ""


_SPECIAL = {
    "--nproc_per_node": _per_host,
    **each("--nnodes --nodes", number_of_hosts),
    **each("--node_rank --machine_rank", _host_number),
    **each("-x -genv --genv -env", _variable),
    "--export": _export,
    **each("--max_restarts --retries --max_failover_retries", _restarts),
    **each("--bind_to -bind-to", _bind_to),
    "--numa_binding": _numa,
    **each("--mca -mca", _parameter),
    **each("--main_process_ip --main_process_port", _master),
}

LAUNCH = ForeignOptions(
    same=_SAME,
    flags=_FLAGS,
    different=_DIFFERENT,
    special=_SPECIAL,
    advice=" Options of the command come after it: `launch [options] COMMAND [ARG ...]`.",
    done_flags=_DONE_FLAGS,
    done_values=_DONE_VALUES,
    of_python=_OF_PYTHON,
)
