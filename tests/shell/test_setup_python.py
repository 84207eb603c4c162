"""`ezpz_setup_python`: what it plans, what it says, what it leaves behind when something fails."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from shells import FAKE_PYTHON, ROOT, SHELLS, UTILS, errors, make_environment, tools

from lab.process import wait_until
from lab.terminal import open_terminal, shown_by

WHERE = 'printf "%s|%s|%s\\n" "$PATH" "${VIRTUAL_ENV:-}" "$-"'


def call(shell, args="", before="", **env):
    """Call the function plainly, then in `||`, and check what every failure has to keep."""
    result = shell(f"{before}\n{WHERE}\nezpz_setup_python {args}\nrc=$?\n{WHERE}\nexit $rc", **env)
    was, now = result.stdout.splitlines()
    if result.returncode:
        assert now == was, "a failure changed PATH, VIRTUAL_ENV or the options"
        assert len(errors(result)) == 1
    else:
        assert errors(result) == []
    return result


def test_a_fresh_folder_gets_a_venv_that_is_active(fake):
    result = call(fake)
    assert result.returncode == 0
    assert result.stdout.splitlines()[1].startswith(f"{fake.cwd}/.venv/bin:")
    (plan,) = fake.plans()
    assert plan.endswith(f"-c {fake.cwd}/.venv/ezpz-constraints.txt torch -e {ROOT}")
    assert (fake.cwd / ".venv/.ezpz-stamp").read_text().startswith("stamp 1\nmade by ezpz\n")


def test_it_says_what_how_large_from_where_and_into_which_folder(fake):
    said = call(fake).stderr
    base = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[0]
    names = re.findall(r'^  "(\w+)[><=][^;]*?",', base, re.MULTILINE)  # tomli is for one version of Python alone
    pin = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group()
    assert len(names) == 8
    for word in (*names, pin, "250 MB", "800 MB", "several GB", str(ROOT), f"{fake.cwd}/.venv", "the current folder"):
        assert word in said
    assert "https://index.example/simple" in said
    assert "secret" not in said


@pytest.mark.slow
def test_a_second_call_installs_nothing_in_this_shell_and_in_a_new_one(fake):
    call(fake)
    before = fake.calls()
    fake("ezpz_setup_python && ezpz_setup_python")
    added = fake.calls()[len(before) :]
    assert "plan" not in added
    assert "pip" not in added
    assert "-m venv" not in added
    assert added.count("-c") <= 3


@pytest.mark.slow
def test_a_changed_pyproject_or_another_source_is_installed_again(fake, checkout):
    def plans():
        return [line.split(" -e ")[-1] for line in fake.plans()]

    utils = checkout / "src/ezpz/bin/utils.sh"
    fake("ezpz_setup_python", utils)
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text() + "\n# changed\n")
    fake("ezpz_setup_python", utils)
    assert plans() == [str(checkout)] * 2
    fake("ezpz_setup_python", utils)
    assert plans() == [str(checkout)] * 2
    fake("ezpz_setup_python")
    assert plans() == [str(checkout)] * 2 + [str(ROOT)]


def test_torch_of_the_base_is_seen_and_never_planned(fake):
    result = call(fake, FAKE_TORCH="1")
    assert "torch is there already" in result.stderr
    assert "-m venv --system-site-packages" in fake.calls()
    assert not re.search(r" (torch|mpi4py)\b", fake.plans()[0])


@pytest.mark.slow
def test_the_folder_is_the_argument_or_the_variable(fake, subtests):
    for args, env, folder, said in (
        ("'my venv'", {}, "my venv", "the VENV argument"),
        ("", {"EZPZ_VENV_DIR": "elsewhere"}, "elsewhere", "EZPZ_VENV_DIR"),
        ("named", {"EZPZ_VENV_DIR": "else"}, "named", "the VENV argument"),
    ):
        with subtests.test(folder):
            result = call(fake, args, **env)
            assert (fake.cwd / folder / "bin/python3").exists()
            assert f"{fake.cwd}/{folder} ({said})" in result.stderr


@pytest.mark.slow
def test_the_log_says_where_the_base_python_came_from(fake):
    result = call(fake, LOADEDMODULES="gcc/13.2:frameworks/2025.0:cray-mpich")
    assert "python3 on PATH, of the loaded module frameworks/2025.0" in result.stderr
    other = fake.program("other-python", (fake.bin / "python3").read_text())
    result = call(fake, "second", EZPZ_PYTHON="other-python")
    assert f"on {other} (EZPZ_PYTHON, " in result.stderr


# ---- an environment beside utils.sh ---------------------------------------------------------------------------------


@pytest.fixture
def beside(fake, checkout):
    """A copy of the checkout with an environment that `ezpz_setup_python` has made there; utils.sh of that copy."""
    utils = checkout / "src/ezpz/bin/utils.sh"
    assert fake(f"cd '{checkout}' && ezpz_setup_python", utils).returncode == 0
    yield utils
    shutil.rmtree(checkout / ".venv")


def test_from_another_folder_the_environment_beside_utils_sh_is_used(fake, beside, checkout):
    plans = fake.plans()
    result = fake("ezpz_setup_python && type -P python3 || whence -p python3", beside)
    assert result.stdout == f"{checkout}/.venv/bin/python3\n"
    assert "(beside this utils.sh)" in result.stderr
    assert "for an environment of this folder: ezpz_setup_env .venv" in result.stderr
    assert fake.plans() == plans
    assert not (fake.cwd / ".venv").exists()


@pytest.mark.slow
def test_what_was_asked_for_goes_before_the_environment_beside_utils_sh(fake, beside, subtests):
    for args, env in ((".venv", {}), ("", {"EZPZ_VENV_DIR": ".venv"}), ("", {"EZPZ_PYTHON": "python3"})):
        with subtests.test(args, **env):
            result = fake(f"ezpz_setup_python {args}", beside, **env)
            assert f"python3 is {fake.cwd}/.venv/bin/python3" in result.stderr
            shutil.rmtree(fake.cwd / ".venv")
    assert f"python3 is {fake.cwd}/.venv" in fake("ezpz_setup_python", beside, EZPZ_TORCH="cpu").stderr


# ---- on a terminal --------------------------------------------------------------------------------------------------


def test_while_pip_works_a_terminal_shows_one_line(shell):
    """A private function of utils.sh, since the public one would need a pip that works for seconds."""
    (shell.cwd / "typed").write_text(
        "works() { seq -f 'Collecting p%g' 50; sleep 2.5; } >log\n"
        'given() { if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi; ezpz__speaking "pip has worked" log works; }\n'
        f"source '{UTILS}'; given; echo 'that was all'\n"
    )
    words = ["setsid", "--ctty", "--wait", *SHELLS[shell.name], "-i"]
    with open_terminal(60) as (screen, program):
        os.write(screen, b"source ./typed; exit\n")
        run = subprocess.Popen(
            words, cwd=shell.cwd, env=shell.env | {"TERM": "xterm"}, stdin=program, stdout=program, stderr=program
        )
        written = shown_by(run, screen, 60)
    assert "[ezpz] pip has worked for 1 s: Collecting p50" in written
    assert written.split("p50")[-1].startswith("\r\x1b[Kthat was all"), "other words, or a line that stays"


# ---- an environment that the user made ------------------------------------------------------------------------------


@pytest.fixture
def active(fake):
    """An active virtual environment that ezpz did not make; it holds torch."""
    env = make_environment(fake, FAKE_PYTHON)
    fake.env |= {"VIRTUAL_ENV": str(env), "PATH": f"{env}/bin:{fake.env['PATH']}"}
    return env


def test_an_active_environment_is_used_and_its_torch_kept(fake, active):
    result = call(fake)
    assert result.returncode == 0
    assert f"installing into {active}" in result.stderr
    assert not (fake.cwd / ".venv").exists()
    assert not re.search(r" torch\b", fake.calls())
    assert "used by ezpz" in (active / ".ezpz-stamp").read_text()


def test_an_active_environment_that_has_this_checkout_gets_nothing(fake, active):
    (active / "ezpz").write_text(str(ROOT))
    result = call(fake)
    assert "installing" not in result.stderr
    assert "plan" not in fake.calls()


def test_an_active_conda_is_used(fake, active):
    result = call(fake, before="unset VIRTUAL_ENV", CONDA_PREFIX=str(active))
    assert f"{active}/bin/python3 (active, CONDA_PREFIX)" in result.stderr


@pytest.mark.slow
def test_a_named_environment_wins_over_the_active_one(fake, active):
    result = call(fake, "other")
    assert result.stdout.splitlines()[1].startswith(f"{fake.cwd}/other/bin:")
    assert call(fake, "mine").returncode == 0
    assert "-m venv mine" not in fake.calls()


def test_an_environment_that_cannot_be_written_is_left_alone(fake, active):
    (active / "lib").rmdir()  # for root, only what is not there cannot be written
    result = call(fake)
    assert result.returncode == 125
    assert "ezpz_setup_env FOLDER" in errors(result)[0]


@pytest.mark.parametrize("how", ["active", pytest.param("named", marks=pytest.mark.slow)])
def test_an_environment_of_others_that_has_all_is_used_as_it_is(fake, active, how):
    """It is the group's, with the group's own checkout."""
    (active / "ezpz").write_text("/group/checkout")
    (active / "bin/activate").write_text(f'VIRTUAL_ENV="{active}"; PATH="{active}/bin:$PATH"\n')
    (active / "lib").rmdir()
    leave = f"unset VIRTUAL_ENV; PATH='{fake.bin}:/usr/bin:/bin'"
    result = call(fake) if how == "active" else call(fake, "mine", before=leave)
    assert result.returncode == 0, result.stderr
    assert "plan" not in fake.calls()
    (line,) = [line for line in result.stderr.splitlines() if "used as it is" in line]
    assert f"{active} may not be written and is used as it is: its ezpz is /group/checkout/src/ezpz, not {ROOT}" in line
    assert "ezpz_setup_env FOLDER" in line
    assert "proved: " in result.stderr
    assert result.stdout.splitlines()[1].startswith(f"{active}/bin:")


def test_an_environment_of_others_that_lacks_a_part_is_refused(fake, active, subtests):
    (active / "lib").rmdir()
    for missing in ("torch", "ezpz"):
        for name in ("torch", "ezpz"):
            (active / name).write_text("/group/checkout")
        (active / missing).unlink()
        with subtests.test(missing):
            result = call(fake)
            assert result.returncode == 125
            assert "permission denied" in errors(result)[0]


@pytest.mark.slow
def test_a_venv_that_was_moved_is_made_again_in_its_place(fake):
    call(fake, "here")
    (fake.cwd / "here").rename(fake.cwd / "there")
    result = call(fake, "there")
    assert result.stdout.splitlines()[1].startswith(f"{fake.cwd}/there/bin:")
    assert f"venv {fake.cwd}/there\n" in (fake.cwd / "there/.ezpz-stamp").read_text()


def _copy(fake):
    """Make a project with its environment, copy both (`cp -a`), and return the two environments."""
    project, copy = fake.cwd / "project", fake.cwd / "copy"
    project.mkdir()
    call(fake, before="cd project")
    shutil.copytree(project, copy, symlinks=True)
    return project / ".venv", copy / ".venv"


def test_a_copied_environment_becomes_that_of_its_own_folder(fake):
    """Also where the copy's own activate script, which leads to the original, has run before."""
    original, copied = _copy(fake)
    before = (original / ".ezpz-stamp").read_text()
    result = call(fake, before=f"cd copy; . '{copied}/bin/activate'")
    assert result.stdout.splitlines()[1].startswith(f"{copied}/bin:")
    assert (
        f"VIRTUAL_ENV is not used: {original} belongs to another folder, of which {copied} is a copy" in result.stderr
    )
    assert f"{copied} was made in {original}, and copied or moved" in result.stderr
    assert (original / ".ezpz-stamp").read_text() == before
    assert "installing" not in call(fake, before="cd copy").stderr


