"""`tests/contract` with the oldest versions that the extras admit, in an environment of its own.

    python -P tests/contract/oldest.py

uv takes the lower bounds from pyproject.toml and installs what they mean into `.venv-oldest/`.
torch is installed where its CPU build is to be had; its CUDA build is gigabytes.

Exit status: that of pytest; 2 where the environment cannot be made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-oldest"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
UV = (sys.executable, "-m", "uv", "--quiet")
EXTRAS = ("--extra", "cpu", "--extra", "compilers", "--extra", "test")
WANTED = (
    "cuda-core", "cuda-bindings", "cuda-pathfinder", "cuda-toolkit", "cupy-cuda13x", "fastrlock",
    "numba", "numba-cuda", "llvmlite", "numpy", "triton", "nvidia-ml-py", "pytest",
)  # fmt: skip
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy")


def oldest_versions(pyproject: Path) -> dict[str, str]:
    """Package to the oldest version that its bounds, and those of its users, admit.

    Raises CalledProcessError where nothing fits or no index is reached.
    """
    rules = ("--resolution", "lowest-direct", "--no-header", "--no-annotate")
    command = [*UV, "pip", "compile", str(pyproject), *EXTRAS, "--python", sys.executable, *rules]
    resolved = subprocess.check_output(command, text=True)
    lines = (line.split(";")[0].strip() for line in resolved.splitlines())
    return dict(line.split("==", 1) for line in lines if "==" in line)


def install(versions: dict[str, str]) -> None:
    subprocess.check_call([*UV, "venv", "--clear", "--python", sys.executable, str(VENV)])
    _pip(*_pinned(versions, WANTED))
    torch = f"torch=={versions['torch']}"
    try:
        _pip("--no-deps", torch, "--index-url", CPU_INDEX, quiet=True)
    except subprocess.CalledProcessError:
        print(f"without {torch}: no CPU build at {CPU_INDEX}, and the other is gigabytes")
        return
    _pip(*_pinned(versions, TORCH_NEEDS), "typing-extensions")


def _pinned(versions: dict[str, str], names: Sequence[str]) -> list[str]:
    return [f"{name}=={versions[name]}" for name in names if name in versions]


def _pip(*arguments: str, quiet: bool = False) -> None:
    command = [*UV, "pip", "install", "--python", str(VENV / "bin" / "python"), *arguments]
    subprocess.check_call(command, stderr=subprocess.DEVNULL if quiet else None)


def run() -> int:
    link = ROOT / ".link"
    link.mkdir(exist_ok=True)
    if not (link / "membound").is_symlink():
        (link / "membound").symlink_to("..")
    python = str(VENV / "bin" / "python")
    command = [python, "-P", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(link)}
    return subprocess.call([*command, "tests/contract"], cwd=ROOT, env=environment)


def main() -> int:
    try:
        versions = oldest_versions(ROOT / "pyproject.toml")
        install(versions)
    except subprocess.CalledProcessError as error:
        print(f"{VENV.name} could not be made: the reason is above (exit {error.returncode})")
        return 2
    shown = (name for name in (*WANTED, "torch") if name in versions)
    print("oldest:", ", ".join(f"{name} {versions[name]}" for name in shown), flush=True)
    return run()


if __name__ == "__main__":
    sys.exit(main())
