"""The report of one or more runs: device, ceilings, bandwidth, fusion, warnings, failures.

python -m membound.analysis.report RUN… [--markdown] [--output report.html] [--figures DIR]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ...results.store import StoreError
from ..script import emit, parser, refuse
from .document import form_of, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the report of the runs named; 1 where a file is damaged."""
    options = parser(__doc__)
    options.add_argument("runs", nargs="+", metavar="RUN", help="run, device folder or glob")
    options.add_argument("--output", type=Path, help="file; .html is a page, .md Markdown")
    options.add_argument("--figures", type=Path, help="folder for figures, as SVG and PNG")
    given = options.parse_args(arguments)
    try:
        made = report(
            given.runs,
            form_of(given.output, given.markdown),
            color=given.output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ,
            figures=given.figures,
            output=given.output,
        )
        if given.output:
            given.output.write_text(made.text, encoding="utf-8", errors="backslashreplace")
            print(*made.problems, sep="\n", end="\n" if made.problems else "", file=sys.stderr)
    except (StoreError, OSError) as error:
        return refuse(error)
    if not given.output:
        emit(made.text)
    return made.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
