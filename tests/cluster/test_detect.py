"""The records are what real schedulers showed real jobs; `tests/shell` holds the shell's answer against the same files."""

import json
import time
from pathlib import Path

import pytest

from ezpz.cluster import Allocation, detect
from ezpz.errors import MachineError

RECORDS = sorted((Path(__file__).parents[1] / "data" / "environments").glob("*.json"))


def nothing(_):
    return None


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_recorded_job_is_understood(path):
    record = json.loads(path.read_text())

    found = detect(record["env"], record["files"].get, nothing)

    expect = record["expect"]
    assert (found.scheduler, found.job_id) == (expect["scheduler"], expect["job_id"])
    assert list(found.hosts) == expect["hosts"]
    assert list(found.slots) == expect["slots"]
    assert all(found.origin[name] for name in ("scheduler", "job_id", "hosts", "slots"))


def test_there_are_records():
    assert len(RECORDS) >= 8


def test_no_job_is_this_host_alone():
    found = detect({}, nothing, nothing)

    assert (found.scheduler, found.job_id, len(found.hosts), found.slots) == ("none", "", 1, None)
    assert "no SLURM_JOB_ID" in found.origin["scheduler"]


@pytest.mark.parametrize(
    ("environ", "files", "words"),
    [
        ({"PBS_JOBID": "1.head"}, {}, ("PBS_NODEFILE", "is unset", "--hostfile")),
        ({"PBS_JOBID": "1.head", "PBS_NODEFILE": "/f"}, {}, ("PBS_NODEFILE=/f", "cannot be read")),
        ({"PBS_JOBID": "1.head", "PBS_NODEFILE": "/f"}, {"/f": "\n \n"}, ("PBS_NODEFILE=/f", "is empty")),
        ({"SLURM_JOB_ID": "7"}, {}, ("job 7", "SLURM_JOB_NODELIST")),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "2(x2)"},
            {},
            ("2 counts", "SLURM_TASKS_PER_NODE", "3 hosts"),
        ),
    ],
)
def test_a_job_without_hosts_is_an_error_that_says_what_to_type(environ, files, words):
    with pytest.raises(MachineError) as caught:
        detect(environ, files.get, nothing)
    assert all(word in str(caught.value) for word in words)


def test_a_plain_node_file_is_used_as_it_is_and_a_repeating_one_is_not():
    plain = detect({"PBS_JOBID": "1", "PBS_NODEFILE": "/f"}, {"/f": "a\nb\n"}.get, nothing)
    repeating = detect({"PBS_JOBID": "1", "PBS_NODEFILE": "/f"}, {"/f": "a\na\n"}.get, nothing)

    assert (plain.hostfile, repeating.hostfile) == ("/f", "")


def test_an_interactive_shell_inside_a_job_has_all_hosts_of_the_job():
    shell = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_STEP_ID": "4294967290",
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_STEP_NUM_TASKS": "1",
    }
    assert detect(shell, nothing, nothing).hosts == ("n1", "n2")
    assert detect({**shell, "SLURM_STEP_ID": "0"}, nothing, nothing).hosts == ("n1",)


def test_ten_thousand_hosts_are_counted_in_one_pass():
    text = "".join(f"nid{index:06d}\n" * 2 for index in range(10_000))
    begin = time.monotonic()
    found = detect({"PBS_JOBID": "1", "PBS_NODEFILE": "/f"}, {"/f": text}.get, nothing)
    assert (len(found.hosts), set(found.slots), found.tasks) == (10_000, {2}, 20_000)
    assert time.monotonic() - begin < 2  # measured: 24 ms; counting anew for every host took seconds


def test_an_allocation_cannot_be_changed():
    with pytest.raises(AttributeError):
        Allocation("none", "", ("a",)).hosts = ("b",)
