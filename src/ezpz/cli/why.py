"""Run ``ezpz why [RUN|ID]``: say why a launch ended as it did, with the facts that show it, and what to try."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path

from ezpz.cli_parser import option, run_verb
from ezpz.cluster.questions import SCHEDULER_LIMIT
from ezpz.errors import EzpzError, MachineError, UsageError
from ezpz.fields import replace
from ezpz.jobs.queued_jobs import my_jobs, scheduler_questions, user_name
from ezpz.quantities import duration
from ezpz.records.launch_record import LaunchRecord
from ezpz.records.run_record import RunRecord
from ezpz.register import as_here, read
from ezpz.tables import hanging
from ezpz.track.launches import stopped_by
from ezpz.track.named import last_started, launch_named, without_launch
from ezpz.verbs import LAUNCH_HELP, make_verb_parser
from ezpz.visible import show, visible
from ezpz.why import Certainty, Facts, diagnose

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ezpz.watch.foreign_logs.facts_of_logs import LogFacts
    from ezpz.why import Cause

_OPTIONS = (
    option(
        "launch",
        nargs="?",
        metavar="RUN|ID",
        help=LAUNCH_HELP,
    ),
    option(
        "--logs",
        nargs="+",
        metavar="FILE",
        help="of a launch that ezpz did not start: what its ranks and torchrun, srun or mpiexec wrote, and dumps of "
        "torch's flight recorder",
    ),
    option("--json", action="store_true", help="one JSON object: launch, state, causes, and what was seen"),
)
_ABOUT = """\
The last launch of yours here, or another one; of one that runs, its ranks are asked what they are doing now. Of a run
that was started without `launch` it is what the run recorded."""
_EXAMPLES = (
    ("ezpz why", "the last launch"),
    ("ezpz why outputs/train/2026-11-24-101500", "the launch of this run"),
    ("ezpz why 4f1c --json", "for programs"),
    ("ezpz why --logs job-81.out nccl_trace_rank_*", "what others started"),
)


def main(argv: Sequence[str]) -> int:
    """Print the causes and return the exit code."""
    parser = make_verb_parser("why", _OPTIONS, _ABOUT, usage="[RUN|ID | --logs FILE …] [--json]", examples=_EXAMPLES)
    return run_verb(parser, argv, _why)


def _why(options: Namespace) -> int:
    if options.logs:
        return _why_by_logs(options)
    facts = _facts(options.launch)
    _look_at_rows(facts)
    causes = [_with_resume(facts, cause) for cause in diagnose(facts)]
    if options.json:
        show(json.dumps(_as_json(facts, causes), indent=2))
    else:
        show("\n".join(_text(facts, causes)))
    return 0


def _why_by_logs(options: Namespace) -> int:
    from ezpz.watch.foreign_logs.facts_of_logs import facts_of_logs

    if options.launch is not None:
        raise UsageError(f"--logs and {options.launch!r} (from the command line); expected one of them.")
    found = facts_of_logs(options.logs)
    causes = diagnose(found.facts)
    if options.json:
        files = [{"file": file, "ranks": ranks, "by": way} for file, ranks, way in found.sources]
        told = {"logs": files, "notes": found.notes, "unknown": found.unknown}
        show(json.dumps({**_as_json(found.facts, causes), **told}, indent=2))
        return 0
    lines = [*_text(found.facts, causes), ""]
    lines += [line for text in _sources(found) for line in hanging("", visible(text))]
    show("\n".join(lines))
    return 0


def _sources(found: LogFacts) -> Iterator[str]:
    """Yield what told which rank wrote what, what was left out, and what no log has told."""
    ways: dict[str, list[str]] = {}
    for file, _, way in found.sources:
        ways.setdefault(way, []).append(file)
    for way, files in ways.items():
        named = files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} to {files[-1]}"
        yield f"ranks are told by {way}: {named}"
    yield from found.notes
    yield f"not in these logs: {', '.join(found.unknown)}"


# Which launch is meant


def _facts(word: str | None) -> Facts:
    """Return the facts of the launch that is meant, or of a run without one, such as the last thing that ran here.

    Raises:
        UsageError: There is none, or several are meant.
    """
    meant = last_started() if word is None else launch_named(word)
    return _of_launch(Path(meant.record), meant.run) if meant.record else _read("", meant.run)


def _of_launch(folder: Path, run_folder: str = "") -> Facts:
    record = LaunchRecord.read(folder / "run.json")
    record.refuse_newer(folder / "run.json")
    facts = _read(str(folder), run_folder or record.run_folder)
    if facts.launch.state == "running":
        _ask(facts)
    return facts


def _read(launch_folder: str, run_folder: str) -> Facts:
    facts = Facts.read(launch_folder, run_folder)
    facts.run.refuse_newer(Path(run_folder, "run.json"))
    if not launch_folder:  # a run that was killed could not record it
        from ezpz.track.run_reader import open_run

        run = open_run(run_folder)
        facts.run = facts.run.changed(name=run.name, state=run.state, cause=run.cause)
    return facts


def _ask(facts: Facts) -> None:
    """Put into the facts what the ranks of a running launch are doing now."""
    from ezpz.cli.stacks import risked, stacks_of

    launch = read(str(Path(facts.launch_folder, "run.json")))
    if launch is None:  # it went meanwhile
        return
    launch = as_here(launch) or launch
    if not launch.is_here and launch.host in {"", os.uname().nodename}:
        facts.launch = replace(facts.launch, state="lost")  # its launcher is gone
        return
    try:
        answer = stacks_of(launch)
        facts.use_answer(answer)
        risk = risked(answer)
        if risk:  # beside the answer, which is about the program
            show(f"ezpz: {risk}", sys.stderr)
    except MachineError as error:
        jobs = my_jobs(os.environ, user_name(), scheduler_questions(SCHEDULER_LIMIT), launch.started)
        forgot = jobs.who_forgot(launch.scheduler, launch.job, launch.started)
        note = f"{forgot} does not know its job {launch.job}" if forgot else str(error)
        state = "lost" if forgot else facts.launch.state
        facts.launch = replace(facts.launch, state=state, notes=[*facts.launch.notes, note])


def _with_resume(facts: Facts, cause: Cause) -> Cause:
    """Say of a training that the user interrupted how it goes on."""
    if cause.cause != "interrupted" or not facts.run_folder:
        return cause
    from ezpz.view.card import resume_words

    words = dict(resume_words(Path(facts.run_folder), facts.run.argv))
    if not words:
        return cause
    saved = f"its newest checkpoint is {words['checkpoint']}"
    return replace(cause, consequences=(*cause.consequences, saved), advice=words.get("next", ""))


def _look_at_rows(facts: Facts) -> None:
    """Count the steps, and find what stands out in losses and times, of a run that had no time for it: one that runs,
    was killed or exited.
    """
    if not facts.run_folder or "findings" in facts.run.raw:
        return
    try:
        from ezpz.track.loss_findings import curve_findings
        from ezpz.track.run_reader import open_run
        from ezpz.track.steps import steps_of
        from ezpz.view.slow_steps import slow_findings

        run = open_run(facts.run_folder)
        found = [*curve_findings(run), *slow_findings(run)]
        facts.run = facts.run.changed(findings=found, steps=steps_of(run.table).made)
    except (EzpzError, ImportError, ValueError, TypeError, KeyError):  # no journal, or a damaged one: it says nothing
        return


# What is shown


def _text(facts: Facts, causes: Sequence[Cause]) -> Iterator[str]:
    yield from hanging("", visible(_head(facts)))
    serious = [cause for cause in causes if cause.certainty > Certainty.FINDING]
    findings = [cause for cause in causes if cause.certainty <= Certainty.FINDING]
    if not serious and not (findings and _went_well(facts)):
        yield ""
        yield from hanging("", visible(_no_cause(facts)))
    for cause in serious:
        yield from _one(cause)
    if findings:
        yield ""
        yield "findings, which ended nothing:"
    for cause in findings:
        yield from _one(cause)
    if not serious:
        for text in seen(facts):
            yield from hanging("  seen  ", visible(text))


def _head(facts: Facts) -> str:
    launch = facts.launch
    if facts.of_logs:
        size = f" of at least {facts.world_size} rank{'s' * (facts.world_size != 1)}" if facts.world_size else ""
        return f"by the logs of a launch{size} that ezpz did not start:"
    if not launch.raw:
        why = without_launch(RunRecord.read(Path(facts.run_folder, "run.json")))
        return f"{facts.run.state}: {facts.run.name} ({why}; only what the run recorded)"
    words = shlex.join(launch.command)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(launch.started or 0.0))
    ranks, hosts = facts.world_size, len(launch.plan.hosts)
    took = f", after {duration(launch.seconds)}" if launch.seconds is not None else ""
    code = f" with {launch.exit_code}" if launch.exit_code is not None else ""
    size = f"{ranks} rank{'s' * (ranks != 1)}" + (f" on {hosts} hosts" if hosts > 1 else "")
    return f"{launch.state or 'state unknown'}{code}{took}: {words} ({size}, {when}, id {launch.launch_id or '?'})"


def _went_well(facts: Facts) -> bool:
    """Tell whether nothing has ended the launch or run early, as far as is known."""
    return not facts.of_logs and (facts.launch.state or facts.run.state) in {"finished", "exited", "running"}


def _no_cause(facts: Facts) -> str:
    state = facts.launch.state or facts.run.state
    if facts.of_logs and not facts.launch.failed:
        return "nothing in them says that a rank failed; this is how they end"
    if state in {"finished", "exited"}:
        return "nothing stands out"
    if state == "running":
        return "it runs, and nothing stands out"
    if state == "failed" and not facts.launch.raw and facts.run.cause:
        return f"it ended with {facts.run.cause}"
    return "I do not know why; this is what I saw" if any(seen(facts)) else "I do not know why: nothing was recorded"


def _one(cause: Cause) -> Iterator[str]:
    yield ""
    yield from hanging("", visible(cause.text))
    for text in cause.evidence:
        yield from hanging("  seen  ", visible(text))
    for text in cause.consequences:
        yield from hanging("  then  ", visible(text))
    if cause.advice:
        yield from hanging("  try   ", visible(cause.advice))


def seen(facts: Facts) -> Iterator[str]:
    """Yield what was recorded of the end, a short sentence each."""
    launch = facts.launch
    of_run = "" if launch.raw or facts.run.state == "failed" else facts.run.cause
    said = (launch.hang.summary if launch.hang else "") or facts.cause.text or of_run
    if said:
        yield said
    if facts.asked and facts.asked.summary:
        yield facts.asked.summary
    signal = stopped_by(launch)
    if signal:
        yield f"the launch ended with {launch.exit_code}: {signal}"
    if facts.run.steps:  # a rank does not report each step
        yield f"the run recorded {facts.run.steps} step{'s' * (facts.run.steps != 1)}"
    elif launch.step is not None:
        yield f"the last step that a rank reported is {launch.step}"
    for hosts, words in ((launch.silent, "nothing was heard of"), (launch.lost, "lost while it ran:")):
        if hosts:
            yield f"{words} {', '.join(hosts)}"
    yield from launch.notes


def _as_json(facts: Facts, causes: Sequence[Cause]) -> dict[str, Any]:
    launch = facts.launch
    return {
        "launch_id": launch.launch_id or None,
        "state": launch.state or facts.run.state or None,
        "exit_code": launch.exit_code,
        "record": str(Path(facts.launch_folder, "run.json")) if facts.launch_folder else None,
        "run": facts.run_folder or None,
        "causes": [cause.as_json() for cause in causes],
        "seen": list(seen(facts)),
    }
