"""Shell names that public job scripts call: each does what it did, or names its successor in one line."""

import os
import re
from pathlib import Path

import pytest
from shells import ROOT, UTILS, errors, older_names

PAGE = ROOT / "docs/older-scripts.md"


def test_every_name_is_a_function_and_the_page_has_it(shell):
    prefixed, plain = older_names()
    assert len(prefixed) + len(plain) > 100
    result = shell("\n".join(f"typeset -f {name} >/dev/null || echo {name}" for name in (*prefixed, *plain)))
    assert (result.stdout, result.stderr) == ("", "")
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in (*prefixed, *plain) if f"`{name}`" not in page] == []


def test_a_function_of_the_users_own_stays(shell):
    result = shell.bare(f"function log_info {{ echo mine; }}\n. '{UTILS}'\nlog_info x; log_warn 'a\\tb'")
    assert (result.stdout, result.stderr) == ("mine\n", "[ezpz] a\tb\n")


def test_questions_about_the_job_have_the_same_answers(small):
    nodefile = small.cwd.parent / "nodefile"
    nodefile.write_text("x1\nx1\nx0\n")
    small.program("nvidia-smi", "printf 'GPU 0: A\\nGPU 1: B\\n'")
    small.program("mpiexec", "exit 0")
    script = """
        set -eu
        ezpz_get_jobid_from_hostname; ezpz_get_scheduler_type; ezpz_get_num_hosts; ezpz_get_num_gpus_per_host
        get_num_gpus_total; ezpz_parse_hostfile "$PBS_NODEFILE"; ezpz_get_num_hosts /dev/null
        ezpz_get_slurm_running_nodelist; ezpz_get_machine_name; ezpz_get_dist_launch_cmd
        [ -f "$(ezpz_get_pbs_nodefile_from_hostname)" ] && echo file
        ezpz_setup_alcf >/dev/null; echo "$NHOSTS $LAUNCH"
    """
    result = small(script, PBS_JOBID="77.pbs", PBS_NODEFILE=str(nodefile))
    assert errors(result) == []
    lines = result.stdout.splitlines()
    assert lines[:8] == ["77.pbs", "pbs", "2", "2", "4", "2 2 4", "0", "x1,x0"]
    assert lines[8] == os.uname().nodename
    assert lines[9].startswith("mpiexec -n 4 --hostfile /")
    assert lines[10:] == ["file", f"2 {lines[9]}"]
    assert small("ezpz_get_scheduler_type; get_machine_name", EZPZ_SITE="aurora").stdout == "unknown\naurora\n"


def test_small_tools_do_what_they_did(shell):
    script = """
        set -eu
        ezpz_has ls && echo yes; ezpz_has no-such-program || echo no
        join_by - a 'b c' d; echo; ezpz_realpath .; ezpz_check_working_dir; echo "$WORKING_DIR"
        ezpz_get_shell_name; ezpz_require_file nothing 'host file' || echo $?; ezpz_timeit sh -c 'exit 3' || echo $?
        log_message INFO told
    """
    result = shell(script)
    cwd = str(Path(shell.cwd).resolve())
    assert result.stdout.splitlines() == ["yes", "no", "a-b c-d", cwd, str(shell.cwd), shell.name, "2", "3"]
    assert "host file not found: nothing" in result.stderr
    assert "sh took " in result.stderr
    assert "[ezpz] told\n" in result.stderr
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}\n", shell("ezpz_get_tstamp").stdout)


def test_links_are_followed_where_readlink_has_no_option(shell):
    shell.program("readlink", '[ "$1" != -f ] || exit 1\nexec /usr/bin/readlink "$@"')  # macOS before 12.3
    folder = shell.cwd / "real"
    folder.mkdir()
    (folder / "file").write_text("")
    (folder / "next").symlink_to("file")
    (shell.cwd / "link").symlink_to("real/next")
    (shell.cwd / "way").symlink_to(folder)
    (shell.cwd / "round").symlink_to("round")
    (shell.cwd / "utils.sh").symlink_to(UTILS)
    result = shell("set -eu; for each in link way way/file way/ round nothing/x; do ezpz_realpath $each; done")
    cwd = Path(shell.cwd).resolve()
    ends = ("real/file", "real", "real/file", "real", "round", "nothing/x")
    assert result.stdout.splitlines() == [str(cwd / end) for end in ends]
    found = shell.bare(". ./utils.sh; src='' src_from=''; ezpz__find_checkout; echo $src")
    assert found.stdout == f"{ROOT}\n"


GONE = [
    ("ezpz_save_ds_env", 0, "launch gives every rank on every host the whole environment"),
    ("writeJobInfo", 0, "ezpz_setup_job keeps the job for a second shell"),
    ("ezpz_save_dotenv out", 0, "run.json"),
    ("ezpz_install_uv", 0, "ezpz_setup_python makes the environment"),
    ("ezpz_head_n_from_pbs_nodefile 2", 2, "launch --nhosts N"),
    ("ezpz_get_cpu_bind_aurora", 2, "launch --cpu-bind"),
    ("ezpz_reset", 2, "a new shell"),
    ("ezpz_build_bdist_wheel_from_github_repo", 2, "EZPZ_SOURCE"),
]


def test_what_is_not_needed_or_gone_says_so_in_one_line(shell, subtests):
    results = shell.rows({name: (f"set -u\n{name}", {}) for name, _, _ in GONE})
    for name, code, words in GONE:
        with subtests.test(name):
            result = results[name]
            assert (result.returncode, result.stdout, result.stderr.count("\n")) == (code, "", 1)
            assert name.split()[0] in result.stderr
            assert words in result.stderr


@pytest.mark.slow
def test_what_made_a_python_makes_one_still(fake):
    (fake.cwd / "source").mkdir()
    (fake.cwd / "source/pyproject.toml").write_text("")
    for call in ("setup_venv_from_conda", "ezpz_setup_conda", "ezpz_install", "ezpz_activate_venv here"):
        result = fake(f'{call}; echo "$VIRTUAL_ENV"', EZPZ_SOURCE="source", EZPZ_TORCH="cpu")
        assert errors(result) == []
        assert result.stdout == f"{fake.cwd}/{'here' if ' ' in call else '.venv'}\n"


def test_launch_goes_by_its_older_name_too(small):
    assert small("ezpz_launch a 'b c'", DIST_LAUNCH="printf %s|").stdout == "a|b c|"
