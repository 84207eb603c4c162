"""`launch` over hosts that have no MPI and no scheduler: one agent per host, started by a stand-in for ssh."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz.fields import replace
from ezpz.interpreter import module_line
from ezpz.launch import Placement
from ezpz.launch.cpu_binding import Binding
from ezpz.launch.flavours.base import AGENT
from ezpz.launch.flavours.request import Order, words
from ezpz.launch.flavours.ssh import FLAVOUR
from ezpz.launch.host.payload import pack, to_bytes, unpack
from ezpz.ranks import CONTRACT
from lab import traps
from lab.shown import SHOW, shown
from lab.ssh import LAUNCH, READY, Site

TELL = """
import hashlib, json, os, sys
mine = b"".join(name + b"=" + value for name, value in sorted(os.environb.items()) if name.startswith(b"MINE"))
told = [{name: os.environ.get(name) for name in NAMES}, sys.argv[1:], os.uname().nodename, os.getcwd()]
print(json.dumps([*told, hashlib.sha256(mine).hexdigest(), "PMI_RANK" in os.environ]), flush=True)
"""


def test_ranks_have_the_contract_the_whole_environment_arguments_and_folder(make_hosts, clean_env, tmp_path):
    site = Site(make_hosts("head", "n01", "n02", "n03"), clean_env, tmp_path)
    mine = {f"MINE{index}": f"{index}" * 70_000 for index in range(3)}
    mine |= {"MINE_TEXT": "a 'b' \"$c\"\n`id` ünï \\", "MINE_BYTES": "\udcff\udc80", "MINE_NOTHING": ""}
    stale = {"RANK": "7", "WORLD_SIZE": "9", "PMI_RANK": "3", "PMI_SIZE": "4", "HOSTNAME": "head"}
    words = ["", "a b", "'", '"', "$HOME", "-n", "--", "ünï", "*", "line\nbreak", "\udcff"]
    program = TELL.replace("NAMES", repr((*CONTRACT, "OMP_NUM_THREADS", "HOSTNAME")))
    done = site.launch(sys.executable, "-c", program, *words, hosts="n01:2\nn02:1\nn03:3\n", **mine, **stale)

    assert done.returncode == 0, done.stderr
    ranks = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda rank: int(rank[0]["RANK"]))
    assert [rank[2] for rank in ranks] == ["n01", "n01", "n02", "n03", "n03", "n03"]
    assert [rank[0]["HOSTNAME"] for rank in ranks] == [rank[2] for rank in ranks]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE")
    tuples = ["00206", "11206", "20116", "30326", "41326", "52326"]
    assert ["".join(rank[0][name] for name in names) for rank in ranks] == tuples
    assert all(rank[0][name] for rank in ranks for name in (*CONTRACT, "OMP_NUM_THREADS"))
    assert {rank[0]["MASTER_ADDR"] for rank in ranks} == {"n01"}
    assert len({rank[0]["MASTER_PORT"] for rank in ranks}) == 1
    joined = b"".join(os.fsencode(f"{name}={value}") for name, value in sorted(mine.items()))
    assert {rank[4] for rank in ranks} == {hashlib.sha256(joined).hexdigest()}
    assert [(rank[1], rank[3], rank[5]) for rank in ranks] == [(words, str(tmp_path), False)] * 6
    assert "ssh launcher (no mpiexec on PATH), rendezvous at n01:" in done.stderr


def test_rank_0_reads_all_of_the_input_and_no_other_rank_waits_for_any(site):
    program = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    text = "to rank 0\n" * 200_000
    done = site.launch(sys.executable, "-c", program, stdin=text)
    told, nothing = (hashlib.sha256(data).hexdigest() for data in (text.encode(), b""))
    assert sorted(done.stdout.split()) == sorted([told, nothing, nothing]), done.stderr
    quick = "if [ $RANK = 0 ]; then read line; echo $line; fi"  # and leaves the rest unread
    assert site.launch("bash", "-c", quick, stdin=text).stdout == "to rank 0\n"
    assert site.launch("cat").stdout == ""


def test_no_process_of_ours_imports_from_the_working_folder(site):
    sprung = traps.lay(site.folder)
    line = [*module_line("ezpz.launch"), *site.line("true")[len(LAUNCH) :]]
    done = site.hosts["head"].run(line, site.env, cwd=site.folder)
    assert (done.returncode, sprung()) == (0, []), done.stderr


def test_an_agent_on_this_host_needs_no_ssh(site):
    client = site.client(f'[[ " $* " == *" n01 "* ]] && "{site.hosts.rsh}" "$@"')
    done = site.launch(*SHOW, hosts="head:1\nn01:1\n", EZPZ_SSH=client)
    assert done.returncode == 0, done.stderr
    assert [host for _, _, host, _ in shown(done.stdout)] == ["head", "n01"]


def test_a_pasted_dry_run_starts_the_same_ranks_and_shows_no_secret(site):
    more = {"MINE": "a 'b' \"c\"", "RANK": "5", "PMI_RANK": "1", "PMI_SIZE": "2"}
    lines = site.launch("--dry-run", *SHOW, "a b", **more).stdout
    assert len(lines.splitlines()) == 3 + 2 * (SHOW[-1].count("\n"))
    assert "MINE=" not in lines
    done = site.hosts["head"].run(["bash", "-c", lines], {**site.env, **more}, cwd=site.folder)
    ranks = shown(done.stdout)
    told = [(host, environ["LOCAL_RANK"]) for environ, _, host, _ in ranks]
    assert told == [("n01", "0"), ("n01", "1"), ("n02", "0")]
    assert {(environ["MINE"], *argv) for environ, argv, _, _ in ranks} == {("a 'b' \"c\"", "a b")}

    failing = site.launch("--dry-run", "bash", "-c", "[ $RANK = 1 ] && exit 4; sleep 600", hosts="n01:2\n").stdout
    first = failing.splitlines()[0].removesuffix("&")
    assert site.hosts["head"].run(["bash", "-c", first], site.env, cwd=site.folder, timeout=10).returncode == 4


def test_launches_side_by_side_do_not_disturb_each_other(site):
    long = site.start("bash", "-c", f"{READY} while [ ! -e go ]; do sleep 0.1; done; echo $MASTER_PORT")
    assert site.launch("bash", "-c", "exit $((RANK + 1))").returncode in {1, 2, 3}
    (site.folder / "go").touch()
    output, errors = long.communicate(timeout=200)
    assert long.returncode == 0, errors
    assert len(output.split()) == 3
    assert len(set(output.split())) == 1


def test_a_users_port_that_is_taken_on_the_first_host_is_told(site):
    hold = "import socket, time; s = socket.create_server(('', 29871)); print('held', flush=True); time.sleep(600)"
    holder = site.hosts["n01"].popen([sys.executable, "-c", hold], site.env, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    done = site.launch("true", MASTER_PORT="29871")
    holder.kill()
    holder.communicate()
    assert done.returncode == 2, done.stderr
    assert "cannot use port 29871 (from MASTER_PORT): it is taken on n01" in done.stderr
    assert "cannot start ranks" not in done.stderr


def test_the_plain_words_and_the_line_of_a_host():
    here = os.uname().nodename
    more = {"hostfile": "/tmp/my hosts", "environ": {"EZPZ_SSH": "ssh -p '2 2'"}}
    more |= {"is_here": False, "user_args": ("-o", "ConnectTimeout=30")}
    order = Order("/usr/bin/ssh", Placement(("n01", here), (2, 1), "-n"), Binding(), **more)
    told = [*module_line("ezpz.launch"), "--flavour", "ssh", "-n", "3", "--hostfile", "/tmp/my hosts"]
    assert words(FLAVOUR.command(order)) == [*told, "--launcher-args=-o ConnectTimeout=30", "--"]
    agent = [sys.executable, "-I", "-S", AGENT]
    options = [word for each in ("ConnectTimeout=30", "BatchMode=yes", "ConnectTimeout=10") for word in ("-o", each)]
    log = ["-x", "-T", "-E", "/tmp/log"]
    line = FLAVOUR.agent_line(order, 0, log="/tmp/log")
    assert line == ["ssh", "-p", "2 2", *options, *log, "n01", f"exec {shlex.join([*agent, '0'])}"]
    assert FLAVOUR.agent_line(order, 1) == [*agent, "1"]
    assert "-E" not in FLAVOUR.agent_line(replace(order, environ={"EZPZ_SSH": "rsh"}), 0, log="/tmp/log")


def test_torch_reduces_over_two_hosts(site):
    program = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(value)
print("sum", int(value))
dist.destroy_process_group()
"""
    done = site.launch(sys.executable, "-c", program, hosts="n01:1\nn02:1\n", timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["sum 3"] * 2


def test_a_parcel_arrives_exactly_and_what_follows_stays_unread(tmp_path):
    parcel = pack(["prog", "ü\udcff", ""], {"A": "x" * 200_000, "B": "\udc80\n'"})
    path = tmp_path / "stdin"
    path.write_bytes(parcel + b"input")
    with path.open("rb") as file:
        told = unpack(file.fileno())
        assert os.read(file.fileno(), 100) == b"input"
    assert [to_bytes(word) for word in told.command] == [b"prog", b"\xc3\xbc\xff", b""]
    assert (len(told.environ["A"]), to_bytes(told.environ["B"])) == (200_000, b"\x80\n'")
    assert told.folder == str(Path.cwd())
    path.write_bytes(parcel[:-7])
    with path.open("rb") as file, pytest.raises(Exception, match=r"7 of 200.* bytes are missing"):
        unpack(file.fileno())
