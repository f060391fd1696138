"""CUDA C++ by way of CuPy: the same kernels with the same arguments, launched by CuPy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from membound.kernels.backends import cupy_raw
from membound.kernels.backends.cuda import Geometry
from membound.kernels.backends.cuda_nvrtc import CompileOnly
from membound.kernels.discovery import Implementation, discover
from membound.kernels.dtypes import FLOATS, bfloat16
from membound.kernels.operation import DirectionName
from membound.kernels.spec import CannotPrepare, DoesNotCompile, Prepared, Spec
from membound.kernels.target import KIB, reference_target

cupy = pytest.importorskip("cupy")

CATALOGUE = discover()
ROWS = {"rows": 6, "columns": 4096}
FORMS: list[tuple[str, DirectionName]] = [
    *((name, "forward") for name in ("copy", "scale", "add", "triad", "fill", "read")),
    ("rms_norm", "forward"),
    ("rms_norm", "backward"),
]
STREAM = ("cupy", 5)


def form(name: str, label: str) -> Implementation:
    found = CATALOGUE.implementations(CATALOGUE.operations[name], [label.partition(":")[0]])
    return next(one for one in found if one.label == label)


def spec_of(name: str, direction: DirectionName, dims: Mapping[str, int] = ROWS) -> Spec:
    operation = CATALOGUE.operations[name]
    io = operation.directions(dims, bfloat16).get(direction)
    assert io is not None
    return Spec(operation, direction, dims, bfloat16, io, reference_target("sm_90"))


def tensors_of(spec: Spec, prepared: Prepared) -> dict[str, torch.Tensor]:
    needed = (*spec.io.operands.values(), *prepared.scratch)
    return {t.name: torch.zeros(t.shape, dtype=t.dtype.torch_dtype) for t in needed}


class FakeKernel:
    num_regs, shared_size_bytes, local_size_bytes = 32, 16, 0

    def __init__(self, name: str, launches: list[Any]) -> None:
        self.name, self.launches = name, launches
        self.max_dynamic_shared_size_bytes = 48 * KIB

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int, stream: Any) -> None:
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        self.launches.append((self.name, grid, block, args, shared_mem, stream))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What CuPy is asked for: modules by their keywords, launches, devices."""
    found = SimpleNamespace(modules=[], launches=[], devices=[])

    def module(**given: Any) -> Any:
        found.modules.append(given)
        return SimpleNamespace(get_function=lambda name: FakeKernel(name, found.launches))

    def device(ordinal: int) -> Any:
        return SimpleNamespace(use=lambda: found.devices.append(ordinal))

    monkeypatch.setattr(cupy, "RawModule", module)
    monkeypatch.setattr(cupy.cuda, "Device", device)
    monkeypatch.setattr(cupy_raw, "stream_of", lambda stream: ("cupy", stream))
    return found


