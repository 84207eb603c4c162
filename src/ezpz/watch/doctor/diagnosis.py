"""Say what is wrong with hosts, from what `ezpz.watch.doctor.examine` found on each: pure, and one rule per function.

Rules that a launch asks as well are those of `ezpz.watch.host_rules`.

A problem is what must make a launch fail, or hang; everything else that is worth a word is a note. Each has a cure:
what to type, or whom to ask.
"""

from __future__ import annotations

import os

from ezpz.cluster.installed import MPICH_KIND, OPEN_MPI
from ezpz.cluster.network import chosen_interfaces
from ezpz.watch import host_rules
from ezpz.watch.host_rules import Finding, gather, listed, majority

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    Facts = dict[str, Any]

__all__ = ["diagnose", "summary"]

_MIB, _GIB = 1 << 20, 1 << 30
_SHM = "/dev/shm"  # noqa: S108  # the mount itself
_LEAST = {  # bytes that must be free, and what needs them
    "the run's folder": (_GIB, "checkpoints and metrics"),
    "TMPDIR": (256 * _MIB, "temporary files"),
    _SHM: (64 * _MIB, "batches of DataLoader's workers"),
    "the home folder": (64 * _MIB, "caches and records of launches"),
}
_LEAST_OF_OTHERS = (64 * _MIB, "caches")
_MUST_BE_THERE = {"TMPDIR", "the home folder"}  # others are made when they are needed
_SHARED = 512 * _MIB  # bytes of shared memory; a container has 64 MiB where nothing else is asked for
_INODES = 1000
_NOFILE, _NPROC, _MEMLOCK = 1024, 1024, 64 * _MIB
_SMALL = (  # limits that end a training, which has none as a rule: name, flag of ulimit, the least, in words
    ("as", "-v", 16 * _GIB, "the address space of a process"),
    ("fsize", "-f", _GIB, "the size of a file"),
    ("cpu", "-t", 86400, "the CPU time of a process"),
)
_CURES_OF_IMPORTS = (  # words of the loader, and of Python
    (("undefined symbol", "GLIBC", "version `"), "see which library LD_LIBRARY_PATH has first, and unset it"),
    (("cannot open shared object",), "load the module that brings that library"),
    (("allocate memory", "failed to map", "MemoryError"), "raise the limit of memory: ulimit -v unlimited"),
    (("SIGILL",), "take a build for this CPU"),
    (("No module named",), "install what is missing"),
)
_CLOCK = 0.5  # seconds by which clocks may differ
_IMPORT = 10.0  # seconds that importing torch may take
_LOCAL_BRIDGES = ("docker", "virbr", "cni", "br-")
_FAST = ("ib", "hsn", "opa")  # InfiniBand, Slingshot, Omni-Path
_ASKED = {  # whose answer is missing, where the name of the fact does not say it
    "own_address": "the name server",
    "devices": "the devices' driver",
    "health": "the devices' driver",
    "quotas": "the file server's quota",
    "imports": "the folder of torch or numpy",
    "first_python": "the python3 on PATH",
    "mpi_programs": "the mpiexec on PATH",
    "folder": "the working folder",
    "script": "the script's folder",
}


def diagnose(hosts: Sequence[Facts]) -> list[Finding]:
    """Return what is wrong with these hosts, problems first; what several hosts share appears once."""
    found: dict[str, list[Finding]] = {}
    for facts in hosts:
        found.setdefault(str(facts["host"]), []).extend(finding for rule in _OF_ONE for finding in rule(facts))
    findings = [*gather(found), *_torch(hosts)]
    if len(hosts) > 1:
        for across in _OF_ALL:
            findings += across(hosts)
    return sorted(findings, key=lambda finding: not finding.is_problem)


def summary(hosts: Sequence[Facts]) -> str:
    """Return what all, or most, hosts have in common, in one line."""
    common = []
    for what, of in _COMPARED:
        value, count = majority([of(facts) for facts in hosts])
        if value and count > len(hosts) // 2:
            common.append(f"{what} {value}")
    return ", ".join(common)


