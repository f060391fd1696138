"""Codes of 8 and 4 bits in Triton: float32 to codes, back, and the scales of blocks.

To nearest even; what is beyond the largest code becomes it, infinity too; NaN stays NaN, is 6 in
e2m1 and 0 in int8. Codes are bytes to Triton, whose own types of 8 bits some architectures lack:
where the architecture converts (8-bit floats from sm_90 on, half bytes from sm_100 on) an
instruction does, elsewhere integer arithmetic gives the same bits. (sm_89 has the former, but there
Triton goes by way of halves and rounds twice.) Magnitudes are compared as bits: NaN is larger than
infinity.

Tiles are [ROWS, COLUMNS]; a run without rows is one long row.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: N803, N806 - compile-time constants are capitals in Triton

from __future__ import annotations

import triton
import triton.language as tl

_CONVERTS_BYTES, _CONVERTS_HALF_BYTES = tl.constexpr(90), tl.constexpr(100)
_MAGNITUDE, _INFINITY = tl.constexpr(0x7FFFFFFF), tl.constexpr(0x7F800000)
_INTEGERS = tl.constexpr(12582912.0)  # 1.5 · 2^23: a sum with it ends where integers do
_PAIRS = tl.constexpr("""{
    .reg .b8 a, b, c, d;
    cvt.rn.satfinite.e2m1x2.f32 a, $5, $1;
    cvt.rn.satfinite.e2m1x2.f32 b, $6, $2;
    cvt.rn.satfinite.e2m1x2.f32 c, $7, $3;
    cvt.rn.satfinite.e2m1x2.f32 d, $8, $4;
    mov.b32 $0, {a, b, c, d};
}""")


@triton.jit
def magnitude(x):
    """Bits of |x|, int32."""
    return x.to(tl.int32, bitcast=True) & _MAGNITUDE


@triton.jit
def _rounded(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    """Below the smallest normal number the sum with a large one rounds where the last bit is."""
    DROPPED: tl.constexpr = 23 - MANTISSA
    found = magnitude(x)
    held = tl.minimum(found, LARGEST)
    even = (held >> DROPPED) & 1
    normal = ((held + (1 << (DROPPED - 1)) - 1 + even) >> DROPPED) - ((127 - BIAS) << MANTISSA)
    shifted = held.to(tl.float32, bitcast=True) + 2.0 ** (1 - BIAS + DROPPED)
    small = shifted.to(tl.int32, bitcast=True) - ((128 - BIAS + DROPPED) << 23)
    code = tl.where(held < (128 - BIAS) << 23, small, normal)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return tl.where(found > _INFINITY, 0x7F, code | sign).to(tl.uint8)


@triton.jit
def encode(x, FORMAT: tl.constexpr, SM: tl.constexpr):
    """Bytes of x, float32."""
    if FORMAT == "int8":
        held = tl.minimum(tl.maximum(tl.where(x == x, x, 0.0), -128.0), 127.0)
        code = (held + _INTEGERS).to(tl.int32, bitcast=True).to(tl.uint8)
    elif SM >= _CONVERTS_BYTES:
        converted = x.to(tl.float8e4nv if FORMAT == "e4m3" else tl.float8e5)
        code = converted.to(tl.uint8, bitcast=True)
    elif FORMAT == "e4m3":
        code = _rounded(x, 3, 7, 0x43E00000)
    else:
        code = _rounded(x, 2, 15, 0x47600000)
    return code


@triton.jit
def decode(code, FORMAT: tl.constexpr, SM: tl.constexpr):
    """float32 of bytes."""
    if FORMAT == "int8":
        x = code.to(tl.int8, bitcast=True).to(tl.float32)
    elif FORMAT == "e5m2":  # the upper byte of a half
        x = (code.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    elif SM >= _CONVERTS_BYTES:
        x = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:  # the same bits as a half are 2^-8 of the number
        bits = code.to(tl.uint16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        x = tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256.0)
    return x


@triton.jit
def _half_byte(x):
    """e2m1. Added to 2^22 times its power of two (to 2^22 below 2), a magnitude is rounded where
    its last bit is; the codes of every power of two follow those of the one below."""
    size = tl.where(tl.abs(x) < 6.0, tl.abs(x), 6.0)
    power = tl.maximum(magnitude(size), 0x3F800000) & _INFINITY
    shifter = power + (22 << 23)
    code = (size + shifter.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True) - shifter
    sign = tl.where(x == x, (x.to(tl.int32, bitcast=True) >> 28) & 8, 0)
    return code + (power >> 22) - 254 + sign


@triton.jit
def encode_pairs(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SM: tl.constexpr):
    """Bytes of two e2m1 codes, the first in the low half."""
    first, second = tl.split(tl.reshape(x, (ROWS, COLUMNS // 2, 2)))
    if SM >= _CONVERTS_HALF_BYTES:
        code = tl.inline_asm_elementwise(
            _PAIRS, "=r,f,f,f,f,f,f,f,f", [first, second], tl.uint8, is_pure=True, pack=4
        )
    else:
        code = (_half_byte(first) | (_half_byte(second) << 4)).to(tl.uint8)
    return code


@triton.jit
def _half_byte_number(code):
    """The same bits as a half are 2^-14 of the number."""
    bits = ((code & 8) << 12) | ((code & 7) << 9)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def decode_pairs(codes, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """COLUMNS numbers of half as many bytes."""
    codes = codes.to(tl.uint16)
    numbers = tl.join(_half_byte_number(codes & 15), _half_byte_number(codes >> 4))
    return tl.reshape(numbers, (ROWS, COLUMNS))


@triton.jit
def power_of_two_number(code):
    """2^(code - 127), the first of them subnormal; 255 is NaN."""
    code = code.to(tl.int32)
    bits = tl.where(code == 0, 0x400000, tl.where(code == 255, _INFINITY + 1, code << 23))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _power_of_two_scale(found, FORMAT: tl.constexpr, UP: tl.constexpr):
    """(codes, reciprocals) of MX scales of blocks whose largest magnitudes are `found`, as bits."""
    PLACES: tl.constexpr = 8 if FORMAT == "e4m3" else 2
    FRACTION: tl.constexpr = 0x600000 if FORMAT == "e4m3" else 0x400000
    largest = tl.minimum(found, _INFINITY - 1)
    code = (largest >> 23) - PLACES
    if UP:
        code += ((largest & 0x7FFFFF) > FRACTION).to(tl.int32)
    code = tl.maximum(code, 0)
    bits = tl.where(found > _INFINITY, _INFINITY + 1, (254 - code) << 23)
    code = tl.where(found > _INFINITY, 255, code)
    return code.to(tl.uint8), bits.to(tl.float32, bitcast=True)


@triton.jit
def _e4m3_scale(found, given, SM: tl.constexpr):
    """(codes, reciprocals) of scales that are multiplied by a given one, as above."""
    largest = found.to(tl.float32, bitcast=True)
    code = encode(largest * (1.0 / 6.0) * tl.div_rn(1.0, given), "e4m3", SM)
    reciprocal = tl.div_rn(1.0, decode(code, "e4m3", SM) * given)
    return code, tl.where(code == 0, 0.0, reciprocal)


@triton.jit
def put_codes(
    x, q, scale, scales, row, start,
    M: tl.constexpr, N: tl.constexpr, FORMAT: tl.constexpr, SCALES: tl.constexpr,
    SM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Store codes of x, float32, whose columns begin at `start` of the rows `row`.

    SCALES: "given": one, in `scale`; "floor", "up" and "e4m3" are found for blocks and stored.
    """
    if SCALES == "given":
        x *= tl.div_rn(1.0, tl.load(scale))
    else:
        BLOCK: tl.constexpr = 16 if SCALES == "e4m3" else 32
        COUNT: tl.constexpr = COLUMNS // BLOCK
        blocks = tl.reshape(x, (ROWS * COUNT, BLOCK))
        found = tl.max(magnitude(blocks), 1)
        if SCALES == "e4m3":
            code, reciprocal = _e4m3_scale(found, tl.load(scale), SM)
        else:
            code, reciprocal = _power_of_two_scale(found, FORMAT, SCALES == "up")
        x = tl.reshape(blocks * reciprocal[:, None], (ROWS, COLUMNS))
        block = start // BLOCK + tl.arange(0, COUNT)
        there = (row < M)[:, None] & (block < N // BLOCK)[None, :]
        at = row[:, None] * (N // BLOCK) + block[None, :]
        tl.store(scales + at, tl.reshape(code, (ROWS, COUNT)), mask=there, cache_modifier=STORE)
    BYTES: tl.constexpr = N // 2 if FORMAT == "e2m1" else N
    if FORMAT == "e2m1":
        codes = encode_pairs(x, ROWS, COLUMNS, SM)
        column = start // 2 + tl.arange(0, COLUMNS // 2)
    else:
        codes = encode(x, FORMAT, SM)
        column = start + tl.arange(0, COLUMNS)
    mask = (row < M)[:, None] & (column < BYTES)[None, :]
    tl.store(q + row[:, None] * BYTES + column[None, :], codes, mask=mask, cache_modifier=STORE)
