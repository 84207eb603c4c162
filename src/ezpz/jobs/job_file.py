"""Write a job file: the options that the site asks for, its set-up, and one command under ``launch``.

An option is one line behind the scheduler's mark, as the site's table and people write it; these are the parts of one:

    --nodes=2                     name --nodes, value 2
    -N 2                          the same, where the scheduler calls -N another spelling of --nodes
    -l select=2:system=polaris    name "-l select", value 2:system=polaris
    --exclusive                   a name without a value
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap

from ezpz.fields import Record
from ezpz.jobs.job_handler import JobScript

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ezpz.cluster.site import Site

WITHOUT_SCHEDULER = JobScript("run.sh", "", (), "")  # a script for the machine in front of you
_WIDTH = 120
_UNFILLED = r"(ACCOUNT|PROJECT|PARTITION|QUEUE)(_\w+)?"
_CHECKOUT = "src/ezpz/bin/utils.sh"  # below the folder of a checkout


class Asked(Record):
    """What one job is asked to be; what is empty is as the site's table has it.

    Attributes:
        hosts: How many.
        seconds: The longest time that it may take.
        name: Its name in the queue.
        account: The account that is charged.
        queue: Where it waits.
        filesystems: The file systems that it needs, as the scheduler wants them named.
        more: Further options, which stand in place of all others of their names.
        folder: Where what it prints goes, with a / at the end; empty for the folder in which it is submitted.
    """

    hosts: int
    seconds: int
    name: str
    account: str = ""
    queue: str = ""
    filesystems: str = ""
    more: tuple[str, ...] = ()
    folder: str = ""


class Option(Record):
    """One option of a job."""

    name: str
    value: str = ""

    def line(self) -> str:
        """Return it as it is written after the mark."""
        if not self.value:
            return self.name
        return f"{self.name}{'=' if self.name.startswith('--') or ' ' in self.name else ' '}{self.value}"


def read_option(text: str, kind: JobScript) -> Option:
    """Return the name and the value of an option in the words of a site's table or of a user."""
    word, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return Option(name, f"{value} {rest}".strip() if equals else rest)
    word, value = word[:2], word[2:] + rest
    called = dict(kind.also_called).get(word)
    if called:
        return Option(called, value.removeprefix("="))
    if "=" in value and " " not in value.partition("=")[0]:
        resource, _, value = value.partition("=")
        return Option(f"{word} {resource}", value)
    return Option(word, value)


def options(kind: JobScript, site: Site | None, asked: Asked, *, template: bool = False) -> list[Option]:
    """Return the options of a job in the order of the site's table.

    Args:
        kind: The scheduler's.
        site: The site, where it is known.
        asked: What the job is asked to be.
        template: Keep what is to be filled in, also where no site asks for it.
    """
    lines = site.job if site and site.job else kind.options
    table = {option.name: option.value for option in (read_option(line, kind) for line in lines)}
    queue = queue_option(kind, site)
    if kind.hosts:
        table[kind.hosts] = re.sub(r"^\d*", str(asked.hosts), table.get(kind.hosts, ""))
    if kind.time:
        table[kind.time] = clock(asked.seconds)
    given = {kind.account: asked.account, queue: asked.queue, kind.filesystems: asked.filesystems}
    given = {name: value for name, value in given.items() if name and value}
    table |= given
    if not template and not (site and site.job):  # nothing says that the others are needed
        table = {name: value for name, value in table.items() if name in given or is_filled_in(value)}
    if kind.name:
        table[kind.name] = asked.name
    table |= {option.name: option.value for option in (read_option(line, kind) for line in kind.always)}
    folder = asked.folder.replace(*kind.literal) if kind.literal[0] else asked.folder
    output = kind.output_file.replace("{folder}", folder)
    if kind.output and output:
        table[kind.output] = shlex.quote(output)
    table |= {option.name: option.value for option in (read_option(line, kind) for line in asked.more)}
    return [Option(name, value) for name, value in table.items()]


def resources(option: Option) -> list[Option]:
    """Return an option as those of its resources: ``-l select=2,walltime=1:00:00`` asks for two, other ones for one."""
    head, _, first = option.name.partition(" ")
    if not first:
        return [option]
    parts = (part.partition("=") for part in f"{first}={option.value}".split(","))
    return [Option(f"{head} {name.strip()}", value) for name, _, value in parts]


def hosts_of(value: str) -> int | None:
    """Return how many hosts an option asks for: 2 of ``2``, 3 of ``2:ncpus=8+1:ncpus=4``; None for a range, or else."""
    counts = [part.partition(":")[0].strip() for part in value.split("+")]
    return sum(int(count) for count in counts) if all(count.isdecimal() for count in counts) else None


def is_filled_in(value: str) -> bool:
    """Tell whether a value is one, and not a word such as PROJECT that is to be filled in."""
    return re.fullmatch(_UNFILLED, value) is None


def queue_option(kind: JobScript, site: Site | None) -> str:
    """Return the option by which jobs of a site name their queue: some sites name a quality of service."""
    named = {read_option(line, kind).name for line in (site.job if site else ())}
    return next((name for name in kind.queues if name in named), next(iter(kind.queues), ""))


def value_of(found: Sequence[Option], name: str) -> str:
    """Return the value of an option; empty where the job has none."""
    return next((option.value for option in found if option.name == name), "")


def unfilled(found: Sequence[Option]) -> list[Option]:
    """Return the options with a word such as PROJECT, which is to be filled in."""
    return [option for option in found if not is_filled_in(option.value)]


