"""The unfused form of a fused operation: its chain, run one implementation after another.

Each step stores its intermediates with the default cache policy (`Spec.streaming` is False), since
the next step reads them; intermediates are scratch of the chain. What backward reads of forward's
intermediates is made, by forward's steps, when buffers are bound. The choice of a chain is that of
its steps, `0.warps`, and of forward's steps, `before.0.warps`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .backends.torch import on
from .dtypes import DTYPES, DType
from .operation import DIRECTIONS, Chain, Direction, Operation, Step, Tensor
from .spec import CannotPrepare, Choice, Launch, Prepared, Spec, Tensors

if TYPE_CHECKING:
    import torch

    from .discovery import Catalogue, Implementation


_BEFORE = "before."


@dataclass(frozen=True)
class _Part:
    """One prepared step and the names its tensors have in the chain."""

    prepared: Prepared
    io: Direction
    names: Mapping[str, str]  # operand or scratch of the step -> name in the chain


def exists(catalogue: Catalogue, unfused: Implementation) -> bool:
    """Whether every step of the chain has an implementation in this backend."""
    return all(
        catalogue.default(step.operation, unfused.backend) is not None
        for step in _all_steps(unfused.operation, unfused.variant)
    )


def step_implementations(catalogue: Catalogue, unfused: Implementation) -> list[Implementation]:
    steps = _all_steps(unfused.operation, unfused.variant)
    found = (catalogue.default(step.operation, unfused.backend) for step in steps)
    return [implementation for implementation in found if implementation is not None]


def faults(operations: Mapping[str, Operation], operation: Operation) -> Iterator[str]:
    """What is wrong with the chains of `operation`: names that do not exist, missing inputs."""
    shape, dtype = operation.shapes[0], operation.dtypes[0]
    for variant, steps in operation.chains.items():
        for direction in DIRECTIONS:
            fused = operation.directions(shape.dims, dtype).get(direction)
            known = {tensor.name for tensor in fused.reads} if fused else set()
            if direction == "backward":
                known |= steps.kept.keys()
                known |= _made_by_forward(operations, operation, steps, shape.dims, dtype, known)
            for step in steps.steps(direction, dtype):
                where = f"chain {variant!r} of {operation.name}, step {step.operation}"
                if step.operation not in operations:
                    yield f"{where}: no such operation"
                    continue
                needed = operations[step.operation].dims
                named = (step.extents.get(name, (name,)) for name in needed)
                missing = set(itertools.chain.from_iterable(named)) - set(operation.dims)
                if missing:
                    yield f"{where}: {operation.name} has no extent {', '.join(sorted(missing))}"
                    continue
                try:
                    io = _step_io(operations, step, shape.dims, dtype)[1]
                except CannotPrepare:
                    yield f"{where}: has no {step.direction}"
                    continue
                for name in sorted(step.operands.keys() - io.operands.keys()):
                    yield f"{where}: has no tensor {name}"
                for tensor in io.reads:
                    if step.operands.get(tensor.name) not in known:
                        yield f"{where}: nothing before it makes its {tensor.name}"
                known |= {step.operands[t.name] for t in io.outputs if t.name in step.operands}
            for tensor in fused.writes if fused and steps.steps(direction, dtype) else ():
                if tensor.name not in known:
                    yield f"chain {variant!r} of {operation.name}: no step writes {tensor.name}"


def refuses(
    catalogue: Catalogue, unfused: Implementation, direction: str, dtype: str
) -> str | None:
    """The first step that cannot run, named with its reason."""
    steps = unfused.operation.chains[unfused.variant].steps(direction, DTYPES[dtype])
    if not steps:
        return f"{unfused.operation.name} names no {direction} chain"
    for step in steps:
        implementation = catalogue.default(step.operation, unfused.backend)
        if implementation is None:
            return f"step {step.operation} has no {unfused.backend} implementation"
        reason = implementation.refuses(step.direction, step.dtype.name if step.dtype else dtype)
        if reason:
            return f"step {step.operation}: {reason}"
    return None


def traffic(
    operations: Mapping[str, Operation],
    operation: Operation,
    variant: str,
    direction: str,
    dims: Mapping[str, int],
    dtype: DType,
) -> int | None:
    """Bytes the steps of a chain move one after the other, by their schedules where they re-read;
    None where it has no such direction."""
    steps = operation.chains[variant].steps(direction, dtype)
    if not steps:
        return None
    return sum(_step_io(operations, step, dims, dtype)[1].scheduled for step in steps)


def prepare(catalogue: Catalogue, unfused: Implementation, spec: Spec) -> Prepared:
    """Prepare every step in order. Raises CannotPrepare naming the step that cannot."""
    steps = spec.operation.chains[spec.variant]
    own = steps.steps(spec.direction, spec.dtype)
    if not own:
        raise CannotPrepare(f"{spec.operation.name} names no {spec.direction} chain")
    parts = _parts(catalogue, unfused, spec, own)
    left = _left_by_forward(parts, spec) if spec.direction == "backward" else set()
    rerun = steps.steps("forward", spec.dtype) if left - steps.kept.keys() else ()
    before = _parts(catalogue, unfused, spec, rerun, _BEFORE)
    kept = {name: keep for name, keep in steps.kept.items() if name in left}
    scratch: dict[str, Tensor] = {}
    for part in parts:
        for tensor in (*part.io.operands.values(), *part.prepared.scratch):
            name = part.names[tensor.name]
            if name not in spec.io.operands and name not in left:
                shape = _shape_of(part, tensor, {**spec.io.operands, **scratch})
                scratch.setdefault(name, replace(tensor, name=name, shape=shape))

    def bind(tensors: Tensors, stream: Any) -> Launch:
        made = _run_forward(before, tensors, stream)
        if kept:
            with on(stream):
                made |= {name: keep(tensors) for name, keep in kept.items()}
        return _bind(parts, spec.io, {**tensors, **{name: made[name] for name in left}}, stream)

    return Prepared(
        bind=bind,
        scratch=tuple(scratch.values()),
        allocates=any(part.prepared.allocates for part in parts),
        choice={**_choices(before, _BEFORE), **_choices(parts)},
        compile_seconds=_sum(part.prepared.compile_seconds for part in (*before, *parts)),
    )


def _choices(parts: Sequence[_Part], prefix: str = "") -> Choice:
    return {
        f"{prefix}{index}.{key}": value
        for index, part in enumerate(parts)
        for key, value in part.prepared.choice.items()
    }


def _choice_of(whole: Choice | None, prefix: str) -> Choice | None:
    """What `_choices` has put under `prefix`; None where there is nothing."""
    found = {k.removeprefix(prefix): v for k, v in (whole or {}).items() if k.startswith(prefix)}
    return found or None


def _parts(
    catalogue: Catalogue,
    unfused: Implementation,
    spec: Spec,
    steps: Sequence[Step],
    prefix: str = "",
) -> list[_Part]:
    parts = []
    for index, step in enumerate(steps):
        implementation = catalogue.default(step.operation, unfused.backend)
        if implementation is None:
            raise CannotPrepare(f"step {step.operation} has no {unfused.backend} implementation")
        operation, io = _step_io(catalogue.operations, step, spec.dims, spec.dtype)
        prepared = implementation.prepare(
            replace(
                spec,
                operation=operation,
                direction=step.direction,
                dims=step.dims(operation.dims, spec.dims),
                dtype=step.dtype or spec.dtype,
                io=io,
                variant="",
                choice=_choice_of(spec.choice, f"{prefix}{index}."),
                streaming=False,
            )
        )
        if prepared.overwritten:
            raise CannotPrepare(f"step {step.operation} writes over what it reads")
        names = {name: step.operands.get(name, f"{index}.{name}") for name in io.operands}
        names |= {tensor.name: f"{index}.{tensor.name}" for tensor in prepared.scratch}
        parts.append(_Part(prepared, io, names))
    return parts


def _shape_of(part: _Part, tensor: Tensor, known: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Of what a step makes: that of as many elements which it reads, where it counts an image as
    rows and columns."""
    for read in part.io.reads:
        given = known.get(part.names[read.name])
        if tensor in part.io.outputs and read.shape == tensor.shape and given is not None:
            return given.shape
    return tensor.shape


