"""Files of pytest-benchmark, read as strictly as our own: no gate passes on what is no number.

pytest-benchmark itself takes NaN for a time, and leaves out a file that it cannot read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from .checked import Flaw, explained, parsed, printable
from .reading import open_regular
from .record import Magnitude, Positive, Sample

MAX_FILE = 1 << 26
_SHOWN_FLAWS = 100
_ROUNDING = 1e-9


class _Stats(msgspec.Struct, frozen=True):
    min: Sample
    max: Sample
    mean: Sample
    median: Sample
    stddev: Magnitude
    rounds: Positive


class _Benchmark(msgspec.Struct, frozen=True):
    fullname: str
    stats: _Stats


def problems(path: Path) -> list[str]:
    """What is wrong with a file, a line each; empty where every time in it can be compared."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        return [f"{printable(str(path))}: cannot be read: {error.strerror}"]
    if len(data) > MAX_FILE:
        return [f"{printable(str(path))}: is longer than {MAX_FILE} bytes; it is not read"]
    found = [f"{printable(str(path))}: {flaw}" for flaw in flaws(data)]
    more = len(found) - _SHOWN_FLAWS
    return [*found[:_SHOWN_FLAWS], f"{more} more problems"] if more > 0 else found


def flaws(data: bytes) -> Iterator[Flaw]:
    """Total: any bytes give flaws or none, in bounded time."""
    if not data.strip():
        yield Flaw(None, "is empty, not valid JSON", "what --benchmark-json writes")
        return
    tree, wrong = parsed(data)
    yield from wrong
    if tree is None:
        return
    listed = tree.get("benchmarks")
    if not isinstance(listed, list):
        yield Flaw("benchmarks", "is no list", "what --benchmark-json writes")
        return
    if not listed:
        yield Flaw("benchmarks", "is empty: nothing was measured", "one benchmark or more")
    names: dict[str, int] = {}
    for number, entry in enumerate(listed):
        yield from _entry_flaws(number, entry, names)


def _entry_flaws(number: int, entry: object, names: dict[str, int]) -> Iterator[Flaw]:
    place = f"benchmarks[{number}]"
    if not isinstance(entry, dict):
        yield Flaw(place, "is no object", "one benchmark")
        return
    try:
        benchmark = msgspec.convert(entry, _Benchmark)
    except UnicodeEncodeError:
        yield Flaw(place, "holds half of a surrogate pair", "whole characters of Unicode")
    except msgspec.ValidationError as error:
        flaw = explained(str(error), entry, _Benchmark)
        name = entry.get("fullname")
        named = f" ({name[:80]})" if isinstance(name, str) else ""
        yield Flaw(f"{place}.{flaw.field}{named}", flaw.wrong, flaw.right)
        return
    first = names.setdefault(benchmark.fullname, number)
    if first != number:
        wrong = f"is {benchmark.fullname[:80]}, as benchmarks[{first}]"
        yield Flaw(f"{place}.fullname", wrong, "each once")
    stats = benchmark.stats
    for field in ("mean", "median"):
        value = getattr(stats, field)
        # pytest-benchmark's mean of equal times may differ from them in its last digit.
        if not stats.min * (1 - _ROUNDING) <= value <= stats.max * (1 + _ROUNDING):
            wrong = f"is {value:g}, not between min {stats.min:g} and max {stats.max:g}"
            yield Flaw(
                f"{place}.stats.{field} ({benchmark.fullname[:80]})", wrong, "one unit: seconds"
            )
