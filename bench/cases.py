"""Which cases a run measures: presets, selection, and shapes scaled to the device.

A case is operation x direction x implementation x dtype x shape x cache state. Cases that share
everything but implementation and cache state form a group: they are measured one after another on
the same inputs.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from ..kernels.discovery import BACKENDS, PEERS, Catalogue, Implementation, backend_unavailable
from ..kernels.dtypes import DTYPES, FLOATS
from ..kernels.operation import DIRECTIONS, Direction, DirectionName, Operation
from ..kernels.shapes import Shape
from ..kernels.target import MIB, Target
from ..results.record import Cache, Placement
from .presets import PRESETS, Preset, Selection, UnknownName, preset_named, unknown
from .records import named

ROTATION = 4
"""A buffer is not touched again before this many last-level caches of other bytes were."""
COLD_MULTIPLE = 20
"""Traffic of a cold case in last-level caches: what its writes may leave behind is then <= 5 %."""
_MAX_SETS = 64
_MIN_CPU_SET = 64 * MIB
"""On the CPU a launch costs tens of microseconds; 64 MiB take about a millisecond."""

CEILINGS = ("mix_1r0w", "mix_3r1w", "mix_2r1w", "mix_1r1w", "mix_0r1w")
"""Plain streams by falling read share: what an operation is held to (`kernels/copy/mix.py`)."""


@dataclass(frozen=True)
class Group:
    """Cases on the same inputs. `skips` maps an implementation to why it cannot run here."""

    operation: str
    direction: DirectionName
    dtype: str
    shape: Shape
    caches: tuple[Cache, ...]
    implementations: tuple[str, ...]
    skips: dict[str, str] = field(default_factory=dict)
    shrunk: str | None = None
    placement: Placement = "device"

    @property
    def stem(self) -> str:
        return f"{self.operation}/{self.direction}"

    @property
    def runnable(self) -> bool:
        """Whether any of its implementations can run here."""
        return any(label not in self.skips for label in self.implementations)

    def case(self, implementation: str, cache: Cache) -> str:
        return named(
            self.operation,
            self.direction,
            implementation,
            self.dtype,
            self.shape.dims,
            cache,
            self.placement,
        )


def plan(
    catalogue: Catalogue, selection: Selection, target: Target, budget_bytes: int
) -> list[Group]:
    """Groups in the order they are measured: ceilings, then tier by tier, round-robin over shapes.

    Raises UnknownName for a name that selects nothing.
    """
    preset = preset_named(selection.preset)
    operations = _operations(catalogue, selection, preset, target)
    check_names(catalogue, selection)
    planned: list[tuple[tuple[bool, int, int], Group]] = []
    for operation in operations:
        for round_, shape in enumerate(_shapes(operation, preset)):
            for dtype in _dtypes(operation, selection, preset, target):
                for direction in _directions(operation, selection):
                    group = _group(
                        catalogue, operation, direction, dtype, shape, selection, preset, target
                    )
                    group = _fit(group, operation, target, budget_bytes)
                    order = (operation.name not in CEILINGS, operation.tier, round_)
                    planned.append((order, group))
    planned.sort(key=lambda entry: entry[0])  # stable: operations stay in their order
    groups = [group for _, group in planned if group.implementations]
    if not selection.ceilings or not any(group.runnable for group in groups):
        return groups
    return [*_ceiling_groups(catalogue, groups, selection, target, budget_bytes), *groups]


def _ceiling_groups(
    catalogue: Catalogue,
    groups: Sequence[Group],
    selection: Selection,
    target: Target,
    budget_bytes: int,
) -> Iterator[Group]:
    """The plain streams, in the first dtype: a byte is a byte in the others."""
    only = replace(
        selection, implementations=(target.kind,), dtypes=(groups[0].dtype,), directions=()
    )
    planned = {group.operation for group in groups}
    for name in (name for name in CEILINGS if name not in planned):
        operation = catalogue.operations[name]
        shape = next(shape for shape in operation.shapes if shape.kind == "scaled")
        group = _group(
            catalogue, operation, "forward", groups[0].dtype, shape, only, PRESETS["quick"], target
        )
        group = replace(group, caches=groups[0].caches)
        yield _fit(group, operation, target, budget_bytes)


def only(groups: Iterable[Group], names: Collection[str]) -> list[Group]:
    """What is left of planned groups when only the cases named are measured; shapes stay."""
    kept: list[Group] = []
    for group in groups:
        chosen: dict[tuple[Cache, ...], list[str]] = {}
        for implementation in group.implementations:
            caches = tuple(c for c in group.caches if group.case(implementation, c) in names)
            if caches:
                chosen.setdefault(caches, []).append(implementation)
        kept += [
            replace(group, caches=caches, implementations=tuple(implementations))
            for caches, implementations in chosen.items()
        ]
    return kept


def ceiling_cases(groups: Iterable[Group], kind: str) -> set[str]:
    """Names of the plain streams in a plan: each once, in every cache state.

    kind: that of the device, whose implementation they are.
    """
    streams: dict[str, Group] = {}
    for group in groups:
        scaled = group.shape.kind == "scaled" and group.placement == "device"
        if group.operation in CEILINGS and scaled:
            streams.setdefault(group.operation, group)
    return {group.case(kind, cache) for group in streams.values() for cache in group.caches}


def io_of(operation: Operation, group: Group) -> Direction:
    directions = operation.directions(group.shape.dims, DTYPES[group.dtype])
    io = directions.get(group.direction)
    assert io is not None, group
    return io


def sets_for(operand_bytes: int, cache: Cache, llc_bytes: int) -> int:
    """How many sets of buffers rotate: one when cold, else enough for `ROTATION` caches."""
    if cache == "cold":
        return 1
    return min(_MAX_SETS, max(2, ceil(ROTATION * llc_bytes / max(operand_bytes, 1))))


def bytes_needed(operation: Operation, group: Group, target: Target) -> int:
    """Memory a group takes: rotating sets, pristine inputs and outputs, float64 references.

    Scratch and chain intermediates are at most as large as the operands once more.
    """
    io = io_of(operation, group)
    operands = sum(tensor.nbytes for tensor in io.operands.values())
    sets = max(sets_for(operands, cache, target.llc_bytes) for cache in group.caches)
    exact = sum(8 * tensor.elements for tensor in io.outputs)
    return 2 * sets * operands + operands + exact


def check_names(catalogue: Catalogue, selection: Selection) -> None:
    """Raise UnknownName for a direction, dtype or implementation that does not exist."""
    for direction in selection.directions:
        if direction not in DIRECTIONS:
            raise UnknownName(unknown("direction", direction, DIRECTIONS))
    for dtype in selection.dtypes:
        names = [known.name for known in FLOATS]
        if dtype not in names:
            raise UnknownName(unknown("dtype", dtype, names))
    for name in selection.implementations:
        backend, _, variant = name.partition(":")
        known = set(BACKENDS)
        if variant:
            known |= {
                implementation.label
                for operation in catalogue.operations.values()
                for implementation in catalogue.implementations(
                    operation, fnmatch.filter(BACKENDS, backend)
                )
            }
        if not fnmatch.filter(known, name):
            raise UnknownName(unknown("implementation", name, known))


def known_part(catalogue: Catalogue, selection: Selection) -> Selection | None:
    """The part of a selection whose names exist in this catalogue; None where none is left."""

    def exists(part: Selection) -> bool:
        try:
            matching(catalogue, part.operations)
            check_names(catalogue, part)
        except UnknownName:
            return False
        return True

    operations = tuple(n for n in selection.operations if exists(Selection(operations=(n,))))
    labels = tuple(n for n in selection.implementations if exists(Selection(implementations=(n,))))
    if (selection.operations and not operations) or (selection.implementations and not labels):
        return None
    return replace(selection, operations=operations, implementations=labels)


def _operations(
    catalogue: Catalogue, selection: Selection, preset: Preset, target: Target
) -> list[Operation]:
    if selection.operations:
        return matching(catalogue, selection.operations)
    return [
        operation
        for operation in catalogue.operations.values()
        if operation.tier in preset.tiers
        and (
            not preset.own_kernels_only
            or catalogue.default(operation.name, target.kind) is not None
        )
    ]


def matching(catalogue: Catalogue, patterns: Iterable[str]) -> list[Operation]:
    """Operations named by pattern, or by family. Raises UnknownName for one that matches none."""
    everything = list(catalogue.operations.values())
    chosen: set[str] = set()
    for pattern in patterns:
        some = [o for o in everything if fnmatch.fnmatchcase(o.name, pattern)]
        # A family is named where no operation is ("fused"), or in full ("copy/*").
        some = some or [o for o in everything if o.family == pattern]
        some += [o for o in everything if fnmatch.fnmatchcase(f"{o.family}/{o.name}", pattern)]
        if not some:
            raise UnknownName(unknown("operation", pattern, catalogue.operations))
        chosen |= {operation.name for operation in some}
    return [operation for operation in everything if operation.name in chosen]


def _shapes(operation: Operation, preset: Preset) -> list[Shape]:
    return [s for kind in preset.kinds for s in operation.shapes if s.kind == kind]


def _dtypes(
    operation: Operation, selection: Selection, preset: Preset, target: Target
) -> list[str]:
    stated = [dtype.name for dtype in operation.dtypes]
    if selection.dtypes:
        return [name for name in stated if name in selection.dtypes]
    if preset.all_dtypes:
        return stated
    usual = "bfloat16" if target.kind == "cuda" else "float32"
    return [usual] if usual in stated else stated[:1]


def _directions(operation: Operation, selection: Selection) -> list[DirectionName]:
    return [
        direction
        for direction in DIRECTIONS
        if operation.has(direction) and direction in (selection.directions or DIRECTIONS)
    ]


def _group(
    catalogue: Catalogue,
    operation: Operation,
    direction: DirectionName,
    dtype: str,
    shape: Shape,
    selection: Selection,
    preset: Preset,
    target: Target,
) -> Group:
    runs: list[str] = []
    skips: dict[str, str] = {}
    for implementation in catalogue.implementations(operation, _backends(selection, target)):
        if not implementation.has(direction) or not _wanted(
            implementation, selection, preset, target
        ):
            continue
        runs.append(implementation.label)
        reason = wrong_device(implementation.backend, target) or implementation.refuses(
            direction, dtype
        )
        if reason:
            skips[implementation.label] = reason
    caches = selection.caches or _caches(preset, target)
    shape = _scaled(operation, shape, dtype, caches, target)
    return Group(operation.name, direction, dtype, shape, caches, tuple(runs), skips)


def copy_group(
    catalogue: Catalogue, dtype: str, caches: tuple[Cache, ...], target: Target
) -> Group:
    """The reference copy: `copy` at the size its device asks for."""
    operation = catalogue.operations["copy"]
    shape = next(shape for shape in operation.shapes if shape.kind == "scaled")
    shape = _scaled(operation, shape, dtype, caches, target)
    return Group(operation.name, "forward", dtype, shape, caches, ())


def wrong_device(backend: str, target: Target) -> str | None:
    """Why a backend does not run on this kind of device, None where it does."""
    if backend == "cpu" and target.kind == "cuda":
        return "measures the CPU; choose it with --device cpu"
    if backend not in {"cpu", "torch", "compile"} and target.kind == "cpu":
        return "needs a CUDA device"
    return None


def _backends(selection: Selection, target: Target) -> list[str]:
    """Backends whose files are worth importing: those named, else those of this device."""
    if selection.implementations:
        named = [label.partition(":")[0] for label in selection.implementations]
        return [b for b in BACKENDS if any(fnmatch.fnmatchcase(b, name) for name in named)]
    return [backend for backend in BACKENDS if wrong_device(backend, target) is None]


def _wanted(
    implementation: Implementation, selection: Selection, preset: Preset, target: Target
) -> bool:
    if selection.implementations:
        label, patterns = implementation.label, selection.implementations
        default = implementation.variant in {"", *implementation.operation.chains}
        return any(fnmatch.fnmatchcase(label, pattern) for pattern in patterns) or (
            implementation.backend in patterns and default
        )
    chained = implementation.variant in implementation.operation.chains
    if implementation.variant and not chained and not preset.variants:
        return False
    if implementation.backend == "compile":
        fused = bool(implementation.operation.chains)
        return preset.compile_all or (preset.compile_fused and fused)
    if implementation.backend in PEERS:
        return preset.peers and backend_unavailable(implementation.backend) is None
    return True


def _caches(preset: Preset, target: Target) -> tuple[Cache, ...]:
    # A CPU's last-level cache is so large that 20 of them would take minutes; its rotating
    # buffers pay for their own write-backs at a fifth of the memory.
    return preset.caches if target.kind == "cuda" else ("steady",)


def _scaled(
    operation: Operation, shape: Shape, dtype: str, caches: Sequence[Cache], target: Target
) -> Shape:
    """Grow the shape to what the device's last-level cache asks for, by the forward traffic."""
    if shape.grow is None:
        return shape
    if target.kind == "cpu" and "cold" not in caches:
        wanted = max(_MIN_CPU_SET, target.llc_bytes // ROTATION)
    else:
        wanted = COLD_MULTIPLE * target.llc_bytes
    length = max(1, shape.dims[shape.grow])
    stated = operation.directions(shape.dims, DTYPES[dtype]).forward.traffic
    unit = 256 if length >= 256 else 16
    return shape.grown(unit * max(1, ceil(wanted / (stated / length) / unit)))


def _fit(group: Group, operation: Operation, target: Target, budget_bytes: int) -> Group:
    """Halve a scaled shape until it fits the memory budget; a fixed one is skipped, said so."""
    grow = group.shape.grow
    while (needed := bytes_needed(operation, group, target)) > budget_bytes:
        length = group.shape.dims[grow] if grow else 0
        if not grow or length < 2:
            reason = f"needs {needed:,} bytes; {budget_bytes:,} may be used"
            return replace(group, skips=dict.fromkeys(group.implementations, reason) | group.skips)
        reason = f"{grow} halved to {length // 2} to fit {budget_bytes:,} bytes"
        group = replace(group, shape=group.shape.grown(length // 2), shrunk=reason)
    return group
