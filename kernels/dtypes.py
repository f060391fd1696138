"""The element types an operation can be stated in. Half-byte types come in pairs, a byte each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DType:
    """An element type: its field name (as torch spells it), width in bits, and unit roundoff.

    `epsilon` is the distance from 1 to the next larger number; 0 for integers. `largest` is the
    largest number of a code of at most 8 bits, where larger ones saturate; 0 for other types.
    """

    name: str
    bits: int
    epsilon: float = 0.0
    largest: float = 0.0

    @property
    def numbers(self) -> int:
        """Numbers that one element holds: 2 in a pair of half-byte codes."""
        return 1

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` packed elements, rounded up to a whole byte."""
        return (elements * self.bits + 7) // 8

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype that stores it."""
        import torch

        stored = getattr(torch, self.name)
        assert isinstance(stored, torch.dtype)
        return stored

    def rounded(self, exact: torch.Tensor) -> torch.Tensor:
        """`exact` (float64) as it would be read back after being stored in this type.

        To nearest even, by way of float32 for codes; these saturate, infinity too.
        """
        if self.largest:
            exact = exact.clamp(-self.largest, self.largest).float()
        return exact.to(self.torch_dtype).double()

    def decoded(self, stored: torch.Tensor) -> torch.Tensor:
        """What is stored, as float64."""
        return stored.double()

    def __str__(self) -> str:
        return self.name


class _Float4Pair(DType):
    """Two e2m1 numbers in a byte, the first in its low half: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign.

    There is no NaN: it becomes 6, as the hardware's conversion has it.
    """

    @property
    def numbers(self) -> int:
        return 2

    @property
    def torch_dtype(self) -> torch.dtype:
        """uint8: torch computes nothing with its own type of this name."""
        import torch

        return torch.uint8

    def rounded(self, exact: torch.Tensor) -> torch.Tensor:
        import torch

        size = exact.abs().clamp(max=self.largest)
        step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
        nearest = (size / step).round() * step  # halves go to even multiples, as codes do
        return nearest.copysign(exact).masked_fill(exact.isnan(), self.largest)

    def decoded(self, stored: torch.Tensor) -> torch.Tensor:
        import torch

        codes = torch.stack((stored & 15, stored >> 4), -1).flatten(-2).long()
        sizes = torch.tensor(
            [0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64, device=stored.device
        )
        return torch.cat((sizes, -sizes))[codes]


float32 = DType("float32", 32, 2.0**-23)
float16 = DType("float16", 16, 2.0**-10)
bfloat16 = DType("bfloat16", 16, 2.0**-7)
float8_e4m3fn = DType("float8_e4m3fn", 8, 2.0**-3, 448.0)
float8_e5m2 = DType("float8_e5m2", 8, 2.0**-2, 57344.0)
float8_e8m0fnu = DType("float8_e8m0fnu", 8, 1.0, 2.0**127)  # powers of two: scales
float4_pair = _Float4Pair("float4_e2m1fn_x2", 8, 2.0**-1, 6.0)
int8 = DType("int8", 8)
uint8 = DType("uint8", 8)
int32 = DType("int32", 32)
int64 = DType("int64", 64)

FLOATS = (float32, float16, bfloat16)
_CODES = (float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float4_pair)
DTYPES = {dtype.name: dtype for dtype in (*FLOATS, *_CODES, int8, uint8, int32, int64)}
