"""Refuse a job before it is queued: for an account that is missing, a queue's limits, a folder of one host alone.

Limits are those that the scheduler states itself; what the site's table says of chains of jobs comes with its source.
Each error says what is asked, its source, what was expected and what to type.
"""

from __future__ import annotations

import os

from ezpz import durations, proc
from ezpz.errors import UsageError, did_you_mean
from ezpz.jobs.job_file import clock

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ezpz.cluster.allocation import Read
    from ezpz.cluster.site import Site
    from ezpz.jobs.job_file import Option
    from ezpz.jobs.job_handler import Queue, Queues

FORBIDDEN = "forbidden: "  # how the words of a site's table begin that refuse a chain
FORCE = " `--force` submits it all the same."  # at the end of what --force passes
_MOUNTS = "/proc/self/mounts"
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
# File systems that other hosts see too. One that a program serves (fuse.…) may be either: it is not judged.
_SHARED = {
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "wekafs", "panfs", "pvfs2", "orangefs"),
    *("afs", "9p", "dvs", "daos", "quobyte"),
}
# Each host's own, on most machines.
_OWN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/local")  # noqa: S108  # nothing is made there


def without_hint(error: UsageError) -> str:
    """Return the words of a refusal without the hint at --force."""
    return str(error).removesuffix(FORCE)


def check_filled_in(missing: Sequence[Option], program: str, flag: dict[str, str], who: str) -> None:
    """Refuse options with a word that is to be filled in.

    Args:
        missing: The options, of `job_file.unfilled`.
        program: What submits the job.
        flag: The option of `ezpz submit` that fills in an option of the job.
        who: Who asks for them.

    Raises:
        UsageError: There is one.
    """
    for option in missing:
        typed = flag.get(option.name, f"-O {option.name}=")
        raise UsageError(
            f"not filled in: {option.line()} (from {who}); expected a name of yours, which {program} needs here. "
            f"Add `{typed} YOURS`."
        )


def check_queue(queues: Queues, name: str, origin: str, hosts: int, seconds: int) -> None:
    """Refuse a queue that does not exist or is closed, and a job that is longer or larger than it takes.

    Args:
        queues: What the scheduler says.
        name: The queue of the job; empty for the scheduler's own choice.
        origin: Who has named it.
        hosts: How many the job asks for.
        seconds: How long it may take.

    Raises:
        UsageError: The scheduler would refuse the job, or never start it.
    """
    known = queues.by_name
    source = f"(from `{queues.origin}`)"
    if "@" in name:  # a queue of another server
        return
    for each in filter(None, name.split(",")):  # partitions, of which the first that can takes the job
        if each not in known:
            raise UsageError(
                f"unknown queue: {each!r} (from {origin}); expected one of {', '.join(known)} {source}."
                f"{did_you_mean(each, known)}{FORCE}"
            )
    named = [known[each] for each in name.split(",") if each]
    named = named or [each for each in known.values() if each.is_default]
    fits = [each.name for each in known.values() if each.is_open and _suits(each, queues, hosts, seconds)]
    if not named or any(each.name in fits for each in named):
        return
    others = f": {', '.join(fits[:6])} would take it" if fits else ""
    queue = named[0]
    if not queue.is_open:
        raise UsageError(
            f"closed: queue {queue.name} (from {origin}) takes no jobs now {source}; expected an open one. Name "
            f"another with -q{others}.{FORCE}"
        )
    ends = [end for end in _ends(queue, queues) if _takes_hosts(end, hosts)]
    if not ends or not _takes_hosts(queue, hosts):
        raise UsageError(
            f"wrong number of hosts: --nhosts {hosts}; expected {_range(queue, _ends(queue, queues))}, as queue "
            f"{queue.name} takes {source}. Change --nhosts, or name another queue with -q{others}.{FORCE}"
        )
    longest = [_most(end.most_seconds for end in ends), queue.most_seconds]
    most = clock(min(limit for limit in longest if limit is not None))
    raise UsageError(
        f"too long: --time {clock(seconds)}; expected at most {most}, which queue {queue.name} grants to a job of "
        f"{hosts} host{'s' * (hosts > 1)} {source}. Shorten --time, with --until-done for a training that takes "
        f"longer, or name another queue with -q{others}.{FORCE}"
    )


def queues_of_site(site: Site, hosts: int) -> Queues | None:
    """Return the queues of a site as its table has them, for a job of so many hosts; None where it names none.

    A text such as ``1-24 3h, 25-99 6h`` grants another time to each range of hosts.
    """
    from ezpz.jobs.job_handler import Queue, Queues

    found = {}
    for name, text in site.queues.items():
        ranges = []
        for part in text.split(", "):
            span, _, most = part.partition(" ")
            least, _, last = span.partition("-")
            ranges.append((int(least), int(last), int(durations.read(most) or 0)))
        longest = [most for least, last, most in ranges if least <= hosts <= last] or [ranges[-1][2]]
        found[name] = Queue(name, max(longest), ranges[0][0], ranges[-1][1])
    page = site.origins.get("queues", "the site table")
    return Queues(found, f"queues of site {site.name} in {page}") if found else None


