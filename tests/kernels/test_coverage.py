"""Every tier is met: an operation exists, in each direction and dtype, where its tier says it does.

An exception is a row with a reason; a row that is not needed any more fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from membound.kernels.discovery import Catalogue, discover
from membound.kernels.operation import DIRECTIONS, Operation

BACKENDS: Mapping[int, tuple[str, ...]] = {
    1: ("cuda", "cupy", "numba", "triton", "torch", "cpu"),
    2: ("cuda", "triton", "torch"),
    3: ("cuda", "torch"),
}
"""What a tier asks for; torch.compile comes with torch."""

CATALOGUE = discover()


@dataclass(frozen=True)
class Excuse:
    """What `backend` need not have of `operations`."""

    backend: str
    operations: tuple[str, ...]
    reason: str
    directions: tuple[str, ...] = DIRECTIONS

    def covers(self, backend: str, operation: str, direction: str) -> bool:
        return (
            backend == self.backend
            and operation in self.operations
            and direction in self.directions
        )


_MIXES = ("mix_1r0w", "mix_3r1w", "mix_2r1w", "mix_1r1w", "mix_0r1w")
_CEILINGS = "a ceiling is measured with our own kernels: CUDA C++, and the host's"

EXCEPTIONS = (
    *(Excuse(backend, _MIXES, _CEILINGS, ("forward",)) for backend in ("cupy", "numba", "torch")),
    Excuse(
        "cupy",
        ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm", "bias_gelu"),
        "its kernel classes cannot write dx and sum by column in one pass over the rows",
        ("backward",),
    ),
)


def missing(catalogue: Catalogue) -> Iterator[tuple[str, str, str, str]]:
    """(backend, operation, direction, why) of every gap, exceptions included."""
    for operation in catalogue.operations.values():
        for backend in BACKENDS[operation.tier]:
            for direction in DIRECTIONS:
                if operation.has(direction):
                    why = gap(catalogue, operation, backend, direction)
                    if why:
                        yield backend, operation.name, direction, why


def gap(catalogue: Catalogue, operation: Operation, backend: str, direction: str) -> str | None:
    implementation = catalogue.default(operation.name, backend)
    if implementation is None:
        return "there is none"
    reasons = (implementation.refuses(direction, dtype.name) for dtype in operation.dtypes)
    return next((reason for reason in reasons if reason), None)


def excused(row: tuple[str, str, str, str], exceptions: Iterable[Excuse]) -> bool:
    return any(one.covers(*row[:3]) for one in exceptions)


def test_every_tier_is_met() -> None:
    gaps = [row for row in missing(CATALOGUE) if not excused(row, EXCEPTIONS)]
    lines = "\n".join(f"{backend}: {name} {way}: {why}" for backend, name, way, why in gaps)
    assert not gaps, f"\n{lines}"


def test_every_exception_is_needed() -> None:
    gaps = list(missing(CATALOGUE))
    for one in EXCEPTIONS:
        for operation in one.operations:
            for direction in one.directions:
                found = [row[:3] for row in gaps]
                assert (one.backend, operation, direction) in found, (one.backend, operation)


@pytest.mark.parametrize("backend", BACKENDS[1])
def test_a_gap_is_seen(backend: str) -> None:
    """An operation of tier 1 whose file stands where nobody implements it."""
    whole = CATALOGUE.operations["silu"]
    elsewhere = replace(whole, source=whole.source.with_name("nowhere.py"))
    catalogue = discover()
    catalogue.operations["silu"] = elsewhere
    assert (backend, "silu", "forward", "there is none") in list(missing(catalogue))
