"""What a report is made of, whatever it is written as: sections of words, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..tables import Table

if TYPE_CHECKING:  # a table alone need not wait for what draws
    from ..figures.figure import Figure


@dataclass(frozen=True)
class Heading:
    """Of a part of a section: one run of several."""

    text: str


@dataclass(frozen=True)
class Bullets:
    lines: Sequence[str]


@dataclass(frozen=True)
class Link:
    """target: a path, relative to the report's folder or absolute, quoted as in a URL."""

    text: str
    target: str


@dataclass(frozen=True)
class Folded:
    """A table that repeats a figure: there, but not in the way."""

    table: Table


Part: TypeAlias = "Heading | Bullets | Link | Table | Folded | Figure | str"
"""A plain string is a paragraph."""


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]
