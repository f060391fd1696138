"""The GPU's clock and stream: CUDA events behind a gate, and graph replays.

This is the code that only a GPU can run; it is thin, and a contract test holds every name it uses
against the installed packages. Order of a cold sample: evict, close the gate, start, launch, stop,
open. At most `_MAX_BEHIND_GATE` launches wait behind a gate, since the launch queue is finite.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np
import torch

from ..kernels.backends.cuda import Geometry
from ..kernels.backends.cuda_nvrtc import NvrtcToolchain
from ..kernels.spec import Launch
from ..kernels.target import Target
from ..results.record import Timer
from .timers import EVICTION_MULTIPLE, Sample

_SOURCE = Path(__file__).with_name("gate.cu")
_LIMIT_CYCLES = 2_000_000_000  # about a second
_MAX_BEHIND_GATE = 128
_EVENT_TICK_SECONDS = 0.5e-6
_MIN_TICKS = 200
"""An interval shorter than this many ticks of the event clock is timed over several launches."""


class GpuTiming:
    """Events on one stream of one device. With `graph`, steady launches are replayed from one."""

    granularity = _EVENT_TICK_SECONDS

    def __init__(self, device: torch.device, target: Target, *, graph: bool) -> None:
        torch.cuda.set_device(device)
        self.timer: Timer = "graph" if graph else "events"
        self._stream = torch.cuda.Stream(device)
        torch.cuda.set_stream(self._stream)
        self._device, self._graph = device, graph
        self._start = torch.cuda.Event(enable_timing=True)
        self._stop = torch.cuda.Event(enable_timing=True)
        self._flags = torch.zeros(2, dtype=torch.int32).pin_memory()
        words = EVICTION_MULTIPLE * target.llc_bytes // 4
        self._lines = torch.ones(words // 4 * 4, dtype=torch.float32, device=device)
        self._sums = torch.zeros(1, dtype=torch.float32, device=device)
        gate, evict = NvrtcToolchain().build(_SOURCE, ["gate", "evict"], target)
        opened, timed_out = self._flags[:1], self._flags[1:]
        self._close_gate = gate.bind(
            self._stream, Geometry(1, 1), [opened, timed_out, np.int64(_LIMIT_CYCLES)]
        )
        self._evict = evict.bind(
            self._stream,
            Geometry(4 * target.multiprocessors, 256),
            [self._lines, np.int64(self._lines.numel() // 4), self._sums],
        )
        self._gated([self._evict])  # loads both kernels before anything waits behind a gate

    @property
    def stream(self) -> torch.cuda.Stream:
        return self._stream

    def synchronize(self) -> None:
        self._stream.synchronize()

    def cold(self, launch: Launch) -> Sample:
        def sample() -> float | None:
            self._evict()
            return self._gated([launch])

        self._warm(launch)
        return sample

    def steady(self, launches: Sequence[Launch]) -> Sample:
        """A sample is several launches: as many before the clock as rotate, to leave behind the
        write debt that the timed ones find, then enough of them for the clock's tick."""
        self._warm(*launches)
        lead = list(launches[: _MAX_BEHIND_GATE // 2])
        timed = self._enough(launches)
        if not self._graph:
            return lambda: self._gated(timed, lead, per=len(timed))
        replay = self._captured([*launches, *timed])
        lead_replay = self._captured(lead)
        return lambda: self._gated([replay], [lead_replay], per=len(launches) + len(timed))

    def launch_overhead(self, launch: Launch) -> float | None:
        """Host seconds to enqueue one launch, the median of some, while the gate holds the GPU."""
        self._warm(launch)
        seconds = []
        self._flags.zero_()
        self._close_gate()
        for _ in range(16):
            start = time.perf_counter_ns()
            launch()
            seconds.append((time.perf_counter_ns() - start) * 1e-9)
        void = self._open_gate()
        return None if void else round(sorted(seconds)[len(seconds) // 2], 9)

    def _gated(
        self, timed: Sequence[Launch], lead: Sequence[Launch] = (), per: int = 1
    ) -> float | None:
        allocations = _driver_allocations(self._device)
        self._flags.zero_()
        self._close_gate()
        for launch in lead:
            launch()
        self._start.record(self._stream)
        for launch in timed:
            launch()
        self._stop.record(self._stream)
        void = self._open_gate() or _driver_allocations(self._device) != allocations
        return None if void else self._start.elapsed_time(self._stop) * 1e-3 / per

    def _open_gate(self) -> bool:
        """Let the stream run and wait for it. True if the gate had let go by itself."""
        self._flags[0] = 1
        self._stream.synchronize()
        return bool(self._flags[1])

    def _captured(self, launches: Sequence[Launch]) -> Launch:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            for launch in launches:
                launch()
        graph.replay()
        self._stream.synchronize()
        return graph.replay

    def _warm(self, *launches: Launch) -> None:
        """Whatever compiles, loads or allocates on first use must not do so behind the gate."""
        for launch in launches:
            launch()
        self._stream.synchronize()

    def _enough(self, launches: Sequence[Launch]) -> list[Launch]:
        once = self._gated([launches[0]]) or _EVENT_TICK_SECONDS
        least = ceil(_MIN_TICKS * _EVENT_TICK_SECONDS / max(once, _EVENT_TICK_SECONDS))
        count = max(1, min(least, _MAX_BEHIND_GATE // 2))
        return [launches[i % len(launches)] for i in range(count)]


def _driver_allocations(device: torch.device) -> int:
    """How often torch's allocator asked the driver: a sample in which it did is void."""
    return int(torch.cuda.memory_stats(device).get("num_device_alloc", 0))
