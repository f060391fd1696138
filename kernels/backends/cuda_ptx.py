"""PTX of CUDA C++, for emulators and readers.

NVRTC is called directly: `cuda.core` asks the driver, for PTX, whether it could load the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..spec import CannotPrepare
from .cuda_nvrtc import STANDARD, first_error, include_folders


def compile_ptx(
    source: Path, names: Sequence[str], arch: str, defines: Mapping[str, str] | None = None
) -> tuple[str, dict[str, str]]:
    """PTX for `arch` ("sm_121") and the mangled names of the kernels `names`.

    Raises CannotPrepare with the first error where it does not compile.
    """
    from cuda.bindings import nvrtc

    text, name = source.read_bytes(), source.name.encode()
    program = _checked(nvrtc.nvrtcCreateProgram(text, name, 0, [], []))
    try:
        for expression in names:
            _checked(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        options = [f"--gpu-architecture={arch.replace('sm_', 'compute_')}", f"--std={STANDARD}"]
        options += [f"--include-path={folder}" for folder in (source.parent, *include_folders())]
        options += [f"--define-macro={key}={value}" for key, value in (defines or {}).items()]
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
            _checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise CannotPrepare(f"{source.name} for {arch}: {first_error(log.decode())}")
        ptx = bytearray(_checked(nvrtc.nvrtcGetPTXSize(program)))
        _checked(nvrtc.nvrtcGetPTX(program, ptx))
        lowered = (_checked(nvrtc.nvrtcGetLoweredName(program, n.encode())) for n in names)
        symbols = {n: symbol.decode() for n, symbol in zip(names, lowered, strict=True)}
        return ptx.rstrip(b"\0").decode(), symbols
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _checked(answer: Any) -> Any:
    """The value of a call's (status, value)."""
    status, *value = answer
    if status.value:
        raise CannotPrepare(f"NVRTC: {status.name}")
    return value[0] if value else None