def clock(seconds: int) -> str:
    """Return ``HH:MM:SS``; hours may be more than 24, as schedulers take them."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class JobFile(Record):
    """What a job file says.

    Attributes:
        kind: How the scheduler's job files are written.
        site: The site, where it is known.
        title: What people call the machine.
        options: The options of the job.
        command: The words behind ``launch``.
        utils: The path of utils.sh; one that is not absolute is below the folder in which the job is submitted.
        venv: The virtual environment that the job uses; empty for the one that `ezpz_setup_env` chooses.
        conda: The conda environment in its place; empty for none.
        chain: The folder of the chain of jobs to which it belongs; empty for a job alone.
        programs: A folder of the scheduler's that is put on PATH; empty for none.
    """

    kind: JobScript
    site: Site | None
    title: str
    options: tuple[Option, ...]
    command: tuple[str, ...]
    utils: str
    venv: str = ""
    conda: str = ""
    chain: str = ""
    programs: str = ""

    def text(self) -> str:
        """Return the file's text."""
        return "\n".join("\n".join(part) + "\n" for part in self._parts() if part)

    def _parts(self) -> Iterator[list[str]]:
        kind = self.kind
        yield [kind.first_line, *_comment(self._about())]
        lines = [f"{kind.mark} {option.line()}" for option in self.options]
        if lines and not (self.site and self.site.job) and kind.devices and not self._asks_for_devices():
            instead = f", remove the other {kind.hosts}" * (read_option(kind.devices, kind).name == kind.hosts)
            lines += _comment(
                f"Most clusters give devices only when they are asked for: take one # away, set the number{instead}."
            )
            count = self.site.devices_per_host if self.site and self.site.devices_per_host else 4
            hosts = hosts_of(value_of(self.options, kind.hosts)) or 1
            lines.append(f"#{kind.mark} {kind.devices.format(count=count, hosts=hosts)}")
        yield lines
        yield ["set -euo pipefail"]
        yield kind.enter.splitlines()
        if self.programs:
            yield [
                *_comment(f"{kind.beside} is where {kind.program} was found; launch reaches the other hosts by it."),
                f'export PATH="$PATH":{shlex.quote(self.programs)}',
            ]
        yield list(self._guards())
        if self.conda:
            yield [
                *_comment("The conda environment in which this file was written; ezpz_setup_env takes it as it is."),
                f"export CONDA_PREFIX={shlex.quote(self.conda)}",
                'export PATH="$CONDA_PREFIX/bin:$PATH"',
            ]
        yield [
            *_comment(self._about_setup()),
            "# shellcheck source=/dev/null",
            f"source {shlex.quote(self.utils)}",
            f"ezpz_setup_env {shlex.quote(self.venv)}" if self.venv else "ezpz_setup_env",
        ]
        if self.chain:
            yield [
                *_comment("The chain of jobs to which this one belongs: launch leaves its verdict there."),
                f"export EZPZ_CHAIN={shlex.quote(self.chain)}",
            ]
        end = "Its exit code is the job's: that of the first rank that failed." if kind.program else ""
        yield [*_comment(f"One rank per device on every host. {end}".rstrip()), *_wrapped(self.command)]

    def _about(self) -> str:
        kind, site = self.kind, self.site
        if not kind.program:
            return "A training on this machine, without a scheduler, in the folder in which it is called: `bash FILE`."
        source = ", ".join(part for part in (site.source, site.date) if part) if site and site.job else ""
        return (
            f"A job for {self.title}, which runs in the folder in which it is submitted: `{kind.program} FILE`. "
            + (f"What the site asks for is from {source}. " if source else "")
            + "`ezpz submit` writes such files, and `ezpz submit --help` explains them."
        )

    def _asks_for_devices(self) -> bool:
        return any(re.search(r"gpu|gres", option.line()) for option in self.options)

    def _guards(self) -> Iterator[str]:
        kind = self.kind
        if not os.path.isabs(self.utils):
            what = "the folder of the checkout" if self.utils == _CHECKOUT else "the folder for which it was written"
            typed = f"call {kind.program}" if kind.program else "call this file"
            yield f"if [[ ! -f {shlex.quote(self.utils)} ]]; then"
            yield f'  echo "no {self.utils} in $PWD: {typed} in {what}" >&2'
            yield "  exit 2"
            yield "fi"
        for option in unfilled(self.options):
            # Only an account is taken unasked where it is unknown; a queue that does not exist is refused.
            if option.name == kind.account or "{small}" not in kind.unfilled:
                given = {"line": option.line(), "option": option.name, "small": option.value.lower()}
                yield from kind.unfilled.format(**given).splitlines()

    def _about_setup(self) -> str:
        site = self.site
        done = []
        if site and site.modules:
            done.append(f"loads {', '.join(step[0] for step in site.modules)}")
        if site and site.proxy:
            done.append(f"sets the proxy {site.proxy} on hosts that need it")
        done.append(
            "activates the environment in which this file was written"
            if self.venv or self.conda
            else "activates a Python that has torch and ezpz, which the first call makes"
        )
        text = f"{', '.join(done[:-1])} and {done[-1]}" if done[1:] else done[0]
        return f"{text[0].upper()}{text[1:]}."


def _comment(text: str) -> list[str]:
    """Return a text as lines of a comment."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )


def _wrapped(command: Sequence[str]) -> list[str]:
    """Return ``launch`` and its words as lines of a shell, none too long where the words allow it."""
    lines = ["launch"]
    for word in map(shlex.quote, command):
        if len(lines[-1]) + len(word) + 3 > _WIDTH and lines[-1].strip():
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return lines
