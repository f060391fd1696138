"""Causes of variance put back: every arrangement runs, and the table tells them apart."""

from __future__ import annotations

import pytest
from membound.bench import causes
from membound.bench.causes import ARRANGEMENTS, Arrangement


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda one: one.name)
def test_every_arrangement_can_be_measured(
    arrangement: Arrangement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "ROWS", 64)
    monkeypatch.setattr(causes, "SAMPLES", 3)
    assert causes.measured(arrangement) > 0


def test_addresses_are_equal_only_where_they_are_meant_to_be() -> None:
    def places(arrangement: Arrangement) -> set[int]:
        arrays = [causes._memory(arrangement, causes.ROWS * causes.COLUMNS * 4, i) for i in (0, 1)]
        return {array.data_ptr() % 4096 for array in arrays}

    assert len(places(Arrangement("staggered"))) == 2
    assert places(Arrangement("equal", staggered=False)) == {0}


def test_the_table_shows_how_much_processes_differ() -> None:
    shown = causes.table({"suite": [10.0, 10.0], "new memory": [5.0, 6.0]}).rows
    assert shown[0][2:] == ["1.00", "0.0%", "0.0%"]
    assert shown[1][2:] == ["0.55", "12.9%", "20.0%"]


def test_one_process_is_no_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        causes.main(["--processes", "1"])
    assert ended.value.code == 2
    assert "at least 2" in capsys.readouterr().err
