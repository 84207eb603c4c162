"""Shells that have sourced `utils.sh`, with an environment and a Python that each test controls."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from ezpz.cluster.scheduler import schedulers

ROOT = Path(__file__).resolve().parents[2]
UTILS = ROOT / "src/ezpz/bin/utils.sh"
SHELLS = {"bash": ["bash", "--noprofile", "--norc"], "zsh": ["zsh", "-f"]}

# Variables of the surrounding machine's jobs and environments, which must not reach a test.
FOREIGN = (
    *(mark for scheduler in schedulers() for mark in scheduler.marks),
    *("PBS_", "SLURM", "FLUX_", "XDG_", "EZPZ_", "CONDA", "VIRTUAL_ENV", "PYTHON", "LOADEDMODULES"),
    *("NHOSTS", "NGPU", "DIST_LAUNCH", "LAUNCH", "WORLD_SIZE", "RANK"),
)

# A Python that plays its part without costing a second. It answers what utils.sh asks an interpreter, notes each call
# in $FAKE_LOG, and can be told to fail: FAKE_VERSION, FAKE_NO_ENSUREPIP, FAKE_TORCH, FAKE_VENV_SAYS, FAKE_PIP_SAYS,
# FAKE_IMPORT_SAYS, FAKE_SLOW (pip waits), FAKE_SLOW_VENV, FAKE_NO_PIP. Where it waits it has no child that ends at the
# moment it says so: sh survives a Ctrl-C that comes while a command of its own ends.
FAKE_PYTHON = r"""#!/bin/sh
here="${0%/bin/python3}"
case "$1 $2" in "-c "*run_module*) shift 2; set -- -m "$@" ;; esac
printf '%s %s\n' "$1" "$2 $3" | head -n 1 >>"$FAKE_LOG"
case "$1 $2" in
  "-c "*ensurepip*)
    if [ -n "$FAKE_VERSION" ]; then printf '%s|' "$FAKE_VERSION"; exit 0; fi
    torch=''; ezpz=''
    if [ -e "$here/torch" ]; then torch="$here/lib/torch/__init__.py"; fi
    if [ -n "$FAKE_TORCH" ]; then torch=/base/torch/__init__.py; fi
    if [ -e "$here/ezpz" ]; then ezpz="$(cat "$here/ezpz")/src/ezpz/__init__.py"; fi
    printf 'a line of a start-up file\n3.11.7|%s|0|%s|%s|%s|%s||' \
      "$0" "$torch" "${FAKE_NO_ENSUREPIP:-1}" "$ezpz" "$here/lib" ;;
  "-m venv")
    for dir; do :; done
    if [ -n "$FAKE_VENV_SAYS" ]; then echo "$FAKE_VENV_SAYS" >&2; exit 1; fi
    mkdir -p "$dir/bin" "$dir/lib"; touch "$dir/pyvenv.cfg"
    if [ -n "$FAKE_SLOW_VENV" ]; then : >"$FAKE_LOG.slow"; exec sleep 600; fi
    cp "$0" "$dir/bin/python3"
    printf 'VIRTUAL_ENV="%s"; export VIRTUAL_ENV\nPATH="$VIRTUAL_ENV/bin:$PATH"\n' "$dir" >"$dir/bin/activate" ;;
  "-m pip")
    [ -z "$FAKE_NO_PIP" ] || exit 1
    if [ "$3" = config ]; then echo "global.index-url='https://me:secret@index.example/simple'"; exit 0; fi
    [ "$3" = install ] || exit 0
    shift 3; printf 'plan %s\n' "$*" >>"$FAKE_LOG"
    if [ -n "$FAKE_SLOW" ]; then touch "$here/torch"; : >"$FAKE_LOG.slow"; exec sleep 600; fi
    if [ -n "$FAKE_PIP_SAYS" ]; then printf '%s\n' "$FAKE_PIP_SAYS" >&2; exit 1; fi
    for arg; do
      case "$arg" in torch | torch=*) touch "$here/torch" ;; esac
      last="$arg"
    done
    [ "$last" = torch ] || printf '%s' "$last" >"$here/ezpz" ;;
  "-c "*"import ezpz, torch"*)
    if [ -n "$FAKE_IMPORT_SAYS" ]; then printf 'Traceback\n%s\n' "$FAKE_IMPORT_SAYS" >&2; exit 1; fi
    echo "Python 3.11.7, torch 2, ezpz 0" ;;
  "-c "*importlib.metadata*) cat "$3" >"$4" ;;
  "-c "*"import ezpz.cluster"*)
    [ -e "$here/ezpz" ] || exit 1
    echo "ezpz is importable"
    echo "export NHOSTS=1 NGPUS=0 NGPU_PER_HOST=0 EZPZ_NRANKS=2 EZPZ_HOSTS=here HOSTFILE=/h DIST_LAUNCH=" ;;
  "-c "*) [ -e "$here/ezpz" ] ;;
