"""Plant troubles that the rules of `ezpz why` were not written for, and judge what it says first.

    python tests/why/strangers.py [-j 2] [--keep FOLDER] [--score FILE] [--judge] [NAME…]

The programs are in strangers/*.toml, and what must be said of each in strangers.toml. Each runs in a fresh folder with
a fresh home: locally, under MPICH or Open MPI, or over hosts in network namespaces. `--keep` puts the folders into
FOLDER, where `--judge` asks and judges again without a launch: after a change of a check, or of a rule.

An answer is *right*, *partly* right (the culprit, without all that must be said; the right cause, not first; no cause,
but all of it among what was seen), *wrong* (another culprit, or a false word) or *silent*.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import datetime as dt
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

from lab import flavours, process
from lab import hosts as lab_hosts
from reliability.tables import keep

HERE = Path(__file__).parent
VERDICTS = ("right", "partly", "wrong", "silent")
LATEST = 300  # seconds for one launch
SLOWER = 3  # times as long are the time limits of a launch that did not come to its trouble in time

HEAD = """\
import datetime, os, signal, sys, threading, time
def planted():
    with open(os.environ["PLANTED"], "a") as file:
        file.write(f"{time.time()}\\n")
"""
PRELUDES = {
    "ezpz": HEAD + "import torch\nimport torch.distributed as dist\nimport ezpz\n"
    "rank = ezpz.setup_torch(seed=0)\nworld = ezpz.get_world_size()\n",
    "plain": HEAD + 'import torch\nimport torch.distributed as dist\ndist.init_process_group("gloo")\n'
    "rank, world = dist.get_rank(), dist.get_world_size()\n",
    "mpi": HEAD + "from mpi4py import MPI\ncomm = MPI.COMM_WORLD\nrank, world = comm.rank, comm.size\n",
    "bare": HEAD + 'rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])\n',
    "raw": "",
}
# What many programs have in common; the last line of a step differs by prelude.
PIECES = {
    "@model": """\
model = torch.nn.Linear(32, 32)
if world > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
""",
    "@train": """\
loss = model(torch.randn(8, 32)).pow(2).mean()
optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "@net": """\
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
truth = torch.randn(16, 4, generator=torch.Generator().manual_seed(5))
torch.manual_seed(100 + rank)
""",
    "@history": """\
history = ezpz.History(outdir="run")
for step in range(160):
""",
    "@batch": """\
x = torch.randn(32, 16)
y = (x @ truth).argmax(1)
""",
    "@learn": """\
loss = torch.nn.functional.cross_entropy(model(x), y)
optimizer.zero_grad(); loss.backward(); optimizer.step()
history.update({"loss": float(loss)}, step=step)
""",
    "@six_steps": """\
x = torch.ones(1)
model = ezpz.wrap_model(torch.nn.Linear(4, 4), "ddp")
for step in range(6):
    dist.all_reduce(x)
    ezpz.heartbeat(step)
    time.sleep(0.2)
ezpz.cleanup()
""",
}
HEARTBEAT = "ezpz.heartbeat(step)\n"


@dataclass(frozen=True)
class Check:
    """What must be said first; the fields are explained at the top of strangers.toml."""

    who: object
    says: list = field(default_factory=list)
    shows: list = field(default_factory=list)
    never: list = field(default_factory=list)
    ideally: list = field(default_factory=list)
    step: list = field(default_factory=list)
    code: int | None = None
    silence: bool = False


