"""The end of a run holds every host: data first, then what is cheap, pictures last and few."""

import json
import signal

import pytest

from ezpz.track.lazy_dataset import open_dataset

RECORD = """
import sys
from ezpz.track import History
history = History("train", "out")
for step in range(30):
    history.update({"loss": 1.0 / (step + 1), "lr": 0.1, **{f"layer/{n}": n * step for n in range(98)}})
"""

FEW = RECORD.replace("range(98)", "range(3)")

IN_ORDER = """
seen, before = [], set()
HEAVY = {"matplotlib", "xarray", "pandas"}
def watch(event, args):
    if event == "os.rename" and "out/" in str(args[1]):  # every file that a run makes gets its name at last
        seen.append((str(args[1]).partition("out/")[2], sorted(HEAVY & set(sys.modules))))
sys.addaudithook(watch)

from ezpz.view import plots
figures, make = [], plots.Pictures  # each has one figure, for all that it draws
plots.Pictures = lambda *a, **k: figures.append(1) or make(*a, **k)
from ezpz.track import recorded_rows as stored
reads, read = [], stored.read_stored
stored.read_stored = lambda *a: reads.append(1) or read(*a)
history.finalize(show=False)
import json
print(json.dumps({"seen": seen, "figures": len(figures), "reads": len(reads)}), file=sys.stderr)
"""


@pytest.mark.slow
def test_data_come_first_then_the_report_then_texts_then_six_pictures(run_python, tmp_path):
    done = run_python(RECORD + IN_ORDER)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stderr.decode().splitlines()[-1])
    names = [name for name, _ in told["seen"]]
    assert names[:3] == ["train.h5", "run.json", "report.html"]
    assert names[-1] == "run.json"
    kinds = [name.split("/")[1] for name in names[3:-1]]
    assert kinds == ["tplot"] * 100 + ["mplot"] * 12
    assert {name.rpartition("/")[2] for name in names if name.endswith(".png")} == {
        "loss.png",
        "lr.png",
        *(f"layer_{number}.png" for number in range(4)),
    }
    assert [name for name, loaded in told["seen"] if loaded] == names[103:]
    assert told["figures"] == 1
    assert told["reads"] == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("last", ["save_text", "draw_pictures"])
def test_a_kill_among_the_drawings_finds_data_and_report_complete(run_python, tmp_path, last):
    killed = f"""
import os, signal
from ezpz.view import plots
plots.{last} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
history.finalize(show=False)
"""
    done = run_python(RECORD + killed)
    assert done.returncode == -signal.SIGKILL
    folder = tmp_path / "out"
    facts = json.loads((folder / "run.json").read_text())
    assert facts["state"] == "finished"
    assert facts["ended"]
    dataset = open_dataset(folder / "train.h5")
    assert (dataset.sizes["draw"], len(dataset.data_vars)) == (30, 100)
    assert (folder / "report.html").read_text().rpartition("</html>")[0]
    assert not list(folder.rglob("*.png"))


@pytest.mark.slow
def test_the_line_that_says_what_is_drawn_comes_before_matplotlib(run_python):
    absent = """
class None_:
    def find_spec(self, name, path, target=None):
        if name == "matplotlib": raise ImportError("built for another machine")
sys.meta_path.insert(0, None_())
history.finalize(show=False)
assert "report" in history.paths and "tplot" in history.paths and "pngs" not in history.paths
"""
    done = run_python(FEW + absent)
    assert done.returncode == 0, done.stderr.decode()
    lines = [line for line in done.stdout.decode().splitlines() if "PNG and SVG" in line or "cannot draw" in line]
    assert len(lines) == 2
    assert "drawing loss, lr, " in lines[0]
    assert "cannot draw the picture of loss" in lines[1]


