"""Handles for sides of watchers that a test calls itself."""

from ezpz.launch.loop import Loop
from ezpz.launch.watchers import WATCHERS, LauncherHandle, Watchers


def launcher_handle(folder="", *, loop=None, note=print, launch=""):
    """Return a handle that guards nothing."""
    handle = LauncherHandle("test", "", loop or Loop(), note, lambda action: action())
    handle.folder, handle.launch, handle.host = str(folder), launch, str
    return handle


def watch_all():
    """Let all messages of watchers be understood in this process, as where they are on."""
    rows = [(watcher.name, "", -1.0, "", "", "") for watcher in WATCHERS]
    for side in ("host", "launcher"):
        Watchers(rows, side, lambda *_: None, print)
