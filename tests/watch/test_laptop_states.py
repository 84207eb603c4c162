"""What `ezpz doctor`, `launch` and `where` say of laptops in a bad state; laptop_states.toml says what is right."""

import os
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from lab.run_folders import SRC

_TOML = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
STATES = _TOML.loads(Path(__file__).with_name("laptop_states.toml").read_text())
QUICK = ("healthy", "broken-mpiexec-launch", "broken-mpiexec-on-stdout", "broken-nvidia-smi", "python-home-of-another")
# Of this machine, its disk and limits, which each state keeps as they are.
OF_THE_MACHINE = re.compile(r"the limit \w+ is|/dev/shm|has .* left|torch is not installed")
STAND_INS = {
    "numpy": "",
    "torch": "class T:\n    __matmul__ = lambda s, o: s\n    sum = numpy = lambda s: s\n    item = lambda s: 1\n"
    "ones = zeros = lambda *sizes: T()\n",
}
FUNCTIONS = r"""
set -e
mkdir -p home bin
program() { printf '#!/bin/bash\n%s\n' "$2" > $TOP/bin/$1; chmod +x $TOP/bin/$1; }
package() { mkdir -p $TOP/first/$1; printf '%s\n' "$2" > $TOP/first/$1/__init__.py; }
full() { mkdir -p $1; mount -t tmpfs -o size=1m none $1; head -c 1100000 /dev/zero > $1/x 2>/dev/null || :; }
"""
ALONE = {"mount": ["unshare", "--mount"], "net": ["unshare", "--net"], "uts": ["unshare", "--uts", "--mount"]}


def state_of(name, run_cli, clean_env, folder):
    """Return code and output, all on one line, of a command in a state."""
    state = STATES[name]
    for package, text in STAND_INS.items():
        (folder / "stand-ins" / package).mkdir(parents=True)
        (folder / "stand-ins" / package / "__init__.py").write_text(text)
    (folder / "empty").mkdir()
    env = {
        **clean_env,
        "TOP": str(folder),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder),
        "TORCH_DEVICE": "cpu",
        "XDG_STATE_HOME": str(folder / "state"),
        "PATH": os.pathsep.join([str(folder / "bin"), clean_env["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(folder / "first"), str(folder / "stand-ins"), SRC]),
    }
    (folder / "home").mkdir()
    command = state.get("command", "ezpz doctor").split()
    module = {"launch": ["ezpz.launch"]}.get(command[1], ["ezpz", command[1]])
    line = [sys.executable, "-m", *module, *command[2:]]
    lines = f'{FUNCTIONS}\ncd empty\n{state.get("do", "")}\nset +e\nexec "$@"'
    around = ALONE.get(state.get("alone"), ())
    done = run_cli([*around, "bash", "-c", lines, "bash", *line], env, cwd=folder, timeout=90)
    return done.returncode, " ".join(f"{done.stdout}\n{done.stderr}".split())


def wrong(name, code, text):
    """Return what is wrong with an answer; an empty text if nothing is."""
    state = STATES[name]
    reasons = [] if code == state.get("code", 0) else [f"exit code {code}"]
    for pattern in (state.get("says"), state.get("cures")):
        reasons += [f"no {pattern!r}"] if pattern and not re.search(pattern, text) else []
    if "says" not in state:
        found = [each for each in re.split(r"(?=problem  |note  |note )", text)[1:] if not OF_THE_MACHINE.search(each)]
        reasons += found
    return f"{'; '.join(reasons)}: {text}" if reasons else ""


def check(names, run_cli, clean_env, tmp_path, subtests):
    for name in names:
        with subtests.test(name):
            if "alone" in STATES[name] and os.geteuid():
                pytest.skip("namespaces need root")
            (tmp_path / name).mkdir()
            assert wrong(name, *state_of(name, run_cli, clean_env, tmp_path / name)) == ""


@pytest.mark.slow
def test_a_few_bad_states_are_named(run_cli, clean_env, tmp_path, subtests):
    check(QUICK, run_cli, clean_env, tmp_path, subtests)


@pytest.mark.dear
@pytest.mark.slow
def test_every_bad_state_is_named_and_a_good_one_is_not(run_cli, clean_env, tmp_path, subtests):
    check([name for name in STATES if name not in QUICK], run_cli, clean_env, tmp_path, subtests)
