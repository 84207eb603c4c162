"""Connections between a host's agent and `launch` that are cut, one or the other, at each stage of a run.

What was written while the one for output was cut comes all the same, each line once; without the one for messages the
host is lost.
"""

from __future__ import annotations

import re
import sys
from functools import partial

from playing import FAILURE_GRACE, NO_HOSTS, STAY, WAIT, Case, fail
from runs import fact

from lab import process, seed, system
from lab.hosts import NETNS

MESSAGES, OUTPUT = "for messages", "for output"
HOSTS = {"n01": (0, 1), "n02": (2,)}  # and their ranks
AGAIN = 5.0  # seconds until an agent has made its connection for output once more
ROWS, PAUSED_AT, MANY = 40, 20, 8000
SIZE = 4 << 20  # bytes of input
# Before it has printed row 20 no rank goes on without the test, and after its last row none ends without it.
PRINT = f'up; for ((i = 1; i <= {ROWS}; i++)); do echo "row $RANK $i"; [ $i != {PAUSED_AT} ] || {{ {WAIT} }}; done'
ALL = f'for ((i = 1; i <= {ROWS}; i++)); do echo "row $RANK $i"; done; up; {WAIT} exit 0'
WORDS = f'up; echo "row $RANK 1"; {WAIT} if [ "$RANK" = 2 ]; then echo "a bug of $RANK" >&2; exit 3; else {STAY}; fi'
FLOOD = f'up; for ((i = 1; i <= {MANY}; i++)); do echo "row $RANK $i {"x" * 100}"; done'
# Rank 0 copies its input, and pauses behind the first MiB while as much as the pipes hold is on its way.
COPY = """
import os, time
copied = 0
while os.environ["RANK"] == "0" and (data := os.read(0, 1 << 16)):
    while data:
        done = os.write(1, data)
        copied, data = copied + done, data[done:]
    while copied > 1 << 20 and not os.path.exists(os.environ["EZPZ_TEST_DIR"] + "/go"):
        time.sleep(0.01)
"""


class Line:
    """Both connections of a host's agent to the launcher, as `ss` shows them there."""

    def __init__(self, run, host):
        self._run, self._namespace = run, NETNS / run.stage.hosts[host].namespace
        self._agents = set()  # of this launch: others may run on the same hosts
        # The agent makes the one for messages first, and servants of mpiexec may have left it some of their own.
        self._messages, self._launcher = process.wait_until(self._first, 20, f"two connections of {host}", every=0.0)

    def _first(self):
        if self._run.process.poll() is not None:
            raise AssertionError(f"the launch ended with {self._run.process.returncode} before it was cut")
        self._agents = {str(pid) for pid in self._run.left() if fact(pid, "comm") == "ezpz-agent"}
        found = self._established()
        twice = [to for _, to in found if [other for _, other in found].count(to) == 2]
        return next(((own, to) for own, to in found if to in twice), None)

    def both(self):
        """The own addresses of both, that for messages first; None unless both are there."""
        own = [own for own, to in self._established() if to == self._launcher]
        return sorted(own, key=lambda address: address != self._messages) if len(own) == 2 else None

    def cut(self, which):
        both = process.wait_until(self.both, AGAIN, "two connections", every=0.01)
        one = both[which == OUTPUT]
        address, _, port = one.rpartition(":")
        self._ss("-K", "state", "established", "src", address, "sport", "=", port)
        if one in dict(self._established()):
            raise AssertionError(f"ss -K has not cut {one}: the kernel has no CONFIG_INET_DIAG_DESTROY")

    def _established(self):
        """Own address and the other's of each TCP connection of the agent, in the order of its descriptors."""
        found = []
        for words in map(str.split, self._ss("-Htnp", "state", "established").splitlines()):
            own = [int(fd) for pid, fd in re.findall(r",pid=(\d+),fd=(\d+)\)", words[-1]) if pid in self._agents]
            if own:  # while rank 0 reads, two descriptors of one connection
                found.append((min(own), words[2], words[3]))
        return [(own, to) for _, own, to in sorted(found)]

    def _ss(self, *words):
        line = [system.path("nsenter"), f"--net={self._namespace}", "--", system.path("ss"), *words]
        return process.run(line, timeout=20).stdout


def cut(stage, host, which, run, *, times=1):
    """Cut a connection of a host when the run has come to a stage, and let the run go on when it is there again."""
    line = Line(run, host)
    stage(run)
    for _ in range(times):
        line.cut(which)
    run.mark()
    if which == OUTPUT and run.process.poll() is None and stage in {while_it_prints, while_the_screen_is_blocked}:
        process.wait_until(line.both, AGAIN, "the connection for output, made once more", every=0.02)
        run.mark()
    for name in ("go", "read"):
        (run.folder / name).touch()


def before_ranks_begin(run):
    """They wait for those of the other host."""


def while_it_prints(run):
    run.up()
    _wait(run, lambda out: all(b"row %d %d\n" % (rank, PAUSED_AT) in out for rank in range(3)))


def while_rank_0_reads(run):
    _wait(run, lambda out: len(out) > 1 << 20)


def while_the_screen_is_blocked(run):
    run.up()


def after_the_last_line(run):
    run.up()


def _wait(run, has_come):
    process.wait_until(lambda: has_come(run.output()), 20, "output of the ranks", every=0.01)


