"""Neural networks that know how much time has passed: learning from irregularly-sampled time series."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lapse.kernels import backend as backend
from lapse.kernels import scan as _scan  # noqa: F401 - stored graphs hold the operator that it registers
from lapse.recurrent import CTGRU as CTGRU
from lapse.recurrent import CTLSTM as CTLSTM
from lapse.recurrent import CTRNN as CTRNN
from lapse.recurrent import GRUD as GRUD
from lapse.recurrent import GRUODE as GRUODE
from lapse.recurrent import LTC as LTC
from lapse.recurrent import ODELSTM as ODELSTM
from lapse.recurrent import ODERNN as ODERNN
from lapse.recurrent import RNN as RNN
from lapse.recurrent import AugmentedLSTM as AugmentedLSTM
from lapse.recurrent import Cell as Cell
from lapse.recurrent import CfC as CfC
from lapse.recurrent import CfCMixedMemory as CfCMixedMemory
from lapse.recurrent import CoupledLSTMODERNN as CoupledLSTMODERNN
from lapse.recurrent import MixedMemory as MixedMemory
from lapse.recurrent import NeuralCDE as NeuralCDE
from lapse.recurrent import PhasedLSTM as PhasedLSTM
from lapse.recurrent import RNNDecay as RNNDecay
from lapse.rows import Rows as Rows
from lapse.solvers import DOPRI5 as DOPRI5
from lapse.solvers import EULER as EULER
from lapse.solvers import HEUN as HEUN
from lapse.solvers import RK4 as RK4
from lapse.solvers import SOLVERS as SOLVERS
from lapse.solvers import Adaptive as Adaptive
from lapse.solvers import Adjoint as Adjoint
from lapse.solvers import Exponential as Exponential
from lapse.solvers import FixedStep as FixedStep
from lapse.solvers import SemiImplicit as SemiImplicit
from lapse.solvers import SolverError as SolverError
from lapse.solvers import Tableau as Tableau

if TYPE_CHECKING:
    from lapse import testing as testing
    from lapse.events import Events as Events
    from lapse.events import decode_events as decode_events
    from lapse.events import encode_events as encode_events
    from lapse.models import MODELS as MODELS
    from lapse.models import Forecaster as Forecaster
    from lapse.models import ModelConfig as ModelConfig
    from lapse.models import Predictions as Predictions
    from lapse.models import SequenceModel as SequenceModel
    from lapse.sequences import Batch as Batch
    from lapse.sequences import Cuts as Cuts
    from lapse.sequences import LengthBatches as LengthBatches
    from lapse.sequences import Sequences as Sequences
    from lapse.streaming import Stream as Stream
    from lapse.tasks import TASKS as TASKS
    from lapse.tasks import Task as Task

__version__ = "0.1.0"

# Imported when they are asked for: the layers need none of it, and it takes longer to import than they do.
_LATER = {
    "Batch": "lapse.sequences",
    "Cuts": "lapse.sequences",
    "Events": "lapse.events",
    "Forecaster": "lapse.models",
    "LengthBatches": "lapse.sequences",
    "MODELS": "lapse.models",
    "ModelConfig": "lapse.models",
    "Predictions": "lapse.models",
    "SequenceModel": "lapse.models",
    "Sequences": "lapse.sequences",
    "Stream": "lapse.streaming",
    "TASKS": "lapse.tasks",
    "Task": "lapse.tasks",
    "decode_events": "lapse.events",
    "encode_events": "lapse.events",
}
_PACKAGES = ("encoders", "events", "heads", "models", "sequences", "streaming", "tables", "tasks", "testing")

if not TYPE_CHECKING:  # or every name would count as one of ours

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return import_module(f"lapse.{name}")
        if name not in _LATER:
            raise AttributeError(f"module 'lapse' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_LATER[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER, *_PACKAGES})
