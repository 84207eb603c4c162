"""``ezpz fetch``: what it prints, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
from hub import Rows, put

import ezpz
from ezpz.cli import main as ezpz_main
from ezpz.cli.fetch import main


@pytest.fixture
def hub(monkeypatch):
    return put(monkeypatch, mnist={"train": Rows(1), "test": Rows(1)})


def test_it_fetches_and_prints_where_the_data_lies(hub, tmp_path, capsys):
    assert main(["mnist", "hf:me/mnist@small:train", "digits", "--folder", str(tmp_path)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "mnist: /cache/x"
    assert second.startswith("hf:me/mnist@small:train: ")
    assert third.endswith("digits.csv.gz (ships with ezpz)")
    assert hub.asked[0] == ("ylecun/mnist", None, {"cache_dir": str(tmp_path)})
    assert hub.asked[1][1:] == ("small", {"cache_dir": str(tmp_path), "split": "train"})


def test_the_list_tells_what_the_names_mean(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert ezpz_main(["fetch", "--list"]) == 0
    told = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"mnist", "fashion_mnist", "cifar10", "c4", "c4_test", "digits", "shakespeare"} == set(told)
    assert told["cifar10"].endswith("hf:uoft-cs/cifar10")
    assert told["shakespeare"].endswith("ships with ezpz")


WRONG = [
    (["minst"], "unknown data set 'minst' (from the command line); expected one of mnist, "),
    (["minst"], "Did you mean mnist?"),
    (["xyzzy"], "`ezpz fetch --list` shows them."),
    (["CIFAR-10"], "Did you mean cifar10?"),
    ([], "nothing to fetch"),
    (["--list", "mnist"], "expected no 'mnist'"),
    (["--nonsense"], "`ezpz fetch --help`"),
]


def test_what_is_wrong_is_one_line(subtests, hub, capsys):
    for words, told in WRONG:
        with subtests.test(words, told=told):
            assert main([*words]) == 2
            out, err = capsys.readouterr()
            assert (out, err.count("\n")) == ("", 1)
            assert told in err
    assert main(["mnist", "minst"]) == 2  # before anything is downloaded
    assert hub.asked == []


def test_a_failed_download_is_told_with_its_reason(hub, capsys):
    assert main(["cifar10"]) == 125
    err = capsys.readouterr().err
    assert "Couldn't reach 'uoft-cs/cifar10' on the Hub (from datasets)" in err
    assert err.count("\n") == 1


def test_help_explains(capsys):
    assert main(["--help"]) == 0
    assert "HF_HOME" in capsys.readouterr().out


def test_it_loads_neither_torch_nor_numpy(tmp_path, clean_env):
    code = (
        "import sys; from ezpz.cli import main; assert main(['fetch', '--list']) == 0; "
        "assert main(['fetch', 'digits']) == 0; assert not {'torch', 'numpy', 'rich'} & set(sys.modules), sys.modules"
    )
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True, timeout=60)
