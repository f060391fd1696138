"""The report of one or more runs: device, ceilings, bandwidth, fusion, warnings, failures.

python -m membound.analysis.report RUN… [--markdown]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ...results.store import StoreError
from ..script import emit, parser, refuse
from .document import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report of the runs named; 1 where a file is damaged."""
    options = parser(__doc__)
    options.add_argument("runs", nargs="+", metavar="RUN", help="run, device folder or glob")
    given = options.parse_args(arguments)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    try:
        made = report(given.runs, markdown=given.markdown, color=color)
    except StoreError as error:
        return refuse(error)
    emit(made.text)
    return made.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
