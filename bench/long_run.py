"""Print what a run of 10^6 rows costs its readers: `long_run.py WHAT FOLDER`, CPU in ms, or MB of memory.

VERB          CPU of `ezpz VERB` on the run, and
VERB-memory   its largest resident memory
first         CPU of the first reader of a folder without columns, as older versions left it
finalize      CPU of `History.finalize` after so many rows, pictures and report included
runs          CPU of `ezpz runs` below 500 runs

The folders are made once and used by all that follow.
"""

import json
import random
import resource
import subprocess
import sys
from pathlib import Path

ROWS = 1_000_000
RUNS = 500
VERBS = {
    "plot": ["plot", "RUN"],
    "list": ["plot", "RUN", "--list"],
    "report": ["report", "RUN", "-o", "OUT.html"],
    "export": ["export", "RUN", "-o", "OUT.h5"],
    "csv": ["export", "RUN", "--csv", "-o", "OUT.csv"],
    "watch": ["watch", "RUN", "--once"],
    "compare": ["compare", "RUN", "OTHER"],
    "goodput": ["runs", "--goodput", "RUN"],
    "why": ["why", "RUN"],
}


def main():
    what, home = sys.argv[1], Path(sys.argv[2])
    verb, _, part = what.partition("-")
    if what == "finalize":
        value = finalize(home / "finalize")
    elif what == "first":
        run = made(home / "run", 1)
        (run / "metrics.columns").unlink(missing_ok=True)
        value, _ = cost(["plot", str(run), "--list"])
    elif what == "runs":
        value, _ = cost(["runs", str(many(home / "many"))])
    else:
        places = {"RUN": str(made(home / "run", 1)), "OUT": str(home / "out")}
        places |= {"OTHER": str(made(home / "other", 2))} if verb == "compare" else {}
        words = [f"{places.get(stem, stem)}{dot}{end}" for stem, dot, end in (w.partition(".") for w in VERBS[verb])]
        for _ in range(2 if not has_columns(places) else 1):
            cpu, memory = cost(words)
        value = memory if part else cpu
    print(f"value={value:.1f}")


def has_columns(places):
    return all(Path(places[name], "metrics.columns").exists() for name in ("RUN", "OTHER") if name in places)


def cost(words):
    """CPU in ms and memory in MB of a verb, which may end with 1: runs differ."""
    code = (
        "import resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(code, (used.ru_utime + used.ru_stime) * 1000, used.ru_maxrss / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "ezpz", *words], stdout=subprocess.PIPE, text=True, check=True)
    code, cpu, memory = done.stdout.split()
    if code not in {"0", "1"}:
        raise SystemExit(f"ezpz {words[0]} ended with {code}")
    return float(cpu), float(memory)


def made(folder, seed):
    """A run that has ended, without columns at first."""
    if not (folder / "run.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, ROWS, seed)
    return folder


def many(folder):
    for number in range(RUNS):
        run = folder / f"train/2026-11-20-{number:06d}"
        if not (run / "run.json").exists():
            run.mkdir(parents=True, exist_ok=True)
            write(run, 200, number)
    return folder


def write(folder, rows, seed):
    throw = random.Random(seed).random
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(rows):
            metrics = {"train/loss": 2 / (1 + step / 1e4) + throw() / 10, "lr": 1e-3 * (1 - step / rows)}
            metrics |= {"grad_norm": throw(), "dt": 0.01 + throw() / 1e3, "sps": 3000 + throw()}
            metrics |= {"tps": 3e5 + throw(), "mem": 1.5 + throw(), "epoch": step // 1000}
            row = {"v": 1, "t": 1795194001.25 + step / 100, "step": step, "m": metrics}
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    facts = {"schema": 1, "name": "train", "state": "finished", "seconds": rows / 100}
    (folder / "run.json").write_text(json.dumps({**facts, "started": "2026-11-20T16:20:01+00:00"}))


def finalize(folder):
    from ezpz.track import History

    history = History("long", folder, trackers="")
    throw = random.Random(0).random
    rows = [{f"train/metric{number}": throw() for number in range(8)} for _ in range(1000)]
    for step in range(ROWS):
        history.update(rows[step % 1000], step=step, summarize=False)
    before = resource.getrusage(resource.RUSAGE_SELF)
    history.finalize(show=False)
    after = resource.getrusage(resource.RUSAGE_SELF)
    for path in (folder / "metrics.jsonl", folder / "metrics.columns", folder / "long.h5"):
        path.unlink()  # the next round begins anew
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


if __name__ == "__main__":
    main()
