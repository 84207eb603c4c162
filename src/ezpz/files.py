"""Read and write small files whole, and make folders that are private or closed to others.

Whoever may write beside a run may leave anything under the name of its files, and a record may name any path: what is
read is a regular file (`open_regular`) of a limited size (`read_bytes`), and what a record names is looked for in its
own folder alone (`inside`).

A file that others may read at any moment is written beside its place and renamed into it: a reader, and a crash at any
moment, finds the old content or the new. What belongs to a run is closed: owner and group may use it as far as the
umask lets them, others may not. Cheap to import, because every launch does.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from ezpz.errors import MachineError, UsageError

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from io import BufferedRandom
    from typing import Any, Literal

    Path = str | os.PathLike[str]

LARGEST = 64 << 20  # bytes of a file that is read whole: a `run.json` of 100,000 ranks has a tenth of it
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_GIVEN = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")


def open_regular(path: Path, flags: int = os.O_RDONLY | os.O_CLOEXEC) -> int:
    """Open a regular file, as an ``opener`` of `open`; nothing else that may be in its place is waited for or read.

    A pipe that this process was given is read by the name of its descriptor: ``ezpz startup <(zcat log.gz)``.

    Raises:
        OSError: It cannot be opened, or is something else, which ``strerror`` names.
    """
    is_given = os.fspath(path).startswith(_GIVEN)
    descriptor = os.open(path, flags | (0 if is_given else os.O_NONBLOCK) | os.O_NOCTTY, 0o660)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG or (is_given and kind == stat.S_IFIFO):
        return descriptor
    os.close(descriptor)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, and no regular file", os.fspath(path))


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        most: Its bytes at most.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger.
    """
    descriptor = open_regular(path)  # an object of `open` would cost more than to read most records
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size + 1) if size <= most else b""
        while data and len(data) <= most and (more := os.read(descriptor, 1 << 16)):
            data += more  # of /proc, which tells no sizes, or it has just grown
    finally:
        os.close(descriptor)
    if max(size, len(data)) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", os.fspath(path))
    return data


def read_text(path: Path) -> str | None:
    """Return the text of a regular file; None when it cannot be read, or is larger than `LARGEST`."""
    try:
        text = read_bytes(path).decode(errors="replace")
    except (OSError, ValueError):  # ValueError: a path with a NUL, from a garbage variable
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty when the file is missing, broken, too large or holds something else."""
    import json

    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):  # the last of JSON of absurd depth
        return {}
    return value if isinstance(value, dict) else {}


def inside(folder: Path, name: str) -> str:
    """Return the path of a file that a record names, where it is in the folder of the record; empty elsewhere.

    Args:
        folder: Where the record is.
        name: What it names: an absolute path, or one from there on. Links are followed before it is judged.
    """
    try:
        base, path = os.path.realpath(folder), os.path.realpath(os.path.join(folder, name))
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return ""
    return path if path.startswith(os.path.join(base, "")) else ""


class NoAccessError(UsageError):
    """A file or folder may not be used by this user."""


def refuse_unreadable(path: Path) -> None:
    """Refuse what is there and may not be read, or is neither a folder nor a regular file that may be a record.

    What is not there is none of this one's business.

    Raises:
        NoAccessError: It may not be read.
        UsageError: It is something else, or a ``.json`` that is larger than `LARGEST`.
    """
    try:
        found = os.stat(path)
        kind = stat.S_IFMT(found.st_mode)
        if os.access(path, os.R_OK | os.X_OK if kind == stat.S_IFDIR else os.R_OK):
            if kind not in {stat.S_IFDIR, stat.S_IFREG}:
                what = _KINDS.get(kind, "something else")
                raise UsageError(f"cannot read {os.fspath(path)}: it is {what}; expected a regular file.")
            if found.st_size > LARGEST and os.fspath(path).endswith(".json"):
                raise UsageError(
                    f"cannot read {os.fspath(path)}: it has {found.st_size >> 20} MiB; expected a record of at most "
                    f"{LARGEST >> 20} MiB."
                )
            return
    except PermissionError:  # a folder above it
        pass
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return
    raise no_access(path)


def no_access(path: Path) -> NoAccessError:
    """Return the error for what may not be read or written: it names the place that is closed, and whose it is."""
    closed = _closed_place(path)
    if not closed:
        return NoAccessError(f"no access to {path}: Permission denied; expected one that you may use.")
    place, owner, mode = closed
    place = "it" if place == os.path.abspath(path) else place
    return NoAccessError(
        f"no access to {os.fspath(path)} (permission denied): {place} belongs to {owner}, mode {mode:03o}; "
        f"expected one that you may use. Ask {owner}, or name another."
    )


def _closed_place(path: Path) -> tuple[str, str, int] | None:
    """Return the nearest place of a path that can be looked at, its owner and its mode; None where there is none."""
    try:
        place = os.path.abspath(path)
        while True:
            try:
                found = os.stat(place)
            except OSError:
                if os.path.dirname(place) == place:
                    return None
                place = os.path.dirname(place)
                continue
            return place, _name_of(found.st_uid), stat.S_IMODE(found.st_mode)
    except OSError:  # the working folder was removed
        return None


def removed_folder() -> MachineError | None:
    """Return the error for a working folder that is not there any more; None where it is there."""
    try:
        os.getcwd()
    except OSError as error:
        return MachineError(
            f"the working folder {os.environ.get('PWD', '')} was removed: {error.strerror} (from the shell); "
            "expected one that is there. `cd` to another."
        )
    return None


def why_not_run(program: str) -> tuple[str, int]:
    """Return why a program cannot be run here, and the exit code with which a shell tells so; empty and 0 where it can.

    Args:
        program: Its name, which is looked for on PATH, or a path.
    """
    if find_program(program):
        return "", 0
    if os.path.dirname(program):
        try:
            os.stat(program)
        except PermissionError:
            place, owner, mode = _closed_place(program) or ("its folder", "another", 0)
            return f"{place} may not be entered (it belongs to {owner}, mode {mode:03o})", 126
        except (OSError, ValueError):  # ValueError: a NUL in it
            return "there is no such file", 127
        return "it is a folder" if os.path.isdir(program) else "it is not executable", 126
    if find_program(program, mode=os.F_OK):
        return "it is not executable", 126
    return "it is not found on PATH", 127


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # not known on this host
        return f"user {uid}"


def write_lines(path: str, lines: Iterable[str]) -> str:
    """Write a file and return its path."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path


