"""Look at one host as a launch would find it: Python, devices, disks, network, limits, stale variables.

``python3 -m ezpz.watch.doctor.examine REQUEST`` prints one line of JSON, which begins with ``{"examined": 1,``; REQUEST
is a JSON object with what is wanted, see `examine`. With ``compute`` in it another line follows, which also holds what
each device has computed. As ranks of a launch, one per host, such processes also try to reach the first one at
MASTER_ADDR. `ezpz.watch.doctor.diagnosis` says what is wrong with the answers.

Whatever may hang is asked with a limit: a mount in a process of its own, because a thread that hangs in one keeps its
process from ending; a name server or a driver's tool in a thread. Only facts are returned that a support ticket may
hold: values of variables that may be secret are left out.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from functools import partial

from ezpz.cluster.devices.mask_variables import MASKS
from ezpz.cluster.installed import installed_versions, mpi_of_mpi4py
from ezpz.cluster.network import INTERFACE_VARIABLES, interface_addresses, route_to
from ezpz.watch.doctor.health import device_health, quotas
from ezpz.watch.doctor.host_programs import first_python, import_packages, mpi_programs

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

__all__ = ["PROBE", "compute", "examine", "parse_answer", "print_facts", "stale_variables", "thread_variables"]

MARK = '{"examined": 1,'
_LIMIT = 2.0  # seconds for what may hang: a mount, the name server
_ALL = 180.0  # seconds for everything together, in a process of its own
_COMPUTING = 60.0  # seconds to import torch, on a busy machine, and to compute on each device
_LIMITS = {  # seconds for what only a busy host, or a slow disk, makes late, and what waits by itself
    "python": 20.0,
    "imports": 45.0,  # two attempts of 20 s: see `ezpz.watch.doctor.host_programs`
    "first_python": 8.0,
    "loopback": 8.0,
    "mpi_programs": 30.0,
    "interfaces": 20.0,
    "proxies": 8.0,
    "devices": 8.0,  # a driver's tool may have to wake them
    "quotas": 8.0,
    "health": 8.0,
    "master": 15.0,  # see `ezpz.watch.doctor.first_host`
}
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_STALE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LIBRARIES = (
    *("torch", "numpy", "ezpz", "mpi4py", "nvidia_nccl_cu12", "nvidia_nccl_cu13"),
    *("oneccl", "oneccl_bind_pt", "intel_extension_for_pytorch"),
)
_SIOCGIFFLAGS = 0x8913  # linux/sockios.h
_IFF_UP, _IFF_RUNNING = (
    0x1,
    0x40,
)  # linux/if.h: set up, and a cable that carries; /sys shows another namespace's at times


PROBE = {"compute": True, "folder": "", "places": {"TMPDIR": ""}}  # what an attempt asks of a host
# Whole numbers that a float holds exactly: every device must find what the CPU finds. A device that fails keeps none of
# the others from being asked.
_COMPUTE = """
import time
begun = time.monotonic()
import torch
print("imported", time.monotonic() - begun, flush=True)
count = getattr(torch, KIND).device_count()
print("count", count, flush=True)
a = (torch.arange(512 * 512, dtype=torch.float32).reshape(512, 512) % 13) - 6
expected = a @ a.T
for index in range(count):
    place = torch.device(KIND, index)
    try:
        is_right = torch.equal((a.to(place) @ a.T.to(place)).cpu(), expected)
    except Exception as error:
        print("fails", index, f"{type(error).__name__}:", *str(error).split(), flush=True)
    else:
        print("right" if is_right else "wrong", index, flush=True)
"""
_WORDS = 300  # characters of an error
_MOST_OF_A_SCRIPT = 16 << 20  # bytes


def stale_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a rank that a shell holds, which is none; empty inside a rank of a launcher.

    The WORLD_SIZE that `ezpz_setup_job` has exported is none: it exports EZPZ_WORLD_SIZE with it.
    """
    if environ.get("EZPZ_LAUNCH_ID") or environ.get("TORCHELASTIC_RUN_ID"):
        return {}
    found = {name: environ[name] for name in _STALE if name in environ}
    if found.get("WORLD_SIZE") == environ.get("EZPZ_WORLD_SIZE"):
        found.pop("WORLD_SIZE", None)
    return found


