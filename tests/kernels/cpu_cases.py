"""The `cpu` kernels beside float64 on small shapes: where operands lie, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from membound.kernels.discovery import Catalogue, Implementation, discover
from membound.kernels.dtypes import DTYPES
from membound.kernels.operation import DIRECTIONS, Tensor
from membound.kernels.spec import Launch, Prepared, Spec
from membound.kernels.target import Target
from membound.kernels.tolerance import compare

TARGET = Target("cpu", "test", multiprocessors=2, llc_bytes=32 << 20)
_GUARD = 64  # elements around an operand that nothing may touch

Tensors = dict[str, torch.Tensor]
CATALOGUE = discover()


def implementations(catalogue: Catalogue) -> list[Implementation]:
    return [
        implementation
        for operation in catalogue.operations.values()
        for implementation in catalogue.implementations(operation, ("cpu",))
    ]


def spec_of(
    implementation: Implementation, direction: str, dims: Mapping[str, int], dtype: str
) -> Spec:
    io = implementation.operation.directions(dims, DTYPES[dtype]).get(direction)
    assert io is not None
    name = next(known for known in DIRECTIONS if known == direction)
    return Spec(
        implementation.operation, name, dims, DTYPES[dtype], io, TARGET, implementation.variant
    )


def named(operation: str) -> Implementation:
    return next(
        i for i in implementations(CATALOGUE) if i.operation.name == operation and i.label == "cpu"
    )


def placed(tensor: Tensor, shift: int, poison: int) -> torch.Tensor:
    """Memory for an operand, `shift` elements off a line, full of `poison` bytes like its guard."""
    size = tensor.dtype.bits // 8
    raw = torch.full(((tensor.elements + 2 * _GUARD) * size + 64,), poison, dtype=torch.uint8)
    skip = -raw.data_ptr() % 64
    whole = raw[skip : skip + (tensor.elements + 2 * _GUARD) * size]
    start = (_GUARD + shift) * size
    return whole[start : start + tensor.nbytes].view(tensor.dtype.torch_dtype).view(tensor.shape)


def guard_intact(tensor: torch.Tensor, poison: int) -> bool:
    """Whether the bytes right before and after an operand still hold `poison`."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    start = tensor.storage_offset() * tensor.element_size()
    end = start + tensor.numel() * tensor.element_size()
    around = torch.cat([storage[start - 32 : start], storage[end : end + 32]])
    return bool((around == poison).all())


Wrong = Callable[[Launch, Tensors], None]


def check(
    spec: Spec, prepared: Prepared, inputs: Tensors, exact: Tensors, shift: int, wrong: Wrong | None
) -> list[str]:
    """What is wrong with one kernel on one placement of its operands; [] if nothing is."""
    found: list[str] = []
    seen: list[dict[str, torch.Tensor]] = []
    for poison in (0x00, 0xFF):
        tensors = {t.name: placed(t, shift, poison) for t in spec.io.operands.values()}
        tensors |= {t.name: placed(t, 0, poison) for t in prepared.scratch}
        for name, value in inputs.items():
            tensors[name].copy_(value)
        launch = prepared.bind(tensors, None)
        if wrong is None:
            launch()
        else:
            wrong(launch, tensors)
        for name, value in inputs.items():
            if not torch.equal(bits(tensors[name]), bits(value)):
                found.append(f"{name} was modified")
        for tensor in spec.io.outputs:
            if not guard_intact(tensors[tensor.name], poison):
                found.append(f"{tensor.name}: written outside")
        seen.append({t.name: tensors[t.name].clone() for t in spec.io.writes})
    for tensor in spec.io.writes:
        first, second = (values[tensor.name] for values in seen)
        if not torch.equal(bits(first), bits(second)):
            found.append(f"{tensor.name} depends on what the output held")
        comparison = compare(tensor, first, exact[tensor.name])
        if not comparison.ok:
            found.append(str(comparison))
    return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def outputs_of(operation: str, direction: str, dims: Mapping[str, int], inputs: Tensors) -> Tensors:
    """Outputs of the float32 kernel on these inputs."""
    spec = spec_of(named(operation), direction, dims, "float32")
    prepared = named(operation).prepare(spec)
    tensors = {t.name: placed(t, 0, 0xFF) for t in (*spec.io.operands.values(), *prepared.scratch)}
    for name, value in inputs.items():
        tensors[name].copy_(value)
    prepared.bind(tensors, None)()
    return {t.name: tensors[t.name] for t in spec.io.outputs}
