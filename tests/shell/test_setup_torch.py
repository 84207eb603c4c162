"""Which build of torch `ezpz_setup_python` takes, by where it will run; and that it is never silent about it."""

import os
import pty
import select
import time

import pytest
from shells import FAKE_PYTHON, ROOT, SHELLS, UTILS, errors, executable, on_host

ALONE = {"squeue": 1, "sinfo": 1, "qstat": 1, "flux": 1, "lsid": 1, "nvidia-smi": 1}
PINS = (ROOT / "constraints.txt").read_text().splitlines()
PIN = next(line.split()[0] for line in PINS if line.startswith("torch=="))


@pytest.fixture
def host(fake):
    """A host without scheduler, driver or known site, whose pip notes the indexes that its environment names."""
    for name, code in ALONE.items():
        fake.program(name, f"exit {code}")
    on_host(fake, "plain")
    python(fake, PLAN, '    printf "index %s\\n" "$PIP_EXTRA_INDEX_URL" >>"$FAKE_LOG"\n' + PLAN)
    for name in ("EZPZ_TORCH", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        fake.env.pop(name, None)
    return fake


PLAN = "    shift 3; printf 'plan"
CONFIG = "global.index-url='https://me:secret@index.example/simple'"


def python(host, old, new, text=FAKE_PYTHON):
    """Let python3 be the fake one with a change."""
    assert old in text
    host.program("python3", text.replace(old, new))


def asked(host):
    """Return what pip was asked for, and the indexes beside its own."""
    indexes = [line.removeprefix("index").strip() for line in host.calls().splitlines() if line.startswith("index")]
    words = "".join(host.plans()[-1:]).split()
    return next((word for word in words if word.startswith("torch")), ""), indexes[-1] if indexes else ""


def test_a_machine_alone_without_a_driver_takes_the_cpu_build_and_says_so_before_it_begins(host):
    result = host("ezpz_setup_python")
    assert errors(result) == []
    assert asked(host) == (f"{PIN}+cpu", "https://download.pytorch.org/whl/cpu")
    said = result.stderr
    why = "no driver of a GPU here, and no scheduler"
    line = f"{PIN}+cpu, the CPU build ({why}): about 200 MB to fetch and 800 MB on disk"
    assert line in said
    assert "for another: EZPZ_TORCH=cpu, cuda" in said
    assert said.index(line) < said.index("importing torch and ezpz") < said.index("proved: ")
    assert "secret" not in said


@pytest.mark.slow
def test_a_machine_alone_with_a_driver_takes_the_public_build(host):
    host.program("nvidia-smi", "echo 'GPU 0: A'")
    result = host("ezpz_setup_python")
    assert asked(host) == ("torch", "")
    assert "a CUDA build (a driver of NVIDIA is here, and no scheduler): about 3 GB to fetch and 5 GB" in result.stderr


SCHEDULERS = {
    "sinfo": ({}, "Slurm"),
    "qstat": ({}, "PBS"),
    "flux": ({}, "Flux"),
    "lsid": ({}, "LSF"),
    "": ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}, "Slurm"),
}


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["exit 1", "echo 'GPU 0: A'"], ids=["no driver", "a driver"])
def test_where_a_scheduler_answers_no_driver_decides_and_the_two_lines_are_shown(host, driver, subtests):
    """A login host has no driver and its compute hosts have: the show of the issue."""
    for program, (env, who) in SCHEDULERS.items():
        shell = host.another()
        shell.program("nvidia-smi", driver)
        if program:
            shell.program(program, "echo it is up")
        with subtests.test(program or "a job"):
            result = shell("ezpz_setup_python", **env)
            assert result.returncode == 2
            (error,) = errors(result)
            assert f"which torch is not known: {who} answers here" in error
            assert next(line for line in result.stderr.splitlines() if "export EZPZ_TORCH=" in line).endswith("xpu)")
            assert result.stderr.count("export EZPZ_TORCH=") == 2
            assert asked(shell) == ("", "")
            again = shell("ezpz_setup_python", **env, EZPZ_TORCH="cpu")
            assert again.returncode == 0, again.stderr
            assert asked(shell)[0] == f"{PIN}+cpu"


