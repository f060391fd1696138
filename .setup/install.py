"""Set up `.venv/`: check what must be there first, choose CUDA 13, CUDA 12 or the CPU, install.

Run by `make`. Standard library only, and in the syntax of Python 3.6: the interpreter that starts
this file may be too old for the rest, and saying so is this file's work.
"""

import ctypes
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / ".setup" / "constraints.txt"

OLDEST_PYTHON = (3, 11)
NEWER_PYTHONS = ("python3.13", "python3.12", "python3.11", "python3.14")
CPU_TORCH = "torch==2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA12_INDEX = "https://download.pytorch.org/whl/cu128"

PIP_INSTALL = (
    *(str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "-qq"),
    # What is imported is compiled then, unless this environment keeps no bytecode.
    *(() if sys.dont_write_bytecode else ("--no-compile",)),
)

# What `make` looks at: an older stamp than pyproject.toml, or none, means set up (again).
RUN_STAMP = VENV / ".ready-to-run"
TEST_STAMP = VENV / ".ready-to-test"

# What a fresh set-up downloads, in GB (x86-64, measured); tests add 0.6 on a CPU.
DOWNLOADS = {"cpu": 0.4, "cuda12": 4.5, "cuda13": 3.4}

# The package that brings each requirement, by package manager; {v} is Python's major.minor.
PACKAGES = {
    "apt-get": {
        "python": "python{v}",
        "venv": "python{v}-venv",
        "headers": "python{v}-dev",
        "g++": "g++",
    },
    "dnf": {
        "python": "python{v}",
        "venv": "python{v}",
        "headers": "python{v}-devel",
        "g++": "gcc-c++",
    },
    "pacman": {"python": "python", "venv": "python", "headers": "python", "g++": "gcc"},
}
ADVICE = {
    "apt-get": "apt-get install",
    "dnf": "dnf install",
    "pacman": "pacman -S",
}
REASONS = {
    "python": "Python {oldest} or newer (this is {v})",
    "venv": "Python's venv with ensurepip",
    "headers": "Python.h, which torch.compile and Triton compile against",
    "g++": "g++, which torch.compile and the tests compile with",
}


def say(line: str) -> None:
    print("membound: " + line, flush=True)


def missing_requirements() -> "list[str]":
    """Keys of `REASONS` for what this machine lacks."""
    if sys.version_info < OLDEST_PYTHON:
        missing = ["python", "venv", "headers"]
    else:
        missing = []
        try:
            import ensurepip  # noqa: F401
        except ImportError:
            missing.append("venv")
        if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
            missing.append("headers")
    if shutil.which("g++") is None:
        missing.append("g++")
    return missing


def advice(missing: "list[str]") -> str:
    """What is missing and the command that brings it, in one message."""
    here = ".".join(map(str, sys.version_info[:2]))
    oldest = ".".join(map(str, OLDEST_PYTHON))
    wanted = here if sys.version_info >= OLDEST_PYTHON else oldest
    lines = ["missing on this machine:"]
    lines += ["  - " + REASONS[key].format(v=here, oldest=oldest) for key in missing]
    managers = [name for name in ADVICE if shutil.which(name)] or list(ADVICE)
    for manager in managers:
        names = {PACKAGES[manager][key].format(v=wanted) for key in missing}
        lines.append("install: " + ADVICE[manager] + " " + " ".join(sorted(names)))
    return "\n".join(lines)


def newer_python() -> "str | None":
    """Another interpreter on PATH that is new enough, where this one is not."""
    return next((path for path in map(shutil.which, NEWER_PYTHONS) if path), None)


def cuda_from_driver() -> "tuple[int, int] | None":
    """(major, minor) of the CUDA version that libcuda supports; None without a usable GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return cuda_from_nvidia_smi()
    version, devices = ctypes.c_int(), ctypes.c_int()
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(devices))
    if failed or devices.value == 0 or driver.cuDriverGetVersion(ctypes.byref(version)):
        say(f"a CUDA driver is installed but shows no GPU (error {failed})")
        return None
    return version.value // 1000, version.value % 1000 // 10


def cuda_from_nvidia_smi() -> "tuple[int, int] | None":
    try:
        text = subprocess.check_output(["nvidia-smi"], stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", text.decode(errors="replace"))
    return (int(found.group(1)), int(found.group(2))) if found else None


def choose_extra(cuda: "tuple[int, int] | None", machine: str) -> str:
    """The extra of pyproject.toml for this driver and processor, with the reason on screen."""
    if cuda is None:
        say("no GPU found: setting up for the CPU")
        return "cpu"
    found = "the driver supports CUDA {}.{}".format(*cuda)
    if cuda >= (13, 0):
        say(found + ": setting up with the extra cuda13")
        return "cuda13"
    if cuda < (12, 0):
        say(found + ", and 12 is the oldest that torch is built for: setting up for the CPU")
        return "cpu"
    if machine != "x86_64":
        say(
            f"{found}: for {machine} torch with CUDA 12 is only on PyTorch's own index "
            f"({CUDA12_INDEX}); install it from there into .venv, or update the driver to 580; "
            "setting up for the CPU"
        )
        return "cpu"
    say(found + ": setting up with the extra cuda12")
    return "cuda12"


def pip_install(*arguments: str) -> None:
    """Errors only: the warnings of a machine's own pip configuration are not ours to show."""
    subprocess.check_call([*PIP_INSTALL, *arguments])


def install_cpu_torch() -> None:
    """torch's CPU build; its dependencies come with the rest, from the usual index."""
    once = ["--index-url", CPU_INDEX, "--retries", "0", "--timeout", "10"]
    tried = subprocess.run([*PIP_INSTALL, "--no-deps", CPU_TORCH, *once], stderr=subprocess.DEVNULL)
    if tried.returncode:
        say(
            f"{CPU_INDEX} not reached: {CPU_TORCH} comes from the usual index, where it may be "
            "the CUDA build, gigabytes larger"
        )
        pip_install("--no-deps", CPU_TORCH)


def make_venv(extra: str) -> None:
    """A new `.venv/`, unless there is one for the same extra: CPU and CUDA builds do not mix."""
    note = VENV / ".extra"
    if not PYTHON.exists() or not note.exists() or note.read_text() != extra:
        say(f"installing into {VENV}; a first set-up downloads about {DOWNLOADS[extra]} GB")
        subprocess.check_call([sys.executable, "-m", "venv", "--clear", str(VENV)])
        note.write_text(extra)


def install(extra: str, for_tests: bool) -> None:
    extras = [extra, "test"] if for_tests else [extra]
    pinned = ["--constraint", str(CONSTRAINTS)] if extra == "cpu" else []
    pip_install(*pinned, "setuptools>=77")
    if extra == "cpu":
        install_cpu_torch()
        if for_tests:
            extras.append("compilers")
    target = "{}[{}]".format(ROOT, ",".join(extras))
    pip_install("--no-build-isolation", *pinned, "--editable", target)


def main() -> int:
    for_tests = "--test" in sys.argv[1:]
    if sys.version_info < OLDEST_PYTHON:
        newer = newer_python()
        if newer:
            return subprocess.call([newer, *sys.argv])
    missing = missing_requirements()
    if missing:
        say(advice(missing))
        return 1
    extra = choose_extra(cuda_from_driver(), platform.machine())
    try:
        make_venv(extra)
        install(extra, for_tests)
    except subprocess.CalledProcessError as error:
        say(f"set-up stopped: the reason is above (exit {error.returncode})")
        return 1
    for stamp in [RUN_STAMP, TEST_STAMP] if for_tests else [RUN_STAMP]:
        stamp.touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
