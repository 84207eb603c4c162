"""Fixtures for everything that needs more than a function call: clean environments, hosts, Slurm, MPI flavours."""

from __future__ import annotations

import gc
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from lab import flavours, process, seed, selection
from lab import hosts as lab_hosts
from lab import openpbs as lab_openpbs
from lab import slurm as lab_slurm
from lab.browser import Browser
from lab.require import require, required

_TESTS = str(Path(__file__).resolve().parent)


def pytest_configure(config):
    required()  # an unknown name in EZPZ_REQUIRE stops the run here
    gc.disable()  # until all is collected: nothing of it goes before the end
    os.environ.pop("PWD", None)  # tests change the folder, and no shell that is behind them did
    selection.set_number_of_examples(config)
    # A script's background ignores the first two, nohup the last, and all launches would do so.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_report_header():
    return f"seed of the day: {seed.of_the_day()} ({seed.VARIABLE} names another)"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["quick"] = selection.is_quick(node.config)  # a worker of xdist cannot tell it from its arguments
    node.workerinput["dist"] = node.config.option.dist


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    selection.choose(config, items)


def pytest_collection_finish():
    gc.freeze()  # torch and thousands of tests stay to the end: the collector need not look through them again
    gc.enable()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # on the small tensors of tests, threads do nothing but wait for others


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    report = (yield).get_result()
    selection.skip_for_want_of_torch(report, str(report.longrepr))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call):
    report = (yield).get_result()
    selection.skip_for_want_of_torch(report, f"{call.excinfo and call.excinfo.value!r} {report.longrepr}")


@pytest.fixture(autouse=True)
def _environment_is_kept():
    """Fail a test that leaves `os.environ` changed, and put it back for those that follow."""
    before = dict(os.environ)
    yield
    after = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    before.pop("PYTEST_CURRENT_TEST", None)
    if after == before:
        return
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]
    if changed != ["TORCHINDUCTOR_CACHE_DIR"]:  # which torch itself sets when it is first needed
        pytest.fail(f"the test left os.environ changed: {', '.join(changed)}", pytrace=False)


@pytest.fixture(autouse=True)
def _modules_keep_no_fakes():
    """Fail a test under whose patches a module was imported that now holds a fake for the rest of the run."""
    before = set(sys.modules)
    yield
    for name in [each for each in sys.modules if each.startswith("ezpz") and each not in before]:
        for attribute, value in vars(sys.modules[name]).items():
            code = getattr(value, "__code__", None)
            if code is not None and code.co_filename.startswith(f"{_TESTS}{os.sep}"):
                pytest.fail(f"{name}.{attribute} is a fake of this test: import {name} before patching", pytrace=False)


@pytest.fixture
def tag():
    """The value of EZPZ_TEST_TAG in this test's `clean_env`; what carries it must be gone when the test ends."""
    value = f"ezt-{uuid.uuid4().hex[:12]}"
    yield value
    left = {}

    def gone():
        left.clear()
        left.update(process.survivors(value))
        return not left

    try:
        process.wait_until(gone, 5, "the end of this test's processes")
    except AssertionError:
        process.kill_all(left)
        lines = "\n".join(f"  {pid}: {line[:150]}" for pid, line in left.items())
        pytest.fail(f"processes outlived the test (killed now):\n{lines}", pytrace=False)


@pytest.fixture
def home(tmp_path):
    """The empty home folder of `clean_env`."""
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def clean_env(home, tag):
    """A minimal environment (a dict to copy): an empty HOME, the tests' Python first on PATH, nothing of a launcher."""
    return process.minimal_env(home, tag, flavours.base_bin())


@pytest.fixture
def survivors(tag):
    """`survivors()` -> {pid: command line} of this test's processes that still live."""
    return lambda: process.survivors(tag)


@pytest.fixture
def run_cli(clean_env, tmp_path):
    """`run_cli(args, env=clean_env, timeout=60, cwd=tmp_path, stdin=None)` -> CompletedProcess; args[0] is on PATH."""

    def run(args, env=None, timeout=60, *, cwd=None, stdin=None):
        return process.run(args, clean_env if env is None else env, timeout=timeout, cwd=cwd or tmp_path, stdin=stdin)

    return run


