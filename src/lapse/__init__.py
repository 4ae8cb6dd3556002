"""Neural networks that know how much time has passed: learning from irregularly-sampled time series."""

from lapse import testing as testing
from lapse.events import Events as Events
from lapse.events import decode_events as decode_events
from lapse.events import encode_events as encode_events
from lapse.kernels import backend as backend
from lapse.models import MODELS as MODELS
from lapse.models import Forecaster as Forecaster
from lapse.models import ModelConfig as ModelConfig
from lapse.models import Predictions as Predictions
from lapse.models import SequenceModel as SequenceModel
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
from lapse.recurrent import CoupledLSTMODERNN as CoupledLSTMODERNN
from lapse.recurrent import PhasedLSTM as PhasedLSTM
from lapse.recurrent import RNNDecay as RNNDecay
from lapse.rows import Rows as Rows
from lapse.sequences import Batch as Batch
from lapse.sequences import Cuts as Cuts
from lapse.sequences import LengthBatches as LengthBatches
from lapse.sequences import Sequences as Sequences
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
from lapse.tasks import TASKS as TASKS
from lapse.tasks import Task as Task

__version__ = "0.1.0"
