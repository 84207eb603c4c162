"""What comes out: whole lines, in order, on any pipe and any disk. Case 38."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

from playing import FAILURE_GRACE, WAIT, Case, fail, go
from runs import WORLD

from lab import process

LINES = 10_000
MANY = f"""
import os
rank = os.environ["RANK"]
with open(1, "w") as out:
    for number in range({LINES}):
        out.write(f"{{rank}} {{number}} " + "x" * (number % 80) + " end\\n")
"""
NO_TMPFS = "small file systems are mounted by root on Linux"


def lines(run):
    output = run.output()
    assert output.endswith(b"\n"), output[-80:]
    return output.split(b"\n")[:-1]


def expect(*told):
    """The output consists of just these lines of each rank, ``%`` being the rank, and those of one rank in order."""

    def check(run):
        expected = sorted(line.replace(b"%", str(rank).encode()) for rank in range(WORLD) for line in told)
        assert sorted(lines(run)) == expected, run.output()[:500]

    return check


def partial_lines(run):
    found = sorted(run.output().replace(b"\n", b"").replace(b"last", b" last").split())
    assert found == [b"last0", b"last1", b"last2"], run.output()
    whole = run.output().split(b"\n")
    assert sorted(whole)[-3:] == [b"last0", b"last1", b"last2"], f"partial lines were mixed: {run.output()!r}"


def long_lines(run):
    found = sorted((line[:1], len(line), len(set(line))) for line in lines(run))
    assert found == [(digit, 1_000_000, 1) for digit in (b"0", b"1", b"2")], found[:9]


def in_order(ranks):
    def check(run):
        numbers = defaultdict(list)
        for line in lines(run):
            words = line.decode().split(" ")
            assert len(words) == 4, line[:200]
            assert words[3] == "end", line[:200]
            assert len(words[2]) == int(words[1]) % 80, line[:200]
            numbers[int(words[0])].append(int(words[1]))
        assert sorted(numbers) == list(range(ranks))
        assert all(found == list(range(LINES)) for found in numbers.values()), {k: len(v) for k, v in numbers.items()}

    return check


def folded(run):
    found = [line for line in run.errors().splitlines() if "the same old warning" in line]
    assert len(found) == 1, found
    assert "[3 ranks]" in found[0], found
    assert sorted(line[-1] for line in run.errors().splitlines() if "a warning of its own" in line) == ["0", "1", "2"]


def labelled(run):
    found = lines(run)
    assert len(found) == 2 * WORLD, found
    for rank in range(WORLD):
        mine = [line for line in found if line.endswith(f"by {rank}".encode())]
        assert len(mine) == 2, found
        heads = {line.partition(b"word")[0] for line in mine}
        assert len(heads) == 1, found
        assert str(rank).encode() in heads.pop(), found


def logged(run):
    files = sorted((run.folder / "logs").rglob("*rank*"))
    texts = [path.read_text() for path in files if path.is_file()]
    assert len(texts) == WORLD, files
    for rank in range(WORLD):
        mine = [text for text in texts if f"word by {rank}\n" in text]
        assert len(mine) == 1, texts
        assert f"trouble by {rank}\n" in mine[0], mine[0]
    assert sorted(lines(run)) == [b"word by 0", b"word by 1", b"word by 2"]


def small_disk(stage):
    """`logs` is a file system of 64 KiB."""
    folder = stage.folder / "logs"
    folder.mkdir()
    done = process.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder])
    assert done.returncode == 0, done.stderr


def unmount(run):
    try:
        assert len(lines(run)) == WORLD * 4000
        assert sorted(path.name for path in run.folder.glob("done.*")) == ["done.0", "done.1", "done.2"]
    finally:
        subprocess.run(["umount", "-l", run.folder / "logs"], check=False)


def all_done(run):
    process.wait_until(lambda: len(list(run.folder.glob("done.*"))) == WORLD, 5, "the end of all ranks")


def tail_of_the_failed(run):
    errors = run.errors()
    words = "ValueError: the reason"
    assert errors.count(words) == 1, errors
    last = [line for line in errors.splitlines() if line.strip()][-1]
    assert words in last or last.startswith("ezpz: "), errors
    assert not run.output(), run.output()


OUTPUTS = (
    Case(
        number="38",
        name="the last line has no end",
        ranks='printf "last$RANK"',
        code=0,
        after=partial_lines,
    ),
    Case(
        number="38",
        name="a line of 1 MB from every rank",
        ranks=(
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import os; os.write(1, b'') or print(os.environ['RANK'] * 1_000_000)",
        ),
        code=0,
        after=long_lines,
    ),
    Case(
        number="38",
        name="bytes that are no UTF-8",
        ranks=r"printf '\xff\xfe\x80 %s\n\0\n' $RANK",
        code=0,
        after=expect(b"\xff\xfe\x80 %", b"\0"),
    ),
    Case(
        number="38",
        name="a progress bar with carriage returns",
        ranks=r"for i in 1 2 3; do printf '\r%s: %s0%%' $RANK $i; sleep 0.1; done; echo",
        code=0,
        after=lambda run: run.output().count(b"\n") == WORLD or fail(run.output()),
    ),
    Case(
        number="38",
        name="nobody reads the output any more (`| head -1`)",
        ranks='for i in 1 2 3 4 5 6 7 8 9; do echo "line $i"; sleep 0.1; done; echo yes >"$D/done.$RANK"',
        wrap=lambda stage, line: ["bash", "-c", '"$@" | head -1; exit "${PIPESTATUS[0]}"', "pipe", *line],
        code=0,
        after=lambda run: (all_done(run), run.output() == b"line 1\n" or fail(run.output())),
    ),
    Case(
        number="38",
        name="the disk under --log-dir is full",
        ranks='for ((i = 0; i < 4000; i++)); do echo "line $i of rank $RANK, and some more words"; done; '
        'echo yes >"$D/done.$RANK"',
        setup=small_disk,
        options=("--log-dir", "logs"),
        code=0,
        after=unmount,
    ),
    Case(
        number="38",
        name="8 ranks write 10,000 lines each",
        ranks=(sys.executable, "-I", "-S", "-c", MANY),
        options=("-n", "8"),
        world=8,
        code=0,
        grace=15,
        after=in_order(8),
        not_on={"ssh": "see the next", "srun": "see the next"},
    ),
    Case(
        number="38",
        name="3 ranks on two hosts write 10,000 lines each",
        ranks=(sys.executable, "-I", "-S", "-c", MANY),
        over_hosts=True,
        code=0,
        grace=10,
        after=in_order(3),
        not_on={"local": "one host only", "torchrun": "one host only"},
    ),
    Case(
        number="38",
        name="the same warning from every rank",
        ranks='echo "foo.py:1: UserWarning: the same old warning" >&2; '
        'echo "a warning of its own: $RANK" >&2; sleep 0.5',
        code=0,
        after=folded,
    ),
    Case(
        number="38",
        name="--label",
        ranks='echo "word by $RANK"; sleep 0.1; echo "another word by $RANK"',
        options=("--label",),
        code=0,
        after=lambda run: len(lines(run)) == 6 or fail(run.output()),
    ),
    Case(
        number="38",
        name="--log-dir keeps a file per rank",
        ranks='echo "word by $RANK"; echo "trouble by $RANK" >&2',
        options=("--log-dir", "logs"),
        code=0,
        after=logged,
    ),
    Case(
        number="38",
        name="the words of the rank that failed stand once, and last",
        ranks=f'up; {WAIT} [ "$RANK" = 1 ] && {{ echo "ValueError: the reason" >&2; exit 1; }}; exec sleep 600',
        meanwhile=go,
        code=1,
        cause="{rank1} exited with code 1",
        grace=FAILURE_GRACE,
        after=tail_of_the_failed,
    ),
)
