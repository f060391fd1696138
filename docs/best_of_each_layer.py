"""The fastest verified implementation of every layer in some runs, from the tidy table.

python docs/best_of_each_layer.py RESULTS…
"""

from __future__ import annotations

import sys

import pandas as pd
from membound.analysis import load


def best_of_each_layer(*paths: str) -> pd.DataFrame:
    """One row per layer: its fastest implementation and GB/s (1e9 bytes per second).

    GB/s are traffic over the median of process medians, of cases whose data are far beyond the
    cache and whose result was never wrong.
    """
    table = load(*paths)
    wrong = table.loc[table["status"] == "wrong", "case"]
    good = table[(table["status"] == "ok") & table["dram_sized"] & ~table["case"].isin(wrong)]
    layer = ["run", "operation", "direction", "dtype", "cache"]
    seconds = good.groupby([*layer, "shape", "implementation", "variant", "traffic_bytes"])[
        "median_seconds"
    ].median()
    cases = seconds.reset_index()
    cases["gb_per_s"] = cases["traffic_bytes"] / cases["median_seconds"] / 1e9
    fastest = cases.sort_values("gb_per_s", ascending=False).drop_duplicates(layer)
    return fastest.sort_values(layer)[[*layer, "shape", "implementation", "variant", "gb_per_s"]]


if __name__ == "__main__":
    print(best_of_each_layer(*(sys.argv[1:] or ["results"])).to_string(index=False))
