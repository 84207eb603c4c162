"""A shell without variables of a job: found by the name of its host, or in no job, which is an ordinary answer."""

import re
import time

import pytest
from shells import UTILS, answers, job, jobs, on_host, tools

SQUEUE = "squeue --noheader --states=RUNNING --user=me --nodelist={} --format=%A|%i|%N"
QSTAT = "qstat -u me -n1rw"
HEAD = (
    "\nhead: \nJob ID   Username Queue Jobname SessID NDS TSK Memory Time  S Time\n"
    "-------- -------- ----- ------- ------ --- --- ------ ----- - -----\n"
)
SHOWN = (
    "JobId=13 JobName=it\n   JobState=RUNNING\n   NodeList=n[01-02]\n   BatchHost=n01\n"
    "   NumNodes=2 NumCPUs=4 NumTasks=4\n"
)
SCONTROL = {"scontrol show job 13": {"rc": 0, "stdout": SHOWN}}


def told_by(stdout, rc=0):
    return {"rc": rc, "stdout": stdout}


def row(identifier, hosts, state="R"):
    return f"{identifier}  me  workq  name  --  2  4  --  00:10 {state} 00:01 {hosts}\n"


@pytest.fixture
def ssh(small):
    small.env |= {"USER": "me", "PBS_HOME": "/nowhere"}
    on_host(small, "n02.cluster.example")
    return small


def test_slurm_finds_the_job(ssh):
    answers(ssh, {SQUEUE.format("n02"): told_by("13|13|n[01-02]\n"), **SCONTROL})
    result, told = job(ssh, before="set -euo pipefail")
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"], told["EZPZ_HOSTS"]) == ("slurm", "13", "n01,n02")
    assert told["DIST_LAUNCH"] == "srun --jobid=13 -N 2 -n 4"
    assert "taking slurm job 13, which runs on this host (n02.cluster.example)" in result.stderr


def test_a_component_is_known_by_its_leader(ssh):
    other = "JobId=14 HetJobId=13 HetJobOffset=1 JobName=it\n   NodeList=n03\n   NumNodes=1 NumCPUs=9 NumTasks=9\n\n"
    shown = {"scontrol show job 13": told_by(other + SHOWN)}
    answers(ssh, {SQUEUE.format("n02"): told_by("14|13+1|n02\n13|13+0|n[01-02]\n"), **shown})
    _, told = job(ssh)
    assert (told["EZPZ_JOBID"], told["EZPZ_HOSTS"], told["EZPZ_NRANKS"]) == ("13", "n01,n02", "4")


def test_pbs_finds_the_job(ssh):
    shown = "Job Id: 7.head\n    exec_host = n01/0*2+n02/0*2\n    Resource_List.select = 2:ncpus=2:mpiprocs=2\n"
    rows = (
        HEAD
        + row("6.head", "n03/0+n020/0")
        + row("7.head", "n01.cluster/0*2+n02.cluster/0*2")
        + row("8.head", "n02/1", "E")
    )
    answers(ssh, {QSTAT: told_by(rows), "qstat -f 7.head": told_by(shown)})
    _, told = job(ssh, before="set -euo pipefail")
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"], told["EZPZ_NRANKS"]) == ("pbs", "7.head", "4")
    assert told["EZPZ_HOSTS"] == "n01,n02"


def test_a_job_of_an_array_is_found(ssh):
    shown = told_by("Job Id: 7[2].head\n    exec_host = n02/0\n")
    rows = told_by(HEAD + row("7[2].head", "n02/0"))
    answers(ssh, {QSTAT: told_by(""), "qstat -t -u me -n1rw": rows, "qstat -f 7[2].head": shown})
    assert job(ssh)[1]["EZPZ_JOBID"] == "7[2].head"


SEVERAL = {
    ("13 15", "SLURM_JOB_ID=13"): {SQUEUE.format("n02"): told_by("13|13|n02\n15|15|n[01-02]\n")},
    ("7.head 9.head", "PBS_JOBID=7.head"): {QSTAT: told_by(HEAD + row("7.head", "n02/0") + row("9.head", "n02/1"))},
}


