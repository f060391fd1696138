"""Every CUDA C++ implementation, run by the emulator: results, bytes, sectors, sanitizers.

Nothing here names an operation except the rows of `REREADS` and `SCATTERED`: an implementation that
discovery finds is tested.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from membound.bench.verify import verify
from membound.kernels import chain, dtypes
from membound.kernels.discovery import discover
from membound.kernels.inputs import evaluate
from membound.kernels.operation import Direction, Tensor
from membound.kernels.spec import Prepared
from membound.tests.emulator.cases import SMALL_GB10, Case, blank, cases, of_every_header, place
from membound.tests.emulator.layout import Traffic
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner

REREADS: Mapping[tuple[str, str, str], str] = {
    ("max_pool2d", "forward", "x"): "few planes: bands, which share a row in L2",
    ("avg_pool2d", "forward", "x"): "few planes: bands, which share a row in L2",
    ("bias_relu_max_pool2d", "forward", "x"): "few planes: bands, which share a row in L2",
    ("max_pool2d_nhwc", "forward", "x"): "windows overlap: in L1 within a block, in L2 beyond",
    ("avg_pool2d_nhwc", "forward", "x"): "windows overlap: in L1 within a block, in L2 beyond",
    ("nll_loss_smoothed", "forward", "x"): "a row's target once more, which L2 has",
    **{
        (f"cross_entropy{of}", "forward", "x"): "a row's target once more, which L2 has"
        for of in ("", "_smoothed", "_forward_backward", "_smoothed_forward_backward")
    },
}
"""(operation, direction, operand) whose bytes are loaded more than once, and why DRAM sees one."""

SCATTERED: Mapping[tuple[str, str], tuple[float, str]] = {
    ("max_pool2d", "backward"): (1.4, "56 outputs end inside a sector; L2 has the rest"),
    ("bias_relu_max_pool2d", "backward"): (1.4, "56 outputs end inside a sector; L2 has the rest"),
    ("avg_pool2d", "backward"): (1.5, "56 outputs end inside a sector; L2 has the rest"),
    ("adaptive_avg_pool2d", "backward"): (1.3, "rows of 56 end inside a sector; L2 has the rest"),
    ("lp_pool2d", "forward"): (1.5, "28 outputs end inside a sector; L2 has the rest"),
    ("lp_pool2d", "backward"): (1.6, "28 outputs end inside a sector; L2 has the rest"),
    ("strided_read_2", "forward"): (2.0, "a stride of 2: half of the sectors read, all written"),
    ("strided_read_8", "forward"): (5.5, "a stride of 8: an eighth of the sectors read"),
    ("gather_int32", "forward"): (5.5, "a sector for every element read"),
    ("gather_int64", "forward"): (4.5, "a sector for every element read"),
    ("nll_loss", "forward"): (2.8, "one logarithm of a row"),
    ("causal_softmax", "forward"): (1.75, "the vector on the diagonal goes by elements"),
    ("causal_softmax", "backward"): (1.75, "the vector on the diagonal goes by elements"),
}
"""(operation, direction) whose warps touch more sectors than their bytes fill: most, and why."""

OF_ITS_OWN: Mapping[tuple[str, str, str], str] = {
    ("batch_norm_relu", "backward", "unfused"): "relu's y is of x itself, not of the statistics",
}
"""(operation, direction, variant) that makes of infinite inputs what the reference is not given."""

ALIGNED_SECTORS, RAGGED_SECTORS = 1.05, 1.75
"""Sectors per warp access over the fewest that hold its bytes: aligned rows, and unaligned ones."""

EVERY = os.environ.get("MEMBOUND_AUDIT") == "all"


def usual(case: Case) -> bool:
    """Whether CI runs it. `make audit` runs the others too: a chain's steps are cases of their own
    in every dtype, and float16 shares all with bfloat16 but its conversions, and what two windows
    of 16 bits are compared by. float32 has a vector's length of its own, which tier 1 shows."""
    if case.spec.variant:
        last = case.spec.operation.dtypes[-1]  # bfloat16, where there are several
        return case.spec.dtype == last and case.kind in {"scaled", "ragged"}
    if case.spec.dtype == dtypes.float16:
        return case.kind == "scaled" and case.spec.operation.family in ("copy", "pooling")
    if case.spec.dtype == dtypes.bfloat16:
        return True
    tier = case.spec.operation.tier
    return case.kind == "scaled" or (case.kind != "layer" and (tier == 1 or one_dtype(case)))


def one_dtype(case: Case) -> bool:
    return dtypes.bfloat16 not in case.spec.operation.dtypes


