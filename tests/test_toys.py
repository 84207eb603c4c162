"""A scheduler, a flavour and a site that come from outside the tree are known everywhere, each by its one file."""

import json
import os
import sys
from pathlib import Path

import pytest

UTILS = Path(__file__).parents[1] / "src" / "ezpz" / "bin" / "utils.sh"

# No public promise: what a file in the tree and its word in an ordered tuple do for every process of the tests.
SITECUSTOMIZE = """
import os
if "TOYS" in os.environ:
    from ezpz import cluster
    from ezpz.cluster import launchers
    cluster.SCHEDULERS = ("toybatch", *cluster.SCHEDULERS)
    cluster.__path__.append(os.path.join(os.environ["TOYS"], "cluster"))
    launchers.FLAVOURS = (*launchers.FLAVOURS[:-1], "toyrun", launchers.FLAVOURS[-1])
    from ezpz.launch import flavours
    flavours.__path__.append(os.path.join(os.environ["TOYS"], "flavours"))
"""
SCHEDULER = """
import os
from ezpz.cluster.allocation import Allocation, Grant
from ezpz.cluster.scheduler import Scheduler

class ToyBatch(Scheduler):
    name = "toybatch"
    title = "ToyBatch"
    job_variables = ("TOY_JOB",)
    array_variables = ("TOY_INDEX",)
    ancestor_prefixes = ("toyd",)
    own_launcher = "toyrun"
    kept_variables = ("TOY_QUEUE",)
    listing = ("toyjobs",)
    end_variable = "TOY_END"
    slots_option = "--toy-slots"
    host_variable = "TOY_HOST"
    threads_variable = "TOY_CPUS"
    device_variables = ("TOY_DEVICES",)
    singletons_cause = "the toy is broken"

    def detect(self, environ, read, run, *, more=False):
        job = self.job_id(environ)
        origin = {"hosts": "TOY_JOB", "slots": "TOY_JOB", "end_time": "toyjobs"}
        end = 1795289400 if more else None
        if not job:
            return None
        return Allocation("toybatch", job, (os.uname().nodename,), (2,), 2, end_time=end, origin=origin)

    def granted(self, environ, *, here):
        text = environ.get("TOY_DEVICES", "")
        return Grant(int(text), "TOY_DEVICES") if text else None

SCHEDULER = ToyBatch()
"""
FLAVOUR = """
from ezpz.launch.flavours.base import Flavour
from ezpz.launch.flavours.request import Flag

class ToyRun(Flavour):
    name = "toyrun"
    title = "Toy Run"

    def command(self, order):
        count = str(order.placement.world_size)
        return [Flag((order.exe,), "launcher"), Flag(("-n", count), order.placement.origin), *order.tail()]

FLAVOUR = ToyRun()
"""
TOYRUN = """#!{python}
import os, subprocess, sys
words = [word for word in sys.argv[1:] if word != "--toy"]
size, command = int(words[1]), words[2:]
ranks = []
for rank in range(size):
    own = dict(PMI_RANK=rank, PMI_SIZE=size, MPI_LOCALRANKID=rank, MPI_LOCALNRANKS=size)
    ranks.append(subprocess.Popen(command, env={{**os.environ, **{{name: str(value) for name, value in own.items()}}}}))
sys.exit(max(rank.wait() for rank in ranks))
"""
SITE = """
[site.toyland]
scheduler = "toybatch"
launcher = "toyrun"
launcher_args = ["--toy"]
recognise.variables = { TOY_QUEUE = ["playground"] }
"""
INSIDE = """
import os
from ezpz.cluster import Allocation, detect
from ezpz.cluster.devices.grants import strangers
from ezpz.dist import rendezvous
from ezpz.launch import wall
from ezpz.launch.contract import inherited
from ezpz.launch.run.rollcall import _usual_cause

assert wall.ends({"TOY_JOB": "7", "TOY_END": "1795289400"}) == 1795289400.0
assert wall.ends({"TOY_JOB": "7", "EZPZ_JOBID": "7", "EZPZ_JOB_END": "1795289400"}) == 1795289400.0
assert wall._main("toybatch", "7") == 0  # prints the end
one, other = {"TOY_JOB": "7"}, {"TOY_JOB": "8"}
assert rendezvous._hashed(one) != rendezvous._hashed(other)
assert rendezvous.key(one) != rendezvous.key(other)
tasks = [{"TOY_JOB": "7", "TOY_INDEX": index} for index in "12"]  # two tasks of an array, which share a job id
assert len({rendezvous._hashed(task) for task in (one, *tasks)}) == 3
assert len({rendezvous.key(task) for task in (one, *tasks)}) == 3
assert "OMP_NUM_THREADS" not in inherited({"TOY_JOB": "7", "TOY_CPUS": "64", "OMP_NUM_THREADS": "64"})
assert inherited({"TOY_CPUS": "64", "OMP_NUM_THREADS": "64"})["OMP_NUM_THREADS"] == "64"
assert "a ToyBatch job" in strangers({"TOY_DEVICES": "4"}, Allocation("none", "", ("a",)))[0]
assert _usual_cause("toybatch", "toyrun") == "the toy is broken"
rest = " 1" * 48
stat = {"/proc/self/stat": f"9 (python3) S 8{rest}", "/proc/8/stat": f"8 (toyd) S 1{rest}"}
both = detect({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a", "TOY_JOB": "7"}, stat.get, lambda argv: None)
assert both.scheduler == "toybatch" and "toyd is the nearest" in both.notes[0], both
"""
JOB = {"TOY_JOB": "7", "TOY_QUEUE": "playground"}


