"""How long a large run takes to load and to report, on generated records; not a test, a benchmark.

    python -P -m membound.tests.analysis.scale [RECORDS]

Prints seconds of the processor and of the clock, and the peak of memory, each step in a process of
its own. Nothing in the run was measured: it is made up, and marked `generated`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from membound.results.store import MEASUREMENTS
from membound.tests.analysis.made_up import MadeUp, many
from membound.tests.generated import run

RECORDS = 100_000
PROCESSES = 3
_STEPS = {
    "load": "from membound.analysis import load; load({path!r})",
    "report": "from membound.analysis.report import report; "
    "print(len(report([{path!r}], form='html').text), 'characters')",
}
_AROUND = """
import resource, time
begun = time.perf_counter()
{step}
used = resource.getrusage(resource.RUSAGE_SELF)
print(f"{name}: {{time.perf_counter() - begun:.1f}} s, "
      f"{{used.ru_utime + used.ru_stime:.1f}} s of the processor, {{used.ru_maxrss / 1e6:.2f}} GB")
"""


def main() -> None:
    """Make the run, then load it and report on it."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    with tempfile.TemporaryDirectory() as folder:
        path = run(Path(folder), list(MadeUp().copies()))
        with (path / MEASUREMENTS).open("ab") as file:
            for record in many(records // PROCESSES, PROCESSES):
                file.write(msgspec.json.encode(record) + b"\n")
        size = (path / MEASUREMENTS).stat().st_size
        print(f"{records:,} generated records of 50 samples, {size / 1e6:.0f} MB")
        for name, step in _STEPS.items():
            code = _AROUND.format(name=name, step=step.format(path=str(path)))
            subprocess.run([sys.executable, "-P", "-c", code], check=True)


if __name__ == "__main__":
    main()
