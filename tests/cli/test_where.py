"""`ezpz where` as its users see it, with the schedulers' recorded answers replayed by programs on PATH."""

import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab import process

EZPZ = [sys.executable, "-m", "ezpz"]
RECORDS = Path(__file__).parents[1] / "data" / "environments"
KEYS = [
    "scheduler", "job_id", "end_time", "hosts", "slots", "device", "devices_per_host", "devices", "site", "python",
    "python_version", "mpi", "mpi_path", "interface", "address", "origins", "notes",
]  # fmt: skip


@pytest.fixture
def programs(tmp_path, clean_env):
    """`programs(name=text, …)` -> an environment with these programs first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def write(**texts):
        for name, text in texts.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        return {**clean_env, "USER": "user", "PATH": f"{folder}:{clean_env['PATH']}"}

    return write


def replay(record, name, folder):
    """A program that answers as the recorded one did, by all its arguments."""
    cases = []
    for index, (command, answer) in enumerate(record["commands"].items()):
        if command.split()[0] == name:
            (folder / f"{name}.{index}").write_text(answer["stdout"])
            cases.append(f"  '{command.split(' ', 1)[1]}') cat '{folder}/{name}.{index}'; exit {answer['rc']} ;;")
    return 'case "$*" in\n' + "\n".join(cases) + "\n  *) exit 3 ;;\nesac"


def test_a_bare_laptop(run_cli):
    done = run_cli([*EZPZ, "where"])
    assert (done.returncode, done.stderr) == (0, "")
    rows = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert list(rows) == ["scheduler", "hosts", "devices", "site", "python", "mpi", "network"]
    assert all(line.endswith("]") and "  [" in line for line in done.stdout.splitlines())
    assert os.uname().nodename in rows["hosts"]
    assert sys.executable in rows["python"]


def test_the_json_has_every_field_and_an_origin_for_each(run_cli):
    told = json.loads(run_cli([*EZPZ, "where", "--json"]).stdout)
    assert list(told) == KEYS
    assert (told["scheduler"], told["job_id"], told["site"], told["slots"]) == (None, None, None, None)
    assert (told["device"], told["devices_per_host"], told["devices"]) == ("cpu", 0, [0])
    assert told["origins"].keys() == set(KEYS) - {"origins", "notes"}


# What `mpiexec` on PATH prints, and what `ezpz where` calls it.
LAUNCHERS = {
    "impi": ("Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260105", "Intel MPI 2021.18"),
    "openmpi5": ("mpiexec (Open MPI) 5.0.11", "Open MPI 5.0.11"),
    "openmpi4": ("mpiexec (OpenRTE) 4.1.8", "Open MPI 4.1.8"),
    "pals": ("usage: mpiexec --cpu-bind --depth --no-vni", "PALS"),
    "mpich": ("HYDRA build details:\n    Version:           5.0.2", "MPICH 5.0.2"),
    "odd": ("a wrapper of our site", None),
    "silent": ("", None),
}
PASSES_ON = "pbs_version = 23.06.06"  # OpenPBS's own mpiexec: a script around the MPI behind it


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDS.glob("*.json")))
def test_every_mpiexec_is_known_in_the_jobs_of_every_scheduler(name, in_process, programs, tmp_path):
    record = json.loads((RECORDS / f"{name}.json").read_text())
    env = programs(
        **{each: replay(record, each, tmp_path) for each in {line.split()[0] for line in record["commands"]}}
    )
    (tmp_path / "bin" / "cat").symlink_to(shutil.which("cat"))  # and none of this machine's own programs
    texts = {"pbs": PASSES_ON, **{launcher: text for launcher, (text, _) in LAUNCHERS.items()}}
    for launcher, text in texts.items():
        process.program(tmp_path / launcher / "mpiexec", f"#!/bin/sh\ncat <<'end'\n{text}\nend\n")

    def where(words, *folders):
        path = ":".join([f"{tmp_path}/bin", *(f"{tmp_path}/{folder}" for folder in folders)])
        done = in_process(["where", *words], {**env, **record["env"], "PATH": path})
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    own = f"{tmp_path}/pbs/mpiexec"
    assert f"\nmpi         none  [{own} has no MPI behind it]\n" in where([], "pbs")
    for launcher, (_, title) in LAUNCHERS.items():
        path = f"{tmp_path}/{launcher}/mpiexec"
        origin = f"{path} --version; {own} only passes on" if title else f"{path} --version gives no known name"
        told = json.loads(where(["--json"], "pbs", launcher))
        assert (told["mpi"], told["mpi_path"], told["origins"]["mpi"]) == (title, path, origin)


@pytest.mark.slow
def test_a_sister_host_without_a_node_file_asks_the_server(run_cli, programs, tmp_path):
    record = json.loads((RECORDS / "pbs-sister-host.json").read_text())
    env = programs(qstat=replay(record, "qstat", tmp_path)) | record["env"]
    told = json.loads(run_cli([*EZPZ, "where", "--json"], env).stdout)
    assert (told["scheduler"], told["hosts"], told["slots"]) == ("pbs", ["n01", "n02", "n03"], [2, 2, 2])
    assert told["origins"]["hosts"] == "qstat -f -F json 1.head"
    assert told["end_time"] == told["end_time"] // 1 > 1_700_000_000
    text = run_cli([*EZPZ, "where"], env).stdout
    assert "job         1.head  [qstat -f -F json 1.head]" in text
    assert "ends        2026-11-20" in text
    assert "slots       2 per host" in text


def test_on_a_terminal_lines_end_at_its_width(run_cli, clean_env):
    env = {**clean_env, "COLUMNS": "80", "PBS_JOBID": "1.head", "PBS_NODEFILE": "nodes", "NO_COLOR": "1"}
    script = (
        f"printf 'x4415c6s5b0n0.hostmgmt2415.cm.aurora.alcf.anl.gov\\n%.0s' 1 2 >nodes; {sys.executable} -m ezpz where"
    )
    done = run_cli(["script", "-qec", script, "/dev/null"], env)
    lines = done.stdout.replace("\r", "").splitlines()
    assert len(lines) > 9
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(" " * 12) for line in lines) >= 2


def test_a_bad_argument_is_refused(run_cli):
    done = run_cli([*EZPZ, "where", "--jason"])
    assert done.returncode == 2
    assert "unknown option --jason (from the command line); expected one of --help, --json. Did you mean" in done.stderr


@pytest.mark.slow
def test_notes_are_shown_and_reach_the_launcher_and_the_shell(run_cli, clean_env):
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost", "SLURMD_NODENAME": "x"}
    env = {**clean_env, **job, "PBS_JOBID": "1"}
    text = run_cli([*EZPZ, "where"], env).stdout
    assert "note        another scheduler's job has set variables too (PBS_JOBID=1)" in text
    env["EZPZ_NGPU_PER_HOST"] = "2"
    done = run_cli([sys.executable, "-m", "ezpz.cluster", "--sh"], env)
    assert "ezpz: note: another scheduler's job" in done.stderr
    assert all(line.startswith("export ") for line in done.stdout.splitlines())


# the variables, and the exit code
HANGS = (
    ({}, 0),
    ({"PBS_JOBID": "1.head"}, 125),
    ({"SLURM_JOB_ID": "7"}, 125),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}, 0),
    ({"FLUX_URI": "x", "FLUX_JOB_ID": "f9"}, 125),
)  # fmt: skip


@pytest.mark.slow
def test_hanging_schedulers_are_survived_and_leave_nothing_behind(run_cli, programs):
    env = programs(**dict.fromkeys(("squeue", "qstat", "scontrol", "flux", "nvidia-smi"), "sleep 300"))
    begin = time.monotonic()
    with ThreadPoolExecutor(len(HANGS)) as together:
        runs = [together.submit(run_cli, [*EZPZ, "where"], {**env, **environ}) for environ, _ in HANGS]
    for (environ, code), done in zip(HANGS, (run.result() for run in runs), strict=True):
        waiting, *errors = done.stderr.splitlines()
        assert waiting.startswith("ezpz: waiting for an answer of ")
        assert (done.returncode, len(errors)) == (code, code != 0), (environ, done.stderr)
    assert time.monotonic() - begin < 150  # of 300: each is cut


@pytest.mark.slow
def test_a_host_name_with_shell_words_is_refused_and_never_run(run_cli, clean_env, tmp_path):
    (tmp_path / "nodes").write_text("$(touch ran)\n")
    env = {**clean_env, "PBS_JOBID": "1", "PBS_NODEFILE": "nodes"}
    for line in ([*EZPZ, "where"], [sys.executable, "-m", "ezpz.cluster", "--sh"], [*EZPZ, "launch", "true"]):
        done = run_cli(line, env)
        assert (done.returncode, len(done.stderr.splitlines())) == (125, 1)
        assert "not a host name: '$(touch ran)' (from PBS_NODEFILE=nodes)" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_an_unusable_node_file_is_one_clear_error(in_process, tmp_path, subtests):
    (tmp_path / "folder").mkdir()
    for kind in ("folder", "missing", "NUL"):
        with subtests.test(str(kind)):
            done = in_process(["where"], {"PBS_JOBID": "1", "PBS_NODEFILE": kind})
            assert (done.returncode, len(done.stderr.splitlines())) == (125, 1)
            assert f"PBS_NODEFILE={kind} cannot be read" in done.stderr
