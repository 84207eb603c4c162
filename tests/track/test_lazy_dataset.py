"""What `History.finalize` returns: an xarray.Dataset to all who use it, and cheap for all who do not."""

import copy
import pickle
from collections.abc import Mapping

import numpy as np
import pytest

from ezpz.track.lazy_dataset import LazyDataset, dataset_of, open_dataset


@pytest.fixture
def xr():
    """xarray, imported by a test that needs it: whoever collects this file does not pay for it."""
    import xarray

    return xarray


@pytest.fixture
def path(history):
    history.update({"loss": 1.0, "n": 3, "note": "é", "ok": True})
    history.update({"loss": 0.5, "n": 4, "note": "", "ok": False})
    return history.export()


@pytest.fixture
def lazy(path, xr):
    return LazyDataset(path.read_bytes())


@pytest.fixture
def real(path):
    return open_dataset(path)


def test_a_run_ends_without_xarray_matplotlib_or_pandas(run_python):
    """Who prints it afterwards gets what xarray prints, and isinstance is right before and after."""
    code = """
import sys
from collections.abc import Mapping
from ezpz.track import History
history = History("train", "out")
for step in range(3): history.update({"loss": 1.0 / (step + 1)})
dataset = history.finalize(plots=False)
assert isinstance(dataset, Mapping) and not isinstance(dataset, dict) and history.finalize() is dataset
heavy = {"xarray", "pandas", "matplotlib", "h5netcdf", "plotext"} & set(sys.modules)
assert not heavy, heavy
text = repr(dataset)
import xarray
assert isinstance(dataset, xarray.Dataset)
assert text == repr(xarray.open_dataset("out/train.h5", engine="h5netcdf").load()), text
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow
def test_other_ranks_get_an_empty_one_without_xarray(run_python):
    code = """
import sys
from ezpz.track import History
history = History("train", "out")
history.update({"loss": 1.0})
dataset = history.finalize()
assert not {"xarray", "h5py", "matplotlib"} & set(sys.modules)
assert dict(dataset.sizes) == {} and not dataset and len(dataset) == 0
"""
    rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    done = run_python(code, **rank)
    assert done.returncode == 0, done.stderr.decode()


def test_who_has_loaded_xarray_gets_a_plain_dataset(path, xr):
    assert type(dataset_of(path.read_bytes())) is xr.Dataset
    assert type(dataset_of(b"")) is xr.Dataset


def test_nothing_is_read_before_it_is_touched(lazy, xr, monkeypatch):
    monkeypatch.setattr(xr, "open_dataset", lambda *_, **__: pytest.fail("read"))
    assert isinstance(lazy, xr.Dataset)
    assert isinstance(lazy, Mapping)
    assert not isinstance(lazy, (dict, xr.DataArray))


def test_it_is_as_it_was_at_the_end_of_the_run_and_the_real_one_knows_it(lazy, path, real, xr):
    path.unlink()
    xr.testing.assert_identical(lazy.load(), real)
    assert real.equals(lazy)
    assert real.identical(lazy)
    numbers = ["loss", "n"]
    xr.testing.assert_identical(real[numbers] - lazy[numbers], lazy[numbers] - real[numbers])
    assert (real[numbers] == lazy[numbers])["loss"].all()
    assert (LazyDataset(b"") == real).sizes == (xr.Dataset() == real).sizes


def merged(ds):
    import xarray as xr

    twice = xr.concat([ds, ds], dim="draw")
    own = xr.Dataset({"a": 1}).assign(loss=ds["loss"])
    return xr.merge([ds, xr.Dataset({"more": 1, "draws": twice.sizes["draw"], "own": own["loss"].sum()})])


USES = [
    lambda ds: (repr(ds), str(ds), f"{ds}", len(ds), bool(ds), list(ds), sorted(ds), dir(ds), "loss" in ds),
    lambda ds: (ds["loss"].values.tolist(), ds.loss.values.tolist(), ds.mean()["loss"].item(), ds.equals(ds.copy())),
    lambda ds: list(ds.items()),
    lambda ds: (dict(ds.sizes), dict(ds.attrs), ds.to_dict()),
    lambda ds: {name: var.dtype for name, var in ds.variables.items()},
    lambda ds: ds[["loss"]] + 1,
    lambda ds: 1 - ds[["loss"]],
    lambda ds: (1.0 / ds.drop_vars(["note", "ok"]))["loss"].values.tolist(),
    lambda ds: ds.drop_vars("note") * np.float64(2),
    lambda ds: np.abs(ds.drop_vars("note")),
    lambda ds: ds.drop_vars("note") > 0.7,
    lambda ds: ds.where(ds["step"] > 0, drop=True),
    merged,
    copy.copy,
    copy.deepcopy,
    lambda ds: ds.copy(deep=True),
    lambda ds: pickle.loads(pickle.dumps(ds)),
    lambda ds: pickle.loads(pickle.dumps(ds, protocol=5)),
    lambda ds: ds.__enter__()["n"],
    lambda ds: ds._repr_html_() and True,
]


def test_it_does_what_the_dataset_does(subtests, lazy, real, xr):
    for use in USES:
        with subtests.test(f"use {USES.index(use)}"):
            here, there = use(lazy), use(real)
            assert type(here) is type(there)
            if isinstance(there, (xr.Dataset, xr.DataArray)):
                xr.testing.assert_identical(here, there)
            elif isinstance(there, list) and there and isinstance(there[0], tuple):
                assert [name for name, _ in here] == [name for name, _ in there]
            else:
                assert here == there


def test_changes_stay(lazy):
    lazy["twice"] = 2 * lazy["loss"]
    lazy.attrs = {"by": "me"}
    del lazy["note"]
    assert lazy["twice"].values.tolist() == [2.0, 1.0]
    assert lazy.attrs == {"by": "me"}
    assert "note" not in lazy


def test_it_is_written_again(lazy, real, tmp_path, xr):
    lazy.to_netcdf(tmp_path / "copy.nc", engine="h5netcdf")
    xr.testing.assert_identical(open_dataset(tmp_path / "copy.nc"), real)


def test_what_a_dataset_has_not_it_has_not(lazy, real, xr):
    for wrong in (hash, reversed, lambda ds: ds @ ds, lambda ds: 2 << ds, int, np.array):
        with pytest.raises(TypeError):
            wrong(lazy)
    try:
        xr.Dataset(real)
    except TypeError:  # xarray 2025.6, the last one for Python 3.10, takes it
        with pytest.raises(TypeError):
            xr.Dataset(lazy)
    with pytest.raises(AttributeError, match="'Dataset' object has no attribute 'lossy'"):
        getattr(lazy, "lossy")  # noqa: B009  # an expression alone would be useless to linters


def test_every_operator_of_a_dataset_is_passed_on(xr):
    """A later xarray may have more of them."""
    own = {"__init__", "__new__", "__init_subclass__", "__class_getitem__", "__getattribute__", "__getstate__"}
    special = {name for name in dir(xr.Dataset) if name.startswith("__") and callable(getattr(xr.Dataset, name))}
    asked_of_the_object = {name for name in special if name.startswith("__dask_")}
    missing = special - set(vars(LazyDataset)) - set(dir(object)) - own - asked_of_the_object
    assert not missing
    assert {"__repr__", "__str__", "__format__", "__eq__", "__hash__", "__reduce_ex__"} <= set(vars(LazyDataset))
