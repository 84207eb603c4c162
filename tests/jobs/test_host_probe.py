"""The probe of hosts: devices of a stand-in for torch that are sick in each way, and hosts of a lab that are slow."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from ezpz.jobs.attempts import verdicts
from ezpz.watch.doctor import examine
from ezpz.watch.doctor.diagnosis import diagnose
from ezpz.watch.doctor.host_probe import HostAnswer
from lab import seed
from lab.ssh import LAUNCH, Site

STUB = Path(__file__).parent / "stub_torch"
ECC = "CUDA error: uncorrectable ECC error encountered"
HELD = "CUDA out of memory. Tried to allocate 2.00 MiB"


def computed(tmp_path, monkeypatch, sick):
    """What `examine.compute` finds with the stand-in, on this host, with these faults."""
    shutil.copy(STUB / "torch.py", tmp_path)
    (tmp_path / "sick.json").write_text(json.dumps({os.uname().nodename: sick}))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return examine.compute("cuda")


def asked(**found):
    return HostAnswer(facts={"host": "n", "devices": {"kind": "cuda", "count": 2}, "compute": found}, began=True)


GOOD = {"imported": 0.1, "count": 2, "wrong": [], "fails": {}, "problem": ""}


FOUND = [  # what is wrong with the host, why it fails, a note
    ({}, "", ""),
    ({"1": "wrong"}, "device 1 computes wrongly", "device 1 computes wrongly: a product"),
    ({"1": ECC}, "device 1 does not compute: its driver reports: uncorrectable ECC error", f"RuntimeError: {ECC}"),
    ({"missing": 1}, "torch finds 1 devices there; expected 2", ""),
    ({"missing": 2}, "torch finds 0 devices there; expected 2", ""),
    ({"0": HELD}, "", f"device 0 does not compute: RuntimeError: {HELD}"),  # others may hold it
    ({"0": "CUDA error: CUDA-capable device(s) is/are busy or unavailable"}, "", "busy or unavailable"),
    ({"slow": "x"}, "", "whether its devices compute is unknown: TypeError"),
]


@pytest.mark.slow
def test_a_host_fails_where_a_device_is_gone_or_broken_and_nowhere_else(tmp_path, monkeypatch, subtests):
    for sick, fails, note in FOUND:
        with subtests.test(str(sick)):
            answer = asked(**computed(tmp_path, monkeypatch, sick))
            found = verdicts({"n01": asked(**GOOD), "n02": answer, "n03": asked(**GOOD)}, {})["n02"]
            assert found.answered
            assert found.fails.startswith(fails) if fails else not found.fails, found
            assert any(note in each for each in found.notes) if note else not found.notes, found
            assert len(diagnose([dict(answer.facts)])) == bool(note)


def test_where_torch_finds_no_device_on_any_host_none_is_gone():
    none = asked(**{**GOOD, "count": 0})
    assert {each.fails for each in verdicts({"n01": none, "n02": none, "n03": none}, {}).values()} == {""}
    one = verdicts({"n01": none, "n02": asked(**GOOD)}, {})  # who is right of two?
    assert {each.fails for each in one.values()} == {""}


def test_fewer_devices_than_planned_are_gone_and_a_late_answer_is_no_silence():
    late = HostAnswer(facts=None, began=True)
    found = verdicts(
        {"n01": asked(**GOOD), "n02": late, "n03": HostAnswer(None, False, "No route to host")}, {"n01": 4}
    )
    assert found["n01"].fails == "it has 2 devices; expected 4"
    assert (found["n02"].answered, found["n02"].fails) == (True, "")
    assert (found["n03"].answered, found["n03"].notes) == (False, ("No route to host",))
    slow = asked(**{**GOOD, "imported": 19.2})
    assert verdicts({"n01": slow}, {})["n01"].notes == ("importing torch took 19 s",)


# Over hosts. The program of rank 0 is killed in the first attempt, which is no evidence against anybody.

KILLED = '[ "$EZPZ_ATTEMPT" = 1 ] && [ "$RANK" = 0 ] && kill -9 $$; sleep 0.2\n'
SLOW = """
import os, sys, time
if os.uname().nodename == "n03" and "ezpz.watch.doctor.examine" in " ".join(sys.orig_argv):
    time.sleep(600)
