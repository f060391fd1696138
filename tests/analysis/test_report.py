"""Reports as people see them: complete, 100 columns wide, nothing interpreted, gaps explained."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from membound.analysis import bandwidth, fusion
from membound.analysis import export as exporting
from membound.analysis.report import report, run_table
from membound.analysis.report.__main__ import main
from membound.analysis.report.document import Form
from membound.analysis.tables import (
    DASH,
    Table,
    as_markdown,
    as_text,
    number,
    percent,
    plus_minus,
    size,
)
from membound.results.record import Peak, Record
from membound.results.store import ENVIRONMENT, MEASUREMENTS
from membound.tests.generated import device, environment, processes, record, run

HOSTILE = "[red]<script>alert('x')</script> | a_b `c` \x1b[31m\u202e=1+1"


def layers() -> list[Record]:
    return [
        *processes([0.00064, 0.00065, 0.00066]),
        *processes([0.00070, 0.00071, 0.00072], operation="silu", family="activation"),
        *processes(
            [0.002] * 3,
            operation="silu",
            family="activation",
            implementation="torch",
            allocates=True,
        ),
        record(
            operation="silu",
            family="activation",
            implementation="numba",
            status="skipped",
            reason="numba has no float8",
        ),
    ]


def table_lines(text: str) -> Sequence[str]:
    start = text.index("Achieved bandwidth")
    return text[start:].split("\n\n")[0].splitlines()


def words(line: str) -> str:
    return " ".join(line.split())


def test_first_come_device_peak_and_ceilings(tmp_path: Path) -> None:
    text = run_table(run(tmp_path, layers()))
    head = text.splitlines()
    assert head[0] == "NVIDIA Generated, 80 GiB, last-level cache 25 MiB, driver 580.95.05"
    assert head[1] == "Peak 2,000 GB/s (from sheet: generated)"
    assert head[2] == "Measured ceilings, cold: 1,652 GB/s at 50% reads"
    unknown = "drift unknown: process 0 has no reference copy; not corrected"
    assert head[3] == f"Reference copy, cold: {unknown}"
    assert "commit 0123abc00000" in head[4]


def test_the_table_has_every_case_and_fits_100_columns(tmp_path: Path) -> None:
    lines = table_lines(run_table(run(tmp_path, layers())))
    names = "operation dir implementation type shape bytes GB/s ± %peak %ceil verdict"
    copy = "copy fwd cuda f32 8192x16384 1.07 GB 1,652 ±3.9% 83 100 memory-bound"
    assert words(lines[1]) == names
    assert words(lines[2]) == copy
    assert lines[3].split()[-4:] == ["±3.6%", "76", "92", "memory-bound"]
    assert lines[4].split()[-5:] == ["537", "<0.1%", "27", "32", "below-ceiling"]
    assert lines[4].split()[2] == "torch*"
    assert words(lines[5]) == "silu fwd numba f32 8192x16384 1.07 GB – – – – skipped"
    assert lines[6] == "* allocates its outputs inside the clock"
    assert max(map(len, lines)) <= 100


def test_who_writes_over_its_inputs_is_marked(tmp_path: Path) -> None:
    ours = [*processes([0.00064] * 3), *processes([0.00065] * 3, implementation="torch")]
    peers = processes([0.00066] * 3, implementation="liger", allocates=True, in_place=True)
    lines = table_lines(run_table(run(tmp_path, [*ours, *peers])))
    assert "liger*†" in {line.split()[2] for line in lines[2:5]}
    assert lines[-1] == "† writes over its inputs, restored outside the clock"
    assert "†" not in "".join(table_lines(run_table(run(tmp_path / "ours", ours))))


def test_long_names_wrap_instead_of_vanishing(tmp_path: Path) -> None:
    name = "bias_dropout_residual_and_much_more"
    lines = table_lines(run_table(run(tmp_path, processes([0.001] * 3, operation=name))))
    assert max(map(len, lines)) <= 100
    assert "".join(line.split()[0] for line in lines[2:]).startswith(name[:10])


def test_what_was_not_measured_has_its_reason_and_no_number(tmp_path: Path) -> None:
    text = run_table(run(tmp_path, layers()))
    assert "Not measured" in text
    assert "numba has no float8" in text
    assert " 0 " not in text[text.index("Achieved bandwidth") :]


@pytest.mark.parametrize("form", ["text", "markdown"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_any_number_of_cases(tmp_path: Path, count: int, form: Form) -> None:
    made = report([run(tmp_path, layers()[:count])], form=form)
    assert "NVIDIA Generated" in made.text
    assert made.exit_code == (1 if count == 0 else 0)
    assert ("nothing measured" in made.text) == (count == 0)


def test_all_failed(tmp_path: Path) -> None:
    failed = [record(operation=f"op{i}", status="failed", reason="no compiler") for i in range(9)]
    made = report([run(tmp_path, failed)])
    assert "Measured ceilings: none" in made.text
    assert made.text.count("no compiler") == 1
    assert " 9 no compiler" in made.text


def test_an_unknown_peak_shows_its_reason_and_no_percentage(tmp_path: Path) -> None:
    env = environment(peak=None, peak_reason="GB99 is in no sheet")
    lines = run_table(run(tmp_path, layers(), env)).splitlines()
    assert lines[1] == "Peak unknown: GB99 is in no sheet"
    (row,) = (line for line in lines if line.startswith("copy"))
    assert row.split()[-3:] == [DASH, "100", "memory-bound"]


def test_hostile_text_is_shown_and_not_interpreted(tmp_path: Path) -> None:
    env = environment(
        device=device(name=HOSTILE), warnings=[HOSTILE], peak=None, peak_reason=HOSTILE
    )
    records = [record(operation=HOSTILE, status="failed", reason=HOSTILE), *layers()]
    path = run(tmp_path, records, env)
    text = report([path]).text
    assert "[red]<script>alert('x')</script> | a_b `c`" in text
    for made in (text, report([path], form="markdown").text, report([path], color=True).text):
        assert "\u202e" not in made
    markdown = report([path], form="markdown").text
    assert "\x1b" not in markdown + text
    assert "<script" not in markdown
    assert "\\| a_b \\`c\\`" in markdown
    assert "\\[red\\]" in markdown


def test_markdown_rows_have_as_many_cells_as_the_header(tmp_path: Path) -> None:
    text = report([run(tmp_path, layers())], form="markdown").text
    assert text.startswith("## NVIDIA Generated")
    start = text.index("| operation |")
    rows = text[start:].split("\n\n")[0].splitlines()
    assert {row.count("|") for row in rows} == {12}
    assert len(rows) == 6


def test_warnings_contention_and_damage_are_listed(tmp_path: Path) -> None:
    env = environment(warnings=["clock locked"], processes_before=["77 python"])
    path = run(tmp_path, layers(), env)
    with (path / MEASUREMENTS).open("ab") as file:
        file.write(b"{\n")
    made = report([path])
    assert made.exit_code == 1
    assert "clock locked" in made.text
    assert "other compute processes before the run: 77 python" in made.text
    assert f"damaged: {path / MEASUREMENTS}:11: is not valid JSON" in made.text
    assert "silu" in made.text


def test_a_run_without_environment_still_shows_its_bandwidths(tmp_path: Path) -> None:
    path = run(tmp_path, layers())
    (path / ENVIRONMENT).unlink()
    made = report([path])
    assert made.exit_code == 1
    assert "Unknown device" in made.text
    assert "1,652" in made.text


def test_several_runs_one_after_the_other(tmp_path: Path) -> None:
    run(tmp_path, layers(), environment(device=device(name="First")))
    run(tmp_path, layers(), environment(device=device(name="Second")), minute=1)
    text = report([tmp_path]).text
    assert text.index("First") < text.index("Second")


def test_the_scripts_run_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(run(tmp_path, layers()))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "membound.analysis.report", path, "--markdown"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "| silu | fwd | torch\\* |" in done.stdout
    for script, said in (
        (bandwidth.main, "below-ceiling"),
        (fusion.main, "no fused operation"),
        (main, "Peak 2,000"),
    ):
        assert script([path]) == 0
        assert said in capsys.readouterr().out
        assert script([str(tmp_path / "none")]) == 2
        assert "does not exist" in capsys.readouterr().err
    assert exporting.main([path, "--output", str(tmp_path / "x.csv")]) == 0
    with (Path(path) / MEASUREMENTS).open("ab") as file:
        file.write(b"[]\n")
    for script in (bandwidth.main, fusion.main, main):
        assert script([path]) == 1
        captured = capsys.readouterr()
        assert "is a list" in captured.err + captured.out
        assert captured.out


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, DASH),
        (float("nan"), DASH),
        (float("inf"), DASH),
        (0.0, "0"),
        (1.5, "1.50"),
        (273.0, "273"),
        (4814.3, "4,814"),
        (0.00123, "0.00123"),
        (99.96, "100.0"),
    ],
)
def test_numbers(value: float | None, said: str) -> None:
    assert number(value) == said


def test_percent_is_never_an_achievement_beyond_100() -> None:
    assert [percent(x) for x in (None, 99.6, 100.4, 114.41)] == [DASH, "100", "100", "≥100"]


def test_intervals_and_sizes() -> None:
    assert plus_minus(None, 2.0) == DASH
    assert plus_minus(100.0, 121.0) == "±10.0%"
    assert [size(x) for x in (None, 0, 999, 134_217_728, 2e12)] == [
        DASH,
        "0 B",
        "999 B",
        "134 MB",
        "2.00 TB",
    ]


def test_an_empty_table_is_its_title_and_notes() -> None:
    table = Table("Title", ["a"], [], notes=["nothing"])
    assert as_text(table) == "Title\nnothing\n"
    assert as_markdown(table) == "### Title\n\n\nnothing\n"


def test_peak_provenance_is_shown(tmp_path: Path) -> None:
    env = environment(peak=Peak(gbps=4814.3, source="attributes", provenance="2 x 3201 MHz"))
    assert "Peak 4,814 GB/s (from attributes: 2 x 3201 MHz)" in run_table(run(tmp_path, [], env))


def test_what_disturbed_a_run_is_a_warning(tmp_path: Path) -> None:
    held = {"clocks_slowed_by": "power cap, thermal (hardware)"}
    records = [*processes([0.001] * 5), record(process=5, status="timeout", reason="60 s")]
    text = run_table(run(tmp_path, records, environment(after=held)))
    assert "clocks after the run held back: thermal (hardware)" in text
    assert "failed in some processes: 1 case, such as copy/forward/cuda/float32/" in text
    assert "8192x16384/cold: 1 of 6 records timeout: 60 s" in text


def test_a_ceiling_that_layers_exceed_is_in_doubt(tmp_path: Path) -> None:
    records = [
        *processes([0.0010] * 2),
        *processes([0.0008] * 2, operation="silu", family="activation"),
    ]
    text = run_table(run(tmp_path, records))
    assert "faster than the copies with their read share: 1 case, " in text
    assert "8192x16384/cold by 25 %; those ceilings were measured too low" in text
    assert "± needs three processes" in text
    (row,) = (line for line in text.splitlines() if line.startswith("silu"))
    assert row.split()[-2:] == ["≥100", "memory-bound"]


def test_colour_is_on_verdicts_alone_and_only_when_asked() -> None:
    table = Table("T", ["case", "verdict"], [["slower \x1b[31m", "slower"]])
    assert as_text(table) == "T\ncase        verdict\nslower [31m slower\n"
    lines = as_text(table, color=True).splitlines()
    assert lines[2] == "slower [31m \x1b[31mslower \x1b[0m"


def test_no_table_is_too_narrow_to_print() -> None:
    table = Table("", ["a", "b"], [["x" * 300, "y" * 300], ["", " "]])
    assert max(map(len, as_text(table, width=40).splitlines())) <= 40
    assert as_text(table, width=1)
