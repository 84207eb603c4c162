"""Bytes that wait for a reader: all of them arrive, in their order, however few are taken at a time."""

from hypothesis import given
from hypothesis import strategies as st

from ezpz.launch.backlog import Backlog

WORDS = st.binary(min_size=1, max_size=40)
# What is done, with what, and how many bytes are taken then; -1: the reader takes none for now.
DONE = st.lists(st.tuples(st.sampled_from(["send", "put", "write"]), st.lists(WORDS, min_size=1), st.integers(-1, 99)))


@given(DONE, st.integers(1, 30))
def test_nothing_is_lost_or_turned_round_however_few_bytes_are_taken(done, most):
    backlog, came, wanted, room = Backlog(), bytearray(), b"", 0

    def write(pieces):
        data = b"".join(pieces)
        if room < 0:
            raise BlockingIOError
        came.extend(data[:room])
        return min(room, len(data))

    for what, parts, room in done:  # `write` reads the room
        data = b"".join(parts)
        if what == "send":
            backlog.send(write, parts, len(data))
            wanted += data
        elif what == "put":
            backlog.put(data)
            wanted += data
        else:
            tried = min(most, backlog.size)
            assert backlog.write(write, most) == (room >= tried or not tried)
        assert backlog.size == len(wanted) - len(came)
        assert wanted.startswith(came)
    room = 1000
    while backlog.size:
        assert backlog.write(write, 1000)
    assert came == wanted


def test_what_is_sent_is_handed_out_at_once_where_nothing_waits():
    backlog, calls = Backlog(), []
    backlog.send(lambda parts: calls.append(parts) or 5, [b"ab", b"cde"], 5)
    assert (calls, backlog.size) == ([[b"ab", b"cde"]], 0)
