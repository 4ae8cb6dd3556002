"""What turns events into features: the contract, and those that meet it."""

from lapse.encoders.encoder import FROM_THE_TABLE as FROM_THE_TABLE
from lapse.encoders.encoder import Encoder as Encoder
from lapse.encoders.encoder import Features as Features
from lapse.encoders.encoder import Named as Named
from lapse.encoders.encoder import Observations as Observations
from lapse.encoders.encoder import with_flags as with_flags
from lapse.encoders.mtan import MTAN as MTAN
from lapse.encoders.recurrent import RecurrentEncoder as RecurrentEncoder
from lapse.encoders.state_space import StateSpace as StateSpace