@pytest.mark.slow
def test_nothing_outlives_the_end(run_python):
    """No process and no thread goes on with drawing."""
    alone = """
import os, threading
history.finalize(show=False)
assert [t for t in threading.enumerate() if not t.daemon] == [threading.main_thread()], threading.enumerate()
assert not os.path.exists(f"/proc/self/task/{os.getpid()}/children") or not open(
    f"/proc/self/task/{os.getpid()}/children").read().strip()
"""
    done = run_python(FEW + alone)
    assert done.returncode == 0, done.stderr.decode()


# What only reports may not end the program. What breaks a part; what is missing then; how many problems are told.
BROKEN = {
    "nothing": ("", set(), 0),
    "what ranks have on their way": ("dispatch.RowDispatch.finish = broken", set(), 1),
    "what steps saw": ("seen.StepStates.write = broken", set(), 1),
    "the columns": ("stored.Columns.grow = broken", set(), 1),
    "reading the journal": ("writer.open_run = broken", {"train.h5", "report.html", "loss.txt", "loss.png"}, 1),
    "the HDF5 file": ("dataset.write_dataset = broken", {"train.h5"}, 1),
    "HDF5 itself": ("dataset._attach = broken", {"train.h5"}, 1),
    "h5py": ("sys.modules['h5py'] = None", {"train.h5"}, 1),
    "findings": ("curves.curve_findings = broken", set(), 1),
    "speed": ("speed.speed_of = broken", set(), 1),
    "the report": ("report.write_report = broken", {"report.html"}, 1),
    "all drawings": ("plots.draw_run = broken", {"report.html", "loss.txt", "loss.png"}, 1),
    "series": ("plots.numeric_series = broken", {"loss.txt", "loss.png"}, 1),
    "a text plot": ("plots.save_text = broken", {"loss.txt"}, 1),
    "pictures": ("plots.Pictures = broken", {"loss.png"}, 1),
    "trackers": ("chosen.Trackers.finish, chosen.Trackers._at_exit = broken, print", set(), 0),
    "a function of the user": ("own = broken", set(), 1),
    "the card": ("card.show_card = broken", set(), 0),
    "the log": ("logging.Logger.info = broken", {"loss.png"}, 1),
    "facts": ("history.collect_facts = broken", set(), 0),
    "a tee": ("sys.stdout = Tee()", set(), 0),
    "a stdout that raises": ("sys.stdout = Raises()", set(), 0),
    "a stdout whose questions raise": ("sys.stdout = Asked()", set(), 0),
    "a closed stdout": ("sys.stdout.close()", set(), 0),
    "no stdout": ("sys.stdout = None", set(), 0),
    "no stdout and stderr": ("sys.stdout = sys.stderr = None", set(), 0),
    "numpy that raises": ("import numpy; numpy.seterr(all='raise')", set(), 0),
    "warnings that are errors": ("import warnings; warnings.simplefilter('error')", set(), 0),
}

WITH_A_BROKEN_PART = """
import logging, sys
from ezpz import track
from ezpz.track import dataset, dispatch, history, speed, writer
from ezpz.view import card
from ezpz.track import loss_findings as curves
from ezpz.view import plots
from ezpz.view import report
from ezpz.track import step_states as seen
from ezpz.track import recorded_rows as stored
from ezpz.view.trackers import chosen
def broken(*_, **__):
    raise ArithmeticError("no luck today")
screen = sys.stdout
class Tee:
    def write(self, text): screen.write(text)
    def flush(self): screen.flush()
class Raises(Tee):
    def write(self, text): raise KeyError(text)
class Asked(Tee):
    def __getattr__(self, name): raise RuntimeError(name)
def own(end):
    end.paths["seen"] = end.folder
exec(sys.argv[1])
with track.History("train", "out", trackers="csv") as run:
    run.at_end(lambda end: own(end))
    for step in range(20):
        run.update({"loss": 1 / (step + 1), "dt": 1e-200, "sps": 5.0, "far": 1e308 * (-1) ** step})
    run.saw(20, seen.Seen(settings={"lr": 0.1}))
open("last line", "w").close()
"""


