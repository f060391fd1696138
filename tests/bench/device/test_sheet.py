"""The sheet: what it refuses to read, and what it refuses to guess."""

from __future__ import annotations

from pathlib import Path

import pytest
from membound.bench.device.sheet import (
    GIB,
    GPUS_CSV,
    INTERCONNECTS_CSV,
    SheetError,
    find,
    read_interconnects,
    read_sheet,
)

ROWS = read_sheet()


@pytest.mark.parametrize(
    ("name", "gib", "capability", "gbps"),
    [
        ("NVIDIA H200", 140.4, "9.0", 4800),
        ("NVIDIA H100 80GB HBM3", 79.6, "9.0", 3352),
        ("NVIDIA H100 PCIe", 79.6, "9.0", 2039),
        ("NVIDIA H100 NVL", 93.6, "9.0", 3938),
        ("NVIDIA GH200 480GB", 95.6, "9.0", 4000),
        ("NVIDIA A100-SXM4-40GB", 39.4, "8.0", 1555),
        ("NVIDIA A100-SXM4-80GB", 79.2, "8.0", 2039),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 15.6, "8.9", 576),
        ("NVIDIA GeForce RTX 3080", 9.8, "8.6", 760),
        ("NVIDIA GeForce RTX 3080", 11.8, "8.6", 912),
        ("NVIDIA GeForce RTX 4060 Ti", 7.7, "8.9", 288),
        ("NVIDIA GB10", 121.7, "12.1", 273),
        ("TITAN V", 11.8, "7.0", 653),
        ("NVIDIA TITAN V", 11.8, "7.0", 653),
    ],
)
def test_whole_names_match(name: str, gib: float, capability: str, gbps: float) -> None:
    row = find(ROWS, name, int(gib * GIB), capability).row
    assert row is not None and row.peak_gbps == gbps and row.source


@pytest.mark.parametrize(
    ("name", "gib", "capability", "reason"),
    [
        ("NVIDIA H100", 79.6, "9.0", "no row is named"),
        ("nvidia h200", 140.4, "9.0", "no row is named"),
        ("NVIDIA H200 ", 140.4, "9.0", "no row is named"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 15.7, "8.6", "no row is named"),
        ("NVIDIA GeForce RTX 2070 Super", 7.8, "7.5", "no row is named"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9.75, "8.0", "no row is named"),
        ("GRID T4-8Q", 8.0, "7.5", "no row is named"),
        ("NVIDIA A40-8C", 8.0, "8.6", "no row is named"),
        ("", 8.0, "8.6", "no row is named"),
        ("NVIDIA GeForce RTX 3080", 19.8, "8.6", "its rows say 10, 12 GiB"),
        ("NVIDIA GeForce RTX 3080", 11.0, "8.6", "is unknown"),
        ("NVIDIA H200", 140.4, "9.1", "its row says 9.0"),
        ("NVIDIA GeForce GTX 1650", 3.8, "7.5", "GTX 1650 (GDDR5) 128 GB/s, GTX 1650 (GDDR6) 192"),
        ("NVIDIA GeForce RTX 4070", 11.7, "8.9", "ambiguous"),
        ("Orin", 7.4, "8.7", "ambiguous"),
    ],
)
def test_nothing_is_guessed(name: str, gib: float, capability: str, reason: str) -> None:
    memory = None if reason == "is unknown" else int(gib * GIB)
    match = find(ROWS, name, memory, capability)
    assert match.row is None and reason in (match.reason or "")


def test_two_parts_with_one_bandwidth_are_not_ambiguous() -> None:
    row = ROWS[0]
    from dataclasses import replace

    twins = (row, replace(row, marketing_name="its twin"))
    assert find(twins, row.names[0], int(12 * GIB), row.capability).row is row


def test_geometry_agrees_with_every_stated_bandwidth() -> None:
    for row in ROWS:
        if row.bus_width_bits is not None and row.data_rate_gtps is not None:
            gbps = row.bus_width_bits / 8 * row.data_rate_gtps
            assert gbps == pytest.approx(row.peak_gbps, rel=0.01), row.marketing_name


def _broken(tmp_path: Path, old: str, new: str, source: Path = GPUS_CSV) -> Path:
    path = tmp_path / "sheet.csv"
    text = source.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",3072,1.43,549,", ",3072,1.43,fast,", ":2: peak_bandwidth_gbps: 'fast' is not a number"),
        (",3072,1.43,549,", ",3072,1.43,,", ":2: peak_bandwidth_gbps: is empty"),
        (",3072,1.43,549,", ",3072,1.43,nan,", ":2: peak_bandwidth_gbps: 'nan' is not a positive"),
        (",3072,1.43,549,", ",3072,1.43,-1,", ":2: peak_bandwidth_gbps: '-1' is not a positive"),
        (",3072,1.43,549,", ",3072,1.43,1e999,", ":2: peak_bandwidth_gbps: '1e999' is not a"),
        (",3072,1.43,549,", ",wide,1.43,549,", ":2: bus_width_bits: 'wide' is not a number"),
        (",3072,1.43,549,", ",3072,549,", ":2: row: has 25 fields, not 26"),
        ("data_rate_gtps", "rate", ":1: data_rate_gtps: this column is missing"),
        ("marketing_name", "name_pattern", ":1: marketing_name: this column is missing"),
        ("link_source", "notes", ":1: notes: this column is there twice"),
        (",Pascal,6.0,HBM2,12", ",Pascal,six,HBM2,12", ":2: compute_capability: 'six'"),
        (",Pascal,6.0,HBM2,12", ",Pascal,6.0,HBM2,12|", ":2: memory_gib: is empty"),
        ("gen3x16,no,", "gen3x16,maybe,", ":2: unified_memory: 'maybe' is not yes"),
        (
            "Tesla P100-PCIE-16GB,Tesla P100 PCIe 16GB",
            "Tesla P100-PCIE-12GB,Tesla P100 PCIe 12GB",
            ":3: name_pattern: 'Tesla P100-PCIE-12GB' (Tesla P100 PCIe 12GB) is on line 2 already",
        ),
    ],
)
def test_a_bad_sheet_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = _broken(tmp_path, old, new)
    with pytest.raises(SheetError) as caught:
        read_sheet(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'name_pattern,"open'])
def test_what_is_no_table_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sheet.csv"
    path.write_bytes(content)
    with pytest.raises(SheetError, match=r"sheet\.csv"):
        read_sheet(path)
    with pytest.raises(SheetError, match="cannot be read"):
        read_sheet(tmp_path / "absent.csv")


def test_interconnects(tmp_path: Path) -> None:
    links = {link.name: link for link in read_interconnects()}
    assert links["NVLink 5"].total_gbps_bidir == 1800
    assert links["PCIe gen5 x16"].per_direction_gbps == 63.02
    assert all(link.source for link in links.values())
    bad = _broken(tmp_path, ",40,4,160,80,", ",40,four,160,80,", INTERCONNECTS_CSV)
    with pytest.raises(SheetError, match=":2: links_per_gpu: 'four' is not a number"):
        read_interconnects(bad)
    twice = _broken(tmp_path, "NVLink 2,V100 SXM2", "NVLink 1,P100 SXM2", INTERCONNECTS_CSV)
    with pytest.raises(SheetError, match=":3: name: 'NVLink 1' is on line 2 already"):
        read_interconnects(twice)
