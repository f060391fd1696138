"""One literal for the bytes of every operation and direction, worked out by hand.

E elements, M rows, N columns, s bytes an element; statistics are 4 bytes.
"""

from __future__ import annotations

import pytest
from membound.kernels.discovery import Catalogue
from membound.kernels.dtypes import DTYPES, bfloat16, float16
from membound.kernels.training.embedding import index_of

ROWS = {"rows": 8192, "columns": 8192}
E = 8192 * 8192
STEM = {"images": 32, "channels": 64, "height": 112, "width": 112}
STEM |= {"kernel": 3, "stride": 2, "padding": 1}

ACTIVATIONS = (
    *("silu", "relu", "leaky_relu", "elu", "hardswish", "sigmoid", "tanh"),
    *("gelu", "gelu_tanh", "mish"),
)

SCALINGS = ("floor", "up")

MOMENTS = ("decode_m", "decode_v", "encode_m", "encode_v")

GATED = ("swiglu", "geglu", "reglu")

LITERALS: list[tuple[str, str, int]] = [
    ("copy", "forward", 268_435_456),  # 2sE
    ("scale", "forward", 268_435_456),
    ("add", "forward", 402_653_184),  # 3sE
    ("triad", "forward", 402_653_184),
    ("fill", "forward", 134_217_728),  # sE
    ("read", "forward", 134_217_728),
    ("mix_1r0w", "forward", 134_217_728),  # (r + w)sE
    ("mix_3r1w", "forward", 536_870_912),
    ("mix_2r1w", "forward", 402_653_184),
    ("mix_1r1w", "forward", 268_435_456),
    ("mix_0r1w", "forward", 134_217_728),
    *((name, "forward", 402_653_184) for name in GATED),  # 3sE
    *((name, "backward", 671_088_640) for name in GATED),  # 5sE
    ("bias_add", "forward", 268_451_840),  # 2sE + sN
    ("bias_add", "backward", 134_234_112),  # sE + sN
    ("bias_gelu", "forward", 268_451_840),  # 2sE + sN
    ("bias_relu", "forward", 268_451_840),
    ("bias_gelu", "backward", 402_685_952),  # 3sE + 2sN
    ("bias_relu", "backward", 402_685_952),
    ("mul", "forward", 402_653_184),  # 3sE
    ("adamw", "forward", 939_524_096),  # 7sE
    ("adamw_master", "forward", 1_879_048_192),  # (4 + 2 + 4 + 4)E + (3 · 4 + 2)E
    ("adamw_decay", "forward", 268_435_456),  # 2sE
    ("adamw_first_moment", "forward", 402_653_184),  # 3sE
    ("adamw_second_moment", "forward", 402_653_184),
    ("adamw_step", "forward", 536_870_912),  # 4sE
    ("adamw_8bit", "forward", 1_077_936_128),  # (3 · 4 + 4 · 1)E + 4 · 4E / 256
    *((f"adamw_8bit_{way}", "forward", 336_592_896) for way in MOMENTS),  # (4 + 1)E + 4E / 256
    ("sgd", "forward", 402_653_184),  # 3sE
    ("momentum", "forward", 402_653_184),
    ("sgd_momentum", "forward", 671_088_640),  # 5sE
    ("grad_accumulate", "forward", 671_088_640),  # (4 + 2 + 4)E
    ("cross_entropy", "forward", 134_348_800),  # sE + 16M
    ("cross_entropy", "backward", 268_566_528),  # 2sE + 16M
    ("cross_entropy_smoothed", "forward", 134_348_800),
    ("cross_entropy_smoothed", "backward", 268_566_528),
    ("cross_entropy_forward_backward", "forward", 268_566_528),  # 2sE + 16M
    ("cross_entropy_smoothed_forward_backward", "forward", 268_566_528),
    ("nll_loss", "forward", 114_688),  # a logarithm a row, and 12M
    ("nll_loss", "backward", 134_316_032),  # sE + 12M
    ("nll_loss_smoothed", "forward", 134_316_032),
    ("nll_loss_smoothed", "backward", 134_316_032),
    ("quantize_e4m3", "forward", 201_326_596),  # (2 + 1)E + 4
    ("quantize_e5m2", "forward", 201_326_596),
    ("quantize_e4m3_rows", "forward", 201_359_360),  # (2 + 1)E + 4M
    ("quantize_int8_rows", "forward", 201_359_360),
    *((f"quantize_mxfp8_{way}", "forward", 203_423_744) for way in SCALINGS),  # (3 + 1/32)E
    *((f"quantize_mxfp4_{way}", "forward", 169_869_312) for way in SCALINGS),  # (2.5 + 1/32)E
    ("quantize_nvfp4", "forward", 171_966_468),  # (2.5 + 1/16)E + 4
    ("dequantize_e4m3", "forward", 201_326_596),
    ("dequantize_e5m2", "forward", 201_326_596),
    ("dequantize_e4m3_rows", "forward", 201_359_360),
    ("dequantize_int8_rows", "forward", 201_359_360),
    ("dequantize_mxfp8", "forward", 203_423_744),
    ("dequantize_mxfp4", "forward", 169_869_312),
    ("dequantize_nvfp4", "forward", 171_966_468),
    ("amax", "forward", 134_217_732),  # 2E + 4
    ("prune_2_4", "forward", 268_435_456),  # 2sE
    ("compress_2_4", "forward", 209_715_200),  # (2 + 1 + 1/8)E
    ("prune_compress_2_4", "forward", 209_715_200),
    ("rms_norm_quantize_e4m3", "forward", 201_342_980),  # (2 + 1)E + 2N + 4
    ("rms_norm_quantize_nvfp4", "forward", 171_982_852),  # 2.5625E + 2N + 4
    ("add_rms_norm_quantize_e4m3", "forward", 469_778_436),  # (6 + 1)E + 2N + 4
    ("add_rms_norm_quantize_nvfp4", "forward", 440_418_308),  # 6.5625E + 2N + 4
    ("swiglu_quantize_e4m3", "forward", 335_544_324),  # (4 + 1)E + 4
    ("swiglu_quantize_nvfp4", "forward", 306_184_196),  # 4.5625E + 4
    ("transpose", "forward", 268_435_456),  # 2sE
    ("cast_to_float32", "forward", 402_653_184),  # (2 + 4)E
    ("cast_to_bfloat16", "forward", 268_435_456),
    ("cast_to_float16", "forward", 268_435_456),
    ("strided_read_2", "forward", 268_435_456),  # 2sE useful
    ("strided_read_8", "forward", 268_435_456),
    ("gather_int32", "forward", 536_870_912),  # 2sE + 4E
    ("gather_int64", "forward", 805_306_368),  # 2sE + 8E
    *((name, "forward", 268_435_456) for name in ACTIVATIONS),  # 2sE
    *((name, "backward", 402_653_184) for name in ACTIVATIONS),  # 3sE
    ("layer_norm", "forward", 268_533_760),  # 2sE + 2sN + 8M
    ("layer_norm", "backward", 402_767_872),  # 3sE + 3sN + 8M
    ("softmax", "forward", 268_435_456),  # 2sE
    ("softmax", "backward", 402_653_184),  # 3sE
    ("log_softmax", "forward", 268_435_456),
    ("log_softmax", "backward", 402_653_184),
    ("scaled_masked_softmax", "forward", 335_544_320),  # 2sE + E
    ("scaled_masked_softmax", "backward", 402_653_184),  # the mask is in y
    ("l2_norm", "forward", 268_468_224),  # 2sE + 4M
    ("l2_norm", "backward", 402_685_952),  # 3sE + 4M
    ("rms_norm", "forward", 268_484_608),  # 2sE + sN + 4M
    ("rms_norm", "backward", 402_718_720),  # 3sE + 2sN + 4M
    ("add_rms_norm", "forward", 536_920_064),  # 4sE + sN + 4M
    ("add_rms_norm", "backward", 536_936_448),  # 4sE + 2sN + 4M
    ("dropout", "forward", 268_435_472),  # 2sE, and 16 for seed and offset
    ("dropout", "backward", 268_435_472),
    ("dropout_byte_mask", "forward", 335_544_336),  # (2s + 1)E, and 16
    ("dropout_byte_mask", "backward", 335_544_320),
    ("dropout_bit_mask", "forward", 276_824_080),  # (2s + 1/8)E, and 16
    ("dropout_bit_mask", "backward", 276_824_064),
    ("bias_dropout_residual", "forward", 402_669_584),  # 3sE + sN, and 16
    ("bias_dropout_residual", "backward", 268_451_856),  # 2sE + sN, and 16
    ("bias_dropout_residual_byte_mask", "forward", 469_778_448),  # (3s + 1)E + sN, and 16
    ("bias_dropout_residual_byte_mask", "backward", 335_560_704),  # (2s + 1)E + sN
    ("bias_dropout_residual_bit_mask", "forward", 411_058_192),  # (3s + 1/8)E + sN, and 16
    ("bias_dropout_residual_bit_mask", "backward", 276_840_448),  # (2s + 1/8)E + sN
    ("softmax_dropout", "forward", 268_468_240),  # 2sE + 4M, and 16
    ("softmax_dropout", "backward", 402_685_968),  # 3sE + 4M, and 16
    ("add_layer_norm", "forward", 536_969_216),  # 4sE + 2sN + 8M
    ("add_layer_norm", "backward", 536_985_600),  # 4sE + 3sN + 8M
]


