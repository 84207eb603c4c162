"""Have the ranks save before the job ends, before they get a SIGTERM from outside, or when somebody asks for it by a
file: when, which, and what came of it.

The launcher knows when the job ends and how long saves take, and asks over its own connections, so that no scheduler
needs to send a signal. Only programs that announced that they can save (`ezpz.train.Loop`, `ezpz.on_save`) are asked.
Ranks of `ezpz.on_save` save before they get a SIGTERM; a `train.Loop` saves by itself when it comes.
"""

from __future__ import annotations

import os
import time

from ezpz import durations
from ezpz.fields import replace
from ezpz.launch.watchers import LauncherHandle, LauncherSide, Wait
from ezpz.watch.saving.messages import AskToSave, SaveAnswered, SaveNow, Savers
from ezpz.watch.saving.rules import ask_at, longest_wait, step_ahead
from ezpz.watch.saving.trigger_files import TriggerFiles

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ezpz.launch.agent_messages import Message
    from ezpz.launch.run.failures import Outcome

__all__ = ["AGAIN", "STOPPED", "Saving"]

AGAIN, STOPPED = "again", "stop"  # of `verdict` in run.json
_END, _TERM = "the end of the job", "SIGTERM"
_GOES_ON, _LEAVES, _WAITS = 0, 1, 2  # what ranks do when they have saved: `AskToSave`
_LOOK = 20.0  # seconds between two looks at the clock: it may be set, and this process may be stopped meanwhile
_STARTED = 3.0  # seconds between two looks whether the program says what to save,
_PREPARES = 10  # and how many times longer one that uses ezpz may take for its first step
_UNSAVED, _UNSAVED_SHARE = 60.0, 0.25  # seconds, and share of the limit, until a line says that nothing can be saved
_SILENT = 30.0  # seconds after which the hosts are named whose ranks have not read the request
_SETTLED = 10.0  # seconds without a new rank that can save until a file is followed, where not all ranks can
_AGAIN = 20.0  # seconds until ranks that wait for each other are asked anew
_REACTION, _REACTION_OF_LOOP = 8.0, 3.0  # seconds from the request to the save, where steps are short


