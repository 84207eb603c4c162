"""`ezpz_setup_job`: scheduler, job, hosts, devices and the launch line; with and without the Python half."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from shells import ROOT, job, jobs, tools


def test_alone_it_is_this_host(small):
    small.program("nvidia-smi", "printf 'GPU 0: A\\nGPU 1: B\\n  MIG 1g\\n'")
    small.program("mpiexec", "exit 0")
    result, told = job(small)
    assert told["EZPZ_HOSTS"] == os.uname().nodename
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"], told["EZPZ_SITE"]) == ("none", "", "")
    assert (told["NHOSTS"], told["NGPU_PER_HOST"], told["NGPUS"], told["EZPZ_NRANKS"]) == ("1", "2", "2", "2")
    assert told["DIST_LAUNCH"] == "mpiexec -n 2"
    assert (told["LAUNCH"], told["WORLD_SIZE"], told["EZPZ_WORLD_SIZE"]) == ("mpiexec -n 2", "2", "2")
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("[")] == ["[HOSTS]", "[DIST INFO]", "[LAUNCH]:"]
    at = lines.index("[HOSTS]")
    assert lines[at + 1 : at + 3] == [f"    • MACHINE={os.uname().nodename}", f"    • [host:0] - {os.uname().nodename}"]
    assert "    • NGPUS=2" in lines
    assert f"    • HOSTFILE={told['HOSTFILE']}" in lines
    assert "      launch = mpiexec -n 2" in lines


@pytest.mark.slow
def test_without_devices_ranks_are_half_the_cores_within_bounds(small):
    for cores, ranks in ((1, 2), (2, 2), (6, 3), (64, 4)):
        small.program("nproc", f"echo {cores}")
        assert job(small)[1]["EZPZ_NRANKS"] == str(ranks)


@pytest.mark.slow
def test_the_host_file_lies_in_a_private_folder(small):
    _, told = job(small)
    file = Path(told["HOSTFILE"])
    assert str(file).startswith(small.env["TMPDIR"])
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert job(small)[1]["HOSTFILE"] == str(file)
    file.unlink()
    file.parent.rmdir()
    file.parent.symlink_to("/etc")
    result, _ = job(small)
    assert result.returncode == 125
    assert "cannot make a private folder" in result.stderr


@pytest.mark.slow
def test_a_device_count_of_an_earlier_job_is_not_believed(small, subtests):
    nodefile = small.cwd.parent / "nodefile"
    nodefile.write_text("x1\r\nx1\r\nx0\r\n")
    this = {"PBS_JOBID": "77.pbs", "PBS_NODEFILE": str(nodefile)}
    rows = {
        "the user's word": ({"EZPZ_NGPU_PER_HOST": "6"}, "6"),
        "of this job": ({"EZPZ_JOBID": "77.pbs", "NGPU_PER_HOST": "12"}, "12"),
        "of an earlier job": ({"EZPZ_JOBID": "76.pbs", "NGPU_PER_HOST": "12"}, "0"),
        "of no job": ({"NGPU_PER_HOST": "12"}, "0"),
    }
    for row, (_, told) in jobs(small, {row: this | env for row, (env, _) in rows.items()}).items():
        with subtests.test(row):
            assert (told["NGPU_PER_HOST"], told["EZPZ_HOSTS"]) == (rows[row][1], "x1,x0")


def test_the_schedulers_host_file_is_kept_when_it_is_plain(small):
    nodefile = small.cwd.parent / "nodefile"
    nodefile.write_text("x1\nx0\n")
    small.program("mpiexec", "exit 0")
    _, told = job(small, PBS_JOBID="1.s", PBS_NODEFILE=str(nodefile))
    assert told["HOSTFILE"] == str(nodefile)
    assert told["DIST_LAUNCH"] == f"mpiexec -n 2 --hostfile {nodefile}"


@pytest.mark.slow
def test_inside_an_interactive_step_the_whole_job_counts(small):
    """salloc with use_interactive_step gives a shell whose step has one host (step id 4294967290)."""
    env = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a,b", "SLURM_STEP_NODELIST": "a", "SLURM_TASKS_PER_NODE": "2,1"}
    small.program("scontrol", 'printf "%s\\n" "$3" | tr , "\\n"')
    assert job(small, **env, SLURM_STEP_ID="4294967290")[1]["EZPZ_HOSTS"] == "a,b"
    assert job(small, **env, SLURM_STEP_ID="0")[1]["EZPZ_HOSTS"] == "a"
    assert job(small, **env)[1]["DIST_LAUNCH"] == "srun -N 1 -n 3"


UNKNOWN = [
    ({"PBS_JOBID": "1.s"}, 125, "no hosts of job 1.s: none is named (from PBS_NODEFILE=, "),
    ({"PBS_JOBID": "1.s", "PBS_NODEFILE": "/gone"}, 125, "(from PBS_NODEFILE=/gone, "),
    ({"PBS_JOBID": "1.s", "PBS_NODEFILE": "/dev/null"}, 125, "(from PBS_NODEFILE=/dev/null, "),
    ({"PBS_JOBID": "1.s", "PBS_NODEFILE": "/etc"}, 125, "(from PBS_NODEFILE=/etc, "),
    ({"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-2"}, 125, "not a host name: 'n[1-2' (from SLURM_JOB_NODELIST)"),
    ({"SLURM_JOB_ID": "5"}, 125, "(from SLURM_JOB_NODELIST and scontrol show job 5)"),
    ({"FLUX_JOB_ID": "f2X"}, 125, "no hosts of job f2X: none is named (from flux hostlist f2X)"),
    ({"EZPZ_NGPU_PER_HOST": "four"}, 2, "not a number of devices: four (from EZPZ_NGPU_PER_HOST)"),
]


def test_what_cannot_be_known_is_an_error(small, subtests):
    small.program("scontrol", "exit 1")
    told_to = jobs(small, {number: env for number, (env, _, _) in enumerate(UNKNOWN)}, before="set -u")
    for number, (result, told) in told_to.items():
        env, code, said = UNKNOWN[number]
        with subtests.test(str(env)):
            assert result.returncode == code
            assert said in result.stderr
            assert result.stderr.count("\n") == 1
            assert result.stdout == ""
            assert told["DIST_LAUNCH"] == ""


def test_a_plain_host_list_needs_no_scontrol(small):
    small.program("scontrol", "exit 1")
    _, told = job(small, SLURM_JOB_ID="5", SLURM_JOB_NODELIST="b,a", SLURM_TASKS_PER_NODE="4(x2)")
    assert (told["EZPZ_HOSTS"], told["DIST_LAUNCH"]) == ("b,a", "srun -N 2 -n 8")


def test_many_hosts_are_shortened(small):
    nodefile = small.cwd.parent / "nodefile"
    nodefile.write_text("".join(f"x{i}\n" for i in range(10_000)))
    result, told = job(small, PBS_JOBID="1.s", PBS_NODEFILE=str(nodefile))
    assert told["NHOSTS"] == "10000"
    lines = [line for line in result.stdout.splitlines() if "host:" in line or "more" in line]
    assert lines[7:] == ["    • [host:7] - x7", "    • … 9991 more", "    • [host:9999] - x9999"]
    nodefile.write_text("".join(f"x{i}\n" for i in range(16)))
    assert job(small, PBS_JOBID="1.s", PBS_NODEFILE=str(nodefile))[0].stdout.count("host:") == 16


# ---- with the Python half -------------------------------------------------------------------------------------------


@pytest.fixture
def python(shell):
    """A shell whose python3 imports a stand-in for ezpz: it prints $STUB_SAYS for `--sh`, and what it launches."""
    stub = shell.cwd.parent / "stub/ezpz"
    for name in ("launch", "cluster"):
        (stub / name).mkdir(parents=True)
        (stub / name / "__init__.py").touch()
    (stub / "__init__.py").touch()
    end = "sys.exit(int(os.environ.get('STUB_RC', 0)))\n"
    (stub / "cluster/__main__.py").write_text(f"import os, sys\nprint(os.environ['STUB_SAYS'])\n{end}")
    (stub / "launch/__main__.py").write_text(f"import json, os, sys\njson.dump(sys.argv[1:], sys.stdout)\n{end}")
    shell.env["PYTHONPATH"] = str(stub.parent)
    return shell


def test_the_python_half_answers_when_it_is_there(python):
    says = (
        "export EZPZ_SCHEDULER=slurm EZPZ_JOBID='4[2]' EZPZ_NRANKS=8 NHOSTS=2 NGPU_PER_HOST=4 NGPUS=8\n"
        "export EZPZ_HOSTS=a,b HOSTFILE='/tmp/it'\"'\"'s $(touch hacked)' DIST_LAUNCH='srun -n 8'"
    )
    result, told = job(python, before="set -euo pipefail", STUB_SAYS=says)
    assert result.returncode == 0, result.stderr
    assert told["HOSTFILE"] == "/tmp/it's $(touch hacked)"
    assert (told["EZPZ_JOBID"], told["EZPZ_HOSTS"], told["NGPUS"]) == ("4[2]", "a,b", "8")
    assert "[host:1] - b" in result.stdout
    assert list(python.cwd.iterdir()) == []


def test_an_error_of_the_python_half_is_the_result(python):
    result, told = job(python, STUB_SAYS="", STUB_RC="2")
    assert (result.returncode, told["DIST_LAUNCH"], result.stdout) == (2, "", "")


def test_an_answer_that_is_none_is_refused(python):
    result, _ = job(python, STUB_SAYS="touch hacked")
    assert result.returncode == 125
    assert "expected lines that begin with export" in result.stderr
    assert list(python.cwd.iterdir()) == []


@pytest.mark.slow
def test_both_halves_say_the_same_about_a_plain_host(small, real_python):
    """The variables, not their values for launching: the launch line is Python's to know."""
    _, shell_says = job(small)
    small.program("python3", f'export PYTHONPATH="{ROOT}/src"; exec {real_python} "$@"')
    result, python_says = job(small)
    assert result.returncode == 0, result.stderr
    same = [
        "WORLD_SIZE", "EZPZ_WORLD_SIZE", "EZPZ_SCHEDULER", "EZPZ_JOBID", "EZPZ_HOSTS", "EZPZ_NRANKS", "NHOSTS",
        "NGPU_PER_HOST", "NGPUS",
    ]  # fmt: skip
    assert {name: shell_says[name] for name in same} == {name: python_says[name] for name in same}


