"""The CUDA C++ backend without a GPU: cache of cubins, errors in one line, checked operands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from membound.kernels.backends import cuda, cuda_nvrtc
from membound.kernels.backends.cuda_elementwise import THREADS, loads_per_thread
from membound.kernels.backends.cuda_nvrtc import CompileOnly, compile_cubin
from membound.kernels.dtypes import float32
from membound.kernels.operation import Tensor
from membound.kernels.spec import CannotPrepare
from membound.kernels.target import ARCHITECTURES, reference_target

SOURCE = """
#include "scale.cuh"
template <typename T>
__global__ void scale(T* y) { y[threadIdx.x] *= factor(); }
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `.cu` with a header of its own, and an empty cache."""
    monkeypatch.setenv("MEMBOUND_CACHE", str(tmp_path / "cache"))
    (tmp_path / "scale.cuh").write_text("__device__ inline float factor() { return 2.0f; }\n")
    file = tmp_path / "scale.cu"
    file.write_text(SOURCE)
    return file


def entries(source: Path) -> list[Path]:
    return sorted((source.parent / "cache" / "cubins").iterdir())


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(cuda_nvrtc, "_compile", refuse)


def test_a_second_compilation_comes_from_the_cache(
    source: Path, request: pytest.FixtureRequest
) -> None:
    first = compile_cubin(source, ["scale<float>"], "sm_90")
    assert first.symbols["scale<float>"].startswith("_Z5scale")
    assert [entry.suffix for entry in entries(source)] == [".cubin", ".json"]
    request.getfixturevalue("no_compiler")
    assert compile_cubin(source, ["scale<float>"], "sm_90") == first


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
@pytest.mark.parametrize("damage", [b"", b"\0half of it", None])
def test_a_damaged_entry_is_built_again(source: Path, suffix: str, damage: bytes | None) -> None:
    first = compile_cubin(source, ["scale<float>"], "sm_90")
    (entry,) = (entry for entry in entries(source) if entry.suffix == suffix)
    if damage is None:
        entry.unlink()
    else:
        entry.write_bytes(damage)
    assert compile_cubin(source, ["scale<float>"], "sm_90") == first
    assert len(entries(source)) == 2


def test_whatever_decides_the_code_is_in_the_key(source: Path) -> None:
    compile_cubin(source, ["scale<float>"], "sm_90")
    compile_cubin(source, ["scale<float>"], "sm_121")
    compile_cubin(source, ["scale<double>"], "sm_90")
    compile_cubin(source, ["scale<float>"], "sm_90", {"UNUSED": "1"})
    (source.parent / "scale.cuh").write_text("__device__ inline float factor() { return 3.0f; }")
    compile_cubin(source, ["scale<float>"], "sm_90")
    assert len(entries(source)) == 2 * 5


def test_a_cache_that_cannot_be_written_costs_only_time(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = source.parent / "a file"
    blocked.touch()
    monkeypatch.setenv("MEMBOUND_CACHE", str(blocked))
    assert compile_cubin(source, ["scale<float>"], "sm_90").code


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMBOUND_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cuda_nvrtc.cache_folder("cubins") == Path("/x/membound/cubins")
    monkeypatch.setenv("MEMBOUND_CACHE", "/m")
    assert cuda_nvrtc.cache_folder("cubins") == Path("/m/cubins")


def test_a_compile_error_is_a_reason_in_one_line(source: Path) -> None:
    source.write_text(SOURCE.replace("factor()", "nonsense()"))
    with pytest.raises(CannotPrepare, match=r"^scale\.cu for sm_90: .*\"nonsense\"") as caught:
        CompileOnly().build(source, ["scale<float>"], reference_target("sm_90"))
    assert "\n" not in str(caught.value)


def test_missing_headers_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.pathfinder

    monkeypatch.setattr(cuda.pathfinder, "find_nvidia_header_directory", lambda _: None)
    with pytest.raises(CannotPrepare, match=r"cuda_fp16\.h not found \(pip install"):
        cuda_nvrtc.include_folders()


def test_operands_come_in_order_or_say_what_is_wrong() -> None:
    x = Tensor("x", (4, 6), float32)
    right = torch.zeros(4, 6)
    assert cuda.operands({"x": right}, [x, x]) == [right, right]
    wrong: dict[str, dict[str, torch.Tensor]] = {
        "there is none": {},
        r"got torch\.float64": {"x": right.double()},
        r"got torch\.float32 \(5, 6\)": {"x": torch.zeros(5, 6)},
        "its address is no multiple of 4": {
            "x": torch.frombuffer(bytearray(97), dtype=torch.float32, count=24, offset=1)
        },
        r"contiguous; got strides \(1, 4\)": {"x": torch.zeros(6, 4).T},
    }
    for message, tensors in wrong.items():
        with pytest.raises(ValueError, match=rf"^x must be float32 \(4, 6\).*{message}"):
            cuda.operands(tensors, [x])


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("inputs", [0, 1, 2, 3])
def test_half_of_the_threads_keep_memory_busy(arch: str, inputs: int) -> None:
    target = reference_target(arch)
    width = cuda.vector_bytes(target)
    loads = loads_per_thread(target, inputs, width)
    threads = target.threads_per_multiprocessor // 2
    assert threads % THREADS == 0
    assert loads == 4 or threads * width * loads * max(inputs, 1) >= 40 * 1024


def test_a_grid_has_a_largest_size() -> None:
    assert cuda.blocks_for(2**31 * 1024, 4096) == 2**29
    with pytest.raises(CannotPrepare, match="exceed the largest grid"):
        cuda.blocks_for(2**42, 1024)
