"""Inputs an operation is verified and timed on, and the float64 outputs they must give.

Inputs are full-mantissa random numbers (zeros and small integers compress and draw less power),
the same for every implementation of an operation. A backward input that forward writes or saves
comes from the forward reference, rounded to its dtype: no implementation feeds another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch

from .dtypes import DType
from .operation import Direction, Directions, Operation, Tensor

_CHUNK_ELEMENTS = 1 << 21
"""Elements of the widest operand per reference call: float64 intermediates then stay in cache."""


def make_inputs(
    operation: Operation,
    direction: str,
    dims: Mapping[str, int],
    dtype: DType,
    *,
    seed: int,
    device: str | torch.device = "cpu",
) -> dict[str, torch.Tensor]:
    """The tensors that `direction` reads, by name, on `device`; the same for the same seed.

    Raises ValueError where the operation has no such direction or the shape cannot be.
    """
    directions = operation.directions(dims, dtype)
    wanted = directions.get(direction)
    if wanted is None:
        raise ValueError(f"{operation.name} has no {direction}")
    derived = _from_forward(operation, directions, wanted, seed, device)
    return {
        tensor.name: derived[tensor.name]
        if tensor.name in derived
        else _fill(operation, tensor, seed, device)
        for tensor in wanted.reads
    }


def evaluate(
    direction: Direction,
    inputs: Mapping[str, torch.Tensor],
    device: str | torch.device = "cpu",
    first: int = 0,
) -> dict[str, torch.Tensor]:
    """Outputs of the reference by name, on `device`, where `inputs` are.

    first: where `inputs` begin in something longer, along the dimension they are sliced in.

    float64 where the operand is floating, else its own dtype. Raises ValueError where the
    reference gives other shapes than stated.
    """
    outputs = {
        tensor.name: torch.zeros(
            tensor.exact_shape,
            dtype=torch.float64 if tensor.is_rounded else tensor.dtype.torch_dtype,
            device=device,
        )
        for tensor in direction.outputs
    }
    for rows, parts in _reference_slices(direction, inputs, first):
        for tensor, part in zip(direction.outputs, parts, strict=True):
            sliced = _sliced(tensor, direction.batch)
            into = outputs[tensor.name][rows] if sliced else outputs[tensor.name]
            if into.shape != part.shape:
                raise ValueError(
                    f"the reference gives {tensor.name} as {tuple(part.shape)}; "
                    f"stated is {tuple(into.shape)}"
                )
            into.copy_(part if sliced else into + part)
    return outputs


def _reference_slices(
    direction: Direction, inputs: Mapping[str, torch.Tensor], first: int
) -> Iterator[tuple[slice, tuple[torch.Tensor, ...]]]:
    """(rows, outputs of the reference on these rows), until all rows are done."""
    batch = direction.batch
    extent, step = 1, 1
    if batch is not None:
        batched = [t for t in direction.operands.values() if t.batched_over == batch]
        extent = batched[0].shape[0]
        widest = max(t.elements // max(extent, 1) for t in batched)
        step = max(1, _CHUNK_ELEMENTS // max(widest, 1))
    for start in range(0, max(extent, 1), step):
        rows = slice(start, min(start + step, extent))
        arguments = [
            _exact(inputs[t.name][rows] if _sliced(t, batch) else inputs[t.name])
            for t in direction.reads
        ]
        if not arguments:  # a fill has no input to learn its rows from
            yield slice(0, extent), _tuple(direction.reference(*direction.writes[0].shape))
            return
        place = {"first": first + start} if direction.positioned else {}
        yield rows, _tuple(direction.reference(*arguments, **place))


def _sliced(tensor: Tensor, batch: str | None) -> bool:
    return batch is not None and tensor.batched_over == batch


def _exact(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _tuple(result: torch.Tensor | Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _from_forward(
    operation: Operation,
    directions: Directions,
    wanted: Direction,
    seed: int,
    device: str | torch.device,
) -> dict[str, torch.Tensor]:
    """What backward reads of forward's outputs, rounded to the dtype it is stored in."""
    forward = directions.forward
    if wanted is forward:
        return {}
    needed = [t for t in forward.outputs if t.name in {read.name for read in wanted.reads}]
    if not needed:
        return {}
    inputs = {t.name: _fill(operation, t, seed, device) for t in forward.reads}
    outputs = evaluate(forward, inputs, device)
    return {t.name: outputs[t.name].to(t.dtype.torch_dtype) for t in needed}


def _fill(
    operation: Operation, tensor: Tensor, seed: int, device: str | torch.device
) -> torch.Tensor:
    key = hashlib.sha256(f"{seed}/{operation.name}/{tensor.name}".encode()).digest()
    generator = torch.Generator(device=device).manual_seed(int.from_bytes(key[:7], "big"))
    if tensor.fill is not None:
        return tensor.fill(tensor, generator).to(tensor.dtype.torch_dtype)
    if not tensor.dtype.epsilon:
        raise ValueError(f"{operation.name}: {tensor.name} is {tensor.dtype}, so it needs a fill")
    values = torch.empty(tensor.shape, dtype=torch.float32, device=device)
    return values.normal_(generator=generator).to(tensor.dtype.torch_dtype)
