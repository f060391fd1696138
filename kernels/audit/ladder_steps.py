"""What steps of kernel ladders are let pass: what a step cannot do is what a later one buys.

Registers, launches, local memory and float64 are held against a step as against any kernel.
"""

from __future__ import annotations

from .exemptions import Audit, Exemption

REASON = "ladder step"


def _rows(
    variant: str, *audits: Audit, operation: str = "*", direction: str = "*", kind: str = "*"
) -> list[Exemption]:
    return [
        Exemption(operation, direction, audit, REASON, kind=kind, variant=variant)
        for audit in audits
    ]


LADDER_STEPS = (
    *_rows("naive", "load_width", "store_width", "in_flight", "issue"),
    *_rows("shared", "load_width", "store_width", "in_flight", "issue"),
    *_rows("vector", "in_flight", "issue"),
    *_rows("vector", "load_width", operation="layer_norm", direction="backward"),  # its sums
    *_rows("vector", "store_width", operation="max_pool2d", direction="forward"),
    *_rows("registers", "issue"),
    *_rows("registers", "in_flight", operation="layer_norm", direction="backward", kind="layer"),
)
