"""A copy of this checkout, as `git clone` would give it, and the line of the README that a stranger types there."""

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def readme_line():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.search(r"^source src/ezpz/bin/utils\.sh && .*$", text, re.MULTILINE).group()


def copy_checkout(target, without=("tests/", "bench/")):
    """Copy what git has, and what is new and not ignored, to the folder `target`."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")[:-1]  # fmt: skip
    for name in tracked:
        if not name.startswith(tuple(without)) and (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target
