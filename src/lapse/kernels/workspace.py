"""Buffers that are used again: a fresh one costs a page fault for every 4 KiB that is touched."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import torch
from torch import Tensor

KEPT_BYTES = 1 << 30  # what may lie idle; a training loop needs its largest tape once or twice

_idle: list[np.ndarray] = []
_lock = threading.Lock()


def borrow(size: int, dtype: torch.dtype) -> Tensor:
    """A tensor of ``size`` elements, contents arbitrary, whose memory goes back when its storage is freed."""
    count = max(1, size) * dtype.itemsize
    raw = _take(count)
    lease = raw[:count]  # lives as long as the storage does: torch holds on to what it was made from
    weakref.finalize(lease, _give_back, raw).atexit = False
    return torch.from_numpy(lease).view(dtype)


def _take(count: int) -> np.ndarray:
    with _lock:
        fitting = [i for i, raw in enumerate(_idle) if count <= len(raw) <= 2 * count + 65536]
        if fitting:
            return _idle.pop(min(fitting, key=lambda i: len(_idle[i])))
    raw = np.empty(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count]


def _give_back(raw: np.ndarray) -> None:
    with _lock:
        _idle.append(raw)
        while sum(len(r) for r in _idle) > KEPT_BYTES:
            _idle.pop(0)
