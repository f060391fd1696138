"""Two revisions of a small checkout against each other, through real workers on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from membound.analysis.compare import Comparison
from membound.analysis.sequential import Sequential
from membound.bench import ab as comparing
from membound.bench.ab import _differences, ab
from membound.bench.ab_side import Comparing, NoCommonProtocol
from membound.bench.device.select import Selected, select
from membound.bench.environment import ROOT
from membound.bench.presets import Selection
from membound.bench.worktree import NoRevision, checked_out
from membound.cli import app
from membound.kernels.target import MIB
from typer.testing import CliRunner

NEEDED = ("kernels", "bench", "results/*.py", "pyproject.toml")
"""What a worker is made of."""

STATED = '''
"""Small operations of which the two revisions have different ones."""
from membound.kernels.dtypes import float32
from membound.kernels.operation import Direction, Directions, operation, tensors
from membound.kernels.shapes import layer

def sums(names, rows, columns, dtype):
    reads, y = tensors(names, (rows, columns), dtype), tensors("y", (rows, columns), dtype)
    return Directions(Direction(reads, y, lambda *given: 1 + sum(given)))
'''
STATEMENT = """
@operation(shapes=[layer(rows=1024, columns=128)], dtypes=[float32], tier=3)
def {name}(rows, columns, dtype):
    return sums("{reads}", rows, columns, dtype)
"""
IMPLEMENTED = """
import os
import torch
from membound.kernels.spec import Prepared

VARIANTS = ("worked", "crashing", "wrong")
CHANGED = {changed}

def prepare(direction, spec):
    reads = [tensor.name for tensor in spec.io.reads]
    kind = spec.variant if CHANGED else ""

    def bind(tensors, stream):
        x, y = [tensors[name] for name in reads], tensors["y"]

        def launch():
            torch.add(x[0], 1.0, out=y)
            for more in x[1:]:
                y.add_(more)
            if kind == "worked":  # the same bytes, twenty times more of them
                for _ in range(20):
                    torch.add(x[0], 1.0, out=y)
            if kind == "crashing":
                os.abort()
            if kind == "wrong":
                y[3, 5] = 0

        return launch

    return Prepared(bind)
"""
SHAPE = "float32/1024x128/steady"

needs_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the checkout")


def git(folder: Path, *arguments: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, env=clean, check=True)


def commit(folder: Path, tag: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", tag)
    git(folder, "tag", tag)


def state(folder: Path, changed: bool, **operations: str) -> None:
    own = folder / "own"
    own.mkdir(exist_ok=True)
    statements = [STATEMENT.format(name=n, reads=reads) for n, reads in operations.items()]
    (own / "small.py").write_text(STATED + "".join(statements))
    (own / "small_cpu.py").write_text(IMPLEMENTED.format(changed=changed))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this code at tag `before`, and an edited working tree.

    At `silent` there is no worker yet; at `other` it speaks another protocol.
    """
    folder = tmp_path_factory.mktemp("some folder") / "clone"
    folder.mkdir()
    for pattern in NEEDED:
        for path in ROOT.glob(pattern):
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, target)
    git(folder, "init", "--quiet")
    state(folder, False, shift="x", grown="x", gone="x")
    worker, protocol = folder / "bench" / "ab_worker.py", folder / "bench" / "ab_protocol.py"
    kept, spoken = worker.read_text(), protocol.read_text()
    worker.unlink()
    commit(folder, "silent")
    worker.write_text(kept)
    protocol.write_text(spoken.replace("PROTOCOL = ", "PROTOCOL = 99"))
    commit(folder, "other")
    protocol.write_text(spoken)
    commit(folder, "before")
    state(folder, True, shift="x", grown="x z", fresh="x")
    return folder


@pytest.fixture(scope="module", autouse=True)
def _small_cache() -> Iterator[None]:
    """A last-level cache of 1 MiB: few and small buffers."""

    def small(*arguments: object, **names: object) -> Selected:
        selected = select("cpu")
        return replace(selected, target=replace(selected.target, llc_bytes=MIB))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "select", small)
        yield


