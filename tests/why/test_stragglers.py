"""Arrivals as ranks make them: with noise alone nothing is found, with a straggler it is, whatever the clocks show."""

import itertools
import pickle
import random
import re
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
from ezpz.why.lag import CollectiveArrival, Meeting, host_window, mean_lags, meetings, seldom_window, window
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


def windows(found, number=3, hosts=None):
    begin, end = found[0].at, found[-1].at + 1e-6
    span = (end - begin) / number
    parts = [
        [each for each in found if begin + span * index <= each.at < begin + span * (index + 1)]
        for index in range(number)
    ]
    return [
        {
            "t": 0.0,
            "s": span,
            "groups": window(part),
            "hosts": host_window(part, hosts or {}),
            "seldom": seldom_window(part),
        }
        for part in parts
    ]


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

    def tell(record, found, clocks, *, group="0", chunk=40, hosts=()):
        numbers = sorted(found)
        for begin in range(0, len(numbers), chunk):
            launcher.now += 60  # the look before is long ago
            for rank, clock in enumerate(clocks):
                ring = [
                    entry(number, int((found[number][rank].at + clock + 1e9) * 1e6))
                    for number in numbers[begin : begin + chunk]
                ]
                times = arrivals(ring, {}, 1000)[1]
                one = RankArrivals(
                    rank=rank,
                    group=group,
                    span=5.0,
                    figures=[0.1] * 6,
                    threads=16,
                    omp=16,
                    times=times,
                    where="0.5 a.py:3 (f)\t0.4 a.py:4 (f)",
                )
                host = hosts[rank] if hosts else 0
                record.hear(host, ArrivalsTold(clock=-clock, cores=1, allowed=2, there=2, ranks=[one]))

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


TWO_HOSTS = {"hosts": ["n01", "n02"], "ranks_per_host": [2, 2], "world_size": 4}


def of_host(rng, *, slow=(2, 3), delay=0.15, noise=0.1, steps=120):
    """Return the collectives of 4 ranks on two hosts, of which some are slower in each step."""
    now, found = 0.0, {}
    for number in range(steps):
        took = {
            rank: max(0.02, 0.3 + rng.gauss(0, noise * 0.3) + delay * (rank in slow) * rng.uniform(0.8, 1.2))
            for rank in range(4)
        }
        found[number] = {rank: CollectiveArrival(now + each) for rank, each in took.items()}
        now += max(took.values()) + 0.01
    return found


HOSTS = {0: "n01", 1: "n01", 2: "n02", 3: "n02"}


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_host_is_named_and_none_of_its_ranks(seed):
    found = windows(meetings("0", of_host(random.Random(seed))), hosts=HOSTS)
    told = {"source": "host", "windows": found, "ranks": {}, "others": FIGURES}
    told["hosts"] = {"n02": {**FIGURES, "steal": 0.4, "ranks": 2}, "n01": {**FIGURES, "ranks": 2}}
    (cause,) = diagnose(Facts({"state": "finished", "exit_code": 0, "plan": TWO_HOSTS, "arrivals": told}))
    assert (cause.rank, cause.host) == (None, "n02")
    assert cause.text.startswith("n02 (ranks 2 to 3) arrives last in ")
    assert cause.text.endswith("its host loses time to other machines")


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_rank_makes_no_slow_host(seed):
    found = windows(meetings("0", of_host(random.Random(seed), slow=(3,), delay=0.2)), hosts=HOSTS)
    found = straggler_in(found)
    assert (found.rank, found.host) == (3, "")
    assert straggler_in(windows(meetings("0", of_host(random.Random(seed), slow=())), hosts=HOSTS)) is None
    assert straggler_in(windows(meetings("0", of_host(random.Random(seed), slow=(1, 2))), hosts=HOSTS)) is None


def test_a_host_that_reports_late_is_named_by_the_launch(tell, tmp_path):
    record = ArrivalRecord(launcher_handle(tmp_path))
    tell(record, of_host(random.Random(2)), (0.0,) * 4, hosts=(0, 0, 1, 1))
    arrivals = record.end()["arrivals"]
    assert straggler_in(arrivals["windows"]).host == "1"  # the handle of the test calls a host by its index
    assert arrivals["hosts"]["1"]["ranks"] == 2
    assert (arrivals["hosts"]["1"]["cores"], arrivals["hosts"]["1"]["threads"]) == (1, 16)


