"""The recorded environments in both shells: scheduler, job id, hosts and site as in `ezpz.cluster`.

The same files drive the tests of the Python half, so that the two cannot drift apart.
"""

import json
import os
from pathlib import Path

import pytest
from shells import ROOT, answers, job, jobs, on_host

from ezpz.cluster import expand
from ezpz.cluster.scheduler import schedulers
from ezpz.errors import UsageError


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


def check(shell, record, env, result, told):
    """Compare what was exported with what the record expects."""
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
    assert (shell.cwd.parent / "listed").read_text().split() == expect["hosts"]
    if told["EZPZ_SCHEDULER"] == "slurm":
        assert told["DIST_LAUNCH"].startswith("srun ")
    assert list(shell.cwd.iterdir()) == [], "nothing is written into the working folder"


def replayed(small, subtests, paths, without=(), leave_out=()):
    """Run the records in one shell, each in folders of its own, and check each; without parts of them and variables."""
    rows = {}
    for path in paths:
        record = json.loads(path.read_text())
        shell = small.another()
        env = replay(shell, {**record, **{part: {} for part in without}})
        rows[path.stem] = (record, shell, {name: value for name, value in env.items() if name not in leave_out})
    call = "ezpz_print_hosts >../listed\nezpz_setup_job"
    # in strict mode, because that is how job scripts run
    told = jobs(small, {stem: (env, shell) for stem, (_, shell, env) in rows.items()}, before="set -u", call=call)
    for stem, (record, shell, env) in rows.items():
        with subtests.test(stem):
            check(shell, record, env, *told[stem])


RECORDS = {path: path.read_text() for path in sorted((ROOT / "tests/data/environments").glob("*.json"))}


def records(*needed):
    """Return the records whose variables, files or commands hold all that is named."""
    return [path for path, text in RECORDS.items() if all(f'"{word}' in text for word in needed)]


@pytest.mark.parametrize("which", ["some", pytest.param("the others", marks=pytest.mark.slow)])
def test_the_small_answer_agrees_with_the_recorded_environments(small, subtests, which):
    assert len(RECORDS) >= 8
    some = list(RECORDS)[::6]
    replayed(small, subtests, some if which == "some" else [path for path in RECORDS if path not in some])


def test_both_halves_know_the_same_schedulers(small):
    said = small('for name in $(ezpz__schedulers); do ezpz__know "$name"; echo "$name $title $variable"; done').stdout
    known = [f"{one.name} {one.title} {one.job_variables[0]}" for one in schedulers()]
    assert said.splitlines() == known


@pytest.mark.slow
def test_variables_of_slurm_need_no_command(small, subtests):
    replayed(small, subtests, records("SLURM_JOB_ID"), without=["commands"])


def test_a_source_of_lsf_that_names_no_host_is_passed_over(small, subtests):
    """As `ezpz.cluster.lsf` does: a folder in place of the file, and hosts without counts."""
    env = {"LSB_JOBID": "7", "LSB_HOSTS": "n1 n2"}
    rows = {
        "folder": {**env, "LSB_DJOB_HOSTFILE": str(small.cwd)},
        "no file": {**env, "LSB_DJOB_HOSTFILE": "/gone"},
        "counts": {**env, "LSB_MCPU_HOSTS": "n3 x n4 1.5 n5 -1"},
    }
    for name, (result, told) in jobs(small, rows, before="set -euo pipefail").items():
        with subtests.test(name):
            assert (told["EZPZ_HOSTS"], told["EZPZ_NRANKS"]) == ("n1,n2", "2"), result.stderr
            assert "directory" not in result.stderr


@pytest.mark.slow
def test_the_node_file_is_found_where_pbs_keeps_it(small, subtests):
    paths = [path for path in records("PBS_JOBID") if json.loads(RECORDS[path])["files"]]
    replayed(small, subtests, paths, without=["commands"], leave_out=["PBS_NODEFILE"])


