"""Understand options of sbatch and qsub on the command line of ``ezpz submit``, as their users mean them.

    -N 2 -p debug -t 1-00:00:00                      --nhosts 2 --queue debug --time 1-00:00:00
    -l select=2:ngpus=4,walltime=6:00:00             --nhosts 2 --option=-l select=2:ngpus=4 --time 6:00:00

`ezpz.launch.other_launchers` says what the tables mean; docs/older-scripts.md has the same words.
"""

from __future__ import annotations

import re
import shlex

from ezpz.errors import UsageError
from ezpz.jobs.job_file import Option, hosts_of, resources
from ezpz.launch.options import OPTIONS
from ezpz.launch.other_launchers import LAUNCH, ForeignOptions, each, number_of_hosts, plain, table, understand

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MORE = "--option"  # with an option of the scheduler's, as a job file has it
_AS_IT_IS = (
    "--qos --gpus --gpus_per_node --gpus_per_task --gpu_bind --gres --constraint --mem --mem_per_cpu --mem_per_gpu "
    "--cpus_per_task --cpus_per_gpu --reservation --licenses --mail_type --mail_user --exclude --nodelist --begin "
    "--network --comment --dependency --array --clusters --nice --priority --switches --hint --signal "
    "-C -G -L -M -P -a -c -d -j -r -w -x"
)
_FLAGS = "--exclusive --requeue --no_requeue --no_kill --contiguous --hold -V"
_SHELL = "a job file is queued: `salloc` or `qsub -I` give a shell in a job, where `launch` starts ranks"
_OUTPUT = "what the job prints goes beside its file: write `--output DIR`"
_ENVIRONMENT = "the job sets up its own environment: write `-- --env NAME=VALUE COMMAND`"
_DIFFERENT = {
    **each("-n --ntasks --np -np --nprocs", "how many ranks is said to launch: write `-- -n N COMMAND`"),
    **each(
        "--ntasks_per_node --tasks_per_node --ppn -ppn",
        "how many ranks per host is said to launch: write `-- --ppn N COMMAND`; for sbatch `-O=--ntasks-per-node=N`",
    ),
    **each("-o -e --error", _OUTPUT),
    **each("-D --chdir --workdir", "the job runs in this folder: `cd DIR` first"),
    **each("-I -X --pty --interactive", _SHELL),
    **each("-v --export", _ENVIRONMENT),
    "-S": "job files are for bash",
    "-m": "write `-- -m MODULE` for a module, and `-O='-m abe'` for qsub's mail",
    "--wait": "a job is queued, and not waited for: `ezpz status` tells its state",
    "--wrap": "write the command itself behind --",
    "--test_only": "write `--dry-run`",
    "--parsable": "write `--json`, which prints the file and the ids for programs",
}


