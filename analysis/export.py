"""Runs as a file for other programs: the tidy table as CSV or Parquet, or pytest-benchmark's JSON.

python -m membound.analysis.export RUN… --output measurements.parquet
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..results.checked import printable
from ..results.reading import Run
from ..results.store import StoreError
from .export_pytest import NothingMeasured, counted, document
from .loading import frame, read
from .script import complain, parser, refuse

FORMATS: Mapping[str, str] = {
    "csv": ".csv",
    "parquet": ".parquet",
    "pytest-benchmark": ".json",
}
"""Every format with the suffix that stands for it."""


class UnknownFormat(StoreError):
    """A format that is not in FORMATS, or a suffix that stands for none."""


@dataclass(frozen=True)
class Exported:
    """The runs, whose problems are still to be told, and by status the cases without a number."""

    runs: list[Run]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def note(self) -> str | None:
        """One line about what was left out; None where nothing was."""
        count = sum(self.left_out.values())
        return f"left out, not measured: {count} cases, {counted(self.left_out)}" if count else None


def export(paths: Iterable[str | Path], output: str | Path, format: str | None = None) -> Exported:
    """Write the runs to `output`, in the format of FORMATS or the one its suffix stands for.

    The file is there as a whole or not at all. Raises StoreError where a path holds no run, the
    format is another, it takes one run and several are named, or the file cannot be written;
    NothingMeasured where pytest-benchmark's file would be empty.
    """
    output = Path(output)
    chosen = _format(output, format)
    runs = read(paths)
    if chosen == "pytest-benchmark":
        if len(runs) > 1:
            raise StoreError(f"a pytest-benchmark file holds one run, not {len(runs)}: name one")
        content, left_out = document(runs[0])
        text = json.dumps(content, indent=4, allow_nan=False) + "\n"
        _whole(output, lambda path: path.write_text(text, encoding="utf-8"))
        return Exported(runs, left_out)
    table = frame(runs)
    if chosen == "csv":
        _whole(output, lambda path: table.to_csv(path, index=False))
    else:
        _whole(output, lambda path: table.to_parquet(path, index=False))
    return Exported(runs)


def _format(output: Path, format: str | None) -> str:
    if format is not None:
        if format not in FORMATS:
            raise UnknownFormat(f"unknown format {format!r}; valid: {', '.join(FORMATS)}")
        return format
    for name, suffix in FORMATS.items():
        if output.suffix == suffix:
            return name
    suffixes = " or ".join(FORMATS.values())
    names = ", ".join(FORMATS)
    raise UnknownFormat(
        f"{output}: unknown format; name a file ending in {suffixes}, or --format {names}"
    )


def _whole(output: Path, write: Callable[[Path], object]) -> None:
    """Write beside `output` and rename, so that a reader never sees a part of it."""
    # A pipe or terminal takes what it is given; it is no file to replace.
    special = output.exists() and not output.is_file()
    target = output if special else output.resolve()
    if not target.parent.is_dir():
        raise StoreError(f"{output}: {target.parent} is not a folder")
    temporary = target if special else target.with_name(f".{target.name}.{os.getpid()}")
    try:
        write(temporary)
        if temporary != target:
            temporary.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"{output} cannot be written: {reason}") from error
    finally:
        if temporary != target:
            with suppress(OSError):
                temporary.unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the runs named; 1 where a file is damaged, 4 where nothing was measured."""
    options = parser(__doc__)
    options.add_argument("runs", nargs="+", metavar="RUN", help="run, device folder or glob")
    options.add_argument(
        "--output", required=True, help=f"file ending in {', '.join(FORMATS.values())}"
    )
    options.add_argument("--format", help=f"{', '.join(FORMATS)}: whatever the file is called")
    given = options.parse_args(arguments)
    try:
        done = export(given.runs, given.output, given.format)
    except StoreError as error:
        return refuse(error)
    except NothingMeasured as error:
        refuse(error)
        return error.exit_code
    return told(done)


def told(done: Exported) -> int:
    """Say on standard error what was left out or is damaged; the exit code it deserves."""
    if done.note:
        print(printable(done.note), file=sys.stderr)
    return complain(done.runs)


if __name__ == "__main__":
    raise SystemExit(main())
