"""Choose which tests run: the quick ones by default, all of a file that is named, all but ``learn`` in ``make test``.

Marks: ``lab`` (hosts in namespaces, Slurm, an MPI flavour, a browser: set here, by the fixtures that a test takes),
``slow`` (waits, or costs more than a tenth of a second of CPU and is not all that shows its part: set in the test
files), ``learn`` (trains whole networks) and ``gpu`` (needs a device: `make gpu`).
Of a test marked ``few(N)`` the quick run takes the first N cases. Of those marked ``dear`` `make test` takes a
third, by the seed of the day: all within three days. Whoever names a file or an expression gets all, and `make learn`
runs all.

    pytest                         neither slow, lab nor learn
    pytest tests                   all but learn, as `make test` runs it; so does naming a folder, a file or a test
    pytest -m "slow or lab"        what an expression says

The quick run also tries fewer examples of each property (hypothesis).

Where torch is not installed, a test that needs it is skipped, all of them in one counted line.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from lab import seed

DRAW = "EZPZ_TEST_DRAW"  # set by `make test`

LAB_FIXTURES = {
    "browser",
    "distribution",
    "drawn_flavour",
    "flavour",
    "grounds",
    "hosts",
    "make_hosts",
    "played",
    "slurm",
    "slurm_by_groups",
    "open_pbs",
    "each_slurm",
}
HAS_TORCH = find_spec("torch") is not None
NO_TORCH = "torch is not installed: its tests are left out (pip install torch)"
_TESTS = Path(__file__).parents[1]
_NEEDS_TORCH = re.compile(r"No module named \\?'torch|could not import 'torch'|needs torch|torch is not installed")


def mark_lab_tests(items):
    for item in items:
        if LAB_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("lab")


def is_quick(config):
    """Return whether nothing was named on the command line; a worker of xdist is told by its controller."""
    if hasattr(config, "workerinput"):
        return config.workerinput["quick"]
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr


def set_number_of_examples(config):
    """Set how often a property is tried; no example has a deadline, as a busy machine would miss it."""
    settings.register_profile("ezpz", max_examples=20 if is_quick(config) else 100, deadline=None)
    settings.load_profile("ezpz")


def choose(config, items):
    """Deselect what this run was not asked for; an expression after ``-m`` decides alone."""
    mark_lab_tests(items)
    if config.option.markexpr:
        return
    left_out = {"learn", "gpu", "lab", "slow"} if is_quick(config) else {"learn", "gpu"}
    if any("::" in argument for argument in config.args):  # a test that is named runs, whatever it is
        left_out = set()
    chosen = [item for item in items if not any(item.get_closest_marker(name) for name in left_out)]
    if "slow" in left_out:
        chosen = list(_first_cases(chosen))
    if os.environ.get(DRAW):
        chosen = [item for item in chosen if not item.get_closest_marker("dear") or _is_drawn(item)]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


def _is_drawn(item):
    """Return whether it is the day of this test: of a file every third of its dear tests and of their cases.

    Were each drawn by itself, a day would have half of them and another one a fifth.
    """
    dear = [name for name, each in vars(item.module).items() if any(mark.name == "dear" for mark in _marks_of(each))]
    case = sum(item.callspec.indices.values()) if hasattr(item, "callspec") else 0
    turn = seed.turn(seed.of_the_day(), item.path.relative_to(_TESTS).as_posix(), 3)
    return (dear.index(item.originalname) + case) % 3 == turn


def _marks_of(function):
    marks = getattr(function, "pytestmark", [])
    return marks if isinstance(marks, list) else []


def _first_cases(items):
    """Yield the tests; of each that is marked ``few(N)`` its first N cases."""
    cases = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        few = item.get_closest_marker("few")
        if not few or cases[test] <= few.args[0]:
            yield item


def skip_for_want_of_torch(report, text):
    """Turn a report into a skip when torch is missing and `text`, its failure, says so; one place folds all of them."""
    if not HAS_TORCH and not report.passed and _NEEDS_TORCH.search(text):
        report.outcome = "skipped"
        report.longrepr = (str(Path(__file__)), 1, f"Skipped: {NO_TORCH}")
        if hasattr(report, "wasxfail"):
            del report.wasxfail
