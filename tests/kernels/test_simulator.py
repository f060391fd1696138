"""Numba's simulator as it is mended here: barriers, missing ones, and threads that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("numba.cuda")

SCRIPT = """
import json, threading
import numpy as np
from numba import cuda, float32
from membound.tests.kernels import simulator

simulator.mend()
real = cuda

@cuda.jit(device=True)
def place():
    return cuda.threadIdx.x

@cuda.jit
def reverse(x, y, waits):
    shared = cuda.shared.array(64, float32)
    at = place()
    shared[at] = x[at]
    if waits:
        cuda.syncthreads()
    y[at] = shared[63 - at]

@cuda.jit
def fail(x):
    if place() == 5:
        raise ValueError("thread 5")
    cuda.syncthreads()
    x[place()] = 1

def right(waits):
    x, y = np.arange(1, 65, dtype=np.float32), np.zeros(64, np.float32)
    reverse[1, 64](x, y, waits)
    return bool((y == x[::-1]).all())

said, x = "", np.zeros(64, np.float32)
try:
    fail[1, 64](x)
except ValueError as error:
    said = str(error)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(10)
print(json.dumps({
    "waits": right(True), "does not": right(False), "said": said, "written": bool(x.any()),
    "threads": threading.active_count(), "restored": cuda is real,
}))
"""


def test_a_missing_barrier_shows_and_a_failure_ends_the_block() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "thread 5" in found.pop("said")
    assert found == {
        "waits": True, "does not": False, "written": False, "threads": 1, "restored": True,
    }  # fmt: skip
