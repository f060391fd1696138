"""The front door as a user meets it: what it prints, its exit codes, what it never imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from membound.cli import app
from membound.results.reading import read_run
from typer.testing import CliRunner, Result

FAULTY = Path(__file__).parent / "bench" / "faulty"
HEAVY = ("torch", "pandas", "numba", "triton", "cupy", "altair", "scipy")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def shift_run(out: Path, *more: str) -> Result:
    return invoke(
        "run", "shift", "--kernels", str(FAULTY), "--device", "cpu", "--processes", "1",
        "--preset", "full", "--out", str(out), *more,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], ["report", "--help"], ["run", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys; from membound.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit: pass\n"
        f"sys.exit(repr([m for m in {HEAVY!r} if m in sys.modules]))"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert ended.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "cpoy"], 2, "unknown operation 'cpoy'; nearest: copy"),
        (["run", "--dtype", "bf16"], 2, "unknown dtype 'bf16'; nearest: bfloat16"),
        (["run", "--preset", "quik"], 2, "unknown preset 'quik'; nearest: quick"),
        (["run", "--direction", "forwards"], 2, "unknown direction 'forwards'; nearest: forward"),
        (["run", "--implementation", "tritn"], 2, "unknown implementation 'tritn'"),
        (["run", "--cache", "warm"], 2, "unknown cache state 'warm'; valid: cold, steady"),
        (["run", "--time-limit", "soon"], 2, "'soon' is not a duration; write 90s, 10m or 1h"),
        (["run", "--device", "gpu"], 2, "unknown device 'gpu'; valid: cpu, cuda"),
        (["run", "--kernels", "nowhere"], 2, "nowhere: no such folder of operations"),
        (["run", "--device", "cpu", "--timer", "events"], 2, "no timer 'events'"),
        (["run", "--peak", "-3"], 2, "peak"),
        (
            ["report", "results", "-o", "no/such.md"],
            2,
            "no/such.md cannot be written: No such file",
        ),
        (["report", "nowhere"], 2, "nowhere does not exist"),
        (["audit", "silu", "--arch", ","], 2, "unknown architecture ','; valid: all, sm_75"),
        (["compare", "a", "b", "--threshold", "much"], 2, "'much' is not a share"),
        (["gate", "a", "b", "c"], 2, "gate takes [BASELINE] CURRENT"),
        (["export", "nowhere", "-o", "x.csv"], 2, "nowhere does not exist"),
        (["export", ".", "-o", "x.xls"], 2, "x.xls: unknown format; name a file ending in .csv"),
        (["export", ".", "-o", "x.csv", "--format", "xls"], 2, "unknown format 'xls'; valid: csv"),
    ],
)
def test_bad_input_is_one_line_and_its_exit_code(
    arguments: list[str], code: int, words: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert "Traceback" not in result.output


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
@pytest.mark.parametrize("command", [["run"], ["list"]])
def test_a_gpu_that_is_not_there_ends_with_4(command: list[str]) -> None:
    result = invoke(*command, "--device", "cuda")
    assert result.exit_code == 4
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_doctor_of_a_gpu_that_is_not_there_says_what_is_measured_instead() -> None:
    result = invoke("doctor", "--device", "cuda")
    assert result.exit_code == 4
    first, *rest = result.output.splitlines()
    assert first.startswith("fail gpu") and "the CPU is measured instead" in first
    assert any(line.startswith("ok   device") for line in rest)
    found = json.loads(invoke("doctor", "--device", "cuda", "--json").stdout)
    assert found["exit_code"] == 4 and found["device"]["kind"] == "cpu"
    by_default = invoke("doctor")
    assert by_default.exit_code == 0
    assert "the CPU is measured instead" in by_default.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["report"], ["list", "copy", "--device", "cpu"]])
def test_output_that_is_full_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = program(*arguments, stdout=full)
    assert done.returncode == 2
    assert done.stderr.strip() == "membound: standard output: No space left on device"


def test_a_terminal_without_unicode_is_no_end() -> None:
    done = program("report", stdout=subprocess.PIPE, PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert "Achieved bandwidth" in done.stdout and "?100" in done.stdout


def program(*arguments: str, stdout: Any, **environ: str) -> subprocess.CompletedProcess[str]:
    """The program as a user starts it, over the committed runs."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "membound.cli", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        encoding="latin-1",
        env=os.environ | environ,
        cwd=Path(__file__).parents[1],
        check=False,
    )


