import sys
from importlib import import_module

import pytest

from ezpz.cli import VERBS

EZPZ = [sys.executable, "-m", "ezpz"]


def test_help_lists_the_verbs_and_version_tells_the_version(run_cli):
    import ezpz

    assert all(verb in run_cli([*EZPZ, "--help"]).stdout for verb in ("launch", "test", "where"))
    assert run_cli([*EZPZ, "--version"]).stdout == f"ezpz {ezpz.__version__}\n"
    assert run_cli([*EZPZ]).returncode == 0


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


@pytest.mark.few(5)
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_explains_itself_in_80_columns(run_cli, verb):
    done = run_cli([*EZPZ, verb, "--help"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.lower().startswith("usage:")
    if verb != "test":  # the trainer's own
        assert max(map(len, done.stdout.splitlines())) <= 80
    if verb not in {"launch", "test"}:
        assert done.stdout.splitlines()[2].rstrip(".").lower() == VERBS[verb][1].lower()
        assert "show this help" in done.stdout


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"launch", "test"}))
def test_a_wrong_option_of_any_verb_is_one_line_and_exit_code_2(capsys, verb):
    main = import_module(VERBS[verb][0]).main
    needed = {"checkpoint": ["verify", "run"], "compare": ["run"], "export": ["run"], "report": ["run"]}
    words = needed.get(verb, [])  # what these cannot do without
    assert main(["--jsno", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "unknown option --jsno (from the command line)" in err
    if verb not in {"checkpoint", "export", "fetch", "kill", "plot", "report", "watch"}:  # those without --json
        assert "Did you mean --json?" in err


@pytest.mark.slow
def test_test_is_the_smoke_test_under_the_launcher(run_cli, tmp_path):
    done = run_cli([*EZPZ, "test", "--train-iters", "2", "--no-plots", "--outdir", "o"], timeout=120)
    assert done.returncode == 0, done.stderr
    assert "local launcher" in done.stderr
    assert (tmp_path / "o" / "test_dist.h5").exists()