def as_recorded(one: Any) -> tuple[Any, ...]:
    """A launch that was not made, as CuPy would be given it."""
    arguments = tuple(
        numpy.uint64(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in one.arguments
    )
    grid, block = (one.geometry.blocks,), (one.geometry.threads,)
    return one.kernel.name, grid, block, arguments, one.geometry.shared_bytes, STREAM


@pytest.mark.parametrize(("name", "direction"), FORMS)
def test_the_same_kernels_are_launched_with_the_same_arguments(
    name: str, direction: DirectionName, made: SimpleNamespace
) -> None:
    spec = spec_of(name, direction)
    raw = form(name, "cupy:raw")
    assert [raw.refuses(direction, dtype.name) for dtype in FLOATS] == [None] * 3
    prepared = raw.prepare(replace(spec, variant="raw", target=replace(spec.target, ordinal=3)))
    tensors = tensors_of(spec, prepared)
    launch = prepared.bind(tensors, 5)
    assert not made.launches
    launch()

    toolchain = CompileOnly()
    ours = form(name, "cuda").prepare(replace(spec, toolchain=toolchain))
    ours.bind(tensors, None)()
    assert made.launches == [as_recorded(one) for one in toolchain.launches]
    assert all(isinstance(a, numpy.generic) for launched in made.launches for a in launched[3])
    assert made.devices == [3]
    assert [module["name_expressions"] for module in made.modules] == [
        tuple(one.name for one in toolchain.kernels)
    ]
    assert (prepared.choice, prepared.schedule_bytes) == (ours.choice, ours.schedule_bytes)
    assert [t.name for t in prepared.scratch] == [t.name for t in ours.scratch]


def test_a_wrong_argument_would_be_seen(made: SimpleNamespace) -> None:
    spec = spec_of("copy", "forward")
    prepared = form("copy", "cupy:raw").prepare(replace(spec, variant="raw"))
    tensors = tensors_of(spec, prepared)
    prepared.bind(tensors | {"x": tensors["y"]}, 5)()
    toolchain = CompileOnly()
    form("copy", "cuda").prepare(replace(spec, toolchain=toolchain)).bind(tensors, None)()
    assert made.launches != [as_recorded(one) for one in toolchain.launches]


@pytest.mark.usefixtures("made")
def test_rows_that_would_need_a_cluster_are_read_twice_and_it_says_so() -> None:
    long = {"rows": 2, "columns": 131_072}
    spec = spec_of("rms_norm", "forward", long)
    prepared = form("rms_norm", "cupy:raw").prepare(replace(spec, variant="raw"))
    assert prepared.choice["path"] == "twice"
    assert prepared.schedule_bytes == spec.io.traffic + spec.io.operands["x"].traffic
    kernel = cupy_raw._Raw("k", FakeKernel("k", []))
    with pytest.raises(CannotPrepare, match="CuPy launches no clusters"):
        kernel.bind(5, Geometry(8, 256, cluster=8), [])


def test_more_shared_memory_than_usual_is_asked_for(made: SimpleNamespace) -> None:
    fake = FakeKernel("k", made.launches)
    kernel = cupy_raw._Raw("k", fake)
    kernel.bind(5, Geometry(1, 32, shared_bytes=100 * KIB), [numpy.int32(1)])()
    assert fake.max_dynamic_shared_size_bytes == 100 * KIB
    assert made.launches == [("k", (1,), (32,), (numpy.int32(1),), 100 * KIB, STREAM)]
    assert kernel.attributes == {"registers": 32, "shared_bytes": 16, "local_bytes": 0}


def test_a_python_number_is_refused() -> None:
    """A double to CuPy, where a kernel wants a float."""
    with pytest.raises(ValueError, match="not float"):
        cupy_raw._Raw("k", None).bind(5, Geometry(1, 32), [1e-6])  # type: ignore[list-item]


def compiled(source: Path, names: list[str], options: tuple[str, ...]) -> Mapping[str, str]:
    """What CuPy makes of the source for a GPU that is not here: names as the linker knows them."""
    from cupy.cuda import compiler

    own = (*options, "-arch=sm_90", "--device-as-default-execution-space")
    text = source.read_text()
    program = compiler._NVRTCProgram(text, source.name, name_expressions=names, method="cubin")
    code, mapping = program.compile(own)
    assert code
    return dict(mapping)


@pytest.mark.parametrize(("name", "direction"), [("triad", "forward"), ("rms_norm", "backward")])
def test_cupys_compiler_takes_the_source_and_the_options(
    name: str, direction: DirectionName, made: SimpleNamespace
) -> None:
    form(name, "cupy:raw").prepare(replace(spec_of(name, direction), variant="raw"))
    (module,) = made.modules
    folder = Path(str(CATALOGUE.operations[name].source)).parent
    source = next(f for f in folder.glob("*.cu") if f.read_text() == module["code"])
    names = list(module["name_expressions"])
    assert set(compiled(source, names, module["options"])) == set(names)


def test_what_does_not_compile_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: SimpleNamespace
) -> None:

    source = tmp_path / "broken.cu"
    source.write_text("__global__ void k(float* y) { y[0] = nothing; }\n")

    def get_function(name: str) -> Any:
        return compiled(source, [name], ("--std=c++17",))

    monkeypatch.setattr(cupy, "RawModule", lambda **_: SimpleNamespace(get_function=get_function))
    with pytest.raises(DoesNotCompile) as caught:
        cupy_raw.RawToolchain().build(source, ["k"], reference_target("sm_90"))
    assert str(caught.value).startswith("broken.cu in CuPy: broken.cu(1): error: identifier")
    assert "\n" not in str(caught.value)


def test_a_changed_header_is_another_program(tmp_path: Path) -> None:
    source, header = tmp_path / "k.cu", tmp_path / "part.cuh"
    source.write_text('#include "part.cuh"\n')
    header.write_text("// one\n")
    before = cupy_raw.options(source, {"KIND": "1"})
    assert before == cupy_raw.options(source, {"KIND": "1"})
    assert "-DKIND=1" in before and f"-I{tmp_path}" in before
    header.write_text("// other\n")
    assert before != cupy_raw.options(source, {"KIND": "1"})


@pytest.mark.parametrize("name", ["copy", "rms_norm"])
def test_its_source_hash_is_of_the_cuda_c_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = form(name, "cupy:raw")
    before = raw.source_hash()
    assert raw.source_hash() == before
    monkeypatch.setattr(
        "membound.kernels.discovery._sha256",
        lambda content: hashlib.sha256(content + b"." * (b"__global__" in content)).digest(),
    )
    assert raw.source_hash() != before
