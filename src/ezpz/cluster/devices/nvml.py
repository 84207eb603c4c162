"""Read NVIDIA devices through NVML, the library of the driver (https://docs.nvidia.com/deploy/nvml-api/).

``libnvidia-ml.so.1`` is called with `ctypes`; no call waits for the device's work. What a card does not support is
asked once. A call that fails otherwise costs one figure of one card in one sample: a driver that is busy returns errors
that the next sample does not meet. A card that has not answered in some samples is asked less often, and said once.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ezpz.cluster.devices.visible_devices import Ranks

_NOT_SUPPORTED, _NO_PERMISSION, _NOT_LOADED, _TIMEOUT, _LOST = 3, 4, 9, 10, 15  # nvmlReturn_t
_CLOCK_SM, _CLOCK_MEMORY = 1, 2  # nvmlClockType_t
_CORE = 0  # nvmlTemperatureSensors_t
_UNCORRECTED, _VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_XID = 8  # nvmlEventTypeXidCriticalError
_MOST_PROCESSES = 256
_SELDOM = 12  # samples between two looks for what changes rarely
_GONE = 3  # samples in a row without a figure, after which a card is said to be gone
# nvmlClocksThrottleReasons; that a device is idle, or its clocks were set by somebody, slows no work down.
_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):  # nvmlProcessInfo_v2_t
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Event(ctypes.Structure):  # nvmlEventData_t
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Refused(Exception):  # noqa: N818  # named by what it is
    """A call returned something else than success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Device:
    def __init__(self, index: int, handle: Any, name: str, given: bool) -> None:
        self.index, self.handle, self.name, self.given = index, handle, name, given
        self.unsupported: set[str] = set()
        self.xids = 0
        self.is_told = False  # whether it was said what it lacks
        self.refused = 0  # what the last call that failed in this sample has returned
        self.silent = 0  # samples in a row in which it answered nothing

    def __str__(self) -> str:
        return f"device {self.index} ({self.name})"


