"""The tidy table as a file for other programs: CSV or Parquet.

python -m membound.analysis.export RUN… --output measurements.parquet
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..results.reading import Run
from ..results.store import StoreError, store_error
from .loading import frame, read
from .script import complain, parser, refuse

FORMATS = (".csv", ".parquet")


def export(paths: Iterable[str | Path], output: str | Path) -> list[Run]:
    """Write the table of the runs to `output`; its suffix, .csv or .parquet, is the format.

    Returns the runs, whose problems are still to be told. Raises StoreError where a path holds no
    run, the suffix is another or the file cannot be written.
    """
    output = Path(output)
    if output.suffix not in FORMATS:
        raise StoreError(f"{output}: unknown format; name a file ending in {' or '.join(FORMATS)}")
    runs = read(paths)
    table = frame(runs)
    try:
        if output.suffix == ".csv":
            table.to_csv(output, index=False)
        else:
            table.to_parquet(output, index=False)
    except OSError as error:
        raise store_error(error, output) from error
    return runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the runs named; 1 where a file is damaged."""
    options = parser(__doc__)
    options.add_argument("runs", nargs="+", metavar="RUN", help="run, device folder or glob")
    options.add_argument("--output", required=True, help="file ending in .csv or .parquet")
    given = options.parse_args(arguments)
    try:
        return complain(export(given.runs, given.output))
    except StoreError as error:
        return refuse(error)


if __name__ == "__main__":
    raise SystemExit(main())
