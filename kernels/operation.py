"""An operation, stated once: its tensors, its float64 reference, its shapes and dtypes.

Traffic is never typed by hand. It is the sum of the tensors that a direction reads and writes,
the same ones that get allocated, so the bytes that are quoted and the bytes that exist agree.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .dtypes import DType, float32
from .shapes import Shape

if TYPE_CHECKING:
    import torch

DirectionName = Literal["forward", "backward"]
DIRECTIONS: tuple[DirectionName, ...] = ("forward", "backward")

Fill = Callable[["Tensor", "torch.Generator"], "torch.Tensor"]
Reference = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...]"]


class Dim(int):
    """An extent that remembers its name, so that a tensor knows which axis it is batched over."""

    name: str

    def __new__(cls, length: int, name: str) -> Dim:
        self = super().__new__(cls, length)
        self.name = name
        return self


@dataclass(frozen=True)
class Tensor:
    """A contiguous operand.

    moved: elements that must move where that is not all of them (0 for a by-product that no
        minimum contains); None means every element once.
    fill: how an input is made; None is a full-mantissa standard normal.
    reduces: how many terms one element of an output sums, which its tolerance grows with.
    slack: of an output of codes: how far, relative to its size, what is encoded may be from the
        reference, which gives it before it is encoded. 0: codes are those of the reference.
    scaled_by: name of an output that scales this one, a number of it for so many of this: codes are
        held to the scale that was written. The reference then gives code times scale.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    moved: int | None = None
    fill: Fill | None = None
    reduces: int = 1
    slack: float = 0.0
    scaled_by: str | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_rounded(self) -> bool:
        """Whether the reference gives it before it is rounded to what is stored."""
        return bool(self.dtype.epsilon or self.slack)

    @property
    def exact_shape(self) -> tuple[int, ...]:
        """Shape of its numbers: twice as long as stored where these are pairs."""
        numbers = self.dtype.numbers
        return self.shape if numbers == 1 else (*self.shape[:-1], self.shape[-1] * numbers)

    @property
    def nbytes(self) -> int:
        """Bytes it occupies."""
        return self.dtype.nbytes(self.elements)

    @property
    def traffic(self) -> int:
        """Bytes that must move for it."""
        return self.nbytes if self.moved is None else self.dtype.nbytes(self.moved)

    @property
    def batched_over(self) -> str | None:
        """Name of its leading dimension, None for a scalar or an unnamed extent."""
        return self.shape[0].name if self.shape and isinstance(self.shape[0], Dim) else None


def tensors(
    names: str, shape: Iterable[int], dtype: DType, *, reduces: int = 1, fill: Fill | None = None
) -> list[Tensor]:
    """One `Tensor` per name in `names` (separated by spaces), alike in everything else."""
    shape = tuple(shape)
    return [Tensor(name, shape, dtype, fill=fill, reduces=reduces) for name in names.split()]


@dataclass(frozen=True)
class Direction:
    """What one direction reads and writes, and the arithmetic that defines it.

    reference: float64 tensors of `reads` in order, in; `writes` then `saves`, in order, out. Unless
        `separable` is False it may be given a slice of the leading dimension of its first tensor;
        an output without that dimension is then the sum over the slices.
    positioned: the reference depends on where a slice stands, and takes its first index, `first=`.
    saves: what forward leaves for backward. Part of the traffic; not compared by itself, since an
        implementation may keep its own form, which is checked through its own backward.
    schedule_bytes: bytes where on-chip capacity forces a re-read; None where it does not.
    """

    reads: Sequence[Tensor]
    writes: Sequence[Tensor]
    reference: Reference
    saves: Sequence[Tensor] = ()
    flops: int | None = None
    schedule_bytes: int | None = None
    separable: bool = True
    positioned: bool = False

    @property
    def outputs(self) -> list[Tensor]:
        """What the reference returns: writes, then saves."""
        return [*self.writes, *self.saves]

    @property
    def operands(self) -> dict[str, Tensor]:
        """Every tensor by name, reads first."""
        return {tensor.name: tensor for tensor in (*self.reads, *self.outputs)}

    @property
    def bytes_read(self) -> int:
        return sum(tensor.traffic for tensor in self.reads)

    @property
    def bytes_written(self) -> int:
        return sum(tensor.traffic for tensor in self.outputs)

    @property
    def traffic(self) -> int:
        """Bytes that must be read and written: the numerator of achieved bandwidth."""
        return self.bytes_read + self.bytes_written

    @property
    def scheduled(self) -> int:
        """Bytes that move where capacity forces a re-read; the traffic elsewhere."""
        return self.traffic if self.schedule_bytes is None else self.schedule_bytes

    @property
    def batch(self) -> str | None:
        """The dimension the reference may be sliced along."""
        first = next(iter((*self.reads, *self.writes)), None)
        return first.batched_over if first is not None and self.separable else None


@dataclass(frozen=True)
class Directions:
    forward: Direction
    backward: Direction | None = None

    def get(self, name: str) -> Direction | None:
        return {"forward": self.forward, "backward": self.backward}.get(name)


