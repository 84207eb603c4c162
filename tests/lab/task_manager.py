"""A stand-in for PBS's task manager over lab hosts: its ``pbs_tmrsh`` answers as the real one did.

What that answers to whom is recorded in tests/data/pbs_tmrsh.json. As there, a command is started by a daemon and not
by who asked for it: it gets no input, writes into the job's output, and lives on when ``pbs_tmrsh`` is killed.
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

from lab import process

RECORD = json.loads((Path(__file__).parents[1] / "data" / "pbs_tmrsh.json").read_text())
JOB = "7.head"
_STATED = 254  # what the daemon says of a command that it cannot run

CLIENT = r"""#!{python} -IS
import json, os, socket, sys
def end(text, code=255):
    sys.stderr.write(text + "\n")
    sys.exit(code)
words = sys.argv[1:]
while words and words[0].startswith("-"):
    del words[: 2 if words[0] == "-l" else 1]
if len(words) < 2:
    end("usage: pbs_tmrsh [-n][-l username] host [-n][-l username] command")
if "PBS_ENVIRONMENT" not in os.environ:
    end("pbs_tmrsh: not executing under PBS")
if "PBS_JOBID" not in os.environ:
    end("pbs_tmrsh: PBS jobid not in environment")
needed = ["PBS_JOBCOOKIE", "PBS_NODENUM", "PBS_TASKNUM", "PBS_MOMPORT"]
if not all(name in os.environ for name in needed):
    end("pbs_tmrsh: tm_init: bad environment (17005)")
daemon = socket.socket(socket.AF_UNIX)
daemon.connect({address!r})
stream = daemon.makefile("rw")
def ask(**what):
    stream.write(json.dumps(what) + "\n")
    stream.flush()
    return json.loads(stream.readline())
problem = ask(job=os.environ["PBS_JOBID"], cookie=os.environ["PBS_JOBCOOKIE"], task=os.environ["PBS_TASKNUM"])
if problem:
    end("pbs_tmrsh: tm_init: " + problem)
if "PBS_NODEFILE" not in os.environ:
    end("pbs_tmrsh: cannot find PBS_NODEFILE")
try:
    nodes = open(os.environ["PBS_NODEFILE"]).read().split("\n")
except OSError as error:
    end(os.environ["PBS_NODEFILE"] + ": " + error.strerror)
if words[0] not in nodes:
    end('pbs_tmrsh: host "%s" is not a node in job <%s>' % (words[0], os.environ["PBS_JOBID"]))
sys.exit(ask(host=words[0], command=words[1:]))
"""


class TaskManager:
    """A job on lab hosts, and what starts tasks of it; a context manager that leaves nothing behind.

    Args:
        hosts: The lab.
        names: Hosts of the job; the first one runs its script.
        folder: For what belongs to the job.

    Attributes:
        environ: Variables of the job's script.
        bin: Folder with ``pbs_tmrsh``.
        output: What tasks have written.
        unshared: A folder of which each task's host has one of its own; empty for none.
        tasks: The commands that were started: host and Popen.
    """

    def __init__(self, hosts, names, folder):
        self.hosts, self.names = hosts, names
        self.folder = Path(folder)
        self.bin = self.folder / "pbs bin"
        self.output = self.folder / "job.o7"
        self.home = self.folder / "home"
        self.cookie = os.urandom(16).hex().upper()
        self.unshared = ""
        self.tasks = []
        self.environ = {
            "HOME": str(self.home),
            "PATH": RECORD["task"]["PATH"],
            "NCPUS": "2",
            "OMP_NUM_THREADS": "2",
            "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_JOBCOOKIE": self.cookie,
            "PBS_JOBDIR": str(self.home),
            "PBS_JOBID": JOB,
            "PBS_JOBNAME": "train",
            "PBS_MOMPORT": "15003",
            "PBS_NODEFILE": str(self.folder / "nodes"),
            "PBS_NODENUM": "0",
            "PBS_QUEUE": "workq",
            "PBS_TASKNUM": "1",
            "TMPDIR": str(self.folder),
            process.TAG: hosts.prefix,
        }

    def __enter__(self):
        self.home.mkdir(parents=True)
        self.bin.mkdir()
        (self.folder / "nodes").write_text("".join(f"{name}\n" * 2 for name in self.names))
        # A path of its own: those of tests may be too long for a socket.
        address = str(self.hosts.folder / f"daemon-{os.urandom(4).hex()}")
        client = self.bin / "pbs_tmrsh"
        client.write_text(CLIENT.replace("{python}", sys.executable).replace("{address!r}", repr(address)))
        client.chmod(0o755)
        manager = self

        class Daemon(socketserver.StreamRequestHandler):
            def handle(self):
                for line in self.rfile:
                    self.wfile.write(json.dumps(manager._answer(**json.loads(line))).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(address, Daemon)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self.signal(signal.SIGKILL)

    def signal(self, number):
        """Send a signal to the session of each task, as the daemons do at ``qdel``."""
        for _, task in self.tasks:
            if task.poll() is None:
                os.killpg(task.pid, number)

    def _answer(self, **asked):
        if "command" in asked:
            return self._run(asked["host"], asked["command"])
        if asked["cookie"] != self.cookie:
            return "not connected (17002)"
        return "" if (asked["job"], asked["task"]) == (JOB, "1") else "no matching job found (17006)"

    def _run(self, host, command):
        number = self.names.index(host)
        environ = {**self.environ, "PBS_NODENUM": str(number), "PBS_TASKNUM": f"{number}0000001"}
        hidden = ["sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', self.unshared] if self.unshared else []
        line = [*hidden, "sh", "-c", f'type "$0" >/dev/null 2>&1 || exit {_STATED}; exec "$0" "$@"', *command]
        with self.output.open("ab") as output:
            task = self.hosts[host].popen(line, environ, cwd=self.home, stdout=output, stderr=output)
        self.tasks.append((host, task))
        code = task.wait()
        return -code if code < 0 else code

    def launch(self, *words, host="", env=None, **options):
        """Run a launch of the job's script to its end -> CompletedProcess."""
        line, environ = self._line(words, env)
        return self.hosts[host or self.names[0]].run(line, environ, cwd=self.home, **options)

    def start(self, *words, env=None, **options):
        """Start the same -> Popen."""
        line, environ = self._line(words, env)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return self.hosts[self.names[0]].popen(line, environ, cwd=self.home, **pipes, **options)

    def _line(self, words, env):
        told = {
            **self.environ,
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        }
        told = {**told, "EZPZ_NGPU_PER_HOST": "0", **(env or {})}
        told = {name: value for name, value in told.items() if value is not None}
        return [sys.executable, "-m", "ezpz.launch", *words], told
