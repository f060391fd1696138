"""Whether an implementation is right: checked before it is timed, and again afterwards.

Outputs are poisoned with 0x00 and with 0xFF and must come out byte for byte alike, close to the
float64 reference, with the inputs untouched. A kernel that leaves a tail unwritten, reads what its
output held before, swaps rows or writes into its inputs is found here, and gets no bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..kernels.operation import Direction, Tensor
from ..kernels.spec import Launch, Prepared
from ..kernels.tolerance import compare_outputs

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Verified:
    """reason is None when right. max_error and tolerance are of the output nearest to its limit.

    outputs: the verified bytes, what every later run must give again.
    """

    reason: str | None
    max_error: float | None
    tolerance: float | None
    outputs: dict[str, torch.Tensor]


def verify(
    io: Direction,
    launch: Launch,
    tensors: Tensors,
    pristine: Tensors,
    exact: Tensors,
    synchronize: Callable[[], None],
    keep: Callable[[Tensor], torch.Tensor],
    prepared: Prepared | None = None,
) -> Verified:
    """Run `launch` on `tensors` twice and judge what it wrote.

    tensors: operands and scratch that `launch` is bound to; pristine: the inputs as they were
    made; exact: the reference's outputs; keep: where a copy of an output may be put; prepared:
    says which inputs are written over, and are so restored before the second run, not after it.
    """
    in_place = prepared.in_place if prepared else {}
    overwritten = prepared.overwritten if prepared else []

    def run(poison: int) -> dict[str, torch.Tensor]:
        for name, tensor in tensors.items():
            if name not in pristine:
                _words(tensor).fill_(poison if poison == 0 else -1)
        returned = launch()
        synchronize()
        return outputs_of(io, returned, tensors, in_place)

    first = run(0x00)
    try:
        comparisons = compare_outputs(io.writes, first, exact)
    except ValueError as error:
        return Verified(str(error), None, None, {})
    if not comparisons:
        return Verified("writes nothing that can be checked", None, None, {})
    kept = {t.name: keep(t).copy_(first[t.name]) for t in io.writes}
    restore(tensors, pristine, overwritten)
    second = run(0xFF)
    worst = max(comparisons, key=lambda c: c.max_error / c.tolerance if c.tolerance else 0.0)
    reason = (
        next((str(c) for c in comparisons if not c.ok), None)
        or changed_input(io, tensors, pristine, overwritten)
        or changed_output(io, second, kept, "depends on what the output held before")
    )
    return Verified(reason, worst.max_error, worst.tolerance, kept)


def changed_output(io: Direction, outputs: Tensors, kept: Tensors, what: str) -> str | None:
    """Name of the first output whose bytes are not the kept ones, with `what` it means."""
    for tensor in io.writes:
        if not same_bytes(outputs[tensor.name], kept[tensor.name]):
            return f"{tensor.name} {what}"
    return None


def changed_input(
    io: Direction, tensors: Tensors, pristine: Tensors, overwritten: Collection[str]
) -> str | None:
    """Name of the first input that is not as it was made, though nobody said it would not be."""
    for tensor in io.reads:
        kept = tensor.name in overwritten or same_bytes(tensors[tensor.name], pristine[tensor.name])
        if not kept:
            return f"input {tensor.name} was modified"
    return None


def restore(tensors: Tensors, pristine: Tensors, names: Iterable[str]) -> None:
    """Inputs of these names as they were made."""
    for name in names:
        tensors[name].copy_(pristine[name])


def outputs_of(
    io: Direction,
    returned: Sequence[torch.Tensor] | None,
    tensors: Tensors,
    in_place: Mapping[str, str],
) -> dict[str, torch.Tensor]:
    """The written tensors: returned by an allocating launch, else the ones it was bound to."""
    if returned is None:
        return {t.name: tensors[in_place.get(t.name, t.name)] for t in io.writes}
    return {tensor.name: value for tensor, value in zip(io.writes, returned, strict=True)}


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    words, others = _words(one), _words(other)
    if words.dtype != others.dtype:  # the two do not begin alike
        words, others = words.view(torch.uint8), others.view(torch.uint8)
    return torch.equal(words, others)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in the widest integer they divide into: comparing must not see floats."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    for dtype, width in ((torch.int64, 8), (torch.int32, 4), (torch.int16, 2)):
        # An empty tensor has no address, but an offset that has to fit all the same.
        if all(n % width == 0 for n in (raw.numel(), raw.data_ptr(), raw.storage_offset())):
            return raw.view(dtype)
    return raw.view(torch.int8)
