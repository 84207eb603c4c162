import csv
import json
import math

import h5py
import numpy as np
import pytest

from ezpz.errors import TrackError, UsageError
from ezpz.track import read_journal
from ezpz.track.dataset import SCHEMA, export_run, write_csv, write_dataset
from ezpz.track.journal_writer import Journal
from ezpz.track.lazy_dataset import open_dataset
from ezpz.track.table import gather
from ezpz.track.values import Histogram

ATTRS = {"name": "run", "time": "2026-11-20T16:20:01+00:00"}
ROWS = [
    {"iter": 2**24 + 1, "train/loss": 0.1, "tokens": 10**15 + 1, "ok": True, "split": "train", "hist": [1, 2]},
    {"iter": 2**24 + 2, "train/loss": math.nan, "tokens": 10**15 + 2, "ok": False, "split": "é∂", "hist": [3, 4]},
    {"iter": 2**24 + 3, "tokens": 2**53 + 1, "eval/loss": math.inf, "count": 5, "big": 2**70, "tail": [1.5]},
    {"iter": 2**24 + 4, "train/loss": -math.inf, "tokens": -(2**63), "tail": [0.5, math.nan, 2.5]},
]


def table(metrics=ROWS, first=10):
    return gather({"v": 1, "t": 1e9 + i / 8, "step": first + i, "m": dict(m)} for i, m in enumerate(metrics))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run.h5"
    write_dataset(path, table(), ATTRS)
    return path


def test_xarray_shows_draw_step_types_and_values(path):
    dataset = open_dataset(path)
    assert dict(dataset.sizes) == {"draw": 4, "hist_dim": 2, "tail_dim": 3}
    assert set(dataset.coords) == {"draw", "step", "logged_at", "counts"}
    assert dataset["counts"].dtype == bool
    assert dataset["counts"].values.all()
    assert dataset["step"].dims == ("draw",)
    assert dataset["step"].values.tolist() == [10, 11, 12, 13]
    assert dataset["logged_at"].values.tolist() == [1e9 + i / 8 for i in range(4)]
    assert dataset["iter"].dtype == dataset["tokens"].dtype == np.int64
    assert dataset["iter"].values.tolist() == [2**24 + 1 + i for i in range(4)]
    assert dataset["tokens"].values.tolist() == [row["tokens"] for row in ROWS]
    np.testing.assert_array_equal(dataset["train_loss"].values, [0.1, np.nan, np.nan, -np.inf])
    assert dataset["train_loss_present"].values.tolist() == [1, 1, 0, 1]
    np.testing.assert_array_equal(dataset["eval_loss"].values, [np.nan, np.nan, np.inf, np.nan])
    np.testing.assert_array_equal(dataset["count"].values, [np.nan, np.nan, 5, np.nan])
    np.testing.assert_array_equal(dataset["ok"].values, [1, 0, np.nan, np.nan])
    assert dataset["ok"].attrs["recorded"] == "bool"
    assert dataset["split"].values.tolist() == ["train", "é∂", "", ""]
    assert dataset["big"].values.tolist() == ["", "", str(2**70), ""]
    assert dataset["hist"].dims == ("draw", "hist_dim")
    assert dataset["tail_len"].values.tolist() == [0, 0, 1, 3]
    assert dataset.attrs == {"ezpz_schema": SCHEMA, **ATTRS}


def test_plain_h5py_reads_one_flat_group(path):
    with h5py.File(path) as file:
        assert all(isinstance(item, h5py.Dataset) for item in file.values())
        assert file["counts"].dtype == np.int8
        assert file["counts"].attrs["dtype"] == "bool"
        assert file["ok"].attrs["recorded"] == "bool"
        assert file["train_loss"].attrs["key"] == "train/loss"
        assert file["split"].asstr()[:].tolist() == ["train", "é∂", "", ""]


def test_the_file_is_closed_and_can_be_replaced_while_its_dataset_is_in_use(path):
    dataset = open_dataset(path)
    write_dataset(path, table(ROWS[:2]), ATTRS)
    path.unlink()
    assert dataset["iter"].values.tolist() == [2**24 + 1 + i for i in range(4)]


def test_a_second_export_is_the_same_file_and_the_only_one(path, tmp_path):
    before = path.read_bytes()
    write_dataset(path, table(), ATTRS)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_smallest_journals_make_a_dataset(subtests, tmp_path):
    for metrics in [[], [{}], [{"h": []}, {}], [{"a": 1}]]:
        with subtests.test(str(metrics)):
            write_dataset(tmp_path / "a.h5", table(metrics), ATTRS)
            dataset = open_dataset(tmp_path / "a.h5")
            assert dataset.sizes["draw"] == len(metrics)
            assert set(dataset.data_vars) >= {key for row in metrics for key in row}


def test_unusual_names_survive(tmp_path):
    values = {
        name: [place / 2] for place, name in enumerate(["a b", "$x$", "naïve", "a.b", "-", "_x", "%", "a:b", "损失"])
    }
    write_dataset(tmp_path / "a.h5", table([{name: value for name, [value] in values.items()}]), ATTRS)
    dataset = open_dataset(tmp_path / "a.h5")
    assert {name: dataset[name].values.tolist() for name in values} == values


