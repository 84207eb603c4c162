import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.cluster import Allocation, Devices
from ezpz.errors import UsageError
from ezpz.fields import replace
from ezpz.launch import Placement
from ezpz.launch.placement import place

CPU = Devices(0, "cpu", "no driver found")
GPU4 = Devices(4, "cuda", "nvidia-smi -L")
UNEVEN_GPUS = Devices(4, "cuda", "scontrol")
FILE = "--hostfile hosts"


def hosts(count, slots=None, tasks=None, scheduler="slurm"):
    names = tuple(f"n{index}" for index in range(count))
    return Allocation(scheduler, "1", names, slots, tasks, origin={"slots": "SLOTS", "tasks": "TASKS"})


def laptop(count=1):
    return hosts(count, scheduler="none")


UNEVEN = replace(hosts(3), devices=(4, 0, 1), origin={"devices": "scontrol"})


def test_the_default_number_of_ranks(subtests):
    for case, allocation, devices, cores, expected in [
        ("one core: at least 2", hosts(1), CPU, 1, (2,)),
        ("half of the cores", hosts(1), CPU, 6, (3,)),
        ("at most 4", hosts(1), CPU, 64, (4,)),
        ("one per device", hosts(2), GPU4, 64, (4, 4)),
        ("salloc -N2 -n2", hosts(2, (1, 1), 2), CPU, 64, (1, 1)),
        ("uneven grant", hosts(2, (3, 1), 4), CPU, 64, (3, 1)),
        ("fewer tasks than slots", hosts(2, (8, 8), 10), CPU, 64, (8, 2)),
        ("tasks that fit on one host", hosts(2, (8, 8), 8), CPU, 64, (8,)),
        ("hosts only: the granted slots, at most 4", hosts(2, (1, 8)), CPU, 64, (1, 4)),
        ("hosts only: whatever cores this host has", hosts(2, (4, 3)), CPU, 2, (4, 3)),
        ("salloc --gpus=5: as many as each host has", UNEVEN, UNEVEN_GPUS, 64, (4, 1)),
        ("qsub -l select=2:ngpus=4: devices outrank 1 slot", hosts(2, (1, 1), 2), GPU4, 64, (4, 4)),
        ("salloc -N2 --gres=gpu:4: and those of hosts only", hosts(2, (1, 1)), GPU4, 64, (4, 4)),
        ("salloc -N2 --exclusive --gres=gpu:4: and those of CPUs", hosts(2, (64, 64)), GPU4, 64, (4, 4)),
    ]:
        with subtests.test(case):
            placement = place(allocation, devices, cores)
            assert placement.counts == expected
            assert placement.origin
            if allocation.slots and not allocation.tasks and not devices.count:
                assert placement.origin == "SLOTS, at most 4"


def test_a_host_without_devices_holds_no_rank_and_each_has_its_own_limit():
    assert place(UNEVEN, UNEVEN_GPUS, 64).hosts == ("n0", "n2")
    assert place(UNEVEN, UNEVEN_GPUS, 64, ranks=5).counts == (4, 1)
    with pytest.raises(UsageError, match="room for 5"):
        place(UNEVEN, UNEVEN_GPUS, 64, ranks=6)
    assert place(UNEVEN, GPU4, 64).counts == (4, 4, 4)  # somebody else's word decided


def test_a_host_without_devices_that_the_user_has_named_is_not_left_out_in_silence():
    named = replace(UNEVEN, origin={**UNEVEN.origin, "hosts": "--hosts"})
    with pytest.raises(
        UsageError, match=r"n1 \(from --hosts\) gets no rank: it has 0 devices .* Use `--exclude n1`, or"
    ):
        place(named, UNEVEN_GPUS, 64)
    assert place(named, UNEVEN_GPUS, 64, ranks=5).counts == (4, 1)
    with pytest.raises(UsageError) as caught:
        place(named, UNEVEN_GPUS, 64, per_host=1)
    assert "--ppn 0" not in str(caught.value)
    assert "Use `--exclude n1`" in str(caught.value)