def now_and_then(rng, *, size, every, delay, steps=130, step=0.12, noise=0.4, who=lambda number: 1):
    """Return the collectives of ranks of which one is late by much in each so many steps."""
    now, found = 0.0, {}
    for number in range(steps):
        took = [max(0.02, step + rng.gauss(0, noise * step)) for _ in range(size)]
        if number % every == 3:
            took[who(number) % size] += delay
        found[number] = {rank: CollectiveArrival(now + each) for rank, each in enumerate(took)}
        now += max(took) + 0.01
    return found


@pytest.mark.parametrize(("seed", "size"), [*((seed, 3) for seed in range(6)), (6, 2), (7, 8)])
def test_a_rank_that_is_seldom_late_and_long_then(seed, size):
    found = windows(meetings("0", now_and_then(random.Random(seed), size=size, every=10, delay=2.0)))
    told = {"source": "host", "windows": found, "ranks": {"1": FIGURES}, "others": FIGURES}
    (cause,) = diagnose(Facts({"state": "finished", "exit_code": 0, "arrivals": told}))
    assert cause.rank == 1
    assert re.match(r"rank 1 arrives late in 1[1-3] of 1\d\d meetings, \+2.0 s each time; the others wait ", cause.text)


def test_long_waits_that_cost_little_or_are_no_rank_s_own_are_no_finding(subtests):
    for name, made in {
        "each rank in turn": {"size": 3, "every": 10, "delay": 2.0, "who": lambda number: number // 10},
        "two evaluations": {"size": 3, "every": 60, "delay": 8.0},
        "evaluations that cost a seventh": {"size": 2, "every": 20, "delay": 0.4, "steps": 600},
    }.items():
        with subtests.test(name):
            assert straggler_in(windows(meetings("0", now_and_then(random.Random(4), **made)))) is None


ALL_WAIT = {**FIGURES, "delay": 0.2, "cpu": 0.2, "ranks": 4, "cores": 8, "allowed": 8, "threads": 2, "omp": 2}


def causes_of(host, *, seconds=20.0, plan=None):
    told = {"source": "host", "seconds": seconds, "windows": [], "ranks": {}, "others": FIGURES, "hosts": {"n01": host}}
    plan = plan or {"hosts": ["n01"], "ranks_per_host": [4], "world_size": 4}
    return diagnose(Facts({"state": "finished", "exit_code": 0, "plan": plan, "arrivals": told}))


@pytest.mark.parametrize(
    ("more", "says", "advice"),
    [
        (
            {"threads": 16, "omp": 16, "cores": 2, "allowed": 2},
            "4 ranks compute with 16 threads each on 2 cores (OMP_NUM_THREADS=16)",
            "1 thread per rank",
        ),
        ({"threads": 8, "omp": 2}, "4 ranks compute with 8 threads each on 8 cores", "2 threads per rank"),
        ({"cores": 1, "threads": 1}, "4 ranks may use 1 core of 8", "--cpu-bind"),
        (
            {"cores": 1, "allowed": 1, "there": 64, "threads": 1},
            "4 ranks may use 1 core of 64",
            "ask the scheduler for more CPUs",
        ),
        ({"throttled": 0.2}, "their cgroup stops them 20% of the time", "more CPUs"),
    ],
)
def test_why_all_ranks_wait_for_a_core(more, says, advice):
    (cause,) = causes_of({**ALL_WAIT, **more})
    assert cause.text == f"all ranks wait for a core 20% of the time: {says}"
    assert (cause.rank, cause.host) == (None, "n01")
    assert advice in cause.advice
    (cause,) = causes_of({**ALL_WAIT, **more}, plan=TWO_HOSTS)
    assert cause.text.startswith("the ranks on n01 wait for a core 20% of the time: ")
    assert causes_of({**ALL_WAIT, **more, "delay": 0.04}) == []


def test_a_host_that_others_keep_busy_is_told_where_it_costs_much_for_long():
    (cause,) = causes_of({**ALL_WAIT, "delay": 0.4}, seconds=90.0)
    assert cause.text == "all ranks wait for a core 40% of the time"
    assert any("does not show" in each for each in cause.evidence)
    (cause,) = causes_of({**ALL_WAIT, "delay": 0.4, "cores": 2, "allowed": 2, "there": 2, "threads": 1}, seconds=90.0)
    assert cause.text == "all ranks wait for a core 40% of the time: 4 ranks share 2 cores"
    assert causes_of({**ALL_WAIT, "delay": 0.4}) == []
    assert causes_of({**ALL_WAIT, "delay": 0.2}, seconds=90.0) == []


def test_an_older_record_has_neither_hosts_nor_seldom_waits():
    found = windows(meetings("0", world(random.Random(5), 2, noise=0.02, late=1, delay=0.15)))
    older = [{name: row[name] for name in ("t", "s", "groups")} for row in found]
    assert straggler_in(older) == straggler_in(found)


def test_what_explains_most_of_a_lag_is_its_reason():
    """A rank that works more than others also waits more for a core on a busy host, and that is not why it is late."""
    found = windows(meetings("0", world(random.Random(5), 2, noise=0.02, late=1, delay=0.15)))
    late = {**FIGURES, "delay": 0.1, "here": 0.5, "where": "train.py:19 (<module>)"}
    told = {"source": "host", "windows": found, "ranks": {"1": late}, "others": {**FIGURES, "delay": 0.02}}
    (cause,) = diagnose(Facts({"state": "finished", "exit_code": 0, "arrivals": told}))
    assert cause.text.endswith("it was in train.py:19 (<module>)")
    assert any("had no core for 10% of the time" in each for each in cause.evidence)
    told["ranks"]["1"] = {**late, "delay": 0.3, "cpu": 0.15}
    told["others"] = {**FIGURES, "delay": 0.04, "cpu": 0.02}  # as much of what they want
    (cause,) = diagnose(Facts({"state": "finished", "exit_code": 0, "arrivals": told}))
    assert cause.text.endswith("it was in train.py:19 (<module>)")
    assert not any("had no core" in each for each in cause.evidence)
    told["others"] = {**FIGURES, "delay": 0.02}
    told["ranks"]["1"] = {**late, "delay": 0.45}
    (cause,) = diagnose(Facts({"state": "finished", "exit_code": 0, "arrivals": told}))
    assert cause.text.endswith("its core is shared")


def test_a_straggler_is_found_while_the_load_of_its_host_falls():
    """As a machine recorded them: the rank was last in all meetings, and both its lag and the steps became shorter."""
    rows = [
        (31, 0.6546, 0.4978, [0.4223, 0.4312, 0.4938, 0.6434]),
        (43, 0.4632, 0.3379, [0.3151, 0.357, 0.3149, 0.3624]),
        (56, 0.3608, 0.2301, [0.2052, 0.2434, 0.2003, 0.2714]),
    ]
    same = {"group": "gloo:0", "size": 2, "rank": 1, "last": 1.0, "wait": 0.7}
    found = [
        {"s": 19.8, "groups": [{**same, "n": n, "step": step, "lag": lag, "batches": batches}]}
        for n, step, lag, batches in rows
    ]
    assert straggler_in(found).rank == 1


def test_a_long_wait_during_a_look_counts_as_any_other(tell, tmp_path):
    """The rank has not come to a collective when the others tell of it, which is the first of the next look then."""
    record = ArrivalRecord(launcher_handle(tmp_path))
    found = now_and_then(random.Random(3), size=3, every=10, delay=2.0)
    early = {number: found[number] for number in range(3)}
    tell(record, early, (0.0,) * 3)
    tell(record, {number: each for number, each in found.items() if number >= 3}, (0.0,) * 3, chunk=10)
    straggler = straggler_in(record.end()["arrivals"]["windows"])
    assert straggler.rank == 1
    assert straggler.wait == pytest.approx(0.6, abs=0.1)


def test_the_line_of_a_straggler_is_where_others_are_less_often(tell, tmp_path):
    record = ArrivalRecord(launcher_handle(tmp_path))
    tell(record, world(random.Random(5), 2, noise=0.02, late=1, delay=0.15), (0.0, 0.0))
    lines = {0: "0.6 a.py:3 (f)", 1: "0.5 a.py:3 (f)\t0.4 a.py:4 (collect)\tand no share"}
    for rank, places in lines.items():
        told = {"span": 500.0, "figures": [0.0] * 6, "threads": 1, "omp": 0, "times": "", "where": places}
        one = RankArrivals(rank=rank, group="0", **told)
        record.hear(0, ArrivalsTold(clock=0.0, cores=2, allowed=2, there=2, ranks=[one]))
    arrivals = record.end()["arrivals"]
    assert arrivals["ranks"]["1"]["where"] == "a.py:4 (collect)"
    (cause,) = diagnose(Facts({"state": "finished", "exit_code": 0, "arrivals": arrivals}))
    assert cause.text.endswith("it was in a.py:4 (collect)")
