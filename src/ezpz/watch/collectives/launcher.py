"""Ask every rank what it is doing, and put the answers together."""

from __future__ import annotations

import os
import time

from ezpz.fields import to_fields
from ezpz.launch.host.process_stacks import Frame
from ezpz.launch.stack_groups import locate, summarise, words_of
from ezpz.launch.watchers import LauncherHandle, LauncherSide
from ezpz.watch.collectives.messages import CollectivesTold, StacksTaken, TakeStacks, TellCollectives

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.run.failures import Failure, Outcome
    from ezpz.why import Facts

__all__ = ["Collectives", "Hangs", "Inquiry"]

_ANSWERS = 12.0  # seconds for all hosts to report what their ranks are doing
_TOLD = 0.6  # seconds for ranks to tell their last collectives, before a failing launch stops them
_PLACES = 1.0  # the same, where ranks are asked as well where they are
_MOST, _MOST_OF_HOST = 64, 8  # ranks that are asked that
_WITH_WORDS = 256  # ranks of which what they wrote is kept
_APART = 2.0  # seconds between two samples of where ranks are: who is slow moves, who is stuck does not


class Inquiry:
    """One question to all hosts after another: what is every rank doing? Nothing is sent or waited for here.

    Attributes:
        reason: Why the run ends with the answer; empty where it does not.
        waiting: Hosts that have not answered.
        dumps: Files of torch's flight recorder.
        raised: The exception that ends a rank, as far as one is known.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.waiting: set[int] = set()
        self.dumps: list[str] = []
        self.raised: dict[int, str] = {}
        self._number = 0
        self._ranks: list[dict[str, Any]] = []
        self._without_py_spy: set[str] = set()
        self._left: list[int] = []

    def begin(self, *, fatal: bool, only: Sequence[int] = ()) -> TakeStacks:
        """Return the order that asks anew, all ranks or some; answers to earlier ones count no more."""
        self._number += 1
        self._ranks, self._left, self.dumps, self._without_py_spy = [], [], [], set()
        return TakeStacks(fatal=fatal, id=self._number, only=list(only))

    def answered(self, index: int, host: str, answer: StacksTaken) -> bool:
        """Take one host's answer; tell whether it was the last."""
        if answer.id != self._number:
            return False
        for rank in answer.ranks:
            known = {name: value for name, value in to_fields(rank).items() if value != rank.DEFAULTS.get(name)}
            if len(self._ranks) >= _WITH_WORDS:
                known.pop("words", None)
            self._ranks.append({**known, "host": host})
            self.raised[rank.rank] = rank.raised
        self._left += answer.left
        if not answer.py_spy:
            self._without_py_spy.add(host)
        self.dumps += answer.dumps
        self.waiting.discard(index)
        return not self.waiting

    @property
    def frames(self) -> dict[int, list[list[Any]]]:
        """The stack of each rank that has told one, innermost frame first."""
        return {rank["rank"]: rank["frames"] for rank in self._ranks if rank["frames"]}

    def result(self, hosts: dict[int, str]) -> dict[str, Any]:
        """Return a line that says where all ranks are, and each of them.

        Args:
            hosts: The names of the hosts, by index.
        """
        places = []
        for rank in self._ranks:
            place = locate([Frame(*frame) for frame in rank["frames"]]) if rank["frames"] else rank["where"]
            if not isinstance(place, str):
                rank["where"] = f"{place.what} ({os.path.basename(place.file)}:{place.line})"
            places.append((rank["rank"], rank["host"], place))
        silent = [hosts[index] for index in sorted(self.waiting)]
        more = f"; {', '.join(silent[:3])} did not answer" if silent else ""
        summary = (summarise(places) or "no rank reported what it is doing") + more
        ranks = sorted(self._ranks, key=lambda rank: int(rank["rank"]))
        return {
            "summary": summary,
            "ranks": ranks,
            "left": sorted(self._left),
            "without_py_spy": sorted(self._without_py_spy),
        }


