"""Folding alone: whatever ranks say and whenever, each finds its own lines in its own order."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from ezpz.launch.run.fold_warnings import Folds

WARNINGS = [b"a warning\n", b"b: Warn\r\n", b"[W c\n", b"x: warn\n  source()\n", b"\x1b[33mWARNING\x1b[0m\n"]
PLAIN = [b"one %04d\n", b"half %04d ", b"%04d%%\r", b"  %04d indented\n"]
PAUSES = st.sampled_from([0.0, 0.0, 0.05, 0.1, 0.3, 4.0])
SAID = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.sampled_from(WARNINGS + PLAIN), min_size=1, max_size=4), PAUSES)
)


def hear(said, world_size=4):
    """Return what each rank said, word by word, and all that was shown, with the time."""
    folds, now, words, shown = Folds(world_size), 0.0, {rank: [] for rank in range(world_size)}, []
    for number, (rank, pieces, pause) in enumerate(said):
        end = now + pause
        while (due := folds.due()) is not None and due <= end:
            now = max(now, due)
            pieces_now = folds.tick(now)
            assert pieces_now, "due, but nothing to show"
            shown += [(now, *piece) for piece in pieces_now]
        now = end
        mine = [piece % number if piece in PLAIN else piece for piece in pieces]
        words[rank] += [(now, word) for word in mine]
        shown += [(now, *piece) for piece in folds.add(rank, b"".join(mine), now)]
    shown += [(now, *piece) for piece in folds.finish()]
    assert (folds.held, folds.due()) == (0, None)
    return words, shown


@settings(max_examples=3 * settings.default.max_examples)
@given(SAID)
def test_each_rank_finds_its_lines_in_its_order_and_at_once_but_for_warnings_that_others_had_shown(said):
    words, shown = hear(said)
    for rank, mine in words.items():
        rest = b"".join(data for _, ranks, data in shown if rank in ranks)
        times = [at for at, ranks, data in shown if rank in ranks for _ in data]
        for now, word in mine:
            position = len(times) - len(rest)
            if rest.startswith(word) and now <= times[position] <= now + 0.3 + 1e-9:
                rest = rest.removeprefix(word)
                continue
            assert word in WARNINGS
            assert any(rank not in ranks and word in data and at <= now <= at + 10.0 for at, ranks, data in shown)
        assert not rest


def test_ranks_that_say_two_things_in_opposite_order_both_keep_theirs():
    folds = Folds(3)
    folds.add(0, b"warn A\n", 0.0)
    folds.add(1, b"warn B\n", 0.0)
    folds.add(0, b"warn B\n", 0.1)
    folds.add(1, b"warn A\n", 0.1)
    assert folds.tick(0.3) == [((0,), b"warn A\n"), ((0, 1), b"warn B\n"), ((1,), b"warn A\n")]


def test_a_line_of_nothing_but_warnings_takes_no_time():
    folds = Folds(2)
    data = b"warn" * 250_000
    begun = time.process_time()
    assert folds.add(0, data, 0.0) == [((0,), data)]
    assert folds.add(1, data + b"\n", 0.0) == [((1,), data + b"\n")]
    assert time.process_time() - begun < 10


@given(st.lists(st.sampled_from(b"warn|WaRN|[W|W1121 19:|[rank1]:|W11|x | |\n|\r".split(b"|"))).map(b"".join))
def test_a_warning_is_found_whether_or_not_another_stands_beside_it(data):
    """A quick look decides whether words are searched at all: a warning beside them has them searched for certain."""

    def shown(said):
        folds = Folds(2)
        pieces = [piece for rank in (0, 1) for piece in folds.add(rank, said, 0.0)]
        return sum(len(piece) for _, piece in [*pieces, *folds.finish()])

    beside = b"a warning\n"
    assert shown(data + b"\n" + beside) == shown(data + b"\n") + len(beside)


def test_a_flood_is_shown_as_it_comes_in_its_order_and_warnings_fold_again_behind_it():
    folds = Folds(2)
    flood = b"x" * (16 << 20) + b"\na second warning\n"
    assert folds.add(0, b"a warning\n", 0.0) == []
    assert folds.add(0, flood, 0.1) == []
    assert folds.add(1, flood, 0.2) == [((1,), flood)]
    assert folds.tick(0.4) == [((0,), b"a warning\n"), ((0,), flood)]
    assert folds.add(0, b"a third warning\n", 1.5) == []
    assert folds.add(1, b"a third warning\n", 1.6) == [((0, 1), b"a third warning\n")]
