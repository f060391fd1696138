"""The arithmetic of a peak, and the peaks a user may give."""

from __future__ import annotations

import pytest
from membound.bench.device.peaks import BadPeak, Known, attributes_gbps, decide, user_peak
from membound.bench.device.sheet import GIB, read_sheet


@pytest.mark.parametrize(
    ("khz", "bits", "gbps"),
    [
        (5005000, 256, 320.32),
        (1593000, 5120, 2039.04),
        (2619000, 6016, 3938.98),
        (3201000, 6016, 4814.30),
        (3201000, 6144, 4916.74),
        (10501000, 384, 1008.10),
        (9001000, 192, 432.05),
        (3996000, 7680, 7672.32),
        (3996000, 8192, 8183.81),
        (4266500, 256, 273.06),
    ],
)
def test_attributes(khz: int, bits: int, gbps: float) -> None:
    assert round(attributes_gbps(khz, bits), 2) == gbps


def test_a_gigabyte_is_1e9_bytes() -> None:
    # 1 GHz on 8 bits moves 2e9 bytes a second.
    assert attributes_gbps(1_000_000, 8) == 2.0


@pytest.mark.parametrize("gbps", [0.0, -273.0, float("nan"), float("inf")])
def test_a_peak_that_is_no_bandwidth(gbps: float) -> None:
    with pytest.raises(BadPeak, match="no bandwidth"):
        user_peak(gbps, "sheet")


def test_a_source_without_a_number() -> None:
    with pytest.raises(BadPeak, match="needs --peak"):
        user_peak(None, "sheet")
    assert user_peak(None, None) is None


@pytest.mark.parametrize(
    ("bits", "warned"), [(6016, False), (6080, False), (6144, True), (5888, True)]
)
def test_a_difference_above_one_and_a_half_percent_is_shown(bits: int, warned: bool) -> None:
    # The sheet says 4800; 6016 bits are 0.3 % more, 6080 1.4 %, 6144 2.4 %, 5888 1.8 % less.
    known = Known("NVIDIA H200", int(140.4 * GIB), "9.0", False, None, 3201000, bits)
    decision = decide(known, read_sheet(), None)
    assert bool(decision.warnings) is warned
    assert decision.peak is not None and decision.peak.source == "attributes"


def test_a_mig_slice_never_gets_the_peak_of_the_card() -> None:
    slice_bytes = int(9.75 * GIB)
    name = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    known = Known(name, slice_bytes, "8.0", False, "1g.10gb", 1593000, 640)
    decision = decide(known, read_sheet(), None)
    assert decision.peak is not None and decision.peak.gbps == 254.88
    assert [candidate.source for candidate in decision.candidates] == ["attributes"]
