"""Bytes of what capacity makes a kernel read again, and of chains: literals worked out by hand.

E elements, M rows, N columns, s bytes an element; statistics are 4 bytes.
"""

from __future__ import annotations

from typing import Any

import pytest
from membound.kernels import chain
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import DType, bfloat16, float16, float32
from membound.tests.kernels.test_traffic import GATED, GROUPED, ROWS, STAGE, E

SQUARE = {"rows": 512, "columns": 512}
LOGITS = {"rows": 64, "columns": 32000}
BOTH = "_forward_backward"


@pytest.mark.parametrize(
    ("name", "direction", "columns", "bytes_"),
    [  # of 4 rows of bfloat16: 2 or 3 passes, and 1 or 2 once more
        ("rms_norm", "forward", 917_504, None),
        ("rms_norm", "forward", 2**20, 2 * 4 * 3 * 2**20 + 2 * 2**20 + 4 * 4),
        ("rms_norm", "backward", 16_384, None),
        ("rms_norm", "backward", 32_768, 2 * 4 * 5 * 32_768 + 2 * 2 * 32_768 + 4 * 4),
        ("layer_norm", "forward", 917_504, None),
        ("layer_norm", "forward", 2**20, 2 * 4 * 3 * 2**20 + 2 * 2 * 2**20 + 8 * 4),
        ("layer_norm", "backward", 12_288, None),
        ("layer_norm", "backward", 32_768, 2 * 4 * 5 * 32_768 + 3 * 2 * 32_768 + 8 * 4),
        ("softmax", "forward", 2**20, 2 * 4 * 3 * 2**20),
        ("scaled_masked_softmax", "forward", 917_504, None),
        ("scaled_masked_softmax", "forward", 2**20, (2 * 3 + 1 * 2) * 4 * 2**20),  # the mask too
        ("softmax", "backward", 458_752, None),
        ("softmax", "backward", 2**19, 2 * 4 * 5 * 2**19),
        ("l2_norm", "backward", 2**19, 2 * 4 * 5 * 2**19 + 4 * 4),
    ],
)
def test_rows_that_no_cluster_keeps_are_read_twice(
    catalogue: Catalogue, name: str, direction: str, columns: int, bytes_: int | None
) -> None:
    dims = {"rows": 4, "columns": columns}
    io = catalogue.operations[name].directions(dims, bfloat16).get(direction)
    assert io is not None
    assert io.schedule_bytes == bytes_


@pytest.mark.parametrize(
    ("name", "direction", "dims", "bytes_"),
    [  # of bfloat16: 3sE and 5sE, and what is known of a channel or a slab once more
        ("batch_norm", "forward", STAGE, 154_150_912),  # 3sE + 32C + 8C
        ("batch_norm_nhwc", "forward", STAGE, 154_150_912),
        ("batch_norm", "backward", STAGE, 256_909_312),  # 5sE + 20C + 12C
        ("batch_norm_nhwc", "backward", STAGE, 256_909_312),
        ("batch_norm_relu", "forward", STAGE, 154_150_912),
        ("batch_norm_relu", "backward", STAGE, 256_911_360),  # 5sE + 24C + 16C
        ("batch_norm_add_relu", "forward", STAGE, 208_742_400),  # 4sE + E/8
        ("batch_norm_add_relu", "backward", STAGE, 314_712_064),  # 6sE + E/4
        ("group_norm", "forward", GROUPED, None),
        ("group_norm", "forward", GROUPED | {"groups": 4}, 154_142_720),  # 3sE + 2sC + 8K
        ("group_norm", "backward", GROUPED, 256_919_552),  # 5sE + 4sC + 16K
        ("instance_norm", "forward", STAGE, None),
        ("instance_norm", "backward", STAGE, 257_034_240),
    ],
)
def test_channels_and_slabs_that_are_read_twice(
    catalogue: Catalogue, name: str, direction: str, dims: dict[str, int], bytes_: int | None
) -> None:
    io = catalogue.operations[name].directions(dims, bfloat16).get(direction)
    assert io is not None
    assert io.schedule_bytes == bytes_
    assert io.scheduled == (bytes_ or io.traffic)


