"""One file from the first mirror that has it: complete and proven, or not there at all.

A name that cannot be resolved blocks for as long as the resolver likes, and a host with many addresses is tried address by
address; no time limit of a socket bounds that. So a thread opens the connection, and is left alone when it takes too long.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from hashlib import sha256
from http.client import HTTPException
from time import monotonic
from typing import TYPE_CHECKING, Any

from ezpz.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ezpz.train.data.catalog import Remote

__all__ = ["DownloadError", "Patience", "download", "silence_of"]

_BLOCK = 1 << 16
_SLOWEST = 10_000  # bytes per second: a mirror that gives less, after its first seconds, is left


class DownloadError(MachineError):
    """A data set could not be fetched."""


class _MirrorError(Exception):
    """One mirror did not give the file; the next one may."""


@dataclass
class Patience:
    """How long to wait for mirrors that do not answer; time in which bytes arrive does not count.

    Attributes:
        attempt: Seconds for one answer.
        total: Seconds without progress, over all files and mirrors.
        until: The moment, of `time.monotonic`, at which even a download that goes on is given up.
    """

    attempt: float = 4.0
    total: float = 10.0
    until: float = float("inf")
    lost: float = field(default=0.0, init=False)

    def left(self) -> float:
        """Return the seconds for the next answer; 0 when patience is over."""
        return max(0.0, min(self.attempt, self.total - self.lost, self.until - monotonic()))


def download(
    remote: Remote,
    mirrors: tuple[str, ...],
    target: Path,
    patience: Patience,
    progress: Callable[[int], None] = lambda _: None,
) -> str:
    """Put a file in its place by one rename, after size and sum were found right.

    Args:
        remote: The file.
        mirrors: Addresses of the folders that hold it, tried in turn.
        target: Where it goes; its folder exists.
        patience: What may be spent on waiting; shared by the files of a data set.
        progress: Called with the number of bytes so far, several times per second.

    Returns:
        The address that it came from.

    Raises:
        DownloadError: No mirror gave the right file, or it cannot be written.
    """
    part = target.with_name(f".{target.name}.{os.uname().nodename}.{os.getpid()}.part")
    reasons = []
    try:
        for mirror in mirrors:
            if not patience.left():
                reasons.append(f"{mirror} was not tried: no time left")
                continue
            try:
                _receive(mirror + remote.name, remote, part, patience, progress)
            except _MirrorError as error:
                reasons.append(f"{mirror}{remote.name}: {error}")
            else:
                part.replace(target)
                return mirror
    except OSError as error:
        raise DownloadError(cannot_write(target.parent, error)) from error
    finally:
        _remove(part)
    raise DownloadError(
        f"cannot download {remote.name}: {'; '.join(reasons)}; expected one mirror to have it. "
        "Where hosts have no network, fetch it ahead on one that has."
    )


def silence_of(url: str, patience: Patience) -> str:
    """Return why an address gives nothing; "" if it answers."""
    try:
        _open(url, patience).close()
    except _MirrorError as error:
        return str(error)
    return ""


def cannot_write(folder: Path, error: OSError) -> str:
    """Return the message about a folder that takes no data."""
    return (
        f"cannot write data to {folder}: {error.strerror or error}; expected a folder with room that you may write to. "
        "Type `export EZPZ_DATA=/another/folder`."
    )


def _receive(url: str, remote: Remote, part: Path, patience: Patience, progress: Callable[[int], None]) -> None:
    """Write what an address gives, and check it.

    Raises:
        _MirrorError: It is not the file.
        OSError: It cannot be written.
    """
    response = _open(url, patience)
    digest, size, began = sha256(), 0, monotonic()
    with response, part.open("wb") as file:
        told = response.headers.get("Content-Length", "")
        if told.isdigit() and int(told) != remote.size:
            raise _MirrorError(f"has {told} bytes instead of {remote.size}")
        while size <= remote.size:
            block = _read(response, patience)
            if not block:
                break
            digest.update(block)
            size += len(block)
            file.write(block)
            progress(size)
            spent = monotonic() - began
            if spent > patience.attempt and size < _SLOWEST * spent:
                raise _MirrorError(f"gives only {size / spent:.0f} bytes per second")
            if monotonic() > patience.until:
                raise _MirrorError(f"gave {size} of {remote.size} bytes in the time that a run waits")
        file.flush()
        os.fsync(file.fileno())
    if size != remote.size:
        raise _MirrorError(f"{'ended' if size < remote.size else 'went on'} after {min(size, remote.size)} bytes")
    if digest.hexdigest() != remote.sha256:
        raise _MirrorError(f"has sha256 {digest.hexdigest()} instead of {remote.sha256}")


def _open(url: str, patience: Patience) -> Any:
    """Return the response, or give up after the seconds that are left for one attempt.

    Raises:
        _MirrorError: There is none.
    """
    from urllib.request import Request, build_opener

    box: list[Any] = []
    abandoned = threading.Event()
    seconds, began = patience.left(), monotonic()

    def work() -> None:
        try:
            request = Request(url, headers={"User-Agent": "ezpz"})  # noqa: S310  # the catalog's own addresses
            response = build_opener().open(request, timeout=seconds + 1)  # the proxies of now
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a proxy variable that is no address
            box.append(error)
            return
        box.append(response)
        if abandoned.is_set():
            response.close()

    thread = threading.Thread(target=work, name="ezpz-download", daemon=True)
    thread.start()
    thread.join(seconds)
    if not box:
        abandoned.set()
        patience.lost += monotonic() - began
        raise _MirrorError(f"no answer within {seconds:.1f} s")
    if isinstance(box[0], Exception):
        patience.lost += monotonic() - began
        raise _MirrorError(_reason(box[0])) from box[0]
    return box[0]


def _read(response: Any, patience: Patience) -> bytes:
    """Return the next bytes, empty at the end.

    Raises:
        _MirrorError: None came in time, or the connection broke.
    """
    began = monotonic()
    try:
        block: bytes = response.read1(_BLOCK)
    except (OSError, HTTPException) as error:
        patience.lost += monotonic() - began
        raise _MirrorError(f"broke off: {_reason(error)}") from error
    return block


def _reason(error: Exception) -> str:
    """Return an error of the network in few words, e.g. ``HTTP Error 404: Not Found`` or ``Connection refused``."""
    inner = getattr(error, "reason", None) if type(error).__name__ == "URLError" else None
    known = inner if isinstance(inner, OSError) else error
    return getattr(known, "strerror", None) or str(inner or error) or type(error).__name__


def _remove(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:
        pass  # a folder that takes no data was told already
