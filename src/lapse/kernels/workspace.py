"""Buffers that are used again: a fresh one costs a page fault for every 4 KiB that is touched."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

KEPT_BYTES = 1 << 30  # what may lie idle; a training loop needs its largest tape once or twice

# By size, which is rounded: batches of nearly the same length share a buffer, and pages that nobody touches cost
# nothing. No lock: memory comes back whenever the collector runs, which may be while this very thread looks for
# some. Each operation on a dict or list is atomic, and what was seen may be gone a moment later.
_idle: dict[int, list[np.ndarray]] = {}


class _Lease(np.ndarray):
    """Borrowed memory, which goes back when the last tensor on it is gone: torch holds on to what one was made from."""

    raw: np.ndarray | None = None

    def __del__(self) -> None:
        if self.raw is not None:
            _give_back(self.raw)


def borrow(size: int, dtype: torch.dtype) -> Tensor:
    """A tensor of `size` elements, contents arbitrary, whose memory goes back when its storage is freed."""
    count = max(1, size) * dtype.itemsize
    raw = _take(_rounded(count))
    lease = raw[:count].view(_Lease)
    lease.raw = raw
    return torch.from_numpy(lease).view(dtype)


def _rounded(count: int) -> int:
    """Up to three leading bits; as it is if it would not be kept anyway."""
    unit = 1 << max(0, count.bit_length() - 3)
    return count if count > KEPT_BYTES else -(-count // unit) * unit


def _take(count: int) -> np.ndarray:
    try:
        return _idle[count].pop()
    except (KeyError, IndexError):
        raw = np.empty(count + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + count]


def _give_back(raw: np.ndarray) -> None:
    if len(raw) > KEPT_BYTES:
        return
    if sum(size * len(idle) for size, idle in _idle.copy().items()) + len(raw) > KEPT_BYTES:
        _idle.clear()  # what lies idle was made for other work than what is done now
    _idle.setdefault(len(raw), []).append(raw)