@pytest.mark.parametrize(
    ("name", "variant", "fused", "apart"),
    [  # bytes of bfloat16 an element, with 16 elements to a scale
        ("rms_norm_quantize_nvfp4", "unfused", 2.5625, 6.5625),
        ("add_rms_norm_quantize_nvfp4", "unfused", 6.5625, 12.5625),
        ("add_rms_norm_quantize_nvfp4", "norm_fused", 6.5625, 10.5625),
        ("swiglu_quantize_nvfp4", "unfused", 4.5625, 8.5625),
        ("rms_norm_quantize_e4m3", "unfused", 3, 7),
        ("add_rms_norm_quantize_e4m3", "unfused", 7, 13),
        ("add_rms_norm_quantize_e4m3", "norm_fused", 7, 11),
        ("swiglu_quantize_e4m3", "unfused", 5, 9),
        ("prune_compress_2_4", "unfused", 3.125, 7.125),
    ],
)
def test_bytes_an_element_of_fused_quantization_and_of_its_chains(
    catalogue: Catalogue, name: str, variant: str, fused: float, apart: float
) -> None:
    """But for weights, statistics of rows, and given scales: 2N, 4M, 4."""
    operation = catalogue.operations[name]
    small = 2 * 8192 + 4 * 8192 + 4
    own = operation.directions(ROWS, bfloat16).forward.traffic
    moved = chain.traffic(catalogue.operations, operation, variant, "forward", ROWS, bfloat16)
    assert moved is not None
    assert 0 <= own - fused * E <= small and 0 <= moved - apart * E <= small


@pytest.mark.parametrize(
    ("direction", "bytes_"),
    [  # add 3sE + norm 2sE + sN + 4M; norm 3sE + 2sN + 4M + add 3sE
        ("forward", 671_137_792),
        ("backward", 805_371_904),
    ],
)
def test_the_chain_of_add_rms_norm_moves_5_and_6_passes(
    catalogue: Catalogue, direction: Any, bytes_: int
) -> None:
    fused = catalogue.operations["add_rms_norm"]
    moved = chain.traffic(catalogue.operations, fused, "unfused", direction, ROWS, float16)
    assert moved == bytes_
    passes = {"forward": 5, "backward": 6}[direction]
    vectors = {"forward": 1, "backward": 2}[direction]
    assert moved == passes * 2 * E + vectors * 2 * 8192 + 4 * 8192


@pytest.mark.parametrize(
    ("name", "direction", "bytes_"),
    [  # of bfloat16: norm 2sE + 16C, in training 3sE + 40C, relu 2sE; relu 3sE, norm 5sE + 32C
        ("batch_norm_inference_relu", "forward", 205_524_992),
        ("batch_norm_relu", "forward", 256_911_360),
        ("batch_norm_relu", "backward", 411_049_984),
        ("batch_norm_add_relu", "forward", 411_052_032),  # and add 3sE
        ("batch_norm_add_relu", "backward", 411_049_984),
    ],
)
def test_the_chains_of_batch_norms_by_their_schedules(
    catalogue: Catalogue, name: str, direction: Any, bytes_: int
) -> None:
    """4sE; 5sE and 8sE; 8sE twice, where the fused ones move 2sE; 3sE and 5sE; 4sE and 6sE."""
    fused = catalogue.operations[name]
    moved = chain.traffic(catalogue.operations, fused, "unfused", direction, STAGE, bfloat16)
    assert moved == bytes_


