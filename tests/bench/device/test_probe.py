"""Answers that are no answers, and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest
from membound.bench.device.probe import Probe, QueryError, is_unknown_text
from membound.bench.device.visible import visible

UUIDS = [
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "MIG-11111111-d72c-4106-c12f-20bd9faed9f6",
    "MIG-22222222-d72c-4106-c12f-20bd9faed9f6",
    "GPU-8932aaaa-d72c-4106-c12f-20bd9faed9f6",
    "GPU-5555f937-d72c-4106-c12f-20bd9faed9f6",
]


@pytest.mark.parametrize(
    "text",
    ["N/A", "[N/A]", "Not Supported", "[Not Supported]", "[Unknown Error]", "ERR!", "", "  "],
)
def test_texts_that_mean_unknown(text: str, bare: type) -> None:
    assert is_unknown_text(text)
    probe = Probe(bare())
    assert probe.text("field", lambda: text) is None
    assert probe.count("number", lambda: text, zero=True) is None
    assert set(probe.missing) == {"field", "number"} and all(probe.missing.values())


@pytest.mark.parametrize(
    "answer",
    [
        *(0, -1, None, float("nan"), float("inf"), 1.5, "3996 MHz", "1e9", "9" * 5000, [], {}),
        *(0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, b"N/A"),
    ],
)
def test_numbers_that_mean_unknown(answer: object, bare: type) -> None:
    probe = Probe(bare())
    assert probe.count("clock", lambda: answer) is None
    assert len(probe.missing["clock"]) < 100


def test_numbers_that_are_known(bare: type) -> None:
    probe = Probe(bare())
    assert probe.count("a", lambda: 3996) == 3996
    assert probe.count("b", lambda: b"3996") == 3996
    assert probe.count("c", lambda: 3996.0) == 3996
    assert probe.count("d", lambda: 0, zero=True) == 0
    assert probe.flag("e", lambda: 1) is True and probe.flag("f", lambda: 0) is False
    assert probe.missing == {}


def test_one_refused_question_does_not_stop_the_next(bare: type) -> None:
    def refused() -> object:
        raise QueryError("Not\n Supported")

    probe = Probe(bare())
    assert probe.count("clock", refused, lambda: "ERR!", lambda: 7) == 7
    assert probe.missing == {}
    assert probe.count("clock", refused, lambda: 0) is None
    assert probe.missing == {"clock": "Not Supported; answered 0"}
    assert probe.file("/absent") is None and probe.paths("/absent/*") == []


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        ("0", ("0",)),
        ("2,1", ("2", "1")),
        (" 0 , 2", ("0", "2")),
        ("GPU-5", (UUIDS[4],)),
        ("GPU-8932f937", (UUIDS[0],)),
        (UUIDS[3] + ",0", (UUIDS[3], "0")),
        (UUIDS[1], (UUIDS[1],)),
        ("MIG-" + UUIDS[0] + "/1/0", ("MIG-" + UUIDS[0] + "/1/0",)),
    ],
)
def test_visible_forms(value: str, entries: tuple[str, ...]) -> None:
    found = visible(value, UUIDS)
    assert found.entries == entries and found.problem is None


@pytest.mark.parametrize(
    ("value", "entries", "problem"),
    [
        ("", (), "it is empty"),
        ("-1", (), "entry 1, '-1', is neither an index"),
        ("0,2,-1,1", ("0", "2"), "entry 3, '-1', is neither an index"),
        ("0,3", ("0",), "entry 2, '3', is not an index here: there are 3 GPUs"),
        ("0,,1", ("0",), "entry 2, '', is neither"),
        ("GPU-8932", (), "entry 1, 'GPU-8932', fits 2 devices here"),
        ("GPU-dead", (), "entry 1, 'GPU-dead', fits 0 devices here"),
        ("MIG-1111", (), "entry 1, 'MIG-1111', fits 0 devices here"),
        ("MIG-GPU-dead/1/0", (), "names a GPU that is not here"),
        ("0,0", ("0",), "entry 2, '0', is there twice"),
        ("none", (), "entry 1, 'none', is neither"),
    ],
)
def test_an_invalid_entry_ends_the_list(value: str, entries: tuple[str, ...], problem: str) -> None:
    found = visible(value, UUIDS)
    assert found.entries == entries and problem in (found.problem or "")


def test_unset_shows_everything() -> None:
    assert visible(None, UUIDS).entries is None
