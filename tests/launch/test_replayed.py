"""PALS and Flux, which no machine here has, replayed by programs on PATH.

They answer as their pages say, record their options, and start the ranks with the variables that the real ones set.
"""

import json
import sys

import pytest

from lab.process import program
from lab.shown import SHOW, shown

pytestmark = pytest.mark.slow
PALS = """#!{python}
import json, os, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    sys.exit(1)
if words == ["--help"]:
    print("Usage: mpiexec [OPTIONS] ... --cpu-bind KEYWORD --depth N --no-vni --line-buffer --envall")
    sys.exit(0)
takes = {{"-n", "--ppn", "--hostfile", "--cpu-bind"}}
options, index = {{}}, 0
while words[index].startswith("-"):
    options[words[index]] = words[index + 1] if words[index] in takes else ""
    index += 2 if words[index] in takes else 1
options["hosts"] = open(options["--hostfile"]).read().split()
json.dump({{"options": options, "environ": dict(os.environ)}}, open("line.json", "w"))
size, ppn = int(options["-n"]), int(options["--ppn"])
ranks = []
for rank in range(size):
    here = min(ppn, size - rank // ppn * ppn)
    env = {{"PALS_RANKID": str(rank), "PALS_LOCAL_RANKID": str(rank % ppn), "PALS_LOCAL_SIZE": str(here)}}
    ranks.append(subprocess.Popen(words[index:], env={{**os.environ, **env, "PALS_NODEID": str(rank // ppn)}}))
sys.exit(max(rank.wait() for rank in ranks))
"""
FLUX = """#!{python}
import json, os, subprocess, sys
words = sys.argv[1:]
answers = {{"getattr jobid": "f2Xk", "getattr hostlist": "n[01-02]", "resource list": "2 16 4"}}
if " ".join(words[:2]) in answers:
    print(answers[" ".join(words[:2])])
    sys.exit(0)
assert words[0] == "run", words
index = 1
while words[index].startswith("-"):
    index += 2 if words[index] == "-o" else 1
options = dict(word.partition("=")[::2] for word in words[1:index] if word.startswith("--"))
json.dump({{"options": options}}, open("line.json", "w"))
size, hosts = int(options["--ntasks"]), int(options["--nodes"])
ranks = []
for rank in range(size):
    env = {{"FLUX_TASK_RANK": str(rank), "FLUX_TASK_LOCAL_ID": str(rank % (size // hosts)), "FLUX_JOB_SIZE": str(size)}}
    env |= {{"FLUX_JOB_NNODES": str(hosts), "FLUX_JOB_ID": "f2Xk.1", "PMI_RANK": str(rank), "PMI_SIZE": str(size)}}
    ranks.append(subprocess.Popen(words[index:], env={{**os.environ, **env}}))
sys.exit(max(rank.wait() for rank in ranks))
"""
# Neither host is real here, so that no name of theirs can be asked for an address.
MEETING = {"MASTER_ADDR": "192.0.2.1"}
ALONE = ("--check", "off")  # this machine plays all hosts, which a look at them would find out


@pytest.fixture
def machine(clean_env, tmp_path):
    def make(name, text, **more):
        bins = program(tmp_path / "site" / "bin" / name, text.format(python=sys.executable)).parent
        return {**clean_env, "PATH": f"{bins}:{clean_env['PATH']}", **MEETING, **more}

    return make


def aurora(folder):
    (folder / "nodes").write_text("x4000c0s0b0n0\nx4000c0s1b0n0\n")
    return {"PBS_JOBID": "1.aurora-pbs-0001.x", "PBS_NODEFILE": str(folder / "nodes")}


def test_pals_gets_the_documented_line_and_its_ranks_know_who_they_are(machine, launch, tmp_path):
    env = machine("mpiexec", PALS, **aurora(tmp_path), MINE="a 'b'")
    done = launch(*ALONE, "-n", "6", "--ppn", "4", "--oversubscribe", *SHOW, "a b", env=env)
    assert done.returncode == 0, done.stderr
    assert "PALS launcher" in done.stderr
    assert "site aurora" in done.stderr

    line = json.loads((tmp_path / "line.json").read_text())
    assert (line["options"]["-n"], line["options"]["--ppn"]) == ("6", "4")
    assert line["options"]["--cpu-bind"] == "list:4-7:8-11:12-15:16-19"
    assert line["options"]["hosts"] == ["x4000c0s0b0n0", "x4000c0s1b0n0"]
    assert line["environ"]["CCL_KVS_MODE"] == "mpi"
    assert line["environ"]["ZE_FLAT_DEVICE_HIERARCHY"] == "FLAT"

    ranks = shown(done.stdout)
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE")
    told = ["".join(environ[name] for name in names) for environ, *_ in ranks]
    assert told == ["00406", "11406", "22406", "33406", "40216", "51216"]
    assert {(environ["MASTER_ADDR"], environ["MINE"]) for environ, *_ in ranks} == {("192.0.2.1", "a 'b'")}


def test_the_sites_environment_can_be_left_out_and_single_variables_too(machine, launch, tmp_path):
    env = machine("mpiexec", PALS, **aurora(tmp_path), CCL_KVS_MODE="mine", CCL_X="1")
    words = ("--ppn", "1", "--comm-env", "none", "--unset", "CCL_X", "--cpu-bind", "none", "true")
    done = launch(*ALONE, *words, env=env)
    assert done.returncode == 0, done.stderr
    line = json.loads((tmp_path / "line.json").read_text())
    assert line["options"]["--cpu-bind"] == "none"
    assert "CCL_ATL_TRANSPORT" not in line["environ"]
    assert "CCL_X" not in line["environ"]
    assert line["environ"]["CCL_KVS_MODE"] == "mine"
    text = launch("--ppn", "1", "--explain", "true", env=env).stdout
    assert "CCL_KVS_MODE  mine  [your environment; site aurora advises 'mpi']" in text


def test_flux_starts_the_tasks_of_its_own_instance(machine, launch, tmp_path):
    env = machine("flux", FLUX, FLUX_URI="local:///x", EZPZ_NGPU_PER_HOST="2")
    done = launch(*ALONE, *SHOW, env=env)
    assert done.returncode == 0, done.stderr
    assert "flux launcher (flux of Flux job f2Xk)" in done.stderr
    options = json.loads((tmp_path / "line.json").read_text())["options"]
    assert options == {"--nodes": "2", "--ntasks": "4", "--requires": "host:n01,n02"}
    ranks = [(environ["RANK"], environ["LOCAL_RANK"], environ["GROUP_RANK"]) for environ, *_ in shown(done.stdout)]
    assert ranks == [("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1")]
