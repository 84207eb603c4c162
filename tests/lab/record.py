"""Record what a scheduler shows a job, as a file of ``tests/data/environments``.

Inside any job, on any machine:

    python3 tests/lab/record.py NAME >NAME.json        then write its "expect" by hand, from what was asked for

It needs nothing but Python. User, home, folders and addresses are replaced, secrets are never read: only variables of
the scheduler's own names are kept.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

KEPT = re.compile(r"(SLURM|PBS_|FLUX_|LSB_)|(NCPUS|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES)\Z")
LEFT_OUT = re.compile(r"SLURM_CONF|SLURM_JWT|.*COOKIE|.*_PACK_GROUP_|.*PATH\Z")


def main():
    env = {name: value for name, value in os.environ.items() if KEPT.match(name) and not LEFT_OUT.match(name)}
    host = os.uname().nodename
    commands, files = {}, {}
    job = env.get("SLURM_JOB_ID") or (sys.argv[2] if len(sys.argv) > 2 else "")
    if job and not env.get("PBS_JOBID"):
        nodes = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_JOB_NODELIST_HET_GROUP_0", "")
        find = ["squeue", "--noheader", "--states=RUNNING", "--user=root", f"--nodelist={host}", "--format=%A|%i|%N"]
        for command in (["scontrol", "-d", "show", "job", job], ["scontrol", "show", "job", job], find):
            record(commands, command)
        record(commands, ["scontrol", "show", "hostnames", nodes], key="scontrol show hostnames")
    if env.get("PBS_JOBID"):
        job, user = env["PBS_JOBID"], env.get("PBS_O_LOGNAME", "user")
        for command in (["-f", "-F", "json", job], ["-f", job], ["-u", user, "-n1rw"]):
            record(commands, ["qstat", *command])
        path = env.get("PBS_NODEFILE", "")
        if Path(path).is_file():
            files[path] = Path(path).read_text(encoding="utf-8")
    versions = [run([program, "--version"]) for program in ("sinfo", "qstat")]  # qstat tells it on stderr
    version = next(
        (text for one in versions if one.returncode == 0 and (text := (one.stdout or one.stderr).strip())), ""
    )
    told = {
        "name": sys.argv[1],
        "recorded": version,
        "hostname": host,
        "env": env,
        "files": files,
        "commands": commands,
    }
    print(scrub(json.dumps(told | {"expect": {}}, indent=1, sort_keys=False)))


def run(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def record(commands, command, key=None):
    done = run(command)
    if done.returncode == 127:  # not installed here: no answer of the scheduler's
        return
    commands[key or " ".join(command)] = {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def scrub(text):
    folder = Path(os.environ.get("SLURM_CONF", "")).parent
    submitted = os.environ.get("SLURM_SUBMIT_DIR") or os.environ.get("PBS_O_WORKDIR") or folder
    for old in map(str, (folder, submitted, Path.cwd(), Path.home())):
        text = text.replace(old, "/home/user/run") if len(old) > 1 else text
    text = re.sub(r"root\(0\)", "user(1000)", text)
    text = re.sub(r"--user=root", "--user=user", text)
    text = re.sub(r"\b10\.77\.\d+\.", "10.77.0.", text)
    return re.sub(r'("SLURM_JOB_USER": )"root"', r'\1"user"', text)


if __name__ == "__main__":
    main()
