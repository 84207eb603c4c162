"""The decorator that measures: what it records, where, and when it asks who it is."""

import asyncio
import sys
import types

import pytest

import ezpz
from ezpz.dist import timing


@pytest.fixture
def rows(monkeypatch):
    """Rows that a running wandb run of this process gets."""
    got = []
    run = types.SimpleNamespace(log=lambda row, commit: got.append((row, commit)))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=run))
    monkeypatch.setattr(timing, "_is_recording", True)
    return got


def test_a_call_returns_its_value_and_is_recorded_with_the_next_row(rows):
    @ezpz.timeitlogit()
    def add(a, *, b):
        """Add."""
        return a + b

    assert add(1, b=2) == 3
    ((row, commit),) = rows
    assert commit is False
    name = "timeit/test_a_call_returns_its_value_and_is_recorded_with_the_next_row.<locals>.add"
    assert list(row) == [name]
    assert 0 <= row[name] < 60
    assert (add.__name__, add.__doc__) == ("add", "Add.")


def test_methods_prefixes_and_the_bare_form_work(rows):
    class Trainer:
        @ezpz.dist.timeitlogit(prefix="timers")
        def step(self):
            return self

        @staticmethod
        @ezpz.dist.timeit
        def load():
            return "data"

    trainer = Trainer()
    assert trainer.step() is trainer
    assert Trainer.load() == "data"
    assert [next(iter(row)).rpartition(".<locals>.")[2] for row, _ in rows] == ["Trainer.step", "Trainer.load"]
    assert next(iter(rows[0][0])).startswith("timers/")


def test_the_awaited_time_of_an_async_function_counts(rows):
    @ezpz.timeitlogit()
    async def wait():
        await asyncio.sleep(0.05)
        return "done"

    assert asyncio.run(wait()) == "done"
    assert next(iter(rows[0][0].values())) >= 0.05


def test_a_call_that_raises_is_not_recorded(rows):
    @ezpz.timeitlogit()
    def fail():
        raise KeyError("no")

    with pytest.raises(KeyError):
        fail()
    assert rows == []


def test_nothing_is_recorded_when_not_asked_for(rows):
    ezpz.timeitlogit(record=False)(lambda: None)()
    assert rows == []


@pytest.mark.parametrize("module", [None, types.SimpleNamespace(run=None), types.SimpleNamespace()])
def test_without_a_running_wandb_the_call_goes_through(monkeypatch, module):
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    if module is not None:
        monkeypatch.setitem(sys.modules, "wandb", module)
    assert ezpz.timeitlogit()(lambda: 5)() == 5
    assert sys.modules.get("wandb") is module


def test_a_wandb_that_fails_costs_one_warning(rows, monkeypatch, capsys):
    def fail(row, commit):
        raise ConnectionError("gone")

    sys.modules["wandb"].run.log = fail
    work = ezpz.timeitlogit()(lambda: 5)
    assert [work(), work()] == [5, 5]
    assert capsys.readouterr().out.count("ConnectionError: gone") == 1


@pytest.mark.parametrize(
    ("keywords", "own", "lines"), [({}, 0, 1), ({}, 1, 0), ({"rank": 0}, 0, 1), ({"rank": 1}, 1, 0)]
)
def test_rank_0_says_it_and_the_rank_is_asked_at_the_call(monkeypatch, capsys, keywords, own, lines):
    asked = []
    monkeypatch.setattr(timing, "get_rank", lambda: asked.append(own) or own)
    work = ezpz.timeitlogit(verbose=True, **keywords)(lambda: None)
    assert asked == []
    work()
    assert capsys.readouterr().out.count("took") == lines
    assert len(asked) == (0 if keywords else 1)