def open_closed(path: str, flags: int) -> int:
    """Open a file, as an ``opener`` of `open`; one that is made is closed to others."""
    return os.open(path, flags, 0o660)


def make_closed_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, closed to others; one that is there stays as it is.

    Raises:
        OSError: It cannot be made.
    """
    folder = os.fspath(folder)
    above = os.path.dirname(folder)
    if above and above != folder and not os.path.exists(above):
        make_closed_folder(above)
    try:
        os.mkdir(folder, 0o770)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise


def close_to_others(paths: Iterable[Path]) -> None:
    """Give what other libraries have made the permissions of the folder around it, and none to others.

    Args:
        paths: Files and folders, a folder before what is in it; what cannot be changed stays as it is.
    """
    for path in paths:
        try:
            around = os.stat(os.path.dirname(os.fspath(path))).st_mode & 0o770
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode):
                os.chmod(path, mode & 0o7000 | around & (0o770 if stat.S_ISDIR(mode) else 0o660))
        except OSError:
            continue


def write_whole(
    path: Path, content: str | bytes, *, private: bool = False, closed: bool = False, sync: bool = False
) -> None:
    """Write a file in one move, with the options of `Replacement`.

    Raises:
        OSError: It cannot be written; what was there before is untouched.
    """
    with Replacement(path, private=private, closed=closed, sync=sync) as file:
        file.write(content.encode() if isinstance(content, str) else content)


class Replacement:
    """A binary file to write and read, which takes its place when the ``with`` block ends; removed when that fails.

    Args:
        path: Its place.
        private: Only this user may read it, from its first byte on.
        closed: Others than its owner and group may not read it.
        sync: Wait until it is on the disk, so that it outlives a crash of the host.
    """

    def __init__(self, path: Path, *, private: bool = False, closed: bool = False, sync: bool = False) -> None:
        self._path = os.fspath(path)
        self._sync = sync
        self._mode = 0o600 if private else 0o660 if closed else 0o666
        # No other process, thread, host or signal handler that writes the same file at this moment has the same draft.
        folder, name = os.path.split(self._path)
        self._draft = os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(3).hex()}.tmp")

    def __enter__(self) -> BufferedRandom:
        descriptor = os.open(self._draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, self._mode)
        self._file = open(descriptor, "w+b")  # closed by __exit__
        return self._file

    def __exit__(self, error: object, *_: object) -> Literal[False]:
        done = False
        try:
            with self._file:
                if self._sync and error is None:
                    self._file.flush()
                    os.fsync(self._file.fileno())
            if error is None:
                os.replace(self._draft, self._path)
                done = True
        finally:
            if not done:
                os.unlink(self._draft)
        return False


def state_folder(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the folder for what ezpz keeps of a user's jobs and launches, or an empty path and why there is none.

    It is ``$XDG_STATE_HOME/ezpz`` or ``~/.local/state/ezpz``, and need not exist yet.
    """
    base, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if not os.path.isabs(base):  # the XDG rules: a relative path counts as none
        if not os.path.isdir(home):  # a service without a home: none is made for it
            return "", f"HOME={home} is no folder" if home else "HOME is not set"
        base = os.path.join(home, ".local", "state")
    return os.path.join(base, "ezpz"), ""