@pytest.mark.slow
def test_on_a_known_site_its_table_decides(host, subtests):
    for site, torch in {
        "crux": (f"{PIN}+cpu", "https://download.pytorch.org/whl/cpu"),
        "perlmutter": ("torch", ""),
        "frontier": (f"{PIN}+rocm7.1", "https://download.pytorch.org/whl/rocm7.1"),
    }.items():
        shell = host.another()
        with subtests.test(site):
            result = shell("ezpz_setup_python", EZPZ_SITE=site, EZPZ_MODULES="none")
            assert errors(result) == []
            assert asked(shell) == torch
            assert f"(of the site {site})" in result.stderr


@pytest.mark.slow
def test_a_site_whose_hosts_differ_stops_where_the_partition_is_not_known(host, subtests):
    for site in ("lumi", "lonestar6"):
        with subtests.test(site):
            result = host("ezpz_setup_python", EZPZ_SITE=site, EZPZ_MODULES="none")
            assert result.returncode == 2
            assert f"which torch is not known: this is the site {site}" in errors(result)[0]
    host("ezpz_setup_python", EZPZ_SITE="lonestar6", EZPZ_MODULES="none", SLURM_JOB_PARTITION="gpu-a100")
    assert asked(host) == ("torch", "")


WISHES = {
    "cuda": ("torch", ""),
    "default": ("torch", ""),
    "cu128": (f"{PIN}+cu128", "https://download.pytorch.org/whl/cu128"),
    "https://me:hidden@mirror.example/whl/cpu": (f"{PIN}+cpu", "https://me:hidden@mirror.example/whl/cpu"),
    "https://mirror.example/wheels/": ("torch", "https://mirror.example/wheels/"),
}


@pytest.mark.slow
def test_what_the_user_says_decides_and_a_login_is_neither_printed_nor_in_a_command_line(host, subtests):
    for wish, torch in WISHES.items():
        shell = host.another()
        with subtests.test(wish):
            result = shell("ezpz_setup_python", EZPZ_TORCH=wish)
            assert errors(result) == []
            assert asked(shell) == torch
            assert "(EZPZ_TORCH)" in result.stderr
            assert "hidden" not in result.stderr
            plans = [line for line in shell.calls().splitlines() if not line.startswith("index")]
            assert "hidden" not in "\n".join(plans)
            for file in (shell.cwd / ".venv").glob(".ezpz*"):
                assert "hidden" not in file.read_text()


def test_a_word_that_is_no_build_is_refused(host):
    result = host("ezpz_setup_python", EZPZ_TORCH="gpu")
    assert result.returncode == 2
    assert "no build of torch: gpu (from EZPZ_TORCH); expected cpu, cuda" in errors(result)[0]


@pytest.mark.slow
def test_an_index_of_pips_own_that_holds_builds_or_wheels_decides(host):
    for value in ("global.no-index='true'", "install.extra-index-url='https://me:secret@h/whl/cpu'"):
        python(host, CONFIG, value)
        result = host(f"ezpz_setup_python venv-{len(value)}")
        assert errors(result) == []
        assert "the index that pip is configured for decides" in result.stderr
        assert asked(host)[0] == "torch"


@pytest.mark.slow
def test_what_was_begun_is_completed_with_the_same_build_and_another_wish_changes_it(host):
    assert host("ezpz_setup_python", EZPZ_TORCH="cpu", FAKE_PIP_SAYS="ERROR: it broke").returncode == 125
    host.program("sinfo", "echo up")
    result = host("ezpz_setup_python")
    assert "as this environment was begun" in result.stderr
    assert asked(host)[0] == f"{PIN}+cpu"
    plans = host.calls().count("plan ")
    host("ezpz_setup_python", EZPZ_TORCH="cpu")
    assert host.calls().count("plan ") == plans
    host("ezpz_setup_python", EZPZ_TORCH="cuda")
    assert asked(host)[0] == PIN.replace("==", "===")


def at_a_terminal(host, script, keys, **env):
    """Run a script on a terminal, type keys when the question is there, and return (exit code, all that was shown)."""
    pid, terminal = pty.fork()
    if not pid:  # the new process, whose terminal this is
        try:
            os.chdir(host.cwd)
            program, *options = SHELLS[host.name]
            line = [program, *options, "-c", f"source '{UTILS}'\n{script}", host.name]
            os.execvpe(program, line, host.env | env | {"TERM": "dumb"})
        finally:
            os._exit(127)
    seen, typed, deadline = b"", False, time.monotonic() + 240
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                part = os.read(terminal, 65536)
            except OSError:  # Linux: the last process of the terminal has ended
                part = b""
            if not part:
                break
            seen += part
            if not typed and b"or an index's address:\r\n" in seen:
                typed = True
                os.write(terminal, keys)
    finally:
        os.close(terminal)  # whatever still runs there gets SIGHUP
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert typed, seen.decode()
    return code, seen.decode().replace("\r\n", "\n")


