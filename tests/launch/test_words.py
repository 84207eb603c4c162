"""Options of torchrun, mpiexec, srun, PALS, accelerate and an older launch: what each means here."""

import json
import os
import re
import shlex
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from ezpz.errors import UsageError
from ezpz.launch import other_launchers
from ezpz.launch.cpu_binding import chosen_cpus
from ezpz.launch.options import OPTIONS, LaunchOptions, parse
from lab import process as lab
from lab.shown import SHOW_CPUS

SOURCE = Path(other_launchers.__file__).parents[2]

SHOW_ENV = "import json, os; print(json.dumps([os.environ.get(name) for name in ('RANK', 'A', 'B')]))"


def read(line, environ=None):
    return parse([*shlex.split(line), "prog", "--nproc", "7"], environ or {})


def error(line, environ=None):
    with pytest.raises(UsageError) as caught:
        parse([*shlex.split(line), "prog"], environ or {})
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_word_of_the_same_meaning_is_ours(subtests):
    for fields, lines in [
        ({"ranks": 2}, "--nproc 2 | --nprocs=2 | --ntasks 2 | --world_size 2 | --world-size=2 | --num_processes 2"),
        ({"ranks": 2}, "--n 2"),
        ({"per_host": 2}, "--nproc_per_node 2 | --nproc-per-node=2 | --ntasks-per-node=2 | -perhost 2 | -npernode 2"),
        ({"nhosts": 2}, "--nnodes 2 | --nnodes=2:2 | --nodes 2 | --nodes=2-2 | -nh 2 | --nhost 2 | --num_machines 2"),
        ({"devices_per_host": 2}, "--gpus-per-node=2"),
        ({"devices": ("0", "1")}, "--gpu_ids 0,1"),
        ({"hosts": ("n01", "n02")}, "-H n01,n02 | -hosts n01,n02 | --nodelist n[01-02]"),
        ({"hostfile": "file"}, "-f file | -hostfile file | --machinefile file | --host-file file"),
        ({"label": True}, "-l | --tag-output"),
        ({"devices_per_host": 0}, "--cpu | --use_cpu"),
        ({"oversubscribe": True}, "--overcommit"),
        ({"exit_timeout": 30}, "-W 30"),
        ({"exit_timeout": None}, "--wait=0"),
        ({"log_dir": "logs"}, "--log_dir logs"),
        ({"dry_run": True}, "--dry_run"),
        ({"verbose": True}, "--verbose | -v"),
        ({"cpu_bind": "cores"}, "--cpu_bind cores | --bind-to core"),
        ({"cpu_bind": "threads"}, "-bind-to hwthread"),
        ({"cpu_bind": "depth:8"}, "--cpu-bind depth -d 8 | --cpu-bind=depth --depth=8"),
        ({"cpu_bind": "depth:8", "cpu_bind_origin": "--depth"}, "--depth 8 | --cpus-per-task=8"),
        ({"env": (("A", "1"), ("B", "x=y"))}, "--env A=1 --env=B=x=y"),
        ({"env": (("A", "1"),)}, "-x A=1 | --export=ALL,A=1"),
        ({"env": (("A", "1"), ("B", "2"))}, "-genv A 1 -env B=2"),
        ({"launcher_args": ("--mca", "btl", "self,tcp")}, "--mca btl self,tcp"),
        ({"master_addr": "n01", "master_port": "4711"}, "--master_addr n01 --master_port=4711"),
        ({"master_port": "4711"}, "--main_process_port 4711"),
    ]:
        for line in lines.split(" | "):
            with subtests.test(line):
                options = read(line)
                assert options == LaunchOptions(**fields, command=("prog", "--nproc", "7"))
                assert not options.notes


