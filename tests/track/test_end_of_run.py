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
    if event == "os.rename":  # every file that a run makes gets its name at last
        seen.append((str(args[1]).partition("out/")[2], sorted(HEAVY & set(sys.modules))))
sys.addaudithook(watch)

from ezpz.track import plots
figures, make = [], plots.Pictures  # each has one figure, for all that it draws
plots.Pictures = lambda *a, **k: figures.append(1) or make(*a, **k)
from ezpz.track import stored
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
from ezpz.track import plots
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
    assert (folder / "report.html").read_text().rstrip().endswith("</html>")
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
