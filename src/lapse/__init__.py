"""Neural networks that know how much time has passed: learning from irregularly-sampled time series."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapse.events import Events as Events
    from lapse.events import decode_events as decode_events
    from lapse.events import encode_events as encode_events
    from lapse.sequences import Batch as Batch
    from lapse.sequences import LengthBatches as LengthBatches
    from lapse.sequences import Sequences as Sequences
    from lapse.sequences import Standardizer as Standardizer
    from lapse.tasks import TASKS as TASKS
    from lapse.tasks import Task as Task

__version__ = "0.1.0"

# Loaded when first asked for, so that `import lapse` costs nothing it does not need.
_HOMES = {
    "Batch": "lapse.sequences",
    "Events": "lapse.events",
    "LengthBatches": "lapse.sequences",
    "Sequences": "lapse.sequences",
    "Standardizer": "lapse.sequences",
    "TASKS": "lapse.tasks",
    "Task": "lapse.tasks",
    "decode_events": "lapse.events",
    "encode_events": "lapse.events",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lapse' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
