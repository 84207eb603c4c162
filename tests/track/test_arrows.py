"""Imports inside `ezpz.track`: its rooms use the modules at its top, and not each other."""

import ast
import functools
from pathlib import Path

import ezpz.track

HOME = Path(ezpz.track.__file__).parent
FILES = {path.relative_to(HOME).with_suffix("").as_posix().replace("/", "."): path for path in HOME.rglob("*.py")}
ROOMS = {name.partition(".")[0] for name in FILES if "." in name}
# A tracker writes the event files that a foreign run is read from: one home for their format.
BETWEEN_ROOMS = {("trackers.to_tensorboard", "foreign.protobuf"), ("trackers.to_tensorboard", "foreign.tfevents")}
# Modules at the top that put the rooms' work together, and the rooms that each uses.
ASSEMBLERS = {
    "at_end": {"trackers"},
    "card": {"terminal"},
    "dispatch": {"over_ranks"},
    "history": {"effective", "trackers"},
    "compat_history": {"trackers"},
    "plots": {"report", "terminal"},
    "wandb": {"trackers"},
    "writer": {"trackers"},
}
UPWARDS = {("trackers.to_wandb", "wandb")}  # both know how wandb is started, and which run the program itself has


@functools.cache
def imported(name):
    """The modules of `ezpz.track` that one of them imports, in functions and for type checkers too."""
    found = []
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ezpz.track"):
            module = node.module.removeprefix("ezpz.track").removeprefix(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}".lstrip(".")
                package = f"{module}.__init__".lstrip(".")
                found.append(next((each for each in (inner, module, package) if each in FILES), "__init__"))
    return found


def test_a_room_uses_the_top_and_no_other_room(subtests):
    for name in sorted(FILES):
        with subtests.test(name):
            room = name.partition(".")[0] if "." in name else ""
            for other in imported(name):
                target = other.partition(".")[0] if "." in other else ""
                if not room:
                    assert not target or target in ASSEMBLERS.get(name, ()), f"{name} imports {other}"
                elif target:
                    assert target == room or (name, other) in BETWEEN_ROOMS, f"{name} imports {other}"
                else:
                    assert other not in ASSEMBLERS or (name, other) in UPWARDS, f"{name} imports {other}"


def test_the_named_arrows_are_there():
    arrows = {(name, other) for name in FILES for other in imported(name)}
    assert arrows >= BETWEEN_ROOMS | UPWARDS
    used = {(name, other.partition(".")[0]) for name, other in arrows if "." in other}
    assert {(name, room) for name, rooms in ASSEMBLERS.items() for room in rooms} <= used
    assert {"compare", "effective", "foreign", "over_ranks", "profiles", "report", "terminal", "trackers"} == ROOMS


def test_there_is_no_circle():
    below = {name: set(imported(name)) - {name} for name in FILES}
    while ready := {name for name, others in below.items() if not others & below.keys()}:
        below = {name: others for name, others in below.items() if name not in ready}
    assert not below, sorted(below)
