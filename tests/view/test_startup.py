"""Where the time until the first step went: planted delays over hosts and ranks, worked out by hand."""

import time

import pytest

from ezpz.records.launch_record import LaunchRecord
from ezpz.view.startup_stages import (
    GROUPS,
    STAGES,
    Startup,
    changes,
    delays,
    host_intervals,
    latest_hosts,
    read_startup,
)

NAMES = [stage.name for stage in STAGES if stage.name != "shim"]
TYPICAL = dict(zip(NAMES, (0.5, 0.1, 0.4, 3.5, 0.1, 0.2, 0.8, 0.2, 0.3, 0.8, 0.2), strict=True))


def fields(hosts=("n01", "n02", "n03"), per_host=2, slower=(), gates=(), **more):
    """Return a launch whose ranks take the typical time for each stage.

    Args:
        slower: (rank, stage, seconds more); None for all ranks.
        gates: Stages that no rank reaches before all are ready, besides those of each launch.
    """
    world = len(hosts) * per_host
    times = dict.fromkeys(range(world), 0.0)
    stages = {}
    for stage in STAGES:
        if stage.name not in TYPICAL:
            continue
        ready = max(times.values())
        for rank in times:
            extra = sum(seconds for which, name, seconds in slower if name == stage.name and which in {rank, None})
            begin = ready if stage.is_gate or stage.name in gates else times[rank]
            times[rank] = begin + TYPICAL[stage.name] + extra
        every = sorted(times.values())
        stages[stage.name] = {
            "ranks": world,
            "min": every[0],
            "median": every[world // 2],
            "max": every[-1],
            "slowest_host": hosts[max(times, key=times.get) // per_host],
            "by_rank": list(times.values()),
        }
    plan = {"hosts": list(hosts), "ranks_per_host": [per_host] * len(hosts), "world_size": world}
    return {"command": ["python3", "train.py"], "started": 1.8e9, "plan": plan, "stages": stages, **more}


def started(record):
    return Startup(LaunchRecord.of(record))


def test_a_healthy_start_has_no_delay_and_its_stages_sum_to_the_whole():
    startup = read_startup(LaunchRecord.of(fields()))
    assert delays(startup) == []
    assert [each.stage.name for each in startup.arrivals] == NAMES
    assert sum(each.took for each in startup.arrivals) == pytest.approx(sum(TYPICAL.values()))
    assert startup.first_step == pytest.approx(sum(TYPICAL.values()) - TYPICAL["second_step"])
    assert {each.stage.name: each.took for each in startup.arrivals} == pytest.approx(TYPICAL)


HELD_UP = [
    ([(4, "setup", 10.0)], "13.5 s of imports and own code on n03 (rank 4) held up 2 hosts for 10 s"),
    ([(1, "torch", 4.0)], "4.4 s of imports before torch on n01 (rank 1) held up 2 hosts for 4 s"),
    ([(3, "model", 6.0)], "6.2 s of wrap_model on n02 (rank 3) held up 2 hosts for 6 s"),
    ([(5, "data", 3.0)], "3.3 s of first batch on n03 (rank 5) held up 2 hosts for 3 s"),
    (
        [(2, "interpreter", 2.0), (2, "setup", 9.0)],
        "12.5 s of imports and own code on n02 (rank 2) held up 2 hosts for 11 s",
    ),
]


def test_who_held_up_whom_is_named_with_the_stage_and_the_seconds(subtests):
    for slower, said in HELD_UP:
        with subtests.test(said):
            [delay] = delays(started(fields(slower=slower)))
            assert str(delay) == said
    for gates in ((), ("model",)):  # wrap_model waits for all ranks, or does not
        [delay] = delays(started(fields(slower=[(1, "own", 7.0)], gates=gates)))
        assert str(delay) == "7.8 s of model and own code on n01 (rank 1) held up 2 hosts for 7 s"
    found = delays(started(fields(slower=[(0, "setup", 8.0), (4, "model", 5.0)])))
    assert [(each.host, each.stage.name) for each in found] == [("n01", "setup"), ("n03", "model")]
    [delay] = delays(started(fields(hosts=("laptop",), per_host=4, slower=[(3, "setup", 6.0)])))
    assert str(delay) == "9.5 s of imports and own code on rank 3 on laptop held up 3 ranks for 6 s"


def test_what_is_slow_on_all_hosts_holds_up_nobody():
    startup = started(fields(slower=[(None, "setup", 20.0), (None, "met", 15.0), (None, "step", 30.0)]))
    assert delays(startup) == []
    took = {each.stage.name: each.took for each in startup.arrivals}
    assert (took["met"], took["step"]) == (pytest.approx(15.1), pytest.approx(30.8))


def test_a_world_too_large_for_single_ranks_keeps_its_summary():
    told = fields()
    for stage in told["stages"].values():
        del stage["by_rank"]
    startup = started(told)
    assert delays(startup) == []
    assert startup.by_host("setup") == {}
    assert [each.rank for each in startup.arrivals] == [-1] * len(NAMES)
    assert {each.host for each in startup.arrivals} == {"n01"}


def test_a_damaged_record_tells_nothing_and_one_without_some_ranks_the_rest(subtests):
    told = fields()
    told["stages"]["setup"]["by_rank"][5] = None
    told["stages"]["met"]["by_rank"] = told["stages"]["met"]["by_rank"][:3]
    delays(started(told))
    plain = fields(slower=[(4, "torch", 10.0)])
    plain["stages"] = {name: plain["stages"][name] for name in ("process", "interpreter", "torch")}
    startup = started(plain)
    assert startup.first_step is None
    assert startup.total == pytest.approx(11.0)
    [delay] = delays(startup)
    assert (delay.host, delay.stage.name, delay.waited) == ("n03", "torch", pytest.approx(10.0))
    for broken in [{}, {"stages": None}, {"stages": {"torch": 3, "step": {"min": "x"}}}, {"plan": []}]:
        with subtests.test(str(broken)):
            assert read_startup(LaunchRecord.of(broken)) is None


def test_hosts_come_with_their_first_and_last_rank():
    by_host = started(fields(slower=[(3, "setup", 1.0)])).by_host("setup")
    assert list(by_host) == ["n01", "n02", "n03"]
    first, median, last, rank = by_host["n02"]
    assert (first, median, last, rank) == (pytest.approx(4.5), pytest.approx(5.0), pytest.approx(5.5), 3)


def test_intervals_of_a_host_follow_one_another_until_its_last_rank_was_ready():
    startup = started(fields(slower=[(4, "model", 6.0)]))
    found = host_intervals(startup)
    assert list(found) == ["n01", "n02", "n03"]
    for host, row in found.items():
        assert [each.name for each in row] == list(GROUPS)
        assert [each.begin for each in row] == [0.0, *(each.end for each in row[:-1])]
        assert row[-1].end == pytest.approx(startup.by_host("step")[host][2])
    late = startup.by_host("model")
    assert found["n03"][3].seconds > found["n01"][3].seconds + 5, late


def test_of_many_hosts_the_latest_are_shown_and_one_that_reached_nothing_has_no_interval():
    hosts = tuple(f"n{number:02}" for number in range(40))
    startup = started(fields(hosts=hosts, per_host=1, slower=[(7, "setup", 9.0), (39, "model", 3.0)]))
    assert {"n07", "n39"} < set(latest_hosts(startup))
    assert len(latest_hosts(startup)) == 32
    record = fields(per_host=1)
    for stage in record["stages"].values():
        stage["by_rank"][2] = None
    assert host_intervals(started(record))["n03"] == []


def test_changes_name_what_became_slower_and_nothing_else():
    now, then = started(fields(slower=[(None, "setup", 9.0)])), started(fields())
    assert list(map(str, changes(now, then))) == ["imports and own code +9 s (12.5 s instead of 3.5 s)"]
    assert list(map(str, changes(then, now))) == ["imports and own code -9 s (3.5 s instead of 12.5 s)"]
    assert changes(then, then) == []


def test_4096_ranks_on_512_hosts_are_read_with_each_rank_and_the_late_host_is_named():
    hosts = [f"n{number:03}" for number in range(512)]
    record = fields(hosts=hosts, per_host=8, slower=[(8 * 300 + 5, "setup", 20.0)])
    begun = time.process_time()
    startup = started(record)
    [delay] = delays(startup)
    by_host = startup.by_host("setup")
    assert time.process_time() - begun < 5  # 0.1 s on an idle machine
    assert str(delay) == "23.5 s of imports and own code on n300 (rank 2405) held up 511 hosts for 20 s"
    assert (startup.world_size, len(by_host), by_host["n300"][3]) == (4096, 512, 2405)
