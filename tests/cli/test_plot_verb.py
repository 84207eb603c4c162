from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from math import exp, nan
from pathlib import Path

import pytest
from runs_on_disk import light, write_run

from ezpz.cli.plot import main

SRC = str(Path(__file__).parents[2] / "src")


@pytest.fixture(autouse=True)
def _plain(monkeypatch, tmp_path):
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "LC_ALL", "PYTHONIOENCODING", "EZPZ_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(tmp_path):
    """A finished run of 200 steps: dt, lr, train/loss with a NaN, val/loss at every 50th, a text, an epoch."""
    steps = range(200)
    held = {"epoch": [step // 50 for step in steps], "lr": [1e-3] * 200}
    held["dt"] = [0.3 if step == 0 else 0.01 + step % 5 / 1000 for step in steps]
    held["train/loss"] = [nan if step == 41 else 2.3 * exp(-step / 40) + 0.1 for step in steps]
    held["val/loss"] = [2.5 * exp(-step / 50) if step % 50 == 0 else None for step in steps]
    return write_run(tmp_path / "r", {**held, "note": ["x"] * 200})


@pytest.fixture
def plot(capsys):
    """`plot(*words)` -> (exit code, lines of stdout, stderr)."""

    def call(*words):
        code = main([str(word) for word in words])
        told = capsys.readouterr()
        return code, told.out.splitlines(), told.err

    return call


def add_ranks(run, values):
    keys = {"dt": {"ranks": values}}
    window = {"world": 2, "every": 1, "steps": [0, 1], "held": [2, 2], "keys": keys}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"v": 1, "t": 1.0, "step": 1, "k": "ranks", "m": window}) + "\n")


def titles(lines):
    """The titles of the plots, in their order."""
    found = []
    for above, line in pairwise(lines):
        if "┌" in line:
            found += above.split("  ")
    return [title.strip() for title in found if title.strip()]


def test_a_run_is_told_in_a_line_and_its_metrics_follow_losses_first(plot, run):
    code, lines, err = plot(run)
    assert (code, err) == (0, "")
    assert lines[0] == "train: finished, 200 rows, steps 0 to 199, 5 min 12 s (r)"
    assert titles(lines) == ["train/loss", "val/loss", "dt", "lr"]
    assert max(map(len, lines)) == 100
    assert "1 NaN, first at step 41" in lines
    assert "1 point above, max 0.3 at step 0" in lines


def test_nothing_is_wider_than_asked_for_and_all_is_there(plot, run, subtests):
    for width, beside in {20: 1, 80: 1, 120: 2, 200: 3}.items():
        with subtests.test(str(width)):
            _, lines, _ = plot(run, "--width", width)
            assert max(map(len, lines)) <= width
            assert sum(line.count("└") for line in lines) == 4
            assert titles(lines) == ["train/loss", "val/loss", "dt", "lr"]
            assert next(line for line in lines if "┌" in line).count("┌") == beside
            assert "1 NaN, first at step 41" in " ".join(line.strip() for line in lines).replace("  ", " ")


def test_columns_decides_the_width_and_the_option_stands_above_it(plot, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, plot(run, "dt")[1][1:])) == 60
    assert max(map(len, plot(run, "dt", "--width", 40)[1][1:])) == 40
    # the height is that of the plot without its captions
    assert len(plot(run, "lr", "--height", 12)[1]) == 1 + 12
    assert len(plot(run, "dt", "--height", 12)[1]) == 1 + 12 + 1


NAMED = [
    (["train/loss"], ["train/loss"]),
    (["loss"], ["train/loss", "val/loss"]),
    (["dt", "*/loss"], ["dt", "train/loss", "val/loss"]),
    (["-k", "dt", "lr"], ["lr", "dt"]),
    (["epoch"], ["epoch"]),
]


def test_metrics_are_named_by_name_last_part_or_pattern(plot, run, subtests):
    for words, expected in NAMED:
        with subtests.test(str(words)):
            assert titles(plot(run, *words)[1]) == expected


def test_named_metrics_can_share_a_plot_with_a_legend(plot, run):
    _, lines, _ = plot(run, "loss", "--overlay")
    assert titles(lines) == ["train/loss, val/loss"]
    assert "▚ train/loss  • val/loss" in lines
    code, _, err = plot(run, "--overlay")
    assert code == 2
    assert "expected names" in err


def test_several_runs_share_the_plot_of_a_metric(plot, run, tmp_path):
    held = {"train/loss": [1.0, 2.0], "only": [1, 2]}
    other = write_run(tmp_path / "s", held, state="failed", cause="ValueError: no")
    code, lines, _ = plot(run, other, "-k", "train/loss", "-k", "only")
    assert code == 0
    assert lines[:2] == [
        "train: finished, 200 rows, steps 0 to 199, 5 min 12 s (r)",
        "train: failed (ValueError: no), 2 rows, steps 0 to 1, 5 min 12 s (s)",
    ]
    assert titles(lines) == ["train/loss", "only"]
    assert "▚ r  • s" in lines
    assert "r: 1 NaN, first at step 41" in lines


