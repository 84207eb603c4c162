"""`ezpz report --public`: a page without hosts, paths, users and arguments, and with all else."""

import itertools
import json
import os
import pwd
import re

import pytest

from ezpz.cli.report import main as report

PRIVATE = {
    "hosts": ["n01.cluster.example", "n02", "n01", "login-7", "10.1.2.3"],
    "paths": ["/home/ada", "data.csv", "configs/", "/gpfs", "/opt"],
    "users": ["ada", "lovelace"],
    "arguments": ["--secret-recipe", "walnut", "tuesday", "bash", "42.org", "train.py"],
}
FACTS = {
    "name": "train",
    "state": "failed",
    "cause": "FileNotFoundError: /home/ada/data.csv on n02",
    "problems": ["cannot draw /home/ada/x"],
    "started": "2026-11-20T16:20:01+01:00",
    "ended": "2026-11-20T16:25:13+01:00",
    "argv": ["train.py", "--secret-recipe", "walnut", "--day=tuesday", "--lr", "0.125"],
    "cwd": "/home/ada/project",
    "executable": "/gpfs/lovelace/venv/bin/python3",
    "host": "n01.cluster.example",
    "process": {"host": "login-7", "pid": 4711, "birth": "1"},
    "launch": {"EZPZ_LAUNCH_CMD": "bash -c 'python3 train.py 42.org'", "EZPZ_HOSTS": "n01.cluster.example,n02"},
    "ranks": {"rank": 0, "world_size": 4, "local_world_size": 2},
    "versions": {"torch": "2.13.0", "numpy": "2.1"},
    "config": {
        "lr": 0.125,
        "width": 512,
        "activation": "gelu",
        "recipe": "walnut",
        "data": "/home/ada/data.csv",
        "file": "data.csv",
        "rel": "configs/a",
        "owner": "ada",
        "mail": "ada@example.org",
        "where": "copied to n02 by Ada",
        "address": "10.1.2.3",
        "nested": {"out": "~/x", "days": ["tuesday", "monday"]},
    },
    "effective": {"optimizer.class": "AdamW", "stochastic": ["24 x Dropout(p=0.1)"], "problems": ["x: /home/ada"]},
    "environment": {
        "modules": ["gcc/12.2", "cuda/12.4", "/opt/modules/ada", "ada/tools"],
        "driver": {"nvidia": "550.54.15"},
        "system": "Debian GNU/Linux 12 (bookworm)",
        "variables": {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "hsn0", "CUDA_HOME": "/opt/cuda", "FI_X": "n02"},
    },
    "earlier": [
        {"state": "failed", "cause": "OSError: /home/ada", "started": "2026-11-20T15:20:01+01:00", "host": "n02"}
    ],
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "lovelace")
    folder = tmp_path / "train"
    folder.mkdir()
    metrics = {"loss": 1.5, "note": "on n02 in /home/ada", "mem/n02": 3.0, "tags": ["a", "b"], "val/loss": 2.0}
    rows = [{"v": 1, "t": 1795194000.0 + step, "step": step, "m": metrics} for step in range(30)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.json").write_text(json.dumps(FACTS))
    return folder


def words_of(page):
    """Return what the page says, without its own script and style."""
    for tag in ("script", "style"):
        while f"<{tag}" in page:
            before, _, rest = page.partition(f"<{tag}")
            inside, _, after = rest.partition(f"</{tag}>")
            page = before + (inside if 'type="application/json"' in inside[:80] else "") + after
    return page


def test_nothing_private_is_on_a_public_page(run, capsys):
    assert report([str(run), "--public"]) == 0
    path = run / "report-public.html"
    assert capsys.readouterr().out.strip() == str(path)
    page = words_of(path.read_text()).lower()
    for word in [*itertools.chain(*PRIVATE.values()), str(run).lower(), pwd.getpwuid(os.getuid()).pw_name]:
        assert not re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", page), word


def test_all_else_is_there(run):
    assert report([str(run), "--public", "-o", str(run / "page.html")]) == 0
    page = (run / "page.html").read_text()
    for word in ("train", "failed", "FileNotFoundError", "0.125", "512", "gelu", "AdamW", "24 x Dropout", "gcc/12.2"):
        assert word in page
    for word in (
        "2.13.0",
        "550.54.15",
        "4 on 2 hosts",
        "5 min 12 s",
        "val/loss",
        "Ring",
        "GNU/Linux 12",
        "This copy leaves out hosts",
    ):
        assert word in page
    assert not (run / "report.html").exists()


def test_a_run_that_is_named_after_a_user_host_or_argument_has_no_name(run):
    for name in ("ada", "n02", "walnut"):
        (run / "run.json").write_text(json.dumps({**FACTS, "name": name}))
        assert report([str(run), "--public"]) == 0
        assert f"<h1>{name}" not in (run / "report-public.html").read_text()


def test_a_journal_alone_has_a_public_page_too(run):
    (run / "run.json").unlink()
    assert report([str(run), "--public"]) == 0
    assert str(run) not in (run / "report-public.html").read_text()