def test_a_word_for_what_is_done_anyway_is_a_note(subtests):
    for line, note in [
        ("--standalone", "--standalone is not needed: launch starts the ranks of one job by itself"),
        ("--rdzv-backend=c10d", "--rdzv-backend c10d is not needed: launch finds where the ranks meet"),
        ("--rdzv_endpoint n01:1", "--rdzv_endpoint n01:1 is not needed"),
        ("--rdzv_id 7", "--rdzv_id 7 is not needed"),
        ("--node_rank 0", "--node_rank 0 is not needed: launch starts the ranks of all hosts itself"),
        ("--nproc_per_node gpu", "--nproc_per_node gpu is not needed: there is a rank per device"),
        ("--envall", "--envall is not needed: ranks get the whole environment"),
        ("-genvall", "-genvall is not needed: ranks get the whole environment"),
        ("-x LD_LIBRARY_PATH", "-x LD_LIBRARY_PATH is not needed: ranks get the whole environment"),
        ("--export=ALL", "--export=ALL is not needed"),
        ("--kill-on-bad-exit=1", "--kill-on-bad-exit is not needed"),
        ("--tee 3", "--tee 3 is not needed"),
        ("--signals-to-handle SIGUSR1", "--signals-to-handle SIGUSR1 is not needed: SIGTERM, SIGINT, SIGHUP, SIGUSR1"),
        ("--event_log_handler null", "--event_log_handler null is not needed"),
        ("--numa-binding node", "--numa-binding node is taken as --cpu-bind numa"),
        ("--quiet", "--quiet is not needed"),
        ("--max-restarts 0", "--max-restarts 0 is not needed: nothing is started again without --attempts"),
        ("--job-name test --", "--job-name test is not needed: the job has its name"),
        ("-J test", "-J test is not needed"),
        ("--cpu-bind list:0:1 --depth 4", "--depth 4 has no effect beside --cpu-bind list:0:1"),
    ]:
        with subtests.test(line):
            options = read(line)
            assert any(text.startswith(note) for text in options.notes), options.notes
            assert options.command == ("prog", "--nproc", "7")


def test_restarts_are_attempts_without_the_first_start(subtests):
    for line in ["--max_restarts 3", "--max-restarts=3", "--retries 3", "--max-failover-retries 3"]:
        with subtests.test(line):
            options = read(line)
            given = line.replace("=", " ")
            assert (options.attempts, options.notes) == (4, (f"{given} is taken as --attempts 4, the starts in all",))


def test_a_word_of_another_meaning_says_so_and_what_to_write(subtests):
    for line, words_ in [
        ("-N 2", ("-N", "hosts to srun", "--nhosts or --ppn")),
        ("--time 10", ("--time", "minutes to srun", "--timeout")),
        ("--nnodes 1:4", ("--nnodes 1:4", "range of hosts", "--nhosts 4")),
        ("--nodes=2-4", ("--nodes 2-4", "range of hosts", "--nhosts 4")),
        ("--numa-binding=core-complex", ("--numa-binding core-complex", "node, socket, exclusive", "--cpu-bind list:")),
        ("--shutdown-timeout 60", ("--shutdown-timeout", "10 s", "`ezpz.on_save(function)`")),
        ("--virtual_local_rank", ("--virtual_local_rank", "CUDA_VISIBLE_DEVICES=$LOCAL_RANK")),
        ("--duplicate-stdout-filters a", ("--duplicate-stdout-filters", "grep", "--log-dir")),
        ("--duplicate_stderr_filters a", ("--duplicate_stderr_filters", "grep", "--log-dir")),
        ("--logs-specs x", ("--logs-specs", "--log-dir DIR")),
        ("--image x.sif", ("--image", "`launch apptainer exec IMAGE python3 train.py`")),
        ("--container-image=x", ("--container-image=x", "`launch apptainer exec", "--launcher-args=--container-image")),
        ("--node_rank 1", ("--node_rank 1", "starts the ranks of all hosts itself", "Run it once")),
        ("--max_restarts=two", ("--max_restarts two", "no number of restarts", "--attempts N")),
        ("--auto-retry", ("--auto-retry", "--attempts N", "--nhosts")),
        ("--spare_nodes 2", ("--spare_nodes", "--attempts N", "--nhosts")),
        ("--redirects 3", ("--redirects", "--log-dir")),
        ("--map-by core", ("--map-by", "--ppn N")),
        ("-x n07", ("-x n07", "hosts that are left out to srun", "--exclude n07")),
        ("--export=NONE", ("--export=NONE", "--unset")),
        ("--bind-to board", ("--bind-to board", "core, hwthread")),
        ("--gpus-per-task=1", ("--gpus-per-task", "--launcher-args")),
        ("--partition debug", ("--partition", "salloc")),
        ("--mpi=pmix", ("--mpi", "plugin of srun", "--launcher-args=--mpi=pmix")),
        ("--env A", ("--env", "expected NAME=VALUE")),
        ("--env RANK=1", ("--env", "RANK is what launch itself")),
        ("--env EZPZ_PLACEMENT=1", ("--env", "EZPZ_PLACEMENT is what launch itself")),
        ("-x WORLD_SIZE=1", ("-x", "WORLD_SIZE is what launch itself")),
        ("--master_port 70000", ("--master-port", "'70000' is no port")),
        ("--nproc two", ("--nproc", "'two' is not a whole number")),
        ("--standalone=1", ("--standalone takes no value",)),
        ("--zzz 3", ("unknown option --zzz",)),
    ]:
        with subtests.test(line):
            text = error(line)
            assert all(word in text for word in words_), text


