"""Whether a call is ordinary enough for a fused kernel."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def plain_autograd() -> bool:
    """Whether only reverse-mode autograd is at work: no function transform, no forward mode, no graph capture."""
    return (
        torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.compiler.is_compiling()
    )
