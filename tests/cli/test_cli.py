import json
import re
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from runs_on_disk import write_run

from ezpz.cli import GROUPS, main
from ezpz.verbs import VERBS

EZPZ = [sys.executable, "-m", "ezpz"]
ROOT = Path(__file__).parents[2]
TITLES = {page.read_text().splitlines()[0].removeprefix("# ") for page in (ROOT / "docs").glob("*.md")}


def test_help_lists_the_verbs_and_version_tells_the_version(run_cli):
    import ezpz

    assert all(verb in run_cli([*EZPZ, "--help"]).stdout for verb in ("launch", "test", "where"))
    assert run_cli([*EZPZ, "--version"]).stdout == f"ezpz {ezpz.__version__}\n"
    assert run_cli([*EZPZ]).returncode == 0


def test_in_a_folder_that_was_removed_a_verb_that_needs_one_says_so_in_one_line(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("PWD", str(gone))
    gone.rmdir()
    for line in ("plot", "watch --once", "open", "report", "export", "checkpoint verify", "runs --goodput",
                 "submit --dry-run true"):  # fmt: skip
        assert main(line.split()) == 125, line
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"ezpz: the working folder {gone} was removed: "), line


def test_every_verb_is_in_one_group_and_five_are_shown_first(capsys):
    assert sorted(verb for group in GROUPS.values() for verb in group) == sorted(VERBS)
    assert main(["--help"]) == 0
    everything = capsys.readouterr().out
    assert max(map(len, everything.splitlines())) <= 80
    titles = [line for line in everything.splitlines() if line.endswith(":")]
    assert titles == ["start:", "look:", "compare:", "machine:"]
    assert main([]) == 0
    first = capsys.readouterr().out
    assert [line.split()[0] for line in first.splitlines() if line.startswith("  ")] == [
        *("launch", "runs", "open", "compare", "where")
    ]
    assert f"all {len(VERBS)} verbs" in first
    assert main(["help", "runs"]) == 0
    assert capsys.readouterr().out.startswith("usage: ezpz runs")


COLORS = [
    ({}, False, False),
    ({}, True, True),
    ({"NO_COLOR": "1"}, True, False),
    ({"TERM": "dumb"}, True, False),
    ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
    ({"FORCE_COLOR": "0"}, False, False),
]


def test_help_and_errors_are_coloured_on_terminals_that_take_it(monkeypatch, capsys, subtests):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "OMPI_COMM_WORLD_RANK", "EZPZ_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    for variables, is_terminal, colored in COLORS:
        with subtests.test(str(variables), terminal=is_terminal), monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer)
            patch.setattr(sys.stderr, "isatty", lambda answer=is_terminal: answer)
            assert main(["--help"]) == main(["kill", "--help"]) == 0
            out = capsys.readouterr().out
            assert ("\x1b[1musage:\x1b[0m" in out, "\x1b[36m--all\x1b[0m" in out) == (colored, colored)
            assert main(["lunch"]) == 2
            err = capsys.readouterr().err
            assert err.startswith("\x1b[1;31mezpz:\x1b[0m unknown verb" if colored else "ezpz: unknown verb")
            assert ("\x1b" in err) is colored


