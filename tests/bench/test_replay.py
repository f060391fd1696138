"""`pytest bench`: what was measured is what is filed, and nothing else."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest
from membound.analysis.export import export
from membound.bench import cases, presets, run
from membound.bench.cases import Group, ceiling_cases, only
from membound.bench.device.select import select
from membound.bench.replay import ScriptedClock, machine, other_device
from membound.kernels.shapes import scaled
from membound.kernels.target import MIB
from membound.results.benchmark_file import problems
from membound.results.checked import printable
from membound.results.reading import find_runs, read_run
from membound.results.record import Record

ROOT = Path(__file__).resolve().parents[2]
FAULTY = Path(__file__).parent / "faulty"

OPTIONS = (
    "-p", "no:cacheprovider", "-p", "no:faulthandler", "--membound-preset=tiny",
    "--membound-device=cpu", f"--membound-kernels={FAULTY}",
)  # fmt: skip


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class PytestBench:
    """`pytest bench` over the misbehaving kernels, in this process: torch is loaded once.

    The last-level cache is 1 MiB and there are no ceilings, so that little has to be moved.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        selected = select("cpu")
        small = replace(selected, target=replace(selected.target, llc_bytes=MIB))
        tiny = replace(presets.PRESETS["full"], tiers=(3,), seconds_per_case=0.02)
        patch.setattr(run, "select", lambda name, *_: small if name == "cpu" else select(name))
        patch.setattr(cases, "CEILINGS", ())
        patch.setitem(presets.PRESETS, "tiny", tiny)
        patch.delenv("PYTEST_ADDOPTS", raising=False)
        patch.delenv("PYTEST_XDIST_WORKER", raising=False)
        patch.chdir(ROOT)

    def __call__(self, *arguments: str, paths: tuple[str, ...] = ("bench",)) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = pytest.main([*paths, *OPTIONS, *arguments])
        return Done(int(code), out.getvalue(), err.getvalue())


@pytest.fixture
def pytest_bench(monkeypatch: pytest.MonkeyPatch) -> PytestBench:
    return PytestBench(monkeypatch)


