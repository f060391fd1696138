"""The structs of emulator.hpp, for ctypes. Imports neither torch nor the package."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any


class Traffic(ctypes.Structure):
    """What one tensor moved in one launch; the fields are explained in emulator.hpp."""

    loaded: int
    stored: int
    unique_loaded: int
    unique_stored: int
    block_loaded: int
    load_sectors: int
    load_ideal: int
    store_sectors: int
    store_ideal: int
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("loaded", "stored", "unique_loaded", "unique_stored", "block_loaded"),
            *("load_sectors", "load_ideal", "store_sectors", "store_ideal"),
        )
    ]


class Buffer(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_void_p), ("nbytes", ctypes.c_int64)]


class Launch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("blocks", "threads", "shared_bytes", "cluster")),
        ("seed", ctypes.c_uint64),
        ("only_blocks", ctypes.c_void_p),
        ("only_blocks_length", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("buffers_length", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("traffic", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
    ]

    @classmethod
    def of(
        cls,
        geometry: Any,
        buffers: Sequence[tuple[int, int]],
        *,
        seed: int,
        only_blocks: Sequence[int] | None = None,
        count: bool = False,
    ) -> tuple[Launch, list[Any]]:
        """A launch over (address, bytes) buffers, and what has to outlive it."""
        table = (Buffer * max(len(buffers), 1))(*(Buffer(*one) for one in buffers))
        blocks = (ctypes.c_int64 * len(only_blocks or ()))(*(only_blocks or ()))
        launch = cls(
            blocks=geometry.blocks,
            threads=geometry.threads,
            shared_bytes=geometry.shared_bytes,
            cluster=geometry.cluster,
            seed=seed,
            only_blocks=ctypes.addressof(blocks) if only_blocks else None,
            only_blocks_length=len(only_blocks or ()),
            buffers=ctypes.addressof(table),
            buffers_length=len(buffers),
            count=int(count),
        )
        return launch, [table, blocks]
