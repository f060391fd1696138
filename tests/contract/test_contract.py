"""What is used of the packages that only a GPU exercises is there, and is called as it can be.

The code's text is held against the installed packages: the first minute on a GPU is not the one in
which names are found misspelt. What no text shows is stated below, one by one.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from membound.tests.contract.packages import checkable, fault, installed
from membound.tests.contract.uses import ROOTS, Use, uses

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path for folder in ("kernels", "bench") for path in (ROOT / folder).rglob("*.py")
)  # fmt: skip
# Called with arguments that a wrong version, or a slip, would refuse on the GPU only.
HELD_CALLS = {
    "cuda.core.launch",
    "cuda.core.LaunchConfig",
    "cuda.core.ObjectCode.from_cubin",
    "cuda.core.ObjectCode.get_kernel",
    "cuda.core.Device.set_current",
    "cuda.bindings.driver.cuCtxResetPersistingL2Cache",
    "cuda.bindings.driver.cuCtxSetLimit",
    "cuda.bindings.driver.cuDeviceGetAttribute",
    "cuda.bindings.driver.cuKernelSetAttribute",
    "cuda.bindings.driver.cuMemAllocManaged",
    "cuda.bindings.driver.cuMemHostAlloc",
    "cuda.bindings.driver.cuMemHostGetDevicePointer",
    "torch.cuda.Event",
    "torch.cuda.Event.elapsed_time",
    "torch.cuda.Event.record",
    "torch.cuda.graph",
    "torch.cuda.set_stream",
    "cupy.RawModule",
    "numba.cuda.as_cuda_array",
    "numba.cuda.external_stream",
    "numba.cuda.jit",
    "triton.compile",
    "pynvml.nvmlDeviceGetClockInfo",
    "cupti.cupti.activity_enable",
    "cupti.cupti.activity_flush_all",
    "cupti.cupti.activity_register_callbacks",
}


def used() -> Iterator[tuple[Path, Use]]:
    for path in SOURCES:
        for use in uses(path.read_text()):
            yield path, use


def faults(text: str) -> list[str]:
    found = uses(text)
    for package in {use.name.partition(".")[0] for use in found}:
        need(package)
    return [reason for use in found if (reason := fault(use))]


def need(package: str) -> Any:
    return pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.mark.parametrize("package", ROOTS)
def test_names_and_calls(package: str) -> None:
    need(package)
    asked = [(path, use) for path, use in used() if use.name.split(".")[0] == package]
    assert asked, f"nothing uses {package}"
    wrong = [
        f"{path.relative_to(ROOT)}:{use.line}: {reason}"
        for path, use in asked
        if (reason := fault(use))
    ]
    assert wrong == []


def test_the_calls_that_matter_are_among_those_held() -> None:
    called = {use.name for _, use in used() if use.call}
    assert called >= HELD_CALLS
    unheld = [n for n in HELD_CALLS if installed(n.split(".")[0]) and not checkable(n)]
    assert unheld == []


WRONG = {
    "import torch\ntorch.cuda.Evnt()": "torch.cuda has no Evnt",
    "import torch\ntorch.cuda.Event(enable_timings=True)": "no parameter enable_timings",
    "import torch\nstart = torch.cuda.Event()\nstart.elapsed()": "torch.cuda.Event has no elapsed",
    "import torch\nstart = torch.cuda.Event()\nstart.elapsed_time()": "needs end_event",
    "def bind(stream):\n    return stream.cuda_handle": "torch.cuda.Stream has no cuda_handle",
    "import torch\nclass A:\n    def __init__(self):\n        self.g = torch.cuda.CUDAGraph()\n"
    "    def f(self):\n        self.g.play()": "torch.cuda.CUDAGraph has no play",
    "import torch\ndef f(s: torch.cuda.Stream):\n    s.sync()": "torch.cuda.Stream has no sync",
    "from cuda.core import launched": "cuda.core has no launched",
    "from cuda.core import LaunchConfig as C\nC(grid=1, blocks=2)": "no parameter blocks",
    "from cuda.core import LaunchConfig\nLaunchConfig(1, None, 1, 0, False, False, 7)": "takes 6",
    "from cuda.core import ObjectCode\no = ObjectCode.from_cubin(b'')\no.kernel('a')": "no kernel",
    "from cuda.core import ObjectCode\nk = ObjectCode.from_cubin(b'').get_kernel('a')\n"
    "k.attributes.registers": "has no registers",
    "def f(driver):\n    driver.cuDeviceGet()": "cuDeviceGet needs ordinal",
    "q = {'a': lambda nvml, h: nvml.nvmlDeviceGetUuid(h)}": "pynvml has no nvmlDeviceGetUuid",
    "from numba import cuda\ncuda.as_cuda_array(1, synchronise=False)": "no parameter synchronise",
    "import triton\ntriton.compile(1, opts=2)": "no parameter opts",
    "import cupy\ncupy.cuda.MemoryPointer(1, 2, 3)": "takes 2",
    "import cupy\ncupy.RawModule(code='', name_expression=())": "no parameter name_expression",
    "import cupy\nk = cupy.RawModule(code='').get_function('a')\nk.registers": "no registers",
    "from cupti import cupti\ncupti.activity_flush_all()": "needs flag",
    "from cupti import cupti\nk = cupti.ActivityKind\nk.KERNELS": "ActivityKind has no KERNELS",
}


@pytest.mark.parametrize(("text", "reason"), WRONG.items(), ids=WRONG.values())
def test_a_slip_is_seen(text: str, reason: str) -> None:
    found = faults(text)
    assert any(reason in line for line in found), found


@pytest.mark.parametrize(
    "text",
    [
        "from cuda.core import LaunchConfig\nLaunchConfig(grid=1, block=2, cluster=None)",
        "import cupy\nif hasattr(cupy.cuda.Stream, 'from_nowhere'):\n"
        "    cupy.cuda.Stream.from_nowhere(1)",
        "import torch\nvalues = {}\ntorch.cuda.Event(**values).record()",
        "import torch\nkernel = object()\nkernel.Evnt()",
    ],
)
def test_what_is_right_or_unknown_is_no_fault(text: str) -> None:
    assert faults(text) == []


def attributes_asked(text: str) -> set[str]:
    """Words in capitals that are given to a call first: attributes of a device."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args]
    firsts = [call.args[0] for call in calls]
    strings = {f.value for f in firsts if isinstance(f, ast.Constant) and isinstance(f.value, str)}
    return {
        s
        for s in strings
        if re.fullmatch("[A-Z0-9]+(_[A-Z0-9]+)+|INTEGRATED", s) and not s.startswith("CUDA")
    }