def thread_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a shell says about the number of threads; in a rank, its launcher says it."""
    return {name: environ[name] for name in _THREADS if environ.get(name)}


def examine(request: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of this host, as JSON can hold them.

    Args:
        request: ``folder`` (the working folder), ``script`` (a file, or empty), ``places`` (what a folder is for to its
            path; a place without one is where the variable of its name says on this host), ``stale`` (what
            `stale_variables` returned where the command was typed), ``threads`` (what `thread_variables` returned
            there), ``programs`` (whether Python, numpy, torch and ``mpiexec`` are started), ``forks`` (set in the
            process below, which looks itself, whatever a ``sitecustomize`` has started there).
        environ: The environment.

    A process that has threads leaves it to one of its own, because what it would have to fork here is a copy in which
    the locks of its threads stay held.

    Raises:
        MachineError: Such a process gave no answer.
    """
    if not request.get("forks") and not _is_alone():
        return _elsewhere(request, environ)
    places = _paths(request.get("places") or {}, environ)
    on_mounts: dict[str, Callable[[], Any]] = {
        "folder": lambda: _folder(str(request.get("folder", ""))),
        "script": lambda: _script(str(request.get("script", ""))),
        **{f"place {what}": partial(_space, path) for what, path in places.items()},
    }
    elsewhere: dict[str, Callable[[], Any]] = {
        "python": _python,
        "own_address": lambda: sorted(_addresses_of(os.uname().nodename)),
        "loopback": _loopback,
        "interfaces": _interfaces,
        "master": lambda: _master(environ),
        "proxies": lambda: _proxies(environ),
        "devices": lambda: _devices(environ),
        "quotas": lambda: quotas(environ, list(places.values())),
        "health": lambda: device_health(environ),
    }
    if request.get("programs"):
        folder = os.path.dirname(str(request.get("script") or "")) or str(request.get("folder") or "")
        elsewhere["imports"] = lambda: import_packages(folder, environ)
        elsewhere["first_python"] = lambda: first_python(environ)
        elsewhere["mpi_programs"] = lambda: mpi_programs(environ)
    answers, children = {}, _begin(on_mounts)  # before there are threads
    answers.update(_all_at_once(elsewhere))
    answers.update(_answers_of(children))
    return {
        "host": os.uname().nodename,
        "time": time.time(),
        "limits": _limits(),
        "cpus": [len(_affinity()), os.cpu_count() or 1],
        "infiniband": os.path.isdir("/sys/class/infiniband"),
        "mpi": _mpi(environ),
        "driver": _driver(),
        "stale": dict(request.get("stale") or {}),
        "threads": dict(request.get("threads") or {}),
        "interface_variables": {name: environ[name] for name in INTERFACE_VARIABLES if environ.get(name)},
        "masks": {name: environ[name] for name in MASKS if environ.get(name)},
        **{name: answers.get(name) for name in ("folder", "script", *elsewhere)},
        "places": {what: answers.get(f"place {what}") for what in places},
        "hanging": sorted(name for name in (*on_mounts, *elsewhere) if name not in answers),
    }


def _is_alone() -> bool:
    """Tell whether this process has one thread; on Linux those count that Python knows nothing of."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return threading.active_count() == 1


def _elsewhere(request: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what `examine` finds in a process of its own, which imports from the same folders as this one."""
    import select
    import subprocess

    from ezpz.errors import MachineError

    begin = f"import sys; sys.path[:] = {sys.path!r}; from ezpz.watch.doctor.examine import print_facts; print_facts()"
    line = [sys.executable, "-c", begin, json.dumps({**request, "compute": False, "forks": True})]
    reading, writing = os.pipe()
    child = subprocess.Popen(line, env=dict(environ), stdin=subprocess.DEVNULL, stdout=writing)
    os.close(writing)
    text, end, waiting = b"", time.monotonic() + _ALL, select.poll()
    waiting.register(reading, select.POLLIN)
    # Its line counts, not its end: what hangs in a mount may keep it, and the pipe, for ever.
    while not text.endswith(b"\n") and waiting.poll(max(0.0, end - time.monotonic()) * 1000):
        more = os.read(reading, 1 << 16)
        if not more:
            break
        text += more
    os.close(reading)
    child.kill()
    try:
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        pass
    facts = parse_answer(text.decode(errors="replace"))
    if facts is None:
        raise MachineError(
            f"the process that looks at this host ({sys.executable}) gave no answer; expected a line of JSON within "
            f"{_ALL:g} s. See what `{sys.executable} -m ezpz.watch.doctor.examine` says."
        )
    return facts


