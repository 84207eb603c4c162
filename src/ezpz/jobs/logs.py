"""Run ``ezpz logs``: print what the ranks of a launch wrote, and follow it until the launch has ended."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ezpz.cli_parser import option, run_verb
from ezpz.cluster.questions import SCHEDULER_LIMIT
from ezpz.errors import UsageError
from ezpz.files import inside, open_regular, refuse_unreadable
from ezpz.jobs.job_state import QUEUED, RUNNING
from ezpz.jobs.queued_jobs import my_jobs, not_listed, scheduler_questions, user_name
from ezpz.records.launch_record import LaunchRecord
from ezpz.register import heads, may_run, of_record
from ezpz.track.named import UnknownError, record_named
from ezpz.verbs import LAUNCH_HELP, make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from ezpz.jobs.job_state import Job

_OPTIONS = (
    option("what", nargs="?", metavar="RUN|ID", help=LAUNCH_HELP),
    option("-f", "--follow", action="store_true", help="go on until the launch has ended"),
    option("--rank", type=int, metavar="N", help="of this rank alone, from its log"),
)
_ABOUT = """\
The first of these that is there: the ranks' logs of `launch --log-dir`, the file of the job's output, the last words
that the record of the launch keeps. On any host that sees these files. Several ranks have [N]: in front of their
lines."""
_EXAMPLES = (
    ("ezpz logs -f", "the newest launch, until it has ended"),
    ("ezpz logs 12 --rank 3", "rank 3 of job 12"),
)
_EVERY = 1.0  # seconds between two looks
_PIECE = 1 << 16  # bytes


def main(argv: Sequence[str]) -> int:
    """Print logs and return the exit code."""
    usage = "[RUN|ID] [options]"
    parser = make_verb_parser("logs", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES)
    return run_verb(parser, argv, _logs)


def _logs(options: Namespace) -> int:
    if options.rank is not None and options.rank < 0:
        raise UsageError(f"--rank {options.rank} (from the command line); expected a rank, from 0 on.")
    source = _Source(options.what, options.rank)
    if not source.files():
        if not (options.follow and source.may_write()):
            source.say_nothing()
        else:
            show(f"waiting for {source.awaited()}", sys.stderr)
    return _print(source, follow=options.follow)


class _Source:
    """Where the output of one launch is.

    Args:
        word: What the user named; None for the newest launch.
        rank: The rank whose log is wanted; None for all.
    """

    def __init__(self, word: str | None, rank: int | None) -> None:
        self._rank = rank
        self._job: Job | None = None
        self._folder = ""  # of the record; empty without one
        self._is_lost: bool | None = None  # whether its scheduler does not know its job; None before that is asked
        try:
            self._folder = str(record_named(word))
        except UnknownError as error:
            self._take_job(word, error)
        self._record = self._read()
        self._record.refuse_newer(Path(self._folder, "run.json"))
        self._output = self._find_output()

    def _read(self) -> LaunchRecord:
        return LaunchRecord.read(Path(self._folder, "run.json")) if self._folder else LaunchRecord()

    def _find_output(self) -> str:
        """Return the file of the output: stdout of `launch`, else that of its job, which `srun` writes for it."""
        record = self._record
        if self._folder and not record.output and record.plan.job_id and not self._rank_logs():
            found = my_jobs(os.environ, user_name(), scheduler_questions()).called(record.plan.job_id)
            self._job = found if found and not found.began_after(record.started or 0.0) else None
        return record.output or (self._job.output if self._job else "")

    def _take_job(self, word: str | None, otherwise: UnknownError) -> None:
        """Take the output of a job that has no launch yet, or ended before it.

        Raises:
            UnknownError: There is no such job.
        """
        jobs = my_jobs(os.environ, user_name(), scheduler_questions())
        self._job = jobs.called(word or "")
        if self._job is None:
            whys = [*filter(None, [jobs.missing()]), *not_listed(os.environ)]
            raise UnknownError(f"{otherwise}{''.join(f' {why}.' for why in whys)}") from None

    def files(self) -> list[tuple[str, Path]]:
        """Return the files that are there now, each with what goes in front of its lines."""
        logs = self._rank_logs()
        if logs or self._rank is not None:
            return logs
        path = Path(self._folder, self._output)
        if self._output and os.path.isfile(path):  # never an error
            return [("", path)]
        if self.may_write():
            return []
        return self._last_words()

    def _rank_logs(self) -> list[tuple[str, Path]]:
        """Return the logs of --log-dir; there ``run.json`` lies among them, elsewhere are last words alone."""
        if not self._folder or Path(self._folder).parent.name in {"launches", "records"}:
            return []
        found = []
        for path in Path(self._folder).glob("rank-*.log"):
            number = path.stem.removeprefix("rank-")
            if number.isdecimal() and self._rank in {None, int(number)}:
                found.append((int(number), path))
        found.sort()
        # Logs appear one by one: those of a launch of several ranks are marked from the first on.
        is_marked = self._rank is None and max(len(found), self._record.plan.world_size) > 1
        return [(f"[{number}]: " if is_marked else "", path) for number, path in found]

    def _last_words(self) -> list[tuple[str, Path]]:
        return [("", path) for path in sorted(Path(self._folder).glob("rank-*.log"))] if self._folder else []

    def refuse(self, path: Path) -> None:
        """Refuse a file that is none, and one that the record has from elsewhere.

        A job's output is where the user wants it; a record that is not of this user's launches may name any file, or
        have a link to it among its logs.

        Raises:
            UsageError: It is such a file.
        """
        refuse_unreadable(path)
        if not self._folder or inside(self._folder, str(path)):
            return
        is_own = any(os.path.realpath(Path(head.path).parent) == self._folder for head in heads())
        if not (is_own and str(path) == self._output):
            raise UsageError(
                f"{path} is not printed: the launch's record in {self._folder} leads to it, which is another "
                f"folder; expected a file in that of the record. Look at it yourself: less {path}"
            )

    def may_write(self) -> bool:
        """Tell whether more may come: the launch has recorded no end."""
        if not self._folder:
            return self._job is not None and self._job.state in {QUEUED, RUNNING}
        now = self._read()
        if now.launch_id != self._record.launch_id or not may_run(now):  # of another launch, or gone; or over
            return False
        launch = of_record(now)
        if launch.host == os.uname().nodename:
            return True
        if self._is_lost is None:  # asked once: sites forbid polling
            jobs = my_jobs(os.environ, user_name(), scheduler_questions(SCHEDULER_LIMIT), launch.started)
            self._is_lost = bool(jobs.who_forgot(launch.scheduler, launch.job, launch.started))
        return not self._is_lost

    def awaited(self) -> str:
        """Return what is waited for, in words."""
        if not self._folder and self._job:
            return f"{self._output or 'the output'} of job {self._job.job}"
        which = "the log" if self._rank is None else f"the log of rank {self._rank}"
        job = self._record.plan.job_id
        job = f" (job {job})" if job else ""
        return f"{which} of launch {self._record.launch_id}{job}"

    def say_nothing(self) -> None:
        """Say that there is nothing to print, and how there would be.

        Raises:
            UsageError: Always.
        """
        if self._rank is not None:
            raise UsageError(
                f"no log of rank {self._rank} of {self.awaited().rpartition(' of ')[2]}; expected a file rank-"
                f"{self._rank}.log of `launch --log-dir DIR`, on a host that sees DIR."
            )
        if not self._folder and self._job:
            job = self._job
            what = f"no file {self._output}" if self._output else "no file that its scheduler tells"
            raise UsageError(
                f"no output of job {job.job}, which is {job.told or job.state}: {what} on {os.uname().nodename}; "
                "expected the file of its output, on a host that sees it, and once the job has begun."
            )
        raise UsageError(
            f"no output of {self.awaited().partition(' of ')[2]} is kept: its launch had no --log-dir and wrote into "
            "no file; expected one of them. Start it with `launch --log-dir DIR`, or as a job."
        )


# Printing


class _File:
    """A file that grows, is cut off or replaced, from where it was read to."""

    def __init__(self, mark: str, path: Path) -> None:
        self.path = path
        self._mark = mark.encode()
        self._place = 0
        self._inode = 0
        self._at_start = True  # of a line

    def more(self) -> bytes:
        """Return what has come, at most 64 KiB, each line with its mark; a file that was cut off begins anew."""
        try:
            with open(self.path, "rb", opener=open_regular) as file:  # Path.open has no opener
                about = os.fstat(file.fileno())
                if about.st_size < self._place or (self._inode and about.st_ino != self._inode):
                    self._place = 0
                self._inode = about.st_ino
                file.seek(self._place)
                data = file.read(_PIECE)
        except OSError:  # it is not there, or its file system does not answer just now
            return b""
        self._place += len(data)
        if not self._mark or not data:
            return data
        start = self._mark if self._at_start else b""
        self._at_start = data.endswith(b"\n")
        body = data[:-1] if self._at_start else data
        return start + body.replace(b"\n", b"\n" + self._mark) + (b"\n" if self._at_start else b"")


def _print(source: _Source, *, follow: bool) -> int:
    """Print the files of a source; with ``follow`` until its launch has ended and all was printed."""
    files: dict[Path, _File] = {}
    out = sys.stdout.buffer
    while True:
        goes_on = follow and source.may_write()  # asked first: what comes before the end is printed after it
        for mark, path in source.files():
            if path not in files:
                source.refuse(path)
                files[path] = _File(mark, path)
        for each in files.values():
            while data := each.more():
                out.write(data)
        out.flush()
        if not goes_on:
            return 0
        time.sleep(_EVERY)