def unknown_attributes(names: set[str]) -> set[str]:
    known = need("cuda.bindings.driver").CUdevice_attribute
    return {name for name in names if not hasattr(known, f"CU_DEVICE_ATTRIBUTE_{name}")}


def test_attributes_asked_of_a_device() -> None:
    folder = ROOT / "bench" / "device"
    asked = set().union(*(attributes_asked(path.read_text()) for path in folder.glob("*.py")))
    assert {"MULTIPROCESSOR_COUNT", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"} <= asked
    assert unknown_attributes(asked) == set()
    assert unknown_attributes(attributes_asked("machine.cuda('WARP_SIZES')")) == {"WARP_SIZES"}


def test_answers_have_the_fields_that_are_read() -> None:
    assert hasattr(need("cuda.bindings.driver").CUuuid, "bytes")
    nvml = need("pynvml")
    for answer, field in (("c_nvmlMemory_t", "free"), ("c_nvmlMemory_t", "total")):
        structure: type[ctypes.Structure] = getattr(nvml, answer)
        assert field in [entry[0] for entry in structure._fields_]


@pytest.mark.parametrize("record", ["ActivityKernel10", "ActivityMemcpy6", "ActivityMemset4"])
def test_activity_records_have_the_times_that_are_read(record: str) -> None:
    kind = getattr(need("cupti.cupti"), record)
    assert {"start", "end"} <= set(dir(kind))
    assert hasattr(kind, "name") == (record == "ActivityKernel10")


def test_a_torch_stream_is_a_stream_to_cuda_core() -> None:
    torch = need("torch")
    assert torch.cuda.Stream.__cuda_stream__(SimpleNamespace(cuda_stream=77)) == (0, 77)


@pytest.mark.parametrize("scalar", ["int32", "int64", "uint32", "float32"])
def test_a_launch_takes_addresses_and_numpy_scalars(scalar: str) -> None:
    numpy = need("numpy")
    handler = need("cuda.core._kernel_arg_handler")
    address = 1 << 45
    handler.ParamHolder((address, getattr(numpy, scalar)(3)))
    with pytest.raises(TypeError):
        handler.ParamHolder((address, object()))


def test_a_launch_keeps_its_geometry() -> None:
    core = need("cuda.core")
    config = core.LaunchConfig(grid=2**31 - 1, block=1024, shmem_size=99 << 10, cluster=None)
    assert config.grid[0] == 2**31 - 1
    assert (config.block[0], config.shmem_size) == (1024, 99 << 10)
    assert {"cluster", "is_cooperative"} <= set(dir(config))


def test_a_cubin_and_its_names_are_taken_as_they_are() -> None:
    core = need("cuda.core")
    module = core.ObjectCode.from_cubin(b"\x7fELF", symbol_mapping={"gate": "_Z4gate"})
    assert module.symbol_mapping == {"gate": "_Z4gate"}
    assert bytes(module.code) == b"\x7fELF"


def test_cupy_launches_a_raw_kernel_with_these_keywords() -> None:
    """An unknown keyword is named before anything asks the driver, which there may be none of."""
    function = need("cupy").cuda.Function
    unbound = function.__new__(function)
    with pytest.raises(TypeError, match="shared_bytes"):
        unbound((1,), (1,), (), shared_bytes=0)
    with pytest.raises(Exception, match=r"(?i)cuda"):
        unbound((1,), (1,), (), shared_mem=0, stream=None)


@pytest.mark.parametrize("dtype", ["float32", "uint16", "uint8", "int64"])
def test_numba_is_shown_every_element_type(dtype: str) -> None:
    """`as_cuda_array` reads this property; 16-bit floats travel as uint16."""
    torch = need("torch")
    tensor = torch.zeros(4, dtype=getattr(torch, dtype))
    shown = SimpleNamespace(
        is_cuda=True,
        is_sparse=False,
        layout=torch.strided,
        requires_grad=False,
        dtype=tensor.dtype,
        shape=tensor.shape,
        element_size=tensor.element_size,
        is_contiguous=tensor.is_contiguous,
        data_ptr=tensor.data_ptr,
        numel=tensor.numel,
    )
    interface = torch.Tensor.__cuda_array_interface__.fget(shown)
    assert interface["data"] == (tensor.data_ptr(), False)
    assert int(interface["typestr"][2:]) == tensor.element_size()


def test_numba_launches_on_the_stream_in_its_brackets() -> None:
    dispatcher = need("numba.cuda.dispatcher").CUDADispatcher
    assert list(inspect.signature(dispatcher.configure).parameters)[1:4] == [
        "griddim",
        "blockdim",
        "stream",
    ]


def test_triton_launches_on_the_stream_it_is_given() -> None:
    compiled = need("triton.compiler").CompiledKernel
    assert "def runner(*args, stream=None)" in inspect.getsource(compiled.__getitem__)


def test_torch_counts_calls_of_the_driver() -> None:
    torch = need("torch")
    assert '"num_device_alloc"' in (torch.cuda.memory_stats.__doc__ or "")