class Collectives:
    """The last collectives of all ranks, as their agents tell them. Nothing is sent or waited for here.

    Attributes:
        waiting: Hosts that have not answered.
        until: When they are waited for no more, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.until = 0.0
        self._number = 0
        self._ranks: dict[int, dict[str, Any]] = {}

    def begin(self, until: float) -> TellCollectives:
        """Return the order that asks anew; answers to earlier ones count no more."""
        self._number += 1
        self._ranks, self.until = {}, until
        return TellCollectives(id=self._number)

    def answered(self, index: int, host: str, answer: CollectivesTold) -> bool:
        """Take one host's answer; tell whether it was the last that is waited for.

        What ranks left at their end, unasked, counts only where there is nothing else of them: our own signals may
        have come before.
        """
        if answer.id not in {0, self._number}:
            return False
        for each in answer.ranks:
            known = self._ranks.get(each.rank)
            if known is None or (not known["answered"] and each.answered and not known["silent"]):
                self._ranks[each.rank] = {**to_fields(each), "host": host}
        return bool(answer.id) and self.gone(index)

    def gone(self, index: int) -> bool:
        """Wait for a host no more; tell whether it was the last that is waited for."""
        if index not in self.waiting:
            return False
        self.waiting.discard(index)
        return not self.waiting

    def unplaced(self, named: Collection[int]) -> list[int]:
        """Return ranks that live and have not told where they are, as do those of scripts that do not import ezpz.

        At most `_MOST_OF_HOST` of a host and `_MOST` of all: first those that others have ``named``, then those that
        the kernel sees do what few do.
        """
        found = [each for each in self._ranks.values() if each["state"] and not each["frames"] and not each["silent"]]
        alike: dict[tuple[str, str], int] = {}
        for each in found:
            kind = each["state"], each["where"]
            alike[kind] = alike.get(kind, 0) + 1
        found.sort(key=lambda each: (each["rank"] not in named, alike[each["state"], each["where"]], each["rank"]))
        of_host: dict[str, int] = {}
        chosen = []
        for each in found:
            of_host[each["host"]] = of_host.get(each["host"], 0) + 1
            if of_host[each["host"]] <= _MOST_OF_HOST:
                chosen.append(each["rank"])
        return chosen[:_MOST]

    def place(self, frames: Mapping[int, list[list[Any]]], raised: Mapping[int, str]) -> None:
        """Take the stacks of ranks that have told none themselves, and what they raise."""
        for rank, stack in frames.items():
            known = self._ranks.get(rank)
            if known and not known["frames"]:
                known["frames"], known["raised"] = stack, known["raised"] or raised.get(rank, "")

    def as_json(self, launch_id: str) -> dict[str, Any]:
        """Return the content of ``collectives.json``; docs/why.md describes the fields."""
        ranks = []
        for rank in sorted(self._ranks):
            fields = dict(self._ranks[rank])
            groups = [dict(zip(_GROUP, row, strict=True)) for row in fields["groups"]]
            entries = [dict(zip(_ENTRY, row, strict=True)) for row in fields["entries"]]
            frames = [Frame(*frame) for frame in fields.pop("frames")]
            place = locate(frames) if frames else None
            ranks.append({**fields, "at": place and words_of(place)[3:], "groups": groups, "entries": entries})
        return {"schema": 1, "launch_id": launch_id, "ranks": ranks}

    def __bool__(self) -> bool:
        return bool(self._ranks)


_GROUP = ("group", "enqueued", "started", "completed")
_ENTRY = ("group", "seq", "op", "sizes", "state", "line", "created", "started", "completed", "peer")


class Hangs(LauncherSide):
    """What ranks were doing when they were asked, and when something failed."""

    def __init__(self, handle: LauncherHandle) -> None:
        super().__init__(handle)
        self._inquiry = Inquiry()
        self._collectives = Collectives()
        self._sample: dict[str, Any] | None = None  # where ranks were some seconds before a hang was ended
        self._sample_at = self._asked_at = 0.0
        self._hang: dict[str, Any] | None = None
        self._awaited: Collection[int] | None = None  # ranks that one has named which waited in vain; None: none did
        self._is_placing = False  # whether ranks are asked where they are because of that

    def failed(self, failure: Failure) -> float:
        """Ask for the last collectives, before the ranks that still live are stopped.

        Where the one that failed had waited for others, these are asked where they are, too.
        """
        self._ask_for_collectives()
        if not self._collectives.waiting:
            return 0.0
        if not failure.waited_in_vain or self._inquiry.waiting or self._inquiry.reason:
            return _TOLD
        from ezpz.why.waiting_words import wait_in

        self._awaited = wait_in(failure.all_words).ranks
        return _PLACES

    def overdue(self, reason: str) -> float:
        """Ask what all ranks are doing, twice, before they are stopped."""
        self._inquiry.reason = reason
        self.handle.say(f"{reason}; asking every rank what it is doing")
        self._sample_at, self._asked_at = time.monotonic(), time.time()
        self._inquire(fatal=False)
        return 2 * _ANSWERS + _APART

    def question(self, word: str) -> None:
        """Ask for ``ezpz stacks``, unless that is under way."""
        if word == "stacks" and not self._inquiry.waiting and not self.handle.waits("again"):
            self._inquire(fatal=False)

    def hear(self, host: int, report: Message) -> None:
        """Take the stacks or the last collectives of a host's ranks; go on with what waited for the last host."""
        if isinstance(report, CollectivesTold):
            if self._collectives.answered(host, self.handle.hosts.get(host, report.host), report):
                self._all_told()
        elif isinstance(report, StacksTaken):
            name = self.handle.hosts.get(host, report.host)
            is_last = self._inquiry.answered(host, name, report) and not self._collectives.waiting
            if is_last and self.handle.waits("stacks"):  # else it came too late
                self._conclude()
            if is_last and self._is_placing:
                self.handle.answered()

    def gone(self, host: int) -> None:
        """Expect no collectives of a host any more."""
        if self._collectives.gone(host):
            self._all_told()

    def over(self) -> None:
        """Make do with what is known: all processes have ended meanwhile."""
        if self._inquiry.reason:
            self._conclude()

    def explain(self, facts: Facts, *, failed: bool) -> None:
        """Add the last collectives, and keep them in ``collectives.json``."""
        from ezpz.launch import record
        from ezpz.records.collectives_record import COLLECTIVES, CollectivesRecord

        if self._is_placing:
            self._collectives.place(self._inquiry.frames, self._inquiry.raised)
        collectives = self._collectives.as_json(self.handle.launch) if self._collectives else {}
        if collectives and failed:
            record.write(self.handle.folder, collectives, COLLECTIVES)
        facts.ranks = CollectivesRecord.of(collectives).by_rank

    def end(self, outcome: Outcome) -> Mapping[str, Any]:
        """Return ``hang`` of run.json, for a run that was ended because of one."""
        del outcome
        return {"hang": self._hang} if self._hang else {}

    def _ask_for_collectives(self) -> None:
        order = self._collectives.begin(time.monotonic() + _TOLD)
        self._collectives.waiting = self.handle.order(order)

    def _all_told(self) -> None:
        if not self._asks_where():
            self.handle.answered()
        if self.handle.waits("stacks") and not self._inquiry.waiting:
            self._conclude()

    def _asks_where(self) -> bool:
        """Ask ranks where they are, once, of which one waited in vain; tell whether that is awaited."""
        named, self._awaited = self._awaited, None
        only = self._collectives.unplaced(named) if named is not None else []
        if only and not self._inquiry.waiting:
            self._is_placing = True
            self._inquiry.waiting = self.handle.order(self._inquiry.begin(fatal=True, only=only))
        return self._is_placing and bool(self._inquiry.waiting)

    def _inquire(self, *, fatal: bool) -> None:
        if not fatal:
            self._ask_for_collectives()
        self._inquiry.waiting = self.handle.order(self._inquiry.begin(fatal=fatal))
        self.handle.after(_ANSWERS if self._inquiry.waiting else 0.0, self._conclude, "stacks")

    def _look_again(self) -> None:
        """Take the second sample of a hang that is ended, unless something has failed meanwhile."""
        if self.handle.is_stopping():
            self._inquiry.reason = ""
        else:
            self._inquire(fatal=True)

    def _conclude(self) -> None:
        """Pass on what the ranks are doing, and stop the run when it has taken too long."""
        self.handle.cancel("stacks")
        reason, dumps = self._inquiry.reason, self._inquiry.dumps
        if not (reason or self.handle.is_asked("stacks")):
            return
        result = self._inquiry.result(self.handle.hosts)
        if self._sample and not result["ranks"]:  # all have ended between the two
            result = self._sample
        collectives = self._collectives.as_json(self.handle.launch)
        self.handle.answer("stacks", {**result, "at": time.time(), "collectives": collectives})
        if reason and self._sample is None:
            self._sample = result
            self.handle.after(max(0.0, self._sample_at + _APART - time.monotonic()), self._look_again, "again")
        elif reason:
            self._inquiry.reason = ""
            if self.handle.end_overdue(result["summary"]):
                self._hang = {
                    **result,
                    "summary": f"{reason}: {result['summary']}",
                    "at": self._asked_at,
                    "recorder": sorted(dumps),
                    "earlier": self._sample,
                    "apart": round(time.monotonic() - self._sample_at, 1),
                }
                if dumps:
                    self.handle.note(f"torch's last collectives of {len(dumps)} ranks: {os.path.dirname(dumps[0])}")
