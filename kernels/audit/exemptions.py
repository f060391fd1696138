"""What an audit finds and lets pass, row by row, with the reason.

One row is what one audit says of one direction of some operations. A row that is no longer needed
fails the tests, as does a fault that no row lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

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
    """All but audit and reason are patterns: "*", "gather_*", "sm_1*", "*float16"."""

    operation: str
    direction: str
    audit: Audit
    reason: str
    dtype: str = "*"
    arch: str = "*"
    kind: str = "*"  # of the shape

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


_PATTERNS = ("operation", "direction", "dtype", "arch", "kind")


EXEMPTIONS = (
    # Accesses narrower than 16 bytes on aligned rows.
    Exemption("cast_to_float32", "forward", "load_width", "as many elements as 16 bytes of y"),
    Exemption("cast_to_float16", "forward", "store_width", "as many elements as 16 bytes of x"),
    Exemption("cast_to_bfloat16", "forward", "store_width", "as many elements as 16 bytes of x"),
    Exemption("strided_read_*", "forward", "load_width", "elements that are not neighbours"),
    Exemption("strided_read_*", "forward", "store_width", "neighbouring threads, one element each"),
    Exemption("gather_*", "forward", "store_width", "the elements of 16 bytes of index"),
    Exemption("cross_entropy", "forward", "store_width", "a row becomes two numbers"),
    Exemption("cross_entropy_smoothed", "forward", "store_width", "a row becomes two numbers"),
    Exemption("global_avg_pool", "forward", "store_width", "a plane becomes one number"),
    Exemption("global_avg_pool", "backward", "load_width", "one number becomes a plane"),
    Exemption("channel_bias_add", "backward", "store_width", "a channel becomes one number"),
    Exemption("adaptive_avg_pool2d", "forward", "store_width", "6 outputs a row"),
    Exemption("adaptive_avg_pool2d", "backward", "store_width", "elements, row by row"),
    *(
        row
        for name in ("max_pool2d", "avg_pool2d", "lp_pool2d", "bias_relu_max_pool2d")
        for row in (
            Exemption(name, "forward", "store_width", "stride 2: 16 bytes of x, half of y"),
            Exemption(name, "backward", "load_width", "stride 2: 16 bytes of dx, half of dy"),
        )
    ),
)


def exempted(rows: Iterable[Exemption], fault: Fault) -> Exemption | None:
    """The first row that covers this fault, or None."""
    return next((row for row in rows if row.covers(fault)), None)
