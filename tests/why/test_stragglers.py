"""Arrivals as ranks make them: with noise alone nothing is found, with a straggler it is, whatever the clocks show."""

import itertools
import pickle
import random
from types import SimpleNamespace

import pytest

from ezpz.dist import arrivals as arrivals_of_rank
from ezpz.dist.arrivals import arrivals, where
from ezpz.fields import replace
from ezpz.records.launch_record import LaunchRecord
from ezpz.watch.stragglers import launcher as arrivals_of_launch
from ezpz.watch.stragglers.launcher import ArrivalRecord, read_times
from ezpz.watch.stragglers.messages import ArrivalsTold, RankArrivals
from ezpz.why import Facts, diagnose
from ezpz.why.lag import CollectiveArrival, Meeting, mean_lags, meetings, window
from ezpz.why.straggler_rules import chance, find
from lab.watching import launcher_handle

WORLDS = 200


def world(rng, size, *, steps=120, step=0.3, noise=0.2, memory=0.0, late=None, delay=0.0, buckets=1):
    """Return the collectives of ranks that meet in every step, each with noise of its own that it partly keeps."""
    now, own, found = 0.0, [0.0] * size, {}
    for number in range(steps):
        own = [memory * one + rng.gauss(0, noise * step * (1 - memory * memory) ** 0.5) for one in own]
        took = [max(0.02, step + one) for one in own]
        if late is not None:
            took[late] += delay * rng.uniform(0.8, 1.2)
        for bucket in range(buckets):
            found[number * buckets + bucket] = {
                rank: CollectiveArrival(now + each + 0.002 * bucket) for rank, each in enumerate(took)
            }
        now += max(took) + 0.01
    return found


def straggler_in(windows):
    """Return what is found in windows as run.json has them."""
    return find(LaunchRecord.of({"arrivals": {"windows": windows}}).arrivals.windows)


def windows(found, number=3):
    begin, end = found[0].at, found[-1].at + 1e-6
    span = (end - begin) / number
    parts = [
        [each for each in found if begin + span * index <= each.at < begin + span * (index + 1)]
        for index in range(number)
    ]
    return [{"t": 0.0, "s": span, "groups": window(part)} for part in parts]