@pytest.mark.slow
def test_the_world_size_of_a_job_is_no_wish_and_a_ranks_own_is_left_alone(importable):
    """Older scripts read WORLD_SIZE; `launch` takes it for a number of ranks that the user wants."""
    show = "launch -n 3 --dry-run true | grep -c '^env'; launch --dry-run true | grep -c '^env'"
    result = importable(f"ezpz_setup_job >/dev/null; {show}", EZPZ_NGPU_PER_HOST="5")
    assert result.stdout.split() == ["3", "5"]
    again = "EZPZ_NGPU_PER_HOST=4; ezpz_setup_job >/dev/null; echo $WORLD_SIZE"
    result = importable(f"ezpz_setup_job >/dev/null; {again}", EZPZ_NGPU_PER_HOST="5")
    assert result.stdout.split() == ["4"]
    result = importable(f"ezpz_setup_job >/dev/null; {show}", WORLD_SIZE="7")
    assert result.stdout.split() == ["3", "7"]
    _, told = job(importable, RANK="0", WORLD_SIZE="1")
    assert (told["WORLD_SIZE"], told["EZPZ_WORLD_SIZE"]) == ("1", "")


@pytest.mark.slow
def test_a_dry_run_after_the_setup_can_be_pasted(importable):
    """`ezpz_setup_job` exports WORLD_SIZE, and the pasted ranks have it all the same."""
    program = "sh -c 'echo \"$RANK of $WORLD_SIZE at $MASTER_ADDR\"'"
    lines = f"ezpz_setup_job >/dev/null; launch --dry-run {program} >lines; . ./lines"
    result = importable(lines, EZPZ_NGPU_PER_HOST="2")
    assert sorted(result.stdout.splitlines()) == ["0 of 2 at 127.0.0.1", "1 of 2 at 127.0.0.1"], result.stderr