@pytest.mark.parametrize(("name", "direction", "bytes_"), LITERALS)
def test_fp16_bytes_at_8192_rows_of_8192(
    catalogue: Catalogue, name: str, direction: str, bytes_: int
) -> None:
    io = catalogue.operations[name].directions(ROWS, float16).get(direction)
    assert io is not None
    assert io.traffic == bytes_


@pytest.mark.parametrize(
    ("dtype", "forward", "backward"),
    [  # s·Ei + (s + 1)Eo and (s + 1)Eo + s·Ei, with a window offset of one byte
        ("float32", 134_873_088, 134_873_088),
        ("bfloat16", 70_647_808, 70_647_808),
        ("float16", 70_647_808, 70_647_808),
    ],
)
def test_max_pool_bytes_of_the_resnet_stem(
    catalogue: Catalogue, dtype: str, forward: int, backward: int
) -> None:
    directions = catalogue.operations["max_pool2d"].directions(STEM, DTYPES[dtype])
    assert directions.forward.traffic == forward
    assert directions.backward is not None
    assert directions.backward.traffic == backward


STAGE = {"images": 32, "channels": 256, "height": 56, "width": 56}
GROUPED = STAGE | {"groups": 32}
WINDOWED = STAGE | {"kernel": 2, "stride": 2}
ADAPTED = STAGE | {"out_height": 6, "out_width": 6}
HEADS = {"positions": 8192, "q_heads": 32, "k_heads": 8, "width": 128}
IMAGE_LITERALS: list[tuple[str, str, dict[str, int], int]] = [
    # of bfloat16: Ei = 32 · 256 · 56 · 56 = 25,690,112, or the stem's 25,690,112 with Eo a quarter
    # 2sTD(Hq + Hk) + 4TD: two tables of float32, half as wide as a head
    ("rope_half", "forward", HEADS, 171_966_464),
    ("rope_half", "backward", HEADS, 171_966_464),
    ("rope_interleaved", "forward", HEADS, 171_966_464),
    ("rope_interleaved", "backward", HEADS, 171_966_464),
    ("avg_pool2d", "forward", STEM, 64_225_280),  # s(Ei + Eo)
    ("avg_pool2d", "backward", STEM, 64_225_280),
    ("avg_pool2d_nhwc", "forward", STEM, 64_225_280),
    ("avg_pool2d_nhwc", "backward", STEM, 64_225_280),
    ("max_pool2d_nhwc", "forward", STEM, 70_647_808),  # s·Ei + (s + 1)Eo
    ("max_pool2d_nhwc", "backward", STEM, 70_647_808),
    ("adaptive_avg_pool2d", "forward", ADAPTED, 51_970_048),  # Eo = 294,912
    ("adaptive_avg_pool2d", "backward", ADAPTED, 51_970_048),
    ("batch_norm_inference", "forward", STAGE, 102_764_544),  # 2sE + 8C + 2pC, p = 4
    ("batch_norm_inference_nhwc", "forward", STAGE, 102_764_544),
    ("batch_norm", "forward", STAGE, 102_768_640),  # 2sE + 8C + 16C + 2pC
    ("batch_norm_nhwc", "forward", STAGE, 102_768_640),
    ("batch_norm_inference_relu", "forward", STAGE, 102_764_544),  # as without relu
    ("batch_norm_relu", "forward", STAGE, 102_768_640),
    ("batch_norm_relu", "backward", STAGE, 154_146_816),  # and the bias, 4C
    ("batch_norm_add_relu", "forward", STAGE, 157_360_128),  # 3sE + E/8 + 32C
    ("batch_norm_add_relu", "backward", STAGE, 208_737_280),  # 4sE + E/8 + 20C
    ("group_norm", "forward", GROUPED, 102_769_664),  # 2sE + 2sC + 8K, K = 32 · 32
    ("group_norm", "backward", GROUPED, 154_150_400),  # 3sE + 3sC + 8K
    ("instance_norm", "forward", STAGE, 102_827_008),  # K = 32 · 256
    ("instance_norm", "backward", STAGE, 154_207_744),
    ("batch_norm", "backward", STAGE, 154_145_792),  # 3sE + 8C + 3pC
    ("batch_norm_nhwc", "backward", STAGE, 154_145_792),
    ("global_avg_pool", "forward", STAGE, 51_396_608),  # s(Ei + Eo), Eo = 8,192
    ("global_avg_pool", "backward", STAGE, 51_396_608),
    ("channel_bias_add", "forward", STAGE, 102_760_960),  # 2sE + sC
    ("channel_bias_add", "backward", STAGE, 51_380_736),  # sE + sC
    ("bias_relu_max_pool2d", "forward", STEM, 70_647_936),  # s·Ei + (s + 1)Eo + sC
    ("bias_relu_max_pool2d", "backward", STEM, 70_647_936),
    ("lp_pool2d", "forward", WINDOWED, 64_225_280),
    ("lp_pool2d", "backward", WINDOWED, 128_450_560),  # 2s(Ei + Eo)
]


