"""What became of a job: answers of real schedulers, and of programs that are absent, slow or forgetful."""

import json
import os
import sys
import time

import pytest

from ezpz import proc
from ezpz.cluster.questions import Questions
from ezpz.errors import MachineError
from ezpz.jobs import queued_jobs
from ezpz.jobs.job_state import Job, Reply
from ezpz.jobs.queued_jobs import ask, call, cancel
from lab.process import wait_until

# Recorded of Slurm 22.05.8: the lines that are read.
SCONTROL = """\
JobId=12 JobName=j.sh
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode={code}
   StartTime={start} EndTime=Unknown Deadline=N/A
   PreemptEligibleTime=2026-11-24T02:38:43 PreemptTime={preempted}
   NodeList=n01

"""
PLAIN = {"reason": "None", "restarts": 0, "code": "0:0", "start": "2026-11-24T02:38:43", "preempted": "None"}
SLURM = [
    ({"state": "PENDING", "reason": "Dependency", "start": "Unknown"}, ("queued", None, "", 0)),
    ({"state": "PENDING", "reason": "BeginTime", "restarts": 1}, ("queued", None, "", 1)),
    ({"state": "RUNNING"}, ("running", None, "", 0)),
    ({"state": "RUNNING", "preempted": "2026-11-24T02:35:53"}, ("running", None, "preempted", 0)),
    ({"state": "COMPLETING", "restarts": 1}, ("running", None, "cancelled", 1)),
    ({"state": "COMPLETING", "preempted": "2026-11-24T02:39:10"}, ("running", None, "preempted", 0)),
    ({"state": "COMPLETING"}, ("running", None, "cancelled", 0)),
    ({"state": "COMPLETING", "reason": "TimeLimit"}, ("running", None, "time limit", 0)),
    ({"state": "TIMEOUT", "reason": "TimeLimit", "code": "0:15"}, ("time limit", 143, "", 0)),
    ({"state": "COMPLETED"}, ("ended", 0, "", 0)),
    ({"state": "FAILED", "reason": "NonZeroExitCode", "code": "7:0"}, ("ended", 7, "", 0)),
    ({"state": "OUT_OF_MEMORY", "code": "0:125"}, ("ended", 253, "", 0)),
    ({"state": "CANCELLED", "code": "0:15"}, ("cancelled", 143, "", 0)),
    ({"state": "PREEMPTED", "preempted": "2026-11-24T02:39:10"}, ("preempted", 0, "", 0)),
    ({"state": "NODE_FAIL", "reason": "NodeDown"}, ("host failure", 0, "", 0)),
    ({"state": "A_NEW_ONE"}, ("unknown", None, "", 0)),
]


def answering(*answers):
    """A runner that gives these answers in turn, and the lines that it was asked."""
    lines, left = [], list(answers)

    def run(line):
        lines.append(list(line))
        return left.pop(0)

    return run, lines


def test_states_of_slurm(subtests):
    for fields, wanted in SLURM:
        with subtests.test(fields=fields):
            run, lines = answering(Reply(0, SCONTROL.format(**{**PLAIN, **fields}), ""))
            found = ask("slurm", "12", run)
            assert (found.state, found.exit_code, found.ending, found.restarts) == wanted
            assert lines == [["scontrol", "show", "job", "12"]]


def test_start_of_slurm_in_seconds():
    run, _ = answering(Reply(0, SCONTROL.format(**PLAIN, state="PENDING"), ""))
    assert ask("slurm", "12", run).start == time.mktime((2026, 11, 24, 2, 38, 43, 0, 0, -1))


FORGOTTEN = Reply(1, "", "slurm_load_jobs error: Invalid job id specified\n")


NO_SLURM = [
    ([FORGOTTEN, Reply(0, "CANCELLED by 1000|0:15|2026-11-24T02:38:43\n", "")], "cancelled", "by 1000"),
    ([FORGOTTEN, Reply(0, "TIMEOUT|0:0|2026-11-24T02:38:43\n", "")], "time limit", "TIMEOUT"),
    ([FORGOTTEN, Reply(1, "", "Slurm accounting storage is disabled\n")], "unknown", "storage is disabled"),
    ([FORGOTTEN, Reply(0, "\n", "")], "unknown", "no line about it"),
    ([FORGOTTEN, Reply(None, "", "no sacct on PATH")], "unknown", "no sacct on PATH"),
    ([Reply(None, "", "no scontrol on PATH")], "unknown", "no scontrol on PATH"),
    ([Reply(1, "", "Unable to contact slurm controller (connect failure)\n")], "unknown", "Unable to contact"),
    ([Reply(0, "", "")], "unknown", ""),
]


