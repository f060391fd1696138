"""CuPy kernels: their text on the CPU and through NVRTC, and what a launch passes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from membound.kernels import dtypes
from membound.kernels.backends import cupy as backend
from membound.kernels.discovery import discover
from membound.kernels.operation import DirectionName, Tensor
from membound.kernels.spec import Prepared, Spec
from membound.kernels.target import reference_target

cupy = pytest.importorskip("cupy")

CASES = Path(__file__).with_name("gpu_cases.py")
CATALOGUE = discover()
IMAGES = {
    "images": 2, "channels": 3, "height": 112, "width": 112,
    "kernel": 3, "stride": 2, "padding": 1,
}  # fmt: skip


def prepare(
    name: str,
    direction: DirectionName,
    dtype: dtypes.DType,
    dims: Mapping[str, int] | None = None,
    toolchain: Any = None,
) -> Prepared:
    operation = CATALOGUE.operations[name]
    dims = dims or (IMAGES if "kernel" in operation.dims else {"rows": 3, "columns": 4})
    io = operation.directions(dims, dtype).get(direction)
    assert io is not None
    target = reference_target("sm_90")
    spec = Spec(operation, direction, dims, dtype, io, target, toolchain=toolchain)
    for implementation in CATALOGUE.implementations(operation):
        if implementation.backend == "cupy" and not implementation.variant:
            return implementation.prepare(spec)
    raise AssertionError(f"{name} has no CuPy implementation")


def test_the_text_computes_what_float64_does() -> None:
    found = {name: CATALOGUE.default(name, "cupy") for name in CATALOGUE.operations}
    names = [
        name
        for name, one in found.items()
        if one and one.refuses("forward", one.operation.dtypes[0].name) is None
    ]
    done = subprocess.run(
        [sys.executable, "-P", str(CASES), "cupy", *names],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    reasons = json.loads(done.stdout)
    assert not {case: reason for case, reason in reasons.items() if reason}
    refused = {case.rsplit("/", 2)[0] for case in reasons if case.endswith("refused")}
    summed = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm")
    biased = ("bias_add", "bias_gelu", "bias_relu")
    assert refused == {f"{name}/backward" for name in (*summed, *biased)}
    assert len(reasons) > 100


def source(kernel: Any, known: Mapping[str, Tensor], preamble: str) -> str:
    """What CuPy hands to NVRTC for contiguous arrays."""
    from cupy._core import _kernel
    from cupy._core._carray import Indexer

    array, indexer = 1, 2  # kinds of argument

    def flat(name: str) -> Any:
        element = np.dtype(backend.numpy_type(known[name].dtype)).type
        return _kernel._ArgInfo(array, cupy.ndarray, element, 1, True, True)

    compiled = cupy.ElementwiseKernel(
        ", ".join(backend.parameter(name, known, kernel.raw) for name in kernel.reads),
        ", ".join(backend.parameter(name, known) for name in kernel.writes),
        kernel.body,
        kernel.name,
        preamble=preamble,
    )
    arguments = [flat(name) for name in (*kernel.reads, *kernel.writes)]
    arguments.append(_kernel._ArgInfo(indexer, Indexer, None, 1, True, True))
    code: str = _kernel._get_elementwise_kernel_code(
        tuple(arguments), _kernel._TypeMap(()), compiled.params, kernel.body, kernel.name, preamble
    )
    return '#include "cupy/complex.cuh"\n#include "cupy/carray.cuh"\n' + code


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_nvrtc_compiles_what_cupy_would(dtype: dtypes.DType) -> None:
    core = pytest.importorskip("cuda.core")
    root = Path(cupy.__file__).parent / "_core" / "include"
    toolkit = cuda_headers()

    def build(kernel: Any, known: Mapping[str, Tensor], preamble: str) -> backend.Run:
        if isinstance(kernel, backend.Elementwise):
            text = source(kernel, known, preamble)
            include = [str(root), *map(str, toolkit)]
            options = core.ProgramOptions(arch="sm_121", std="c++17", include_path=include)
            assert core.Program(text, "c++", options).compile("cubin").code
        return lambda tensors, stream: lambda: None

    names: list[tuple[str, DirectionName]] = [
        ("triad", "forward"), ("fill", "forward"), ("swiglu", "backward"), ("gelu", "forward"),
        ("bias_gelu", "forward"), ("add_layer_norm", "forward"), ("softmax", "backward"),
        ("max_pool2d", "forward"), ("max_pool2d_nhwc", "backward"), ("avg_pool2d", "backward"),
    ]  # fmt: skip
    for name, direction in names:
        prepare(name, direction, dtype, toolchain=build)


def cuda_headers() -> list[Path]:
    import nvidia

    found = [p for root in nvidia.__path__ for p in Path(root).glob("*/include")]
    found += [path / "cccl" for path in found if (path / "cccl").is_dir()]
    if not any((path / "cuda_fp16.h").exists() for path in found):
        pytest.skip("no CUDA headers from wheels")
    return found


class FakeKernel:
    """A CuPy kernel class that remembers what it is called with."""

    def __init__(self, calls: list[Any], *text: Any, **options: Any) -> None:
        self.calls = calls

    def __call__(self, *arrays: Any, **options: Any) -> None:
        self.calls.append((arrays, options))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    for name in ("ElementwiseKernel", "ReductionKernel"):
        monkeypatch.setattr(cupy, name, lambda *text, **options: FakeKernel(found, *text))
    monkeypatch.setattr(backend, "stream_of", lambda stream: ("cupy", stream))
    return found


def test_a_launch_passes_arrays_over_torchs_memory(calls: list[Any]) -> None:
    prepared = prepare("add", "forward", dtypes.bfloat16)
    tensors = {name: torch.ones(3, 4, dtype=torch.bfloat16) for name in ("a", "b", "y")}
    launch = prepared.bind(tensors, 5)
    assert not calls
    launch()
    ((arrays, options),) = calls
    assert options == {"stream": ("cupy", 5)}
    assert [a.data.ptr for a in arrays] == [tensors[n].data_ptr() for n in ("a", "b", "y")]
    assert {str(a.dtype) for a in arrays} == {"uint16"}  # never float16: 1.0 would read as 1.875
    assert {a.shape for a in arrays} == {(12,)}


def test_a_reduction_runs_along_the_columns(calls: list[Any]) -> None:
    prepared = prepare("read", "forward", dtypes.float16)
    prepared.bind({"x": torch.ones(3, 4).half(), "sums": torch.zeros(3)}, 5)()
    ((arrays, options),) = calls
    assert options == {"stream": ("cupy", 5), "axis": 1}
    assert [a.shape for a in arrays] == [(3, 4), (3,)]


def test_the_kernel_classes_take_these_keywords() -> None:
    """An unknown keyword is named before anything asks the driver; ours are not."""
    elementwise = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x", "k", no_return=True)
    reduction = cupy.ReductionKernel(
        "float32 x", "float32 y", "x", "a + b", "y = a", "0.0f", "k", reduce_type="float"
    )
    with pytest.raises(TypeError, match=r"\{'other': 1\}"):
        elementwise(stream=None, other=1)
    with pytest.raises(TypeError, match=r"\{'other': 1\}"):
        reduction(stream=None, axis=1, other=1)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(4, 3).T,
        torch.zeros(3, 8)[:, ::2],
        torch.zeros(4).expand(3, 4),
        torch.zeros(3, 4, dtype=torch.float64),
        torch.zeros(3, 4, dtype=torch.bfloat16),
    ],
)
def test_what_cupy_would_misread_is_refused(value: torch.Tensor, calls: list[Any]) -> None:
    prepared = prepare("copy", "forward", dtypes.float32)
    with pytest.raises(ValueError, match="x: "):
        prepared.bind({"x": value, "y": torch.zeros(3, 4)}, None)


def test_constants_are_float32_text() -> None:
    texts = {backend.literal(value) for value in (1.7109375, 1e-6, 4096.0)}
    assert texts == {"1.7109375f", "1e-06f", "4096.0f"}


def test_streams_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    fake = SimpleNamespace(from_external=lambda stream: made.append(stream))
    monkeypatch.setattr(cupy.cuda, "Stream", fake)
    backend.stream_of("torch's")
    assert made == ["torch's"]
    monkeypatch.setattr(cupy.cuda, "Stream", SimpleNamespace())
    monkeypatch.setattr(cupy.cuda, "ExternalStream", lambda *given: made.append(given))
    backend.stream_of(SimpleNamespace(cuda_stream=3, device_index=0))
    assert made[-1] == (3, 0)


def test_a_missing_or_old_cupy_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.unavailable() is None
    monkeypatch.setattr("importlib.metadata.version", lambda name: "12.1.0")
    assert backend.unavailable() == "cupy-cuda13x 12.1.0 is older than 13.6"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert backend.unavailable() == "cupy is not installed"
