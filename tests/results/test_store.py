"""Writing runs: what is on disk is whole, strict and readable, or a StoreError says why not."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from membound.results.reading import read_run
from membound.results.store import ENVIRONMENT, MEASUREMENTS, RunWriter, StoreError, create_run
from membound.tests.generated import environment, processes, record, run

COMMIT = "0123abc" + "0" * 33


def strict(line: str) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    value: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return value


def test_folder_name_is_utc_and_commit_and_never_taken_twice(tmp_path: Path) -> None:
    started = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    names = [create_run(tmp_path / "gpu", started, COMMIT).name for _ in range(3)]
    assert names == [
        "20260102T030405Z-0123abc",
        "20260102T030405Z-0123abc-2",
        "20260102T030405Z-0123abc-3",
    ]


@pytest.mark.parametrize("commit", [None, "", "../../etc", "0123abc/..", "HEAD"])
def test_a_commit_that_is_none_cannot_climb_out(tmp_path: Path, commit: str | None) -> None:
    path = create_run(tmp_path, datetime(2026, 1, 2, tzinfo=UTC), commit)
    assert path.parent == tmp_path
    assert path.name == "20260102T000000Z-unknown"


def test_what_is_written_reads_back_equal(tmp_path: Path) -> None:
    records = [*processes([0.001, 0.002]), record(operation="add", status="failed", reason="no")]
    read = read_run(run(tmp_path, records, environment()))
    assert read.records == records
    assert read.environment == environment()
    assert read.problems == []
    assert read.notes == []


def test_lines_are_strict_json_of_plain_values(tmp_path: Path) -> None:
    path = run(
        tmp_path,
        [
            record(
                seconds=[np.float32(0.5), np.float64(0.25)],
                bytes_read=np.int64(4),
                dtype=np.dtype("float16"),
                throttled=np.bool_(True),
                case="c",
            )
        ],
    )
    line = strict((path / MEASUREMENTS).read_text())
    assert line["seconds"] == [0.5, 0.25]
    assert line["bytes_read"] == 4
    assert line["dtype"] == "float16"
    assert line["throttled"] is True


def test_an_error_that_is_no_number_is_null_and_text_is_one_printable_line(tmp_path: Path) -> None:
    reason = "line one\nline two\x1b[31m\ud800"
    path = run(tmp_path, [record(status="wrong", max_error=float("nan"), reason=reason)])
    line = strict((path / MEASUREMENTS).read_text())
    assert line["max_error"] is None
    assert line["reason"] == "line one line two [31m"
    assert read_run(path).problems == []


def test_times_are_rounded_to_the_nanosecond(tmp_path: Path) -> None:
    path = run(tmp_path, [record(seconds=[0.12345678949])])
    assert strict((path / MEASUREMENTS).read_text())["seconds"] == [0.123456789]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seconds": [float("nan")]}, "NaN"),
        ({"seconds": [float("inf")]}, "NaN or infinity"),
        ({"seconds": [-1.0]}, "seconds"),
        ({"seconds": [0.0]}, "seconds"),
        ({"seconds": [1e-10]}, "seconds"),
        ({"seconds": []}, "seconds"),
        ({"seconds": [True]}, "seconds"),
        ({"timer": None}, "timer"),
        ({"bytes_read": -1}, "bytes_read"),
        ({"bytes_read": 1.5}, "bytes_read"),
        ({"status": "skipped", "reason": ""}, "reason"),
        ({"started_at": "yesterday"}, "started_at"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    path = run(tmp_path, [record()])
    with RunWriter(path) as writer, pytest.raises(ValueError, match=field):
        writer.append(record(process=1, **changes))
    assert len(read_run(path).records) == 1
    assert read_run(path).problems == []


def test_a_million_samples_are_refused_not_written(tmp_path: Path) -> None:
    path = run(tmp_path, [])
    with RunWriter(path) as writer, pytest.raises(ValueError, match="at most 1048576"):
        writer.append(record(seconds=[0.001] * 1_000_000))
    assert (path / MEASUREMENTS).read_bytes() == b""


def test_a_line_cut_anywhere_costs_that_line_alone(tmp_path: Path) -> None:
    path = run(tmp_path, processes([0.001, 0.002]))
    whole = (path / MEASUREMENTS).read_bytes()
    first = whole.index(b"\n") + 1
    for end in (*range(first, len(whole) - 1, 29), len(whole) - 1, len(whole)):
        complete = end >= len(whole) - 1  # its line break alone may be missing
        (path / MEASUREMENTS).write_bytes(whole[:end])
        with RunWriter(path) as writer:
            assert (writer.cut is None) == (end == first or complete)
            writer.append(record(process=7))
        read = read_run(path)
        assert [r.process for r in read.records] == ([0, 1, 7] if complete else [0, 7])
        assert read.problems == []


def test_a_whole_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = run(tmp_path, processes([0.001, 0.002]))
    whole = (path / MEASUREMENTS).read_bytes()
    (path / MEASUREMENTS).write_bytes(whole[:-1])
    with RunWriter(path) as writer:
        assert writer.cut is None
        writer.append(record(process=2))
    assert [r.process for r in read_run(path).records] == [0, 1, 2]


def test_two_writers_of_one_run_do_not_mix(tmp_path: Path) -> None:
    path = run(tmp_path, [record()])
    with RunWriter(path), pytest.raises(StoreError, match="another run"):
        RunWriter(path)
    RunWriter(path).close()


def test_a_full_disk_names_file_and_remedy(tmp_path: Path) -> None:
    path = run(tmp_path, [])
    (path / MEASUREMENTS).unlink()
    (path / MEASUREMENTS).symlink_to("/dev/full")
    with RunWriter(path) as writer, pytest.raises(StoreError) as caught:
        writer.append(record())
    assert str(path / MEASUREMENTS) in str(caught.value)
    assert "full" in str(caught.value)


def test_a_short_write_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run(tmp_path, [record()])
    real = os.write

    def short(descriptor: int, data: bytes) -> int:
        if len(data) > 100:
            return real(descriptor, data[:-100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunWriter(path) as writer:
        monkeypatch.setattr(os, "write", short)
        with pytest.raises(StoreError, match="full"):
            writer.append(record(process=1))
        monkeypatch.undo()
        writer.append(record(process=2))
    assert [r.process for r in read_run(path).records] == [0, 2]
    assert read_run(path).problems == []


def test_a_folder_removed_mid_run_is_said(tmp_path: Path) -> None:
    path = run(tmp_path, [record()])
    with RunWriter(path) as writer:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
        with pytest.raises(StoreError, match="removed"):
            writer.append(record(process=1))
        with pytest.raises(StoreError, match="removed"):
            writer.write_environment(environment())


@pytest.mark.parametrize(
    ("code", "said"),
    [(errno.EROFS, "read-only"), (errno.EACCES, "may not"), (errno.EDQUOT, "quota")],
)
def test_a_folder_that_cannot_be_written_is_said_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match=said):
        create_run(tmp_path / "gpu", datetime(2026, 1, 2, tzinfo=UTC), COMMIT)


def test_a_file_where_the_device_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "gpu").write_text("")
    with pytest.raises(StoreError, match="not a folder"):
        create_run(tmp_path / "gpu", datetime(2026, 1, 2, tzinfo=UTC), COMMIT)
    with pytest.raises(StoreError, match="not a folder"):
        create_run(tmp_path / "gpu" / "below", datetime(2026, 1, 2, tzinfo=UTC), COMMIT)


def test_environment_is_replaced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(tmp_path, [])

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with RunWriter(path) as writer:
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match="full"):
            writer.write_environment(environment(preset="full"))
    found = read_run(path).environment
    assert found is not None
    assert found.preset == "quick"
    assert sorted(file.name for file in path.iterdir()) == [ENVIRONMENT, MEASUREMENTS]
