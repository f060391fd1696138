"""The element types an operation can be stated in. Half-byte types count half a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DType:
    """An element type: its field name (as torch spells it), width in bits, and unit roundoff.

    `epsilon` is the distance from 1 to the next larger number; 0 for integers.
    """

    name: str
    bits: int
    epsilon: float = 0.0

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
        """`exact` (float64) as it would be read back after being stored in this type."""
        return exact.to(self.torch_dtype).double()

    def __str__(self) -> str:
        return self.name


float32 = DType("float32", 32, 2.0**-23)
float16 = DType("float16", 16, 2.0**-10)
bfloat16 = DType("bfloat16", 16, 2.0**-7)
uint8 = DType("uint8", 8)
int32 = DType("int32", 32)
int64 = DType("int64", 64)

FLOATS = (float32, float16, bfloat16)
DTYPES = {dtype.name: dtype for dtype in (*FLOATS, uint8, int32, int64)}