def test_a_copied_environment_that_the_user_made_is_told_and_left_alone(fake):
    original, copied = _copy(fake)
    (copied / ".ezpz-stamp").unlink()
    result = call(fake, before="cd copy")
    assert result.returncode == 2
    (line,) = errors(result)
    assert f"a copied environment: {copied}" in line
    assert f"lead to {original}" in line
    assert not (copied / ".ezpz-stamp").exists()


@pytest.mark.slow
def test_the_programs_of_a_copied_environment_are_its_own(shell, real_python, tmp_path):
    """A private function of utils.sh: the public one would install a real environment twice."""
    old, new = tmp_path / "project/.venv", tmp_path / "my copy/.venv"
    subprocess.run([real_python, "-m", "venv", "--without-pip", old], check=True)
    (library,) = old.glob("lib/python3*/site-packages")
    for name, url, editable in (("mine", f"file://{old.parent}/own", True), ("theirs", "file:///opt/theirs", True)):
        info = library / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": editable}}))
    (old / "bin/pip").write_text(f"#!{old}/bin/python3\n\nprint('{old}/bin/', 1)\n")
    (old / "bin/pip").chmod(0o755)
    shutil.copytree(old.parent, new.parent, symlinks=True)
    result = shell(f"venv='{new}' src=''; ezpz__lead_home '{old}'")
    assert subprocess.run([new / "bin/pip"], capture_output=True, text=True, check=True).stdout == f"{old}/bin/ 1\n"
    assert str(old) not in (new / "bin/pip").read_text().split("print")[0]
    (line,) = result.stderr.splitlines()
    assert f"mine is still imported from {old.parent}/own; for the copy: pip install -e {new.parent}/own" in line


