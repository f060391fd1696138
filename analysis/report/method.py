"""How it was measured: everything the run recorded of itself, and what the words mean."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from ...results.record import Environment
from ...results.store import ENVIRONMENT, MEASUREMENTS
from ..tables import DASH, Table
from .bandwidths import headed
from .section import Bullets, Folded, Link, Part, Section
from .told import Told

DEFINITIONS = (
    "GB/s: 1e9 bytes per second, the bytes an operation must move (inputs read once, outputs "
    "written once, intermediates on chip) over the median of the medians of fresh processes; the "
    "same bytes for every implementation",
    "Ceiling: what plain copies reached in the same run with the same share of reads; the time per "
    "byte is interpolated between measured shares",
    "Peak: the memory's bandwidth by the vendor's sheet, or by the device's own clock and bus; "
    "where none is known there is no percentage",
    "More than 100 % is a cache, wrong bytes or a ceiling measured too low, never an achievement: "
    "it is shown as ≥100",
    "Cold: the last-level cache holds other, clean lines before each sample. Steady: launches "
    "follow one another over rotating buffers",
    "Ranked: verified, far beyond the last-level cache, neither launch-bound nor unstable; nothing "
    "else is compared or averaged",
    "±: half the 95 % interval over processes, on logarithms; it needs three processes",
    "Predicted gain: bytes of the chain over bytes of the fused operation. L2-assisted: an "
    "intermediate is smaller than four last-level caches",
    "A hole is a case without a figure, with its reason; it is never a zero",
)


def method(all_told: Sequence[Told], beside: Path | None) -> Section:
    """beside: the folder the report will lie in, which links are relative to."""
    parts: list[Part] = [Bullets(DEFINITIONS)]
    for told in all_told:
        parts += headed(all_told, told)
        parts += _raw(told.run.path, beside)
        if told.environment is not None:
            parts += [_again(told.environment), Folded(_recorded(told.environment))]
    return Section("How it was measured", parts)


def _raw(run: Path, beside: Path | None) -> list[Part]:
    target = run.resolve() if beside is None else Path(os.path.relpath(run, beside))
    return [
        Link(f"Raw records: {run.resolve().name}/{name}", quote(bytes(target / name)))
        for name in (MEASUREMENTS, ENVIRONMENT)
        if (run / name).is_file()
    ]


def _again(environment: Environment) -> Part:
    lines = [f"To reproduce: {shlex.join(environment.command)}"]
    if environment.commit:
        lines.append(f"At commit {environment.commit}")
        if environment.dirty:
            lines.append("with changes that were not committed: they are not in the record")
    return Bullets(lines)


def _recorded(environment: Environment) -> Table:
    cells = [[name, text] for name, text in _flat("", msgspec.to_builtins(environment))]
    return Table(f"Everything in {ENVIRONMENT}", ["what", "value"], cells)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value, 1):
            yield from _flat(f"{name} {number}", inner)
    elif value is None or value in ({}, [], ""):
        yield name, DASH
    else:
        yield name, str(value)
