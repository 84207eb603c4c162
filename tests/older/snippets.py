"""Find the snippets of the older package's documentation that run by themselves, and run them."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BLOCK = re.compile(r"^([ ]*)```(?:python|py)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_NOTE = re.compile(r"[ ]*#[ ]*\(\d+\)!?[ ]*$", re.MULTILINE)  # of Material for MkDocs
_LEFT_OUT = ("superpowers", "tests/README", "AGENTS")
LIMIT = 600  # seconds of one snippet; the longest takes 25 s of CPU


def find(folder: Path) -> list[tuple[str, str]]:
    """Return (page:line, code) of each block that imports ezpz and uses no name that it does not define."""
    found = []
    for page in sorted([*folder.glob("*.md"), *folder.glob("docs/**/*.md")]):
        name = page.relative_to(folder).as_posix()
        if any(word in name for word in _LEFT_OUT):
            continue
        text = page.read_text(encoding="utf-8", errors="replace")
        for block in _BLOCK.finditer(text):
            code = _NOTE.sub("", textwrap.dedent(block[2]))
            if is_self_contained(code):
                found.append((f"{name}:{text.count(chr(10), 0, block.start()) + 1}", code))
    return found


def is_self_contained(code: str) -> bool:
    """Tell whether a block can be parsed, imports ezpz, and reads only names that it binds or that Python has."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return False
    imported = [
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    if not any(name.partition(".")[0] == "ezpz" for name in imported):
        return False
    bound = set(dir(builtins)) | {"__file__", "__name__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    calls = any(isinstance(node, ast.Call | ast.ImportFrom) for node in ast.walk(tree))
    return read <= bound and calls


def run_all(
    folder: Path, work: Path, python: list[str], env: dict[str, str], make_mnist: Callable[[Path], None]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Run each in a folder of its own, alone, and return which ran and why the others did not.

    Args:
        folder: The checkout.
        work: Folder for theirs.
        python: Words of the interpreter.
        env: Their variables.
        make_mnist: Writes the digits that some would fetch from the network into a folder.
    """
    ran, others = [], []
    for number, (where, code) in enumerate(find(folder)):
        here = work / f"{number:02}"
        here.mkdir(parents=True, exist_ok=True)
        (here / "snippet.py").write_text(code, encoding="utf-8")
        if 'MNIST("./data"' in code:
            make_mnist(here / "data")
        try:
            done = subprocess.run(
                [*python, "snippet.py"],
                cwd=here,
                env=env,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            others.append((where, f"it ran longer than {LIMIT} s"))
            continue
        if done.returncode == 0:
            ran.append(where)
        else:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            others.append((where, lines[-1][:160] if lines else f"exit code {done.returncode}"))
    return ran, others
