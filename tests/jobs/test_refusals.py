"""What is refused before a job is queued: the limits that schedulers state, and folders that one host alone sees."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from ezpz.cluster import probe, site
from ezpz.errors import UsageError
from ezpz.jobs.job_file import Asked, options, read_option, unfilled
from ezpz.jobs.job_handler import Queue, Queues, handler
from ezpz.jobs.pbs_jobs import queues
from ezpz.jobs.refusals import about_chain, check_chain, check_filled_in, check_queue, check_shared
from ezpz.jobs.slurm_jobs import partitions

DATA = Path(__file__).parents[1] / "data" / "queues"
SITES = site.load({}, probe.read)
HOUR = 3600


def told(file):
    return lambda _argv: (DATA / file).read_text()


ROUTES = queues(told("qstat-Qf-routes.txt"))


def test_partitions_are_read_with_their_limits():
    found = partitions(told("scontrol-show-partition.txt"))
    assert found == Queues(
        {"main": Queue("main", HOUR, 0, 2, is_open=True, is_default=True)}, "scontrol show partition"
    )


def test_limits_of_a_partition():
    for words, expected in (
        ("MaxTime=7-12:30:05 MaxNodes=4 TotalNodes=9 State=UP", (649805, 4, True)),
        ("MaxTime=UNLIMITED MaxNodes=UNLIMITED State=DRAIN", (None, None, False)),
        ("MaxTime=10 MaxNodes=x", (None, None, True)),
    ):
        text = f"PartitionName=p Default=NO\n   {words}\n\n"
        queue = partitions(lambda _, text=text: text).by_name["p"]
        assert (queue.most_seconds, queue.most_hosts, queue.is_open) == expected, words


def test_queues_of_pbs_are_read_with_their_limits():
    assert queues(told("qstat-Qf-metacentrum.txt")).by_name == {"gpu_long": Queue("gpu_long", 336 * HOUR)}
    assert ROUTES.by_name["prod"] == Queue("prod", None, 10, 496, leads_to=("small", "medium", "large"))
    assert ROUTES.by_name["medium"] == Queue("medium", 6 * HOUR, 25, 99)
    assert not ROUTES.by_name["demand"].is_open


def test_no_answer_is_none(subtests):
    for answer in (None, "", "garbage\n", "Queue", "slurm_load_partitions error"):
        with subtests.test(answer=answer):
            run = Mock(return_value=answer)
            assert (partitions(run), queues(run)) == (None, None)


ASKED_OF_QUEUES = [
    ("debug", 2, 1, None),
    ("debug", 2, 6, "too long: --time 06:00:00; expected at most 01:00:00, which queue debug grants to a job of 2"),
    ("debug", 3, 1, "wrong number of hosts: --nhosts 3; expected 1 to 2, as queue debug takes (from `qstat -Qf`)"),
    ("prod", 30, 6, None),
    ("prod", 30, 7, "too long: --time 07:00:00; expected at most 06:00:00, which queue prod grants to a job of 30"),
    ("prod", 4, 1, "wrong number of hosts: --nhosts 4; expected 10 to 496, as queue prod takes"),
    ("debgu", 1, 1, "unknown queue: 'debgu' (from -q); expected one of prod, debug, small"),
    ("demand", 1, 1, "closed: queue demand (from -q) takes no jobs now (from `qstat -Qf`); expected an open one"),
    ("", 9999, 9999, None),  # this server names no queue of its own choice
    ("elsewhere@other", 1, 1, None),
]


def refusal(check, *arguments):
    """What a check says against something, or None."""
    try:
        check(*arguments)
    except UsageError as error:
        return str(error)
    return None


def test_what_a_queue_does_not_take_is_refused(subtests):
    for name, hosts, hours, expected in ASKED_OF_QUEUES:
        with subtests.test(queue=name, hosts=hosts, hours=hours):
            said = refusal(check_queue, ROUTES, name, "-q", hosts, hours * HOUR)
            assert (said is None) == (expected is None), said
            if said:
                assert said.startswith(expected)
                assert said.endswith("`--force` submits it all the same.")


def test_a_queue_that_takes_the_job_is_named():
    with pytest.raises(UsageError, match="another queue with -q: prod, small would take it"):
        check_queue(ROUTES, "debug", "-q", 12, 2 * HOUR)
    with pytest.raises(UsageError, match="Did you mean debug"):
        check_queue(ROUTES, "debgu", "-q", 1, HOUR)


def test_the_schedulers_own_choice_has_limits_too():
    found = partitions(told("scontrol-show-partition.txt"))
    with pytest.raises(UsageError, match="too long: --time 02:00:00; expected at most 01:00:00, which queue main"):
        check_queue(found, "", "the command line", 1, 2 * HOUR)


def test_one_of_several_partitions_is_enough():
    both = Queues({"a": Queue("a", HOUR), "b": Queue("b", 9 * HOUR)}, "scontrol show partition")
    check_queue(both, "a,b", "-q", 1, 8 * HOUR)
    with pytest.raises(UsageError, match="unknown queue: 'c'"):
        check_queue(both, "a,c", "-q", 1, HOUR)


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
tmpfs /home/ann/in\\040memory tmpfs rw 0 0
fs01:/home /home nfs4 rw 0 0
lustre /lus/project lustre rw 0 0
lustre /tmp/shared lustre rw 0 0
/dev/nvme0n1 /local/scratch xfs rw 0 0
/dev/nvme1n1 /mnt/bb/ann xfs rw 0 0
"""


