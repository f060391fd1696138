"""Arithmetic on lanes: operators, comparisons, sums, and functions made of them."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import extending, types

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
    first_lanes,
    lane_function,
    splatted,
    vector,
)

_kinds_of: Any = extending.type_callable  # Numba's own types of these two are partial
_instruction_of: Any = extending.lower_builtin


def _binary(symbol: Any, instructions: dict[Lanes, str]) -> None:
    kinds = tuple(instructions)

    @_kinds_of(symbol)
    def kind(context: Any) -> Any:
        def typer(left: Any, right: Any) -> Any:
            return left if left == right and left in kinds else None

        return typer

    @_instruction_of(symbol, Lanes, Lanes)
    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instructions[signature.return_type])(*arguments)


_binary(operator.add, {FLOATS: "fadd", INTS: "add"})
_binary(operator.iadd, {FLOATS: "fadd", INTS: "add"})
_binary(operator.sub, {FLOATS: "fsub"})
_binary(operator.mul, {FLOATS: "fmul"})
_binary(operator.truediv, {FLOATS: "fdiv"})


@_kinds_of(operator.neg)
def _kind_of_negative(context: Any) -> Any:
    return lambda value: FLOATS if value == FLOATS else None


@_instruction_of(operator.neg, Lanes)
def _lower_negative(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.fneg(arguments[0])


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


def _reduction(name: str, combine: Any) -> Any:
    """The lanes combined to one number, halves with halves: the same order everywhere."""

    def typing(context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values, lanes = arguments[0], LANES
            while lanes > 1:
                lanes //= 2
                undefined = ir.Constant(values.type, ir.Undefined)
                low = ir.Constant(vector(I32, lanes), list(range(lanes)))
                high = ir.Constant(vector(I32, lanes), list(range(lanes, 2 * lanes)))
                values = combine(
                    builder,
                    builder.shuffle_vector(values, undefined, low),
                    builder.shuffle_vector(values, undefined, high),
                )
            return builder.extract_element(values, ir.Constant(I32, 0))

        return types.float32(FLOATS), generate

    typing.__name__ = name
    return lane_function(typing)


def _larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered("<", a, b), b, a)


total = _reduction("total", lambda builder, a, b: builder.fadd(a, b))
"""Sum of the lanes."""
highest = _reduction("highest", _larger)
"""Largest of the lanes, where none is NaN."""


@lane_function
def absolute(context: Any, value: Any) -> Any:
    """|value|; NaN stays NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, "llvm.fabs.v16f32", vector(FLOAT), list(arguments))

    return FLOATS(FLOATS), generate


@lane_function
def with_sign(context: Any, value: Any, sign: Any) -> Any:
    """|value| with the sign of `sign`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return call(builder, "llvm.copysign.v16f32", vector(FLOAT), list(arguments))

    return FLOATS(FLOATS, FLOATS), generate


@lane_function
def zeros(context: Any) -> Any:
    """0 in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return constant(FLOAT, 0.0)

    return FLOATS(), generate


def _comparison(name: str, generate: Any) -> Any:
    """Two vectors alike to a mask."""

    def typing(context: Any, left: Any, right: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return generate(builder, *arguments)

        return MASK(left, right), lower

    typing.__name__ = name
    return lane_function(typing)


below = _comparison("below", lambda builder, a, b: builder.fcmp_ordered("<", a, b))
"""Where a < b; nowhere that either is NaN."""
at_most = _comparison("at_most", lambda builder, a, b: builder.fcmp_ordered("<=", a, b))
"""Where a <= b; nowhere that either is NaN."""
either_nan = _comparison("either_nan", lambda builder, a, b: builder.fcmp_unordered("uno", a, b))
"""Where a or b is NaN."""
equals = _comparison("equals", lambda builder, a, b: builder.icmp_signed("==", a, b))
"""Where two int32 are equal."""


@lane_function
def either(context: Any, left: Any, right: Any) -> Any:
    """Where one of two masks is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.or_(*arguments)

    return MASK(MASK, MASK), generate


@lane_function
def anywhere(context: Any, mask: Any) -> Any:
    """Whether a mask is set in any lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(MASK), generate


@lane_function
def where(context: Any, mask: Any, a: Any, b: Any) -> Any:
    """a where the mask is set, else b."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    return a(MASK, a, b), generate


@inlined
def larger(a: Any, b: Any) -> Any:
    """The larger of each pair of lanes; a where either is NaN."""
    return where(below(a, b), b, a)


@inlined
def smaller(a: Any, b: Any) -> Any:
    """The smaller of each pair of lanes; a where either is NaN."""
    return where(below(b, a), b, a)


@lane_function
def where_first(context: Any, count: Any, value: Any, rest: Any) -> Any:
    """`value` in the first `count` lanes (any int64), `rest` in the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(first_lanes(builder, arguments[0]), *arguments[1:])

    return FLOATS(types.int64, FLOATS, FLOATS), generate


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
_LN2 = 0.6931471805599453
# exp(r) = 1 + r + r² p(r) on |r| <= ln(2) / 2, p fitted to the relative error of exp: 1e-7.
_P0, _P1, _P2, _P3 = 0.4999923030745204, 0.16667115398377133, 0.04189033178113256, 0.00831250055565

EXP_ZERO = -88.02
"""exp is exactly 0 here (the power of two underflows), and nonsense further down."""
EXP_LARGEST = 87.0


@inlined
def _reduced(x: Any) -> tuple[Any, Any, Any]:
    """2**n, r and p(r) of x = n ln 2 + r: range reduction after Cody and Waite, one constant."""
    shifted = fma(x, splat(_LOG2_E), splat(_ROUND))
    r = fma(shifted - splat(_ROUND), splat(-_LN2), x)
    p = fma(fma(splat(_P3), r, splat(_P2)), r * r, fma(splat(_P1), r, splat(_P0)))
    return _power_of_two(shifted), r, p


@inlined
def exp(x: Any) -> Any:
    """e**x for EXP_ZERO <= x <= 88, NaN stays NaN.

    Within three units in the last place where |x| < 20, within six everywhere.
    """
    power, r, p = _reduced(x)
    return fma(r * r, p, r + splat(1.0)) * power


@inlined
def expm1(x: Any) -> Any:
    """e**x - 1 for EXP_ZERO <= x <= 88, within 2**-20 also of a small x; NaN stays NaN."""
    power, r, p = _reduced(x)
    return fma(fma(r * r, p, r), power, power - splat(1.0))


@inlined
def exp_down(x: Any) -> Any:
    """e**x for x <= 88: 0 from EXP_ZERO down, -inf included."""
    return exp(larger(x, splat(EXP_ZERO)))


@inlined
def sigmoid_parts(x: Any) -> tuple[Any, Any]:
    """1 / (1 + e**-x) and one minus it, neither of which cancels, for any x; NaN stays NaN."""
    e = exp(smaller(larger(x, splat(EXP_ZERO)), splat(EXP_LARGEST)))
    rest = splat(1.0) / (e + splat(1.0))  # the divider works beside the multipliers
    return e * rest, rest
