"""Which failure is the cause, and the words for it and for worlds that are not the planned ones."""

import signal

import pytest

from ezpz.fields import replace
from ezpz.launch.agent_messages import Finished, Mismatch, Up
from ezpz.launch.launcher_choice import Choice
from ezpz.launch.placement import Placement
from ezpz.launch.plan import Chosen, LaunchPlan
from ezpz.launch.run.failures import Failure, Outcome, aborted, earliest, how, last_words, left_early, log_of
from ezpz.launch.run.rollcall import RollCall


def failure(rank, at, status=1, **more):
    return Failure(f"rank {rank}", how(status), 1, at, rank, "n01", 7, status, **more)


ENDS = {
    3: "exited with code 3",
    -signal.SIGSEGV: "was killed by SIGSEGV",
    -signal.SIGKILL: "was killed by SIGKILL",
    -45: "was killed by signal 45",
}


def test_an_end_in_words():
    assert {status: how(status) for status in ENDS} == ENDS


def test_the_earliest_is_the_cause_whatever_came_first_and_a_killed_shim_comes_last():
    late, early = failure(0, 2.0), failure(1, 1.0)
    shim = failure(2, 0.5, why="its shim (pid 4) was killed")
    assert earliest([late, early, shim]) is early
    assert earliest([shim]) is shim
    # What starts ranks has then ended the others: their SIGTERM is no cause, unless it came before.
    ended, by_itself = failure(3, 0.6, -signal.SIGTERM), failure(3, 0.4, -signal.SIGTERM)
    assert earliest([ended, shim]) is shim
    assert earliest([by_itself, shim]) is by_itself


ABORTS = {
    "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1": (
        7,
        "called MPI_Abort and exited with code 7",
    ),
    # Codes that an mpiexec also has for a shim that was killed.
    "Abort(137) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 137) - process 1": (
        137,
        "called MPI_Abort and exited with code 137",
    ),
    "Abort(138023695) on node 0 (rank 0 in comm 0): Fatal error in internal_Init: Other MPI error, error stack:": (
        15,
        "was aborted by its MPI and exited with code 15",
    ),
}


def test_a_rank_that_ends_all_others_through_mpi_says_so_itself(subtests):
    killed = {"status": -signal.SIGKILL, "why": "its shim (pid 4) was killed"}
    for words, (code, told) in ABORTS.items():
        with subtests.test(words):
            cause = aborted([failure(0, 1.0, **killed), failure(1, 1.1, words=f"x\n{words}\n", **killed)])
            assert (cause.rank, cause.code, cause.status, cause.how) == (1, code, code, told)
    assert aborted([failure(0, 1.0, **killed), failure(1, 1.1, words="I call MPI_Abort(7)", **killed)]) is None
    assert aborted([failure(0, 1.0, status=3), failure(1, 1.1, words=next(iter(ABORTS)), **killed)]) is None


GLOO = """Traceback (most recent call last):
  File "t.py", line 8, in <module>
    dist.all_reduce(x)
RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] {} [127.0.0.1]:3722.
"""
NCCL = """[rank0]: Traceback (most recent call last):
[rank0]:   File "t.py", line 8, in <module>
[rank0]:     dist.all_reduce(x)
[rank0]: torch.distributed.DistBackendError: NCCL error in: …/ProcessGroupNCCL.cpp:3699, remote process exited or \
there was a network error, NCCL version 2.27.7
[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank0]: Last error:
[rank0]: socketProgress: Connection closed by remote peer n02<4711>
"""
STORE = """Traceback (most recent call last):
  File "t.py", line 8, in <module>
    store.get("x")
torch.distributed.DistNetworkError: failed to recv, got 0 bytes
"""
WATCHDOG = """terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0 Rank 0] Process group watchdog thread terminated with exception: NCCL error: remote \
process exited or there was a network error
"""
NOISE = """[W1123 00:22:59.666 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=4): Connection reset by peer
Traceback (most recent call last):
  File "t.py", line 8, in <module>
    compute()
ValueError: no such luck
[W1123 00:22:59.666 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=4): Broken pipe
"""
DOWNLOAD = """Traceback (most recent call last):
  File "/x/nccl/t.py", line 8, in <module>
ConnectionResetError: [Errno 104] Connection reset by peer
"""


