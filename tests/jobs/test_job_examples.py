"""The job files for five machines beside the sites' own documented examples: every difference has its reason here.

What the examples ask for and do is in tests/data/job_examples, with page and date. A line of one side alone needs a
reason, and a reason a line: what is not explained fails, and so does an explanation of what is there no more.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

from ezpz.cluster import probe
from ezpz.cluster.site import load
from ezpz.jobs.job_file import read_option
from ezpz.jobs.job_handler import handler
from ezpz.jobs.submit import main
from jobs.test_submit import COMMAND, check_shell, fake, place, programs

__all__ = ["fake", "place", "programs"]
DATA = Path(__file__).parents[1] / "data" / "job_examples"
EXAMPLES = Path(__file__).parents[2] / "examples"


class Ours(NamedTuple):
    """A line of the job file that does the same."""

    start: str


class Table(NamedTuple):
    """Keys of the site's table that have `ezpz_setup_env` or `launch` do the same."""

    key: str
    value: str


class Beside(NamedTuple):
    """One machine.

    Attributes:
        argv: With which the job of the example is asked for, as far as it can be.
        ours: Options that the example has not, and why they are here.
        theirs: Options of the example that are not here, or other ones, and why.
        steps: Each line of the example: what does the same here, or why nothing does.
    """

    argv: list
    ours: dict
    theirs: dict
    steps: dict


_COUNTED = "launch counts hosts, ranks and devices, and prints them in its first line"
_BOUND = "a binding for programs of MPI and OpenMP; ranks of torch are bound to the CPUs of their device (cpu_bind)"
_NAMED = "a word that is to be filled in"
_CLOCK = "the same time, written as the scheduler shows it"
_ENFORCED = (
    "docs/running-jobs/index.md of the same source: added and enforced by the site, and in the options that the page "
    "of Aurora recommends"
)
_ONE_FILE = "both streams in one file, so that a traceback stands where it happened"

