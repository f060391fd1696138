"""Numba CUDA kernels: index logic in the simulator, PTX per architecture, launch plumbing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from membound.kernels import dtypes
from membound.kernels.backends import numba as backend
from membound.kernels.discovery import discover
from membound.kernels.operation import DirectionName, Tensor
from membound.kernels.spec import Prepared, Spec
from membound.kernels.target import Target, reference_target

pytest.importorskip("numba_cuda")

CASES = Path(__file__).with_name("gpu_cases.py")
ROWS = {"rows": 4096, "columns": 4096}
IMAGES = {
    "images": 32, "channels": 64, "height": 112, "width": 112,
    "kernel": 3, "stride": 2, "padding": 1,
}  # fmt: skip
KERNELS = [
    ("triad", "forward"), ("fill", "forward"), ("read", "forward"), ("silu", "backward"),
    ("gelu", "forward"), ("gelu_tanh", "backward"), ("relu", "backward"), ("tanh", "forward"),
    ("swiglu", "backward"), ("grad_accumulate", "forward"),
    ("bias_gelu", "forward"), ("bias_gelu", "backward"), ("bias_add", "backward"),
    ("rms_norm", "backward"), ("add_rms_norm", "forward"),
    ("layer_norm", "backward"), ("add_layer_norm", "forward"),
    ("softmax", "forward"), ("softmax", "backward"),
    ("max_pool2d", "forward"), ("max_pool2d", "backward"),
]  # fmt: skip
CATALOGUE = discover()
EVERY = os.environ.get("MEMBOUND_AUDIT") == "all"


def prepare(
    name: str,
    direction: DirectionName,
    dtype: dtypes.DType,
    arch: str = "sm_121",
    dims: Mapping[str, int] | None = None,
    toolchain: Any = None,
) -> Prepared:
    operation = CATALOGUE.operations[name]
    dims = dims or (IMAGES if name == "max_pool2d" else ROWS)
    io = operation.directions(dims, dtype).get(direction)
    assert io is not None
    target = reference_target(arch)
    spec = Spec(operation, direction, dims, dtype, io, target, toolchain=toolchain)
    for implementation in CATALOGUE.implementations(operation):
        if implementation.backend == "numba" and not implementation.variant:
            return implementation.prepare(spec)
    raise AssertionError(f"{name} has no Numba implementation")


def ptx(
    name: str,
    direction: DirectionName,
    dtype: dtypes.DType,
    arch: str = "sm_121",
    dims: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """PTX of every kernel, by name."""
    found: dict[str, str] = {}

    def build(kernel: backend.Kernel, known: Mapping[str, Tensor], target: Target) -> backend.Run:
        found[kernel.function.__name__] = backend.ptx(kernel, known, target)
        return lambda arguments, stream: lambda: None

    prepare(name, direction, dtype, arch, dims, toolchain=build)
    return found


def implemented() -> list[str]:
    """Operations that Numba computes forward."""
    found = {name: CATALOGUE.default(name, "numba") for name in CATALOGUE.operations}
    return [
        name
        for name, one in found.items()
        if one and one.refuses("forward", one.operation.dtypes[0].name) is None
    ]


def test_simulator_agrees_with_float64() -> None:
    """Of tier 1, the skeletons; `make audit` takes all."""
    names = [n for n in implemented() if EVERY or CATALOGUE.operations[n].tier == 1]
    done = subprocess.run(
        [sys.executable, "-P", str(CASES), "numba", *names],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert not {case: reason for case, reason in found.items() if reason}
    assert {case.partition("/")[0] for case in found} == set(names)


@pytest.mark.parametrize(("name", "direction"), KERNELS)
def test_ptx_is_wide_and_stays_in_registers(name: str, direction: DirectionName) -> None:
    for kernel, text in ptx(name, direction, dtypes.bfloat16).items():
        sound(text)
        if name != "max_pool2d" and kernel != "column_sum":  # gathers; partials are L2's
            assert name == "fill" or "ld.global.nc.L1::no_allocate.v4.u32" in text
            assert kernel in {"row_sums", "sum_rows"} or "st.global.cs.v4.u32" in text


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_conversions_assemble_for_other_architectures(arch: str, dtype: dtypes.DType) -> None:
    (text,) = ptx("scale", "forward", dtype, arch).values()
    sound(text)
    assert ".v4.u32" in text
    assemble(text, arch)


@pytest.mark.parametrize("columns", [768, 4097, 20_000])
def test_every_row_layout_stays_in_registers(columns: int) -> None:
    dims = {"rows": 4096, "columns": columns}
    for name in ("add_layer_norm", "softmax", "bias_gelu"):
        for text in ptx(name, "backward", dtypes.float16, dims=dims).values():
            sound(text)
            assemble(text, "sm_121")


def test_the_check_sees_float64_and_local_memory() -> None:
    from numba import cuda, float64

    def double(x: Any, y: Any, z: Any) -> None:
        kept = cuda.local.array(64, float64)
        for i in range(64):
            kept[i] = x[i] * 0.1
        y[0] = kept[int(x[0])]

    kernel = backend.Kernel(double, ["x", "y", "z"], (1, 1), (32, 1))
    known = {name: Tensor(name, (64,), dtypes.float32) for name in ("x", "y", "z")}
    text = backend.ptx(kernel, known, reference_target("sm_90"))
    with pytest.raises(AssertionError):
        sound(text)
    assert ".f64" in text
    assert ".local" in text


def sound(text: str) -> None:
    assert not re.search(r"\.f64\b", text)
    assert ".local" not in text


def assemble(text: str, arch: str) -> None:
    """Inline PTX is only read by the assembler."""
    core = pytest.importorskip("cuda.core")
    options = core.ProgramOptions(arch=arch)
    assert core.Program(text, "ptx", options).compile("cubin").code


class FakeCuda:
    """As much of `numba.cuda` as a launch needs."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def jit(self, signature: Any, launch_bounds: Any) -> Any:
        return lambda function: self

    def as_cuda_array(self, tensor: torch.Tensor, sync: bool) -> Any:
        assert not sync
        return tensor

    def external_stream(self, handle: int) -> Any:
        return ("stream", handle)

    def __getitem__(self, configuration: Any) -> Any:
        return lambda *arrays: self.calls.append((configuration, arrays))