def _problem(check: str, text: str, cure: str) -> Finding:
    return Finding(True, text, cure, check)


def _note(check: str, text: str, cure: str) -> Finding:
    return Finding(False, text, cure, check)


# Of one host: Python


def _build(facts: Facts) -> Iterator[Finding]:
    build, devices = str(_part(facts, "python").get("torch_build") or ""), _part(facts, "devices")
    kind, count = devices.get("kind"), devices.get("count") or 0
    if build == "cpu" and count and kind in {"cuda", "xpu"}:
        text = f"torch is a CPU build, and there are {count} {kind} devices (from {devices.get('origin')})"
        yield _problem(
            "build", text, "install torch's build for them (EZPZ_TORCH and ezpz_setup_python), or set TORCH_DEVICE=cpu"
        )
    elif build.startswith("cuda") and not count and not facts.get("driver"):
        text = f"torch is built for {build}, and no NVIDIA driver is here: it computes on the CPU"
        yield _note("build", text, "nothing, if that is wanted; torch's CPU build is a tenth of its size")


def _copies(facts: Facts) -> Iterator[Finding]:
    python = _part(facts, "python")
    used = python.get("ezpz")
    others = [path for path in python.get("ezpz_copies") or () if path != used]
    if others:
        text = f"a second ezpz is at {others[0]}; {used} is used"
        yield _note("copies", text, f"uninstall one: {python.get('path')} -m pip uninstall ezpz")
    programs = list(python.get("ezpz_programs") or ())
    if len(programs) > 1:
        text = f"{len(programs)} installations are on PATH: {programs[0]} hides {', '.join(programs[1:])}"
        yield _note("copies", text, "uninstall one, or put the folder of the one that is meant first on PATH")
    launches = list(python.get("launch_programs") or ())
    if programs and launches and os.path.dirname(launches[0]) != os.path.dirname(programs[0]):
        text = f"launch on PATH is {launches[0]}, which is none of the ezpz that is {programs[0]}"
        yield _note("copies", text, "type `ezpz launch`, or put the folder of that ezpz first on PATH")


def _imports(facts: Facts) -> Iterator[Finding]:
    """Find packages that are installed and cannot be imported; one that is not there is none."""
    failed, noted = "", False
    for name, found in _part(facts, "imports").items():
        problem, seconds = str(found["problem"]), found["seconds"] or 0.0
        if failed and failed in problem:
            continue  # torch, for want of numpy
        if found["hidden"] and (problem or not noted):
            noted = True
            files = ", ".join(f"{each}.py" for each in found["hidden"])
            script = str(_part(facts, "script").get("path") or "")
            folder = os.path.dirname(script) or _part(facts, "folder").get("path")
            text = f"{files} in {folder} hides a module of that name from programs there"
            text += f"; importing {name} fails: {problem}" if problem else ""
            yield Finding(bool(problem), text, f"rename {files}", "shadow")
        elif problem:
            text = f"importing {name} ({found['origin']}) fails: {problem}"
            yield _problem("import", text, _cure_of_import(facts, name, found))
        elif found["is_slow"] or seconds > _IMPORT:
            yield _slow_import(name, f"took {seconds:.0f} s" if seconds else "has not ended within 20 s")
        if problem and found["hidden"]:
            return  # what comes after it says the same
        failed = name if problem else ""


def _slow_import(name: str, took: str) -> Finding:
    cure = "run it again: the files may be in memory then; else ask for a faster file system"
    return _note("import", f"importing {name} {took}", cure)


def _cure_of_import(facts: Facts, name: str, found: dict[str, Any]) -> str:
    """Return what to do about a package that cannot be imported, by the kind of error."""
    problem, origin, version = str(found["problem"]), str(found["origin"]), _version(facts, name)
    python = _part(facts, "python").get("path") or "python3"
    again = f"install it again: {python} -m pip install --force-reinstall {name}{version and f'=={version}'}"
    if "-packages" not in origin:
        return f"take {os.path.dirname(os.path.dirname(origin))} out of PYTHONPATH, or {again}"
    for words, cure in _CURES_OF_IMPORTS:
        if any(each in problem for each in words):
            return f"{cure}, or {again}"
    return again


