"""The extras resolve for the machines they are for, from metadata alone: nothing is installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / ".setup" / "constraints.txt"
PYTHON_VERSION = "3.12"
COMPILE = (sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "-")
THIS_PYTHON = ("--python", sys.executable, "--no-python-downloads")
UNREACHABLE = re.compile(r"error sending request|failed to fetch|dns error|timed out", re.I)


def resolve(*arguments: str, more: str = "", machine: str = "x86_64") -> dict[str, str]:
    """Package to version; skips where no package index is reached, fails where nothing fits."""
    target = ("--python-version", PYTHON_VERSION, "--python-platform", f"{machine}-manylinux_2_28")
    quietly = ("--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:")
    ran = subprocess.run(
        [*COMPILE, *THIS_PYTHON, *target, *quietly, *arguments],
        input=more,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode and UNREACHABLE.search(ran.stderr):
        pytest.skip(f"no package index reached: {ran.stderr.strip().splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr
    return dict(line.split("==") for line in ran.stdout.splitlines() if "==" in line)


def release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


@pytest.mark.parametrize("resolution", ["highest", "lowest-direct"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_cuda13_is_13_0_throughout(machine: str, resolution: str) -> None:
    found = resolve("--extra", "cuda13", "--resolution", resolution, machine=machine)
    assert release(found["torch"]) >= (2, 11)
    assert not [name for name in found if name.endswith(("-cu12", "cuda12x"))]
    # Their output has to load on the oldest driver of CUDA 13.
    for part in ("cuda-nvrtc", "cuda-runtime", "nvjitlink", "nvvm"):
        assert release(found[f"nvidia-{part}"]) == (13, 0), part
    assert {"cuda-core", "cupy-cuda13x", "numba-cuda", "triton", "nvidia-ml-py"} <= set(found)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_cupti_is_no_newer_than_the_oldest_driver(machine: str) -> None:
    found = resolve("--extra", "cuda13", "--extra", "cupti", machine=machine)
    assert release(found["cupti-python"]) == release(found["nvidia-cuda-cupti"]) == (13, 0)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_peers_leave_cuda_as_it_is(machine: str) -> None:
    found = resolve("--extra", "cuda13", "--extra", "peers", machine=machine)
    assert {"liger-kernel", "quack-kernels", "flashinfer-python"} <= set(found)
    assert release(found["torch"]) >= (2, 11)
    assert release(found["nvidia-cuda-nvrtc"]) == (13, 0)


@pytest.mark.parametrize("resolution", ["highest", "lowest-direct"])
def test_cuda12_is_12_8_throughout(resolution: str) -> None:
    found = resolve("--extra", "cuda12", "--resolution", resolution)
    assert (2, 9) <= release(found["torch"]) < (2, 11)
    assert release(found["cuda-bindings"])[0] == 12
    for part in ("cuda-nvrtc-cu12", "cuda-runtime-cu12", "nvjitlink-cu12"):
        assert release(found[f"nvidia-{part}"]) == (12, 8), part
    assert {"cuda-core", "cupy-cuda12x", "numba-cuda", "triton", "nvidia-ml-py"} <= set(found)


def test_cuda12_brings_nothing_on_aarch64() -> None:
    found = resolve("--extra", "cuda12", machine="aarch64")
    assert "pandas" in found
    assert not [name for name in found if re.match("torch|cuda|cupy|nvidia|numba", name)]


def test_what_cannot_be_resolved_is_a_failure_and_no_skip() -> None:
    with pytest.raises(AssertionError, match="unsatisfiable"):
        resolve("--extra", "cuda13", more="torch<2.11")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_pins_agree_even_with_the_cuda_build_of_torch(machine: str) -> None:
    extras = ("--extra", "cpu", "--extra", "compilers", "--extra", "test", "--extra", "audit")
    found = resolve(*extras, "--constraint", str(CONSTRAINTS), machine=machine)
    pinned = re.findall("^([a-z0-9-]+)==", CONSTRAINTS.read_text(), re.MULTILINE)
    # cuda-core asks for cuDLA on aarch64 alone.
    assert set(found) - {"nvidia-cudla"} <= set(pinned)