def test_slurm_that_has_forgotten_or_does_not_answer(subtests):
    for answers, state, words in NO_SLURM:
        with subtests.test(answers=answers):
            run, _ = answering(*answers)
            found = ask("slurm", "12", run)
            assert found.state == state
            assert words in found.told


PBS = [
    ({"job_state": "Q", "comment": "Not Running: Insufficient amount of resource: ncpus"}, ("queued", None, 0)),
    ({"job_state": "Q", "run_count": 1}, ("queued", None, 1)),  # preempted, or its host was lost
    ({"job_state": "H", "substate": 22}, ("queued", None, 0)),
    ({"job_state": "R", "run_count": 1}, ("running", None, 0)),
    ({"job_state": "R", "run_count": 2}, ("running", None, 1)),
    ({"job_state": "E", "run_count": 1}, ("running", None, 0)),
    ({"job_state": "F", "substate": 92, "Exit_status": 0}, ("ended", 0, 0)),
    ({"job_state": "F", "substate": 93, "Exit_status": 7, "run_count": 1}, ("ended", 7, 0)),
    ({"job_state": "F", "substate": 93, "Exit_status": 256 + 11}, ("ended", 139, 0)),
    ({"job_state": "F", "substate": 91, "Exit_status": 271}, ("cancelled", 143, 0)),
    ({"job_state": "F", "substate": 91}, ("cancelled", None, 0)),  # before it began
    ({"job_state": "F", "substate": 93, "Exit_status": -29}, ("time limit", None, 0)),
    ({"job_state": "F", "substate": 93, "Exit_status": -14}, ("host failure", None, 0)),
    ({"job_state": "F", "substate": 93, "Exit_status": -1}, ("ended", None, 0)),
    ({"job_state": "M"}, ("unknown", None, 0)),
]


def test_states_of_pbs(subtests):
    for fields, wanted in PBS:
        for form in ("json", "lines"):
            with subtests.test(form=form, fields=fields):
                if form == "json":
                    answers = [Reply(0, json.dumps({"timestamp": 1795188151, "Jobs": {"1.head": fields}}), "")]
                else:  # an older one, which does not know -F json
                    text = "Job Id: 1.head\n" + "".join(f"    {name} = {value}\n" for name, value in fields.items())
                    answers = [Reply(2, "", "usage: qstat"), Reply(0, text, "")]
                run, lines = answering(*answers)
                found = ask("pbs", "1.head", run)
                assert (found.state, found.exit_code, found.restarts) == wanted
                assert lines[0] == ["qstat", "-x", "-f", "-F", "json", "1.head"]


def test_pbs_estimates_the_start_and_a_number_without_a_server_is_found():
    fields = {"job_state": "Q", "estimated": {"start_time": "Fri Nov 20 15:22:30 2026"}}
    run, _ = answering(Reply(0, json.dumps({"Jobs": {"1.head": fields}}), ""))
    assert ask("pbs", "1", run).start == time.mktime((2026, 11, 20, 15, 22, 30, 0, 0, -1))


def test_pbs_without_a_history_is_asked_for_jobs_that_are_not_over():
    refused = Reply(36, "", "qstat: PBS is not configured to maintain job history\n")
    known = Reply(0, json.dumps({"Jobs": {"1.head": {"job_state": "Q", "run_count": 1}}}), "")
    run, lines = answering(refused, known)
    found = ask("pbs", "1.head", run)
    assert (found.state, found.restarts) == ("queued", 1)
    assert lines[-1] == ["qstat", "-f", "-F", "json", "1.head"]


def test_pbs_that_has_forgotten():
    run, _ = answering(*[Reply(153, "", "qstat: Unknown Job Id 9.head\n")] * 2)
    assert ask("pbs", "9.head", run) == Job("9.head", "unknown", reason="qstat: Unknown Job Id 9.head")


def test_nothing_is_asked_without_a_scheduler_or_of_no_job():
    run, lines = answering()
    assert ask("none", "1", run).state == "unknown"
    assert ask("slurm", "-u root", run).state == "unknown"
    assert cancel("slurm", ["12", "--me"], run) == dict.fromkeys(["12", "--me"], "not all are ids of jobs")
    assert lines == []


