"""The thin layer over torch and CUDA that only a GPU can run.

A contract test holds every name used here against the installed packages; the logic that decides
what is a sample is in `gpu.py` and runs against a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..kernels.backends.cuda import Geometry
from ..kernels.backends.cuda_nvrtc import NvrtcToolchain
from ..kernels.spec import Launch
from ..kernels.target import Target

GATE = Path(__file__).with_name("gate.cu")
_LIMIT_CYCLES = 2_000_000_000  # about a second: a display driver's watchdog allows two


class CudaRuntime:
    """One stream of one device, made torch's current one, and the kernels its timer needs."""

    def __init__(self, device: torch.device, target: Target) -> None:
        torch.cuda.set_device(device)
        self._device = device
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]
        torch.cuda.set_stream(self.stream)
        from cuda.bindings import driver  # type: ignore[import-untyped,unused-ignore]

        self.missing = reset_persisting_lines(driver)  # what could not be done -> why
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
        self._stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
        # Pinned host memory has the same address on the device (unified virtual addressing).
        self._flags = torch.zeros(2, dtype=torch.int32).pin_memory()
        self._stamps = torch.zeros((2, 2), dtype=torch.int64).pin_memory()
        self._llc_bytes = target.llc_bytes
        self._sums = torch.zeros(1, dtype=torch.float32, device=device)
        gate, self._reader, stamp = NvrtcToolchain().build(GATE, ["gate", "evict", "stamp"], target)
        opened, timed_out = self._flags[:1], self._flags[1:]
        self._blocks = Geometry(4 * target.multiprocessors, 256)
        self._close_gate = gate.bind(
            self.stream, Geometry(1, 1), [opened, timed_out, np.int64(_LIMIT_CYCLES)]
        )
        self._quarter, self._reread = self._reading(target.llc_bytes // 4)
        each = Geometry(target.multiprocessors, 32)
        self._stamp = [stamp.bind(self.stream, each, [self._stamps[i]]) for i in range(2)]

    def size_evictor(self, multiple: int) -> None:
        """Let `evict` read `multiple` last-level caches from now on."""
        self.stream.synchronize()
        self._lines, self._evict = self._reading(multiple * self._llc_bytes)

    def evict(self) -> None:
        """Leave other, clean lines in the last-level cache."""
        self._evict()

    def reread(self) -> None:
        """Read the same quarter of a last-level cache as ever."""
        self._reread()

    def close_gate(self) -> None:
        """Nothing enqueued from here on runs before `open_gate`."""
        self.clear()
        self._close_gate()

    def clear(self) -> None:
        """Forget the stamps, and the gate, of the sample before."""
        self._flags.zero_()
        self._stamps.zero_()

    def open_gate(self) -> bool:
        """Let the stream run and wait for it. False if the gate had let go by itself."""
        self._flags[0] = 1
        self.stream.synchronize()
        return not bool(self._flags[1])

    def start(self) -> None:
        self._stamp[0]()
        self._start.record(self.stream)

    def stop(self) -> None:
        self._stop.record(self.stream)
        self._stamp[1]()

    def elapsed_seconds(self) -> float:
        """Between `start` and `stop`, once the stream has been waited for."""
        return float(self._start.elapsed_time(self._stop)) * 1e-3

    def cycles_and_nanoseconds(self) -> tuple[int, int]:
        """Passed on multiprocessor 0 between the two stamps; zeros where it wrote none."""
        (cycles0, time0), (cycles1, time1) = self._stamps.tolist()
        complete = cycles0 and cycles1
        return (cycles1 - cycles0, time1 - time0) if complete else (0, 0)

    def driver_allocations(self) -> int:
        """How often torch's allocator asked the driver so far."""
        return int(torch.cuda.memory_stats(self._device).get("num_device_alloc", 0))

    def capture(self, launches: Sequence[Launch]) -> Launch:
        """One graph of all of them; its launch replays it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for launch in launches:
                launch()
        return graph.replay

    def synchronize(self) -> None:
        self.stream.synchronize()

    def _reading(self, nbytes: int) -> tuple[torch.Tensor, Launch]:
        """(memory of its own, what reads all of it)."""
        lines = nbytes // 16
        memory = torch.ones(lines * 4, dtype=torch.float32, device=self._device)
        count = np.int64(lines)
        reads = self._reader.bind(self.stream, self._blocks, [memory, count, self._sums])
        return memory, reads


def reset_persisting_lines(driver: Any) -> dict[str, str]:
    """Let no line persist in L2, where eviction would not reach it: neither a carve-out that is
    set aside nor lines that were marked before. What the device does not support -> CUDA's word.

    driver: cuda.bindings.driver, with a current context.
    """
    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    calls: dict[str, Callable[[], tuple[Any, ...]]] = {
        "cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)": lambda: driver.cuCtxSetLimit(
            limit, 0
        ),
        "cuCtxResetPersistingL2Cache": lambda: driver.cuCtxResetPersistingL2Cache(),
    }
    missing = {}
    for name, call in calls.items():
        try:
            (status,) = call()
        except Exception as error:
            missing[name] = str(error) or type(error).__name__
            continue
        if status != driver.CUresult.CUDA_SUCCESS:
            missing[name] = driver.CUresult(status).name
    return missing