def _left_by_forward(parts: Sequence[_Part], spec: Spec) -> set[str]:
    """Names that backward's steps read, and neither the fused operation nor a step before gives."""
    known, left = set(spec.io.operands), set[str]()
    for part in parts:
        left |= {part.names[tensor.name] for tensor in part.io.reads} - known
        known |= {part.names[tensor.name] for tensor in part.io.outputs}
    return left


def _run_forward(parts: Sequence[_Part], tensors: Tensors, stream: Any) -> dict[str, torch.Tensor]:
    """Run forward's steps once, outside the clock, into memory of their own."""
    import torch

    made = dict(tensors)
    device = next(iter(tensors.values())).device
    for part in parts:
        for tensor in part.io.reads:
            if part.names[tensor.name] not in made:  # idle
                made[part.names[tensor.name]] = torch.zeros(
                    tensor.shape, dtype=tensor.dtype.torch_dtype, device=device
                )
        for tensor in (*part.io.outputs, *part.prepared.scratch):
            made[part.names[tensor.name]] = torch.empty(
                tensor.shape, dtype=tensor.dtype.torch_dtype, device=device
            )
        results = part.prepared.bind(_own(part, made), stream)()
        for tensor, value in zip(part.io.writes, results or (), strict=results is not None):
            made[part.names[tensor.name]] = value
    return made


