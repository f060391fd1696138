"""Triton kernels: values in the interpreter, machine code per architecture, launch plumbing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from membound.kernels import dtypes
from membound.kernels.backends import triton as backend
from membound.kernels.discovery import discover
from membound.kernels.operation import DIRECTIONS, DirectionName, Operation, Tensor
from membound.kernels.spec import CannotPrepare, Choice, Prepared, Spec
from membound.kernels.target import Target, reference_target

pytest.importorskip("triton")

CASES = Path(__file__).with_name("gpu_cases.py")


CATALOGUE = discover()
IMPLEMENTED = {
    name: operation
    for name, operation in CATALOGUE.operations.items()
    if (found := CATALOGUE.default(name, "triton")) is not None
    and found.refuses("forward", operation.dtypes[0].name) is None
}


def run_cases(backend: str, *names: str, **environment: str) -> dict[str, str | None]:
    done = subprocess.run(
        [sys.executable, "-P", str(CASES), backend, *names],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def shape_of(operation: Operation) -> dict[str, int]:
    """That of its first shape, which is scaled."""
    return operation.shapes[0].dims


def spec(
    name: str,
    direction: DirectionName,
    dtype: dtypes.DType,
    arch: str = "sm_121",
    dims: Mapping[str, int] | None = None,
    toolchain: Any = None,
) -> Spec:
    operation = CATALOGUE.operations[name]
    dims = dims or shape_of(operation)
    io = operation.directions(dims, dtype).get(direction)
    assert io is not None
    return Spec(operation, direction, dims, dtype, io, reference_target(arch), toolchain=toolchain)


def prepare(spec: Spec) -> Prepared:
    implementation = CATALOGUE.default(spec.operation.name, "triton")
    assert implementation is not None, f"{spec.operation.name} has no Triton implementation"
    return implementation.prepare(spec)


def compiled(spec: Spec) -> list[Any]:
    """Every kernel of `spec`, compiled for its target."""
    found: list[Any] = []

    def build(kernel: backend.Kernel, known: Mapping[str, Tensor], target: Target) -> backend.Run:
        found.append(backend.compile_kernel(kernel, known, target))
        return lambda arguments, stream: lambda: None

    prepare(replace(spec, toolchain=build))
    return found


def test_interpreter_agrees_with_float64() -> None:
    found = run_cases("triton", *sorted(IMPLEMENTED), TRITON_INTERPRET="1")
    wrong = {case: reason for case, reason in found.items() if reason}
    assert not wrong
    assert len(found) > 110
    assert not [case for case in found if case.endswith("refused")]


def test_chains_agree_with_float64() -> None:
    names = [
        f"{operation.name}:{variant}"
        for operation in CATALOGUE.operations.values()
        for variant in operation.chains
        if any(
            form.label == f"triton:{variant}"
            for form in CATALOGUE.implementations(operation, ["triton"])
        )
    ]
    found = run_cases("triton", *names, TRITON_INTERPRET="1")
    wrong = {case: reason for case, reason in found.items() if reason}
    assert not wrong
    assert len(found) > 40


def test_the_check_rejects_a_wrong_reference() -> None:
    found = run_cases("triton", "wrong:silu", "wrong:quantize_e4m3", TRITON_INTERPRET="1")
    assert {case.partition("/")[0] for case in found} == {"silu", "quantize_e4m3"}
    assert all(reason for case, reason in found.items() if "/0x" not in case)


EVERY = [
    (operation.name, direction)
    for operation in IMPLEMENTED.values()
    for direction in DIRECTIONS
    if operation.has(direction) and operation.name not in ("scale", "add", "mix_1r1w", "mix_0r1w")
]
GATHERS = ("max_pool2d", "bias_relu_max_pool2d", "avg_pool2d", "adaptive_avg_pool2d")
# Narrower elements are written beside vectors: offsets, a copy, codes; and scales and masks.
MIXED = ("max_pool2d_nhwc", "adamw_master", "adamw_8bit")
MIXED_ENDS = ("floor", "_up", "quantize_nvfp4", "_mask")
LATER = ("column_sum", "_slab_means")  # partials are in the cache


@pytest.mark.parametrize(("name", "direction"), EVERY)
def test_machine_code(name: str, direction: DirectionName) -> None:
    dtype = IMPLEMENTED[name].dtypes[-1]
    for kernel in compiled(spec(name, direction, dtype)):
        assert kernel.asm["cubin"]
        ptx = kernel.asm["ptx"]
        assert ".f64" not in ptx
        if name not in GATHERS and kernel.name not in LATER:
            assert "ld.global" not in ptx or ".v4.b32" in ptx
            streams = [line for line in ptx.splitlines() if "st.global.cs" in line]
            mixed = name.startswith(MIXED) or name.endswith(MIXED_ENDS)
            assert mixed or all(".v4.b32" in line for line in streams)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_other_architectures(arch: str, dtype: dtypes.DType) -> None:
    for name in ("scale", "rms_norm", "max_pool2d"):
        kernels = compiled(spec(name, "forward", dtype, arch))
        assert all(kernel.asm["cubin"] for kernel in kernels)


@pytest.mark.parametrize(
    ("arch", "converts"),
    [("sm_75", ()), ("sm_89", ()), ("sm_90", ("e4m3x2",)), ("sm_121", ("e4m3x2", "e2m1x2"))],
)
def test_codes_are_converted_where_there_are_instructions(
    arch: str, converts: tuple[str, ...]
) -> None:
    """From float32, in one rounding."""
    (kernel,) = compiled(spec("quantize_nvfp4", "forward", dtypes.bfloat16, arch))
    assert kernel.asm["cubin"]
    assert "x2.f16x2" not in kernel.asm["ptx"]  # a second rounding
    for form in ("e4m3x2", "e2m1x2"):
        assert (f"cvt.rn.satfinite.{form}.f32" in kernel.asm["ptx"]) == (form in converts)


def test_a_chain_keeps_what_the_next_step_reads() -> None:
    (kept,) = compiled(replace(spec("add", "forward", dtypes.bfloat16), streaming=False))
    assert ".cs" not in kept.asm["ptx"]


def test_rows_longer_than_a_tile() -> None:
    long = {"rows": 64, "columns": 65_536}
    names = [k.name for k in compiled(spec("rms_norm", "backward", dtypes.float32, dims=long))]
    assert names == ["norm_row_means", "norm_backward_long", "column_sum"]


def test_offsets_beyond_two_to_the_31() -> None:
    wide = {"rows": 1 << 20, "columns": 4096}
    (kernel,) = compiled(spec("copy", "forward", dtypes.float16, dims=wide))
    assert "mul.wide" in kernel.asm["ptx"] or "s64" in kernel.asm["ptx"]
    assert kernel.asm["cubin"]


def test_ptxas_without_the_architecture_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "ptxas"
    old.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "Cuda compilation tools, release 12.8, V12.8.93"\n'
        "else echo \"ptxas fatal: Value 'sm_121a' is not defined for option 'gpu-name'\" >&2\n"
        "exit 1; fi\n"
    )
    old.chmod(0o755)
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(name, str(old))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(CannotPrepare, match=r"ptxas does not know sm_121.*_BLACKWELL_PATH"):
        prepare(spec("copy", "forward", dtypes.float32))


def test_a_missing_or_old_triton_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.unavailable() is None
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.1.0")
    assert backend.unavailable() == "triton 3.1.0 is older than 3.6"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert backend.unavailable() == "triton is not installed"


class FakeCompiled:
    """What `triton.compile` returns, as far as a launch uses it."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *values, stream: self.launches.append((grid, values, stream))


