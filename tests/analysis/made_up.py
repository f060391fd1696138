"""Whole runs made up for the report: every section has something to show. Nothing was measured."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from membound.results.record import Record
from membound.tests.generated import MIB, record

FORMS = ("cuda", "triton", "torch", "numba", "cupy", "compile")
LAYERS = (
    ("silu", "activation"),
    ("gelu", "activation"),
    ("rms_norm", "normalization"),
    ("layer_norm", "normalization"),
    ("softmax", "normalization"),
    ("max_pool2d", "pooling"),
    ("quantize_rows", "quantization"),
    ("add_rms_norm", "fused"),
)
BYTES = {"float32": 4, "bfloat16": 2, "float8": 1}
STEPS = ("naive", "vector", "registers")
"""Of a kernel ladder, whose last step is the default form."""
COLUMNS = 8192


class MadeUp:
    """Records of one made-up device.

    gb_per_s: what its copies reach. A case beyond the cache reaches a part of that which depends on
    its implementation; one inside is three times as fast.
    """

    def __init__(self, gb_per_s: float = 1600.0, seed: int = 0, processes: int = 3) -> None:
        self.gb_per_s, self.processes = gb_per_s, processes
        self._random = random.Random(seed)

    def copies(self) -> Iterator[Record]:
        for read, written in ((1, 0), (3, 1), (2, 1), (1, 1), (0, 1)):
            share = read / (read + written)
            rate = self.gb_per_s * (0.9 + 0.1 * share)
            yield from self.case(f"mix_{read}r{written}w", "copy", share, 1 << 31, rate)

    def reference(self, positions: Sequence[int]) -> Iterator[Record]:
        for process, position in product(range(self.processes), positions):
            rate = self.gb_per_s * self._random.gauss(0.93, 0.01)
            yield record(
                implementation="memcpy", process=process, position=position,
                seconds=[2 * 512 * MIB / rate / 1e9] * 9,
            )  # fmt: skip

    def case(
        self, operation: str, family: str, share: float, traffic: int, rate: float
    ) -> Iterator[Record]:
        """One record per process; `rate` in GB/s."""
        read = round(traffic * share)
        for process in range(self.processes):
            yield record(
                operation=operation, family=family, bytes_read=read,
                bytes_written=traffic - read, process=process,
                shape={"rows": traffic // COLUMNS // 4, "columns": COLUMNS},
                seconds=self._seconds(traffic / rate / 1e9),
            )  # fmt: skip

    def _seconds(self, middle: float) -> list[float]:
        level = middle * self._random.gauss(1.0, 0.01)
        return [round(level * self._random.gauss(1.0, 0.02), 9) for _ in range(12)]

    def layers(self, layers: Sequence[tuple[str, str]] = LAYERS) -> Iterator[Record]:
        """Forward and backward of every layer in every form, with types, a sweep and a ladder."""
        for (operation, family), direction in product(layers, ("forward", "backward")):
            for number, form in enumerate(FORMS):
                part = max(0.2, 0.96 - 0.09 * number - 0.1 * self._random.random())
                yield from self._form(operation, family, direction, form, part)

    def _form(
        self, operation: str, family: str, direction: str, form: str, part: float
    ) -> Iterator[Record]:
        fixed: dict[str, Any] = {
            "operation": operation, "family": family, "direction": direction,
            "implementation": form,
        }  # fmt: skip
        if form == "numba" and operation == "quantize_rows":
            yield from self._records(
                fixed | {"status": "skipped", "reason": "numba has no float8"}, 1 << 30, 1.0
            )
            return
        if form == "cupy" and direction == "backward":
            yield from self._records(
                fixed | {"status": "failed", "reason": "nvrtc: unknown type <__half2>"},
                1 << 30,
                1.0,
            )
            return
        climbed = operation == "rms_norm" and form == "cuda"
        fixed |= {"ladder_step": len(STEPS) + 1} if climbed else {}
        for dtype in BYTES if form == "cuda" else ("bfloat16",):
            yield from self._records(fixed | {"dtype": dtype}, 1 << 31, part)
        if operation in ("silu", "rms_norm") and form in ("cuda", "torch"):
            for traffic, cache in product((1 << b for b in range(21, 31, 2)), ("cold", "steady")):
                inside = 3.0 if traffic < 32 * MIB and cache == "steady" else 1.0
                some = fixed | {"dtype": "bfloat16", "cache": cache, "footprint_bytes": 4 * traffic}
                yield from self._records(some, traffic, part * inside)
        for step, variant in enumerate(STEPS if climbed else ()):
            some = fixed | {"dtype": "bfloat16", "variant": variant, "ladder_step": step + 1}
            yield from self._records(some, 1 << 31, part * (0.4 + 0.2 * step))
        if family == "fused":
            chain = fixed | {"dtype": "bfloat16", "variant": "unfused"}
            yield from self._records(chain, 1 << 31, part / 1.35)

    def _records(self, fixed: dict[str, Any], traffic: int, part: float) -> Iterator[Record]:
        """Records at `part` of what copies reach; `traffic` bytes of bfloat16 whatever the type."""
        width = BYTES[fixed.get("dtype", "bfloat16")]
        traffic = traffic * width // 2
        fused = {"unfused_bytes": traffic * 3 // 2} if fixed["family"] == "fused" else {}
        for process in range(self.processes):
            seconds = self._seconds(traffic / self.gb_per_s / part / 1e9)
            timed = {} if fixed.get("status") else {
                "seconds": seconds, "sm_clock_mhz": [self._random.randrange(1900, 1980)],
            }  # fmt: skip
            yield record(
                **({"dtype": "bfloat16"} | fixed | fused | timed),
                shape={"rows": traffic // COLUMNS // width // 2, "columns": COLUMNS},
                bytes_read=traffic // 2, bytes_written=traffic - traffic // 2, process=process,
                position=self._random.randrange(1000), flops=traffic * 3,
            )  # fmt: skip


def everything(gb_per_s: float = 1600.0, seed: int = 0) -> list[Record]:
    """A run with something for every section of a report."""
    made = MadeUp(gb_per_s, seed)
    return [*made.copies(), *made.reference(range(0, 1000, 90)), *made.layers()]


def many(cases: int, processes: int = 3, samples: int = 50) -> Iterator[Record]:
    """`cases` cases far beyond the cache, of as many operations as that takes."""
    draw = random.Random(0)
    forms = [*FORMS, "cuda:naive", "torch:unfused", "triton:unfused", "cpu"]
    for case in range(cases):
        form, _, variant = forms[case % 10].partition(":")
        layer, dtype = case // 40, ("float32", "bfloat16")[case // 20 % 2]
        for process in range(processes):
            level = draw.gauss(1.0, 0.01) * 1e-3
            yield record(
                operation=f"layer_{layer}", family=f"family_{layer % 9}", implementation=form,
                variant=variant, direction=("forward", "backward")[case // 10 % 2], dtype=dtype,
                process=process, position=case, source_hash="generated",
                seconds=[round(level * draw.gauss(1.0, 0.02), 9) for _ in range(samples)],
            )  # fmt: skip
