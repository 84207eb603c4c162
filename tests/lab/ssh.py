"""Launches over lab hosts by a stand-in for ssh, from one of them and in a folder that all share."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

LAUNCH = [sys.executable, "-m", "ezpz.launch"]
SRC = str(Path(__file__).parents[2] / "src")
# The client's death reaches the other side as over a network: its pipes and connections end, and no signal comes.
CLIENT = """#!/bin/bash
( {}; exit $? ) <&0 &
wait $!
"""
READY = "echo ready $RANK;"


class Site:
    """Hosts of a lab and a launch from one of them, in a folder that all share."""

    def __init__(self, hosts, env, folder):
        self.hosts, self.folder = hosts, folder
        self.env = {**env, "PYTHONPATH": SRC, "EZPZ_SSH": self.client(f'"{hosts.rsh}" "$@"')}
        self.env["EZPZ_NGPU_PER_HOST"] = "0"

    def client(self, command, form=CLIENT):
        path = self.folder.parent / f"client of {self.folder.name}"
        path.write_text(form.format(command))
        path.chmod(0o755)
        return shlex.quote(str(path))  # the name has spaces

    def line(self, *args, hosts="n01:2\nn02:1\n"):
        (self.folder / "hosts").write_text(hosts)
        return [*LAUNCH, "--hostfile", "hosts", *args]

    def launch(self, *args, hosts="n01:2\nn02:1\n", timeout=30, stdin=None, **more):
        line = self.line(*args, hosts=hosts)
        return self.hosts["head"].run(line, {**self.env, **more}, cwd=self.folder, timeout=timeout, stdin=stdin)

    def start(self, *args, ranks=3, **more):
        run = self.hosts["head"].popen(
            self.line(*args),
            {**self.env, **more},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert sorted(run.stdout.readline().split()[0] for _ in range(ranks)) == ["ready"] * ranks
        return run