def test_requests_fill_hosts_in_order(subtests):
    for allocation, devices, options, expected in [
        (hosts(2), GPU4, {"ranks": 6}, (4, 2)),
        (hosts(2), GPU4, {"ranks": 3}, (3,)),
        (hosts(2), GPU4, {"ranks": 6, "per_host": 3}, (3, 3)),
        (hosts(2), GPU4, {"per_host": 1}, (1, 1)),
        (hosts(1), GPU4, {"ranks": 2, "per_host": 9}, (2,)),
        (hosts(2), CPU, {"per_host": 3}, (3, 3)),
        (hosts(2), CPU, {"ranks": 5, "per_host": 3}, (3, 2)),
        (hosts(3), CPU, {"ranks": 7}, (3, 3, 1)),
        (hosts(1), CPU, {"ranks": 64}, (64,)),
        (hosts(2, (1, 8)), CPU, {"ranks": 6}, (1, 5)),
        (hosts(3, (2, 9, 4)), CPU, {"ranks": 12}, (2, 6, 4)),
        (hosts(2, (8, 8), 10), CPU, {"ranks": 12}, (6, 6)),
        (hosts(2, (8, 8), 10), CPU, {"ranks": 9}, (8, 1)),
    ]:
        with subtests.test(expected):
            placement = place(allocation, devices, 2, **options)
            assert placement.counts == expected
            assert placement.hosts == allocation.hosts[: len(expected)]


def test_slots_of_a_host_file_are_the_users_own_request(subtests):
    for devices, wanted, options, expected in [
        (GPU4, (2, 1), {}, (2, 1)),
        (GPU4, (2, 1), {"ranks": 2}, (2,)),
        (GPU4, (8, 8), {"ranks": 8}, (4, 4)),
        (GPU4, (8, 3), {"ranks": 7}, (4, 3)),
        (GPU4, (2, 4), {"per_host": 2}, (2, 2)),
        (CPU, (64, 1), {}, (64, 1)),
        (CPU, (64, 1), {"ranks": 3}, (3,)),
        (GPU4, (8, 8), {"oversubscribe": True}, (8, 8)),
        (GPU4, (8, 8), {"ranks": 10, "oversubscribe": True}, (8, 2)),
    ]:
        with subtests.test(expected):
            placement = place(laptop(2), devices, 2, wanted=wanted, wanted_origin=FILE, **options)
            assert placement.counts == expected
            assert placement.origin == ("--ppn" if "per_host" in options else "-n" if "ranks" in options else FILE)


def test_an_impossible_request_shows_the_arithmetic_and_the_nearest_one(subtests):
    seven = "7 ranks (from -n) on 1 host with 4 each (from --ppn): that is room for 4"
    for (allocation, devices, options), problem, advice in [
        ((laptop(), CPU, {"ranks": 7, "per_host": 4}), seven, "`-n 4`, `--ppn 7` or 2 hosts."),
        ((hosts(1), GPU4, {"ranks": 7, "per_host": 4}), seven, "`-n 4` or 2 hosts."),
        (
            (hosts(1), GPU4, {"ranks": 9, "per_host": 8}),
            "9 ranks (from -n) on 1 host with 8 each (from --ppn): that is room for 8",
            "`-n 4` without --ppn or `--oversubscribe` with `-n` alone.",
        ),
        (
            (hosts(2, (1, 1)), GPU4, {"ranks": 9, "origin": "WORLD_SIZE"}),
            "9 ranks (from WORLD_SIZE) on 2 hosts with 4 devices each (nvidia-smi -L): that is room for 8",
            "`-n 8`, 3 hosts or `--oversubscribe` to share devices.",
        ),
        (
            (laptop(), Devices(1, "mps", "macOS"), {"ranks": 2}),
            "2 ranks (from -n) on 1 host with 1 device (macOS): that is room for 1",
            "`-n 1`, 2 hosts, `TORCH_DEVICE=cpu` for ranks on CPUs or `--oversubscribe` to share devices.",
        ),
        (
            (hosts(2, (3, 1), 4), CPU, {"ranks": 5}),
            "5 ranks (from -n) on 2 hosts with 3,1 slots (SLOTS): that is room for 4",
            "`-n 4`, a job with more slots (--ntasks-per-node) or `--oversubscribe` to share slots.",
        ),
        (
            (hosts(2, (1, 1), 2, scheduler="pbs"), CPU, {"per_host": 4}),
            "4 ranks (from --ppn) on n0: it has 1 slot (SLOTS)",
            "`--ppn 1`, a job with more slots (mpiprocs) or `--oversubscribe` to share slots.",
        ),
        (
            (hosts(2, (4, 1)), CPU, {"ranks": 4, "per_host": 2}),
            "2 ranks (from --ppn) on n1: it has 1 slot (SLOTS)",
            "`-n 4` without --ppn, a job with more slots (--ntasks-per-node) or `--oversubscribe` to share slots.",
        ),
        (
            (laptop(2), GPU4, {"wanted": (4, 8), "wanted_origin": FILE}),
            "8 ranks (from --hostfile hosts) on n1: it has 4 devices (nvidia-smi -L)",
            "`--ppn 4`, `TORCH_DEVICE=cpu` for ranks on CPUs or `--oversubscribe` to share devices.",
        ),
        (
            (hosts(1, (4,)), CPU, {"wanted": (8,), "wanted_origin": FILE}),
            "8 ranks (from --hostfile hosts) on n0: it has 4 slots (SLOTS)",
            "`--ppn 4`, a job with more slots (--ntasks-per-node) or `--oversubscribe` to share slots.",
        ),
        (
            (laptop(2), CPU, {"wanted": (2, 2), "wanted_origin": FILE, "ranks": 5}),
            "5 ranks (from -n) on 2 hosts with 2 slots each (--hostfile hosts): that is room for 4",
            "`-n 4`, 3 hosts or `--oversubscribe` to share slots.",
        ),
        (
            (laptop(2), GPU4, {"wanted": (8, 1), "wanted_origin": FILE, "ranks": 6}),
            "6 ranks (from -n) on 2 hosts with 4,1 slots (nvidia-smi -L, --hostfile hosts): that is room for 5",
            "`-n 5` or `--oversubscribe` to share slots.",
        ),
    ]:
        with subtests.test(problem):
            with pytest.raises(UsageError) as caught:
                place(allocation, devices, 2, **options)
            assert str(caught.value) == f"cannot place {problem}. Use {advice}"


