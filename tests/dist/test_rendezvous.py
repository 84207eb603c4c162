"""Ranks that do not come, ports that are taken, jobs side by side: real processes, torch loaded in each."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from ezpz.dist import rendezvous

SETUP = """
import sys, ezpz
from ezpz.errors import EzpzError
try:
    rank = ezpz.setup_torch()
except EzpzError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
import torch, torch.distributed as dist
seen = [None] * ezpz.get_world_size()
dist.all_gather_object(seen, sys.argv[1:])
print(rank, seen, flush=True)
ezpz.cleanup()
"""
RANK = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "EZPZ_RENDEZVOUS_SECONDS": "4"}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SETUP)
    return path


def said(output):
    """What the script itself printed, in the order of ranks."""
    return sorted(line for line in output.splitlines() if not line.startswith("["))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_with_address_and_port(run_cli, clean_env, script):
    port = free_port()
    env = {**clean_env, **RANK, "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": str(port)}
    done = run_cli([sys.executable, script], env)
    assert done.returncode == 125
    assert f"127.0.0.1:{port} (from MASTER_ADDR, MASTER_PORT), but 1 of 2 ranks never came: 1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_rank_0_that_never_comes_is_an_error_too(run_cli, clean_env, script):
    env = {**clean_env, **RANK, "RANK": "1", "LOCAL_RANK": "1", "MASTER_PORT": str(free_port())}
    done = run_cli([sys.executable, script], env)
    assert done.returncode == 125
    assert "cannot reach rank 0 at 127.0.0.1:" in done.stderr


@pytest.mark.slow
def test_a_taken_port_is_named(run_cli, clean_env, script):
    with socket.create_server(("", 0)) as holder:
        port = holder.getsockname()[1]
        env = {**clean_env, **RANK, "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": str(port)}
        done = run_cli([sys.executable, script], env)
    assert done.returncode == 125
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "another process holds the port" in done.stderr
    assert "Set MASTER_PORT" in done.stderr


UNUSABLE = [
    ({"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "http"}, 2, "unusable port 'http' (from MASTER_PORT)"),
    ({"TORCH_DEVICE": "gpu"}, 2, "unknown device 'gpu' (from TORCH_DEVICE)"),
    ({"TORCH_DEVICE": "mps"}, 2, "no usable mps device (from TORCH_DEVICE=mps)"),
    ({"TORCH_BACKEND": "smoke"}, 2, "unknown backend 'smoke' (from TORCH_BACKEND=smoke)"),
    ({"RANK": "0", "WORLD_SIZE": ""}, 125, "incomplete rank variables"),
]
# Each in a fork of one process that has torch: its code and what it said.
EACH = """
import json, os, sys, torch
for variables in json.loads(sys.argv[2]):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.environ.update(variables)
        os.dup2(write, 2)
        exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))
        sys.exit()
    os.close(write)
    said = open(read).read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said]), flush=True)
