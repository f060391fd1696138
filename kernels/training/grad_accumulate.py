"""A gradient of 16 bits added to the sum that micro-batches leave in float32.

The sum is written beside the one that was read; the bytes are those of adding in place.
"""

from __future__ import annotations

import torch

from ..dtypes import DType, bfloat16, float32
from ..operation import Chain, Direction, Directions, Step, operation, tensors
from ..shapes import ROWS

CHAIN = Chain(
    [
        Step("cast_to_float32", {"x": "g", "y": "wide"}, dtype=bfloat16),
        Step("add", {"a": "total", "b": "wide", "y": "y"}, dtype=float32),
    ]
)


@operation(shapes=ROWS, dtypes=[bfloat16], tier=1, chain=CHAIN)
def grad_accumulate(rows: int, columns: int, dtype: DType) -> Directions:
    """y = total + g, g in bfloat16, total and y in float32."""
    total, y = tensors("total y", (rows, columns), float32)
    (g,) = tensors("g", (rows, columns), bfloat16)
    return Directions(Direction([total, g], [y], torch.add))