def _as_it_is(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    if given.startswith("--"):
        return _MORE, f"{given.replace('_', '-')}={shlex.quote(value) if ' ' in value else value}", 0, ""
    return _MORE, f"{given} {value}", 0, ""


def _of_qsub(given: str, value: str, more: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Read ``-W depend=…`` and ``-k oe``, which have a value to qsub alone.

    Raises:
        UsageError: It is none, but most likely the command.
    """
    fits = re.fullmatch(r"\w+=.*", value) if given == "-W" else re.fullmatch("[oedn]+", value)
    if not fits:
        flag, example = ("--wait", "block=true") if given == "-W" else ("--no-kill", "oe")
        raise UsageError(
            f"{given} {value} (from the command line): {flag} to sbatch, and with a value to qsub; expected one, such "
            f"as `{given} {example}`. Leave it out, or write `-O={flag}`."
        )
    return _as_it_is(given, value, more, environ)


def _queue_or_priority(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Read ``-p``: the partition to Slurm, the job's priority to PBS."""
    return (_MORE, f"{given} {value}", 0, "") if re.fullmatch(r"[-+]?\d+", value) else ("--queue", value, 0, "")


def _hosts_or_name(
    given: str, value: str, more: Sequence[str], environ: Mapping[str, str]
) -> tuple[str, str, int, str]:
    """Read ``-N``: hosts to Slurm, the job's name to PBS."""
    return ("--name", value, 0, "") if value[:1].isalpha() else number_of_hosts(given, value, more, environ)


def _name_or_array(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Read ``-J``: the job's name to Slurm, the numbers of an array to PBS."""
    return (_MORE, f"{given} {value}", 0, "") if value[:1].isdigit() else ("--name", value, 0, "")


def _resource(given: str, value: str, _: Sequence[str], __: Mapping[str, str]) -> tuple[str, str, int, str]:
    """Read one resource of PBS's ``-l``, of Torque's too."""
    name, _equals, amount = value.partition("=")
    if name == "nodes":
        hosts, *more = amount.split(":")
        ranks = next((each.partition("=")[2] for each in more if each.startswith("ppn=")), "")
        left = ":".join(each for each in more if not each.startswith("ppn="))
        note = f"{given} {value} is taken as --nhosts {hosts}"
        note += f"; ranks per host are launch's: `-- --ppn {ranks} COMMAND`" if ranks else ""
        note += f"; {left} is left out: ask for it with `-l select={hosts}:…`" if left else ""
        return "--nhosts", hosts, 0, note if more else ""
    ours = {"select": "--nhosts", "walltime": "--time", "filesystems": "--filesystems"}.get(name)
    return (ours, amount, 0, "") if ours and amount else (_MORE, f"{given} {value}", 0, "")


SUBMIT = ForeignOptions(
    same=table(queue="--partition", time="-t --walltime", name="--job_name"),
    flags={**each(_FLAGS, _MORE), "-H": f"{_MORE}=--hold"},
    done_flags=each("-Q --quiet", "the file and the id of a job are all that is printed"),
    different=_DIFFERENT,
    special={
        **each(_AS_IT_IS, _as_it_is),
        **each("-W -k", _of_qsub),
        **each("--nodes --nnodes --num_nodes", number_of_hosts),
        "-N": _hosts_or_name,
        "-J": _name_or_array,
        "-p": _queue_or_priority,
        "-l": _resource,
    },
    advice=" Run `ezpz submit --help` for the options.",
)
_LAUNCHS = {name for names, _ in OPTIONS for name in names}
# Of a scheduler's words those that ask for hosts, a queue or a time, and are hardly a program's own.
BEHIND = ("--nodes", "--partition", "--walltime")


def translate(argv: Sequence[str], own: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Return a command line with options of schedulers as ours, up to the command, and notes.

    Args:
        argv: The words behind ``ezpz submit``.
        own: Our options, and whether a value follows each.

    Raises:
        UsageError: An option means something else here, or is one of launch.
    """
    left, done, notes = list(argv), [], []
    while left and left[0].startswith("-") and left[0] not in {"-", "--"}:
        name, equals, value = left[0].partition("=")
        dashed = f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name
        if dashed in own:
            taken = 1 + (not equals and own[dashed])
            done += [f"{dashed}{equals}{value}", *left[1:taken]]
            del left[:taken]
            continue
        if name[:2] in own and own[name[:2]] and not name.startswith("--"):  # -qdebug
            done.append(left.pop(0))
            continue
        left = _parted(left)
        name, equals, value = left[0].partition("=")
        if name == _MORE:
            continue
        if equals and plain(name) in SUBMIT.flags:  # --exclusive=user
            done += [f"{_MORE}={left.pop(0)}"]
            continue
        known = understand(left, {}, SUBMIT)
        if known is None:
            _refuse_launchs(left[0])
            break
        if known.note:
            notes.append(known.note)
        if known.ours:
            flag = plain(name).replace("_", "-") if name.startswith("--") else name
            done.append(f"{known.ours}={flag if known.value is None else known.value}")
        del left[: known.taken]
    return [*done, *left], notes


def _parted(words: list[str]) -> list[str]:
    """Return words whose first is ``-N2``, or ``-l`` with several resources, as ``-N 2``, and as a ``-l`` for each."""
    name, equals, value = words[0].partition("=")
    is_glued = re.fullmatch(r"-[A-Za-z].+", name) and SUBMIT.has(name[:2])
    if is_glued and name not in _LAUNCHS and not SUBMIT.has(name):
        words = [name[:2], f"{name[2:]}{equals}{value}", *words[1:]]
    return [*_each_resource(words[1]), *words[2:]] if words[0] == "-l" and len(words) > 1 else words


def _refuse_launchs(word: str) -> None:
    name = word.partition("=")[0]
    if name in _LAUNCHS or LAUNCH.has(name):
        raise UsageError(
            f"{word} (from the command line) is an option of launch; expected those of `ezpz submit` in front of --. "
            f"Write `ezpz submit [options] -- {word} … COMMAND`."
        )


def _each_resource(text: str) -> list[str]:
    """Return PBS's ``select=2:ngpus=4,walltime=1:00:00`` as an option each; what a chunk has besides is kept."""
    words = []
    name, _, value = text.partition("=")
    for one in resources(Option(f"-l {name}", value)):
        resource = one.name.removeprefix("-l ")
        hosts = hosts_of(one.value) if resource == "select" else None
        if hosts is not None and not one.value.isdecimal():
            words += [f"{_MORE}=-l select={one.value}", "-l", f"select={hosts}"]
        else:
            words += ["-l", f"{resource}={one.value}" if one.value else resource]
    return words
