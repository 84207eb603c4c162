"""The recorded environments in both shells: scheduler, job id, hosts and site as in `ezpz.cluster`.

The same files drive the tests of the Python half, so that the two cannot drift apart.
"""

import json
import os
from pathlib import Path

import pytest
from shells import ROOT, answers, job, on_host

from ezpz.cluster import expand
from ezpz.errors import UsageError

RECORDS = sorted((ROOT / "tests/data/environments").glob("*.json"))


def replay(shell, record):
    """Rebuild a recorded environment: its host, its variables, its files below a folder of the test, its commands."""
    files = shell.cwd.parent / "files"
    env = {"PBS_HOME": str(files / "var/spool/pbs"), **record["env"]}
    for name, text in record["files"].items():
        copy = files / name.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
        env = {key: str(copy) if value == name else value for key, value in env.items()}
    answers(shell, record["commands"])
    on_host(shell, record["hostname"])
    return env


def check(shell, record, env):
    """Run in strict mode, because that is how job scripts run, and compare; return what was exported."""
    result, told = job(shell, before="set -u", **env)
    assert result.returncode == 0, result.stderr
    expect = record["expect"]
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"]) == (expect["scheduler"] or "none", expect["job_id"])
    assert told["EZPZ_HOSTS"].split(",") == expect["hosts"]
    assert told["EZPZ_SITE"] == expect.get("site", "")
    assert Path(told["HOSTFILE"]).read_text().split() == expect["hosts"]
    devices = int(env.get("SLURM_GPUS_ON_NODE", 0))
    assert told["NGPU_PER_HOST"] == str(devices)
    if devices or expect["slots"]:
        assert told["EZPZ_NRANKS"] == str(devices * len(expect["hosts"]) or sum(expect["slots"]))
    assert list(shell.cwd.iterdir()) == [], "nothing is written into the working folder"
    return told


@pytest.mark.few(6)
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_small_answer_agrees_with_the_recorded_environments(small, path):
    record = json.loads(path.read_text())
    env = replay(small, record)
    told = check(small, record, env)
    listed = small("ezpz_print_hosts", **env)
    assert (listed.stdout.split(), listed.returncode) == (record["expect"]["hosts"], 0)
    if told["EZPZ_SCHEDULER"] == "slurm":
        assert told["DIST_LAUNCH"].startswith("srun ")


def test_there_are_records():
    assert len(RECORDS) >= 8


def records(*needed):
    """Return the records whose variables, files or commands hold all that is named."""
    texts = {path: path.read_text() for path in RECORDS}
    return [path for path, text in texts.items() if all(f'"{word}' in text for word in needed)]


@pytest.mark.few(5)
@pytest.mark.parametrize("path", records("SLURM_JOB_ID"), ids=lambda path: path.stem)
def test_variables_of_slurm_need_no_command(small, path):
    record = json.loads(path.read_text())
    check(small, record, replay(small, {**record, "commands": {}}))


WITH_NODE_FILE = [path for path in records("PBS_JOBID") if json.loads(path.read_text())["files"]]


@pytest.mark.parametrize("path", WITH_NODE_FILE, ids=lambda path: path.stem)
def test_the_node_file_is_found_where_pbs_keeps_it(small, path):
    record = json.loads(path.read_text())
    env = replay(small, {**record, "commands": {}})
    env.pop("PBS_NODEFILE")
    check(small, record, env)


@pytest.mark.parametrize("path", records("PBS_JOBID", "qstat -f "), ids=lambda path: path.stem)
def test_without_the_node_file_qstat_tells(small, path):
    record = json.loads(path.read_text())
    check(small, record, replay(small, {**record, "files": {}}))


LINES_ARE_CUT = """Job Id: 9.head
    job_state = R
    exec_host = x1000c0s0b0n0/0*8+x1000c0s0b0n1/0*8+x1000c0s1b
\t0n0/0*4
    Resource_List.select = 2:ncpus=8:mpiprocs=4:ngpus=4+1:ncpus=4:mpipro
\tcs=2
    comment = exec_host = evil/0
"""


def test_lines_of_qstat_may_be_cut_inside_a_word(small):
    answers(small, {"qstat -f 9.head": {"rc": 0, "stdout": LINES_ARE_CUT}})
    _, told = job(small, PBS_JOBID="9.head", PBS_HOME="/gone")
    assert (told["EZPZ_HOSTS"], told["EZPZ_NRANKS"]) == ("x1000c0s0b0n0,x1000c0s0b0n1,x1000c0s1b0n0", "10")


EXPRESSIONS = [
    "n1",
    "n[1-3]",
    "n[01-03,7]",
    "n[008-010],login1",
    "n[98-102]",
    "r[1-2]n[01-02]",
    "c[1-2]-ib0,c1-ib0",
    "compute-b24-[1-3]",
    "1.2.3.[9-11]",
    "b,a,b",
    "r[1,3]s[2-3]x[0-1],z",
]
MALFORMED = ["n[", "n[]", "n[1-", "n[2-1]", "n[1-2", "n1]", "n[1[2]]", "a,,b", "a,", "n[a-b]", "n[1-2-3]", "n[1,]"]


