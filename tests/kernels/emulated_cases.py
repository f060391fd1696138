"""Which cases the emulator runs, and what is allowed to few of them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from membound.kernels import dtypes
from membound.kernels.discovery import discover
from membound.tests.emulator.cases import SMALL_GB10, Case, cases

REREADS: Mapping[tuple[str, str, str], str] = {
    ("max_pool2d", "forward", "x"): "few planes: bands, which share a row in L2",
    ("avg_pool2d", "forward", "x"): "few planes: bands, which share a row in L2",
    ("bias_relu_max_pool2d", "forward", "x"): "few planes: bands, which share a row in L2",
    ("max_pool2d_nhwc", "forward", "x"): "windows overlap: in L1 within a block, in L2 beyond",
    ("avg_pool2d_nhwc", "forward", "x"): "windows overlap: in L1 within a block, in L2 beyond",
    ("nll_loss_smoothed", "forward", "x"): "a row's target once more, which L2 has",
    **{
        (f"cross_entropy{of}", "forward", "x"): "a row's target once more, which L2 has"
        for of in ("", "_smoothed", "_forward_backward", "_smoothed_forward_backward")
    },
}
"""(operation, direction, operand) whose bytes are loaded more than once, and why DRAM sees one."""

SCATTERED: Mapping[tuple[str, str], tuple[float, str]] = {
    ("max_pool2d", "backward"): (1.4, "56 outputs end inside a sector; L2 has the rest"),
    ("bias_relu_max_pool2d", "backward"): (1.4, "56 outputs end inside a sector; L2 has the rest"),
    ("avg_pool2d", "backward"): (1.5, "56 outputs end inside a sector; L2 has the rest"),
    ("adaptive_avg_pool2d", "backward"): (1.3, "rows of 56 end inside a sector; L2 has the rest"),
    ("lp_pool2d", "forward"): (1.5, "28 outputs end inside a sector; L2 has the rest"),
    ("lp_pool2d", "backward"): (1.6, "28 outputs end inside a sector; L2 has the rest"),
    ("strided_read_2", "forward"): (2.0, "a stride of 2: half of the sectors read, all written"),
    ("strided_read_8", "forward"): (5.5, "a stride of 8: an eighth of the sectors read"),
    ("gather_int32", "forward"): (5.5, "a sector for every element read"),
    ("gather_int64", "forward"): (4.5, "a sector for every element read"),
    ("nll_loss", "forward"): (2.8, "one logarithm of a row"),
    ("causal_softmax", "forward"): (1.75, "the vector on the diagonal goes by elements"),
    ("causal_softmax", "backward"): (1.75, "the vector on the diagonal goes by elements"),
}
"""(operation, direction) whose warps touch more sectors than their bytes fill: most, and why."""

OF_ITS_OWN: Mapping[tuple[str, str, str], str] = {
    ("batch_norm_relu", "backward", "unfused"): "relu's y is of x itself, not of the statistics",
}
"""(operation, direction, variant) that makes of infinite inputs what the reference is not given."""

ALIGNED_SECTORS, RAGGED_SECTORS = 1.05, 1.75
"""Sectors per warp access over the fewest that hold its bytes: aligned rows, and unaligned ones."""

EVERY = os.environ.get("MEMBOUND_AUDIT") == "all"
LONGEST = 20_000
"""Columns from which on a row takes the emulator seconds."""


def usual(case: Case) -> bool:
    """Whether CI runs it. `make audit` runs the others too: a chain's steps are cases of their own
    in every dtype, and float16 shares all with bfloat16 but its conversions, and what two windows
    of 16 bits are compared by. float32 has a vector's length of its own, which tier 1 shows, as it
    does what becomes of the longest rows."""
    if case.spec.variant:
        last = case.spec.operation.dtypes[-1]  # bfloat16, where there are several
        return case.spec.dtype == last and case.kind in {"scaled", "ragged"}
    if case.spec.dtype == dtypes.float16:
        return case.kind == "scaled" and case.spec.operation.family in ("copy", "pooling")
    tier = case.spec.operation.tier
    if case.spec.dtype == dtypes.bfloat16:
        return tier > 1 or case.kind != "long" or case.spec.dims["columns"] < LONGEST
    return case.kind == "scaled" or (case.kind != "layer" and (tier == 1 or one_dtype(case)))


def one_dtype(case: Case) -> bool:
    return dtypes.bfloat16 not in case.spec.operation.dtypes


CATALOGUE = discover()
CASES = [case for case in cases(CATALOGUE) if EVERY or usual(case)]
WIDE_CASES = [
    case
    for case in cases(CATALOGUE, SMALL_GB10)
    if case.spec.dtype == dtypes.bfloat16
    and case.kind in ({"scaled", "ragged"} if EVERY else {"scaled"})
    and (EVERY or case.spec.operation.tier == 1)
]
"""Where vectors are 32 bytes."""


def once_per_implementation(kind: str, dtype: dtypes.DType) -> list[Case]:
    """One case of this kind for every implementation and direction."""
    found: dict[tuple[object, ...], Case] = {}
    for case in CASES:
        if case.kind == kind and case.spec.dtype == dtype:
            key = (case.spec.operation.name, case.spec.direction, case.implementation.label)
            found.setdefault(key, case)
    return list(found.values())


RAGGED = once_per_implementation("ragged", dtypes.bfloat16)
RAGGED_HALVES = [
    case
    for case in RAGGED
    if case.spec.operation.tier > 1
    and dtypes.float32 in case.spec.operation.dtypes
    and not case.spec.variant
]
"""Of what CI sees ragged in bfloat16 instead of float32."""
