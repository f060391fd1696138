"""What an audit finds and lets pass, row by row, with the reason: exemptions.csv.

A row is what one audit says of one direction of an operation; a line of the file is a row for each
of its operations (`operation:variant`) and directions. A row that is no longer needed fails the
tests, as does a fault that no row lists. Of `issue`: an H200 and a B200 issue 60 % of what they can
with 4.2 and 2.9 instructions per byte, or 0.52 and 0.37 special functions.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, cast, get_args

Audit = Literal[
    "prepare",  # cannot be compiled or launched at all
    "launch",  # exceeds a limit of the device
    "local_memory",
    "float64",
    "load_width",  # under 16 bytes on aligned rows
    "store_width",
    "in_flight",  # too few loads on their way
    "issue",  # issue-bound: the reason names the remedy that was tried
]


@dataclass(frozen=True)
class Exemption:
    """All but audit and reason are patterns: "*", "gather_*", "sm_1*", "*float16".

    variant: "" is the default form alone.
    """

    operation: str
    direction: str
    audit: Audit
    reason: str
    dtype: str = "*"
    arch: str = "*"
    kind: str = "*"  # of the shape
    variant: str = ""

    def covers(self, fault: Fault) -> bool:
        return self.audit == fault.audit and all(
            fnmatchcase(getattr(fault, name), getattr(self, name)) for name in _PATTERNS
        )


@dataclass(frozen=True)
class Fault:
    """A fault: what an audit says of one case."""

    audit: Audit
    text: str
    operation: str
    direction: str
    dtype: str
    arch: str
    kind: str
    variant: str


_PATTERNS = ("operation", "direction", "dtype", "arch", "kind", "variant")


def read_exemptions(path: Path) -> Iterator[Exemption]:
    """Raises ValueError naming the line of an audit that there is not."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        for line in reader:
            audit = line["audit"]
            if audit not in get_args(Audit):
                raise ValueError(f"{path.name}:{reader.line_num}: no audit is called {audit!r}")
            for operation in line["operations"].split():
                name, _, variant = operation.partition(":")
                for direction in line["directions"].split():
                    yield Exemption(
                        name,
                        direction,
                        cast(Audit, audit),
                        line["reason"],
                        dtype=line["dtype"],
                        arch=line["arch"],
                        kind=line["kind"],
                        variant=variant,
                    )


EXEMPTIONS = tuple(read_exemptions(Path(__file__).with_name("exemptions.csv")))


def exempted(rows: Iterable[Exemption], fault: Fault) -> Exemption | None:
    """The first row that covers this fault, or None."""
    return next((row for row in rows if row.covers(fault)), None)
