"""Inline PTX in Numba: accesses of whole words, and pairs of 16-bit floats in a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda, types
from numba.core import config

from ..dtypes import DType

SIMULATED = bool(config.ENABLE_CUDASIM)

device = cuda.jit(device=True) if SIMULATED else cuda.jit(device=True, forceinline=True)


def as_intrinsic(build: Callable[..., Any]) -> Any:
    from numba.cuda.extending import intrinsic

    return intrinsic(build)


def assembly(result: Any, text: str, constraints: str, *, effect: bool = False) -> Any:
    """An intrinsic of any arguments that is `text`; arrays count as (array, index): an address."""

    def build(context: Any, *given: Any) -> Any:
        from llvmlite import ir

        arrays = isinstance(given[0], types.Array)

        def emit(target: Any, builder: Any, signature: Any, values: Any) -> Any:
            values = list(values)
            if arrays:
                array = target.make_array(signature.args[0])(target, builder, value=values[0])
                values[:2] = [builder.gep(array.data, [values[1]])]
            returned = target.get_value_type(signature.return_type)
            if isinstance(signature.return_type, types.BaseTuple):
                returned = ir.LiteralStructType(list(returned.elements))
            elif signature.return_type == types.void:
                returned = ir.VoidType()
            kind = ir.FunctionType(returned, [value.type for value in values])
            call = builder.call(ir.InlineAsm(kind, text, constraints, effect), values)
            if not isinstance(signature.return_type, types.BaseTuple):
                return call
            parts = [builder.extract_value(call, k) for k in range(len(signature.return_type))]
            return target.make_tuple(builder, signature.return_type, parts)

        return result(*given), emit

    return build


def load_words(instruction: str, words: int = 4) -> Any:
    """(array, index) -> 2 or 4 words."""
    into = ", ".join(f"${k}" for k in range(words))
    result = types.UniTuple(types.uint32, words)
    constraints = "=r," * words + "l"
    build = assembly(result, f"{instruction} {{{into}}}, [${words}];", constraints, effect=True)

    @as_intrinsic
    def load(typingctx: Any, array: Any, index: Any) -> Any:
        return build(typingctx, array, index)

    return load


def store_words(instruction: str, words: int = 4) -> Any:
    """(array, index, 2 or 4 words)."""
    parts = ", ".join(f"${k + 1}" for k in range(words))
    constraints = "l" + ",r" * words
    build = assembly(types.void, f"{instruction} [$0], {{{parts}}};", constraints, effect=True)

    def store_2(typingctx: Any, array: Any, index: Any, a: Any, b: Any) -> Any:
        return build(typingctx, array, index, a, b)

    def store_4(typingctx: Any, array: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return build(typingctx, array, index, a, b, c, d)

    return as_intrinsic(store_2 if words == 2 else store_4)


def load_element(kind: Any, instruction: str, constraint: str) -> Any:
    build = assembly(kind, f"{instruction} $0, [$1];", f"={constraint},l", effect=True)

    @as_intrinsic
    def load(typingctx: Any, array: Any, index: Any) -> Any:
        return build(typingctx, array, index)

    return load


def store_element(instruction: str, constraint: str) -> Any:
    build = assembly(types.void, f"{instruction} [$0], $1;", f"l,{constraint}", effect=True)

    @as_intrinsic
    def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
        return build(typingctx, array, index, value)

    return store


def unary(kind: Any, text: str, constraints: str) -> Any:
    build = assembly(kind, text, constraints)

    @as_intrinsic
    def convert(typingctx: Any, value: Any) -> Any:
        return build(typingctx, value)

    return convert


def binary(kind: Any, text: str, constraints: str) -> Any:
    build = assembly(kind, text, constraints)

    @as_intrinsic
    def convert(typingctx: Any, a: Any, b: Any) -> Any:
        return build(typingctx, a, b)

    return convert


def unpack_pair(dtype: DType) -> Any:
    """uint32 -> the two floats in it, lower half first."""
    if dtype.name == "float16":
        text = "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $2; cvt.f32.f16 $0, lo; cvt.f32.f16 $1, hi; }"
        return unary(types.UniTuple(types.float32, 2), text, "=f,=f,r")
    text = "{ .reg .b32 lo; shl.b32 lo, $2, 16; and.b32 $1, $2, 0xffff0000; mov.b32 $0, lo; }"
    return unary(types.UniTuple(types.float32, 2), text, "=&f,=&f,r")


def pack_pair(dtype: DType, sm: int) -> Any:
    """Two floats -> uint32, the first in the lower half, rounded to nearest even."""
    if sm >= 80:
        kind = "f16x2" if dtype.name == "float16" else "bf16x2"
        return binary(types.uint32, f"cvt.rn.{kind}.f32 $0, $2, $1;", "=r,f,f")
    if dtype.name == "float16":
        text = (
            "{ .reg .b16 lo, hi; cvt.rn.f16.f32 lo, $1; cvt.rn.f16.f32 hi, $2; "
            "mov.b32 $0, {lo, hi}; }"
        )
        return binary(types.uint32, text, "=r,f,f")
    round_one = round_bfloat16()

    @device
    def pack(a: Any, b: Any) -> Any:
        return types.uint32((round_one(a) >> 16) | (round_one(b) & 0xFFFF0000))

    return pack


def round_bfloat16() -> Any:
    """float32 -> uint32 whose upper half is the bfloat16 nearest to it: before sm_80."""
    bits = unary(types.uint32, "mov.b32 $0, $1;", "=r,f")

    @device
    def round_one(value: Any) -> Any:
        word = bits(value)
        if value != value:
            return types.uint32(word | 0x00400000)
        return types.uint32(word + 0x7FFF + ((word >> 16) & 1))

    return round_one
