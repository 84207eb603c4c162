"""Messages alone, without a process: what each holds comes back, and nothing that is none gets through."""

import functools
import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ezpz import fields
from ezpz.fields import Malformed
from ezpz.launch import agent_messages
from ezpz.launch.agent_messages import FROM_RANKS, ORDERS, REPORTS, TO_SHIMS, LineReader, Piece
from ezpz.watch.collectives import messages as hangs
from lab.watching import watch_all

JSON = {name: getattr(agent_messages, name) for name in ("WELCOMES", "HELLOS", "REPORTS", "ORDERS")}
WORDS = {name: getattr(agent_messages, name) for name in ("FROM_RANKS", "TO_SHIMS")}
KINDS = {
    f"{name}-{kind.__name__}": (direction, kind)
    for name, direction in {**JSON, **WORDS}.items()
    for kind in direction.kinds.values()
}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def values(field, *, words=False):  # noqa: PLR0911  # one line for each kind of field
    """A strategy for what a field may hold."""
    if isinstance(field, fields.Number):
        return st.integers(field.low, field.high)
    if isinstance(field, fields.Seconds):
        seconds = st.floats(-(2.0**50), 2.0**50)
        return seconds | st.none() if field.optional else seconds
    if isinstance(field, fields.Text):
        letters = st.characters(exclude_categories=("Cs", "Zl", "Zp", "Cc") if words else ("Cs",))
        text = st.text(letters, max_size=min(field.longest, 30))
        return text.map(lambda text: text.replace(" ", "_")) if words else text
    if isinstance(field, fields.Flag):
        return st.booleans()
    if isinstance(field, fields.Part):
        return made(field.of)
    if isinstance(field, fields.Row):
        return st.tuples(*map(values, field.fields))
    assert isinstance(field, fields.List)
    return st.lists(values(field.of), max_size=4)


@functools.cache
def made(kind, *, words=False):
    fields = {name: values(field, words=words) for name, field in kind.CHECKS.items()}
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


def simple(field):
    """One value that a field may hold."""
    return {
        fields.Number: lambda: field.low,
        fields.Seconds: lambda: 1.5,
        fields.Text: lambda: "x",
        fields.Flag: lambda: True,
        fields.Part: lambda: one(field.of),
        fields.Row: lambda: tuple(map(simple, field.fields)),
        fields.List: lambda: [simple(field.of)],
    }[type(field)]()


def one(kind):
    return kind(**{name: simple(field) for name, field in kind.CHECKS.items()})


def check_comes_back(direction, message):
    line = direction.encode(message)
    assert line.count(b"\n") == (direction in WORDS.values())
    assert direction.decode(line.removesuffix(b"\n")) == message
    assert repr(message).startswith(type(message).__name__)


def test_every_message_comes_back_as_it_was_sent(subtests):
    for name, (direction, kind) in KINDS.items():
        with subtests.test(name):
            check_comes_back(direction, one(kind))


@settings(max_examples=max(50, 5 * settings.default.max_examples))  # there are many kinds
@given(st.data())
def test_whatever_a_message_holds_it_comes_back_as_it_was_sent(data):
    direction, kind = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    check_comes_back(direction, data.draw(made(kind, words=direction in WORDS.values())))


@pytest.mark.parametrize("direction", [ORDERS, REPORTS])
def test_a_message_names_the_world_it_belongs_to(direction):
    message = agent_messages.Note(text="x") if direction is REPORTS else agent_messages.Kill()
    line = direction.encode(message)
    assert b"world" not in line
    assert direction.addressed(line) == (0, message)
    assert direction.addressed(direction.encode(message, 7)) == (7, message)
    for world in (-1, "1", 1.5, True, None, 1 << 30):
        with pytest.raises(Malformed):
            direction.addressed(json.dumps({**json.loads(line), "world": world}).encode())


def wrong(field):
    """Values that a field must not hold."""
    no_number, nothing = (True, "1", [1]), () if getattr(field, "optional", False) else (None,)
    return {
        fields.Number: (*no_number, None, 1.5, getattr(field, "low", 0) - 1, getattr(field, "high", 0) + 1),
        fields.Seconds: (*no_number, math.nan, math.inf, *nothing),
        fields.Text: (None, 1, ["x"], "x" * (getattr(field, "longest", 0) + 1), "\ud800"),
        fields.Flag: (None, 1, "true"),
        fields.Part: (None, "x", [], {}),
        fields.Row: (None, "x", [], {}, [None] * 99),
        fields.List: (None, "x", {}, [[[]]]),
    }[type(field)]


def test_a_field_that_is_missing_or_of_another_type_is_refused(subtests):
    for id_, (direction, kind) in KINDS.items():
        if direction in WORDS.values():
            continue
        whole = json.loads(direction.encode(one(kind)))
        for name, field in kind.CHECKS.items():
            with subtests.test(f"{id_}.{name}"):
                less = {key: value for key, value in whole.items() if key != name}
                with pytest.raises(Malformed, match=name):
                    direction.decode(json.dumps(less).encode())
                for other in wrong(field):
                    with pytest.raises(Malformed):
                        direction.decode(json.dumps({**whole, name: other}).encode())


