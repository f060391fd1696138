"""Vectors of 16 float32 lanes inside Numba functions: the loads, stores and arithmetic of `cpu`.

Numba vectorises plain loops but never stores past the cache, and a plain store first reads the
line it overwrites. So kernels here are written in whole vectors:

    x, y = source(arguments, 0, "bfloat16"), target(arguments, 1, "bfloat16", True)
    store(y, i, load(x, i) * splat(2.0))

A `source` or `target` is an address with an element type; loads widen to float32, stores round to
nearest even (NaN stays NaN). Vectors are LLVM's own, so a machine with narrower registers runs the
same functions on several of its registers. "bits16" moves 16-bit elements without reading them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16
PAIR = 2 * LANES
LINE_BYTES = 64

_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "bits16": 2, "uint8": 1}

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
FLOAT = ir.FloatType()


def vector(element: ir.Type, lanes: int = LANES) -> ir.VectorType:
    return ir.VectorType(element, lanes)


_STORED = {
    "float32": FLOAT,
    "float16": ir.HalfType(),
    "bfloat16": I16,
    "bits16": I16,
    "uint8": I8,
}


def lane_function(typing: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Numba's whose body is LLVM: from (context, *types) to (signature, generate)."""
    made: Callable[..., Any] = intrinsic(prefer_literal=True)(typing)
    return made


class Lanes(types.Type):
    """16 values in a vector register: "f" float32, "i" int32, "h" 16 bits each, "m" a mask."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(name=f"Lanes({kind})")


class Address(types.Type):
    """Where elements of one type lie; `streaming` stores go past the cache."""

    def __init__(self, element: str, streaming: bool) -> None:
        self.element = element
        self.streaming = streaming
        super().__init__(name=f"Address({element}, {streaming})")

    @property
    def bytes(self) -> int:
        return _ELEMENT_BYTES[self.element]


FLOATS, INTS, HALVES, MASK = Lanes("f"), Lanes("i"), Lanes("h"), Lanes("m")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        element = {"f": FLOAT, "i": I32, "h": I16, "m": I1}[lanes.kind]
        super().__init__(manager, lanes, vector(element))


@register_model(Address)
class _AddressModel(models.PrimitiveModel):
    def __init__(self, manager: Any, address: Address) -> None:
        super().__init__(manager, address, I64)


def splatted(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    first = builder.insert_element(
        ir.Constant(vector(value.type), ir.Undefined), value, ir.Constant(I32, 0)
    )
    zeros = ir.Constant(vector(I32), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(vector(value.type), ir.Undefined), zeros)


def constant(element: ir.Type, value: float) -> ir.Constant:
    return ir.Constant(vector(element), [value] * LANES)


def call(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Value]) -> ir.Value:
    """Call the LLVM intrinsic `name`."""
    kind = ir.FunctionType(result, [a.type for a in arguments])
    declare: Any = cgutils.get_or_insert_function
    return builder.call(declare(builder.module, kind, name), arguments)


# Addresses


def _address_of(element: str, streaming: bool) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(arguments[0], [arguments[1]]))

    return Address(element, streaming), generate


@lane_function
def source(context: Any, arguments: Any, index: Any, element: Any) -> Any:
    """Argument `index` as the address of input elements; `element` is a dtype name or "bytes"."""
    result, generate = _address_of(element.literal_value, False)
    return result(arguments, types.int64, element), generate


@lane_function
def target(context: Any, arguments: Any, index: Any, element: Any, streaming: Any) -> Any:
    """Argument `index` as the address of output elements; `streaming` keeps them out of cache."""
    result, generate = _address_of(element.literal_value, streaming.literal_value)
    return result(arguments, types.int64, element, streaming), generate


@lane_function
def to_line(context: Any, address: Any, index: Any) -> Any:
    """How many elements from `index` on lie before the next 64-byte line begins."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = ir.Constant(I64, address.bytes)
        where = builder.add(arguments[0], builder.mul(arguments[1], size))
        missing = builder.and_(builder.neg(where), ir.Constant(I64, LINE_BYTES - 1))
        return builder.udiv(missing, size)

    return types.int64(address, types.int64), generate


@lane_function
def at(context: Any, address: Any, index: Any) -> Any:
    """The address `index` elements further on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.add(arguments[0], builder.mul(arguments[1], ir.Constant(I64, address.bytes)))

    return address(address, types.int64), generate


@lane_function
def prefetch(context: Any, address: Any, index: Any) -> Any:
    """Ask for the line that holds element `index`; harmless outside the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(builder, address, arguments[0], arguments[1], I8)
        settings = [ir.Constant(I32, value) for value in (0, 3, 1)]  # read, keep, data
        call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *settings])
        return context.get_dummy_value()

    return types.void(address, types.int64), generate


def element_pointer(
    builder: ir.IRBuilder, address: Address, base: ir.Value, index: ir.Value, kind: ir.Type
) -> ir.Value:
    where = builder.add(base, builder.mul(index, ir.Constant(I64, address.bytes)))
    return builder.inttoptr(where, kind.as_pointer())


# Loads and stores


def stored_kind(address: Address) -> ir.VectorType:
    """16 elements as they lie in memory."""
    return vector(_STORED[address.element])


def widened(builder: ir.IRBuilder, address: Address, stored: ir.Value) -> ir.Value:
    element = address.element
    if element == "float16":
        return builder.fpext(stored, vector(FLOAT))
    if element == "bfloat16":
        wide = builder.zext(stored, vector(I32))
        return builder.bitcast(builder.shl(wide, constant(I32, 16)), vector(FLOAT))
    if element == "uint8":
        return builder.zext(stored, vector(I32))
    return stored