@pytest.fixture
def toys(tmp_path, clean_env):
    """The environment of a process that knows the three toys, outside of any job."""
    folder = tmp_path / "toys"
    files = {
        "sitecustomize.py": SITECUSTOMIZE,
        "cluster/toybatch.py": SCHEDULER,
        "flavours/toyrun.py": FLAVOUR,
        "bin/toyrun": TOYRUN.format(python=sys.executable),
        "config/ezpz/sites.toml": SITE,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "bin" / "toyrun").chmod(0o755)
    more = {"TOYS": str(folder), "PYTHONPATH": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    return {**clean_env, **more, "PATH": f"{folder / 'bin'}{os.pathsep}{clean_env['PATH']}"}


def test_detection_devices_and_site_know_the_toys(toys, run_cli):
    where = json.loads(run_cli([sys.executable, "-m", "ezpz", "where", "--json"], {**toys, **JOB}).stdout)
    assert (where["scheduler"], where["job_id"], where["slots"], where["site"]) == ("toybatch", "7", [2], "toyland")
    assert where["end_time"] == 1795289400
    granted = run_cli([sys.executable, "-m", "ezpz", "where", "--json"], {**toys, **JOB, "TOY_DEVICES": "3"})
    assert json.loads(granted.stdout)["devices_per_host"] == 3
    refused = run_cli([sys.executable, "-m", "ezpz", "kill", "--job", "0123456789abcdef"], toys)
    assert "one of ToyBatch, " in refused.stderr, refused


def test_wall_time_port_and_records_of_a_process_know_the_toys(toys, run_cli):
    done = run_cli([sys.executable, "-c", INSIDE], toys)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1795289400 toyjobs\n"


@pytest.mark.slow
def test_both_shells_of_a_job_know_the_toys(toys, run_cli, home):
    sh = [sys.executable, "-m", "ezpz.cluster", "--sh"]
    first = run_cli(sh, {**toys, **JOB})
    for line in ("EZPZ_SCHEDULER=toybatch", "EZPZ_JOBID=7", "EZPZ_SITE=toyland", "EZPZ_NRANKS=2"):
        assert f"export {line}\n" in first.stdout, first
    assert "/bin/toyrun -n 2 --toy'" in first.stdout
    [kept] = home.rglob("toybatch-7.sh")
    assert {"export TOY_JOB=7", "export TOY_QUEUE=playground"} <= set(kept.read_text().splitlines())
    second = run_cli([*sh, "--second"], toys)
    assert {"export TOY_JOB=7", "export TOY_QUEUE=playground", "export EZPZ_JOBID=7"} <= set(second.stdout.splitlines())
    answering = Path(toys["TOYS"]) / "bin" / "toyjobs"  # a scheduler that answers, but knows no job here
    answering.write_text("#!/bin/sh\n")
    answering.chmod(0o755)
    assert "export EZPZ_JOBID=''" in run_cli([*sh, "--second"], toys).stdout
    line = f'. "{UTILS}" && ezpz_setup_job >/dev/null && printf "%s\\n" "$EZPZ_SCHEDULER $EZPZ_SITE $DIST_LAUNCH"'
    shell = run_cli(["bash", "-c", line], {**toys, **JOB})
    assert shell.stdout.startswith("toybatch toyland /"), shell


def test_a_launch_places_starts_and_records_with_the_toys(toys, run_cli, tmp_path):
    launch, env = [sys.executable, "-m", "ezpz.launch"], {**toys, **JOB}
    refused = run_cli([*launch, "-n", "5", "true"], env)
    assert refused.returncode == 2
    assert "a job with more slots (--toy-slots)" in refused.stderr
    program = [sys.executable, "-c", "import os; print(os.environ['RANK'], os.environ['EZPZ_FLAVOUR'])"]
    done = run_cli([*launch, "--log-dir", str(tmp_path / "logs"), *program], env)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split("] ")[-1] for line in done.stdout.splitlines()) == ["0 Toy Run", "1 Toy Run"]
    assert "toyrun of ToyBatch job 7" in done.stderr
    [text] = [path.read_text() for path in (tmp_path / "logs").rglob("*.json")]
    assert '"Toy Run"' in text
    assert '"toybatch"' in text
    unknown = run_cli([*launch, "--flavour", "toyrum", "true"], env)
    assert "Did you mean toyrun?" in unknown.stderr
