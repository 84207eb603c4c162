"""Handles for sides of watchers that a test calls itself."""

from ezpz.launch.loop import Loop
from ezpz.launch.watchers import LauncherHandle


def launcher_handle(folder="", *, loop=None, note=print, launch=""):
    """Return a handle that guards nothing."""
    handle = LauncherHandle("test", "", loop or Loop(), note, lambda action: action())
    handle.folder, handle.launch, handle.host = str(folder), launch, str
    return handle