def test_a_misspelt_metric_or_folder_is_an_error_that_helps(plot, run):
    width = "ezpz: --width: '3' is no whole number from 12 to 1000 (from the command line)."
    (run / "empty").mkdir()
    for words, said in (
        *(([run, "train/los"], said) for said in ("'train/los' is neither a folder nor a metric of r", "train/loss")),
        *(([run, "--width", "3"], width), ([run / "empty"], "no metrics.jsonl")),
        *((words, "ezpz: ") for words in (["gone"], ["./gone"], [run, "--bad"])),
    ):
        code, lines, err = plot(*words)
        assert (code, lines, err.count("\n")) == (2, [], 1)
        assert said in err


def test_without_a_folder_or_with_one_of_runs_the_newest_is_drawn(plot, tmp_path):
    old = write_run(tmp_path / "outputs/train/1", {"a": [1]})
    write_run(tmp_path / "outputs/train/2", {"b": [1]})
    os.utime(old / "metrics.jsonl", (1, 1))
    os.utime(old / "run.json", (1, 1))
    assert titles(plot()[1]) == titles(plot("b")[1]) == titles(plot("outputs/train")[1]) == ["b"]
    assert titles(plot("outputs/train/1")[1]) == ["a"]
    assert plot("a")[0] == 2


def test_the_last_rows_alone_and_a_logarithmic_axis(plot, run):
    _, lines, _ = plot(run, "--last", 10, "loss", "dt", "--width", 60)
    assert titles(lines) == ["train/loss", "val/loss", "dt"]
    assert "nothing finite" in "".join(lines)  # val/loss was recorded at step 150 last
    assert "NaN" not in "".join(lines)
    assert not any("above" in line for line in lines)
    assert len(plot(run, "--last", 10**6, "dt")[1]) == len(plot(run, "dt")[1])
    _, lines, _ = plot(run, "train/loss", "--log")
    assert [line.partition("┤")[0].strip() for line in lines if "┤" in line] == ["2", "1", "0.5", "0.2"]


def test_the_list_of_metrics(plot, run):
    code, lines, _ = plot(run, "--list")
    assert code == 0
    assert [line.split() for line in lines[1:]] == [
        ["metric", "count", "first", "last", "min", "max"],
        ["epoch", "200", "0", "3", "0", "3"],
        ["lr", "200", "0.001", "0.001", "0.001", "0.001"],
        ["dt", "200", "0.3", "0.014", "0.01", "0.3"],
        ["train/loss", "200", "2.4", "0.11589", "0.11589", "2.4"],
        ["val/loss", "4", "2.5", "0.124468", "0.124468", "2.5"],
        ["note", "200", "text"],
    ]
    assert [line.split()[0] for line in plot(run, "--list", "*loss")[1][1:]] == ["metric", "train/loss", "val/loss"]


def test_ranks_are_drawn_from_their_windows(plot, run):
    add_ranks(run, [[0.1, 0.1], [0.1, 0.3]])
    _, lines, _ = plot(run, "--ranks", "dt")
    assert lines[1].strip() == "dt by rank over steps"
    assert lines[-1] == "no rank stands out: mean 0.1 (rank 0) to 0.2 (rank 1)"  # two steps say nothing
    assert titles(plot(run, "--ranks", "dt", "lr")[1]) == ["lr"]
    assert plot(run, "--ranks", "loss")[0] == 2


ANY = [([], "no number has been recorded"), ([nan, nan], "nothing finite"), ([1e308, -1e308], "┤"), ([5.0], "┤")]


def test_any_values_can_be_drawn(plot, tmp_path, subtests):
    for values, text in ANY:
        with subtests.test(str(values)):
            run = write_run(tmp_path / f"x-{len(values)}-{text}", {"loss": values})
            for width in (20, 80, 200):
                code, lines, err = plot(run, "--width", width)
                assert (code, err) == (0, "")
                assert text in "\n".join(lines)


