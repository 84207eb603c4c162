"""A script for one process under several ranks: at the end of a run one line says that each ran it alone.

Each launch has a network of its own, because connections of others, which the kernel counts as well, make it silent.
torch is a file of its library's name: nothing else is looked at.
"""

import os
import subprocess
import sys

import pytest

from lab import system
from lab.require import require

BEGIN = """
import mmap, os, socket, sys, time
library = mmap.mmap(os.open("libtorch_cpu.so", os.O_RDONLY), 0, access=mmap.ACCESS_READ)
rank, place = int(os.environ["RANK"]), ("127.0.0.1", int(os.environ["MASTER_PORT"]))
def meet():
    if rank == 0:
        listener = socket.create_server(place)
        return listener, listener.accept()
    while True:
        try:
            return socket.create_connection(place)
        except OSError:
            time.sleep(0.05)
"""
SCRIPTS = {  # what ranks do, what else is in the environment, and whether the line comes
    "alone": ("time.sleep(6)", {}, True),
    "switched off": ("time.sleep(6)", {"EZPZ_ALONE": "0"}, False),
    "failed": ("time.sleep(6); sys.exit(3)", {}, False),
    "connected all the time": ("group = meet(); time.sleep(6)", {}, False),
    "connected between two looks": ("time.sleep(5); group = meet(); del group; time.sleep(1)", {}, False),
    "connected after many looks": ("time.sleep(33); group = meet(); del group; time.sleep(1)", {}, False),
    "connected before the first look": ("group = meet(); del group; time.sleep(6)", {}, False),
    "connected to one who listens": ("listener = socket.create_server(('', 0)); time.sleep(6)", {}, False),
    "without torch": ("library.close(); time.sleep(6)", {}, False),
    "as short as a test": ("pass", {}, False),
    "a sweep, whose script reads its rank": ("sweep.py", {}, False),
    "a script that reads no rank": ("alone.py", {}, True),
}


@pytest.mark.slow
def test_ranks_that_nothing_connects_are_told_at_the_end(clean_env, tmp_path, subtests):
    missing = system.missing("unshare", "ip")
    require("hosts", missing or ("only root makes a network" if os.getuid() else None))
    (tmp_path / "libtorch_cpu.so").write_bytes(b"\0" * 4096)
    own_network = [
        system.path("unshare"),
        "--net",
        "sh",
        "-c",
        f'{system.path("ip")} link set lo up && exec "$@"',
        "sh",
    ]
    (tmp_path / "sweep.py").write_text(BEGIN + "time.sleep(6)")
    (tmp_path / "alone.py").write_text(BEGIN.partition("rank, place")[0] + "time.sleep(6)")
    runs = {}
    for name, (script, more, _) in SCRIPTS.items():
        line = [*own_network, sys.executable, "-m", "ezpz.launch", "-n", "2", "--flavour", "local"]
        runs[name] = subprocess.Popen(
            [*line, sys.executable, *([script] if script.endswith(".py") else ["-c", BEGIN + script])],
            env={**clean_env, **more},
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    for name, (_, _, is_told) in SCRIPTS.items():
        with subtests.test(name):
            said = runs[name].communicate(timeout=120)[1]
            assert runs[name].returncode == (3 if name == "failed" else 0), said
            told = "note: 2 ranks each ran the program alone: torch was loaded, and no process group was seen" in said
            assert told == is_told, said
            assert said.count("EZPZ_ALONE=0") == is_told