@pytest.mark.slow
def test_without_the_node_file_qstat_tells(small, subtests):
    replayed(small, subtests, records("PBS_JOBID", "qstat -f "), without=["files"])


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
    "n1", "n[1-3]", "n[01-03,7]", "n[008-010],login1", "n[98-102]", "r[1-2]n[01-02]", "c[1-2]-ib0,c1-ib0",
    "compute-b24-[1-3]", "1.2.3.[9-11]", "b,a,b", "r[1,3]s[2-3]x[0-1],z",
]  # fmt: skip
MALFORMED = ["n[", "n[]", "n[1-", "n[2-1]", "n[1-2", "n1]", "n[1[2]]", "a,,b", "a,", "n[a-b]", "n[1-2-3]", "n[1,]"]


def test_host_expressions_mean_what_python_takes_them_for(small):
    words = " ".join(f"'{text}'" for text in EXPRESSIONS)
    loop = f'for one in {words}; do SLURM_JOB_NODELIST="$one" ezpz_print_hosts | paste -sd " "; done'
    said = small(loop, SLURM_JOB_ID="5").stdout.splitlines()
    assert [line.split() for line in said] == [list(dict.fromkeys(expand(text))) for text in EXPRESSIONS]


@pytest.mark.slow
def test_what_is_no_host_name_is_refused(small, subtests):
    small.program("flux", 'printf "%s\\n" "$FLUX_SAYS"')
    rows = {}
    for number, text in enumerate(
        [*MALFORMED, "n[1-99999999]", "$(touch hacked)", "a;touch hacked", "a b", "-rf", "`id`"]
    ):
        if text in MALFORMED:
            with subtests.test(text, by="Python"), pytest.raises(UsageError):
                expand(text)
        nodefile = small.cwd.parent / f"nodefile-{number}"
        nodefile.write_text(f"{text}\n")
        rows[text, "Slurm"] = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": text}
        rows[text, "PBS"] = {"PBS_JOBID": "5", "PBS_NODEFILE": str(nodefile)}
        rows[text, "Flux"] = {"FLUX_JOB_ID": "f5", "FLUX_SAYS": text}
    del rows["a,", "PBS"]  # a line of a node file may end so
    for (text, by), (result, told) in jobs(small, rows).items():
        with subtests.test(text, by=by):
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


@pytest.mark.slow
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


def test_of_two_schedulers_the_nearest_daemon_counts(both, subtests):
    both.program("ps", f"printf '%s\\n' \"$ME 90 {both.name}\" '90 80 make' \"80 70 $NEAR\" \"70 1 $FAR\" '1 0 init'")
    rows = {("slurmstepd", "pbs_mom"): "slurm", ("pbs_mom", "srun"): "pbs", ("/opt/pbs/sbin/pbs_mom", "x"): "pbs"}
    cases = {row: dict(zip(("NEAR", "FAR"), row, strict=True)) for row in rows}
    for row, (result, told) in jobs(both, cases, before="set -u; export ME=$$").items():
        with subtests.test(str(row)):
            assert told["EZPZ_SCHEDULER"] == rows[row], result.stderr
            assert result.stderr.count("several schedulers at once: ") == 1


@pytest.mark.slow
def test_else_the_job_that_holds_this_host(both, subtests):
    both.program("uname", 'echo "$NAME"')
    both.program("ps", "exit 1")
    rows = {
        "s2": ("slurm", "only its job holds this host"),
        "p1": ("pbs", "only its job holds this host"),
        "p2.elsewhere": ("pbs", "only its job holds this host"),
        "login": ("slurm", "no sign which is the inner one"),
    }
    for name, (result, told) in jobs(both, {name: {"NAME": name} for name in rows}).items():
        with subtests.test(name):
            taken, why = rows[name]
            assert (told["EZPZ_SCHEDULER"], told["EZPZ_JOBID"]) == (taken, {"slurm": "5", "pbs": "7.head"}[taken])
            assert why in result.stderr


def test_flux_is_inside_any_other(both):
    both.program("flux", "echo s1")
    result, told = job(both, FLUX_JOB_ID="f9")
    assert (told["EZPZ_SCHEDULER"], told["EZPZ_HOSTS"]) == ("flux", "s1")
    assert "taking flux: Flux hides the schedulers around it" in result.stderr
