"""Every recorded machine: the peak that is chosen, the other candidates, and what is warned of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from membound.bench.device.identity import device_folder
from membound.bench.device.probe import Machine
from membound.bench.device.select import select

MIB = 1 << 20
NOT_ITS_MEMORY = "an integrated device's clock and bus width are not those of its memory"

# machine: (chosen GB/s, its source, the other candidates, warnings)
PEAKS: dict[str, tuple[float | None, str | None, list[tuple[float, str]], list[str]]] = {
    "GB10": (273.0, "sheet", [], []),
    "GB10 clock 0": (273.0, "sheet", [], []),
    "GB10 bus None": (273.0, "sheet", [], []),
    "Orin AGX 64": (
        204.8,
        "sheet",
        [(39.17, "attributes")],
        ["peak 204.8 GB/s (sheet) is used; attributes would say 39.17 (-80.9%): " + NOT_ITS_MEMORY],
    ),
    "Orin AGX 32": (
        204.8,
        "sheet",
        [(41.6, "attributes")],
        ["peak 204.8 GB/s (sheet) is used; attributes would say 41.6 (-79.7%): " + NOT_ITS_MEMORY],
    ),
    "Orin Nano": (None, None, [(19.58, "attributes")], []),
    "Thor": (273.0, "sheet", [], []),
    "GH200 96": (4022.78, "attributes", [(4000.0, "sheet")], []),
    "GH200 144": (4899.84, "attributes", [(4900.0, "sheet")], []),
    "GB200": (8000.0, "sheet", [], []),
    "B200": (7672.32, "attributes", [(7700.0, "sheet")], []),
    "B200 older driver": (
        8183.81,
        "attributes",
        [(7700.0, "sheet")],
        ["peak 8183.81 GB/s (attributes) is used; sheet would say 7700 (-5.9%)"],
    ),
    "B300": (7700.0, "sheet", [], []),
    "H100 PCIe": (2039.04, "attributes", [(2039.0, "sheet")], []),
    "H100 SXM": (3352.32, "attributes", [(3352.0, "sheet")], []),
    "H100 NVL": (3938.98, "attributes", [(3938.0, "sheet")], []),
    "H100 bare name": (2400.0, "attributes", [], []),
    "H200": (4814.3, "attributes", [(4800.0, "sheet")], []),
    "A100 PCIe 40": (1555.2, "attributes", [(1555.0, "sheet")], []),
    "A100 SXM 40": (1555.2, "attributes", [(1555.0, "sheet")], []),
    "A100 PCIe 80": (1935.36, "attributes", [(1935.0, "sheet")], []),
    "A100 SXM 80": (2039.04, "attributes", [(2039.0, "sheet")], []),
    "MIG 1g.10gb": (254.88, "attributes", [], []),
    "MIG 2g.20gb": (509.76, "attributes", [], []),
    "MIG 3g.40gb": (1019.52, "attributes", [], []),
    "MIG whole bus": (None, None, [(2039.04, "attributes")], []),
    "MIG bus unknown": (None, None, [], []),
    "L4": (300.0, "attributes", [(300.0, "sheet")], []),
    "L40S": (864.0, "attributes", [(864.0, "sheet")], []),
    "A10G": (600.0, "attributes", [(600.0, "sheet")], []),
    "T4": (320.06, "attributes", [(320.0, "sheet")], []),
    "RTX 3060 12": (360.0, "attributes", [(360.0, "sheet")], []),
    "RTX 3060 8": (240.0, "attributes", [(240.0, "sheet")], []),
    "RTX 3080 10": (760.0, "attributes", [(760.0, "sheet")], []),
    "RTX 3080 12": (912.0, "attributes", [(912.0, "sheet")], []),
    "RTX 4070": (504.0, "attributes", [], []),
    "RTX 4070 GDDR6": (480.0, "attributes", [], []),
    "RTX 4090": (1008.1, "attributes", [(1008.0, "sheet")], []),
    "RTX 4090 Laptop": (576.0, "attributes", [(576.0, "sheet")], []),
    "RTX 5090": (1792.13, "attributes", [(1792.0, "sheet")], []),
    "PRO 6000 WS": (1792.0, "attributes", [(1792.0, "sheet")], []),
    "PRO 6000 Max-Q": (1792.0, "attributes", [(1792.0, "sheet")], []),
    "PRO 6000 Server": (1596.99, "attributes", [(1597.0, "sheet")], []),
    "GTX 1650": (128.0, "attributes", [], []),
    "GTX 1650 GDDR6": (192.0, "attributes", [], []),
    "vGPU T4-8Q": (None, None, [], []),
    "vGPU A40-8C": (696.0, "attributes", [], []),
    "WSL2": (1008.1, "attributes", [(1008.0, "sheet")], []),
    "container without NVML": (300.0, "attributes", [(300.0, "sheet")], []),
    "attributes unanswered": (300.0, "sheet", [], []),
}

# machine: provenance of the candidate from the attributes, row of the candidate from the sheet
PROVENANCE: dict[str, tuple[str | None, str | None]] = {
    "GB10": (None, "DGX Spark GB10"),
    "GB10 clock 0": (None, "DGX Spark GB10"),
    "GB10 bus None": (None, "DGX Spark GB10"),
    "Orin AGX 64": ("2 x 612 MHz x 256 bit / 8", "Jetson AGX Orin 64GB"),
    "Orin AGX 32": ("2 x 1300 MHz x 128 bit / 8", "Jetson AGX Orin 32GB"),
    "Orin Nano": ("2 x 612 MHz x 128 bit / 8", None),
    "Thor": (None, "Jetson AGX Thor T5000"),
    "GH200 96": ("2 x 2619 MHz x 6144 bit / 8", "GH200 96GB HBM3"),
    "GH200 144": ("2 x 3190 MHz x 6144 bit / 8", "GH200 144GB HBM3e"),
    "GB200": (None, "GB200 (per GPU, NVL72)"),
    "B200": ("2 x 3996 MHz x 7680 bit / 8", "B200 SXM 180GB (HGX)"),
    "B200 older driver": ("2 x 3996 MHz x 8192 bit / 8", "B200 SXM 180GB (HGX)"),
    "B300": (None, "B300 SXM (HGX)"),
    "H100 PCIe": ("2 x 1593 MHz x 5120 bit / 8", "H100 PCIe 80GB"),
    "H100 SXM": ("2 x 2619 MHz x 5120 bit / 8", "H100 SXM5 80GB"),
    "H100 NVL": ("2 x 2619 MHz x 6016 bit / 8", "H100 NVL 94GB"),
    "H100 bare name": ("2 x 1562.5 MHz x 6144 bit / 8", None),
    "H200": ("2 x 3201 MHz x 6016 bit / 8", "H200 SXM 141GB"),
    "A100 PCIe 40": ("2 x 1215 MHz x 5120 bit / 8", "A100 PCIe 40GB"),
    "A100 SXM 40": ("2 x 1215 MHz x 5120 bit / 8", "A100 SXM4 40GB"),
    "A100 PCIe 80": ("2 x 1512 MHz x 5120 bit / 8", "A100 PCIe 80GB"),
    "A100 SXM 80": ("2 x 1593 MHz x 5120 bit / 8", "A100 SXM4 80GB"),
    "MIG 1g.10gb": ("2 x 1593 MHz x 640 bit / 8", None),
    "MIG 2g.20gb": ("2 x 1593 MHz x 1280 bit / 8", None),
    "MIG 3g.40gb": ("2 x 1593 MHz x 2560 bit / 8", None),
    "MIG whole bus": ("2 x 1593 MHz x 5120 bit / 8", None),
    "MIG bus unknown": (None, None),
    "L4": ("2 x 6250 MHz x 192 bit / 8", "L4"),
    "L40S": ("2 x 9000 MHz x 384 bit / 8", "L40S"),
    "A10G": ("2 x 6250 MHz x 384 bit / 8", "A10G (AWS)"),
    "T4": ("2 x 5001 MHz x 256 bit / 8", "T4"),
    "RTX 3060 12": ("2 x 7500 MHz x 192 bit / 8", "RTX 3060 12GB"),
    "RTX 3060 8": ("2 x 7500 MHz x 128 bit / 8", "RTX 3060 8GB"),
    "RTX 3080 10": ("2 x 9500 MHz x 320 bit / 8", "RTX 3080 10GB"),
    "RTX 3080 12": ("2 x 9500 MHz x 384 bit / 8", "RTX 3080 12GB"),
    "RTX 4070": ("2 x 10500 MHz x 192 bit / 8", None),
    "RTX 4070 GDDR6": ("2 x 10000 MHz x 192 bit / 8", None),
    "RTX 4090": ("2 x 10501 MHz x 384 bit / 8", "RTX 4090"),
    "RTX 4090 Laptop": ("2 x 9000 MHz x 256 bit / 8", "RTX 4090 Laptop"),
    "RTX 5090": ("2 x 14001 MHz x 512 bit / 8", "RTX 5090"),
    "PRO 6000 WS": ("2 x 14000 MHz x 512 bit / 8", "RTX PRO 6000 Blackwell WS"),
    "PRO 6000 Max-Q": ("2 x 14000 MHz x 512 bit / 8", "RTX PRO 6000 Blackwell Max-Q"),
    "PRO 6000 Server": ("2 x 12476.5 MHz x 512 bit / 8", "RTX PRO 6000 Blackwell Server"),
    "GTX 1650": ("2 x 4000 MHz x 128 bit / 8", None),
    "GTX 1650 GDDR6": ("2 x 6000 MHz x 128 bit / 8", None),
    "vGPU T4-8Q": (None, None),
    "vGPU A40-8C": ("2 x 7250 MHz x 384 bit / 8", None),
    "WSL2": ("2 x 10501 MHz x 384 bit / 8", "RTX 4090"),
    "container without NVML": ("2 x 6250 MHz x 192 bit / 8", "L4"),
    "attributes unanswered": (None, "L4"),
}

Recording = Callable[[str], Machine]


@pytest.mark.parametrize("key", PEAKS)
def test_peak(key: str, recorded: Recording) -> None:
    gbps, source, others, warnings = PEAKS[key]
    selected = select("cuda", machine=recorded(key))
    chosen = selected.peak
    assert (chosen and chosen.gbps, chosen and chosen.source) == (gbps, source)
    assert [(c.gbps, c.source) for c in selected.peak_candidates if c is not chosen] == others
    assert selected.warnings == warnings
    told = {c.source: c.provenance for c in selected.peak_candidates}
    attributes, row = PROVENANCE[key]
    assert told.get("attributes") == attributes
    assert told.get("sheet", "").partition(": ")[0] == (row or "")
    assert row is None or len(told["sheet"].partition(": ")[2]) > 8  # and the source of the row
    if chosen is None:
        assert selected.peak_reason is not None and "--peak GBPS" in selected.peak_reason
    assert selected.memory_budget_bytes > 0
    assert selected.device.llc_bytes > 0
    assert selected.target.sm >= 75 and selected.target.multiprocessors >= 1


def test_every_recorded_machine_has_a_literal() -> None:
    import json
    from pathlib import Path

    recorded = json.loads(Path(__file__).with_name("answers").joinpath("machines.json").read_text())
    assert set(recorded) == set(PEAKS) == set(PROVENANCE)
    assert all(answers["source"] for answers in recorded.values())


def test_why_there_is_no_peak(recorded: Recording) -> None:
    def reason(key: str) -> str:
        return select("cuda", machine=recorded(key)).peak_reason or ""

    assert "ambiguous: 3 parts carry this name and memory: Jetson Orin NX" in reason("Orin Nano")
    assert "describe the whole card, not this MIG slice" in reason("MIG whole bus")
    assert "does not tell memory clock and bus width" in reason("MIG bus unknown")
    assert "no row is named 'GRID T4-8Q'" in reason("vGPU T4-8Q")


def test_the_user_is_believed_first(recorded: Recording) -> None:
    selected = select("cuda", 273, "NVIDIA data sheet", recorded("H200"))
    assert selected.peak is not None
    assert (selected.peak.source, selected.peak.provenance) == ("user", "NVIDIA data sheet")
    assert [c.source for c in selected.peak_candidates] == ["user", "attributes", "sheet"]
    assert len(selected.warnings) == 2
    nano = select("cuda", 68, None, recorded("Orin Nano"))
    assert nano.peak is not None and nano.peak.provenance == "given without a source"
    assert nano.peak_reason is None


def test_mig_is_told_apart(recorded: Recording) -> None:
    whole = select("cuda", machine=recorded("A100 SXM 80")).device
    devices = [select("cuda", machine=recorded(f"MIG {g}")).device for g in
               ("1g.10gb", "2g.20gb", "3g.40gb")]  # fmt: skip
    assert [device.mig for device in devices] == ["1g.10gb", "2g.20gb", "3g.40gb"]
    assert all((device.uuid or "").startswith("MIG-") for device in devices)
    assert [device.llc_bytes // MIB for device in devices] == [5, 10, 20]
    assert whole.mig is None and (whole.uuid or "").startswith("GPU-")
    assert len({device_folder(device) for device in (whole, *devices)}) == 4


def test_gb10(recorded: Recording) -> None:
    selected = select(None, machine=recorded("GB10"))
    device = selected.device
    assert (device.capability, device.integrated, device.multiprocessors) == ("12.1", True, 48)
    assert (device.l2_bytes, device.memory_side_cache_bytes) == (24 * MIB, 16 * MIB)
    assert device.llc_bytes == selected.target.llc_bytes == 40 * MIB
    assert device.power_limit_watts is None and device.ecc is None
    assert selected.missing["power_limit_watts"] == "answered 'N/A'"
    assert selected.memory_budget_bytes == 121320243 * 1024 // 2
    assert (device.driver, device.cuda_driver) == ("580.95.05", "13.0")
    assert selected.target.arch == "sm_121"
    assert device_folder(device) == "NVIDIA-GB10-128GiB"


def test_quirks(recorded: Recording) -> None:
    def quirks(key: str) -> str:
        return "\n".join(select("cuda", machine=recorded(key)).quirks)

    assert "shared with the CPU" in quirks("GB10") and "slow state" in quirks("GB10")
    assert "power mode" in quirks("Orin AGX 64")
    assert "MIG slice 1g.10gb" in quirks("MIG 1g.10gb")
    assert "virtual GPU" in quirks("vGPU T4-8Q") and "virtual GPU" in quirks("vGPU A40-8C")
    assert "WSL" in quirks("WSL2")
    assert "page cache" in quirks("GH200 96")
    assert "ECC is on" in quirks("T4") and "ECC" not in quirks("H200")
    assert quirks("H100 PCIe") == ""


def test_a_container_without_nvml_still_has_its_device(recorded: Recording) -> None:
    selected = select("cuda", machine=recorded("container without NVML"))
    assert selected.nvml is None
    assert "Unknown Error" in selected.missing["nvml"]
    assert selected.device.ecc is True
    assert selected.memory_budget_bytes == int(22000 * MIB * 0.9)
    assert selected.host["container"] == "docker"


def test_folders_differ_by_memory(recorded: Recording) -> None:
    def folder(key: str) -> str:
        return device_folder(select("cuda", machine=recorded(key)).device)

    assert folder("RTX 3080 10") == "NVIDIA-GeForce-RTX-3080-10GiB"
    assert folder("RTX 3080 12") == "NVIDIA-GeForce-RTX-3080-12GiB"
    assert folder("GH200 96") == "NVIDIA-GH200-480GB-96GiB"
    assert folder("WSL2") == folder("RTX 4090")
