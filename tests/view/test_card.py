"""The card that ends a run: its rows, their numbers, and that it names what to type next."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz.track import History
from ezpz.track.run_reader import open_run
from ezpz.view.card import card, resume_words
from ezpz.view.run_summary import accuracies
from ezpz.view.terminal.screen import Screen
from lab.run_folders import environ, leave_run

NORMAL, WIDE, NARROW, PLAIN = Screen(80), Screen(200), Screen(40), Screen(80, ascii_only=True)


def recorded(rows, *, ranks=0, screen=NORMAL, paths=None, folder="run"):
    """Return title and rows of the card of a run with these rows."""
    history = History("mine", folder)
    for row in rows:
        history.update(row)
    history.finalize(plots=False, show=False)
    run = open_run(folder)
    title, *lines = card(run, paths or {}, screen, ranks=ranks)
    return title, {line[2:14].strip(): line[14:] for line in lines}


def test_the_card_sums_a_run_up():
    rows = [
        {
            "iter": step,
            "loss": 2.3024 - step,
            "accuracy": 0.25 * step,
            "dt": 0.5 if step else 2.0,
            "sps": 128.0 * (step + 1),
        }
        for step in range(3)
    ]
    report = {"report": Path("run/report.html").absolute()}
    title, shown = recorded(rows, ranks=4, paths=report)
    assert title.startswith("── mine finished: 3 steps in ")
    assert title.endswith(", 1 rank " + "─" * (80 - title.index(", 1 rank ") - 9))
    assert len(title) == 80
    assert shown.pop("first step").endswith(" after the start of the program")
    assert shown == {
        "loss": "2.302 → 0.3024",
        "accuracy": "0 % → 50 %",
        "speed": "320 samples/s, 80 per rank",
        "step": "500 ms (median), 2 s the first, 500 ms the slowest",
        "report": "run/report.html",
        "next": "ezpz open run",
    }


def test_rates_of_unknown_ranks_are_not_divided_and_what_is_missing_is_left_out():
    _, shown = recorded([{"tokens_per_sec": 10.0}, {"tokens_per_sec": 30.0}])
    assert list(shown) == ["speed", "first step", "folder", "next"]
    assert shown["speed"] == "30 tokens/s"
    assert shown["next"] == "ezpz report run"


def test_validation_percents_and_nan_are_shown_as_they_are():
    rows = [{"epoch": 1, "train_loss": 2.0, "test_loss": 1.0, "test_acc": 50.0}]
    rows.append({"epoch": 2, "train_loss": math.nan, "test_loss": 0.5, "test_acc": 91.6667})
    title, shown = recorded(rows)
    assert "mine finished: 2 epochs" in title
    assert (shown["train_loss"], shown["test_loss"], shown["test_acc"]) == ("2 → NaN", "1 → 0.5", "50 → 91.67")


def test_what_stands_out_is_said_in_whole_lines():
    rows = [{"loss": 1.0 + step % 7 / 50, "lr": 0.0} for step in range(60)]
    recorded(rows, folder="still")
    for screen in (NORMAL, NARROW):
        lines = card(open_run("still"), {}, screen)
        at = next(place for place, line in enumerate(lines) if line.startswith("  finding     "))
        said = [lines[at][14:]]
        while lines[at + len(said)].startswith(" " * 14):
            said.append(lines[at + len(said)][14:])
        assert " ".join(said) == "lr is 0 from step 0 on, and loss has not fallen in the 60 rows since"
        assert max(map(len, said)) <= screen.width - 14


def test_a_long_name_does_not_touch_its_value_and_colour_marks_how_it_ended():
    recorded([{"a_metric/val_accuracy": 0.5, "loss": 1.0}])
    _, *lines = card(open_run("run"), {}, NORMAL)
    assert lines[:2] == ["  loss                   1", "  a_metric/val_accuracy  50 %"]
    title, shown = recorded([{"loss": 0.5}], screen=Screen(80, color=True), folder="one")
    assert ("1 step in" in title, shown["loss"]) == (True, "0.5")
    assert "\x1b[32mmine finished: " in title


def test_it_is_80_columns_at_most_and_ascii_where_the_terminal_is(subtests):
    for screen in (WIDE, NARROW, PLAIN):
        with subtests.test(f"{screen.width} columns"):
            title, shown = recorded([{"loss": 2.0}, {"loss": 1.0}], screen=screen, folder=f"run{screen.width}")
            assert len(title) == min(screen.width, 80)
            assert shown["loss"] == ("2 -> 1" if screen.ascii_only else "2 → 1")
            assert title.isascii() == screen.ascii_only


def test_a_run_that_was_started_again_counts_its_new_steps():
    """The speed is that of this start: an earlier one may have had other ranks."""
    recorded([{"iter": step, "loss": 3.0 - step, "sps": 1000.0} for step in range(2)])
    recorded([{"iter": step, "loss": 3.0 - step, "sps": rate} for step, rate in ((2, 1.0), (3, 20.0), (4, 30.0))])
    title, *lines = card(open_run("run"), {}, NORMAL)
    assert title.startswith("── mine finished: 3 new steps in ")
    assert ", 5 in all, 1 rank " in title
    assert "  loss        3 → -1" in lines
    assert "  speed       25 samples/s" in lines
    assert [line for line in lines if "first step" in line]


def test_card_report_and_list_tell_the_same_speed(capsys):
    """The first step, which pays for what is done once, is in none of them; nor are the last 20 alone."""
    from ezpz.cli.runs import glance
    from ezpz.track.series import numeric_series
    from ezpz.view.report.head import cards

    rates = [1.0, *[100.0] * 60, *[400.0] * 40]
    title, shown = recorded([{"loss": 1.0, "dt": 1 / rate, "sps": rate} for rate in rates])
    assert "101 steps" in title
    assert shown["speed"] == "100 samples/s"
    run = open_run("run")
    assert ">100 samples/s<" in cards(run, numeric_series(run.table))
    seen = glance(Path("run"), Path())
    assert (seen["rate"], seen["rate_unit"]) == (100.0, "samples/s")


def test_the_first_accuracies_of_training_and_validation_come_first():
    assert accuracies(["val_acc", "loss", "accuracy", "top1", "accumulate"]) == ["accuracy", "val_acc", "top1"]


def test_a_run_that_ended_early_names_its_newest_checkpoint(tmp_path):
    assert resume_words(tmp_path, ["train.py"]) == []
    for step in ("step-9", "step-10", "step-10.part"):
        (tmp_path / "checkpoints" / step).mkdir(parents=True)
    newest = ("checkpoint", "checkpoints/step-10")
    assert resume_words(tmp_path, ["train.py"]) == [newest]
    ours = ["/x/src/ezpz/examples/vit.py", "--preset", "debug"]
    assert resume_words(tmp_path, ours) == [newest, ("next", "the same command with --resume auto")]


STOPPED = """
import os, signal, ezpz
history = ezpz.History("mine", "run")
os.makedirs("run/checkpoints/step-2")
for step in range(3):
    history.update({"loss": 1.0})