def test_a_host_may_be_oversubscribed_on_request(subtests):
    for allocation, devices, options, expected in [
        (hosts(2), GPU4, {"ranks": 12}, (6, 6)),
        (hosts(2), GPU4, {"ranks": 9}, (5, 4)),
        (hosts(1), GPU4, {"per_host": 8}, (8,)),
        (hosts(2, (1, 8)), CPU, {"ranks": 12}, (3, 9)),
        (hosts(2, (4, 4), 8), CPU, {"per_host": 6}, (6, 6)),
    ]:
        with subtests.test(options):
            with pytest.raises(UsageError, match="--oversubscribe"):
                place(allocation, devices, 64, **options)
            placement = place(allocation, devices, 64, oversubscribe=True, **options)
            assert (placement.counts, placement.oversubscribed) == (expected, True)


def test_a_placement_says_whether_launchers_that_count_need_an_option(subtests):
    for allocation, devices, cores, options, expected in [
        (hosts(2), GPU4, 64, {}, False),
        (hosts(2, (4, 4)), GPU4, 2, {}, False),
        (hosts(2, (1, 1)), GPU4, 64, {}, True),  # allowed, but beyond the slots that a launcher counts
        (hosts(2, (8, 8)), CPU, 64, {"ranks": 16}, False),
        (laptop(), CPU, 4, {"ranks": 4}, False),
        (laptop(), CPU, 4, {"ranks": 5}, True),  # allowed: no slots are granted
        (laptop(), CPU, 4, {"wanted": (8,)}, False),
        (hosts(1, (1,)), GPU4, 64, {"wanted": (4,)}, True),  # a scheduler's slots are what its launcher counts
        (hosts(1, (4,)), CPU, 64, {"wanted": (8,), "oversubscribe": True}, True),
        (laptop(), GPU4, 64, {"wanted": (2,), "ranks": 3, "oversubscribe": True}, True),
        (laptop(), GPU4, 64, {"wanted": (8,), "oversubscribe": True}, True),
    ]:
        with subtests.test(options):
            assert place(allocation, devices, cores, **options).oversubscribed is expected


def test_cpus_are_those_of_the_smallest_host_in_use():
    allocation = Allocation("flux", "f1", ("a", "b", "c"), cpus=(8, 4, 2))
    assert place(allocation, CPU, 64).cpus == 2
    assert place(allocation, CPU, 64, ranks=12, per_host=8).cpus == 4
    assert place(laptop(), CPU, 64).cpus is None