def _first_python(facts: Facts) -> Iterator[Finding]:
    first, ours = _part(facts, "first_python"), _part(facts, "imports")
    if first and not first["has_torch"] and "torch" in ours:
        python = _part(facts, "python").get("path")
        text = f"python3 on PATH is {first['path']} ({first['version']}), which has no torch; that of {python} has"
        yield _note("python", text, "activate that environment, or put its folder first on PATH")


def _mpi_programs(facts: Facts) -> Iterator[Finding]:
    programs = facts.get("mpi_programs") if isinstance(facts.get("mpi_programs"), list) else []
    first, others = (programs or [{}])[0], (programs or [])[1:]
    if first.get("problem"):
        is_alone = not any(each["name"] for each in others)
        text = f"{first['path']} does not run: {first['problem']}"
        cure = (
            "load the module that it needs, or install that MPI again; `launch --flavour local` needs none on one host"
        )
        yield Finding(is_alone and first["is_needed"], text, cure, "mpi")
    named = [each for each in programs or () if each["name"]]
    other = next((each for each in named if each["name"] != named[0]["name"]), None)
    first = named[0] if other else first
    if other:
        text = (
            f"2 MPIs are on PATH: {first['path']} ({first['name']}) hides {other['path']} ({other['name']}); programs "
            "of the one do not run under the other"
        )
        yield _note("mpi", text, "keep one on PATH, or choose: `launch --flavour NAME`")


# Of one host: files, room, limits


def _files(facts: Facts) -> Iterator[Finding]:
    folder, script = _part(facts, "folder"), _part(facts, "script")
    if folder.get("path") and not folder.get("is_there"):
        yield host_rules.missing_folder(folder["path"], "it is not there, or may not be entered")
    if script.get("problem"):
        yield host_rules.unread_script(script["path"], script["problem"])


def _places(facts: Facts) -> Iterator[Finding]:
    for what, place in dict(facts.get("places") or {}).items():
        if isinstance(place, dict) and place.get("problem"):
            text = f"{what} ({place['path']}) cannot be used: {place['problem']}"
            cure = "name another one, or ask the administrators: a mount whose server has gone, or a closed folder"
            yield _problem("stale mount", text, cure)
        if not isinstance(place, dict) or "free" not in place:
            continue
        least, needs = _LEAST.get(what, _LEAST_OF_OTHERS)
        if what in _MUST_BE_THERE and not place.get("is_there", True):
            cure = f"make it: mkdir -p {place['path']}; or name another one: it holds {needs}"
            yield _note("missing", f"{what} ({place['path']}) is not there", cure)
            continue
        size = place.get("size") or _SHARED
        if what == _SHM and size < _SHARED and 2 * place["free"] >= size:
            cure = "docker run --shm-size=8g or --ipc=host; else DataLoader(num_workers=0)"
            text = f"{what} is {size / _MIB:.0f} MiB large, too small for batches of DataLoader's workers and for NCCL"
            yield _note("shm", text, cure)
            continue
        name = what if what == place["path"] else f"{what} ({place['path']})"
        if not place["can_write"]:
            yield _note("write", f"{name} cannot be written", f"name another one: it holds {needs}")
            continue
        yield from host_rules.full(what, place["path"], place["free"], least, needs)
        if place["free"] >= least and place["inodes"] is not None and place["inodes"] < _INODES:
            text = f"{name} has room for {place['inodes']} more files"
            yield _note("inodes", text, "remove files, or ask for a larger quota")


