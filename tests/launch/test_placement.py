import pytest

from ezpz.cluster import Allocation, Devices
from ezpz.errors import UsageError
from ezpz.launch import Placement
from ezpz.launch.placement import place

CPU = Devices(0, "cpu", "no driver found")
GPU4 = Devices(4, "cuda", "nvidia-smi -L")


def hosts(count, slots=None, tasks=None):
    names = tuple(f"n{index}" for index in range(count))
    return Allocation("slurm", "1", names, slots, tasks, origin={"slots": "SLOTS", "tasks": "TASKS"})


@pytest.mark.parametrize(
    ("allocation", "devices", "cores", "expected"),
    [
        pytest.param(hosts(1), CPU, 1, (2,), id="one core: at least 2"),
        pytest.param(hosts(1), CPU, 6, (3,), id="half of the cores"),
        pytest.param(hosts(1), CPU, 64, (4,), id="at most 4"),
        pytest.param(hosts(2), GPU4, 64, (4, 4), id="one per device"),
        pytest.param(hosts(2, (1, 1), 2), CPU, 64, (1, 1), id="salloc -N2 -n2"),
        pytest.param(hosts(2, (3, 1), 4), CPU, 64, (3, 1), id="uneven grant"),
        pytest.param(hosts(2, (8, 8), 10), CPU, 64, (8, 2), id="fewer tasks than slots"),
        pytest.param(hosts(2, (1, 8)), CPU, 64, (1, 4), id="hosts only: the rule within the grant"),
        pytest.param(hosts(2, (1, 1), 2), GPU4, 64, (4, 4), id="devices outrank the grant"),
    ],
)
def test_the_default_number_of_ranks(allocation, devices, cores, expected):
    placement = place(allocation, devices, cores)
    assert placement.counts == expected
    assert placement.origin


@pytest.mark.parametrize(
    ("count", "devices", "wishes", "expected"),
    [
        (2, GPU4, {"ranks": 6}, (4, 2)),
        (2, GPU4, {"ranks": 3}, (3,)),
        (2, GPU4, {"ranks": 12}, (6, 6)),
        (2, CPU, {"per_host": 3}, (3, 3)),
        (2, CPU, {"ranks": 5, "per_host": 3}, (3, 2)),
        (3, CPU, {"ranks": 7}, (3, 3, 1)),
        (1, CPU, {"ranks": 64}, (64,)),
    ],
)
def test_wishes_fill_hosts_in_order(count, devices, wishes, expected):
    placement = place(hosts(count), devices, 2, **wishes)
    assert placement.counts == expected
    assert len(placement.hosts) == len(expected)


def test_an_impossible_wish_shows_the_arithmetic_and_the_nearest_one():
    with pytest.raises(
        UsageError, match=r"9 ranks \(from -n\) on 2 hosts with 4 each .* room for 8.*`-n 8` or `--ppn 5`"
    ):
        place(hosts(2), CPU, 2, ranks=9, per_host=4)


@pytest.mark.parametrize(
    ("counts", "text"),
    [((2,), "2"), ((4, 4, 3), "4(x2),3"), ((1, 2, 2, 1), "1,2(x2),1"), ((12,) * 10_000, "12(x10000)")],
)
def test_counts_travel_folded(counts, text):
    assert Placement(tuple(map(str, range(len(counts)))), counts, "").encode() == text