def test_a_venv_of_the_user_is_never_made_again(fake, active):
    (active / "bin/activate").write_text('PATH="$PWD/mine/bin:$PATH"\n')
    result = call(fake, "mine", before=f"unset VIRTUAL_ENV; PATH='{fake.bin}:/usr/bin:/bin'")
    assert result.returncode == 0
    assert "-m venv" not in fake.calls()
    assert "used by ezpz" in (active / ".ezpz-stamp").read_text()


@pytest.mark.slow
def test_a_stale_virtual_env_is_not_believed_and_a_base_python_that_is_not_used_is_told(fake):
    result = call(fake, VIRTUAL_ENV="/gone/away")
    assert result.stdout.splitlines()[1].startswith(f"{fake.cwd}/.venv/bin:")
    assert "EZPZ_PYTHON is not used" in call(fake, EZPZ_PYTHON="python3").stderr


# ---- what the user or the machine got wrong -------------------------------------------------------------------------


@pytest.mark.slow
def test_an_environment_without_pip_whose_python_has_no_ensurepip_is_told_what_it_lacks(fake):
    """Made by uv, or with ``--without-pip``, on a Debian or Ubuntu without the package python3-venv."""
    call(fake, "pipless")
    (fake.cwd / "pipless" / "torch").unlink()
    result = call(fake, "pipless", FAKE_NO_PIP="1", FAKE_NO_ENSUREPIP="0")
    assert result.returncode == 125
    (error,) = errors(result)
    assert f"no pip in the environment: {fake.cwd}/pipless (from the VENV argument), whose" in error
    assert "Install the package python3-venv (python3.11-venv)" in error
    assert "free" not in error  # the disk is not to blame