def _quotas(facts: Facts) -> Iterator[Finding]:
    for each in facts.get("quotas") or () if isinstance(facts.get("quotas"), list) else ():
        used, limit = each["used"], each["limit"]
        amount = (
            f"{used / _GIB:.1f} of {limit / _GIB:.1f} GiB" if each["what"] == "room" else f"{used} of {limit} files"
        )
        yield _note("quota", f"the quota of {each['place']} is used up: {amount}", "remove files, or ask for more")


def _limits(facts: Facts) -> Iterator[Finding]:
    limits = dict(facts.get("limits") or {})
    for name, flag, least in (("nofile", "-n", _NOFILE), ("nproc", "-u", _NPROC)):
        if 0 <= limits.get(name, -1) < least:
            cure = f"raise it before the launch: ulimit {flag} {least}"
            yield _note(name, f"the limit {name} is {limits[name]}", cure)
    for name, flag, least, what in _SMALL:
        if 0 <= limits.get(name, -1) < least:
            amount = f"{limits[name]} s" if name == "cpu" else f"{limits[name] / _GIB:.1f} GiB"
            yield _note(
                name, f"{what} is limited to {amount} (ulimit {flag})", f"ulimit {flag} unlimited, or ask for it"
            )
    if facts.get("infiniband") and 0 <= limits.get("memlock", -1) < _MEMLOCK:
        text = f"only {limits['memlock'] // 1024} KiB of memory may be locked, and InfiniBand needs more"
        yield _note("memlock", text, "ask the administrators for an unlimited memlock")


def _hanging(facts: Facts) -> Iterator[Finding]:
    cure = "ask the administrators: a mount, the name server or the driver hangs"
    for name in facts.get("hanging") or ():
        text = f"{_ASKED.get(name, name.removeprefix('place '))} does not answer"
        is_mount = name.startswith("place ") or name in {"folder", "script"}
        yield (_problem if is_mount else _note)("hangs", text, cure)


# Of one host: devices and CPUs


def _health(facts: Facts) -> Iterator[Finding]:
    for each in facts.get("health") or () if isinstance(facts.get("health"), list) else ():
        if each.get("problem"):
            text = f"{each.get('tool')} fails: {each['problem']}"
            yield _note(
                "device tool", text, "start the host again if its driver was updated, else ask its administrators"
            )
        if each.get("errors"):
            text = f"device {each['device']} has {each['errors']} uncorrected memory errors since its last reset"
            yield _note("ecc", text, "ask the administrators to reset or replace it; leave this host out until then")
        if each.get("throttled"):
            text = f"device {each['device']} is throttled: it is too hot, or short of power"
            yield _note("throttle", text, "ask the administrators; every rank waits for the slowest")


def _computed(facts: Facts) -> Iterator[Finding]:
    computed = _part(facts, "compute")
    cure = "ask the administrators to reset or replace it; leave this host out until then"
    for index in computed.get("wrong") or ():
        yield _problem("device", f"device {index} computes wrongly: a product of matrices differs from the CPU's", cure)
    for index, words in dict(computed.get("fails") or {}).items():
        yield _problem("device", f"device {index} does not compute: {words}", cure)
    if computed.get("problem"):
        text = f"whether its devices compute is unknown: {computed['problem']}"
        yield _note("device", text, "run it again when the host is idle; see whether `import torch` works there")
    seconds = computed.get("imported") or 0.0
    if seconds > _IMPORT and not _part(facts, "imports"):  # else `_imports` says so
        yield _slow_import("torch", f"took {seconds:.0f} s")


def _masks(facts: Facts) -> Iterator[Finding]:
    for name, value in dict(facts.get("masks") or {}).items():
        devices = [each.strip() for each in str(value).split(",") if each.strip()]
        if len(set(devices)) < len(devices):
            yield host_rules.shared_device(f"{name}={value}")


def _affinity(facts: Facts) -> Iterator[Finding]:
    may_use, has = facts.get("cpus") or (0, 0)
    count = _part(facts, "devices").get("count") or 0
    if 0 < may_use < count:
        text = f"processes may use {may_use} of {has} CPUs, and there are {count} devices, one rank each"
        yield _note("affinity", text, "ask the scheduler for more CPUs per host (--cpus-per-task, ncpus)")


