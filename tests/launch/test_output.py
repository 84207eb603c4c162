"""What a rank's output becomes on its way through its agent: whole lines, held tracebacks, stacks kept apart, a log."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from ezpz.launch.event_loop import Loop
from ezpz.launch.host.local_world import RankPipes
from ezpz.launch.host.rank_output import RankOutput
from ezpz.launch.host.rank_process import RankProcess

TRACEBACK = b'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\nValueError: no\n'
CHAINED = TRACEBACK + b"\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK
DUMP = (
    b"Fatal Python error: Aborted\n\n"
    b'Thread 0x00007f2a1c5fe640 (most recent call first):\n  File "/usr/lib/threading.py", line 331 in wait\n'
    b"  <no Python frame>\n\nThread 0x00007f2a1c5fe641 [worker-1] (most recent call first):\n  ...\n\n"
    b'Current thread 0x00007f2a1c5fe740 (most recent call first):\n  File "a.py", line ??? in <module>\n\n'
    b"Extension modules: numpy._core, torch._C (total: 2)\n"
)


def text(pieces, stream=None):
    return b"".join(data for one, data in pieces if stream in {None, one})


def fed(*pieces, stream=2, now=0.0, **options):
    rank = RankOutput(3, **options)
    for piece in pieces:
        rank.feed(stream, piece, now)
    return rank


def test_whole_lines_come_at_once_and_in_the_order_of_their_arrival(subtests):
    for name, pieces, expected in (
        ("lines in one piece", [(1, b"one\ntwo\nthr")], [(1, b"one\ntwo\n")]),
        ("both streams", [(1, b"a\n"), (2, b"b\n"), (1, b"c\n")], [(1, b"a\n"), (2, b"b\n"), (1, b"c\n")]),
        ("a progress bar", [(2, b" 10%\r 20%\r 3")], [(2, b" 10%\r 20%\r")]),
        ("bytes that are no text", [(1, b"\xff\x00\xfe\n")], [(1, b"\xff\x00\xfe\n")]),
        ("an unfinished line at the end of its stream", [(1, b"half"), (1, b"")], [(1, b"half")]),
    ):
        with subtests.test(name):
            rank = RankOutput(0)
            for stream, data in pieces:
                rank.feed(stream, data, 0.0)
            assert rank.due() == 0.0
            assert rank.take(0.0) == expected
    rank = fed(b"thr", stream=1)
    rank.feed(1, b"ee\n", 0.1)
    assert (rank.take(0.1), rank.due()) == ([(1, b"three\n")], None)


def test_a_prompt_appears_after_a_second_and_the_second_begins_with_its_first_byte():
    rank = fed(b"Your ", stream=1, now=5.0)
    rank.feed(1, b"name? ", 5.9)
    assert (rank.take(5.99), rank.due()) == ([], 6.0)
    assert rank.take(6.0) == [(1, b"Your name? ")]
    assert rank.due() is None
    rank.feed(1, b"more", 7.0)
    assert rank.due() == 8.0


def test_an_endless_line_is_cut_at_a_mebibyte():
    rank = fed(b"x" * (1 << 20), stream=1)
    assert rank.take(0.0) == []
    rank.feed(1, b"yy", 0.0)
    assert rank.take(0.0) == [(1, b"x" * (1 << 20) + b"yy")]


FIRST_LINES = [
    b"Traceback (most recent call last):\n",
    b"[rank0]: Traceback (most recent call last):\n",
    b"/usr/bin/python3: can't open file '/tmp/x.py': [Errno 2] No such file or directory\n",
    b"/usr/bin/python3.11: No module named trian\n",
    b"\x1b[1;31mTraceback\x1b[0m \x1b[2m(most recent call last)\x1b[0m:\n",
    (
        b"\x1b[31m\xe2\x94\x80 \x1b[0m\x1b[1;31mTraceback "
        b"\x1b[0m\x1b[1;2;31m(most recent call last\x1b[0m) \xe2\x94\x80\n"
    ),
    b" 45%|##  | 45/100 [00:00<00:00]Traceback (most recent call last):\n",
    b"  + Exception Group Traceback (most recent call last):\n",
]


def test_a_traceback_waits_for_the_end_of_its_rank(subtests):
    for first, failed in itertools.product(FIRST_LINES, (True, False)):
        with subtests.test(first, failed=failed):
            rank = fed(b"before\n" + first + b"  File ...\n", b"ValueError: no\n", b"half")
            assert rank.take(0.0) == [(2, b"before\n")]
            rest = rank.end(failed, 2.0)
            held = first + b"  File ...\nValueError: no\nhalf"
            if failed:
                assert (rest, rank.words, rank.words_shown) == ([], held.decode(), False)
            else:
                assert rest == [(2, held)]
            assert rank.due() is None
    assert fed(b"most recent call last\n").take(0.0)  # words about recent calls are no traceback


def test_a_chain_of_tracebacks_is_held_as_one_and_stdout_goes_on():
    rank = fed(CHAINED)
    rank.feed(1, b"step 5\n", 0.5)
    assert rank.take(0.5) == [(1, b"step 5\n")]
    rank.end(True, 1.0)
    assert rank.words == CHAINED.decode()


def test_why_torch_aborts_a_rank_is_kept_beside_its_stack():
    said = (
        b"[rank0]:[E ProcessGroupNCCL.cpp:655] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5"
    )
    stack = (
        b'Fatal Python error: Aborted\n\nCurrent thread 0x01 (most recent call first):\n  File "a.py", line 1 in f\n'
    )
    rank = fed(b"step 1\n" + said + b"\n", b"frame #0: c10::Error\n" * 400, stack)
    rank.end(failed=True, now=0.0, code=-6)
    assert rank.reason == said.decode() + "\n"
    assert rank.words == stack.decode()
    other = fed(said + b"\n", b"step 2\n" * 30)
    other.end(failed=True, now=0.0, code=1)
    assert other.reason == ""


def test_a_traceback_that_was_only_logged_is_shown_after_five_seconds_in_order():
    rank = fed(TRACEBACK, b"goes on\n", b"prompt")
    assert rank.due() == 5.0
    assert (rank.take(4.9), rank.due()) == ([], 5.0)
    assert text(rank.take(5.0)) == TRACEBACK + b"goes on\nprompt"
    rank.end(True, 6.0)
    assert rank.words_shown
    assert "ValueError: no" in rank.words


def test_a_traceback_that_was_logged_long_ago_is_no_last_word():
    rank = fed(TRACEBACK)
    rank.feed(2, b"[rank3]: " + TRACEBACK, 6.0)
    assert rank.end(True, 6.5) == [(2, TRACEBACK)]
    assert rank.words == "[rank3]: " + TRACEBACK.decode()


def test_a_traceback_that_a_rank_outlived_is_a_last_word_only_where_it_may_have_ended_of_it(subtests):
    for later, code, counts in [
        (b"", 1, True),  # its threads took long to end
        (b"/a/b.py:9: UserWarning: leaked\n  warnings.warn(x)\n", 1, True),
        (b"", 3, False),  # an exception ends a Python with 1
        (b"", -9, False),
        (b"no more shards\n", 1, False),
        # Ways to read these lines double with each of them: an agent stood still for ever here.
        (b"/a/b.py:9: UserWarning: leaked\n  warnings.warn(x)\n" * 40 + b"bye\n", 1, False),
    ]:
        with subtests.test(later[:60], code=code):
            rank = fed(TRACEBACK)
            rank.take(6.0)
            rank.feed(2, later, 60.0)
            rank.end(True, 61.0, code=code)
            assert ("ValueError: no" in rank.words) == counts
            assert rank.words.endswith("".join(later.decode().splitlines(keepends=True)[-20:]))


def test_a_long_traceback_that_a_rank_outlived_is_a_last_word_as_a_whole():
    frames = b"".join(b'  File "t.py", line %d, in f%d\n    return f(batch)\n' % (n, n) for n in range(400))
    words = b"Traceback (most recent call last):\n" + frames + b"ValueError: bad shape\nof batch 3\n"
    rank = fed(b"step 1\n", words)
    rank.take(6.0)
    rank.feed(2, b"/a/b.py:9: UserWarning: leaked\n  warnings.warn(x)\n", 60.0)
    rank.end(True, 61.0)
    assert rank.words == (words + b"/a/b.py:9: UserWarning: leaked\n  warnings.warn(x)\n").decode()


def test_what_is_said_before_an_abort_is_a_last_word_of_it(subtests):
    for said in (
        b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
        b"double free or corruption (!prev)\n",
        b"free(): invalid pointer\n",
        b"python3: solver.c:31: step: Assertion `n > 0' failed.\n",
    ):
        with subtests.test(said):
            rank = fed(b"step 1\n" + said)
            rank.feed(2, b"Fatal Python error: Aborted\n\n", 0.1)
            rank.end(True, 0.2, code=-6)
            assert rank.words == f"{said.decode()}Fatal Python error: Aborted\n\n"
    assert fed(b"solve(): step 3\nAssertion `x' failed: no\n").take(0.0)  # is shown at once


def test_the_last_traceback_of_a_rank_that_lives_is_told_with_the_line_before_it(subtests):
    head = b"Exception in thread Thread-1 (feed):\n"
    long = TRACEBACK.replace(b"    f()\n", b"    f()\n" * 2000)
    for name, pieces, expected in (
        ("none", [b"step 1\n"], b""),
        ("held", [b"one\ntwo\n", head, TRACEBACK], head + TRACEBACK),
        ("nothing before it", [TRACEBACK], TRACEBACK),
        ("shown long ago", [head + TRACEBACK, 6.0, b"more\n"], head + TRACEBACK + b"more\n"),
        ("of two the last", [CHAINED], b"\n" + TRACEBACK),
        ("too far back", [head + TRACEBACK, 6.0, b"more\n" * 9000], b""),
    ):
        with subtests.test(name):
            rank, now = RankOutput(0), 0.0
            for piece in pieces:
                if isinstance(piece, float):
                    now += piece
                else:
                    rank.feed(2, piece, now)
            rank.take(now)
            assert rank.last_traceback().encode() == expected
    told = fed(head, long).last_traceback()
    assert len(told) == 4096
    assert told.startswith((head + TRACEBACK[:60]).decode())
    assert told.endswith("ValueError: no\n")


def test_a_traceback_is_held_up_to_a_quarter_of_a_mebibyte():
    rank = fed(TRACEBACK, *[b"y" * 1023 + b"\n"] * 256)
    assert text(rank.take(0.0)) == TRACEBACK + (b"y" * 1023 + b"\n") * 256


def test_a_rank_without_traceback_leaves_its_last_twenty_lines():
    rank = fed(*[b"line %d\n" % number for number in range(30)], b"the last")
    rank.end(True, 0.0)
    assert rank.words == "".join(f"line {number}\n" for number in range(11, 30)) + "the last\n"
    assert rank.words_shown


def test_last_lines_are_bounded_and_hold_the_last_state_of_a_progress_bar():
    rank = fed(b"z" * 9000 + b"\n", b" 10%\r 20%\r 30%\r\n", b"\xff\n", b"\n\n")
    rank.end(True, 0.0)
    assert rank.words == " 30%\n\N{REPLACEMENT CHARACTER}\n"
    silent = RankOutput(0)
    silent.end(True, 0.0)
    assert silent.words == ""
    long = fed(b"z" * 9000)
    long.end(True, 0.0)
    assert len(long.words) <= 8193


def test_what_comes_after_the_end_of_a_rank_is_shown_at_once():
    rank = fed(b"a\n")
    rank.end(True, 0.0)
    rank.feed(2, TRACEBACK, 1.0)
    assert rank.take(1.0) == [(2, TRACEBACK)]


@given(st.lists(st.integers(0, len(DUMP))))
def test_stacks_that_were_asked_for_stay_off_the_screen(cuts):
    rank = RankOutput(0)
    rank.expect_dump()
    data = b"one\n\ntwo\n" + DUMP + b"\nthree\n" + TRACEBACK.replace(b"Traceback", b"Backtrace")
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        rank.feed(2, data[start:end], 0.0) if start < end else None
    assert text(rank.take(0.0)) == b"one\n\ntwo\n\nthree\n" + TRACEBACK.replace(b"Traceback", b"Backtrace")
    assert rank.dump() == DUMP.decode()
    rank.feed(2, DUMP, 0.0)
    assert text(rank.take(0.0)) == b""  # one that nobody asked for is held like a traceback: the rank is about to end
    assert text(rank.take(6.0)) == DUMP


def test_a_stack_begins_behind_a_progress_bar():
    rank = RankOutput(0)
    rank.expect_dump()
    rank.feed(2, b'\r 45%|##Current thread 0x00007f2a (most recent call first):\n  File "a.py", line 3 in f\n', 0.0)
    assert text(rank.take(0.0)) == b"\r 45%|##"
    assert rank.dump() == 'Current thread 0x00007f2a (most recent call first):\n  File "a.py", line 3 in f\n'


ASK = """
import faulthandler, signal, sys, threading
faulthandler.register(signal.SIGUSR1, all_threads=True)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", file=sys.stderr, flush=True)
signal.sigtimedwait({signal.SIGUSR2}, 60)
print("over", file=sys.stderr, flush=True)
"""


def test_the_stacks_of_a_real_process_are_known(clean_env):
    process = subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", ASK], env=clean_env, stderr=subprocess.PIPE)
    rank = RankOutput(0)
    shown, fd = b"", process.stderr.fileno()

    def read():
        data = os.read(fd, 65536)
        rank.feed(2, data, time.monotonic())
        return data

    while b"ready" not in shown:
        read()
        shown += text(rank.take(0.0))
    rank.expect_dump()
    process.send_signal(signal.SIGUSR1)
    dump = b""
    while b"<module>" not in dump:
        data = read()
        assert data, dump
        dump += data
    process.send_signal(signal.SIGUSR2)
    while read():
        pass
    process.communicate(timeout=30)
    shown += text(rank.end(True, time.monotonic()))
    stacks = rank.dump()
    assert shown == b"ready\nover\n"
    assert stacks.count("most recent call first") == 2
    assert stacks.count(" in wait") >= 1


def test_the_log_holds_every_byte_of_both_streams_in_order(tmp_path):
    rank = RankOutput(3, str(tmp_path / "logs"))
    rank.expect_dump()
    assert not (tmp_path / "logs").exists()
    pieces = [(1, b"half"), (2, TRACEBACK), (1, b" line\n"), (2, DUMP), (2, b"\xffend")]
    for stream, data in pieces:
        rank.feed(stream, data, 0.0)
    rank.end(True, 0.0)
    rank.feed(2, b"late\n", 0.0)
    assert (tmp_path / "logs" / "rank-3.log").read_bytes() == text(pieces) + b"late\n"
    assert not rank.problem


def test_a_log_of_an_earlier_launch_is_replaced(tmp_path):
    (tmp_path / "rank-3.log").write_text("old")
    fed(b"new\n", log_dir=str(tmp_path)).end(False, 0.0)
    assert (tmp_path / "rank-3.log").read_text() == "new\n"


def test_a_full_disk_or_a_folder_that_cannot_be_made_ends_the_log_and_not_the_rank(tmp_path):
    (tmp_path / "file").touch()
    rank = fed(b"one\n", log_dir=str(tmp_path / "file" / "logs"))
    assert ("Not a directory" in rank.problem, text(rank.take(0.0))) == (True, b"one\n")
    (tmp_path / "rank-3.log").symlink_to("/dev/full")
    rank = fed(b"one\n", b"two\n", log_dir=str(tmp_path))
    assert f"cannot write {tmp_path}/rank-3.log: No space left on device" in rank.problem
    assert text(rank.take(0.0)) == b"one\ntwo\n"
    rank.end(False, 0.0)


PIECES = st.lists(
    st.tuples(
        st.sampled_from([1, 2]),
        st.one_of(
            st.binary(min_size=1, max_size=20),
            st.sampled_from([TRACEBACK, CHAINED, b"\n", b"\r", b"a\r\n", b"Trace", b"back (most recent call last):\n"]),
        ),
        st.sampled_from([0.0, 0.1, 0.6, 1.0, 5.0]),
        st.booleans(),
    )
)


@settings(max_examples=3 * settings.default.max_examples)
@given(PIECES, st.booleans())
def test_nothing_is_lost_or_turned_round_whatever_the_cuts(pieces, failed):
    rank, now, taken = RankOutput(0), 0.0, []
    for stream, data, pause, take in pieces:
        now += pause
        rank.feed(stream, data, now)
        if take:
            taken += rank.take(now)
            due = rank.due()
            assert due is None or now < due <= now + 5.0
    taken += rank.end(failed, now)
    out, err = (b"".join(data for one, data, *_ in pieces if one == stream) for stream in (1, 2))
    assert text(taken, 1) == out
    if failed and not rank.words_shown:
        assert err.startswith(text(taken, 2))
        assert rank.words == err[len(text(taken, 2)) :].decode(errors="replace")
    else:
        assert text(taken, 2) == err
    assert rank.due() is None


def test_a_refusal_of_python_is_held_behind_much_else():
    refusal = b"/usr/bin/python3: can't open file '/home/me/trian.py': [Errno 2] No such file or directory\n"
    for before in (0, 100000):
        rank = fed(b"y" * before + b"\n" + refusal)
        assert text(rank.take(0.0)) == b"y" * before + b"\n"
        rank.end(True, 0.1)
        assert rank.words == refusal.decode()


class Blocked:
    """A connection to a launcher that takes nothing for now."""

    full, waiting, slots = True, False, None

    def __init__(self):
        self.shown = []

    def show(self, *piece):
        self.shown.append(piece)


def test_what_a_rank_wrote_before_its_end_is_read_though_the_launcher_takes_no_more():
    (read, write), (read_errors, write_errors) = os.pipe(), os.pipe()
    rank = RankProcess(0, pid=1, pipes=(read, read_errors))
    loop = Loop()
    blocked = Blocked()
    pipes = RankPipes(loop, {0: rank}, blocked)
    pipes.add(rank)
    pipes.keep_pace()
    os.write(write, b"x" * 50000 + b"\n")
    loop.turn(0.0)
    assert blocked.shown == []
    os.close(write)
    os.close(write_errors)
    rank.end(0)
    for _ in range(2):
        pipes.keep_pace()
        loop.turn(0.0)
    assert blocked.shown == [(0, 1, b"x" * 50000 + b"\n", 0)]
    assert rank.pipes == {}
    loop.close()


def test_what_others_write_after_a_ranks_end_waits_for_the_launcher():
    read, write = os.pipe()
    os.set_blocking(write, False)
    rank = RankProcess(0, pid=1, pipes=(read,))
    loop = Loop()
    pipes = RankPipes(loop, {0: rank}, Blocked())
    pipes.add(rank)
    rank.end(0)
    written = 0
    for _ in range(100):
        with contextlib.suppress(BlockingIOError):
            written += os.write(write, b"x" * (1 << 18))
        pipes.keep_pace()
        loop.turn(0.0)
    assert written < 2 << 20
    os.close(write)
    pipes.close(rank)
    loop.close()
