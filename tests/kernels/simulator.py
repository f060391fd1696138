"""Numba's simulator, mended: its threads meet once for a shared array, and wait without polling."""

from __future__ import annotations

import random
import sys
import threading
from functools import partial
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.simulator import kernel as simulator
from numba.cuda.simulator.kernelapi import FakeCUDAShared
from numba.np.numpy_support import as_dtype


def mend() -> None:
    """Replace what is wrong or slow, once."""
    if simulator.BlockManager is not Block:
        FakeCUDAShared.array = _shared_array
        simulator.BlockManager = Block
        simulator.BlockThread = Thread
        simulator.FakeCUDAKernel.__call__ = _once_a_launch(simulator.FakeCUDAKernel.__call__)


def _shared_array(self: Any, shape: Any, dtype: Any) -> Any:
    """Full of NaN, so that what nobody wrote is seen. Numba's own makes one array twice where two
    threads meet there, of whatever the memory held."""
    caller = sys._getframe(1)
    made = np.empty(shape, as_dtype(dtype))
    made.reshape(-1).view(np.uint8)[:] = 0xFF
    return self._allocations.setdefault((caller.f_code, caller.f_lineno), made)


class Thread(simulator.BlockThread):  # type: ignore[misc]
    """A simulated thread, which runs until its next barrier or its end and then says so."""

    def run(self) -> None:
        try:
            super().run()  # keeps what is raised
        finally:
            self._manager.stopped.release()

    def syncthreads(self) -> None:
        self.syncthreads_blocked = True
        self._manager.stopped.release()
        self.syncthreads_event.wait()
        self.syncthreads_event.clear()
        self.syncthreads_blocked = False
        if self.abort:
            raise RuntimeError("another thread of the block failed")

    def proceed(self) -> None:
        if self.syncthreads_blocked:
            self.syncthreads_event.set()
        else:
            self.start()


class Block(simulator.BlockManager):  # type: ignore[misc]
    """Runs the threads of a block one at a time from barrier to barrier, in random order."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stopped = threading.Semaphore(0)
        self.order = random.Random(1)

    def run(self, place: Any, *arguments: Any) -> None:
        body = partial(self._f, *arguments)
        live = [
            Thread(body, self, place, point, self._debug) for point in np.ndindex(*self._block_dim)
        ]
        while live:
            self.order.shuffle(live)
            for thread in live:
                thread.proceed()
                self.stopped.acquire()
                if thread.exception:
                    self._end(live)
                    raise thread.exception[0].with_traceback(thread.exception[1])
            live = [thread for thread in live if thread.syncthreads_blocked]

    def _end(self, live: list[Thread]) -> None:
        for thread in live:
            thread.abort = True
            if thread.syncthreads_blocked:
                thread.syncthreads_event.set()


def _once_a_launch(launch: Any) -> Any:
    """`FakeCUDAKernel.__call__`, which swaps `cuda` in the globals of a device function once a
    launch: Numba's own does so, under two locks, at every call."""
    swapped: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def call(self: Any, *arguments: Any) -> Any:
        context = simulator._kernel_context
        if context is None:
            try:
                return launch(self, *arguments)
            finally:
                for names, before in swapped.values():
                    names.update(before)
                swapped.clear()
        names = self.fn.__globals__
        if id(names) not in swapped:
            before = {name: value for name, value in names.items() if value is cuda}
            swapped[id(names)] = names, before
            names.update(dict.fromkeys(before, context))
        return self.fn(*arguments)

    return call