@dataclass(frozen=True)
class Trouble:
    """A program, how it is run, and what must be said of it."""

    name: str
    about: str
    what: str
    check: Check
    planted: dict  # program, and where needed: files, before, on, python
    program: str = "ezpz"
    ranks: int = 2
    launcher: str = "local"
    hosts: int = 0
    options: list = field(default_factory=list)
    timeouts: dict = field(default_factory=dict)
    env: dict = field(default_factory=dict)
    verb: str = "why"

    def problem(self):
        """Why it cannot run here; empty where it can."""
        if self.launcher != "local":
            return flavours.Flavour(self.launcher).problem() or ""
        return (lab_hosts.problem() or "") if self.hosts else ""

    def lines(self):
        """The program as a rank runs it."""
        out = []
        for line in (PRELUDES[self.program] + self.planted["program"]).splitlines(keepends=True):
            word = line.strip()
            piece = PIECES.get(word, line)
            if word == "@train" and self.program == "ezpz":
                piece += HEARTBEAT
            indent = line[: len(line) - len(line.lstrip())] if word in PIECES else ""
            out += [indent + each for each in piece.splitlines(keepends=True)]
        return "".join(out)

    def files(self):
        """Every file that is planted, ``{name: text}``."""
        return {"train.py": self.lines(), **self.planted.get("files", {})}

    def place(self):
        """The line marked ``# here``, ``train.py:31``; empty where there is none."""
        return next(
            (
                f"{name}:{number}"
                for name, text in self.files().items()
                for number, line in enumerate(text.splitlines(), 1)
                if line.endswith("# here")
            ),
            "",
        )


def troubles():
    """Every trouble by name.

    Raises:
        ValueError: One has a program and no check, or the other way round.
    """
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    checks = toml.loads((HERE / "strangers.toml").read_text())
    programs = {}
    for path in sorted((HERE / "strangers").glob("*.toml")):
        programs |= toml.loads(path.read_text())
    if checks.keys() != programs.keys():
        raise ValueError(f"a program or a check is missing: {', '.join(sorted(checks.keys() ^ programs.keys()))}")
    found = {}
    for name, row in checks.items():
        told = {each: row.pop(each) for each in Check.__dataclass_fields__ if each in row}
        found[name] = Trouble(name=name, check=Check(**told), planted=programs[name], **row)
    return found


# The judge


def judge(check, causes, *, seen=(), code=None, known=None):
    """Judge an answer.

    Args:
        check: What must be said.
        causes: The causes as ``ezpz why --json`` has them, in order.
        seen: What was seen, which `ezpz why` shows where it does not know the cause.
        code: Exit code of the launch; None where it does not matter.
        known: ``{name: text}`` of what stands for ``{name}`` in patterns, such as ``here``; no patterns themselves.

    Returns:
        The verdict, and what is missing or false in a few words.
    """
    told = known or {}
    if not causes:
        return ("right", "") if check.silence else _without_cause(check, "\n".join(seen), told)
    first, *later = causes
    false = _false(check, first, told)
    if false:
        return "wrong", false
    missing, is_anything_right = _missing(check, first, told)
    if not missing:
        wishes = [each for each in check.ideally if not _found(each, _shown(first), told)]
        lacks = [_lacks(each) for each in wishes]
        if check.step and first.get("step") not in check.step:
            lacks.append(f"step {first.get('step')}")
        if check.code is not None and code is not None and code != check.code:
            lacks.append(f"exit code {code}")
        return ("partly", ", ".join(lacks)) if lacks else ("right", "")
    for number, each in enumerate(later, 2):
        if not _false(check, each, told) and not _missing(check, each, told)[0]:
            return "partly", f"it stands as number {number}"
    return "partly" if is_anything_right else "wrong", ", ".join(map(_lacks, missing))


def _without_cause(check, seen, known):
    """The verdict where no cause is known: partly right where all that must be said is among what was seen."""
    who = rf"\brank {check.who}\b" if isinstance(check.who, int) else ""
    if isinstance(check.who, str) and check.who not in {"any", "several", "nobody"}:
        who = rf"\b{check.who}\b"
    is_seen = seen and all(_found(each, seen, known) for each in (who, *check.says, *check.shows))
    return ("partly", "only among what was seen") if is_seen else ("silent", "nothing was said")