def test_metrics_that_collide_are_told_apart_by_their_key(tmp_path):
    write_dataset(tmp_path / "a.h5", table([{"train/loss": 1.0, "train_loss": 2.0}]), ATTRS)
    dataset = open_dataset(tmp_path / "a.h5")
    assert {name: (dataset[name].attrs["key"], dataset[name].values.tolist()) for name in dataset.data_vars} == {
        "train_loss": ("train/loss", [1.0]),
        "train_loss_2": ("train_loss", [2.0]),
    }


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_columns_than_hdf5_lists_for_one_axis_make_a_whole_file(tmp_path):
    rows = table([{f"layer/{number}": float(number) for number in range(5000)}, {"layer/0": 0.5}])
    write_dataset(tmp_path / "a.h5", rows, ATTRS)
    with h5py.File(tmp_path / "a.h5") as file:
        assert len(file) == 5000 + 4
        assert all(file[f"layer_{number}"].dims[0][0] == file["draw"] for number in range(0, 5000, 99))
        assert "REFERENCE_LIST" not in file["draw"].attrs
    import xarray as xr

    dropped = [f"layer_{number}" for number in range(100, 5000)]
    with xr.open_dataset(tmp_path / "a.h5", engine="h5netcdf", drop_variables=dropped) as dataset:
        assert dict(dataset.sizes) == {"draw": 2}
        assert dataset["layer_99"].values[0] == 99.0


def test_a_scale_lists_its_variables_as_hdf5_itself_does(path):
    with h5py.File(path) as file:
        scale = file["draw"]
        listed = {file[ref].name: axis for ref, axis in scale.attrs["REFERENCE_LIST"]}
        assert listed["/train_loss"] == 0
        for name in listed:
            file[name].dims[0].attach_scale  # noqa: B018  # can be asked for
            assert file[name].dims[0][0] == scale


def test_a_folder_that_is_gone_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(
        TrackError, match=r"cannot write the export .*no/a\.h5: No such file.*metrics\.jsonl stays as it is"
    ):
        write_dataset(tmp_path / "no" / "a.h5", table(), ATTRS)


def test_the_export_says_exactly_what_the_journal_says(history):
    for step, row in enumerate(ROWS):
        history.update(row, step=step * 3)
    dataset = open_dataset(history.export())
    for draw, row in enumerate(read_journal(history.outdir)):
        at = dataset.isel(draw=draw)
        assert int(at["step"]) == row["step"]
        assert float(at["logged_at"]) == row["t"]
        for key in ("iter", "tokens", "train/loss", "eval/loss", "split", "ok"):
            if key in row["m"]:
                np.testing.assert_array_equal(at[key.replace("/", "_")].values, row["m"][key])


def test_a_run_that_was_killed_can_be_exported_later(history):
    history.update({"loss": 0.5})
    path = export_run(history.outdir)
    assert path == history.outdir / "run.h5"
    before = path.read_bytes()
    assert history.export() == path
    assert path.read_bytes() == before
    (history.outdir / "run.json").write_text("[]")  # a run that lost it is called after its folder
    assert export_run(history.outdir).name == "run.h5"
    with pytest.raises(UsageError, match="no run folder"):
        export_run(history.outdir / "elsewhere")
    with pytest.raises(UsageError, match="expected one of h5, nc, csv"):
        export_run(history.outdir, "parquet")


def test_a_csv_has_every_row_and_every_value(tmp_path):
    write_csv(tmp_path / "a.csv", table())
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["10", "11", "12", "13"]
    assert [row["train/loss"] for row in rows] == ["0.1", "NaN", "", "-Infinity"]
    assert [int(row["tokens"]) for row in rows] == [row["tokens"] for row in ROWS]
    assert [row["big"] for row in rows] == ["", "", str(2**70), ""]
    assert json.loads(rows[3]["tail"]) == [0.5, "NaN", 2.5]
    assert rows[1]["split"] == "é∂"
    assert rows[1]["ok"] == "False"


def test_the_nc_file_is_a_netcdf_file_of_the_same_content(history):
    import xarray as xr

    history.update({"loss": 0.5})
    path = history.export("nc")
    assert path.name == "run.nc"
    with xr.open_dataset(path, engine="h5netcdf") as dataset:
        assert dataset["loss"].values.tolist() == [0.5]
    assert history.export("csv").read_text().splitlines()[0] == "step,logged_at,attempt,loss"


