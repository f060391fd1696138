"""Rows beyond one block's shared memory: kept by a cluster where there are any, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from membound.bench.verify import verify
from membound.kernels.audit.machine import disassemble
from membound.kernels.audit.occupancy import does_not_fit
from membound.kernels.backends.cuda import Geometry
from membound.kernels.backends.cuda_nvrtc import CompiledKernel, CompileOnly
from membound.kernels.backends.cuda_rows import RowPlan, cluster_plan
from membound.kernels.dtypes import DType, bfloat16, float32
from membound.kernels.inputs import evaluate, make_inputs
from membound.kernels.long_rows import LONGEST
from membound.kernels.operation import DirectionName
from membound.kernels.spec import Spec
from membound.kernels.target import ARCHITECTURES, KIB, Target, reference_target
from membound.tests.emulator.cases import blank, place
from membound.tests.emulator.run import prepare, spec_of
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner

COLUMNS = (20_001, 50_257, 65_536, 70_000, 128_256, 131_072, 262_144)


@dataclass(frozen=True)
class Long:
    """A case, on a device so small that one row's cluster takes the next one, too."""

    operation: str
    direction: DirectionName
    columns: int
    dtype: DType
    arch: str = "sm_90"
    dims: Mapping[str, int] | None = None

    def __str__(self) -> str:
        return f"{self.operation}/{self.direction}/{self.dtype}/{self.columns}/{self.arch}"

    @property
    def spec(self) -> Spec:
        dims = self.dims or {"rows": 2, "columns": self.columns}
        spec = spec_of(self.operation, self.direction, dims, self.dtype)
        target = replace(reference_target(self.arch), multiprocessors=8)
        return replace(spec, target=target)


CLUSTERED = [
    Long("rms_norm", "forward", 131_072, bfloat16),
    Long("rms_norm", "forward", 70_001, float32),
    Long("rms_norm", "forward", 262_144, bfloat16, "sm_121"),
    Long("add_rms_norm", "forward", 65_536, bfloat16, "sm_121"),
    Long("layer_norm", "forward", 262_144, float32),
    Long("layer_norm", "forward", 70_001, float32),
    Long("layer_norm", "forward", 65_536, bfloat16, "sm_121"),
    Long("softmax", "forward", 131_073, bfloat16),
    Long("softmax", "backward", 65_536, bfloat16),
    Long("log_softmax", "forward", 65_536, bfloat16, "sm_121"),
    Long("l2_norm", "forward", 131_072, bfloat16),
    Long("l2_norm", "backward", 70_001, bfloat16),
]


@pytest.fixture(scope="module")
def libraries() -> Libraries:
    """One compilation per source."""
    planned = Libraries()
    for case in CLUSTERED:
        prepare(case.spec, Planner(planned))
    planned.compile()
    return planned


def fault(case: Long, toolchain: EmulatorToolchain) -> str | None:
    """What is wrong with a launch that should be right and read its rows once, or None."""
    io = case.spec.io
    prepared = prepare(case.spec, toolchain)
    inputs = make_inputs(case.spec.operation, case.direction, case.spec.dims, case.dtype, seed=3)
    buffers = {t.name: place(t, inputs[t.name]) for t in io.reads}
    buffers |= {t.name: blank(t) for t in (*io.outputs, *prepared.scratch)}
    pristine = {name: value.clone() for name, value in inputs.items()}
    run = prepared.bind(buffers, None)

    def launch() -> None:
        toolchain.seed += 1  # another order of blocks and threads
        run()

    judged = verify(io, launch, buffers, pristine, evaluate(io, inputs), lambda: None, blank)
    if judged.reason is not None:
        return judged.reason
    for launched in toolchain.launches:
        for tensor in (t for t in io.reads if len(t.shape) > 1):
            moved = launched.traffic[buffers[tensor.name].data_ptr()]
            if not moved.loaded == moved.unique_loaded == tensor.traffic:
                return f"{tensor.name}: {moved.loaded} bytes loaded of {tensor.traffic}"
        total = sum(t.unique_loaded + t.unique_stored for t in launched.traffic.values())
        if not total == io.traffic == io.scheduled:
            return f"{total} bytes, {io.traffic} of traffic, {io.scheduled} of the schedule"
    return None


@pytest.mark.parametrize("case", CLUSTERED, ids=str)
def test_what_one_block_cannot_keep_is_read_once(case: Long, libraries: Libraries) -> None:
    assert fault(case, EmulatorToolchain(libraries)) is None


def test_reading_twice_is_rejected(reread: Libraries) -> None:
    found = fault(REREAD[0], EmulatorToolchain(reread))
    assert found == "x: 1048576 bytes loaded of 524288"


def test_sanitizers_find_nothing() -> None:
    case = Long("l2_norm", "backward", 70_001, bfloat16)
    planned = Libraries()
    prepare(case.spec, Planner(planned))
    planned.compile(sanitize=True)
    assert fault(case, EmulatorToolchain(planned, sanitize=True)) is None