def _false(check, cause, known):
    """What a cause says that is not so: it blames another one, or has a word that must not stand there."""
    if not _blames(check.who, cause):
        return f"it blames {_blamed(cause)}"
    said = f"{cause['cause']}: {cause['text']}"
    return next((f"it says {match[0]}" for each in check.never for match in [_found(each, said, known)] if match), "")


def _blames(who, cause):
    """Tell whether a cause blames the right one: by its own field, or where that is empty, as its sentence begins."""
    rank, text = cause.get("rank"), cause["text"]
    if who == "several":
        return rank is None
    if isinstance(who, str):
        is_host = who == cause.get("host") or bool(re.search(rf"\b{re.escape(who)}\b", text))
        return {"any": True, "nobody": False}.get(who, is_host)
    ranks = who if isinstance(who, list) else [who]
    if rank is None:
        begin = re.match(r"ranks? (\d+)\b", text)
        return bool(begin) and int(begin[1]) in ranks and not text.startswith("ranks")
    return rank in ranks


def _blamed(cause):
    rank, host = cause.get("rank"), cause.get("host")
    return f"rank {rank}" if rank is not None else host or "no rank alone"


def _missing(check, cause, known):
    """Patterns that a cause lacks; and whether anything shows that it is about this trouble."""
    lacks = [each for each in check.says if not _found(each, cause["text"], known)]
    lacks += [each for each in check.shows if not _found(each, _shown(cause), known)]
    is_about_it = check.who not in ("any", "several") or len(lacks) < len(check.says) + len(check.shows)
    return lacks, is_about_it


def _shown(cause):
    """All that `ezpz why` shows of a cause."""
    parts = [cause["text"], *cause.get("evidence", ()), *cause.get("consequences", ()), cause.get("try") or ""]
    return "\n".join(parts)


def _lacks(pattern):
    """That a pattern is not there, as a person reads it: ``no "seat 17" or "licence"``."""
    words = re.sub(r"\(\?i:|\(\?i\)|\\b|\\", "", pattern)
    return f'no "{words}"' if "(" in words else "no " + " or ".join(f'"{each}"' for each in words.split("|"))


def _found(pattern, text, known):
    for name, value in known.items():
        pattern = pattern.replace(f"{{{name}}}", rf"{re.escape(value)}\b")
    return re.search(pattern, text)


# Planting


class Stage:
    """A fresh folder in which one trouble is planted; a context manager that leaves no process and no host behind."""

    def __init__(self, trouble, folder):
        self.trouble, self.folder = trouble, folder
        self.tag = f"ezt-{uuid.uuid4().hex[:12]}"
        flavour = flavours.Flavour(trouble.launcher)
        is_mpi = trouble.launcher != "local"
        self.python = flavour.python if is_mpi else Path(sys.executable)
        self.bins = [flavour.bin] if is_mpi else []
        self.names = [f"n{number:02}" for number in range(1, trouble.hosts + 1)]
        self._open = contextlib.ExitStack()

    def __enter__(self):
        (self.folder / "home").mkdir(parents=True)
        self.hosts = self._open.enter_context(lab_hosts.Hosts(*self.names)) if self.names else None
        listener = self._open.enter_context(socket.socket())
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        self.known = {
            "port": str(listener.getsockname()[1]),
            "folder": str(self.folder),
            "base_python": str(Path(sys.executable).resolve()),
            "version": f"{sys.version_info[0]}.{sys.version_info[1]}",
            **{name: self.hosts[name].address for name in self.names},
        }
        for name, text in self.trouble.files().items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.filled(text))
        for name, line in self.trouble.planted.get("on", {}).items():
            (self.hosts[name].tmp / "enter").write_text(f"{self.filled(line)}\n")
        return self

    def __exit__(self, *_):
        process.kill_all(process.survivors(self.tag))
        self._open.close()

    def filled(self, text):
        for name, value in self.known.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def env(self):
        told = process.minimal_env(self.folder / "home", self.tag, *self.bins, flavours.base_bin())
        told |= {"PLANTED": str(self.folder / "planted"), "EZPZ_NGPU_PER_HOST": "0"}
        if self.hosts:
            told["EZPZ_SSH"] = str(self.hosts.rsh)
        return told | {name: self.filled(value) for name, value in self.trouble.env.items()}

    def line(self, slower):
        """The launch as a command line, with time limits so many times as long."""
        trouble = self.trouble
        words = [str(self.python), "-m", "ezpz.launch", *map(self.filled, trouble.options)]
        for name, seconds in trouble.timeouts.items():
            words += [f"--{name}", str(seconds * slower)]
        if self.hosts:
            per_host = trouble.ranks // trouble.hosts
            words += ["--flavour", "ssh", "--hosts", ",".join(self.names), "--ppn", str(per_host)]
        else:
            words += ["--flavour", {"openmpi": "openmpi5"}.get(trouble.launcher, trouble.launcher)]
            words += ["-n", str(trouble.ranks)]
        words += ["--", trouble.planted.get("python", str(self.python)), "train.py"]
        before = self.filled(trouble.planted.get("before", ""))
        return ["bash", "-c", f'{before}\nexec "$@"', "launch", *words] if before else words

    def run(self, args, timeout):
        """Run a line to its end, on the first host where there are several."""
        if self.hosts:
            return self.hosts["n01"].run(args, self.env(), timeout=timeout, cwd=self.folder)
        return process.run(args, self.env(), timeout=timeout, cwd=self.folder)


