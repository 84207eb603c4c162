"""What the first hour shows: the main job on a terminal of 80 columns, and the README's sample of it.

Volatile values are not compared, but what stands where: how many lines, how wide, which rows the card has. In a pipe
at 200 columns `test_test_dist.py` reads it, at the width that is taken where nothing tells one `test_readme.py`.
"""

import re
import subprocess
import sys

import pytest

from lab.checkout import ROOT
from lab.terminal import open_terminal, shown_by

PLOT = "│┤┌└"
JOB = [sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, "-m", "ezpz.test_dist", "--train-iters", "31"]
CARD = ["loss", "accuracy", "speed", "step", "first step", "report", "next"]
ERASED = re.compile(r"step [\d,]+/[\d,]+ \[[# █]{20}\][^\r\n]*\r\x1b\[K")  # the live line, and that it is taken away


def on_a_terminal(line, env, folder, width):
    """Run a program on a terminal of so many columns, and return all that it writes there."""
    with open_terminal(width) as (screen, program):
        run = subprocess.Popen(line, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=program, stderr=program)
        text = shown_by(run, screen, 280)
    assert run.returncode == 0, text
    return text


def is_log(line):
    """Tell whether this is a line of the log itself, whose head alone takes 50 columns."""
    return line.startswith(("[20", "ezpz: "))


def card_of(lines):
    (title,) = [number for number, line in enumerate(lines) if line.startswith("── test_dist finished: ")]
    return {line[2:14].strip(): line[14:] for line in lines[title + 1 :]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_a_terminal_of_80_columns(clean_env, tmp_path):
    text = on_a_terminal(JOB, {**clean_env, "NO_COLOR": "1", "TERM": "xterm"}, tmp_path, 80)
    lines = ERASED.sub("", text).splitlines()
    assert "\x1b" not in "".join(lines)
    assert len(lines) <= 55
    assert all(len(line) <= 80 for line in lines if not is_log(line)), lines
    steps = [line for line in lines if re.match(r"\d\d:\d\d:\d\d iter=", line)]
    assert [line.split()[1] for line in steps] == ["iter=0", "iter=10", "iter=20", "iter=30"]
    assert all(re.search(r" dt=\S+ s sps=\S+ samples/s$", line) for line in steps)
    assert sum("┌" in line for line in lines) == 2
    assert list(card_of(lines)) == CARD
    check_sample(sample(), lines)


def sample():
    """Return the lines of the README's sample output."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text\n(ezpz: .*?)```", text, re.DOTALL)
    return block.splitlines()


def form(line):
    """Return a line without what changes from run to run: numbers, units of times, hosts, paths, reasons, drawings."""
    if any(letter in line for letter in PLOT):
        return "drawing"
    line = re.sub(r"\(.*\)", "()", " ".join(line.split()))
    line = re.sub(r"ranks on \S+", "ranks on HOST", re.sub(r"\['[^']+'\]", "['HOST']", line))
    line = re.sub(r"\d[\d.,:]*(e[-+]?\d+)?", "#", line)
    line = re.sub(r"# (ms|s|min|h)\b( # s| # min)?", "# TIME", line)
    return re.sub(r"(# ?)+", "# ", line.rstrip("─ ")).rstrip()


def check_sample(shown, real):
    """Check that every line of a sample has the form of one that is printed, in the same order."""
    forms, place = [form(line) for line in real], 0
    for line in shown:
        if line.strip() == "…":
            continue
        assert form(line) in forms[place:], f"the README shows {line!r}, which is not printed there:\n" + "\n".join(
            real
        )
        place += forms[place:].index(form(line)) + (form(line) != "drawing")


def test_the_readmes_sample_fits_a_terminal_and_ends_with_the_card():
    lines = sample()
    assert all(len(line) <= 80 or is_log(line) for line in lines)
    assert list(card_of(lines)) == CARD


def test_a_sample_that_is_not_what_is_printed_is_found():
    real = ["ezpz: 2 ranks on vm (-n), cpu", "19:02:03 iter=0 loss=1.5 dt=3 s", "  loss        2.3 → 0.1"]
    check_sample(real[:1] + real[2:], real)
    for wrong in ("19:02 iter=0 loss=1", "  loss        2.3 -> 0.1", "ezpz: 2 ranks at laptop (why), cpu"):
        with pytest.raises(AssertionError, match="which is not printed"):
            check_sample([wrong], real)
