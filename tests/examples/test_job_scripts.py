"""The job files in examples/: `ezpz submit` writes them, they refuse what is not filled in, and they run."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.track import read_journal
from lab import job_files

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for path in (ROOT / "examples").iterdir() if path.is_file() and path.suffix != ".md")
SLURM = [path for path in SCRIPTS if path.suffix == ".slurm"]
PBS = [path for path in SCRIPTS if path.suffix == ".pbs"]
RECORDED = ROOT / "tests" / "data" / "environments" / "pbs-batch-mpiprocs.json"
NAMES = {"aurora.pbs", "polaris.pbs", "frontier.slurm", "generic.slurm", "perlmutter.slurm", "laptop.sh"}
FILLED = {path.name: re.sub(r"#PBS -A PROJECT$", "#PBS -A mine", path.read_text(), flags=re.MULTILINE) for path in PBS}
# What `launch` is in a replay: the same words, and --dry-run, which prints the line that would run.
DRY = 'function launch {{ {python} -m ezpz launch --dry-run "$@"; }}\n'
PALS = """#!/bin/bash
[[ $1 == --help ]] && echo 'Usage: mpiexec [OPTIONS] --cpu-bind KEYWORD --depth N --no-vni --envall'
"""


def directives(text, mark):
    """``{option: value}`` of a script's directives; those of PBS's -l by resource."""
    found = {}
    for line in re.findall(rf"^#{mark} (.*)$", text, re.MULTILINE):
        words = line.split(None, 1)
        name, _, value = (words[1] if mark == "PBS" and words[0] == "-l" else line.replace(" ", "=", 1)).partition("=")
        assert name not in found, f"{name} is asked for twice"
        found[name] = value
    return found


# A job shall not install anything into the Python that runs the tests; how it gets one is tested in tests/shell.
UTILS = f"source {ROOT}/src/ezpz/bin/utils.sh\nezpz_setup_python() {{ echo 'a Python is there' >&2; }}\n"


@pytest.fixture
def checkout(tmp_path):
    """A folder to submit from; what jobs write goes here and not into the real checkout."""
    folder = tmp_path / "checkout"
    utils = folder / "src" / "ezpz" / "bin" / "utils.sh"
    utils.parent.mkdir(parents=True)
    utils.write_text(UTILS)
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


@pytest.fixture
def env(clean_env):
    """A login whose Python is the tests' own, with the ezpz under test."""
    return {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def test_every_machine_that_is_promised_has_its_file_and_its_line_in_the_readme():
    assert {path.name for path in SCRIPTS} == NAMES
    readme = (ROOT / "examples" / "README.md").read_text()
    for name in NAMES:
        assert f"[`{name}`]({name})" in readme


def test_bash_and_shellcheck_have_nothing_to_say(run_cli):
    for path in SCRIPTS:
        assert run_cli(["bash", "-n", path]).returncode == 0
        text = path.read_text()
        assert "\nset -euo pipefail\n" in text
        assert max(map(len, text.splitlines())) <= 140
    if shutil.which("shellcheck"):
        done = run_cli(["shellcheck", "--shell=bash", *SCRIPTS])
        assert done.returncode == 0, done.stdout


def test_ezpz_submit_writes_them():
    """Else run `make examples`, and look at the difference."""
    assert [path.name for path in SCRIPTS if path.read_text() != job_files.written(path.name)] == []


def test_a_job_asks_for_two_hosts_and_one_time(subtests):
    """launch saves before the end of the job: no second time stands beside it."""
    for path in (*SLURM, *PBS):
        with subtests.test(path.name):
            text = path.read_text()
            asked = directives(text, "SBATCH") or directives(text, "PBS")
            assert (asked.get("--nodes") or asked["select"].partition(":")[0]) == "2"
            assert text.count("01:00:00") == 1
            assert "timeout" not in text
            assert "--signal" not in asked


def test_what_is_submitted_again_goes_on_in_the_same_folder():
    for path in SCRIPTS:
        lines = re.sub(r"\\\n\s*", "", path.read_text()).splitlines()
        (line,) = [each for each in lines if each.startswith("launch ")]
        assert "--resume auto --outdir outputs/" in line
        assert "--preset" in line


def test_a_job_script_that_nobody_submitted_says_so(run_cli, env):
    for path in (*SLURM, *PBS):
        done = run_cli(["bash", path], env)
        assert done.returncode != 0
        assert "this is a job file: submit it with " in done.stderr


def test_a_slurm_account_that_is_not_filled_in_ends_the_job_with_a_line(run_cli, env, checkout, tmp_path):
    for path in SLURM:
        account = directives(path.read_text(), "SBATCH")["--account"].lower()  # as slurmctld writes accounts
        job = {**env, "SLURM_SUBMIT_DIR": str(checkout), "SLURM_JOB_ACCOUNT": account}
        done = run_cli(["bash", path], job)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "is not filled in: name yours in this file, or submit with sbatch --account=YOURS" in done.stderr
        elsewhere = run_cli(["bash", path], {**job, "SLURM_SUBMIT_DIR": str(tmp_path / "home")})
        assert elsewhere.returncode == 2
        assert "call sbatch in the folder of the checkout" in elsewhere.stderr


def pbs_job(env, checkout, site, hosts):
    """The recorded environment of a PBS job, as if of that site."""
    recorded = {name: value for name, value in json.loads(RECORDED.read_text())["env"].items() if name != "PBS_O_HOME"}
    (checkout / "nodes").write_text("".join(f"{host}\n" for host in hosts))
    program = checkout / "bin" / "mpiexec"
    program.parent.mkdir(exist_ok=True)
    program.write_text(PALS)
    program.chmod(0o755)
    with (checkout / "src" / "ezpz" / "bin" / "utils.sh").open("a") as utils:
        utils.write(DRY.format(python=sys.executable))
    told = {"PBS_JOBID": f"1.{site}-pbs-01.host", "PBS_NODEFILE": str(checkout / "nodes"), "PBS_JOBNAME": "ezpz"}
    path = f"{checkout / 'bin'}:{env['PATH']}"
    meeting = {"MASTER_ADDR": "192.0.2.1"}  # no such hosts here
    return {**env, **recorded, **told, **meeting, "PBS_O_WORKDIR": str(checkout), "PATH": path}


@pytest.mark.parametrize(
    ("name", "hosts", "expected"),
    [
        ("polaris", ["x3001c0s1b0n0", "x3001c0s1b1n0"], ["-n 8", "--ppn 4", "--cpu-bind list:24-31,56-63:16-23"]),
        ("aurora", ["x4000c0s0b0n0", "x4000c0s1b0n0"], ["-n 24", "--ppn 12", "--cpu-bind list:4-7:8-11:"]),
    ],
)
def test_a_pbs_job_comes_to_the_sites_own_line(name, hosts, expected, run_cli, env, checkout):
    job = pbs_job(env, checkout, name, hosts)
    script = checkout / f"{name}.pbs"
    script.write_text(FILLED[script.name])
    done = run_cli(["bash", script], {**job, "TMPDIR": "/var/tmp"}, 120)
    assert done.returncode == 0, done.stdout + done.stderr
    line = done.stdout.splitlines()[-1]
    assert "mpiexec" in line
    for part in [*expected, "-m ezpz.examples.fsdp_tp --preset 300m", "--resume auto --outdir outputs/ezpz"]:
        assert part in line, line
    assert f"NHOSTS={len(hosts)}" in done.stdout


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "told", "expected"),
    [
        ("frontier", {"LMOD_SYSTEM_NAME": "frontier"}, ["-n 16 ", "-c7 --gpus-per-task=1 --gpu-bind=closest"]),
        (
            "perlmutter",
            {
                "NERSC_HOST": "perlmutter",
                "SLURM_NTASKS": "8",
                "SLURM_TASKS_PER_NODE": "4(x2)",
                "SLURM_GPUS_ON_NODE": "4",
                "SLURM_CPUS_PER_TASK": "32",
                "SLURM_JOB_CPUS_PER_NODE": "128(x2)",
            },
            ["-n 8 ", "-c 32 ", "--gpu-bind=none"],
        ),
    ],
)
def test_a_slurm_job_comes_to_the_sites_own_line(name, told, expected, run_cli, env, checkout):
    program = checkout / "bin" / "srun"
    program.parent.mkdir()
    program.write_text('#!/bin/bash\necho "$*" >srun.txt\nexit 3\n')  # what no test can start here
    program.chmod(0o755)
    hosts = {
        "SLURM_JOB_NODELIST": "n[01-02]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "ezpz",
    }
    job = {**env, **hosts, "SLURM_SUBMIT_DIR": str(checkout), "SLURM_JOB_ACCOUNT": "mine", "MASTER_ADDR": "192.0.2.1"}
    job |= {**told, "PATH": f"{program.parent}:{env['PATH']}"}
    done = run_cli(["bash", ROOT / "examples" / f"{name}.slurm"], job, 120)
    assert done.returncode != 0
    line = (checkout / "srun.txt").read_text()
    for part in [*expected, "-m ezpz.examples.fsdp_tp --preset 300m --dtype bf16", "--outdir outputs/ezpz"]:
        assert part in line, line + done.stderr
    assert f"site {name}" in done.stderr


