"""Files made to hurt, through the commands that read them: one line each, the documented exit code,
no traceback, nothing that a terminal or a file system would act on."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from membound.bench.device.sheet import GPUS_CSV, SheetError, read_sheet
from membound.cli import app
from membound.results import benchmark_file
from membound.results.checked import T, decode, printable
from membound.results.reading import read_run
from membound.results.record import Record
from membound.results.store import ENVIRONMENT, MEASUREMENTS
from membound.tests.generated import environment, record, run
from typer.testing import CliRunner

GOOD = [record(process=process) for process in range(3)]
INPUTS = int(os.environ.get("MEMBOUND_FUZZ", "200"))
"""Inputs of each fuzzing target, always the same ones; MEMBOUND_FUZZ=20000 draws as many others."""

DAMAGED: dict[str, tuple[str, bytes]] = {
    "no run": (MEASUREMENTS, b""),
    "a lone number": (MEASUREMENTS, b"NaN\n1e999\n" + b"1" * 5000 + b"\n"),
    "nested": (MEASUREMENTS, b"[" * 200_000 + b"\n"),
    "one long line": (MEASUREMENTS, b"1" * (2 << 20)),
    "UTF-16": (MEASUREMENTS, "{}\n".encode("utf-16")),
    "escape": (MEASUREMENTS, b'{"\\u001b]0;owned\\u0007": NaN, "\x1b[2J": 1}\n'),
    "environment": (ENVIRONMENT, b'{"schema": 1, "device": {"name": "\\u001b[31m"}}'),
    "newer": (ENVIRONMENT, b'{"schema": 99}'),
}


SLOW = ("page", "csv")
"""Commands that end like another one; once is enough."""


def commands(folder: Path, good: Path, out: Path) -> dict[str, tuple[list[str | Path], set[int]]]:
    """Every command that reads runs, with the exit codes that a damaged run may end in."""
    return {
        "report": (["report", folder], {1}),
        "page": (["report", folder, "-o", out / "page.html"], {1}),
        "compare": (["compare", good, folder], {1}),
        "compare from": (["compare", folder, good, "--json"], {1}),
        "gate": (["gate", good, folder], {1}),
        "gate of a store": (["gate", folder, "--store", good.parent], {1, 3}),
        "csv": (["export", folder, "-o", out / "o.csv"], {1}),
        "json": (["export", folder, "-o", out / "o.json"], {1, 4}),
    }


def invoke(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and everything said; any exception but an exit fails the test that asked."""
    ended = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert "Traceback" not in ended.output
    assert all(line == printable(line) or "  " in line for line in ended.output.splitlines())
    assert "\x1b" not in ended.output and "\x07" not in ended.output
    return ended.exit_code, ended.output


@pytest.mark.parametrize("name", DAMAGED)
def test_every_command_names_file_and_place(tmp_path: Path, name: str) -> None:
    file, data = DAMAGED[name]
    good = run(tmp_path / "good", GOOD)
    folder = run(tmp_path / "damaged", GOOD)
    (folder / file).write_bytes(data)
    for command, (arguments, codes) in commands(folder, good, tmp_path).items():
        if command in SLOW and name != "no run":
            continue
        code, said = invoke(*arguments)
        assert code in codes, (command, said)
        assert code == 3 or code == 4 or f"{folder / file}" in said, (command, said)


