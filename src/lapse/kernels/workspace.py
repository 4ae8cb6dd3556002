"""Buffers that are used again: a fresh one costs a page fault for every 4 KiB that is touched."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

KEPT_BYTES = 1 << 30  # what may lie idle; a training loop needs its largest tape once or twice

# By identity, oldest first. No lock: memory comes back whenever the collector runs, which may be while this very
# thread looks for some. Each operation on the dict is atomic, and what was seen may be gone a moment later.
_idle: dict[int, np.ndarray] = {}


class _Lease(np.ndarray):
    """Borrowed memory, which goes back when the last tensor on it is gone: torch holds on to what one was made from."""

    raw: np.ndarray | None = None

    def __del__(self) -> None:
        if self.raw is not None:
            _give_back(self.raw)


def borrow(size: int, dtype: torch.dtype) -> Tensor:
    """A tensor of ``size`` elements, contents arbitrary, whose memory goes back when its storage is freed."""
    count = max(1, size) * dtype.itemsize
    raw = _take(count)
    lease = raw[:count].view(_Lease)
    lease.raw = raw
    return torch.from_numpy(lease).view(dtype)


def _take(count: int) -> np.ndarray:
    fitting = [(len(raw), key) for key, raw in _idle.copy().items() if count <= len(raw) <= 2 * count + 65536]
    for _, key in sorted(fitting):
        if (found := _idle.pop(key, None)) is not None:
            return found
    raw = np.empty(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count]


def _give_back(raw: np.ndarray) -> None:
    _idle[id(raw)] = raw
    while sum(map(len, _idle.copy().values())) > KEPT_BYTES:
        _idle.pop(next(iter(_idle), 0), None)