def own_state_folder(environ: Mapping[str, str], *names: str) -> str:
    """Return `state_folder`, or a folder in it, as `own_folder` makes it.

    Raises:
        OSError: There is none, or as `own_folder` says.
    """
    base, reason = state_folder(environ)
    if not base:
        raise FileNotFoundError(2, reason, "")
    return own_folder(base, *names)


def own_folder(base: str, *names: str, mode: int = 0o700, linked: bool = True) -> str:
    """Return a folder that only this user may change, whatever the umask: made when absent, narrowed when too wide.

    Args:
        base: The outermost of it.
        names: Folders in it, each in the one before.
        mode: Its permissions at most.
        linked: Whether ``base`` may be a link that this user has made, as to a larger disk.

    Raises:
        OSError: It cannot be made, or something else is there, or what belongs to another user.
    """
    above = os.path.dirname(base)
    if above and not os.path.isdir(above):
        own_folder(above)
    path = base
    _take(path, mode, linked=linked)
    for name in names:
        path = os.path.join(path, name)
        _take(path, mode, linked=False)
    return path


def _take(path: str, mode: int, *, linked: bool) -> None:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if linked and stat.S_ISLNK(found.st_mode) and found.st_uid == os.getuid():
        found = os.stat(path)
    if found.st_uid != os.getuid():
        raise PermissionError(1, "it belongs to another user", path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(20, "it is a link" if stat.S_ISLNK(found.st_mode) else "it is no folder", path)
    if found.st_mode & 0o777 & ~mode:
        try:
            os.chmod(path, found.st_mode & mode)
        except OSError:  # a file system without permissions
            pass


def private_folder(*names: str) -> str:
    """Return a folder of this user alone, ``$TMPDIR/ezpz-UID`` or one in it, as `own_folder` makes it.

    Raises:
        MachineError: It cannot be made, is a link, or belongs to another user.
    """
    folder = ""
    try:
        folder = os.path.join(_temporary_folder(), f"ezpz-{os.getuid()}")
        return own_folder(folder, *names, linked=False)
    except OSError as error:
        what = f"the temporary folder {error.filename or folder}" if folder else "any temporary folder"
        raise MachineError(
            f"cannot use {what} (from TMPDIR): {error.strerror}; expected a folder of this user. Set TMPDIR to a "
            "folder of your own that you may write."
        ) from None


def temporary_place(*names: str) -> str:
    """Return the path of the same folder, which need not be there.

    Raises:
        OSError: There is no temporary folder.
    """
    return os.path.join(_temporary_folder(), f"ezpz-{os.getuid()}", *names)


def own_place(*names: str) -> str:
    """Return the same folder where it is there and this user's own; empty elsewhere."""
    try:
        found = os.lstat(temporary_place())
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        return temporary_place(*names) if is_own else ""
    except OSError:
        return ""


def _temporary_folder() -> str:
    """Return what `tempfile.gettempdir` returns, without its import (4 ms) where the first choice can be used."""
    folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108  # where a folder of our own is made, closed to others
    was_told = "tempfile" in sys.modules  # perhaps another folder
    if not was_told and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
        return os.path.abspath(folder)
    import tempfile

    return tempfile.gettempdir()


def remove_folder(folder: str) -> None:
    """Remove a folder of files, or a link to one; nearly every launch removes one, and `shutil` costs 8 ms."""
    try:
        if os.path.islink(folder):
            os.unlink(folder)
            return
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:  # it holds folders
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def find_program(name: str, path: str | None = None, mode: int = os.F_OK | os.X_OK) -> str:
    """Return the path of a program as `shutil.which` does, without its import (8 ms); empty where there is none.

    Args:
        name: Its name, or a path, which is then not looked for.
        path: The folders to look in, as in PATH; by default those of PATH itself.
        mode: What `os.access` is asked.
    """
    if path is None:
        path = os.environ.get("PATH", os.defpath)
    places = [name] if os.path.dirname(name) else [os.path.join(folder, name) for folder in path.split(os.pathsep)]
    for place in places if name and path else ():
        if os.access(place, mode) and not os.path.isdir(place):
            return place
    return ""
