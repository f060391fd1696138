"""Cross-entropy of logits and target classes, one loss a row (`reduction="none"`), in float32.

    lse = log(sum(exp(x)))        loss = (1 - e)(lse - x[target]) + e (lse - mean(x))
    dx = dloss (exp(x - lse) - (1 - e) [column = target] - e / columns)

e, the label smoothing of `torch.nn.functional.cross_entropy`, is 0, and 0.1 in the operations
whose name says so. Layers that run apart compute in float32, as losses are written: logits of 16
bits are cast first, gradients last. A target of -100 (`ignore_index`) leaves loss and gradient 0,
whatever the row holds. A target that is no class makes both NaN and is never followed out of the
row; PyTorch stops the device.

`cross_entropy_forward_backward` makes loss and gradient from one read of the logits, for a dloss
that is known beforehand. dx is written beside x, so that it can be run again; its variant
`in_place` writes it over x, as models with large vocabularies do: the bytes are the same, in half
the memory.
"""

from __future__ import annotations

import torch

from ..dtypes import FLOATS, DType, bfloat16, float32, int64
from ..long_rows import reread
from ..operation import Chain, Direction, Directions, Step, Tensor, operation, tensors
from ..shapes import CLASSES

Real = torch.Tensor

IGNORED = -100
SMOOTHING = 0.1


def classes(tensor: Tensor, generator: torch.Generator, *, columns: int) -> Real:
    return torch.randint(columns, tensor.shape, generator=generator, device=generator.device)


def losses(x: Real, target: Real, smoothing: float) -> tuple[Real, Real]:
    """(loss, lse). As in log_softmax, a row that holds +inf, or -inf alone, is NaN."""
    logarithms = torch.log_softmax(x, -1)
    own = torch.gather(logarithms, 1, target.clamp(0, x.shape[1] - 1)[:, None])[:, 0]
    loss = -(1 - smoothing) * own
    if smoothing:
        loss = loss - smoothing * logarithms.mean(-1)
    loss = torch.where(is_class(target, x.shape[1]), loss, torch.nan)
    return torch.where(target == IGNORED, 0.0, loss), x.amax(-1) - logarithms.amax(-1)


def gradients(dloss: Real, x: Real, target: Real, lse: Real, smoothing: float) -> Real:
    wanted = torch.arange(x.shape[1], device=x.device) == target[:, None]
    dx = (x - lse[:, None]).exp() - (1 - smoothing) * wanted - smoothing / x.shape[1]
    dx = torch.where(is_class(target, x.shape[1])[:, None], dx * dloss[:, None], torch.nan)
    return torch.where(target[:, None] == IGNORED, 0.0, dx)


def is_class(target: Real, columns: int) -> Real:
    return (target >= 0) & (target < columns)


def operands(
    rows: int, columns: int, dtype: DType, *, moved: int | None = None
) -> dict[str, Tensor]:
    """Those of a loss and its gradient, by name; moved: elements of x that are needed."""
    if not columns:
        raise ValueError("there is no class to be the target: columns is 0")
    found = tensors("dloss loss lse", (rows,), float32, reduces=columns)
    found += [Tensor("x", (rows, columns), dtype, moved=moved)]
    found += [Tensor("dx", (rows, columns), dtype, reduces=columns)]

    def fill(tensor: Tensor, generator: torch.Generator) -> Real:
        return classes(tensor, generator, columns=columns)

    found += [Tensor("target", (rows,), int64, fill=fill)]
    return {tensor.name: tensor for tensor in found}


def _apart(rows: int, columns: int, dtype: DType, smoothing: float) -> Directions:
    named = operands(rows, columns, dtype)

    def forward(x: Real, target: Real) -> tuple[Real, Real]:
        return losses(x, target, smoothing)

    def backward(dloss: Real, x: Real, target: Real, lse: Real) -> Real:
        return gradients(dloss, x, target, lse, smoothing)

    return Directions(
        forward=Direction(
            [named["x"], named["target"]], [named["loss"]], forward, saves=[named["lse"]]
        ),
        backward=Direction(
            [named[name] for name in ("dloss", "x", "target", "lse")], [named["dx"]], backward
        ),
    )


def _eager(of: str) -> tuple[list[Step], list[Step]]:
    """Forward and backward as layers that run apart, in float32; `of` is "" or "_smoothed"."""
    target, logarithms = {"target": "target"}, {"y": "logarithms"}
    loss = {"x": "logarithms", "loss": "loss"} | target
    gradient = {"dloss": "dloss", "dx": "dlogarithms"} | target
    dx = {"dy": "dlogarithms", "dx": "dx"} | logarithms
    return (
        [
            Step("log_softmax", {"x": "x"} | logarithms, dtype=float32),
            Step(f"nll_loss{of}", loss, dtype=float32),
        ],
        [
            Step(f"nll_loss{of}", gradient, direction="backward", dtype=float32),
            Step("log_softmax", dx, direction="backward", dtype=float32),
        ],
    )


def _chain(of: str) -> Chain:
    forward, backward = _eager(of)
    return Chain(forward, backward, widened=["x"], narrowed=["dx"])


@operation(shapes=CLASSES, dtypes=FLOATS, chain=_chain(""))
def cross_entropy(rows: int, columns: int, dtype: DType) -> Directions:
    """Cross-entropy of rows of logits and a class each."""
    return _apart(rows, columns, dtype, 0.0)


@operation(shapes=CLASSES, dtypes=[float32, bfloat16], chain=_chain("_smoothed"))
def cross_entropy_smoothed(rows: int, columns: int, dtype: DType) -> Directions:
    """Cross-entropy with a label smoothing of 0.1."""
    return _apart(rows, columns, dtype, SMOOTHING)


def _together(rows: int, columns: int, dtype: DType, smoothing: float) -> Directions:
    named = operands(rows, columns, dtype)

    def forward(dloss: Real, x: Real, target: Real) -> tuple[Real, Real]:
        loss, lse = losses(x, target, smoothing)
        return loss, gradients(dloss, x, target, lse, smoothing)

    reads = [named["dloss"], named["x"], named["target"]]
    direction = Direction(reads, [named["loss"], named["dx"]], forward)
    return Directions(reread(direction, named["x"]))


def _chains(of: str) -> dict[str, Chain]:
    """All apart, and a fused loss followed by a fused gradient."""
    forward, backward = _eager(of)
    name, dx = f"cross_entropy{of}", ("dloss", "x", "target", "lse", "dx")
    loss = Step(name, {operand: operand for operand in ("x", "target", "loss", "lse")})
    gradient = Step(name, {operand: operand for operand in dx}, direction="backward")
    return {
        "unfused": Chain([*forward, *backward], widened=["x"], narrowed=["dx"]),
        "loss_fused": Chain([loss, gradient]),
    }


@operation(shapes=CLASSES, dtypes=FLOATS, chains=_chains(""))
def cross_entropy_forward_backward(rows: int, columns: int, dtype: DType) -> Directions:
    """Cross-entropy and its gradient from one read of the logits."""
    return _together(rows, columns, dtype, 0.0)


@operation(shapes=CLASSES, dtypes=[float32, bfloat16], chains=_chains("_smoothed"))
def cross_entropy_smoothed_forward_backward(rows: int, columns: int, dtype: DType) -> Directions:
    """Cross-entropy with a label smoothing of 0.1 and its gradient from one read of the logits."""
    return _together(rows, columns, dtype, SMOOTHING)