def test_a_launch_passes_addresses_in_order_on_the_given_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from contextlib import nullcontext

    fake = FakeCompiled()
    monkeypatch.setattr(backend, "compile_kernel", lambda *_: fake)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    prepared = prepare(spec("add", "forward", dtypes.float32, dims={"rows": 3, "columns": 4}))
    tensors = {name: torch.zeros(3, 4) for name in ("a", "b", "y")}
    launch = prepared.bind(tensors, SimpleNamespace(device="cuda:0", cuda_stream=77))
    assert not fake.launches
    launch()
    ((grid, values, stream),) = fake.launches
    assert (grid, stream) == ((1, 1, 1), 77)
    assert list(values[:3]) == [tensors[name].data_ptr() for name in ("a", "b", "y")]


def test_compiled_kernels_are_called_as_triton_does() -> None:
    """`compiled[grid](*values, stream=)`: one value per parameter, constants too."""
    import inspect

    from triton.compiler import CompiledKernel

    assert list(inspect.signature(CompiledKernel.__getitem__).parameters) == ["self", "grid"]
    source = inspect.getsource(CompiledKernel.__getitem__)
    assert "def runner(*args, stream=None)" in source


@pytest.mark.parametrize(
    "value", [torch.zeros(4, 3).T, torch.zeros(3, 8)[:, ::2], torch.zeros(3, 4).half()]
)
def test_views_and_other_dtypes_are_refused(value: torch.Tensor) -> None:
    prepared = prepare(
        spec(
            "copy",
            "forward",
            dtypes.float32,
            dims={"rows": 3, "columns": 4},
            toolchain=lambda *_: lambda arguments, stream: lambda: None,
        )
    )
    with pytest.raises(ValueError, match="x: "):
        prepared.bind({"x": value, "y": torch.zeros(3, 4)}, None)


