"""SiLU in PyTorch: `torch.nn.functional.silu` and its autograd, which are NaN at -inf."""

from __future__ import annotations

import torch

from ..backends.torch import Eager

prepare = Eager(torch.nn.functional.silu)
