"""`ezpz doctor` over hosts of a lab, each of which has real faults: every one is named with its host, in time.

The dead mount is a FUSE whose server never answers, the clock a libc that lies to one host, the firewall a route that
refuses, the full disk a tmpfs. Devices and quotas are those of tools that answer by the name of their host.
"""

import json
import subprocess
import sys

import pytest

from lab import process, system
from lab.ssh import Site

DOCTOR = [sys.executable, "-m", "ezpz", "doctor"]
CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int code = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += 40;
    return code;
}
"""
TOOLS = {
    "nvidia-smi": """case $(uname -n) in
n02) echo '0, 0, Not Active, Not Active'; echo '1, 3, Not Active, Active' ;;
esac
""",
    "quota": """case $(uname -n) in n04)
echo 'Disk quotas for user ada (uid 1000):'
echo '     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace'
echo '      nas:/home  990000* 900000 1000000   6days      12       0       0'
exit 1 ;;
esac
""",
}
PLANTED = {
    "n02": """
mkdir -p "$TMPDIR/etc" && cp -a /etc/. "$TMPDIR/etc" && umount /etc/hosts && mount --bind "$TMPDIR/etc" /etc
cp "$2" /etc/hosts && echo @FOLDER@/clock.so > /etc/ld.so.preload
mount -t tmpfs -o size=1m tmpfs /dev/shm; head -c 1040000 /dev/zero > /dev/shm/full
""",
    # The server's end of the first FUSE is open as long as the host lives, and is never read; that of the second ends.
    "n03": """
exec 9<>/dev/fuse && mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0 dead @FOLDER@/hf
mount -i -t fuse -o fd=8,rootmode=40000,user_id=0,group_id=0 dead @FOLDER@/torch 8<>/dev/fuse
setsid sleep 600 </dev/null >/dev/null 2>&1 & exec 9>&-
sed 's/^.* n01$/127.0.1.1 n01/; s/^.* n03$/127.0.1.1 n03/' "$2" > "$TMPDIR/hosts"
mount --bind "$TMPDIR/hosts" /etc/hosts
""",
    "n04": """
sed '/ n04$/d' "$2" > "$TMPDIR/hosts" && mount --bind "$TMPDIR/hosts" /etc/hosts
ulimit -n 512
mount --bind @FOLDER@/other.py @FOLDER@/train.py
mount --bind @FOLDER@/other @FOLDER@/venv
""",
}
EXPECTED = {  # checks of each host's findings: a piece of the text, and of the cure
    ("clock", "the clock of n02 is 40 s ahead"): "NTP",
    ("space", "n02: /dev/shm has"): "make room",
    ("ecc", "n02: device 1 has 3 uncorrected memory errors"): "administrators",
    ("throttle", "n02: device 1 is throttled"): "administrators",
    ("hangs", "n03: HF_HOME does not answer"): "a mount",
    ("stale mount", "n03: TORCH_HOME ("): "a mount whose server has gone",
    ("own name", "n03: this host's own name means 127.0.1.1"): "/etc/hosts",
    ("own name", "n04: this host's own name n04 means no address"): "/etc/hosts",
    ("reach", "n03 cannot reach n01, where the ranks meet: that name means the host itself"): "--exclude n03",
    ("reach", "n04 cannot reach n01, where the ranks meet: "): "--exclude n04",
    ("quota", "n04: the quota of nas:/home is used up: 0.9 of 0.9 GiB"): "remove files",
    ("nofile", "n04: the limit nofile is 512"): "ulimit -n",
    ("down", "n03: the interface ib0 (10.9.9.3) is down"): "bring it up",
    ("bridge", "GLOO_SOCKET_IFNAME=docker0 names docker0"): "unset GLOO_SOCKET_IFNAME",
    ("address", "n01, n02, n03 and 1 more have the same address 172.17.0.1"): "another interface",
    ("same", "the script of 9 bytes (SHA-256 "): "--exclude n04",
    ("same", "torch 2.12.0 on n04, 2.13.0 on 3 hosts"): "--exclude n04",
    ("stale", "this shell is no rank, and holds RANK=3"): "unset RANK",
    ("proxy", "the proxy of http_proxy cannot be reached"): "",
    ("mask", "all 4 hosts: CUDA_VISIBLE_DEVICES=0,0 names no device"): "unset CUDA_VISIBLE_DEVICES",
}


@pytest.fixture
def site(make_hosts, clean_env, tmp_path):
    hosts = make_hosts("head", "n01", "n02", "n03", "n04")
    folder = tmp_path / "shared"
    for name in ("hf", "torch"):
        (folder / name).mkdir(parents=True)
    env = {**clean_env, "TORCH_DEVICE": "cpu", "XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}
    return Site(hosts, env, folder)


def doctor(site, *words, **more):
    return site.hosts["head"].run([*DOCTOR, *words], {**site.env, **more}, cwd=site.folder, timeout=90)


SSH_ALONE = """iptables -A INPUT -i lo -j ACCEPT
iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
iptables -A INPUT -p tcp --dport 22 -j ACCEPT
iptables -A INPUT -j @HOW@"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["DROP", "REJECT"])
def test_a_firewall_that_lets_ssh_alone_in_is_named_once_by_doctor_and_by_launch(how, site):
    missing = system.missing("iptables")
    if missing:
        pytest.skip(missing)
    for name in ("n01", "n02", "n03"):
        process.run(site.hosts[name].command(["sh", "-ec", SSH_ALONE.replace("@HOW@", how)])).check_returncode()
    launch = [sys.executable, "-m", "ezpz.launch", "--hosts", "n[01-03]", "--ppn", "1", "true"]
    # From the head, which the hosts reach.
    done = doctor(site, "--json", "--hosts", "n[01-03]")
    [found] = [each for each in json.loads(done.stdout)["findings"] if each["is_problem"]]
    assert (done.returncode, found["check"]) == (125, "reach")
    assert found["text"].startswith("no host reaches n01, where the ranks meet: on n02, n03, ")
    done = site.hosts["head"].run(launch, site.env, cwd=site.folder, timeout=60)
    why = {"DROP": "no answer within 1.5 s", "REJECT": "a firewall refuses the connection"}[how]
    assert done.returncode == 125
    assert f"no host reaches n01 (from first host), where the ranks meet: on n02, n03, {why}; open the" in done.stderr
    # From the first host, which they do not reach.
    done = site.hosts["n01"].run([*DOCTOR, "--json", "--hosts", "n[01-03]"], site.env, cwd=site.folder, timeout=90)
    [found] = [each for each in json.loads(done.stdout)["findings"] if each["is_problem"]]
    assert (done.returncode, found["check"], found["hosts"]) == (125, "silent", ["n02", "n03"])
    assert "n02 cannot reach the launcher at port " in found["text"]
    assert "open the ports between the hosts of a job" in found["cure"]
    done = site.hosts["n01"].run(launch, site.env, cwd=site.folder, timeout=60)
    said = done.stderr.splitlines()
    assert done.returncode == 125
    for name in ("n02", "n03"):
        assert sum(f"{name} cannot reach the launcher at port " in line for line in said) == 1, done.stderr
    assert "its agent came up there, and its own line says why it ended; no rank has begun" in done.stderr


