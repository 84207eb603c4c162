"""Call the watchers of a launch: what looks at a run without being needed to start, own and end it.

A watcher is a folder of `ezpz.watch` with up to three sides. Ranks say a line to it (`ezpz.progress.tell`). Its host
side (`HostSide`) lives in each agent, its launcher side (`LauncherSide`) beside the supervisor; the two send each other
messages of their own. Each side acts through its handle alone, and is imported when it first has something to do: at a
message of its own, or at a time that its row of the settings names. A side that fails is called no more, and a note
says so: a watcher ends no run by a mistake.

`WATCHERS` is all that is known of them before: names, kinds of messages and modules. ``EZPZ_WATCHERS`` adds others,
each a module that Python finds, or the path of a file, with a `Watcher` called ``WATCHER``.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

from ezpz.errors import UsageError
from ezpz.fields import Record
from ezpz.launch import agent_messages as messages

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from ezpz.errors import EzpzError
    from ezpz.launch.agent_messages import Message, Settings
    from ezpz.launch.event_loop import Loop
    from ezpz.launch.host.rank_process import RankProcess
    from ezpz.launch.plan import LaunchPlan
    from ezpz.launch.run.failures import Failure, Outcome
    from ezpz.why import Facts

    Row = tuple[str, str, float, str, str, str]  # of `agent_messages.Settings.watchers`

__all__ = [
    "WATCHERS",
    "Handle",
    "HostHandle",
    "HostSide",
    "LauncherHandle",
    "LauncherSide",
    "Wait",
    "Watcher",
    "Watchers",
]


class Watcher(Record):
    """What is known of a watcher before any of it is imported. A side or module that it lacks is empty.

    Attributes:
        name: Its name in messages, timers and settings.
        title: What it looks at, in notes.
        host: Its `HostSide`, as ``module:class``; ``:class`` is in the file of the watcher itself.
        launcher: Its `LauncherSide`.
        messages: The module of its messages, with ``WORDS``, ``REPORTS`` and ``ORDERS``: tuples of classes; the file of
            the watcher itself where it is empty.
        words: Kinds of what ranks say to it: lines of words.
        reports: Kinds of what its host side reports to the launcher.
        orders: Kinds of what the launcher orders it to do.
        overhears: Kinds of words of others that its host side hears as well, once it is there.
        begins: Whether its launcher side has something to do before the ranks begin, and is made at the start. Whether
            its host side has says its row of the settings.
        fails: Whether it has something to do when a rank or a host has failed, and is made then at the latest.
        answers: The words that a running launch is asked (`ezpz.launch.ask_launch`) and its launcher side answers:
        ``stacks``. records: Whether its launcher side is made when rank 0 keeps a run.
        starts: Which side is made by itself when its row says when: ``host`` or ``launcher``.
        scope: What it looks at where an agent holds several worlds: each ``world``, or the ``host``, of which there is
            one side then.
    """

    name: str
    title: str
    host: str = ""
    launcher: str = ""
    messages: str = ""
    words: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    overhears: tuple[str, ...] = ()
    begins: bool = False
    fails: bool = False
    answers: tuple[str, ...] = ()
    records: bool = False
    starts: str = "host"
    scope: str = "world"


WATCHERS = (
    Watcher(
        "hardware",
        "devices",
        host="ezpz.watch.hardware.host:HardwareOfHost",
        launcher="ezpz.watch.hardware.launcher:HardwareRecord",
        messages="ezpz.watch.hardware.messages",
        reports=("hardware", "due"),
        orders=("hardware?", "seldom"),
        overhears=("busy",),
        scope="host",
    ),
    Watcher(
        "stragglers",
        "stragglers",
        host="ezpz.watch.stragglers.host:ArrivalsOfHost",
        launcher="ezpz.watch.stragglers.launcher:ArrivalRecord",
        messages="ezpz.watch.stragglers.messages",
        words=("arrivals",),
        reports=("arrivals",),
    ),
    Watcher(
        "hangs",
        "stacks and collectives",
        host="ezpz.watch.collectives.host:StacksOfHost",
        launcher="ezpz.watch.collectives.launcher:Hangs",
        messages="ezpz.watch.collectives.messages",
        reports=("stacks", "collectives"),
        orders=("stacks", "collectives?"),
        fails=True,
        answers=("stacks",),
    ),
    Watcher(
        "progress",
        "heartbeats",
        host="ezpz.watch.progress.host:ProgressOfHost",
        launcher="ezpz.watch.progress.launcher:Progress",
        messages="ezpz.watch.progress.messages",
        words=("beat", "at", "pace", "busy", "section", "ending"),
        reports=("idle", "pace", "busy"),
        orders=("anew",),
    ),
    Watcher(
        "saving",
        "saves",
        host="ezpz.watch.saving.host:SaversOfHost",
        launcher="ezpz.watch.saving.launcher:Saving",
        messages="ezpz.watch.saving.messages",
        words=("saver", "saved", "leaves", "answer"),
        reports=("savers", "answered"),
        orders=("ask", "save"),
        overhears=("at",),
        records=True,
        starts="launcher",
    ),
    Watcher(
        "unconnected",
        "connections of ranks",
        host="ezpz.watch.unconnected.host:ConnectionsOfHost",
        launcher="ezpz.watch.unconnected.launcher:Unconnected",
        messages="ezpz.watch.unconnected.messages",
        reports=("unconnected",),
    ),
    Watcher("leftovers", "memory of devices", host="ezpz.watch.device_memory.host:LeftoversOfHost", scope="host"),
    Watcher(
        "preflight",
        "hosts",
        host="ezpz.watch.preflight.host:LookOfHost",
        launcher="ezpz.watch.preflight.launcher:Preflight",
        messages="ezpz.watch.preflight.messages",
        reports=("looked",),
        begins=True,
        scope="host",
    ),
)


# What a watcher may do.


class Handle:
    """What a side may do, whichever it is. What it is given to call is called only as long as the side has not failed.

    Attributes:
        config: What the settings say to this watcher: the fourth of its row, a text; empty without any.
        note: Shows the user a sentence, once, and keeps it in run.json.
    """

    def __init__(
        self,
        name: str,
        config: str,
        loop: Loop,
        note: Callable[[str], None],
        guarded: Callable[..., Any],
    ) -> None:
        self.config, self.note = config, note
        self._name, self._loop, self._guarded = name, loop, guarded

    def after(self, seconds: float, action: Callable[[], object], name: str = "") -> None:
        """Call ``action()`` once after some seconds, in place of an earlier one under the same name."""
        self._loop.at(f"{self._name} {name}", time.monotonic() + seconds, lambda: self._guarded(action))

    def waits(self, name: str = "") -> bool:
        """Tell whether something is to be called under a name."""
        return self._loop.waits_for(f"{self._name} {name}")

    def cancel(self, name: str = "") -> None:
        """Call it no more."""
        self._loop.cancel(f"{self._name} {name}")

    def read(self, file: Any, action: Callable[[], object]) -> None:
        """Call ``action()`` whenever there is something to read."""
        self._loop.read(file, lambda _: self._guarded(action))

    def forget(self, file: Any) -> None:
        """Watch a file no more; it must still be open."""
        self._loop.forget(file)


class HostHandle(Handle):
    """What a host side may do.

    Attributes:
        ranks: The ranks of this host, by rank, or those of all its worlds, by pid, where a watcher with the scope of a
            host looks at several; others come and go in it.
        expected: How many it shall have.
        has_shims: Whether others start them, with shims in front of them.
        clock: What to add to this host's clock to get the launcher's, in seconds.
        launch: Id of the launch.
        report: Sends the launcher a message of this watcher.
        fail: Ends the run, because this host cannot go on: takes why.
        is_running: Tells whether all ranks of this host run.
        hold: Keeps the ranks of all hosts from beginning (True), or no longer (False).
        stay: Keeps the agent from ending although all ranks have (True), or no longer (False).
        settings: What the launcher wants of every agent.
        answer: Sends a message to the process of a rank that spoke on a connection (`HostSide.hear_on`).
    """

    ranks: dict[int, RankProcess]
    expected: int
    has_shims: bool
    clock: float
    launch: str
    report: Callable[[Message], None]
    fail: Callable[[str], None]
    is_running: Callable[[], bool]
    hold: Callable[[bool], None]
    stay: Callable[[bool], None]
    settings: Settings
    answer: Callable[[socket.socket, Message], None]


class LauncherHandle(Handle):
    """What a launcher side may do.

    Attributes:
        plan: What was started.
        launch: Id of the launch.
        folder: Of its records; empty without any.
        began: When the launch began, in seconds since 1970.
        host: Returns the name of a host of the plan.
        hosts: The name that each host from which something was heard calls itself, by its index.
        say: Shows the user a sentence.
        job_ends: Returns when the job ends, in the same seconds; None as long as that is not known.
        reached: Returns how many ranks have reached a stage of their start.
        order: Sends a message of this watcher to all hosts that run, ``but`` one, or only ``to`` some; returns those it
            was sent to.
        live: Draws a line below the output, on a terminal; none where it is empty.
        end_run: Ends the run: takes why, and the exit code, 1 to 255.
        overdue: Ends the run because a time limit is over: takes which one.
        end_overdue: Ends a run that is `overdue`, and takes what ranks are doing; tells whether it does: a rank may
            have failed by itself meanwhile.
        refuse: Lets no rank begin, if none has: takes why, as `before_begin` returns it.
        blame: Holds against a host that no rank could begin, for `launch --attempts`: takes its name, and why.
        is_stopping: Tells whether the run is being ended.
        answered: What `failed` waits for has come.
        is_asked: Tells whether somebody waits for the answer to a word (`question`).
        answer: Gives all who asked it the answer, an object as JSON can hold it.
        keep_terms: Lets a SIGTERM that others send to ranks come to `before_term` first (True), or no longer (False).
        keeps_term: Tells whether a SIGTERM is kept back.
        pass_term_on: Lets ranks have it: what it waits for is done.
    """

    plan: LaunchPlan
    launch: str
    folder: str
    began: float
    host: Callable[[int], str]
    hosts: dict[int, str]
    say: Callable[[str], None]
    job_ends: Callable[[], float | None]
    reached: Callable[[str], int]
    order: Callable[..., set[int]]
    live: Callable[[str], None]
    end_run: Callable[[str, int], None]
    overdue: Callable[[str], None]
    end_overdue: Callable[[str], bool]
    refuse: Callable[[str | EzpzError], None]
    blame: Callable[[str, str], None]
    is_stopping: Callable[[], bool]
    answered: Callable[[], None]
    is_asked: Callable[[str], bool]
    answer: Callable[[str, dict[str, Any]], None]
    keep_terms: Callable[[bool], None]
    keeps_term: Callable[[], bool]
    pass_term_on: Callable[[], None]


# What a watcher does.


class Wait(Record):
    """What ranks do before they get a SIGTERM from outside.

    Attributes:
        done: What they have done then, as a participle, for messages: ``saved``.
        most: Seconds that they get for it at most; less where a scheduler kills them sooner.
    """

    done: str
    most: float


class HostSide:
    """A watcher's side on a host. Nothing here may wait: ranks would."""

    def __init__(self, handle: HostHandle) -> None:
        self.handle = handle

    def before_begin(self, environ: Mapping[str, str], *, first: bool) -> None:
        """Take what ranks get as their environment, before they begin; ``first`` tells whether rank 0 is among them.

        It is called where the row of the settings says 0 seconds, and not where the launcher forks its only agent.
        """

    def hear(self, rank: RankProcess, message: Message) -> None:
        """Take what a rank says: one of this watcher's words, or of those that it overhears."""

    def hear_on(self, connection: socket.socket, rank: RankProcess, message: Message) -> None:
        """Take the same from one process of a rank, which may get an `answer`: others may speak for the rank later."""
        del connection
        self.hear(rank, message)

    def obey(self, order: Message) -> None:
        """Do what its launcher side orders."""

    def hung_up(self, connection: socket.socket, rank: RankProcess, pid: int) -> None:
        """Take note that a process that spoke for a rank does so no more; it may be one that the rank had started."""

    def signalled(self, number: int) -> None:
        """Take note of a signal that all ranks have got from the launcher."""

    def terms_wait(self, order: messages.Hold) -> None:
        """Take note of whether a SIGTERM that others send to ranks is kept back."""

    def term_comes(self) -> None:
        """Take note that ranks get a SIGTERM now that was kept back, or would have been."""

    def ended(self, rank: RankProcess) -> None:
        """Take note of the end of a rank."""

    def finish(self) -> None:
        """Report what is left: all ranks have ended. The launcher side hears it before `LauncherSide.close`."""


