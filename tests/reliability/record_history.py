"""Records a run without torch, as a plain program would: the rows are known, and so is what must be read back."""

import sys

import ezpz

with ezpz.History("plain", outdir=sys.argv[1]) as history:
    for step in range(200):
        history.update({"loss": 1 / (step + 1), "tokens": 10**15 + step, "odd": float("nan")}, step=step)
    dataset = history.finalize(show=False)
assert dataset["loss"].values[-1] == 1 / 200
assert "torch" not in sys.modules
