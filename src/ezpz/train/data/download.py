"""Fetch data sets: whole files whose sums are right, by one process at a time, from the first mirror that has them."""

from __future__ import annotations

import os
import threading
import time
from hashlib import sha256
from pathlib import Path
from time import monotonic

from ezpz.errors import MachineError, UsageError, did_you_mean
from ezpz.fields import Record
from ezpz.log import get_logger

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

_OLD_PART = 3600.0  # seconds after which the process that wrote a part of a file is taken for dead
_BLOCK = 1 << 16
_SLOWEST = 10_000  # bytes per second: a mirror that gives less, after its first seconds, is left
_POLLS = (0.1, 2.0)  # seconds between two looks at another's lock, at first and later: a thousand hosts may look at one

logger = get_logger(__name__)


class DownloadError(MachineError):
    """A data set could not be fetched."""


class Patience:
    """How long to wait for mirrors that do not answer; time in which bytes arrive does not count.

    Attributes:
        attempt: Seconds for one answer.
        total: Seconds without progress, over all files and mirrors.
        until: The moment, of `time.monotonic`, at which even a download that makes progress is given up.
    """

    def __init__(self, attempt: float = 4.0, total: float = 10.0, until: float = float("inf")) -> None:
        self.attempt, self.total, self.until = attempt, total, until
        self.lost = 0.0

    def left(self) -> float:
        """Return the seconds for the next answer; 0 when patience is over."""
        return max(0.0, min(self.attempt, self.total - self.lost, self.until - monotonic()))


# The data sets that can be fetched, and those that ezpz ships.
#
# A sum of MNIST and CIFAR-10 is the one that several independent programs demand; the sums of Fashion-MNIST belong to
# the files whose MD5 its authors publish (8d4fb7e6…, 25c81989…, bef4ecab…, bb300cfd…).


class Remote(Record):
    """One file of a data set, as its authors published it."""

    name: str
    size: int
    sha256: str


class DataSet(Record):
    """A data set that lies on the net.

    Attributes:
        name: What users type, and the folder of its files inside the data folder.
        about: What it holds, in a few words.
        mirrors: Where the files lie, tried in this order; each ends with a slash.
        files: All of them are needed.
        elsewhere: Folders in which other programs keep the same files.
    """

    name: str
    about: str
    mirrors: tuple[str, ...]
    files: tuple[Remote, ...]
    elsewhere: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(remote.size for remote in self.files)


def _idx(*sizes_and_sums: tuple[int, str]) -> tuple[Remote, ...]:
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return tuple(Remote(name, size, digest) for name, (size, digest) in zip(names, sizes_and_sums, strict=True))