class Saving(LauncherSide):
    """What the launcher knows of saves, and asks for. Its settings are empty where ranks are asked by files alone."""

    def __init__(self, handle: LauncherHandle) -> None:
        super().__init__(handle)
        self._ranks = handle.plan.placement.world_size
        self._at_end = bool(handle.config)  # whether the ranks are asked before the end of the job
        self._chain = os.environ.get("EZPZ_CHAIN", "")  # where files are looked for as well
        self._files: TriggerFiles | None = None
        self._hosts: dict[int, Savers] = {}
        self._number = self._tries = 0
        self._answered: dict[int, SaveAnswered] = {}
        self._because = ""  # why the ranks are asked now; empty when they are not
        self._is_of_term = False  # whether they were last asked because of a SIGTERM
        self._from: tuple[str, str] | None = None  # name and folder of the file that asks
        self._grown_at = 0.0  # when ranks could save that could not before
        self._waiting: list[tuple[str, str]] = []  # files that were found before all could save who will
        self._ends = _GOES_ON
        self._term_waits = False  # until they have saved
        self._asked_at = 0.0
        self._asked_hosts: set[int] = set()
        self._step = -1  # of the save that was asked for
        self._noted: int | None = None  # the steps of the newest save of which the chain knows
        self._saved_at: float | None = None
        self._counts = False  # whether the request of this number counts
        self._over = False
        if self._at_end:
            self._look_at_clock()
            job = handle.plan.more.get("EZPZ_JOBID")
            if job and job.value:
                handle.after(handle.began + _STARTED - time.time(), self._look_for_savers, "unsaved")

    @property
    def savers(self) -> set[int]:
        """The hosts with ranks that can save when asked."""
        return {index for index, host in self._hosts.items() if host.ranks}

    @property
    def _able(self) -> int:
        """How many ranks can save when asked."""
        return sum(host.ranks for host in self._hosts.values())

    @property
    def _has_plain(self) -> bool:
        """Whether ranks are to be given the step at which they save."""
        return any(host.ranks > host.agree for host in self._hosts.values())

    @property
    def holds_term(self) -> bool:
        """Whether a SIGTERM from outside is to wait for a save: a `Loop` saves by itself when it comes."""
        return self._at_end and self._has_plain

    @property
    def can_save(self) -> bool:
        """Whether it may do so now: while ranks still start the first of them must not save alone, and those that have
        saved and leave save no more.
        """
        leave = self._ends == _LEAVES and self._saved_at is not None
        settles = self._able < self._ranks and time.monotonic() < self._grown_at + _SETTLED
        return self.holds_term and not leave and not settles

    @property
    def longest(self) -> float | None:
        """Seconds of the longest save; None before the first."""
        longest = max((host.longest for host in self._hosts.values()), default=-1.0)
        return longest if longest >= 0 else None

    @property
    def limit(self) -> float | None:
        """Seconds from the launch's start to the end of its job; None where that is not known."""
        began, end = self.handle.began, self.handle.job_ends()
        return end - began if end is not None and end > began else None

    def use_folder(self, folder: str) -> None:
        """Look for SAVE and STOP in a run folder, and in that of the chain."""
        if self._files is None:
            self._files = TriggerFiles(self.handle, self._found)
            self._files.watch(self._chain)
        self._files.watch(folder)

    def before_term(self) -> Wait | None:
        """Have a SIGTERM wait for a save where that can be."""
        return Wait("saved", longest_wait(self.longest)) if self.can_save else None

    def term_waits(self) -> None:
        """Have the ranks save, and let the SIGTERM go when they have; a save that is under way serves."""
        self._term_waits = True
        if not (self._because and (self._ends or self._counts)):
            self._ask(_TERM, ends=_WAITS)

    def hear(self, host: int, report: Message) -> None:
        """Take what the ranks of a host report, and let hosts know whether a SIGTERM waits for a save from now on."""
        if self._chain and self._files is None:
            self.use_folder("")
        if isinstance(report, Savers):
            self._sum_up(host, report)
        elif isinstance(report, SaveAnswered) and report.number == self._number and self._because:
            self._answered[host] = report
            self._judge_answers()
        self.handle.keep_terms(self.holds_term)

    def _sum_up(self, index: int, message: Savers) -> None:
        before, self._hosts[index] = self._able, message
        if self._able > before:
            self._grown_at = time.monotonic()
        if self._chain and message.longest >= 0 and message.step != self._noted:
            from ezpz.launch.chain_lease import note_save

            self._noted = message.step
            note_save(self._chain, message.step)
        asked = [self._hosts[one] for one in self._asked_hosts]
        if self._because and asked and all(host.number == self._number for host in asked):
            if all(host.saved for host in asked):
                self._is_saved(max(host.step for host in asked))
            if self._ends == _LEAVES and all(host.left for host in asked) and not self._over:
                self._over = True
                self.handle.cancel("save")
        if self._over:
            return
        self._follow_waiting()
        self._look_at_clock()

    def gone(self, host: int) -> None:
        """Expect nothing more of a host that is done."""
        if self._hosts.get(host) and self._hosts[host].ranks:
            known = self._hosts[host]
            self._hosts[host] = replace(known, ranks=0, agree=0)
            self._judge_answers()

    def verdict(self, code: int, *, stopped: bool) -> str | None:
        """Return what run.json says of going on: `AGAIN`, `STOPPED`, or None where nothing was saved and ended.

        Args:
            code: Exit code of the launch.
            stopped: Whether a signal from outside, or a limit, has ended it: the scheduler's, where it was late.
        """
        if not self._over or (code and not stopped):
            return None
        return STOPPED if self._from else AGAIN

    def last_line(self, code: int, *, stopped: bool) -> str:
        """Return the line for the end of a launch whose ranks were asked to end; empty for others."""
        if not (self._ends and self._asked_at):
            return ""
        verdict = self.verdict(code, stopped=stopped)
        if verdict is None:
            missed = code and self._saved_at is None
            return f"the ranks were asked to save because of {self._words()}; they have not" if missed else ""
        at = f" at step {self._step}" if self._step >= 0 else ""
        before = "before the end of the job" if verdict == AGAIN else f"because of {self._words()}"
        further = "" if self._chain else "; start it again to go on"  # a chain says itself what follows
        return f"saved{at} {before}{further}"

    def record(self) -> dict[str, Any] | None:
        """Return ``asked_to_save`` of run.json; None where nothing was asked for."""
        if not self._asked_at:
            return None
        return {
            "because": self._words(),
            "at": round(self._asked_at, 3),
            "ends": self._ends != _GOES_ON,
            "saved_at": round(self._saved_at, 3) if self._saved_at is not None else None,
            "step": self._step if self._step >= 0 else None,
            "longest_save": self.longest,
        }

    def close(self, outcome: Outcome) -> None:
        """Remove the file that was followed, and say what came of it."""
        if self._files:
            if self._from and self._over:
                self._done_with(self._from)
            self._files.close()
        text = self.last_line(outcome.code, stopped=outcome.stopped)
        if text:
            self.handle.say(text)

    def end(self, outcome: Outcome) -> Mapping[str, Any]:
        """Return what was asked for, and what came of it, for run.json."""
        asked = self.record()
        return {"asked_to_save": asked, "verdict": self.verdict(outcome.code, stopped=outcome.stopped)} if asked else {}

    # When to ask

    def _is_over(self) -> bool:
        """Tell whether the launch ends, so that nothing is asked any more."""
        return self.handle.is_stopping() and not self.handle.keeps_term()

    def _look_at_clock(self) -> None:
        """Ask when it is time, and come back before."""
        limit, now = self.limit, time.time()
        if not self._at_end or self._ends or self._is_over():
            return
        wait = _LOOK
        if limit is not None and self.savers:
            slow = max(host.pace for host in self._hosts.values())
            reaction = _REACTION if self._has_plain else _REACTION_OF_LOOP
            began = self.handle.began
            left = ask_at(began, began + limit, self.longest, step=slow, reaction=reaction) - now
            if left <= 0:
                self._ask(_END, ends=_LEAVES)
                return
            wait = min(wait, left)
        self.handle.after(wait, self._look_at_clock, "save")

    def _look_for_savers(self) -> None:
        """Say that nothing will be saved before the job ends, when the ranks have run for a while."""
        if self._is_over():
            return
        if self.handle.job_ends() is not None:
            late = self._unsaved_after() * (_PREPARES if self.handle.reached("setup") else 1)
            if self.handle.reached("step") or time.time() - self.handle.began >= late:
                self._say_if_unsaved()
                return
        self.handle.after(_STARTED, self._look_for_savers, "unsaved")

    def _say_if_unsaved(self) -> None:
        end = self.handle.job_ends()
        if end is not None and not self.savers and not self._over:
            clock = time.strftime("%H:%M", time.localtime(end))
            self.handle.say(
                f"note: nothing is saved before the job ends at {clock}: the program has not said what to save "
                "(ezpz.on_save, or a Loop with checkpoints)"
            )

    def _unsaved_after(self) -> float:
        """Return after how many seconds a program that has reported no step is noted to save nothing."""
        limit = self.limit
        return _UNSAVED if limit is None else min(_UNSAVED, _UNSAVED_SHARE * limit)

    def _found(self, name: str, folder: str) -> None:
        path = os.path.join(folder, name)
        if not self.savers:
            if (name, folder) not in self._waiting:
                self._waiting.append((name, folder))
                self.handle.say(
                    f"note: {path} is there, and the program has not said what to save (ezpz.on_save, or a Loop with "
                    "checkpoints); nothing is asked. `ezpz kill` ends it"
                )
            return
        # Ranks start at different times, and a save may be collective: the first of them must not save alone.
        settled = self._grown_at + _SETTLED
        if self._able < self._ranks and time.monotonic() < settled:
            self._waiting.append((name, folder))
            self.handle.after(settled - time.monotonic(), self._follow_waiting, "settled")
            return
        if self._is_over() or self._ends or (self._because and name == "SAVE"):
            return  # that is under way
        self._ask(path, ends=_LEAVES if name == "STOP" else _GOES_ON, file=(name, folder))

    def _follow_waiting(self) -> None:
        """Follow the files that were found too early, and are still there."""
        if not self.savers:
            return
        waiting, self._waiting = self._waiting, []
        for name, folder in waiting:
            if self._files and self._files.has(name, folder):
                self._found(name, folder)

    # The request

    def _ask(self, because: str, *, ends: int, file: tuple[str, str] | None = None) -> None:
        if self._because and self._from:
            self._done_with(self._from)  # what is asked now is more
        self._because, self._ends, self._from = because, ends, file
        self._is_of_term = because == _TERM
        self._asked_at, self._saved_at, self._step = time.time(), None, -1
        self._tries = 0
        self.handle.say(f"asking the ranks to save{' and to end' * (ends == _LEAVES)}, because of {self._words()}")
        self._send(-1)
        self.handle.after(_SILENT, self._name_silent, "silent")

    def _words(self) -> str:
        """Return why the ranks were asked last."""
        if self._from:
            return os.path.join(self._from[1], self._from[0])
        if self._is_of_term:
            return _TERM
        end = self.handle.job_ends()
        return f"{_END} at {time.strftime('%H:%M:%S', time.localtime(end))}" if end is not None else _END

    def _send(self, step: int) -> None:
        self._number += 1
        self._answered, self._counts, self._asked_hosts = {}, False, self.savers
        self.handle.order(AskToSave(number=self._number, ends=self._ends, step=step), to=self.savers)
        if self._has_plain:
            self.handle.after(_AGAIN, self._ask_anew, "answers")

    def _ask_anew(self) -> None:
        """Ask ranks again that have waited in vain for others to read the request."""
        if self._because and not self._over and not self._is_over() and not (self._counts and self._saved_at is None):
            self._send(-1)

    def _judge_answers(self) -> None:
        """Let the ranks save when all have answered in time; else choose a later step."""
        savers = self.savers
        if not self._because or self._counts or self._is_over() or not savers or not savers <= self._answered.keys():
            return
        self.handle.cancel("silent")
        if not self._has_plain:
            self._counts = True  # they agree among themselves
            return
        answers = [self._answered[index] for index in savers]
        if all(answer.armed for answer in answers):
            self._counts = True
            self.handle.order(SaveNow(number=self._number), to=savers)
            return
        furthest = max(answer.step for answer in answers)
        pace = min((answer.pace for answer in answers if answer.pace > 0), default=0.0)
        self._send(step_ahead(furthest, pace, self._tries, soon=self._term_waits))
        self._tries += 1

    def _name_silent(self) -> None:
        silent = [self.handle.host(index) for index in sorted(self.savers - self._answered.keys())]
        if silent and self._because:
            shown = ", ".join(silent[:3]) + (f" and {len(silent) - 3} more" if len(silent) > 3 else "")
            self.handle.say(
                f"note: ranks on {shown} have not read the request to save for {durations.in_words(_SILENT)}: they do "
                "so in ezpz.heartbeat or History.update"
            )

    def _is_saved(self, step: int) -> None:
        self._saved_at, self._step = time.time(), step
        if self._ends != _LEAVES:
            at = f" at step {step}" if step >= 0 else ""
            self.handle.say(f"saved{at}, because of {self._words()}")
            self._because = ""
            self.handle.cancel("answers")
            self.handle.cancel("silent")
            if self._from:
                self._done_with(self._from)
        if self._term_waits:
            self._term_waits = False
            self.handle.pass_term_on()

    def _done_with(self, file: tuple[str, str]) -> None:
        """Remove a file that was followed; STOP in a chain's folder is for its next job, too."""
        if self._files and not (file[0] == "STOP" and file[1] == self._chain):
            self._files.remove(*file)
