"""A bias per column, then an activation: y = f(x + bias), as behind a linear layer.

x, before the bias, is what backward reads; dbias, the sum of dx over the rows, is made in the
same pass. x + bias is not rounded before f. The separate kernels keep x + bias, or y for relu, and
sum dx in a kernel of its own.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Chain, Direction, Directions, Reference, Step, operation, tensors
from ..shapes import ROWS
from .pointwise import GELU_TERMS, gelu_backward, gelu_forward, relu_backward, relu_forward

Real = torch.Tensor


def _chain(activation: str, kept: str, held: str) -> Chain:
    """bias_add, then `activation`, whose backward reads its own `kept`, the chain's `held`."""
    return Chain(
        forward=[
            Step("bias_add", {"x": "x", "bias": "bias", "y": "h"}),
            Step(activation, {"x": "h", "y": "y"}),
        ],
        backward=[
            Step(activation, {"dy": "dy", kept: held, "dx": "dx"}, direction="backward"),
            Step("bias_add", {"dy": "dx", "dbias": "dbias"}, direction="backward"),
        ],
    )


def _biased(
    rows: int, columns: int, dtype: DType, f: Reference, gradient: Reference, terms: int = 1
) -> Directions:
    """y = f(x + bias); dx = gradient(dy, x + bias)."""

    def forward(x: Real, bias: Real) -> Real | tuple[Real, ...]:
        return f(x + bias)

    def backward(dy: Real, x: Real, bias: Real) -> tuple[Real, Real]:
        dx = gradient(dy, x + bias)
        assert isinstance(dx, torch.Tensor)
        return dx, dx.sum(0)

    x, dy = tensors("x dy", (rows, columns), dtype)
    y, dx = tensors("y dx", (rows, columns), dtype, reduces=terms)
    (bias,) = tensors("bias", (columns,), dtype)
    (dbias,) = tensors("dbias", (columns,), dtype, reduces=max(rows, terms))
    return Directions(
        forward=Direction(reads=[x, bias], writes=[y], reference=forward),
        backward=Direction(reads=[dy, x, bias], writes=[dx, dbias], reference=backward),
    )


@operation(shapes=ROWS, dtypes=FLOATS)
def bias_add(rows: int, columns: int, dtype: DType) -> Directions:
    """y = x + bias; dbias = the sum of dy over the rows, dx = dy is nothing to compute."""
    x, y, dy = tensors("x y dy", (rows, columns), dtype)
    (bias,) = tensors("bias", (columns,), dtype)
    dbias = tensors("dbias", (columns,), dtype, reduces=rows)
    return Directions(
        forward=Direction(reads=[x, bias], writes=[y], reference=lambda x, bias: x + bias),
        backward=Direction(reads=[dy], writes=dbias, reference=lambda dy: dy.sum(0)),
    )


@operation(shapes=ROWS, dtypes=FLOATS, tier=1, chain=_chain("gelu", "x", "h"))
def bias_gelu(rows: int, columns: int, dtype: DType) -> Directions:
    """y = gelu(x + bias), the form with erf: PyTorch's default."""
    return _biased(rows, columns, dtype, gelu_forward, gelu_backward, GELU_TERMS)


@operation(shapes=ROWS, dtypes=FLOATS, chain=_chain("relu", "y", "y"))
def bias_relu(rows: int, columns: int, dtype: DType) -> Directions:
    """y = relu(x + bias)."""
    return _biased(rows, columns, dtype, relu_forward, relu_backward)
