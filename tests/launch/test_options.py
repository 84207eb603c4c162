"""The command line of `launch`: its options, their values, and the error for a wrong one."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.errors import UsageError
from ezpz.launch.options import OPTIONS, LaunchOptions, parse


def error(line, environ=None):
    with pytest.raises(UsageError) as caught:
        parse(shlex.split(line), environ or {})
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


COMMANDS = [
    (["python3", "t.py"], None, None, ("python3", "t.py")),
    (["-n", "4", "--ppn", "2", "python3"], 4, 2, ("python3",)),
    (["--np=4", "x", "-n", "9", "--help"], 4, None, ("x", "-n", "9", "--help")),
    (["-n4", "x"], 4, None, ("x",)),
    (["-np", "4", "-ppn", "2", "--", "-x", "--"], 4, 2, ("-x", "--")),
    (["--", "python3", "-c", "print(1)"], None, None, ("python3", "-c", "print(1)")),
    (["--", "--", "x"], None, None, ("--", "x")),
    (["-n", "2", "-n", "3", "x"], 3, None, ("x",)),
    (["-n", "2", "--"], 2, None, ()),
    (["-n", "2"], 2, None, ()),
    (["python3", "t.py", "--ppn", "2", "--hosts", "a"], None, None, ("python3", "t.py", "--ppn", "2", "--hosts", "a")),
    (["t.py", "--timeout", "3", "--nprocs=2"], None, None, ("t.py", "--timeout", "3", "--nprocs=2")),
]


def test_our_options_end_where_the_command_begins(subtests):
    for argv, ranks, per_host, command in COMMANDS:
        with subtests.test(argv):
            options = parse(argv, {})
            assert (options.ranks, options.per_host, options.command) == (ranks, per_host, command)


def test_every_option_has_a_field(subtests):
    for line, options in [
        ("", LaunchOptions()),
        ("--nhosts 3", LaunchOptions(nhosts=3)),
        ("--hosts n[01-03],x", LaunchOptions(hosts=("n01", "n02", "n03", "x"))),
        ("--exclude n01 --exclude=n[03-04]", LaunchOptions(exclude=("n01", "n03", "n04"))),
        ("--exclude ''", LaunchOptions()),
        ("--hostfile f --exclude n01", LaunchOptions(hostfile="f", exclude=("n01",))),
        ("--devices-per-host 0 --oversubscribe", LaunchOptions(devices_per_host=0, oversubscribe=True)),
        ("--flavour openmpi --cpu-bind list:0-3:4-7", LaunchOptions(flavour="openmpi", cpu_bind="list:0-3:4-7")),
        ("--cpu-bind=--odd", LaunchOptions(cpu_bind="--odd")),
        (
            "--launcher-args '-v --mca a \"b c\"' --launcher-args=-l --launcher-args -q",
            LaunchOptions(launcher_args=("-v", "--mca", "a", "b c", "-l", "-q")),
        ),
        ("--comm-env none --unset A,B_1 --unset=C", LaunchOptions(comm_env="none", unset=("A", "B_1", "C"))),
        ("--label --log-dir logs/x", LaunchOptions(label=True, log_dir="logs/x")),
        ("--start-timeout 90 --timeout=1h30m", LaunchOptions(start_timeout=90, timeout=5400)),
        ("--start-timeout off --timeout none --exit-timeout 0", LaunchOptions(start_timeout=None)),
        ("--idle-timeout 10m --exit-timeout 0.5", LaunchOptions(idle_timeout=600, exit_timeout=0.5)),
        ("--timeout 01:30:10", LaunchOptions(timeout=5410)),
        ("--dry-run --explain --json", LaunchOptions(dry_run=True, explain=True, json=True)),
    ]:
        for command in ((), ("python3", "t.py", "--nhosts", "9", "--json")):
            with subtests.test(line, command=command):
                expected = LaunchOptions(**{**vars(options), "command": command})
                assert parse([*shlex.split(line), *command], {}) == expected


WRONG = [
    ("--nhostz 2 true", ("unknown option --nhostz", "Did you mean --nhosts?", "launch [options] COMMAND --nhostz")),
    ("--oversubscribed true", ("Did you mean --oversubscribe?",)),
    ("--flavor=mpich true", ("unknown option --flavor=mpich", "Did you mean --flavour?")),
    ("--timeout 10min t.py", ("--timeout", "'10min' is not a time", "expected seconds (90), 90s, 10m,", "or off")),
    ("--timeout '' t.py", ("--timeout", "'' is not a time")),
    *((f"--timeout {text} t.py", (f"'{text}' is not a time",)) for text in ("-5", "inf", "1e3", "30m1h", "1:60:00")),
    ("--timeout 10:00 t.py", ("'10:00' is not a time", "HH:MM:SS")),
    ("--timeout ٣ t.py", ("is not a time",)),
    ("--start-timeout 1001d t.py", ("--start-timeout", "'1001d' is longer than 1000 days")),
    ("--idle-timeout --timeout 3 t.py", ("--idle-timeout needs a value, but --timeout follows",)),
    ("--zzz t.py", ("unknown option --zzz (from the command line). Options of the command",)),
    ("--dry-run=yes t.py", ("--dry-run", "yes")),
    ("-n 0 true", ("-n/--np", "'0' is not a whole number of at least 1", "--help")),
    *((f"-n {text} true", (f"'{text}' is not a whole number",)) for text in ("two", "2.0")),
    ("-n ٣ true", ("is not a whole number",)),
    (f"-n {'9' * 5000} true", ("-n/--np", "9..9", "is too large; expected a whole number of at most 999999999")),
    ("--attempts 99999999999999 true", ("--attempts", "'99999999999999' is too large; expected a whole number of")),
    ("--ppn -1 true", ("--ppn", "'-1' is not a whole number of at least 1")),
    ("--nhosts 0 true", ("--nhosts", "'0' is not a whole number of at least 1")),
    ("--devices-per-host -2 true", ("--devices-per-host", "'-2' is not a whole number of at least 0")),
    ("-n", ("-n needs a value, and nothing follows (from the command line)", "`launch -n N COMMAND`")),
    ("--hosts", ("--hosts needs a value", "`launch --hosts LIST COMMAND`")),
    ("--hosts --ppn 4 t.py", ("--hosts needs a value, but --ppn follows", "`--hosts VALUE`", "`--hosts=--ppn`")),
    ("--hosts -- t.py", ("--hosts needs a value, but -- follows",)),
    ("--flavour=-- t.py", ("--flavour needs a value, but -- follows",)),
    ("--hosts n[01- t.py", ("--hosts", "'n[01-'", "this bracket is never closed", "expected e.g. n01,n02 or n[01-04]")),
    ("--exclude a,,b t.py", ("--exclude", "'a,,b'", "a host name is missing")),
    *(
        (f"{option}=' ' t.py", (option, "the value is empty"))
        for option in ("--hosts", "--hostfile", "--flavour", "--cpu-bind", "--log-dir")
    ),
    ("--hosts '' t.py", ("--hosts", "the value is empty")),
    *(
        (f"--hosts '{name}' t.py", ("--hosts", f"'{name}' is not a host name"))
        for name in ("n01:4", "me@n01", "n01;rm")
    ),
    ("""--launcher-args '-x "a' t.py""", ("--launcher-args", "no closing quotation", "as a shell reads them")),
    ("--comm-env on t.py", ("--comm-env", "'on' is not known; expected site or none")),
    ("--unset A=1 t.py", ("--unset", "'A=1' is not the name of a variable")),
    ("--unset 'NCCL_*' t.py", ("--unset", "'NCCL_*' is not the name of a variable")),
    ("--unset LC_ALL,RANK t.py", ("--unset", "RANK is what launch itself tells every rank", "env -u RANK")),
    ("--hosts n01 --hostfile f t.py", ("--hosts and --hostfile f both name the hosts", "Leave one out")),
]


def test_a_wrong_option_is_one_clear_line(subtests):
    for line, words in WRONG:
        with subtests.test(line):
            text = error(line)
            assert all(word in text for word in words), text


def test_world_size_without_rank_asks_for_ranks_and_the_option_outranks_it():
    assert parse(["x"], {"WORLD_SIZE": "12"}) == LaunchOptions(ranks=12, ranks_origin="WORLD_SIZE", command=("x",))
    assert parse(["-n", "3", "x"], {"WORLD_SIZE": "12"}) == LaunchOptions(ranks=3, command=("x",))
    assert parse(["x"], {"WORLD_SIZE": "12", "RANK": "0"}).ranks is None
    assert "WORLD_SIZE: 'many' is not a whole number" in error("x", {"WORLD_SIZE": "many"})


OURS = ["-n", "--ppn", "--hosts", "--exclude", "--dry-run", "--json", "--launcher-args", "--timeout", "--", "-h", "-x"]


@given(st.lists(st.sampled_from(OURS) | st.text(max_size=8), max_size=8), st.booleans())
def test_words_behind_the_command_are_never_looked_into(words, with_dashes):
    options = parse(["-n", "2", *(["--"] if with_dashes else []), "prog", *words], {})
    assert options == LaunchOptions(ranks=2, command=("prog", *words))


@given(st.text(alphabet="abc' \"\\-x=", max_size=12).filter(lambda text: text != "--"))
def test_words_for_the_launcher_are_a_shells(text):
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        assert "--launcher-args" in error(shlex.join([f"--launcher-args={text}", "x"]))
    else:
        assert parse([f"--launcher-args={text}", "x"], {}).launcher_args == words


@given(st.integers(0, 80_000_000))
def test_a_time_is_the_same_in_every_spelling(seconds):
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours_of_day = divmod(hours, 24)
    spellings = [str(seconds), f"{seconds}s", f"{hours}h{minutes}m{rest}s", f"{hours:02}:{minutes:02}:{rest:02}"]
    spellings.append(f"{days}d{hours_of_day}h{minutes}m{rest}s")
    assert {parse([f"--timeout={text}", "x"], {}).timeout for text in spellings} == {seconds or None}


@given((st.text(alphabet="0123456789.:smhd-e", max_size=8) | st.text(max_size=4)).filter(lambda text: text != "--"))
def test_a_time_is_positive_or_off_or_refused_with_the_expected_forms(text):
    try:
        seconds = parse([f"--timeout={text}", "x"], {}).timeout
    except UsageError:
        message = error(shlex.join([f"--timeout={text}", "x"]))
        assert "longer than 1000 days" in message or "expected seconds (90), 90s" in message
    else:
        assert seconds is None or 0 < seconds <= 1000 * 86400
        assert seconds is not None or text in {"off", "none"} or not text.strip("0.:smhd")


def test_help_fits_a_terminal_and_tells_every_option(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        parse(["--ppn", "2", "--help", "x"], {})
    assert ended.value.code == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) < 80
    assert max(map(len, lines)) <= 80
    names = {f"--{name.replace('_', '-')}" for name in vars(LaunchOptions())} | {"-n", "--ppn", "examples:"}
    names -= {"--ranks", "--ranks-origin", "--cpu-bind-origin", "--notes", "--per-host", "--command"}
    assert not [name for name in names if name not in text]


def test_the_page_has_a_row_for_every_option():
    page = (Path(__file__).parents[2] / "docs" / "launch.md").read_text(encoding="utf-8")
    rows = [row.split(" | ")[0] for row in page.splitlines() if row.startswith("| `-")]
    assert [row for row in OPTIONS if not any(f"`{row[0][0]}" in each for each in rows)] == [OPTIONS[-1]]  # --help


def test_options_cannot_be_changed_and_know_their_names():
    options = parse(["-n", "2", "x"], {})
    with pytest.raises(AttributeError, match="do not change"):
        options.ranks = 3
    with pytest.raises(TypeError, match="unknown options: rank"):
        LaunchOptions(rank=3)
    assert repr(options) == "LaunchOptions(ranks=2, command=('x',))"
    assert len({options, parse(["-n2", "x"], {})}) == 1


def test_a_launch_is_parsed_without_argparse(clean_env):
    code = "import sys; from ezpz.launch.options import parse; parse(['-n', '2', 'x'], {}); "
    code += "print('argparse' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=clean_env, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