esac
"""


@dataclass
class Shell:
    """One shell in one folder; `bin` stands first on its PATH."""

    name: str
    cwd: Path
    bin: Path
    env: dict[str, str] = field(default_factory=dict)

    def another(self) -> "Shell":
        """Return a shell with a copy of these programs and variables, and with empty folders of its own: a row's."""
        rows = self.bin.parent / "rows"
        rows.mkdir(exist_ok=True)
        other = make_shell(self.name, rows / str(len(list(rows.iterdir()))))
        shutil.copytree(self.bin, other.bin, dirs_exist_ok=True)
        other.env = self.env | {name: other.env[name] for name in OWN}
        return other

    def calls(self) -> str:
        """Return what the programs have noted in $FAKE_LOG."""
        log = Path(self.env["FAKE_LOG"])
        return log.read_text() if log.exists() else ""

    def plans(self) -> list[str]:
        """Return the lines that tell what pip was asked for."""
        return [line for line in self.calls().splitlines() if line.startswith("plan ")]

    def program(self, name: str, text: str) -> Path:
        """Write an executable onto PATH."""
        return executable(self.bin / name, text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")

    def start(self, script: str, **env: str) -> subprocess.Popen:
        """Start a script that has sourced utils.sh, in a process group of its own."""
        how = {"cwd": self.cwd, "env": self.env | env, "text": True, "start_new_session": True}
        how |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*SHELLS[self.name], "-c", script, self.name], **how)

    def bare(self, script: str, **env: str) -> subprocess.CompletedProcess:
        """Run a script that sources nothing by itself."""
        process = self.start(script, **env)
        try:
            out, err = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(script, process.returncode, out, err)

    def __call__(self, script: str, utils: Path = UTILS, **env: str) -> subprocess.CompletedProcess:
        """Run a script after `source utils.sh`."""
        return self.bare(f"source '{utils}'\n{script}", **env)

    def rows(self, cases, before: str = "") -> dict:
        """Answer ``{label: (script, variables)}`` in one process: a subshell for each, which has sourced utils.sh.

        A third part is `another` shell, in whose folders and with whose programs the row runs.
        """
        folder = self.bin.parent / f"answers-{len(list(self.bin.parent.glob('answers-*')))}"
        folder.mkdir()
        lines = [f"source '{UTILS}'", before]
        for number, (script, env, *place) in enumerate(cases.values()):
            own = {name: other.env[name] for other in place for name in OWN} | env
            words = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in own.items())
            words += "".join(f"cd {shlex.quote(str(other.cwd))}\n" for other in place)
            lines.append(f"(\n{words}{script}\n) >'{folder}/{number}.out' 2>'{folder}/{number}.err'")
            lines.append(f"echo $? >'{folder}/{number}.code'")
        done = self.bare("\n".join(lines))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return {
            label: subprocess.CompletedProcess(
                label,
                int((folder / f"{number}.code").read_text()),
                *(_text(folder / f"{number}.{end}") for end in ENDS),
            )
            for number, label in enumerate(cases)
        }


# In place of `timeout`: on a busy machine a program that answers may take longer than the seconds it has. One that is
# named in $HANGS has no more than those.
PATIENT = 'case "${4##*/}" in "${HANGS:-}") ;; *) shift 3; set -- -k 1 200 "$@" ;; esac\nexec /usr/bin/timeout "$@"'
ENDS = ("out", "err")
OWN = ("HOME", "TMPDIR", "PATH", "FAKE_LOG")  # what no two shells share


def _text(file):
    return file.read_bytes().decode()  # as it is: read_text() would take \r\n for \n