"""
NAMES = ("n01", "n02", "n03", "n04")


@pytest.mark.slow
def test_a_sick_device_retires_its_host_and_neither_a_slow_import_nor_a_full_disk_does(make_hosts, clean_env, tmp_path):
    folder = tmp_path / "shared"
    shutil.copytree(STUB, folder / "torch")
    (folder / "torch" / "sitecustomize.py").write_text(SLOW)
    (folder / "torch" / "sick.json").write_text(json.dumps({"n04": {"1": ECC}}))
    (folder / "run.sh").write_text(KILLED)
    hosts = make_hosts("head", *NAMES)
    there = hosts["head"].tmp  # ranks get the launcher's TMPDIR
    (hosts["n02"].tmp / "enter").write_text(
        f"mount -t tmpfs -o size=64k tmpfs {there}; head -c 70000 /dev/zero > {there}/full 2>/dev/null; true\n"
    )
    site = Site(hosts, {**clean_env, "XDG_STATE_HOME": str(tmp_path / "state")}, folder)
    site.env |= {"PYTHONPATH": f"{folder}/torch:{site.env['PYTHONPATH']}", "TORCH_DEVICE": "cuda"}
    site.env |= {"EZPZ_NGPU_PER_HOST": "2"}
    line = ["--hosts", ",".join(NAMES), "--nhosts", "3", "--ppn", "1", "--attempts", "2", "--flavour", "ssh"]
    done = hosts["head"].run([*LAUNCH, *line, "sh", "run.sh"], site.env, cwd=folder, timeout=120)
    launches = tmp_path / "state" / "ezpz" / "launches"
    rows = json.loads(next(launches.glob("*/run.json")).read_text())["attempts"]
    told = f"{done.stderr}\n{json.dumps(rows, indent=1)}"
    assert done.returncode == 0, told
    assert [row["hosts"] for row in rows] == [["n01", "n02", "n03"]] * 2, told
    [retired] = [*rows[0]["retired"].items()]
    assert retired == ("n04", "device 1 does not compute: its driver reports: uncorrectable ECC error"), told
    probe = rows[0]["probe"]
    assert {host: verdict["answered"] for host, verdict in probe.items()} == dict.fromkeys(NAMES, True), told
    assert probe["n03"]["notes"] == ["it runs what asks it, and has not answered within the time of a probe"], told
    assert any(note.startswith("TMPDIR (") and note.endswith(" has 0 MiB left") for note in probe["n02"]["notes"]), told
    assert len([*launches.iterdir()]) == 1, "a probe leaves no record among those of the user's launches"


# Failures that are nobody's fault, on hosts of which some look ill and some are: only these may be retired.

FAILURES = {
    "killed": "kill -9 $$",
    "crashed": "kill -11 $$",
    "bad_alloc": "echo \"terminate called after throwing an instance of 'std::bad_alloc'\" >&2; kill -6 $$",
    "out of memory": "ulimit -v 400000; exec {python} -c 'bytearray(1 << 30)'",
    "an exception": "exec {python} -c 'raise ValueError(\"a bug\")'",
    "a code": "exit 3",
    "out of the device's memory": "echo 'torch.OutOfMemoryError: {held}' >&2; exit 1",
    "a peer is gone": "echo 'torch.distributed.DistBackendError: NCCL error: remote process exited' >&2; exit 1",
}
SICK = {
    "a device computes wrongly": {"1": "wrong"},
    "a device has an error of its memory": {"0": ECC},
    "a device is gone": {"missing": 1},
}
LOOKS_ILL = {
    "a slow import": {"slow": 2},
    "memory that others hold": {"0": HELD},
    "a full /tmp": {},
}
CASES = int(os.environ.get("EZPZ_TEST_PROBES") or 8)  # `make matrix`: 300, of which a day else has its own
AT_ONCE = 12  # cases of one test
FIRST = 0 if CASES > 8 else 8 * seed.turn(seed.of_the_day(), "probes", 37)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch", range(-(-CASES // AT_ONCE)))
def test_failures_of_programs_retire_no_healthy_host_and_every_sick_one(make_hosts, clean_env, tmp_path, batch):
    folder = tmp_path / "shared"
    shutil.copytree(STUB, folder / "torch")
    hosts = make_hosts("head", *NAMES)
    site = Site(hosts, {**clean_env, "XDG_STATE_HOME": str(tmp_path / "state")}, folder)
    site.env |= {"PYTHONPATH": f"{folder}/torch:{site.env['PYTHONPATH']}", "TORCH_DEVICE": "cuda"}
    site.env |= {"EZPZ_NGPU_PER_HOST": "2"}
    wrong = []
    for number in range(FIRST + batch * AT_ONCE, FIRST + min(CASES, (batch + 1) * AT_ONCE)):
        draw = random.Random(f"probe {number}")
        kind = [*FAILURES][number % len(FAILURES)]  # each of them, in any number of cases
        rank, sick, ill = draw.randrange(3), "", {}
        if number % 3 == 0:
            sick = draw.choice(NAMES)
            ill[sick] = draw.choice([*SICK])
        for host in draw.sample([name for name in NAMES if name != sick], draw.randrange(3)):
            ill[host] = draw.choice([*LOOKS_ILL])
        what = f"case {number}: {kind} on rank {rank}, {ill}"
        (folder / "torch" / "sick.json").write_text(
            json.dumps({host: {**SICK, **LOOKS_ILL}[name] for host, name in ill.items()})
        )
        for host in NAMES:
            enter = hosts[host].tmp / "enter"
            enter.unlink(missing_ok=True)
            if ill.get(host) == "a full /tmp":
                there = hosts["head"].tmp  # ranks get the launcher's TMPDIR
                fill = f"head -c 70000 /dev/zero > {there}/full 2>/dev/null; true"
                enter.write_text(f"mount -t tmpfs -o size=64k tmpfs {there}; {fill}\n")
        failure = FAILURES[kind].format(python=shutil.which("python3"), held=HELD)
        (folder / "run.sh").write_text(f'if [ "$EZPZ_ATTEMPT$RANK" = 1{rank} ]; then\n{failure}\nfi\nsleep 0.2\n')
        logs = tmp_path / f"case-{number}"
        line = ["--hosts", ",".join(NAMES), "--nhosts", "3", "--ppn", "1", "--attempts", "2", "--flavour", "ssh"]
        done = hosts["head"].run(
            [*LAUNCH, *line, "--log-dir", str(logs), "sh", "run.sh"], site.env, cwd=folder, timeout=120
        )
        rows = json.loads((logs / "run.json").read_text())["attempts"]
        retired = [host for row in rows for host in row["retired"]]
        then = [host for host in NAMES if host != sick][:3]
        probed = sorted(host for host, verdict in rows[0].get("probe", {}).items() if verdict["answered"])
        found = done.returncode, retired, [row["hosts"] for row in rows], probed
        if found != (0, [sick] if sick else [], [list(NAMES[:3]), then], list(NAMES)):
            wrong.append(f"{what}: {found}\n{done.stderr}\n{json.dumps(rows, indent=1)}")
    assert not wrong, "\n".join(wrong)
