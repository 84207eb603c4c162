"""A small PBS on this host: qsub, qstat and qdel on PATH that answer as OpenPBS does, and jobs that really run.

The answers follow tests/data/environments/pbs-*.json (recorded of OpenPBS 23.06.06) and the values that its
``src/include/job.h`` gives to ends. It is for what a real one does seldom or slowly: preemptions, lost hosts, walls.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from lab import process

CLIENT = """\
#!{python} -ISE
import json, os, sys, time
folder, name, words = {folder!r}, os.path.basename(sys.argv[0]), sys.argv[1:]
def read(job):
    try:
        with open(os.path.join(folder, job)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None
def qstat():
    # As src/cmds/qstat.c of OpenPBS: -u beside -F is refused; beside -f it asks for all only with -w, and before -f.
    user, full, wide, form, whole, operands, history = "", False, False, "", False, [], False
    history_is_kept = not os.path.exists(os.path.join(folder, "no history"))
    while words:
        word = words.pop(0)
        if word == "-u":
            user, whole = words.pop(0), False
        elif word == "-f":
            full = whole = True
        elif word == "-w":
            wide = True
        elif word == "-F":
            form = words.pop(0)
        elif word == "-x":
            history = True
        else:
            operands.append(word)
    if not history_is_kept and history:
        print("qstat: PBS is not configured to maintain job history", file=sys.stderr)
        sys.exit(36)
    if form and (user or wide or not full):
        print("qstat: conflicting options.", file=sys.stderr)
        sys.exit(2)
    if user and not (full and wide and whole):
        print("head:\\n                                                            Req'd  Req'd   Elap")
        return
    found = {{}}
    for job in operands or sorted(each for each in os.listdir(folder) if each.endswith(".head")):
        fields = read(job)
        if fields is not None and fields["job_state"] == "F" and not history_is_kept:
            if not operands:
                continue
            fields = None
        if fields is None:
            print("qstat: Unknown Job Id " + job, file=sys.stderr)
            sys.exit(153)
        shown = {{key: value for key, value in fields.items() if key not in ("after", "script", "cwd")}}
        found[job] = {{"Job_Name": "job", "Job_Owner": "me@head", **shown}}
    if form:
        print(json.dumps({{"timestamp": int(time.time()), "pbs_version": "23.06.06", "Jobs": found}}))
        return
    for job, fields in found.items():
        if not user or fields["Job_Owner"] == user + "@head":
            print("Job Id: " + job)
            for key, value in fields.items():
                print("    " + key + " = " + str(value))
            print()
def main():
    if name == "qsub":
        after = ""
        while len(words) > 1:
            word = words.pop(0)
            if word != "-W" or not words[0].startswith("depend=afterany:"):
                sys.exit("qsub: illegal option " + word)
            after = words.pop(0).partition(":")[2]
            if read(after) is None:
                sys.exit("qsub: Unknown Job Id " + after)
        number = 1
        while True:
            job = str(number) + ".head"
            try:
                os.close(os.open(os.path.join(folder, job + ".taken"), os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                number += 1
        fields = {{"job_state": "H" if after else "Q", "after": after, "substate": 22 if after else 10,
                  "script": open(words[0]).read(), "cwd": os.getcwd(), "run_count": 0}}
        draft = os.path.join(folder, job + ".draft")
        with open(draft, "w") as file:
            json.dump(fields, file)
        os.rename(draft, os.path.join(folder, job))
        print(job)
    elif name == "qstat":
        qstat()
    elif name == "qdel":
        code = 0
        for job in words:
            fields = read(job)
            if fields is None or fields["job_state"] == "F":
                print("qdel: Job has finished " + job, file=sys.stderr)
                code = 35
            else:
                open(os.path.join(folder, job + ".delete"), "w").close()
        sys.exit(code)
main()
"""
_TICK = 0.05
_GRACE = 4.0  # seconds between SIGTERM and SIGKILL


class SmallPbs:
    """The scheduler; a context manager. It runs at most `slots` jobs at a time, each on this host.

    `submit(path)` queues a job file as `qsub` does; `end(job, how)` ends one that runs, as another word of PBS would:
    ``preempt`` (it is queued again), ``wall``, ``host`` (its host is lost: no warning) or ``qdel``.
    """

    def __init__(self, folder, *, slots=2):
        self.folder, self.slots = folder / "pbs", slots
        self.bins = folder / "bin"
        self._conf = folder / "pbs.conf"
        self._lock = threading.RLock()
        self._running, self._ending = {}, {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.history = []  # (job, state), as they came

    def __enter__(self):
        self.folder.mkdir()
        self.bins.mkdir()
        for name in ("qsub", "qstat", "qdel"):
            (self.bins / name).write_text(CLIENT.format(python=sys.executable, folder=str(self.folder)))
            (self.bins / name).chmod(0o755)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(20)
        for job in list(self._running):
            self._kill(job)

    def env(self, **more):
        """What a user's shell on a login host has."""
        path = os.pathsep.join([str(self.bins), str(Path(sys.executable).parent), *process.SYSTEM_PATH])
        return {
            "HOME": str(self.folder.parent),
            "LANG": "C.UTF-8",
            "USER": "me",
            "PATH": path,
            "PBS_CONF_FILE": str(self._conf),
            **more,
        }

    def jobs_lack(self, *names):
        """Let jobs find these commands no more, as on compute hosts of some sites."""
        for name in names:
            (self.bins / name).unlink()

    def keep_off_path(self, *names):
        """Keep these commands in the folder of PBS alone, where its configuration says."""
        place = self.bins.parent / "opt" / "bin"
        place.mkdir(parents=True)
        self._conf.write_text(f"PBS_SERVER=head\nPBS_EXEC={place.parent}\n")
        for name in names:
            (self.bins / name).rename(place / name)

    def keep_no_history(self):
        """Forget jobs when they are over, as a server does whose job_history_enable is false."""
        (self.folder / "no history").touch()

    def submit(self, path, after=""):
        depend = ["-W", f"depend=afterany:{after}"] if after else []
        done = subprocess.run(
            [self.bins / "qsub", *depend, path],
            env=self.env(),
            cwd=path.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def jobs(self):
        """``{job: fields}`` of all jobs, in the order in which they were queued."""
        with self._lock:
            names = sorted((path.name for path in self.folder.glob("*.head")), key=lambda name: int(name.split(".")[0]))
            return {name: json.loads((self.folder / name).read_text()) for name in names}

    def states(self):
        return {job: fields["job_state"] for job, fields in self.jobs().items()}

    def is_idle(self):
        """Whether no job waits or runs."""
        return set(self.states().values()) <= {"F"}

    def pids(self, job, *words):
        """The processes of a job that runs whose command lines have all of these words."""
        found = process.survivors(self._running[job][1]) if job in self._running else {}
        return [pid for pid, line in found.items() if all(word in line for word in words)]

    def end(self, job, how):
        with self._lock:
            if job not in self._running or job in self._ending:
                return False
            self._ending[job] = (how, time.monotonic())
            if how == "host":
                self._kill(job)
            else:
                self._term(job)
            return True

    def _serve(self):
        while not self._over.wait(_TICK):
            with self._lock:
                self._look()

    def _look(self):
        for job, (child, tag) in list(self._running.items()):
            how, since = self._ending.get(job, ("", 0.0))
            if how and time.monotonic() >= since + _GRACE:
                self._kill(job)
            if child.poll() is None:
                continue
            process.kill_all(process.survivors(tag))
            del self._running[job]
            self._ending.pop(job, None)
            self._ended(job, how, child.returncode)
        jobs = self.jobs()
        for job, fields in jobs.items():
            wanted = self.folder / f"{job}.delete"
            if wanted.exists() and fields["job_state"] != "F":
                if job in self._running:
                    self.end(job, "qdel")
                else:
                    self._set(job, job_state="F", substate=91)
            elif fields["job_state"] == "H" and jobs[fields["after"]]["job_state"] == "F":
                self._set(job, job_state="Q", substate=10)
            elif fields["job_state"] == "Q" and len(self._running) < self.slots:
                self._begin(job, fields)

    def _begin(self, job, fields):
        tag = f"ezt-{uuid.uuid4().hex[:8]}"
        script, hosts = self.folder / f"{job}.script", self.folder / f"{job}.nodes"
        script.write_text(fields["script"])
        hosts.write_text(f"{os.uname().nodename}\n" * 2)
        env = self.env(PBS_JOBID=job, PBS_NODEFILE=str(hosts), PBS_O_WORKDIR=fields["cwd"], PBS_ENVIRONMENT="PBS_BATCH")
        with (self.folder / f"{job}.out").open("ab") as out:
            child = subprocess.Popen(
                ["bash", script], env={**env, process.TAG: tag}, cwd=self.folder.parent, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._running[job] = child, tag
        self._set(job, job_state="R", substate=42, run_count=fields["run_count"] + 1, stime=time.ctime())

    def _ended(self, job, how, code):
        status = 256 - code if code < 0 else code
        if how == "preempt":
            self._set(job, job_state="Q", substate=10)
        elif how == "qdel":
            self._set(job, job_state="F", substate=91, Exit_status=271)
        else:
            status = {"wall": -29, "host": -14}.get(how, status)
            self._set(job, job_state="F", substate=93 if status else 92, Exit_status=status)

    def _set(self, job, **fields):
        known = json.loads((self.folder / job).read_text())
        draft = self.folder / f"{job}.change"
        draft.write_text(json.dumps({**known, **fields}))
        draft.rename(self.folder / job)
        self.history.append((job, fields["job_state"]))

    def _term(self, job):
        """As a daemon does: a signal for every process of the session."""
        for pid in self.pids(job):
            with contextlib.suppress(OSError):
                if os.getsid(pid) == self._running[job][0].pid:
                    os.kill(pid, signal.SIGTERM)

    def _kill(self, job):
        child, tag = self._running[job]
        for _ in range(5):  # what is forked meanwhile
            process.kill_all(process.survivors(tag))
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