def test_a_rank_that_only_reports_a_lost_peer_is_known_by_its_exception(subtests):
    for words, is_lost in [
        (GLOO.format("Connection closed by peer"), True),
        (GLOO.format("Connection reset by peer"), True),
        (GLOO.format("Timed out waiting 1800000ms for recv operation to complete"), False),
        (NCCL, True),
        (STORE, True),
        (STORE.replace("failed to recv, got 0 bytes", "Broken pipe"), True),
        (WATCHDOG, True),
        (NOISE, False),
        (DOWNLOAD, False),
        ("", False),
    ]:
        with subtests.test(words):
            assert failure(0, 1.0, words=words).lost_peer == is_lost


def test_one_that_has_waited_in_vain_for_others_has_not_lost_one():
    waited = failure(0, 1.0, words=GLOO.format("Timed out waiting 1800000ms for recv operation to complete"))
    assert (waited.lost_peer, waited.waited_in_vain) == (False, True)
    assert not failure(0, 1.0, words=GLOO.format("Connection closed by peer")).waited_in_vain
    download = DOWNLOAD.replace("Connection reset", "the client socket has timed out")
    assert not failure(0, 1.0, words=download).waited_in_vain


def test_a_lost_peer_is_a_consequence_of_any_other_failure_of_that_moment():
    lost, killed = failure(0, 1.0, words=STORE), failure(1, 1.05, -9)
    assert earliest([lost, killed]) is killed
    assert earliest([lost]) is lost


def test_a_rank_that_left_with_0_is_named_with_its_last_step_and_the_code_of_the_one_that_failed():
    lost = Failure("rank 0 on host n01 (pid 7)", how(3), 3, 2.0, 0, "n01", 7, 3, words=STORE, shown=True)
    left = left_early("n02", Finished(rank=5, pid=12, at=1.5, step=41), lost)
    waited = "while other ranks still waited for it"
    assert left.text == f"rank 5 on host n02 (pid 12) exited with code 0, its last reported step 41, {waited}"
    assert (left.code, left.rank, left.status) == (3, 5, 0)
    unknown = left_early("n02", Finished(rank=5, pid=12, at=1.5, step=-1), lost)
    assert unknown.how == f"exited with code 0 {waited}"
    later = "ezpz: failed as well, later: rank 0 on host n01 (pid 7) exited with code 3"
    assert last_words(Outcome(3, left, [lost]), 0) == [later]


def test_the_end_of_the_screen_has_the_other_failures_and_the_causes_words_once():
    cause, other = failure(1, 1.0, words="Traceback\nValueError\n", shown=False), failure(0, 1.1, 5)
    outcome = Outcome(cause=cause, failures=[cause, other])
    assert last_words(outcome, 0) == ["ezpz: failed as well, later: rank 0 exited with code 5", "Traceback\nValueError"]
    assert last_words(Outcome(), 0) == []
    shown = Outcome(cause=replace(cause, shown=True))
    assert last_words(shown, 100) == []
    assert last_words(shown, 10_000) == ["Traceback\nValueError"]


def test_a_script_that_is_not_there_is_named_with_what_to_type(tmp_path):
    (tmp_path / "train.py").write_text("")
    for name, hint in (("trian.py", "Did you mean train.py?"), ("zzz", "Give its path: PATH/TO/zzz.")):
        words = f"python3: can't open file '{tmp_path}/{name}': [Errno 2] No such file or directory\n"
        cause = Failure("rank 0", "exited with code 2", 2, 1.0, rank=0, words=words, shown=False)
        told = last_words(Outcome(2, cause, [cause]), 0)
        assert told == [f"ezpz: there is no script {name} in {tmp_path}; expected one. {hint}", words.rstrip()]