def test_host_expressions_mean_what_python_takes_them_for(small):
    words = " ".join(f"'{text}'" for text in EXPRESSIONS)
    loop = f'for one in {words}; do SLURM_JOB_NODELIST="$one" ezpz_print_hosts | paste -sd " "; done'
    said = small(loop, SLURM_JOB_ID="5").stdout.splitlines()
    assert [line.split() for line in said] == [list(dict.fromkeys(expand(text))) for text in EXPRESSIONS]


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "text", [*MALFORMED, "n[1-99999999]", "$(touch hacked)", "a;touch hacked", "a b", "-rf", "`id`"]
)
def test_what_is_no_host_name_is_refused(small, text):
    if text != "-rf" and text in MALFORMED:
        with pytest.raises(UsageError):
            expand(text)
    nodefile = small.cwd.parent / "nodefile"
    nodefile.write_text(f"{text}\n")
    for env in (
        {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": text},
        {"PBS_JOBID": "5", "PBS_NODEFILE": str(nodefile)},
        {"FLUX_JOB_ID": "f5", "FLUX_SAYS": text},
    ):
        small.program("flux", 'printf "%s\\n" "$FLUX_SAYS"')
        if text in ("a,", "n[1-3]") and "PBS_JOBID" in env:
            continue
        result, told = job(small, **env)
        assert (result.returncode, told["EZPZ_HOSTS"]) == (125, "")
        assert "error: not a host name: " in result.stderr
        assert result.stderr.count("\n") == 1
    assert list(small.cwd.iterdir()) == []


def test_a_job_id_is_checked_too(small):
    result, told = job(small, SLURM_JOB_ID="5;touch hacked", SLURM_JOB_NODELIST="n1")
    assert (result.returncode, told["EZPZ_JOBID"]) == (125, "")
    assert "not a job id: '5;touch hacked'" in result.stderr


def test_flux_tells_its_hosts_and_job(small):
    hosts = "case \"$*\" in 'getattr hostlist') echo 'tuolumne[1001-1004]' ;;"
    small.program(
        "flux", f"{hosts} 'getattr jobid') echo f2XkGqvd9 ;; 'hostlist f3A') echo tuolumne1002 ;; *) exit 1 ;; esac"
    )
    _, told = job(small, FLUX_URI="local:///run/flux/local")
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"], told["NHOSTS"]) == ("flux", "f2XkGqvd9", "4")
    assert told["DIST_LAUNCH"] == "flux run -N 4 -n 4"
    _, told = job(small, FLUX_URI="local:///run/flux/local", FLUX_JOB_ID="f3A")
    assert (told["EZPZ_JOBID"], told["EZPZ_HOSTS"]) == ("f3A", "tuolumne1002")


def test_the_systems_own_flux_runs_no_shell(small):
    """On a login host, FLUX_URI leads to the instance that jobs are submitted to."""
    small.program(
        "flux",
        "case \"$*\" in 'getattr security.owner') echo 65533 ;; 'getattr hostlist') echo n[1-9] ;; *) exit 1 ;; esac",
    )
    assert job(small, FLUX_URI="local:///run/flux/local")[1]["EZPZ_SCHEDULER"] == "none"
    small.program(
        "flux",
        f"case \"$*\" in 'getattr security.owner') echo {os.getuid()} ;; 'getattr hostlist') echo n1 ;; "
        "*) exit 1 ;; esac",
    )
    _, told = job(small, FLUX_URI="local:///run/flux/local")
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"], told["EZPZ_HOSTS"]) == ("flux", "", "n1")


# ---- two schedulers' variables at once -------------------------------------------------------------------------------

BOTH = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "s[1-2]", "PBS_JOBID": "7.head"}


@pytest.fixture
def both(small):
    nodefile = small.cwd.parent / "nodefile"
    nodefile.write_text("p1.cluster\np2.cluster\n")
    small.env |= {**BOTH, "PBS_NODEFILE": str(nodefile)}
    return small


@pytest.mark.parametrize(
    ("above", "taken"), [("slurmstepd pbs_mom", "slurm"), ("pbs_mom srun", "pbs"), ("/opt/pbs/sbin/pbs_mom x", "pbs")]
)
def test_of_two_schedulers_the_nearest_daemon_counts(both, above, taken):
    near, far = above.split()
    both.program("ps", f"printf '%s\\n' \"$ME 90 {both.name}\" '90 80 make' '80 70 {near}' '70 1 {far}' '1 0 init'")
    result, told = job(both, before="set -u; export ME=$$")
    assert told["EZPZ_SCHEDULER"] == taken, result.stderr
    assert result.stderr.count("several schedulers at once: ") == 1


@pytest.mark.parametrize(
    ("host", "taken", "why"),
    [
        ("s2", "slurm", "only its job holds this host"),
        ("p1", "pbs", "only its job holds this host"),
        ("p2.elsewhere", "pbs", "only its job holds this host"),
        ("login", "slurm", "no sign which is the inner one"),
    ],
)
def test_else_the_job_that_holds_this_host(both, host, taken, why):
    on_host(both, host)
    both.program("ps", "exit 1")
    result, told = job(both)
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"]) == (taken, {"slurm": "5", "pbs": "7.head"}[taken])
    assert why in result.stderr


def test_flux_is_inside_any_other(both):
    both.program("flux", "echo s1")
    result, told = job(both, FLUX_JOB_ID="f9")
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_HOSTS"]) == ("flux", "s1")
    assert "taking flux: Flux hides the schedulers around it" in result.stderr
