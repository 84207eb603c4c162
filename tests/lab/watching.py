"""Handles for sides of watchers that a test calls itself."""

from ezpz.launch.event_loop import Loop
from ezpz.launch.watchers import WATCHERS, HostHandle, LauncherHandle, Watchers


def launcher_handle(folder="", *, loop=None, note=print, launch=""):
    """Return a handle that guards nothing."""
    handle = LauncherHandle("test", "", loop or Loop(), note, lambda action: action())
    handle.folder, handle.launch, handle.host = str(folder), launch, str
    return handle


class HostHandleOfTests(HostHandle):
    """A handle with a clock of its own, which `pass_time` moves on."""

    def __init__(self, ranks, settings):
        self.now, self.reports, self._timers = 1000.0, [], {}
        self.ranks, self.settings, self.report = ranks, settings, self.reports.append

    def monotonic(self):
        return self.now

    def after(self, seconds, action, name=""):
        self._timers[name] = self.now + seconds, action

    def waits(self, name=""):
        return name in self._timers

    def cancel(self, name=""):
        self._timers.pop(name, None)

    def stand_still(self, seconds):
        """Let so many seconds pass in which nothing can be done."""
        self.now += seconds

    def pass_time(self, seconds):
        """Do what comes within so many seconds; return the reports of that time, and go back to its beginning."""
        begin, end, kept = self.now, self.now + seconds, dict(self._timers)
        while self._timers and min(due for due, _ in self._timers.values()) <= end:
            name = min(self._timers, key=lambda name: self._timers[name][0])
            due, action = self._timers.pop(name)
            self.now = max(self.now, due)  # it comes late after `stand_still`
            action()
        self.now, self._timers = begin, kept
        told, self.reports[:] = self.reports[:], []
        return told


def watch_all():
    """Let all messages of watchers be understood in this process, as where they are on."""
    rows = [(watcher.name, "", -1.0, "", "", "") for watcher in WATCHERS]
    for side in ("host", "launcher"):
        Watchers(rows, side, lambda *_: None, print)
