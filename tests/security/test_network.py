"""What crosses the network between the hosts of a run, as docs/security.md says it."""

import re
import subprocess
import sys
import zlib

import pytest

from lab.process import wait_until
from lab.ssh import LAUNCH, SRC, Site

pytestmark = pytest.mark.slow

SNIFF = """
import socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(b"\\0\\0\\0\\0")
    while True:
        packet = tap.recv(1 << 16)
        file.write(len(packet).to_bytes(4, "big") + packet)
"""
# What rank 0 does on its host: it keeps the secret of its launch, which its shim or agent has got.
TELL = """
import os, sys
mark = f"EZPZ_TEST_TAG={os.environ['EZPZ_TEST_TAG']}".encode()  # other launches run beside it
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
    except OSError:
        continue
    found = [word for word in words if word.startswith(b"EZPZ_CONTROL=")]
    if found and mark in words:
        print("secret", found[0].decode().partition("=")[2].partition("@")[0], flush=True)
        break
"""


def streams(seen):
    """What the TCP connections of a capture carried, one after the other, with what of it is compressed."""
    data, start, found = seen.read_bytes(), 0, {}
    while start + 4 <= len(data):
        size = int.from_bytes(data[start : start + 4], "big")
        ip = data[start + 4 + 14 : start + 4 + size]  # after the Ethernet header
        start += 4 + size
        if len(ip) < 40 or ip[0] >> 4 != 4 or ip[9] != 6:
            continue
        tcp = ip[4 * (ip[0] & 15) : int.from_bytes(ip[2:4], "big")]
        found.setdefault((ip[12:20], tcp[:4]), {})[tcp[4:8]] = tcp[4 * (tcp[12] >> 4) :]
    whole = [b"".join(parts[number] for number in sorted(parts)) for parts in found.values()]
    return b"".join(whole) + b"".join(inflated(one) for one in whole)


def inflated(stream):
    """What of a stream zlib has made."""
    made = b""
    for match in re.finditer(rb"x[\x01\x5e\x9c\xda]", stream):
        try:
            made += zlib.decompressobj().decompress(stream[match.start() :])
        except zlib.error:
            continue
    return made


@pytest.fixture
def seen(hosts, tmp_path):
    """The file into which goes all that passes the interface of n01."""
    path = tmp_path / "seen"
    sniffer = hosts["n01"].popen([sys.executable, "-c", SNIFF, path], stdout=subprocess.DEVNULL)
    wait_until(lambda: path.exists() and path.read_bytes(), 10, "the sniffer")
    yield path
    sniffer.kill()
    sniffer.wait(10)


def test_over_ssh_the_secret_is_within_ssh_alone(hosts, clean_env, tmp_path, seen):
    folder = tmp_path / "a folder"
    folder.mkdir()
    site = Site(hosts, clean_env, folder)
    payload = tmp_path / "payload"  # what ssh carries, which here is no network
    client = site.client(f'tee -a "{payload}" | "{hosts.rsh}" "$@"')
    done = site.launch("bash", "-c", "echo words of rank $RANK", hosts="n01:1\nn02:1\n", EZPZ_SSH=client)
    assert done.returncode == 0, done.stderr
    secret = re.search(rb'"EZPZ_CONTROL": "([0-9a-f]{32})@', payload.read_bytes())[1]
    wait_until(lambda: b"words of rank 0" in streams(seen), 10, "the output of rank 0")
    assert b"ezpz-agent-1 reports" in streams(seen)
    assert secret not in streams(seen)


def test_the_secret_crosses_the_network_below_an_mpi_unencrypted(flavour, hosts, tmp_path, seen):
    rsh = str(hosts.rsh)
    names = ("HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC", "OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
    env = {**flavour.env(), **dict.fromkeys(names, rsh), "PYTHONPATH": SRC}
    line = [flavour.python, *LAUNCH[1:], "--hosts", "n01,n02", "--ppn", "1"]
    done = hosts["head"].run([*line, "python3", "-c", TELL], env, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    secret = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("secret "))
    wait_until(lambda: b"ezpz-agent-1 outputs" in streams(seen), 10, "what the agent said")
    crossed = streams(seen).replace(f"secret {secret}".encode(), b"")  # what the rank itself has printed
    assert secret.encode() in crossed