@pytest.mark.parametrize(("name", "direction", "dims", "bytes_"), IMAGE_LITERALS)
def test_bf16_bytes_of_pooled_images(
    catalogue: Catalogue, name: str, direction: str, dims: dict[str, int], bytes_: int
) -> None:
    io = catalogue.operations[name].directions(dims, bfloat16).get(direction)
    assert io is not None
    assert io.traffic == bytes_


def test_max_pool_moves_2_75_bytes_an_input_element_where_eight_byte_indices_move_4_5(
    catalogue: Catalogue,
) -> None:
    dims = {"images": 2, "channels": 4, "height": 64, "width": 64}
    dims |= {"kernel": 2, "stride": 2, "padding": 0}
    forward = catalogue.operations["max_pool2d"].directions(dims, bfloat16).forward
    inputs = 2 * 4 * 64 * 64
    assert forward.traffic == 2.75 * inputs
    assert forward.traffic + 7 * inputs // 4 == 4.5 * inputs


def test_causal_softmax_reads_lower_halves_and_writes_whole_matrices(catalogue: Catalogue) -> None:
    squares = {"matrices": 2, "columns": 8192}
    directions = catalogue.operations["causal_softmax"].directions(squares, float16)
    assert directions.forward.traffic == 402_669_568  # s·M(N + 1)/2 + sE, M = 2N
    assert directions.backward is not None
    assert directions.backward.traffic == 536_903_680  # 2s·M(N + 1)/2 + sE


