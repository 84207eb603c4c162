"""Pairs of runs that differ by one thing: `ezpz compare` names it or is silent; pairs.toml says what is right."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from train_pairs import table

from ezpz.track.run_reader import open_run
from ezpz.view.compare.comparison import compare_runs
from lab.run_folders import environ

TRAIN = Path(__file__).with_name("train_pairs.py")


def checks():
    """Return (runs, pairs); each pair with its name, ``a`` and ``b``."""
    told = table()
    return told["runs"], [{"name": name, "a": "plain", "b": name, **pair} for name, pair in told["pairs"].items()]


RUNS, PAIRS = checks()
QUICK = [pair for pair in PAIRS if pair.get("quick")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained(pairs)` -> the folder of their runs, trained by one process for each number of ranks."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("pairs")

    @cache
    def train(ranks, names):
        start = [sys.executable]
        start += ["-m", "ezpz.launch", "--flavour", "local", "-n", str(ranks), sys.executable] if ranks > 1 else []
        names = [name for name in names if not (folder / name).exists()]
        line = [*start, TRAIN, folder, *names]
        if names:
            subprocess.run(line, env=environ(folder), check=True, timeout=570, capture_output=True, cwd=folder)

    def of(pairs):
        names = list(dict.fromkeys(pair[letter] for pair in pairs for letter in "ab"))
        for ranks in sorted({RUNS[name].get("ranks", 1) for name in names}):
            train(ranks, tuple(name for name in names if RUNS[name].get("ranks", 1) == ranks))
        return folder

    return of


def wrong(pair, folder):
    """Return what is wrong with the answer for a pair, an empty text if nothing is."""
    [found] = compare_runs([open_run(folder / pair[letter]) for letter in "ab"])
    text, notes = found.verdict.text, found.verdict.notes
    reasons = [] if re.search(pair["says"], text) else [f"no {pair['says']!r}"]
    reasons += [f"exit code {found.verdict.exit_code}"] if found.verdict.exit_code != pair["code"] else []
    if "never" in pair and re.search(pair["never"], "\n".join([text, *notes])):
        reasons.append("a false word")
    if "notes" in pair and not re.search(pair["notes"], "\n".join(notes)):
        reasons.append(f"no note {pair['notes']!r}")
    listed = {item.key for item in found.differences}
    reasons += [f"{key} is not listed" for key in pair.get("lists", ()) if key not in listed]
    return f"{'; '.join(reasons)}: {text} {notes}" if reasons else ""


def test_every_run_is_in_a_pair_and_every_pair_has_its_runs():
    assert {pair[letter] for pair in PAIRS for letter in "ab"} == set(RUNS)
    assert len(PAIRS) > 60


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_few_pairs_are_named(trained, subtests):
    folder = trained(QUICK)
    for pair in QUICK:
        with subtests.test(pair["name"]):
            assert wrong(pair, folder) == ""


@pytest.mark.learn  # a minute of training; `make matrix` asks for it by name
@pytest.mark.timeout(600)
def test_every_pair_is_named_or_silent(trained, subtests):
    folder = trained(PAIRS)
    for pair in PAIRS:
        with subtests.test(pair["name"]):
            assert wrong(pair, folder) == ""