@pytest.mark.few(1)
@pytest.mark.parametrize("keys", [b"cpu\n", b"\n", b"\x04", b"\x03"], ids=["answer", "empty", "end", "Ctrl-C"])
def test_at_a_terminal_it_asks_and_an_answer_alone_lets_it_begin(host, keys):
    host.program("sinfo", "echo it is up")
    code, shown = at_a_terminal(host, 'ezpz_setup_python; echo "ended with $?"', keys)
    assert "which torch is not known: Slurm answers here" in shown
    if keys == b"cpu\n":
        assert "ended with 0\n" in shown
        assert asked(host) == (f"{PIN}+cpu", "https://download.pytorch.org/whl/cpu")
        assert f"{PIN}+cpu, the CPU build (the answer)" in shown
        return
    assert asked(host) == ("", "")
    if keys == b"\x03":
        assert code in {130, -2}, shown
        assert "ended with" not in shown
        assert "export EZPZ_TORCH=" not in shown
    else:
        assert "ended with 2\n" in shown
        assert shown.count("export EZPZ_TORCH=") == 2


# ---- a Python that is used as it is ---------------------------------------------------------------------------------


def complete(host):
    """Let python3 of PATH bring packages: a container, or a virtual environment that is not active."""
    for name in ("torch", "ezpz"):
        (host.cwd.parent / name).write_text("/in/the/image")
    host.program("python3", FAKE_PYTHON)


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_python_on_path_that_imports_torch_and_ezpz_is_used_as_it_is(host):
    complete(host)
    before = snapshot(host.cwd) | snapshot(host.bin)
    result = host('ezpz_setup_python; echo "$? ${VIRTUAL_ENV:-none} $EZPZ_READY"')
    assert result.stdout == f"0 none {host.bin}/python3\n"
    said = result.stderr
    assert f"python3 is {host.bin}/python3 (on PATH), used as it is, nothing is written: Python 3.11.7, torch 2" in said
    assert f"its ezpz is /in/the/image/src/ezpz, not {ROOT}" in said
    assert said.index("importing torch") < said.index("used as it is")
    assert snapshot(host.cwd) | snapshot(host.bin) == before
    assert "plan" not in host.calls()
    asked_for = host('ezpz_setup_python folder; echo "$VIRTUAL_ENV"', EZPZ_TORCH="cpu")
    assert asked_for.stdout == f"{host.cwd}/folder\n"


@pytest.mark.slow
def test_one_that_does_not_import_them_gets_an_environment(host):
    complete(host)
    result = host("ezpz_setup_python", FAKE_IMPORT_SAYS="ImportError: libx.so")
    assert "has both and imports them not: ImportError: libx.so; an environment is made" in result.stderr


def test_with_torch_alone_a_thin_environment_is_made_over_it_and_says_why(host):
    result = host("ezpz_setup_python", FAKE_TORCH="1")
    assert errors(result) == []
    assert "that Python imports torch and not ezpz: the environment sees its packages, and only ezpz" in result.stderr
    assert "-m venv --system-site-packages" in host.calls()
    assert asked(host)[0] == ""


# ---- never silent ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_line_every_15_seconds_while_pip_works_and_no_pipe_is_held(host):
    """`sleep 15` takes a moment here; pip works until two lines have been said."""
    host.program("sleep", 'if [ "$1" = 15 ]; then exec /bin/sleep 0.2; else exec /bin/sleep "$@"; fi')
    works = "    echo 'Collecting torch==2 (from https://me:secret@h/simple)'\n"
    works += '    until [ "$(grep -c \'pip has worked\' "$SAID")" -ge 2 ]; do /bin/sleep 0.1; done\n'
    python(host, PLAN, works + PLAN)
    said = host.cwd.parent / "said"
    said.touch()
    result = host(f"ezpz_setup_python 2>'{said}' | cat; echo done", SAID=str(said))
    assert result.stdout == "done\n"
    lines = said.read_text().splitlines()
    assert any(line.startswith("[ezpz] pip has worked for 15 s: Collecting torch==2") for line in lines), lines
    assert any(line.startswith("[ezpz] pip has worked for 30 s") for line in lines)
    assert "secret" not in said.read_text()


