"""Steps of kernel ladders in a run: there where asked for, in their direction, numbered."""

from __future__ import annotations

import pytest
from membound.bench.cases import plan
from membound.bench.presets import Selection, UnknownName
from membound.bench.protocol import Item
from membound.bench.records import blank
from membound.kernels.discovery import discover
from membound.kernels.target import reference_target

CATALOGUE = discover()
STEPS = {"cuda:naive", "cuda:shared", "cuda:vector", "cuda:registers"}


def planned(preset: str, *implementations: str) -> dict[str, set[str]]:
    """Implementations of layer_norm, whose ladder is of its backward, by direction."""
    selection = Selection(preset, ("layer_norm",), implementations=implementations, ceilings=False)
    groups = plan(CATALOGUE, selection, reference_target("sm_90"), 1 << 40)
    return {group.direction: set(group.implementations) for group in groups}


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_no_step_is_measured_unasked(preset: str) -> None:
    assert not STEPS & set().union(*planned(preset).values())
    assert planned(preset, "cuda") == {"forward": {"cuda"}, "backward": {"cuda"}}


def test_the_full_preset_measures_them_in_their_direction_alone() -> None:
    found = planned("full")
    assert found["backward"] >= STEPS
    assert not STEPS & found["forward"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (("cuda:naive",), {"cuda:naive"}),
        (("cuda", "cuda:v*"), {"cuda", "cuda:vector"}),
        (("cuda:*",), STEPS),
        (("cud*",), {"cuda", *STEPS}),
    ],
)
def test_a_name_or_a_pattern_chooses_them(asked: tuple[str, ...], found: set[str]) -> None:
    assert planned("quick", *asked)["backward"] == found


@pytest.mark.parametrize("name", ["cuda:nave", "cuda:x*", "cud*x", "x*:naive"])
def test_what_chooses_nothing_is_named(name: str) -> None:
    with pytest.raises(UnknownName, match="unknown implementation"):
        planned("quick", name)


@pytest.mark.parametrize(
    ("label", "direction", "step"),
    [
        ("cuda:naive", "backward", 1),
        ("cuda:registers", "backward", 4),
        ("cuda", "backward", 5),
        ("cuda", "forward", None),
        ("triton", "backward", None),
        ("memcpy", "forward", None),
    ],
)
def test_a_record_says_which_step_it_is_of(label: str, direction: str, step: int | None) -> None:
    item = Item(
        operation="layer_norm",
        direction=direction,  # type: ignore[arg-type]
        dtype="bfloat16",
        dims={"rows": 2, "columns": 8},
        caches=["cold"],
        implementations=[label],
        positions=[0],
        skips={},
        memcpy_position=1,
    )
    record = blank(CATALOGUE, item, label, "cold", 0, 0)
    assert (record.ladder_step, record.variant) == (step, label.partition(":")[2])
