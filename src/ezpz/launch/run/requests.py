"""Hear what another host asks of a running launch, by files in the folder of its record.

The record of a launch is in the home of its user, which login hosts and compute hosts share, and so is a folder
``.requests`` beside ``run.json``, which the launch makes and looks into every two seconds:

    .requests/7c1e90aa.ask       stacks 5f3a90c2 login1      what is asked, the launch's id, who asks
    .requests/7c1e90aa.answer    {"summary": …, "ranks": …}

Nothing listens on a network for this. A request counts when folder and file belong to the user of the launch, no one
else may write there, and it names the launch: who can write such a file can also send signals to the launch.
"""

from __future__ import annotations

import json
import os
import stat

from ezpz.files import write_whole

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

FOLDER = ".requests"
WORDS = ("stacks", "end", "kill")
_LONGEST = 512  # bytes of a request


class Requests:
    """The requests to one launch.

    Args:
        folder: Of its record.
        launch: Its id.
    """

    def __init__(self, folder: str, launch: str) -> None:
        self._folder = os.path.join(folder, FOLDER)
        self._launch = launch
        self._unanswered: list[str] = []  # paths without their ends, of those that wait for stacks

    def __bool__(self) -> bool:
        return bool(self._unanswered)

    def take(self) -> list[tuple[str, str]]:
        """Return what was asked since the last time, as ``(word, host that asks)``; a disk that fails asks nothing."""
        try:
            os.mkdir(self._folder, 0o700)
        except OSError:
            pass  # it is there, or cannot be made: the next line tells
        try:
            # A folder that is opened is asked of its server anew, where a look at a missing file may be remembered.
            names = os.listdir(self._folder) if self._is_ours() else []
        except OSError:
            return []
        taken = []
        for name in sorted(name for name in names if name.endswith(".ask")):
            path = os.path.join(self._folder, name)
            word, launch, host = self._read(path)
            _remove(path)
            if launch != self._launch or word not in WORDS:
                continue
            if word == "stacks":
                self._unanswered.append(path.removesuffix(".ask"))
            else:
                _answer(path.removesuffix(".ask"), {"taken": word})
            taken.append((word, host))
        return taken

    def answer(self, result: dict[str, Any]) -> None:
        """Give all that have asked for stacks the result."""
        paths, self._unanswered = self._unanswered, []
        for path in paths:
            _answer(path, result)

    def close(self) -> None:
        """Take the folder away, when nothing more is answered."""
        if not self._is_ours():
            return
        try:
            for name in os.listdir(self._folder):
                if name.endswith(".ask"):  # who waits for an answer takes it away
                    _remove(os.path.join(self._folder, name))
            os.rmdir(self._folder)
        except OSError:
            pass  # an answer that was not read yet; the record's folder goes with it

    def _is_ours(self) -> bool:
        """Tell whether the folder is one of this user's in which no one else may write."""
        try:
            about = os.lstat(self._folder)
        except OSError:
            return False
        return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077

    @staticmethod
    def _read(path: str) -> tuple[str, str, str]:
        """Return the three words of a request, empty where it is none of this user's."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return "", "", ""
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
                return "", "", ""
            words = os.read(descriptor, _LONGEST).decode(errors="replace").split()
        except OSError:
            return "", "", ""
        finally:
            os.close(descriptor)
        return (words[0], words[1], words[2]) if len(words) == 3 else ("", "", "")


def _answer(path: str, result: dict[str, Any]) -> None:
    try:
        write_whole(f"{path}.answer", json.dumps(result), private=True)
    except OSError:
        pass  # who asks says that nothing answered


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it is gone
