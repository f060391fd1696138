"""Reading runs: every damage is named with its place, the rest is read, nothing else is raised."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from membound.results.checked import printable
from membound.results.reading import MAX_PROBLEMS, Run, find_runs, read_run
from membound.results.record import Environment, Record
from membound.results.store import ENVIRONMENT, MAX_LINE, MEASUREMENTS, StoreError
from membound.tests.generated import environment, processes, record, run

GOOD = msgspec.json.encode(record()) + b"\n"
NEXT = msgspec.json.encode(record(process=1)) + b"\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("store"), [record()])


def reading(folder: Path, data: bytes) -> Run:
    (folder / MEASUREMENTS).write_bytes(data)
    return read_run(folder)


def put(field: bytes, value: bytes) -> bytes:
    """The good line with another value for a field."""
    line, count = re.subn(
        rb'"%s":(\[[^]]*\]|\{[^}]*\}|"[^"]*"|[^,}]*)' % field,
        lambda _: b'"%s":%s' % (field, value),
        GOOD,
    )
    assert count == 1
    return line


DAMAGED = {
    "truncated": (GOOD[:500], "1: is not valid JSON at character"),
    "list": (b"[]\n", "1: is a list; one JSON object"),
    "null": (b"null\n", "1: is null; one JSON object"),
    "cut open": (b'{"benchmarks": [{"stats":\n', "1: is not valid JSON"),
    "left-over": (GOOD[:-1] + b"]ll\n", "1: is not valid JSON"),
    "empty line": (b"\n", "1: is empty"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "is not valid UTF-8 (it looks like UTF-16"),
    "UTF-16 without mark": (GOOD.decode().encode("utf-16-le"), "is not valid UTF-8"),
    "Latin-1": (GOOD.replace(b"copy", b"cop\xe9"), "1: is not valid UTF-8 at byte"),
    "zeros": (b"\0" * 4096, "is not valid UTF-8"),
    "nested": (b"[" * 200_000 + b"\n", "1: is nested too deeply"),
    "nested objects": (b'{"a":' * 200_000 + b"\n", "1: is nested too deeply"),
    "nested in place": (put(b"choice", b"[" * 200_000 + b"]" * 200_000), "nested too deeply"),
    "nested beside": (
        put(b"flops", b'1,"x":' + b"[" * 600 + b"]" * 600 + b',"y":NaN'),
        "y: is NaN",
    ),
    "5,000 digits": (put(b"process", b"9" * 5000), "1: process: is an integer of 5000 digits"),
    "20 digits": (put(b"process", b"1" * 20), "1: process: is an integer of 20 digits"),
    "too many bytes": (put(b"bytes_read", b"9" * 19), "bytes_read: is 9999999999999999999; should"),
    "duplicate": (put(b"process", b'0,"process":1'), "1: process: is given twice"),
    "duplicate inside": (put(b"shape", b'{"rows":1,"rows":2}'), "shape.rows: is given twice"),
    "NaN": (put(b"seconds", b"[0.1,NaN]"), "1: seconds[1]: is NaN; a finite number"),
    "Infinity": (put(b"max_error", b"Infinity"), "1: max_error: is Infinity"),
    "minus Infinity": (put(b"seconds", b"[-Infinity]"), "1: seconds[0]: is -Infinity"),
    "lower-case nan": (put(b"seconds", b"[nan]"), "1: is not valid JSON"),
    "1e999": (put(b"seconds", b"[1e999]"), "1: seconds[0]: is 1e999; a finite number"),
    "negative time": (
        put(b"seconds", b"[-0.001]"),
        "seconds[0]: is -0.001; should be float >= 1e-12",
    ),
    "zero time": (put(b"seconds", b"[0.0]"), "seconds[0]: is 0.0; should be float >= 1e-12"),
    "underflow": (put(b"seconds", b"[1e-999]"), "seconds[0]: is 0.0; should be float >= 1e-12"),
    "null time": (put(b"seconds", b"[null]"), "seconds[0]: is null; should be float"),
    "endless time": (put(b"seconds", b"[1e7]"), "seconds[0]: is 10000000.0; should be float <="),
    "text for a number": (put(b"seconds", b'["0.001"]'), 'seconds[0]: is the text "0.001"'),
    "boolean for a number": (put(b"bytes_read", b"true"), "bytes_read: is the boolean true"),
    "boolean time": (put(b"seconds", b"[true]"), "seconds[0]: is the boolean true"),
    "number for text": (put(b"case", b"7"), "case: is 7; should be str"),
    "fraction": (put(b"bytes_read", b"1.5"), "bytes_read: is 1.5; should be int"),
    "negative bytes": (put(b"bytes_read", b"-1"), "bytes_read: is -1; should be int >= 0"),
    "negative error": (put(b"max_error", b"-1"), "max_error: is -1; should be"),
    "negative extent": (put(b"shape", b'{"rows":-1}'), "shape: holds a wrong value; each"),
    "no name": (put(b"operation", b'""'), "operation: is the text"),
    "missing": (GOOD.replace(b'"operation":"copy",', b""), "1: operation: is missing"),
    "status": (put(b"status", b'"fine"'), "one of ok, wrong, failed, skipped, timeout"),
    "cache": (put(b"cache", b'"warm"'), 'cache: is the text "warm"; should be one of cold, steady'),
    "timer": (put(b"timer", b'"sundial"'), "should be one of events"),
    "ok without samples": (put(b"seconds", b"[]"), "seconds: is empty though status is ok"),
    "ok without timer": (put(b"timer", b"null"), "timer: is unknown though status is ok"),
    "failed without reason": (put(b"status", b'"failed"'), "reason: is missing though status is"),
    "date": (put(b"started_at", b'"today"'), 'started_at: is the text "today"; an ISO 8601 time'),
    "no time zone": (put(b"started_at", b'"2026-01-02T03:04:05"'), "without a time zone"),
    "escape code": (put(b"operation", b'"\\u001b[31m"'), "operation: '\\x1b[31m' has control"),
    "raw control": (put(b"operation", b'"a\x07"'), "1: is not valid JSON"),
    "surrogate": (put(b"operation", b'"\\ud800"'), "operation: '\\ud800' has control characters"),
    "surrogate for a name": (put(b"status", b'"\\ud800"'), "holds half of a surrogate pair; whole"),
    "surrogate as a key": (
        put(b"shape", b'{"\\ud800":1}'),
        "shape: '\\ud800' has control characters",
    ),
    "endless name": (b'{"' + b"k" * 900_000 + b'": NaN}', "kkk: is NaN; a finite number"),
    "lone number": (b"NaN", "1: is NaN; one JSON object"),
    "right-to-left": (put(b"operation", "\u202eypoc".encode().join([b'"', b'"'])), "control"),
    "newer schema": (put(b"schema", b"3"), "schema: is 3, written by a newer membound; this"),
    "placement": (put(b"placement", b'"swap"'), "should be one of device, managed, pinned"),
    "schema 0": (put(b"schema", b"0"), "schema: is 0; should be int >= 1"),
    "schema as text": (put(b"schema", b'"1"'), "schema: is the text"),
    "long line": (b'"' + b"x" * (3 * MAX_LINE) + b'"\n', "1: is longer than 1048576 bytes"),
    "pickle": (b"\x80\x04\x95\x10\x00\x00\x00\n", "is not valid UTF-8"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_named_and_the_rest_is_read(folder: Path, name: str) -> None:
    data, said = DAMAGED[name]
    found = reading(folder, data if data.endswith(b"\n") else data + b"\n")
    lines = [str(problem) for problem in found.problems]
    assert any(line.startswith(str(folder / MEASUREMENTS)) and said in line for line in lines), (
        lines
    )
    assert all(line == printable(line) and len(line) < 1000 for line in lines)
    assert found.records == []
    assert lines[-1].endswith("holds no valid record: nothing measured")
    if "not valid UTF-8" not in said or "at byte" in said:
        found = reading(folder, (data if data.endswith(b"\n") else data + b"\n") + NEXT)
        assert [r.process for r in found.records] == [1]
        assert {problem.line for problem in found.problems} == {1}


def test_a_byte_order_mark_is_named_and_the_line_still_read(folder: Path) -> None:
    found = reading(folder, b"\xef\xbb\xbf" + GOOD)
    assert [str(p.message) for p in found.problems] == [
        "begins with a byte order mark; UTF-8 without one"
    ]
    assert found.records == [record()]


def test_harmless_differences_are_accepted(folder: Path) -> None:
    spaced = json.dumps(json.loads(GOOD)).encode()
    for data in (GOOD[:-1], GOOD.replace(b"\n", b"\r\n"), spaced, put(b"seconds", b"[1]")):
        found = reading(folder, data)
        assert len(found.records) == 1
        assert found.problems == []


def test_unknown_fields_are_ignored_by_name_and_missing_defaults_are_filled(folder: Path) -> None:
    old = put(b"flops", b'null,"colour":"red"').replace(b'"timer_tick_seconds":null,', b"")
    found = reading(folder, old + NEXT.replace(b'"flops"', b'"taste":1,"flops"'))
    assert len(found.records) == 2
    assert found.problems == []
    assert len(found.notes) == 1
    assert found.notes[0].endswith("ignored fields this version does not know: colour, taste")


def test_a_record_given_twice_counts_once(folder: Path) -> None:
    found = reading(folder, GOOD + NEXT + GOOD)
    assert len(found.records) == 2
    assert [p.line for p in found.problems] == [3]
    assert "process 0, position 0 is already on line 1" in str(found.problems[0])


def test_a_case_has_one_numerator(folder: Path) -> None:
    found = reading(
        folder, GOOD + NEXT.replace(b'"bytes_read":536870912', b'"bytes_read":268435456')
    )
    assert len(found.records) == 1
    assert "bytes_read: is 268435456" in str(found.problems[0])
    assert "536870912 as on line 1" in str(found.problems[0])


def test_problems_are_counted_beyond_the_first_hundred(folder: Path) -> None:
    found = reading(folder, b"{\n" * 5000)
    assert len(found.problems) == MAX_PROBLEMS + 1
    assert found.problems[-1].message == "4901 more problems"  # the last: nothing measured


def test_a_200_mb_line_is_refused_in_bounded_time_and_memory(tmp_path: Path) -> None:
    path = run(tmp_path, [record()])
    with (path / MEASUREMENTS).open("ab") as file:
        file.truncate(200_000_000)  # zeros without a newline, sparse on disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + NEXT)
    began = time.process_time()
    found = read_run(path)
    assert time.process_time() - began < 20
    assert [r.process for r in found.records] == [0, 1]
    assert "2: is longer than" in str(found.problems[0])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty, not valid JSON"),
        (b"[]", "is a list"),
        (b"{}", "schema: is missing"),
        (b"[" * 200_000, "nested too deeply"),
        (b" " * (1 << 20) + b"{}", "is longer than"),
        (b'{"schema": 99}', "schema: is 99, written by a newer membound"),
    ],
)
def test_a_damaged_environment_leaves_the_records(tmp_path: Path, data: bytes, said: str) -> None:
    path = run(tmp_path, [record()])
    (path / ENVIRONMENT).write_bytes(data)
    found = read_run(path)
    assert found.environment is None
    assert len(found.records) == 1
    assert said in str(found.problems[0])
    assert str(path / ENVIRONMENT) in str(found.problems[0])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"gbps": 2000.0', b'"gbps": 0.0', "peak.gbps: is 0.0; should be float >= 0.001"),
        (b'"gbps": 2000.0', b'"gbps": NaN', "peak.gbps: is NaN"),
        (b'"llc_bytes": 26214400', b'"llc_bytes": 0', "device.llc_bytes: is 0; should be int >= 1"),
        (b'"kind": "cuda"', b'"kind": "tpu"', "device.kind: is the text"),
        (b"NVIDIA Generated", b"NVIDIA\\u0007", "device.name: 'NVIDIA\\x07' has control"),
    ],
)
def test_an_environment_is_checked_field_by_field(
    tmp_path: Path, old: bytes, new: bytes, said: str
) -> None:
    path = run(tmp_path, [record()])
    content = (path / ENVIRONMENT).read_bytes()
    assert content.count(old) == 1
    (path / ENVIRONMENT).write_bytes(content.replace(old, new))
    found = read_run(path)
    assert found.environment is None
    assert said in str(found.problems[0])


def test_missing_files_and_things_that_are_no_files(tmp_path: Path) -> None:
    path = run(tmp_path, [record()])
    (path / MEASUREMENTS).unlink()
    assert "is missing" in str(read_run(path).problems[0])
    os.mkfifo(path / MEASUREMENTS)
    assert "not a regular file" in str(read_run(path).problems[0])
    (path / MEASUREMENTS).unlink()
    (path / MEASUREMENTS).mkdir()
    assert "not a regular file" in str(read_run(path).problems[0])
    (path / MEASUREMENTS).rmdir()
    (path / MEASUREMENTS).symlink_to(path / MEASUREMENTS)
    assert "cannot be read" in str(read_run(path).problems[0])
    (path / ENVIRONMENT).unlink()
    (path / MEASUREMENTS).unlink()
    with pytest.raises(StoreError, match="holds no run"):
        read_run(path)


def test_runs_are_found_by_folder_device_store_or_glob_oldest_first(tmp_path: Path) -> None:
    late = run(tmp_path / "a", [record()], minute=30)
    early = run(tmp_path / "b", [record()], minute=10)
    named = run(tmp_path / "b", [record()], environment(started_at="2026-01-02T03:20:00Z"))
    named = named.rename(tmp_path / "b" / "baseline")
    assert find_runs([tmp_path]) == [early, named, late]
    assert find_runs([tmp_path / "b"]) == [early, named]
    assert find_runs([late, str(tmp_path / "*")]) == [early, named, late]
    assert find_runs([f"{tmp_path}/**"]) == [early, named, late]
    assert find_runs([early / MEASUREMENTS]) == [early]
    for nothing in (tmp_path / "c", tmp_path / "*" / "c", early / "*.txt"):
        with pytest.raises(StoreError, match="does not exist"):
            find_runs([nothing])
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="holds no run"):
        find_runs([tmp_path / "empty"])


# Any bytes give a Run with problems, never another exception.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=8,
)
FEW = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def believed(found: Run) -> Iterator[Record]:
    """Records that were read must be ones that could have been written."""
    for each in found.records:
        assert msgspec.json.decode(msgspec.json.encode(each), type=Record) == each
        assert all(0 < seconds <= 1e6 for seconds in each.seconds)
        yield each


@FEW
@given(data=st.binary(max_size=300))
def test_any_bytes(folder: Path, data: bytes) -> None:
    found = reading(folder, data)
    assert list(believed(found)) == []
    assert found.problems


@FEW
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 2 * len(GOOD)), st.integers(0, 9), st.binary(max_size=9)),
        min_size=1,
        max_size=4,
    )
)
def test_any_edit_of_good_lines(folder: Path, edits: list[tuple[int, int, bytes]]) -> None:
    data = bytearray(GOOD + NEXT)
    for start, removed, added in edits:
        data[start : start + removed] = added
    found = reading(folder, bytes(data))
    assert len(list(believed(found))) + len(found.problems) >= 1


@FEW
@given(field=st.sampled_from(Record.__struct_fields__), value=JSON)
def test_any_value_in_any_field(folder: Path, field: str, value: object) -> None:
    tree = json.loads(GOOD) | {field: value}
    found = reading(folder, json.dumps(tree).encode() + b"\n")
    assert len(list(believed(found))) == (0 if found.problems else 1)


@FEW
@given(field=st.sampled_from(Environment.__struct_fields__), value=JSON)
def test_any_value_in_any_environment_field(folder: Path, field: str, value: object) -> None:
    tree = json.loads(msgspec.json.encode(environment())) | {field: value}
    (folder / MEASUREMENTS).write_bytes(GOOD)
    (folder / ENVIRONMENT).write_text(json.dumps(tree))
    found = read_run(folder)
    assert (found.environment is None) == bool(found.problems)
    assert len(found.records) == 1


def test_a_run_of_several_processes_reads_in_order(tmp_path: Path) -> None:
    found = read_run(run(tmp_path, processes([0.003, 0.001, 0.002])))
    assert [r.seconds[0] for r in found.records] == [0.003, 0.001, 0.002]
