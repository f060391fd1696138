"""Gated activations of FlashInfer, which takes gate and up side by side in one tensor.

That is made outside the clock; the bytes are the same. They are compiled when prepared, which takes
nvcc and ninja.
"""

from __future__ import annotations

import torch
from flashinfer.activation import gelu_and_mul, get_act_and_mul_module, silu_and_mul

from ..backends.flashinfer import ARCH, refuses
from ..backends.peers import Call, Peer, lacking
from ..backends.torch import Eager, Function
from ..spec import Spec

__all__ = ["prepare", "refuses"]

Real = torch.Tensor

LACKS = lacking(["reglu"], "flashinfer")


def given(gate: Real, up: Real) -> tuple[Real]:
    return (torch.cat((gate, up), -1),)


def _swiglu(y: Real, gate_and_up: Real) -> None:
    silu_and_mul(gate_and_up, out=y)


def _geglu(y: Real, gate_and_up: Real) -> None:
    gelu_and_mul(gate_and_up, out=y)


def _refuses(direction: str, spec: Spec) -> str | None:
    try:
        get_act_and_mul_module("silu" if spec.operation.name == "swiglu" else "gelu")
    except Exception as error:  # whatever its compiler, or the lack of one, raises
        return f"flashinfer cannot compile it here: {str(error).strip().partition(chr(10))[0]}"
    return None


def _call(into: Function) -> Call:
    return Call(Eager(into=into, given=given, refuses=_refuses))


prepare = Peer({"swiglu": _call(_swiglu), "geglu": _call(_geglu)}, arch=ARCH)
