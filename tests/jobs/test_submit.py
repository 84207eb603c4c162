"""`ezpz submit`: what it writes, what it refuses before anything is queued, and what it hands to the scheduler."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.cluster import probe
from ezpz.jobs.job_handler import handler
from ezpz.jobs.submit import main
from lab import process

DATA = Path(__file__).parents[1] / "data" / "queues"
# The variables of a surrounding job, site, environment or user.
FOREIGN = ("SLURM", "SBATCH", "PBS", "FLUX", "EZPZ", "NERSC", "TACC", "LMOD", "FORCE_COLOR", "VIRTUAL", "XDG_CONFIG")
# What sbatch and qsub answer, and how: sbatch(1) "--parsable", qsub(1B) "STANDARD OUTPUT". Each keeps its words, its
# variables and the file as it was when it was called.
SUBMIT = """#!/bin/bash
n=$(($(cat {folder}/count 2>/dev/null || echo 100) + 1)); echo $n >{folder}/count
printf '%s\\n' "$PWD" "$@" >{folder}/call-$n
env >{folder}/env-$n
[[ -e {folder}/most && $n -gt $(<{folder}/most) ]] && {{ echo "qsub: would exceed the limit" >&2; exit 1; }}
[[ -e {folder}/refuse ]] && {{ cat {folder}/refuse >&2; exit 1; }}
echo "$n{server}"
"""
CANCEL = """#!/bin/bash
echo "$*" >>{folder}/cancelled
[[ -e {folder}/stays ]] || exit 0
echo "$(basename "$0"): not allowed $(<{folder}/stays)" >&2
exit 1
"""
TELL = """#!/bin/bash
echo "$*" >>{folder}/asked
if [[ $* == *" $(cat {folder}/stays 2>/dev/null || echo none)" ]]; then
  echo '{{"Jobs": {{"1": {{"job_state": "Q"}}}}}}'
  exit 0
fi
[[ $1 == -x ]] && {{ echo '{{"Jobs": {{"1": {{"job_state": "F"}}}}}}'; exit 0; }}
cat {answer}
"""
ANSWERS = {"slurm": ("scontrol", "scontrol-show-partition.txt"), "pbs": ("qstat", "qstat-Qf-routes.txt")}
PROGRAMS = {"slurm": ("sbatch", ""), "pbs": ("qsub", ".head")}
CANCELS = {"slurm": "scancel", "pbs": "qdel"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder of this machine's programs but those that queue jobs: the fakes alone are these."""
    folder = tmp_path_factory.mktemp("programs")
    for each in os.scandir("/usr/bin"):
        if each.name not in {name for name, _ in PROGRAMS.values()} | {*CANCELS.values()}:
            (folder / each.name).symlink_to(each.path)
    return folder