def narrowed(builder: ir.IRBuilder, address: Address, value: ir.Value) -> ir.Value:
    element = address.element
    if element == "float16":
        return builder.fptrunc(value, vector(ir.HalfType()))
    if element == "bfloat16":
        return _round_to_bfloat16(builder, value)
    if element == "uint8":
        whole = value if value.type == vector(I32) else builder.fptosi(value, vector(I32))
        return builder.trunc(whole, vector(I8))
    return value


def _round_to_bfloat16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Nearest even: add 0x7FFF and the lowest bit that stays. A NaN is cut and made quiet."""
    bits = builder.bitcast(value, vector(I32))
    high = builder.lshr(bits, constant(I32, 16))
    odd = builder.and_(high, constant(I32, 1))
    rounded = builder.add(bits, builder.add(odd, constant(I32, 0x7FFF)))
    rounded = builder.lshr(rounded, constant(I32, 16))
    quiet = builder.or_(high, constant(I32, 0x40))
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(nan, quiet, rounded), vector(I16))


def first_lanes(builder: ir.IRBuilder, count: ir.Value) -> ir.Value:
    """Mask of the lanes below `count` (any int64)."""
    most = ir.Constant(I64, LANES)
    capped = builder.select(builder.icmp_signed("<", count, most), count, most)
    narrow = splatted(builder, builder.trunc(capped, I32))
    numbers = ir.Constant(vector(I32), list(range(LANES)))
    return builder.icmp_signed("<", numbers, narrow)


def loaded(address: Address) -> Lanes:
    return {"uint8": INTS, "bits16": HALVES}.get(address.element, FLOATS)


@lane_function
def load(context: Any, address: Any, index: Any) -> Any:
    """16 elements from `index` on, at any alignment."""
    kind = stored_kind(address)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(builder, address, arguments[0], arguments[1], kind)
        stored = builder.load(pointer, align=address.bytes)
        return widened(builder, address, stored)

    return loaded(address)(address, types.int64), generate


@lane_function
def store(context: Any, address: Any, index: Any, low: Any, high: Any) -> Any:
    """32 elements at `index`: past the cache, and then aligned to a line, if streaming."""
    lanes = PAIR if address.bytes < 4 else LANES
    kind = vector(_STORED[address.element], lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, index, *values = arguments
        halves = [narrowed(builder, address, value) for value in values]
        if lanes == PAIR:  # one whole line: LLVM drops the hint from a store that also truncates
            order = ir.Constant(vector(I32, PAIR), list(range(PAIR)))
            halves = [builder.shuffle_vector(*halves, order)]
        for number, value in enumerate(halves):
            offset = builder.add(index, ir.Constant(I64, number * lanes))
            pointer = element_pointer(builder, address, base, offset, kind)
            _store(builder, address, value, pointer)
        return context.get_dummy_value()

    return types.void(address, types.int64, low, high), generate


def _store(builder: ir.IRBuilder, address: Address, value: ir.Value, pointer: ir.Value) -> None:
    if not address.streaming:
        builder.store(value, pointer, align=address.bytes)
        return
    written = builder.store(value, pointer, align=value.type.count * address.bytes)
    one = builder.module.add_metadata([ir.Constant(I32, 1)])
    written.set_metadata("nontemporal", one)


@lane_function
def load_some(context: Any, address: Any, index: Any, count: Any) -> Any:
    """The first `count` of 16 elements from `index` on, nothing else touched; 0 beyond."""
    kind = stored_kind(address)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(builder, address, arguments[0], arguments[1], kind)
        mask = first_lanes(builder, arguments[2])
        zero = ir.Constant(kind, None)
        stored = masked_load(builder, address, pointer, mask, zero)
        return widened(builder, address, stored)

    return loaded(address)(address, types.int64, types.int64), generate


@lane_function
def as_stored(context: Any, address: Any, value: Any) -> Any:
    """`value` as it will be read back after being stored there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return widened(builder, address, narrowed(builder, address, arguments[1]))

    return value(address, value), generate


@lane_function
def load_one(context: Any, address: Any, index: Any) -> Any:
    """Element `index` of a float32 array, as a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(element_pointer(builder, address, arguments[0], arguments[1], FLOAT))

    return types.float32(address, types.int64), generate


def masked_load(
    builder: ir.IRBuilder,
    address: Address,
    pointer: ir.Value,
    mask: ir.Value,
    otherwise: ir.Value,
) -> ir.Value:
    kind = otherwise.type
    align = ir.Constant(I32, address.bytes)
    name = f"llvm.masked.load.{overload(kind)}.p0"
    return call(builder, name, kind, [pointer, align, mask, otherwise])


def overload(kind: ir.VectorType) -> str:
    names = {"float": "f32", "half": "f16"}
    return f"v{LANES}{names.get(str(kind.element), str(kind.element))}"


@lane_function
def store_some(context: Any, address: Any, index: Any, value: Any, count: Any) -> Any:
    """The first `count` of 16 elements at `index`, at any alignment, through the cache."""
    kind = stored_kind(address)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(builder, address, arguments[0], arguments[1], kind)
        stored = narrowed(builder, address, arguments[2])
        align = ir.Constant(I32, address.bytes)
        mask = first_lanes(builder, arguments[3])
        name = f"llvm.masked.store.{overload(kind)}.p0"
        call(builder, name, ir.VoidType(), [stored, pointer, align, mask])
        return context.get_dummy_value()

    return types.void(address, types.int64, value, types.int64), generate
