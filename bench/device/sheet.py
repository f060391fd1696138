"""The spec sheet of GPUs (`gpus.csv`) and links (`interconnects.csv`): checked reading and lookup.

A device is found by its whole name, case-sensitively, then by compute capability and memory size.
Two rows that fit and disagree, or none, give a reason and no row: a bandwidth is never guessed.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...results.checked import printable
from .probe import one_line

GIB = 1 << 30
MIB = 1 << 20

MEMORY_TOLERANCE = 0.09
"""How far the visible memory may be from the sheet's: inline ECC takes 6.25 %, the driver the rest
(A10G shows 22587 of 24576 MiB, 8.1 %). Parts of one name differ by 16 % or more."""

GPUS_CSV = Path(__file__).with_name("gpus.csv")
INTERCONNECTS_CSV = Path(__file__).with_name("interconnects.csv")

MAX_BYTES = 1 << 20
_LARGEST = 1e6  # no number of a sheet comes near

_GPU_TEXTS = ("name_pattern", "marketing_name", "compute_capability", "memory_type", "source")
_GPU_NUMBERS = (
    "bus_width_bits",
    "data_rate_gtps",
    "peak_bandwidth_gbps",
    "l2_mib",
    "memory_side_cache_mib",
    "sm_count",
    "fp32_tflops",
    "dense_bf16_tflops",
    "dense_fp8_tflops",
    "dense_fp4_tflops",
    "nvlink_total_gbps",
    "c2c_gbps",
)
_LINK_NUMBERS = (
    "per_link_gbps_bidir",
    "links_per_gpu",
    "total_gbps_bidir",
    "per_direction_gbps",
)


class SheetError(ValueError):
    """A sheet that cannot be trusted; the message names file, line and field."""


@dataclass(frozen=True)
class SheetRow:
    """One part. Sizes as the sheet prints them: memory in GiB, caches in MiB, GB/s of 1e9."""

    names: tuple[str, ...]
    marketing_name: str
    capability: str
    memory_type: str
    memory_gib: tuple[float, ...]
    peak_gbps: float
    bus_width_bits: float | None
    data_rate_gtps: float | None
    l2_mib: float | None
    memory_side_cache_mib: float | None
    sm_count: int | None
    unified: str  # "yes", "coherent" or "no"
    source: str
    notes: str

    def nearest_memory_gib(self, memory_bytes: int) -> float | None:
        """The sheet's memory size that `memory_bytes` shows, if one is within the tolerance."""
        for gib in self.memory_gib:
            if abs(memory_bytes / GIB - gib) <= MEMORY_TOLERANCE * gib:
                return gib
        return None


@dataclass(frozen=True)
class Interconnect:
    """One kind of link; GB/s of 1e9, `None` where no source gives it."""

    name: str
    used_by: str
    total_gbps_bidir: float | None
    per_direction_gbps: float | None
    source: str
    notes: str


@dataclass(frozen=True)
class Match:
    """The row that fits, or why none does."""

    row: SheetRow | None
    reason: str | None = None


