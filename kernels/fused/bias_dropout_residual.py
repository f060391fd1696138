"""A bias, dropout, and the residual: y = residual + dropout(x + bias), as behind a linear layer.

Dropout is that of `training/dropout.py`: p = 0.1, its mask drawn again in backward, or kept in
bytes or bits where the name says so. Nothing is rounded but y. In backward the gradient of residual
is dy itself, which is nothing to compute; dx is dropout's, and dbias its sum over the rows, made in
the same pass.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Chain, Direction, Directions, Step, operation, tensors
from ..philox import SCALE, kept
from ..shapes import BYTES_OF_BITS, MASKED_ROWS, ROWS
from ..training.dropout import Form, bit_mask, byte_mask, no_mask, packed, state, unpacked

Real = torch.Tensor


def _chain(dropout: str) -> Chain:
    mask = {"mask": "mask"} if "mask" in dropout else {}
    backward = mask or {"state": "state"}
    return Chain(
        forward=[
            Step("bias_add", {"x": "x", "bias": "bias", "y": "biased"}),
            Step(dropout, {"x": "biased", "state": "state", "y": "dropped"} | mask),
            Step("add", {"a": "dropped", "b": "residual", "y": "y"}),
        ],
        backward=[
            Step(dropout, {"dy": "dy", "dx": "dx"} | backward, direction="backward"),
            Step("bias_add", {"dy": "dx", "dbias": "dbias"}, direction="backward"),
        ],
    )


def _fused(rows: int, columns: int, dtype: DType, form: Form) -> Directions:
    def forward(
        x: Real, bias: Real, residual: Real, state: torch.Tensor, first: int = 0
    ) -> tuple[torch.Tensor, ...]:
        keep = kept(state, x, first)
        return residual + (x + bias) * (keep * SCALE), *packed(form, keep)

    def backward(dy: Real, given: torch.Tensor, first: int = 0) -> tuple[Real, Real]:
        dx = dy * (unpacked(form, given, dy, first) * SCALE)
        return dx, dx.sum(0)

    x, residual, y, dy, dx = tensors("x residual y dy dx", (rows, columns), dtype)
    (bias,) = tensors("bias", (columns,), dtype)
    (dbias,) = tensors("dbias", (columns,), dtype, reduces=rows)
    masks = form(rows, columns)
    there = Direction(
        reads=[x, bias, residual, state()],
        writes=[y],
        saves=masks,
        reference=forward,
        positioned=True,
    )
    back = Direction(
        reads=[dy, *(masks or [state()])], writes=[dx, dbias], reference=backward, positioned=True
    )
    return Directions(forward=there, backward=back)


@operation(shapes=ROWS, dtypes=FLOATS, chain=_chain("dropout"))
def bias_dropout_residual(rows: int, columns: int, dtype: DType) -> Directions:
    """y = residual + dropout(x + bias); backward draws the mask again."""
    return _fused(rows, columns, dtype, no_mask)


@operation(shapes=MASKED_ROWS, dtypes=FLOATS, chain=_chain("dropout_byte_mask"))
def bias_dropout_residual_byte_mask(rows: int, columns: int, dtype: DType) -> Directions:
    """y = residual + dropout(x + bias), and its mask, a byte an element."""
    return _fused(rows, columns, dtype, byte_mask)


@operation(shapes=BYTES_OF_BITS, dtypes=FLOATS, chain=_chain("dropout_bit_mask"))
def bias_dropout_residual_bit_mask(rows: int, columns: int, dtype: DType) -> Directions:
    """y = residual + dropout(x + bias), and its mask, a bit an element."""
    return _fused(rows, columns, dtype, bit_mask)