@pytest.mark.parametrize("path", PBS, ids=lambda path: path.name)
def test_a_pbs_account_that_is_not_filled_in_ends_the_job_with_a_line(path, run_cli, env, checkout):
    job = pbs_job(env, checkout, path.stem, ["n01"])
    done = run_cli(["bash", path], job)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "#PBS -A PROJECT is not filled in: name yours in this file\n"


# Both ranks are up: the time of `timeout` is over. Each goes on until both have saved, and half a second more.
RANK = """
trap 'echo saved; touch saved$RANK' USR2
both() { [ -e "${1}0" ] && [ -e "${1}1" ]; }
touch up$RANK
if [ $RANK = 0 ]; then until both up; do sleep 0.05; done; kill -ALRM $(cat timeout.pid); fi
until both saved; do sleep 0.05; done
sleep 0.5
exit 7
"""


@pytest.mark.slow
def test_timeout_sends_usr2_through_launch_to_every_rank_and_waits_on(run_cli, env):
    """As in job files that were written by hand: timeout starts programs, and `launch` may be a function."""
    line = ["timeout", "--foreground", "--preserve-status", "--signal=USR2", "250"]
    pid = ["sh", "-c", 'echo $$ >timeout.pid; exec "$@"', "sh"]
    done = run_cli([*pid, *line, "ezpz", "launch", "-n", "2", "bash", "-c", RANK], env)
    assert done.stdout.count("saved") == 2, done.stderr
    assert done.returncode == 7


