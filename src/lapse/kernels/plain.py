"""Whether a call is ordinary enough for a fused kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def plain_autograd() -> bool:
    """Whether only reverse-mode autograd is at work: no function transform, no forward mode, no graph capture."""
    return (
        torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.compiler.is_compiling()
    )


def plain_tensor(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether its memory holds its values, as numbers of this type, where the processor can read them."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
        and tensor.dtype == dtype
        and tensor.is_cpu
        and tensor.layout == torch.strided
        and not tensor.is_neg()
    )