def begins_late(host, stage):
    """The other host needs a second to begin."""
    for other in HOSTS.keys() - {host}:
        if stage.name != "srun":  # Slurm's daemons are there already: there a race decides
            (stage.hosts[other].tmp / "enter").write_text("sleep 1\n")


def with_input(stage):
    (stage.folder / "input").write_bytes(_input())


def _input():
    row = b"%07d " + b"x" * 55 + b"\n"
    return b"".join(row % number for number in range(SIZE // 64))


def shell(script):
    """The launch as `"$@"` of a bash script in the stage's folder."""
    return lambda stage, line: ["bash", "-c", f"D={stage.folder}; set -o pipefail; {script}", "wrapped", *line]


READ_LATE = shell('"$@" | { until [ -e "$D/read" ]; do sleep 0.05; done; cat; }')


def rows(run, ranks, last):
    """Each line exactly once and in the order of its rank."""
    for rank in ranks:
        came = [int(number) for number in re.findall(rb"(?m)^row %d (\d+)\b" % rank, run.output())]
        if came != list(range(1, last + 1)):
            at = next((i for i, number in enumerate(came, 1) if number != i), len(came) + 1)
            fail(f"{len(came)} rows of rank {rank} instead of {last}; wrong from row {at} on")


def each_row(last):
    return partial(rows, ranks=range(3), last=last)


def same_input(run):
    came, sent = run.output(), _input()
    if came != sent:
        fail(f"{len(came)} bytes came back of {len(sent)}; equal as far as {len(_common(came, sent))}")


def _common(first, second):
    return first[: next((i for i, pair in enumerate(zip(first, second)) if pair[0] != pair[1]), 0)]  # noqa: B905


def told(run):
    """Its words stand once."""
    rows(run, (2,), 1)
    if run.errors().count("a bug of 2") != 1:
        fail(f"its words stand {run.errors().count('a bug of 2')} times")


_STAGES = {
    before_ranks_begin: {"ranks": PRINT, "after": each_row(ROWS), "fresh": True},
    while_it_prints: {"ranks": PRINT, "after": each_row(ROWS)},
    while_rank_0_reads: {
        "ranks": (sys.executable, "-I", "-S", "-c", COPY),
        "setup": with_input,
        "wrap": shell('"$@" <"$D/input"'),
        "after": same_input,
    },
    while_the_screen_is_blocked: {"ranks": FLOOD, "wrap": READ_LATE, "after": each_row(MANY)},
    after_the_last_line: {"ranks": ALL, "after": each_row(ROWS)},
}


def _case(stage, host, which, *, name="", times=1, **more):
    facts = {**_STAGES[stage], **more}
    if stage is before_ranks_begin:
        facts["setup"] = partial(begins_late, host)
    if which == MESSAGES:
        facts |= {"after": None, "code": 125, "cause": rf"^ezpz: .*\b{host}\b.* is lost"}
    return Case(
        number="J",
        name=f"{host}: {which} {name or stage.__name__.replace('_', ' ')}",
        meanwhile=partial(cut, stage, host, which, times=times),
        grace=FAILURE_GRACE,
        over_hosts=True,
        not_on=NO_HOSTS,
        **facts,
    )


def _over(stage):
    return ["n01"] if stage is while_rank_0_reads else list(HOSTS)


def while_a_rank_is_about_to_fail(run):
    run.up()


_STAGES[while_a_rank_is_about_to_fail] = {
    "ranks": WORDS,
    "code": 3,
    "cause": "{rank2} exited with code 3",
    "after": told,
}


def _refused(error, call):
    """The `call`-th read of the launcher fails for want of memory."""
    return lambda _stage, line: [
        *(
            "strace",
            "-q",
            "-o",
            "/dev/null",
            "-e",
            "trace=recvfrom",
            "-e",
            f"inject=recvfrom:error={error}:when={call}",
        ),
        *line,
    ]


_CALLS = [seed.pick(seed.of_the_day(), f"call {number}", range(number, number + 10)) for number in (10, 30, 50)]

CUTS = {
    "output, once": [_case(stage, host, OUTPUT) for stage in _STAGES for host in _over(stage)
                     if stage is not while_a_rank_is_about_to_fail],
    "output, twice": [_case(stage, host, OUTPUT, name=f"twice {stage.__name__.replace('_', ' ')}", times=2)
                      for stage in (while_it_prints, while_rank_0_reads) for host in _over(stage)],
    "output, of a rank that fails then": [_case(while_a_rank_is_about_to_fail, "n02", OUTPUT)],
    "messages": [_case(stage, host, MESSAGES) for stage in _STAGES for host in _over(stage)
                 if stage is not while_a_rank_is_about_to_fail],
    "no cut, but no memory for a read (ENOMEM, ENOBUFS)": [
        Case(
            number="J",
            name=f"{error} at read {call} of the launcher",
            ranks=f'for ((i = 1; i <= {ROWS}; i++)); do echo "row $RANK $i"; sleep 0.01; done',
            wrap=_refused(error, call),
            after=each_row(ROWS),
            grace=FAILURE_GRACE,
        )
        for error in ("ENOMEM", "ENOBUFS")
        for call in _CALLS
    ],
}  # fmt: skip
