"""Run ``ezpz doctor``: look at this host, or at every host of a job, and say what is wrong and what to do."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from ezpz.cli.standard_output import refuse_standard_output
from ezpz.cli_parser import option, run_verb
from ezpz.errors import MachineError, UsageError
from ezpz.fields import as_dict
from ezpz.files import open_regular, own_state_folder
from ezpz.launch.host.connection import CUT_OFF
from ezpz.launch.temporary import TemporaryFolder
from ezpz.quantities import duration
from ezpz.redact import redact_text
from ezpz.tables import wrapped
from ezpz.verbs import make_verb_parser
from ezpz.visible import painter, show, use_color, visible
from ezpz.watch.doctor.diagnosis import diagnose, summary
from ezpz.watch.doctor.examine import compute, examine, stale_variables, thread_variables
from ezpz.watch.doctor.host_probe import HostAnswer, ask_each, ask_together
from ezpz.watch.host_rules import Finding, listed

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    Facts = dict[str, Any]

_OPTIONS = (
    option("script", nargs="?", metavar="SCRIPT", help="a program that must be the same file on every host"),
    option("--hosts", metavar="LIST", help="these hosts, as for `launch`: n01,n[03-05]"),
    option("--job", action="store_true", help="all hosts of the job that this shell is in"),
    option("--outdir", metavar="DIR", help="where the run will write (outputs)"),
    option("--full", action="store_true", help="also compute on each device, and compare with the CPU; some seconds"),
    option("--json", action="store_true", help="print one JSON object: hosts, findings, facts"),
    option("--bundle", metavar="FILE", help="also write a zip for a support ticket, without secrets"),
)
_ABOUT = """\
Without options this host alone is looked at. Over several hosts one process per host is started as `launch` would start
a rank, and tries to reach the first host."""
_EXAMPLES = (
    ("ezpz doctor", "look at this host"),
    ("ezpz doctor train.py", "and at a script"),
    ("ezpz doctor --job --full", "let every device of every host of the job compute"),
)
_EXITS = (("125", "something is wrong that makes a launch fail"),)
_CACHES = ("HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_LIMITS = ("--start-timeout", "30", "--timeout", "60")  # seconds for all hosts to start a Python, and to answer
_NOT_ASKED = HostAnswer(facts=None, began=False, words="it was not asked, because too many hosts before it hang")
_TAIL = 1 << 16  # bytes of a log that go into a bundle


def main(argv: Sequence[str]) -> int:
    """Print what is wrong and return the exit code."""
    parser = make_verb_parser("doctor", _OPTIONS, _ABOUT, usage="[SCRIPT] [options]", examples=_EXAMPLES, exits=_EXITS)
    return run_verb(parser, argv, _doctor)


def _doctor(options: Namespace) -> int:
    _check(options)
    begun = time.monotonic()
    request = _request(options)
    findings: list[Finding] = []
    if options.hosts or options.job:
        hosts, findings = _look_at_job(request, options.hosts)
    else:
        hosts = [_this_host(request)]
    findings = [*findings, *diagnose(hosts)]
    seconds = time.monotonic() - begun
    answer = {
        "seconds": round(seconds, 2),
        "hosts": [facts["host"] for facts in hosts],
        "findings": [as_dict(finding) for finding in findings],
        "facts": hosts,
    }
    if options.json:
        show(json.dumps(answer, indent=2))
    else:
        show(_text(hosts, findings, seconds), colors=True)
    if options.bundle:
        _write_bundle(Path(options.bundle).expanduser(), answer)
    return 125 if any(finding.is_problem for finding in findings) else 0


def _check(options: Namespace) -> None:
    """Refuse options that say nothing, or contradict each other.

    Raises:
        UsageError: They do.
    """
    refuse_standard_output("--bundle", options.bundle, "a file for the zip")
    for name, what in (("hosts", "hosts: n01,n[03-05]"), ("outdir", "a folder"), ("bundle", "a new file")):
        if getattr(options, name) == "":
            raise UsageError(f"--{name} is empty (from the command line); expected {what}. Name it, or leave it out.")
    if options.hosts and options.job:
        raise UsageError("--hosts and --job are both given (from the command line); expected one of them.")
    if options.job:
        from ezpz.launch.options import parse
        from ezpz.launch.survey import survey

        allocation = survey(parse([], {})).allocation
        if allocation.scheduler == "none":
            notes = "".join(f" ({note})" for note in allocation.notes)
            raise UsageError(
                f"--job (from the command line): this shell is in no job that `ezpz where` knows{notes}; expected one. "
                "Name hosts with --hosts LIST, or leave it out for this host."
            )


def _this_host(request: Facts) -> Facts:
    facts = examine(request, os.environ)
    if request["compute"]:
        facts["compute"] = compute((facts["devices"] or {}).get("kind"))
    return facts


def _request(options: Namespace) -> dict[str, Any]:
    try:
        folder = str(Path.cwd())
    except OSError:
        raise UsageError("the working folder was removed; change into one that is there.") from None
    script = str(Path(options.script).expanduser().absolute()) if options.script else ""
    shm = "/dev/shm"  # noqa: S108  # the mount itself
    places = {
        "the run's folder": str(Path(options.outdir or "outputs").expanduser().absolute()),
        "TMPDIR": "",  # as on each host
        "the home folder": os.environ.get("HOME", ""),
        shm: shm if Path(shm).is_dir() else "",
        **dict.fromkeys(_CACHES, ""),
    }
    return {
        "folder": folder,
        "script": script,
        "places": places,
        "stale": stale_variables(os.environ),
        "threads": thread_variables(os.environ),
        "programs": True,
        "compute": options.full,
    }


def _look_at_job(request: Facts, hosts: str | None) -> tuple[list[Facts], list[Finding]]:
    """Return what hosts have found of themselves, and what keeps others from answering.

    All are asked by one launch, in which they also try to reach each other. Where that fails each is asked alone, and
    those that answer are asked together once more.

    Raises:
        EzpzError: There is no such launch.
    """
    chosen = ["--hosts", hosts] if hosts else []
    with _own_folder() as folder:
        found, code, cause, planned = ask_together(request, f"{folder}/all", *_LIMITS, *chosen)
        if not code:
            return found, []
        if code == UsageError.exit_code or not planned:
            raise (UsageError if code == UsageError.exit_code else MachineError)(cause)
        answers = ask_each(planned, request, folder)
        found = [dict(answer.facts) for answer in answers.values() if answer.facts]
        silent = {host: answers.get(host, _NOT_ASKED) for host in planned}
        silent = {host: answer for host, answer in silent.items() if not answer.facts}
        up = [host for host in planned if host not in silent]
        if silent and len(up) < 2:
            code = 0  # they are why it failed
        elif silent:
            together, code, cause, _ = ask_together(request, f"{folder}/up", *_LIMITS, "--hosts", ",".join(up))
            found = found if code else together
        findings = _silent(silent)
        if code:
            findings.append(Finding(True, cause, "see whether `launch` starts a program on these hosts", "launch"))
    return found, findings


@contextmanager
def _own_folder() -> Iterator[str]:
    """Make a folder for the records of launches, which other hosts may have to read, and remove it in the end."""
    try:
        folder = TemporaryFolder("doctor", own_state_folder(os.environ))
    except (OSError, MachineError):  # there is none, or it is full, or closed
        folder = TemporaryFolder("doctor")
    with folder as path:
        yield path


def _silent(answers: Mapping[str, HostAnswer]) -> list[Finding]:
    """Return what keeps hosts from answering; those of which the same is said come together."""
    alike: dict[str, list[str]] = {}
    for host, answer in answers.items():
        alike.setdefault(_same(host, _why_silent(host, answer)), []).append(host)
    findings = []
    for hosts in alike.values():
        several = len(hosts) > 1
        words = _why_silent(hosts[0], answers[hosts[0]])
        text = f"{listed(hosts)} {'do' if several else 'does'} not answer: {words}"
        cure = "open the ports between the hosts of a job: ranks and their agents need more than that of ssh"
        if CUT_OFF not in words:
            cure = (
                f"see whether {'they are' if several else 'it is'} up, and whether `launch --hosts {hosts[0]} true` "
                f"runs there; or leave {'them' if several else 'it'} out: --exclude {','.join(hosts)}"
            )
        findings.append(Finding(True, text, cure, "silent", hosts))
    return findings


def _same(host: str, why: str) -> str:
    """Return a reason without what differs from host to host: its name, the port of its launch."""
    return re.sub(r"port \d+", "port", why.replace(host, "\0"))


def _why_silent(host: str, answer: HostAnswer) -> str:
    """Return how the launch of a host ended, and the line that tells why."""
    words = answer.words.removeprefix(f"cannot start ranks on {host}: ").removesuffix(".")
    if not answer.said or answer.said in words:
        return words or "no word came from it"
    return f"{words.partition('; expected ')[0]}: {answer.said}"


def _text(hosts: Sequence[Facts], findings: Sequence[Finding], seconds: float) -> str:
    paint = painter(use_color(sys.stdout))
    lines = []
    for finding in findings:
        word = "problem" if finding.is_problem else "note"
        text = _filled(f"{word:<8} {visible(finding.text)}", " " * 9)
        text = paint(word, "bad" if finding.is_problem else "doubtful") + text[len(word) :]
        indent = " " * 9
        cure = _filled(f"{indent}→ {visible(finding.cure)}", f"{indent}  ")
        lines += [text, cure]
    silent = sum(len(finding.hosts) for finding in findings if finding.check == "silent")
    names = visible(hosts[0]["host"]) if len(hosts) == 1 and not silent else f"{len(hosts) + silent} hosts"
    problems = sum(finding.is_problem for finding in findings)
    counts = {"problem": problems, "note": len(findings) - problems}
    counted = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items()]
    verdict = ", ".join(counted) if findings else "nothing is wrong"
    lines += ["", ""] if lines else [""]
    lines[-1] = _filled(f"{names}: {verdict}, looked at in {duration(seconds)}{_import_time(hosts)}")
    shared = summary(hosts)
    return "\n".join([*lines, *([_filled(visible(shared))] if shared else [])])


def _import_time(hosts: Sequence[Facts]) -> str:
    """Return what importing torch took, on the slowest of several hosts."""
    imports = [(facts.get("imports") or {}).get("torch") or {} for facts in hosts]
    seconds = [each["seconds"] for each in imports if each.get("seconds")]
    return f" (importing torch: {duration(max(seconds))})" if seconds else ""


def _filled(text: str, indent: str = "") -> str:
    """Return lines of 80 columns; paths stay whole, so that they can be copied."""
    return "\n".join(wrapped(text, more=indent, breaks=False))


# A file for a support ticket


def _write_bundle(path: Path, answer: dict[str, Any]) -> None:
    """Write what doctor found, what `ezpz where` shows and the last launch's record and logs, without secrets."""
    from io import StringIO
    from zipfile import ZIP_DEFLATED, ZipFile

    from ezpz.cli import where
    from ezpz.errors import EzpzError
    from ezpz.register import heads

    parts = {"doctor.json": json.dumps(answer, indent=2)}
    try:
        parts["where.json"] = json.dumps(where.facts(), indent=2)
    except EzpzError as error:
        parts["where.json"] = json.dumps({"error": str(error)})
    newest = next(iter(heads()), None)
    for file in sorted(Path(newest.path).parent.iterdir()) if newest else ():
        if file.is_file() and file.suffix in {".json", ".log"}:
            with open(file, "rb", opener=open_regular) as opened:  # Path.open has no opener
                opened.seek(max(0, file.stat().st_size - _TAIL))
                parts[f"launch/{file.name}"] = opened.read().decode(errors="replace")
    listing = StringIO()
    listing.write("What this machine and the last launch look like, for a support ticket; secrets are left out.\n\n")
    listing.write("".join(f"{name}\n" for name in parts))
    try:
        path.touch(0o600, exist_ok=False)  # it holds logs, and is for whom the user sends it to
        with ZipFile(path, "w", ZIP_DEFLATED) as bundle:
            bundle.writestr("README.txt", listing.getvalue())
            for name, text in parts.items():
                bundle.writestr(name, redact_text(text))
    except FileExistsError:
        raise UsageError(f"{path} (from --bundle) is there already; expected a new file. Name another one.") from None
    except OSError as error:
        raise UsageError(
            f"cannot write {path} (from --bundle): {error.strerror}; expected a file in a folder that can be written."
        ) from None
    show(f"written: {path}", sys.stderr)