class Nvml:
    """The devices of this launch's ranks on this host.

    Args:
        ranks: The ranks, which say what devices they may use.
        library: The file of NVML.

    Raises:
        OSError: There is no driver.
        RuntimeError: There is one, and it does not answer now.
    """

    name = "NVML"

    def __init__(self, ranks: Ranks, library: str = "libnvidia-ml.so.1") -> None:
        self._library = ctypes.CDLL(library)
        self._ranks = ranks
        self.problems: list[str] = []
        self._looks = 0
        self._devices: dict[int, _Device] = {}
        self._handles: dict[int, Any] = {}
        self._missing: dict[int, int] = {}  # cards without a handle, and what asking for it has returned
        self._events: Any = None
        try:
            self._call("nvmlInit_v2")
            count = ctypes.c_uint()
            self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
            self._missing = dict.fromkeys(range(count.value), 0)
        except _Refused as error:
            kind = OSError if error.code == _NOT_LOADED else RuntimeError
            raise kind(f"NVML returns {error.code}") from None
        try:
            events = ctypes.c_void_p()
            self._call("nvmlEventSetCreate", ctypes.byref(events))
            self._events = events
        except (_Refused, AttributeError):
            pass  # this driver tells no Xid errors
        self._uuids = [""] * count.value
        self._find()
        for index in sorted(self._given & self._missing.keys()):
            self.problems.append(f"device {index} {_why(self._missing[index])}")

    def read(self) -> list[dict[str, Any]]:
        """Return what each device shows now."""
        if self._looks % _SELDOM == 0:
            if self._looks and self._missing:
                self._find()
            self._look_for_ranks()
        self._looks += 1
        self._take_events()
        rows = []
        for _, device in sorted(self._devices.items()):
            if device.silent >= _GONE and self._looks % _SELDOM:
                continue
            row = self._row(device)
            if row["now"] or set(row["count"]) > {"xids"} or not device.refused:
                if device.silent >= _GONE:
                    self.problems.append(f"{device} answers again")
                device.silent = 0
                rows.append(row)
                continue
            device.silent += 1
            if device.silent == _GONE:
                self.problems.append(f"{device} {_why(device.refused)}")
        return rows

    def _find(self) -> None:
        """Take in cards that could not be asked before."""
        for index in sorted(self._missing.keys()):
            handle = ctypes.c_void_p()
            try:
                self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            except _Refused as error:  # it is another's, has fallen off the bus, or cannot answer now
                self._missing[index] = error.code
                continue
            del self._missing[index]
            self._handles[index] = handle
            self._uuids[index] = self._text("nvmlDeviceGetUUID", handle)
        self._seen, self._given = self._ranks.nvidia(self._uuids)
        for index in sorted(self._seen & self._handles.keys() - self._devices.keys()):
            self._add(index)

    def _row(self, device: _Device) -> dict[str, Any]:
        device.refused = 0
        figures: dict[str, float] = {}
        counters: dict[str, float] = {}
        number, long = ctypes.c_uint, ctypes.c_ulonglong
        power = self._number(device, "nvmlDeviceGetPowerUsage", number)
        energy = self._number(device, "nvmlDeviceGetTotalEnergyConsumption", long)
        if power is not None:
            figures["power"] = power / 1000
        if energy is not None:
            counters["joules"] = energy / 1000
        if power is None and energy is None and not device.refused and not device.is_told:
            device.is_told = True
            self.problems.append(f"{device} has no counter of power or energy")
        for name, kind in (("clock", _CLOCK_SM), ("memory_clock", _CLOCK_MEMORY)):
            clock = self._number(device, "nvmlDeviceGetClockInfo", number, number(kind))
            if clock is not None:
                figures[name] = clock
        degrees = self._number(device, "nvmlDeviceGetTemperature", number, number(_CORE))
        if degrees is not None:
            figures["temperature"] = degrees
        used = self._fill(device, "nvmlDeviceGetUtilizationRates", _Utilization())
        if used is not None:
            figures["used"] = used.gpu
        memory = self._fill(device, "nvmlDeviceGetMemoryInfo", _Memory())
        if memory is not None:
            figures["memory"], figures["memory_total"] = memory.used, memory.total
        errors = self._number(device, "nvmlDeviceGetTotalEccErrors", long, number(_UNCORRECTED), number(_VOLATILE))
        if errors is not None:
            counters["errors"] = errors
        counters["xids"] = device.xids
        bits = self._number(device, "nvmlDeviceGetCurrentClocksThrottleReasons", long)
        reasons = [reason for bit, reason in _REASONS.items() if int(bits or 0) & bit]
        return {
            "id": str(device.index),
            "name": device.name,
            "given": device.given,
            "now": figures,
            "count": counters,
            **({} if bits is None and device.refused else {"why": reasons}),
        }

    def _add(self, index: int) -> None:
        name = self._text("nvmlDeviceGetName", self._handles[index]) or "NVIDIA"
        device = self._devices[index] = _Device(index, self._handles[index], name, index in self._given)
        if self._events is not None:
            try:
                self._call("nvmlDeviceRegisterEvents", device.handle, ctypes.c_ulonglong(_XID), self._events)
            except (_Refused, AttributeError):
                pass  # this card tells no Xid errors

    def _look_for_ranks(self) -> None:
        """Add devices on which a process of this launch runs although no variable names them."""
        others = [index for index in self._handles if index not in self._devices]
        if not others:
            return
        ours = self._ranks.processes()
        for index in others:
            if self._processes_on(index) & ours:
                self._add(index)

    def computing(self) -> set[int]:
        """Return the processes that compute on any card of this host."""
        return {pid for index in self._handles for pid in self._processes_on(index)}

    def _processes_on(self, index: int) -> set[int]:
        count, found = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        try:
            self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._handles[index], ctypes.byref(count), found)
        except (_Refused, AttributeError):  # of a driver before 510
            return set()
        return {found[place].pid for place in range(min(count.value, _MOST_PROCESSES))}

    def _take_events(self) -> None:
        if self._events is None:
            return
        for _ in range(32):
            event = _Event()
            try:
                self._call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(0))
            except (_Refused, AttributeError):  # NVML_ERROR_TIMEOUT: none has come
                return
            for device in self._devices.values():
                if device.handle.value == event.device:
                    device.xids += 1
                    self.problems.append(f"{device} reports Xid {event.data}")

    def _number(self, device: _Device, function: str, kind: Callable[[], Any], *arguments: Any) -> float | None:
        value = self._fill(device, function, kind(), *arguments)
        return None if value is None else value.value

    def _fill(self, device: _Device, function: str, value: Any, *arguments: Any) -> Any:
        """Return a value that a function has filled in; None where this device does not support it, or not now."""
        key = f"{function}{[argument.value for argument in arguments]}"
        if key in device.unsupported or device.refused in {_TIMEOUT, _LOST}:  # each further call may take as long
            return None
        try:
            self._call(function, device.handle, *arguments, ctypes.byref(value))
        except AttributeError:  # an older library
            device.unsupported.add(key)
            return None
        except _Refused as error:
            if error.code in {_NOT_SUPPORTED, _NO_PERMISSION}:
                device.unsupported.add(key)
            else:
                device.refused = error.code
            return None
        return value

    def _text(self, function: str, handle: Any) -> str:
        buffer = ctypes.create_string_buffer(96)
        try:
            self._call(function, handle, buffer, ctypes.c_uint(96))
        except (_Refused, AttributeError):
            return ""
        return buffer.value.decode("utf-8", "replace")

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise _Refused(code)


def _why(code: int) -> str:
    return "is lost" if code == _LOST else f"answers no more (NVML returns {code})"