ALLOCATIONS = st.lists(st.integers(1, 6), min_size=1, max_size=6).flatmap(
    lambda slots: st.tuples(
        st.just(slots), st.none() | st.integers(1, sum(slots)), st.sampled_from(["slurm", "pbs"])
    ).map(lambda parts: hosts(len(slots), tuple(slots), parts[1], parts[2]))
) | st.integers(1, 6).map(laptop)
COUNTS = st.none() | st.integers(1, 40)


@st.composite
def scenes(draw):
    allocation = draw(ALLOCATIONS)
    size = len(allocation.hosts)
    wanted = draw(st.none() | st.lists(st.integers(1, 9), min_size=size, max_size=size).map(tuple))
    devices = draw(st.integers(0, 5).map(lambda count: Devices(count, "cuda" if count else "cpu", "DEVICES")))
    options = {"ranks": draw(COUNTS), "per_host": draw(COUNTS), "wanted": wanted}
    return allocation, devices, draw(st.integers(1, 16)), options


def most(allocation, devices, wanted, index):
    limits = [wanted[index]] if wanted else []
    if devices.count:
        limits.append(devices.count)
    elif allocation.slots:
        limits.append(allocation.slots[index])
    return min(limits, default=10**9)


@given(scenes(), st.booleans())
def test_every_placement_is_the_wish_in_blocks_within_the_limits(scene, oversubscribe):
    allocation, devices, cores, options = scene
    try:
        placement = place(allocation, devices, cores, oversubscribe=oversubscribe, **options)
    except UsageError:
        return
    counts = placement.counts
    assert placement.hosts == allocation.hosts[: len(counts)]
    assert min(counts) > 0
    if options["ranks"]:
        assert sum(counts) == placement.world_size == options["ranks"]
    if options["per_host"]:
        assert set(counts[:-1]) <= {options["per_host"]}
        assert counts[-1] <= options["per_host"]
    if not oversubscribe:
        assert all(count <= most(allocation, devices, options["wanted"], place) for place, count in enumerate(counts))


@given(scenes())
def test_what_is_refused_is_impossible_and_what_is_advised_is_possible(scene):
    allocation, devices, cores, options = scene
    try:
        place(allocation, devices, cores, **options)
    except UsageError as error:
        text = str(error)
    else:
        return
    assert "\n" not in text
    room = sum(most(allocation, devices, options["wanted"], index) for index in range(len(allocation.hosts)))
    if options["per_host"] is None and options["ranks"]:
        assert options["ranks"] > room
    advised = re.findall(r"`(-n|--ppn) (\d+)`( without --ppn)?", text)
    assert advised, text
    for option, number, alone in advised:
        changed = {**options, {"-n": "ranks", "--ppn": "per_host"}[option]: int(number)}
        if alone:
            changed["per_host"] = None
        assert sum(place(allocation, devices, cores, **changed).counts) <= room


@given(scenes())
def test_oversubscription_lifts_every_limit_but_the_users_own_arithmetic(scene):
    allocation, devices, cores, options = scene
    ranks, per_host = options["ranks"], options["per_host"]
    if ranks and per_host and ranks > per_host * len(allocation.hosts):
        with pytest.raises(UsageError, match=r"\(from --ppn\): that is room for"):
            place(allocation, devices, cores, oversubscribe=True, **options)
    else:
        placement = place(allocation, devices, cores, oversubscribe=True, **options)
        assert placement.world_size == (ranks or placement.world_size)


def test_counts_travel_folded(subtests):
    folded = {(2,): "2", (4, 4, 3): "4(x2),3", (1, 2, 2, 1): "1,2(x2),1", (12,) * 10_000: "12(x10000)"}
    for counts, text in folded.items():
        with subtests.test(text):
            assert Placement(tuple(map(str, range(len(counts)))), counts, "").encode() == text


def test_ten_thousand_hosts_are_placed_or_refused_in_no_time():
    slots = tuple(1 + index % 12 for index in range(10_000))
    allocation = hosts(10_000, slots)
    devices = Devices(12, "xpu", "site")
    begin = time.process_time()
    assert place(allocation, devices, 208).world_size == 120_000
    assert place(allocation, CPU, 208, ranks=60_000).world_size == 60_000
    for options in ({"ranks": 120_001}, {"per_host": 13}, {"ranks": 99_999_999, "per_host": 2}):
        with pytest.raises(UsageError) as caught:
            place(allocation, CPU, 208, **options)
        assert len(str(caught.value)) < 400
    assert time.process_time() - begin < 2