def test_a_word_without_its_value_is_one_clear_line():
    for argv in (["--nproc"], ["--nproc", "--"], ["--rdzv_id"], ["--mca", "btl"], ["-m"]):
        with pytest.raises(UsageError, match=r"needs a value|expected one argument"):
            parse(argv, {})


def test_a_script_or_a_module_follows_options_of_torchrun_as_it_does_there():
    python = sys.executable
    assert parse(["--nproc_per_node=2", "t.py", "-m", "x"], {}).command == (python, "t.py", "-m", "x")
    assert parse(["--nproc_per_node=2", "python3", "t.py"], {}).command == ("python3", "t.py")
    assert parse(["-n", "2", "t.py"], {}).command == ("t.py",)  # there is no such file
    assert parse(["-n", "2", "-m", "pack.train", "--lr", "1"], {}).command == (python, "-m", "pack.train", "--lr", "1")
    assert parse(["--module", "pack", "-n", "3"], {}) == LaunchOptions(command=(python, "-m", "pack", "-n", "3"))


BINDINGS = {"node": "numa", "socket": "sockets", "exclusive": "auto"}


def test_a_binding_of_torchrun_is_one_of_ours():
    assert {value: read(f"--numa-binding {value}").cpu_bind for value in BINDINGS} == BINDINGS


@pytest.fixture
def tool(tmp_path):
    """The environment of a tool, without torch, that holds ezpz; and a folder for PATH with the project's python3."""
    folder = tmp_path / "tool"
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python3.*/site-packages"))
    (packages / "ezpz.pth").write_text(f"{SOURCE}\n")
    if sys.version_info < (3, 11):  # what reads TOML before Python does
        (packages / "tomli").symlink_to(Path(find_spec("tomli").origin).parent)
    project = lab.program(tmp_path / "project" / "bin" / "python3", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "train.py").write_text("import os, sys; print(os.environ['RANK'], sys.flags.no_site)\n")
    return folder, project.parent


def test_ranks_of_a_tool_run_the_python_of_the_project(tool, run_cli, clean_env, subtests, tmp_path):
    folder, project = tool
    ordinary = {**clean_env, "PATH": f"{project}:{clean_env['PATH']}"}
    active = {**clean_env, "VIRTUAL_ENV": str(project.parent)}
    for receipt, env, no_site in [
        ("", ordinary, "0"),  # ezpz in an environment as any other: its own Python, as torchrun
        ("uv-receipt.toml", ordinary, "1"),
        ("pipx_metadata.json", ordinary, "1"),
        ("", {**ordinary, "UV": "/bin/uv"}, "1"),  # uvx
        ("", active, "1"),  # another environment is active
        ("", {**active, "VIRTUAL_ENV": str(folder)}, "0"),
        ("", {**active, "UV": "/bin/uv", "VIRTUAL_ENV": str(folder)}, "0"),  # uv run
    ]:
        if receipt:
            (folder / receipt).write_text("")
        for typed in ("train.py", "-m train", "--nproc_per_node=1 train.py"):
            with subtests.test(f"{receipt} {typed}"):
                line = [folder / "bin" / "python", "-m", "ezpz.launch", "-n", "1", *typed.split()]
                done = run_cli(line, env, cwd=tmp_path)
                assert (done.returncode, done.stdout) == (0, f"0 {no_site}\n"), done.stderr
        if receipt:
            (folder / receipt).unlink()