CATALOGUE = discover()
CASES = [case for case in cases(CATALOGUE) if EVERY or usual(case)]
WIDE_CASES = [
    case
    for case in cases(CATALOGUE, SMALL_GB10)
    if case.spec.dtype == dtypes.bfloat16
    and case.kind in ({"scaled", "ragged"} if EVERY else {"scaled"})
    and (EVERY or case.spec.operation.tier == 1)
]
"""Where vectors are 32 bytes."""


def once_per_implementation(kind: str, dtype: dtypes.DType) -> list[Case]:
    """One case of this kind for every implementation and direction."""
    found: dict[tuple[object, ...], Case] = {}
    for case in CASES:
        if case.kind == kind and case.spec.dtype == dtype:
            key = (case.spec.operation.name, case.spec.direction, case.implementation.label)
            found.setdefault(key, case)
    return list(found.values())


RAGGED = once_per_implementation("ragged", dtypes.bfloat16)
RAGGED_HALVES = [
    case
    for case in RAGGED
    if case.spec.operation.tier > 1
    and dtypes.float32 in case.spec.operation.dtypes
    and not case.spec.variant
]
"""Of what CI sees ragged in bfloat16 instead of float32."""


def each(found: Sequence[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", found, ids=[case.name for case in found])


def selected(session: pytest.Session, fixture: str) -> list[Case]:
    """The cases of the selected tests that use this fixture."""
    items = [i for i in session.items if isinstance(i, pytest.Function) and hasattr(i, "callspec")]
    asked = (i.callspec.params.get("case") for i in items if fixture in i.fixturenames)
    return [case for case in asked if isinstance(case, Case)]


@pytest.fixture(scope="session")
def libraries(request: pytest.FixtureRequest) -> Libraries:
    """One compilation per source, of every kernel that some selected case asks for."""
    planned = Libraries()
    for case in selected(request.session, "libraries"):
        case.on(Planner(planned))
    planned.compile()
    return planned


@pytest.fixture(scope="session")
def sanitized(request: pytest.FixtureRequest) -> Libraries:
    planned = Libraries()
    for case in selected(request.session, "sanitized"):
        case.on(Planner(planned))
    planned.compile(sanitize=True)
    return planned


@dataclass(frozen=True)
class Ready:
    """A case bound to buffers of its own."""

    prepared: Prepared
    inputs: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    launch: Callable[[], object]


def ready(case: Case, toolchain: EmulatorToolchain, offset: int = 0) -> Ready:
    prepared = case.on(toolchain)
    io = case.spec.io
    inputs = {t.name: place(t, value, offset) for t, value in _values(io, case.inputs())}
    buffers = {t.name: blank(t, offset) for t in (*io.outputs, *prepared.scratch)} | inputs
    launch = prepared.bind(buffers, None)
    toolchain.launches.clear()  # of a chain's forward, whose intermediates its backward reads
    return Ready(prepared, inputs, buffers, launch)


def _values(io: Direction, values: Mapping[str, torch.Tensor]) -> list[tuple[Tensor, torch.Tensor]]:
    return [(tensor, values[tensor.name]) for tensor in io.reads]


def wrong(case: Case, toolchain: EmulatorToolchain, offset: int = 0) -> str | None:
    """Why the outputs are wrong, after two runs that differ in poison and in thread order."""
    it = ready(case, toolchain, offset)

    def launch() -> None:
        toolchain.seed += 1
        it.launch()

    pristine = {name: value.clone() for name, value in it.inputs.items()}
    exact = evaluate(case.spec.io, it.inputs)
    judged = verify(
        *(case.spec.io, launch, it.buffers, pristine, exact, lambda: None, lambda t: blank(t)),
        it.prepared,
    )
    return judged.reason


@each(CASES)
def test_agrees_with_float64(case: Case, libraries: Libraries) -> None:
    assert wrong(case, EmulatorToolchain(libraries, count=False)) is None


@each(WIDE_CASES)
def test_agrees_where_vectors_are_32_bytes(case: Case, libraries: Libraries) -> None:
    assert wrong(case, EmulatorToolchain(libraries, count=False)) is None


@each([case for case in RAGGED if case.spec.variant not in case.spec.operation.chains])
def test_agrees_where_no_operand_is_aligned(case: Case, libraries: Libraries) -> None:
    assert wrong(case, EmulatorToolchain(libraries, count=False), offset=1) is None


@each([case for case in CASES if case.kind in {"scaled", "ragged"}])
def test_moves_its_traffic_and_no_more(
    case: Case,
    libraries: Libraries,
    bytes_counted: dict[str, int],
    record_property: Callable[[str, object], None],
) -> None:
    toolchain = EmulatorToolchain(libraries)
    it = ready(case, toolchain)
    it.launch()
    io = case.spec.io
    counted = by_operand(it.buffers, toolchain)
    everything, extra = bytes_moved(case, it, toolchain)
    bytes_counted[case.name] = everything - extra
    record_property("scratch_bytes", extra)
    chained = case.spec.variant in case.spec.operation.chains
    expected = chain_bytes(case) if chained else io.scheduled + by_products(io)
    assert everything - extra == expected
    widest = max(tensor.nbytes for tensor in io.operands.values())
    for tensor in io.reads:
        row = (case.spec.operation.name, case.spec.direction, tensor.name)
        if tensor.nbytes == widest and not case.spec.variant and row not in REREADS:
            # Once in a launch; how many launches read it is in the sum above.
            assert all(one.loaded == one.unique_loaded for one in counted[tensor.name]), row
            assert sum(one.loaded for one in counted[tensor.name]) >= tensor.traffic, row
        if tensor.name not in it.prepared.overwritten:
            assert not any(one.stored for one in counted[tensor.name])


@pytest.fixture(scope="session")
def bytes_counted() -> dict[str, int]:
    """What cases moved, by name: counted once, though two tests ask."""
    return {}


def bytes_moved(case: Case, it: Ready, toolchain: EmulatorToolchain) -> tuple[int, int]:
    """All bytes of a launch, and those of them that are partial results of an implementation."""
    own_scratch = {t.name for t in it.prepared.scratch} - intermediates(case)
    counted = by_operand(it.buffers, toolchain)
    extra = sum(moved(counted[name]) for name in own_scratch)
    return sum(moved(list(one.traffic.values())) for one in toolchain.launches), extra


def chain_bytes(case: Case) -> int:
    spec = case.spec
    stated = chain.traffic(
        CATALOGUE.operations, spec.operation, spec.variant, spec.direction, spec.dims, spec.dtype
    )
    assert stated is not None
    return stated


def fused_and_chained() -> Iterator[tuple[Case, Case]]:
    """A fused case and the same as a chain, one for each direction of a chain."""

    def key(case: Case) -> tuple[object, ...]:
        spec = case.spec
        return (spec.operation.name, spec.direction, spec.dtype, *spec.dims.values())

    found: set[tuple[str, ...]] = set()
    fused = {key(case): case for case in CASES if not case.spec.variant}
    for case in reversed(CASES):  # of 16 bits, where it has such
        name, variant, direction = one_chain(case)
        chained = variant in case.spec.operation.chains and case.kind == "scaled"
        if chained and (name, variant, direction) not in found:
            found.add((name, variant, direction))
            yield fused[key(case)], case


def one_chain(case: Case) -> tuple[str, str, str]:
    return case.spec.operation.name, case.spec.variant, case.spec.direction


FUSED = list(fused_and_chained())


@pytest.mark.parametrize(("fused", "chained"), FUSED, ids=[one.name for _, one in FUSED])
def test_fusing_saves_what_it_is_predicted_to(
    fused: Case, chained: Case, libraries: Libraries, bytes_counted: dict[str, int]
) -> None:
    for case in (fused, chained):
        if case.name not in bytes_counted:
            toolchain = EmulatorToolchain(libraries)
            it = ready(case, toolchain)
            it.launch()
            everything, extra = bytes_moved(case, it, toolchain)
            bytes_counted[case.name] = everything - extra
    io = fused.spec.io
    counted = bytes_counted[chained.name], bytes_counted[fused.name] - by_products(io)
    assert as_predicted(*counted, chain_bytes(chained), io.scheduled)


def as_predicted(chained: int, fused: int, chained_stated: int, fused_stated: int) -> bool:
    """Whether fusing saves, and the very share that the statements say."""
    return Fraction(chained, fused) == Fraction(chained_stated, fused_stated) > 1


@pytest.mark.parametrize("counted", [(101, 50), (100, 51), (100, 100)])
def test_a_gain_that_is_not_the_predicted_one_is_rejected(counted: tuple[int, int]) -> None:
    assert as_predicted(100, 50, 100, 50) and not as_predicted(100, 100, 100, 100)
    assert not as_predicted(*counted, 100, 50)


def test_every_chain_is_held_to_its_prediction() -> None:
    held = {one_chain(chained) for _, chained in FUSED}
    stated = {
        (operation.name, variant, direction)
        for operation in CATALOGUE.operations.values()
        for variant, steps in operation.chains.items()
        for direction in ("forward", "backward")
        if steps.steps(direction, operation.dtypes[0])
    }
    assert held == stated


def by_operand(
    buffers: Mapping[str, torch.Tensor], toolchain: EmulatorToolchain
) -> dict[str, list[Traffic]]:
    """What every tensor moved, launch by launch."""
    return {
        name: [
            one.traffic[value.data_ptr()]
            for one in toolchain.launches
            if value.data_ptr() in one.traffic
        ]
        for name, value in buffers.items()
    }


def moved(launches: Sequence[Traffic]) -> int:
    """Distinct bytes loaded and stored, launch by launch."""
    return sum(one.unique_loaded + one.unique_stored for one in launches)


def by_products(io: Direction) -> int:
    """Bytes of outputs that the traffic leaves out."""
    return sum(t.nbytes - t.traffic for t in io.outputs)


def intermediates(case: Case) -> set[str]:
    """Names, in a chain, of what one step hands to the next."""
    operation, spec = case.spec.operation, case.spec
    if spec.variant not in operation.chains:
        return set()
    names: set[str] = set()
    steps = operation.chains[spec.variant].steps(spec.direction, spec.dtype)
    for index, step in enumerate(steps):
        one = CATALOGUE.operations[step.operation]
        io = one.directions(step.dims(one.dims, spec.dims), spec.dtype).get(step.direction)
        assert io is not None
        names |= {step.operands.get(name, f"{index}.{name}") for name in io.operands}
    return names


@each([case for case in CASES if case.kind in {"scaled", "ragged"}])
def test_warps_touch_no_more_sectors_than_they_need(case: Case, libraries: Libraries) -> None:
    toolchain = EmulatorToolchain(libraries)
    ready(case, toolchain).launch()
    touched, ideal = sectors(toolchain)
    most = ALIGNED_SECTORS if case.kind == "scaled" else RAGGED_SECTORS
    most, _ = SCATTERED.get((case.spec.operation.name, case.spec.direction), (most, ""))
    assert touched <= most * ideal, f"{touched} sectors for {ideal}"


def sectors(toolchain: EmulatorToolchain) -> tuple[int, int]:
    rows = [t for launched in toolchain.launches for t in launched.traffic.values()]
    touched = sum(t.load_sectors + t.store_sectors for t in rows)
    return touched, sum(t.load_ideal + t.store_ideal for t in rows)


@each([case for case in CASES if 0 in [t.elements for t in case.spec.io.operands.values()]])
def test_launches_nothing_to_read_or_write_on_empty_tensors(
    case: Case, libraries: Libraries
) -> None:
    toolchain = EmulatorToolchain(libraries)
    it = ready(case, toolchain)
    for value in it.buffers.values():
        value.fill_(0)
    it.launch()
    assert not any(t.loaded for one in toolchain.launches for t in one.traffic.values())
    assert wrong(case, EmulatorToolchain(libraries)) in {None, "writes nothing that can be checked"}


@each(
    [
        case
        for case in (*once_per_implementation("ragged", dtypes.float32), *RAGGED_HALVES)
        if (case.spec.operation.name, case.spec.direction, case.spec.variant) not in OF_ITS_OWN
    ]
)
def test_not_a_number_and_infinity_stand_where_they_should(
    case: Case, libraries: Libraries
) -> None:
    it = ready(case, EmulatorToolchain(libraries, count=False))
    for tensor in case.spec.io.reads:
        value = it.inputs[tensor.name]
        if tensor.moved != 0 and value.is_floating_point() and value.dim() > 1:
            flat = value.view(-1)
            flat[0], flat[flat.numel() // 2], flat[-1] = float("nan"), float("inf"), -float("inf")
    if case.spec.direction == "backward" and case.spec.variant in case.spec.operation.chains:
        leave_as_forward_would(case, it.inputs)
    exact = evaluate(case.spec.io, it.inputs)
    it.prepared.bind(it.buffers, None)()  # anew: a chain makes what its forward leaves
    for tensor in case.spec.io.writes:
        name = it.prepared.in_place.get(tensor.name, tensor.name)
        got, expected = it.buffers[name].double(), exact[tensor.name].double()
        assert torch.equal(got.isnan(), expected.isnan()), tensor.name
        assert torch.equal(got.isposinf(), expected.isposinf()), tensor.name
        assert torch.equal(got.isneginf(), expected.isneginf()), tensor.name


def leave_as_forward_would(case: Case, inputs: Mapping[str, torch.Tensor]) -> None:
    """What forward saves, of the inputs as they are now: a chain makes it anew, its fused rival
    reads it."""
    forward = case.spec.operation.directions(case.spec.dims, case.spec.dtype).forward
    if {tensor.name for tensor in forward.reads} <= inputs.keys():
        left = evaluate(forward, inputs)
        for tensor in forward.saves:
            inputs[tensor.name].copy_(left[tensor.name])


@each(RAGGED if EVERY else of_every_header([c for c in RAGGED if not c.spec.variant]))
def test_sanitizers_find_nothing(case: Case, sanitized: Libraries) -> None:
    assert wrong(case, EmulatorToolchain(sanitized, sanitize=True)) is None