@pytest.mark.slow
def test_the_laptop_script_trains_where_it_is_called(run_cli, env, checkout):
    script = checkout / "examples" / "laptop.sh"
    train = "launch python3 -m ezpz.test_dist --train-iters 3 --no-plots"
    script.write_text(re.sub(r"^launch [^\n]*", train, script.read_text(), flags=re.MULTILINE))
    elsewhere = run_cli([script], env, cwd=checkout / "examples")
    assert elsewhere.returncode == 2
    assert "call this file in the folder of the checkout" in elsewhere.stderr
    done = run_cli([script], env, 180, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = next((checkout / "outputs" / "test_dist").iterdir())
    assert len(read_journal(folder)) == 3


# As Slurm's --signal does some minutes before the end: to the ranks of the job's steps, not to the script.
SIGNAL = (
    """(while ! grep -q '"step":5,' out/metrics.jsonl; do sleep 0.05; done; scancel --signal=USR2 $SLURM_JOB_ID) &"""
)


WAITS = Path(__file__).with_name("awaits_its_warning.py")
STEPS = 30


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_generic_job_saves_when_it_is_warned_and_goes_on_when_it_is_submitted_again(slurm, env, checkout):
    asked = ["--account=mine", "--partition=main", "--ntasks-per-node=1"]
    options = f"--preset debug --max_iters {STEPS} --resume auto --no_plots --outdir out"
    script = (ROOT / "examples" / "generic.slurm").read_text()
    unfilled = slurm.sbatch(["--partition=main"], script, env, timeout=60, cwd=checkout)
    assert unfilled.returncode == 2, unfilled.stdout + unfilled.stderr
    assert "--account=ACCOUNT is not filled in" in unfilled.stdout

    # The devices of this Slurm are mere files, which a job of whole hosts is given.
    env = {**env, "TORCH_DEVICE": "cpu"}
    first, again = (
        re.sub(r"^launch (.|\\\n)*", f"{more}\nlaunch python3 {train} {options}\n", script, flags=re.MULTILINE)
        for more, train in ((SIGNAL.replace("\\", r"\\"), shlex.quote(str(WAITS))), ("", "-m ezpz.examples.fsdp_tp"))
    )
    done = slurm.sbatch(asked, first, env, timeout=180, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "['n01'][device='cpu'][rank=0/2]" in done.stdout
    assert "['n02'][device='cpu'][rank=1/2]" in done.stdout
    assert [row["step"] for row in read_journal(checkout / "out")] == list(range(STEPS))
    (saved,) = (checkout / "out" / "checkpoints").glob("step-*")  # by the signal alone: --save_freq was not given
    done_then = int(saved.name.partition("-")[2])
    assert 5 < done_then < STEPS

    done = slurm.sbatch(asked, again, env, timeout=180, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row["step"] for row in read_journal(checkout / "out") if row["a"] == 2]
    assert rows == list(range(done_then, STEPS))


def test_nothing_of_these_files_speaks_of_this_machine():
    for path in filter(Path.is_file, (ROOT / "examples").rglob("*")):
        assert not re.search(rf"/work|/home/|{re.escape(os.uname().nodename)}\b", path.read_text()), path