def test_several_jobs_are_an_error_that_names_them(ssh, subtests):
    for (names, variable), commands in SEVERAL.items():
        shell = ssh.another()
        answers(shell, commands)
        with subtests.test(variable):
            result, told = job(shell)
            assert (result.returncode, told["EZPZ_HOSTS"]) == (125, "")
            (line,) = own_words(result)
            assert f"several jobs of yours run on this host: {names}" in line
            assert line.endswith(f"Choose: export {variable}")


def test_the_chosen_one_is_taken(ssh):
    answers(ssh, {SQUEUE.format("n02"): told_by("13|13|n02\n15|15|n02\n"), **SCONTROL})
    _, told = job(ssh, SLURM_JOB_ID="13")
    assert (told["EZPZ_JOBID"], told["EZPZ_HOSTS"]) == ("13", "n01,n02")


NO_JOB = [
    {},
    {SQUEUE.format("n02"): told_by("")},
    {SQUEUE.format("n02"): told_by("slurm_load_jobs error: Invalid node name specified\n", 1)},
    {QSTAT: told_by("")},
    {QSTAT: told_by(HEAD + row("7.head", "n01/0"))},
    {QSTAT: told_by("qstat: cannot connect to server head\n", 1), SQUEUE.format("n02"): told_by("", 1)},
    # rubbish
    {SQUEUE.format("n02"): told_by("trouble | with | slurm\n1|1|\n;|;|n02\n"), QSTAT: told_by(row("a;b", "n02/0"))},
]


def test_no_job_is_an_ordinary_answer(ssh, subtests):
    shells = [ssh.another() for _ in NO_JOB]
    for commands, shell in zip(NO_JOB, shells, strict=True):
        answers(shell, commands)
    told_to = jobs(ssh, {number: ({}, shell) for number, shell in enumerate(shells)}, before="set -euo pipefail")
    for number, (result, told) in told_to.items():
        with subtests.test(str(NO_JOB[number])):
            assert (result.returncode, told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"]) == (0, "none", "")
            assert told["EZPZ_HOSTS"] == "n02.cluster.example"
            assert own_words(result) == []
            assert not list((shells[number].cwd.parent / "home").iterdir()), "no job, no file about it"


def own_words(result):
    """The lines of a shell that waits for no program longer than a second."""
    return [line for line in result.stderr.splitlines() if not re.search("no launcher|waiting for an answer", line)]


def test_a_command_that_fails_is_asked_twice(ssh):
    answers(ssh, {"squeue nothing": told_by("")})
    job(ssh)
    calls = (ssh.cwd.parent / "calls").read_text().splitlines()
    assert calls == [SQUEUE.format("n02")] * 2


@pytest.mark.slow
def test_commands_that_hang_are_cut_and_told(ssh):
    (ssh.bin / "timeout").unlink()
    for name in ("squeue", "qstat"):
        ssh.program(name, "exec sleep 600")
    before = time.monotonic()
    result, told = job(ssh, before="set -euo pipefail")
    assert time.monotonic() - before > 1.9
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_HOSTS"]) == ("", "n02.cluster.example"), (
        "nobody knows: it is not settled"
    )
    waiting, unknown = [line for line in result.stderr.splitlines() if "no launcher" not in line]
    assert waiting == "[ezpz] waiting for an answer of squeue and qstat, for 2 s at most"
    assert unknown.startswith(
        "[ezpz] squeue and qstat gave no answer in time: whether this shell is in a job is not known"
    )


@pytest.mark.slow
def test_a_job_that_one_scheduler_tells_is_used_where_the_other_hangs(ssh):
    answers(ssh, {QSTAT: told_by(HEAD + row("7.head", "n02/0")), "qstat -f 7.head": told_by("    exec_host = n02/0\n")})
    ssh.program("squeue", "exec sleep 600")
    result, told = job(ssh, before="set -euo pipefail", HANGS="squeue")
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"]) == ("pbs", "7.head")
    assert "waiting for an answer of squeue and qstat" in result.stderr
    assert "[ezpz] squeue gave no answer in time: pbs job 7.head is used\n" in result.stderr


@pytest.mark.slow
def test_a_slow_answer_counts(ssh):
    answers(ssh, {SQUEUE.format("n02"): told_by("13|13|n[01-02]\n"), **SCONTROL})
    slow = ssh.bin / "squeue"
    slow.write_text(slow.read_text().replace("case", "sleep 3\ncase", 1))
    result, told = job(ssh)
    assert told["EZPZ_JOBID"] == "13"
    assert "waiting for an answer of squeue, for 2 s" in result.stderr
    assert "no answer in time" not in result.stderr


