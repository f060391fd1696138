"""A stand-in for `CudaRuntime`: one stream on a simulated clock, a cache, and debts of writes.

Times are in seconds. The host's clock moves by `enqueue_seconds` at every enqueued piece of work;
the device's by what the work costs, and never runs ahead of a closed gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from membound.bench.gpu import GpuTiming
from membound.kernels.spec import Launch

MICRO = 1e-6

Work = Callable[[], None]


class SimulatedGpu:
    """What `GpuTiming` is given in place of a GPU.

    enough: last-level caches that an evictor must read to empty one.
    """

    enqueue_seconds = 5e-6
    evict_seconds = 40e-6
    mhz: float | None = 2000.0

    def __init__(self, enough: int = 2) -> None:
        self.enough = enough
        self.host = self.device = 0.0
        self.log: list[str] = []
        self.stream = "the stream"
        self.allocations = 0
        self.multiple = 0
        self.debt = 0.0
        self.cached: set[str] = set()
        self._waiting: list[Work] | None = None
        self._capturing: list[Work] | None = None
        self._let_go = False
        self._start: float | None = None
        self._stop: float | None = None

    def enqueue(self, work: Work) -> None:
        if self._capturing is not None:
            self._capturing.append(work)
            return
        self.host += self.enqueue_seconds
        if self._waiting is None:
            self._run(work)
        else:
            self._waiting.append(work)

    def _run(self, work: Work) -> None:
        self.device = max(self.device, self.host)
        work()

    def kernel(
        self, seconds: float, name: str = "kernel", *, missing: float = 0.0, owes: float = 0.0
    ) -> Launch:
        """A launch of `seconds`, `missing` more where its data is not in the cache; it leaves
        `owes` seconds of writing back to whatever comes next."""

        def work() -> None:
            self.log.append(name)
            cold = 0.0 if name in self.cached else missing
            self.cached.add(name)
            self.device += seconds + cold + self.debt
            self.debt = owes

        return lambda: self.enqueue(work)

    # --- Runtime ---

    def size_evictor(self, multiple: int) -> None:
        self.multiple = multiple

    def evict(self) -> None:
        def work() -> None:
            self.log.append("evict")
            self.device += self.evict_seconds + self.debt
            self.debt = 0.0
            if self.multiple >= self.enough:
                self.cached.clear()

        self.enqueue(work)

    def reread(self) -> None:
        self.kernel(4e-6, "reread", missing=2e-6)()

    def clear(self) -> None:
        self.log.append("clear")

    def close_gate(self) -> None:
        self._let_go = False
        self.log.append("close")
        self._waiting = []

    def open_gate(self) -> bool:
        self.log.append("open")
        self._drain()
        return not self._let_go

    def _drain(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for work in waiting:
            self._run(work)
        self.host = max(self.host, self.device)

    def start(self) -> None:
        def work() -> None:
            self.log.append("start")
            self._start, self._stop = self.device, None

        self.enqueue(work)

    def stop(self) -> None:
        def work() -> None:
            self.log.append("stop")
            self._stop = self.device

        self.enqueue(work)

    def elapsed_seconds(self) -> float:
        if self._start is None or self._stop is None:
            raise RuntimeError("an event that has not been reached")
        return self._stop - self._start

    def cycles_and_nanoseconds(self) -> tuple[int, int]:
        if self.mhz is None:
            return 0, 0
        seconds = self.elapsed_seconds()
        return round(seconds * self.mhz * 1e6), round(seconds * 1e9)

    def driver_allocations(self) -> int:
        return self.allocations

    def capture(self, launches: Sequence[Launch]) -> Launch:
        captured: list[Work] = []
        self._capturing = captured
        for launch in launches:
            launch()
        self._capturing = None

        def replay() -> None:
            for work in captured:
                work()

        return lambda: self.enqueue(replay)

    def synchronize(self) -> None:
        if self._waiting is not None:  # the gate lets go by itself, a second later
            self._let_go = True
            self.host += 1.0
        self._drain()


def gpu_and_timing(
    timing: type[GpuTiming] = GpuTiming, gpu: type[SimulatedGpu] = SimulatedGpu, **options: Any
) -> tuple[SimulatedGpu, GpuTiming]:
    machine = gpu()
    made = timing(machine, **{"default_mhz": None, **options})
    machine.log.clear()
    return machine, made
