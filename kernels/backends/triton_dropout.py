"""Dropout in Triton, alone or between a bias and a residual add, and its gradient.

1. The generator is that of `philox.py`: which of eight neighbours are kept are eight bits, drawn of
   one counter, or read where a mask is kept in bits.
2. Forward is one run of elements, whose groups of eight always begin where counters do.
3. Where the gradient of a bias is summed, programs own columns. Rows that are no whole groups begin
   inside of one: their bits come from two counters.

What is dropped is multiplied by 0, as in PyTorch: NaN and infinity become NaN.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

from ..philox import DROPPED, GROUP, SCALE
from ..spec import Choice, Prepared, Spec
from .triton import Kernel, Plan, choose, tiles
from .triton_columns import summed_by_column
from .triton_rows import once, present, put, store

_DROPPED, _SCALE = tl.constexpr(DROPPED), tl.constexpr(SCALE)

_CONFIGURATIONS: tuple[Choice, ...] = (
    {"warps": 8, "groups": 2},
    {"warps": 4, "groups": 2},
    {"warps": 8, "groups": 1},
    {"warps": 4, "groups": 1},
)
"""groups: of eight elements, a thread. Where threads with several store their bits, neighbours are
stored together, and drawn twice."""


@triton.jit
def _group_bits(seed, offset, group):
    """Bit i is set where draw i of counters `group`, int64, is kept."""
    words = tl.philox(
        seed,
        group.to(tl.int32),
        (group >> 32).to(tl.int32),
        offset.to(tl.int32),
        (offset >> 32).to(tl.int32),
    )
    bits = group.to(tl.int32) * 0
    for i in tl.static_range(4):
        bits |= ((words[i] & 0xFFFF) >= _DROPPED).to(tl.int32) << 2 * i
        bits |= ((words[i] >> 16) >= _DROPPED).to(tl.int32) << (2 * i + 1)
    return bits


@triton.jit
def kept_bits(state, first, ALIGNED: tl.constexpr):
    """Bit i is set where element first + i is kept; `first` are multiples of 8 where ALIGNED."""
    seed, offset = tl.load(state), tl.load(state + 1)
    bits = _group_bits(seed, offset, first >> 3)
    if not ALIGNED:
        bits |= _group_bits(seed, offset, (first >> 3) + 1) << 8
        bits = (bits >> (first & 7).to(tl.int32)) & 255
    return bits


@triton.jit
def factors(bits, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """What elements are multiplied by: [ROWS, COLUMNS] of bits of eight neighbours each."""
    groups = tl.reshape(bits, (ROWS * COLUMNS // 8, 1))
    kept = (groups >> tl.arange(0, 8)[None, :]) & 1
    return tl.reshape(tl.where(kept != 0, _SCALE, 0.0), (ROWS, COLUMNS))


@triton.jit
def row_factors(state, row, start, N: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """As above, of the columns from `start` on of rows of N elements."""
    first = start + tl.arange(0, COLUMNS // 8) * 8
    bits = kept_bits(state, row[:, None] * N + first[None, :], N % 8 == 0)
    return factors(bits, ROWS, COLUMNS)


@triton.jit
def _run(
    x, bias, residual, state, mask, y,
    N: tl.constexpr, COLUMNS: tl.constexpr, BITS: tl.constexpr,
    BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """The mask is written where there is a state, else read."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = (start + tl.arange(0, BLOCK))[None, :]
    group = start // 8 + tl.arange(0, BLOCK // 8)[None, :]
    value = once(x, at, at < N)
    if state is not None:
        bits = kept_bits(state, group * 8, True)
        factor = factors(bits, 1, BLOCK)
        if mask is not None:
            if BITS:
                put(mask, group, bits, group < N // 8, STORE)
            else:
                put(mask, at, factor != 0.0, at < N, STORE)
    elif BITS:
        bits = tl.load(mask + group, mask=group < N // 8, other=0).to(tl.int32)
        factor = factors(bits, 1, BLOCK)
    else:
        kept = tl.load(mask + at, mask=at < N, other=0, eviction_policy="evict_first")
        factor = tl.where(kept != 0, _SCALE, 0.0)
    if bias is not None:
        column = ((start % COLUMNS).to(tl.int32) + tl.arange(0, BLOCK)[None, :]) % COLUMNS
        if COLUMNS % 8 == 0:  # whole groups in each row
            column = tl.max_contiguous(tl.multiple_of(column, (1, 8)), (1, 8))
        value += tl.load(bias + column).to(tl.float32)
    value *= factor
    if residual is not None:
        value += once(residual, at, at < N)
    put(y, at, value, at < N, STORE)


@triton.jit
def _backward_summed(
    dy, state, mask, dx, partial,
    M: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """One chunk of columns (axis 0), every PROGRAMS-th tile of rows (axis 1)."""
    start = tl.program_id(0) * BLOCK
    column = start + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(1), (M + ROWS - 1) // ROWS, PROGRAMS):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        there = (row < M)[:, None] & (column < N)[None, :]
        at = row[:, None] * N + column[None, :]
        value = once(dy, at, there)
        if state is not None:
            value *= row_factors(state, row, start, N, ROWS, BLOCK)
        elif BITS:
            group = start // 8 + tl.arange(0, BLOCK // 8)
            inside = (row < M)[:, None] & (group < N // 8)[None, :]
            own = row[:, None] * (N // 8) + group[None, :]
            bits = tl.load(mask + own, mask=inside, other=0).to(tl.int32)
            value *= factors(bits, ROWS, BLOCK)
        else:
            kept = tl.load(mask + at, mask=there, other=0, eviction_policy="evict_first")
            value *= tl.where(kept != 0, _SCALE, 0.0)
        put(dx, at, value, there, STORE)
        total += tl.where(there, value, 0.0)
    place = tl.program_id(1) * N + column
    tl.store(partial + place, tl.sum(total, 0), mask=column < N)


def prepare_dropout(direction: str, spec: Spec) -> Prepared:
    """Operands x (dy), state or mask, y (dx); bias and residual, dbias where they are."""
    rows, columns = spec.io.reads[0].shape
    mask = spec.io.operands.get("mask")
    bits = mask is not None and mask.shape[1] < columns
    if "dbias" in spec.io.operands:
        return summed_by_column(spec, _backward_summed, {"BITS": bits})
    pointers, absent = present(spec, ("bias", "residual", "state", "mask"))
    pointers |= {"x": spec.io.reads[0].name, "y": spec.io.writes[0].name}
    elements = rows * columns
    fixed = absent | {"N": elements, "COLUMNS": columns, "BITS": bits, "STORE": store(spec)}

    def plan(choice: Choice) -> Plan:
        warps = int(choice["warps"])
        block = warps * 32 * int(choice["groups"]) * GROUP
        grid = (tiles(elements, block), 1, 1)
        return Plan([Kernel(_run, pointers, fixed | {"BLOCK": block}, grid, warps)])

    single = [choice for choice in _CONFIGURATIONS if choice["groups"] == 1]
    stores_bits = bits and direction == "forward"
    return choose(spec, plan, single if stores_bits else _CONFIGURATIONS)