OFFLINE = "WARNING: Retrying after connection broken by 'NewConnectionError(...)': /simple/torch/\n"
OFFLINE += "ERROR: No matching distribution found for torch"
PINNED = "    ezpz 0.1.0 depends on xarray>=2024.1\n    The user requested (constraint) xarray==2026.9.0\n"
PINNED += "ERROR: ResolutionImpossible: for help visit"
CANNOT = "ERROR: Could not install packages due to an OSError"
BAD_INPUT = {
    "python too old": ("", {"FAKE_VERSION": "3.8.10"}, 2, "too old: 3.8.10 .*EZPZ_PYTHON=", "no venv"),
    "python2": ("", {"EZPZ_PYTHON": "old-python"}, 2, "too old: 2.7.18 .from EZPZ_PYTHON", "no venv"),
    "no such python": ("", {"EZPZ_PYTHON": "/no/python"}, 2, "no such Python: /no/python .from EZPZ_PYTHON", "no venv"),
    "broken python": ("", {"EZPZ_PYTHON": "broken"}, 2, "does not run: .*broken .* says: it is broken", "no venv"),
    "no ensurepip": ("", {"FAKE_NO_ENSUREPIP": "0"}, 125, "no ensurepip.*python3-venv.*EZPZ_PYTHON", "no venv"),
    "venv is a file": ("a-file", {}, 2, "not a folder: .*/a-file .from the VENV argument", ""),
    "parent is a file": ("a-file/venv", {}, 2, "a part of .*/a-file/venv .* is a file", ""),
    "venv is a project": ("project", {}, 2, "not a virtual environment: .*/project", ""),
    "venv in /proc": ("/proc/venv", {}, 125, "cannot make the folder: /proc/venv .*ezpz_setup_env FOLDER", ""),
    "option": ("--force", {}, 2, "unknown argument: --force", "no venv"),
    "two folders": ("one two", {}, 2, "unknown argument: two", "no venv"),
    "no source": ("", {"EZPZ_SOURCE": "gone"}, 2, "no ezpz to install: gone .from EZPZ_SOURCE", "no venv"),
    "no constraints": ("", {"EZPZ_CONSTRAINTS": "gone"}, 2, "no constraints file: gone", "no venv"),
    "no space for the venv": ("", {"FAKE_VENV_SAYS": "OSError: [Errno 28] No space left on device"}, 125,
     "cannot make the virtual environment: .*no space left.*ezpz_setup_env FOLDER", ""),
    "no permission for the venv": ("", {"FAKE_VENV_SAYS": "Error: [Errno 13] Permission denied: '/x'"}, 125,
     "cannot make the virtual environment: .*: permission denied", ""),
    "pip fails": ("", {"FAKE_PIP_SAYS": "ERROR: ResolutionImpossible: for help visit"}, 125,
     "pip failed: ResolutionImpossible.*ezpz-install.log, then call this again", ""),
    "build fails": ("", {"FAKE_PIP_SAYS": "      OSError: No Readme: README.md\nerror: metadata-generation-failed"},
     125, "pip failed: OSError: No Readme: README.md", ""),
    "missing wheel": ("", {"FAKE_PIP_SAYS": "ERROR: No matching distribution found for hatchling>=1.25"}, 125,
     "no matching package: hatchling>=1.25 .from https://index.example/simple", ""),
    "missing pinned wheel": ("", {"FAKE_PIP_SAYS": PINNED}, 125,
     "no matching package: xarray==2026.9.0 .from https://index.example/simple", ""),
    "no network": ("", {"FAKE_PIP_SAYS": OFFLINE}, 125, "no network: .*found no wheel of torch.*PIP_FIND_LINKS", ""),
    "no space for packages": ("", {"FAKE_PIP_SAYS": f"{CANNOT}: [Errno 28] No space left on device"}, 125,
     "pip cannot install: .*no space left", ""),
    "no permission for packages": ("", {"FAKE_PIP_SAYS": f"{CANNOT}: [Errno 13] Permission denied: '/x'"}, 125,
     "pip cannot install: .*permission denied", ""),
    "import fails": ("", {"FAKE_IMPORT_SAYS": "ImportError: libcudart.so.12: cannot open shared object file"}, 125,
     "do not import: ImportError: libcudart.so.12", ""),
}  # fmt: skip