def _bind(parts: list[_Part], io: Direction, tensors: Tensors, stream: Any) -> Launch:
    """Bind every step before the clock; what a step allocates is handed on at each run."""
    launches = [part.prepared.bind(_own(part, tensors), stream) for part in parts]
    if not any(part.prepared.allocates for part in parts):

        def launch() -> None:
            for run in launches:
                run()

        return launch

    def launch_allocating() -> list[torch.Tensor]:
        fresh: dict[str, torch.Tensor] = {}
        for part, run in zip(parts, launches, strict=True):
            inputs = ((tensor.name, part.names[tensor.name]) for tensor in part.io.reads)
            results = run(**{own: fresh[name] for own, name in inputs if name in fresh})
            for tensor, value in zip(part.io.writes, results or (), strict=results is not None):
                fresh[part.names[tensor.name]] = value
        return [fresh.get(tensor.name, tensors[tensor.name]) for tensor in io.writes]

    return launch_allocating


def _own(part: _Part, tensors: Tensors) -> dict[str, torch.Tensor]:
    return {own: tensors[name] for own, name in part.names.items()}


def _sum(seconds: Iterable[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) if known else None


def _all_steps(operation: Operation, variant: str) -> Iterator[Step]:
    for dtype in operation.dtypes:
        for direction in DIRECTIONS:
            yield from operation.chains[variant].steps(direction, dtype)


def _made_by_forward(
    operations: Mapping[str, Operation],
    operation: Operation,
    steps: Chain,
    dims: Mapping[str, int],
    dtype: DType,
    given: set[str],
) -> set[str]:
    """Names that forward's steps make of what backward is given; none where that is not enough."""
    forward = operation.directions(dims, dtype).forward
    if not {tensor.name for tensor in forward.reads} <= given | steps.idle:
        return set()
    made = set[str]()
    for step in steps.steps("forward", dtype):
        if step.operation in operations:
            io = _step_io(operations, step, dims, dtype)[1]
            made |= {step.operands[t.name] for t in io.outputs if t.name in step.operands}
    return made


def _step_io(
    operations: Mapping[str, Operation], step: Step, dims: Mapping[str, int], dtype: DType
) -> tuple[Operation, Direction]:
    operation = operations[step.operation]
    directions = operation.directions(step.dims(operation.dims, dims), step.dtype or dtype)
    io = directions.get(step.direction)
    if io is None:
        raise CannotPrepare(f"step {step.operation} has no {step.direction}")
    return operation, io