@pytest.fixture
def hostram(run_cli):
    """Build the device `hostram`, or skip the test with the reason; it fails where ``compiler`` is required."""
    done = run_cli([sys.executable, Path(_TESTS) / "dist" / "outoftree" / "hostram.py"], timeout=280)
    assert done.returncode == 0 or done.stderr.count("\n") == 1, done.stderr  # one line is a reason, more are an error
    require("compiler", done.stderr.strip() if done.returncode else None)


@pytest.fixture(scope="session")
def _can_make_hosts():
    problem = lab_hosts.problem()
    if not problem:
        lab_hosts.sweep()
    return problem


@pytest.fixture
def make_hosts(_can_make_hosts):
    """`make_hosts("head", "n01", …)` -> Hosts, as many labs as wanted, all gone after the test."""
    require("hosts", _can_make_hosts)
    labs = []

    def make(*names):
        lab = lab_hosts.Hosts(*names)
        labs.append(lab)
        return lab.__enter__()

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def hosts(make_hosts):
    """A lab of `head`, `n01` and `n02`, this test's own: it may break them."""
    return make_hosts("head", "n01", "n02")


@pytest.fixture(scope="session")
def _slurm(_can_make_hosts):
    if _can_make_hosts or lab_slurm.problem():
        yield None
        return
    with lab_hosts.Hosts("head", "n01", "n02") as lab:
        cluster = lab_slurm.Slurm(lab)
        yield cluster.start()
        cluster.stop()


@pytest.fixture(scope="session")
def _slurm_by_groups(_can_make_hosts):
    if _can_make_hosts or lab_slurm.groups_problem():
        yield None
        return
    with lab_hosts.Hosts("head", "n01", "n02", "n03", "n04") as lab:
        cluster = lab_slurm.Slurm(lab, by_groups=True)
        yield cluster.start()
        cluster.stop()


@pytest.fixture
def slurm_by_groups(_slurm_by_groups, _can_make_hosts):
    """Another one, which follows processes by control groups and preempts jobs, as most clusters do."""
    require("hosts", _can_make_hosts)
    require("slurm_by_groups", lab_slurm.groups_problem())
    return _slurm_by_groups


@pytest.fixture(scope="session")
def _open_pbs(_can_make_hosts):
    if _can_make_hosts or lab_openpbs.problem():
        yield None
        return
    with lab_hosts.Hosts("head", "n01", "n02", "n03") as lab:
        cluster = lab_openpbs.OpenPbs(lab)
        yield cluster.start()
        cluster.stop()


@pytest.fixture
def open_pbs(_open_pbs, _can_make_hosts):
    """A real OpenPBS of `n01`, `n02` and `n03`; one for the whole run, so leave no job behind."""
    require("hosts", _can_make_hosts)
    require("openpbs", lab_openpbs.problem())
    return _open_pbs


@pytest.fixture(params=["slurm", "slurm_by_groups"])
def each_slurm(request):
    """Each of both in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def slurm(_slurm, _can_make_hosts):
    """A Slurm of `n01` and `n02`, submitted to from `head`; one for the whole run, so leave no job behind."""
    require("hosts", _can_make_hosts)
    require("slurm", lab_slurm.problem())
    return _slurm


@pytest.fixture(params=flavours.NAMES)
def flavour(request, home, tag):
    """Each MPI flavour in turn: `.name .bin .python .mpiexec .env() .bare_env() .command(ranks, args, …)`."""
    value = flavours.Flavour(request.param, home, tag)
    require(value.name, value.problem())
    return value


@pytest.fixture(params=flavours.NAMES if os.environ.get("EZPZ_MATRIX") else ["drawn"])
def drawn_flavour(request, home, tag):
    """One MPI flavour, drawn for this test by the seed of the day from those that are here; each in `make matrix`."""
    if request.param != "drawn":
        names = [request.param]
    else:
        here = [name for name in flavours.NAMES if not flavours.Flavour(name, home, tag).problem()]
        names = [seed.pick(seed.of_the_day(), request.node.nodeid, here or flavours.NAMES)]
    value = flavours.Flavour(names[0], home, tag)
    require(value.name, value.problem())
    return value


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium, one for the whole run."""
    tag = f"ezt-{uuid.uuid4().hex[:12]}"
    with Browser(tmp_path_factory.mktemp("browser"), tag) as opened:
        yield opened
    process.wait_until(lambda: not process.survivors(tag), 20, "the end of all its processes")
