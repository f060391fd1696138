"""Memory that is not the device's own, as tensors that torch takes for the device's.

The thin layer that only a GPU can run; whether a device reaches such memory is asked of its
attributes beforehand (`device/placements.py`). What is allocated here stays until the process ends.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from ..kernels.spec import CannotPrepare
from ..results.record import Placement

_PAGE = 4096
_CPU, _CUDA = 1, 2  # kDLCPU, kDLCUDA
_UNSIGNED = 1  # kDLUInt
_CAPSULE = b"dltensor"


class PlacedMemory:
    """Allocates for the current CUDA context."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: list[torch.Tensor] = []

    def allocate(self, placement: Placement, nbytes: int) -> torch.Tensor:
        """uint8, on a page of its own. Raises CannotPrepare, and MemoryError where it is full."""
        from cuda.bindings import driver  # type: ignore[import-untyped,unused-ignore]

        if placement == "managed":
            everywhere = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
            pointer = _given(driver, placement, driver.cuMemAllocManaged(nbytes, everywhere))
        elif placement == "pinned":
            host = _given(
                driver, placement, driver.cuMemHostAlloc(nbytes, driver.CU_MEMHOSTALLOC_DEVICEMAP)
            )
            pointer = _given(driver, placement, driver.cuMemHostGetDevicePointer(host, 0))
        else:
            pointer = self._malloc(nbytes)
        return labelled(int(pointer), nbytes, self._device)

    def _malloc(self, nbytes: int) -> int:
        """Touched, so that its pages are the host's before the device asks for them."""
        memory = torch.empty(nbytes + _PAGE, dtype=torch.uint8).zero_()
        self._held.append(memory)
        return memory.data_ptr() + -memory.data_ptr() % _PAGE


def _given(driver: Any, placement: Placement, result: tuple[Any, Any]) -> Any:
    status, value = result
    if status == driver.CUresult.CUDA_SUCCESS:
        return value
    name = driver.CUresult(status).name
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise MemoryError(f"no more {placement} memory: {name}")
    raise CannotPrepare(f"no {placement} memory: {name}")


def labelled(pointer: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """uint8 over memory that is there already, as a tensor of `device`.

    By DLPack, since torch takes no other pointer that no CUDA call gave out. Nothing is freed with
    the tensor.
    """
    shape = (ctypes.c_int64 * 1)(nbytes)
    kind = _Device(_CUDA if device.type == "cuda" else _CPU, device.index or 0)
    managed = _Managed(
        _Tensor(pointer, kind, 1, _Type(_UNSIGNED, 8, 1), shape, None, 0), None, None
    )
    # torch reads it again when the last view of the memory goes, whenever that is.
    for kept in (managed, shape):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    capsule = make(ctypes.addressof(managed), _CAPSULE, None)
    return torch.utils.dlpack.from_dlpack(capsule)


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("ordinal", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dimensions", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor, with no deleter."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))