# ---- launch ---------------------------------------------------------------------------------------------------------

ARGUMENTS = [
    "", "two  blanks", "'", '"', "$HOME `date`", "a\nb", "tab\t", "ü…🐍", "--flag", "-n", "*", "\\", "!x", "a'b\"c",
]  # fmt: skip


def quoted(words):
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def test_launch_passes_every_byte_and_the_exit_code(python):
    for options in ("", "set -euo pipefail"):
        result = python(f"{options}\nlaunch {quoted(ARGUMENTS)} || exit $?", STUB_RC="37")
        assert json.loads(result.stdout) == ARGUMENTS
        assert result.returncode == 37
    result = python("launch")
    assert (result.stdout, result.returncode) == ("[]", 0), "alone it hands over no arguments"


@pytest.mark.slow
def test_an_mpiexec_that_nobody_knows_is_an_error_beside_the_rest_of_the_answer(importable):
    importable.program("mpiexec", "echo a wrapper of the site")
    result, told = job(importable, NHOSTS="9")
    assert result.returncode == 125
    assert "does not say which MPI it is" in result.stderr
    assert (told["DIST_LAUNCH"], told["NHOSTS"], told["EZPZ_SCHEDULER"]) == ("", "1", "none")
    assert "launch = (none was found)" in result.stdout