def in_a_process(*command: str) -> Done:
    done = subprocess.run(
        [sys.executable, "-P", "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    return Done(done.returncode, done.stdout, done.stderr)


def strict(file: Path) -> Any:
    def refuse(literal: str) -> float:
        raise ValueError(literal)

    return json.loads(file.read_text(), parse_constant=refuse)


@dataclass
class Session:
    """One session of two processes: a right kernel, a wrong, a fatal and a refusing one."""

    folder: Path
    done: Done
    entries: Mapping[str, Any]
    machine_info: Mapping[str, Any]
    records: list[Record]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("session")
    names = ("cpu/", "cpu:last", "cpu:unwritten_tail", "cpu:raises", "cpu:refuses")
    with pytest.MonkeyPatch.context() as patch:
        done = PytestBench(patch)(
            "-rs", "-k", f"shift and ({' or '.join(names)})", "--membound-processes=2",
            f"--membound-out={folder}", f"--benchmark-json={folder / 'o.json'}",
            f"--benchmark-storage={folder / 'store'}", "--benchmark-save=first",
        )  # fmt: skip
    assert done.code == 1, done
    filed = strict(folder / "o.json")
    (at,) = find_runs([folder])
    return Session(
        folder,
        done,
        {entry["param"]: entry for entry in filed["benchmarks"]},
        filed["machine_info"],
        [r for r in read_run(at).records if r.implementation != "memcpy"],
    )


def test_what_is_filed_is_what_was_measured(session: Session) -> None:
    assert sorted(session.entries) == [
        "shift/forward/cpu/float32/512x96/steady",
        "shift/forward/cpu:last/float32/512x96/steady",
    ]
    for case, entry in session.entries.items():
        ours = [r for r in session.records if r.case == case]
        assert [r.process for r in ours] == [0, 1]
        assert entry["stats"]["data"] == [s for r in ours for s in r.seconds]
        assert entry["stats"]["rounds"] == len(entry["stats"]["data"])
        assert entry["stats"]["iterations"] == 1
        assert entry["options"]["timer"] == "wall"
        assert entry["group"] == "shift/forward"


def test_beside_the_samples_stand_plain_numbers_and_words(session: Session) -> None:
    for case, entry in session.entries.items():
        info = entry["extra_info"]
        ours = [r for r in session.records if r.case == case]
        seconds = median(median(r.seconds) for r in ours)
        assert all(type(value) in (int, float, str) for value in info.values())
        assert "UNSERIALIZABLE" not in json.dumps(entry)
        assert info["case"] == case
        assert info["bytes_read"] == info["bytes_written"] == 512 * 96 * 4
        assert info["gb_per_s"] == pytest.approx(2 * 512 * 96 * 4 / seconds / 1e9)
        assert (info["status"], info["timer"], info["processes"]) == ("ok", "wall", 2)
        assert info["source_hash"] == ours[0].source_hash
        assert info["device"] == session.machine_info["device"]["name"]
        assert info["verdict"]
        assert info.get("percent_of_peak", 0) <= 100
        assert entry["stats"]["ops"] == pytest.approx(1 / seconds)


def test_a_case_that_is_not_ok_leaves_no_number(session: Session) -> None:
    shown = session.done.out
    assert "2 failed, 2 passed, 1 skipped" in shown
    assert "wrong: y: error" in shown
    assert "failed: RuntimeError: first line of the trouble" in shown
    assert "needs a device that nobody has" in shown
    assert "Traceback" not in shown
    assert "Benchmark fixture was not used" not in shown
    assert {r.variant for r in session.records} == {
        "", "last", "unwritten_tail", "raises", "refuses",
    }  # fmt: skip


def test_the_machine_is_the_one_that_was_measured(session: Session) -> None:
    info = session.machine_info
    assert info["device"]["kind"] == "cpu"
    assert info["device"]["memory_bytes"] > 0
    assert "peak" in info
    assert not {"hz_actual", "hz_actual_friendly"} & set(info["cpu"])
    assert "node" in info


def test_ci_tools_find_what_they_read(session: Session) -> None:
    for entry in session.entries.values():
        assert entry["fullname"] == f"bench/test_bench.py::{entry['name']}"
        assert entry["name"] == f"test_bandwidth[{entry['param']}]"
        for field in ("min", "max", "mean", "stddev", "median", "iqr", "ops"):
            assert isinstance(entry["stats"][field], float)


def test_an_exported_run_is_the_same_file(session: Session, tmp_path: Path) -> None:
    exported = export(find_runs([session.folder]), tmp_path / "o.json")
    assert exported.left_out == {"wrong": 1, "failed": 1, "skipped": 1}
    ours = strict(tmp_path / "o.json")
    theirs = strict(session.folder / "o.json")
    assert ours.keys() == theirs.keys()
    assert ours["commit_info"].keys() - {"error"} == theirs["commit_info"].keys()
    for part in ("device", "peak"):
        assert ours["machine_info"][part] == theirs["machine_info"][part]
    by_name = {entry["param"]: entry for entry in ours["benchmarks"]}
    assert by_name.keys() == session.entries.keys()
    for case, entry in session.entries.items():
        stats, filed = by_name[case].pop("stats"), entry["stats"]
        assert by_name[case].pop("options") == {"timer": entry["options"]["timer"]}
        assert by_name[case] == {
            name: value for name, value in entry.items() if name not in ("stats", "options")
        }
        assert stats.keys() == filed.keys()
        assert stats["data"] == filed["data"]
        for name in filed.keys() - {"outliers", "hd15iqr"}:  # the second differs by version
            assert stats[name] == pytest.approx(filed[name]), name


def test_pytest_benchmark_compares_the_file(session: Session) -> None:
    (saved,) = (session.folder / "store").rglob("*.json")
    done = in_a_process("pytest_benchmark", "compare", str(session.folder / "o.json"), str(saved))
    assert done.code == 0, done
    assert "shift/forward/cpu:last" in done.out


def test_a_saved_session_of_another_device_decides_nothing(
    session: Session, pytest_bench: PytestBench
) -> None:
    (saved,) = (session.folder / "store").rglob("*.json")
    filed = strict(saved)
    filed["machine_info"]["device"]["name"] = "NVIDIA Another"
    other = session.folder / "other" / saved.relative_to(session.folder / "store")
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps(filed))
    options = ("--benchmark-compare", "--benchmark-compare-fail=median:5%", "--collect-only", "-q")
    refused = pytest_bench(f"--benchmark-storage={session.folder / 'other'}", *options)
    assert refused.code == 4
    assert "saved on another device (name: NVIDIA Another and " in refused.err
    taken = pytest_bench(f"--benchmark-storage={session.folder / 'store'}", *options)
    assert "machine_info is different" not in taken.out + taken.err
    assert "Comparing against benchmarks from" in taken.err


GOOD = b'{"benchmarks": [{"fullname": "a", "params": null, "stats": {"min": 1, "max": 2, "mean": 1,'
GOOD += b' "median": 1, "stddev": 0, "rounds": 3}}]}'

DAMAGED = {
    "NaN": (GOOD.replace(b'"mean": 1', b'"mean": NaN'), "benchmarks[0].stats.mean: is NaN"),
    "zero": (GOOD.replace(b'"min": 1', b'"min": 0'), "benchmarks[0].stats.min (a): is 0; should"),
    "negative": (GOOD.replace(b'"stddev": 0', b'"stddev": -1'), "stats.stddev (a): is -1; should"),
    "text": (GOOD.replace(b'"median": 1', b'"median": "1"'), 'stats.median (a): is the text "1"'),
    "boolean": (GOOD.replace(b'"mean": 1', b'"mean": true'), "stats.mean (a): is the boolean true"),
    "no stats": (GOOD.replace(b'"stats"', b'"stat"'), "benchmarks[0].stats (a): is missing"),
    "null stats": (b'{"benchmarks": [{"fullname": "a", "stats": null}]}', "stats (a): is null"),
    "twice": (GOOD.replace(b'"mean": 1', b'"mean": 1, "mean": 2'), "stats.mean: is given twice"),
    "1e999": (GOOD.replace(b'"max": 2', b'"max": 1e999'), "stats.max: is 1e999; a finite number"),
    "digits": (GOOD.replace(b'"rounds": 3', b'"rounds": ' + b"3" * 5000), "5000 digits"),
    "units": (GOOD.replace(b'"mean": 1', b'"mean": 1500'), "is 1500, not between min"),
    "same name": (GOOD.replace(b"]}", b", " + GOOD[16:]), "fullname: is a, as benchmarks[0]"),
    "nothing": (b'{"benchmarks": []}', "benchmarks: is empty: nothing was measured"),
    "a list": (b"[]", "is a list"),
    "empty": (b"", "is empty, not valid JSON"),
    "cut": (GOOD[:60], "is not valid JSON at character"),
    "left-over": (GOOD + b"]ll", "is not valid JSON at character"),
    "mark": (b"\xef\xbb\xbf" + GOOD, "is not valid JSON"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "is not valid UTF-8"),
    "nested": (b"[" * 200_000, "is nested too deeply"),
    "no list": (b'{"benchmarks": {"a": 1}}', "benchmarks: is no list"),
    "no object": (b'{"benchmarks": [7]}', "benchmarks[0]: is no object"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_to_compare_with_is_named(tmp_path: Path, name: str) -> None:
    data, said = DAMAGED[name]
    file = tmp_path / "0001_x.json"
    file.write_bytes(data)
    first = problems(file)[0]
    assert first.startswith(f"{file}: ") and said in first, first
    assert first == printable(first) and len(first) < 400


def test_a_pipe_to_compare_with_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0001_x.json")
    assert "is not a regular file" in problems(tmp_path / "0001_x.json")[0]


def test_a_file_that_is_whole_or_older_is_taken(tmp_path: Path, session: Session) -> None:
    file = tmp_path / "0001_x.json"
    file.write_bytes(GOOD)
    assert problems(file) == []
    assert problems(session.folder / "o.json") == []
    assert "cannot be read" in problems(tmp_path)[0]
    with file.open("wb") as big:
        big.truncate(200_000_000)
    assert "is longer than" in problems(file)[0]


def test_a_damaged_baseline_ends_pytest_bench_before_anything(
    tmp_path: Path, pytest_bench: PytestBench
) -> None:
    file = tmp_path / "machine" / "0001_x.json"
    file.parent.mkdir()
    file.write_bytes(GOOD.replace(b'"mean": 1', b'"mean": NaN'))
    for option in (f"--benchmark-compare={file}", "--benchmark-compare=machine/0001"):
        done = pytest_bench(f"--benchmark-storage={tmp_path}", option, "--collect-only", "-q")
        assert done.code == 4
        assert f"{file}: benchmarks[0].stats.mean: is NaN" in done.err
        assert "Traceback" not in done.out + done.err


@pytest.mark.parametrize("option", ["--benchmark-disable", "--benchmark-skip", "xdist"])
def test_where_nothing_is_timed_nothing_is_measured(
    option: str, tmp_path: Path, pytest_bench: PytestBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if option == "xdist":
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    options = ("-k", "cpu:last") if option == "xdist" else ("-k", "cpu:last", option)
    file = tmp_path / "o.json"
    done = pytest_bench(f"--membound-out={tmp_path}", f"--benchmark-json={file}", *options)
    assert done.code == 0, done
    assert "1 skipped" in done.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--membound-preset=quik", "unknown preset 'quik'; nearest: quick"),
        ("--membound-device=gpu", "unknown device 'gpu'"),
        ("--membound-processes=0", "'0' is not a number of processes; write 1 or more"),
        ("--membound-kernels=nowhere", "nowhere"),
    ],
)
def test_wrong_options_are_one_line(option: str, said: str, pytest_bench: PytestBench) -> None:
    done = pytest_bench(option)
    assert done.code == 4
    assert said in done.err
    assert "Traceback" not in done.out + done.err


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, pytest_bench: PytestBench
) -> None:
    (tmp_path / "file").touch()
    done = pytest_bench("-k", "cpu:last", f"--membound-out={tmp_path / 'file'}")
    assert done.code == 4
    assert f"{tmp_path / 'file'}" in done.out
    assert "Traceback" not in done.out + done.err


def test_bench_is_collected_where_it_is_named() -> None:
    named = in_a_process("pytest", "bench", "--collect-only", "-q", "--membound-device=cpu")
    assert "bench/test_bench.py::test_bandwidth[copy/forward/cpu/float32/" in named.out, named
    unnamed = in_a_process("pytest", ".", "--collect-only", "-q", "--ignore=tests")
    assert "no tests collected" in unnamed.out, unnamed


def test_a_clock_gives_samples_back_to_the_last_bit() -> None:
    clock = ScriptedClock()
    samples = [1e-9, 0.1 + 0.2, 3.3e-5, 1e6]
    clock.load("events", samples)
    starts_and_ends = [(clock(), clock()) for _ in samples]
    assert [end - start for start, end in starts_and_ends] == samples
    assert clock.__name__ == "events"
    with pytest.raises(StopIteration):
        clock()


def test_a_saved_device_is_compared_by_its_model() -> None:
    selected = select("cpu")
    stock = {"node": "here", "cpu": {"brand_raw": "X", "hz_actual": [1, 0]}}
    info = machine(selected, stock)
    assert info["cpu"] == {"brand_raw": "X"}
    assert machine(selected, {"node": "arm"})["cpu"] == {}
    assert other_device(info, selected) == []
    other = {**info, "device": {**msgspec.to_builtins(selected.device), "memory_bytes": 1 << 50}}
    assert "memory_bytes" in other_device(other, selected)[0]
    strangers: tuple[object, ...] = (None, [], {}, {"device": None}, {"device": {"name": 3}})
    for stranger in strangers:
        assert other_device(stranger, selected) == []


def test_what_is_left_of_a_plan_keeps_its_shape() -> None:
    shape = scaled("rows", rows=8, columns=4)
    group = Group(
        "mix_1r1w", "forward", "float32", shape, ("cold", "steady"), ("cpu", "torch", "numba")
    )
    names = {"mix_1r1w/forward/cpu/float32/8x4/cold", "mix_1r1w/forward/numba/float32/8x4/steady"}
    names.add("mix_1r1w/forward/torch/float32/8x4/cold")
    left = only([group], names)
    assert [(g.implementations, g.caches) for g in left] == [
        (("cpu", "torch"), ("cold",)),
        (("numba",), ("steady",)),
    ]
    assert all(g.shape == shape for g in left)
    assert only([group], set()) == []
    assert ceiling_cases([group, group], "cpu") == {
        "mix_1r1w/forward/cpu/float32/8x4/cold",
        "mix_1r1w/forward/cpu/float32/8x4/steady",
    }