class LauncherSide:
    """A watcher's side beside the supervisor. Nothing here may wait: output and failures of all ranks would."""

    def __init__(self, handle: LauncherHandle) -> None:
        self.handle = handle

    def prepare(self) -> None:
        """Do what may take long: nothing was started yet, and Ctrl-C ends it."""

    def before_begin(self) -> str | EzpzError:
        """Return why no rank may begin, an error with an exit code of its own; empty where nothing is against it.

        Where all ranks run on this host, it is asked before any is started, else when all hosts are up.
        """
        return ""

    def of_start(self) -> Mapping[str, Any]:
        """Return fields of run.json about the start, which is written when the ranks start, and again at the end."""
        return {}

    def hear(self, host: int, report: Message) -> None:
        """Take what its side on a host reports; the host by its index, of which the handle's ``host`` is the name."""

    def use_folder(self, folder: str) -> None:
        """Take note of the folder in which rank 0 keeps its run."""

    def failed(self, failure: Failure) -> float:
        """Take note of the first failure after the ranks began; return for how many seconds at most to stop nothing."""
        del failure
        return 0.0

    def overdue(self, reason: str) -> float:
        """Take note that a time limit is over; return for how many seconds at most not to end the run for it yet."""
        del reason
        return 0.0

    def question(self, word: str) -> None:
        """Find out what is asked of a running launch, and `answer` it."""

    def before_term(self) -> Wait | None:
        """Return what ranks shall do before they get a SIGTERM that has come from outside; None where nothing."""

    def term_waits(self) -> None:
        """Let them do it: the SIGTERM is kept back until `pass_term_on`, or until its time is over."""

    def gone(self, host: int) -> None:
        """Take note that nothing more comes of a host."""

    def over(self) -> None:
        """Take note that all processes have ended while the run was `overdue`."""

    def close(self, outcome: Outcome) -> None:
        """End what was begun, and say what came of it, before the last words of a failure: all ranks have ended."""

    def explain(self, facts: Facts, *, failed: bool) -> None:
        """Add what no field of `end` holds to the facts from which the causes of the end are found.

        `ezpz why` asks for causes again and calls no watcher: it has what is in files.
        """

    def end(self, outcome: Outcome) -> Mapping[str, Any]:
        """Return fields of the launch's run.json, empty where there is nothing to say: all ranks have ended.

        `explain` comes after it, with these fields in ``facts.launch``.
        """
        del outcome
        return {}


