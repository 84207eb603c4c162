import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.cluster import Allocation
from ezpz.cluster.components import heterogeneous
from ezpz.errors import MachineError, UsageError
from ezpz.launch.hostfile import read_hostfile
from ezpz.launch.options import LaunchOptions
from ezpz.launch.selection import select
from ezpz.launch.survey import survey, wanted_devices

FULL = tuple(f"n{index:02d}.cluster" for index in range(1, 5))
GRANTED = {"slots": (1, 2, 3, 4), "tasks": 10, "cpus": (8, 16, 24, 32), "devices": (4, 4, 2, 4)}
GRANTED |= {"end_time": 99, "hostfile": "/var/spool/nodes", "notes": ("a note",)}
ORIGIN = {"hosts": "SLURM_JOB_NODELIST", "slots": "SLURM_TASKS_PER_NODE", "tasks": "SLURM_NTASKS"}
JOB = Allocation("slurm", "12", FULL, **GRANTED, origin=ORIGIN)
HERE = Allocation("none", "", ("desk",), origin={"hosts": "the host name"})


@pytest.fixture
def hostfile(tmp_path):
    def write(text):
        path = tmp_path / "hosts"
        path.write_text(text)
        return read_hostfile(str(path))

    return write


def error(allocation, options, named=None):
    with pytest.raises(UsageError) as caught:
        select(allocation, options, named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_jobs_hosts_are_chosen_in_the_users_order_and_keep_the_schedulers_spelling(subtests):
    for options, numbers, origin in [
        ({}, [1, 2, 3, 4], "SLURM_JOB_NODELIST"),
        ({"hosts": ("n03", "n01")}, [3, 1], "--hosts"),
        ({"hosts": ("N02", "n04.cluster", "n01.other")}, [2, 4, 1], "--hosts"),
        ({"nhosts": 2}, [1, 2], "SLURM_JOB_NODELIST, --nhosts 2"),
        ({"nhosts": 4}, [1, 2, 3, 4], "SLURM_JOB_NODELIST, --nhosts 4"),
        ({"exclude": ("n02", "n02", "n04")}, [1, 3], "SLURM_JOB_NODELIST, --exclude n02.cluster, n04.cluster"),
        (
            {"hosts": ("n04", "n02", "n01"), "exclude": ("n02", "n03"), "nhosts": 1},
            [4],
            "--hosts, --exclude n02.cluster, --nhosts 1",
        ),
    ]:
        with subtests.test(repr(options)):
            chosen, wanted, _ = select(JOB, LaunchOptions(**options))
            assert chosen.hosts == tuple(f"n{number:02d}.cluster" for number in numbers)
            assert (chosen.slots, chosen.cpus) == (tuple(numbers), tuple(8 * number for number in numbers))
            assert chosen.tasks == sum(numbers)
            assert (chosen.origin["hosts"], chosen.origin["slots"]) == (origin, "SLURM_TASKS_PER_NODE")
            assert (chosen.job_id, chosen.end_time, chosen.notes) == ("12", 99, ("a note",))
            assert chosen.devices == tuple(JOB.devices[number - 1] for number in numbers)
            assert bool(chosen.hostfile) == (numbers == [1, 2, 3, 4])  # it names all hosts, in order
            assert wanted is None


def test_a_choice_tells_whether_it_keeps_the_schedulers_order():
    assert select(JOB, LaunchOptions(hosts=("n01", "n03"))).allocation.is_ordered
    assert select(JOB, LaunchOptions(exclude=("n02",))).allocation.is_ordered
    assert not select(JOB, LaunchOptions(hosts=("n03", "n01"))).allocation.is_ordered
    assert select(HERE, LaunchOptions(hosts=("b", "a"))).allocation.is_ordered  # nobody sorts these


def component(number, hosts, slots, devices=None):
    origin = {"hosts": f"SLURM_JOB_NODELIST_HET_GROUP_{number}", "devices": "scontrol"}
    cpus = (4 * number + 4,) * len(hosts)
    return Allocation("slurm", "7", hosts, slots, sum(slots), cpus=cpus, devices=devices, origin=origin)


HETEROGENEOUS = heterogeneous((component(0, ("head",), (2,)), component(1, ("g1", "g2"), (1, 1), (4, 4))))


def test_the_components_whose_hosts_are_named_are_used(subtests):
    for options, hosts, components, slots, cpus, devices, tasks in [
        (LaunchOptions(), ("head",), (0,), (2,), (4,), (0,), 2),
        (LaunchOptions(hosts=("head",)), ("head",), (0,), (2,), (4,), (0,), 2),
        (LaunchOptions(hosts=("g1", "g2")), ("g1", "g2"), (1, 1), (1, 1), (8, 8), (4, 4), 2),
        (LaunchOptions(hosts=("G2.site",)), ("g2",), (1,), (1,), (8,), (4,), 1),
        (LaunchOptions(hosts=("g2", "head")), ("g2", "head"), (1, 0), (1, 2), (8, 4), (4, 0), 3),
        (LaunchOptions(exclude=("g1",)), ("head",), (0,), (2,), (4,), (0,), 2),
    ]:
        with subtests.test(repr(options)):
            chosen = select(HETEROGENEOUS, options).allocation
            assert (chosen.hosts, chosen.components) == (hosts, components)
            assert (chosen.slots, chosen.cpus, chosen.devices, chosen.tasks) == (slots, cpus, devices, tasks)
            assert bool(chosen.notes) == (options.hosts is None)  # who has named hosts need not be told


def test_a_host_file_may_name_hosts_of_any_component_and_no_other(hostfile):
    assert "expected one of head, g1, g2" in error(HETEROGENEOUS, LaunchOptions(hosts=("g1", "n07")))
    chosen = select(HETEROGENEOUS, LaunchOptions(hostfile="hosts"), hostfile("g2\ng1\n")).allocation
    assert (chosen.hosts, chosen.components, chosen.is_ordered) == (("g2", "g1"), (1, 1), False)


def test_without_a_scheduler_any_host_can_be_named():
    chosen = select(HERE, LaunchOptions(hosts=("b", "a", "10.0.0.1", "10.0.0.2"), exclude=("a",))).allocation
    assert chosen.hosts == ("b", "10.0.0.1", "10.0.0.2")
    assert chosen.slots is None


def test_a_total_of_tasks_shrinks_with_the_slots_and_never_grows():
    job = Allocation("slurm", "1", ("a", "b"), slots=(8, 8), tasks=10)
    assert select(job, LaunchOptions(hosts=("b",))).allocation.tasks == 8
    assert select(job, LaunchOptions(hosts=("b", "a"))).allocation.tasks == 10


def test_names_that_shorten_to_the_same_label_must_be_written_in_full():
    job = Allocation("pbs", "1", ("a.east", "a.west"))
    assert select(job, LaunchOptions(hosts=("a.west",))).allocation.hosts == ("a.west",)
    assert "a (from --hosts) means a.east and a.west; expected one" in error(job, LaunchOptions(hosts=("a",)))
    assert select(job, LaunchOptions(exclude=("a.east",))).allocation.hosts == ("a.west",)


def test_an_impossible_choice_says_what_there_is(subtests):
    for allocation, options, words in [
        (
            JOB,
            {"hosts": ("n01", "n07")},
            "n07 (from --hosts) is not a host of slurm job 12; expected one of n01.cluster, n02.cluster,",
        ),
        (JOB, {"hosts": ("n05.cluster",)}, "n05.cluster (from --hosts) | Did you mean n04.cluster?"),
        (JOB, {"hosts": ("elsewhere",)}, "elsewhere (from --hosts) | `ezpz where` shows the hosts"),
        (JOB, {"exclude": ("n9",)}, "n9 (from --exclude) is not a host of slurm job 12"),
        (HERE, {"exclude": ("desc",)}, "desc (from --exclude) is not one of the hosts | Did you mean desk?"),
        (
            JOB,
            {"hosts": ("n01", "n02", "n01.cluster")},
            "n01.cluster is named twice (from --hosts) | More ranks on a host are asked for with --ppn or -n",
        ),
        (HERE, {"hosts": ("x", "x")}, "x is named twice (from --hosts)"),
        (
            JOB,
            {"exclude": ("n01", "n02", "n03", "n04")},
            "no host is left: --exclude removes all 4 hosts (n01.cluster, n02.cluster, n03.cluster, n04.cluster)",
        ),
        (HERE, {"exclude": ("desk",)}, "no host is left: --exclude removes the only host (desk)"),
        (
            JOB,
            {"nhosts": 5},
            "cannot use 5 hosts (from --nhosts): there are 4 (4 from SLURM_JOB_NODELIST). Use `--nhosts 4`.",
        ),
        (
            JOB,
            {"hosts": ("n01", "n02"), "exclude": ("n01",), "nhosts": 2},
            "there is 1 (2 from --hosts, less 1 by --exclude). Use `--nhosts 1`.",
        ),
        (HERE, {"nhosts": 2}, "1 from the host name | name more with `--hosts LIST` or `--hostfile FILE`"),
    ]:
        with subtests.test(repr(options)):
            text = error(allocation, LaunchOptions(**options))
            assert all(word in text for word in words.split(" | ")), text


def test_a_host_file_chooses_hosts_of_the_job_and_may_name_ranks(subtests, hostfile):
    for text, hosts, wanted in [
        ("n03\nn01\n", (3, 1), None),
        ("n03:9\nn01:1\n", (3, 1), (9, 1)),
        ("n02 slots=2\n", (2,), (2,)),
        ("n02\nn02\n", (2,), None),  # the lines that the scheduler's own node file has
        ("n02\nn02\nn02\n", (2,), (3,)),
        ("n02\nn02.cluster\nn02\n", (2,), (3,)),
    ]:
        with subtests.test(text):
            named = hostfile(text)
            result = select(JOB, LaunchOptions(hostfile=named.path), named)
            assert result.allocation.hosts == tuple(f"n{number:02d}.cluster" for number in hosts)
            assert result.allocation.slots == hosts  # still what the scheduler granted
            assert (result.wanted, result.wanted_origin) == (wanted, f"--hostfile {named.path}" if wanted else "")


def test_slots_of_a_file_stay_with_their_hosts(hostfile):
    named = hostfile("a:1\nb:2\nc:3\n")
    result = select(HERE, LaunchOptions(exclude=("b",)), named)
    assert (result.allocation.hosts, result.wanted) == (("a", "c"), (1, 3))
    assert result.allocation.origin["hosts"] == f"--hostfile {named.path}, --exclude b"


def test_a_stranger_in_a_host_file_is_named_with_its_line(hostfile):
    named = hostfile("# mine\nn01\n\nn09 slots=2\n")
    text = error(JOB, LaunchOptions(hostfile=named.path), named)
    assert f"n09 (from line 4 of --hostfile {named.path}) is not a host of slurm job 12; expected one of" in text


NAMES = [f"n{index}" for index in range(6)]


@given(
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    st.none() | st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    st.lists(st.sampled_from(NAMES)),
    st.none() | st.integers(1, 6),
)
def test_a_choice_keeps_order_and_facts_or_is_an_error(granted, hosts, exclude, nhosts):
    slots = tuple(int(name[1:]) + 1 for name in granted)
    job = Allocation("pbs", "1", tuple(granted), slots=slots, cpus=slots)
    wanted = hosts or granted
    expected = [name for name in wanted if name not in exclude][:nhosts]
    bad = not {*wanted, *exclude} <= set(granted) or not expected or len(expected) < (nhosts or 1)
    options = LaunchOptions(hosts=tuple(hosts) if hosts else None, exclude=tuple(exclude), nhosts=nhosts)
    if bad:
        error(job, options)
        return
    chosen = select(job, options).allocation
    assert list(chosen.hosts) == expected
    assert chosen.slots == chosen.cpus == tuple(int(name[1:]) + 1 for name in expected)


def count(number, environ, answers=None):
    return wanted_devices(number, environ, JOB, None, read=(answers or {}).get, run=lambda argv: None)


def test_the_option_outranks_every_count_and_is_the_origin():
    environ = {"EZPZ_NGPU_PER_HOST": "2", "TORCH_DEVICE": "xpu"}
    assert tuple(count(3, environ))[:3] == (3, "xpu", "--devices-per-host")
    assert tuple(count(0, environ))[:3] == (0, "cpu", "--devices-per-host")
    assert tuple(count(None, environ))[:3] == (2, "xpu", "EZPZ_NGPU_PER_HOST")


def test_notes_name_the_option_and_not_the_variable_that_the_user_never_set():
    result = count(3, {"CUDA_VISIBLE_DEVICES": "0"})
    assert any("--devices-per-host 3 tells 3" in note for note in result.notes), result.notes
    assert "EZPZ_NGPU_PER_HOST" not in "".join(result.notes)
    more = count(1, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert any("(leave it out for all)" in note for note in more.notes), more.notes


def test_devices_for_a_program_that_may_use_none_are_a_contradiction():
    assert count(0, {"TORCH_DEVICE": "cpu"}).count == 0
    with pytest.raises(UsageError, match=r"--devices-per-host 4 contradicts TORCH_DEVICE=cpu .*`unset TORCH_DEVICE`"):
        count(4, {"TORCH_DEVICE": "cpu"})


SLURM = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n01", "SLURM_JOB_NODELIST": "n[01-03]", "SLURM_GPUS_ON_NODE": "4"}
SLURM |= dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"), "1(x3)")


def test_from_wishes_to_a_placement():
    result = survey(LaunchOptions(exclude=("n02",), devices_per_host=3), SLURM)
    assert (result.placement.hosts, result.placement.counts) == (("n01", "n03"), (3, 3))
    assert result.placement.oversubscribed  # Slurm grants one slot, and launchers that count need an option
    assert result.placement.origin == "one per device (--devices-per-host)"
    with pytest.raises(UsageError, match=r"4 ranks \(from --ppn\) on n02: it has 3 devices \(--devices-per-host\)"):
        survey(LaunchOptions(hosts=("n02",), devices_per_host=3, per_host=4), SLURM)
    more = LaunchOptions(hosts=("n02",), devices_per_host=3, per_host=4, oversubscribe=True)
    assert survey(more, SLURM).placement.counts == (4,)


def test_a_host_file_names_ranks_besides_the_devices(tmp_path):
    (tmp_path / "hosts").write_text("n03 slots=2\nn01 slots=1\n")
    result = survey(LaunchOptions(hostfile=str(tmp_path / "hosts"), devices_per_host=4), SLURM)
    assert (result.placement.hosts, result.placement.counts) == (("n03", "n01"), (2, 1))
    assert result.placement.origin == f"--hostfile {tmp_path}/hosts"
    (tmp_path / "hosts").write_text("n03 slots=5\n")
    with pytest.raises(UsageError, match=r"5 ranks \(from --hostfile .*hosts\) on n03: it has 4 devices"):
        survey(LaunchOptions(hostfile=str(tmp_path / "hosts"), devices_per_host=4), SLURM)


def test_named_hosts_are_the_way_out_of_a_job_whose_hosts_are_lost():
    lost = {"PBS_JOBID": "1.head"}
    with pytest.raises(MachineError):
        survey(LaunchOptions(), lost)
    assert survey(LaunchOptions(hosts=("n02", "n01"), per_host=1), lost).placement.hosts == ("n02", "n01")