def test_the_smoke_test_of_a_tool_says_what_its_project_lacks(tool, run_cli, clean_env):
    folder, project = tool
    (folder / "uv-receipt.toml").write_text("")
    env = {**clean_env, "PATH": f"{project}:{clean_env['PATH']}"}
    for typed in (["test"], ["benchmark", "--run", "test_dist", "--dry-run"]):
        done = run_cli([folder / "bin" / "python", "-m", "ezpz", *typed], env)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{project}/python3 has no ezpz and torch" in done.stderr
        assert f"Run `uv pip install --python {project}/python3 CHECKOUT torch`." in done.stderr


def test_options_for_the_launcher_pass_where_two_dashes_show_that_they_are_no_commands():
    options = parse(["-n", "2", "--line-buffer", "--no-vni", "--rlimits", "CORE", "-z=1", "--", "prog"], {})
    assert options.launcher_args == ("--no-vni", "--rlimits", "CORE", "-z=1")
    assert options.command == ("prog",)
    assert len(options.notes) == 4
    assert "--no-vni is passed on to the launcher" in options.notes[1]
    for argv in (["--no-vni", "prog"], ["--no-vni", "a", "b", "--", "prog"], ["--nhostz", "2", "--", "prog"]):
        with pytest.raises(UsageError, match="unknown option"):
            parse(argv, {})


def test_cpu_bind_of_the_environment_is_used(subtests):
    binds = {"list:0-3:4-7": "list:0-3:4-7", "--cpu-bind=list:0:1": "list:0:1", "--cpu-bind depth -d 16": "depth:16"}
    for text, bind in {**binds, "--depth 4": "depth:4", "depth": "depth", " cores ": "cores"}.items():
        with subtests.test(text):
            options = read("", {"CPU_BIND": text})
            assert (options.cpu_bind, options.cpu_bind_origin) == (bind, "CPU_BIND")
            other = read("--cpu-bind none", {"CPU_BIND": text})
            note = f"CPU_BIND={text.strip()} has no effect beside --cpu-bind"
            assert (other.cpu_bind, other.notes, other.command) == ("none", (note,), ("prog", "--nproc", "7"))


def test_a_cpu_bind_of_the_environment_with_other_options_is_refused():
    assert "from CPU_BIND" in error("", {"CPU_BIND": "-n 4"})
    assert "unset CPU_BIND" in error("", {"CPU_BIND": "--cpu-bind 'x"})
    assert not read("", {"CPU_BIND": ""}).cpu_bind


def test_the_world_size_that_ezpz_setup_job_has_exported_asks_for_nothing():
    assert read("", {"WORLD_SIZE": "12", "EZPZ_WORLD_SIZE": "12"}).ranks is None
    assert read("", {"WORLD_SIZE": "12", "EZPZ_WORLD_SIZE": "24"}).ranks == 12


def meaning(name):
    """What a word means here: our option, "" for none or a refusal; None where it is not known."""
    try:
        word = other_launchers.understand([name, "1", "1"], {})
    except UsageError:
        return ""
    return word and word.ours


