"""Files for a launch, in a folder that only this user can enter and never in the working folder."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from ezpz.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["private_folder", "write_lines", "write_whole"]


def private_folder(name: str) -> str:
    """Return a folder of this user alone under the temporary folder; made when absent.

    Raises:
        LaunchError: The folder belongs to somebody else.
    """
    folder = os.path.join(tempfile.gettempdir(), f"ezpz-{os.getuid()}")
    try:
        for path in (folder, os.path.join(folder, name)):
            os.makedirs(path, mode=0o700, exist_ok=True)
            if os.stat(path).st_uid != os.getuid():
                raise PermissionError(1, "it belongs to another user")
    except OSError as error:
        raise LaunchError(
            f"cannot use the temporary folder {folder} (from TMPDIR): {error.strerror}; expected a folder of this user. "
            "Set TMPDIR to a folder that you may write."
        ) from None
    return path


def write_lines(path: str, lines: Iterable[str]) -> str:
    """Write a file of this user and return its path."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path


def write_whole(path: str, text: str) -> None:
    """Write a file that only this user can read; whoever reads it sees all of it or what was there before.

    Raises:
        OSError: It cannot be written; nothing of it is left.
    """
    new = f"{path}.{os.getpid()}"
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, path)
    except OSError:
        try:
            os.unlink(new)
        except OSError:
            pass  # it was never made
        raise