@pytest.mark.parametrize("part", ["some", pytest.param("the others", marks=pytest.mark.slow)])
def test_bad_input_is_one_line_with_its_code(fake, part, subtests):
    for number, (case, (args, env, code, said, after)) in enumerate(BAD_INPUT.items()):
        if (number % 8 == 0) != (part == "some"):
            continue
        shell = fake.another()
        (shell.cwd / "a-file").touch()
        (shell.cwd / "project").mkdir()
        (shell.cwd / "project/thesis.tex").touch()
        shell.program("old-python", "printf 2.7.18'|'")
        shell.program("broken", "echo it is broken >&2; exit 1")
        with subtests.test(case):
            result = call(shell, args, **env)
            assert result.returncode == code
            line = errors(result)[0]
            assert re.search(said, line), line
            assert "expected" in line
            assert (shell.cwd / "project/thesis.tex").exists()
            if after == "no venv":
                assert not (shell.cwd / ".venv").exists()


def test_no_python_at_all(fake):
    (fake.bin / "python3").unlink()
    only = tools(fake, "awk readlink ls tr cat mkdir")
    result = call(fake, before=f"PATH='{only}'")
    assert result.returncode == 125
    assert "no Python: python3 (from PATH)" in errors(result)[0]


@pytest.mark.slow
def test_without_a_checkout_the_source_must_be_named(fake, checkout):
    script = f"source <(command cat '{UTILS}')\nezpz_setup_python; echo rc=$?"
    result = fake.bare(script)
    assert result.stdout == "rc=2\n"
    assert "Set EZPZ_SOURCE" in errors(result)[0]
    assert not (fake.cwd / ".venv").exists()
    assert fake.bare(script, EZPZ_SOURCE="git+https://example.org/ezpz.git").stdout == "rc=0\n"
    assert "plan " in fake.calls()
    assert re.search(r"plan .* torch git\+https://example.org/ezpz.git$", fake.calls(), re.MULTILINE)
    assert fake.bare(script, EZPZ_SOURCE=str(checkout)).stdout == "rc=0\n"
    assert re.search(rf"plan .*-e {checkout}$", fake.calls(), re.MULTILINE)
    assert fake.bare(script).stdout == "rc=0\n", "what is installed serves a shell that names no source"


