"""Imports inside `ezpz.track` and `ezpz.view`: their folders use the modules at the top, and not each other."""

import ast
import functools
from pathlib import Path

import pytest

import ezpz

SRC = Path(ezpz.__file__).parent
# A tracker writes the event files that a foreign run is read from: one home for their format.
BETWEEN_FOLDERS = {("trackers.to_tensorboard", "foreign.protobuf"), ("trackers.to_tensorboard", "foreign.tfevents")}
# Modules at the top that put the folders' work together, and the folders that each uses.
ASSEMBLERS = {
    "track": {"dispatch": {"over_ranks"}},
    "view": {"card": {"terminal"}, "plots": {"report", "terminal"}},
}
FOLDERS = {
    "track": {"over_ranks", "profiles"},
    "view": {"compare", "effective", "foreign", "report", "terminal", "trackers"},
}
PACKAGES = pytest.mark.parametrize("package", sorted(FOLDERS))


@functools.cache
def imports_of(package):
    """Return the modules of a package that each of its modules imports, in functions and for type checkers too."""
    home = SRC / package
    files = {path.relative_to(home).with_suffix("").as_posix().replace("/", "."): path for path in home.rglob("*.py")}
    found = {}
    for name, path in files.items():
        found[name] = imported = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"ezpz.{package}."):
                module = node.module.removeprefix(f"ezpz.{package}").removeprefix(".")
                for alias in node.names:
                    inner, own = f"{module}.{alias.name}".lstrip("."), f"{module}.__init__".lstrip(".")
                    imported.append(next((each for each in (inner, module, own) if each in files), "__init__"))
    return found


def folder_of(name):
    return name.partition(".")[0] if "." in name else ""


@PACKAGES
def test_a_folder_uses_the_top_and_no_other_folder(package, subtests):
    assemblers = ASSEMBLERS[package]
    for name, others in sorted(imports_of(package).items()):
        with subtests.test(name):
            own = folder_of(name)
            for other in others:
                target = folder_of(other)
                if not own:
                    assert not target or target in assemblers.get(name, ()), f"{name} imports {other}"
                elif target:
                    assert target == own or (name, other) in BETWEEN_FOLDERS, f"{name} imports {other}"
                else:
                    assert other not in assemblers, f"{name} imports {other}"


@PACKAGES
def test_the_named_arrows_are_there(package):
    arrows = {(name, other) for name, others in imports_of(package).items() for other in others}
    assert package != "view" or arrows >= BETWEEN_FOLDERS
    used = {(name, folder_of(other)) for name, other in arrows}
    assert {(name, folder) for name, folders in ASSEMBLERS[package].items() for folder in folders} <= used
    assert {folder_of(name) for name in imports_of(package)} - {""} == FOLDERS[package]


@PACKAGES
def test_there_is_no_circle(package):
    below = {name: set(others) - {name} for name, others in imports_of(package).items()}
    while ready := {name for name, others in below.items() if not others & below.keys()}:
        below = {name: others for name, others in below.items() if name not in ready}
    assert not below, sorted(below)