def test_a_folder_whose_name_is_an_escape_sequence_is_printed_harmlessly(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31m\u202e\nb"
    assert "does not exist" in invoke("report", folder)[1]
    folder.mkdir()
    assert "holds no run" in invoke("compare", folder, folder)[1]
    path = run(folder, GOOD).rename(folder / "20260102T030405Z-\u00b2")  # a digit, no number
    (path / MEASUREMENTS).write_bytes(b"x\n")
    for command in ("report", "export"):
        more = ("-o", tmp_path / "o.csv") if command == "export" else ()
        assert invoke(command, path, *more)[0] == 1
    invoke("gate", path, "--store", folder)
    assert invoke("export", path, "-o", folder / "none" / "o.csv")[0] == 2
    assert invoke("report", path, "-o", folder / "none" / "o.md")[0] == 2
    assert invoke("report", "x" * 5000)[0] == 2


def test_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    folder = run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/gpu\xff")), GOOD)
    good = run(tmp_path / "good", GOOD)
    for command, (arguments, _) in commands(folder, good, tmp_path).items():
        assert invoke(*arguments)[0] == (3 if command == "gate of a store" else 0), command
    assert "gpu\\udcff/" in (tmp_path / "o.csv").read_text()
    assert 'href="gpu%FF/' in (tmp_path / "page.html").read_text()


CLIMBING = ("../../climbed", "/climbed", "..", "a/../../climbed", "nul\u2215", "[/x]", "=1+1")


def test_names_that_climb_write_only_where_they_were_told_to(tmp_path: Path) -> None:
    records = [
        record(operation=name, family=name, variant=name, dtype=name, process=process)
        for name in CLIMBING
        for process in range(2)
    ]
    deep = tmp_path / "a" / "b" / "c"
    path = run(deep / "runs", records, environment(run="../../climbed", preset="../../climbed"))
    before = everything(tmp_path)
    assert invoke("report", path, "--figures", deep / "figures", "-o", deep / "page.html")[0] == 0
    assert invoke("export", path, "-o", deep / "o.json")[0] == 0
    made = everything(tmp_path) - before
    assert made
    assert all(file.is_relative_to(deep) for file in made)
    assert not any("climbed" in file.name for file in made)
    assert "[/x]" in invoke("report", path)[1]


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_links_are_read_and_never_written_through(tmp_path: Path) -> None:
    real = run(tmp_path / "real", GOOD)
    linked = tmp_path / "linked"
    linked.symlink_to(real)
    assert len(read_run(linked).records) == len(GOOD)
    round_and_round = tmp_path / "store" / "device"
    round_and_round.mkdir(parents=True)
    (round_and_round / "again").symlink_to(round_and_round)
    assert "holds no run" in invoke("report", tmp_path / "store")[1]
    (real / MEASUREMENTS).unlink()
    (real / MEASUREMENTS).symlink_to("/dev/zero")
    code, said = invoke("report", real)
    assert code == 1 and "is not a regular file" in said


# What a valid file may hold, however strange, ends in no command as an exception.

TEXTS = (
    "", "[/x]", "[bold red]", "<script>", "a|b", "../x", "x" * 900, "{{7*7}}", "%s", "=1+1",
    "a/b/c/d/e/f", "wrong", "skipped", "memcpy", "cuda", "mix_1r1w", "unfused", "backward",
    "float64", "steady", "graph", "wall", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2**60, 3, 1e-9, 1e-12, 1e6, 1e300, 5e-324, 0.5, True, False, None)


def strange(draw: random.Random) -> Any:
    kind = draw.random()
    if kind < 0.4:
        return draw.choice(TEXTS)
    if kind < 0.7:
        return draw.choice(NUMBERS)
    if kind < 0.85:
        return [draw.choice(NUMBERS) for _ in range(draw.randrange(5))]
    return {draw.choice(TEXTS) or "k": draw.choice(NUMBERS) for _ in range(draw.randrange(4))}


def changed(draw: random.Random, value: T) -> bytes:
    """`value` with up to three fields that hold something else and are still valid."""
    kind = type(value)
    tree = json.loads(msgspec.json.encode(value))
    for _ in range(draw.randrange(4)):
        for _ in range(40):
            field = draw.choice(kind.__struct_fields__)
            inner = strange(draw)
            if field == "device":
                inner = tree["device"] | {draw.choice(sorted(tree["device"])): inner}
            if decode(json.dumps(tree | {field: inner}).encode(), kind).value is not None:
                tree[field] = inner
                break
    return json.dumps(tree).encode()


def strange_run(draw: random.Random, folder: Path) -> Path:
    path = run(folder, GOOD[:1])
    operations = (("copy", "copy"), ("rms_norm", "norm"), ("mix_1r1w", "ceiling"))
    lines = [
        changed(draw, record(operation=operation, family=family, process=process))
        for operation, family in operations
        for process in range(3)
    ]
    (path / MEASUREMENTS).write_bytes(b"\n".join(lines) + b"\n")
    (path / ENVIRONMENT).write_bytes(changed(draw, environment()))
    return path


@pytest.mark.parametrize("seed", range(4))
def test_strange_but_valid_runs(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    one, other = (strange_run(draw, tmp_path / name) for name in "ab")
    arguments: tuple[tuple[str | Path, ...], ...] = (
        ("report", one, other, "--markdown"),
        ("report", one, "-o", tmp_path / "page.html"),
        ("compare", one, other, "--json", "--across-devices"),
        ("gate", one, other),
        ("export", one, other, "-o", tmp_path / "o.parquet"),
        ("export", one, "-o", tmp_path / "o.json"),
    )
    for each in arguments:
        assert invoke(*each)[0] in (0, 1, 3, 4, 5)


# Fuzzing: any bytes in any of the files, grown from a corpus; how many ran is printed.

CORPUS = (
    b"\n".join(msgspec.json.encode(one) for one in GOOD) + b"\n",
    msgspec.json.encode(environment()),
    b"\n".join(GPUS_CSV.read_bytes().splitlines()[:3]) + b"\n",
    b'{"benchmarks":[{"fullname":"a","stats":{"min":1,"max":1,"mean":1,"median":1,"stddev":0,'
    b'"rounds":3}}]}',
    *(data[:4096] for _, data in DAMAGED.values()),
)
PIECES = (
    b"\xef\xbb\xbf",
    b"\x00",
    b"NaN",
    b"1e999",
    b"-1",
    b'"',
    b"{",
    b"[[",
    b" ",
    b"7",
    b"",
    b"\n",
    b",",
    b"\\ud800",
)


def edited(seed: bytes) -> st.SearchStrategy[bytes]:
    """Half of it grown from what is valid where it goes, with so few edits that some stays so."""
    edits = st.lists(
        st.tuples(st.integers(0, 9000), st.integers(0, 3), st.sampled_from(PIECES)), max_size=3
    )

    def applied(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
        text = bytearray(data)
        for start, removed, added in edits:
            place = start % (len(text) + 1)
            text[place : place + removed] = added
        return bytes(text)

    grown = st.builds(applied, st.just(seed), edits)
    return grown | st.builds(applied, st.sampled_from(CORPUS), edits) | st.binary(max_size=200)


def read_records(folder: Path, data: bytes) -> list[str]:
    (folder / MEASUREMENTS).write_bytes(data)
    found = read_run(folder)
    assert all(msgspec.json.decode(msgspec.json.encode(r), type=Record) == r for r in found.records)
    assert found.records or found.problems
    return list(map(str, found.problems))


def read_environment(folder: Path, data: bytes) -> list[str]:
    (folder / ENVIRONMENT).write_bytes(data)
    found = read_run(folder)
    assert found.environment is not None or found.problems
    return list(map(str, found.problems))


def read_benchmark_file(folder: Path, data: bytes) -> list[str]:
    file = folder / "saved.json"
    file.write_bytes(data)
    return benchmark_file.problems(file)


def read_spec_sheet(folder: Path, data: bytes) -> list[str]:
    sheet = folder / "sheet.csv"
    sheet.write_bytes(data)
    try:
        assert all(0 < row.peak_gbps <= 1e6 for row in read_sheet(sheet))
    except SheetError as error:
        return [str(error)]
    return []


TARGETS: tuple[Callable[[Path, bytes], list[str]], ...] = (
    read_records,
    read_environment,
    read_spec_sheet,
    read_benchmark_file,
)
"""In the order of their seeds in CORPUS."""


@pytest.mark.parametrize(
    ("target", "seed"), [*zip(TARGETS, CORPUS, strict=False)], ids=[t.__name__ for t in TARGETS]
)
def test_fuzzing(
    tmp_path: Path,
    target: Callable[[Path, bytes], list[str]],
    seed: bytes,
    record_property: Any,
) -> None:
    folder = run(tmp_path, GOOD)
    ran: Counter[str] = Counter()

    @settings(
        max_examples=INPUTS,
        deadline=None,
        derandomize="MEMBOUND_FUZZ" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=edited(seed))
    def fuzz(data: bytes) -> None:
        lines = target(folder, data)
        assert all(line == printable(line) and len(line) < 2000 for line in lines)
        ran["refused" if lines else "read"] += 1

    fuzz()
    assert sum(ran.values()) >= INPUTS // 2
    assert ran["read"] and ran["refused"]
    said = ", ".join(f"{count} {how}" for how, count in sorted(ran.items()))
    record_property("fuzzed", f"{target.__name__}: {sum(ran.values())} inputs, {said}")


@pytest.mark.parametrize("name", DAMAGED)
def test_a_reader_that_believes_everything_would_be_caught(name: str) -> None:
    _, data = DAMAGED[name]
    with pytest.raises((ValueError, TypeError, KeyError, IndexError, RecursionError)):
        _ = [json.loads(line)["case"] for line in data.splitlines() or [b""]]
