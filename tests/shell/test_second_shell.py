"""A second shell of a job: `ezpz_get_job_env`, `savejobenv` and `getjobenv`.

What is kept for it: tests/jobs/test_kept_jobs.py.
"""

from shells import ROOT, UTILS, job, on_host

FIRST = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[01-02]", "SLURM_TASKS_PER_NODE": "2(x2)"}
BIN = ROOT / "src/ezpz/bin"


def test_the_first_shell_keeps_the_job_and_the_second_takes_it(importable, hosts):
    """On two hosts of a laboratory, without any answer of a scheduler: nothing else tells the second shell its job."""
    kind = importable.name
    script = f"set -euo pipefail; source '{UTILS}'; {{}} >/dev/null; echo \"$EZPZ_JOBID $EZPZ_HOSTS $PBS_JOBID\""
    args = ["bash", "--noprofile", "--norc", "-c"] if kind == "bash" else ["zsh", "-f", "-c"]
    (importable.bin / "uname").unlink()  # here the kernel tells the truth
    for name in ("qstat", "squeue"):
        importable.program(name, "exit 1")
    nodes = importable.cwd / "nodes"
    nodes.write_text("n01\nn02\n")
    env = {**importable.env, "PBS_JOBID": "5.head", "PBS_NODEFILE": str(nodes)}
    first = hosts["n01"].run([*args, script.format("ezpz_setup_job")], env)
    assert first.stdout == "5.head n01,n02 5.head\n", first.stderr
    nodes.unlink()  # a sister host has none
    second = hosts["n02"].run([*args, script.format("ezpz_get_job_env")], importable.env)
    assert second.stdout == "5.head n01,n02 5.head\n", second.stderr
    for name in ("qstat", "squeue"):
        importable.program(name, "exit 0")  # they answer, and know of no job here: it is over
    third = hosts["n02"].run([*args, script.format("ezpz_get_job_env").replace("$PBS_JOBID", "")], importable.env)
    assert third.stdout == " n02 \n", third.stderr


def test_a_shell_without_ezpz_says_what_it_needs_and_looks_for_the_job(small):
    on_host(small, "n01")
    result, told = job(small, call="ezpz_get_job_env", **FIRST)
    assert (result.returncode, told["EZPZ_JOBID"]) == (0, "5")
    assert "call ezpz_setup_python before this" in result.stderr


def test_savejobenv_and_getjobenv_are_sourced(small):
    where = f"cd '{BIN}'; source ./" if small.name == "bash" else f"source '{BIN}'/"
    show = 'echo "$EZPZ_JOBID $NHOSTS $EZPZ_UTILS"; typeset -f launch >/dev/null && echo launch'
    for script in ("savejobenv", "getjobenv"):
        result = small.bare(f"set -euo pipefail\n{where}{script}\n{show}", **FIRST)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[-2:] == [f"5 2 {BIN}/utils.sh", "launch"]


def test_a_link_to_them_is_followed(small):
    link = small.cwd.parent / "getjobenv"
    link.symlink_to(BIN / "getjobenv")
    result = small.bare(f"source '{link}' && echo \"$EZPZ_UTILS\"")
    assert result.stdout.splitlines()[-1:] == [str(UTILS)], result.stderr


def test_executed_they_say_what_to_type(small):
    for name in ("savejobenv", "getjobenv"):
        for line in (f"'{BIN / name}'", f"bash '{BIN / name}'", f"{small.name} '{BIN / name}'"):
            result = small.bare(line)
            assert (result.returncode, result.stdout) == (2, "")
            assert result.stderr.endswith(f"Type: source {BIN / name}\n")


def test_an_error_of_the_job_is_theirs(small):
    result = small.bare(f"source '{BIN}/savejobenv'", SLURM_JOB_ID="5")
    assert result.returncode == 125
