"""The names of schedulers and flavours are in their own files, the ordered tuples, and nowhere else in the code."""

import ast
import re
from pathlib import Path

import pytest

from ezpz.cluster import SCHEDULERS
from ezpz.cluster.launchers import FLAVOURS
from ezpz.cluster.scheduler import scheduler
from ezpz.jobs.job_handler import HANDLED
from ezpz.launch.flavours import LOCAL, flavour

SRC = Path(__file__).parents[1] / "src" / "ezpz"
# Files that may name them, and why.
SCHEDULERS_OWN = {
    "cluster/__init__.py": "the ordered tuple",
    **{f"cluster/{name}.py": "its own file" for name in SCHEDULERS},
    "cluster/scontrol.py": "Slurm's second file: the answer of scontrol",
    "cluster/qstat.py": "PBS's second file: the answer of qstat",
    "jobs/job_handler.py": "the tuple of those whose jobs are handled",
    **{f"jobs/{name}_jobs.py": "its handling of jobs" for name in HANDLED},
    "cluster/launchers.py": "a flavour that is called as its scheduler",
    "ranks.py": "the ordered table of what launchers set for ranks, srun and flux run among them",
    "compat/__init__.py": "functions as older scripts call them",
    "compat/dist_names.py": "variables as older scripts call them",
    "program_secrets.py": "a service of whose name one is a part",
    "watch/foreign_logs/launcher_reports.py": "what launchers and schedulers write of an end",
    "watch/foreign_logs/facts_of_logs.py": "lines of launchers that are no rank's words",
    **{f"launch/flavours/{name}.py": "variables that this launcher reads or must not pass on" for name in FLAVOURS},
}
FLAVOURS_OWN = {
    "cluster/launchers.py": "the ordered tuples",
    "cluster/__init__.py": "a scheduler that is called as its launcher",
    **{f"launch/flavours/{name}.py": "its own file" for name in FLAVOURS},
    **{f"cluster/{name}.py": "the launcher that a scheduler's jobs bring" for name in SCHEDULERS},
    "ranks.py": "a family of variables may be called as a flavour",
    "watch/foreign_logs/launcher_reports.py": "what launchers write of an end",
    "view/compare/setting_differences.py": "sections of a run's settings, which share the word",
}
COMMON = {"local"}  # a word of many meanings: it is compared nowhere but with LOCAL, which `test_plan` covers


def strings(path, words):
    """Return every string of a file's code with its line, docstrings left out; none if it holds none of the words."""
    text = path.read_text(encoding="utf-8")
    if not words.search(text):
        return []
    tree = ast.parse(text)
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
    ]


FILES = {path.relative_to(SRC).as_posix(): path for path in sorted(SRC.rglob("*.py"))}


def test_schedulers_are_named_in_their_own_files_alone():
    words = re.compile("|".join(SCHEDULERS), re.IGNORECASE)
    others = {name: path for name, path in FILES.items() if name not in SCHEDULERS_OWN}
    assert not [
        f"{name}:{line}: {text}"
        for name, path in others.items()
        for line, text in strings(path, words)
        if words.search(text)
    ]


def test_flavours_are_named_in_their_own_files_alone():
    """A flavour's name as a whole string, or its title, is what code compares or looks up."""
    titles = {flavour(name).title for name in FLAVOURS if name != LOCAL}
    names = ({*FLAVOURS} | titles) - COMMON
    words = re.compile("|".join(map(re.escape, names)))
    others = {name: path for name, path in FILES.items() if name not in FLAVOURS_OWN}
    assert not [
        f"{name}:{line}: {text}"
        for name, path in others.items()
        for line, text in strings(path, words)
        if text in names
    ]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_launcher_of_a_scheduler_is_a_flavour(name):
    own = scheduler(name).own_launcher
    assert not own or own in FLAVOURS