@given(st.binary(max_size=200) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_else_arrives_is_one_kind_of_error(line):
    for direction in (*JSON.values(), *WORDS.values()):
        try:
            message = direction.decode(line)
        except Malformed:
            continue
        assert type(message) in direction.kinds.values()


def test_what_an_attacker_may_try(subtests):
    for direction, line in [
        (REPORTS, b'{"say": []}'),
        (REPORTS, b'{"say": {"a": 1}}'),
        (REPORTS, b"[" * 3900),
        (REPORTS, b'{"say": ' * 100_000),
        (REPORTS, b'{"say": "up", "ranks": ' + b"9" * 5000 + b"}"),
        (REPORTS, b'{"say": "up", "ranks": 1e3}'),
        (REPORTS, b'{"say": "up", "ranks": true}'),
        (REPORTS, b'{"say": "idle", "rank": 0, "pid": 1, "seconds": NaN}'),
        (REPORTS, b'{"say": "idle", "rank": 0, "pid": 1, "seconds": 1e400}'),
        (REPORTS, b'{"say": "note", "text": "\\ud800"}'),
        (REPORTS, b"\xff\xfe{\x00}\x00"),
        (REPORTS, b'{"say": "signal", "number": 15}'),
        (ORDERS, b'{"do": "signal", "number": 0}'),
        (ORDERS, b'{"do": "signal", "number": 65}'),
        (agent_messages.HELLOS, b'{"say": "hello", "host": "\xed\xa0\x80"}'),
        (agent_messages.HELLOS, b'{"say": "hello", "host": "a"' + b" " * 4096 + b"}"),
        (agent_messages.HELLOS, b'{"say": "up", "ranks": 1}'),
        (FROM_RANKS, b"shim 0 2 0 2"),
        (FROM_RANKS, b"shim 0 2 0 2 0 openmpi 7 soon"),
        (FROM_RANKS, b"up \xd9\xa3\xd9\xa3"),  # digits, but not ours
        (FROM_RANKS, b"up 1_000"),
        (FROM_RANKS, b"up " + b"9" * 5000),
        (FROM_RANKS, b"ended 257"),
        (TO_SHIMS, b"release false"),
        (TO_SHIMS, b"up 7"),
    ]:
        with subtests.test(line[:60]), pytest.raises(Malformed):
            direction.decode(line)


def test_a_text_that_is_too_long_is_cut_where_it_is_sent_and_refused_where_it_arrives():
    long = agent_messages.Note(text="x" * 100_000)
    assert len(REPORTS.decode(REPORTS.encode(long)).text) == 1 << 14
    with pytest.raises(Malformed, match=r"Note.text: expected a text of at most"):
        REPORTS.decode(json.dumps({"say": "note", "text": "x" * 100_000}).encode())


@pytest.mark.slow
def test_the_longest_stacks_of_a_large_host_are_one_message():
    frames = [("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3251)] * 100
    watch_all()
    ranks = [hangs.RankStack(rank=rank, pid=7, frames=frames, where="") for rank in range(256)]
    taken = hangs.StacksTaken(id=1, host="n01", ranks=ranks, dumps=[], left=[3])
    assert REPORTS.decode(REPORTS.encode(taken)) == taken


def test_fields_that_a_table_lacks_are_left_out():
    assert REPORTS.decode(b'{"say": "up", "ranks": 2, "later": [1]}') == agent_messages.Up(ranks=2)


def test_a_message_is_made_with_its_fields_and_no_others():
    with pytest.raises(TypeError, match="lacks"):
        agent_messages.Up()
    with pytest.raises(TypeError, match="once"):
        agent_messages.Up(ranks=1, have=2)
    assert agent_messages.Up(ranks=1) != agent_messages.Partial(have=1)


def test_words_keep_spaces_in_the_last_field_and_newlines_in_none():
    assert FROM_RANKS.decode(b"cannot 2 a b  c") == agent_messages.CannotRun(number=2, program="a b  c")
    assert FROM_RANKS.encode(agent_messages.Note(text="a\nb")) == b"note a b\n"
    odd = agent_messages.CannotRun(number=2, program="\udcff")  # a file name that is no UTF-8
    assert FROM_RANKS.decode(FROM_RANKS.encode(odd)[:-1]) == odd
    assert TO_SHIMS.encode(agent_messages.Release(codes=True)) == b"release true\n"
    assert TO_SHIMS.decode(b"release ") == TO_SHIMS.decode(b"release") == agent_messages.Release(codes=False)


NOTES = made(agent_messages.Note, words=True)


@given(st.lists(NOTES, max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_lines_may_arrive_in_any_pieces(sent, cuts):
    data = b"".join(map(FROM_RANKS.encode, sent))
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    inbox, came = LineReader(FROM_RANKS), []
    for start, end in pairwise(edges):
        came += inbox.feed(data[start:end])
    assert came == sent
    assert inbox.rest == b""


def test_a_line_that_never_ends_is_refused_early():
    inbox = LineReader(FROM_RANKS)
    assert list(inbox.feed(b"x" * FROM_RANKS.longest)) == []
    with pytest.raises(Malformed, match="a line of more than"):
        list(inbox.feed(b"x"))


@given(st.builds(Piece, st.integers(-9, 999), st.integers(1, 2), st.binary(max_size=40), world=st.integers(0, 9)))
def test_a_piece_of_output_comes_back_as_it_was_sent(piece):
    assert Piece.decode(memoryview(b"".join(piece.encode()))) == piece


@given(st.binary(max_size=100))
def test_output_that_is_none_is_one_kind_of_error(data):
    try:
        Piece.decode(memoryview(data))
    except Malformed:
        pass


def test_a_piece_with_a_header_that_is_none_is_refused(subtests):
    for header in (b"x\n", b"0 3\n", b"0 1 -1\n", b"0 1 1 x\n", b"0\n", b"0 1", b"0" * 64 + b" 1\n", b"\xd9\xa3 1\n"):
        with subtests.test(header), pytest.raises(Malformed):
            Piece.decode(memoryview(header + b"text"))


def test_seconds_are_finite_floats():
    watch_all()
    report = REPORTS.decode(
        b'{"say": "idle", "rank": 0, "pid": 1, "seconds": 3, "limit": 2, "section": "", "ending": false}'
    )
    assert isinstance(report.seconds, float)
    assert math.isfinite(report.seconds)
