"""What makes processes of identical code differ on a CPU, and how much of it the suite removes.

    python -m membound.bench.causes [--processes N]

The triad of three arrays runs in fresh processes, a process of each arrangement in turn, so that a
busy machine meets all of them alike. `suite` is how we measure; every other row puts one cause
back: pages of 4 KiB, arrays at equal addresses modulo 4 KiB, memory that is new at every
sample, threads bound to cores.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, stdev

import torch

from ..analysis.tables import Table, as_text
from ..kernels.discovery import discover
from ..kernels.dtypes import float32
from ..kernels.spec import Spec
from ..kernels.target import MIB, Target
from .arena import huge_pages
from .process import worker_environ

ROWS, COLUMNS = 4096, 4096
SAMPLES = 40
_LINE = 4096


@dataclass(frozen=True)
class Arrangement:
    """One cause put back, or none."""

    name: str
    huge: bool = True
    staggered: bool = True
    kept: bool = True
    bound: bool = False


ARRANGEMENTS = (
    Arrangement("suite"),
    Arrangement("4 KiB pages", huge=False),
    Arrangement("equal addresses", staggered=False),
    Arrangement("new memory", huge=False, kept=False),
    Arrangement("bound threads", bound=True),
)


def measured(arrangement: Arrangement) -> float:
    """Median GB/s of the triad in this process."""
    triad = discover().operations["triad"]
    cores = len(os.sched_getaffinity(0))
    dims = {"rows": ROWS, "columns": COLUMNS}
    io = triad.directions(dims, float32).forward
    target = Target("cpu", platform.machine(), cores, 0)
    (ours,) = (i for i in discover().implementations(triad, ["cpu"]) if not i.variant)
    prepared = ours.prepare(Spec(triad, "forward", dims, float32, io, target, streaming=False))
    names, nbytes = list(io.operands), io.reads[0].nbytes
    tensors: dict[str, torch.Tensor] = {}
    seconds = []
    for _ in range(SAMPLES):
        if not tensors or not arrangement.kept:
            tensors = {n: _memory(arrangement, nbytes, i) for i, n in enumerate(names)}
            launch = prepared.bind(tensors, None)
        began = time.perf_counter()
        launch()
        seconds.append(time.perf_counter() - began)
    return io.traffic / median(seconds) / 1e9


def _memory(arrangement: Arrangement, nbytes: int, number: int) -> torch.Tensor:
    """Array `number`: touched where it is kept, or else as the system gives it."""
    room = nbytes + 2 * MIB
    if arrangement.huge:
        whole = huge_pages(room)
    else:
        region = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            region.madvise(mmap.MADV_NOHUGEPAGE)
        whole = torch.frombuffer(region, dtype=torch.uint8)
        if arrangement.kept:
            whole.zero_()
    start = -whole.data_ptr() % _LINE + (number * 1280 if arrangement.staggered else 0)
    return whole[start : start + nbytes].view(torch.float32).view(ROWS, COLUMNS)


def in_a_process(arrangement: Arrangement) -> float:
    """`measured` in a fresh process. Raises CalledProcessError."""
    environ = worker_environ(len(os.sched_getaffinity(0)))
    environ |= {"OMP_PROC_BIND": "true"} if arrangement.bound else {}
    command = [sys.executable, "-P", "-m", "membound.bench.causes"]
    done = subprocess.run(
        [*command, "--one", json.dumps(asdict(arrangement))],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def table(rates: Mapping[str, Sequence[float]]) -> Table:
    """Median over processes, and how much processes differ."""
    usual = median(rates["suite"])
    rows = [
        [
            name,
            f"{median(found):.1f}",
            f"{median(found) / usual:.2f}",
            f"{stdev(map(math.log, found)):.1%}",
            f"{max(found) / min(found) - 1:.1%}",
        ]
        for name, found in rates.items()
    ]
    right = frozenset(["GB/s", "of suite", "spread", "range"])
    title = "Triad in fresh processes"
    return Table(title, ["arrangement", "GB/s", "of suite", "spread", "range"], rows, right)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m membound.bench.causes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--processes", type=int, default=10, help="of every arrangement")
    parser.add_argument("--one", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(measured(Arrangement(**json.loads(options.one))))
        return 0
    if options.processes < 2:
        parser.error("--processes is at least 2: one shows no difference")
    rates: dict[str, list[float]] = {arrangement.name: [] for arrangement in ARRANGEMENTS}
    for _ in range(options.processes):
        for arrangement in ARRANGEMENTS:
            rates[arrangement.name].append(in_a_process(arrangement))
    print(as_text(table(rates)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
