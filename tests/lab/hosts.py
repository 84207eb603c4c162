"""Several hosts on one machine: a network namespace each, on a bridge that lives in a namespace of its own.

A host has its own name, address and TMPDIR, and an /etc/hosts that knows the others. It is entered with ``nsenter`` and
``unshare`` and not with ``ip netns exec``, which remounts /sys: slurmd then finds no cgroups. Namespace names begin
with the process id, so that two test runs do not meet.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from lab import process, system

NETNS = Path("/run/netns")
# What a test has planted on a host (a clock, a full disk, a dead mount) is in the file `enter` of its TMPDIR.
ENTER = """hostname "$1" && mount --bind "$2" /etc/hosts && export TMPDIR="$3" &&
if [ -e "$3/enter" ]; then . "$3/enter"; fi && shift 3 && exec "$@\""""
RSH = r"""#!/bin/bash
# ssh as an MPI launcher calls it: [options] HOST COMMAND… for the hosts of one lab. As sshd would, it starts from a
# login environment: what the ranks see of the caller's, the launcher itself has carried over.
while [[ ${1-} == -* ]]; do
  case $1 in -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;; *) shift ;; esac
done
host=${1-}
shift
case $host in
@CASES@
  *) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255 ;;
esac
if [[ -e @FOLDER@/gone/$name ]]; then
  echo "ssh: connect to host $host port 22: No route to host" >&2
  exit 255
fi
kept=(HOME="${HOME-/}" PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8)
for variable in ${!EZPZ_TEST_*}; do
  [[ -v $variable ]] && kept+=("$variable=${!variable}")
done
for descriptor in /proc/self/fd/*; do # no descriptor reaches another machine: not the socket that hydra waits at
  descriptor=${descriptor##*/}
  if ((descriptor > 2 && descriptor != 255)); then eval "exec $descriptor>&-"; fi
done
exec env -i "${kept[@]}" "${enter[@]}" /bin/bash -c "$*"
"""

_counter = itertools.count(1)


