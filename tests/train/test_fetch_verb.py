"""``ezpz fetch``: what it prints, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
from mirror import Mirror, dataset

import ezpz
from ezpz.cli import main as ezpz_main
from ezpz.cli.fetch import main
from ezpz.train.data import download

FILES = {"one.gz": b"x" * 2_000_000, "two.gz": b"y"}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Mirror(FILES) as mirror:
        monkeypatch.setitem(download.CATALOG, "tiny", dataset("tiny", FILES, mirror.url("good")))
        yield mirror


def test_it_fetches_and_prints_where_the_data_lies(tiny, tmp_path, capsys):
    assert main(["tiny", "digits", "--folder", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first == f"tiny: {tmp_path}/tiny"
    assert second.startswith("digits: ")
    assert second.endswith("digits.csv.gz (ships with ezpz)")
    assert err == ""
    assert (tmp_path / "tiny" / "one.gz").stat().st_size == 2_000_000


def test_the_list_tells_sizes_and_what_is_here(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EZPZ_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def states():
        assert ezpz_main(["fetch", "--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == f"Data folder: {tmp_path}"
        return {line.split()[0]: line for line in lines[:-2]}

    told = states()
    assert {"mnist", "fashion_mnist", "cifar10", "digits", "shakespeare", "tiny"} == set(told)
    assert "170.1 MB  not here" in told["cifar10"]
    assert "shipped" in told["shakespeare"]
    assert "2.0 MB  not here" in told["tiny"]
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "one.gz").write_bytes(b"x")
    assert "in part" in states()["tiny"]
    assert main(["tiny"]) == 0
    capsys.readouterr()
    assert "2.0 MB  here" in states()["tiny"]


WRONG = [
    (["minst"], "unknown data set 'minst' (from the command line); expected one of mnist, "),
    (["minst"], "Did you mean mnist?"),
    (["xyzzy"], "`ezpz fetch --list` shows them."),
    (["CIFAR-10"], "Did you mean cifar10?"),
    ([], "nothing to fetch"),
    (["--list", "mnist"], "expected no 'mnist'"),
    (["--nonsense"], "`ezpz fetch --help`"),
]


def test_what_is_wrong_is_one_line(subtests, tiny, tmp_path, capsys):
    for words, told in WRONG:
        with subtests.test(words, told=told):
            assert main([*words]) == 2
            out, err = capsys.readouterr()
            assert (out, err.count("\n")) == ("", 1)
            assert told in err


def test_a_misspelt_name_is_told_before_anything_is_downloaded(tiny, tmp_path, capsys):
    assert main(["tiny", "minst", "--folder", str(tmp_path)]) == 2
    assert tiny.asked == []
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_is_told_with_its_reason(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(download.CATALOG, "tiny", dataset("tiny", FILES, tiny.url("absent")))
    assert main(["tiny", "--folder", str(tmp_path)]) == 125
    err = capsys.readouterr().err
    assert "HTTP Error 404" in err
    assert err.count("\n") == 1


def test_help_explains(capsys):
    assert main(["--help"]) == 0
    assert "EZPZ_DATA" in capsys.readouterr().out


def test_it_loads_neither_torch_nor_numpy(tmp_path, clean_env):
    code = (
        "import sys; from ezpz.cli import main; assert main(['fetch', '--list']) == 0; "
        "assert main(['fetch', 'digits']) == 0; assert not {'torch', 'numpy', 'rich'} & set(sys.modules), sys.modules"
    )
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True, timeout=60)
