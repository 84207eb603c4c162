"""Why steps are slow, by recorded rows: shapes of load that are named, and healthy ones that are not."""

import json
import random

import pytest

from ezpz.track.run_reader import open_run
from ezpz.view.compare.slower_steps import slower_steps
from ezpz.view.report import build_page
from ezpz.view.slow_steps import slow_findings
from ezpz.why import Facts, diagnose


class Recorded:
    """Writes the journal of a loop as `ezpz.track.History` does, by a clock of its own."""

    def __init__(self, folder, seed):
        self.folder, self.draw, self.now = folder, random.Random(seed), 1_795_000_000.0
        self.step, self.attempt, self.due = 0, 1, 0.0
        self.spent, self.waited, self.squares, self.lines, self.facts = (
            {},
            0.0,
            0.0,
            [],
            {"name": "run", "state": "finished"},
        )

    def _line(self, step, metrics, kind=""):
        line = {"v": 1, "t": self.now, "step": step, **({"a": self.attempt} if self.attempt > 1 else {})}
        self.lines.append(json.dumps({**line, **({"k": kind} if kind else {}), "m": metrics}, separators=(",", ":")))

    def spend(self, name, seconds):
        """A section, or a collection."""
        self.now += seconds
        self.spent[name] = self.spent.get(name, 0.0) + seconds

    def wait(self, seconds):
        """A wait for the loader, as all that `measure` sees."""
        self.now += seconds
        self.waited += seconds
        self.squares += seconds**2

    def row(self, seconds, spread=0.05, **metrics):
        """A step that takes some seconds of its own, with noise whose tail is long as on shared machines."""
        noise = self.draw.lognormvariate(0.0, spread)
        self.now += seconds * noise * (1.0 if self.draw.random() > 0.01 else 1.0 + self.draw.random())
        long = sum(self.spent.values()) >= 0.05
        self._line(self.step, {"loss": 1.0 / (self.step + 1), **metrics})
        if (self.spent or self.waited) and (long or self.now >= self.due):
            self.due = self.now + 1.0
            told = dict(self.spent)
            if self.waited:
                told |= {"data": self.waited, "data rows": [max(1, round(self.waited**2 / self.squares))]}
            self.spent, self.waited, self.squares = {}, 0.0, 0.0
            self._line(self.step, told, "sections")
        self.step += 1

    def evaluated(self, **metrics):
        """A row of an evaluation."""
        self._line(self.step - 1, metrics)

    def run(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "run.json").write_text(json.dumps(self.facts), encoding="utf-8")
        (self.folder / "metrics.jsonl").write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        return open_run(self.folder)


# Loads that are named: what makes the rows, then what is found.


def loader_slows(run):
    run.facts["loader_workers"] = 2
    for step in range(600):
        run.wait(0.001 if step < 300 else 0.25)
        run.row(0.02)


def each_eighth_batch_waits(run):
    run.facts["loader_workers"] = 8
    for step in range(600):
        run.wait(1.0 if step >= 200 and step % 8 == 0 else 0.0005)
        run.row(0.02)


def loader_always_slow(run):
    for _ in range(400):
        run.wait(0.06)
        run.row(0.02)


def new_workers_in_each_epoch(run):
    run.facts["loader_workers"] = 4
    for step in range(1000):
        run.wait(3.0 if step % 100 == 0 and step else 0.0005)
        run.row(0.02)


def saves(run):
    for step in range(1000):
        run.row(0.02)
        if step % 50 == 49:
            run.spend("checkpoint", 0.3)


def saves_all_the_time(run):
    for step in range(400):
        run.row(0.1)
        if step % 10 == 9:
            run.spend("save", 2.0)


def saves_by_itself(run):
    for step in range(1000):
        run.row(0.02)
        if step % 50 == 49:
            run.now += 1.0


def collects(run):
    for _ in range(1000):
        if run.draw.random() < 0.05:
            run.spend("garbage collection", 0.25)
        run.row(0.02)


def records_slowly(run):
    for _ in range(600):
        run.row(0.02)
        run.spend("logging", 0.02)


def neighbour_comes(run):
    for step in range(600):
        run.wait(0.001)
        run.row(0.02 if step < 250 else 0.06, spread=0.15)


def neighbour_comes_and_goes(run):
    for step in range(900):
        run.wait(0.001)
        run.row(0.06 if 300 <= step < 600 else 0.02, spread=0.1)


