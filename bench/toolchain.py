"""What surrounds a run, asked one by one: compilers, headers, libraries, permissions, disk.

Every question is guarded by itself: what cannot be answered is a line that says so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import metadata, util
from pathlib import Path

from ..kernels.target import Target
from .device.probe import one_line
from .device.select import Selected, compute_processes, snapshot
from .finding import Line
from .launch_probe import CTYPES

LEAST_DISK, ENOUGH_DISK = 64 << 20, 1 << 30
_CUDART = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")
_EXTRAS = "install the extra of this driver's CUDA: cuda13 or cuda12"

Check = Callable[[Selected], Iterator[Line]]


def gpu_lines(selected: Selected) -> Iterator[Line]:
    """Everything between Python and a CUDA device; nothing for the CPU."""
    if selected.device.kind != "cuda":
        return
    checks: dict[str, Check] = {
        "driver": driver, "runtime": runtime, "nvrtc": nvrtc, "headers": headers,
        "launch": launches, "ptxas": ptxas,
        "torch CUDA": torch_cuda, "cupy CUDA": cupy_cuda, "nvml": nvml,
        "nodes": device_nodes, "clocks": clocks, "others": other_processes,
    }  # fmt: skip
    for name, check in checks.items():
        yield from guarded(name, check, selected)


def guarded(name: str, check: Check, selected: Selected) -> Iterator[Line]:
    """The lines of one check; what it raises is a warning, not the end."""
    try:
        yield from check(selected)
    except Exception as error:
        yield Line("warn", name, f"cannot be told: {one_line(error)}", _EXTRAS)


def driver(selected: Selected) -> Iterator[Line]:
    device = selected.device
    text = f"{device.driver or 'of unknown version'}, CUDA {device.cuda_driver or 'unknown'}"
    yield Line("ok", "driver", f"{text}, at {_place('cuda')}")


def runtime(selected: Selected) -> Iterator[Line]:
    from cuda.bindings import runtime as library

    _, version = library.getLocalRuntimeVersion()
    yield _supported("runtime", "cudart", version // 1000, version % 1000 // 10, selected)


def nvrtc(selected: Selected) -> Iterator[Line]:
    from cuda.bindings import nvrtc as library  # type: ignore[import-untyped,unused-ignore]

    _, major, minor = library.nvrtcVersion()
    yield _supported("nvrtc", "nvrtc", major, minor, selected)


def _supported(name: str, library: str, major: int, minor: int, selected: Selected) -> Line:
    """A library of CUDA with its place; a driver of an older major version cannot serve it."""
    text = f"{major}.{minor} at {_place(library)}"
    supports = (selected.device.cuda_driver or "").partition(".")[0]
    if supports.isdecimal() and int(supports) < major:
        remedy = f"update the driver, or install the cuda{supports} extra"
        text += f"; the driver supports {selected.device.cuda_driver}"
        return Line("fail", name, text, remedy)
    return Line("ok", name, text)


def _place(library: str) -> str:
    """The path that a library is loaded from; why it is unknown."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        return str(load_nvidia_dynamic_lib(library).abs_path)
    except Exception as error:
        return f"an unknown place ({one_line(error)})"


def headers(selected: Selected) -> Iterator[Line]:
    from cuda.bindings import nvrtc as library

    from ..kernels.backends.cuda_nvrtc import include_folders

    _, major, minor = library.nvrtcVersion()
    for folder in include_folders()[1:]:
        version = header_version(folder)
        if version is None:
            yield Line("ok", "headers", str(folder))
        elif version[0] != major:
            text = f"{version[0]}.{version[1]} at {folder}, but NVRTC is {major}.{minor}"
            yield Line("warn", "headers", text, "install both from one CUDA, or unset CUDA_HOME")
        else:
            yield Line("ok", "headers", f"{version[0]}.{version[1]} at {folder}")


