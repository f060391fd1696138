"""The machine this program runs on: the only place that calls CUDA, NVML, /proc and /sys.

Nothing here interprets an answer; `probe.Probe` does. CUDA and NVML are imported when first
asked, so that importing `bench.device` needs neither. The driver API is used because its
attributes need no context: one of our own would hide the GPU from worker processes in exclusive
mode.
"""

from __future__ import annotations

import glob
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .probe import QueryError

NVML_QUERIES: dict[str, Callable[[Any, Any], object]] = {
    "uuid": lambda nvml, handle: nvml.nvmlDeviceGetUUID(handle),
    "memory_free": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).free,
    "memory_total": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).total,
    "ecc": lambda nvml, handle: nvml.nvmlDeviceGetEccMode(handle)[0],
    "power_limit_mw": lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
    "power_mw": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle),
    "sm_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(
        handle, nvml.NVML_CLOCK_MEM
    ),
    "max_memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(
        handle, nvml.NVML_CLOCK_MEM
    ),
    "bus_width_bits": lambda nvml, handle: nvml.nvmlDeviceGetMemoryBusWidth(handle),
    "temperature_celsius": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(
        handle, nvml.NVML_TEMPERATURE_GPU
    ),
    "clock_event_reasons": lambda nvml, handle: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    "virtualization_mode": lambda nvml, handle: nvml.nvmlDeviceGetVirtualizationMode(handle),
    "compute_pids": lambda nvml, handle: [
        process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    ],
    "graphics_pids": lambda nvml, handle: [
        process.pid for process in nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    ],
}
"""What NVML is asked of one device."""


class Live:
    """`probe.Machine` of this process. It keeps no state; every method may raise."""

    def cuda(self, query: str, ordinal: int = 0) -> object:
        from cuda.bindings import driver  # type: ignore[import-untyped,unused-ignore]

        _checked(driver, driver.cuInit(0))
        if query == "count":
            return _checked(driver, driver.cuDeviceGetCount())
        if query == "driver_version":
            return _checked(driver, driver.cuDriverGetVersion())
        device = _checked(driver, driver.cuDeviceGet(ordinal))
        if query == "name":
            return _c_string(_checked(driver, driver.cuDeviceGetName(256, device)))
        if query == "uuid":
            # CUDA 12 answers with the MIG slice's UUID only through the second version.
            get_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
            return bytes(_checked(driver, get_uuid(device)).bytes).hex()
        if query == "pci_bus_id":
            return _c_string(_checked(driver, driver.cuDeviceGetPCIBusId(64, device)))
        if query == "total_memory":
            return _checked(driver, driver.cuDeviceTotalMem(device))
        if query == "free_memory":
            return _free_memory(driver, device)
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{query}")
        return _checked(driver, driver.cuDeviceGetAttribute(attribute, device))

    def nvml(self, query: str, identity: str = "") -> object:
        import pynvml  # type: ignore[import-untyped,unused-ignore]

        pynvml.nvmlInit()
        if query == "driver_version":
            return pynvml.nvmlSystemGetDriverVersion()
        if query == "uuids":
            return _uuids(pynvml)
        if identity.startswith(("GPU-", "MIG-")):
            handle = pynvml.nvmlDeviceGetHandleByUUID(identity)
        else:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(identity)
        return NVML_QUERIES[query](pynvml, handle)

    def read(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8", errors="replace")

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern))  # noqa: PTH207 (patterns are absolute)

    def environ(self, name: str) -> str | None:
        return os.environ.get(name)

    def affinity(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def architecture(self) -> str:
        return platform.machine()

    def pid(self) -> int:
        return os.getpid()


def _checked(driver: Any, result: tuple[Any, ...]) -> Any:
    """The value of a driver call; QueryError with CUDA's own name of the error otherwise."""
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise QueryError(driver.CUresult(result[0]).name)
    return result[1] if len(result) > 1 else None


def _c_string(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def _free_memory(driver: Any, device: Any) -> int:
    """Free bytes as CUDA sees them, through the primary context for as long as the call takes."""
    context = _checked(driver, driver.cuDevicePrimaryCtxRetain(device))
    try:
        _checked(driver, driver.cuCtxPushCurrent(context))
        try:
            free, _total = _pair(driver, driver.cuMemGetInfo())
        finally:
            driver.cuCtxPopCurrent()
    finally:
        driver.cuDevicePrimaryCtxRelease(device)
    return free


def _pair(driver: Any, result: tuple[Any, Any, Any]) -> tuple[int, int]:
    _checked(driver, result)
    return int(result[1]), int(result[2])


def _uuids(nvml: Any) -> list[str]:
    """The UUIDs of every GPU in NVML's order, each followed by those of its MIG slices."""
    uuids: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuids.append(_decoded(nvml.nvmlDeviceGetUUID(handle)))
        try:
            slices = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:
            continue
        for slot in range(slices):
            try:
                mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
                uuids.append(_decoded(nvml.nvmlDeviceGetUUID(mig)))
            except nvml.NVMLError:
                continue
    return uuids


def _decoded(text: bytes | str) -> str:
    return text.decode() if isinstance(text, bytes) else text