@pytest.mark.dear
@pytest.mark.few(2)
@pytest.mark.parametrize("part", BROKEN)
def test_a_broken_part_of_the_end_ends_neither_the_program_nor_the_other_parts(run_python, tmp_path, part):
    how, missing, problems = BROKEN[part]
    done = run_python(WITH_A_BROKEN_PART, how)
    said = done.stdout.decode() + done.stderr.decode()
    assert (done.returncode, (tmp_path / "last line").exists()) == (0, True), said
    folder = tmp_path / "out"
    facts = json.loads((folder / "run.json").read_text())
    assert facts["state"] == "finished", said
    assert len(facts.get("problems", ())) == problems, said
    made = {path.name for path in folder.rglob("*.*")}
    assert {"train.h5", "report.html", "loss.txt", "loss.png"} - made == missing, said
    assert "Traceback" not in said
    if "broken" in how and part != "the log":
        assert said.count("ArithmeticError: no luck today") == 1, said
    if part == "a tee":
        assert "train finished: 20 steps" in said


@pytest.mark.slow
def test_ctrl_c_in_the_end_stays_ctrl_c_and_is_told(run_python, tmp_path):
    done = run_python(
        WITH_A_BROKEN_PART, "dataset.write_dataset = lambda *_, **__: signal.raise_signal(2); import signal"
    )
    assert done.returncode != 0
    assert b"KeyboardInterrupt" in done.stderr
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (facts["state"], facts["cause"]) == ("stopped", "SIGINT (Ctrl-C)")


@pytest.mark.slow
def test_a_device_or_a_tracker_that_fails_costs_one_warning_and_no_row(run_python, tmp_path):
    code = """
from ezpz.track import History, dispatch
def broken(*_, **__):
    raise ArithmeticError("no luck today")
history = History("train", "out")
dispatch.RowDispatch.add = broken
for step in range(5):
    history.update({"loss": 1.0})
history.finalize(plots=False, show=False)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().count("cannot hand on the row of step 0: ArithmeticError: no luck today") == 1
    assert open_dataset(tmp_path / "out" / "train.h5").sizes["draw"] == 5


@pytest.mark.slow
def test_functions_of_users_are_called_at_the_end_in_their_order_and_before_the_card(run_python, tmp_path):
    code = """
import ezpz
def run(name, fails=False):
    with ezpz.History(name, name) as history:
        history.update({"loss": 0.5})
        @history.at_end
        def first(end):
            print("first", end.name, end.state, sorted(end.paths), end.run.state, end.run.table.cells["loss"].values)
            end.facts["mine"] = 7
        history.at_end(lambda end: print("second", end.folder.name))
        assert first.__name__ == "first"
        for wrong in (None, "first"):
            try:
                history.at_end(wrong)
            except ezpz.errors.TrackError as error:
                assert "(from History.at_end); expected a function" in str(error)
        if fails:
            raise ValueError("no luck today")
    return history
history = run("good")
try:
    history.at_end(print)
except ezpz.errors.TrackError as error:
    assert "is finalized" in str(error)
run("bad", fails=True)
"""
    done = run_python(code)
    lines = done.stdout.decode().splitlines()
    told = [line for line in lines if line.startswith(("first", "second", "── "))]
    assert [line.split()[:3] for line in told] == [
        ["first", "good", "finished"],
        ["second", "good"],
        ["──", "good", "finished:"],
        ["first", "bad", "failed"],
        ["second", "bad"],
        ["──", "bad", "failed:"],
    ], lines
    assert "'report'" in told[0]
    assert told[0].endswith("finished [0.5]")
    assert [json.loads((tmp_path / name / "run.json").read_text())["mine"] for name in ("good", "bad")] == [7, 7]


def test_a_history_imports_nothing_of_its_end_before_that(run_python):
    """What only draws, shows or copies elsewhere is no part of a training."""
    code = """
import sys, ezpz
history = ezpz.History("train", "out")
for step in range(200):
    history.update({"loss": 1.0})
names = ("ezpz.view", "ezpz.track.loss_findings", "ezpz.track.speed")
assert not [name for name in sys.modules if name.startswith(names)]
history.finalize(plots=False, show=False)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr.decode()