@pytest.mark.parametrize(
    ("names", "direction", "bytes_"),
    [  # activation 2sE + mul 3sE; mul 3sE, mul 3sE, activation 3sE
        (GATED, "forward", 671_088_640),
        (GATED, "backward", 1_207_959_552),
        # bias 2sE + sN, activation 2sE; activation 3sE, sum sE + sN
        (("bias_gelu", "bias_relu"), "forward", 536_887_296),
        (("bias_gelu", "bias_relu"), "backward", 536_887_296),
    ],
)
def test_the_chains_of_gated_and_biased_activations(
    catalogue: Catalogue, names: tuple[str, ...], direction: Any, bytes_: int
) -> None:
    """5sE and 9sE; 4sE and 4sE."""
    for name in names:
        fused = catalogue.operations[name]
        moved = chain.traffic(catalogue.operations, fused, "unfused", direction, ROWS, float16)
        assert moved == bytes_, name


@pytest.mark.parametrize(
    ("name", "dtype", "whole", "apart"),
    [
        ("adamw", float32, 28, 48),
        ("adamw", bfloat16, 14, 24),
        ("adamw_master", bfloat16, 28, 60),
        ("adamw_8bit", float32, 16.0625, 48.0625),
        ("sgd", float32, 12, None),
        ("sgd_momentum", float32, 20, 24),
        ("grad_accumulate", bfloat16, 10, 18),
    ],
)
def test_bytes_of_a_parameter(
    catalogue: Catalogue, name: str, dtype: DType, whole: float, apart: float | None
) -> None:
    operation, parameters = catalogue.operations[name], 512 * 512
    assert operation.directions(SQUARE, dtype).forward.traffic == whole * parameters
    if apart is None:
        assert not operation.chains
    else:
        args = (catalogue.operations, operation, "unfused", "forward", SQUARE, dtype)
        assert chain.traffic(*args) == apart * parameters


def test_a_loss_with_its_gradient_reads_logits_once(catalogue: Catalogue) -> None:
    operation = catalogue.operations["cross_entropy_forward_backward"]
    logits = 64 * 32000 * 2
    assert operation.directions(LOGITS, bfloat16).forward.traffic == 2 * logits + 16 * 64
    args = (catalogue.operations, operation, "loss_fused", "forward", LOGITS, bfloat16)
    assert chain.traffic(*args) == 3 * logits + 32 * 64
    longest = operation.directions({"rows": 64, "columns": 128_256}, bfloat16).forward
    assert longest.schedule_bytes is None  # a cluster keeps them
    longest = operation.directions({"rows": 64, "columns": 2**20}, bfloat16).forward
    assert longest.schedule_bytes == 3 * 64 * 2**20 * 2 + 16 * 64


@pytest.mark.parametrize(
    ("of", "dtype", "forward", "backward"),
    [  # an element: log_softmax 2s and 3s, nll_loss s in backward; casts 2 + 4 and 4 + 2
        ("", float32, 8, 16),
        ("", bfloat16, 14, 22),
        ("_smoothed", float32, 12, 16),  # the mean of a row reads it again
        ("_smoothed", bfloat16, 18, 22),
    ],
)
def test_a_loss_apart_moves_6_passes_of_float32_and_casts(
    catalogue: Catalogue, of: str, dtype: DType, forward: int, backward: int
) -> None:
    apart, together = (catalogue.operations[f"cross_entropy{of}{b}"] for b in ("", BOTH))
    elements, rows = 64 * 32000, 64
    moved = {
        (operation.name, direction): chain.traffic(
            catalogue.operations, operation, "unfused", direction, LOGITS, dtype
        )
        for operation in (apart, together)
        for direction in ("forward", "backward")
    }
    small = {"": 16, "_smoothed": 12}[of] * rows  # targets, losses, a logarithm of a row
    assert moved[apart.name, "forward"] == forward * elements + small
    assert moved[apart.name, "backward"] == backward * elements + 12 * rows
    assert moved[together.name, "forward"] == (forward + backward) * elements + small + 12 * rows
    assert moved[together.name, "backward"] is None