@pytest.mark.slow
def test_a_flux_that_hangs_is_told(ssh, subtests):
    ssh.program("flux", "exec sleep 600")
    cases = {job_id: {"FLUX_URI": "local:///x", "FLUX_JOB_ID": job_id, "HANGS": "flux"} for job_id in ("", "f2X")}
    for job_id, (result, told) in jobs(ssh, cases, before="set -euo pipefail").items():
        with subtests.test(job_id):
            assert "waiting for an answer of flux, for 2 s at most" in result.stderr
            assert result.returncode == (125 if job_id else 0)
            if not job_id:
                assert "flux gave no answer in time: whether this shell is in a job is not known" in result.stderr
                assert told["EZPZ_SCHEDULER"] == ""


def test_schedulers_have_two_seconds_together_and_a_driver_five(ssh):
    meet = "until [ -e begun-squeue ] && [ -e begun-qstat ]; do sleep 0.05; done"
    note = 'echo "$1 $2 $3 ${4##*/}" >>"$FAKE_LOG"'
    ssh.program("timeout", f'{note}; : >"begun-${{4##*/}}"; case "$4" in *squeue | *qstat) {meet} ;; esac; exit 124')
    for name in ("squeue", "qstat", "nvidia-smi"):
        ssh.program(name, "exit 0")
    job(ssh)
    asked = ["2 qstat", "2 qstat", "2 squeue", "5 nvidia-smi"]  # one that was late is not asked again
    assert sorted((ssh.cwd.parent / "calls").read_text().splitlines()) == [f"-k 1 {line}" for line in asked]


def test_with_no_scheduler_on_path_none_is_started(ssh):
    only = tools(ssh, "awk tr cat mkdir mv nproc")
    ssh.program("timeout", 'echo "$4" >>"$FAKE_LOG"')
    _, told = job(ssh, before=f"PATH={ssh.bin}:{only}", call="ezpz_setup_job && PATH=/usr/bin:/bin")
    assert told["EZPZ_SCHEDULER"] == "none"
    assert not (ssh.cwd.parent / "calls").exists()


def test_without_timeout_the_commands_are_asked_all_the_same(ssh):
    answers(ssh, {SQUEUE.format("n02"): told_by("13|13|n[01-02]\n"), **SCONTROL})
    (ssh.bin / "timeout").unlink()
    only = tools(ssh, "awk tr cat mkdir mv ls nproc chmod date sh")
    _, told = job(ssh, before=f"PATH={ssh.bin}:{only}", call="ezpz_setup_job && PATH=/usr/bin:/bin")
    assert told["EZPZ_JOBID"] == "13"


HERE = f"source '{UTILS}'; "


def test_a_real_slurm_knows_the_job_of_an_ssh_shell(shell, slurm):
    """A second shell, entered on a worker by its name, has no variables of the job and asks the real squeue."""
    shell.program("python3", "exit 1")
    shown = shell.cwd.parent / "shown"
    words = {"bash": "bash --noprofile --norc", "zsh": "zsh -f"}[shell.name]
    script = shell.cwd.parent / "second"
    script.write_text(f'{HERE}ezpz_print_hosts; ezpz_setup_job >/dev/null; echo "$EZPZ_JOBID $NHOSTS $DIST_LAUNCH"\n')
    env = " ".join(
        f"{name}={value}" for name, value in {**slurm.env, "USER": "root", "HOME": shell.env["HOME"]}.items()
    )
    path = f"PATH={shell.bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    second = slurm.hosts["n02"].command(["env", "-i", *env.split(), path, *words.split(), str(script)])
    line = " ".join(f"'{word}'" for word in second)
    wait = shell.cwd.parent / "first"
    wait.write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" >{shown}\n{line} >>{shown} 2>&1\n')
    wait.chmod(0o755)
    done = slurm.salloc(["-N2", "--ntasks=4"], [str(wait)], timeout=50)
    assert done.returncode == 0, done.stderr
    identifier, *said = shown.read_text().splitlines()
    assert [line for line in said if not line.startswith("[ezpz]")] == [
        "n01",
        "n02",
        f"{identifier} 2 srun --jobid={identifier} -N 2 -n 4",
    ]