BESIDE = {
    "aurora": Beside(
        ["-A", "mine", "-q", "debug-scaling", "--nhosts", "4", "--time", "10m", "--filesystems", "home:flare"],
        ours={"-k doe": _ENFORCED, "-j oe": _ONE_FILE},
        theirs={"-l walltime=0:10:00": _CLOCK, "-l filesystems=FS1:FS2": _NAMED, "-A MYPROJECT": _NAMED},
        steps={
            "export TZ": "times in logs are those of the host's clock, as its administrators have set it",
            "cd PBS_O_WORKDIR": Ours('cd "${PBS_O_WORKDIR:?'),
            "count the hosts in PBS_NODEFILE": _COUNTED,
            "count ranks: 28 per host, depth 4, 4 threads": "one rank per device: 12 per host, and threads by its CPUs",
            "print the counts": _COUNTED,
            "mpiexec -n TOTAL -ppn 28 --depth=4 --cpu-bind depth": Ours("launch "),
            "export OMP_NUM_THREADS=4 OMP_PLACES=cores to the ranks": _BOUND,
        },
    ),
    "polaris": Beside(
        ["-A", "mine", "-q", "debug-scaling", "--nhosts", "4", "--time", "10m"],
        ours={
            "-l select=4:system=polaris": "docs/running-jobs/index.md of the same source has the system in its select",
            "-l place=scatter": "one chunk per host, as the site's other examples have it; whole hosts are the same",
            "-l filesystems=home:eagle": "docs/running-jobs/index.md: a job that names none is not started",
            "-k doe": _ENFORCED,
            "-j oe": _ONE_FILE,
        },
        theirs={
            "-l select=4:ncpus=256": "hosts are granted whole, and have 64 threads: that number would never be met",
            "-l walltime=0:10:00": _CLOCK,
            "-A Catalyst": _NAMED,
        },
        steps={
            "count the hosts in PBS_NODEFILE": _COUNTED,
            "count ranks: 8 per host, depth 8, 8 threads": "one rank per device: 4 per host, and threads by its CPUs",
            "print the counts": _COUNTED,
            "cd PBS_O_WORKDIR": Ours('cd "${PBS_O_WORKDIR:?'),
            "mpiexec --np TOTAL -ppn 8 -d 8 --cpu-bind depth": Ours("launch "),
            "export OMP_NUM_THREADS=8 to the ranks": _BOUND,
        },
    ),
    "perlmutter": Beside(
        ["-A", "mine_g", "-q", "regular", "--nhosts", "4", "--time", "10m"],
        ours={
            "--account=mine_g": "jobs on GPU hosts are charged to an account that ends with _g; the page leaves it out",
            "--qos=regular": "the page leaves it to the user's default",
            "--time=00:10:00": "the page leaves it to the default of the queue",
            "--job-name=AFFINITY": "the page leaves it to Slurm, which takes the name of the file",
            "--output=%x-%j.out": "the page leaves it to Slurm, which calls it slurm-ID.out",
        },
        theirs={
            "--nodes=N": _NAMED,
            "--image=nersc/pytorch:25.02.01": "no container: ezpz_setup_env loads the site's module pytorch",
            "--module=gpu,nccl-plugin": "of that container; the module pytorch brings the plugin",
        },
        steps={
            "export MASTER_ADDR: the first of scontrol show hostnames": "launch sets it, by the hosts it starts on",
            "export MASTER_PORT=29500": "launch takes a free port: two jobs on one host must not meet",
            "srun shifter": Ours("launch "),
            "export RANK LOCAL_RANK WORLD_SIZE of SLURM_PROCID SLURM_LOCALID SLURM_NTASKS": (
                "launch sets all variables of torchrun in each rank"
            ),
        },
    ),
    "frontier": Beside(
        ["-A", "mine", "--nhosts", "2", "--time", "5m", "-O=--network=disable_rdzv_get"],
        ours={"--output=%x-%j.out": f"{_ONE_FILE}, beside where sbatch was called: its folder logs must be there"},
        theirs={
            "-A PROJECT_ID": _NAMED,
            "-J ddp_test": _NAMED,
            "-o logs/ddp_test-%j.o": "as --output above",
            "-e logs/ddp_test-%j.e": "as --output above",
        },
        steps={
            **{
                f"module load {name}": Table("modules", name)
                for name in (
                    *("PrgEnv-gnu/8.7.0", "cpe/26.03", "miniforge3/23.11.0-0", "rocm/7.1.1", "rccl-net-plugin"),
                    "craype-accel-amd-gfx90a",
                )
            },
            "prepend CRAY_LD_LIBRARY_PATH to LD_LIBRARY_PATH": Table("prepend_from", "CRAY_LD_LIBRARY_PATH"),
            "conda activate an environment of the user's": Ours("ezpz_setup_env"),
            "export MASTER_ADDR: hostname -i": Table("address", "{ip}"),
            "export MIOPEN_USER_DB_PATH MIOPEN_CUSTOM_CACHE_DIR: a folder in /tmp": Table("environment", "/tmp/"),
            "remove and make that folder": "it has the job's id in its name: none of an earlier job is there",
            "srun -N2 -n16 -c7 --gpus-per-task=1 --gpu-bind=closest": Table(
                "launcher_args", "-c7 --gpus-per-task=1 --gpu-bind=closest"
            ),
            "pass the address and port 3442 as options of the script": "torch reads them from variables",
        },
    ),
    "slurm": Beside(
        ["--time", "1m"],
        ours={
            "--exclusive": "ranks bind to all cores of a host",
            "--nodes=1": "hosts are counted, and ranks follow from their devices",
            "--time=00:01:00": _CLOCK,
            "--job-name=AFFINITY": "the page leaves it to Slurm, which takes the name of the file",
            "--output=%x-%j.out": "a file for each job, which no later one writes over",
        },
        theirs={
            "-n 4": "as --nodes above",
            "-w adev[9-10]": "any hosts will do",
            "-o my.stdout": "as --output above",
            "--time=1": _CLOCK,
        },
        steps={
            "/bin/hostname": "what the example runs on the first host; launch names the hosts",
            "srun -l /bin/hostname": Ours("launch "),
            "srun -l /bin/pwd": Ours('cd "${SLURM_SUBMIT_DIR:?'),
        },
    ),
}
# Lines of every job file that no example has.
OWN = {
    "set -euo pipefail": "a command that fails ends the job, so that no rank starts in a wrong environment",
    "cd ": "a job file that somebody calls with bash says what it is",
    "export TMPDIR=/tmp": "the folder of PBS can have a name too long for sockets: see the notes of site aurora",
    "if [[ ": "the next lines: what is wrong is said before anything starts",
    "  echo ": "as above",
    "  exit 2": "as above",
    "fi": "as above",
    "account=": "Slurm takes a word that is to be filled in for an account where these are not enforced",
    "source ": "utils.sh of this ezpz: the functions that follow",
    "ezpz_setup_env": "the site's modules, its proxy, a Python with torch: what an example writes out, or leaves out",
    "launch ": "one rank per device on every host, with the site's own launcher and binding",
}


