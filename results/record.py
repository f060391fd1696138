"""What a run leaves behind: one record per case and process, and one description of the machine.

The one definition, written by `bench` and read by `analysis`. A run is a folder
`<device>/<UTC>-<commit7>/` holding `environment.json` (an `Environment`) and
`measurements.jsonl` (one `Record` a line, strict JSON). Bytes are bytes, GB/s is 1e9 bytes per
second, times are seconds. `None` means unknown or not applicable, never zero.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

SCHEMA = 2
"""Version of both files; a reader refuses a newer one by name and still reads older ones.

2: `placement`. A reader of 1 would take memory of the host for the device's own.
"""

Status = Literal["ok", "wrong", "failed", "skipped", "timeout"]
Cache = Literal["cold", "steady"]
Placement = Literal["device", "managed", "pinned", "pageable"]
Timer = Literal["events", "events-ungated", "graph", "cupti", "wall"]
PeakSource = Literal["attributes", "sheet", "user"]

# Bounds keep every number inside what a table of 64-bit integers and floats can hold and add up.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**60)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Magnitude = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
Sample = Annotated[float, msgspec.Meta(ge=1e-12, le=1e6)]  # seconds; files keep nanoseconds
Rate = Annotated[float, msgspec.Meta(ge=1e-3, le=1e9)]  # GB/s


class Record(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=False):
    """What one process gave for one case. Its key is (case, process, position)."""

    schema: Positive
    case: Name  # readable and unique: rms_norm/forward/cuda/bfloat16/8192x4096/cold
    operation: Name
    family: Name
    direction: Literal["forward", "backward"]
    implementation: Name  # cuda, cupy, numba, triton, torch, compile, cpu, memcpy, …
    variant: str  # "" is the default form; "unfused", "naive", … a named one
    ladder_step: Positive | None = None  # of a kernel ladder, whose last is the default form
    dtype: Name
    shape: dict[Name, Count]
    cache: Cache
    placement: Placement = "device"  # the memory that the operands lie in
    process: Count  # 0, 1, …: the fresh worker process
    position: Count  # place in that process's walk; a reference copy appears at several
    status: Status
    reason: str | None = None  # why not ok; one line
    bytes_read: Count  # stated traffic, the same for every implementation
    bytes_written: Count
    schedule_bytes: Count | None = None  # where on-chip capacity forces a re-read
    unfused_bytes: Count | None = None  # what the chain of a fused operation moves
    flops: Count | None = None
    timer: Timer | None = None
    seconds: list[Sample] = []  # every sample, in order, rounded to the nanosecond
    sm_clock_mhz: list[Positive] = []
    throttled: bool | None = None
    timer_tick_seconds: Seconds | None = None  # smallest step of the timer, per timed launch
    launch_overhead_seconds: Magnitude | None = None
    stop: str | None = None  # which rule ended sampling
    footprint_bytes: Count | None = None  # bytes touched before a buffer is used again
    eviction_multiple: Count | None = None  # LLCs read before a cold sample, shown to be enough
    max_error: Magnitude | None = None  # largest error in units of `tolerance`'s measure
    tolerance: Magnitude | None = None
    allocates: bool | None = None  # the implementation allocates its outputs inside the clock
    in_place: bool | None = None  # it writes over inputs, which were restored outside the clock
    choice: dict[str, int | float | str | bool] = {}  # autotuned configuration
    source_hash: str
    started_at: str  # ISO 8601, UTC


class Peak(msgspec.Struct, kw_only=True, frozen=True):
    """A bandwidth to compare with, and where it comes from."""

    gbps: Rate
    source: PeakSource
    provenance: str  # "2 x 3201 MHz x 6016 bit / 8", "NVIDIA … datasheet", the user's words


class Device(msgspec.Struct, kw_only=True, frozen=True):
    """Who was measured. Unknown is None; `missing` of the environment says why."""

    kind: Literal["cuda", "cpu"]
    name: Name
    uuid: str | None = None
    pci_bus_id: str | None = None
    capability: str | None = None  # "12.1"
    architecture: str | None = None  # CPU: "x86_64", "aarch64"
    memory_bytes: Positive | None = None
    integrated: bool | None = None
    mig: str | None = None  # slice profile, e.g. "1g.10gb"
    ecc: bool | None = None
    power_limit_watts: Magnitude | None = None
    multiprocessors: Positive | None = None  # CPU: cores used
    sm_clock_mhz: Positive | None = None  # the default clock of the multiprocessors
    l2_bytes: Count | None = None  # CPU: the last level sysfs names
    memory_side_cache_bytes: Count = 0
    llc_bytes: Positive  # what eviction and shapes are sized by
    driver: str | None = None
    cuda_driver: str | None = None  # the CUDA version the driver supports, "13.0"


class Environment(msgspec.Struct, kw_only=True, frozen=True):
    """environment.json: everything a reader needs to judge the records beside it."""

    schema: Positive
    run: str  # folder name, <UTC>-<commit7>
    started_at: str
    finished_at: str | None = None
    device: Device
    peak: Peak | None  # the one percentages are of; None: no percentage
    peak_reason: str | None = None  # why there is none
    peak_candidates: list[Peak] = []
    quirks: list[str] = []  # what is special about this device, one line each
    warnings: list[str] = []
    missing: dict[str, str] = {}  # field or query -> why it is unknown
    memory_budget_bytes: Count
    host: dict[str, str] = {}  # kernel, cpu, governor, container, wsl, …
    versions: dict[str, str] = {}  # python, torch, cuda-core, nvrtc, …
    before: dict[str, str | float] = {}  # clocks, power, temperature, load before the run
    after: dict[str, str | float] = {}
    processes_before: list[str] | None = None  # other compute processes; None: unknown
    processes_after: list[str] | None = None
    commit: str | None
    dirty: bool | None
    commit_reason: str | None = None  # why commit or dirty is unknown
    command: list[str]
    preset: str
    seed: int
    processes: Positive
    cache_states: list[Cache]
    time_limit_seconds: Magnitude | None = None
    choices: dict[str, dict[str, int | float | str | bool]] = {}
    plan: str | None = None  # hash of what it set out to measure: --resume takes no other options