def test_a_launch_passes_flat_arrays_on_the_given_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    fake = FakeCuda()
    monkeypatch.setattr(numba, "cuda", fake)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(backend.Kernel, "signature", lambda *_: None)
    prepared = prepare("add", "forward", dtypes.bfloat16, dims={"rows": 3, "columns": 4})
    tensors = {name: torch.ones(3, 4, dtype=torch.bfloat16) for name in ("a", "b", "y")}
    launch = prepared.bind(tensors, SimpleNamespace(device="cuda:0", cuda_stream=9))
    assert not fake.calls
    launch()
    (((grid, block, stream), arrays),) = fake.calls
    assert (grid, block, stream) == ((1, 1), (256, 1), ("stream", 9))
    assert [a.data_ptr() for a in arrays] == [tensors[n].data_ptr() for n in ("a", "b", "y")]
    assert {a.dtype for a in arrays} == {torch.uint16}
    assert int(arrays[0][0]) == 0x3F80  # bfloat16's 1.0: never read as float16's 1.875


def test_the_calls_exist_in_the_installed_numba() -> None:
    import inspect

    from numba import cuda

    assert {"func_or_sig", "launch_bounds", "device", "forceinline"} <= set(
        inspect.signature(cuda.jit).parameters
    )
    assert list(inspect.signature(cuda.as_cuda_array).parameters) == ["obj", "sync"]
    assert list(inspect.signature(cuda.external_stream).parameters) == ["ptr"]


@pytest.mark.parametrize(
    "value", [torch.zeros(4, 3).T, torch.zeros(3, 8)[:, ::2], torch.zeros(3, 4).half()]
)
def test_views_and_other_dtypes_are_refused(value: torch.Tensor) -> None:
    prepared = prepare(
        "copy",
        "forward",
        dtypes.float32,
        dims={"rows": 3, "columns": 4},
        toolchain=lambda *_: lambda arguments, stream: lambda: None,
    )
    with pytest.raises(ValueError, match="x: "):
        prepared.bind({"x": value, "y": torch.zeros(3, 4)}, None)


def test_grids_stay_within_limits() -> None:
    for rows in (0, 65_535, 65_536, (1 << 31) - 1):
        grids: list[backend.Kernel] = []

        def build(kernel: backend.Kernel, *_: Any, found: Any = grids) -> Any:
            found.append(kernel)
            return lambda arguments, stream: lambda: None

        dims = {"rows": rows, "columns": 20_000}
        prepare("rms_norm", "backward", dtypes.float32, dims=dims, toolchain=build)
        for kernel in grids:
            assert 1 <= kernel.grid[0] <= 2**31 - 1
            assert 1 <= kernel.grid[1] <= 65_535
            assert np.prod(kernel.block) <= 1024


def test_a_missing_or_old_numba_cuda_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.unavailable() is None
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.20.1")
    assert backend.unavailable() == "numba-cuda 0.20.1 is older than 0.30"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert backend.unavailable() == "numba-cuda is not installed"
