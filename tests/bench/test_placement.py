"""Operands in managed, pinned and pageable memory: planned, refused, allocated and recorded."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from membound.bench.arena import Arena, OutOfBudget
from membound.bench.arguments import BadArgument, placements
from membound.bench.cases import Group, ceiling_cases, plan
from membound.bench.device.placements import unplaceable
from membound.bench.device.probe import Probe
from membound.bench.device.select import Selected, select
from membound.bench.placed import with_placements
from membound.bench.placed_memory import PlacedMemory, labelled
from membound.bench.presets import Selection
from membound.bench.protocol import Item
from membound.bench.run import NothingToMeasure, Request, measure
from membound.bench.start import start
from membound.kernels.discovery import discover
from membound.kernels.dtypes import float32
from membound.kernels.operation import Tensor
from membound.kernels.spec import CannotPrepare
from membound.kernels.target import MIB, reference_target
from membound.results.record import Placement
from membound.tests.bench.device.conftest import Recorded
from membound.tests.bench.disturbed import Watcher
from membound.tests.bench.walking import records, setting, walk_of

CATALOGUE = discover()
CPU = torch.device("cpu")
NOT_PAGEABLE = "pageable memory cannot be reached: PAGEABLE_MEMORY_ACCESS is 0"


def gpu(unplaceable: dict[Placement, str] | None = None) -> Selected:
    return replace(
        select("cpu"),
        target=reference_target("sm_90"),
        memory_budget_bytes=40 << 30,
        unplaceable=unplaceable or {},
    )


def planned(selected: Selected, selection: Selection) -> list[Group]:
    """Of everything no more than a few is planned: what is chosen of it is what is tested."""
    few = selection.operations or ("copy/*", "rms_norm")
    narrow = replace(selection, operations=few)
    groups = plan(CATALOGUE, narrow, selected.target, selected.memory_budget_bytes)
    return with_placements(groups, CATALOGUE, selection, selected)


def ours(preset: str) -> Selection:
    """Without the other backends, which take long to import."""
    return Selection(preset, implementations=("cuda",))


def test_a_full_run_repeats_the_plain_streams_in_every_memory() -> None:
    groups = planned(gpu({"pageable": NOT_PAGEABLE}), ours("full"))
    there = [group for group in groups if group.placement != "device"]
    assert groups[-len(there) :] == there
    streams = ("mix_1r0w", "mix_3r1w", "mix_2r1w", "mix_1r1w", "mix_0r1w")
    for placement in ("managed", "pinned", "pageable"):
        some = [group for group in there if group.placement == placement]
        assert sorted(group.operation for group in some) == sorted(streams)
        assert {group.implementations for group in some} == {("cuda",)}
        reason = {"cuda": NOT_PAGEABLE} if placement == "pageable" else {}
        assert all(group.skips == reason for group in some)
    case = there[0].case("cuda", "cold")
    assert case.split("/")[-2:] == ["managed", "cold"]
    assert case not in ceiling_cases(groups, "cuda")
    assert not any(g.placement != "device" for g in planned(gpu(), ours("standard")))


def test_a_placement_that_is_named_is_measured_of_the_copies_that_are_named() -> None:
    named = replace(ours("quick"), operations=("copy", "rms_norm"), placements=("pinned",))
    (only,) = planned(gpu(), named)
    assert (only.operation, only.placement, only.dtype) == ("copy", "pinned", "bfloat16")
    both = planned(gpu(), replace(named, placements=("device", "pinned")))
    assert {g.operation for g in both if g.placement == "device"} >= {"copy", "rms_norm"}
    assert planned(gpu(), replace(named, implementations=("torch",))) == []


def test_the_cpu_has_one_memory(tmp_path: Path) -> None:
    cpu = select("cpu")
    assert all(
        g.placement == "device"
        for g in planned(cpu, replace(ours("full"), implementations=("cpu",)))
    )
    selection = Selection(operations=("copy",), placements=("managed",), implementations=("cuda",))
    with pytest.raises(NothingToMeasure, match="needs a CUDA device"):
        measure(Request(selection, "cpu", out=tmp_path), Watcher())


def test_names_of_placements() -> None:
    assert placements("pageable, device") == ("device", "pageable")
    assert placements(None) == ()
    with pytest.raises(BadArgument, match="unknown placement 'pined'; valid: device, managed"):
        placements("pined")


def test_attributes_decide_what_is_reached() -> None:
    told = {"MANAGED_MEMORY": 1, "CAN_MAP_HOST_MEMORY": 1, "PAGEABLE_MEMORY_ACCESS": 0}
    probe = Probe(Recorded(gpus=[told]))
    assert unplaceable(probe, 0) == {"pageable": NOT_PAGEABLE}
    assert unplaceable(Probe(Recorded(gpus=[told | {"PAGEABLE_MEMORY_ACCESS": 1}])), 0) == {}
    silent = Probe(Recorded(gpus=[{}]))
    reasons = unplaceable(silent, 0)
    assert list(reasons) == ["managed", "pinned", "pageable"]
    assert reasons["pinned"] == (
        "unknown whether pinned memory can be reached: CUDA_ERROR_NOT_SUPPORTED"
    )
    assert silent.missing == {}


@pytest.mark.parametrize(("integrated", "own"), [(1, False), (0, True), (None, False)])
def test_memory_that_is_shared_has_one_budget(integrated: int | None, own: bool) -> None:
    answers = {"name": "X", "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0}
    answers |= {"INTEGRATED": integrated, "free_memory": 8 << 30, "total_memory": 8 << 30}
    selected = select("cuda", machine=Recorded(gpus=[answers]))
    assert (selected.host_budget_bytes is not None) == own


class Drawer:
    """Placed memory out of the host's, and what was asked of it."""

    def __init__(self) -> None:
        self.slabs: dict[Placement, list[torch.Tensor]] = {}

    def allocate(self, placement: Placement, nbytes: int) -> torch.Tensor:
        slab = torch.zeros(nbytes, dtype=torch.uint8)
        self.slabs.setdefault(placement, []).append(slab)
        return slab

    def holds(self, placement: Placement, tensor: torch.Tensor) -> bool:
        return any(
            slab.data_ptr() <= tensor.data_ptr() < slab.data_ptr() + slab.numel()
            for slab in self.slabs.get(placement, [])
        )


