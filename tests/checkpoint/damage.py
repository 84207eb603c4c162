"""Damage checkpoints in every way that disks, crashes and lost ranks know, and print what came of it as a table.

    python3 tests/checkpoint/damage.py [FLIPS]

A load is judged by what the user gets: the checkpoint bit for bit, one clear line, a traceback of something that ezpz
does not raise on purpose, or, worst, other weights in silence. One process, so that torch is loaded once; run by
`test_checkpoint_damage.py` too. The damages by ranks that are lost and disks that are full have tests of their own.
"""

import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from ezpz.checkpoint import Checkpoints, choose
from ezpz.errors import EzpzError

WIDTH = 24


class Run:
    """A model in training, with the objects that a checkpoint holds besides."""

    def __init__(self, folder, **more):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        live = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        self.checkpoints = Checkpoints(folder, **live, **more)

    def step(self):
        self.model(torch.ones(1, WIDTH)).sum().backward()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def state(self):
        """Return every bit of what is saved, the random numbers too."""
        tensors = [*self.model.state_dict().values(), torch.get_rng_state()]
        tensors += [value for each in self.optimizer.state.values() for value in each.values()]
        return [each.tolist() for each in tensors], self.schedule.state_dict(), self.optimizer.param_groups[0]["lr"]


def outcome(run, path, sound):
    """Load, and return what the user got in one word, and the line that was said."""
    try:
        step = run.checkpoints.load(path)
    except EzpzError as error:
        return ("one line" if "\n" not in str(error) else "traceback"), str(error)
    except Exception as error:  # noqa: BLE001  # what must not happen
        return "traceback", repr(error)
    is_same = step == 2 and repr(run.state()) == sound
    return ("sound" if is_same else "silent"), ""


def flips(folder, count, generator):
    """Yield places of bits all over the files of a checkpoint, each file as often as any: name, byte and bit."""
    names = sorted(path.name for path in folder.iterdir())
    for number in range(count):
        name = names[number % len(names)]
        yield name, generator.randrange((folder / name).stat().st_size), generator.randrange(8)


def as_schema_1(folder):
    """Take the digests away, as the first edition saved."""
    path = folder / "checkpoint.json"
    said = {key: value for key, value in json.loads(path.read_text()).items() if "sha256" not in key}
    path.write_text(json.dumps({**said, "schema": 1}) + "\n")


def flip_bits(folder, path, sound, count, **more):
    """Flip one bit at a time and load; return the outcomes of all."""
    run, results = Run(folder, **more), Counter()
    for name, place, bit in flips(path, count, random.Random(7)):
        data = (path / name).read_bytes()
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        (path / name).write_bytes(damaged)
        with contextlib.redirect_stdout(io.StringIO()):
            word, said = outcome(run, path, sound)
        results[word] += 1
        if word in {"silent", "traceback"}:
            print(f"  {name}, byte {place}, bit {bit}: {word} {said}", file=sys.stderr)
        (path / name).write_bytes(data)
    return results


def tear(path):
    """Yield, one after another, what a crash of the host may leave of a checkpoint that had its name already."""
    for name in sorted(each.name for each in path.iterdir()):
        data = (path / name).read_bytes()
        for what, left in (
            ("empty", b""),
            ("cut", data[: len(data) // 2]),
            ("zeros", bytes(len(data))),
            ("gone", None),
        ):
            (path / name).unlink()
            if left is not None:
                (path / name).write_bytes(left)
            yield f"{name} {what}"
            (path / name).write_bytes(data)


def resume_after_tears(folder, path):
    """Tear the newest checkpoint in every way, and resume; return what the user got."""
    results = Counter()
    for what in tear(path):
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                chosen = choose("auto", name="x", outdir=str(folder)).checkpoint
        except Exception as error:  # noqa: BLE001  # what must not happen
            results["traceback"] += 1
            print(f"  {what}: {error!r}", file=sys.stderr)
        else:
            is_told = chosen is not None and chosen != path and f"{path}" in said.getvalue()
            results["one line" if is_told else "silent"] += 1
        for aside in path.parent.glob("damaged-*"):  # back for the next damage
            aside.rename(path)
    return results


def main(count=200):
    """Print the table; the exit code is 1 if something was silent or a traceback where digests are compared."""
    torch.use_deterministic_algorithms(True)
    folder = Path(tempfile.mkdtemp(prefix="ezpz-damage-"))
    try:
        run = Run(folder)
        paths = []
        for number in (1, 2):
            run.step()
            paths.append(run.checkpoints.save(number))
        sound = repr(run.state())
        rows = {f"{count} flipped bits": flip_bits(folder, paths[1], sound, count)}
        rows["torn after the rename, 12 ways"] = resume_after_tears(folder, paths[1])
        rows[f"{count} flipped bits, `verify=False`"] = flip_bits(folder, paths[1], sound, count, verify=False)
        as_schema_1(paths[1])
        rows[f"{count} flipped bits, no digests (schema 1)"] = flip_bits(folder, paths[1], sound, count)
    finally:
        shutil.rmtree(folder)
    print("| damage | silent | traceback | one clear line | loaded bit for bit |\n|---|---|---|---|---|")
    for name, results in rows.items():
        print(
            "| "
            + " | ".join([name, *(str(results[word]) for word in ("silent", "traceback", "one line", "sound"))])
            + " |"
        )
    compared = list(rows.values())[:2]
    return int(
        any(each["silent"] or each["traceback"] for each in compared)
        or any(each["traceback"] for each in rows.values())
    )


if __name__ == "__main__":
    os.environ.setdefault("EZPZ_LOG_LEVEL", "INFO")
    sys.exit(main(*map(int, sys.argv[1:])))
