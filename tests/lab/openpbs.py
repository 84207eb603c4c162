"""A real OpenPBS over lab hosts: server, scheduler and comm on ``head``, one pbs_mom on each other host, in one folder.

OpenPBS is built from its public source (github.com/openpbs/openpbs, ``--prefix=/opt/pbs``) and not started on the
machine itself. Every daemon lives inside a lab host and ends with it. Jobs run as `USER`, an ordinary user whom only
the hosts of the lab know, because PBS starts them in their home folder; root submits and looks on.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from lab import process, system

PREFIX, SPOOL = Path("/opt/pbs"), Path("/var/spool/pbs")  # the daemons refuse a spool below /tmp
USER, UID = "ezt", 64321
NEEDED = ("sbin/pbs_server.bin", "sbin/pbs_mom", "sbin/pbs_sched", "sbin/pbs_comm", "libexec/pbs_habitat", "bin/qsub")
# A mount namespace of one host is entered anew by each command: these files are another's there.
AS_HOST = """
for name in passwd group pbs.conf; do mount --bind "$1/$name" "/etc/$name" || exit; done
mount --bind "$1/spool" /var/spool/pbs || exit
shift
exec "$@"
"""
SERVER = """
set server flatuid=true
set server scheduling=true
set server job_history_enable=true
set server query_other_jobs=true
set server job_requeue_timeout=5
set server scheduler_iteration=5
"""


def problem():
    """Why OpenPBS cannot run here, or None."""
    missing = [name for name in NEEDED if not (PREFIX / name).exists()]
    if missing:
        return f"no {PREFIX}/{missing[0]} (built from the source of OpenPBS)"
    missing = [str(path) for path in (SPOOL, Path("/etc/pbs.conf")) if not path.exists()]
    if missing:
        return f"no {missing[0]} (pbs_postinstall makes it)"
    missing = system.missing("psql")
    return f"{missing} (Debian: postgresql, postgresql-contrib)" if missing else None


class OpenPbs:
    """The running cluster. `workers` are the hosts that run jobs, with 8 CPUs each, whatever the machine has."""

    def __init__(self, hosts):
        self.hosts, self.head = hosts, hosts["head"]
        self.workers = [host.name for host in hosts if host.name != "head"]
        self.folder = hosts.folder / "pbs"
        self.home = self.folder / "home"
        path = os.pathsep.join([str(PREFIX / "bin"), str(PREFIX / "sbin"), *process.SYSTEM_PATH])
        self._root = {**process.minimal_env("/root", hosts.prefix), "PATH": path}

    def start(self):
        self._write_files()
        habitat = PREFIX / "libexec" / "pbs_habitat"
        self.run([habitat], timeout=300).check_returncode()
        # What init.d starts, without its asking systemd.
        self.run([PREFIX / "sbin" / "pbs_comm"]).check_returncode()
        self.run([PREFIX / "sbin" / "pbs_sched"]).check_returncode()
        self.run([PREFIX / "sbin" / "pbs_server"], timeout=120).check_returncode()
        nodes = "".join(f"create node {name}\nset node {name} resources_available.ncpus=8\n" for name in self.workers)
        self.run(["qmgr"], stdin=SERVER + nodes).check_returncode()
        for name in self.workers:
            self.run([habitat], host=name).check_returncode()
            config = self.folder / name / "spool" / "mom_priv" / "config"
            config.write_text("$clienthost head\n$usecp *:/ /\n")
            self.run([PREFIX / "sbin" / "pbs_mom"], host=name).check_returncode()
        process.wait_until(lambda: self.states() == dict.fromkeys(self.workers, "free"), 150, "free PBS hosts")
        return self

    def stop(self):
        """Stop the data service, which has a session of its own; all else ends with the hosts."""
        self.run([PREFIX / "sbin" / "pbs_dataservice", "stop"], timeout=30)

    def run(self, args, env=None, *, host="head", timeout=60, cwd=None, stdin=None):
        """Run a program as root on a host, and return the CompletedProcess."""
        line = self._inside(host, args)
        return self.hosts[host].run(line, env or self._root, timeout=timeout, cwd=cwd, stdin=stdin)

    def as_user(self, args, env=None, *, host="head", timeout=60, cwd=None, stdin=None):
        """Run a program as the user, in a login environment that knows no job, as ssh into a host would."""
        line = self._inside(host, self._user_line(args, env))
        return self.hosts[host].run(line, self._root, timeout=timeout, cwd=cwd or self.home, stdin=stdin)

    def popen(self, args, env=None, *, host="head", cwd=None, **options):
        """Start the same and return the Popen."""
        line = self._inside(host, self._user_line(args, env))
        return self.hosts[host].popen(line, self._root, cwd=cwd or self.home, **options)

    def qsub(self, script, *options):
        """Submit the text of a job's script as the user; return the job's id and the path of its output."""
        output = self.home / f"job-{os.urandom(4).hex()}.out"
        line = ["qsub", "-j", "oe", "-o", f"head:{output}", *options]
        done = self.as_user(line, stdin=script)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), output

    def fields(self, job):
        """Return what qstat knows of a job, also when it is over."""
        done = self.run(["qstat", "-x", "-f", job])
        return dict(line.strip().split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)

    def wait(self, job, timeout=60):
        """Wait for the end of a job; return its exit status as PBS has it."""
        process.wait_until(lambda: self.fields(job).get("job_state") == "F", timeout, f"the end of {job}", every=0.2)
        return int(self.fields(job).get("Exit_status", "0"))

    def job(self, script, *options, timeout=60):
        """Run a job to its end -> CompletedProcess: its exit status and output."""
        job, output = self.qsub(script, *options)
        try:
            status = self.wait(job, timeout)
        except AssertionError as error:
            text = output.read_text() if output.exists() else "no output"
            raise AssertionError(f"{error}\n{text}\n{self.run(['qstat', '-f', job]).stdout}") from None
        process.wait_until(output.exists, 10, f"the output of {job}")
        return subprocess.CompletedProcess(script, status, output.read_text(errors="replace"), "")

    def states(self):
        """``{host: state}`` as pbsnodes names it: free, job-busy, down…"""
        done = self.run(["pbsnodes", "-a"])
        state, host = {}, ""
        for line in done.stdout.splitlines():
            if line and not line.startswith(" "):
                host = line.strip()
            elif line.strip().startswith("state = "):
                state[host] = line.split(" = ")[1].strip()
        return state

    def _user_line(self, args, env):
        told = {"HOME": str(self.home), "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8", "PATH": self._root["PATH"]}
        told |= {name: value for name, value in self._root.items() if name == process.TAG}
        words = [f"{name}={value}" for name, value in {**told, **(env or {})}.items()]
        ids = [f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        return ["setpriv", *ids, "env", "-i", *words, *map(str, args)]

    def _inside(self, host, args):
        return ["/bin/bash", "-c", AS_HOST, "as host", str(self.folder / host), *map(str, args)]

    def _write_files(self):
        self.hosts.folder.chmod(0o711)  # the users must reach their folders
        self.home.mkdir(parents=True)
        os.chown(self.home, UID, UID)
        for host in self.hosts:
            self._write_host(host.name)

    def _write_host(self, name):
        folder = self.folder / name
        (folder / "spool").mkdir(parents=True)
        at_head = name == "head"
        conf = {
            "PBS_EXEC": PREFIX,
            "PBS_HOME": SPOOL,
            "PBS_SERVER": "head",
            "PBS_START_SERVER": int(at_head),
            "PBS_START_SCHED": int(at_head),
            "PBS_START_COMM": int(at_head),
            "PBS_START_MOM": int(not at_head),
            "PBS_MOM_NODE_NAME": name,
            "PBS_LEAF_ROUTERS": "head",
            "PBS_CORE_LIMIT": "unlimited",
        }
        if at_head:
            del conf["PBS_MOM_NODE_NAME"]
        (folder / "pbs.conf").write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
        lines = {"passwd": f"{USER}:x:{UID}:{UID}::{self.home}:/bin/bash\n", "group": f"{USER}:x:{UID}:\n"}
        for file, line in lines.items():
            known = Path("/etc", file).read_text().rstrip("\n")
            (folder / file).write_text(f"{known}\n{line}")
