"""Gated activations: y = f(gate) · up, from two tensors of one shape.

Backward makes both gradients in one pass: dgate = dy · up · f'(gate), dup = dy · f(gate). At
infinity f and its slope are as in silu, gelu and relu. The separate kernels keep f(gate) from
forward.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Chain, Direction, Directions, Reference, Step, operation, tensors
from ..shapes import ROWS
from . import silu
from .pointwise import GELU_TERMS, gelu_backward, gelu_forward, relu_backward, relu_forward

GEGLU_TERMS = 16 * GELU_TERMS
"""What is left of Φ's sum is multiplied by up, which reaches four times its usual size and more."""

Real = torch.Tensor


def _chain(activation: str, kept: str, held: str) -> Chain:
    """`activation`, then mul; its backward reads its own `kept`, the chain's `held`."""
    return Chain(
        forward=[
            Step(activation, {"x": "gate", "y": "activated"}),
            Step("mul", {"a": "activated", "b": "up", "y": "y"}),
        ],
        backward=[
            Step("mul", {"a": "dy", "b": "activated", "y": "dup"}),
            Step("mul", {"a": "dy", "b": "up", "y": "dactivated"}),
            Step(activation, {"dy": "dactivated", kept: held, "dx": "dgate"}, direction="backward"),
        ],
    )


def _gated(
    rows: int, columns: int, dtype: DType, f: Reference, gradient: Reference, terms: int = 1
) -> Directions:
    def forward(gate: Real, up: Real) -> Real:
        activated = f(gate)
        assert isinstance(activated, torch.Tensor)
        return activated * up

    def backward(dy: Real, gate: Real, up: Real) -> tuple[Real, Real]:
        dgate = gradient(dy * up, gate)
        assert isinstance(dgate, torch.Tensor)
        return dgate, forward(gate, dy)

    gate, up, dy = tensors("gate up dy", (rows, columns), dtype)
    y, dgate, dup = tensors("y dgate dup", (rows, columns), dtype, reduces=terms)
    return Directions(
        forward=Direction(reads=[gate, up], writes=[y], reference=forward),
        backward=Direction(reads=[dy, gate, up], writes=[dgate, dup], reference=backward),
    )


@operation(shapes=ROWS, dtypes=FLOATS, tier=1, chain=_chain("silu", "x", "gate"))
def swiglu(rows: int, columns: int, dtype: DType) -> Directions:
    """y = silu(gate) · up."""
    return _gated(rows, columns, dtype, silu.forward, silu.backward)


@operation(shapes=ROWS, dtypes=FLOATS, chain=_chain("gelu", "x", "gate"))
def geglu(rows: int, columns: int, dtype: DType) -> Directions:
    """y = gelu(gate) · up, the form with erf: PyTorch's default."""
    return _gated(rows, columns, dtype, gelu_forward, gelu_backward, GEGLU_TERMS)


@operation(shapes=ROWS, dtypes=FLOATS, chain=_chain("relu", "y", "activated"))
def reglu(rows: int, columns: int, dtype: DType) -> Directions:
    """y = relu(gate) · up."""
    return _gated(rows, columns, dtype, relu_forward, relu_backward)