MEBIBYTE = Tensor("x", (MIB // 4,), float32)


def test_every_memory_has_slabs_of_its_own() -> None:
    drawer = Drawer()
    arena = Arena(CPU, 512 * MIB, drawer, 16 * MIB)
    mark = arena.mark()
    device, pinned = arena.take(MEBIBYTE), arena.take(MEBIBYTE, "pinned")
    assert drawer.holds("pinned", pinned) and not drawer.holds("pinned", device)
    arena.release(mark)
    assert drawer.holds("pinned", arena.take(MEBIBYTE, "pinned"))
    assert not drawer.holds("pinned", arena.take(MEBIBYTE, "pageable"))
    assert {name: len(slabs) for name, slabs in drawer.slabs.items()} == {
        "pinned": 1,
        "pageable": 1,
    }


@pytest.mark.parametrize(
    ("host_bytes", "placement", "fits"),
    [(None, "pinned", False), (None, "managed", False), (64 * MIB, "pinned", True),
     (MIB // 2, "pinned", False), (64 * MIB, "managed", False)],
)  # fmt: skip
def test_budgets_of_host_and_device(
    host_bytes: int | None, placement: Placement, fits: bool
) -> None:
    arena = Arena(CPU, 4 * MIB, Drawer(), host_bytes)
    arena.take(Tensor("whole", (3 * MIB // 4,), float32))  # all of the device's, in huge pages
    if fits:
        assert arena.take(MEBIBYTE, placement).numel() == MIB // 4
    else:
        with pytest.raises(OutOfBudget, match="of the budget are left"):
            arena.take(MEBIBYTE, placement)


def item(label: str, placement: Placement) -> Item:
    return Item(
        operation="copy",
        direction="forward",
        dtype="float32",
        dims={"rows": 512, "columns": 96},
        caches=["steady"],
        implementations=[label],
        positions=[0],
        skips={},
        memcpy_position=1,
        placement=placement,
    )


def test_operands_lie_where_the_record_says() -> None:
    """Through a worker's own walk, with memory of the host in the place of the device's."""
    session, drawer = start(setting()), Drawer()
    session.arena = Arena(CPU, 512 * MIB, drawer)
    items = [item("cpu", "managed"), item("cpu", "device")]
    done = records(session, walk_of(setting(), items, item("memcpy", "device")))
    by_case = {record.case: record for record in done}
    placed = by_case["copy/forward/cpu/float32/512x96/managed/steady"]
    assert (placed.status, placed.placement) == ("ok", "managed"), placed.reason
    assert by_case["copy/forward/cpu/float32/512x96/steady"].placement == "device"
    assert by_case["copy/forward/memcpy/float32/512x96/steady"].placement == "device"
    assert list(drawer.slabs) == ["managed"]
    group = session.make_group(item("cpu", "managed"))
    assert all(drawer.holds("managed", t) for sets in group.sets for t in sets.values())
    assert not any(drawer.holds("managed", t) for t in group.pristine.values())


def test_memory_that_is_there_becomes_a_tensor_without_a_copy() -> None:
    memory = torch.arange(64, dtype=torch.uint8)
    tensor = labelled(memory.data_ptr(), 64, CPU)
    assert torch.equal(tensor, memory)
    part = tensor[16:32].view(torch.int64)
    del tensor
    gc.collect()
    part.fill_(-1)
    assert memory[16:32].tolist() == [255] * 16 and memory[32] == 32


class Driver:
    """cuda.bindings.driver over the host's memory."""

    def __init__(self, real: Any, status: str) -> None:
        self.CUresult, self.CUmemAttach_flags = real.CUresult, real.CUmemAttach_flags
        self.CU_MEMHOSTALLOC_DEVICEMAP = real.CU_MEMHOSTALLOC_DEVICEMAP
        self._status = getattr(real.CUresult, status)
        self._memory = torch.zeros(4096, dtype=torch.uint8)
        self.called: list[str] = []

    def _give(self, name: str) -> Callable[..., tuple[Any, int]]:
        def call(*arguments: object) -> tuple[Any, int]:
            self.called.append(name)
            return self._status, self._memory.data_ptr()

        return call

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, int]]:
        return self._give(name)


def placing(monkeypatch: pytest.MonkeyPatch, status: str) -> tuple[PlacedMemory, Driver]:
    bindings = pytest.importorskip("cuda.bindings")
    real = pytest.importorskip("cuda.bindings.driver")
    driver = Driver(real, status)
    monkeypatch.setattr(bindings, "driver", driver)
    return PlacedMemory(CPU), driver


def test_each_memory_is_asked_for_by_its_own_call(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, driver = placing(monkeypatch, "CUDA_SUCCESS")
    for placement in ("managed", "pinned", "pageable"):
        tensor = memory.allocate(placement, 4096)
        assert (tensor.dtype, tensor.numel()) == (torch.uint8, 4096)
        if placement == "pageable":
            assert tensor.data_ptr() % 4096 == 0
    assert driver.called == ["cuMemAllocManaged", "cuMemHostAlloc", "cuMemHostGetDevicePointer"]


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY", MemoryError, "no more pinned memory: CUDA_ERROR_OUT_OF"),
        ("CUDA_ERROR_NOT_SUPPORTED", CannotPrepare, "no pinned memory: CUDA_ERROR_NOT_SUPPORTED"),
    ],
)
def test_a_memory_that_is_refused_is_named(
    monkeypatch: pytest.MonkeyPatch, status: str, error: type[Exception], said: str
) -> None:
    memory, _ = placing(monkeypatch, status)
    with pytest.raises(error, match=said):
        memory.allocate("pinned", 4096)