# Of one host: variables and network


def _interface_variables(facts: Facts) -> Iterator[Finding]:
    interfaces = _part(facts, "interfaces")
    for name, value in dict(facts.get("interface_variables") or {}).items():
        if not interfaces:
            continue
        chosen = chosen_interfaces(name, str(value), list(interfaces))
        if not chosen:
            yield host_rules.no_interface(f"{name}={value}", interfaces)
        elif value.startswith("^"):
            continue  # all but these: the library chooses among the rest
        elif all(each.startswith(_LOCAL_BRIDGES) for each in chosen):
            text = f"{name}={value} names {chosen[0]}, a bridge to containers that leads to no other host"
            yield _problem("bridge", text, f"unset {name}")
        elif all(interfaces[each].get("state") == "down" for each in chosen):
            text = f"{name}={value} names {chosen[0]}, which is down"
            yield _problem("down", text, f"unset {name}, or ask the administrators to bring {chosen[0]} up")


def _fast_network(facts: Facts) -> Iterator[Finding]:
    for name, interface in _part(facts, "interfaces").items():
        is_chosen = any(name in value for value in dict(facts.get("interface_variables") or {}).values())
        # Without an address it was never set up, and it is not missed.
        if name.startswith(_FAST) and interface["state"] == "down" and interface["address"] and not is_chosen:
            text = f"the interface {name} ({interface['address']}) is down: ranks would meet over a slower one"
            yield _note("down", text, "ask the administrators to bring it up")


def _own_name(facts: Facts) -> Iterator[Finding]:
    addresses, master = facts.get("own_address"), _part(facts, "master")
    if addresses == []:
        text = f"this host's own name {facts['host']} means no address (no DNS, and no line in /etc/hosts)"
        yield _note("own name", text, "ask the administrators for a line in /etc/hosts; `launch --master-addr` decides")
    elif master and isinstance(addresses, list) and all(str(each).startswith("127.") for each in addresses):
        text = f"this host's own name means {addresses[0]}, which no other host can reach"
        yield _note("own name", text, "remove that line of /etc/hosts; programs that announce their own name hang")


def _stale(facts: Facts) -> Iterator[Finding]:
    stale = dict(facts.get("stale") or {})
    if stale:
        listed = " ".join(f"{name}={value}" for name, value in stale.items())
        cure = f"unset {' '.join(stale)} (`launch` sets its own; a plain python3 would wait for others)"
        yield _note("stale", f"this shell is no rank, and holds {listed}", cure)


def _threads(facts: Facts) -> Iterator[Finding]:
    may_use, has = facts.get("cpus") or (0, 0)
    most = has if _part(facts, "master") else may_use  # a rank may use a part of what the shell could
    for name, value in dict(facts.get("threads") or {}).items():
        counts = [each.strip() for each in str(value).split(",")]  # OpenMP takes one for each level
        least = name == "OMP_NUM_THREADS"
        if not all(each.isascii() and each.isdigit() and int(each[:9]) >= least for each in counts):
            text = f"{name}={value} is no number of threads: libraries ignore it, and take all CPUs"
            yield _note("threads", text, f"unset {name}: `launch` gives each rank its share of the CPUs")
        elif 0 < most < int(counts[0][:9]):
            text = f"{name}={value} asks for more threads than there are CPUs to use ({most}): they wait for each other"
            yield _note("threads", text, f"unset {name}: `launch` gives each rank its share of the CPUs")


def _no_loopback(facts: Facts) -> Iterator[Finding]:
    why = facts.get("loopback")
    if isinstance(why, str) and why:
        text = f"no process here reaches another one by 127.0.0.1: {why}; ranks of one host meet there"
        cure = "ip link set lo up; ip addr add 127.0.0.1/8 dev lo (as root, or whoever starts this container)"
        yield _problem("loopback", text, cure)