def test_a_scheduler_without_a_handler_says_so_wherever_one_is_needed(tmp_path, run_cli, clean_env):
    """Flux is detected; what ezpz does not do with its jobs is one sentence, the same mechanism in each verb."""
    nothing, _ = answering()
    does_not = "ezpz detects jobs of Flux but does not"
    assert ask("flux", "f2Xk", nothing).told.startswith(f"{does_not} follow them; look at the job with")
    assert cancel("flux", ["f2Xk"], nothing)["f2Xk"].startswith(f"{does_not} cancel them; cancel them with")
    (tmp_path / "flux").write_text(f"#!/bin/sh\n[ $1 = hostlist ] && echo {os.uname().nodename}\n")
    (tmp_path / "flux").chmod(0o755)
    (tmp_path / "chain").mkdir()
    here = {**clean_env, "PATH": str(tmp_path), "PBS_CONF_FILE": "/nowhere", "HOME": str(tmp_path)}
    job, chain = {"FLUX_JOB_ID": "f2Xk"}, {"EZPZ_CHAIN": str(tmp_path / "chain")}
    submit = "submit them; write the job script yourself and call `launch` inside it"
    rows = [
        ("submit -- true", job, 2, f"ezpz: {does_not} {submit} (from this job)"),
        ("submit --until-done -- true", job, 2, f"ezpz: {does_not} {submit} (from this job)"),
        ("submit -- true", {}, 2, f"ezpz: {does_not} {submit} (from flux on PATH)"),
        ("status", job, 0, f"{does_not} list them; ask its own commands for them\n"),
        ("status", {}, 0, f"{does_not} list them; ask its own commands for them\n"),
        ("status --json", job, 0, f'"not_listed": [\n    "{does_not} list them'),
        ("logs f2Xk", job, 2, f"{does_not} list them; ask its own commands for them."),
        ("launch -n 1 true", {**job, **chain}, 2, f"ezpz: {does_not} chain them; run `launch` without a chain"),
    ]
    lsf = {"LSB_JOBID": "4711", "LSB_HOSTS": os.uname().nodename}
    rows += [(words, lsf, code, said.replace("Flux", "LSF")) for words, more, code, said in rows if more == job]
    rows += [
        ("init", lsf, 2, "ezpz detects jobs of LSF but does not submit them; write the job script yourself"),
        ("init lsf", {}, 2, "ezpz detects jobs of LSF but does not submit them; write the job script yourself"),
        ("launch -n 1 true", {**lsf, **chain}, 2, "ezpz detects jobs of LSF but does not chain them; run"),
        ("launch -n 1 /bin/true", lsf, 0, "1 rank on "),
    ]
    for words, more, code, said in rows:
        done = run_cli([sys.executable, "-m", "ezpz", *words.split()], {**here, **more})
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), (words, more, done)


def test_detection_imports_nothing_of_the_handling_of_jobs(run_cli, clean_env):
    code = "import sys; from ezpz.cluster import detect; detect(); print(*sorted(sys.modules), sep='\\n')"
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n01", "PBS_JOBID": "1.head", "FLUX_URI": "x"}
    done = run_cli([sys.executable, "-c", code], {**clean_env, **job})
    assert done.returncode == 0, done.stderr
    assert not [name for name in done.stdout.split() if name.startswith("ezpz.cluster.") and "job" in name]


def test_cancelling():
    run, lines = answering(Reply(0, "", ""))
    assert cancel("slurm", ["13", "12"], run) == {}
    assert lines == [["scancel", "13", "12"]]
    over, waiting = (
        Reply(0, json.dumps({"Jobs": {"1.head": {"job_state": state, "Exit_status": 0}}}), "") for state in "FQ"
    )
    refused = Reply(35, "", "qdel: Job has finished 1.head\n")
    run, _ = answering(refused, over, waiting)
    assert cancel("pbs", ["1.head", "2.head"], run) == {"2.head": "qdel: Job has finished 1.head"}
    run, lines = answering(Reply(None, "", "no qdel on PATH"))
    assert cancel("pbs", ["1.head"], run) == {"1.head": "no qdel on PATH"}
    assert len(lines) == 1  # where one command is absent or does not answer, the next is not tried
    run, lines = answering(refused)
    assert cancel("pbs", ["1.head"], run, seconds=0.0) == {"1.head": "not cancelled within 0 s"}


