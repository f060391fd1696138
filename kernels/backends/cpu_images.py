"""Lanes over the columns of an image: loads that stop at its borders, and strides."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .cpu_lanes import (
    FLOATS,
    I32,
    I64,
    INTS,
    LANES,
    MASK,
    call,
    element_pointer,
    lane_function,
    loaded,
    masked_load,
    overload,
    splatted,
    stored_kind,
    vector,
    widened,
)


def _inside(builder: ir.IRBuilder, column: ir.Value, width: ir.Value) -> ir.Value:
    numbers = ir.Constant(vector(I32), list(range(LANES)))
    columns = builder.add(splatted(builder, builder.trunc(column, I32)), numbers)
    limit = splatted(builder, builder.trunc(width, I32))
    return builder.icmp_unsigned("<", columns, limit)  # a negative column is a huge one


@lane_function
def inside(context: Any, column: Any, width: Any) -> Any:
    """Which of 16 columns from `column` on lie in [0, width)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _inside(builder, *arguments)

    return MASK(types.int64, types.int64), generate


@lane_function
def load_inside(context: Any, address: Any, row: Any, column: Any, width: Any, outside: Any) -> Any:
    """16 columns of the row that starts at element `row`; `outside` where beyond [0, width).

    `outside` is 0 or -inf, and a literal.
    """
    kind = stored_kind(address)
    beyond = outside.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, row, column, width, _ = arguments
        mask = _inside(builder, column, width)
        pointer = element_pointer(builder, address, base, builder.add(row, column), kind)
        filler = ir.Constant(kind, [_bits(address.element, beyond)] * LANES)
        return widened(builder, address, masked_load(builder, address, pointer, mask, filler))

    typed = loaded(address)
    return typed(address, types.int64, types.int64, types.int64, outside), generate


def _bits(element: str, lowest: bool) -> Any:
    """-inf or 0 as it is stored."""
    if element == "bfloat16":
        return 0xFF80 if lowest else 0
    if element == "uint8":
        return 0
    return float("-inf") if lowest else 0.0


@lane_function
def gather_inside(
    context: Any, address: Any, row: Any, column: Any, stride: Any, width: Any, outside: Any
) -> Any:
    """As `load_inside`, of every `stride`-th column."""
    kind = stored_kind(address)
    beyond = outside.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, row, column, stride, width, _ = arguments
        numbers = ir.Constant(vector(I64), list(range(LANES)))
        steps = builder.mul(numbers, splatted(builder, stride))
        columns = builder.add(splatted(builder, column), steps)
        mask = builder.icmp_unsigned("<", columns, splatted(builder, width))
        elements = builder.add(splatted(builder, row), columns)
        offsets = builder.mul(elements, ir.Constant(vector(I64), [address.bytes] * LANES))
        pointers = builder.inttoptr(
            builder.add(splatted(builder, base), offsets), vector(kind.element.as_pointer())
        )
        filler = ir.Constant(kind, [_bits(address.element, beyond)] * LANES)
        name = f"llvm.masked.gather.{overload(kind)}.v{LANES}p0"
        align = ir.Constant(I32, address.bytes)
        return widened(builder, address, call(builder, name, kind, [pointers, align, mask, filler]))

    integers = [types.int64] * 4
    return loaded(address)(address, *integers, outside), generate


def _shuffle(name: str, order: list[int]) -> Any:
    def typing(context: Any, low: Any, high: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.shuffle_vector(*arguments, ir.Constant(vector(I32), order))

        return low(low, high), generate

    typing.__name__ = name
    return lane_function(typing)


_PAIRS = [lane + half * LANES for lane in range(LANES) for half in (0, 1)]

evens = _shuffle("evens", list(range(0, 2 * LANES, 2)))
"""Every second of the 32 values in two vectors, from the first on."""
odds = _shuffle("odds", list(range(1, 2 * LANES, 2)))
"""Every second of the 32 values in two vectors, from the second on."""
shifted = _shuffle("shifted", list(range(LANES - 1, 2 * LANES - 1)))
"""The last of the first vector and all but the last of the second."""
interleaved_low = _shuffle("interleaved_low", _PAIRS[:LANES])
"""The first 16 of a0 b0 a1 b1 …"""
interleaved_high = _shuffle("interleaved_high", _PAIRS[LANES:])
"""The last 16 of a0 b0 a1 b1 …"""


@lane_function
def lane(context: Any, value: Any, number: Any) -> Any:
    """One lane as a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.extract_element(arguments[0], builder.trunc(arguments[1], I32))

    return types.float32(FLOATS, types.int64), generate


@lane_function
def outside_left(context: Any, column: Any, stride: Any) -> Any:
    """How many columns of the window at `column` + lane · `stride` lie left of the image."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        column, stride = (splatted(builder, builder.trunc(value, I32)) for value in arguments)
        numbers = ir.Constant(vector(I32), list(range(LANES)))
        missing = builder.neg(builder.add(column, builder.mul(numbers, stride)))
        zero = ir.Constant(vector(I32), [0] * LANES)
        return builder.select(builder.icmp_signed(">", missing, zero), missing, zero)

    return INTS(types.int64, types.int64), generate
