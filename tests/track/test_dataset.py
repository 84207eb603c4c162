from __future__ import annotations

import io
import math

import h5py
import numpy as np
import pytest

from ezpz.errors import TrackError
from ezpz.track import read_journal
from ezpz.track.columns import gather
from ezpz.track.dataset import SCHEMA, export_run, open_dataset, write_dataset

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
    assert set(dataset.coords) == {"draw", "step", "logged_at"}
    assert dataset["step"].dims == ("draw",)
    assert dataset["step"].values.tolist() == [10, 11, 12, 13]
    assert dataset["logged_at"].values.tolist() == [1e9 + i / 8 for i in range(4)]
    assert dataset["iter"].dtype == dataset["tokens"].dtype == np.int64
    assert dataset["iter"].values.tolist() == [2**24 + 1 + i for i in range(4)]
    assert dataset["tokens"].values.tolist() == [row["tokens"] for row in ROWS]
    np.testing.assert_array_equal(dataset["train_loss"].values, [0.1, np.nan, np.nan, -np.inf])
    assert dataset["train_loss_present"].values.tolist() == [1, 1, 0, 1]
    np.testing.assert_array_equal(dataset["eval_loss"].values, [np.nan, np.nan, np.inf, np.nan])
    assert dataset["count"].values.tolist() == [0, 0, 5, 0]
    assert dataset["ok"].dtype == bool
    assert dataset["split"].values.tolist() == ["train", "é∂", "", ""]
    assert dataset["big"].values.tolist() == ["", "", str(2**70), ""]
    assert dataset["hist"].dims == ("draw", "hist_dim")
    assert dataset["tail_len"].values.tolist() == [0, 0, 1, 3]
    assert dataset.attrs == {"ezpz_schema": SCHEMA, **ATTRS}


def test_plain_h5py_reads_one_flat_group(path):
    with h5py.File(path) as file:
        assert all(isinstance(item, h5py.Dataset) for item in file.values())
        assert file["ok"].dtype == np.int8
        assert file["ok"].attrs["dtype"] == "bool"
        assert file["train_loss"].attrs["key"] == "train/loss"
        assert file["split"].asstr()[:].tolist() == ["train", "é∂", "", ""]


def test_the_file_is_closed_and_can_be_replaced_while_its_dataset_is_in_use(path):
    dataset = open_dataset(path)
    write_dataset(path, table(ROWS[:2]), ATTRS)
    path.unlink()
    assert dataset["iter"].values.tolist() == [2**24 + 1 + i for i in range(4)]


def test_a_second_export_is_the_same_file(path):
    before = path.read_bytes()
    write_dataset(path, table(), ATTRS)
    assert path.read_bytes() == before


def test_nothing_but_the_file_is_left_in_the_folder(path, tmp_path):
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "metrics", [[], [{}], [{"h": []}, {}], [{"a": 1}]], ids=["no rows", "no keys", "empty list", "one"]
)
def test_the_smallest_journals_make_a_dataset(tmp_path, metrics):
    write_dataset(tmp_path / "a.h5", table(metrics), ATTRS)
    dataset = open_dataset(tmp_path / "a.h5")
    assert dataset.sizes["draw"] == len(metrics)
    assert set(dataset.data_vars) >= {key for row in metrics for key in row}


@pytest.mark.parametrize("key", ["a b", "$x$", "naïve", "a.b", "-", "_x", "%", "a:b", "损失"])
def test_unusual_names_survive(tmp_path, key):
    write_dataset(tmp_path / "a.h5", table([{key: 1.5}]), ATTRS)
    assert open_dataset(tmp_path / "a.h5")[key].values.tolist() == [1.5]


def test_a_collision_leaves_the_older_export_alone(path):
    before = path.read_bytes()
    with pytest.raises(TrackError, match="train/loss"):
        write_dataset(path, table([{"train/loss": 1.0, "train_loss": 1.0}]), ATTRS)
    assert path.read_bytes() == before


def test_a_folder_that_is_gone_is_an_error_that_says_what_is_safe(tmp_path):
    with pytest.raises(TrackError, match=r"cannot write the export .*no/a\.h5: No such file.*safe in metrics\.jsonl"):
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
    history._writer.journal.sync()
    path = export_run(history.outdir)
    assert path == history.outdir / "run.h5"
    before = path.read_bytes()
    assert history.export() == path
    assert path.read_bytes() == before
    (history.outdir / "run.json").write_text("[]")
    with pytest.raises(TrackError, match=r"cannot read .*run\.json"):
        export_run(history.outdir)


def test_a_file_image_opens_with_xarray_alone(path):
    """Users open the file by its path too; h5netcdf must find the same there as in memory."""
    import xarray as xr

    with xr.open_dataset(path, engine="h5netcdf") as by_path:
        assert by_path.load().identical(open_dataset(path))
    assert io.BytesIO(path.read_bytes()).read(4) == b"\x89HDF"
