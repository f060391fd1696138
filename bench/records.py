"""Making records: what is stated of a case, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from ..kernels import chain
from ..kernels.discovery import Catalogue, Implementation
from ..kernels.dtypes import DTYPES, DType
from ..kernels.operation import Direction, Operation
from ..kernels.shapes import text
from ..results.record import SCHEMA, Cache, Placement, Record
from .protocol import Item

MEMCPY = "memcpy"
"""The driver's copy (on the CPU torch's): not code under test, re-timed to see drift."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def case_name(item: Item, implementation: str, cache: Cache) -> str:
    return named(
        item.operation,
        item.direction,
        implementation,
        item.dtype,
        item.dims,
        cache,
        item.placement,
    )


def named(
    operation: str,
    direction: str,
    implementation: str,
    dtype: str,
    dims: Mapping[str, int],
    cache: Cache,
    placement: Placement = "device",
) -> str:
    """A case's name: `rms_norm/forward/cuda/bfloat16/8192x4096/cold`.

    Where the operands are not in device memory the placement stands before the cache state.
    """
    state = cache if placement == "device" else f"{placement}/{cache}"
    return f"{operation}/{direction}/{implementation}/{dtype}/{text(dims)}/{state}"


def blank(
    catalogue: Catalogue, item: Item, label: str, cache: Cache, process: int, position: int
) -> Record:
    """A record of the case with its traffic and no measurement, status "skipped"."""
    operation = catalogue.operations[item.operation]
    dtype = DTYPES[item.dtype]
    io = io_of(operation, item)
    backend, _, variant = label.partition(":")
    found = implementation_of(catalogue, operation, label)
    ladder = found.ladder if found else None
    return Record(
        schema=SCHEMA,
        case=case_name(item, label, cache),
        operation=item.operation,
        family=operation.family,
        direction=item.direction,
        implementation=backend,
        variant=variant,
        ladder_step=ladder.step(item.direction, variant) if ladder else None,
        dtype=item.dtype,
        shape=item.dims,
        cache=cache,
        placement=item.placement,
        process=process,
        position=position,
        status="skipped",
        bytes_read=io.bytes_read,
        bytes_written=io.bytes_written,
        schedule_bytes=io.schedule_bytes,
        unfused_bytes=_unfused(catalogue, operation, item.direction, item.dims, dtype),
        flops=io.flops,
        source_hash=found.source_hash() if found else "",
        started_at=now(),
    )


def ended(record: Record, status: str, reason: str) -> Record:
    """The record with a status other than ok: it never carries samples."""
    return replace(record, status=status, reason=" ".join(reason.split()), seconds=[])


def io_of(operation: Operation, item: Item) -> Direction:
    io = operation.directions(item.dims, DTYPES[item.dtype]).get(item.direction)
    if io is None:
        raise ValueError(f"{operation.name} has no {item.direction}")
    return io


def implementation_of(
    catalogue: Catalogue, operation: Operation, label: str
) -> Implementation | None:
    found = catalogue.implementations(operation, [label.partition(":")[0]])
    return next((i for i in found if i.label == label), None)


def _unfused(
    catalogue: Catalogue,
    operation: Operation,
    direction: str,
    dims: Mapping[str, int],
    dtype: DType,
) -> int | None:
    for variant in operation.chains:
        return chain.traffic(catalogue.operations, operation, variant, direction, dims, dtype)
    return None
