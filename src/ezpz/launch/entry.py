"""Run ``ezpz launch``: read the options, build the plan, start it, and return the exit code of the run.

What only a plan needs is imported when the options are read, and what only ranks need when the plan is made:
``--help``, a mistake and ``--dry-run`` cost no more than they must.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from functools import partial

from ezpz.broken_pipe import ending_with_the_reader
from ezpz.errors import EzpzError, MachineError, UsageError, end_with
from ezpz.files import private_folder, removed_folder
from ezpz.interpreter import open_standard_files
from ezpz.interrupt import FOR_RANKS, Deferring, Raising, end_now
from ezpz.launch.command import refuse_other_launchers, why_missing, with_python
from ezpz.launch.limits import shortage
from ezpz.launch.options import LaunchOptions, parse, print_help
from ezpz.launch.session import Session, say
from ezpz.ranks import OF_TASKS
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.launch.planning import PlanBuilder

_PASTED_WITHIN = 86400.0  # seconds: printed lines work for a day


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``launch`` and return its exit code."""
    try:
        _open_standard_files()
        with Raising(), Deferring(FOR_RANKS):  # these wait for the supervisor
            words = sys.argv[1:] if argv is None else argv
            return ending_with_the_reader(lambda: _launch(_read(words), words) if words else _show_help())
    except EzpzError as error:
        return end_with(error)
    except Exception as error:  # noqa: BLE001  # whatever it is, it has killed the ranks, and one line reports it
        from ezpz.launch import internal_error

        return internal_error.tell(error)
    except KeyboardInterrupt:  # before anything runs, or when only a slow reader is waited for
        return end_now()


def _open_standard_files() -> None:
    """Do as `open_standard_files`, and see to it that there is what takes and gives nothing, which every rank needs.

    Raises:
        MachineError: It cannot be opened.
    """
    try:
        open_standard_files()
    except OSError as error:
        wanted = "`mknod -m 666 /dev/null c 1 3`, as root, makes it"
        if error.errno != errno.ENOENT:
            wanted = shortage(error) or "`chmod 666 /dev/null`, as root, opens it to all"
        raise MachineError(
            f"cannot open {os.devnull}: {error.strerror} (from this host); expected the empty device. {wanted}."
        ) from None


def _refuse_removed_folder() -> None:
    """Refuse to start ranks in a folder that is not there any more.

    Raises:
        MachineError: The working folder was removed.
    """
    gone = removed_folder()
    if gone:
        raise gone


def _read(words: Sequence[str]) -> LaunchOptions:
    options = parse(words, os.environ)
    return LaunchOptions(**{**vars(options), "command": tuple(with_python(options.command, os.environ))})


def _show_help() -> int:
    """Print the help for a bare ``launch``; a script whose ``launch $COMMAND`` was empty shall not go on as if done."""
    print_help(sys.stderr)
    return UsageError.exit_code


def _launch(options: LaunchOptions, typed: Sequence[str]) -> int:
    refuse_other_launchers(options.command, "launch", options)
    if options.starts_ranks and not OF_TASKS.isdisjoint(os.environ):
        from ezpz.launch.tasks_around import refuse_as_task

        refused = refuse_as_task(options, typed, os.environ)
        if refused:
            return refused
    session = Session(options)
    # A launch inside a rank of another one has nothing to do with the job.
    if not os.environ.get("EZPZ_CHAIN") or "EZPZ_LAUNCH_ID" in os.environ or not options.starts_ranks:
        return _launch_alone(session)
    from ezpz.beside import beside

    code: int = beside("run_in_chain")(session, partial(_launch_alone, session))
    return code


def _launch_alone(session: Session) -> int:
    """Launch without a chain, or what it allows."""
    from ezpz.launch.planning import PlanBuilder
    from ezpz.launch.survey import survey

    options = session.options
    if options.attempts > 1:
        from ezpz.beside import beside

        beside("refuse_inside_torchrun")(os.environ, options)
    if (options.starts_ranks and options.check != "off") or (options.log_dir and not os.path.isabs(options.log_dir)):
        _refuse_removed_folder()
    builder = PlanBuilder(survey(options), options)
    if not options.starts_ranks:
        return _show(builder, options)
    missing = _missing(builder, options.command[0])
    if missing:
        return missing
    for note in builder.notes:
        if note != builder.moot:
            say(f"note: {note}")
    with session.recorded(builder.launch_id):
        if options.attempts == 1:
            return session.run(builder)
        from ezpz.beside import beside

        code: int = beside("run_attempts")(session, builder)
        return code


def _show(builder: PlanBuilder, options: LaunchOptions) -> int:
    """Print the plan that would be started; the host file named in its lines stays, so that they can be pasted."""
    if builder.needs_hostfile:
        builder.write_hostfile(_folder_of_shown())
    with builder.choose_rendezvous(must_know=False) as rendezvous:
        plan = builder.build(rendezvous)
    if rendezvous.note:
        say(f"note: {rendezvous.note}")
    if options.json or options.explain:
        from ezpz.launch.explain import as_json, as_text  # a launch needs neither json nor textwrap

        show(as_json(plan) if options.json else as_text(plan))
    else:
        for note in plan.context.notes:
            say(f"note: {note}")
        show("\n".join(plan.lines()))
    return 0


def _folder_of_shown() -> str:
    """Return the folder for host files that printed lines name, without those of yesterday."""
    folder = private_folder("dry-run")
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # another launch was faster
            if entry.stat().st_mtime < time.time() - _PASTED_WITHIN:
                os.unlink(entry.path)
    return folder


def _missing(builder: PlanBuilder, program: str) -> int:
    """Return 127 or 126 when the program cannot run here, where it can be known before anything starts."""
    reason, code = why_missing(program, "launch") if builder.is_here else ("", 0)
    if code:
        say(reason)
    return code