def test_doctor_says_what_it_knows() -> None:
    result = invoke("doctor", "--device", "cpu", "--json", "--peak", "50", "--peak-source", "mine")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["device"]["kind"] == "cpu"
    assert found["peak"]["gbps"] == 50
    assert found["peak"]["provenance"] == "mine"
    assert {"cuda", "torch", "cpu"} <= {check["name"] for check in found["checks"]}
    assert invoke("doctor", "--device", "cpu").exit_code == 0


def test_list_has_every_field_for_every_implementation() -> None:
    result = invoke("list", "--json", "--device", "cpu")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    fields = {
        "operation", "family", "direction", "implementation", "variant", "dtypes", "available",
        "reason", "tier", "shape", "bytes_read", "bytes_written", "chain",
    }  # fmt: skip
    assert all(fields == set(row) for row in rows)
    by_key = {(r["operation"], r["direction"], r["implementation"], r["variant"]): r for r in rows}
    row = by_key["rms_norm", "forward", "cuda", ""]
    assert not row["available"]
    assert row["reason"] == "needs a CUDA device"
    assert row["bytes_read"] == 4096 * 4096 * 4 + 4096 * 4
    assert row["bytes_written"] == 4096 * 4096 * 4 + 4096 * 4
    assert by_key["add_rms_norm", "forward", "cpu", "unfused"]["chain"] == ["add", "rms_norm"]
    assert by_key["rms_norm", "forward", "cpu", ""]["available"]
    assert invoke("list", "--device", "cpu").exit_code == 0


def test_someones_own_operation_from_run_to_export(tmp_path: Path) -> None:
    result = shift_run(tmp_path, "--implementation", "cpu", "--peak", "1000", "--peak-source", "me")
    assert result.exit_code == 0, result.output
    assert "shift" in result.output
    assert "mix_1r1w" in result.output  # ceilings come along
    (run,) = [path.parent for path in tmp_path.rglob("measurements.jsonl")]
    environment = read_run(run).environment
    assert environment is not None
    assert environment.peak is not None
    assert environment.peak.provenance == "me"
    report = invoke("report", str(run), "--markdown")
    assert report.exit_code == 0
    assert "| shift" in report.output
    for name in ("o.csv", "o.parquet", "o.json"):
        exported = invoke("export", str(run), "-o", str(tmp_path / name))
        assert exported.exit_code == 0
        assert (tmp_path / name).stat().st_size > 0
    # One process a side says nothing about processes: every case is undecided, and so is the gate.
    assert invoke("compare", str(run), str(run)).exit_code == 5
    gated = invoke("gate", str(run), "--store", str(tmp_path))
    assert gated.exit_code == 3
    assert "to compare with" in gated.output


def test_a_wrong_result_ends_with_1(tmp_path: Path) -> None:
    result = shift_run(tmp_path, "--implementation", "cpu:swapped_rows,cpu:last")
    assert result.exit_code == 1
    assert "wrong" in result.output


def test_a_damaged_line_is_named_and_the_rest_read(tmp_path: Path) -> None:
    assert shift_run(tmp_path, "--implementation", "cpu").exit_code == 0
    (file,) = tmp_path.rglob("measurements.jsonl")
    lines = file.read_text().splitlines()
    lines[2] = lines[2].replace('"bytes_read":', '"bytes_read":-')
    file.write_text("\n".join(lines) + "\n")
    result = invoke("report", str(file.parent))
    assert result.exit_code == 1
    assert f"{file}:3: " in result.output
    assert "bytes_read" in result.output
    assert "shift" in result.output


def test_ctrl_c_leaves_records_and_ends_with_130(tmp_path: Path) -> None:
    command = [
        sys.executable, "-P", "-m", "membound.cli", "run", "shift", "--kernels", str(FAULTY),
        "--device", "cpu", "--out", str(tmp_path), "--preset", "full", "--processes", "1",
        "--implementation", "cpu:hang",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for _ in range(1200):
        if any("shift" not in line for f in tmp_path.rglob("*.jsonl") for line in f.open()):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    (run,) = [path.parent for path in tmp_path.rglob("measurements.jsonl")]
    kept = read_run(run)
    assert kept.records
    assert not kept.problems


def test_a_read_only_output_folder_is_said_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where a folder should be")
    result = shift_run(tmp_path / "results", "--implementation", "cpu")
    assert result.exit_code == 2
    assert str(tmp_path / "results") in result.output
    assert "Traceback" not in result.output
