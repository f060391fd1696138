"""Vectors of bytes in Numba: small numbers beside vectors of floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba import int32, types, uint8, uint32

from .numba_assembly import (
    SIMULATED,
    device,
    load_element,
    load_words,
    store_element,
    store_words,
)


@dataclass(frozen=True)
class Codes:
    """Accesses to arrays of bytes: `width` of them to and from an int32 array."""

    load: Any  # (array, index, values), of what neighbours read too
    store: Any  # (array, index, values)


def codes(width: int, *, streaming: bool) -> Codes:
    """Of 1, 4 or 8 bytes at a time, on boundaries of as many."""
    if SIMULATED or width == 1:
        return _one_by_one(width)
    hint = ".cs" if streaming else ""
    return _of_4(hint) if width == 4 else _of_8(hint)


def _one_by_one(width: int) -> Codes:
    @device
    def load(array: Any, index: Any, values: Any) -> None:
        for k in range(width):
            values[k] = array[index + k]

    @device
    def store(array: Any, index: Any, values: Any) -> None:
        for k in range(width):
            array[index + k] = uint8(values[k])

    return Codes(load, store)


@device
def _unpack(word: Any, values: Any, at: Any) -> None:
    values[at] = int32(word & 0xFF)
    values[at + 1] = int32((word >> 8) & 0xFF)
    values[at + 2] = int32((word >> 16) & 0xFF)
    values[at + 3] = int32(word >> 24)


@device
def _pack(v: Any, at: Any) -> Any:
    return uint32(v[at] | (v[at + 1] << 8) | (v[at + 2] << 16) | (v[at + 3] << 24))


def _of_4(hint: str) -> Codes:
    load_word = load_element(types.uint32, "ld.global.nc.u32", "r")
    store_word = store_element(f"st.global{hint}.u32", "r")

    @device
    def load(array: Any, index: Any, values: Any) -> None:
        _unpack(load_word(array, index), values, 0)

    @device
    def store(array: Any, index: Any, values: Any) -> None:
        store_word(array, index, _pack(values, 0))

    return Codes(load, store)


def _of_8(hint: str) -> Codes:
    words, into = load_words("ld.global.nc.v2.u32", 2), store_words(f"st.global{hint}.v2.u32", 2)

    @device
    def load(array: Any, index: Any, values: Any) -> None:
        a, b = words(array, index)
        _unpack(a, values, 0)
        _unpack(b, values, 4)

    @device
    def store(array: Any, index: Any, values: Any) -> None:
        into(array, index, _pack(values, 0), _pack(values, 4))

    return Codes(load, store)
