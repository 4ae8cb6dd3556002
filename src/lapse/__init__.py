"""Neural networks that know how much time has passed: learning from irregularly-sampled time series."""

from lapse.events import Events as Events
from lapse.events import decode_events as decode_events
from lapse.events import encode_events as encode_events
from lapse.kernels import backend as backend
from lapse.layers import CTGRU as CTGRU
from lapse.layers import CTLSTM as CTLSTM
from lapse.layers import CTRNN as CTRNN
from lapse.layers import GRUD as GRUD
from lapse.layers import GRUODE as GRUODE
from lapse.layers import ODELSTM as ODELSTM
from lapse.layers import ODERNN as ODERNN
from lapse.layers import RNN as RNN
from lapse.layers import AugmentedLSTM as AugmentedLSTM
from lapse.layers import CoupledLSTMODERNN as CoupledLSTMODERNN
from lapse.layers import PhasedLSTM as PhasedLSTM
from lapse.layers import RNNDecay as RNNDecay
from lapse.models import MODELS as MODELS
from lapse.sequences import Batch as Batch
from lapse.sequences import LengthBatches as LengthBatches
from lapse.sequences import Sequences as Sequences
from lapse.sequences import Standardizer as Standardizer
from lapse.solvers import DOPRI5 as DOPRI5
from lapse.solvers import EULER as EULER
from lapse.solvers import HEUN as HEUN
from lapse.solvers import RK4 as RK4
from lapse.solvers import SOLVERS as SOLVERS
from lapse.solvers import Adaptive as Adaptive
from lapse.solvers import Adjoint as Adjoint
from lapse.solvers import Exponential as Exponential
from lapse.solvers import FixedStep as FixedStep
from lapse.solvers import SolverError as SolverError
from lapse.solvers import Tableau as Tableau
from lapse.tasks import TASKS as TASKS
from lapse.tasks import Task as Task

__version__ = "0.1.0"
