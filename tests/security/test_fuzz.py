"""Readers of foreign bytes meet damaged input, for a few seconds each; `make fuzz` gives them minutes."""

import random

import fuzz
import pytest

SEED = random.SystemRandom().randrange(1 << 32)
TARGETS = fuzz.load_targets()


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_breaks_no_reader(name):
    result = fuzz.run(TARGETS[name], TARGETS[name].seconds, SEED)
    assert not result.failures, f"seed {SEED}: {result.failures}"
    assert result.inputs > len(TARGETS[name].seeds)


def test_all_targets_fit_into_a_minute():
    assert sum(one.seconds for one in TARGETS.values()) <= 60
    assert sum(one.seconds for one in TARGETS.values() if one.feed.__module__ == "targets_control") <= 30


def test_a_reader_that_breaks_is_reported_and_its_input_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)

    def feed(data):
        assert b"[[" not in data

    result = fuzz.run(fuzz.Target("brittle", feed, (b"[1, 2]",), 5.0), 5.0, 1)
    path, error = result.failures[0]
    assert error.startswith("AssertionError")
    assert b"[[" in path.read_bytes()


def test_an_input_that_takes_too_long_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    monkeypatch.setattr(fuzz, "SLOWEST", 0.05)

    def feed(data):
        while True:
            pass

    result = fuzz.run(fuzz.Target("endless", feed, (b"x",), 5.0), 5.0, 1, most_failures=1)
    assert [error for _, error in result.failures] == ["TooSlow: longer than 0.05 s"]