def test_a_strict_caller_survives_and_can_succeed(fake):
    result = fake(
        'set -euo pipefail\nif ezpz_setup_python a/b/../c; then :; fi\nezpz_setup_python /proc/x || echo "rc=$?"\n'
        "ezpz_setup_python && ezpz_setup_job >/dev/null && echo chained\nezpz_setup_python\nezpz_setup_env >/dev/null\n"
        "launch\necho end"
    )
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if "export" not in line] == ["rc=125", "chained", "end"]


def test_user_aliases_do_not_reach_inside(fake):
    names = "cd ls python3 cat mkdir rm mv grep awk sed tr cksum source readlink test"
    aliases = "\n".join(f"alias {name}='echo HIJACKED'" for name in names.split())
    switch = "shopt -s expand_aliases" if fake.name == "bash" else "setopt aliases"
    result = fake.bare(f"{switch}\n{aliases}\n. '{UTILS}'\nezpz_setup_env\necho rc=$?")
    assert "HIJACKED" not in result.stdout + result.stderr
    assert result.stdout.endswith("rc=0\n")


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["FAKE_SLOW", "FAKE_SLOW_VENV"])
def test_after_an_interrupt_the_next_call_completes(fake, slow):
    process = fake.start(f"source '{UTILS}'; ezpz_setup_python; echo rc=$?", **{slow: "1"})
    try:
        wait_until(Path(fake.env["FAKE_LOG"] + ".slow").exists, 60, "the slow part")
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0 or "rc=130" in out
    assert "VIRTUAL_ENV" not in out
    result = call(fake)
    assert result.returncode == 0
    assert "made by ezpz" in (fake.cwd / ".venv/.ezpz-stamp").read_text()
    assert " torch " in fake.plans()[-1], "a torch that was cut while it was unpacked looks as if it were there"


# ---- with a real Python and a real pip ------------------------------------------------------------------------------

SEE = "python3 -c 'import sys, ezpz, torch; print(sys.prefix, ezpz.__file__, torch.__file__, sep=\"|\")'"


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash"], indirect=True)  # with the stand-in for Python, zsh does the same
def test_a_real_environment_on_a_base_that_holds_torch(shell, checkout, real_python):
    """The base is itself a virtual environment; the new one sees its torch, and pip plans neither torch nor mpi4py.

    It begins with what an interrupted `python -m venv` leaves: no pip, and a link that leads nowhere.
    """
    utils = checkout / "src/ezpz/bin/utils.sh"
    venv = shell.cwd / "a venv"
    subprocess.run([real_python, "-m", "venv", "--without-pip", venv], check=True)
    (venv / "bin/python3").unlink()
    (venv / "bin/python3").symlink_to("/gone/python3")
    result = shell(f"ezpz_setup_python 'a venv' && {SEE}", utils, EZPZ_PYTHON=real_python)
    assert result.returncode == 0, result.stderr
    prefix, ezpz, torch = result.stdout.strip().split("|")
    assert prefix == str(venv)
    assert ezpz.startswith(str(checkout))
    assert not torch.startswith(prefix)
    log = (venv / "ezpz-install.log").read_text()
    assert not re.search(r"(Collecting|Downloading|Installing).*\b(torch|mpi4py)\b", log)

    pins = (venv / "ezpz-constraints.txt").read_text()
    assert not re.search(r"^(torch|numpy)==", pins, re.MULTILINE), "what the base brings must not be up- or downgraded"

    written = (venv / "ezpz-install.log").stat().st_mtime_ns
    again = shell("ezpz_setup_python 'a venv' && python3 -c 'import sys; print(sys.prefix)'", utils)
    assert (again.returncode, again.stdout) == (0, f"{venv}\n")
    assert "installing" not in again.stderr
    assert (venv / "ezpz-install.log").stat().st_mtime_ns == written, "pip ran again"


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_a_real_pip_without_network(shell, checkout, real_python):
    env = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    env |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "EZPZ_PYTHON": real_python}
    result = call(shell, before=f"source '{checkout}/src/ezpz/bin/utils.sh'", **env)
    assert result.returncode == 125
    assert "no network: pip could not reach http://127.0.0.1:9/simple and found no wheel of hatchling" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash"], indirect=True)
def test_a_real_full_disk(shell, real_python):
    disk = shell.cwd / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        result = call(shell, "disk/venv", EZPZ_PYTHON=real_python)
    finally:
        subprocess.run(["umount", disk], check=True)
    assert result.returncode == 125
    assert "no space left on the device" in result.stderr
