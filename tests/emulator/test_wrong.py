"""The emulator must reject what is wrong: each kernel of wrong.cu, by name, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
from membound.kernels.backends.cuda import Geometry
from membound.kernels.spec import CannotPrepare
from membound.kernels.target import reference_target
from membound.tests.emulator.layout import Traffic
from membound.tests.emulator.toolchain import EmulatorError, EmulatorToolchain, Libraries

SOURCE = Path(__file__).with_name("wrong.cu")
TARGET = reference_target("sm_90")
N = 1000

FAILS = {
    "loads_past_the_end": "load of 4 bytes at byte 4000 of tensor 1, which has 4000",
    "stores_past_the_end": "store of 4 bytes at byte 4000 of tensor 0, which has 4000",
    "stores_before_the_beginning": "store of 4 bytes at byte -4 of tensor 0, which has 4000",
    "loads_misaligned_vectors": "misaligned load of 16 bytes",
    "leaves_lanes_behind": "threads wait for threads that never come",
    "leaves_threads_at_a_barrier": "threads wait for threads that never come",
    "shuffles_from_outside": "shuffles from a lane outside the mask",
}
CLUSTER_FAILS = {
    "ends_before_it_is_read": "reads the shared memory of a block that has ended",
    "reads_beyond_its_cluster": "asks for a block outside its cluster",
    "leaves_a_block_at_a_cluster_barrier": "threads wait for threads that never come",
}
CLUSTERS = (*CLUSTER_FAILS, "through_a_cluster", "reads_a_neighbour_too_early")
SANITIZED = {
    "loads_past_the_end": "heap-buffer-overflow",
    "stores_past_the_end": "heap-buffer-overflow",
    "stores_before_the_beginning": "heap-buffer-overflow|use-after-poison",
    "writes_around_the_header": "heap-buffer-overflow",
    "loads_misaligned_vectors": "misaligned",
    "indexes_past_shared_memory": r"index \d+ out of bounds",
}
OTHERS = (
    *("right", "through_shared_memory<true>", "through_shared_memory<false>", "loads_twice"),
    *("strides_through_memory", "adds_in_any_order", "counts_in_32_bits"),
)


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    planned = Libraries()
    planned.plan(SOURCE, [*FAILS, *OTHERS, *CLUSTERS], None)
    planned.compile()
    return planned


def test_a_library_serves_whoever_asks_for_fewer_of_its_kernels(libraries: Libraries) -> None:
    held = {built.path for built in libraries.loaded.values()}
    name = "strides_through_memory"
    path, place = Libraries().find(SOURCE, name, None, False)
    (names,) = (built.names for built in libraries.loaded.values() if built.path == path)
    assert path in held and names[place] == name
    other, _ = Libraries().find(SOURCE, name, {"OTHERWISE": "1"}, False)
    assert other not in held


@pytest.fixture(scope="module")
def sanitized() -> Libraries:
    planned = Libraries()
    planned.plan(SOURCE, ["right", "through_a_cluster", *SANITIZED], None)
    planned.compile(sanitize=True)
    return planned


def run(
    name: str, toolchain: EmulatorToolchain, cluster: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y after one launch of 4 blocks of 256 threads."""
    x = torch.randn(N, generator=torch.Generator().manual_seed(1))
    y = torch.full((N,), float("nan"))
    (kernel,) = toolchain.build(SOURCE, [name], TARGET)
    kernel.bind(None, Geometry(4, 256, cluster=cluster), (y, x, numpy.int64(N)))()
    return x, y


def traffic(toolchain: EmulatorToolchain, tensor: torch.Tensor) -> Traffic:
    return toolchain.launches[-1].traffic[tensor.data_ptr()]


def test_a_right_kernel_passes_and_is_counted(libraries: Libraries) -> None:
    toolchain = EmulatorToolchain(libraries)
    x, y = run("right", toolchain)
    assert torch.equal(x, y)
    assert traffic(toolchain, x).loaded == traffic(toolchain, x).unique_loaded == 4 * N
    assert traffic(toolchain, y).stored == traffic(toolchain, y).unique_stored == 4 * N
    assert traffic(toolchain, y).store_sectors == N * 4 // 32


@pytest.mark.parametrize("name", FAILS)
def test_a_launch_that_fails_says_where(name: str, libraries: Libraries) -> None:
    with pytest.raises(EmulatorError, match=FAILS[name]):
        run(name, EmulatorToolchain(libraries))


@pytest.mark.parametrize("name", SANITIZED)
def test_sanitizers_see_accesses_that_go_around_the_header(name: str, sanitized: Libraries) -> None:
    with pytest.raises(EmulatorError, match=SANITIZED[name]):
        run(name, EmulatorToolchain(sanitized, sanitize=True))