@dataclass(frozen=True)
class Step:
    """One operation of a chain.

    operands: its tensor names -> names in the fused operation; a name the fused direction does not
        have is an intermediate, and one that is left out is an intermediate of its own.
    dtype: what it runs in where that is not the dtype of the fused operation.
    extents: its extents that the fused operation has no equal of, as products of those that it has:
        an image's {"rows": ("images", "channels"), "columns": ("height", "width")}.
    """

    operation: str
    operands: Mapping[str, str]
    direction: DirectionName = "forward"
    dtype: DType | None = None
    extents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def dims(self, names: Iterable[str], fused: Mapping[str, int]) -> dict[str, int]:
        """Its extents `names`, made of those of the fused operation."""
        return {name: prod(fused[n] for n in self.extents.get(name, (name,))) for name in names}


@dataclass(frozen=True)
class Chain:
    """The smaller operations that a fused one replaces, run one after the other.

    Backward steps may read what forward steps make, as layers that run apart keep it; it is made
    when buffers are bound, from what both directions read.
    idle: what forward reads beside that, on which nothing that backward reads depends: it is zero.
    kept: what layers that run apart keep for backward where the fused one keeps another form, made
        of what backward reads when buffers are bound.
    widened, narrowed: what the steps read, and write, in float32: where the fused operation has it
        in another dtype, it is cast by steps of their own.
    """

    forward: Sequence[Step]
    backward: Sequence[Step] = ()
    idle: frozenset[str] = frozenset()
    kept: Mapping[str, Keep] = field(default_factory=dict)
    widened: Sequence[str] = ()
    narrowed: Sequence[str] = ()

    def steps(self, direction: str, dtype: DType) -> Sequence[Step]:
        """Those of a direction, where the fused operation runs in `dtype`."""
        steps = self.forward if direction == "forward" else self.backward
        if dtype == float32 or not (self.widened or self.narrowed):
            return steps
        named = {name for step in steps for name in step.operands.values()}
        wide = {name: f"wide {name}" for name in (*self.widened, *self.narrowed)}
        before = (n for n in self.widened if n in named)
        after = (n for n in self.narrowed if n in named)
        return [
            *(Step("cast_to_float32", {"x": name, "y": wide[name]}) for name in before),
            *(replace(step, operands=_renamed(step.operands, wide)) for step in steps),
            *(Step(f"cast_to_{dtype}", {"x": wide[n], "y": n}, dtype=float32) for n in after),
        ]


Keep = Callable[[Mapping[str, "torch.Tensor"]], "torch.Tensor"]
"""What backward reads, by name -> one more tensor."""


def _renamed(operands: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {own: names.get(name, name) for own, name in operands.items()}


Statement = Callable[..., Directions]


@dataclass(frozen=True)
class Operation:
    """One mathematical layer. `chains` maps a variant name ("unfused") to the chain it runs."""

    name: str
    family: str
    tier: int
    shapes: tuple[Shape, ...]
    dtypes: tuple[DType, ...]
    statement: Statement
    source: Path
    summary: str
    chains: Mapping[str, Chain] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """File stem that its implementations share: `<stem>_cuda.py`, …"""
        return self.source.stem

    @cached_property
    def dims(self) -> tuple[str, ...]:
        """Names of its extents, in order."""
        return tuple(p for p in inspect.signature(self.statement).parameters if p != "dtype")

    def directions(self, dims: Mapping[str, int], dtype: DType) -> Directions:
        """The operation at one shape. Raises ValueError where the shape cannot be."""
        if set(dims) != set(self.dims):
            raise ValueError(f"{self.name} takes {', '.join(self.dims)}; got {', '.join(dims)}")
        named = {name: Dim(dims[name], name) for name in self.dims}
        if any(length < 0 for length in named.values()):
            raise ValueError(f"{self.name}: extents are not negative; got {dict(dims)}")
        return self.statement(**named, dtype=dtype)

    def has(self, direction: str) -> bool:
        return direction in self._stated

    @cached_property
    def _stated(self) -> tuple[str, ...]:
        both = self.directions(self.shapes[0].dims, self.dtypes[0])
        return tuple(name for name in DIRECTIONS if both.get(name) is not None)


def operation(
    *,
    shapes: Sequence[Shape],
    dtypes: Sequence[DType],
    tier: int = 2,
    chain: Chain | None = None,
    chains: Mapping[str, Chain] | None = None,
    name: str | None = None,
) -> Callable[[Statement], Operation]:
    """Make an `Operation` of a statement `f(*extents, dtype) -> Directions`.

    Its family is the folder of the file, its summary the first line of the docstring of the
    statement or else of the module. Nothing is registered: `discovery` finds the object.
    """

    def make(statement: Statement) -> Operation:
        module = inspect.getmodule(statement)
        source = Path(inspect.getfile(statement)).resolve()
        doc = statement.__doc__ or (module.__doc__ if module else None) or ""
        return Operation(
            name=name or statement.__name__,
            family=source.parent.name,
            tier=tier,
            shapes=tuple(shapes),
            dtypes=tuple(dtypes),
            statement=statement,
            source=source,
            summary=doc.strip().partition("\n")[0],
            chains=chains or ({"unfused": chain} if chain else {}),
        )

    return make
