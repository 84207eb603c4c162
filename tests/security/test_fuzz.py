"""Readers of foreign bytes meet damaged input, for a few seconds each; `make fuzz` gives them minutes."""

import os
import random
from types import SimpleNamespace

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
    monkeypatch.setattr(fuzz, "_STUCK", 5000)  # the machine may be busy with others

    def feed(data):
        while True:
            pass

    result = fuzz.run(fuzz.Target("endless", feed, (b"x",), 5.0), 5.0, 1, most_failures=1)
    assert [error for _, error in result.failures] == ["TooSlow: longer than 0.05 s"]


def test_an_input_for_which_a_reader_waits_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    monkeypatch.setattr(fuzz, "SLOWEST", 0.05)
    read, write = os.pipe()
    result = fuzz.run(fuzz.Target("waiting", lambda _: os.read(read, 1), (b"x",), 5.0), 5.0, 1, most_failures=1)
    assert [error for _, error in result.failures] == ["TooSlow: waits for 0.6 s"]
    os.close(read)
    os.close(write)


def test_a_reader_whose_first_input_takes_all_of_its_time_meets_damaged_input_nevertheless(monkeypatch):
    """As the first one that imports torch on a busy machine does."""
    came = []

    def feed(data):
        came.append(data)
        clock.now += 100

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(fuzz, "time", SimpleNamespace(monotonic=lambda: clock.now))
    result = fuzz.run(fuzz.Target("late", feed, (b"one", b"two"), 1.0), 1.0, 1)
    assert came[:2] == [b"one", b"two"]
    assert len(came) == result.inputs == 3
