"""Recorded answers: a `probe.Machine` made of data instead of drivers.

`answers/machines.json` maps a machine to what CUDA and NVML say there. "source" tells where the
answers are from, or that they are derived from the sheet. {"error": text} is a refused question; a
question without an answer is refused too.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from membound.bench.device.probe import QueryError

ANSWERS = Path(__file__).with_name("answers") / "machines.json"
UUID = "8932f937-d72c-4106-c12f-20bd9faed9f6"
HOST_FILES = {
    "/proc/meminfo": "MemTotal: 65536000 kB\nMemFree: 1000 kB\nMemAvailable: 60000000 kB\n",
    "/proc/cpuinfo": "model name\t: Recorded CPU\n",
    "/proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
    "/proc/loadavg": "0.25 0.1 0.1 1/300 4321\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
}


LIMITS = {
    "pci_bus_id": "0000:01:00.0",
    "COMPUTE_MODE": 0,
    "MAX_THREADS_PER_MULTIPROCESSOR": 1536,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 101376,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 102400,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
}
"""What every driver answers; the same for all, since no test depends on it."""


@dataclass
class Recorded:
    """Answers by question. `gpus` holds one dict per CUDA device; an Exception in `cuda_error` or
    `nvml_error` is what loading that library gives."""

    gpus: list[dict[str, Any]] = field(default_factory=list)
    nvml_answers: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=lambda: dict(HOST_FILES))
    environment: dict[str, str] = field(default_factory=dict)
    cpus: list[int] = field(default_factory=lambda: [0, 1, 2, 3])
    machine: str = "x86_64"
    cuda_error: Exception | None = None
    nvml_error: Exception | None = None

    def cuda(self, query: str, ordinal: int = 0) -> object:
        if self.cuda_error is not None:
            raise self.cuda_error
        if query == "count":
            return len(self.gpus)
        if query == "driver_version":
            return 13000
        return _answer(self.gpus[ordinal], query, "CUDA_ERROR_NOT_SUPPORTED")

    def nvml(self, query: str, identity: str = "") -> object:
        if self.nvml_error is not None:
            raise self.nvml_error
        if query == "driver_version":
            return "580.95.05"
        prefix = "MIG-" if self.nvml_answers.get("mig") else "GPU-"
        if query == "uuids":
            return self.nvml_answers.get("uuids", [prefix + UUID])
        if identity not in (prefix + UUID, self.gpus[0].get("pci_bus_id")):
            raise QueryError("Not Found")
        if query == "uuid":
            return self.nvml_answers.get("uuid", prefix + UUID)
        return _answer(self.nvml_answers, query, "Not Supported")

    def read(self, path: str) -> str:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path]

    def glob(self, pattern: str) -> list[str]:
        # index* names folders, of which only files are recorded.
        depth = pattern.count("/")
        names = {"/".join(path.split("/")[: depth + 1]) for path in self.files}
        return sorted(fnmatch.filter(names, pattern))

    def environ(self, name: str) -> str | None:
        return self.environment.get(name)

    def affinity(self) -> list[int]:
        return self.cpus

    def architecture(self) -> str:
        return self.machine

    def pid(self) -> int:
        return 100


def _answer(answers: dict[str, Any], query: str, refusal: str) -> object:
    value = answers.get(query, {"error": refusal})
    if isinstance(value, dict):
        raise QueryError(value["error"])
    return value


@pytest.fixture
def recorded() -> Callable[[str], Recorded]:
    """A recorded machine by its key in `machines.json`."""
    machines = json.loads(ANSWERS.read_text())

    def machine(key: str) -> Recorded:
        answers = machines[key]
        nvml = answers.get("nvml", {})
        refused = nvml if isinstance(nvml, str) else None
        return Recorded(
            gpus=[{"uuid": UUID.replace("-", ""), **LIMITS, **answers["cuda"]}],
            nvml_answers={} if refused else nvml,
            nvml_error=QueryError(refused) if refused else None,
            files={**HOST_FILES, **answers.get("files", {})},
        )

    return machine


@pytest.fixture
def bare() -> type[Recorded]:
    """`Recorded` itself, for machines of a test's own making."""
    return Recorded
