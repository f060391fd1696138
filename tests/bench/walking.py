"""A worker's walk through a few cases on the CPU, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from membound.bench.device.select import select
from membound.bench.protocol import Finished, Item, Plan, Setting
from membound.bench.session import Session
from membound.bench.walk import Walk
from membound.kernels.target import MIB
from membound.results.record import Record


def setting(*kernels: Path) -> Setting:
    """A cache of 1 MiB, so that sets of buffers are small."""
    return Setting(
        kind="cpu",
        ordinal=0,
        target=asdict(replace(select("cpu").target, llc_bytes=MIB)),
        default_mhz=None,
        budget_bytes=512 * MIB,
        seed=0,
        timer="wall",
        kernels=[str(folder) for folder in kernels],
    )


def walk_of(known: Setting, items: Sequence[Item], memcpy: Item) -> Plan:
    return Plan(
        **{name: getattr(known, name) for name in Setting.__struct_fields__},
        process=0,
        items=list(items),
        memcpy=memcpy,
        seconds_per_case=0.01,
        deadline=None,
        choices={},
        done=[],
    )


def records(session: Session, walk: Plan) -> list[Record]:
    return [event.record for event in Walk(walk, session).run() if isinstance(event, Finished)]
