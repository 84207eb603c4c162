"""Schedulers' commands that hang, are slow, fail or print rubbish: programs on PATH that do so, asked for real."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ezpz import proc
from ezpz.cluster import detect
from ezpz.cluster.questions import Questions
from ezpz.errors import MachineError
from lab.process import run, wait_until

HOST = os.uname().nodename.split(".")[0]
ROW = f"13|13|{HOST}"
SHOWN = f"JobId=13 JobName=it\n   NodeList={HOST}\n   NumNodes=1 NumCPUs=2 NumTasks=2\n"
QSTAT = f"7.head me workq name 1 1 2 -- 00:10 R 00:01 {HOST}/0\n"
HANG = 'echo $$ >>"$CALLS.pids"; sleep 120 & echo $! >>"$CALLS.pids"; wait'
EZPZ = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-m"]


@pytest.fixture
def shell(tmp_path, clean_env, monkeypatch):
    """`shell(squeue="sleep 9", …)` puts commands on an otherwise bare PATH and returns the environment of a shell."""
    folder = tmp_path / "scheduler"
    folder.mkdir()

    def put(**commands):
        for name, script in commands.items():
            (folder / name).write_text(f'#!/bin/bash\necho "{name} $*" >>"$CALLS"\n{script}\n')
            (folder / name).chmod(0o755)
        more = {"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), "USER": "me"}
        more |= {name: str(tmp_path / name.lower()) for name in ("HOME", "TMPDIR")}
        for name in ("HOME", "TMPDIR"):
            Path(more[name]).mkdir(exist_ok=True)
        env = {**clean_env, **more}
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        return env

    return put


def test_no_preference_of_the_user_changes_what_a_scheduler_prints(shell, monkeypatch, tmp_path):
    shell(squeue="env", qstat="env")
    names = (
        "SLURM_TIME_FORMAT",
        "SQUEUE_FORMAT",
        "SQUEUE_STATES",
        "SACCT_FORMAT",
        "SCONTROL_ALL",
        "PBS_QSTAT_EXECONLY",
    )
    for name in names:
        monkeypatch.setenv(name, "relative")
    monkeypatch.setenv("SLURM_CONF", "/kept")
    for program in ("squeue", "qstat"):
        told = Questions()([program])
        assert "SLURM_CONF=/kept" in told
        assert "relative" not in told


def calls(tmp_path):
    """The command lines that were asked, sorted: side by side they come in any order."""
    path = tmp_path / "calls"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def assert_gone(tmp_path):
    """Nothing of a command that hung is left, nor of what it had started."""
    for pid in (tmp_path / "calls.pids").read_text().split():
        wait_until(lambda pid=pid: not proc.start_time(pid), 60, f"the end of {pid}", every=0.01)  # or a zombie


def patiently(env):
    """Detect with a limit that programs which answer do not exceed, however busy the machine is."""
    return detect(env, run=Questions(60))


def seconds(call):
    begin = time.monotonic()
    result = call()
    return result, time.monotonic() - begin


# ---- one process asks ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_commands_that_hang_are_waited_for_together_and_told_once(shell, tmp_path, capfd):
    env = shell(squeue=HANG, qstat=HANG)
    found, took = seconds(lambda: detect(env))
    assert (found.scheduler, found.hosts) == ("none", (os.uname().nodename,))
    assert 1.9 < took < 5.5, "two seconds for all together: one after the other would be six"
    assert capfd.readouterr().err == "ezpz: waiting for an answer of squeue and qstat, for 2 s at most\n"
    squeue, qstat = found.notes
    assert squeue.startswith(
        "squeue gave no answer in time: whether this shell is in a job of Slurm is not known, this"
    )
    assert squeue.endswith("in a job of Slurm, run `export SLURM_JOB_ID=ID`")
    assert qstat.startswith("qstat gave no answer in time: ")
    assert qstat.endswith("run `export PBS_JOBID=ID`")
    assert "no answer of squeue and qstat" in found.origin["scheduler"]
    assert [line.split()[0] for line in calls(tmp_path)] == ["qstat", "qstat", "squeue"]
    assert_gone(tmp_path)


@pytest.mark.slow
def test_a_slow_answer_counts_and_is_no_note(shell, capfd):
    env = shell(squeue=f"sleep 1.2; echo '{ROW}'", scontrol=f"printf '{SHOWN}'", qstat="sleep 1.2")
    found = patiently(env)
    assert (found.scheduler, found.job_id) == ("slurm", "13")
    assert capfd.readouterr().err.count("\n") == 1
    [note] = found.notes
    assert "found by the name of this host" in note


def test_a_quick_answer_is_not_waited_for_by_the_others(shell, tmp_path, capfd):
    env = shell(squeue=f"echo '{ROW}'", scontrol=f"printf '{SHOWN}'", qstat=HANG)
    found, took = seconds(lambda: patiently(env))
    assert (found.scheduler, found.job_id) == ("slurm", "13")
    assert took < 30
    assert took > 1 or capfd.readouterr().err == ""
    assert not any("qstat" in note for note in found.notes), "nobody has waited for it"
    if (tmp_path / "calls.pids").exists():
        assert_gone(tmp_path)


@pytest.mark.slow
def test_a_job_that_another_scheduler_knows_is_used_and_the_silent_one_is_told(shell):
    env = shell(squeue=HANG, qstat=f"[ $1 = -f ] || echo '{QSTAT}'")
    found = detect(env, run=Questions(4))
    assert (found.scheduler, found.job_id) == ("pbs", "7.head")
    assert any(note.startswith("squeue gave no answer in time: ") for note in found.notes)
    assert any(note.endswith("pbs job 7.head is used") for note in found.notes)


RUBBISH = "echo 'slurm_load_jobs: | trouble |'; echo '1|1|'; echo 'a;b me q n 1 1 2 -- 00:10 R 00:01 {HOST}/0'"


@pytest.mark.parametrize("script", ["exit 1", "echo error >&2; exit 127", RUBBISH.replace("{HOST}", HOST)])
def test_commands_that_fail_or_print_rubbish_find_no_job(shell, tmp_path, capfd, script):
    env = shell(squeue=script, qstat=script)
    found = patiently(env)
    assert (found.scheduler, found.notes) == ("none", ())
    assert not [line for line in capfd.readouterr().err.splitlines() if "waiting for an answer" not in line]
    fails = "exit" in script
    assert ("squeue and qstat failed" in found.origin["scheduler"]) == fails
    assert [line.split()[0] for line in calls(tmp_path)].count("squeue") == (2 if fails else 1), "a failing one twice"


def test_a_command_that_answers_at_the_second_try_is_heard(shell, tmp_path):
    env = shell(squeue=f'[ -e "$CALLS.again" ] || {{ : >"$CALLS.again"; exit 1; }}; echo "{ROW}"', scontrol="exit 1")
    found = patiently(env)
    assert (found.scheduler, found.job_id, found.hosts) == ("slurm", "13", (HOST,))


def test_an_answer_larger_than_a_pipe_is_read_whole(shell):
    env = shell(squeue="exit 1", qstat=f"head -c 300000 /dev/zero | tr '\\0' '\\n'; [ $1 = -t ] || echo '{QSTAT}'")
    assert patiently(env).job_id == "7.head"


WATCHED = """
import sys
started = []
names = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"}
sys.addaudithook(lambda event, args: started.append(event) if event in names else None)
from ezpz.launch.entry import main
assert main(["--dry-run", "-n", "2", "true"]) == 0
assert not started, started
"""


def test_without_commands_on_path_no_process_is_started(shell, tmp_path):
    env = shell()
    folder = tmp_path / "empty"
    (folder / "qstat").mkdir(parents=True)
    (folder / "squeue").write_text("not a program")
    done = run([sys.executable, "-c", WATCHED], {**env, "PATH": str(folder)})
    assert (done.returncode, done.stderr) == (0, "")
    asked = run([sys.executable, "-c", WATCHED], shell(squeue="exit 1"))
    assert "AssertionError: ['subprocess.Popen', 'subprocess.Popen']" in asked.stderr


@pytest.mark.slow
def test_a_program_that_was_silent_once_is_not_asked_again(shell, tmp_path):
    shell(squeue=HANG)
    questions = Questions(1.5)
    assert questions(["squeue", "one"]) is None
    assert questions(["squeue", "other"]) is None
    assert questions.unanswered == ["squeue"]
    assert calls(tmp_path) == ["squeue one"]


def test_an_answer_is_asked_for_once(shell, tmp_path):
    shell(squeue="echo all")
    questions = Questions(60)
    assert [questions(["squeue"]) for _ in range(3)] == ["all\n"] * 3
    assert calls(tmp_path) == ["squeue "]


@pytest.mark.slow
def test_a_command_that_closes_its_output_and_lives_on_is_no_answer(shell, tmp_path):
    shell(squeue=f"echo half; exec >&-; {HANG}")
    questions = Questions(1.5)
    answer, took = seconds(lambda: questions(["squeue"]))
    assert (answer, questions.unanswered) == (None, ["squeue"])
    assert took < 30
    assert_gone(tmp_path)


@pytest.mark.slow
def test_ctrl_c_while_waiting_leaves_no_command_behind(shell, tmp_path):
    env = shell(squeue=HANG, qstat=HANG)
    code = "from ezpz.cluster import detect; detect()"
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True)
    assert "waiting" in process.stderr.readline()
    process.send_signal(2)
    process.stderr.read()
    process.stderr.close()
    assert process.wait(20)
    assert_gone(tmp_path)


# ---- a job that variables tell of -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_that_is_certain_is_used_and_what_only_the_command_knows_is_told(shell, tmp_path):
    env = shell(scontrol=HANG, squeue=HANG, qstat=HANG)
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    found = detect({**env, **job}, more=True)  # a shell of salloc asks for the devices
    assert (found.scheduler, found.hosts, found.slots) == ("slurm", ("n1", "n2"), (2, 2))
    [note] = found.notes
    assert note == (
        "scontrol gave no answer in time: job 12 is used as far as it is known without it; not known: the devices that "
        "were granted on each host and when the job ends"
    )
    assert calls(tmp_path) == ["scontrol -d show job 12"]


def test_a_job_whose_variables_tell_all_asks_nobody(shell, tmp_path):
    env = shell(scontrol=HANG, squeue=HANG, qstat=HANG)
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "4", "SLURMD_NODENAME": "n1"}
    assert detect({**env, **job}).hosts == ("n1",)
    assert calls(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "program", "words"),
    [
        ({"SLURM_JOB_ID": "12"}, "scontrol", "no hosts of job 12"),
        ({"PBS_JOBID": "7.head"}, "qstat", "no hosts of job 7.head"),
        ({"FLUX_JOB_ID": "f2X"}, "flux", "no hosts of the Flux job f2X"),
    ],
)
def test_a_job_whose_hosts_nobody_tells_is_an_error_and_not_this_host(shell, job, program, words):
    env = shell(**{program: HANG})
    with pytest.raises(MachineError, match=words):
        detect({**env, **job})


def test_devices_that_may_be_spread_unevenly_are_told_where_scontrol_fails(shell):
    env = shell(scontrol="exit 1")
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "n1"}
    [note] = detect({**env, **job, "SLURM_GPUS": "5", "SLURM_GPUS_ON_NODE": "4"}).notes
    assert note.startswith("SLURM_GPUS=5 may be spread unevenly")
    assert detect({**env, **job, "SLURM_GPUS": "8", "SLURM_GPUS_ON_NODE": "4"}).notes == ()


@pytest.mark.slow
def test_a_flux_instance_that_does_not_answer_is_told(shell):
    env = shell(flux=HANG)
    found = detect({**env, "FLUX_URI": "local:///x"})
    assert found.scheduler == "none"
    assert any("whether this shell is in a job of Flux is not known" in note for note in found.notes)


@pytest.mark.parametrize("script", [None, "exit 1"])
def test_a_flux_instance_of_which_nobody_tells_is_told(shell, script):
    env = shell(**({"flux": script} if script else {}))
    [note] = detect({**env, "FLUX_URI": "local:///x"}).notes
    assert note == "flux does not tell whose instance FLUX_URI=local:///x is; this host alone is used"


# ---- whole commands --------------------------------------------------------------------------------------------------


def ezpz(env, *words):
    return run([*EZPZ, "ezpz", *words], env)


@pytest.mark.slow
def test_a_launch_goes_on_and_says_why(shell):
    env = shell(squeue=HANG, qstat=HANG)
    result = ezpz(env, "launch", "-n", "2", "echo", "here")
    assert (result.returncode, result.stdout.count("here")) == (0, 2)
    lines = result.stderr.splitlines()
    assert lines[0] == "ezpz: waiting for an answer of squeue and qstat, for 2 s at most"
    assert any(line.startswith("ezpz: note: squeue gave no answer in time: ") for line in lines)
    explained = ezpz(env, "launch", "--explain", "-n", "2", "true")
    assert "squeue gave no answer in time" in explained.stdout.partition("\nnotes\n")[2]


@pytest.mark.slow
def test_a_shell_without_a_job_that_has_been_set_up_asks_nobody(shell, tmp_path):
    env = shell(squeue=HANG, qstat=HANG, scontrol=HANG, flux=HANG)
    known = {**env, "EZPZ_SCHEDULER": "none", "EZPZ_HOSTS": os.uname().nodename, "EZPZ_JOBID": ""}
    for words in (("launch", "-n", "2", "true"), ("launch", "--dry-run", "true"), ("where",), ("kill",), ("sites",)):
        result = ezpz(known, *words)
        assert result.returncode == 0, result.stderr
        assert "waiting" not in result.stderr
    assert calls(tmp_path) == []


@pytest.mark.slow
def test_setting_up_a_shell_where_nobody_answers_does_not_settle_that_it_is_in_no_job(shell):
    env = shell(squeue=HANG, qstat=HANG)
    told = run([*EZPZ, "ezpz.cluster", "--sh"], env)
    assert told.returncode == 0, told.stderr
    assert "export EZPZ_SCHEDULER=''" in told.stdout.splitlines()
    assert f"export EZPZ_HOSTS={shlex.quote(os.uname().nodename)}" in told.stdout.splitlines()
    quick = shell(squeue="exit 1", qstat="exit 0")
    assert "export EZPZ_SCHEDULER=none" in run([*EZPZ, "ezpz.cluster", "--sh"], quick).stdout.splitlines()


@pytest.mark.slow
def test_a_second_shell_waits_for_all_questions_together(shell):
    env = shell(squeue=HANG, qstat=HANG)
    told = run([*EZPZ, "ezpz.cluster", "--sh", "--second"], env)
    assert told.returncode == 0, told.stderr
    assert told.stderr.count("waiting for") == 1, "two seconds for all that it asks"


@pytest.mark.slow
def test_ending_launches_of_a_job_that_nobody_knows_says_who_was_silent(shell):
    env = shell(squeue=HANG, qstat="exit 1")
    result = ezpz(env, "kill", "--job", "0123456789abcdef")
    assert result.returncode == 2
    assert "squeue gave no answer in time" in result.stderr
    assert "no job around this shell" in result.stderr
