import pytest

from ezpz.view import plots
from ezpz.view.plots import draw_all, file_stem, seen_first, that_matter
from lab.drawn_series import series

STAMP = "2026-11-20-162001"


def test_file_names_are_safe_and_differ():
    taken = set()
    names = ["train/loss", "Train/Loss", "train_loss", "a b", "../../etc", "", "x" * 500, "损失"]
    stems = [file_stem(name, taken) for name in names]
    assert stems[:5] == ["train_loss", "Train_Loss-2", "train_loss-3", "a_b", "_.._etc"]
    assert stems[5:] == ["_", "x" * 120, "损失"]
    assert len({stem.lower() for stem in stems}) == len(stems)


def test_each_of_a_few_metrics_is_drawn_three_times_and_shown(tmp_path, capsys):
    items = [series([1.0, 2.0])._replace(name=name) for name in ("train/loss", "dt")]
    paths, problems = draw_all(items, tmp_path, STAMP, show=True)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert files == [
        "plots/mplot/pngs/dt.png",
        "plots/mplot/pngs/train_loss.png",
        "plots/mplot/svgs/dt.svg",
        "plots/mplot/svgs/train_loss.svg",
        "plots/tplot/dt.txt",
        "plots/tplot/train_loss.txt",
    ]
    assert paths == {
        "tplot": tmp_path / "plots/tplot",
        "pngs": tmp_path / "plots/mplot/pngs",
        "svgs": tmp_path / "plots/mplot/svgs",
    }
    assert problems == []
    for name in ("train_loss", "dt"):
        assert (tmp_path / f"plots/tplot/{name}.txt").read_text().count("\n") == 25
    *shown, line = capsys.readouterr().out.splitlines()
    assert len(shown) == 2 * 12
    assert [shown[0].strip(), shown[12].strip()] == [f"train/loss [{STAMP}]", f"dt (s) [{STAMP}]"]
    assert {len(text) for text in shown} == {75}
    assert line.endswith("drawing train/loss, dt as PNG and SVG")


@pytest.mark.slow
def test_what_is_shown_at_the_end_stands_side_by_side_where_there_is_room(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    draw_all([series([1.0, 2.0])._replace(name=name) for name in ("loss", "dt")], tmp_path, STAMP, show=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["loss", f"[{STAMP}]", "dt", "(s)", f"[{STAMP}]"]
    assert max(map(len, lines)) == 120
    assert {len(line) for line in (tmp_path / "plots/tplot/dt.txt").read_text().splitlines()} == {75}


@pytest.mark.slow
def test_of_many_metrics_six_are_drawn_and_the_terminal_shows_loss_and_accuracy(tmp_path, capsys):
    names = ["loss", "dt", "dtf", "dtb", "dtd", "sps", "sps_per_gpu", "tps", "mfu", "grad_norm", "lr", "val_loss"]
    names.append("accuracy")
    items = [series([1.0, 2.0])._replace(name=name) for name in names]
    items.append(series([1.0])._replace(name="dt_save"))
    draw_all(items, tmp_path, STAMP, show=True)
    shown = capsys.readouterr().out.splitlines()
    titles = [line.split()[0] for line in shown if line.rstrip().endswith(f"[{STAMP}]")]
    assert titles == ["loss", "accuracy"]
    assert len(list((tmp_path / "plots/tplot").iterdir())) == len(items)
    for kind in ("png", "svg"):
        drawn = {path.stem for path in (tmp_path / f"plots/mplot/{kind}s").iterdir()}
        assert drawn == {"loss", "val_loss", "sps", "tps", "dt", "accuracy"}
    assert shown[-1].endswith("drawing loss, val_loss, sps, tps, dt, accuracy as PNG and SVG; 8 more are in the report")


def test_without_an_accuracy_the_end_shows_a_validation_loss_or_what_matters_next():
    def seen(*names):
        items = [series([1.0, 2.0])._replace(name=name) for name in names]
        return [item.name for item in seen_first(items)]

    assert seen("dt", "loss", "val_loss", "sps") == ["loss", "val_loss"]
    assert seen("dt", "train_loss", "test_acc", "test_loss") == ["train_loss", "test_acc"]
    assert seen("dt", "sps", "lr") == ["sps", "dt"]
    assert seen("reward") == ["reward"]
    single = [series([1.0])._replace(name="val_accuracy"), series([1.0, 2.0])._replace(name="loss")]
    assert [item.name for item in seen_first(single)] == ["loss"]


def test_a_throughput_per_second_matters_and_of_one_row_six_are_drawn():
    names = ["loss", "tokens_per_gpu_per_sec", "tokens_per_sec", "tflops_per_device", "time_per_step", "a", "b", "c"]
    items = [series([1.0, 2.0])._replace(name=name) for name in names]
    assert [item.name for item in that_matter(items)] == ["loss", "tokens_per_sec", "time_per_step", "a", "b", "c"]
    items = [series([1.0])._replace(name=f"m{number}") for number in range(9)]
    assert [item.name for item in that_matter(items)] == ["m0", "m1", "m2", "m3", "m4", "m5"]


def test_nothing_to_draw_leaves_no_folder(tmp_path):
    assert draw_all([], tmp_path, STAMP, show=True) == ({}, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "what"), [("save_text", "the text plot"), ("Pictures", "the picture")])
def test_a_drawing_that_raises_is_one_warning_and_the_others_are_made(tmp_path, capsys, monkeypatch, broken, what):
    def fail(*_):
        raise ZeroDivisionError("no ink")

    monkeypatch.setattr(plots, broken, fail)
    items = [series([1.0])._replace(name=name) for name in ("loss", "dt")]
    paths, problems = draw_all(items, tmp_path, STAMP, show=False)
    assert problems == [f"cannot draw {what} of loss, dt: ZeroDivisionError: no ink"]
    assert capsys.readouterr().out.count("cannot draw") == 1
    assert set(paths) == ({"pngs", "svgs"} if broken == "save_text" else {"tplot"})
