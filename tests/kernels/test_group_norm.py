"""Group norm: where its slabs are held, how they are counted, and groups that cannot be."""

from __future__ import annotations

import pytest
import torch
from membound.kernels.backends import cuda_channel_group
from membound.kernels.dtypes import bfloat16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.tests.emulator.run import prepare, run_cuda, spec_of
from membound.tests.emulator.toolchain import Libraries, Planner


def dims_of(images: int, channels: int, height: int, width: int, groups: int) -> dict[str, int]:
    extents = {"images": images, "channels": channels, "height": height, "width": width}
    return extents | {"groups": groups}


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 49, 3136, 65537, 2**30 - 1, 2**31 - 1])
def test_quotients_by_multiplication_are_exact(divisor: int) -> None:
    multiplier, bits = map(int, cuda_channel_group.quotient_by(divisor))
    for near in (0, divisor, 5 * divisor, 2**31 // divisor * divisor, 2**31 - 1):
        for dividend in (near - 1, near, near + 1):
            if 0 <= dividend < 2**31:
                assert dividend * multiplier >> bits == dividend // divisor
    assert multiplier < 2**32


def test_slabs_go_from_registers_to_shared_memory_to_a_second_read() -> None:
    paths = []
    for pixels in (128, 360, 640):  # of bfloat16, times 256: 64 KB, 180 KB, 320 KB
        dims = dims_of(1, 1, pixels, 256, groups=1)
        spec = spec_of("group_norm", "forward", dims, bfloat16)
        paths.append(prepare(spec, Planner(Libraries())).choice["path"])
        inputs = make_inputs(spec.operation, "forward", dims, bfloat16, seed=1)
        y = run_cuda(Libraries(), spec, inputs)["y"].double()
        torch.testing.assert_close(y, evaluate(spec.io, inputs)["y"], rtol=2**-7, atol=1e-3)
        assert (spec.io.schedule_bytes is not None) == (paths[-1] == "twice")
    assert paths == ["shared", "shared", "twice"]


@pytest.mark.parametrize("groups", [0, 4])
def test_groups_that_do_not_divide_the_channels_are_refused(groups: int) -> None:
    dims = dims_of(2, 6, 3, 3, groups)
    with pytest.raises(ValueError, match=f"groups divide channels; got {groups} and 6"):
        spec_of("group_norm", "forward", dims, float32)