"""


@pytest.mark.slow
def test_an_unusable_variable_is_one_line(subtests, run_cli, clean_env, script):
    given = [{**RANK, **variables} if "RANK" in variables else variables for variables, _, _ in UNUSABLE]
    done = run_cli([sys.executable, "-c", EACH, script, json.dumps(given)], clean_env)
    assert done.returncode == 0, done.stderr
    for (variables, expected, words), line in zip(UNUSABLE, done.stdout.splitlines(), strict=True):
        with subtests.test(variables=variables):
            code, said = json.loads(line)
            assert code == expected, said
            assert words in said
            assert "Traceback" not in said


@pytest.mark.dear
@pytest.mark.slow
def test_two_bare_jobs_side_by_side_never_meet(run_cli, clean_env, script, tmp_path):
    """Two starters with the same variables, as two `mpiexec` of one user on one host."""
    variables = "PMI_RANK=$rank PMI_SIZE=2 MPI_LOCALRANKID=$rank MPI_LOCALNRANKS=2"
    line = f'for rank in 0 1; do {variables} "$0" {script} $1 & done; wait'
    jobs = [
        subprocess.Popen(
            ["bash", "-c", line, sys.executable, name], env=clean_env, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        for name in ("red", "blue")
    ]
    answers = [job.communicate(timeout=100)[0] for job in jobs]
    for name, answer in zip(("red", "blue"), answers, strict=True):
        assert said(answer) == [f"{rank} [['{name}'], ['{name}']]" for rank in (0, 1)]


@pytest.mark.dear
@pytest.mark.slow
def test_a_second_program_of_the_same_starter_meets_anew(clean_env, script, tmp_path):
    variables = "PMI_RANK=$rank PMI_SIZE=2 MPI_LOCALRANKID=$rank MPI_LOCALNRANKS=2"
    inner = f'\'"$0" {script} one; "$0" {script} two\''
    line = f'for rank in 0 1; do {variables} bash -c {inner} "$0" & done; wait'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable],
        env=clean_env,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        check=False,
    )
    expected = sorted(f"{rank} [['{word}'], ['{word}']]" for word in ("one", "two") for rank in (0, 1))
    assert said(done.stdout) == expected, done.stderr


AGAIN = """
import ezpz, torch, torch.distributed as dist
for round in range(5):
    rank = ezpz.setup_torch()
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == 2, (round, rank)
    ezpz.cleanup()
"""


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("bare", [False, True], ids=["launch", "bare starter"])
def test_ranks_that_left_their_group_may_meet_again(run_cli, clean_env, tmp_path, bare):
    (tmp_path / "again.py").write_text(AGAIN)
    rank = 'PMI_RANK=$rank PMI_SIZE=2 MPI_LOCALRANKID=$rank MPI_LOCALNRANKS=2 "$0" "$1"'
    ranks = f'for rank in 0 1; do {rank} & pids="$pids $!"; done'
    line = f"{ranks}; for pid in $pids; do wait $pid || exit; done"
    start = ["bash", "-c", line] if bare else [sys.executable, "-m", "ezpz.launch", "-n", "2"]
    done = run_cli([*start, sys.executable, tmp_path / "again.py"], clean_env, 100)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_ranks_over_two_hosts_without_a_scheduler_want_master_addr(run_cli, clean_env, script):
    env = {**clean_env, "PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    done = run_cli([sys.executable, script], env)
    assert done.returncode == 125
    assert "spans several hosts (from hydra), but no scheduler names them; expected MASTER_ADDR" in done.stderr


def test_a_bare_srun_over_two_hosts_needs_no_variables(slurm, clean_env, script):
    done = slurm.salloc(["-N2", "-n2"], ["srun", sys.executable, script, "x"], clean_env, timeout=120)
    assert done.returncode == 0, done.stderr
    assert said(done.stdout) == [f"{rank} [['x'], ['x']]" for rank in (0, 1)]


@pytest.mark.parametrize(("world_size", "waits"), [(2, True), (4096, False)])
def test_a_supervised_rank_asks_torch_once_rank_0_listens(monkeypatch, world_size, waits):
    dist = pytest.importorskip("torch.distributed")
    listens = threading.Event()
    monkeypatch.setattr(dist, "TCPStore", lambda *_words, **_options: listens.is_set())
    patience = SimpleNamespace(
        alone=False, world_size=world_size, deadline=time.monotonic() + 60, left=lambda _least: timedelta(seconds=60)
    )

    def listen(port):
        listens.set()
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(10)
            with contextlib.suppress(TimeoutError):
                server.accept()[0].close()

    port = free_port()
    late = threading.Timer(0.2, listen, [port])
    late.start()
    try:
        address = rendezvous.Address("127.0.0.1", port, "MASTER_ADDR, MASTER_PORT", listens=False)
        assert rendezvous._open(address, patience) == waits  # all else of a meeting needs 4096 ranks
    finally:
        if not waits:
            late.cancel()
        late.join()