def wrong(plan: RowPlan, columns: int, item: int, streams: int, target: Target) -> str | None:
    """The rule that a plan of a cluster breaks, or None."""
    if plan.cluster not in {2, 4, 8} or plan.cluster > target.blocks_per_cluster:
        return "no portable cluster"
    if plan.shared_bytes + 2 * KIB > target.shared_per_block:
        return "too much shared memory"
    if plan.shared_bytes * plan.cluster < columns * item * streams:
        return "less shared memory than a row takes"
    grids = [plan.geometry(rows, target) for rows in (1, 3, 1000, 2**31)]
    if any(grid.blocks % grid.cluster or not 1 <= grid.blocks < 2**31 for grid in grids):
        return "no whole clusters"
    return None


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_plans_keep_the_limits_of_every_device(arch: str) -> None:
    target = reference_target(arch)
    for columns in COLUMNS:
        for item, streams in ((2, 1), (2, 2), (4, 1), (4, 2)):
            plan = cluster_plan(columns, item, target, streams)
            if plan is None:
                most = target.blocks_per_cluster * (target.shared_per_block - 18 * KIB)
                assert target.sm < 90 or columns * item * streams > most
            else:
                assert target.sm >= 90
                assert wrong(plan, columns, item, streams, target) is None


@pytest.mark.parametrize(
    ("cluster", "shared_bytes", "reason"),
    [
        (16, 64 * KIB, "no portable cluster"),
        (8, 226 * KIB, "too much shared memory"),
        (2, 64 * KIB, "less shared memory than a row takes"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_rejected(
    cluster: int, shared_bytes: int, reason: str
) -> None:
    target = reference_target("sm_90")
    plan = cluster_plan(262_144, 2, target)
    assert plan is not None and wrong(plan, 262_144, 2, 1, target) is None
    broken = replace(plan, cluster=cluster, shared_bytes=shared_bytes)
    assert wrong(broken, 262_144, 2, 1, target) == reason


def test_the_declared_schedule_is_of_the_most_capable_device() -> None:
    target = reference_target("sm_90")
    assert cluster_plan(LONGEST // 2, 2, target) is not None
    assert cluster_plan(LONGEST // 2 + 8, 2, target) is None


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_121"])
def test_machine_code_is_sound(arch: str) -> None:
    toolchain = CompileOnly()
    target = reference_target(arch)
    aligned = [case for case in CLUSTERED if case.columns % 32 == 0][:: 2 if arch == "sm_90" else 4]
    for case in aligned:
        prepare(replace(case, arch=arch).spec, toolchain)
    for kernel in toolchain.kernels:
        assert isinstance(kernel, CompiledKernel)
        code = disassemble(kernel.compiled.code)[kernel.symbol]
        assert not (code.local or code.spilled or code.doubles), kernel.name
        assert max(code.access("LDG")) == max(code.access("STG")) == (16 if arch == "sm_90" else 32)
        launch = Geometry(8, 512, target.shared_per_block - 2 * KIB, cluster=8)
        assert does_not_fit(code, launch, target) is None, kernel.name


REREAD = [
    Long("rms_norm", "forward", 131_072, bfloat16, "sm_80"),
    Long("add_rms_norm", "forward", 65_536, bfloat16, "sm_75"),
    Long("add_layer_norm", "forward", 65_536, bfloat16, "sm_75"),
    Long("layer_norm", "forward", 262_144, float32, "sm_121"),
    Long("scaled_masked_softmax", "forward", 50_257, bfloat16, "sm_75"),
    Long("softmax", "backward", 65_536, bfloat16, "sm_89"),
    Long("rms_norm", "backward", 20_001, bfloat16),
    Long("add_layer_norm", "backward", 20_001, bfloat16),
]


@pytest.fixture(scope="module")
def reread() -> Libraries:
    planned = Libraries()
    for case in REREAD:
        prepare(case.spec, Planner(planned))
    planned.compile()
    return planned


@pytest.mark.parametrize("case", REREAD, ids=str)
def test_the_schedule_says_what_the_kernel_does_on_this_device(
    case: Long, reread: Libraries
) -> None:
    io, toolchain = case.spec.io, EmulatorToolchain(reread)
    prepared = prepare(case.spec, toolchain)
    assert prepared.choice["path"] in {"twice", "tiles"}
    buffers = {t.name: blank(t).zero_() for t in (*io.operands.values(), *prepared.scratch)}
    prepared.bind(buffers, None)()
    matrices = [t.name for t in io.operands.values() if len(t.shape) > 1]
    moved = sum(
        launched.traffic[buffers[name].data_ptr()].loaded
        + launched.traffic[buffers[name].data_ptr()].stored
        for launched in toolchain.launches
        for name in matrices
        if buffers[name].data_ptr() in launched.traffic
    )
    others = sum(t.traffic for t in io.operands.values() if t.name not in matrices)
    assert prepared.schedule_bytes == moved + others