def _paths(places: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return where each place is on this host, those left out that are nowhere."""
    usual = {"TMPDIR": "/tmp"}  # noqa: S108  # as ezpz.files takes it
    found = {what: str(path) or environ.get(what) or usual.get(what, "") for what, path in places.items()}
    return {what: path for what, path in found.items() if path}


def parse_answer(line: str) -> dict[str, Any] | None:
    """Return the facts that a line of output holds; None where it holds none."""
    if not line.startswith(MARK):
        return None
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and isinstance(answer.get("host"), str) else None


# What may hang


def _begin(tasks: Mapping[str, Callable[[], Any]]) -> dict[str, tuple[int, int]]:
    """Begin each task in a process of its own; return its id, and the end of a pipe that will have its answer."""
    children = {}
    for name, task in tasks.items():
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, json.dumps(_attempt(task)).encode())
            finally:
                os._exit(0)
        os.close(writing)
        children[name] = (child, reading)
    return children


def _answers_of(children: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """Return the answers that come in time; a process that gives none is killed, and left to hang where it cannot be.

    An answer is shorter than a pipe holds, so a process that has written has ended.
    """
    import select
    import signal

    answers, end = {}, time.monotonic() + _LIMIT
    for name, (child, reading) in children.items():
        ready, _, _ = select.select([reading], [], [], max(0.05, end - time.monotonic()))
        text = os.read(reading, 1 << 16) if ready else b""
        os.close(reading)
        if text:
            answers[name] = json.loads(text)
        else:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0 if text else os.WNOHANG)
    return answers


def _attempt(task: Callable[[], Any]) -> Any:
    try:
        return task()
    except Exception as error:  # noqa: BLE001  # a fact that cannot be had is recorded as such
        return {"error": f"{type(error).__name__}: {error}"}


def _all_at_once(tasks: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Run every task in a thread of its own and return the answers that came in time."""
    answers: dict[str, Any] = {}

    def answer(name: str, task: Callable[[], Any]) -> None:
        try:
            answers[name] = task()
        except Exception as error:  # noqa: BLE001  # a fact that cannot be had is shown as such
            answers[name] = {"error": f"{type(error).__name__}: {error}"}

    threads = [
        threading.Thread(target=answer, args=(name, task), name=f"ezpz-{name}", daemon=True)
        for name, task in tasks.items()
    ]
    for thread in threads:
        thread.start()
    begun = time.monotonic()
    for name, thread in zip(tasks, threads, strict=True):
        thread.join(max(0.0, begun + _LIMITS.get(name, _LIMIT) - time.monotonic()))
    return dict(answers)


# Python


def _python() -> dict[str, Any]:
    copies = [
        path
        for folder in dict.fromkeys(os.path.abspath(each) for each in sys.path)
        if os.path.isfile(path := os.path.join(folder, "ezpz", "__init__.py"))
    ]
    return {
        "path": sys.executable,
        "version": sys.version.split(maxsplit=1)[0],
        "versions": installed_versions([folder or os.curdir for folder in sys.path], _LIBRARIES),
        "mpi4py_for": mpi_of_mpi4py([folder or os.curdir for folder in sys.path]),
        "torch_build": _torch_build(),
        "ezpz": os.path.abspath(f"{__file__}/../../.."),
        "ezpz_copies": [os.path.dirname(path) for path in copies],
        "ezpz_programs": _programs("ezpz", os.environ.get("PATH", os.defpath)),
        "launch_programs": _programs("launch", os.environ.get("PATH", os.defpath)),
    }


def _programs(name: str, path: str) -> list[str]:
    """Return the programs of a name in these folders, the first found first; links to the same one count once."""
    found: dict[str, str] = {}
    for folder in path.split(os.pathsep):
        program = os.path.join(folder or os.curdir, name)
        if os.path.isfile(program) and os.access(program, os.X_OK):
            found.setdefault(os.path.realpath(program), os.path.abspath(program))
    return list(found.values())


def _torch_build() -> str:
    """Return what torch was built for (``cpu``, ``cuda 12.8``, ``hip 6.4``, ``xpu 2025.1``), without importing it.

    ``torch/version.py`` has a line for each, ``cuda: Optional[str] = '12.8'`` or ``= None``.
    """
    # As importlib.util.find_spec does, whose import costs 3 ms.
    specs = (finder.find_spec("torch", None) for finder in sys.meta_path)
    spec = next((each for each in specs if each is not None), None)
    folder = os.path.dirname(spec.origin) if spec and spec.origin else ""
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, value = line.partition("=")
        kind = name.partition(":")[0].strip()
        if kind in {"cuda", "hip", "xpu"} and value.strip().strip("'\"") not in {"", "None"}:
            return f"{kind} {value.strip().strip(chr(39))}"
    return "cpu"


def _mpi(environ: Mapping[str, str]) -> str:
    from ezpz.files import find_program

    path = find_program("mpiexec", environ.get("PATH")) or find_program("mpirun", environ.get("PATH"))
    return os.path.realpath(path) if path else ""


def _driver() -> str:
    """Return the first line of the NVIDIA driver's version; empty without that driver."""
    from ezpz.cluster.probe import read

    return (read("/proc/driver/nvidia/version") or "").partition("\n")[0].strip()


def _devices(environ: Mapping[str, str]) -> dict[str, Any]:
    from ezpz.cluster.devices import count_devices
    from ezpz.cluster.probe import read, run

    counted = count_devices(environ, read, run)
    return {"kind": counted.kind, "count": counted.count, "origin": counted.origin}


def compute(kind: object) -> dict[str, Any]:
    """Let every device multiply two matrices, in a process of its own, and compare with the CPU.

    Args:
        kind: What the devices are: ``cuda``, ``xpu``; with others nothing is done.

    Returns:
        ``imported``, the seconds that importing torch took; ``count``, how many devices torch finds; ``wrong``, the
        indices of those that find something else than the CPU; ``fails``, the index of each that raises an error to its
        words; ``problem``, why the process did not come to its end, or an empty text. Empty where nothing is done.
    """
    import subprocess

    if kind not in {"cuda", "xpu"}:
        return {}
    line = [sys.executable, "-c", f"KIND = {kind!r}\n{_COMPUTE}"]
    try:
        done = subprocess.run(line, capture_output=True, timeout=_COMPUTING, check=False)
        output, problem = done.stdout, ""
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            problem = last[:_WORDS] or f"its process ended with {done.returncode}"
    except OSError as error:
        output, problem = b"", error.strerror or str(error)
    except subprocess.TimeoutExpired as error:
        output, problem = error.stdout or b"", f"no answer within {_COMPUTING:g} s"
    found: dict[str, Any] = {"imported": None, "count": None, "wrong": [], "fails": {}, "problem": problem}
    for text in output.decode(errors="replace").splitlines():
        word, _, rest = text.partition(" ")
        if word == "imported":
            found["imported"] = round(float(rest), 1)
        elif word == "count":
            found["count"] = int(rest)
        elif word == "wrong":
            found["wrong"].append(int(rest))
        elif word == "fails":
            index, _, words = rest.partition(" ")
            found["fails"][index] = words[:_WORDS]
    return found


def _folder(path: str) -> dict[str, Any]:
    return {"path": path, "is_there": os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK)}


