"""SwiGLU, then quantization. The product is quantized as its dtype stores it, as the steps do."""

from __future__ import annotations

import torch

from ..activation import silu
from ..dtypes import DType
from ..operation import Chain, Direction, Directions, Step, operation, tensors
from ..quantization.quantize import HALVES
from ..shapes import BLOCKED_ROWS, QUANTIZED_ROWS
from .rms_norm_quantize import quantized

Real = torch.Tensor


def _statement(rows: int, columns: int, dtype: DType, *, blocks: bool) -> Directions:
    gate, up, y = tensors("gate up y", (rows, columns), dtype)
    writes, scale, quantize = quantized(rows, columns, y, blocks=blocks)

    def forward(gate: Real, up: Real, scale: Real) -> tuple[Real, ...]:
        return quantize(dtype.rounded(silu.forward(gate) * up), scale)

    return Directions(Direction(reads=[gate, up, scale], writes=writes, reference=forward))


def _chain(quantize: str, *scales: str) -> Chain:
    swiglu = Step("swiglu", {"gate": "gate", "up": "up", "y": "y"})
    same = {name: name for name in ("scale", "q", *scales)}
    return Chain(forward=[swiglu, Step(quantize, {"x": "y", **same})])


@operation(shapes=QUANTIZED_ROWS, dtypes=HALVES, chain=_chain("quantize_e4m3"))
def swiglu_quantize_e4m3(rows: int, columns: int, dtype: DType) -> Directions:
    """q = silu(gate) · up / scale in e4m3, one given scale; saturates."""
    return _statement(rows, columns, dtype, blocks=False)


@operation(shapes=BLOCKED_ROWS, dtypes=HALVES, chain=_chain("quantize_nvfp4", "scales"))
def swiglu_quantize_nvfp4(rows: int, columns: int, dtype: DType) -> Directions:
    """q = silu(gate) · up / (scales · scale) in e2m1, scales in e4m3 of 16, scale given."""
    return _statement(rows, columns, dtype, blocks=True)
