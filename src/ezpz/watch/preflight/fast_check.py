"""Look at one host as its ranks will find it, in milliseconds and before they begin: ``launch --check fast``.

Only what the launch will touch anyway is touched: the folders where its Python looks for modules are listed, the script
is asked for its size and time, and the port where the ranks will meet is called once. No file but ``pyvenv.cfg``, which
Python itself reads first, is opened; nothing is imported for a version, and no other mount or service is asked.
`ezpz.watch.preflight.launcher` says what is wrong with the answers, and `ezpz doctor` looks at everything else.
"""

from __future__ import annotations

import errno
import os
import re
import select
import socket

from ezpz.cluster.network import REFUSED_ON_THE_WAY, is_refused_by_icmp, keep_icmp, missing_interfaces, route_to
from ezpz.files import find_program
from ezpz.interpreter import is_python
from ezpz.watch.preflight.messages import Looked

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.watch.preflight.messages import Look

__all__ = ["look"]

_ANSWER = 1.5  # seconds for the host where the ranks meet to answer, if only with a refusal
_MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_MOST_DEVICES = 64  # of a host, see `Looked`
_PACKAGES = ("torch", "ezpz")


def look(
    request: Look, environ: Mapping[str, str], log_dir: str, count: int, *, first: bool, by_shim: bool = False
) -> Looked:
    """Return what this host looks like.

    Args:
        request: What is wanted.
        environ: What the ranks will get.
        log_dir: Where their logs go; empty for nowhere.
        count: Ranks of this host.
        first: Whether rank 0 runs here, where all others meet it.
        by_shim: Whether ``environ`` is that of a shim: its launcher may give each of them another mask.
    """
    place = _place()
    python, version, versions = _python(request.program, environ)
    size, when, script_problem = _script(request.script)
    means, reach = _master(environ, first=first)
    route = route_to(environ["MASTER_ADDR"]) if means in {"own", "other"} and not first else None
    devices, shared = _devices(environ, count, by_shim=by_shim) if request.own_devices else ([], "")
    interfaces = [name for _, name in socket.if_nameindex()]
    return Looked(
        host=os.uname().nodename,
        place=place,
        python=python,
        version=version,
        torch=versions.get("torch", ""),
        ezpz=versions.get("ezpz", ""),
        script_size=size,
        script_time=when,
        script_problem=script_problem,
        folder_problem=_folder(request.folder, environ),
        master=means,
        reach=reach,
        interface=route.interface if route else "",
        address=route.address if route else "",
        missing=missing_interfaces(environ, interfaces),
        interfaces=interfaces,
        machine=_machine(place) if request.own_devices else "",
        devices=devices,
        shared=shared,
        room=_room(environ, log_dir),
    )


def _python(program: str, environ: Mapping[str, str]) -> tuple[str, str, dict[str, str]]:
    """Return the path of the Python that ranks run, its version, and those of packages; empty where it is none."""
    path = find_program(program, environ.get("PATH", os.defpath)) if is_python(program) else ""
    if not path:
        return "", "", {}
    from ezpz.cluster.installed import installed_versions  # of no use to other programs

    real, prefix = os.path.realpath(path), os.path.dirname(os.path.dirname(os.path.abspath(path)))
    settings = _settings(os.path.join(prefix, "pyvenv.cfg"))
    prefixes = [prefix] if settings else []
    if settings.get("include-system-site-packages", "true").lower() == "true":
        prefixes.append(os.path.dirname(os.path.dirname(real)))
    match = re.search(r"python(\d+\.\d+)[^/]*$", real)
    short = match[1] if match else ""
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    for each in prefixes:
        short = short or _only_version(f"{each}/lib")
        folders.append(f"{each}/lib/python{short}/site-packages")
        if each == "/usr":  # Debian's names for the same
            folders += [f"/usr/local/lib/python{short}/dist-packages", "/usr/lib/python3/dist-packages"]
    version = settings.get("version") or settings.get("version_info") or short
    return path, ".".join(version.split(".")[:3]), installed_versions(folders, _PACKAGES)