def test_a_scheduler_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    for name in ("scancel", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/asked\nexec sleep 300\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    began = time.monotonic()
    [problem] = set(cancel("slurm", ["12", "13"], seconds=1.0).values())
    assert problem.startswith("no answer of scancel within ")
    assert time.monotonic() - began < 60
    assert (tmp_path / "asked").read_text() == "scancel\n"


def test_commands_are_found_where_their_scheduler_keeps_them(tmp_path, monkeypatch):
    """A job may have no folder of PBS on PATH; PBS_EXEC in its configuration names it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "pbs.conf").write_text(f"PBS_SERVER=head\nPBS_EXEC={tmp_path}\n")
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert ask("pbs", "12.head").reason == f"no qstat on PATH or in {tmp_path}/bin"
    with pytest.raises(MachineError, match=rf"no qsub on PATH or in {tmp_path}/bin \(for "):
        queued_jobs.submit(job_file(tmp_path))
    answers = {"qstat": json.dumps({"Jobs": {"12.head": {"job_state": "R"}}}), "qsub": "13.head", "qdel": ""}
    for name, text in answers.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / "bin" / name).chmod(0o755)
    assert ask("pbs", "12.head").state == "running"
    assert queued_jobs.submit(job_file(tmp_path)) == "13.head"
    assert cancel("pbs", ["12.head"]) == {}
    assert json.loads(Questions()(["qstat", "-f"]) or "{}")["Jobs"]
    assert Questions()(["squeue"]) is None
    assert ask("slurm", "12").reason == "no scontrol on PATH"


def job_file(folder):
    path = folder / "job.pbs"
    path.write_text("#!/bin/bash\n#PBS -l select=1\n")
    return str(path)


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path, monkeypatch):
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\nsleep 300 & echo $! >{tmp_path}/pid\nwait\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reply = call(["scontrol", "show", "job", "12"], limit=1.0)
    assert reply == Reply(None, "", "no answer of scontrol within 1 s")
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not proc.start_time(pid), 60, "the end of what the command started")


def test_absent_commands_are_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PBS_CONF_FILE", "/nowhere/pbs.conf")
    assert ask("slurm", "12").reason == "no scontrol on PATH"
    assert ask("pbs", "12.head").reason == "no qstat on PATH or in /opt/pbs/bin"
    assert queued_jobs.LIMIT == 10.0


def test_a_real_slurm_tells_the_end_of_jobs(slurm, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nsleep ${1:-60}\nexit 7\n")

    def run(line):
        done = slurm.run(list(line))
        return Reply(done.returncode, done.stdout, done.stderr)

    def submit(*words):
        line = ["sbatch", "--parsable", "-N1", "-c4", "--chdir", str(tmp_path)]
        return slurm.run([*line, *map(str, words)]).stdout.strip()

    def until(job, state):
        wait_until(lambda: ask("slurm", job, run).state == state, 60, f"job {job} to be {state}", every=0.2)
        return ask("slurm", job, run)

    failing, waiting = submit("-wn01", script, 0), submit("-wn02", script)
    held = submit(f"-dafterany:{waiting}", script)
    assert until(failing, "ended").exit_code == 7
    until(waiting, "running")
    assert "Dependency" in until(held, "queued").reason
    assert cancel("slurm", [held, waiting], run) == {}
    until(held, "cancelled")
    until(waiting, "cancelled")
    slurm.wait_idle(40)


def test_a_real_slurm_lists_jobs_with_the_files_of_their_output(slurm, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\necho of $SLURM_JOB_ID\n")
    ways = (["-o", "logs/%x_%4j.txt", "-J", "mine"], ["-a", "3", "-o", "%A-%a.txt"], ["-a", "3"], [])
    (tmp_path / "logs").mkdir()
    ids = [
        slurm.run(["sbatch", "--parsable", "-N1", "--chdir", str(tmp_path), *way, str(script)]).stdout.strip()
        for way in ways
    ]
    handler = queued_jobs.handler("slurm")

    def mine():
        text = slurm.run(handler.question("root")).stdout
        found = [job for job in handler.read(text, "root") if job.job.partition("_")[0] in ids]
        return found if len(found) == 4 and all(job.state == "ended" for job in found) else None

    found = wait_until(mine, 60, "the end of four jobs", every=0.2)
    for job in found:
        assert (tmp_path / job.output).read_text() == f"of {job.number}\n"
    assert {job.job for job in found} == {ids[0], f"{ids[1]}_3", f"{ids[2]}_3", ids[3]}
