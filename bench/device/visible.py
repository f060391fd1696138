"""CUDA_VISIBLE_DEVICES as CUDA reads it.

Forms (CUDA Programming Guide, "CUDA Environment Variables"): unset shows every GPU, empty none;
else a comma-separated list of indices, `GPU-` UUIDs (any unambiguous beginning), `MIG-` UUIDs,
and the older `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`. The first invalid entry, such as
-1, ends the list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]+)/\d+/\d+")


@dataclass(frozen=True)
class Visibility:
    """The entries that count, in CUDA's order, and what ended the list early.

    `entries` is None when the variable is unset; an index stays an index (CUDA's own order of
    devices need not be NVML's), a UUID is completed.
    """

    entries: tuple[str, ...] | None
    problem: str | None = None


def visible(value: str | None, uuids: Sequence[str]) -> Visibility:
    """What CUDA_VISIBLE_DEVICES=`value` shows on a machine with these GPU and MIG UUIDs."""
    if value is None:
        return Visibility(None)
    if not value.strip():
        return Visibility((), "it is empty")
    entries: list[str] = []
    for position, part in enumerate(value.split(","), start=1):
        entry, problem = _resolve(part.strip(), uuids)
        if problem is None and entry in entries:
            problem = "is there twice"
        if problem is not None:
            return Visibility(tuple(entries), f"entry {position}, {part.strip()!r}, {problem}")
        entries.append(entry)
    return Visibility(tuple(entries))


def _resolve(entry: str, uuids: Sequence[str]) -> tuple[str, str | None]:
    """(completed entry, what is wrong with it)."""
    gpus = [uuid for uuid in uuids if uuid.startswith("GPU-")]
    if re.fullmatch(r"[0-9]{1,9}", entry):
        if int(entry) >= len(gpus):
            return entry, f"is not an index here: there are {len(gpus)} GPUs"
        return str(int(entry)), None
    old = _OLD_MIG.fullmatch(entry.replace("MIG-gpu", "MIG-GPU"))
    if old:
        return entry, None if old[1] in gpus else "names a GPU that is not here"
    if not entry.startswith(("GPU-", "MIG-")):
        return entry, "is neither an index nor a GPU- or MIG- UUID"
    kind = entry[:4]
    beginning = kind + entry[4:].lower()
    fitting = [uuid for uuid in uuids if uuid.startswith(beginning)]
    if kind == "MIG-":
        fitting = [uuid for uuid in fitting if uuid == beginning]
    if len(fitting) != 1:
        return entry, f"fits {len(fitting)} devices here"
    return fitting[0], None