def piles_up(run):
    for step in range(800):
        run.row(0.02 + step * 2e-4)


def device_gets_hot(run):
    for step in range(600):
        run.row(0.2 if step < 300 else 0.34)
    rows = []
    for number in range(5):
        now = 1_795_000_000.0 + 30 * (number + 1)
        clock = 1980.0 if number < 2 else 1100.0
        device = {"id": "3", "name": "H100", "given": True, "clock": [clock, clock, clock]}
        device["throttled"] = {"thermal slowdown": 0.9} if number >= 2 else {}
        rows.append({"v": 1, "t": now, "s": 30.0, "host": "n07", "now": {}, "devices": [device]})
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "hardware.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def waits_that_the_program_records(run):
    for step in range(600):
        waited = 0.001 if step < 300 else 0.2
        run.now += waited
        run.row(0.02, data_time=waited)


NAMED = {
    loader_slows: ("slower-steps", "data", 300, "waits for the DataLoader (2 workers)"),
    each_eighth_batch_waits: ("slower-steps", "data", 200, "waits for the DataLoader (8 workers)"),
    loader_always_slow: ("slow-part", "data", None, "of the time of all steps is waiting for data"),
    new_workers_in_each_epoch: ("slow-every", "data", None, "every 100th step takes "),
    saves: ("slow-every", "save", None, "every 50th step takes "),
    saves_all_the_time: ("slow-every", "save", None, "as long: saving"),
    saves_by_itself: ("slow-every", "", None, "why is not known: no part of a step was measured"),
    collects: ("slow-part", "garbage collection", None, "is garbage collection"),
    records_slowly: ("slow-part", "logging", None, "is recording rows (History)"),
    neighbour_comes: ("slower-steps", "", 250, "nothing that was measured explains it (waiting for data)"),
    neighbour_comes_and_goes: ("slower-steps", "", 300, "a step took "),
    piles_up: ("slower-steps", "", None, "steps take longer and longer"),
    device_gets_hot: ("slower-steps", "clock", 300, "fell from 1,980 to 1,100 MHz (thermal slowdown)"),
    waits_that_the_program_records: ("slower-steps", "data", 300, "of it waits for data"),
}


# Loads of healthy runs.


def compiles_first(run):
    for step in range(400):
        run.wait(0.001)
        run.row(40.0 if step == 0 else 3.0 if step == 1 else 0.02)


def evaluates(run):
    for step in range(1000):
        run.row(0.02)
        if step % 100 == 99:
            run.spend("evaluation", 3.0)


def evaluates_without_a_section(run):
    for step in range(1000):
        run.row(0.02)
        if step % 100 == 99:
            run.now += 2.0
            run.evaluated(**{"val/loss": 1.0})


def evaluates_in_the_row(run):
    for step in range(1000):
        more = {"val_loss": 1.0} if step % 100 == 99 else {}
        run.now += 2.0 if more else 0.0
        run.row(0.02, **more)


def lengths_vary(run):
    for _ in range(1000):
        run.wait(0.001)
        run.row(0.01 * run.draw.choice([1, 1, 2, 2, 3, 4, 6, 8]))


def draws_a_bar(run):
    for step in range(1000):
        run.row(0.02)
        run.now += 0.002 if step % 10 == 0 else 0.0


def is_stopped_for_a_while(run):
    for step in range(600):
        run.wait(0.001)
        run.now += 600.0 if step == 250 else 20.0 if step == 400 else 0.0
        run.row(0.02)


def starts_again(run):
    for attempt in (1, 2, 3):
        run.attempt, run.step = attempt, (attempt - 1) * 200
        run.now += 900.0
        for step in range(250):
            run.wait(0.001)
            run.row(15.0 if step == 0 else 0.05 if step < 3 else 0.02)


def saves_now_and_then(run):
    for step in range(2000):
        run.row(0.02)
        if step % 500 == 499:
            run.spend("checkpoint", 0.4)


def is_noisy(run):
    for _ in range(800):
        run.row(0.02, spread=0.5)


def waits_little(run):
    for _ in range(600):
        run.wait(0.004)
        run.row(0.02)


def batch_grows(run):
    for step in range(800):
        run.row(0.02 if step < 400 else 0.08, tokens_per_sec=50_000.0)


def records_some_at_a_time(run):
    for step in range(1000):
        run.row(0.00005)
        run.now += 2.0 if step % 100 == 99 else 0.0


