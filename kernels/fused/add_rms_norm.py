"""Residual add, then RMSNorm: h = x + residual, y = h / sqrt(mean(h²) + eps) · weight.

h (the residual for the next layer) is written and the norm is of h as stored, that is rounded to
its dtype, so that the fused kernel and its chain agree. eps and the order of rounding are those of
rms_norm. In backward the gradient that arrives through h is added: dx is the gradient of x and of
residual alike.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, float32
from ..long_rows import reread
from ..normalization import rms_norm as norm
from ..operation import Chain, Direction, Directions, Step, Tensor, operation, tensors
from ..shapes import ROWS

Tensors = tuple[torch.Tensor, ...]

CHAIN = Chain(
    forward=[
        Step("add", {"a": "x", "b": "residual", "y": "h"}),
        Step("rms_norm", {"x": "h", "weight": "weight", "y": "y", "rstd": "rstd"}),
    ],
    backward=[
        Step(
            "rms_norm",
            {
                "dy": "dy",
                "x": "h",
                "weight": "weight",
                "rstd": "rstd",
                "dx": "dnorm",
                "dweight": "dweight",
            },
            direction="backward",
        ),
        Step("add", {"a": "dnorm", "b": "dh", "y": "dx"}),
    ],
)


def backward(
    dy: torch.Tensor, dh: torch.Tensor, h: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> Tensors:
    dnorm, dweight = norm.backward(dy, h, weight, rstd)
    return dnorm + dh, dweight


@operation(shapes=ROWS, dtypes=FLOATS, tier=1, chain=CHAIN)
def add_rms_norm(rows: int, columns: int, dtype: DType) -> Directions:
    def forward(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Tensors:
        h = dtype.rounded(x + residual)
        y, rstd = norm.forward(h, weight)
        return h, y, rstd

    x, residual, h, dy, dh = tensors("x residual h dy dh", (rows, columns), dtype)
    y, dx = tensors("y dx", (rows, columns), dtype, reduces=columns)
    (weight,) = tensors("weight", (columns,), dtype)
    (dweight,) = tensors("dweight", (columns,), dtype, reduces=rows)
    rstd = Tensor("rstd", (rows,), float32, reduces=columns)
    return Directions(
        forward=reread(
            Direction(reads=[x, residual, weight], writes=[h, y], saves=[rstd], reference=forward),
            h,
        ),
        backward=reread(
            Direction(reads=[dy, dh, h, weight, rstd], writes=[dx, dweight], reference=backward),
            dy,
            h,
            longest=norm.LONGEST_BACKWARD,
        ),
    )
