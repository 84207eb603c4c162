import pytest

from ezpz.errors import UsageError
from ezpz.launch.options import parse


@pytest.mark.parametrize(
    ("argv", "ranks", "per_host", "command"),
    [
        (["python3", "t.py"], None, None, ("python3", "t.py")),
        (["-n", "4", "--ppn", "2", "python3"], 4, 2, ("python3",)),
        (["--np=4", "x", "-n", "9", "--help"], 4, None, ("x", "-n", "9", "--help")),
        (["-np", "4", "-ppn", "2", "--", "-x", "--"], 4, 2, ("-x", "--")),
        (["--", "python3", "-c", "print(1)"], None, None, ("python3", "-c", "print(1)")),
        (["-n", "2"], 2, None, ()),
    ],
)
def test_our_options_end_where_the_command_begins(argv, ranks, per_host, command):
    wishes = parse(argv, {})
    assert (wishes.ranks, wishes.per_host, wishes.command) == (ranks, per_host, command)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--nprocs", "2", "true"], ("--nprocs", "launch [options] COMMAND")),
        (["--host-file", "f", "true"], ("Did you mean --hostfile?",)),
        (["-n", "0", "true"], ("-n/--np", "'0' is not a whole number of at least 1", "--help")),
        (["-n", "two", "true"], ("'two' is not a whole number",)),
        (["--ppn", "-1", "true"], ("--ppn",)),
        (["-n"], ("-n/--np", "expected one argument")),
    ],
)
def test_a_wrong_option_is_one_clear_line(argv, words):
    with pytest.raises(UsageError) as caught:
        parse(argv, {})
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def test_world_size_without_rank_is_a_wish_that_the_option_outranks():
    assert (parse(["x"], {"WORLD_SIZE": "12"}).ranks, parse(["x"], {"WORLD_SIZE": "12"}).ranks_origin) == (
        12,
        "WORLD_SIZE",
    )
    assert parse(["-n", "3", "x"], {"WORLD_SIZE": "12"}).ranks == 3
    assert parse(["x"], {"WORLD_SIZE": "12", "RANK": "0"}).ranks is None
    with pytest.raises(UsageError, match="WORLD_SIZE"):
        parse(["x"], {"WORLD_SIZE": "many"})
