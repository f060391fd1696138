"""Residual add, then layer normalization: h = x + residual, y = layer_norm(h).

h (the residual for the next layer) is written and the norm is of h as stored, that is rounded to
its dtype, so that the fused kernel and its chain agree. eps and the order of rounding are those of
layer_norm. In backward the gradient that arrives through h is added: dx is the gradient of x and of
residual alike.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, float32
from ..long_rows import reread
from ..normalization import layer_norm as norm
from ..operation import Chain, Direction, Directions, Step, operation, tensors
from ..shapes import NORMALIZED_ROWS

Real = torch.Tensor

CHAIN = Chain(
    forward=[
        Step("add", {"a": "x", "b": "residual", "y": "h"}),
        Step(
            "layer_norm",
            {"x": "h"} | {name: name for name in ("weight", "bias", "y", "mean", "rstd")},
        ),
    ],
    backward=[
        Step(
            "layer_norm",
            {"x": "h", "dx": "dnorm"}
            | {name: name for name in ("dy", "weight", "mean", "rstd", "dweight", "dbias")},
            direction="backward",
        ),
        Step("add", {"a": "dnorm", "b": "dh", "y": "dx"}),
    ],
)


def backward(dy: Real, dh: Real, h: Real, weight: Real, mean: Real, rstd: Real) -> tuple[Real, ...]:
    dnorm, dweight, dbias = norm.backward(dy, h, weight, mean, rstd)
    return dnorm + dh, dweight, dbias


@operation(shapes=NORMALIZED_ROWS, dtypes=FLOATS, tier=1, chain=CHAIN)
def add_layer_norm(rows: int, columns: int, dtype: DType) -> Directions:
    def forward(x: Real, residual: Real, weight: Real, bias: Real) -> tuple[Real, ...]:
        h = dtype.rounded(x + residual)
        return h, *norm.forward(h, weight, bias)

    x, residual, h, dy, dh = tensors("x residual h dy dh", (rows, columns), dtype)
    y, dx = tensors("y dx", (rows, columns), dtype, reduces=columns)
    weight, bias = tensors("weight bias", (columns,), dtype)
    dweight, dbias = tensors("dweight dbias", (columns,), dtype, reduces=rows)
    mean, rstd = tensors("mean rstd", (rows,), float32, reduces=columns)
    return Directions(
        forward=reread(
            Direction(
                reads=[x, residual, weight, bias],
                writes=[h, y],
                saves=[mean, rstd],
                reference=forward,
            ),
            h,
        ),
        backward=reread(
            Direction(
                reads=[dy, dh, h, weight, mean, rstd],
                writes=[dx, dweight, dbias],
                reference=backward,
            ),
            dy,
            h,
            longest=norm.longest_backward(dtype),
        ),
    )