FOLDERS = [
    ("/home/ann/runs", None, None),
    ("/lus/project/ann", "polaris", None),
    ("/tmp/shared/ann", None, None),  # a file system of all hosts, whatever it is called
    ("/opt/work", None, None),  # nothing is known against it
    ("/tmp/runs", None, "on the disk of one host (/tmp, ext4 at /)"),
    ("/tmpfiles/runs", None, None),
    ("/dev/shm/x", None, "in the memory of this host (tmpfs at /dev/shm, from /proc/self/mounts)"),
    ("/home/ann/in memory/x", None, "in the memory of this host (tmpfs at /home/ann/in memory"),
    ("/local/scratch/x", "polaris", "on the disk of one host (/local/scratch is node_local of site polaris)"),
    ("/mnt/bb/ann/x", "frontier", "on the disk of one host (/mnt/bb/ann is node_local of site frontier)"),
    ("/mnt/bb/ann/x", None, None),
]


def test_a_folder_of_one_host_is_refused(subtests):
    for path, at, expected in FOLDERS:
        with subtests.test(path=path, at=at):
            folders = [("/home/ann", "the working folder"), (path, "--output")]
            said = refusal(check_shared, folders, SITES.get(at), "ann", lambda _: MOUNTS)
            assert (said is None) == (expected is None), said
            if said:
                assert said.startswith(f"not seen by all hosts: {path} (from --output) is {expected}")


def test_without_a_table_of_mounts_names_decide():
    with pytest.raises(UsageError, match="unknown file system at /"):
        check_shared([("/tmp/x", "--output")], None, "", lambda _: None)
    check_shared([("/home/x", "--output")], None, "", lambda _: None)


def test_what_is_to_be_filled_in_is_refused():
    kind = handler("pbs").script
    found = options(kind, SITES["polaris"], Asked(2, HOUR, "train"))
    with pytest.raises(UsageError) as error:
        check_filled_in(unfilled(found), kind.program, {"-A": "-A"}, "the table of site polaris")
    assert str(error.value) == (
        "not filled in: -A PROJECT (from the table of site polaris); expected a name of yours, which qsub needs here. "
        "Add `-A YOURS`."
    )
    check_filled_in(unfilled(options(kind, SITES["polaris"], Asked(2, HOUR, "train", "mine"))), "qsub", {}, "")


def test_words_about_chains_warn_and_only_some_forbid():
    words = about_chain(SITES["perlmutter"], "debug")
    assert words.startswith("forbidden: NERSC's queue policy")
    assert "ezpz/cluster/sites.toml" in words
    with pytest.raises(UsageError, match=r"a chain in queue debug of perlmutter is forbidden: .* Name one with -q"):
        check_chain(words, "debug", SITES["perlmutter"])
    words = about_chain(SITES["polaris"], "debug-scaling")
    assert words.startswith("one job of a user runs or waits at a time")
    check_chain(words, "debug-scaling", SITES["polaris"])
    assert about_chain(SITES["polaris"], "prod") == about_chain(None, "debug") == ""


OPTIONS = [
    ("slurm", "--nodes=2", ("--nodes", "2", "--nodes=2")),
    ("slurm", "-N 2", ("--nodes", "2", "--nodes=2")),
    ("slurm", "-N2", ("--nodes", "2", "--nodes=2")),
    ("slurm", "--exclusive", ("--exclusive", "", "--exclusive")),
    ("slurm", "-C gpu&hbm80g", ("--constraint", "gpu&hbm80g", "--constraint=gpu&hbm80g")),
    ("pbs", "-A mine", ("-A", "mine", "-A mine")),
    ("pbs", "-l select=2:system=polaris", ("-l select", "2:system=polaris", "-l select=2:system=polaris")),
    ("pbs", "-l walltime=01:00:00", ("-l walltime", "01:00:00", "-l walltime=01:00:00")),
    ("pbs", "-k doe", ("-k", "doe", "-k doe")),
]


def test_an_option_is_read_and_written(subtests):
    for name, text, expected in OPTIONS:
        with subtests.test(text=text):
            option = read_option(text, handler(name).script)
            assert (option.name, option.value, option.line()) == expected
