"""Take mends of the history back one at a time, and ask the tests whether they notice: `make caught`.

    python tests/lab/caught.py [--only TEXT] [--seconds 300] [--folder DIR] [--draw [--most 60] [--seed S]]

`tests/lab/caught/*.patch` holds one mend each, reversed: `git apply` takes it back. Two lines stand before the patch,
the commit with its title and the test files that must fail then. They run in a clone of this checkout's last commit
(.test/caught), which is set up like any other, once as it is and once under each patch.

Exit code: 0 where every patch is caught, 1 where one is not, or does not apply any more. Who moves the code that a
patch touches writes the patch anew, or drops it and says so in the commit.

--draw finds the mends: the commits that changed src and tests together and whose part in src still reverts cleanly,
at most --most of them, drawn by --seed. Those that their own test files notice are written into tests/lab/caught.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_TOP = Path(__file__).resolve().parents[2]
_PATCHES = Path(__file__).with_suffix("")
_PARTS = ("venv", "mpi", "trackers", "hugging_face", "distribution", "docs", "uv")
_PASSED, _FAILED = 0, 1  # exit codes of pytest


@dataclass
class Mend:
    """A mend of the history: its commit and title, the test files that notice its loss, and the patch that is it."""

    name: str
    title: str
    tests: list[str]
    patch: bytes

    @classmethod
    def read(cls, path):
        text = path.read_bytes()
        title, tests, _ = text.decode(errors="replace").split("\n", 2)
        return cls(path.stem, title.split(" ", 2)[2], tests.split()[1:], text)

    def write(self):
        head = f"mend: {self.name} {self.title}\ntests: {' '.join(self.tests)}\n"
        _PATCHES.mkdir(exist_ok=True)
        (_PATCHES / f"{self.name}.patch").write_bytes(head.encode() + self.patch)


def _git(*words, **options):
    return subprocess.run(["git", *words], cwd=_TOP, capture_output=True, check=True, **options).stdout


def mends_of_history():
    """Yield the mends whose part in src still reverts cleanly and whose test files are still there."""
    blocks = (
        _git("log", "--min-parents=1", "--max-parents=1", "--format=%x00%h %s", "--name-only").decode().split("\0")[1:]
    )
    for block in blocks:
        head, *paths = block.splitlines()
        name, title = head.split(" ", 1)
        tests = [each for each in paths if re.fullmatch(r"tests/(.*/)?test_\w+\.py", each) and (_TOP / each).exists()]
        if not tests or not any(path.startswith("src/") for path in paths):
            continue
        patch = _git("diff", "--binary", name, f"{name}^", "--", "src")
        if not subprocess.run(
            ["git", "apply", "--check"], cwd=_TOP, input=patch, capture_output=True, check=False
        ).returncode:
            yield Mend(name, title, tests, patch)


class Clone:
    """A clone of the last commit, in which patches are applied and tests run."""

    def __init__(self, folder, seconds):
        self._folder, self._seconds, self._passing = folder, seconds, {}
        if not (folder / ".git").exists():
            subprocess.run(["git", "clone", "-q", _TOP, folder], check=True)
        else:
            self._in_it("git", "fetch", "-q", str(_TOP), "HEAD")
            self._in_it("git", "reset", "-q", "--hard", "FETCH_HEAD")
        self._in_it("tests/lab/setup", *_PARTS)

    def _in_it(self, *words, **options):
        return subprocess.run(words, cwd=self._folder, check=True, **options)

    def _run(self, tests):
        """Return pytest's exit code and what it printed; -1 where time was up."""
        line = [self._folder / ".test/venv/bin/python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                line, cwd=self._folder, capture_output=True, text=True, timeout=self._seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return -1, "time was up"
        return done.returncode, done.stdout + done.stderr

    def passes(self, test):
        """Return whether a test file passes without a patch."""
        if test not in self._passing:
            code, text = self._run([test])
            self._passing[test] = code == _PASSED
            if code != _PASSED:
                print(f"  {test} does not pass as it is:\n{text[-1500:]}", flush=True)
        return self._passing[test]

    def judge(self, mend):
        """Return "caught", or why not."""
        tests = [test for test in mend.tests if (self._folder / test).exists()]
        if len(tests) < len(mend.tests):
            return f"is not there: {', '.join(sorted(set(mend.tests) - set(tests)))}"
        if subprocess.run(
            ["git", "apply"], cwd=self._folder, input=mend.patch, capture_output=True, check=False
        ).returncode:
            return "does not apply"
        try:
            code, text = self._run(tests)
        finally:
            self._in_it("git", "checkout", "-q", "--", "src")
            self._in_it("git", "clean", "-fdq", "src")
        if code == _PASSED:
            return "not noticed"
        if code == -1:
            return "time was up"
        if code != _FAILED and "ERROR" not in text:
            return f"pytest ended with {code}: {text[-300:]}"
        return "caught" if all(map(self.passes, tests)) else "fails without the patch, too"


def main(words):
    options = argparse.ArgumentParser(description="Take mends back one at a time and run their tests.")
    options.add_argument("--only", default="", metavar="TEXT", help="mends whose commit or title contains TEXT")
    options.add_argument("--seconds", type=int, default=300, help="for the test files of one mend")
    options.add_argument("--folder", type=Path, default=_TOP / ".test" / "caught", help="where the clone lies")
    options.add_argument("--draw", action="store_true", help="find the mends in the history and write the patches")
    options.add_argument("--most", type=int, default=60, help="with --draw: how many mends are tried")
    options.add_argument("--seed", type=int, default=0, help="with --draw: which, where there are more")
    asked = options.parse_args(words)
    if asked.draw:
        mends = list(mends_of_history())
        if len(mends) > asked.most:
            mends = random.Random(asked.seed).sample(mends, asked.most)
    else:
        mends = [Mend.read(path) for path in sorted(_PATCHES.glob("*.patch"))]
    mends = [mend for mend in mends if asked.only in f"{mend.name} {mend.title}"]
    clone = Clone(asked.folder, asked.seconds)
    found = {}
    for mend in mends:
        begin = time.monotonic()
        found[mend.name] = answer = clone.judge(mend)
        print(f"{mend.name} {answer} ({time.monotonic() - begin:.0f} s): {mend.title}", flush=True)
        if asked.draw and answer == "caught":
            mend.write()
    caught = sum(answer == "caught" for answer in found.values())
    print(f"{caught} of {len(found)} mends that were taken back were noticed")
    return 0 if asked.draw or caught == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
