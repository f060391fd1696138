"""Philox 4x32-10 and what dropout draws with it: the reference of `include/random.cuh`.

The generator is a function of a counter of 128 bits and a key of 64: nothing is stored, and any
draw can be made again, in any order. Multipliers, key increments and the ten rounds are those of
Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), whose
published vectors the tests hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GROUP = 8
"""Draws of 16 bits that one counter gives."""

DROPPED = 6554
"""Of 65536 draws: dropout's p of 0.1, to 16 bits."""

SCALE = 65536 / (65536 - DROPPED)
"""What is kept is multiplied by 1 / (1 - p), p as it is drawn."""

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(counter: Sequence[torch.Tensor], key: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Four words of 32 bits for counters of four and keys of two, all int64 of any one shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low0, high0 = _product(c0, _MULTIPLIERS[0])
        low1, high1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _INCREMENTS[0]) & _WORD, (k1 + _INCREMENTS[1]) & _WORD
    return [c0, c1, c2, c3]


def _product(word: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Low and high half of a product of words. It wraps as int64, and its bits are right."""
    product = word * multiplier
    return product & _WORD, product >> 32 & _WORD


def draws(state: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Draws `first` to `first + count - 1`, 0 to 65535, as int64 (count,).

    state: int64 (2,): the seed, which is the key, and the offset, which is the counter's upper
    half. Draw i is half i % 8, low halves first, of the words of counter i // 8.
    """
    import torch

    groups = torch.arange(first // GROUP, -(-(first + count) // GROUP), device=state.device)
    seed, offset = state.expand(len(groups), 2).unbind(1)
    counter = [half for value in (groups, offset) for half in _halves(value)]
    words = torch.stack(philox(counter, _halves(seed)), 1)
    halves = torch.stack([words & 0xFFFF, words >> 16], 2).reshape(-1)
    begin = first - first // GROUP * GROUP
    return halves[begin : begin + count]


def _halves(value: torch.Tensor) -> list[torch.Tensor]:
    return [value & _WORD, value >> 32 & _WORD]


def kept(state: torch.Tensor, like: torch.Tensor, first_row: int = 0) -> torch.Tensor:
    """Which elements of `like` (rows, columns), its rows counted from `first_row`, dropout keeps.

    Element i of the whole matrix, in row-major order, is kept where draw i is at least `DROPPED`.
    The result is bool.
    """
    drawn = draws(state, first_row * like.shape[1], like.numel())
    return (drawn >= DROPPED).reshape(like.shape)