def _proxies(facts: Facts) -> Iterator[Finding]:
    for name, problem in _part(facts, "proxies").items():
        if problem:
            text = f"the proxy of {name} cannot be reached: {problem}"
            yield _note("proxy", text, f"unset {name}, or download ahead on a login host (ezpz fetch)")


_OPEN_MPI_PROGRAMS = {"orterun", "prterun", "mpirun", "mpirun.openmpi"}  # what mpiexec is a link to


def _mpi4py(facts: Facts) -> Iterator[Finding]:
    """Find an mpi4py that the ``mpiexec`` on PATH does not know: under it each rank is a world of one."""
    path, built_for = str(facts.get("mpi") or ""), str(_part(facts, "python").get("mpi4py_for") or "")
    name = path.rpartition("/")[2]
    ours = MPICH_KIND if "hydra" in name else OPEN_MPI if name in _OPEN_MPI_PROGRAMS else ""
    if ours and built_for and ours != built_for:
        text = f"mpi4py is built for {built_for}, mpiexec on PATH is of {ours} ({path}): each rank is alone"
        cure = (
            "put the MPI that mpi4py was built for on PATH, or build mpi4py anew: pip install --no-binary=mpi4py mpi4py"
        )
        yield _note("mpi4py", text, cure)


_OF_ONE: tuple[Callable[[Any], Iterator[Finding]], ...] = (
    _build, _imports, _first_python, _copies, _files, _places, _quotas, _limits, _health, _computed, _masks, _affinity,
    _interface_variables, _fast_network, _no_loopback, _own_name, _stale, _threads, _proxies, _hanging, _mpi_programs,
    _mpi4py,
)  # fmt: skip


# Over hosts


def _torch(hosts: Sequence[Facts]) -> list[Finding]:
    """Find hosts without torch: an installation may be for other programs, but not on a part of the hosts."""
    lacking = {}
    for facts in hosts:
        python = _part(facts, "python")
        if python and "torch" not in python.get("versions", {}):
            lacking[str(facts["host"])] = f"no torch in {python.get('path')}"
    cure = "run `ezpz_setup_env`, or load the site's module that brings torch"
    is_problem = len(lacking) < len(hosts)
    cure += f"; or leave out {listed([*lacking])}: --exclude {','.join(lacking)}" if is_problem else ", to train here"
    found = {str(facts["host"]): lacking.get(str(facts["host"])) for facts in hosts}
    return gather({host: [Finding(is_problem, text, cure, "torch")] if text else [] for host, text in found.items()})


_COMPARED: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("Python", lambda facts: str(_part(facts, "python").get("version") or "")),
    ("torch", lambda facts: _version(facts, "torch")),
    ("ezpz", lambda facts: _version(facts, "ezpz")),
    ("numpy", lambda facts: _version(facts, "numpy")),
    ("NCCL", lambda facts: _version(facts, "nvidia_nccl_cu13") or _version(facts, "nvidia_nccl_cu12")),
    ("oneCCL", lambda facts: _version(facts, "oneccl") or _version(facts, "oneccl_bind_pt")),
    ("intel_extension_for_pytorch", lambda facts: _version(facts, "intel_extension_for_pytorch")),
    ("mpi4py", lambda facts: _version(facts, "mpi4py")),
    ("the driver", lambda facts: str(facts.get("driver") or "")),
    ("mpiexec", lambda facts: str(facts.get("mpi") or "")),
)


def _compare(hosts: Sequence[Facts]) -> Iterator[Finding]:
    """Compare by majority: "torch 2.12.0 on n03, 2.13.0 on 2 hosts"."""
    rows = [
        *_COMPARED,
        ("devices", lambda facts: _counted(_part(facts, "devices"))),
        ("the script", lambda facts: _file(_part(facts, "script"))),
    ]
    found = {what: [(str(facts["host"]), of(facts)) for facts in hosts] for what, of in rows}
    found["torch"] = [(host, version) for host, version in found["torch"] if version]  # see `_torch` for the others
    return host_rules.differences(found)