def test_a_run_that_was_started_again_says_which_row_is_whose(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for steps in ((0, 1), (1, 2)):
        journal = Journal(path)
        for step in steps:
            journal.write(step, {"x": float(len(steps) * step + steps[0])})
        journal.close()
    dataset = open_dataset(export_run(tmp_path))
    assert dataset.coords["counts"].values.tolist() == [True, False, True, True]
    loss = dataset["x"]
    assert loss.values.tolist() == [0.0, 2.0, 3.0, 5.0]
    assert loss.where(loss.counts).mean() == (0 + 3 + 5) / 3
    assert dataset["step"].values.tolist() == [0, 1, 1, 2]
    assert dataset.coords["attempt"].values.tolist() == [1, 1, 2, 2]


def test_histograms_are_counts_and_edges(tmp_path):
    same = [Histogram([1, 2], [0.0, 1.0, 2.0]), Histogram([3, 4], [0.0, 1.0, 2.0])]
    other = [Histogram([1, 2], [0.0, 1.0, 2.0]), Histogram([3, 4], [0.0, 1.0, 4.0])]
    odd = [Histogram([1], [0.0, 1.0]), Histogram([3, 4], [0.0, 1.0, 4.0])]
    metrics = [{"x": 1.0, "a": same[i], "b": other[i], "c": odd[i]} for i in range(2)]
    write_dataset(tmp_path / "a.h5", table([*metrics, {"x": 2.0}]), ATTRS)
    dataset = open_dataset(tmp_path / "a.h5")
    np.testing.assert_array_equal(dataset["a"].values, [[1, 2], [3, 4], [np.nan, np.nan]])
    assert dataset["a"].attrs["kind"] == "histogram"
    assert dataset["a_present"].values.tolist() == [1, 1, 0]
    assert dataset["a_edges"].values.tolist() == [0.0, 1.0, 2.0]
    assert dataset["b_edges"].values.tolist()[:2] == [[0.0, 1.0, 2.0], [0.0, 1.0, 4.0]]
    assert json.loads(str(dataset["c"].values[1])) == {"counts": [3, 4], "edges": [0.0, 1.0, 4.0]}


def window(steps, ranks, every=1, a=1):
    block = np.array(ranks, dtype=float)
    shown = block if every else block.mean(axis=1, keepdims=True)
    found = {"mean": block.mean(0).tolist(), "min": block.min(0).tolist(), "max": block.max(0).tolist()}
    found |= {"std": block.std(0).tolist(), "ranks": shown.tolist()}
    m = {"world": len(ranks), "every": every, "steps": steps, "keys": {"train/loss": found}}
    return {"v": 1, "t": 0.0, "step": steps[-1], "a": a, "k": "ranks", "m": m}


def test_values_over_all_ranks_lie_at_their_steps_below_metrics_of_the_user(tmp_path):
    rows = table([{"train/loss": 1.0}, {"train/loss": 2.0}, {"train/loss": 3.0}], first=0)
    windows = [window([0, 1], [[1.0, 2.0], [3.0, 6.0]])]
    write_dataset(tmp_path / "a.h5", rows, ATTRS, windows)
    dataset = open_dataset(tmp_path / "a.h5")
    np.testing.assert_array_equal(dataset["train_loss_mean"].values, [2.0, 4.0, np.nan])
    np.testing.assert_array_equal(dataset["train_loss_max"].values, [3.0, 6.0, np.nan])
    assert dataset["train_loss_ranks"].dims == ("rank_step", "rank")
    assert dataset["train_loss_ranks"].values.tolist() == [[1.0, 3.0], [2.0, 6.0]]
    assert dataset["rank_step"].values.tolist() == [0, 1]
    windows = [window([0, 1], [[1.0, 2.0]] * 3, every=0), window([2], [[5.0]] * 3, every=0)]
    windows[1]["m"]["keys"]["train/loss"]["ranks"][2] = [None]
    write_dataset(tmp_path / "a.h5", rows, ATTRS, windows)
    dataset = open_dataset(tmp_path / "a.h5")
    np.testing.assert_array_equal(dataset["train_loss_ranks"].values, [[1.5] * 3, [5.0, 5.0, np.nan]])
    assert dataset["rank_step"].values.tolist() == [1, 2]
    rows = table([{"train/loss": 1.0, "train_loss_mean": 7.0, "rank": 0, "rank_step": 1}], first=0)
    write_dataset(tmp_path / "a.h5", rows, ATTRS, [window([0], [[1.0], [3.0]])])
    dataset = open_dataset(tmp_path / "a.h5")
    assert dataset["train_loss_mean"].values.tolist() == [7.0]
    assert dataset["train_loss_max"].values.tolist() == [3.0]
    assert dataset["train_loss_ranks"].dims == ("rank_step_", "rank_")


def test_how_many_ranks_a_statistic_is_of_is_told_also_of_records_that_do_not_say_it(tmp_path):
    rows = table([{"train/loss": float(step)} for step in range(5)], first=0)
    told, old, large = window([0, 1], [[1.0, 2.0]] * 3), window([2, 3], [[1.0, 2.0]] * 3), window([4], [[1.0]] * 3, 0)
    told["m"]["held"] = [3, 1]
    for m in (old["m"], large["m"]):
        m["keys"]["train/loss"]["ranks"][1] = [None] * len(m["steps"])
    write_dataset(tmp_path / "a.h5", rows, ATTRS, [told, old, large])
    assert open_dataset(tmp_path / "a.h5")["ranks_held"].values.tolist() == [3, 1, 2, 2, 2]
    write_dataset(tmp_path / "a.h5", rows, ATTRS, [told])
    assert open_dataset(tmp_path / "a.h5")["ranks_held"].values.tolist() == [3, 1, 0, 0, 0]