@pytest.mark.parametrize(
    ("name", "source", "bytes_"),
    [  # (s_a + s_b)E
        ("cast_to_float32", "bfloat16", 402_653_184),
        ("cast_to_float16", "float32", 402_653_184),
        ("cast_to_bfloat16", "float32", 402_653_184),
    ],
)
def test_a_cast_moves_both_widths(
    catalogue: Catalogue, name: str, source: str, bytes_: int
) -> None:
    forward = catalogue.operations[name].directions(ROWS, DTYPES[source]).forward
    assert forward.traffic == bytes_


@pytest.mark.parametrize("name", ["nchw_to_nhwc", "nhwc_to_nchw"])
def test_a_change_of_layout_moves_images_twice(catalogue: Catalogue, name: str) -> None:
    dims = {"images": 32, "channels": 64, "height": 112, "width": 112}
    forward = catalogue.operations[name].directions(dims, float16).forward
    assert forward.traffic == 102_760_448  # 2sE


def test_gradients_of_gpt2(catalogue: Catalogue) -> None:
    dims = {"layers": 12, "hidden": 3072, "features": 768, "keys": 768}
    dims |= {"vocabulary": 50257, "positions": 1024}
    norm = catalogue.operations["grad_norm"].directions(dims, bfloat16).forward
    clip = catalogue.operations["grad_clip"].directions(dims, bfloat16).forward
    assert norm.reads[0].elements == 124_439_808
    assert norm.traffic == 248_879_616 + 2 * 8 * 149 + 4 * 148 + 4  # sE, tables, norms
    assert clip.traffic == 497_759_236  # 2sE + 4


