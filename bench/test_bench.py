"""The cases of `membound run` under pytest-benchmark: `pytest bench`, from the repository.

    pytest bench -k rms_norm --benchmark-json=rms_norm.json
    pytest bench --benchmark-autosave; pytest bench --benchmark-compare

Every sample was measured by membound's own workers, verified before and after; here it is only
played back, so options about timing (--benchmark-timer, --benchmark-min-rounds, …) change nothing.
One round is one sample; the columns are pytest-benchmark's, over the samples of all processes. In
files `ops` is one over the median of process medians, which is what membound compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all")
def test_bandwidth(case: str, benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> None:
    """A case that is not ok leaves the fixture untouched, and thereby no number."""
    if benchmark.disabled:
        pytest.skip("not measured: benchmarks are disabled (--benchmark-disable, or xdist)")
    replay = request.getfixturevalue("measured").get(case)
    if replay is None:
        pytest.fail("the run holds no record of this case", pytrace=False)
    if replay.status == "skipped":
        pytest.skip(replay.reason)
    if replay.status != "ok":
        pytest.fail(f"{replay.status}: {replay.reason}", pytrace=False)
    request.node.get_closest_marker("benchmark").kwargs["timer"].load(replay.timer, replay.samples)
    benchmark.extra_info.update(replay.extra_info)
    benchmark.pedantic(lambda: None, rounds=len(replay.samples))  # type: ignore[no-untyped-call]
    assert benchmark.stats is not None
    assert benchmark.stats.stats.rounds == len(replay.samples), "samples were lost in playing back"
