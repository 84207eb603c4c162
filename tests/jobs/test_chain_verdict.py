"""Whether the next job of a chain may train: every way in which a job ends, beside the verdict on it."""

from functools import partial

from ezpz.jobs.chain_verdict import Ending, read, verdict
from ezpz.jobs.job_state import Job
from ezpz.launch.decision import Clock
from ezpz.launch.run import failures
from ezpz.records.launch_record import Attempt

of_job = partial(Job, "12")
CLOCK = Clock(now=1000.0, end=9000.0)
AT_THE_END = Clock(now=8950.0, end=9000.0)
RUNNING, CANCELLED = of_job("running"), of_job("running", ending="cancelled")
AGAIN = of_job("running", ending="cancelled", restarts=1)
STOP = {"stop": "a file STOP asks for it"}
BUG = {
    "exit_code": 1,
    "hosts": ["n01", "n02"],
    "began": True,
    "cause": {"text": "rank 1 on n02 failed with exit code 1", "rank": 1, "host": "n02", "words": "ValueError: no"},
}
STOPPED = {"exit_code": 143, "stopped": True, "hosts": ["n01", "n02"]}
WRONG = {"exit_code": 2, "cause": {"text": "bad -n"}}
FULL = {**BUG, "cause": {**BUG["cause"], "words": "OSError: [Errno 28] No space left on device"}}
LOST = {
    "exit_code": 125,
    "hosts": ["n01", "n02"],
    "lost": ["n02"],
    "began": True,
    "cause": {"text": "host n02 is lost", "host": "n02", "why": failures.LOST},
}