def fitting_queue(queues: Queues, name: str, hosts: int, seconds: int) -> str:
    """Return the name of a queue if it takes a job, else that of the first that does; empty where none does."""
    known = queues.by_name
    if name not in known or _suits(known[name], queues, hosts, seconds):
        return name
    return next((each.name for each in known.values() if _suits(each, queues, hosts, seconds)), "")


def _ends(queue: Queue, queues: Queues) -> list[Queue]:
    """Return the queues in which jobs of a queue wait at last, as far as they are known: itself, in general."""
    return [queues.by_name[name] for name in queue.leads_to if name in queues.by_name] or [queue]


def _suits(queue: Queue, queues: Queues, hosts: int, seconds: int) -> bool:
    """Tell whether a queue, and one of those into which it moves its jobs, takes such a job."""
    return _takes(queue, hosts, seconds) and any(_takes(end, hosts, seconds) for end in _ends(queue, queues))


def _takes(queue: Queue, hosts: int, seconds: int) -> bool:
    return _takes_hosts(queue, hosts) and (queue.most_seconds is None or seconds <= queue.most_seconds)


def _takes_hosts(queue: Queue, hosts: int) -> bool:
    return (queue.least_hosts or 0) <= hosts and (queue.most_hosts is None or hosts <= queue.most_hosts)


def _most(limits: Iterable[int | None]) -> int | None:
    """Return the widest of some limits, of which None is no limit."""
    known = list(limits)
    return None if None in known else max(limit for limit in known if limit is not None)


def _range(queue: Queue, ends: Sequence[Queue]) -> str:
    """Return the numbers of hosts that a queue and those behind it take: 1 to 2, 10 and more."""
    least = max(queue.least_hosts or 1, min(end.least_hosts or 1 for end in ends))
    limits = [limit for limit in (queue.most_hosts, _most(end.most_hosts for end in ends)) if limit is not None]
    return f"{least} to {min(limits)}" if limits else f"{least} and more"


def check_shared(folders: Iterable[tuple[str, str]], site: Site | None, user: str, read: Read) -> None:
    """Refuse folders that each host has for itself: what a job reads or writes there is not where others look.

    Args:
        folders: Each path, which need not exist, and who has named it.
        site: The site, where it is known.
        user: The user's name, which may be part of the site's own folder.
        read: Reads the table of mounts.

    Raises:
        UsageError: One is such a folder.
    """
    mounts = [(place, kind) for place, kind, _ in proc.parse_mounts(read(_MOUNTS) or "")]
    for path, origin in folders:
        why = _of_one_host(os.path.realpath(path), mounts, site, user)
        if why:
            raise UsageError(
                f"not seen by all hosts: {path} (from {origin}) is {why}; expected a folder that every host of the job "
                f"sees, such as one of your project. Call it there, or name one with --output.{FORCE}"
            )


def _of_one_host(path: str, mounts: Sequence[tuple[str, str]], site: Site | None, user: str) -> str:
    around = [(place, kind) for place, kind in mounts if _is_below(path, place)]
    place, kind = max(around, key=lambda mount: len(mount[0]), default=("", ""))
    if kind in _IN_MEMORY:
        return f"in the memory of this host ({kind} at {place}, from {_MOUNTS})"
    if kind in _SHARED:
        return ""
    own = site.node_local.replace("{user}", user).split("{")[0].rstrip("/") if site else ""
    if own and _is_below(path, own):
        return f"on the disk of one host ({own} is node_local of site {site.name})" if site else ""
    for folder in _OWN_FOLDERS:
        if _is_below(path, folder) and (place in {"", "/"} or _is_below(place, folder)):
            return f"on the disk of one host ({folder}, {kind or 'unknown file system'} at {place or '/'})"
    return ""


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def about_chain(site: Site | None, queue: str) -> str:
    """Return what the site's table says about chains of jobs in a queue, with its source; empty where it says nothing.

    Args:
        site: The site, where it is known.
        queue: The queue; empty for the scheduler's own choice.
    """
    if site is None:
        return ""
    words = site.chains.get(queue) or site.chains.get("any", "")
    page = ", ".join(part for part in (site.source, site.date) if part)
    return (
        f"{words} (from {site.origins.get('chains', 'the site table')}{f'; site read from {page}' if page else ''})"
        * bool(words)
    )


def check_chain(words: str, queue: str, site: Site | None) -> None:
    """Refuse a chain where the site forbids it.

    Args:
        words: Of `about_chain`.
        queue: The queue.
        site: The site.

    Raises:
        UsageError: The words begin with "forbidden: ".
    """
    if words.startswith(FORBIDDEN):
        raise UsageError(
            f"a chain in queue {queue or 'of the scheduler'} of {site.name if site else 'this site'} is {words}; "
            f"expected another queue. Name one with -q, or leave out --jobs and --until-done.{FORCE}"
        )