def request(checkout: Path, revision: str = "before", **changes: object) -> Comparing:
    labels = ("cpu", "cpu:worked", "cpu:crashing", "cpu:wrong")
    made = Comparing(
        revision,
        Selection("full", operations=("own",), implementations=labels, ceilings=False),
        device="cpu",
        kernels=(checkout / "own",),
        block_seconds=0.01,
        rounds=1,
        case_timeout=60.0,
        root=checkout,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class Once(Sequential):
    """One look, after three restarts: what is twenty times slower shows in that many."""

    @property
    def most(self) -> int:
        return 3


@dataclass
class Compared:
    comparison: Comparison
    said: list[str]

    def row(self, operation: str, label: str = "cpu") -> tuple[str, str]:
        case = f"{operation}/forward/{label}/{SHAPE}"
        (row,) = (row for row in self.comparison.rows if row.case == case)
        return row.verdict, row.reason


@pytest.fixture(scope="module")
def compared(checkout: Path) -> Compared:
    said: list[str] = []
    comparison = ab(request(checkout), Once(first=3, threshold=0.5), said.append)
    assert left_behind(checkout) == []
    return Compared(comparison, said)


def left_behind(checkout: Path) -> list[str]:
    """Trees and workers that should be gone."""
    listed = subprocess.run(
        ["git", "worktree", "list", "--porcelain"],
        cwd=checkout, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    trees = [line for line in listed.splitlines() if line.startswith("worktree ")][1:]
    workers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if b"membound.bench.ab_worker" in words and int(parent) == os.getpid():
            workers.append(folder.name)
    return trees + workers


def test_pairs_of_blocks_are_second_less_first() -> None:
    a, b, drift = 1.0, 3.0, 0.25
    blocks = [level + drift * n for n, level in enumerate([a, b, b, a, a, b, b, a])]
    differences = _differences(blocks)
    assert differences == [2 + drift, 2 - drift, 2 + drift, 2 - drift]
    assert sum(differences) / len(differences) == b - a


def test_a_slowed_kernel_is_seen_and_an_unchanged_one_is_not_called_slower(
    compared: Compared,
) -> None:
    """Three restarts on a busy machine may leave it ambiguous; verdicts on clean evidence are
    tested with the statistics."""
    name = f"shift/forward/cpu:worked/{SHAPE}"
    (slowed,) = (row for row in compared.comparison.rows if row.case == name)
    assert slowed.verdict in ("slower", "ambiguous")
    assert slowed.ratio is not None
    assert slowed.ratio > 2
    verdict, reason = compared.row("shift")
    assert verdict in ("same", "ambiguous") or "launch-bound" in reason
    assert compared.comparison.exit_code()[0] == 1  # a wrong result there is, whatever the rest


def test_what_only_one_revision_has_is_named(compared: Compared) -> None:
    assert compared.row("gone") == ("missing", "not in B (working tree)")
    assert compared.row("fresh") == ("new", "not in A (before)")


def test_other_traffic_is_not_compared(compared: Compared) -> None:
    verdict, reason = compared.row("grown")
    assert verdict == "incomparable"
    assert reason == "bytes_read differs: 524,288 and 1,048,576"


def test_a_case_that_fails_costs_itself_only(compared: Compared) -> None:
    verdict, reason = compared.row("shift", "cpu:crashing")
    assert verdict == "missing"
    assert reason == "failed in B (working tree): worker was ended by SIGABRT"
    verdict, reason = compared.row("shift", "cpu:wrong")
    assert verdict == "missing"
    assert "wrong in B (working tree): y: error" in reason
    assert compared.comparison.wrong == [f"shift/forward/cpu:wrong/{SHAPE}"]


def test_it_says_what_is_compared_and_how_it_goes(compared: Compared) -> None:
    assert compared.said[0].startswith("A: before, commit ")
    assert compared.said[1].startswith("B: the working tree, ")
    assert any(line.startswith("restart 1 of at most 3: 0 of") for line in compared.said)
    assert all("\n" not in line for line in compared.said)


def test_an_interrupted_comparison_leaves_nothing_behind(checkout: Path) -> None:
    def interrupt(line: str) -> None:
        if "can be compared" in line:
            assert len(left_behind(checkout)) == 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ab(request(checkout), Sequential(), interrupt)
    assert left_behind(checkout) == []


@pytest.mark.parametrize(
    ("revision", "why"),
    [
        ("silent", r"A \(silent\) has no worker that starts: .* No module named"),
        ("other", r"A \(other\) speaks protocol 991, not 1"),
    ],
)
def test_a_revision_that_cannot_be_spoken_to(checkout: Path, revision: str, why: str) -> None:
    with pytest.raises(NoCommonProtocol, match=why) as caught:
        ab(request(checkout, revision), Sequential(), lambda line: None)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert left_behind(checkout) == []


def test_a_revision_that_is_none(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(NoRevision, match="git: invalid reference: nowhere"):
        ab(request(checkout, "nowhere"), Sequential(), lambda line: None)
    with pytest.raises(NoRevision, match="is not a git checkout"):
        ab(request(checkout, root=tmp_path), Sequential(), lambda line: None)
    with pytest.raises(NoRevision, match="git: "), checked_out(checkout, "--force"):
        pass
    assert left_behind(checkout) == []


def test_hooks_of_the_checkout_do_not_run(checkout: Path, tmp_path: Path) -> None:
    hook = checkout / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path / 'ran'}'\n")
    hook.chmod(0o755)
    with checked_out(checkout, "before") as tree:
        assert (tree / "own" / "small.py").exists()
    hook.unlink()
    assert not (tmp_path / "ran").exists()


@needs_checkout
def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A/A of this very checkout, with no time to measure anything."""
    options = ("copy", "--implementation=cpu", "--device=cpu", "--time-limit=0.001s")
    done = CliRunner().invoke(app, ["ab", "HEAD", *options, "--json"])
    assert done.exit_code == 5, done.stderr
    rows = json.loads(done.stdout)
    assert rows
    for row in rows:
        assert row["verdict"] == "ambiguous"
        assert row["reason"] == "not reached before the time limit"
        assert {"case", "ratio", "low", "high"} <= row.keys()
    done = CliRunner().invoke(app, ["ab", "no-such-revision"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "membound: git: invalid reference: no-such-revision\n"


@needs_checkout
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(signum: int, code: int, tmp_path: Path) -> None:
    command = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command += "from membound.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", command, "ab", "HEAD", "copy", "--device=cpu"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline().startswith("A: HEAD")
        process.send_signal(signum)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in said
    assert not list(tmp_path.glob("membound-ab-*"))
    assert not any(str(tmp_path) in line for line in left_behind(ROOT))