def written(name, capsys):
    """The job file for a machine, and its options."""
    where = ["--scheduler", "slurm"] if name == "slurm" else ["--site", name]
    assert main([*where, *BESIDE[name].argv, "--name", "AFFINITY", "--dry-run", *COMMAND]) == 0
    text = capsys.readouterr().out
    return text, re.findall(r"(?m)^#(?:PBS|SBATCH) (.*)$", text)


def test_a_job_asks_for_what_its_sites_example_asks_for(place, capsys, subtests):
    for name, beside in BESIDE.items():
        with subtests.test(str(name)):
            example = json.loads((DATA / f"{name}.json").read_text())
            text, asked = written(name, capsys)
            check_shell(text, place)
            kind = handler("pbs" if "#PBS" in text else "slurm").script
            same = {read_option(line, kind).line() for line in asked}
            documented = {line: read_option(line, kind).line() for line in example["asks"]}
            assert {line for line in example["asks"] if documented[line] not in same} == {*beside.theirs}
            assert {line for line in asked if read_option(line, kind).line() not in documented.values()} - {
                *beside.ours
            } <= filled_in(beside, documented, asked, kind)
            assert {*beside.ours} <= {*asked}
            assert all(beside.ours.values())
            assert all(beside.theirs.values())


def filled_in(beside, documented, asked, kind):
    """Our options whose names an example has with another value that `theirs` explains."""
    names = {read_option(documented[line], kind).name for line in beside.theirs}
    return {line for line in asked if read_option(line, kind).name in names}


def test_a_job_does_what_its_sites_example_does(place, capsys, subtests):
    for name, beside in BESIDE.items():
        with subtests.test(str(name)):
            example = json.loads((DATA / f"{name}.json").read_text())
            text, _ = written(name, capsys)
            body = [line for line in text.splitlines() if line and not line.startswith("#")]
            assert list(beside.steps) == example["does"]
            site = load({}, probe.read).get(name)
            for step, here in beside.steps.items():
                if isinstance(here, Ours):
                    assert any(line.startswith(here.start) for line in body), (step, here)
                elif isinstance(here, Table):
                    value = getattr(site, here.key)
                    words = json.dumps(dict(value)) if hasattr(value, "items") else json.dumps(value)
                    assert all(part in words for part in here.value.split()), (step, words)
                else:
                    assert here, step
            explained = tuple(OWN)
            assert not [line for line in body if not line.startswith(explained)]


def test_every_line_of_the_samples_is_explained_and_every_explanation_is_of_some_line(place, capsys):
    texts = [written(name, capsys)[0] for name in BESIDE]
    texts += [path.read_text() for path in EXAMPLES.iterdir() if path.suffix in {".pbs", ".slurm"}]
    lines = [line for text in texts for line in text.splitlines() if line and not line.startswith("#")]
    assert not [line for line in lines if not line.startswith(tuple(OWN))]
    assert not [start for start in OWN if not any(line.startswith(start) for line in lines)]


def test_pages_and_dates_are_named():
    for path in DATA.glob("*.json"):
        example = json.loads(path.read_text())
        assert re.match(r"[\w.-]+(/|@|\.)", example["page"]), path
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", example["date"]), path
    assert {path.stem for path in DATA.glob("*.json")} == {*BESIDE}