def test_every_word_leads_to_an_option_that_there_is_and_the_page_has_it():
    page = (Path(__file__).parents[2] / "docs" / "older-scripts.md").read_text(encoding="utf-8")
    names = {name for row in OPTIONS for name in row[0]}
    written = set(
        re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", Path(other_launchers.__file__).read_text(encoding="utf-8"))
    )
    meanings = {name: meaning(name) for name in {*map(other_launchers.plain, written), *names}}
    known = {name: ours for name, ours in meanings.items() if ours is not None}
    assert len(known) > 100
    assert set(known.values()) <= {"", *names}
    assert not known.keys() & names
    assert not [name for name in known if f"`{name}`" not in page and f"`{name} " not in page]


# ---- bindings --------------------------------------------------------------------------------------------------------


def test_parts_of_a_host_are_given_to_ranks_in_order():
    allowed = {0, 1, 2, 3, 4, 5, 6, 7}
    assert chosen_cpus("depth:4", allowed, 1, 2) == ([4, 5, 6, 7], "")
    assert chosen_cpus("depth", allowed, 3, 4) == ([3], "")
    assert chosen_cpus("threads", {2, 5}, 1, 2) == ([5], "")
    assert chosen_cpus("0-1:2,3", allowed, 1, 2) == ([2, 3], "")
    cpus, misfit = chosen_cpus("depth:8", allowed, 1, 2)
    assert cpus == sorted(allowed)
    assert misfit == "shares all CPUs that are allowed: there are 8, and depth:8 needs 2 x 8 CPUs"
    for kind in ("cores", "sockets", "numa"):
        parts = [chosen_cpus(kind, os.sched_getaffinity(0), rank, 1)[0] for rank in range(1)]
        assert parts[0]
        assert set(parts[0]) <= os.sched_getaffinity(0)
    # a machine that shows no sockets has one of them, which all ranks share
    assert chosen_cpus("sockets", {9998, 9999}, 1, 2) == ([9998, 9999], "")


@pytest.mark.slow
@pytest.mark.parametrize("spec", [["--cpu-bind", "threads"], ["--cpu-bind", "cores"], ["--depth", "1"]])
def test_the_local_launcher_binds_by_words(launch, spec):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one CPU")
    done = launch("-n", "2", *spec, *SHOW_CPUS)
    assert done.returncode == 0, done.stderr
    answer = dict(json.loads(line) for line in done.stdout.splitlines())
    for rank in (0, 1):
        expected, _ = chosen_cpus("threads" if "--depth" in spec else spec[1], set(allowed), rank, 2)
        assert answer[str(rank)] == expected


@pytest.mark.slow
def test_words_that_change_nothing_here_are_said_and_the_others_reach_the_ranks(launch):
    done = launch(
        *("--nproc", "2", "--standalone", "--launcher-args=--label", "-x", "A=1", "-genv", "B", "x y"),
        *("--cpu-bind", "depth:4096", sys.executable, "-c", SHOW_ENV),
    )
    assert done.returncode == 0, done.stderr
    ranks = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert ranks == [["0", "1", "x y"], ["1", "1", "x y"]]
    assert done.stderr.count("--launcher-args --label has no effect: no mpiexec or srun starts these ranks") == 1
    assert done.stderr.count("--standalone is not needed") == 1
    assert done.stderr.count("shares all CPUs that are allowed") == 1


@pytest.mark.slow
def test_the_port_of_the_command_line_is_used_and_named(launch, clean_env):
    env = {**clean_env, "MASTER_PORT": "1"}
    done = launch("-n", "1", "--master_port", "28111", "--env", "PATH=/nowhere", "--dry-run", "prog", env=env)
    assert done.returncode == 0, done.stderr
    assert "MASTER_PORT=28111" in done.stdout
    assert "PATH=/nowhere" in done.stdout
    assert "EZPZ_JOBID" not in done.stdout
    done = launch("-n", "1", "--master_addr", "127.0.0.1", "--explain", "prog", env=clean_env)
    assert "127.0.0.1  [--master-addr]" in done.stdout


@pytest.mark.slow
def test_verbose_shows_the_plan_and_runs(launch):
    done = launch("-n", "1", "--verbose", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "variables of all ranks" in done.stderr
