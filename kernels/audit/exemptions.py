"""What an audit finds and lets pass, row by row, with the reason.

One row is what one audit says of one direction of some operations. A row that is no longer needed
fails the tests, as does a fault that no row lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

Audit = Literal[
    "prepare",  # cannot be compiled or launched at all
    "launch",  # exceeds a limit of the device
    "local_memory",
    "float64",
    "load_width",  # under 16 bytes on aligned rows
    "store_width",
    "in_flight",  # too few loads on their way
    "issue",  # issue-bound: the reason names the remedy that was tried
]


@dataclass(frozen=True)
class Exemption:
    """All but audit and reason are patterns: "*", "gather_*", "sm_1*", "*float16".

    variant: "" is the default form alone.
    """

    operation: str
    direction: str
    audit: Audit
    reason: str
    dtype: str = "*"
    arch: str = "*"
    kind: str = "*"  # of the shape
    variant: str = ""

    def covers(self, fault: Fault) -> bool:
        return self.audit == fault.audit and all(
            fnmatchcase(getattr(fault, name), getattr(self, name)) for name in _PATTERNS
        )


@dataclass(frozen=True)
class Fault:
    """A fault: what an audit says of one case."""

    audit: Audit
    text: str
    operation: str
    direction: str
    dtype: str
    arch: str
    kind: str
    variant: str


_PATTERNS = ("operation", "direction", "dtype", "arch", "kind", "variant")


SIXTEEN_BITS, B200 = "*float16", "sm_100"


def _each(
    audit: Audit, operations: str, directions: str, reason: str, dtype: str = "*", arch: str = "*"
) -> list[Exemption]:
    """A row for each of these operations and directions."""
    return [
        Exemption(operation, direction, audit, reason, dtype, arch)
        for operation in operations.split()
        for direction in directions.split()
    ]


_in_flight, _issue = partial(_each, "in_flight"), partial(_each, "issue")

EXEMPTIONS = (
    # Accesses narrower than 16 bytes on aligned rows.
    Exemption("cast_to_float32", "forward", "load_width", "as many elements as 16 bytes of y"),
    Exemption("cast_to_float16", "forward", "store_width", "as many elements as 16 bytes of x"),
    Exemption("cast_to_bfloat16", "forward", "store_width", "as many elements as 16 bytes of x"),
    Exemption("strided_read_*", "forward", "load_width", "elements that are not neighbours"),
    Exemption("strided_read_*", "forward", "store_width", "neighbouring threads, one element each"),
    Exemption("gather_*", "forward", "store_width", "the elements of 16 bytes of index"),
    Exemption("*quantize_e[45]m[32]*", "forward", "store_width", "as many codes as 16 bytes of x"),
    Exemption("*quantize_int8*", "forward", "store_width", "as many codes as 16 bytes of x"),
    Exemption("*quantize_mxfp[48]_*", "forward", "store_width", "as many codes as 16 bytes of x"),
    Exemption("*quantize_nvfp4", "forward", "store_width", "as many codes as 16 bytes of x"),
    Exemption("dequantize_*", "forward", "load_width", "as many codes as 16 bytes of y"),
    Exemption("adamw_8bit_decode_?", "forward", "load_width", "as many codes as 16 bytes of y"),
    Exemption("adamw_8bit_encode_?", "forward", "store_width", "as many codes as 16 bytes of x"),
    Exemption("nll_loss", "forward", "load_width", "one logarithm of a row"),
    Exemption("nll_loss", "forward", "store_width", "one loss of a row"),
    Exemption("*compress_2_4", "forward", "store_width", "half of what 16 bytes of x hold is kept"),
    Exemption("adaptive_avg_pool2d", "forward", "store_width", "6 outputs a row", kind="layer"),
    Exemption("adaptive_avg_pool2d", "backward", "store_width", "elements, row by row"),
    *_each(
        "store_width",
        "max_pool2d avg_pool2d lp_pool2d bias_relu_max_pool2d",
        "forward",
        "stride 2: 16 bytes of x, half of y",
    ),
    *_each(
        "load_width",
        "max_pool2d avg_pool2d bias_relu_max_pool2d",
        "backward",
        "stride 2: 16 bytes of dx, half of dy",
    ),
    # Fewer loads on their way than an H200 or a B200 wants.
    *_in_flight("nll_loss", "forward", "twelve bytes of a row, and a thread for each row"),
    *_in_flight(
        "adamw_8bit_decode_m adamw_8bit_decode_v",
        "forward",
        "eight codes a thread, of the 256 that a warp and a scale have",
        arch=B200,
    ),
    *_in_flight("lp_pool2d", "forward backward", "a strip asks for one row of windows at a time"),
    *_in_flight(
        "dropout_bit_mask",
        "forward",
        "the compiler sinks loads to where random bits are",
    ),
    *_in_flight(
        "bias_dropout_residual_bit_mask",
        "backward",
        "the compiler sinks loads to where their bits are",
    ),
    *_in_flight(
        "bias_dropout_residual_byte_mask",
        "forward",
        "the compiler sinks loads to where random bits are",
    ),
    *_in_flight(
        "embedding", "backward", "eight rows of dy on their way, in the registers there are"
    ),
    *_in_flight(
        "add_layer_norm batch_norm_nhwc",
        "backward",
        "two reads, in the registers of two blocks",
        SIXTEEN_BITS,
        B200,
    ),
    *_in_flight(
        "bias_add channel_bias_add",
        "backward",
        "reads alone: all of the bandwidth waits for loads",
        arch=B200,
    ),
    *_in_flight(
        "bias_dropout_residual bias_dropout_residual_byte_mask",
        "backward",
        "one vector of dy at a time",
        "float32",
        B200,
    ),
    *_in_flight(
        "global_avg_pool",
        "forward",
        "reads alone: all of the bandwidth waits for loads",
        "float32",
        B200,
    ),
    *_in_flight(
        "bias_relu_max_pool2d",
        "forward",
        "a strip asks for one row of windows at a time",
        "bfloat16",
        B200,
    ),
    *_in_flight(
        "gather_int64",
        "forward",
        "16 bytes of index, four elements: threads are what there are",
        SIXTEEN_BITS,
        B200,
    ),
    *_in_flight(
        "rms_norm_quantize_e4m3 rms_norm_quantize_nvfp4",
        "forward",
        "the next row alone is on its way, in the registers there are",
        arch=B200,
    ),
    # More per byte than an H200 or a B200 issues at copy speed: 60 % is 4.2 and 2.9 instructions,
    # 0.52 and 0.37 special functions.
    *_issue(
        "quantize_mxfp4_floor quantize_mxfp4_up quantize_nvfp4 swiglu_quantize_nvfp4",
        "forward",
        "half-byte codes by one addition where no instruction makes them: 8 to 10 per byte, not 12",
    ),
    *_issue(
        "rms_norm_quantize_nvfp4 add_rms_norm_quantize_nvfp4",
        "forward",
        "half-byte codes, as in quantize_nvfp4; where an instruction makes them, the norm remains",
    ),
    *_issue(
        "rms_norm_quantize_e4m3",
        "forward",
        "the arithmetic of rms_norm for three quarters of its bytes; codes are made in pairs",
    ),
    *_issue(
        "quantize_e4m3_rows quantize_int8_rows",
        "forward",
        "magnitudes compared as floats: 4.6 instructions per byte; as bits, 5.1 and 6.9",
    ),
    *_issue(
        "compress_2_4 prune_compress_2_4",
        "forward",
        "places sorted with magnitudes: 4.6 instructions per byte; comparisons, 8.8",
    ),
    *_issue(
        "swiglu_quantize_e4m3",
        "forward",
        "the arithmetic of swiglu for five sixths of its bytes; codes are made in pairs",
        arch=B200,
    ),
    *_issue(
        "gelu bias_gelu",
        "forward",
        "a polynomial for the tail takes 4.5 instructions per byte; erff takes 7.2",
        SIXTEEN_BITS,
    ),
    *_issue(
        "gelu bias_gelu", "backward", "a polynomial for the tail, as forward", SIXTEEN_BITS, B200
    ),
    *_issue("geglu", "backward", "a polynomial for the tail, as in gelu", SIXTEEN_BITS),
    *_issue("geglu", "forward", "a polynomial for the tail, as in gelu", SIXTEEN_BITS, B200),
    *_issue(
        "tanh",
        "forward",
        "tanh.approx takes 1.1 instructions per byte; coarser than float16",
        "float16",
    ),
    *_issue(
        "sigmoid silu gelu_tanh",
        "forward",
        "tanh.approx halves special functions; the tail loses its digits",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "gelu_tanh",
        "backward",
        "a sigmoid takes 3.5 instructions per byte; tanhf takes 5.9",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "mish",
        "forward backward",
        "ex2 and rcp take 3.4 instructions per byte; tanhf and log1pf 13",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "elu",
        "forward",
        "a polynomial near 0 takes 3.8 instructions per byte; expm1f 9.4",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "layer_norm",
        "forward backward",
        "64 bytes a thread: 5.0 per byte forward, not 6.2; backward spills",
        SIXTEEN_BITS,
    ),
    *_issue(
        "layer_norm", "forward", "64 bytes a thread would help as with 16 bits", "float32", B200
    ),
    *_issue(
        "add_layer_norm",
        "forward backward",
        "64 bytes a thread would help as in layer_norm",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "causal_softmax",
        "forward backward",
        "64 bytes a thread: 3.3 per byte of whole rows, not 4.3",
        SIXTEEN_BITS,
    ),
    *_issue(
        "softmax log_softmax scaled_masked_softmax",
        "forward",
        "64 bytes a thread: 2.3 per byte, not 2.8",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "rms_norm",
        "forward backward",
        "64 bytes a thread: 2.3 per byte forward, not 2.8; backward 3.0 of 3.3",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "transpose nchw_to_nhwc nhwc_to_nchw",
        "forward",
        "two elements share a word of shared memory; addresses remain",
        SIXTEEN_BITS,
    ),
    *_issue(
        "max_pool2d bias_relu_max_pool2d",
        "forward backward",
        "strips share what windows have in common",
        SIXTEEN_BITS,
    ),
    *_issue(
        *("max_pool2d_nhwc", "forward backward"),
        "windows walk down a column, which was a third of the instructions; comparisons remain",
        SIXTEEN_BITS,
    ),
    *_issue(
        *("adaptive_avg_pool2d", "backward"),
        "no remedy tried: every element works out its windows",
    ),
    Exemption(
        *("adaptive_avg_pool2d", "forward", "issue"),
        "no remedy tried: every element works out its windows",
        kind="layer",
    ),
    *_issue(
        "bias_relu_max_pool2d", "forward", "strips share what windows have in common", "float32"
    ),
    *_issue(
        "batch_norm batch_norm_relu batch_norm_add_relu",
        "forward",
        "16 values a step, added by halves without predicates: 72 % of an H200 where it was 89",
        "*float16",
    ),
    *_issue("batch_norm_nhwc", "forward", "no remedy tried: Welford's update of every element"),
    *_issue(
        "batch_norm_add_relu", "backward", "no remedy tried: a bit and two sums of every element"
    ),
    *_issue(
        "dropout_bit_mask dropout_byte_mask softmax_dropout",
        "forward",
        "draws of 16 bits: one call of Philox serves eight elements",
    ),
    Exemption(
        *("dropout", "forward", "issue"),
        "draws of 16 bits: one call of Philox serves eight elements",
        kind="layer",
    ),
    *_issue(
        "dropout",
        "forward",
        "draws of 16 bits: one call of Philox serves eight elements",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "bias_dropout_residual_byte_mask",
        "forward",
        "draws of 16 bits: one call of Philox serves eight elements",
        SIXTEEN_BITS,
    ),
    *_issue(
        "dropout softmax_dropout bias_dropout_residual",
        "backward",
        "draws of 16 bits: one call of Philox serves eight elements",
        SIXTEEN_BITS,
    ),
    *_issue(
        "cross_entropy*",
        "forward",
        "no remedy tried: a running maximum of every element",
        SIXTEEN_BITS,
    ),
    *_issue("causal_softmax", "forward", "64 bytes a thread would help as with 16 bits", "float32"),
    *_issue(
        "causal_softmax",
        "backward",
        "64 bytes a thread would help as with 16 bits",
        "float32",
        B200,
    ),
    *_issue(
        "cross_entropy_smoothed*",
        "forward",
        "no remedy tried: a running maximum of every element",
        "float32",
        B200,
    ),
    *_issue(
        "cross_entropy",
        "backward",
        "no remedy tried: an exponential of every element",
        "float16",
        B200,
    ),
    *_issue("embedding", "backward", "no remedy tried: which row every token belongs to"),
    *_issue(
        "channel_bias_add",
        "forward",
        "no remedy tried: the channel of every vector is worked out",
        SIXTEEN_BITS,
    ),
    *_issue(
        "global_avg_pool", "backward", "no remedy tried: the plane of every vector is worked out"
    ),
    *_issue(
        "group_norm instance_norm",
        "forward",
        "no remedy tried: Welford's update of every element",
        SIXTEEN_BITS,
    ),
    *_issue(
        "batch_norm_nhwc batch_norm_relu",
        "backward",
        "no remedy tried: two sums of every element",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "adamw_8bit adamw_8bit_encode_m adamw_8bit_encode_v",
        "forward",
        "codes by saturating conversions: 3.6 instructions per byte; by comparing, 4.3",
        arch=B200,
    ),
    *_issue(
        "bias_dropout_residual bias_dropout_residual_bit_mask",
        "forward",
        "draws of 16 bits: one call of Philox serves eight elements",
        SIXTEEN_BITS,
        B200,
    ),
    *_issue(
        "max_pool2d",
        "forward",
        "strips share what windows have in common",
        "float32",
        B200,
    ),
    *_issue(
        "strided_read_*", "forward", "elements one by one are what it measures", SIXTEEN_BITS, B200
    ),
    # Seen, and not mended yet.
    *_each(
        "local_memory",
        "max_pool2d",
        "forward",
        "a register spilled in the strips of 32 bytes",
        "float16",
        B200,
    ),
)


def exempted(rows: Iterable[Exemption], fault: Fault) -> Exemption | None:
    """The first row that covers this fault, or None."""
    return next((row for row in rows if row.covers(fault)), None)