def _script(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        state = os.stat(path)
    except OSError as error:
        return {"path": path, "problem": error.strerror or str(error)}
    found = {"path": path, "size": state.st_size, "time": int(state.st_mtime), "problem": ""}
    try:
        return {**found, "digest": _digest(path)}
    except OSError as error:
        return {**found, "problem": error.strerror or str(error)}


def _digest(path: str) -> str:
    """Return the beginning of a file's SHA-256; of a very large one that of its first part."""
    from hashlib import sha256

    with open(path, "rb") as file:
        return sha256(file.read(_MOST_OF_A_SCRIPT)).hexdigest()[:12]


def _space(path: str) -> dict[str, Any]:
    """Return the room in a folder, or in the nearest folder above it that is there."""
    there = path
    while there != os.path.dirname(there):
        try:
            os.stat(there)
            break
        except (FileNotFoundError, NotADirectoryError):
            there = os.path.dirname(there)
        except OSError as error:  # a mount whose server has gone, a folder that this user may not enter
            return {"path": path, "problem": error.strerror or str(error)}
    state = os.statvfs(there)
    return {
        "path": path,
        "is_there": there == path,
        "size": state.f_blocks * state.f_frsize,
        "free": state.f_bavail * state.f_frsize,
        "inodes": state.f_favail if state.f_files else None,  # None: this file system counts none
        "can_write": os.access(there, os.W_OK | os.X_OK),
    }


def _limits() -> dict[str, int]:
    import resource

    names = {name: f"RLIMIT_{name.upper()}" for name in ("nofile", "memlock", "nproc", "as", "fsize", "cpu")}
    return {
        name: resource.getrlimit(getattr(resource, constant))[0]  # -1 is unlimited
        for name, constant in names.items()
        if hasattr(resource, constant)
    }


def _affinity() -> Sequence[int]:
    known = getattr(os, "sched_getaffinity", None)
    return sorted(known(0)) if known else range(os.cpu_count() or 1)


# Network


def _addresses_of(name: str) -> set[str]:
    try:
        # As bytes: a str loads the tables of international names, which a host's name needs where it is not ASCII.
        host = name.encode() if name.isascii() else name
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)}
    except OSError:
        return set()


