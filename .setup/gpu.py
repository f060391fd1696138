"""`make gpu`: the GPU tests, a standard run and its report, with the interpreter that runs this.

`make gpu GPU=--tests` stops after the tests.

With `make gpu SYSTEM=1` that interpreter is the machine's own. Nothing is installed then: what is
missing is named, and only what needs it is left out.

Exit status: that of the first step that failed; 4 where there is no GPU (make prints it as
"Error 4" and, as always, ends with 2 itself).
"""

import importlib.util
import subprocess
import sys

from linked import ROOT, link, membound

OLDEST_PYTHON = (3, 11)
# Module to the package that brings it: nothing is measured without these.
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "cuda.core": "cuda-core",
    "msgspec": "msgspec",
    "typer": "typer",
    "rich": "rich",
}
# Module to what is left out without it.
OPTIONAL = {
    "cupy": "the cupy implementations",
    "numba_cuda": "the numba implementations",
    "triton": "the triton implementations",
    "pytest": "the GPU tests",
    "pandas": "the report; make it on a machine that has pandas: membound report RUN",
}


def has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main() -> int:
    missing = [package for module, package in NEEDED.items() if not has(module)]
    if missing:
        print(f"{sys.executable} lacks what measuring needs: {', '.join(missing)}", file=sys.stderr)
        return 1
    if failed := membound("doctor", "--device", "cuda"):
        return failed
    for module, loss in OPTIONAL.items():
        if not has(module):
            print(f"without {module}, left out: {loss}", flush=True)
    steps = [0]
    if has("pytest"):
        steps.append(subprocess.call([sys.executable, "-P", "-m", "pytest", "-m", "gpu"], cwd=ROOT))
    if "--tests" in sys.argv:
        return steps[-1]
    steps.append(membound("run", "--preset", "standard", "--device", "cuda", "--time-limit", "8m"))
    if has("pandas"):
        steps.append(membound("report"))
    return next(filter(None, steps), 0)


if __name__ == "__main__":
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(f"membound needs Python 3.11 or newer; {sys.executable} is older")
    link()
    sys.exit(main())
