"""Every CUDA C++ implementation, run by the emulator: results, bytes, sectors, sanitizers.

Nothing here names an operation: an implementation that discovery finds is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from membound.bench.verify import verify
from membound.kernels import chain, dtypes
from membound.kernels.inputs import evaluate
from membound.kernels.operation import Direction, Tensor
from membound.kernels.spec import Prepared
from membound.tests.emulator.cases import Case, blank, of_every_header, place
from membound.tests.emulator.layout import Traffic
from membound.tests.emulator.toolchain import EmulatorToolchain, Libraries, Planner
from membound.tests.kernels.emulated_cases import (
    ALIGNED_SECTORS,
    CASES,
    CATALOGUE,
    EVERY,
    OF_ITS_OWN,
    RAGGED,
    RAGGED_HALVES,
    RAGGED_SECTORS,
    REREADS,
    SCATTERED,
    WIDE_CASES,
    once_per_implementation,
)


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


@dataclass(frozen=True)
class Counted:
    """What a launch moved: launch by launch of every operand, and the tensors that nothing may
    write; everything: all bytes; extra: those of them that are an implementation's partial results;
    sectors: touched, and the fewest that hold what warps ask for."""

    of_operand: Mapping[str, list[Traffic]]
    unwritten: list[str]
    everything: int
    extra: int
    sectors: tuple[int, int]

    @property
    def own(self) -> int:
        return self.everything - self.extra


@pytest.fixture(scope="session")
def counted(libraries: Libraries) -> Callable[[Case], Counted]:
    """Every case is counted once, though three tests ask."""
    found: dict[str, Counted] = {}

    def count(case: Case) -> Counted:
        if case.name not in found:
            found[case.name] = count_bytes(case, libraries)
        return found[case.name]

    return count


def count_bytes(case: Case, libraries: Libraries) -> Counted:
    toolchain = EmulatorToolchain(libraries)
    it = ready(case, toolchain)
    it.launch()
    of_operand = by_operand(it.buffers, toolchain)
    own_scratch = {t.name for t in it.prepared.scratch} - intermediates(case)
    return Counted(
        of_operand,
        [t.name for t in case.spec.io.reads if t.name not in it.prepared.overwritten],
        sum(moved(list(one.traffic.values())) for one in toolchain.launches),
        sum(moved(of_operand[name]) for name in own_scratch),
        sectors(toolchain),
    )


@each([case for case in CASES if case.kind in {"scaled", "ragged"}])
def test_moves_its_traffic_and_no_more(
    case: Case,
    counted: Callable[[Case], Counted],
    record_property: Callable[[str, object], None],
) -> None:
    it, io = counted(case), case.spec.io
    record_property("scratch_bytes", it.extra)
    chained = case.spec.variant in case.spec.operation.chains
    expected = chain_bytes(case) if chained else io.scheduled + by_products(io)
    assert it.own == expected
    widest = max(tensor.nbytes for tensor in io.operands.values())
    for tensor in io.reads:
        row = (case.spec.operation.name, case.spec.direction, tensor.name)
        launches = it.of_operand[tensor.name]
        if tensor.nbytes == widest and not case.spec.variant and row not in REREADS:
            # Once in a launch; how many launches read it is in the sum above.
            assert all(one.loaded == one.unique_loaded for one in launches), row
            assert sum(one.loaded for one in launches) >= tensor.traffic, row
        if tensor.name in it.unwritten:
            assert not any(one.stored for one in launches)


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
    fused: Case, chained: Case, counted: Callable[[Case], Counted]
) -> None:
    io = fused.spec.io
    bytes_moved = counted(chained).own, counted(fused).own - by_products(io)
    assert as_predicted(*bytes_moved, chain_bytes(chained), io.scheduled)


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
def test_warps_touch_no_more_sectors_than_they_need(
    case: Case, counted: Callable[[Case], Counted]
) -> None:
    touched, ideal = counted(case).sectors
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


SANITIZED = 6
"""Cases that CI compiles for the sanitizers: those that between them reach most headers."""


@each(RAGGED if EVERY else of_every_header([c for c in RAGGED if not c.spec.variant])[:SANITIZED])
def test_sanitizers_find_nothing(case: Case, sanitized: Libraries) -> None:
    assert wrong(case, EmulatorToolchain(sanitized, sanitize=True)) is None
