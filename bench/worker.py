"""One fresh process: reads a plan from standard input, writes events to a file descriptor.

    python -P -m membound.bench.worker FD < plan.json

Standard output and error are the libraries'; only FD carries events, each a whole line. The worker
ends when the supervisor does, and ignores Ctrl-C, which the supervisor answers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Iterator

import msgspec

from .protocol import Event, Missing, Plan, Poisoned

_PR_SET_PDEATHSIG = 1
POISONED = 75
"""Exit status after a CUDA context became unusable."""


def main() -> int:
    depend_on_parent()
    events = int(sys.argv[1])
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    encoder = msgspec.json.Encoder()
    try:
        for event in _events(plan):
            write(events, encoder.encode(event) + b"\n")
            if isinstance(event, Poisoned):
                os._exit(POISONED)  # destructors of a dead CUDA context hang
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    return 0


def _events(plan: Plan) -> Iterator[Event]:
    from .start import start
    from .walk import Walk

    session = start(plan)
    yield from (Missing(what, why) for what, why in session.missing.items())
    yield from Walk(plan, session).run()


def depend_on_parent() -> None:
    """Leave Ctrl-C to the supervisor; on Linux be killed when it goes, however it goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)


def write(descriptor: int, line: bytes) -> None:
    """All of `line`, however much the pipe takes at a time."""
    while line:
        line = line[os.write(descriptor, line) :]


if __name__ == "__main__":
    sys.exit(main())
