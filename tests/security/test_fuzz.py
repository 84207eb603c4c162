"""Readers of foreign bytes meet damaged input: what has broken one before, and always the same mutations of the rest.

The search for new ones, with a seed of its own, is `make fuzz`.
"""

import os
from types import SimpleNamespace

import fuzz
import pytest

SEED = 1  # of all targets: other seeds belong to `make fuzz`, which prints them


@pytest.mark.slow
def test_damaged_input_breaks_no_reader(subtests):
    for name, one in fuzz.load_targets().items():
        with subtests.test(name):
            result = fuzz.run(one, SEED, inputs=one.inputs)
            assert not result.failures, f"seed {SEED}: {result.failures}"
            assert result.inputs == len(one.seeds) + one.inputs > 20


@pytest.mark.slow
def test_what_has_broken_a_reader_breaks_none_any_more(subtests):
    for path in fuzz.recorded():
        with subtests.test(path.name):
            error, _ = fuzz.feed(fuzz.target_of(path), path.read_bytes())
            assert not error


def test_the_same_seed_gives_the_same_inputs_and_another_one_others():
    def fed(seed):
        came = []
        fuzz.run(fuzz.Target("any", came.append, (b"[1, 2]", b'{"a": 1}')), seed, inputs=50)
        return came

    assert fed(1) == fed(1)
    assert fed(1)[2:] != fed(2)[2:]
    assert len(fed(1)) == 52


def test_a_reader_that_breaks_is_reported_and_its_input_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)

    def feed(data):
        assert b"[[" not in data

    result = fuzz.run(fuzz.Target("brittle", feed, (b"[1, 2]",)), 1, inputs=5000)
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

    result = fuzz.run(fuzz.Target("endless", feed, (b"x",)), 1, inputs=1, most_failures=1)
    assert [error for _, error in result.failures] == ["TooSlow: longer than 0.05 s"]


def test_an_input_for_which_a_reader_waits_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    monkeypatch.setattr(fuzz, "SLOWEST", 0.05)
    read, write = os.pipe()
    result = fuzz.run(fuzz.Target("waiting", lambda _: os.read(read, 1), (b"x",)), 1, inputs=1, most_failures=1)
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
    result = fuzz.run(fuzz.Target("late", feed, (b"one", b"two")), 1, seconds=1.0)
    assert came[:2] == [b"one", b"two"]
    assert len(came) == result.inputs == 3