def _settings(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            pairs = [line.partition("=") for line in file]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def _only_version(folder: str) -> str:
    """Return the version of the newest Python that keeps its modules there."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    found = [name[6:] for name in names if re.fullmatch(r"python3\.\d+", name)]
    return max(found, key=lambda text: int(text[2:]), default="")


def _script(path: str) -> tuple[int, int, str]:
    """Return a script's size in bytes, its time in seconds since 1970, and why it cannot be read."""
    if not path:
        return -1, 0, ""
    try:
        state = os.stat(path)
    except OSError as error:
        return -1, 0, error.strerror or str(error)
    return state.st_size, int(state.st_mtime), "" if os.access(path, os.R_OK) else "Permission denied"


def _folder(folder: str, environ: Mapping[str, str]) -> str:
    """Return why ranks are not in the launcher's folder; empty where they are, or where somebody chose another.

    Some MPIs go to the home folder, or to ``/``, where the folder is missing.
    """
    try:
        here = os.getcwd()
    except OSError as error:
        return error.strerror or str(error)
    if not folder or here == folder or here not in {"/", environ.get("HOME", "")} or os.path.isdir(folder):
        return ""
    return "No such file or directory"


def _master(environ: Mapping[str, str], *, first: bool) -> tuple[str, str]:
    """Return what MASTER_ADDR means here, and why that host does not answer."""
    name, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not name:
        return "", ""
    if name == "127.0.0.1" and first:
        return "own", ""
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except OSError as error:
        return "unknown", error.strerror or str(error)
    means = _meaning(infos)
    if first or means != "other":
        return means, ""
    family, *_, address = infos[0]
    return means, _call(family, (address[0], int(port), *address[2:])) if port.isdigit() else ""


def _meaning(infos: Sequence[tuple[object, ...]]) -> str:
    own = False
    for family, *_, address in infos:
        host = address[0]  # type: ignore[index]
        if host == "::1" or host.startswith("127."):
            return "loopback"
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # type: ignore[arg-type]
            try:
                probe.bind((host, 0, *address[2:]))  # type: ignore[index]
                own = True
            except OSError:
                pass  # it is another host's
    return "own" if own else "other"


def _call(family: int, address: tuple[object, ...]) -> str:
    """Return why a host does not answer; a refusal of its own is an answer, because nobody listens there yet."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        keep_icmp(probe)
        problem = probe.connect_ex(address)
        if problem == errno.EINPROGRESS:
            if not select.select([], [probe], [], _ANSWER)[1]:
                return f"no answer within {_ANSWER:g} s"
            problem = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem == errno.ECONNREFUSED and is_refused_by_icmp(probe):
            return REFUSED_ON_THE_WAY
    return "" if problem in {0, errno.ECONNREFUSED} else os.strerror(problem)


def _devices(environ: Mapping[str, str], count: int, *, by_shim: bool) -> tuple[list[str], str]:
    """Return the devices that so many ranks take, and a mask that gives one of them to two ranks, or an empty text.

    As in `ezpz.dist.device`, each rank takes the device of its place among the visible ones, and all take the only one.
    Behind a shim, a mask of fewer devices than ranks may be that of one rank: nothing is known of the others then.
    """
    longest: list[str] = []
    mask = ""
    for name in _MASKS:
        entries = [entry.strip() for entry in environ.get(name, "").split(",") if entry.strip()]
        if name == "ZE_AFFINITY_MASK" and environ.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE":
            entries = list(dict.fromkeys(entry.partition(".")[0] for entry in entries))  # tiles of one card are one
        if len(set(entries[:count])) < len(entries[:count]):
            return entries[:count], f"{name}={environ[name]}"
        if len(entries) > len(longest):
            longest, mask = entries, f"{name}={environ[name]}"
    if len(longest) >= count:
        return longest[:count], ""
    if mask:  # of another vendor's devices it may be short, but then theirs is longer
        return ([], "") if by_shim else (longest, mask)
    return [str(index) for index in range(min(count, _MOST_DEVICES))], ""


def _room(environ: Mapping[str, str], log_dir: str) -> list[tuple[str, str, int]]:
    """Return where the launch and its ranks write first: what it is for, the path, and the bytes that are free."""
    places = {"TMPDIR": environ.get("TMPDIR") or "/tmp", "the folder of the logs": log_dir}  # noqa: S108
    room = []
    for what, path in {**places, "the working folder": os.curdir}.items():
        try:
            state = os.statvfs(path) if path else None
        except OSError:
            continue  # it will be made
        if state:
            room.append((what, path, state.f_bavail * state.f_frsize))
    return room


def _place() -> str:
    """Return what is equal for two hosts that share one kernel and network, as containers do."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:  # not Linux
        return os.uname().nodename


def _machine(place: str) -> str:
    """Return what is equal for two hosts that have the same devices: place, own name and ``/dev``; empty if unknown.

    Two names of a machine have all three; a container of its own devices has its own ``/dev``.
    """
    try:
        return f"{place} {os.uname().nodename} {os.stat('/dev').st_dev}"
    except OSError:
        return ""