def test_what_an_error_repeats_colours_nothing(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("EZPZ_DEBUG", raising=False)
    assert main(["\x1b[32mgood\x1b[0m `"]) == 2
    err = capsys.readouterr().err
    assert "\x1b[32m" not in err
    assert "\\x1b[32mgood" in err


ORDER = ["arguments:", "options:", "examples:", "exit code:", "more:"]


def test_every_help_has_the_same_parts_in_the_same_order_in_80_columns(monkeypatch, capsys, subtests):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    for verb in sorted(VERBS.keys() - {"launch", "test"}):
        with subtests.test(verb):
            code = 0
            with suppress(SystemExit):
                code = main([verb, "--help"])
            text, err = capsys.readouterr()
            assert (code, err) == (0, "")
            rows = text.splitlines()
            assert text.startswith("usage:")
            assert rows[2].rstrip(".").lower() == VERBS[verb][1].lower()
            assert "show this help" in text
            assert max(map(len, rows)) <= 80
            titles = [line for line in rows if line in ORDER]
            assert titles == ORDER or titles == ORDER[1:]
            examples = text.partition("examples:\n")[2].partition("\n\n")[0].splitlines()
            assert any(f"ezpz {verb}" in line for line in examples)
            assert VERBS[verb][2] in TITLES
            assert text.rstrip().endswith(f'\n  "{VERBS[verb][2]}" in the documentation')
            assert ".md" not in text  # a wheel holds no pages


def test_a_mistyped_verb_is_one_line_with_the_nearest(run_cli):
    done = run_cli([*EZPZ, "lunch"])
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "unknown verb 'lunch'" in done.stderr
    assert "Did you mean launch?" in done.stderr


@pytest.mark.slow
def test_a_debug_run_shows_the_traceback_of_every_verb(run_cli, clean_env):
    env = {**clean_env, "PBS_JOBID": "1.head"}
    told, debug = run_cli([*EZPZ, "where"], env), run_cli([*EZPZ, "where"], {**env, "EZPZ_DEBUG": "1"})
    assert (told.returncode, len(told.stderr.splitlines())) == (125, 1)
    assert "Traceback" in debug.stderr


@pytest.mark.parametrize("verb", ["launch", pytest.param("test", marks=pytest.mark.slow), "runs"])
def test_a_verb_explains_itself(run_cli, verb):
    """As programs; the other verbs' help is printed in this process."""
    if verb == "test":
        pytest.importorskip("torch")
    done = run_cli([*EZPZ, verb, "--help"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.lower().startswith("usage:")
    if verb != "test":  # the trainer's own
        assert max(map(len, done.stdout.splitlines())) <= 80


NEEDED = {  # what these cannot do without
    "completion": ["bash"],
    "checkpoint": ["verify", "run"],
    "compare": ["run"],
    "export": ["run"],
    "report": ["run"],
}
WITHOUT_JSON = [
    "checkpoint", "completion", "export", "fetch", "init", "kill", "logs", "open", "plot", "report", "shell", "watch",
]  # fmt: skip


def test_a_wrong_option_of_any_verb_is_one_line_and_exit_code_2(capsys, subtests):
    for verb in sorted(VERBS.keys() - {"launch", "test"}):
        with subtests.test(verb):
            assert import_module(VERBS[verb][0]).main(["--jsno", *NEEDED.get(verb, [])]) == 2
            out, err = capsys.readouterr()
            assert (out, err.count("\n")) == ("", 1)
            assert "unknown option --jsno (from the command line)" in err
            if verb not in WITHOUT_JSON:
                assert "Did you mean --json?" in err


@pytest.mark.slow
def test_test_is_the_smoke_test_under_the_launcher(run_cli, tmp_path):
    done = run_cli([*EZPZ, "test", "--train-iters", "2", "--no-plots", "--outdir", "o"], timeout=120)
    assert done.returncode == 0, done.stderr
    assert "local launcher" in done.stderr
    assert (tmp_path / "o" / "test_dist.h5").exists()


def test_a_verb_of_the_older_package_is_answered_with_what_to_use(capsys):
    for verb, instead in (("smoke", "ezpz test"), ("yeet-env", "file system"), ("failover", "--attempts")):
        assert main([verb, "--all"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"ezpz: no verb {verb!r}")
        assert instead in line


LOOKS = """
import json, sys
from ezpz.cli import main
for words, heavy in json.loads(sys.argv[1]):
    main(words)
    loaded = [name for name in heavy if name in sys.modules]
    if loaded:
        sys.exit(f"ezpz {' '.join(words)} has loaded {loaded}")
"""


def test_verbs_that_look_load_nothing_heavy(run_cli, tmp_path):
    write_run(tmp_path / "outputs" / "one", {"loss": [3.0, 2.0, 1.0]})
    heavy = ["torch", "matplotlib", "xarray", "h5py", "pandas", "wandb", "rich"]
    one = "outputs/one"
    looks = [
        *((["runs"], [*heavy, "numpy"]), (["watch", one, "--once"], heavy), (["compare", one, one], heavy)),
        *((["plot", one], heavy), (["export", one], ["torch"])),
    ]
    done = run_cli([sys.executable, "-c", LOOKS, json.dumps(looks)])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_pages_name_no_verb_that_is_not_there():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {verb: page.name for page in pages for verb in re.findall(r"`ezpz ([a-z][a-z-]*)", page.read_text())}
    assert {verb: page for verb, page in named.items() if verb not in VERBS and verb != "help"} == {}
