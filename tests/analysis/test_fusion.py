"""Fused against unfused: predicted from bytes, measured within processes, L2-assisted apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from membound.analysis.cases import cases
from membound.analysis.fusion import Gain, fusion, gains
from membound.analysis.loading import frame
from membound.analysis.tables import as_text, fusion_tables
from membound.results.reading import Run
from membound.results.record import Peak, Record
from membound.tests.generated import MIB, environment, processes, record


def found(records: Sequence[Record], peak: Peak | None = None) -> list[Gain]:
    run = Run(Path("gpu/run"), environment(peak=peak), list(records))
    return gains(cases(frame([run])))


def norm(seconds: list[float], **changes: Any) -> list[Record]:
    """add + rms_norm: four passes fused, six unfused."""
    stated = {
        "operation": "add_rms_norm",
        "family": "fused",
        "bytes_read": 1024 * MIB,
        "bytes_written": 1024 * MIB,
        "unfused_bytes": 3072 * MIB,
    }
    return processes(seconds, **(stated | changes))


def test_predicted_is_of_bytes_and_measured_of_time_within_processes() -> None:
    gain, torch = found(
        [*norm([0.001, 0.002, 0.004]), *norm([0.0014, 0.0028, 0.0056], variant="unfused")]
    )
    assert gain.predicted == 1.5
    # Processes differ fourfold, but in each the chain takes 1.4 times as long.
    assert gain.measured == pytest.approx(1.4)
    assert gain.low == pytest.approx(1.4)
    assert gain.high == pytest.approx(1.4)
    assert gain.l2_assisted is False
    assert (gain.fused, gain.unfused) == ("cuda", "cuda:unfused")
    assert torch.why == "torch was not run"


def test_what_capacity_makes_both_read_again_is_not_gained() -> None:
    """batch_norm and relu of bfloat16: 3 passes in one kernel, 5 in two, 2 that must move."""
    again = norm([0.001], schedule_bytes=3072 * MIB, unfused_bytes=5120 * MIB)
    assert found(again)[0].predicted == pytest.approx(5 / 3)


def test_also_against_torch_by_whatever_name_it_runs() -> None:
    fused = norm([0.001])
    own = norm([0.0014], variant="unfused")
    eager = norm([0.003], implementation="torch")
    assert [g.unfused for g in found([*fused, *own, *eager]) if g.fused == "cuda"] == [
        "cuda:unfused",
        "torch",
    ]
    chain = norm([0.002], implementation="torch", variant="unfused")
    pair = found([*fused, *own, *chain])
    assert [(g.fused, g.unfused) for g in pair] == [
        ("cuda", "cuda:unfused"),
        ("cuda", "torch:unfused"),
    ]
    assert [g.measured for g in pair] == pytest.approx([1.4, 2.0])


def test_an_intermediate_within_four_caches_stands_apart() -> None:
    # llc 25 MiB: an intermediate of 100 MiB is read back from it, one of 101 MiB is not.
    for intermediate, assisted in ((100, True), (101, False)):
        (gain, _) = found(norm([0.001], unfused_bytes=(2048 + 2 * intermediate) * MIB))
        assert gain.l2_assisted is assisted


@pytest.mark.parametrize(
    ("partner", "why"),
    [
        ([], "cuda:unfused was not run"),
        (
            [
                record(
                    operation="add_rms_norm", variant="unfused", status="failed", reason="no nvcc"
                )
            ],
            "cuda:unfused failed: no nvcc",
        ),
        (norm([0.1, 0.1], variant="unfused")[1:], "no process measured both cuda and cuda:unfused"),
    ],
)
def test_a_gain_that_was_not_measured_has_a_reason_and_no_number(
    partner: list[Record], why: str
) -> None:
    gain = found([*norm([0.001]), *partner])[0]
    assert (gain.measured, gain.why) == (None, why)
    assert gain.predicted == 1.5
    text = as_text(fusion_tables([gain])[0])
    assert why in text
    assert "1.50x" in text
    assert " – " in text


def test_a_fused_kernel_faster_than_the_memory_gains_nothing() -> None:
    """2 GiB in 0.25 ms under a peak of 2000 GB/s: a gain of 6 where 1.5 is most."""
    records = [*norm([0.00025] * 3), *norm([0.0015] * 3, variant="unfused")]
    assert found(records)[0].measured == pytest.approx(6.0)
    gain = found(records, Peak(gbps=2000.0, source="sheet", provenance="made up"))[0]
    assert gain.measured is None
    assert (gain.why or "").startswith("cuda above-peak: 8,590 GB/s beyond the peak of 2,000")


def test_a_wrong_fused_kernel_gains_nothing() -> None:
    wrong = [
        record(
            process=0,
            operation="add_rms_norm",
            unfused_bytes=3072 * MIB,
            status="wrong",
            reason="row 3",
        )
    ]
    gain = found([*wrong, *norm([0.1], variant="unfused")])[0]
    assert (gain.measured, gain.why) == (None, "cuda wrong: row 3")


def test_as_a_frame_also_without_fused_operations() -> None:
    assert len(fusion(frame([]))) == 0
    table = fusion(frame([Run(Path("a/b"), environment(), norm([0.001]))]))
    assert table["predicted"].tolist() == [1.5, 1.5]
