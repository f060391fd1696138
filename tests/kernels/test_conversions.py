"""Codes of at most 8 bits, made and read: over every code, every tie and every 16-bit number.

The emulator runs the arithmetic; tests/gpu runs the same checks where instructions convert.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from membound.kernels.audit.machine import disassemble
from membound.kernels.backends.cuda import Geometry, Kernel
from membound.kernels.backends.cuda_nvrtc import compile_cubin
from membound.kernels.dtypes import (
    DType,
    bfloat16,
    float4_pair,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float16,
)
from membound.kernels.target import reference_target
from membound.tests.emulator.toolchain import EmulatorToolchain

SOURCE = Path(__file__).with_name("conversions.cu")
KERNELS = ("encode_all", "decode_all")
FORMATS = (float8_e4m3fn, float8_e5m2, float4_pair)
THREADS = 256


def every_value(dtype: DType) -> torch.Tensor:
    """All 65,536 of a 16-bit type, shuffled so that neighbours differ."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    order = torch.randperm(1 << 16, generator=torch.Generator().manual_seed(1))
    return bits[order].view(dtype.torch_dtype)


def numbers_of(dtype: DType) -> torch.Tensor:
    """Every number that is not negative, in order; NaN last, where there is one."""
    if dtype is float4_pair:
        return dtype.decoded(torch.arange(8, dtype=torch.uint8))[::2]
    return dtype.decoded(torch.arange(128, dtype=torch.uint8).view(dtype.torch_dtype))


def floats() -> torch.Tensor:
    """All bfloat16 and float16 values, all midpoints of codes and their neighbours, all pairs of
    half-byte codes, and others."""
    halves = [every_value(d).float() for d in (bfloat16, float16)]
    ties = [(n[1:] + n[:-1]).float() / 2 for n in map(numbers_of, FORMATS)]
    near = [torch.nextafter(t, torch.tensor(end)) for t in ties for end in (0.0, inf)]
    generator = torch.Generator().manual_seed(2)
    random = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), generator=generator)
    positive = torch.cat([*ties, *near])
    fours = numbers_of(float4_pair).float()
    pairs = torch.cartesian_prod(torch.cat((fours, -fours)), torch.cat((fours, -fours)))
    others = [pairs.flatten(), random.to(torch.int32).view(torch.float32)]
    return torch.cat([*halves, positive, -positive, *others])


def check_codes(
    encode: Kernel, device: str | torch.device, stream: Any, finish: Callable[[], None]
) -> None:
    """Ours, by whatever converts here, is our integer arithmetic and the toolkit's conversion."""
    x = floats().to(device)
    ways = [torch.zeros(3, len(x), dtype=torch.int16, device=device) for _ in range(3)]
    geometry = Geometry(-(-len(x) // THREADS), THREADS)
    encode.bind(stream, geometry, (*ways, x, numpy.float32(1), numpy.int64(len(x))))()
    finish()
    ours, arithmetic, theirs = ways
    for index, dtype in enumerate(FORMATS):
        assert torch.equal(ours[index], arithmetic[index]), dtype
        assert torch.equal(ours[index], theirs[index]), dtype
    assert len(set(ours[2].tolist())) == 256  # every pair of half-byte codes


def check_numbers(
    decode: Kernel, device: str | torch.device, stream: Any, finish: Callable[[], None]
) -> None:
    numbers = torch.zeros(3, 1 << 16, 2, device=device)
    scales = torch.zeros(256, device=device)
    decode.bind(stream, Geometry((1 << 16) // THREADS, THREADS), (numbers, scales))()
    finish()
    every = torch.arange(256, dtype=torch.uint8)
    for dtype, got in zip(FORMATS, numbers.cpu().double(), strict=True):
        if dtype is float4_pair:
            expected = dtype.decoded(every).view(-1, 2).repeat(256, 1)
        else:
            one = dtype.decoded(every.view(dtype.torch_dtype))
            expected = torch.stack((one.repeat(256), one.repeat_interleave(256)), -1)
        same(got, expected)
    same(scales.cpu().double(), float8_e8m0fnu.decoded(every.view(torch.float8_e8m0fnu)))


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(got.isnan(), expected.isnan())
    there = ~expected.isnan()
    assert torch.equal(got[there], expected[there])
    assert torch.equal(got[there].signbit(), expected[there].signbit())


@pytest.fixture(scope="module")
def emulated() -> dict[str, Kernel]:
    built = EmulatorToolchain().build(SOURCE, KERNELS, reference_target("sm_75"))
    return dict(zip(KERNELS, built, strict=True))


def test_codes_are_those_of_the_toolkit(emulated: dict[str, Kernel]) -> None:
    """Ours is integer arithmetic, the toolkit's is in float64."""
    check_codes(emulated["encode_all"], "cpu", None, lambda: None)


def test_every_code_is_read_as_its_number(emulated: dict[str, Kernel]) -> None:
    check_numbers(emulated["decode_all"], "cpu", None, lambda: None)


def test_a_number_of_another_code_is_rejected() -> None:
    right = numbers_of(float8_e4m3fn)
    same(right, right.clone())
    for wrong in (right.roll(1), -right, right.nan_to_num(480.0)):
        with pytest.raises(AssertionError):
            same(wrong, right)


@pytest.mark.parametrize(
    ("arch", "instructions"),
    [
        ("sm_80", set()),
        ("sm_90", {"E4M3", "E5M2"}),
        ("sm_121", {"E4M3", "E5M2", "E2M1", "E8"}),
    ],
)
def test_what_converts_is_an_instruction_where_there_is_one(
    arch: str, instructions: set[str]
) -> None:
    machines = disassemble(compile_cubin(SOURCE, KERNELS, arch).code).values()
    opcodes = {one.opcode for machine in machines for one in machine.instructions}
    parts = {part for code in opcodes if code.startswith("F2FP") for part in code.split(".")}
    assert parts & {"E4M3", "E5M2", "E2M1", "E8"} == instructions