def executable(path: Path, text: str) -> Path:
    """Write a program, and the folder in which it stands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def make_environment(shell: Shell, python: str) -> Path:
    """Make an environment that ezpz did not make, in the folder `mine`; with the file `torch` in it, it holds torch."""
    env = shell.cwd / "mine"
    executable(env / "bin/python3", python)
    (env / "lib").mkdir()
    for name in ("pyvenv.cfg", "torch"):
        (env / name).touch()
    return env


def make_shell(name: str, base: Path) -> Shell:
    """Return a shell with an empty home, in an empty folder, that sees the system's programs and no job."""
    folders = {each: base / each for each in ("home", "tmp", "bin", "work")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    env |= {"HOME": str(folders["home"]), "TMPDIR": str(folders["tmp"]), "LC_ALL": "C.UTF-8"}
    env |= {"PATH": f"{folders['bin']}:/usr/bin:/bin", "FAKE_LOG": str(base / "calls")}
    return Shell(name, folders["work"], folders["bin"], env)


def errors(result: subprocess.CompletedProcess) -> list[str]:
    """Return the error lines of a run, after checking that nothing else than ezpz spoke on stderr."""
    lines = result.stderr.splitlines()
    assert all(line.startswith("[ezpz] ") for line in lines), result.stderr
    return [line for line in lines if line.startswith("[ezpz] error: ")]


def older_names():
    """Return the names of the table of older names in utils.sh, with and without ezpz_."""
    prefixed, plain = re.search(r'\nezpz__define_older "([^"]*)" \\\n  "([^"]*)"\n', UTILS.read_text()).groups()
    return [f"ezpz_{name}" for name in prefixed.split()], plain.split()


NAMES = (
    "EZPZ_SCHEDULER EZPZ_JOBID EZPZ_SITE EZPZ_HOSTS EZPZ_NRANKS NHOSTS NGPU_PER_HOST NGPUS HOSTFILE DIST_LAUNCH LAUNCH"
)
NAMES += " WORLD_SIZE EZPZ_WORLD_SIZE"


JOB = "{}\n{}\nrc=$?\necho '==='\nenv -0\nexit $rc"


def job(shell, before="", call="ezpz_setup_job", **env):
    """Run ezpz_setup_job and return (its result, what it exports)."""
    return _told(shell(JOB.format(before, call), **env))


def jobs(shell, cases, before="", call="ezpz_setup_job"):
    """Run it for each of ``{label: variables}`` in one process; return ``{label: (its result, what it exports)}``.

    A pair of variables and `another` shell runs there.
    """
    pairs = {label: case if isinstance(case, tuple) else (case,) for label, case in cases.items()}
    done = shell.rows({label: (JOB.format(before, call), *pair) for label, pair in pairs.items()})
    return {label: _told(result) for label, result in done.items()}


def _told(result):
    result.stdout, _, told = result.stdout.partition("===\n")
    exported = dict(line.split("=", 1) for line in told.split("\0") if line)
    return result, {name: exported.get(name, "") for name in NAMES.split()}


def on_host(shell, name):
    """Let the shell stand on a host of this name."""
    shell.program("uname", f'[ "$*" = -n ] || exec /usr/bin/uname "$@"\necho {name}')


def answers(shell, commands):
    """Put programs on PATH that give recorded answers and refuse all else. Each call is in $FAKE_LOG."""
    programs = {}
    for number, (line, answer) in enumerate(commands.items()):
        program, arguments = line.split(" ", 1)
        text = shell.cwd.parent / f"answer-{program}-{number}"
        text.write_text(answer["stdout"])
        quoted = shlex.quote(arguments)
        programs.setdefault(program, []).append(f"  {quoted}) cat {shlex.quote(str(text))}; exit {answer['rc']} ;;")
    for program, cases in programs.items():
        log = f'echo "{program} $*" >>"$FAKE_LOG"'
        shell.program(program, "\n".join([log, 'case "$*" in', *cases, "esac", "exit 1"]))


def tools(shell, names):
    """Return a folder that holds only these of the system's programs."""
    folder = shell.cwd.parent / "tools"
    folder.mkdir()
    for name in names.split():
        (folder / name).symlink_to(shutil.which(name, path="/usr/bin:/bin"))
    return folder