@pytest.mark.slow
def test_each_real_fault_is_named_with_its_host_and_a_cure(site):
    folder, hosts = site.folder, site.hosts
    (folder / "clock.c").write_text(CLOCK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "clock.so", folder / "clock.c"], check=True)
    tools = folder / "tools"
    tools.mkdir()
    for name, text in TOOLS.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}")
        (tools / name).chmod(0o755)
    for name, version in (("venv", "2.13.0"), ("other", "2.12.0")):  # what a host finds before its other modules
        metadata = folder / name / f"torch-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (folder / "train.py").write_text("lr = 0.1\n")
    (folder / "other.py").write_text("lr = 0.2\n")
    for name, text in PLANTED.items():
        (hosts[name].tmp / "enter").write_text(text.replace("@FOLDER@", str(folder)))
    for name in ("n01", "n02", "n03", "n04"):
        lines = "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up"
        subprocess.run(hosts[name].command(["sh", "-c", lines]), check=True)
    lines = "ip link add ib0 type bridge; ip addr add 10.9.9.3/24 dev ib0"
    subprocess.run(hosts["n03"].command(["sh", "-c", lines]), check=True)
    refuse = ["ip", "route", "add", "prohibit", f"{hosts['n01'].address}/32"]
    subprocess.run(hosts["n04"].command(refuse), check=True)
    done = doctor(
        site, "--json", "--hosts", "n[01-04]", "train.py", PATH=f"{tools}:{site.env['PATH']}",
        HF_HOME=str(folder / "hf"), TORCH_HOME=str(folder / "torch"), RANK="3",
        PYTHONPATH=f"{folder}/venv:{site.env['PYTHONPATH']}",
        http_proxy="http://127.0.0.1:9",
        GLOO_SOCKET_IFNAME="docker0", CUDA_VISIBLE_DEVICES="0,0",
    )  # fmt: skip
    assert done.returncode == 125, done.stderr
    answer = json.loads(done.stdout)
    missing = dict(EXPECTED)
    for (check, text), cure in EXPECTED.items():
        for each in answer["findings"]:
            if each["check"] == check and text in each["text"] and cure in each["cure"]:
                missing.pop((check, text), None)
    assert not missing, json.dumps(answer["findings"], indent=1)
    assert answer["seconds"] < 30  # 5 s on an idle machine
