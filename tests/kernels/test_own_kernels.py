"""The worked example of docs/your-own-kernels.md does what the page says, outside our folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import membound.kernels
import pytest
from membound.kernels import chain
from membound.kernels.discovery import ENTRY_POINTS, BrokenKernels, discover
from membound.kernels.dtypes import bfloat16

ROOT = Path(membound.kernels.__path__[0]).parent
PAGE = ROOT / "docs" / "your-own-kernels.md"
EXAMPLE = ROOT / "docs" / "example"
NAME = "gated_residual"


def python(*arguments: str, installed: Path | None = None) -> subprocess.CompletedProcess[str]:
    paths = [str(installed)] if installed else []
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "160"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def install(folder: Path, module: str = "my_kernels") -> Path:
    """What pip leaves of a package with our entry point, its files and their metadata."""
    shutil.copytree(EXAMPLE, folder / "my_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "my_kernels" / "__init__.py").touch()
    metadata = folder / "my_kernels-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kernels\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nmine = {module}\n")
    return folder


def test_the_page_shows_the_files_that_are_there() -> None:
    shown = re.findall(r"^`(\S+)`\n\n```\w+\n(.*?)```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert {name for name, _ in shown} == {f.name for f in EXAMPLE.iterdir() if f.is_file()}
    for name, text in shown:
        assert text == (EXAMPLE / name).read_text(), name


def test_fusing_halves_its_traffic() -> None:
    catalogue = discover([EXAMPLE])
    operation = catalogue.operations[NAME]
    dims = {"rows": 8, "columns": 64}
    fused = operation.directions(dims, bfloat16).forward.traffic
    args = (catalogue.operations, operation, "unfused", "forward", dims, bfloat16)
    assert (fused, chain.traffic(*args)) == (4 * 8 * 64 * 2, 8 * 8 * 64 * 2)


def test_it_is_listed_and_measured_beside_ours(tmp_path: Path) -> None:
    command = ["-m", "membound.cli"]
    listed = python(*command, "list", NAME, "--kernels", "docs/example")
    assert listed.returncode == 0, listed.stderr
    assert re.search(rf"^{NAME} .*forward", listed.stdout, re.MULTILINE)
    run = python(
        *(*command, "run", NAME, "--kernels", "docs/example", "--device", "cpu"),
        *("--implementation", "torch", "--processes", "1", "--out", str(tmp_path)),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(rf"^{NAME}\b.*\btorch\b", run.stdout, re.MULTILINE), run.stdout


def test_an_entry_point_brings_it_into_every_command_and_test(tmp_path: Path) -> None:
    """Verified, counted, sanitized and compiled by the very tests that cover our own kernels."""
    installed = install(tmp_path)
    files = [f"tests/kernels/{name}" for name in ("test_emulated.py", "test_cubins.py")]
    done = python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"{NAME} and not unfused"),
        *files,
        installed=installed,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 20
    listed = python("-m", "membound.cli", "list", NAME, installed=installed)
    assert f"{NAME}:unfused" in listed.stdout


def test_the_tests_reject_a_wrong_kernel_of_somebody_else(tmp_path: Path) -> None:
    source = install(tmp_path) / "my_kernels" / f"{NAME}.cu"
    source.write_text(source.read_text().replace("residual + x", "residual - x"))
    done = python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels/test_emulated.py"),
        *("-k", f"test_agrees_with_float64 and {NAME} and not unfused"),
        installed=tmp_path,
    )
    assert done.returncode == 1, done.stdout[-3000:]


def test_an_entry_point_without_a_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, module="not_there")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BrokenKernels, match=r"'mine' of group 'membound.operations': 'not_there'"):
        discover()
