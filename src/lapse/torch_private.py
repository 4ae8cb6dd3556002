"""Everything of torch that is not public, in one place, because any version of torch may do without it.

Where one of these names is gone, no call counts as an ordinary one, so that the reference loop takes all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., Any])
_ORDINARY, _STRIDED = (Tensor, nn.Parameter), torch.strided

try:
    _functorch: Any = torch._C._functorch
    _functorch.is_functorch_wrapped_tensor, _functorch.is_batchedtensor, _functorch.get_unwrapped  # noqa: B018
    # By names of their own: these two are called several times per step of a stream.
    _transforms, _is_batched = _functorch.peek_interpreter_stack, _functorch.is_legacy_batchedtensor
    _dispatch_modes: Any = torch._C._len_torch_dispatch_stack
    forward_ad._current_level  # noqa: B018
    from torch.nn.modules.module import _has_any_global_hook
except (ImportError, AttributeError):
    KNOWN = False
else:
    KNOWN = True


def ordinary_call() -> bool:
    """Whether only reverse-mode autograd is at work: no function transform, no forward mode, no graph capture."""
    return (
        KNOWN
        and _transforms() is None
        and forward_ad._current_level < 0
        and _dispatch_modes() == 0
        and not torch.compiler.is_compiling()
    )


def ordinary_tensor(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor's memory holds its values, as numbers of type `dtype`, where the processor can read them."""
    return (
        type(tensor) in _ORDINARY
        and not _is_batched(tensor)
        and tensor.dtype is dtype
        and tensor.is_cpu
        and tensor.layout is _STRIDED
        and not tensor.is_neg()
    )


def has_global_hooks() -> bool:
    """Whether hooks are registered that run for every module."""
    return bool(_has_any_global_hook())


def module_call() -> Any:
    """What calling a module runs, without the function that `torch.fx` puts around it while it traces a graph."""
    call: Any = nn.Module.__call__
    while getattr(call, "__globals__", {}).get("__name__") == "torch.fx._symbolic_trace":
        call = call.__wrapped__
    return call


def readable(tensor: Tensor) -> bool:
    """Whether checks may look at a tensor's values: not on the meta device, while a graph is captured, or in `vmap`."""
    if torch.compiler.is_compiling() or tensor.is_meta:
        return False
    while KNOWN and _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return False
        tensor = _functorch.get_unwrapped(tensor)
    return True


_is_exporting = getattr(torch.compiler, "is_exporting", bool)  # torch 2.6 does not tell


def is_exporting() -> bool:
    """Whether `torch.export` is recording."""
    return bool(_is_exporting())


def is_tracing() -> bool:
    """Whether `torch.jit.trace` is recording."""
    return bool(getattr(torch.jit, "is_tracing", bool)())


def lstm(*arguments: Any) -> tuple[Tensor, Tensor, Tensor] | None:
    """The kernel behind `nn.LSTM`: output, h and c; None if there is no such kernel."""
    kernel: Any = getattr(torch, "_VF", None)
    found: tuple[Tensor, Tensor, Tensor] | None = kernel.lstm(*arguments) if hasattr(kernel, "lstm") else None
    return found


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], start: Any, inputs: Any
) -> tuple[
    Any, Any
]:  # pragma: no cover - torch runs it while it captures a graph, where coverage does not look
    """A loop over the first axis of tensors that a captured graph holds as a loop, whatever the length.

    Args:
        step: From what is carried and one slice of the inputs to what is carried on and one slice of the outputs.
        start: What is carried into the first step: a tuple of tensors.
        inputs: A tuple of tensors with the same first axis.
    """
    from torch._higher_order_ops.scan import scan as found

    result: tuple[Any, Any] = found(step, start, inputs)
    return result


def untraced(function: Function) -> Function:
    """Keep a function out of compiled graphs.

    `torch.compiler.disable` does so too, but it imports the whole compiler, which takes seconds, where it is used as a
    decorator; the private one imports it when the function is called.
    """
    disable: Any = getattr(torch, "_disable_dynamo", torch.compiler.disable)
    kept: Function = disable(function)
    return kept


def constant(function: Function) -> Function:
    """Run a function while a graph is traced, and take what it returns for a constant of the graph.

    A graph is traced anew when an argument is another object. `torch.compiler.assume_constant_result` does the same,
    but imports the whole compiler where it is used as a decorator.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
