"""Comparing runs of devices that differ, or of one that was driven or disturbed otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from membound.analysis.compare import compare
from membound.results.reading import Run
from membound.results.record import Environment, Peak
from membound.tests.analysis.comparing import against, shown, side, times, verdicts
from membound.tests.generated import device, environment


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({"name": "NVIDIA L4"}, {"name": "NVIDIA T4"}, "name: NVIDIA L4 and NVIDIA T4"),
        ({"name": "NVIDIA H100 PCIe"}, {"name": "NVIDIA H200"}, "name: NVIDIA H100 PCIe and"),
        ({}, {"mig": "1g.5gb"}, "mig: none and 1g.5gb"),
        ({}, {"power_limit_watts": 500.0}, "power_limit_watts: 700.0 and 500.0"),
        ({}, {"memory_bytes": 40 << 30}, "memory_bytes: 85,899,345,920 and 42,949,672,960"),
        ({}, {"kind": "cpu"}, "kind: cuda and cpu"),
    ],
)
def test_another_device_is_refused_by_the_fields_that_differ(
    ours: dict[str, Any], theirs: dict[str, Any], said: str
) -> None:
    found = compare(
        [side(times(), environment(device=device(**ours)))],
        [side(times(2.0), environment(device=device(**theirs)))],
    )
    assert said in found.differences[0]
    assert all(row.ratio is None for row in found.rows)
    code, why = found.exit_code()
    assert code == 3
    assert said in why


@pytest.mark.parametrize(
    "changes",
    [
        {"uuid": "GPU-2", "pci_bus_id": "0000:41:00.0"},
        {"memory_bytes": (80 << 30) - (64 << 20)},
        {"driver": "580.126.01"},
        {"capability": None, "power_limit_watts": None, "multiprocessors": None},
        {"power_limit_watts": 700.4},
    ],
)
def test_what_changes_from_day_to_day_is_no_other_device(changes: dict[str, Any]) -> None:
    other = environment(device=device(**changes), host={"cpu_mhz": "2901.234"}, command=["x"])
    found = compare([side(times())], [side(times(), other)])
    assert found.differences == []
    assert found.exit_code()[0] == 0


def by_attributes(gbps: float, clock: str) -> Environment:
    provenance = f"2 x {clock} MHz x 384 bit / 8"
    return environment(
        peak_candidates=[Peak(gbps=gbps, source="attributes", provenance=provenance)]
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "doubt"),
    [
        (
            environment(device=device(driver="570.86.15")),
            environment(),
            "driver: 570.86.15 and 580.95.05",
        ),
        (
            environment(device=device(ecc=True)),
            environment(device=device(ecc=False)),
            "ECC: on and off",
        ),
        (
            by_attributes(1008.1, "10501"),
            by_attributes(1104.1, "11501"),
            "memory clock and bus: 2 x 10501 MHz x 384 bit / 8 and 2 x 11501 MHz x 384 bit / 8",
        ),
        (
            environment(device=device(kind="cpu"), host={"governor": "performance"}),
            environment(device=device(kind="cpu"), host={"governor": "powersave"}),
            "governor: performance and powersave",
        ),
    ],
)
def test_one_device_driven_otherwise_is_inconclusive(
    ours: Environment, theirs: Environment, doubt: str
) -> None:
    found = compare([side(times(), ours)], [side(times(1.2), theirs)])
    assert (found.differences, found.doubts) == ([], [doubt])
    assert found.exit_code() == (5, f"inconclusive: {doubt}")
    assert compare([side(times(), ours)], [side(times(), ours)]).exit_code()[0] == 0


def test_an_unknown_driver_first_hides_no_difference() -> None:
    drivers = (None, "570.86.15", "580.95.05")
    base, *current = (
        side(times(), environment(device=device(driver=driver)), f"gpu/{driver}")
        for driver in drivers
    )
    assert compare([base, current[0]], [current[1]]).doubts == ["driver: 570.86.15 and 580.95.05"]


def test_another_device_has_its_own_driver() -> None:
    fast = environment(device=device(name="NVIDIA Faster", driver="570.86.15"), peak=None)
    found = compare([side(times())], [side(times(0.5), fast)], across_devices=True)
    assert (found.doubts, found.exit_code()[0]) == ([], 0)


def test_across_devices_times_are_in_units_of_the_own_ceiling() -> None:
    # Twice as fast a device that reaches the same part of its ceiling.
    layer = {"operation": "silu", "family": "activation"}
    ours = [side([*times(), *times(1.25, **layer)])]
    fast = environment(device=device(name="NVIDIA Faster"), peak=None)
    theirs = [side([*times(0.5), *times(0.625, **layer)], fast)]
    found = compare(ours, theirs, across_devices=True)
    assert verdicts(found) == {"copy": "same", "silu": "same"}
    silu = next(row for row in found.rows if row.case.startswith("silu"))
    assert (silu.base_seconds, silu.current_seconds) == (0.00125, 0.000625)
    assert shown(found).startswith("Time x own ceiling against the baseline")
    assert found.differences == ["name: NVIDIA Generated and NVIDIA Faster"]
    assert found.exit_code()[0] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"processes_before": ["1234 python"]},
        {"processes_after": ["1234 python"]},
        {"device": device(driver="590.10")},
    ],
)
def test_a_disturbed_run_is_neither_red_nor_green(changes: dict[str, Any]) -> None:
    for factor in (1.0, 2.0):
        found = compare([side(times())], [side(times(factor), environment(**changes))])
        code, why = found.exit_code()
        assert code == 5
        assert why.startswith("inconclusive: ")


def test_a_throttled_run_is_neither_red_nor_green() -> None:
    assert against(times(), times(2.0, throttled=True)).exit_code()[0] == 5


def test_an_unknown_process_list_is_no_disturbance() -> None:
    quiet = environment(processes_before=None, processes_after=[])
    assert compare([side(times())], [side(times(), quiet)]).exit_code()[0] == 0


def test_a_damaged_environment_is_no_known_device() -> None:
    lost = Run(Path("gpu/lost"), None, times())
    code, why = compare([side(times())], [lost]).exit_code()
    assert code == 3
    assert "device of gpu/lost is unknown" in why