def header_version(folder: Path) -> tuple[int, int] | None:
    """CUDART_VERSION of the headers in `folder`; None where it holds other ones."""
    try:
        found = _CUDART.search((folder / "cuda_runtime_api.h").read_text(errors="replace"))
    except OSError:
        return None
    return (int(found[1]) // 1000, int(found[1]) % 1000 // 10) if found else None


def launches(selected: Selected) -> Iterator[Line]:
    from ..kernels.backends.cuda_nvrtc import include_folders

    try:
        places = ", ".join(map(str, include_folders()[1:]))
    except Exception as error:
        places = f"nowhere: {one_line(error)}"
    command = [sys.executable, "-P", "-m", "membound.bench.launch_probe"]
    for dtype, wrong in launched(command, selected.target).items():
        if wrong is None:
            yield Line("ok", "launch", f"{dtype}: compiled, launched and right")
        else:
            yield Line("fail", "launch", f"{dtype}: {wrong}", f"headers are taken from {places}")


def launched(
    command: Sequence[str], target: Target, timeout: float = 300.0
) -> dict[str, str | None]:
    """What a probing process says of each element type; how it ended where it says nothing."""
    try:
        ended = subprocess.run(
            command,
            input=json.dumps(asdict(target)),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
        found = json.loads(ended.stdout.strip().splitlines()[-1])
        return {dtype: found[dtype] and one_line(ValueError(found[dtype])) for dtype in CTYPES}
    except subprocess.TimeoutExpired:
        reason = f"gave no answer for {timeout:g} s"
    except (ValueError, LookupError, TypeError):
        last = (ended.stderr.strip().splitlines() or ["it says nothing"])[-1]
        reason = f"the probe ended with status {ended.returncode}: {one_line(ValueError(last))}"
    return dict.fromkeys(CTYPES, reason)


def ptxas(selected: Selected) -> Iterator[Line]:
    arch = selected.target.arch
    remedy = f"set TRITON_PTXAS_PATH to the ptxas of a CUDA toolkit that knows {arch}"
    places = assemblers()
    if not places:
        return
    for place in places:
        said = subprocess.run([place, "--help"], capture_output=True, text=True, timeout=30).stdout
        if re.search(rf"\b{arch}\b", said):
            yield Line("ok", "ptxas", f"Triton's {place.name} knows {arch}: {place}")
            return
    names = ", ".join(str(place) for place in places)
    yield Line("warn", "ptxas", f"none of Triton's knows {arch}: {names}", remedy)


def assemblers() -> list[Path]:
    """The ptxas that Triton would use; empty without Triton."""
    given = os.environ.get("TRITON_PTXAS_PATH")
    if given:
        return [Path(given)]
    found = util.find_spec("triton")
    if found is None or found.origin is None:
        return []
    return sorted((Path(found.origin).parent / "backends" / "nvidia" / "bin").glob("ptxas*"))


def torch_cuda(selected: Selected) -> Iterator[Line]:
    import torch

    if torch.version.cuda is None:
        remedy = "install torch's CUDA build, as `make setup` does on a machine with a GPU"
        yield Line("fail", "torch CUDA", f"torch {torch.__version__} has none", remedy)
        return
    text = f"{torch.version.cuda}, torch {torch.__version__}"
    if selected.target.arch not in torch.cuda.get_arch_list():
        text += f"; {selected.target.arch} is not in its kernel list: the launch lines decide"
    yield Line("ok", "torch CUDA", text)


def cupy_cuda(selected: Selected) -> Iterator[Line]:
    driver = (selected.device.cuda_driver or "").partition(".")[0]
    for distribution in ("cupy-cuda13x", "cupy-cuda12x"):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        needs = distribution[-3:-1]
        if driver.isdecimal() and int(driver) < int(needs):
            text = f"{distribution} {version}; the driver supports {selected.device.cuda_driver}"
            yield Line("warn", "cupy CUDA", text, f"install cupy-cuda{driver}x")
        else:
            yield Line("ok", "cupy CUDA", f"{distribution} {version}")


def nvml(selected: Selected) -> Iterator[Line]:
    if selected.nvml is None:
        why = selected.missing.get("nvml", "it does not know this device")
        remedy = "clocks, power and other processes stay unknown; a container needs the utility"
        yield Line("warn", "nvml", why, f"{remedy} capability, or a restart")
    else:
        yield Line("ok", "nvml", f"knows it as {selected.nvml}")


def device_nodes(selected: Selected) -> Iterator[Line]:
    """Files that a user must be able to open; there are none on WSL."""
    nodes = [
        Path("/dev/nvidiactl"),
        Path("/dev/nvidia-uvm"),
        *sorted(Path("/dev").glob("nvidia[0-9]*")),
    ]
    there = [node for node in nodes if node.exists()]
    shut = [str(node) for node in there if not os.access(node, os.R_OK | os.W_OK)]
    if shut:
        remedy = "add the user to the group that owns them (video, render)"
        yield Line("warn", "nodes", f"may not be opened: {', '.join(shut)}", remedy)
    elif there:
        yield Line("ok", "nodes", ", ".join(map(str, there)))


def clocks(selected: Selected) -> Iterator[Line]:
    state = snapshot(selected)
    if "sm_clock_mhz" not in state:
        yield Line("warn", "clocks", "unknown", "a slow state would not be noticed")
        return
    text = f"{state['sm_clock_mhz']:g} of {selected.device.sm_clock_mhz or 'unknown'} MHz now"
    slowed = str(state.get("clocks_slowed_by", "nothing"))
    if slowed != "nothing":
        yield Line("warn", "clocks", f"{text}, held back by {slowed}", "cool it, or lift the limit")
    else:
        yield Line("ok", "clocks", text)


def other_processes(selected: Selected) -> Iterator[Line]:
    others = compute_processes(selected)
    if others:
        yield Line("warn", "others", f"compute here too: {', '.join(others)}", "end them first")
    elif others is not None:
        yield Line("ok", "others", "nothing else computes on this GPU")


def host_lines(selected: Selected, out: Path = Path("results")) -> Iterator[Line]:
    """The governor, and where results and compiled kernels go."""
    governor = selected.host.get("governor")
    if governor is not None:
        yield Line("ok", "governor", f"{governor} ({selected.host.get('cpu', 'CPU')})")
    yield from guarded("results", lambda _: _writable("results", out), selected)
    from ..kernels.backends.cuda_nvrtc import cache_folder

    cache = cache_folder("cubins").parent
    for line in guarded("cache", lambda _: _writable("cache", cache), selected):
        # Without a cache kernels are compiled again; a run works all the same.
        yield Line("warn", line.name, line.text, line.remedy) if line.level == "fail" else line


def _writable(name: str, folder: Path) -> Iterator[Line]:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{folder}: {free / 2**30:.1f} GiB free"
    if not place.is_dir() or not os.access(place, os.W_OK):
        yield Line("fail", name, f"{folder} may not be written", "choose another place with --out")
    elif free < ENOUGH_DISK:
        level = "fail" if free < LEAST_DISK else "warn"
        yield Line("fail" if level == "fail" else "warn", name, text, "free some space")
    else:
        yield Line("ok", name, text)
