"""The wheel holds every file of the package, and works without the repository."""

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ("kernels", "bench", "results", "analysis")
SHIPPED = (".py", ".cu", ".cuh", ".csv", ".html", ".css", ".js")


def package_files(root: Path) -> set[str]:
    """What the folders of the package hold; under `results/` only its code is package."""
    files = {path.name for path in root.glob("*.py")}
    for folder in HOUSE:
        found = (root / folder).glob("*.py") if folder == "results" else (root / folder).rglob("*")
        files |= {str(path.relative_to(root)) for path in found if path.is_file()}
    return files


def check_shipped(root: Path, names: Iterable[str]) -> None:
    inside = {name.removeprefix("membound/") for name in names if ".dist-info/" not in name}
    assert inside == package_files(root)


def offline_pip(command: str, *arguments: str) -> None:
    options = ("--quiet", "--no-index", "--no-deps")
    subprocess.run([sys.executable, "-m", "pip", command, *options, *arguments], check=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository under another name."""
    source = tmp_path_factory.mktemp("wheel") / "another name"
    unwanted = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, source, ignore=unwanted)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """Built without the network."""
    offline_pip("wheel", "--no-build-isolation", "--wheel-dir", str(source.parent), str(source))
    (wheel,) = source.parent.glob("membound-*.whl")
    return wheel


def test_wheel_and_folders_agree(source: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    check_shipped(source, names)
    for lost in ("membound/kernels/copy/__init__.py", "membound/kernels/include/memory.cuh"):
        assert lost in names
        with pytest.raises(AssertionError):
            check_shipped(source, set(names) - {lost})


def test_every_kind_of_file_is_known(source: Path) -> None:
    assert {Path(name).suffix for name in package_files(source)} <= set(SHIPPED)


def test_installed_elsewhere_it_lists_the_operations(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    offline_pip("install", "--target", str(target), str(wheel))
    # -S: an editable membound in this environment would fill the gaps of the wheel.
    python = [sys.executable, "-S", "-P"]
    env = {"PYTHONPATH": f"{target}:{sysconfig.get_paths()['purelib']}", "PATH": "/usr/bin:/bin"}
    listed = subprocess.run(
        [*python, "-m", "membound.cli", "list", "--json"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    assert "rms_norm" in {row["operation"] for row in json.loads(listed.stdout)}
    where = subprocess.run(
        [*python, "-c", "import membound; print(*membound.__path__)"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.strip() == str(target / "membound")
