"""Write the names of each package's lazy table as imports, for editors and type checkers: ``make names``."""

import ast
import builtins
import re
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "ezpz"
PLACE = re.compile(r"(    # names: begin \(`make names`\)\n)(.*?)(    # names: end\n)", re.DOTALL)


def files():
    """Return the files that have such a block."""
    return sorted(path for path in SRC.rglob("*.py") if PLACE.search(path.read_text(encoding="utf-8")))


def module_of(path):
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def table(path):
    """Return pairs of a module and a name of it; the name is ``*`` where all are taken."""
    for node in ast.walk(ast.parse(PLACE.sub("    pass\n", path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "attach":
            also = [(ast.literal_eval(each.value), "*") for each in node.keywords if each.arg == "also"]
            homes = ast.literal_eval(node.args[1])
            absolute = {home: home if home.startswith("ezpz.") else f"{module_of(path)}.{home}" for home in homes}
            return also + [(absolute[home], name) for home, names in homes.items() for name in names.split()]
    raise AssertionError(f"{path}: no table")


def block(path):
    """Return the lines of a file's block."""
    lines = []
    for home, name in sorted(table(path)):
        why = "  # noqa: A004  # the name that users know" if hasattr(builtins, name) else ""
        why = why or ("" if path.stem == "__init__" or name == "*" else "  # noqa: PLC0414  # offered here, too")
        star = "*  # noqa: F403  # all of its names are this package's, too"
        lines.append(f"    from {home} import {star if name == '*' else f'{name} as {name}'}{why}\n")
    return "".join(lines)


def is_stale(path):
    written = PLACE.search(path.read_text(encoding="utf-8"))[2]
    return sorted(written.splitlines()) != sorted(block(path).splitlines())  # ruff sorts them by its own rules


def write():
    for path in files():
        text = path.read_text(encoding="utf-8")
        path.write_text(PLACE.sub(lambda match, path=path: match[1] + block(path) + match[3], text), encoding="utf-8")


if __name__ == "__main__":
    write()
    subprocess.run([sys.executable, "-m", "ruff", "check", "--quiet", "--fix", "--select=I", SRC], check=True)
