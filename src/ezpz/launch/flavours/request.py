"""Describe what a flavour is to start, and its answer: words and variables, each with the reason for it."""

from __future__ import annotations

from ezpz.cluster.scheduler import RemoteShellAccess, Scheduler
from ezpz.fields import EMPTY, Record

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ezpz.launch.cpu_binding import Binding
    from ezpz.launch.placement import Placement


class Flag(Record):
    """Words of a launch line that belong together, and why they are there."""

    words: tuple[str, ...]
    reason: str


class Setting(Record):
    """The value of a variable, and who chose it."""

    value: str
    origin: str


class Order(Record):
    """All that a flavour needs to write its line.

    Attributes:
        exe: Path of the launcher's program.
        placement: Ranks per host.
        binding: CPUs of each local rank.
        is_here: Whether all ranks run on this host.
        master: Address and port where the ranks meet.
        hostfile: Path of the host file in the flavour's dialect; empty where none is needed.
        version: The program's own version, e.g. ``(5, 0, 11)``; empty when unknown.
        carried: Variables that ranks on other hosts must get and that some launchers need by name.
        environ: The environment of the launcher.
        site_args: Options of the site.
        user_args: Options of the user.
        site: Name of the site, or empty.
        devices: Devices of each host of the placement; empty when unknown.
        scheduler: Whose job the hosts are.
        reach: Whether, and as whom, the scheduler's own remote shell can be used.
        program: The words that follow the launcher's, for a line that repeats them.
        forked: Where the placement is that of agents, the ranks that the one on each host forks; empty otherwise.
    """

    exe: str
    placement: Placement
    binding: Binding
    is_here: bool = True
    master: tuple[str, int] = ("127.0.0.1", 0)
    hostfile: str = ""
    version: tuple[int, ...] = ()
    carried: tuple[str, ...] = ()
    environ: Mapping[str, str] = EMPTY
    site_args: tuple[str, ...] = ()
    user_args: tuple[str, ...] = ()
    site: str = ""
    devices: tuple[int, ...] = ()
    scheduler: Scheduler = Scheduler()
    reach: RemoteShellAccess = RemoteShellAccess()
    program: tuple[str, ...] = ()
    forked: tuple[int, ...] = ()

    def tail(self) -> list[Flag]:
        """Return the words of the site and, last because the last one counts, those of the user."""
        flags = [Flag((word,), f"site {self.site}") for word in self.site_args]
        return [*flags, *([Flag(self.user_args, "--launcher-args")] if self.user_args else [])]


def words(flags: Iterable[Flag]) -> list[str]:
    """Return the words alone."""
    return [word for flag in flags for word in flag.words]
