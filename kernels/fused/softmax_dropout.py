"""Softmax, then dropout: y = dropout(softmax(x)), the weights of attention in training.

Dropout is that of `training/dropout.py`: p = 0.1, its mask drawn again in backward. Forward saves
the logarithm of each row's sum of exponentials, float32, and backward makes the softmax again from
x: neither the softmax nor the mask is kept. The spacing of float32 at that logarithm is then the
relative error of backward: 1e-3 where x is about 10,000. A row of nothing but -inf is NaN, as in
PyTorch; so is every row that holds a NaN or +inf.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, float32
from ..long_rows import reread
from ..operation import Chain, Direction, Directions, Step, Tensor, operation, tensors
from ..philox import SCALE, kept
from ..shapes import ROWS
from ..training.dropout import state

Real = torch.Tensor

CHAIN = Chain(
    forward=[
        Step("softmax", {"x": "x", "y": "weights"}),
        Step("dropout", {"x": "weights", "state": "state", "y": "y"}),
    ],
    backward=[
        Step("dropout", {"dy": "dy", "state": "state", "dx": "dweights"}, direction="backward"),
        Step("softmax", {"dy": "dweights", "y": "weights", "dx": "dx"}, direction="backward"),
    ],
)


def forward(x: Real, state: torch.Tensor, first: int = 0) -> tuple[Real, Real]:
    return torch.softmax(x, -1) * (kept(state, x, first) * SCALE), torch.logsumexp(x, -1)


def backward(dy: Real, x: Real, lse: Real, state: torch.Tensor, first: int = 0) -> Real:
    weights = (x - lse[:, None]).exp()
    dweights = dy * (kept(state, x, first) * SCALE)
    return (dweights - (weights * dweights).sum(-1, keepdim=True)) * weights


@operation(shapes=ROWS, dtypes=FLOATS, tier=3, chain=CHAIN)
def softmax_dropout(rows: int, columns: int, dtype: DType) -> Directions:
    x, dy = tensors("x dy", (rows, columns), dtype)
    y, dx = tensors("y dx", (rows, columns), dtype, reduces=columns)
    lse = Tensor("lse", (rows,), float32, reduces=columns)
    there = Direction(
        reads=[x, state()], writes=[y], saves=[lse], reference=forward, positioned=True
    )
    back = Direction(reads=[dy, x, lse, state()], writes=[dx], reference=backward, positioned=True)
    return Directions(forward=reread(there, x), backward=reread(back, dy, x))