def test_many_failures_are_counted():
    same = [failure(rank, rank) for rank in range(8)]
    assert last_words(Outcome(cause=same[0], failures=same), 0) == ["ezpz: 7 other ranks failed in the same way"]
    odd = [*same, failure(9, 9, 4)]
    (line,) = last_words(Outcome(cause=odd[0], failures=odd), 0)
    assert line.endswith("; and 5 more")


def test_the_last_words_are_kept_where_no_log_is(tmp_path):
    said = failure(3, 1.0, words="boom\n")
    path = log_of(said, "", str(tmp_path))
    assert (path, (tmp_path / "rank-3.log").read_text()) == (str(tmp_path / "rank-3.log"), "boom\n")
    assert log_of(said, "/logs", str(tmp_path)) == "/logs/rank-3.log"
    assert log_of(said, "", "/no/such/folder") == log_of(replace(said, words=""), "", str(tmp_path)) == ""


@pytest.fixture
def world():
    placement = Placement(("n01.cluster", "n02.cluster"), (2, 2), "-n")
    return RollCall(LaunchPlan(placement, Chosen(Choice(None, "/opt/mpich/bin/mpiexec", "on PATH"))))


def test_hosts_that_do_not_come_up_are_named_with_their_stage(world):
    world.came(0, "n01")
    world.partly(0, 1)
    late = "n01.cluster (1 of 2 ranks came), n02.cluster (nothing was heard of it); expected 4 ranks"
    assert world.missing(600.0).startswith(f"2 of 2 hosts did not come up within 600 s: {late}")
    world.up(0, Up(ranks=2))
    assert world.late() == [1]
    world.up(1, Up(ranks=2))
    assert world.complete


def test_worlds_of_one_are_counted_and_their_usual_cause_is_told(world):
    world.strangers(Mismatch(host="n01", worlds=[("1", "hydra", "…"), ("1", "hydra", "…")]))
    world.strangers(Mismatch(host="n02", worlds=[("1", "hydra", "…")]))
    words = world.mismatch()
    expected = "expected a world of 4 on 2 hosts (from the plan). Usual cause: "
    assert words.startswith(f"3 worlds of 1 came up on n01, n02 (from hydra); {expected}")
    assert "/opt/mpich/bin/mpiexec" in words


def test_ranks_in_the_wrong_places_keep_their_own_words(world):
    world.strangers(Mismatch(host="n01", worlds=[("4", "hydra", "rank 1 is local rank 0 of 1")]))
    assert world.mismatch() == "on n01: rank 1 is local rank 0 of 1"


def test_a_host_in_anothers_place_is_told_and_an_alias_is_not(world):
    assert world.misplaced(0, "n01") == world.misplaced(1, "n02.other") == world.misplaced(0, "alias") == ""
    told = "the ranks planned for n01.cluster came up on n02; expected hosts in the planned order"
    assert told in world.misplaced(0, "n02")


def test_the_host_that_a_launcher_blames_first_is_found_in_its_words(world, subtests):
    for words, host in {
        "ssh: connect to host n02 port 22: No route to host": "n02.cluster",
        "[mpiexec@n01] Error: Unable to run bstrap_proxy on N02.cluster (pid 7)": "n02.cluster",
        "starting on n01 and n02\n  srun: error: n02: no answer": "n02.cluster",
        "  my node:   n02\n  target node:  n01\n": "",  # Open MPI 4 so speaks of hosts that it has reached
        "n02b, bn02 and n02-x are others": "",
        "[n02:4711] something else": "",
        "": "",
    }.items():
        with subtests.test(words):
            assert world.named_in(words) == (host, words.splitlines()[-1].strip() if host else "")


def test_a_host_that_has_come_is_not_blamed(world):
    world.came(1, "n02")
    assert world.named_in("n02 is slow") == ("", "")
    assert world.named_in("n02 cannot reach n01.cluster") == ("n01.cluster", "n02 cannot reach n01.cluster")
