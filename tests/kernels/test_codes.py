"""Types of at most 8 bits: what codes mean, how numbers are rounded to them, what is compared."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from membound.kernels.dtypes import (
    DTYPES,
    DType,
    float4_pair,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float32,
)
from membound.kernels.operation import Tensor
from membound.kernels.tolerance import compare, compare_outputs

FLOAT8 = (float8_e4m3fn, float8_e5m2)
TIES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, inf, nan]


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_code_is_rounded_to_itself(dtype: DType) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype.torch_dtype)
    values = dtype.decoded(every)
    finite = values.isfinite()
    assert torch.equal(dtype.rounded(values)[finite], values[finite])
    assert values[finite].max() == dtype.largest
    beyond = dtype.rounded(torch.tensor([1e30, -1e30, inf, -inf, nan], dtype=torch.float64))
    assert beyond[:4].tolist() == [dtype.largest, -dtype.largest, dtype.largest, -dtype.largest]
    assert beyond[4].isnan()


def test_scales_are_powers_of_two_and_one_nan() -> None:
    codes = torch.tensor([0, 1, 127, 254, 255], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    values = float8_e8m0fnu.decoded(codes)
    assert values[:4].tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127] and values[4].isnan()
    assert torch.equal(float8_e8m0fnu.rounded(values)[:4], values[:4])


def test_a_pair_of_half_byte_codes_is_one_byte() -> None:
    assert float4_pair.nbytes(3) == 3 and float4_pair.numbers == 2
    assert Tensor("q", (2, 8), float4_pair).exact_shape == (2, 16)
    every = torch.arange(16, dtype=torch.uint8)
    values = float4_pair.decoded(every | every << 4)
    assert torch.equal(values[::2], values[1::2])
    assert values[0:16:2].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert torch.equal(values[16::2], -values[0:16:2]) and values[16].signbit()
    assert torch.equal(float4_pair.rounded(values), values)
    assert float4_pair.decoded(torch.tensor([0x71], dtype=torch.uint8)).tolist() == [0.5, 6]


def test_halves_of_half_byte_codes_go_to_even_ones() -> None:
    ties = torch.tensor(TIES, dtype=torch.float64)
    expected = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, 6.0]
    assert float4_pair.rounded(ties).tolist() == expected
    assert float4_pair.rounded(-ties)[:-1].tolist() == [-x for x in expected[:-1]]


def held(exact: list[float], stored: list[float], slack: float = 0.0) -> bool:
    tensor = Tensor("q", (len(exact),), float8_e4m3fn, slack=slack)
    value = torch.tensor(stored).to(torch.float8_e4m3fn)
    return compare(tensor, value, torch.tensor(exact, dtype=torch.float64)).ok


def test_without_slack_a_code_is_that_of_the_reference() -> None:
    assert held([1.0, 1.06, 500.0, nan], [1.0, 1.0, 448.0, nan])
    assert not held([1.06], [1.125])  # rounded up, though 1.0 is nearer
    assert not held([1.0], [nan]) and not held([nan], [1.0])


def test_slack_leaves_a_choice_at_ties_alone() -> None:
    assert held([1.062, 1.063], [1.125, 1.0], slack=2.0**-8)
    assert not held([1.05], [1.125], slack=2.0**-8)  # truncation's twin: one code off, no tie
    assert not held([1.062], [1.25], slack=2.0**-8)


def test_codes_are_held_to_the_scale_that_was_written() -> None:
    tensors = [
        Tensor("q", (1, 8), float4_pair, scaled_by="scale"),
        Tensor("scale", (1, 2), float8_e4m3fn, slack=2.0**-8),
    ]
    x = torch.tensor([[6.0] * 8 + [0.0] * 8], dtype=torch.float64)
    exact = {"q": x, "scale": torch.tensor([[1.0625, 0.0]], dtype=torch.float64)}
    scale = torch.tensor([[1.125, 0.0]]).to(torch.float8_e4m3fn)  # the other side of a tie
    # 6 / 1.125 is 5.33: 6. A scale of 1 gives 6 as well.
    q = torch.tensor([[0x77] * 4 + [0] * 4], dtype=torch.uint8)
    assert all(c.ok for c in compare_outputs(tensors, {"q": q, "scale": scale}, exact))
    q[0, 0] = 0x67
    assert [c.ok for c in compare_outputs(tensors, {"q": q, "scale": scale}, exact)] == [
        False,
        True,
    ]
    with pytest.raises(ValueError, match="compared with the scale"):
        compare(tensors[0], q, x)


def test_other_types_have_no_largest_code() -> None:
    assert float32.largest == 0 and DTYPES["int8"].nbytes(5) == 5