def plant(trouble, folder):
    """Run a trouble in a folder that does not exist yet, and leave there what came of it.

    ``planted.json`` has ``code``, ``known`` (what stands for names in patterns) and ``seconds`` from the trouble to the
    end of the launch, None where no rank came to it; ``out`` and ``err`` have what it wrote.

    Raises:
        TimeoutExpired: The launch did not end.
    """
    for slower in (1, SLOWER):
        with Stage(trouble, folder) as stage:
            done = stage.run(stage.line(slower), LATEST * slower)
            ended = time.time()
        (folder / "out").write_text(done.stdout)
        (folder / "err").write_text(done.stderr)
        planted = folder / "planted"
        began = float(planted.read_text().split()[0]) if planted.exists() else None
        seconds = None if began is None else ended - began
        told = {"code": done.returncode, "known": stage.known, "seconds": seconds}
        (folder / "planted.json").write_text(json.dumps(told, indent=1))
        if planted.exists() or done.returncode != 124:
            return
        folder.rename(folder.with_name(f"{folder.name}.too-early"))


def said(trouble, folder):
    """What is said of a trouble that was planted in a folder: the causes, and what was seen, by the verb that it asks.

    The folder's own name is taken out of it, so that no pattern finds its word there.
    """
    if trouble.verb == "launch":
        lines = (folder / "err").read_text().replace(str(folder), "").splitlines()
        own = [line for line in lines if line.startswith("ezpz: ")]
        return ([{"cause": "launch", "text": "\n".join(own)}] if own else []), []
    env = process.minimal_env(folder / "home", f"ezt-{uuid.uuid4().hex[:12]}", flavours.base_bin())
    # By name: without one, a launch without a home that runs beside this one could be the newest.
    record = max((folder / "home/.local/state/ezpz/launches").iterdir(), key=lambda path: path.name)
    asked = process.run([sys.executable, "-m", "ezpz", trouble.verb, str(record), "--json"], env, cwd=folder)
    if asked.returncode:
        raise RuntimeError(f"{trouble.name}: ezpz {trouble.verb} ended with {asked.returncode}: {asked.stderr}")
    found = json.loads(asked.stdout.replace(str(folder), ""))
    if trouble.verb == "why":
        return found["causes"], found["seen"]
    (launch,) = found
    return [{**each, "cause": each["stage"]} for each in launch["delays"]], []


# The series


@dataclass(frozen=True)
class Result:
    trouble: Trouble
    verdict: str
    reason: str
    first: str  # what was said first
    seconds: float | None


