"""TAB in real shells on a real terminal: what is offered, that no Python is started, and what it costs."""

import os
import pty
import re
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from lab.completion import SHELLS, completion
from lab.require import require

MARK = re.compile(r"<line:(.*?)>")
ESCAPES = re.compile(r"\x1b(\[[0-9;?>=]*[a-zA-Z]|[=>])")
# Ctrl-T prints the line as it is; what TAB lists stands above the prompt.
SETUP = {
    "bash": "bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; bind 'set completion-query-items 0'; "
    "bind 'set page-completions off'; bind -x '\"\\C-t\": printf \"<line:%s>\" \"$READLINE_LINE\"'; PS1='> '",
    "zsh": "autoload -Uz compinit && compinit -D; LISTMAX=0; PS1='> '; show() { print -rn -- \"<line:$BUFFER>\" }; "
    "zle -N show; bindkey '^T' show; unsetopt beep promptsp",
}
START = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


class Terminal:
    """An interactive shell that a person types into; its only `python3` leaves a mark."""

    def __init__(self, name, folder):
        if name == "zsh":
            require("zsh", None if shutil.which("zsh") else "no zsh on PATH")
        programs = folder / "bin"
        programs.mkdir()
        self.marks = folder / "python-ran"
        for program in ("python3", "python", "ezpz", "launch"):
            (programs / program).write_text(f'#!/bin/sh\necho "$0" >>{self.marks}\n')
            (programs / program).chmod(0o755)
        env = {"HOME": str(folder), "TMPDIR": str(folder / "tmp"), "PATH": f"{programs}:/usr/bin:/bin"}
        env |= {"TERM": "xterm", "LC_ALL": "C.UTF-8", "PBS_NODEFILE": str(folder / "nodes"), "COLUMNS": "200"}
        (folder / "nodes").write_text("n01\nn01\nn02\n")
        self.pid, self.tty = pty.fork()
        if not self.pid:
            os.chdir(folder)
            os.execvpe(START[name][0], START[name], env)
        self.read_until(r"[>$#%] *$")
        self.run(f"{SETUP[name]}; source {SHELLS[name]}")

    def type(self, text):
        os.write(self.tty, text.encode())

    def run(self, command):
        self.type(f"{command}; printf 'rea'; printf 'dy\\n'\n")
        self.read_until(r"ready\s*\r\n[^\n]*> $")

    def read_until(self, pattern, seconds=60):
        """What the shell shows, up to a pattern; without what only moves the cursor."""
        text, limit = "", time.monotonic() + seconds
        while not re.search(pattern, shown := ESCAPES.sub("", text)):
            assert time.monotonic() < limit, text
            if select.select([self.tty], [], [], 1)[0]:
                text += os.read(self.tty, 65536).decode(errors="replace")
        return shown

    def tab(self, line):
        """The line after TAB, and all that was shown."""
        self.type(f"\x15{line}\t\x14")
        shown = self.read_until(MARK.pattern)
        return MARK.findall(shown)[-1], shown

    def cpu(self):
        """Seconds of CPU of the shell and of the children it has waited for."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.tty)
        os.waitpid(self.pid, 0)


@pytest.fixture(params=["bash", pytest.param("zsh", marks=pytest.mark.slow)])
def terminal(request, tmp_path):
    for run in ("train/2026-01-01-000000", "train/2026-01-02-000000"):
        (tmp_path / "outputs" / run).mkdir(parents=True)
        (tmp_path / "outputs" / run / "metrics.jsonl").write_text("")
    launch = socket.socket(socket.AF_UNIX)  # that of a running launch, as `ezpz.register` finds it
    if sys.platform == "linux":
        launch.bind(f"\0ezpz-launch-{os.getuid()}-8c736521-nohex123456789ab")
    else:
        sockets = tmp_path / "tmp" / f"ezpz-{os.getuid()}" / "sockets"
        sockets.mkdir(parents=True)
        (sockets / "launch-nohex123456789ab.sock").touch()
    (tmp_path / "my train.py").write_text("")
    shell = Terminal(request.param, tmp_path)
    yield shell
    shell.close()
    launch.close()


def test_what_is_offered(terminal):
    def line(typed):
        return terminal.tab(typed)[0].rstrip()

    assert line("ezpz comple") == "ezpz completion"
    assert line("ezpz benchmark --max-it") == "ezpz benchmark --max-iters"
    assert line("launch --hostf") == "launch --hostfile"
    assert line("ezpz launch --flavour openmpi4") == "ezpz launch --flavour openmpi4"
    assert line("launch --flavour sr") == "launch --flavour srun"
    assert line("launch --mpi s") == "launch --mpi site"
    assert line("ezpz runs --state runn") == "ezpz runs --state running"
    assert line("ezpz init perl") == "ezpz init perlmutter"
    assert line("ezpz sites auro") == "ezpz sites aurora"
    assert line("ezpz kill noh") == "ezpz kill nohex123456789ab"  # others may run here
    assert line("ezpz help docto") == "ezpz help doctor"
    assert line("ezpz export --c") == "ezpz export --csv"
    # folders of runs, the same beginning of both
    assert line("ezpz open outputs/") == "ezpz open outputs/train/2026-01-0"
    assert "2026-01-02-000000" in terminal.tab("ezpz compare outputs/train/2026-01-0")[1]
    # hosts of the job, each once
    shown = terminal.tab("launch --hosts n0")[1]
    assert "n02" in shown
    assert shown.count("n01") == 1
    assert line("launch --hosts n01,n").startswith("launch --hosts n01,n02")
    # numbers and times are the user's to know
    assert line("launch -n ") == "launch -n"
    assert not terminal.marks.exists()
    # the command's own completion (that of zsh for Python asks it for modules)
    assert re.fullmatch(r"launch -n 2 python3 my\\ train.py", line("launch -n 2 python3 my"))
    assert re.fullmatch(r"ezpz launch -- python3 my\\ train.py", line("ezpz launch -- python3 my"))


def test_a_command_keeps_its_own_completion(terminal, request):
    if "bash" in request.node.name:
        terminal.run("_own() { COMPREPLY=(alpha-$2); }; complete -F _own mytool")
    else:
        terminal.run("_own() { compadd alpha-beta }; compdef _own mytool")
    line = terminal.tab("launch --ppn 2 mytool alpha-b" if "zsh" in request.node.name else "launch --ppn 2 mytool b")[0]
    assert line.startswith(("launch --ppn 2 mytool alpha-b",))


def test_what_is_shown_beside_options(terminal, request):
    shown = terminal.tab("ezpz export --")[1]
    assert "--csv" in shown
    assert "--output" in shown
    if "zsh" in request.node.name:
        assert re.search(r"--csv +-- comma-separated values", shown)


# Where the lists are long: 500 folders of runs of each of five names, all options of the verb that has most, a long
# line of options before.
LONG = ("-n 8 --ppn 4 --cpu-bind depth --check full --timeout 6h --log-dir logs --label --verbose " * 3).strip()
COSTLY = {
    "one option": "ezpz launch --start-t",
    "all options": "launch --",
    "names of runs": "ezpz open outputs/",
    "500 runs of one name": "ezpz compare outputs/run-3/",
    "after many options": f"launch {LONG} --start-t",
}


@pytest.fixture
def many_runs(tmp_path):
    for number in range(2500):
        folder = tmp_path / "outputs" / f"run-{number % 5}" / f"2026-01-02-{number // 5:06}"
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("")
    return tmp_path


@pytest.mark.slow
def test_what_a_tab_costs(many_runs, terminal, subtests):
    """At most 20 ms of CPU beyond what the shell itself takes for as long a list of folders."""
    for line, typed in COSTLY.items():
        with subtests.test(line):
            own = cost_of(terminal, "ls outputs/run-3/") if "500" in line else 0
            spent = cost_of(terminal, typed)
            print(f"{line}: {1000 * spent:.1f} ms, the shell's own list of 500 folders {1000 * own:.1f} ms")
            assert spent - own < 0.02
            assert not terminal.marks.exists()


def cost_of(terminal, typed, times=20):
    """Seconds of CPU that TAB takes after a line."""
    terminal.tab(typed)
    before = terminal.cpu()
    for _ in range(times):
        terminal.tab(typed)
    return (terminal.cpu() - before) / times


def test_names_come_before_runs(many_runs, terminal):
    """Where there are several names, TAB shows them and not the runs of all; then those of one."""
    line, shown = terminal.tab("ezpz open outputs/run")
    assert line == "ezpz open outputs/run-"
    assert "2026" not in shown
    assert terminal.tab("ezpz open outputs/run-3/2026")[0] == "ezpz open outputs/run-3/2026-01-02-000"


def test_an_option_is_offered_once_and_not_where_a_value_or_a_command_stands(terminal):
    assert terminal.tab("launch --np 2 --pp")[0].rstrip() == "launch --np 2 --ppn"
    assert terminal.tab("launch -n 2 true --start-t")[0].rstrip() == "launch -n 2 true --start-t"
    assert terminal.tab("launch --env --start-t")[0].rstrip() == "launch --env --start-t"
    assert not terminal.marks.exists()


@pytest.mark.parametrize("name", SHELLS)
def test_the_files_are_those_of_the_parsers(name):
    assert SHELLS[name].read_text(encoding="utf-8") == completion(name), "make completion"


def test_the_verb_prints_them(run_cli):
    verb = [sys.executable, "-m", "ezpz", "completion"]
    for name, file in SHELLS.items():
        assert run_cli([*verb, name]).stdout == file.read_text(encoding="utf-8")
    refused = run_cli([*verb, "fish"])
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "expected one of bash, zsh" in refused.stderr
