"""The local flavour with real processes: what ranks see, how a run ends, that nothing stays behind."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from ezpz.launch.contract import named_hosts
from ezpz.ranks import CONTRACT
from lab import hosts as hosts_of_lab
from lab import process as lab
from lab.leaving import LEAVING, check_leaving
from lab.require import require
from lab.shown import SHOW, SHOW_INPUT, shown

FAIL_ONE = 'if [ "$RANK" = 1 ]; then {}; else sleep 600; fi'


def test_every_rank_has_torchruns_contract_and_the_users_variables(launch, clean_env):
    stale = {"RANK": "7", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "old", "GROUP_RANK": "9"}
    done = launch("-n", "3", *SHOW, env={**clean_env, **stale, "MINE": "a 'b' \"$c\"\n"})

    ranks = [environ for environ, _, _, _ in shown(done.stdout)]
    assert all(name in environ for environ in ranks for name in CONTRACT)
    assert [environ["RANK"] for environ in ranks] == [environ["LOCAL_RANK"] for environ in ranks] == ["0", "1", "2"]
    assert {environ["WORLD_SIZE"] + environ["LOCAL_WORLD_SIZE"] + environ["GROUP_RANK"] for environ in ranks} == {"330"}
    assert {environ["MINE"] for environ in ranks} == {"a 'b' \"$c\"\n"}
    assert {environ["TORCHELASTIC_RUN_ID"] for environ in ranks} != {"old"}
    assert {environ["MASTER_ADDR"] for environ in ranks} == {"127.0.0.1"}
    assert len({environ["MASTER_PORT"] for environ in ranks} - {"1"}) == 1


@pytest.mark.slow
def test_arguments_and_input_arrive_byte_for_byte(launch):
    words = ["", "a b", "'", '"', "$HOME", "`id`", "-n", "--", "ünï", "line\nbreak", ":", "*"]
    done = launch("-n", "2", "--", *SHOW_INPUT, *words, stdin="to rank 0")

    ranks = shown(done.stdout)
    assert [argv for _, argv, _, _ in ranks] == [words, words]
    assert [text for _, _, _, text in ranks] == ["to rank 0", ""]


@pytest.mark.slow
def test_threads_are_cores_per_rank_unless_the_user_says_otherwise(launch, clean_env):
    share = ["-n", "2", "sh", "-c", "echo $OMP_NUM_THREADS"]
    each = max(1, len(os.sched_getaffinity(0)) // 2)
    assert launch(*share).stdout.split() == [str(each)] * 2
    assert launch(*share, env={**clean_env, "OMP_NUM_THREADS": "7"}).stdout.split() == ["7", "7"]


@pytest.mark.slow
def test_the_number_of_ranks_comes_from_the_option_or_a_wish_or_the_cores(launch, clean_env):
    def ranks(*options, **variables):
        return len(launch(*options, "echo", "x", env={**clean_env, **variables}).stdout.split())

    cores = len(os.sched_getaffinity(0))
    assert ranks() == max(2, min(4, cores // 2))
    assert ranks(WORLD_SIZE="3") == 3
    assert ranks("-n", "1", WORLD_SIZE="3") == 1
    assert ranks("--ppn", "5") == 5
    assert ranks(EZPZ_NGPU_PER_HOST="3") == 3


@pytest.mark.slow
def test_the_first_line_says_what_starts_and_stdout_stays_the_programs(launch):
    done = launch("-n", "9", "echo", "x")
    assert done.stdout == "x\n" * 9
    first, second, note = done.stderr.splitlines()
    assert first.startswith("ezpz: 9 ranks on ")
    assert first.endswith("(-n), cpu")
    assert second.startswith("ezpz: local launcher (no mpiexec on PATH), rendezvous at 127.0.0.1:")
    assert "note: 9 ranks share" in note


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("exit 3", 3, "rank 1 on host "),
        ("kill -SEGV $$", 139, "was killed by SIGSEGV"),
        ("kill -KILL $$", 137, "was killed by SIGKILL"),
        ("exec /no/such/program", 127, "exited with code 127"),
    ],
)
def test_the_first_failure_stops_all_and_is_the_exit_code(launch, survivors, how, code, words):
    done = launch("-n", "3", "bash", "-c", FAIL_ONE.format(how))  # the others would go on for ten minutes
    assert done.returncode == code
    causes = [line for line in done.stderr.splitlines() if "stopping the other ranks" in line]
    assert len(causes) == 1
    assert words in causes[0]
    assert not survivors()


@pytest.mark.slow
def test_ranks_for_which_there_are_no_files_left_are_one_line_and_leave_nothing(launch, survivors):
    limited = ["bash", "-c", 'ulimit -n 32; exec "$@"', "bash", sys.executable, "-m", "ezpz.launch"]
    done = launch("-n", "20", "sleep", "600", line=limited)
    assert done.returncode == 125, done.stderr
    assert "cannot start 20 ranks: " in done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert not survivors()


@pytest.mark.slow
def test_what_a_rank_left_in_its_session_goes_with_it(launch, survivors):
    assert launch("-n", "2", "bash", "-c", "sleep 600 & exit 0").returncode == 0
    lab.wait_until(lambda: not survivors(), 60, "the end of the grandchildren")


@pytest.mark.few(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_reaches_every_rank_once_and_is_the_exit_code(start_launch, survivors, number, code):
    name = signal.Signals(number).name[3:]
    script = f"trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.1; done"
    run = start_launch("-n", "2", "bash", "-c", script)
    assert [run.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    run.send_signal(number)
    rest, errors = run.communicate(timeout=60)
    assert (run.returncode, rest.split("\n")[:-1]) == (code, [f"got {name}"] * 2)
    assert "passing it on" in errors
    assert not survivors()


@pytest.mark.slow
@pytest.mark.parametrize("ignored", ["HUP", "INT QUIT"])  # nohup; the background of a script
def test_an_ignored_signal_stays_ignored_in_launch_and_its_ranks(start_launch, survivors, ignored):
    script = "echo $$; until [ -e go ]; do sleep 0.1; done"
    run = start_launch("-n", "2", "sh", "-c", script, before=lab.ignoring(ignored))
    pids = [int(run.stdout.readline()) for _ in range(2)]
    for name in ignored.split():
        for pid in (run.pid, *pids):
            os.kill(pid, getattr(signal, f"SIG{name}"))
    time.sleep(0.3)
    Path(f"/proc/{run.pid}/cwd/go").touch()
    assert (run.communicate(timeout=60)[1].count("received"), run.returncode) == (0, 0)
    assert not survivors()


@pytest.mark.slow
def test_a_second_interrupt_kills_at_once(start_launch, survivors):
    run = start_launch("-n", "2", "bash", "-c", "trap '' INT TERM; echo ready; while :; do sleep 0.1; done")
    assert [run.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    run.send_signal(signal.SIGINT)
    told = next(line for line in run.stderr if "passing it on" in line)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == 130, told
    assert not survivors()


def test_a_killed_launcher_takes_its_ranks_with_it(start_launch):
    run = start_launch("-n", "2", "python3", "-c", "import time; print('ready', flush=True); time.sleep(600)")
    assert [run.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    run.kill()
    run.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launch", "agent", "nobody"])
def test_a_daemon_that_wiped_its_environment_goes_with_the_launch(start_launch, survivors, victim):
    seconds, stays = str(10**6 + os.getpid()), [] if victim != "nobody" else ["and end"]
    run = start_launch("-n", "2", sys.executable, "-c", lab.WIPED_DAEMON, seconds, *stays)
    if victim != "nobody":
        lab.wait_until(lambda: len(lab.daemons(seconds)) == 2, 20, "a daemon of each rank")
        agents = [pid for pid in survivors() if Path(f"/proc/{pid}/comm").read_text() == "ezpz-agent\n"]
        os.kill(run.pid if victim == "launch" else agents[0], signal.SIGKILL)
    run.communicate(timeout=60)
    assert run.returncode == {"launch": -9, "agent": 125, "nobody": 0}[victim]
    lab.wait_until(lambda: not survivors() and not lab.daemons(seconds), 60, "the end of all processes")


@pytest.mark.slow
def test_a_pasted_dry_run_starts_the_same_ranks(launch, run_cli, clean_env):
    """Also in a shell that has values of theirs already, equal ones among them, or those of an outer launcher."""
    equal = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2", "ROLE_NAME": "default"}
    outer = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "9", "EZPZ_CONTROL": "t@1@h"}
    env = {**clean_env, "RANK": "5", **equal, **outer}
    line = launch("-n", "2", "--dry-run", *SHOW, "a b", env=env).stdout
    for shell in (env, clean_env):
        ranks = shown(run_cli(["bash", "-c", line], env=shell).stdout)
        told = [(environ["RANK"], environ["WORLD_SIZE"], argv) for environ, argv, _, _ in ranks]
        assert told == [(rank, "2", ["a b"]) for rank in "01"]
        assert [environ["MASTER_ADDR"] for environ, _, _, _ in ranks] == ["127.0.0.1"] * 2
        assert all(set(CONTRACT) <= environ.keys() and not outer.keys() & environ.keys() for environ, _, _, _ in ranks)


def test_a_bare_launch_prints_its_help_and_with_options_alone_the_line(launch, run_cli, clean_env):
    """`launch $COMMAND` with an empty variable is no success: what it prints goes to stderr, with the code 2."""
    for done in (launch(), run_cli([sys.executable, "-m", "ezpz", "launch"], clean_env)):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == launch("--help").stdout
    done = launch("-n", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "RANK=0" in done.stdout
    assert "COMMAND" in done.stdout


def test_a_file_of_python_is_run_by_python(launch, tmp_path, subtests):
    show = "import os, sys; print(os.environ['RANK'], sys.argv)\n"
    (tmp_path / "ddp.py").write_text(show)
    (tmp_path / "-dash.py").write_text(show)
    lab.program(tmp_path / "bits.py", show)  # as every file of some file systems
    lab.program(tmp_path / "own.py", "#!/bin/sh\necho own $RANK\n")
    for words, said in [
        ("ddp.py a", "0 ['ddp.py', 'a']\n"),
        ("./ddp.py", "0 ['./ddp.py']\n"),
        ("./bits.py", "0 ['./bits.py']\n"),
        ("./own.py", "own 0\n"),
        ("-- -dash.py", "0 ['./-dash.py']\n"),
    ]:
        with subtests.test(words):
            done = launch("-n", "1", *words.split())
            assert (done.returncode, done.stdout) == (0, said), done.stderr


@pytest.mark.slow
def test_bad_input_is_one_line_and_the_right_exit_code(launch, tmp_path, subtests):
    (tmp_path / "plain.sh").write_text("true")
    (tmp_path / "folder.py").mkdir()
    lab.program(tmp_path / "broken", "#!/no/such/interpreter\n")
    lab.program(tmp_path / "job.sh", "#!/bin/bash\n#SBATCH --nodes=2\nlaunch true\n")
    (tmp_path / "hosts").write_text("n01\nn02\n")
    for args, code, words in [  # what is typed, the exit code, and words of the one line
        (["--nprogs", "2", "true"], 2, "unknown option --nprogs"),
        (["-n", "0", "true"], 2, "'0' is not a whole number of at least 1"),
        (["-n", "two", "true"], 2, "'two' is not a whole number"),
        (["--hostfile", "/no/such", "true"], 2, "cannot read the host file /no/such"),
        (["no-such-program"], 127, "no-such-program (from the command line): it is not found on PATH"),
        (["missing.py"], 127, "missing.py (from the command line): there is no such file"),
        (["folder.py"], 126, "folder.py (from the command line): it is a folder"),
        (["./folder.py"], 126, "./folder.py (from the command line): it is a folder"),
        (["plain.sh"], 127, "it is not found on PATH; expected a program. Write `launch bash plain.sh`."),
        (["./plain.sh"], 126, "it is not executable; expected a program. Write `launch bash ./plain.sh`."),
        (["broken"], 127, "it is not found on PATH; expected a program. Write `launch ./broken`."),
        (["job.sh"], 2, "job.sh as the command (from the command line) is a job file"),
        (["mpiexec", "-np", "2", "true"], 2, "mpiexec as the command (from the command line) starts ranks itself"),
        *(
            ([f"{name}", "-np", "2", "true"], 2, f"{name} as the command (from the command line) starts ranks itself")
            for name in ("mpiexec.mpich", "mpirun.openmpi", "mpiexec.hydra", "orterun", "prterun", "ibrun")
        ),
        (["-n", "1", "a", ":", "-n", "1", "b"], 2, "a `:` with options behind it (from the command line) parts"),
        (["mpiexec", "-n", "1", "a", ":", "-n", "1", "b"], 2, "Write `launch [options] COMMAND`."),
        (["--dry-run", "srun", "-n2", "true"], 2, "expected the program alone. Write `launch -n2 true`."),
        (["launch", "-n", "2", "true"], 2, "launch as the command (from the command line) starts ranks itself"),
        (["srun", "-n2", "launch", "-n", "2", "true"], 2, "Write `launch -n 2 true`. `launch env srun …` runs it all"),
        (["torchrun", "--nproc-per-node", "2", "t.py"], 2, "Write `launch --nproc-per-node 2 t.py`. `launch env torch"),
        (["--ppn", "1", "torchrun", "t.py"], 2, "torchrun as the command"),  # a world of its own on each host
        (["-m", "torch.distributed.run", "--standalone", "t.py"], 2, "Write `launch --standalone t.py`."),
        ([sys.executable, "-u", "-m", "ezpz.launch", "true"], 2, "-u -m ezpz.launch as the command (from the command "),
        (["ezpz", "launch", "true"], 2, "ezpz launch as the command (from the command line) starts ranks itself"),
        (["accelerate", "launch", "--num_processes", "2", "t.py"], 2, "Write `launch --num_processes 2 t.py`."),
        (["./job.sh"], 2, "./job.sh as the command (from the command line) is a job file (#SBATCH in line 2), which"),
        (["bash", "job.sh"], 2, "or write `launch COMMAND`; `launch env bash job.sh` runs it all the same."),
        (["./broken"], 127, "No such file or directory"),
        (["--hostfile", "hosts", "--flavour", "mpich", "true"], 125, "no mpiexec of MPICH on PATH"),
    ]:
        with subtests.test(" ".join(args)):
            done = launch(*args)
            assert (done.returncode, done.stdout) == (code, "")
            ours = r"ezpz: (\d+ ranks on|local launcher)"
            said = [line for line in done.stderr.splitlines() if not re.match(ours, line)]
            assert len(said) == 1 or said[1:] == ["ezpz: 1 other rank failed in the same way"]
            assert said[0].startswith("ezpz: ")
            assert words in said[0]


def test_one_torchrun_and_one_per_host_that_is_told_of_the_others_may_be_started(
    run_cli, clean_env, tmp_path, subtests
):
    lab.program(tmp_path / "torchrun", "#!/bin/sh\necho run\n")
    env = {**clean_env, "PATH": f"{tmp_path}:{clean_env['PATH']}"}
    for words in ("-n 1 torchrun t.py", "--ppn 1 torchrun --nnodes 2 t.py", "-n 1 env torchrun t.py"):
        with subtests.test(words):
            done = run_cli([sys.executable, "-m", "ezpz.launch", *words.split()], env)
            assert (done.returncode, done.stdout) == (0, "run\n"), done.stderr


STEP = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
ONE_PER_HOST = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}
AURORA = {"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0", "PALS_LOCAL_SIZE": "12", "PALS_NODEID": "0"}
WORKER = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
POD = {"MASTER_ADDR": "job-master-0", "WORLD_SIZE": "2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
BY_NAME = ["--hosts", os.uname().nodename, "-n", "1", "true"]


def test_one_of_several_tasks_starts_no_world_and_the_first_says_what_to_type(launch, clean_env, subtests):
    for environ, words, code, said in [
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4"}, ["true"], 2, "Write `launch -n 4 true`, without srun;"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4"}, ["-n", "2", "true"], 2, "Write `launch -n 2 true`, without srun;"),
        (ONE_PER_HOST, ["true"], 2, "start a world in each of 4 tasks, on the same hosts (from SLURM_PROCID)"),
        (ONE_PER_HOST, ["true"], 2, "Write `launch true`, without srun; to launch in one task alone, `env -u SLURM_PR"),
        ({**ONE_PER_HOST, "SLURM_PROCID": "2", "SLURM_NODEID": "2"}, ["true"], 2, ""),
        (AURORA, ["-n", "1", "true"], 2, "in each of several tasks, on the same hosts (from PALS_RANKID)"),
        (WORKER, ["true"], 2, "Write `launch -n 2 true`, without torchrun; to launch in one task alone, `env -u RANK "),
        (
            {"PET_NNODES": "2", "RANK": "1"},
            ["x.py", "-a"],
            2,
            "Write `torchrun x.py -a`, which takes the job's variables",
        ),
        (
            {**POD, "RANK": "1"},
            ["true"],
            2,
            "Write `torchrun --nnodes $WORLD_SIZE --node-rank $RANK --master-addr $MAST",
        ),
        ({"PET_NNODES": "1:4"}, ["true"], 2, "this is a pod of a PyTorchJob of 4 (from PET_NNODES)"),
        ({"PET_NNODES": "1"}, ["-n", "1", "true"], 0, "1 rank on"),
        ({"PET_NNODES": "2"}, ["--flavour", "local", "-n", "1", "true"], 0, "1 rank on"),
        # What the user has named himself, a shell that is no task, leftovers, a rank that starts a launch.
        (ONE_PER_HOST, BY_NAME, 0, "1 rank on"),
        ({**ONE_PER_HOST, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}, ["-n", "1", "true"], 0, ""),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, ["-n", "1", "true"], 0, ""),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, ["-n", "1", "true"], 0, ""),
        ({name: WORKER[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}, ["-n", "1", "true"], 0, ""),
        ({**WORKER, "EZPZ_LAUNCH_ID": "a"}, ["-n", "1", "true"], 0, ""),
        (STEP, ["-n", "1", "--dry-run", "true"], 0, ""),
    ]:
        with subtests.test(f"{environ} {words}"):
            done = launch(*words, env={**clean_env, **environ})
            assert done.returncode == code, done.stderr
            assert said in done.stderr
            assert done.stderr.count("\n") == bool(said) or not code


def test_a_script_of_python_with_a_name_of_its_own_is_a_rank_that_may_launch(run_cli, clean_env, tmp_path):
    line = f"{[sys.executable, '-m', 'ezpz.launch', '-n', '1', 'true']!r}"
    script = f"#!{sys.executable}\nimport subprocess, sys\nsys.exit(subprocess.call({line}))\n"
    done = run_cli(
        [str(lab.program(tmp_path / "driver", script))], {**clean_env, **STEP, "SLURM_STEP_TASKS_PER_NODE": "4"}
    )
    assert done.returncode == 0, done.stderr


def test_ranks_that_cannot_meet_because_the_loopback_is_down_are_refused_at_once(run_cli, clean_env, subtests):
    require("hosts", hosts_of_lab.problem())
    for words, code in (("-n 2", 125), ("-n 1", 0), ("-n 2 --check off", 0)):
        with subtests.test(words):
            line = ["unshare", "--net", sys.executable, "-m", "ezpz.launch", *words.split(), "true"]
            done = run_cli(line, clean_env)
            assert (done.returncode, "cannot meet at 127.0.0.1" in done.stderr) == (code, bool(code)), done.stderr


def test_a_script_that_writes_a_job_file_is_none(run_cli, clean_env, tmp_path, subtests):
    lab.program(tmp_path / "writes.sh", "#!/bin/bash\n# writes one\n\ncat <<END\n#SBATCH --nodes=2\nEND\n")
    lab.program(tmp_path / "true", "#!/bin/bash\n#SBATCH --nodes=2\necho not run\n")
    for line, said in (("./writes.sh", "#SBATCH --nodes=2\n"), ("bash -ec true", ""), ("bash -s true", "")):
        with subtests.test(line):
            done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "1", *line.split()], clean_env)
            assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_a_script_that_comes_through_a_pipe_is_left_to_the_rank(run_cli, clean_env):
    done = run_cli(["bash", "-c", f"exec {sys.executable} -m ezpz.launch -n 1 bash <(echo echo it is run)"], clean_env)
    assert (done.returncode, done.stdout) == (0, "it is run\n"), done.stderr


@pytest.mark.slow
def test_a_debug_run_shows_the_traceback(launch, clean_env):
    assert "Traceback" in launch("-n", "0", "true", env={**clean_env, "EZPZ_DEBUG": "1"}).stderr


@pytest.mark.slow
def test_exports_are_quoted_words_for_a_shell(run_cli, clean_env):
    line = [sys.executable, "-m", "ezpz.cluster", "--sh"]
    done = run_cli(line, {**clean_env, "EZPZ_NGPU_PER_HOST": "3"})
    show = "echo $EZPZ_SCHEDULER $NHOSTS $NGPU_PER_HOST $NGPUS $EZPZ_NRANKS; cat $HOSTFILE"
    shell = run_cli(["bash", "-c", f"{done.stdout}\n{show}"])
    assert shell.stdout.split() == ["none", "1", "3", "3", "3", os.uname().nodename]
    assert "export DIST_LAUNCH='" in done.stdout


@pytest.mark.slow
def test_a_job_whose_launcher_is_unknown_still_tells_its_hosts(run_cli, clean_env, tmp_path):
    (tmp_path / "nodes").write_text("n01\nn02\n")
    job = {"PBS_JOBID": "1.head", "PBS_NODEFILE": str(tmp_path / "nodes"), "EZPZ_NGPU_PER_HOST": "4"}
    lab.program(tmp_path / "mpiexec", "#!/bin/sh\necho a wrapper\n")
    env = {**clean_env, **job, "PATH": f"{tmp_path}:{clean_env['PATH']}"}
    done = run_cli([sys.executable, "-m", "ezpz.cluster", "--sh"], env)
    assert done.returncode == 125, done.stderr
    assert {"export NHOSTS=2", "export EZPZ_NRANKS=8", "export DIST_LAUNCH=''"} < set(done.stdout.splitlines())
    assert f"export HOSTFILE={tmp_path}/nodes" in done.stdout
    assert "does not say which MPI it is: it printed 'a wrapper" in done.stderr


@pytest.mark.slow
def test_a_host_file_outweighs_a_job_whose_hosts_are_lost(launch, tmp_path, clean_env):
    (tmp_path / "hosts").write_text(f"{os.uname().nodename}\n")
    done = launch("--hostfile", "hosts", "-n", "2", "echo", "x", env={**clean_env, "PBS_JOBID": "1.head"})
    assert (done.returncode, done.stdout) == (0, "x\nx\n"), done.stderr


@pytest.mark.slow
def test_a_launch_inside_a_rank_of_another_launcher_starts_a_world_of_its_own(launch, clean_env):
    outer = dict.fromkeys(("PMI_RANK", "MPI_LOCALRANKID", "RANK"), "1")
    outer |= dict.fromkeys(("PMI_SIZE", "MPI_LOCALNRANKS", "WORLD_SIZE"), "2")
    tell = "from ezpz.ranks import from_environ; import os; print(*from_environ(os.environ)[:2])"
    done = launch("-n", "3", sys.executable, "-c", tell, env={**clean_env, **outer})
    assert sorted(done.stdout.splitlines()) == ["0 3", "1 3", "2 3"], done.stderr


def test_a_program_in_a_task_may_launch_and_a_script_of_the_shell_may_not(run_cli, clean_env, subtests):
    env = {**clean_env, **ONE_PER_HOST}
    line = [sys.executable, "-m", "ezpz.launch", "-n", "1", "echo", "it runs"]
    by_python = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"]
    for before, code in ((by_python, 0), (["sh", "-c", '"$@"; exit $?', "sh"], 2)):
        with subtests.test(before[0]):
            done = run_cli([*before, *line], env)
            assert (done.returncode, done.stdout) == (code, "it runs\n" * (not code)), done.stderr


def test_a_list_of_hosts_that_no_variable_holds_stays_in_the_shell():
    hosts = tuple(f"x4712c2s1b0n{index}.hostmgmt2712.cm.site.example" for index in range(10_000))
    assert named_hosts(hosts) == ""
    assert named_hosts(hosts[:2]) == ",".join(hosts[:2])


@pytest.mark.slow
def test_what_python_cannot_run_is_told_once(launch, tmp_path):
    (tmp_path / "train.py").write_text("")
    script = launch("-n", "4", sys.executable, "trian.py")
    told = f"ezpz: there is no script trian.py in {tmp_path}; expected one. Did you mean train.py?"
    assert (script.returncode, script.stdout, script.stderr.splitlines()[-1]) == (2, "", told)
    assert "can't open file" not in script.stderr
    module = launch("-n", "4", sys.executable, "-m", "trian")
    assert (module.returncode, module.stdout, module.stderr.count("No module named")) == (1, "", 1)
    assert "trian" in module.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_traceback_stands_behind_all_that_we_say(launch, tmp_path):
    """Also after the count of ranks that repeated a warning."""
    lines = "import os, time, warnings", "time.sleep(0.6 * (os.environ['RANK'] != '0'))", "warnings.warn('careful')"
    (tmp_path / "train.py").write_text("\n".join([*lines, "time.sleep(1)", "raise ValueError('my bug')"]))
    said = launch("-n", "3", sys.executable, "train.py").stderr.splitlines()
    assert said[-1] == "ValueError: my bug"
    assert sum("more ranks wrote the same: " in line for line in said) == 1
    last = max(number for number, line in enumerate(said) if line.startswith("ezpz: "))
    assert said[last + 1] == "Traceback (most recent call last):"


@pytest.mark.slow
def test_printed_lines_leave_one_host_file_for_a_day(launch, clean_env, tmp_path):
    env = {**clean_env, "TMPDIR": str(tmp_path), "EZPZ_SSH": "/bin/true"}
    for hosts in ("n01,n02", "n01,n02", "n01,n03"):
        done = launch("--hosts", hosts, "--ppn", "1", "--flavour", "ssh", "--json", "true", env=env)
        assert done.returncode == 0, done.stderr
    folder = tmp_path / f"ezpz-{os.getuid()}" / "dry-run"
    first, second = sorted(path.read_text() for path in folder.iterdir())
    assert ("n02" in first, "n03" in second) == (True, True)
    for path in folder.iterdir():
        os.utime(path, (1.0, 1.0))
    launch("--hosts", "n01,n04", "--ppn", "1", "--flavour", "ssh", "--dry-run", "true", env=env)
    (left,) = folder.iterdir()
    assert "n04" in left.read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["dry-run"]


@pytest.mark.slow
def test_a_rank_that_leaves_with_0_is_the_cause_of_what_others_lose(launch):
    check_leaving(launch("-n", "3", *LEAVING))