def is_short(run):
    for step in range(60):
        run.wait(0.002 if step < 30 else 0.01)
        run.row(0.005)


def ends_late(run):
    for _ in range(300):
        run.row(0.02)
    run.row(60.0)


HEALTHY = (
    compiles_first,
    evaluates,
    evaluates_without_a_section,
    evaluates_in_the_row,
    lengths_vary,
    draws_a_bar,
    is_stopped_for_a_while,
    starts_again,
    saves_now_and_then,
    is_noisy,
    waits_little,
    batch_grows,
    records_some_at_a_time,
    is_short,
    ends_late,
)
SEEDS = 20


def found_in(make, folder, seed):
    run = Recorded(folder, seed)
    make(run)
    return slow_findings(run.run())


@pytest.mark.parametrize("load", NAMED, ids=lambda load: load.__name__)
def test_what_makes_steps_slow_is_named(load, tmp_path):
    kind, part, step, words = NAMED[load]
    for seed in range(SEEDS):
        found = found_in(load, tmp_path / str(seed), seed)
        assert [each["kind"] for each in found][:1] == [kind], (seed, found)
        assert found[0]["part"] == part, (seed, found)
        assert words in found[0]["text"], (seed, found)
        assert step is None or abs(found[0]["step"] - step) <= 5, (seed, found)
        assert len(found) == 1, (seed, found)


@pytest.mark.parametrize("load", HEALTHY, ids=lambda load: load.__name__)
def test_nothing_is_said_of_a_healthy_run(load, tmp_path):
    for seed in range(SEEDS):
        assert found_in(load, tmp_path / str(seed), seed) == [], seed


def test_what_is_found_becomes_a_cause_that_ended_nothing(tmp_path):
    findings = found_in(loader_slows, tmp_path / "run", 1)
    (cause,) = diagnose(Facts({}, {"state": "finished", "findings": findings}))
    assert (cause.cause, cause.certainty, cause.text) == ("slower-steps", 1, findings[0]["text"])
    assert "num_workers" in cause.advice
    assert "waiting for data 9" in cause.evidence[1]


# Two runs: what is said of the second beside the first.


def is_steady(run):
    for _ in range(300):
        run.wait(0.001)
        run.row(0.02)


def waits_longer(run):
    for _ in range(300):
        run.wait(0.03)
        run.row(0.02)


def saves_often(run):
    for step in range(300):
        run.wait(0.001)
        run.row(0.02)
        if step % 20 == 19:
            run.spend("checkpoint", 0.8)


def computes_longer(run):
    for _ in range(300):
        run.wait(0.001)
        run.row(0.05)


def waits_and_computes_longer(run):
    for _ in range(300):
        run.wait(0.03)
        run.row(0.04)


BESIDE_STEADY = {
    waits_longer: ("B's steps take 2.4 x as long", ": all of it waits for data"),
    saves_often: ("B's steps take 2.8 x as long", ": all of it is saving"),
    computes_longer: ("B's steps take 2.4 x as long", ": nothing that was measured explains it (waiting for data)"),
    waits_and_computes_longer: ("B's steps take 3.3 x as long", ": 59 % of it waits for data"),
    is_steady: ("", ""),
}


@pytest.mark.parametrize("load", BESIDE_STEADY, ids=lambda load: load.__name__)
def test_of_two_runs_the_part_that_differs_is_named(load, tmp_path):
    runs = []
    for number, make in enumerate((is_steady, load)):
        run = Recorded(tmp_path / str(number), number)
        make(run)
        runs.append(run.run())
    text = slower_steps((runs[0], runs[1]), ("A", "B"))
    begin, end = BESIDE_STEADY[load]
    assert text.startswith(begin), text
    assert text.endswith(end), text
    assert bool(text) == bool(begin)
    assert slower_steps((runs[1], runs[0]), ("B", "A")) == text


def test_the_report_draws_the_parts_or_says_what_is_missing(tmp_path):
    run = Recorded(tmp_path / "parts", 1)
    loader_slows(run)
    page = build_page(run.run())
    assert "Seconds of a step by part" in page
    assert "waiting for the DataLoader (2 workers) " in page
    run = Recorded(tmp_path / "none", 1)
    saves_by_itself(run)
    page = build_page(run.run())
    assert "no part of them was measured" in page
    assert "Seconds of a step by part" not in page