def _loopback() -> str:
    """Return why no process here can connect to another one by 127.0.0.1; empty where it can."""
    try:
        with socket.socket() as server, socket.socket() as client:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            client.settimeout(1.0)
            client.connect(server.getsockname())
            return ""
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)


def _interfaces() -> dict[str, dict[str, str]]:
    """Return name to state (``up``, ``down``, ``unknown``) and IPv4 address of every interface."""
    import struct

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, address in interface_addresses():
            try:
                import fcntl

                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, struct.pack("256s", name.encode()))
                flags = struct.unpack_from("H", answer, 16)[0]
                state = "up" if flags & _IFF_UP and flags & _IFF_RUNNING else "down"
            except OSError:
                state = "unknown"
            found[name] = {"address": address, "state": state}
    return found


def _proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return each proxy's variable to why it cannot be reached; empty where it can."""
    found = {}
    for name in _PROXIES:
        if not environ.get(name):
            continue
        from urllib.parse import urlsplit  # which costs 5 ms, and most hosts have no proxy

        try:
            parts = urlsplit(environ[name] if "//" in environ[name] else f"//{environ[name]}")
            with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1.0):
                found[name] = ""
        except (OSError, ValueError) as error:
            found[name] = str(getattr(error, "strerror", None) or error)
    return found


def _master(environ: Mapping[str, str]) -> dict[str, Any]:
    """Try to reach the first host, as ranks will; every host but the first connects, the first listens.

    Returns:
        ``name`` (MASTER_ADDR), the ``addresses`` that it means here, the ``interface`` that leads there, ``rank``, and
        what `ezpz.watch.doctor.first_host` returns: the ``problem`` of connecting, empty where it worked, and so on.
        Empty outside a launch over several hosts.
    """
    world, rank, name = environ.get("WORLD_SIZE", ""), environ.get("RANK", ""), environ.get("MASTER_ADDR", "")
    port = environ.get("MASTER_PORT", "")
    if not (environ.get("EZPZ_LAUNCH_ID") and world.isdigit() and rank.isdigit() and port.isdigit() and int(world) > 1):
        return {}
    from ezpz.watch.doctor.first_host import join, receive

    met = receive(int(port), int(world) - 1) if rank == "0" else join(name, int(port), int(rank))
    route = route_to(name)
    addresses = sorted(_addresses_of(name))
    return {"name": name, "addresses": addresses, "interface": route.interface, "rank": int(rank), **met}


def print_facts() -> NoReturn:
    """Print what the command line asks for, and end this process."""
    request = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    facts = examine(request, os.environ)
    _print(facts)
    if request.get("compute") and (computed := compute((facts["devices"] or {}).get("kind"))):
        _print({**facts, "compute": computed})
    os._exit(0)  # a thread that hangs in a mount would keep Python from ending


def _print(facts: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps({"examined": 1, **facts}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    print_facts()
