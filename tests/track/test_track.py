"""The package itself: what it names, and what importing it costs."""

from pathlib import Path

import pytest

import ezpz.track

HEAVY = {"torch", "numpy", "h5py", "xarray", "h5netcdf", "matplotlib", "plotext", "wandb", "rich", "pandas"}


def loaded_after(run_python, code):
    result = run_python(f"{code}\nimport sys\nprint(*sys.modules)")
    assert result.returncode == 0, result.stderr
    return {name.partition(".")[0] for name in result.stdout.decode().splitlines()[-1].split()}


def test_the_package_names_what_scripts_use_and_completes_it():
    assert {"History", "histogram", "open_run", "profile", "read_journal", "setup_wandb"} < set(ezpz.track.__all__)
    assert set(ezpz.track.__all__) <= set(dir(ezpz.track))
    for name in ezpz.track.__all__:
        assert getattr(ezpz.track, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ezpz.track.nothing
    files = {path.stem for path in Path(ezpz.track.__file__).parent.iterdir()} - {"wandb"}
    assert not files & set(ezpz.track.__all__)  # importing such a module would hide the function


@pytest.mark.parametrize(
    "code",
    [
        "import ezpz.track",
        "from ezpz.track import History, read_journal, setup_wandb",
        "from ezpz.track import History; h = History('a', 'out'); print(h.update({'loss': 0.5}))",
    ],
    ids=["import", "names", "update"],
)
def test_nothing_heavy_is_loaded_before_the_end(run_python, code):
    assert not loaded_after(run_python, code) & HEAVY


@pytest.mark.slow
def test_even_a_whole_run_never_loads_torch_pyplot_or_rich(run_python):
    code = "from ezpz.track import History\nwith History('a', 'out') as h: h.update({'loss': 0.5})\n"
    loaded = loaded_after(run_python, code)
    assert {"numpy", "h5py", "matplotlib", "plotext"} <= loaded
    assert not loaded & {"torch", "wandb", "rich"}
    result = run_python(f"{code}import sys\nassert 'matplotlib.pyplot' not in sys.modules")
    assert result.returncode == 0, result.stderr