print("half a line", end="")
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_a_signal_ends_with_a_short_card_behind_the_data(run_python, tmp_path):
    done = run_python(STOPPED)
    assert done.returncode == -15
    shown = done.stdout.decode()
    assert "mine stopped by SIGTERM at step 3; its data is complete\n  folder      run\n" in shown
    assert "  checkpoint  run/checkpoints/step-2\n" in shown
    assert (tmp_path / "run" / "mine.h5").exists()


@pytest.mark.slow
def test_a_reader_that_does_not_read_delays_no_signal(tmp_path):
    """The pipe is full: the signal ends the process all the same, and the data is complete."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while os.write(writer, b"x" * 65536):
            pass
    except BlockingIOError:
        os.set_blocking(writer, True)
    script = STOPPED.replace('print("half a line", end="")', "")
    with subprocess.Popen([sys.executable, "-c", script], env=environ(tmp_path), cwd=tmp_path, stdout=writer) as child:
        assert child.wait(120) == -15
    os.close(reader)
    os.close(writer)
    assert (tmp_path / "run" / "mine.h5").exists()


def test_paths_are_those_of_the_shell_also_when_the_program_has_changed_its_folder(monkeypatch, tmp_path):
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.chdir("work")  # as Hydra does
    _, shown = recorded([{"loss": 1.0}])
    assert (shown["folder"], shown["next"]) == ("work/run", "ezpz report work/run")
    monkeypatch.setenv("PWD", str(tmp_path / "gone"))
    assert recorded([{"loss": 1.0}])[1]["next"] == "ezpz report run"
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("PWD", str(tmp_path / "other"))
    assert recorded([{"loss": 1.0}])[1]["next"] == f"ezpz report {tmp_path}/work/run"


def test_a_run_whose_steps_were_slow_says_so(tmp_path):
    text = "from step 150 on a step takes 4.8 x as long (25.7 ms → 125 ms); 82 % of it waits for the DataLoader"
    found = [{"kind": "slower-steps", "key": "steps", "step": 150, "text": text}]
    facts = {"name": "mine", "state": "finished", "findings": found}
    lines = card(leave_run(tmp_path / "run", [{"step": 0, "m": {"loss": 1.0}}], facts), {}, NORMAL)
    said = " ".join(line[14:] for line in lines if line.startswith(("  finding  ", " " * 14)))
    assert said == text