def test_sanitizers_pass_a_right_kernel(sanitized: Libraries) -> None:
    x, y = run("right", EmulatorToolchain(sanitized, sanitize=True))
    assert torch.equal(x, y)


def test_a_missing_barrier_shows(libraries: Libraries) -> None:
    x, y = run("through_shared_memory<true>", EmulatorToolchain(libraries))
    assert torch.equal(x, y)
    x, y = run("through_shared_memory<false>", EmulatorToolchain(libraries))
    assert y.isnan().any()


def test_a_cluster_reads_the_shared_memory_of_its_blocks(
    libraries: Libraries, sanitized: Libraries
) -> None:
    for toolchain in (EmulatorToolchain(libraries), EmulatorToolchain(sanitized, sanitize=True)):
        x, y = run("through_a_cluster", toolchain, cluster=4)
        assert torch.equal(x, y)


def test_a_missing_cluster_barrier_shows(libraries: Libraries) -> None:
    _, y = run("reads_a_neighbour_too_early", EmulatorToolchain(libraries), cluster=4)
    assert y.isnan().any()


@pytest.mark.parametrize("name", CLUSTER_FAILS)
def test_a_cluster_that_fails_says_where(name: str, libraries: Libraries) -> None:
    with pytest.raises(EmulatorError, match=CLUSTER_FAILS[name]):
        run(name, EmulatorToolchain(libraries), cluster=4)


def test_reading_twice_is_counted_twice(libraries: Libraries) -> None:
    toolchain = EmulatorToolchain(libraries)
    x, _ = run("loads_twice", toolchain)
    assert traffic(toolchain, x).loaded == 2 * traffic(toolchain, x).unique_loaded


def test_a_stride_touches_more_sectors_than_it_fills(libraries: Libraries) -> None:
    toolchain = EmulatorToolchain(libraries)
    x, y = run("strides_through_memory", toolchain)
    assert torch.equal(x, y)
    assert traffic(toolchain, x).load_sectors > 4 * traffic(toolchain, x).load_ideal
    assert traffic(toolchain, y).store_sectors > 4 * traffic(toolchain, y).store_ideal


def test_a_result_that_depends_on_the_order_changes_with_the_seed(libraries: Libraries) -> None:
    sums = {
        float(run("adds_in_any_order", EmulatorToolchain(libraries, seed=seed))[1][0])
        for seed in range(1, 9)
    }
    assert len(sums) > 1


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        (Geometry(1, 1025), "no GPU launches"),
        (Geometry(0, 256), "no GPU launches"),
        (Geometry(2**31, 256), "no GPU launches"),
        (Geometry(1, 256, shared_bytes=228 * 1024), "exceeds 227 KiB of sm_90"),
        (Geometry(16, 256, cluster=16), "cluster=16.* on sm_90"),
        (Geometry(6, 256, cluster=4), "no whole number of clusters"),
    ],
)
def test_an_impossible_launch_is_refused(
    geometry: Geometry, message: str, libraries: Libraries
) -> None:
    (kernel,) = EmulatorToolchain(libraries).build(SOURCE, ["right"], TARGET)
    with pytest.raises(EmulatorError, match=message):
        kernel.bind(None, geometry, ())


def test_only_tensors_and_sized_numbers_are_arguments(libraries: Libraries) -> None:
    (kernel,) = EmulatorToolchain(libraries).build(SOURCE, ["right"], TARGET)
    arguments: Sequence[object] = (torch.empty(N), torch.empty(N), N)
    with pytest.raises(ValueError, match="tensors and numpy scalars, not int"):
        kernel.bind(None, Geometry(1, 32), arguments)  # type: ignore[arg-type]


def test_a_source_that_does_not_compile_is_a_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.cu"
    broken.write_text("__global__ void broken(float* y) { y = nonsense; }\n")
    with pytest.raises(CannotPrepare, match=r"broken\.cu.*nonsense"):
        EmulatorToolchain().build(broken, ["broken"], TARGET)


def test_portable_fibres_give_the_same() -> None:
    """The switch by ucontext, which other processors than x86-64 use."""
    toolchain = EmulatorToolchain()
    x = torch.randn(N)
    y = torch.empty(N)
    (kernel,) = toolchain.build(
        SOURCE, ["through_shared_memory<true>"], TARGET, {"EMULATOR_UCONTEXT": "1"}
    )
    kernel.bind(None, Geometry(4, 256), (y, x, numpy.int64(N)))()
    assert torch.equal(x, y)
