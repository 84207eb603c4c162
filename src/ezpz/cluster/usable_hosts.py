"""Find the hosts that this process may use; the schedulers' files are imported when somebody asks for them."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Allocation, Read, Run


def detect(
    environ: Mapping[str, str] | None = None, read: Read | None = None, run: Run | None = None, *, more: bool = False
) -> Allocation:
    """Return the hosts that this process may use.

    A job's own variables answer first. Where two schedulers have set theirs, the inner job counts and a note says so.
    Where none has, the user's running jobs are asked for one on this host: a shell opened by ssh belongs to it.

    Args:
        environ: The environment to read; this process's by default.
        read: Returns the text of a file or None; the real one by default.
        run: Returns what a command printed or None; by default the real one, which asks several schedulers side by
            side, gives each command two seconds, and notes which of them have passed without an answer.
        more: Ask the scheduler also for what only people want to know: the end of the job.

    Raises:
        MachineError: There is a job, but its hosts cannot be found.
        UsageError: A host expression cannot be read.
    """
    import os

    from ezpz.cluster import probe
    from ezpz.cluster.detection import find
    from ezpz.cluster.questions import Questions

    return find(os.environ if environ is None else environ, read or probe.read, run or Questions(), more=more)
