"""The contract between an implementation and whoever runs it.

An implementation module has `prepare(direction, spec) -> Prepared`: compile and choose, once.
`Prepared.bind(tensors, stream)` returns a launch for one set of buffers; `launch()` only enqueues,
on that stream. Binding again to other buffers is how buffers rotate. Optional in the module:

    VARIANTS = ("raw",)                        named forms besides the default one
    LADDERS = {"copy": Ladder("forward", …)}   those that are steps of a kernel ladder (ladder.py)
    LACKS = {"causal_softmax": "…"}            operations of its file that it does not have, and why
    def refuses(direction, dtype) -> str|None  one line where it cannot run, else None
    def refuses_raw(direction, dtype)          the same of the variant "raw", where that differs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .dtypes import DType
from .operation import Direction, DirectionName, Operation, Tensor
from .target import Target

if TYPE_CHECKING:
    import torch

Choice = Mapping[str, int | float | str | bool]
Tensors = Mapping[str, "torch.Tensor"]
Launch = Callable[..., "Sequence[torch.Tensor] | None"]
"""Enqueue one run. An implementation that allocates its outputs returns them, in the order of
`Direction.writes`; every other one has been given its outputs and returns None. A backend with
implementations that allocate takes tensors by operand name, `launch(x=…)`: in a chain they stand in
for the bound ones, anew at every run."""

Bind = Callable[[Tensors, Any], Launch]
"""(tensors by operand or scratch name, torch.cuda.Stream or None on the CPU) -> launch. Inputs hold
their values by then: what an implementation's own forward leaves is made here."""


@dataclass(frozen=True)
class Spec:
    """What is to be prepared.

    io: the operation at these dims and this dtype, in this direction.
    choice: the autotuned configuration of this run; None means the implementation may choose.
    streaming: outputs are not read again soon (False inside a chain, whose steps must leave their
        intermediates in the cache if they fit).
    toolchain: what builds and launches CUDA C++; None is NVRTC and the driver. The emulator and
        the audits bring their own.
    """

    operation: Operation
    direction: DirectionName
    dims: Mapping[str, int]
    dtype: DType
    io: Direction
    target: Target
    variant: str = ""
    choice: Choice | None = None
    streaming: bool = True
    toolchain: Any = None


@dataclass(frozen=True)
class Prepared:
    """One implementation, ready to be bound.

    scratch: buffers it needs beside the operands (partial sums), allocated by whoever binds.
    allocates: it allocates its outputs inside the clock.
    in_place: output -> the input over which it is written, as the interface of a library may have
        it; spoils: inputs that are written over by what is no output. Whoever runs the launch
        restores both before each run, outside the clock.
    waits: a launch waits for the device before it returns.
    choice: the configuration it chose, empty where there is nothing to choose.
    schedule_bytes: bytes that it moves on this target where those are not what the direction says,
        which is what the most capable device needs.
    compile_seconds: time spent compiling, None where it is not known apart.
    """

    bind: Bind
    scratch: Sequence[Tensor] = ()
    allocates: bool = False
    in_place: Mapping[str, str] = field(default_factory=dict)
    spoils: Sequence[str] = ()
    waits: bool = False
    choice: Choice = field(default_factory=dict)
    schedule_bytes: int | None = None
    compile_seconds: float | None = None

    @property
    def overwritten(self) -> list[str]:
        """Inputs that a launch writes over."""
        return [*self.in_place.values(), *self.spoils]


class CannotPrepare(Exception):
    """This implementation cannot run this spec here; the message is the one-line reason."""


class DoesNotCompile(CannotPrepare):
    """Its source is refused by its compiler; the message names source, place and error."""
