"""Copies whose kernels no audit may pass, each for one reason, and one that is sound.

An operation has the name of its kernel. What they compute is nobody's concern.
"""

from __future__ import annotations

from membound.kernels.dtypes import DType, float32
from membound.kernels.operation import Direction, Directions, Operation, operation, tensors
from membound.kernels.shapes import scaled


def copy(rows: int, columns: int, dtype: DType) -> Directions:
    x, y = tensors("x y", (rows, columns), dtype)
    return Directions(Direction([x], [y], lambda x: x))


def named(name: str) -> Operation:
    shapes = [scaled("rows", rows=4096, columns=4096)]
    return operation(shapes=shapes, dtypes=[float32], tier=3, name=name)(copy)


sound = named("sound")
narrow = named("narrow")
in_double = named("in_double")
in_local_memory = named("in_local_memory")
spilling = named("spilling")
greedy = named("greedy")
crowded = named("crowded")
waiting = named("waiting")
laborious = named("laborious")
transcendental = named("transcendental")
