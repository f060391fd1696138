"""The Makefile: what it costs when nothing changed, and what it says without a GPU."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Stands in for set-up: notes the call, then does what `outcome` says.
SET_UP = """
import pathlib, sys
root = pathlib.Path(__file__).resolve().parents[1]
with open(root / "calls", "a") as calls:
    calls.write(" ".join(["set-up", *sys.argv[1:]]) + "\\n")
if (root / "outcome").read_text() != "ok":
    sys.exit(1)
(root / ".venv").mkdir(exist_ok=True)
(root / ".venv" / ".ready-to-run").touch()
if "--test" in sys.argv:
    (root / ".venv" / ".ready-to-test").touch()
"""


def make(
    folder: Path, *arguments: str, python: str = sys.executable, **env: str
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "-C", str(folder), "--no-print-directory", f"PYTHON={python}", *arguments],
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A folder with the Makefile and a set-up that only takes notes."""
    (tmp_path / ".setup").mkdir()
    (tmp_path / ".setup" / "install.py").write_text(SET_UP)
    (tmp_path / ".setup" / "constraints.txt").touch()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    (tmp_path / "outcome").write_text("ok")
    return tmp_path


@pytest.fixture
def system_python(tmp_path: Path) -> str:
    """An interpreter that has torch and the rest, but no membound."""
    venv.create(tmp_path / "system", with_pip=False)
    (packages,) = (tmp_path / "system" / "lib").glob("python3.*/site-packages")
    # Of a folder named in a .pth file the .pth files are not read: no editable install from there.
    (packages / "those-of-the-tests.pth").write_text(sysconfig.get_paths()["purelib"])
    return str(tmp_path / "system" / "bin" / "python")


def calls(house: Path) -> list[str]:
    return (house / "calls").read_text().splitlines()


def test_plain_make_prints_every_target() -> None:
    ran = make(ROOT)
    assert ran.returncode == 0
    shown = re.findall(r"^  make (\w+)", ran.stdout, re.MULTILINE)
    phony = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(" ".join(phony).split())


def test_a_second_set_up_costs_nothing(house: Path) -> None:
    assert make(house, "setup").returncode == 0
    assert make(house, "setup").returncode == 0
    assert calls(house) == ["set-up"]


def test_a_set_up_for_tests_serves_runs_too(house: Path) -> None:
    assert make(house, ".venv/.ready-to-test").returncode == 0
    assert make(house, "setup").returncode == 0
    assert calls(house) == ["set-up --test"]


def test_a_changed_pyproject_sets_up_again(house: Path) -> None:
    make(house, "setup")
    stamp = (house / ".venv" / ".ready-to-run").stat().st_mtime
    os.utime(house / "pyproject.toml", (stamp + 1, stamp + 1))
    make(house, "setup")
    assert calls(house) == ["set-up", "set-up"]


def test_a_failed_set_up_is_tried_again(house: Path) -> None:
    (house / "outcome").write_text("fails")
    assert make(house, "setup").returncode != 0
    (house / "outcome").write_text("ok")
    assert make(house, "setup").returncode == 0
    assert calls(house) == ["set-up", "set-up"]


def test_gpu_with_the_systems_python_says_that_there_is_no_gpu(system_python: str) -> None:
    import_membound = [system_python, "-P", "-c", "import membound.kernels"]
    assert subprocess.run(import_membound, capture_output=True, check=False).returncode == 1
    ran = make(ROOT, "gpu", "SYSTEM=1", python=system_python, CUDA_VISIBLE_DEVICES="")
    first, *rest = ran.stdout.splitlines()
    assert first.startswith("fail gpu") and re.search("GPU|CUDA", first)
    assert not any(line.startswith("fail") for line in rest)
    assert ran.returncode == 2
    assert ran.stderr.rstrip().endswith("Error 4")


def test_gpu_names_what_the_systems_python_lacks() -> None:
    ran = make(ROOT, "gpu", "SYSTEM=1", python=f"{sys.executable} -S")
    said = ran.stderr.splitlines()
    assert "lacks what measuring needs: torch, numpy, cuda-core, msgspec" in said[0]
    assert len(said) == 2
