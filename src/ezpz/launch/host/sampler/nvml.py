"""Read NVIDIA devices through NVML, the library of the driver (https://docs.nvidia.com/deploy/nvml-api/).

``libnvidia-ml.so.1`` is called with `ctypes`; no call waits for the device's work. What a card does not support is
asked once.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ezpz.launch.host.sampler.visible import Ranks

_NOT_SUPPORTED, _NO_PERMISSION, _LOST = 3, 4, 15  # nvmlReturn_t
_CLOCK_SM, _CLOCK_MEMORY = 1, 2  # nvmlClockType_t
_CORE = 0  # nvmlTemperatureSensors_t
_UNCORRECTED, _VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_XID = 8  # nvmlEventTypeXidCriticalError
_MOST_PROCESSES = 256
_PROCESSES_EVERY = 12  # samples
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


class Nvml:
    """The devices of this launch's ranks on this host.

    Args:
        ranks: The ranks, which say what devices they may use.
        library: The file of NVML.

    Raises:
        OSError: There is no driver.
    """

    name = "NVML"

    def __init__(self, ranks: Ranks, library: str = "libnvidia-ml.so.1") -> None:
        self._library = ctypes.CDLL(library)
        self._ranks = ranks
        self.problems: list[str] = []
        self._looks = 0
        self._devices: dict[int, _Device] = {}
        self._gone: set[int] = set()
        try:
            self._call("nvmlInit_v2")
            count = ctypes.c_uint()
            self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        except _Refused as error:
            raise OSError(f"NVML returns {error.code}") from None
        handles: dict[int, Any] = {}
        for index in range(count.value):
            handle = ctypes.c_void_p()
            try:
                self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            except _Refused:
                continue  # it is another's, or has fallen off the bus
            handles[index] = handle
        self._handles = handles
        uuids = [
            self._text("nvmlDeviceGetUUID", handles[index]) if index in handles else "" for index in range(count.value)
        ]
        self._seen, self._given = ranks.nvidia(uuids)
        for index in sorted(self._seen & handles.keys()):
            self._add(index)
        self._events = self._listen()

    def read(self) -> list[dict[str, Any]]:
        """Return what each device shows now."""
        if self._looks % _PROCESSES_EVERY == 0:
            self._look_for_ranks()
        self._looks += 1
        self._take_events()
        rows = []
        for device in list(self._devices.values()):
            try:
                rows.append(self._row(device))
            except _Refused as error:
                del self._devices[device.index]
                self._gone.add(device.index)
                why = "is lost" if error.code == _LOST else f"answers no more (NVML returns {error.code})"
                self.problems.append(f"device {device.index} ({device.name}) {why}")
        return rows

    def _row(self, device: _Device) -> dict[str, Any]:
        figures: dict[str, float] = {}
        counters: dict[str, float] = {}
        number, long = ctypes.c_uint, ctypes.c_ulonglong
        power = self._number(device, "nvmlDeviceGetPowerUsage", number)
        energy = self._number(device, "nvmlDeviceGetTotalEnergyConsumption", long)
        if power is not None:
            figures["power"] = power / 1000
        if energy is not None:
            counters["joules"] = energy / 1000
        if power is None and energy is None and not device.is_told:
            device.is_told = True
            self.problems.append(f"device {device.index} ({device.name}) has no counter of power or energy")
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
        bits = self._number(device, "nvmlDeviceGetCurrentClocksThrottleReasons", long) or 0
        return {
            "id": str(device.index),
            "name": device.name,
            "given": device.given,
            "now": figures,
            "count": counters,
            "why": [reason for bit, reason in _REASONS.items() if int(bits) & bit],
        }

    def _add(self, index: int) -> None:
        name = self._text("nvmlDeviceGetName", self._handles[index]) or "NVIDIA"
        self._devices[index] = _Device(index, self._handles[index], name, index in self._given)

    def _look_for_ranks(self) -> None:
        """Add devices on which a process of this launch runs although no variable names them."""
        known = self._devices.keys() | self._gone
        others = [index for index in self._handles if index not in known]
        if not others:
            return
        ours = self._ranks.processes()
        for index in others:
            count, found = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
            try:
                self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._handles[index], ctypes.byref(count), found)
            except (_Refused, AttributeError):  # of a driver before 510
                continue
            if any(found[place].pid in ours for place in range(min(count.value, _MOST_PROCESSES))):
                self._add(index)

    def _listen(self) -> Any:
        """Ask the driver for Xid errors of our devices; None where it tells none."""
        events = ctypes.c_void_p()
        try:
            self._call("nvmlEventSetCreate", ctypes.byref(events))
            for device in self._devices.values():
                self._call("nvmlDeviceRegisterEvents", device.handle, ctypes.c_ulonglong(_XID), events)
        except (_Refused, AttributeError):
            return None
        return events

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
                    self.problems.append(f"device {device.index} ({device.name}) reports Xid {event.data}")

    def _number(self, device: _Device, function: str, kind: Callable[[], Any], *arguments: Any) -> float | None:
        value = self._fill(device, function, kind(), *arguments)
        return None if value is None else value.value

    def _fill(self, device: _Device, function: str, value: Any, *arguments: Any) -> Any:
        """Return a value that a function has filled in; None where this device does not support it.

        Raises:
            _Refused: The device answers no more.
        """
        key = f"{function}{[argument.value for argument in arguments]}"
        if key in device.unsupported:
            return None
        try:
            self._call(function, device.handle, *arguments, ctypes.byref(value))
        except AttributeError:  # an older library
            device.unsupported.add(key)
            return None
        except _Refused as error:
            if error.code not in {_NOT_SUPPORTED, _NO_PERMISSION}:
                raise
            device.unsupported.add(key)
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