def test_empty_tensors_launch_nothing() -> None:
    none = {"rows": 0, "columns": 4}
    assert compiled(spec("copy", "forward", dtypes.float32, dims=none)) == []


def test_the_choice_of_a_run_is_what_is_prepared() -> None:
    one = replace(spec("copy", "forward", dtypes.float32), toolchain=lambda *_: None)
    first = prepare(one).choice
    assert first == prepare(replace(one, choice=first)).choice
    other = {"warps": 4, "vectors": 8}
    assert prepare(replace(one, choice=other)).choice == other


def test_every_operation_records_what_it_chose() -> None:
    fixed = []
    for operation in CATALOGUE.operations.values():
        dims, dtype = operation.shapes[0].dims, operation.dtypes[-1]
        for direction in filter(operation.has, DIRECTIONS):
            io = operation.directions(dims, dtype).get(direction)
            assert io is not None
            target = reference_target("sm_90")
            one = Spec(operation, direction, dims, dtype, io, target, toolchain=lambda *_: None)
            found = CATALOGUE.implementations(operation, ("triton",))
            able = (i for i in found if not i.variant and i.refuses(direction, dtype.name) is None)
            fixed += [one for i in able if not i.prepare(one).choice]
    assert not fixed


def test_the_fastest_configuration_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed where a GPU is; a configuration that does not compile is left out."""

    def build(kernel: backend.Kernel, known: Mapping[str, Tensor], target: Target) -> backend.Run:
        if kernel.num_warps == 2:
            raise CannotPrepare("too small")
        return lambda arguments, stream: lambda: None

    timed: list[int] = []

    def fastest(spec: Spec, prepared: Sequence[Prepared]) -> Prepared:
        timed.extend(int(one.choice["warps"]) for one in prepared)
        return prepared[-1]

    monkeypatch.setattr(backend, "build_for_gpu", build)
    monkeypatch.setattr(backend, "_gpu", lambda: True)
    monkeypatch.setattr(backend, "_fastest", fastest)
    one = spec("copy", "forward", dtypes.float32)

    def plan(choice: Choice) -> backend.Plan:
        pointers, warps = {"x0": "x", "y": "y"}, int(choice["warps"])
        return backend.Plan([backend.Kernel(None, pointers, {}, (1, 1, 1), warps)])

    configurations = ({"warps": 2}, {"warps": 4}, {"warps": 8})
    assert backend.choose(one, plan, configurations).choice == {"warps": 8}
    assert timed == [4, 8]
    assert backend.choose(replace(one, choice={"warps": 4}), plan, configurations).choice == {
        "warps": 4
    }
    assert timed == [4, 8]
    with pytest.raises(CannotPrepare, match="too small"):
        backend.choose(one, plan, configurations[:1])