def judged(trouble, folder):
    """The result of a trouble that was planted in a folder."""
    planted = json.loads((folder / "planted.json").read_text())
    causes, seen = said(trouble, folder)
    (folder / "said.json").write_text(json.dumps({"causes": causes, "seen": seen}, indent=1))
    known = {**planted["known"], "here": trouble.place()}
    verdict, reason = judge(trouble.check, causes, seen=seen, code=planted["code"], known=known)
    for name, value in known.items():
        reason = reason.replace(f"{{{name}}}", value)
    first = f"{causes[0]['cause']}: {causes[0]['text']}" if causes else ""
    return Result(trouble, verdict, reason, first, planted["seconds"])


def summary(results):
    """The verdicts counted, ``51 right, 29 partly, 10 wrong, 16 silent``."""
    counts = Counter(each.verdict for each in results)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)


def score(path, results):
    """Keep every verdict for docs/reliability.md."""
    today, commit = dt.datetime.now(dt.timezone.utc).date().isoformat(), os.environ.get("EZPZ_COMMIT", "")
    for each in results:
        keep(path, each.trouble.name, [each.verdict, today, each.reason, commit])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="troubles; without any, all")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="launches at a time")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what each left, in a folder of its name")
    parser.add_argument("--judge", action="store_true", help="ask again in the folder of --keep; start no launch")
    parser.add_argument("--score", type=Path, metavar="FILE", help="file that keeps the verdicts")
    args = parser.parse_args(argv)
    known = troubles()
    unknown = [name for name in args.names if name not in known]
    if unknown or (args.judge and not args.keep):
        parser.error(f"no trouble is called {', '.join(unknown)}" if unknown else "--judge needs --keep FOLDER")
    wanted = [known[name] for name in args.names or known]
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # a script's background ignores them, nohup the last
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    with contextlib.ExitStack() as stack:
        base = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ezpz-strangers-")))
        base.mkdir(parents=True, exist_ok=True)
        results, faults = _series(wanted, base.resolve(), args)
    for about in dict.fromkeys(each.trouble.about for each in results):
        print(f"{about}: {summary([each for each in results if each.trouble.about == about])}")
    print(f"all: {summary(results)}")
    took = [each.seconds for each in results if each.trouble.about == "died" and each.seconds is not None]
    if took:
        print(f"{median(took):.1f} s from a death to the end of its launch, in the median of {len(took)}")
    if args.score:
        score(args.score, results)
    return 1 if faults else 0


def _series(wanted, base, args):
    """Run or judge troubles; return their results, and how many could not be judged for a fault of this file."""

    def one(trouble):
        folder = base / trouble.name
        if args.judge:
            return judged(trouble, folder) if (folder / "planted.json").exists() else None
        if trouble.problem():
            print(f"{trouble.name}: left out: {trouble.problem()}", flush=True)
            return None
        for left in base.glob(f"{trouble.name}*"):
            if left.name in {trouble.name, f"{trouble.name}.too-early"}:
                shutil.rmtree(left)
        plant(trouble, folder)
        return judged(trouble, folder)

    results, faults = [], 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        tasks = {pool.submit(one, trouble): trouble for trouble in wanted}
        for task in concurrent.futures.as_completed(tasks):
            name = tasks[task].name
            try:
                result = task.result()
            except Exception:  # noqa: BLE001  # a fault of this file must not hide the other troubles
                faults += 1
                print(f"{name}: {traceback.format_exc()}", flush=True)
                continue
            if result:
                results.append(result)
                shown = f" ({result.reason})" if result.reason else ""
                print(f"{result.verdict:6} {name}{shown}: {result.first}", flush=True)
    order = {trouble.name: number for number, trouble in enumerate(wanted)}
    return sorted(results, key=lambda each: order[each.trouble.name]), faults


if __name__ == "__main__":
    raise SystemExit(main())
