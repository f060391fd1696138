"""What fusing buys: bytes saved against time saved, for every fused operation.

    python -m membound.analysis.fusion RUN…

Predicted gain: bytes of the chain / bytes of the fused operation. Measured gain: time of the
chain / time of the fused kernel, in the same processes. Where an intermediate is small enough to
be read back from a cache the two part: such a comparison is L2-assisted and stands apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from .cases import Case, cases
from .loading import TIMES_LLC
from .statistics import Centre, paired
from .verdict import sound

UNFUSED = "unfused"
TORCH = "torch"


@dataclass(frozen=True)
class Gain:
    """One fused case beside one unfused; measured is None with the reason in `why`.

    low and high: 95 % interval over the processes that measured both, None below three.
    """

    run: str
    operation: str
    direction: str
    dtype: str
    shape: str
    cache: str
    fused: str
    unfused: str
    traffic_bytes: int
    unfused_bytes: int
    predicted: float
    measured: float | None
    low: float | None
    high: float | None
    l2_assisted: bool | None
    why: str | None


def fusion(frame: pd.DataFrame) -> pd.DataFrame:
    """The tidy table as one row per fused case and unfused partner, columns as in `Gain`."""
    rows = [asdict(gain) for gain in gains(cases(frame))]
    return pd.DataFrame(rows, columns=list(Gain.__dataclass_fields__))


def gains(found: Sequence[Case]) -> list[Gain]:
    """Each fused case against the chain in the same implementation, and against torch's."""
    by_key = {(_site(case), case.implementation, case.variant): case for case in found}
    made = []
    for case in found:
        if not case.unfused_bytes or not case.traffic or case.variant == UNFUSED or case.is_step:
            continue
        partners = dict.fromkeys([(case.implementation, UNFUSED), _torch(case, by_key)])
        partners.pop((case.implementation, case.variant), None)
        made += [_gain(case, by_key.get((_site(case), *name)), name) for name in partners]
    return made


def own_chain(found: Iterable[Gain]) -> list[Gain]:
    """Those against the chain in the same implementation: what fusing alone buys."""
    return [gain for gain in found if gain.unfused == f"{gain.fused.split(':')[0]}:{UNFUSED}"]


_Site = tuple[str, ...]


def _site(case: Case) -> _Site:
    return (
        case.run,
        case.operation,
        case.direction,
        case.dtype,
        case.shape,
        case.cache,
        case.placement,
    )


def _torch(case: Case, by_key: dict[tuple[_Site, str, str], Case]) -> tuple[str, str]:
    """torch runs the chain under its own name where it has no fused kernel to offer."""
    unfused = (_site(case), TORCH, UNFUSED)
    return (TORCH, UNFUSED) if unfused in by_key else (TORCH, "")


def _gain(fused: Case, unfused: Case | None, name: tuple[str, str]) -> Gain:
    label = f"{name[0]}:{name[1]}" if name[1] else name[0]
    measured, why = _measured(fused, unfused, label)
    unfused_bytes = fused.unfused_bytes or 0
    # Both with what capacity makes them read again: that is what a kernel can save.
    fused_bytes = fused.schedule_bytes or fused.traffic
    # Each intermediate is written once and read once.
    intermediate = (unfused_bytes - fused_bytes) / 2
    llc = fused.llc_bytes
    return Gain(
        run=fused.run,
        operation=fused.operation,
        direction=fused.direction,
        dtype=fused.dtype,
        shape=fused.shape,
        cache=fused.cache,
        fused=fused.form,
        unfused=label,
        traffic_bytes=fused.traffic,
        unfused_bytes=unfused_bytes,
        predicted=unfused_bytes / fused_bytes,
        measured=measured.value if measured else None,
        low=measured.low if measured else None,
        high=measured.high if measured else None,
        l2_assisted=None if llc is None else intermediate <= TIMES_LLC * llc,
        why=why,
    )


def _measured(fused: Case, unfused: Case | None, label: str) -> tuple[Centre | None, str | None]:
    if fused.status != "ok":
        return None, f"{fused.form} {fused.status}: {fused.reason}"
    if unfused is None:
        return None, f"{label} was not run"
    if unfused.status != "ok":
        return None, f"{label} {unfused.status}: {unfused.reason}"
    for case, form in ((fused, fused.form), (unfused, label)):
        doubt = sound(case)
        if doubt is not None and doubt.name == "above-peak":  # bytes or time are not its own
            return None, f"{form} {doubt.name}: {doubt.why}"
    both = [process for process in fused.medians if process in unfused.medians]
    if not both:
        return None, f"no process measured both {fused.form} and {label}"
    return paired([unfused.medians[p] for p in both], [fused.medians[p] for p in both]), None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the fusion table of the runs named; 1 where a file is damaged."""
    from .script import run_script
    from .tables import fusion_tables

    return run_script(__doc__, arguments, lambda _, frame: fusion_tables(gains(cases(frame))))


if __name__ == "__main__":
    raise SystemExit(main())