def _addresses(hosts: Sequence[Facts]) -> Iterator[Finding]:
    """Find an address that several hosts have, on an interface that leads to the first host."""
    found = []
    for facts in hosts:
        used = {_part(facts, "master").get("interface"), *dict(facts.get("interface_variables") or {}).values()}
        for name, interface in _part(facts, "interfaces").items():
            if name in used:
                found.append((str(facts["host"]), str(facts["host"]), str(interface["address"])))
    return host_rules.same_address(found)


def _name_of_first(hosts: Sequence[Facts]) -> Iterator[Finding]:
    """Find hosts that reach the first one by another address than the others do; `_reach` names those that do not."""
    others = [(host, master) for host, master in _that_connect(hosts) if not master.get("problem")]
    meant = ["/".join(master.get("addresses") or ()) for _, master in others]
    common, count = majority(meant)
    for (host, master), value in zip(others, meant, strict=True):
        if value != common:
            text = (
                f"{master.get('name')} means {value or 'nothing'} on {host}, {common or 'nothing'} on {count} other(s)"
            )
            yield _note("name", text, f"correct /etc/hosts or DNS on {host}, or leave it out: --exclude {host}")


def _reach(hosts: Sequence[Facts]) -> Iterator[Finding]:
    """Find hosts that cannot connect to the first one."""
    others = _that_connect(hosts)
    problems = {host: _why_unreached(master) for host, master in others if master.get("problem")}
    return host_rules.unreached(next((str(master.get("name")) for _, master in others), ""), problems, len(others))


def _why_unreached(master: dict[str, Any]) -> str:
    addresses = master.get("addresses") or ()
    if not addresses:
        return f"the name is unknown ({master['problem']})"
    return host_rules.ITSELF if all(str(each).startswith("127.") for each in addresses) else str(master["problem"])


def _clocks(hosts: Sequence[Facts]) -> Iterator[Finding]:
    """Compare clocks as the first host has measured them."""
    measured: dict[str, list[float]] = next(
        (master["clocks"] for facts in hosts if (master := _part(facts, "master")).get("clocks")), {}
    )
    ahead = {}
    for facts in hosts:
        rank = _part(facts, "master").get("rank")
        if measured and rank == 0:
            ahead[str(facts["host"])] = 0.0
        elif str(rank) in measured:
            ahead[str(facts["host"])] = float(measured[str(rank)][0])
    middle = sorted(ahead.values())[(len(ahead) - 1) // 2] if ahead else 0.0
    for host, seconds in ahead.items():
        off = seconds - middle
        if abs(off) > _CLOCK:
            size = f"{abs(off):.0f} s" if abs(off) >= 10 else f"{abs(off):.2g} s"
            text = f"the clock of {host} is {size} {'ahead' if off > 0 else 'behind'}"
            yield _note("clock", text, "ask the administrators for NTP; times in logs and file dates of it are off")


def _that_connect(hosts: Sequence[Facts]) -> list[tuple[str, dict[str, Any]]]:
    """Return every host but the first, with what it found of the first."""
    known = [(str(facts["host"]), _part(facts, "master")) for facts in hosts]
    return [(host, master) for host, master in known if master and master.get("rank") != 0]


_OF_ALL: tuple[Callable[[Any], Iterator[Finding]], ...] = (
    _compare, _addresses, _name_of_first, _reach, _clocks,
)  # fmt: skip


def _part(facts: Facts, name: str) -> dict[str, Any]:
    part = facts.get(name)
    return part if isinstance(part, dict) and "error" not in part else {}


def _version(facts: Facts, name: str) -> str:
    return str(dict(_part(facts, "python").get("versions") or {}).get(name) or "")


def _counted(devices: dict[str, Any]) -> str:
    return f"{devices['count']} {devices['kind']}" if devices.get("count") else ""


def _file(script: dict[str, Any]) -> str:
    if "size" not in script:
        return ""
    digest = f" (SHA-256 {script['digest']})" if script.get("digest") else ""
    return f"of {script['size']} bytes{digest}"