CATALOG = {
    "mnist": DataSet(
        "mnist",
        "70,000 handwritten digits, 28 x 28, grey",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        _idx(
            (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
        ("MNIST/raw",),
    ),
    "fashion_mnist": DataSet(
        "fashion_mnist",
        "70,000 pieces of clothing, 28 x 28, grey",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        _idx(
            (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
        ("FashionMNIST/raw",),
    ),
    "cifar10": DataSet(
        "cifar10",
        "60,000 photographs of 10 kinds of things, 32 x 32, colour",
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            Remote(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
    ),
}

# name: (file beside this package's parent, a few words)
SHIPPED = {
    "digits": ("digits.csv.gz", "1,797 handwritten digits, 8 x 8, grey"),
    "shakespeare": ("shakespeare.txt.xz", "1,115,394 characters of plays"),
}


def named(name: str, source: str) -> DataSet:
    """Return the data set of this name.

    Args:
        name: What was typed.
        source: Where it was typed, for errors.

    Raises:
        UsageError: There is none; the nearest name is offered.
    """
    if name in CATALOG:
        return CATALOG[name]
    known = [*CATALOG, *SHIPPED]
    hint = did_you_mean(name.lower().replace("-", "_"), known, otherwise=" `ezpz fetch --list` shows them.")
    raise UsageError(f"unknown data set {name!r} (from {source}); expected one of {', '.join(known)}.{hint}")


# Where data lies on this machine.


def data_folder(folder: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that holds a folder per data set.

    The given one, else $EZPZ_DATA, $XDG_CACHE_HOME/ezpz/data or ~/.cache/ezpz/data.

    Raises:
        UsageError: All of these are unset.
    """
    if folder is not None:
        return Path(folder).expanduser()
    environ = os.environ if environ is None else environ
    if environ.get("EZPZ_DATA"):
        return Path(environ["EZPZ_DATA"]).expanduser()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"], "ezpz", "data")
    if environ.get("HOME"):
        return Path(environ["HOME"], ".cache", "ezpz", "data")
    raise UsageError(
        "no folder for data: EZPZ_DATA, XDG_CACHE_HOME and HOME are unset (from the environment); expected one of "
        "them. Type `export EZPZ_DATA=/a/folder`."
    )


def find(
    dataset: DataSet, folder: str | os.PathLike[str] | None, *, check: bool = True
) -> tuple[Path | None, list[Path]]:
    """Look for all files of a data set, first in the explicit folder, then in the data folder.

    Args:
        dataset: The data set.
        folder: A folder that the user named, or None.
        check: Prove the files by their sums.

    Returns:
        The folder that holds all files, checked, or None; and the folders that were looked at.

    Raises:
        UsageError: A file is there and is not the right one.
    """
    looked: list[Path] = []
    for place, root in _candidates(dataset, folder):
        looked.append(place)
        there = [remote for remote in dataset.files if _is_there(place / remote.name)]
        for remote in there if check else ():
            _check_file(place / remote.name, remote, dataset, root)
        if len(there) == len(dataset.files):
            return place, looked
    return None, looked


def _check_file(path: Path, remote: Remote, dataset: DataSet, root: Path) -> None:
    """Refuse a file that is cut or is another one.

    Raises:
        UsageError: Its size or sum differs, or it cannot be read.
    """
    try:
        size = path.stat().st_size
        digest = file_sha256(path) if size == remote.size else ""
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; expected a file of {dataset.name}. Make it readable, or delete it."
        ) from error
    if digest == remote.sha256:
        return
    what = f"sha256 {digest or file_sha256(path)}, {size} bytes"
    again = f"ezpz fetch {dataset.name}" + ("" if _is_default(root) else f" --folder {root}")
    raise UsageError(
        f"corrupt or cut data: {path} has {what} (from the file); expected sha256 {remote.sha256}, {remote.size} "
        f"bytes. Delete it, or type `{again}`."
    )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _candidates(dataset: DataSet, folder: str | os.PathLike[str] | None) -> Iterator[tuple[Path, Path]]:
    """Yield each folder that may hold the files, with the data folder that it belongs to."""
    seen: set[Path] = set()
    for given in (folder, None) if folder is not None else (None,):
        try:
            root = data_folder(given)
        except UsageError:  # raised again if it comes to a download
            continue
        if root in seen:
            continue
        seen.add(root)
        yield root / dataset.name, root
        if given is not None:
            yield from ((root / other, root) for other in ("", *dataset.elsewhere))


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise UsageError(
            f"cannot look into {path.parent}: {error.strerror} (from the folder for data); expected a folder that you "
            "may read. Type `export EZPZ_DATA=/another/folder`."
        ) from error


def _is_default(root: Path) -> bool:
    try:
        return root == data_folder()
    except UsageError:
        return False


# Fetching: what is there and right is kept, what is wrong is replaced.


class Obtained(Record):
    """A data set on this host, and how it came there."""

    folder: Path
    origin: str


def fetch(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Path:
    """Have a data set on this machine, e.g. on a login host for compute hosts without a network.

    For one process; `load_images` does it for all ranks.

    Args:
        name: ``mnist``, ``fashion_mnist`` or ``cifar10``; ``digits`` and ``shakespeare`` ship with ezpz.
        folder: Where the data set's own folder goes; $EZPZ_DATA, else $XDG_CACHE_HOME/ezpz/data by default.
        progress: Called with file, bytes so far and bytes in all.

    Returns:
        The data set's folder; the file where it ships with ezpz.

    Raises:
        UsageError: There is no such data set, or no folder for it.
        DownloadError: It could not be fetched or written.
    """
    if name in SHIPPED:
        return Path(__file__).parents[1] / SHIPPED[name][0]
    dataset = named(name, "fetch")
    target = data_folder(folder) / name
    _fetch_files(dataset, target, Patience(attempt=15.0, total=60.0), progress)
    return target


def obtain(dataset: DataSet, folder: str | os.PathLike[str] | None, *, may_download: bool) -> Obtained:
    """Return where a data set lies on this host; fetch it if it must be and may be.

    Raises:
        UsageError: A file is there and is not the right one.
        DownloadError: The data set is not available here; the message says why.
    """
    place, looked = find(dataset, folder)
    if place is not None:
        return Obtained(place, f"cache {place}")
    if not may_download:
        raise DownloadError(f"not in {' nor '.join(map(str, looked))}, and downloading is off")
    try:
        place = data_folder(folder) / dataset.name
    except UsageError as error:
        raise DownloadError(str(error)) from error
    # Ranks that wait give up after ten minutes with some backends: this ends earlier.
    mirror = _fetch_files(dataset, place, Patience(until=monotonic() + 480.0), lambda *_: None)
    return Obtained(place, f"downloaded from {mirror}")


def _fetch_files(dataset: DataSet, place: Path, patience: Patience, progress: Callable[[str, int, int], None]) -> str:
    """Put all files into their folder, and return the mirror of the last one.

    Raises:
        DownloadError: It did not work.
    """
    missing = [remote for remote in dataset.files if not _is_right(place / remote.name, remote)]
    mirror = dataset.mirrors[0]
    if not missing:
        return mirror
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock, other = wait_for_lock(place.with_name(f"{place.name}.lock"), until=patience.until)
    except OSError as error:
        raise DownloadError(_cannot_write(place, error)) from error
    if lock is None:
        if all(_is_right(place / remote.name, remote) for remote in missing):
            return f"{mirror} by {other}"
        raise DownloadError(
            f"process {other} was fetching {dataset.name} into {place} and did not get it; expected all files. "
            f"Type `ezpz fetch {dataset.name}` where there is a network."
        )
    with lock:
        _remove_old_parts(place)
        for remote in missing:
            if not _is_right(place / remote.name, remote):  # else another process was faster

                def report(size: int, remote: Remote = remote) -> None:
                    progress(remote.name, size, remote.size)

                mirror = download(remote, dataset.mirrors, place / remote.name, patience, report)
    return mirror


def _is_right(path: Path, remote: Remote) -> bool:
    try:
        return path.stat().st_size == remote.size and file_sha256(path) == remote.sha256
    except OSError:
        return False


def _remove_old_parts(place: Path) -> None:
    """Remove what killed processes left."""
    for part in place.glob(".*.part"):
        try:
            if time.time() - part.stat().st_mtime > _OLD_PART:
                part.unlink()
        except OSError:
            continue  # gone, or another user's


def wait_for_lock(path: Path, *, until: float = float("inf"), stale: float = 30.0) -> tuple[Any, str]:
    """Take a lock that several hosts may share, or wait until the process that holds it is done.

    The lock is a file that its holder touches (filelock's lease): file systems need no locks of their own, clocks of
    hosts are not compared, and a dead holder's lock is taken over. Files come by rename and are proven, so that two
    holders at once, which a lease cannot exclude, cost only traffic.

    Args:
        path: The file.
        until: The moment, of `time.monotonic`, at which not to wait any longer.
        stale: Seconds without a touch after which a holder is taken for dead; one of this host that is dead is not
            waited for.

    Returns:
        The lock, which ``with`` gives back, and ""; or None and the host and id of the process that had it, after that
        has given it back, well or badly, or time is up.

    Raises:
        OSError: The folder cannot be written.
    """
    from filelock import SoftFileLease, Timeout

    lease = SoftFileLease(path, lease_duration=stale)
    holder, pause, named_at = "", _POLLS[0], monotonic()
    while True:
        try:
            return lease.acquire(blocking=False), ""
        except Timeout:
            owner = lease.owner
            # Gone in this moment: some versions of filelock remove a dead holder's lock and leave the taking to the
            # next call. A holder that gave it back just now is as good: what it has fetched is not fetched again.
            if owner is None and not path.exists():
                continue
        if owner is not None:
            other, named_at = f"{owner.hostname} {owner.pid}", monotonic()
            if holder and other != holder:
                return None, holder
            if not holder:
                logger.info(f"waiting for process {other}, which holds {path}")
            holder = other
        elif monotonic() - named_at > stale:
            path.unlink(missing_ok=True)  # empty for so long: its maker died before it could write its name
        time.sleep(pause)
        pause = min(1.5 * pause, _POLLS[1])
        if holder and (monotonic() > until or not path.exists()):
            return None, holder


# From a mirror to a file.
#
# A name that cannot be resolved blocks for as long as the resolver likes, and a host with many addresses is tried
# address by address; no time limit of a socket bounds that. So a thread opens the connection, and is left alone when it
# takes too long. pooch on requests cannot be bounded so, unpacks a .gz that a mirror labels as encoded, and trusts its
# own certificates only.


class _MirrorError(Exception):
    """One mirror did not give the file; the next one may."""


def download(
    remote: Remote,
    mirrors: tuple[str, ...],
    target: Path,
    patience: Patience,
    progress: Callable[[int], None] = lambda _: None,
) -> str:
    """Put a file in its place by one rename, after size and sum were checked.

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
        raise DownloadError(_cannot_write(target.parent, error)) from error
    finally:
        _remove(part)
    raise DownloadError(
        f"cannot download {remote.name}: {'; '.join(reasons)}; expected one mirror to have it. "
        "Where hosts have no network, fetch it ahead on one that has."
    )


def unreachable(url: str, patience: Patience) -> str:
    """Return why an address gives nothing; "" if it answers."""
    try:
        _open(url, patience).close()
    except _MirrorError as error:
        return str(error)
    return ""


def _cannot_write(folder: Path, error: OSError) -> str:
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
        length = response.headers.get("Content-Length", "")
        if length.isdigit() and int(length) != remote.size:
            raise _MirrorError(f"has {length} bytes instead of {remote.size}")
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
        from http.client import HTTPException  # 45 ms that a list of data sets need not

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
    from http.client import HTTPException

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
        pass  # the error about a folder that takes no data is on its way