# Which ones there are, and how they are called.

_WAYS = {"WORDS": messages.FROM_RANKS, "REPORTS": messages.REPORTS, "ORDERS": messages.ORDERS}
_TAKEN = {way: {*direction.kinds} for way, direction in _WAYS.items()}  # by the core
_FAILED, _OVERDUE, _WAITS = 1.0, 60.0, 86400.0  # seconds that a side may have at most


def chosen(environ: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of the settings for what ``EZPZ_WATCHERS`` names.

    Raises:
        UsageError: One of them cannot be imported, or is no watcher.
    """
    names = {watcher.name for watcher in WATCHERS}
    for name in filter(None, map(str.strip, environ.get("EZPZ_WATCHERS", "").split(","))):
        file = os.path.abspath(name) if name.endswith(".py") else _file_of(name)
        try:
            watcher = _load(file, names).WATCHER
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it is: the file is a user's
            raise UsageError(
                f"cannot import the watcher {name!r} (from EZPZ_WATCHERS): {type(error).__name__}: {error}; expected a "
                "module, or a .py file, with a `Watcher` that is called WATCHER. See docs/architecture.md."
            ) from None
        names.add(watcher.name)
        yield watcher.name, file, 0.0 if watcher.begins else -1.0, "", " ".join(watcher.words), " ".join(watcher.orders)


def _file_of(module: str) -> str:
    from importlib.util import find_spec

    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    return (spec.origin if spec else "") or module


def _load(file: str, names: Collection[str] = ()) -> Any:
    """Return the module of a file with a watcher; it is imported once, under a name of its own.

    Args:
        file: Its path.
        names: Those of other watchers.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    from ezpz.launch.run.socket_requests import ENDING

    folder, last = os.path.split(file)
    name = f"ezpz_watcher_{os.path.basename(folder) if last == '__init__.py' else last.removesuffix('.py')}"
    if not os.path.isfile(file):
        raise ModuleNotFoundError(f"no module {file!r}")
    module = sys.modules.get(name)
    if module is None or os.path.abspath(getattr(module, "__file__", None) or "") != file:
        spec = spec_from_file_location(
            name, file, submodule_search_locations=[folder] * (last == "__init__.py") or None
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is no Python file")
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:  # a half of it shall not be found the next time
            del sys.modules[name]
            raise
    watcher = getattr(module, "WATCHER", None)
    if not isinstance(watcher, Watcher):
        raise TypeError(f"WATCHER in {file} is {watcher!r}")
    if watcher.name in names:
        raise ValueError(f"another one is called {watcher.name} already")
    for way in _WAYS:
        taken = _TAKEN[way].union(*(_kinds(known, way) for known in WATCHERS)).intersection(_kinds(watcher, way))
        if taken:
            raise ValueError(f"{way} of another kind are called {', '.join(sorted(taken))} already")
    asked = {*ENDING, *(word for known in WATCHERS for word in known.answers)}.intersection(watcher.answers)
    if asked:
        raise ValueError(f"another answers {', '.join(sorted(asked))} already")
    return module


def _kinds(watcher: Watcher, way: str) -> tuple[str, ...]:
    return {"WORDS": watcher.words, "REPORTS": watcher.reports, "ORDERS": watcher.orders}[way]


def _named(target: str, home: ModuleType | None) -> Any:
    """Return the module, or ``module:class``, that a watcher of the file ``home`` names."""
    from importlib import import_module

    name, _, last = target.partition(":")
    module = import_module(name) if name else home
    return getattr(module, last) if last else module


class Watchers:
    """The watchers of one process: an agent, or the launcher.

    Args:
        rows: Those that are on: name, file (empty for one of `WATCHERS`), seconds until one of its sides is made by
            itself (0: before the ranks begin; below: at its first message), what its sides are told, and the kinds of
            its words and orders where no row of `WATCHERS` tells them.
        side: ``host`` or ``launcher``.
        handle: Makes the handle of a side, of its name, what it is told, and what guards its calls.
        note: Shows the user a sentence.
        dropped: Takes the name of a side that has failed: nothing waits for it any more.
        scope: Of which of them these are; empty for all.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        side: str,
        handle: Callable[[str, str, Callable[..., Any]], Any],
        note: Callable[[str], None],
        dropped: Callable[[str], None] = lambda _: None,
        *,
        scope: str = "",
    ) -> None:
        self._side, self._handle, self._note, self._dropped = side, handle, note, dropped
        self._rows: dict[str, Row] = {}
        self._on: dict[str, Watcher] = {}
        self._homes: dict[str, ModuleType | None] = {}
        self._made: dict[str, Any] = {}
        self._failed: set[str] = set()
        self._lasting: dict[str, Any] = {}  # what sides that come later are told as well
        self._hearers: dict[str, list[str]] = {}  # kind of a message: watchers that are made for it
        self._overhearers: dict[str, list[str]] = {}
        known = {watcher.name: watcher for watcher in WATCHERS}
        for row in rows:
            name, file = row[:2]
            home = problem = None
            try:
                home = _load(file) if file else None
                watcher = home.WATCHER if home else known[name]
            except (Exception, SystemExit) as error:  # noqa: BLE001  # as above
                problem = f"cannot import {file}: {_words(error)}"
                watcher = Watcher(name, name, words=tuple(row[4].split()), orders=tuple(row[5].split()))
            if scope not in {"", watcher.scope}:
                continue
            if problem:
                note(f"{name} is not watched on {os.uname().nodename}: {problem}")
                self._failed.add(name)
            self._rows[name], self._on[name], self._homes[name] = row, watcher, home
            self._register(watcher, home)
        off = {kind for watcher in WATCHERS if watcher.name not in self._on for kind in watcher.words}
        for kind in off if scope != "world" else ():  # what is off in one world may be on in another
            messages.FROM_RANKS.later[kind] = lambda: messages.Unheard  # ranks say it, whatever is on

    def _register(self, watcher: Watcher, home: ModuleType | None) -> None:
        """Let messages of a watcher be understood, once they come."""
        for way, direction in _WAYS.items():
            for kind in _kinds(watcher, way):
                direction.later[kind] = partial(_message, watcher, home, way, kind)
        for kind in watcher.words if self._side == "host" else watcher.reports:
            self._hearers.setdefault(kind, []).append(watcher.name)
        for kind in watcher.overhears:
            self._overhearers.setdefault(kind, []).append(watcher.name)

    def start(self, loop: Loop) -> None:
        """Make sides by themselves when their time has come."""
        for name, _, after, *_ in self._rows.values():
            if after > 0 and self._on[name].starts == self._side:
                loop.after(f"{name} starts", after, partial(self._get, name))

    def hear(self, message: Message, *where: Any) -> bool:
        """Pass a message on to those whose it is; tell whether it is anybody's."""
        kind = message.kind
        names = self._hearers.get(kind, ())
        how = "hear_on" if self._side == "host" else "hear"
        for name in names:
            self._call(name, how, *where, message)
        for name in self._overhearers.get(kind, ()) if self._side == "host" else ():
            if name in self._made:
                self._call(name, how, *where, message)
        return bool(names)

    def obey(self, order: Message) -> None:
        """Pass an order on to the host side whose it is."""
        for name, watcher in self._on.items():
            if order.kind in watcher.orders:
                self._call(name, "obey", order)

    def before_begin(self, *given: Any, **more: Any) -> list[Any]:
        """Ask those that have something to do before ranks begin; return their answers."""
        return [self._call(name, "before_begin", *given, **more) for name in self._beginning()]

    def prepare(self) -> None:
        """Make launcher sides that have something to do before ranks begin."""
        for name in self._beginning():
            self._call(name, "prepare")

    def _beginning(self) -> list[str]:
        if self._side == "host":
            return [name for name, row in self._rows.items() if not row[2]]
        return [name for name, watcher in self._on.items() if watcher.begins]

    def ended(self, rank: RankProcess) -> None:
        """Tell host sides that a rank has ended; after a failure also those that have nothing to do before one."""
        self._make([name for name, watcher in self._on.items() if watcher.fails and rank.code])
        self.all("ended", rank)

    def failed(self, failure: Failure) -> float:
        """Tell of the first failure; return for how many seconds at most to stop nothing."""
        self._make([name for name, watcher in self._on.items() if watcher.fails])
        return self._seconds("failed", failure, _FAILED)

    def overdue(self, reason: str) -> float:
        """Tell that a time limit is over; return for how many seconds at most not to end the run for it yet."""
        self._make([name for name, watcher in self._on.items() if watcher.fails])
        return self._seconds("overdue", reason, _OVERDUE)

    @property
    def answers(self) -> set[str]:
        """The words that a running launch can be asked."""
        return {word for name, watcher in self._on.items() if name not in self._failed for word in watcher.answers}

    def question(self, word: str) -> None:
        """Ask those who can what a running launch is asked."""
        for name, watcher in self._on.items():
            if word in watcher.answers:
                self._call(name, "question", word)

    def use_folder(self, folder: str) -> None:
        """Tell all, also those that come later, where rank 0 keeps its run."""
        self._make([name for name, watcher in self._on.items() if watcher.records])
        self._tell("use_folder", folder)

    def terms_wait(self, order: messages.Hold) -> None:
        """Tell all, also those that come later, whether a SIGTERM that others send to ranks is kept back."""
        self._tell("terms_wait", order)

    def before_term(self) -> tuple[str, Wait] | None:
        """Return which one has a SIGTERM wait, the first of them, and for what; it is told so by `term_waits`."""
        for name, side in list(self._made.items()):
            wait: Wait | None = self._guarded(name, partial(_checked, side))
            if wait is not None:
                return name, wait
        return None

    def term_waits(self, name: str) -> None:
        """Let ranks do what a watcher wants before they get a SIGTERM, which is kept back."""
        self._call(name, "term_waits")

    def _tell(self, what: str, given: Any) -> None:
        self._lasting[what] = given
        self.all(what, given)

    def all(self, what: str, *given: Any, **more: Any) -> list[Any]:
        """Call a method of all sides that were made; return what it returned, but None."""
        answers = [self._call(name, what, *given, **more) for name in list(self._made)]
        return [answer for answer in answers if answer is not None]

    def parts(self, when: str, known: Mapping[str, Any], *given: Any) -> dict[str, Any]:
        """Return what all sides add to run.json at its `end`, or by `of_start`; a user's own adds no field known."""
        import json

        parts: dict[str, Any] = {}

        def add(name: str, side: LauncherSide) -> None:
            part = dict(getattr(side, when)(*given))
            if self._homes[name]:
                json.dumps(part)
                if taken := {*part} & {*known, *parts}:
                    raise ValueError(f"run.json has {', '.join(sorted(taken))} already")
            parts.update(part)

        for name, side in list(self._made.items()):
            self._guarded(name, partial(add, name, side))
        return parts

    def _seconds(self, what: str, given: Any, most: float) -> float:
        """Call a method of all sides that returns seconds; return the most of them."""
        longest = 0.0
        for name, side in list(self._made.items()):
            seconds: float | None = self._guarded(name, partial(_float, getattr(side, what), given))
            longest = max(longest, min(seconds or 0.0, most))
        return longest

    def _make(self, names: Sequence[str]) -> None:
        for name in names:
            self._get(name)

    def _get(self, name: str) -> Any:
        """Return a side, made now where it was not; None where there is none, or it has failed."""
        target = getattr(self._on[name], self._side)
        if name not in self._made and target and name not in self._failed:
            handle = self._handle(name, self._rows[name][3], lambda action: self._guarded(name, action))
            if self._homes[name]:
                way, sends = ("REPORTS", "report") if self._side == "host" else ("ORDERS", "order")
                setattr(handle, sends, partial(_send_sound, getattr(handle, sends), way, _kinds(self._on[name], way)))
            made = self._guarded(name, lambda: _named(target, self._homes[name])(handle))
            if made is not None:
                self._made[name] = made
                for what, given in self._lasting.items():
                    self._call(name, what, given)
        return self._made.get(name)

    def _call(self, name: str, what: str, *given: Any, **more: Any) -> Any:
        side = self._get(name)
        return self._guarded(name, lambda: getattr(side, what)(*given, **more)) if side is not None else None

    def _guarded(self, name: str, action: Callable[[], Any]) -> Any:
        """Call a function of a watcher; None once one has failed: a mistake in it must end no run."""
        if name in self._failed:
            return None
        try:
            return action()
        except (Exception, SystemExit) as error:  # whatever it is: a watcher ends no run by a mistake
            if os.environ.get("EZPZ_DEBUG") == "1":
                raise
            self._failed.add(name)
            self._made.pop(name, None)
            self._dropped(name)
            self._note(f"{self._on[name].title} are not looked at any more: {_words(error)}")
            return None


def _message(watcher: Watcher, home: ModuleType | None, way: str, kind: str) -> type[Message]:
    """Return the class of a message of a watcher."""
    try:
        classes: tuple[type[Message], ...] = getattr(_named(watcher.messages, home), way)
        return next((each for each in classes if each.kind == kind), messages.Unheard)
    except Exception:  # noqa: BLE001  # its side says so when it is made
        return messages.Unheard


def _send_sound(send: Callable[..., Any], way: str, kinds: Sequence[str], message: Message, **where: Any) -> Any:
    """Send what the other side takes; on anything else it would hang up, and that would end the run."""
    if message.kind not in kinds:
        raise ValueError(f"{message.kind} is none of its {way}")
    _WAYS[way].decode(_WAYS[way].encode(message))
    return send(message, **where)


def _checked(side: LauncherSide) -> Wait | None:
    wait = side.before_term()
    return None if wait is None else Wait(str(wait.done), max(0.0, min(float(wait.most), _WAITS)))


def _float(ask: Callable[[Any], Any], given: Any) -> float:
    return float(ask(given))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