def test_embedding_moves_the_rows_that_occur_once(catalogue: Catalogue) -> None:
    dims = {"tokens": 8192, "vocabulary": 50257, "columns": 768}
    directions = catalogue.operations["embedding"].directions(dims, float16)
    assert directions.backward is not None
    rows = len(set(index_of(8192, 50257).tolist()))
    assert 1000 < rows < 8192  # words repeat
    # (U + T)·D·s + 8T; T·D·s + 2U·D·s + 8T, and 4T to say which rows tokens are of
    assert directions.forward.traffic == (rows + 8192) * 1536 + 65_536
    assert directions.backward.traffic == (2 * rows + 8192) * 1536 + 98_304


def test_every_operation_has_a_literal(catalogue: Catalogue) -> None:
    stated: set[tuple[str, str]] = {(name, direction) for name, direction, _ in LITERALS}
    stated |= {("max_pool2d", "forward"), ("max_pool2d", "backward")}
    stated |= {(name, direction) for name, direction, *_ in IMAGE_LITERALS}
    stated |= {("nchw_to_nhwc", "forward"), ("nhwc_to_nchw", "forward")}
    stated |= {("causal_softmax", "forward"), ("causal_softmax", "backward")}
    stated |= {("embedding", "forward"), ("embedding", "backward")}
    stated |= {("grad_norm", "forward"), ("grad_clip", "forward")}
    there = {
        (operation.name, direction)
        for operation in catalogue.operations.values()
        for direction in ("forward", "backward")
        if operation.has(direction)
    }
    assert there == stated


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_follow_the_width_of_the_element(catalogue: Catalogue, dtype: str) -> None:
    forward = catalogue.operations["triad"].directions(ROWS, DTYPES[dtype]).forward
    assert forward.traffic == 3 * E * DTYPES[dtype].bits // 8


def test_the_copy_family_reads_the_share_its_name_says(catalogue: Catalogue) -> None:
    for name, operation in catalogue.operations.items():
        if name.startswith("mix_"):
            forward = operation.directions(ROWS, bfloat16).forward
            reads, writes = int(name[4]), int(name[6])
            assert (forward.bytes_read, forward.bytes_written) == (2 * E * reads, 2 * E * writes)
