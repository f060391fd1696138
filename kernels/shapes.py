"""The shapes operations are run at, and how a shape is scaled to a device.

Kinds: `scaled` grows one dimension until the case is as large as the device needs; `layer` is a
real layer at its real size; `ragged` has a length that no vector width divides, and is scaled
too; `edge` is for correctness only (one row, tiny, empty) and is never timed by a preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["scaled", "layer", "ragged", "edge"]

# Dimensions that are settings rather than extents: written after the extents, "-k3s2p1".
_SETTINGS = {"kernel": "k", "stride": "s", "padding": "p", "groups": "g"}


@dataclass(frozen=True)
class Shape:
    """Named extents. `grow` names the dimension a preset may scale; None keeps all as they are."""

    kind: Kind
    extents: tuple[tuple[str, int], ...]
    grow: str | None = None

    @property
    def dims(self) -> dict[str, int]:
        return dict(self.extents)

    def grown(self, length: int) -> Shape:
        """The same shape with its growing dimension at `length`."""
        extents = tuple((k, length if k == self.grow else v) for k, v in self.extents)
        return Shape(self.kind, extents, self.grow)


def scaled(grow: str, /, **dims: int) -> Shape:
    return Shape("scaled", tuple(dims.items()), grow)


def layer(**dims: int) -> Shape:
    return Shape("layer", tuple(dims.items()))


def ragged(grow: str, /, **dims: int) -> Shape:
    return Shape("ragged", tuple(dims.items()), grow)


def edge(**dims: int) -> Shape:
    return Shape("edge", tuple(dims.items()))


def text(dims: Mapping[str, int]) -> str:
    """`8192x4096`; settings follow the extents: `32x64x112x112-k3s2p1`."""
    extents = "x".join(str(v) for k, v in dims.items() if k not in _SETTINGS)
    settings = "".join(f"{_SETTINGS[k]}{v}" for k, v in dims.items() if k in _SETTINGS)
    return f"{extents}-{settings}" if settings else extents


# Rows of a language model: tokens x hidden size. 4096 is Llama-3-8B, 768 is GPT-2 (124M), 14336
# the feed-forward width of Llama-3-8B.
LLM_ROWS = (
    scaled("rows", rows=4096, columns=4096),
    layer(rows=8192, columns=4096),  # Llama-3-8B, one sequence of 8192 tokens
    layer(rows=8192, columns=768),  # GPT-2 124M, 8 x 1024 tokens
)
RAGGED_ROWS = (ragged("rows", rows=4096, columns=4097),)
EDGE_ROWS = (
    edge(rows=1, columns=4096),
    edge(rows=3, columns=5),
    edge(rows=2, columns=1),
    edge(rows=0, columns=4096),
)
ROWS = LLM_ROWS + RAGGED_ROWS + EDGE_ROWS
# What a chain runs as one of its steps and nobody runs by itself.
STEP_ROWS = (*LLM_ROWS[:1], *RAGGED_ROWS, edge(rows=3, columns=5), edge(rows=0, columns=4096))
# The gradient of a normalized row of one element is nothing but the rounding of a cancellation.
NORMALIZED_ROWS = tuple(shape for shape in ROWS if shape.dims["columns"] > 1)

# Square matrices of attention scores, one per head and sequence: GPT-2 (124M) has 12 heads and 1024
# tokens, Llama-3-8B 32 heads.
SQUARES = (
    scaled("matrices", matrices=48, columns=1024),
    layer(matrices=96, columns=1024),
    layer(matrices=32, columns=2048),
    ragged("matrices", matrices=48, columns=1025),
    edge(matrices=1, columns=33),
    edge(matrices=2, columns=5),
    edge(matrices=3, columns=1),
    edge(matrices=0, columns=16),
)

_RESNET_STEM = {"channels": 64, "height": 112, "width": 112, "kernel": 3, "stride": 2, "padding": 1}
# The parameters of a language model (training/grad_norm.py lists them): GPT-2 (124M), a layer of
# Llama-3-8B, a feed-forward that no vector width divides, and corners.
_GPT2 = {"features": 768, "keys": 768, "vocabulary": 50257, "positions": 1024}
MODELS = (
    scaled("layers", layers=12, hidden=3072, **_GPT2),
    layer(layers=1, hidden=14336, features=4096, keys=1024, vocabulary=0, positions=0),
    ragged("layers", layers=12, hidden=3073, **_GPT2),
    edge(layers=2, hidden=20, features=12, keys=4, vocabulary=7, positions=0),
    edge(layers=1, hidden=17, features=7, keys=7, vocabulary=5, positions=3),
    edge(layers=1, hidden=1, features=1, keys=1, vocabulary=1, positions=0),
    edge(layers=1, hidden=4, features=0, keys=0, vocabulary=1, positions=0),
)

# Tables of a language model: GPT-2 (124M), Llama-3-8B, and corners.
TABLES = (
    scaled("tokens", tokens=16384, vocabulary=50257, columns=768),
    layer(tokens=8192, vocabulary=128256, columns=4096),
    ragged("tokens", tokens=16384, vocabulary=50257, columns=769),
    edge(tokens=100, vocabulary=3, columns=24),  # rows that many pieces of the tokens share
    edge(tokens=1, vocabulary=1, columns=5),
    edge(tokens=33, vocabulary=50, columns=520),
    edge(tokens=0, vocabulary=7, columns=8),
)

# Logits of a language model: tokens x vocabulary. 32000 is Llama-2, 128256 Llama-3, 50257 GPT-2.
# Of one class alone the gradient is nothing but rounding.
CLASSES = (
    scaled("rows", rows=4096, columns=32000),
    layer(rows=4096, columns=128256),
    ragged("rows", rows=4096, columns=50257),
    *(shape for shape in EDGE_ROWS if shape.dims["columns"] > 1),
)

_VGG = {"channels": 256, "height": 56, "width": 56, "kernel": 2, "stride": 2, "padding": 0}

# Pooled images, NCHW: the stem of ResNet-50, a stage of VGG-16, odd images, and corners.
POOLED_IMAGES = (
    scaled("images", images=32, **_RESNET_STEM),
    layer(images=32, **_RESNET_STEM),
    layer(images=32, **_VGG),
    ragged("images", images=32, channels=64, height=55, width=57, kernel=3, stride=2, padding=1),
    edge(images=1, channels=1, height=1, width=1, kernel=1, stride=1, padding=0),
    edge(images=2, channels=3, height=5, width=7, kernel=3, stride=1, padding=0),
    edge(images=2, channels=3, height=4, width=4, kernel=2, stride=2, padding=1),
    edge(images=0, channels=3, height=4, width=4, kernel=2, stride=2, padding=0),
)

# Rows that are quantized, as a whole or row by row, and rows made of whole blocks of 16 or 32.
QUANTIZED_ROWS = (
    scaled("rows", rows=4096, columns=4096),
    layer(rows=8192, columns=4096),
    ragged("rows", rows=4096, columns=4097),
    edge(rows=3, columns=5),
    edge(rows=0, columns=4096),
)
BLOCKED_ROWS = (
    scaled("rows", rows=4096, columns=4096),
    layer(rows=8192, columns=4096),
    ragged("rows", rows=4096, columns=4128),  # 129 blocks of 32
    edge(rows=3, columns=32),
    edge(rows=0, columns=4096),
)

# Images that are normalized by channel or by group: ResNet-50's stages, odd images, and corners.
CHANNEL_IMAGES = (
    scaled("images", images=32, channels=256, height=56, width=56),
    layer(images=32, channels=64, height=112, width=112),
    ragged("images", images=32, channels=64, height=55, width=57),
    edge(images=2, channels=5, height=3, width=7),
    edge(images=1, channels=1, height=8, width=9),
    edge(images=4, channels=64, height=1, width=1),
    edge(images=0, channels=3, height=4, width=4),
)
# NHWC, where rows are ragged that are not whole vectors of channels.
CHANNEL_LAST_IMAGES = (
    *CHANNEL_IMAGES[:2],
    ragged("images", images=32, channels=66, height=55, width=57),
    *CHANNEL_IMAGES[3:],
)
# In training a channel of no values, or of one, has no variance.
TRAINED_LAST_IMAGES = tuple(shape for shape in CHANNEL_LAST_IMAGES if shape.dims["images"])
TRAINED_IMAGES = tuple(shape for shape in CHANNEL_IMAGES if shape.dims["images"])

# Images pooled to windows that do not divide them: a stage of ResNet-18, AlexNet's last.
ADAPTED_IMAGES = (
    scaled("images", images=32, channels=64, height=56, width=56, out_height=6, out_width=6),
    layer(images=128, channels=256, height=13, width=13, out_height=6, out_width=6),
    ragged("images", images=32, channels=64, height=55, width=57, out_height=7, out_width=7),
    edge(images=1, channels=1, height=1, width=1, out_height=1, out_width=1),
    edge(images=2, channels=3, height=3, width=5, out_height=5, out_width=4),
    edge(images=0, channels=3, height=4, width=4, out_height=2, out_width=2),
)
# Windows without padding: a stage of ResNet-18, odd images, and a window that is the image.
NORMED_IMAGES = (
    scaled("images", images=32, channels=64, height=56, width=56, kernel=2, stride=2),
    ragged("images", images=32, channels=64, height=55, width=57, kernel=3, stride=2),
    edge(images=2, channels=3, height=4, width=4, kernel=4, stride=4),
    edge(images=0, channels=3, height=4, width=4, kernel=2, stride=2),
)

# Rows with a mask beside them, and those whose bit masks are whole bytes.
MASKED_ROWS = (*LLM_ROWS[:2], *RAGGED_ROWS, edge(rows=3, columns=5), edge(rows=0, columns=16))
BYTES_OF_BITS = (*LLM_ROWS[:2], edge(rows=3, columns=8), edge(rows=5, columns=4104))

# Pooled images, NHWC: channels that no vector width divides are what is ragged.
POOLED_LAST_IMAGES = (
    *POOLED_IMAGES[:3],
    ragged("images", images=32, channels=65, height=55, width=57, kernel=3, stride=2, padding=1),
    *POOLED_IMAGES[4:],
)

# Images normalized by groups of channels: 32 groups, PyTorch's and most models', and corners.
GROUPED_IMAGES = (
    scaled("images", images=32, channels=256, height=56, width=56, groups=32),
    layer(images=32, channels=64, height=112, width=112, groups=32),
    ragged("images", images=32, channels=64, height=55, width=57, groups=32),
    edge(images=2, channels=6, height=3, width=7, groups=2),
    edge(images=3, channels=64, height=1, width=1, groups=4),
    edge(images=5, channels=21, height=2, width=3, groups=3),
    edge(images=0, channels=4, height=4, width=4, groups=2),
)
# Every channel a group of its own.
INSTANCE_IMAGES = (
    *CHANNEL_IMAGES[:5],
    edge(images=3, channels=70, height=2, width=5),
)

# NCHW planes: a stage of ResNet-18, the last planes of ResNet-50, odd ones, and corners.
PLANES = (
    scaled("images", images=32, channels=64, height=56, width=56),
    layer(images=32, channels=2048, height=7, width=7),
    ragged("images", images=32, channels=64, height=55, width=57),
    edge(images=2, channels=5, height=7, width=7),
    edge(images=4, channels=33, height=1, width=1),
    edge(images=0, channels=3, height=4, width=4),
)

# Pooled images behind a convolution: the stem of ResNet-50, a stage of VGG-16, odd ones, corners.
BIASED_POOLED_IMAGES = (
    POOLED_IMAGES[0],
    POOLED_IMAGES[2],
    ragged("images", images=32, channels=64, height=55, width=57, kernel=3, stride=2, padding=1),
    edge(images=2, channels=3, height=5, width=7, kernel=3, stride=1, padding=0),
    edge(images=0, channels=3, height=4, width=4, kernel=2, stride=2, padding=0),
)

# Heads of queries and keys, grouped: Llama-3-8B has 32 and 8 of 128, Gemma-2B 8 and 1 of 256.
ROTATED_HEADS = (
    scaled("positions", positions=4096, q_heads=32, k_heads=8, width=128),
    layer(positions=8192, q_heads=32, k_heads=8, width=128),
    layer(positions=8192, q_heads=8, k_heads=1, width=256),
    ragged("positions", positions=4096, q_heads=7, k_heads=3, width=66),
    edge(positions=3, q_heads=5, k_heads=2, width=80),
    edge(positions=1, q_heads=1, k_heads=1, width=2),
    edge(positions=0, q_heads=2, k_heads=1, width=64),
)
