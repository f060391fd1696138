"""Arithmetic on lanes: operators, comparisons, sums, and functions made of them."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import lower_builtin, type_callable

from .cpu import inlined
from .cpu_lanes import (
    FLOAT,
    FLOATS,
    I32,
    INTS,
    LANES,
    MASK,
    Lanes,
    call,
    constant,
    lane_function,
    splatted,
    vector,
)


def _binary(symbol: Any, instruction: str) -> None:
    @type_callable(symbol)  # type: ignore[no-untyped-call,untyped-decorator]
    def kind(context: Any) -> Any:
        def typer(left: Any, right: Any) -> Any:
            return FLOATS if left == FLOATS and right == FLOATS else None

        return typer

    @lower_builtin(symbol, Lanes, Lanes)  # type: ignore[untyped-decorator]
    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.iadd, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _binary(_symbol, _instruction)


@lane_function
def splat(context: Any, value: Any) -> Any:
    """The same float32 in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return splatted(builder, arguments[0])

    return FLOATS(types.float32), generate


@lane_function
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once where the machine has such an instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, "llvm.fmuladd.v16f32", vector(FLOAT), list(arguments))

    return FLOATS(FLOATS, FLOATS, FLOATS), generate


@lane_function
def total(context: Any, value: Any) -> Any:
    """Sum of the lanes, halves added to halves: the same order everywhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, lanes = arguments[0], LANES
        while lanes > 1:
            lanes //= 2
            undefined = ir.Constant(sums.type, ir.Undefined)
            low = ir.Constant(vector(I32, lanes), list(range(lanes)))
            high = ir.Constant(vector(I32, lanes), list(range(lanes, 2 * lanes)))
            sums = builder.fadd(
                builder.shuffle_vector(sums, undefined, low),
                builder.shuffle_vector(sums, undefined, high),
            )
        return builder.extract_element(sums, ir.Constant(I32, 0))

    return types.float32(FLOATS), generate


@lane_function
def zeros(context: Any) -> Any:
    """0 in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return constant(FLOAT, 0.0)

    return FLOATS(), generate


def _comparison(name: str, generate: Any) -> Any:
    def typing(context: Any, left: Any, right: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return generate(builder, *arguments)

        return MASK(left, right), lower

    typing.__name__ = name
    return lane_function(typing)


below = _comparison("below", lambda builder, a, b: builder.fcmp_ordered("<", a, b))
"""Where a < b; nowhere that either is NaN."""
beats = _comparison(
    "beats",
    lambda builder, a, b: builder.or_(
        builder.fcmp_ordered(">", a, b), builder.fcmp_unordered("uno", a, a)
    ),
)
"""Where a takes the place of the maximum b: it is larger, or NaN."""
equals = _comparison("equals", lambda builder, a, b: builder.icmp_signed("==", a, b))
"""Where two int32 are equal."""


@lane_function
def where(context: Any, mask: Any, a: Any, b: Any) -> Any:
    """a where the mask is set, else b."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    return a(MASK, a, b), generate


@lane_function
def splat_int(context: Any, value: Any) -> Any:
    """The same int32 in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return splatted(builder, builder.trunc(arguments[0], I32))

    return INTS(types.int64), generate


@lane_function
def _power_of_two(context: Any, shifted: Any) -> Any:
    """2**n, of n + 1.5 * 2**23: the low mantissa bits of that sum are n."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.bitcast(arguments[0], vector(I32)), constant(I32, 23))
        return builder.bitcast(builder.add(bits, constant(I32, 127 << 23)), vector(FLOAT))

    return FLOATS(FLOATS), generate


_ROUND = 1.5 * 2.0**23
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693359375  # 9 bits, so that n times it is exact
_LN2_LOW = -2.1219444005469057e-4
# exp(r) = 1 + r + r² p(r) on |r| <= ln(2) / 2, p fitted to the relative error of exp: 3e-9.
_P0, _P1, _P2 = 0.49999993432134077, 0.16666520398646414, 0.041668390780296764
_P3, _P4 = 0.008368745145738625, 0.0013814540440925246


@inlined
def exp(x: Any) -> Any:
    """e**x for -87 <= x <= 88, to about one unit in the last place; NaN stays NaN.

    Range reduction after Cody and Waite: x = n ln 2 + r with ln 2 in two pieces.
    """
    shifted = fma(x, splat(_LOG2_E), splat(_ROUND))
    n = shifted - splat(_ROUND)
    r = fma(n, splat(-_LN2_LOW), fma(n, splat(-_LN2_HIGH), x))
    p = fma(fma(fma(fma(splat(_P4), r, splat(_P3)), r, splat(_P2)), r, splat(_P1)), r, splat(_P0))
    return fma(r * r, p, r + splat(1.0)) * _power_of_two(shifted)


SIGMOID_ZERO = -87.0
"""Below this sigmoid is 0 here; its exact value is under 1.7e-38."""


@inlined
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), to about two units in the last place; NaN stays NaN."""
    low, high = splat(SIGMOID_ZERO), splat(87.0)
    bounded = where(below(x, low), low, where(below(high, x), high, x))
    s = splat(1.0) / (splat(1.0) + exp(splat(0.0) - bounded))
    return where(below(x, low), splat(0.0), s)