# What ended; whether something newer is left; the clock; how the verdict begins.
TABLE = {
    "success": ({"row": {"exit_code": 0}}, False, CLOCK, "done"),
    "success beside STOP": ({"row": {"exit_code": 0}, **STOP}, True, CLOCK, "stop: a file STOP"),
    "saved in time": ({"row": {"exit_code": 0, "verdict": "again"}}, True, AT_THE_END, "again"),
    "saved in time, ended by a signal": ({"row": {**STOPPED, "verdict": "again"}}, True, AT_THE_END, "again"),
    "saved in time, and nothing new": ({"row": {"exit_code": 0, "verdict": "again"}}, False, AT_THE_END, "stop: "),
    "asked to stop": ({"row": {"exit_code": 0, "verdict": "stop"}}, True, CLOCK, "stop: it was asked"),
    "a bug": ({"row": BUG, "state": RUNNING}, True, CLOCK, "stop: rank 1 on n02 failed"),
    "a bug just before the end": ({"row": BUG, "state": RUNNING}, True, AT_THE_END, "stop: rank 1 on n02 failed"),
    "a full disk": ({"row": FULL, "state": RUNNING}, True, CLOCK, "stop: a disk is full"),
    "a wrong command": ({"row": WRONG, "state": RUNNING}, True, CLOCK, "stop: the command line"),
    "a hang": ({"row": {**STOPPED, "exit_code": 124, "hang": {"step": 3}}, "state": RUNNING}, True, CLOCK, "stop: "),
    "the end by the clock": ({"row": STOPPED, "state": of_job("unknown", "-")}, True, AT_THE_END, "again"),
    "the end by the clock, nothing new": ({"row": STOPPED, "state": None}, False, AT_THE_END, "stop: its time"),
    "near the end, and nobody says why": ({"row": STOPPED, "state": RUNNING}, True, AT_THE_END, ""),
    "cancelled near the end": ({"row": STOPPED, "state": CANCELLED}, True, AT_THE_END, "stop: it was cancelled"),
    "the end, as is said": ({"row": STOPPED, "state": of_job("running", ending="time limit")}, True, CLOCK, "again"),
    "a signal that nobody explains yet": ({"row": STOPPED, "state": RUNNING}, True, CLOCK, ""),
    "a signal, and the job is over": ({"row": STOPPED, "state": of_job("ended")}, True, CLOCK, "stop: a signal"),
    "cancelled": ({"row": STOPPED, "state": CANCELLED}, True, CLOCK, "stop: it was cancelled"),
    "preempted": ({"row": STOPPED, "state": of_job("running", ending="preempted")}, False, CLOCK, "again"),
    "to be started again": ({"row": STOPPED, "state": AGAIN}, False, CLOCK, "again"),
    "at a second start": ({"row": STOPPED, "state": AGAIN, "restarts": 1}, True, CLOCK, "stop: it was cancelled"),
    "a signal, and no answer": ({"row": STOPPED, "state": of_job("unknown", "no scontrol")}, True, CLOCK, "stop: "),
    "a host that the launch has lost": ({"row": LOST, "state": RUNNING}, True, CLOCK, "again"),
    "a host that it has lost, nothing new": ({"row": LOST, "state": RUNNING}, False, CLOCK, "stop: n02 is retired"),
    "a failed host": ({"row": LOST, "state": of_job("host failure", "NODE_FAIL")}, True, CLOCK, "again"),
    "a failed host, nothing new": ({"row": LOST, "state": of_job("host failure")}, False, CLOCK, "stop: a host"),
    # Launches that have left no end.
    "killed": ({"row": None, "state": of_job("ended", exit_code=137)}, True, CLOCK, "stop: it left no verdict"),
    "dead before the launch": ({"row": None, "state": of_job("ended", exit_code=1)}, True, CLOCK, "stop: it left"),
    "still running": ({"row": None, "state": RUNNING}, True, CLOCK, "stop: it left no verdict"),
    "dead and forgotten": ({"row": None, "state": of_job("unknown", "forgotten")}, True, CLOCK, "stop: it left"),
    "dead, cancelled": ({"row": None, "state": of_job("cancelled")}, True, CLOCK, "stop: it was cancelled"),
    "dead, preempted": ({"row": None, "state": of_job("preempted")}, False, CLOCK, "again"),
    "dead, started again": ({"row": None, "state": of_job("running", restarts=1)}, False, CLOCK, "again"),
    "dead, its host failed": ({"row": None, "state": of_job("host failure")}, True, CLOCK, "again"),
    "dead, its host failed, nothing new": ({"row": None, "state": of_job("host failure")}, False, CLOCK, "stop: a"),
    "dead at its limit": ({"row": None, "state": of_job("time limit")}, True, CLOCK, "again"),
    "dead at its limit, nothing new": ({"row": None, "state": of_job("time limit")}, False, CLOCK, "stop: its time"),
    "dead beside STOP": ({"row": None, "state": of_job("preempted"), **STOP}, True, CLOCK, "stop: a file"),
}


def as_rows(fields):
    return {**fields, "row": fields["row"] and Attempt.of(fields["row"])}


def test_verdicts(subtests):
    for name, (fields, is_newer, clock, wanted) in TABLE.items():
        with subtests.test(name):
            ending = Ending(**{"row": None, "state": None, **as_rows(fields), "is_newer": is_newer})
            found = verdict(ending, clock)
            assert found.startswith(wanted) if wanted else found == ""
            assert found in {"done", "again", ""} or found.startswith("stop: ")
            assert "\n" not in found


def test_two_jobs_without_anything_new_stop_the_chain():
    preempted = {"row": Attempt.of(STOPPED), "state": of_job("running", ending="preempted"), "is_newer": False}
    assert verdict(Ending(**preempted), CLOCK) == "again"
    assert verdict(Ending(**preempted, idle=1), CLOCK).startswith("stop: 2 jobs in a row")
    assert verdict(Ending(**{**preempted, "is_newer": True}, idle=1), CLOCK) == "again"
    assert verdict(Ending(Attempt(exit_code=0), None, is_newer=False, idle=5), CLOCK) == "done"


READ = {
    None: "",
    "again\n": "again",
    "  done": "done",
    "stop: a bug\nmore": "stop: a bug",
    "stop:": "stop: no reason is given",
    "": "stop: the verdict reads ''",
    "yes please": "stop: the verdict reads 'yes please'",
    "Again": "stop: the verdict reads 'Again'",
}


def test_what_is_no_verdict_stops():
    assert {text: read(text) for text in READ} == READ