def test_launch_in_a_script_starts_one_python(python):
    real = shutil.which("python3", path=python.env["PATH"])
    python.program("python3", f'echo start >>"$FAKE_LOG"\nexec {real} "$@"')
    python("launch one; launch two; launch three")
    log = Path(python.env["FAKE_LOG"]).read_text()
    assert log.count("start") == 4  # one to learn that ezpz is there, then one each


@pytest.mark.parametrize("call", ["ezpz_setup_job", "ezpz_get_job_env"])
@pytest.mark.slow
def test_one_python_says_that_it_has_ezpz_and_what_the_job_is(importable, call):
    real = (importable.bin / "python3").read_text().splitlines()[-1]
    importable.program("python3", f'echo start >>"$FAKE_LOG"\n{real}')
    log = Path(importable.env["FAKE_LOG"])
    result, told = job(importable, before="exec 3>'mine'", call=f"{call} && echo kept >&3")
    assert (result.returncode, result.stderr, told["EZPZ_SCHEDULER"]) == (0, "", "none")
    assert log.read_text() == "start\n"
    assert (importable.cwd / "mine").read_text() == "kept\n"
    importable("ezpz_setup_job; launch; launch")
    assert log.read_text().count("start") == 1 + 3, "launch need not ask again"


@pytest.mark.slow
def test_lines_that_a_start_up_file_of_the_interpreter_prints_do_no_harm(importable):
    (importable.cwd.parent / "sitecustomize.py").write_text("print('welcome')")
    result, told = job(importable, PYTHONPATH=str(importable.cwd.parent))
    assert (result.returncode, result.stderr, told["NHOSTS"]) == (0, "", "1")