PIP_SAYS = [
    "Collecting torch==2.8.0",
    "  Downloading torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl (888.1 MB)",
    "  Preparing metadata (pyproject.toml): started",
    "  Building wheel for ezpz (pyproject.toml): finished with status 'done'",
    "Installing collected packages: mpmath, torch, ezpz",
]


def test_the_line_says_what_pip_does_in_its_own_words(host, subtests):
    """A private function of utils.sh: the public one would need pip to work for 15 seconds at each of its words."""
    host.program("sleep", 'if [ -e "$SLEPT" ]; then exit 1; else : >"$SLEPT"; fi')
    rows = {}
    for line in PIP_SAYS:
        log = host.bin.parent / f"log-{len(rows)}"
        log.write_text(f"Looking in indexes: https://h/simple\n{line}\n  Link: x\n")
        rows[line] = (f"ezpz__tick 'pip has worked' '{log}'", {"SLEPT": f"{log}.slept"})
    for line, result in host.rows(rows).items():
        with subtests.test(line):
            assert result.stderr.splitlines() == [f"[ezpz] pip has worked for 15 s: {line.strip()}"]


# ---- who brings the Python ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["uv", "micromamba"])
def test_uv_and_micromamba_bring_the_python_where_it_is_missing_or_asked_for(host, tool, subtests):
    brought = executable(host.cwd.parent / "brought/bin/python3", (host.bin / "python3").read_text())
    programs = {
        "uv": f'echo "uv $*" >>"$FAKE_LOG"\ncase "$1 $2" in "python find") echo {brought} ;; esac',
        "micromamba": 'echo "micromamba $*" >>"$FAKE_LOG"\n'
        'for at; do [ "$last" = --prefix ] && to="$at"; last="$at"; done\n'
        f'mkdir -p "$to/bin" && cp {brought} "$to/bin/python3"',
    }
    for asked_by, env in (("EZPZ_PYTHON", {"EZPZ_PYTHON": tool}), ("an old python3", {})):
        shell = host.another()
        shell.program(tool, programs[tool])
        if not env:
            shell.program("python3", "exit 1")
        with subtests.test(asked_by):
            result = shell('ezpz_setup_python; echo "$VIRTUAL_ENV"', **env)
            assert errors(result) == []
            assert result.stdout == f"{shell.cwd}/.venv\n"
            assert "MB to fetch" in result.stderr
            create = f"micromamba create --yes --quiet --prefix {shell.cwd}/.venv.python python=3.12"
            assert {"uv": "uv python install 3.12", "micromamba": create}[tool] in shell.calls()
            assert f"({tool}, Python 3.11.7)" in result.stderr


def test_a_tool_that_brings_nothing_is_one_line(host):
    host.program("uv", "echo no space >&2; exit 1")
    result = host("ezpz_setup_python", EZPZ_PYTHON="uv")
    assert result.returncode == 125
    assert "uv brought no Python: no space" in errors(result)[0]
    result = host("ezpz_setup_python", EZPZ_PYTHON="micromamba", PATH=f"{host.bin}:/usr/bin:/bin", MAMBA_EXE="")
    assert result.returncode == 2
    assert "no such program: micromamba (from EZPZ_PYTHON)" in errors(result)[0]
    assert list(host.cwd.iterdir()) == []


@pytest.mark.slow
def test_a_folder_that_holds_the_wheel_needs_no_index(host, tmp_path):
    """An index that cannot be reached would hold up every package for minutes."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    config = f'echo "{CONFIG}"'
    more = f"{config}; echo \":env:.find-links='/nowhere file://{folder}'\""
    python(host, config, more, (host.bin / "python3").read_text())
    (folder / "torch-2.99.0+cu128-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    (folder / "torch-2.99.0%2Bcu128-x.whl").touch()
    assert errors(host("ezpz_setup_python")) == []
    assert asked(host) == (f"{PIN}+cpu", "https://download.pytorch.org/whl/cpu")
    for wheel in ("torch-2.99.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "torch-2.99.0%2Bcpu-x.whl"):
        (folder / wheel).touch()
        result = host("ezpz_setup_python", EZPZ_VENV_DIR=str(tmp_path / f"another-{len(wheel)}"))
        assert errors(result) == []
        assert asked(host) == (f"{PIN}+cpu", "")
        (folder / wheel).unlink()