@cache
def problem():
    """Why this machine cannot make hosts, or None."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = system.missing("ip", "nsenter", "unshare", "hostname", "mount")
    if missing:
        return missing
    own = [system.path("unshare"), "--net", "--uts", "--mount"]
    trial = process.run([*own, system.path("ip"), "link", "add", "type", "bridge"], timeout=20)
    return f"no network namespaces here: {trial.stderr.strip()}" if trial.returncode else None


def ip_inside(namespace, *commands):
    """Run `ip` commands in `namespace` as one batch, which costs one process instead of one each."""
    done = process.run(
        [system.path("ip"), "-n", namespace, "-batch", "-"], stdin="\n".join(commands) + "\n", timeout=30
    )
    if done.returncode:
        raise RuntimeError(f"ip -n {namespace}: {done.stderr.strip()} in {commands}")


def pids_in(namespace):
    done = process.run([system.path("ip"), "netns", "pids", namespace], timeout=20)
    return [int(pid) for pid in done.stdout.split()]


def remove_namespace(namespace):
    """Kill everything inside and delete it; twice is fine."""
    if not (NETNS / namespace).exists():
        return
    process.wait_until(lambda: not process.kill_all(pids_in(namespace)), 10, f"the end of all processes in {namespace}")
    process.run([system.path("ip"), "netns", "del", namespace], timeout=20)


def sweep():
    """Remove the namespaces of test runs that were killed before they could clean up."""
    for path in NETNS.glob("ezt*-*"):
        owner = path.name[3:].split("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            remove_namespace(path.name)


class Host:
    """One host: `name`, `address`, and ways to run programs there."""

    def __init__(self, lab, name, index):
        self.lab, self.name, self.index = lab, name, index
        self.namespace = f"{lab.prefix}-{name}"
        self.address = f"{lab.subnet}.{index}"
        nsenter, unshare = system.path("nsenter"), system.path("unshare")
        enter = [
            nsenter,
            f"--net={NETNS / self.namespace}",
            unshare,
            "--uts",
            "--mount",
            "--",
            "/bin/bash",
            "-c",
            ENTER,
        ]
        # Open MPI keeps its sessions in a folder named after host and user: two labs must not share it.
        self.tmp = lab.folder / "tmp" / name
        self.enter = [*enter, "enter", name, str(lab.hosts_file), str(self.tmp)]

    def command(self, args):
        """`args` as a command line that enters this host first, for whoever starts it from outside."""
        return [*self.enter, *map(str, args)]

    def run(self, args, env=None, *, timeout=60, cwd=None, stdin=None):
        """Run `args` here to its end; a CompletedProcess with text. Without `env`: a bare login's environment."""
        return process.run(self.command(args), self._env(env), timeout=timeout, cwd=cwd, stdin=stdin)

    def popen(self, args, env=None, **options):
        """Start `args` here and return the Popen, in a session of its own; it is killed with the host at the latest."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(self.command(args), env=self._env(env), start_new_session=True, **options)

    def vanish(self):
        """Cut this host off as a crash of its machine would look to the others: nothing answers any more."""
        (self.lab.folder / "gone" / self.name).touch()
        ip_inside(self.lab.switch, f"link del v{self.index}")

    def split(self):
        """Let nothing pass between this host and the others, as behind a switch that fails; `heal` ends it."""
        ip_inside(self.lab.switch, f"link set v{self.index} down")

    def heal(self):
        ip_inside(self.lab.switch, f"link set v{self.index} up")

    def pids(self):
        return pids_in(self.namespace)

    def _env(self, env):
        return process.minimal_env(self.lab.folder, self.lab.prefix) if env is None else env


class Hosts:
    """A lab of hosts, `hosts["n01"].run(…)`; a context manager that leaves nothing behind."""

    def __init__(self, *names):
        number = next(_counter)
        self.prefix = f"ezt{os.getpid()}-{number}"
        self.switch = f"{self.prefix}-switch"
        # The bridge is private to this lab; different subnets only make a mix-up visible.
        self.subnet = f"10.77.{(os.getpid() + number) % 254 + 1}"
        self.folder = Path(tempfile.mkdtemp(prefix="ezt-"))  # short: Unix sockets in it have 108 bytes
        self.hosts_file = self.folder / "hosts"
        self.rsh = self.folder / "rsh"
        self.members = {name: Host(self, name, index) for index, name in enumerate(names, 1)}

    def __getitem__(self, name):
        return self.members[name]

    def __iter__(self):
        return iter(self.members.values())

    def __len__(self):
        return len(self.members)

    def __enter__(self):
        try:
            self._write_files()
            self._make_namespaces()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for host in self:
            remove_namespace(host.namespace)
        remove_namespace(self.switch)
        shutil.rmtree(self.folder, ignore_errors=True)

    def hostfile(self, *names, slots=None, style="plain"):
        """Write a file of host names for a launcher and return its path. `style`: plain, colon (MPICH) or slots."""
        mark = {"plain": "", "colon": f":{slots}", "slots": f" slots={slots}"}[style]
        path = self.folder / f"hostfile-{next(_counter)}"
        path.write_text("".join(f"{name}{mark}\n" for name in names))
        return path

    def _write_files(self):
        (self.folder / "gone").mkdir()
        for host in self:
            host.tmp.mkdir(parents=True)
        lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{host.address} {host.name}" for host in self)]
        self.hosts_file.write_text("\n".join(lines) + "\n")
        cases = [
            f"  {host.name} | {host.address}) name={host.name}; enter=({shlex.join(host.enter)}) ;;" for host in self
        ]
        self.rsh.write_text(RSH.replace("@CASES@", "\n".join(cases)).replace("@FOLDER@", str(self.folder)))
        self.rsh.chmod(0o755)

    def _make_namespaces(self):
        for namespace in (self.switch, *(host.namespace for host in self)):
            process.run([system.path("ip"), "netns", "add", namespace], timeout=20).check_returncode()
        ip_inside(self.switch, "link add br0 type bridge", "link set br0 up")
        for host in self:
            near = f"v{host.index}"
            ip_inside(
                self.switch,
                f"link add {near} type veth peer name eth0 netns {host.namespace}",
                f"link set {near} master br0",
                f"link set {near} up",
            )
            ip_inside(
                host.namespace,
                f"addr add {host.address}/24 dev eth0",
                "link set eth0 up",
                "link set lo up",
            )