def _cells(path: Path, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, {column: text}) of every row; raises SheetError for what is not such a table."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise SheetError(f"{path}: cannot be read: no file of at most {MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SheetError(f"{path}: cannot be read: {one_line(error)}") from None
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        header = next(reader, [])
        absent = [column for column in required if column not in header]
        if absent:
            raise SheetError(f"{path}:1: {absent[0]}: this column is missing")
        repeated = [column for column in header if header.count(column) > 1]
        if repeated:
            raise SheetError(f"{path}:1: {printable(repeated[0])[:80]}: this column is there twice")
        for cells in reader:
            if not cells:
                continue
            if not all(printable(cell) == cell for cell in cells):
                raise SheetError(f"{path}:{reader.line_num}: row: has control characters")
            if len(cells) != len(header):
                raise SheetError(
                    f"{path}:{reader.line_num}: row: has {len(cells)} fields, not {len(header)}"
                )
            yield reader.line_num, dict(zip(header, (c.strip() for c in cells), strict=True))
    except csv.Error as error:
        raise SheetError(f"{path}:{reader.line_num}: row: {error}") from None


def _number(text: str, where: str) -> float | None:
    """A positive finite number; None where the cell is empty."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise SheetError(f"{where}: {text[:40]!r} is not a number") from None
    if not 0 < value <= _LARGEST or "_" in text or not text.isascii():
        raise SheetError(f"{where}: {text[:40]!r} is not a positive finite number")
    return value


def _gpu(path: Path, line: int, cells: dict[str, str]) -> SheetRow:
    for column in _GPU_TEXTS:
        if not cells[column]:
            raise SheetError(f"{path}:{line}: {column}: is empty")
    numbers = {c: _number(cells[c], f"{path}:{line}: {c}") for c in _GPU_NUMBERS}
    memory = [
        _number(part, f"{path}:{line}: memory_gib") for part in cells["memory_gib"].split("|")
    ]
    peak = numbers["peak_bandwidth_gbps"]
    if peak is None or None in memory:
        column = "peak_bandwidth_gbps" if peak is None else "memory_gib"
        raise SheetError(f"{path}:{line}: {column}: is empty")
    unified = cells["unified_memory"]
    if unified not in ("yes", "coherent", "no"):
        raise SheetError(f"{path}:{line}: unified_memory: {unified!r} is not yes, coherent or no")
    if not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", cells["compute_capability"]):
        raise SheetError(
            f"{path}:{line}: compute_capability: {cells['compute_capability']!r} is not like 9.0"
        )
    count = numbers["sm_count"]
    return SheetRow(
        names=tuple(name.strip() for name in cells["name_pattern"].split("|")),
        marketing_name=cells["marketing_name"],
        capability=cells["compute_capability"],
        memory_type=cells["memory_type"],
        memory_gib=tuple(gib for gib in memory if gib is not None),
        peak_gbps=peak,
        bus_width_bits=numbers["bus_width_bits"],
        data_rate_gtps=numbers["data_rate_gtps"],
        l2_mib=numbers["l2_mib"],
        memory_side_cache_mib=numbers["memory_side_cache_mib"],
        sm_count=None if count is None else int(count),
        unified=unified,
        source=cells["source"],
        notes=cells["notes"],
    )


def read_sheet(path: Path = GPUS_CSV) -> tuple[SheetRow, ...]:
    """Every part of the sheet, in file order.

    Raises SheetError (file, line, field) for a missing column, a bad number, an empty required cell
    or a row that is there twice.
    """
    required = (*_GPU_TEXTS, *_GPU_NUMBERS, "memory_gib", "unified_memory", "notes")
    rows: list[SheetRow] = []
    seen: dict[tuple[str, str], int] = {}
    for line, cells in _cells(path, required):
        row = _gpu(path, line, cells)
        for name in row.names:
            first = seen.setdefault((name, row.marketing_name), line)
            if first != line:
                raise SheetError(
                    f"{path}:{line}: name_pattern: {name!r} ({row.marketing_name}) "
                    f"is on line {first} already"
                )
        rows.append(row)
    return tuple(rows)


def read_interconnects(path: Path = INTERCONNECTS_CSV) -> tuple[Interconnect, ...]:
    """Every kind of link, in file order; raises SheetError as `read_sheet` does."""
    links: list[Interconnect] = []
    seen: dict[tuple[str, str], int] = {}
    for line, cells in _cells(path, ("name", "used_by", *_LINK_NUMBERS, "source", "notes")):
        for column in ("name", "source"):
            if not cells[column]:
                raise SheetError(f"{path}:{line}: {column}: is empty")
        numbers = {c: _number(cells[c], f"{path}:{line}: {c}") for c in _LINK_NUMBERS}
        first = seen.setdefault((cells["name"], cells["used_by"]), line)
        if first != line:
            raise SheetError(f"{path}:{line}: name: {cells['name']!r} is on line {first} already")
        links.append(
            Interconnect(
                name=cells["name"],
                used_by=cells["used_by"],
                total_gbps_bidir=numbers["total_gbps_bidir"],
                per_direction_gbps=numbers["per_direction_gbps"],
                source=cells["source"],
                notes=cells["notes"],
            )
        )
    return tuple(links)


def named(rows: Sequence[SheetRow], name: str | None) -> list[SheetRow]:
    """The rows that carry exactly this device name."""
    return [row for row in rows if name in row.names]


def find(
    rows: Sequence[SheetRow], name: str | None, memory_bytes: int | None, capability: str | None
) -> Match:
    """The one row for a device, or the reason why there is none.

    Rows that fit equally well and state the same bandwidth count as one; the first is returned.
    """
    by_name = named(rows, name)
    if not by_name:
        return Match(None, f"no row is named {name!r}")
    if memory_bytes is None or capability is None:
        unknown = "memory size" if memory_bytes is None else "compute capability"
        return Match(None, f"the {unknown} of this {name!r} is unknown, so no row can be chosen")
    by_capability = [row for row in by_name if row.capability == capability]
    if not by_capability:
        has = ", ".join(sorted({row.capability for row in by_name}))
        return Match(None, f"{name!r} has capability {capability}, its row says {has}")
    fitting = [row for row in by_capability if row.nearest_memory_gib(memory_bytes) is not None]
    if not fitting:
        sizes = sorted({gib for row in by_capability for gib in row.memory_gib})
        has = ", ".join(f"{gib:g}" for gib in sizes)
        return Match(None, f"{name!r} shows {memory_bytes / GIB:.1f} GiB, its rows say {has} GiB")
    if len({row.peak_gbps for row in fitting}) > 1:
        listed = ", ".join(f"{row.marketing_name} {row.peak_gbps:g} GB/s" for row in fitting)
        return Match(None, f"ambiguous: {len(fitting)} parts carry this name and memory: {listed}")
    return Match(fitting[0])