@pytest.fixture
def place(monkeypatch, tmp_path, programs):
    """A folder to submit from, which the mounts call a shared one, on a machine without site and scheduler."""
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            monkeypatch.delenv(name)
    for name, value in {"HOME": tmp_path / "home", "USER": "ann", "PATH": f"{tmp_path / 'bin'}:{programs}"}.items():
        monkeypatch.setenv(name, str(value))
    mounts = f"/dev/sda / ext4 rw 0 0\nfs01:/x {tmp_path} nfs4 rw 0 0\ntmpfs {tmp_path}/memory tmpfs rw 0 0\n"
    files = {"/proc/self/mounts": mounts, "/proc/sys/kernel/hostname": "login\n"}
    monkeypatch.setattr(probe, "read", files.get)
    (tmp_path / "bin").mkdir()
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("print('trained')\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def fake(place, tmp_path):
    """Put the programs of a scheduler on PATH, which keep what they are asked."""

    def make(name):
        kept = tmp_path / "kept"
        kept.mkdir()
        program, server = PROGRAMS[name]
        teller, file = ANSWERS[name]
        for each, text in (
            (CANCELS[name], CANCEL.format(folder=kept)),
            (program, SUBMIT.format(folder=kept, server=server)),
            (teller, TELL.format(folder=kept, answer=DATA / file)),
        ):
            (tmp_path / "bin" / each).write_text(text)
            (tmp_path / "bin" / each).chmod(0o755)
        return kept

    return make


def written(out):
    """The path of the job file and its text, from what submit has printed."""
    path = out.partition(": written for ")[0]
    return path, Path(path).read_text()


def lines(text, mark):
    return [line.removeprefix(f"#{mark} ") for line in text.splitlines() if line.startswith(f"#{mark} ")]


def refused(argv, capsys):
    assert main(argv) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


COMMAND = ["--", "python3", "train.py", "--lr", "0.1"]


def test_a_job_of_slurm_is_written_and_queued(place, fake, capsys, monkeypatch):
    kept = fake("slurm")
    monkeypatch.setenv("SBATCH_PARTITION", "elsewhere")  # stands above the lines of a file: sbatch(1)
    assert main(["--nhosts", "2", "--time", "30m", "-A", "mine", *COMMAND]) == 0
    told = capsys.readouterr()
    path, text = written(told.out)
    assert re.fullmatch(r"outputs/train/job-[0-9-]{17}/train\.slurm", path)
    folder = Path(path).parent
    assert lines(text, "SBATCH") == [
        "--account=mine", "--exclusive", "--nodes=2", "--time=00:30:00", "--job-name=train",
        f"--output={folder}/%x-%j.out",
    ]  # fmt: skip
    assert "\nlaunch python3 train.py --lr 0.1\n" in text
    assert "EZPZ_CHAIN" not in text
    assert told.out.splitlines()[1] == f"101: queued for 2 hosts and 00:30:00; output: {folder}/train-101.out"
    assert (kept / "call-101").read_text().split("\n") == [str(place), "--parsable", path, ""]
    assert "SBATCH_PARTITION" not in (kept / "env-101").read_text()
    assert (kept / "asked").read_text() == "show partition\n"
    assert told.err == ""


def test_a_job_of_pbs_is_written_and_queued(place, fake, capsys):
    kept = fake("pbs")
    asked = [
        "-A", "mine", "-q", "debug", "--filesystems", "home:eagle", "--name", "big-run", "-O", "-l place=scatter:excl",
    ]  # fmt: skip
    assert main(["--nhosts", "2", *asked, *COMMAND]) == 0
    out = capsys.readouterr().out
    path, text = written(out)
    assert lines(text, "PBS") == [
        "-A mine", "-q debug", "-l select=2", "-l place=scatter:excl", "-l walltime=01:00:00",
        "-l filesystems=home:eagle", "-N big-run", "-j oe", f"-o {Path(path).parent}/",
    ]  # fmt: skip
    assert f"101.head: queued in debug for 2 hosts and 01:00:00; output: {Path(path).parent}/101.head.OU\n" in out
    assert (kept / "call-101").read_text().split("\n") == [str(place), path, ""]
    assert (kept / "asked").read_text() == "-Qf\n"


def test_a_dry_run_prints_the_file_and_what_would_be_refused_and_makes_nothing(place, fake, capsys):
    kept = fake("slurm")
    assert main(["--dry-run", *COMMAND]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("#!/bin/bash\n# A job for any Slurm cluster")
    assert "#SBATCH --output=%x-%j.out\n" in told.out
    assert main(["--time", "2h", "--dry-run", *COMMAND]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("ezpz: this would be refused: too long: --time 02:00:00; expected at most 01:00:00")
    assert "#SBATCH --time=02:00:00" in told.out
    assert [path.name for path in place.iterdir()] == ["train.py"]
    assert not (kept / "count").exists()


REFUSED = [
    ("slurm", ["--time", "2h"], "ezpz: too long: --time 02:00:00; expected at most 01:00:00, which queue main grants"),
    ("slurm", ["--nhosts", "3"], "ezpz: wrong number of hosts: --nhosts 3; expected 1 to 2, as queue main takes"),
    ("slurm", ["-q", "mian"], "ezpz: unknown queue: 'mian' (from -q); expected one of main (from `scontrol show"),
    ("pbs", ["-q", "demand"], "ezpz: closed: queue demand (from -q) takes no jobs now (from `qstat -Qf`)"),
    ("slurm", ["--time", "soon"], "ezpz: --time: 'soon' is not a time; expected 90s, 10m, 2h, 1d, "),
    (
        "slurm",
        ["--time", "90"],
        "ezpz: --time: '90' is minutes to sbatch, and seconds to qsub and to launch; expected a",
    ),
    ("slurm", ["-t90"], "ezpz: --time: '90' is minutes to sbatch"),
    ("pbs", ["-l", "walltime=3600"], "expected a unit: 3600m or 3600s"),
    ("slurm", ["--time", "off"], "ezpz: --time: 'off' is no time of a job; expected e.g. 30m, 6h, 1d, HH:MM:SS or D-"),
    ("slurm", ["--nhosts", "0"], "ezpz: --nhosts: '0' is no whole number from 1 on"),
    ("slurm", ["--name", "2nd try"], "ezpz: --name: '2nd try' is no name of a job; expected a letter, then letters"),
    ("slurm", ["-A", "mine; rm"], "ezpz: -A/--account: 'mine; rm' is no such name"),
    ("slurm", ["-A", "ACCOUNT"], "ezpz: not filled in: --account=ACCOUNT (from the command line); expected a name of"),
    ("slurm", ["--filesystems", "home"], "ezpz: --filesystems home (from the command line) is not asked for by Slurm"),
    ("slurm", ["--output", "../memory/x"], "ezpz: not seen by all hosts: ../memory/x (from --output) is in the memory"),
    ("slurm", ["--jobs", "3", "--node-hours", "0.5"], "ezpz: too little: --node-hours 0.5 (from the command line);"),
    ("slurm", ["--site", "aurora", "--scheduler", "pbs"], "ezpz: both --site aurora and --scheduler pbs (from the com"),
    # What limits and node-hours are counted from is said in one place.
    ("slurm", ["--node-hours", "5", "-O=--time=48:00:00"], "ezpz: --time=48:00:00 (from -O) is not --time 01:00:00;"),
    ("slurm", ["-O=-N 64"], "ezpz: -N 64 (from -O) is not --nhosts 1; expected the same in both, because limits"),
    ("slurm", ["-O=--nodes=1-64"], "ezpz: --nodes=1-64 (from -O) is not --nhosts 1; expected"),
    ("slurm", ["-O=-t 48:00:00"], "ezpz: -t 48:00:00 (from -O) is not --time 01:00:00"),
    ("pbs", ["-q", "debug", "-O", "-l select=64:system=x"], "ezpz: -l select=64:system=x (from -O) is not --nhosts"),
    ("pbs", ["-q", "debug", "-O", "-l place=pack,walltime=48:00:00"], "ezpz: -l place=pack,walltime=48:00:00 (from"),
    ("pbs", ["-q", "debug", "-O=-lselect=1+2:ncpus=4"], "ezpz: -lselect=1+2:ncpus=4 (from -O) is not --nhosts 1"),
    ("pbs", ["-q", "debug", "--jobs", "2", "-O", "-J 0-99"], "ezpz: an array in a chain: -J 0-99 (from -O)"),
    ("slurm", ["--until-done", "-O=-a 0-99"], "ezpz: an array in a chain: -a 0-99 (from -O)"),
    ("slurm", ["--site", "polari"], "ezpz: unknown site: 'polari' (from --site); expected a name of `ezpz sites`;"),
    ("slurm", ["--scheduler", "lsx"], "ezpz: unknown --scheduler 'lsx' (from the command line); expected one of"),
    (
        "slurm",
        ["--scheduler", "flux"],
        "ezpz: --scheduler: ezpz detects jobs of Flux but does not submit them; ",
    ),
]


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_what_would_not_run_is_refused_and_nothing_is_queued(scheduler, fake, refuses):
    fake(scheduler)
    refuses(main, [([*argv, *COMMAND], said) for name, argv, said in REFUSED if name == scheduler])


NO_COMMANDS = [
    ([], "ezpz: no command (from the command line); expected `ezpz submit [options] -- COMMAND`"),
    *((["--", *words], "ezpz: no command (from the command line)") for words in ([], ["launch"], ["-n", "4"])),
    (["--", "-n", "four", "python3", "train.py"], "ezpz: argument -n"),
    (["--", "-n", "4", "python3", "trian.py"], "ezpz: no such script: trian.py in "),
    (["--", "python3", "-u", "trian.py"], "ezpz: no such script: trian.py in "),
    (["--", "python3", "train.py", "--outdir", "/tmp/run"], "ezpz: not seen by all hosts: /tmp/run (from --outdir of"),
    (["--", "python3", "train.py", "outdir=/tmp/run"], "ezpz: not seen by all hosts: /tmp/run (from outdir of the com"),
]


def test_a_command_that_cannot_be_started_is_refused(fake, refuses):
    fake("slurm")
    refuses(main, [(["--time", "1h", *words], said) for words, said in NO_COMMANDS])


BEHIND = [
    (
        "python3 train.py --dry-run",
        (
            "ezpz: --dry-run stands behind the command (from the command line), whose own it would be; expected "
            "options of `ezpz submit` in front of it. Write `ezpz submit --time 1h --dry-run -- python3 train.py`, or, "
            "if it is the command's own, `ezpz submit --time 1h -- python3 train.py --dry-run`."
        ),
    ),
    (
        "python3 -O train.py --lr 1 -q debug --x",
        "Write `ezpz submit --time 1h -q debug -- python3 -O train.py --lr 1 --x`",
    ),
    ("launch -n 4 python3 train.py --time=2h", "Write `ezpz submit --time 1h --time=2h -- -n 4 python3 train.py`, or"),
    ("python3 train.py --nodes 2 --lr 1", "Write `ezpz submit --time 1h --nodes 2 -- python3 train.py --lr 1`, or"),
    (
        "job.sh --nodes 2 --dry-run",
        (
            "ezpz: cannot run job.sh (from the command line): it is not found on PATH; expected a program. Write `ezpz "
            "submit --time 1h --nodes 2 --dry-run -- COMMAND`."
        ),
    ),
    ("bash job.sh --nhosts 2", "Write `ezpz submit --time 1h --nhosts 2 -- bash job.sh`, or"),
]


def test_options_behind_a_command_are_refused_with_both_ways_to_write_them(place, fake, refuses):
    fake("slurm")
    refuses(main, [(["--time", "1h", *line.split()], said) for line, said in BEHIND])


@pytest.mark.parametrize(
    "line",
    [
        "-- python3 train.py --dry-run -q x",
        "-- train.py --lr 1",
        "python3 -O train.py -A --lr 1 -q",
        "bash -e train.py -- --name x",
    ],
)
def test_options_of_the_command_are_its_own(line, fake, capsys):
    kept = fake("slurm")
    assert main(["--time", "1h", *line.split()]) == 0
    assert f"\nlaunch {line.removeprefix('-- ')}\n" in written(capsys.readouterr().out)[1]
    assert (kept / "count").exists()


NO_PROGRAMS = [
    (
        "job.sh --nodes 2",
        "ezpz: cannot run job.sh (from the command line): it is not found on PATH; expected a program.",
    ),
    ("./plain --x", "ezpz: cannot run ./plain (from the command line): it is not executable; expected a program."),
    ("other.py", "ezpz: cannot run other.py (from the command line): there is no such file"),
    ("plain.sh", "expected a program. Write `ezpz submit … -- bash plain.sh`."),
    (
        "mpiexec -n 2 -ppn 1 python3 train.py",
        (
            "ezpz: mpiexec as the command (from the command line) starts ranks itself, and every rank would start it; "
            "expected the program alone. Write `ezpz submit --time 1h -- -n 2 -ppn 1 python3 train.py`."
        ),
    ),
    ("-n 4 srun python3 train.py", "ezpz: srun as the command (from the command line) starts ranks itself"),
    ("srun --help", "Write `ezpz submit --time 1h -- [options] COMMAND`."),
    ("sbatch queued.sh", "ezpz: sbatch as the command (from the command line) queues jobs"),
    (
        "./queued.sh",
        (
            "ezpz: ./queued.sh as the command (from the command line) is a job file (#SBATCH in line 2), which every "
            "rank would run; expected the program that it starts. Run `sbatch ./queued.sh` to queue it, or write `ezpz "
            "submit "
            "--time 1h -- COMMAND`; `ezpz submit --time 1h -- env ./queued.sh` runs it all the same."
        ),
    ),
    ("bash -e queued.pbs", "is a job file (#PBS in line 2), which every rank would run"),
    ("launch --dry-run python3 train.py", "ezpz: an option of launch that runs nothing: --dry-run python3 train.py"),
]


def test_a_command_that_launch_refuses_is_refused(place, fake, refuses, capsys):
    kept = fake("slurm")
    for name in ("plain", "plain.sh"):
        (place / name).write_text("#!/bin/sh\n")
    for name, mark in (("queued.sh", "SBATCH"), ("queued.pbs", "PBS")):
        (place / name).write_text(f"#!/bin/bash\n#{mark} -N 2\nlaunch true\n")
    refuses(main, [(["--time", "1h", "--", *line.split()], said) for line, said in NO_PROGRAMS])
    assert not (kept / "count").exists()
    assert main(["--force", "--", "comes-with-a-module"]) == 0  # of the site, in the job alone
    assert "ezpz: --force: cannot run comes-with-a-module" in capsys.readouterr().err


def test_options_that_say_the_same_as_ours_and_more_are_taken(fake, capsys):
    kept = fake("slurm")
    asked = ["-O=--nodes=2", "-O=--time=00:30:00", "-O=--array=0-1", "--nhosts", "2", "--time", "30m"]
    assert main([*asked, *COMMAND]) == 0
    assert "#SBATCH --array=0-1\n" in written(capsys.readouterr().out)[1]
    (kept / "count").unlink()
    assert main(["--dry-run", "--scheduler", "pbs", "--nhosts", "3", "-O", "-l select=2:ncpus=8+1", *COMMAND]) == 0
    assert "#PBS -l select=2:ncpus=8+1\n" in capsys.readouterr().out


GOES_ON = [
    (["--", "--attempts", "3", "python3", "train.py"], ["no-kill"]),
    (["--", "--attempts", "1", "python3", "train.py"], []),
    (["--", "python3", "train.py", "--attempts", "3"], []),
    (["-O=--no-kill=off", "--", "--attempts", "3", "python3", "train.py"], ["no-kill=off"]),
]


def test_a_job_that_goes_on_without_a_host_is_asked_for_where_launch_does(fake, capsys, subtests):
    fake("slurm")
    for words, expected in GOES_ON:
        with subtests.test(str(words)):
            assert main(["--time", "1h", "--dry-run", *words]) == 0
            assert re.findall(r"^#SBATCH --(no-kill\S*)$", capsys.readouterr().out, re.MULTILINE) == expected
            assert main(["--time", "1h", "--dry-run", "--scheduler", "pbs", "--", "--attempts", "3", "true"]) == 0
            assert "--no-kill" not in capsys.readouterr().out


TIMES = {
    "1-00:00:00": "24:00:00",
    "2-12:00:00": "60:00:00",
    "1-12": "36:00:00",
    "1-12:30": "36:30:00",
    "90:00": "01:30:00",
    "90m": "01:30:00",
    "1:30:00": "01:30:00",
}


def test_times_are_those_of_slurm_and_pbs_too(place, capsys, subtests):
    for text, expected in TIMES.items():
        with subtests.test(text):
            assert main(["--scheduler", "slurm", "--dry-run", "--time", text, *COMMAND]) == 0
            assert f"#SBATCH --time={expected}\n" in capsys.readouterr().out


WORDS = [
    ("slurm", "-N 2 -p debug -t 1-00:00:00 -J big", "--partition=debug --nodes=2 --time=24:00:00 --job-name=big"),
    ("slurm", "--nodes=2 --partition debug -t5:00", "--partition=debug --nodes=2 --time=00:05:00 --job-name=train"),
    ("slurm", "-N2 --gpus-per-node=4 -C gpu", "--nodes=2 --gpus-per-node=4 --constraint=gpu"),
    ("slurm", "--gres gpu:4 --mem=0 --no_requeue", "--gres=gpu:4 --mem=0 --no-requeue"),
    ("slurm", "--exclusive=user --qos premium -a 0-3", "--exclusive=user --qos=premium --array=0-3"),
    ("pbs", "-l select=2 -lwalltime=6:00:00 -N big -q debug", "-q debug|-l select=2|-l walltime=06:00:00|-N big"),
    (
        "pbs",
        "-l select=1:ngpus=4+1:ncpus=8,walltime=30:00,place=pack -J 0-3 -k doe",
        "-l select=1:ngpus=4+1:ncpus=8|-l walltime=00:30:00|-l place=pack|-J 0-3|-k doe",
    ),
    ("pbs", "-l filesystems=home:eagle -l nodes=3:ppn=4", "-l filesystems=home:eagle|-l select=3"),
    ("pbs", "-q debug -p 10 -W block=true", "-q debug|-p 10|-W block=true"),
    ("slurm", "--hold --comment='two words'", "--hold --comment='two_words'"),
    ("slurm", "-H -Q --quiet --nodes=2-2", "--hold --nodes=2"),
]


def test_words_of_the_schedulers_are_understood(place, capsys, subtests):
    for scheduler, line, expected in WORDS:
        with subtests.test(line):
            assert main(["--scheduler", scheduler, "--dry-run", *shlex.split(line), *COMMAND]) == 0
            told = capsys.readouterr()
            found = lines(told.out.replace("two words", "two_words"), "SBATCH" if scheduler == "slurm" else "PBS")
            wanted = expected.split("|") if scheduler == "pbs" else expected.split()
            assert set(wanted) <= set(found), found
            assert ("`-- --ppn 4 COMMAND`" in told.err) == ("ppn" in line)


ANSWERED = [
    (
        "-n 8",
        "ezpz: -n (from the command line) has no such meaning here: how many ranks is said to launch: write `-- -n",
    ),
    ("--ntasks-per-node=4", "write `-- --ppn N COMMAND`; for sbatch `-O=--ntasks-per-node=N`."),
    ("-o log.txt", "what the job prints goes beside its file: write `--output DIR`."),
    ("-I", "`salloc` or `qsub -I` give a shell in a job"),
    ("--export=ALL", "write `-- --env NAME=VALUE COMMAND`."),
    ("--chdir /x", "the job runs in this folder: `cd DIR` first"),
    (
        "-W python3",
        "ezpz: -W python3 (from the command line): --wait to sbatch, and with a value to qsub; expected one, such",
    ),
    ("-k python3", "Leave it out, or write `-O=--no-kill`."),
    ("--wait", "a job is queued, and not waited for: `ezpz status` tells its state."),
    ("-N", "ezpz: -N needs a value (from the command line); expected `-N VALUE`."),
    ("-N 1-4", "ezpz: -N 1-4 (from the command line) is a range of hosts"),
    ("--nodes=2-4", "expected one number. Write `--nhosts 4`."),
    ("--nodes some", "ezpz: --nhosts: 'some' is no whole number from 1 on"),
    ("--parsable", "write `--json`, which prints the file and the ids for programs."),
    (
        "--attempts 3",
        "ezpz: --attempts (from the command line) is an option of launch; expected those of `ezpz submit`",
    ),
    ("--nproc_per_node 4", "Write `ezpz submit [options] -- --nproc_per_node … COMMAND`."),
    ("--partitoin x", "ezpz: unknown option --partitoin"),
    ("--nodes 2 -l place=scatter", "ezpz: -l place=scatter (from -O) is no option of Slurm; expected"),
]


def test_what_torque_asks_of_a_host_is_not_left_out_in_silence(place, capsys):
    assert main(["--scheduler", "pbs", "--dry-run", "-l", "nodes=2:ppn=4:gpus=2:v100", *COMMAND]) == 0
    assert "COMMAND`; gpus=2:v100 is left out: ask for it with `-l select=2:…`" in capsys.readouterr().err


def test_words_of_another_meaning_are_answered_with_what_to_type(place, fake, refuses):
    fake("slurm")
    refuses(main, [([*line.split(), *COMMAND], said) for line, said in ANSWERED])
    refuses(
        main, [(["--scheduler", "pbs", "--dry-run", "--qos", "x", *COMMAND], "--qos=x (from -O) is no option of PBS")]
    )


def test_a_folder_with_the_mark_of_a_pattern_is_meant_as_it_is(fake, capsys):
    """%j in sbatch's --output is the job's id: sbatch(1), "filename pattern"."""
    fake("slurm")
    assert main(["--output", "loss%j", *COMMAND]) == 0
    told = capsys.readouterr().out
    path, text = written(told)
    assert path == "loss%j/train.slurm"
    assert "#SBATCH --output=loss%%j/%x-%j.out\n" in text
    assert "; output: loss%j/train-101.out\n" in told


def test_without_a_scheduler_one_line_says_what_to_do(place, capsys):
    for words, begins, ends in (
        ([], "ezpz: no scheduler here: ", "Run it here with `launch COMMAND`"),
        (
            ["--scheduler", "none"],
            "ezpz: nothing to queue with: --scheduler none writes a script",
            "Add `--dry-run`.\n",
        ),
    ):
        assert main([*words, *COMMAND]) == 125
        told = capsys.readouterr().err
        assert (told.startswith(begins), ends in told, told.count("\n")) == (True, True, 1), told


def test_force_submits_what_is_beyond_a_limit_and_says_so(fake, capsys):
    kept = fake("slurm")
    assert main(["--time", "2h", "--force", *COMMAND]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("ezpz: --force: too long: --time 02:00:00; expected at most 01:00:00")
    assert "--force` submits" not in told.err
    assert (kept / "count").read_text() == "101\n"


def test_a_site_that_asks_for_an_account_gets_one(fake, capsys, monkeypatch):
    fake("slurm")
    monkeypatch.setenv("NERSC_HOST", "perlmutter")
    told = refused(["-q", "regular", "--force", *COMMAND], capsys)
    assert told == (
        "ezpz: not filled in: --account=PROJECT_g (from the table of site perlmutter); expected a name of yours, which "
        "sbatch needs here. Add `-A YOURS`.\n"
    )
    assert main(["-A", "m1234", "-O=--constraint=gpu&hbm80g", "--nhosts", "4", *COMMAND]) == 0
    told = capsys.readouterr()
    assert "account m1234 does not end with _g, as perlmutter has it" in told.err
    assert "the limits of queue regular were not checked" in told.err  # a QOS: the accounting alone knows it
    assert lines(written(told.out)[1], "SBATCH")[:7] == [
        "--account=m1234", "--qos=regular", "--constraint=gpu&hbm80g", "--ntasks-per-node=4", "--gpus-per-node=4",
        "--cpus-per-task=32", "--nodes=4",
    ]  # fmt: skip
    monkeypatch.setenv("SBATCH_ACCOUNT", "m99_g")
    assert main(["--dry-run", *COMMAND]) == 0
    assert "#SBATCH --account=m99_g\n" in capsys.readouterr().out


def test_another_machines_file_is_printed_and_not_submitted(fake, capsys):
    kept = fake("slurm")
    assert main(["--site", "aurora", "-A", "mine", *COMMAND]) == 125
    assert "ezpz: qsub of aurora (ALCF) is not here (from --site); expected a login host" in capsys.readouterr().err
    # its limits are there
    assert main(["--site", "aurora", "-A", "mine", "--dry-run", "--time", "999h", *COMMAND]) == 0
    assert "#PBS -l filesystems=home:flare\n" in capsys.readouterr().out
    assert not list(kept.iterdir())


ELSEWHERE = [  # options, the queue in the file, and whether a word says so
    ("aurora", "--time 6h", "-q prod", True),
    ("aurora", "--time 1h", "-q debug", False),
    ("polaris", "--time 6h --nhosts 30", "-q prod", True),
    ("frontier", "--time 6h", "--partition=extended", True),
    ("frontier", "--time 6h --nhosts 100", "--partition=batch", False),
    ("aurora", "--time 6h -q debug", "-q debug", False),
]


def test_a_file_for_another_site_names_a_queue_that_takes_the_job(place, capsys, subtests):
    for site, words, queue, is_told in ELSEWHERE:
        with subtests.test(f"{site} {words}"):
            assert main(["--site", site, "--dry-run", "-A", "mine", *words.split(), *COMMAND]) == 0
            told = capsys.readouterr()
            assert queue in lines(told.out, "SBATCH") + lines(told.out, "PBS")
            assert (" in place of " in told.err) == is_told
            assert ("would be refused: too long: --time 06:00:00" in told.err) == ("debug" in words)


def test_a_file_for_another_site_has_no_path_of_this_machine_unsaid(place, capsys, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", "/home/me/venv")
    assert main(["--site", "frontier", "--dry-run", "-A", "mine", "--until-done", *COMMAND]) == 0
    told = capsys.readouterr()
    assert "/home/me/venv" not in told.out
    for path in re.findall(r"(?:source |EZPZ_CHAIN=)(/\S+)", told.out):
        assert path in told.err
    assert "of this machine. Write the like of frontier (OLCF), where `ezpz shell` tells" in told.err


def test_what_the_scheduler_does_not_take_is_told_in_its_words(fake, capsys):
    kept = fake("slurm")
    (kept / "refuse").write_text("sbatch: error: Batch job submission failed: Invalid account\n")
    assert main(COMMAND) == 125
    told = capsys.readouterr().err
    assert "ezpz: not queued: outputs/train/job-" in told
    assert "(sbatch says: sbatch: error: Batch job submission failed: Invalid account)" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_a_job_that_is_refused_leaves_nothing(scheduler, place, fake, capsys):
    kept = fake(scheduler)
    (kept / "refuse").write_text("Illegal attribute or resource value\n")
    (place / "there").mkdir()
    for words in ([], ["--jobs", "2"], ["--output", "there"], ["--output", "new/one"]):
        assert main(["-q", "main" if scheduler == "slurm" else "debug", *words, *COMMAND]) == 125
        told = capsys.readouterr()
        assert (told.out, "Illegal attribute" in told.err) == ("", True)
    assert sorted(path.name for path in place.rglob("*")) == ["there", "train.py"]


ANSWERS_OF = {  # what the program prints, and the job's id
    "slurm": {
        "123": "123",
        "123;frontera": "123",
        "Submitted batch job 123": "123",
        "Submitted batch job 123 on cluster slaking": "123",
        "--> Checking allocation...OK\n123": "123",
        "123\nYou have 34 hours left": "123",
        "Submitted batch job 123\n--> see the user guide of 2026": "123",
        "queued on foo": "",
    },
    "pbs": {
        "13.head": "13.head",
        "13[].head.example.org": "13[].head.example.org",
        "project x has 7 hours\n13.head\nsee the guide": "13.head",
        'Your job 4242 ("train") has been submitted': "",
    },
}


def test_ids_are_told_from_the_words_around_them(subtests):
    for name, answers in ANSWERS_OF.items():
        for text, job in answers.items():
            with subtests.test(text):
                assert handler(name).job_id(f"{text}\n") == job


def test_an_answer_without_an_id_may_be_of_a_job_that_is_queued(place, fake, capsys, tmp_path):
    fake("slurm")
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho welcome\n")
    assert main(COMMAND) == 125
    told = capsys.readouterr().err
    assert "(sbatch says: welcome); expected one. Look whether the job is queued" in told
    assert list(place.glob("outputs/train/job-*/train.slurm"))


def test_a_qsub_of_grid_engine_is_refused(place, fake, capsys, monkeypatch, tmp_path):
    kept = fake("pbs")
    monkeypatch.setenv("SGE_ROOT", "/opt/sge")  # a module may leave it behind where PBS answers
    assert main(["-q", "debug", *COMMAND]) == 0
    (tmp_path / "bin" / "qstat").write_text("#!/bin/sh\nexit 1\n")
    capsys.readouterr()
    (kept / "count").unlink()
    for words in ([], ["--force"]):
        assert "ezpz: qsub here is that of Grid Engine" in refused([*words, *COMMAND], capsys)
    assert not (kept / "count").exists()


def test_the_scheduler_that_answers_is_taken(fake, capsys, tmp_path):
    for name in ("sbatch", "scontrol"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    assert main(["--dry-run", *COMMAND]) == 0
    assert "#SBATCH" in capsys.readouterr().out
    fake("pbs")
    assert main(["--dry-run", *COMMAND]) == 0
    assert "#PBS" in capsys.readouterr().out


def test_a_plain_pbs_asks_for_whole_hosts_and_names_the_line_for_devices(place, fake, capsys, tmp_path):
    fake("pbs")
    assert main(["--nhosts", "3", "--dry-run", *COMMAND]) == 0
    text = capsys.readouterr().out
    assert "-l place=scatter:exclhost" in lines(text, "PBS")
    assert "\n##PBS -l select=3:ngpus=4\n" in text
    assert "remove the other -l select." in text
    assert "export PATH=" not in text
    real = tmp_path / "pbs" / "bin"
    real.mkdir(parents=True)
    for name in ("qsub", "pbs_tmrsh"):
        (real / name).write_text("#!/bin/sh\n")
        (real / name).chmod(0o755)
    (tmp_path / "bin" / "qsub").unlink()
    (tmp_path / "bin" / "qsub").symlink_to(real / "qsub")
    assert main(["--dry-run", "-O=-l select=1:ngpus=2", *COMMAND]) == 0
    text = capsys.readouterr().out
    assert f'\nexport PATH="$PATH":{real}\n' in text
    assert "ngpus=4" not in text
    check_shell(text, place)


NAMES = {
    "python3 -m ezpz.examples.fsdp_tp --preset debug": "fsdp_tp",
    "launch -n 4 bash go.sh": "go",
    "-n 4 python3 -u train.py -m x": "train",
    "python3 -c pass": "python3",
    "bash -c go.sh": "bash",
    "ezpz launch python3 train.py": "train",
    "/opt/3d-model --x": "job-3d-model",
}


def test_the_job_is_called_as_its_program(fake, capsys, subtests):
    fake("slurm")
    for line, expected in NAMES.items():
        with subtests.test(line):
            assert main(["--dry-run", "--", *line.split()]) == 0
            assert f"#SBATCH --job-name={expected}\n" in capsys.readouterr().out


def test_a_chain_has_a_folder_that_its_jobs_know(place, fake, capsys):
    fake("slurm")
    assert main(["--until-done", "--node-hours", "7", "--nhosts", "2", *COMMAND]) == 0
    told = capsys.readouterr()
    path, text = written(told.out)
    folder = Path(path).parent
    assert re.fullmatch(r"outputs/train/chain-[0-9-]{17}", str(folder))
    assert f"\nexport EZPZ_CHAIN={place / folder}\n" in text
    assert "at most 3 jobs of 2 hosts and 01:00:00: 6 node-hours" in told.err
    assert main(["--jobs", "1", "--time", "50m", *COMMAND]) == 0
    assert "at most 1 job of 1 host and 00:50:00: 0.83 node-hours" in capsys.readouterr().err
    assert "expected at least 0.84, which" in refused(["--node-hours", "0.8", "--time", "50m", *COMMAND], capsys)
    assert main(["--dry-run", "--node-hours", "0.84", "--time", "50m", *COMMAND]) == 0
    capsys.readouterr()
    facts = json.loads((folder / "chain.json").read_text())
    assert (facts["jobs"], facts["ids"], facts["queued_at_once"]) == (3, ["101"], False)


def test_a_chain_is_queued_at_once_where_jobs_cannot_submit(fake, capsys, monkeypatch):
    kept = fake("pbs")
    monkeypatch.setenv("PBS_O_HOST", "polaris-login-02")
    asked = ["--jobs", "3", "-A", "mine", "--nhosts", "10", "--time", "3h"]
    assert "too long: --time 03:00:00" in refused([*asked, "-q", "debug", "--nhosts", "2", *COMMAND], capsys)
    assert main([*asked, "-q", "prod", *COMMAND]) == 0
    told = capsys.readouterr()
    path, _ = written(told.out)
    assert [(kept / f"call-{n}").read_text().split("\n")[1:-1] for n in (101, 102, 103)] == [
        [path],
        ["-W", "depend=afterany:101.head", path],
        ["-W", "depend=afterany:102.head", path],
    ]
    assert json.loads(Path(path).with_name("chain.json").read_text())["queued_at_once"] is True
    assert "103.head: queued after 102.head\n" in told.out
    (kept / "most").write_text("105\n")  # a limit of the queue, met by the third
    assert main([*asked, "-q", "prod", *COMMAND]) == 125
    told = capsys.readouterr()
    path, _ = written(told.out)
    assert told.err.count("\n") == 2
    said = "ezpz: of 3 jobs 2 were queued, and are cancelled, because the next is not queued: outputs/train/"
    assert said in told.err
    assert "For a chain of those add `--jobs 2`." in told.err
    assert (kept / "cancelled").read_text() == "105.head 104.head\n"  # the last one first
    assert json.loads(Path(path).with_name("chain.json").read_text())["ids"] == []
    (kept / "cancelled").unlink()
    (kept / "stays").write_text("104.head\n")
    (kept / "count").write_text("103\n")
    assert main([*asked, "-q", "prod", *COMMAND]) == 125
    told = capsys.readouterr()
    assert "Job 104.head still waits (qdel: not allowed 104.head): cancel it.\n" in told.err
    path, _ = written(told.out)
    assert json.loads(Path(path).with_name("chain.json").read_text())["ids"] == ["104.head"]


def test_a_chain_has_a_folder_of_its_own(place, fake, capsys):
    kept = fake("slurm")
    assert main(["--jobs", "2", "--output", "mine", *COMMAND]) == 0
    capsys.readouterr()
    told = refused(["--jobs", "2", "--output", "mine/", *COMMAND], capsys)
    assert "ezpz: a chain is in mine already (from --output, where chain.json is)" in told
    assert main(["--output=-odd", *COMMAND]) == 0
    assert (kept / "call-102").read_text().split("\n")[2] == "./-odd/train.slurm"


def test_a_chain_that_the_site_forbids_is_refused(fake, capsys, monkeypatch):
    fake("slurm")
    monkeypatch.setenv("NERSC_HOST", "perlmutter")
    asked = ["--until-done", "-A", "m1_g", "-q", "debug"]
    told = refused([*asked, *COMMAND], capsys)
    assert "ezpz: a chain in queue debug of perlmutter is forbidden: NERSC's queue policy" in told
    assert main([*asked, "--force", *COMMAND]) == 0
    assert "ezpz: --force: a chain in queue debug" in capsys.readouterr().err


def test_quotes_and_long_commands_survive(place, fake, capsys, run_cli):
    fake("slurm")
    words = [
        "python3", "-c", "import sys\nprint(sys.argv[1:])", "it's", "a  b", "$HOME", "*",
        *(f"word-{n:03}" for n in range(40)),
    ]  # fmt: skip
    assert main(["--dry-run", "--", *words]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 120
    script = text.partition("\nlaunch ")[2].rpartition("\n")[0]
    (place / "job.sh").write_text(f'function launch {{ "$@"; }}\nlaunch {script}\n')
    done = subprocess.run(["bash", "job.sh"], capture_output=True, text=True, check=False)
    assert done.stdout == f"{words[3:]!r}\n", done.stderr


def test_the_environment_in_which_it_was_called_is_the_jobs(place, fake, capsys, monkeypatch):
    fake("slurm")
    for given, environ, expected in (
        ([], {"VIRTUAL_ENV": "/envs/a b"}, "ezpz_setup_env '/envs/a b'"),
        ([], {"VIRTUAL_ENV": str(place / ".venv")}, "ezpz_setup_env"),
        (["--venv", "/envs/other"], {"VIRTUAL_ENV": "/envs/mine"}, "ezpz_setup_env /envs/other"),
    ):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert main(["--dry-run", *given, *COMMAND]) == 0
        assert f"\n{expected}\n" in capsys.readouterr().out


def test_a_conda_environment_of_ones_own_is_the_jobs(place, fake, capsys, monkeypatch):
    fake("pbs")  # whose jobs have no variables of the shell that submitted them
    own = place / "own env"
    own.mkdir()
    monkeypatch.setenv("CONDA_PREFIX", str(own))
    monkeypatch.setattr(sys, "prefix", str(own))
    monkeypatch.setattr(sys, "base_prefix", str(own))
    assert main(["--dry-run", *COMMAND]) == 0
    text = capsys.readouterr().out
    assert f"\nexport CONDA_PREFIX='{own}'\nexport PATH=\"$CONDA_PREFIX/bin:$PATH\"\n" in text
    assert "\nezpz_setup_env\n" in text
    check_shell(text, place)
    assert main(["--dry-run", "--venv", "/envs/other", *COMMAND]) == 0
    assert "CONDA_PREFIX" not in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_one_line(place, fake, refuses):
    fake("slurm")
    (place / "outputs").write_text("a file")
    refuses(main, [(COMMAND, "ezpz: cannot write outputs/train/job-")])


def test_a_plain_slurm_has_a_line_to_complete_for_devices_which_differ(place, capsys):
    assert main(["--scheduler", "slurm", "--dry-run", *COMMAND]) == 0
    text = capsys.readouterr().out
    assert "\n##SBATCH --gpus-per-node=4\n" in text
    check_shell(text, place)


def check_shell(text, place):
    """bash reads it, and shellcheck has nothing to say."""
    (place / "job").write_text(text)
    assert subprocess.run(["bash", "-n", "job"], check=False).returncode == 0
    checker = shutil.which("shellcheck", path="/usr/local/bin:/usr/bin:/bin")
    if checker:
        done = subprocess.run([checker, "--shell=bash", "job"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.fixture
def checkout(tmp_path):
    """A copy of the package, whose jobs install nothing into the Python that runs the tests."""
    folder = tmp_path / "checkout"
    shutil.copytree(Path(ezpz.__file__).parent, folder / "src" / "ezpz", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "src" / "ezpz" / "bin" / "utils.sh").open("a") as utils:
        utils.write("ezpz_setup_python() { echo 'a Python is there' >&2; }\n")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("code", [0, 7])
def test_a_submitted_job_runs_on_a_real_slurm(slurm, clean_env, checkout, code):
    (checkout / "train.py").write_text(
        "import os, sys\n"
        'print(f\'rank {os.environ["RANK"]} of {os.environ["WORLD_SIZE"]}\', flush=True)\n'
        f"sys.exit({code} if os.environ['RANK'] == '1' else 0)\n"
    )
    # These hosts share the folders of one machine, and /tmp with them.
    asked = ["--nhosts", "2", "--time", "5m", "-q", "main", "-O=--ntasks-per-node=1", "--force", "--output", "of%j"]
    env = {**clean_env, "EZPZ_HARDWARE": "0", "TORCH_DEVICE": "cpu", "PYTHONPATH": str(checkout / "src")}
    line = [sys.executable, "-m", "ezpz", "submit", *asked, "--", "python3", "train.py"]
    done = slurm.run(line, env, timeout=60, cwd=checkout)
    assert done.returncode == 0, done.stderr
    path, queued = done.stdout.splitlines()
    job = re.match(r"([0-9]+): queued in main for 2 hosts and 00:05:00; output: ", queued)[1]
    assert path.partition(":")[0] == "of%j/train.slurm"
    assert queued.endswith(f"/train-{job}.out")

    def state():
        shown = slurm.run(["scontrol", "--oneliner", "show", "job", job], timeout=20).stdout
        fields = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        return None if fields.get("JobState") in {"PENDING", "RUNNING", "COMPLETING"} else fields

    fields = process.wait_until(state, 120, f"the end of job {job}", every=0.3)
    # Not StdOut of scontrol, which shows of%%j/train-%j.out of the file as of%1/train-1.out.
    text = (checkout / Path(path.partition(":")[0]).parent / f"train-{job}.out").read_text()
    assert sorted(re.findall(r"rank \d of \d", text)) == ["rank 0 of 2", "rank 1 of 2"], text
    assert fields["ExitCode"] == f"{code}:0", text


# A qsub that runs the file at once, as PBS does: in the home folder, with the job's variables and without the
# caller's; both streams go into the folder of -o. After qsub(1B), and tests/data/environments/pbs-*.json.
RUNS = """#!/bin/bash
file=${{@: -1}}
output=$(sed -n 's/^#PBS -o //p' "$file")
printf '{host}\\n{host}\\n' >{kept}/nodes  # as mpiprocs=2 asks for
cd {home} && env -i PATH="$PATH" HOME={home} USER="$USER" PYTHONPATH="$PYTHONPATH" {tag} OMP_NUM_THREADS=1 \\
  EZPZ_HARDWARE=0 PBS_JOBID=7.head PBS_NODEFILE={kept}/nodes PBS_O_WORKDIR="$OLDPWD" PBS_ENVIRONMENT=PBS_BATCH \\
  TMPDIR=/var/tmp/pbs.7.head bash -l "$OLDPWD/$file" >"$OLDPWD/${{output}}7.head.OU" 2>&1
echo $? >{kept}/code
echo 7.head
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("code", [0, 7])
def test_a_job_file_of_pbs_runs_as_pbs_starts_it(code, clean_env, run_cli, checkout, tmp_path, tag):
    kept, work, home = tmp_path / "kept", checkout, tmp_path / "home"
    for folder in (kept, home, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
    (work / "train.py").write_text(
        f"import os, sys\nprint('rank', os.environ['RANK'], os.getcwd(), flush=True)\nsys.exit({code})\n"
    )
    program = tmp_path / "bin" / "qsub"
    program.write_text(RUNS.format(host=os.uname().nodename, kept=kept, home=home, tag=f"{process.TAG}={tag}"))
    program.chmod(0o755)
    path = f"{program.parent}:{Path(sys.executable).parent}:{clean_env['PATH']}"
    env = {**clean_env, "PATH": path, "USER": "root", "PYTHONPATH": str(checkout / "src")}
    asked = ["--scheduler", "pbs", "--force", "--json"]
    line = [sys.executable, "-m", "ezpz", "submit", *asked, "--", "-n", "2", "python3", "train.py"]
    done = run_cli(line, env, timeout=120, cwd=work)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["jobs"], told["chain"]) == (["7.head"], False)
    text = (work / told["folder"] / "7.head.OU").read_text()
    assert (kept / "code").read_text() == f"{code}\n", text
    ranks = sorted(re.findall(r"rank \d .*", text))
    assert ranks == [f"rank 0 {work}", f"rank 1 {work}"] or code, text  # one that fails ends the other
