"""Parts of a step that a history measures in loops of one's own."""

import pytest

from ezpz.track.run_reader import open_run
from ezpz.track.step_parts import read_step_parts

LOADER = """
import time
import torch
from torch.utils.data import DataLoader
import ezpz

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.005)
        return float(index)

history = ezpz.History("run", "run")
loader = DataLoader(Slow(), batch_size=4)
for batch in (ezpz.prepare(loader) if PREPARED else loader):
    history.update({"loss": 1.0}, summarize=False)
    time.sleep(0.002)
    with ezpz.section("evaluation", timeout=None):
        next(iter(loader))
history.finalize(plots=False, show=False)
"""


@pytest.mark.parametrize("prepared", [False, True])
def test_a_loop_of_ones_own_tells_how_long_it_waits_for_a_loader(run_python, tmp_path, prepared):
    run = run_python(f"PREPARED = {prepared}\n{LOADER}")
    assert run.returncode == 0, run.stderr
    told = read_step_parts(open_run(tmp_path / "run"))
    assert told.workers == 0
    assert len(told.steps) == 15
    # The loader that is asked inside a section belongs to that.
    assert 15 * 4 * 0.005 <= told.parts["data"].sum() < 2 * told.parts["evaluation"].sum()
    assert (sum(told.parts.values()) <= told.seconds + 1e-9).all()


def test_nothing_is_measured_where_the_user_wants_that(run_python, tmp_path):
    run = run_python(f"PREPARED = False\n{LOADER}", EZPZ_STEP_PARTS="0")
    assert run.returncode == 0, run.stderr
    assert set(read_step_parts(open_run(tmp_path / "run")).parts) == {"evaluation"}


def test_collections_and_long_sections_are_told_with_their_rows(run_python, tmp_path):
    run = run_python(
        """
import gc, time
import ezpz
held = [[] for _ in range(300_000)]
history = ezpz.History("run", "run")
for step in range(40):
    time.sleep(0.002)
    if step % 10 == 5:
        gc.collect()
    if step == 20:
        with ezpz.section("save", timeout=None):
            time.sleep(0.2)
    history.update({"loss": 1.0}, summarize=False)
history.finalize(plots=False, show=False)
"""
    )
    assert run.returncode == 0, run.stderr
    told = read_step_parts(open_run(tmp_path / "run"))
    assert told.parts["save"].argmax() == 19  # of the intervals: the first row has none
    assert told.parts["save"].max() > 0.1
    assert told.parts["garbage collection"].sum() > 0


def test_waits_cost_few_bytes_of_a_journal(run_python, tmp_path):
    run = run_python(
        """
import time
import ezpz
from ezpz.track.step_pauses import pauses
history = ezpz.History("run", "run")
for step in range(40):
    time.sleep(0.05)
    pauses.add_wait(0.04)
    history.update({"loss": 1.0}, summarize=False)
history.finalize(plots=False, show=False)
"""
    )
    assert run.returncode == 0, run.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    more = [line for line in lines if b'"sections"' in line]
    assert sum(map(len, more)) <= 16 * (len(lines) - len(more))
