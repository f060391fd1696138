"""What instructions of the GPU make of numbers and codes is what the arithmetic makes of them."""

from __future__ import annotations

import pytest
from membound.kernels.backends.cuda_nvrtc import NvrtcToolchain
from membound.tests.gpu.conftest import Gpu
from membound.tests.kernels.test_conversions import KERNELS, SOURCE, check_codes, check_numbers


@pytest.mark.gpu
def test_instructions_convert_as_the_arithmetic_does(gpu: Gpu) -> None:
    encode, decode = NvrtcToolchain().build(SOURCE, KERNELS, gpu.selected.target)
    stream, finish = gpu.lab.stream, gpu.lab.synchronize
    check_codes(encode, gpu.device, stream, finish)
    check_numbers(decode, gpu.device, stream, finish)