@pytest.mark.slow
def test_noise_alone_is_no_finding():
    for memory, noise, seed in itertools.product((0.0, 0.5, 0.9), (0.05, 0.2), range(WORLDS // 2)):
        rng = random.Random(seed)
        collectives = world(rng, rng.choice([2, 2, 3, 4, 8, 16]), noise=noise, memory=memory)
        assert straggler_in(windows(meetings("0", collectives))) is None, (memory, noise, seed)


@pytest.mark.slow
def test_a_straggler_is_found_whichever_it_is():
    for buckets, seed in itertools.product((1, 5), range(60)):
        rng = random.Random(seed)
        size = rng.choice([2, 2, 3, 4, 8, 16])
        late, delay = rng.randrange(size), rng.uniform(0.1, 0.4)
        collectives = world(rng, size, noise=0.05, late=late, delay=delay, buckets=buckets)
        found = straggler_in(windows(meetings("0", collectives)))
        assert found is not None, seed
        assert found.rank == late
        assert found.last > 0.9
        assert found.lag == pytest.approx(delay, rel=0.25)
        assert found.step == pytest.approx(0.31 + delay, rel=0.15)
        assert found.wait == pytest.approx(delay / (0.31 + delay), rel=0.25)
        assert found.chance < 1e-4 / size


RING, LOOK = 256, 5.0  # collectives that a rank keeps, seconds between two looks


def seen(rng, size, number, *, late=None, delay=0.0, spread=0.0, seconds=90.0, alone=0):
    """Return the meetings of looks at ranks that make a number of collectives in each step of 0.3 s, one after another.

    Args:
        rng: Draws the noise.
        size: How many ranks there are.
        number: Collectives of a step.
        late: The rank that comes late in each step.
        delay: By how many seconds.
        spread: Seconds of work between two collectives of a step, as in a backward; the rest is before the first.
        seconds: How long the run is.
        alone: Each so many steps rank 0 evaluates for a second while the others wait.
    """
    now, step, sequence, found, look = 0.0, 0, 0, [], {}
    due = LOOK
    while now < seconds:
        step += 1
        for index in range(number):
            work = 0.3 - spread * (number - 1) if index == 0 else spread
            took = [max(0.0, work + rng.gauss(0, 0.01 if index == 0 else 0.0002)) for _ in range(size)]
            if index == 0 and late is not None:
                took[late] += delay
            if index == 0 and alone and step % alone == 0:
                took[0] += 1.0
            sequence += 1
            look[sequence] = {rank: CollectiveArrival(now + each) for rank, each in enumerate(took)}
            now += max(took) + 0.0003
            if now >= due:  # in the middle of a step, mostly
                found += meetings("0", dict(list(look.items())[-RING:]))
                look, due = {}, due + LOOK
    return found


@pytest.mark.slow
def test_a_straggler_is_found_however_many_collectives_a_step_has():
    for number, spread, size in itertools.product((1, 5, 25, 60), (0.0, 0.003), (2, 4, 8)):
        rng = random.Random(f"{number} {size} {spread}")
        late = rng.randrange(size)
        found = straggler_in(windows(seen(rng, size, number, late=late, delay=0.05, spread=spread)))
        assert found is not None, (number, spread, size)
        assert found.rank == late
        assert found.last > 0.9
        assert found.lag == pytest.approx(0.05, rel=0.4)
        assert found.step == pytest.approx(0.36, rel=0.3)


@pytest.mark.slow
def test_many_collectives_of_ranks_that_are_alike_are_no_finding():
    for number, seed in itertools.product((1, 5, 25, 60), range(6)):
        rng = random.Random(seed)
        size = rng.choice([2, 4, 8])
        assert straggler_in(windows(seen(rng, size, number, spread=rng.choice([0.0, 0.003])))) is None, seed
        assert straggler_in(windows(seen(rng, size, number, alone=20))) is None, seed


def test_a_lag_below_a_tenth_of_a_step_is_no_finding():
    assert straggler_in(windows(meetings("0", world(random.Random(1), 2, noise=0.001, late=1, delay=0.02)))) is None


def test_two_windows_are_too_few():
    found = meetings("0", world(random.Random(1), 2, noise=0.01, late=1, delay=0.2))
    assert straggler_in(windows(found)[:2]) is None
    assert straggler_in(windows(found)) is not None


def test_who_is_last_must_be_the_same_rank_in_all_windows():
    rng = random.Random(3)
    parts = [windows(meetings("0", world(rng, 2, noise=0.01, late=late, delay=0.2)), 1)[0] for late in (0, 1, 0, 0)]
    assert straggler_in(parts) is None
    assert straggler_in([*parts, parts[0]]).rank == 0


def test_the_chance_of_a_lag():
    for lags, low, high in (
        ([1.0] * 12, 0.0, 1e-12),  # it never changes
        ([-0.1] * 12, 1.0, 1.0),
        ([0.0, 2.0] * 6, 0.001, 0.005),  # t = 3.317, 11 degrees: 0.0034 in tables of Student's t
        ([0.0] * 6 + [2.0] * 6, 0.02, 0.5),  # the same values, of which each is like its neighbour
        ([1.0], 1.0, 1.0),
    ):
        assert low <= chance(lags) <= high, lags


def test_overlapping_collectives_are_one_meeting():
    late = {
        number: {0: CollectiveArrival(1.0 + 0.01 * number), 1: CollectiveArrival(1.15 + 0.01 * number)}
        for number in range(4)
    }
    later = {
        40 + number: {0: CollectiveArrival(2.0 + number), 1: CollectiveArrival(2.1 + number)} for number in range(2)
    }
    found = meetings("0", {**late, **later})
    assert [round(one.at, 3) for one in found] == [1.0, 2.0, 3.0]
    assert [one.cycle for one in found] == [None, None, 1.0]  # collectives 4 to 39 were not recorded
    assert found[0].lags == pytest.approx({0: 0.0, 1: 0.15})
    assert mean_lags(found)[1] == pytest.approx((0.15 + 0.1 + 0.1) / 3, rel=1e-3)


def test_times_of_devices_count_more_than_those_of_hosts():
    found = meetings("0", {1: {0: CollectiveArrival(5.0, 0.2), 1: CollectiveArrival(4.0, 0.05)}})
    assert found == [Meeting("0", 4.0, None, {0: 0.0, 1: pytest.approx(0.15)})]


def entry(number, at, name="gloo:all_reduce", group="0", **more):
    return {
        "process_group": (group, "default_pg"),
        "collective_seq_id": number,
        "profiling_name": name,
        "time_created_ns": at * 1000,
        "is_p2p": False,
        **more,
    }


def test_arrivals_are_told_once_and_can_be_read_again():
    told = {}
    ring = [
        entry(1, 1_000_000),
        entry(2, 1_000_500, "gloo:broadcast"),
        entry(3, 1_000_800, "gloo:_reduce_scatter_base", duration_ms=0.25),
        entry(9, 5, is_p2p=True),
        entry(1, 1_000_900, group="1"),
    ]
    group, text = arrivals(ring, told, 10)
    assert (group, told) == ("gloo:0", {"gloo:0": 3})
    assert read_times(text) == [(1, 1.0, None), (3, 1.0008, 0.00025)]
    assert arrivals(ring, told, 10) == ("gloo:1", "+1:1000900")
    assert arrivals(ring, told, 10) == ("", "")
    many = [entry(number, 1_000_000 + number) for number in range(5000)]
    assert len(read_times(arrivals(many, {}, 256)[1])) == 256


def test_ranks_look_more_often_where_the_ring_is_too_short(monkeypatch):
    monkeypatch.setattr(arrivals_of_rank.progress, "tell", lambda *_: True)
    ring = []
    for ranks, period in ((2, 5), (1000, 15)):
        reporter = arrivals_of_rank._Reporter(lambda *_: pickle.dumps({"entries": ring}), ranks)
        reporter._began -= 600  # what it decides is when a thread wakes: no test waits for minutes to see that
        for numbers, expected in ((range(1, 9), 30), (range(5, 13), 30), (range(20, 28), period), (range(21, 29), 30)):
            ring[:] = [entry(number, 1_000_000 + number) for number in numbers]
            assert reporter.tell()
            reporter._cost = 0.0
            monkeypatch.setattr(arrivals_of_rank.time, "time", lambda: 1_000_000.5)
            assert reporter._next() == 1_000_000 - 1_000_000 % expected + expected


def test_damaged_times_are_none():
    for text in ("", "x", "1:2:3,,", "+1:", "~", "1,2,9e9"):
        assert read_times(text) == [], text


def test_where_a_thread_is():
    assert where(None) == ("own", "")
    namespace = {}
    source = "import sys\ndef step(inner):\n    return inner()\n"
    for name in ("/v/torch/utils/data/dataloader.py", "/v/torch/distributed/c.py", "/home/me/train.py"):
        exec(compile(source, name, "exec"), namespace)
        inner = eval(compile("lambda: __import__('sys')._getframe()", "<string>", "eval"))
        kind, line = where(namespace["step"](inner))
        assert kind == {"d": "loader", "c": "meets", "t": "own"}[name.rpartition("/")[2][0]]
        assert line.startswith("train.py:3 (step)") == (kind == "own")


@pytest.fixture
def tell(monkeypatch):
    """``tell(record, found, clocks)``: tell what ranks saw by the clocks of their hosts, which agents know."""
    launcher = SimpleNamespace(now=1.0)
    monkeypatch.setattr(arrivals_of_launch, "time", SimpleNamespace(monotonic=lambda: launcher.now))

    def tell(record, found, clocks, *, group="0", chunk=40):
        numbers = sorted(found)
        for begin in range(0, len(numbers), chunk):
            launcher.now += 60  # the look before is long ago
            for rank, clock in enumerate(clocks):
                ring = [
                    entry(number, int((found[number][rank].at + clock + 1e9) * 1e6))
                    for number in numbers[begin : begin + chunk]
                ]
                times = arrivals(ring, {}, 1000)[1]
                one = RankArrivals(rank=rank, group=group, span=5.0, figures=[0.1] * 7, times=times, where="a.py:3 (f)")
                record.hear(0, ArrivalsTold(clock=-clock, ranks=[one]))

    return tell


def test_clocks_of_hosts_do_not_count(tell, tmp_path):
    for clocks in ((0.0, 0.0), (0.0, 3600.0), (-0.2, 0.2), (7.5, -86400.0)):
        record = ArrivalRecord(launcher_handle(tmp_path))
        tell(record, world(random.Random(5), 2, noise=0.02, late=0, delay=0.15), clocks)
        summary = record.end()["arrivals"]
        found = straggler_in(summary["windows"])
        assert found.rank == 0, clocks
        assert found.lag == pytest.approx(0.15, rel=0.1)
        record = ArrivalRecord(launcher_handle(tmp_path))
        tell(record, world(random.Random(5), 2, noise=0.1), clocks)
        assert straggler_in(record.end()["arrivals"]["windows"]) is None, clocks


def test_a_clock_that_nobody_corrects_would_be_found_late(tell, tmp_path):
    """What the test above rests on: without the agents' clocks a host that is ahead seems to come last."""
    record = ArrivalRecord(launcher_handle())
    found = world(random.Random(5), 2, noise=0.02)
    shifted = {number: {0: each[0], 1: CollectiveArrival(each[1].at + 0.15)} for number, each in found.items()}
    tell(record, shifted, (0.0, 0.0))
    assert straggler_in(record.end()["arrivals"]["windows"]).rank == 1
    assert not list(tmp_path.iterdir())


def test_a_long_run_keeps_a_bounded_number_of_windows(tell, tmp_path, monkeypatch):
    monkeypatch.setattr(arrivals_of_launch, "_MOST_WINDOWS", 8)
    record = ArrivalRecord(launcher_handle(tmp_path))
    tell(record, world(random.Random(5), 2, steps=3000, noise=0.02, late=1, delay=0.15), (0.0, 0.0))
    summary = record.end()["arrivals"]
    assert 4 <= len(summary["windows"]) <= 8
    assert len((tmp_path / "arrivals.jsonl").read_text().splitlines()) == len(summary["windows"])
    assert summary["seconds"] == pytest.approx(3000 * 0.46, rel=0.05)
    assert straggler_in(summary["windows"]).rank == 1


def test_ranks_that_start_late_belong_to_a_window_that_has_begun_without_them(tell, tmp_path):
    record, found = ArrivalRecord(launcher_handle(tmp_path)), world(random.Random(6), 4, noise=0.2, late=3, delay=0.3)
    numbers = sorted(found)
    early = {number: {rank: found[number][rank] for rank in (0, 1)} for number in numbers[:40]}
    tell(record, early, (0.0, 0.0))
    tell(record, {number: found[number] for number in numbers[40:]}, (0.0,) * 4)
    summary = record.end()["arrivals"]
    assert {(group["rank"], group["size"]) for row in summary["windows"] for group in row["groups"]} == {(3, 4)}


def test_few_meetings_are_no_window(tell, tmp_path):
    record = ArrivalRecord(launcher_handle(tmp_path))
    tell(record, world(random.Random(5), 2, steps=5, late=1, delay=0.5), (0.0, 0.0))
    assert straggler_in(record.end()["arrivals"]["windows"]) is None


def test_a_rank_that_tells_nothing_leaves_no_trace():
    assert ArrivalRecord(launcher_handle()).end() == {}


FIGURES = {
    "delay": 0.0,
    "cpu": 0.5,
    "faults": 0.0,
    "throttled": 0.0,
    "steal": 0.0,
    "loader": 0.0,
    "here": 0.0,
    "where": "",
}
REASONS = {
    "delay": (0.4, "its core is shared"),
    "throttled": (0.3, "its cores are throttled"),
    "steal": (0.2, "its host loses time to other machines"),
    "loader": (0.45, "it waits for its loader"),
    "faults": (300.0, "it waits for pages from a disk"),
}


def test_why_a_rank_is_late(subtests):
    found = windows(meetings("0", world(random.Random(5), 2, noise=0.02, late=1, delay=0.15)))
    plan = {"hosts": ["n01", "n02"], "ranks_per_host": [1, 1], "world_size": 2}
    for figure, (value, words) in REASONS.items():
        with subtests.test(figure):
            late = {**FIGURES, figure: value}
            told = {"source": "host", "windows": found, "ranks": {"1": late}, "others": FIGURES}
            (cause,) = diagnose(Facts({"state": "finished", "exit_code": 0, "plan": plan, "arrivals": told}))
            assert cause.text.startswith("rank 1 on n02 arrives last in 100%, +148 ms of 459 ms; the others wait 32%")
            assert cause.text.endswith(words)
            assert cause.advice
            told["others"] = late  # the others have it as well: it explains nothing
            (cause,) = diagnose(Facts({"state": "finished", "exit_code": 0, "plan": plan, "arrivals": told}))
            assert words not in cause.text


def test_a_rank_of_other_groups_is_compared_within_its_own():
    rng = random.Random(9)
    quick = meetings("a", world(rng, 2, noise=0.02))
    slow = [
        replace(one, lags={rank + 2: lag for rank, lag in one.lags.items()})
        for one in meetings("b", world(rng, 2, noise=0.02, late=1, delay=0.2))
    ]
    assert straggler_in(windows(sorted([*quick, *slow], key=lambda one: one.at))).rank == 3
