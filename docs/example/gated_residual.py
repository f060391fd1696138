"""Gated residual: y = residual + x · sigmoid(gate), from three tensors of one shape."""

import torch
from membound.kernels.dtypes import FLOATS, DType
from membound.kernels.operation import Chain, Direction, Directions, Step, operation, tensors
from membound.kernels.shapes import ROWS

CHAIN = Chain(
    forward=[
        Step("sigmoid", {"x": "gate", "y": "open"}),
        Step("mul", {"a": "x", "b": "open", "y": "gated"}),
        Step("add", {"a": "residual", "b": "gated", "y": "y"}),
    ]
)


def forward(residual: torch.Tensor, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return residual + x * torch.sigmoid(gate)


@operation(shapes=ROWS, dtypes=FLOATS, chain=CHAIN)
def gated_residual(rows: int, columns: int, dtype: DType) -> Directions:
    residual, x, gate, y = tensors("residual x gate y", (rows, columns), dtype)
    return Directions(Direction(reads=[residual, x, gate], writes=[y], reference=forward))
