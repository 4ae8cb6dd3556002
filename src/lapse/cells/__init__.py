"""The eleven recurrent cells, by family; every docstring gives equations, source and departures."""

from lapse.cells.base import Cell as Cell
from lapse.cells.base import Gates as Gates
from lapse.cells.base import State as State
from lapse.cells.gru import CTGRUCell as CTGRUCell
from lapse.cells.gru import GRUDCell as GRUDCell
from lapse.cells.gru import GRUODECell as GRUODECell
from lapse.cells.lstm import AugmentedLSTMCell as AugmentedLSTMCell
from lapse.cells.lstm import AutonomousODELSTMCell as AutonomousODELSTMCell
from lapse.cells.lstm import CoupledLSTMODERNNCell as CoupledLSTMODERNNCell
from lapse.cells.lstm import CTLSTMCell as CTLSTMCell
from lapse.cells.lstm import ODELSTMCell as ODELSTMCell
from lapse.cells.lstm import PhasedLSTMCell as PhasedLSTMCell
from lapse.cells.rnn import CTRNNCell as CTRNNCell
from lapse.cells.rnn import JumpODERNNCell as JumpODERNNCell
from lapse.cells.rnn import ODERNNCell as ODERNNCell
from lapse.cells.rnn import RNNDecayCell as RNNDecayCell