@pytest.mark.slow
def test_without_an_ezpz_that_can_be_imported_the_small_answer_is_given_without_a_word(shell, subtests):
    for trouble in ("no python", "broken python", "no ezpz", "broken ezpz", "a folder called ezpz"):
        one = shell.another()
        package = one.cwd.parent / "packages" / "ezpz" / "launch"
        package.mkdir(parents=True)
        before, env = "", {}
        if trouble == "broken ezpz":
            (package.parent / "__init__.py").touch()
            (package / "__init__.py").write_text("import sys; print('a word'); sys.exit('another')")
        if trouble == "broken python":
            one.program("python3", "echo trouble >&2; exit 9")
        elif trouble == "no python":
            before = f"PATH={one.bin}:{tools(one, 'awk tr cat mkdir mv nproc uname')}"
        elif trouble == "no ezpz":
            one.program("python3", 'exec /usr/bin/python3 -I -S "$@"')
        else:
            one.program("python3", 'exec /usr/bin/python3 -S "$@"')
            env = {"PYTHONPATH": str(package.parents[1])}
        one.program("mpiexec", "exit 0")
        show = 'echo "rc=$? $NHOSTS $DIST_LAUNCH ${EZPZ_READY:-not ready}"'
        with subtests.test(trouble):
            result = one(f"{before}\nset -u; ezpz_setup_job >/dev/null; {show}", **env)
            assert (result.stderr, result.stdout.splitlines()[-1]) == ("", "rc=0 1 mpiexec -n 2 not ready")


@pytest.mark.slow
def test_an_error_of_the_full_answer_is_told_and_is_its_code(importable):
    result, told = job(importable, before="set -u", PBS_JOBID="1.head", PBS_NODEFILE="/gone")
    assert result.returncode == 125
    assert result.stderr.startswith("ezpz: no hosts of job 1.head (from PBS_JOBID): PBS_NODEFILE=/gone cannot be read")
    assert result.stderr.count("\n") == 1
    assert (result.stdout, told["NHOSTS"]) == ("", "")


ECHO = 'for a; do printf "%s\\0" "$a"; done; exit 41'


def test_without_ezpz_the_plain_prefix_is_used(small):
    small.program("mpi exec", ECHO)
    small.program("mpiexec", ECHO)
    prefix = "mpiexec -n 2 --hostfile /aux/4[2].head"
    (small.cwd / "42.head").touch()
    result = small(f"launch {quoted(ARGUMENTS)}", DIST_LAUNCH=prefix)
    assert result.stdout.split("\0")[:-1] == [*prefix.split()[1:], *ARGUMENTS]
    assert result.returncode == 41
    bare = small("launch", DIST_LAUNCH=prefix)
    assert (bare.returncode, bare.stdout) == (2, "")
    assert f"Runs: {prefix} COMMAND" in bare.stderr
    result = small("launch true", DIST_LAUNCH="")
    assert result.returncode == 125
    assert "Call: ezpz_setup_env" in result.stderr


def test_the_users_options_and_word_splitting_stay_as_they_were(small):
    small.program("mpiexec", "exit 0")
    show = 'setopt; set -o; echo "$-|$IFS|$PWD"' if small.name == "zsh" else 'set +o; shopt; echo "$-|$IFS|$PWD"'
    script = f"IFS=:\n{show} >../one\nezpz_setup_job >/dev/null\nlaunch true\n{show} >../two"
    result = small(script)
    assert result.returncode == 0, result.stderr
    assert (small.cwd.parent / "one").read_text() == (small.cwd.parent / "two").read_text()


def test_an_alias_that_hides_launch_is_told(small):
    small.program("mpiexec", "exit 0")
    result = small("alias launch=echo\nezpz_setup_job >/dev/null")
    assert "unalias launch" in result.stderr


def test_the_tests_run_the_shells_they_name(shell):
    program = {"bash": "$BASH_VERSION", "zsh": "$ZSH_VERSION"}[shell.name]
    assert shell(f'test -n "{program}"').returncode == 0
