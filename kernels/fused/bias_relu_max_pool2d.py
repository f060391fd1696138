"""A bias per channel, relu, then max-pooling of NCHW images, as behind a convolution.

y = the maximum of relu(x + bias), x + bias rounded to its dtype, so that the fused kernel and its
chain agree on ties too. Windows are those of max_pool2d. Forward saves one byte per window: the
place of its maximum, or 255 where relu has clipped it (no value of the window is above 0; NaN is
not clipped) and no gradient comes back. dbias, the sum of dx over images and pixels, is the sum of
the windows that are not clipped, in the same pass.

Backward has x and bias at hand for layers that run apart, which keep what they made of them; no
byte of the two must move. The chain's max_pool2d is given these same places.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType
from ..operation import Chain, Direction, Directions, Step, Tensor, operation, tensors
from ..pooling.max_pool2d import max_pool2d
from ..shapes import BIASED_POOLED_IMAGES

Real = torch.Tensor

CLIPPED = 255
"""A place that no window has."""

_PLANES = {"rows": ("images", "channels"), "columns": ("height", "width")}
CHAIN = Chain(
    forward=[
        Step("channel_bias_add", {"x": "x", "bias": "bias", "y": "biased"}),
        Step("relu", {"x": "biased", "y": "h"}, extents=_PLANES),
        Step("max_pool2d", {"x": "h", "y": "y"}),
    ],
    backward=[
        Step("max_pool2d", {"dy": "dy", "offset": "offset", "dx": "dh"}, direction="backward"),
        Step("relu", {"dy": "dh", "y": "h", "dx": "dx"}, direction="backward", extents=_PLANES),
        Step("channel_bias_add", {"dy": "dx", "dbias": "dbias"}, direction="backward"),
    ],
)


@operation(shapes=BIASED_POOLED_IMAGES, dtypes=FLOATS, chain=CHAIN)
def bias_relu_max_pool2d(
    images: int,
    channels: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
    dtype: DType,
) -> Directions:
    dims = images, channels, height, width, kernel, stride, padding
    pooling = max_pool2d.statement(*dims, dtype=dtype)
    assert pooling.backward is not None
    pool, pool_backward = pooling.forward, pooling.backward

    # Of each window, the place of its first element that is not padding.
    top, left = (padding - stride * torch.arange(n) for n in pool.writes[0].shape[2:])
    first = top.clamp(min=0)[:, None] * kernel + left.clamp(min=0)

    def forward(x: Real, bias: Real) -> tuple[Real, Real]:
        y, place = pool.reference(dtype.rounded(x + bias[:, None, None]).relu())
        return y, torch.where(y <= 0, CLIPPED, place).to(torch.uint8)

    def backward(dy: Real, offset: Real, x: Real, bias: Real) -> tuple[Real, Real]:
        kept = torch.where(offset == CLIPPED, 0.0, dy)
        dx = pool_backward.reference(
            kept, torch.where(offset == CLIPPED, first.to(dy.device), offset)
        )
        assert isinstance(dx, torch.Tensor)
        return dx, kept.sum((0, 2, 3))

    (x,), (y,), (offset,) = pool.reads, pool.writes, pool.saves
    (dy, _), (dx,) = pool_backward.reads, pool_backward.writes
    (bias,) = tensors("bias", (channels,), dtype)
    (dbias,) = tensors(
        "dbias", (channels,), dtype, reduces=max(images, 1) * y.shape[2] * y.shape[3]
    )
    at_hand = [Tensor("x", x.shape, dtype, moved=0), Tensor("bias", bias.shape, dtype, moved=0)]
    return Directions(
        forward=Direction(reads=[x, bias], writes=[y], saves=[offset], reference=forward),
        backward=Direction(reads=[dy, offset, *at_hand], writes=[dx, dbias], reference=backward),
    )