def fresh(*words, cwd, **environ):
    """Run `ezpz plot` in an interpreter of its own, which loads nothing heavy."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": SRC, "HOME": str(cwd), **environ}
    line = [sys.executable, "-c", light("plot"), *map(str, words)]
    return subprocess.run(line, env=env, cwd=cwd, capture_output=True, timeout=60, check=False)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}], ids=["stdout", "locale"])
def test_without_utf8_all_is_ascii_and_nothing_heavy_is_loaded(run, tmp_path, environ):
    done = fresh(run, "--width", "120", cwd=tmp_path, **environ)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert done.stdout.count(b"+-") >= 8


@pytest.mark.slow
def test_a_pipe_gets_no_escape_and_colour_needs_to_be_forced(run, tmp_path):
    assert b"\x1b" not in fresh(run, cwd=tmp_path, TERM="xterm-256color").stdout
    assert b"\x1b[38;5;6m" in fresh(run, cwd=tmp_path, FORCE_COLOR="1").stdout


@pytest.mark.slow
def test_a_long_run_is_drawn_quickly(plot, tmp_path):
    run = write_run(tmp_path / "long", {f"m{key}": [step / 7 for step in range(10_000)] for key in range(8)})
    start = time.process_time()
    assert plot(run)[0] == 0
    assert time.process_time() - start < 5  # 0.2 s here


def test_help_says_what_the_words_mean(plot):
    code, lines, _ = plot("--help")
    assert code == 0
    assert lines[0] == "usage: ezpz plot [RUN ...] [KEY ...] [options]"


@pytest.mark.slow
def test_pictures_of_any_metric_are_drawn_when_asked_for(plot, run):
    """The same files as at the end of a run, whose paths are told; counters only by name."""
    code, lines, err = plot(run, "--pictures", "val/loss", "epoch")
    made = [run / "plots/mplot/pngs" / name for name in ("val_loss.png", "epoch.png")]
    assert (code, lines, err) == (0, [str(path) for path in made], "")
    assert sorted(path.name for path in run.rglob("*.svg")) == ["epoch.svg", "val_loss.svg"]
    before = made[0].read_bytes()
    code, lines, err = plot(run, "--pictures")
    assert [Path(line).name for line in lines] == ["lr.png", "dt.png", "train_loss.png", "val_loss.png"]
    assert made[0].read_bytes() == before
    assert not (run / "report.html").exists()


@pytest.mark.slow
def test_pictures_are_those_of_the_end_of_the_run(plot, tmp_path, capsys):
    from ezpz.track import History

    history = History("run", tmp_path / "run")
    for step in range(20):
        history.update({"Loss": 1.0 / (step + 1), "loss": 2.0, **{f"m{n}": step for n in range(9)}})
    history.finalize(show=False)
    capsys.readouterr()
    drawn = {path: path.read_bytes() for path in history.paths["pngs"].parent.rglob("*.*")}
    assert len(drawn) == 12
    code, lines, err = plot(tmp_path / "run", "--pictures")
    assert (code, len(lines), err) == (0, 11, "")
    assert {path: path.read_bytes() for path in drawn} == drawn
    assert len(list(history.paths["svgs"].iterdir())) == 11


NO_PICTURES = [
    *(([option], f"{option} with --pictures") for option in ("--log", "--list")),
    *(([option, "9"], f"{option} with --pictures") for option in ("--last", "--height")),
    (["--overlay", "loss"], "--overlay with --pictures"),
    (["--width", "80"], "--width with --pictures"),
    (["nix"], "'nix' is neither a folder nor a metric"),
    (["--ranks", "dt"], "no 'dt' of all ranks"),
]


@pytest.mark.slow
def test_pictures_with_what_they_cannot_show_are_refused(run, refuses):
    refuses(main, [([str(run), "--pictures", *options], words) for options, words in NO_PICTURES])


@pytest.mark.slow
def test_pictures_that_cannot_be_made_are_an_error_of_one_line(plot, run, monkeypatch):
    (run / "plots").write_text("in the way")
    code, lines, err = plot(run, "--pictures")
    assert (code, lines) == (2, [])
    assert "cannot write pictures: " in err
    assert "plots" in err
    (run / "plots").unlink()
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, lines, err = plot(run, "--pictures")
    assert (code, lines) == (125, [])
    assert "cannot draw pictures: " in err


@pytest.mark.slow
def test_a_map_of_ranks_is_a_picture_too(plot, tmp_path):
    folder = write_run(tmp_path / "r", {"dt": [0.1, 0.2]})
    add_ranks(folder, [[0.1, 0.2], [0.3, 0.2]])
    code, lines, err = plot(folder, "--pictures", "--ranks", "dt")
    assert (code, lines, err) == (0, [str(folder / "plots/mplot/ranks/dt.png")], "")
    assert (folder / "plots/mplot/ranks/dt.svg").stat().st_size > 1000


@pytest.mark.slow
def test_a_run_without_numbers_has_no_pictures(plot, tmp_path):
    folder = write_run(tmp_path / "r", {"note": ["x"]})
    assert plot(folder, "--pictures") == (0, ["no number has been recorded"], "")
    assert not (folder / "plots").exists()
