"""The wheel: built without a network, installed into a plain venv, and used there by an ordinary user."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import ezpz
from lab.checkout import ROOT
from lab.require import require

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NOBODY = 65534
NEEDED = (  # what people use who have no checkout
    *("ezpz/bin/utils.sh", "ezpz/cluster/sites.toml", "ezpz/py.typed", "ezpz/view/report/style.css"),
    "ezpz/cli/starters/train.py",
    *("ezpz/examples/minimal.py", "ezpz/examples/jobs/generic.slurm", "ezpz/examples/jobs/aurora.pbs"),
    "ezpz/examples/jobs/train_configs/debug_model.toml",
    *("ezpz/bin/completion.bash", "ezpz/bin/completion.zsh"),
)


@pytest.fixture(scope="module")
def place():
    """A folder that everybody can read, wherever the tests' own folder lies."""
    folder = Path(tempfile.mkdtemp(prefix="ezpz-wheel-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def wheel(place):
    source = place / "source"
    for name in ("src/ezpz", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    (place / "dist").mkdir()
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, place / "dist"], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return next((place / "dist").glob("ezpz-*.whl"))


def base_python():
    """A Python that an ordinary user can start: the one under the tests, else the system's."""
    own = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    if os.getuid():
        return own, None
    for path in (own, Path("/usr/bin/python3")):
        works = "import sys, venv; sys.exit(sys.version_info < (3, 11))"
        try:
            done = subprocess.run([path, "-c", works], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", check=False)
        except OSError:  # not readable for others
            continue
        if done.returncode == 0:
            return path, NOBODY
    return own, None


@pytest.fixture(scope="module")
def user(wheel, place):
    """`user(words)` runs a command as an ordinary user with an empty home, in a venv that holds the wheel alone."""
    python, uid = base_python()
    venv, home = place / "venv", place / "home"
    subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True)
    install = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*install, "--no-cache-dir", "--disable-pip-version-check", wheel], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    packages = next(venv.glob("lib/python3.*/site-packages"))
    if uid is None and sys.version_info < (3, 11):  # what reads TOML before Python does
        shutil.copytree(Path(find_spec("tomli").origin).parent, packages / "tomli")
    home.mkdir()
    if uid is not None:
        os.chown(home, uid, uid)
    env = {
        "HOME": str(home),
        "PATH": f"{venv}/bin:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TMPDIR": str(home),
    }
    who = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}

    def run(words, **more):
        return subprocess.run(
            words, env={**env, **more}, cwd=home, capture_output=True, text=True, timeout=200, check=False, **who
        )

    run.packages = packages
    return run


def test_the_wheel_holds_what_is_used_without_a_checkout_and_no_test(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert set(NEEDED) <= set(names)
    assert {name.split("/")[0] for name in names} == {"ezpz", f"ezpz-{ezpz.__version__}.dist-info"}
    assert not [name for name in names if "/tests/" in name or name.endswith(".pyc")]


def test_both_programs_start(user):
    done = user(["ezpz", "--version"])
    assert (done.stdout, done.stderr) == (f"ezpz {ezpz.__version__}\n", "")
    done = user(
        ["launch", "-n", "2", "--flavour", "local", "python3", "-c", "import os; print('rank', os.environ['RANK'])"]
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"]
    done = user(["launch", "-n"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ezpz: -n needs a value")


def test_what_needs_no_library_works_without_any(user):
    for words in (["where"], ["sites", "aurora"], ["benchmark", "--list"], ["--help"], ["kill"]):
        done = user(["ezpz", *words])
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout


def test_the_functions_of_the_shell_come_from_the_wheel(user):
    use = 'type -t launch ezpz_setup_env; launch -n 2 --flavour local python3 -c "print(7)"'
    script = f'set -eu; eval "$(ezpz shell)"; {use}'
    done = user(["bash", "--norc", "--noprofile", "-c", script])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["function", "function", "7", "7"]
    assert str(user.packages / "ezpz" / "bin" / "utils.sh") in user(["ezpz", "shell"]).stdout


def test_a_job_script_and_a_training_are_written(user):
    done = user(["ezpz", "init", "polaris"])
    assert done.returncode == 0, done.stderr
    done = user(["bash", "-c", "cat job.pbs; python3 -m py_compile train.py && echo whole"])
    assert str(user.packages / "ezpz" / "bin" / "utils.sh") in done.stdout
    assert f"ezpz_setup_env {user.packages.parents[2]}\n" in done.stdout
    assert done.stdout.endswith("whole\n")


@pytest.mark.parametrize("source", ["wheel", "checkout"])
def test_uv_installs_both_programs_as_a_tool(source, wheel, place, tmp_path):
    path = f"{tmp_path}/.local/bin:{os.environ['PATH']}:{ROOT}/.test/uv/bin"
    uv = shutil.which("uv", path=path)
    require("uv", None if uv else "no uv on PATH, and `tests/lab/setup uv` has not run")
    env = {**os.environ, "HOME": str(tmp_path), "PATH": path}

    def run(*words):
        return subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)

    what = wheel if source == "wheel" else place / "source"
    done = run(uv, "tool", "install", "--python", sys.executable, what)
    assert done.returncode == 0, done.stderr
    assert run("ezpz", "--version").stdout == f"ezpz {ezpz.__version__}\n"
    assert run("launch", "-n", "2", "--flavour", "local", "echo", "up").stdout == "up\nup\n"
    assert run("ezpz", "completion", "bash").stdout.startswith("# Completion of `ezpz`")
    # Ranks run the Python of the project, and not that of the tool, which has no torch.
    run(sys.executable, "-m", "venv", "--without-pip", "project")
    (tmp_path / "train.py").write_text("import sys; print(sys.prefix)")
    env["PATH"] = f"{tmp_path}/project/bin:{path}"
    for words in (["train.py"], ["-m", "train"], ["--nproc_per_node=1", "train.py"], ["python3", "train.py"]):
        assert run("launch", "-n", "1", "--flavour", "local", *words).stdout == f"{tmp_path}/project\n"
    done = run("ezpz", "test")
    assert (done.returncode, "project/bin/python3 has no ezpz and torch" in done.stderr) == (2, True), done.stderr
    # Where another ezpz comes first on PATH, doctor says so.
    other = tmp_path / "other"
    other.mkdir()
    (other / "ezpz").write_text("#!/bin/sh\n")
    (other / "ezpz").chmod(0o755)
    env["PATH"] = f"{other}:{env['PATH']}"
    found = run(tmp_path / ".local" / "bin" / "ezpz", "doctor")
    assert str(other / "ezpz") in found.stdout, found.stdout
