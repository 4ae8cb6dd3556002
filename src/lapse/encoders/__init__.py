"""What turns events into features: the contract, and a stack of recurrent cells that meets it."""

from lapse.encoders.encoder import Encoder as Encoder
from lapse.encoders.encoder import Features as Features
from lapse.encoders.encoder import Named as Named
from lapse.encoders.encoder import Observations as Observations
from lapse.encoders.encoder import with_flags as with_flags
from lapse.encoders.recurrent import RecurrentEncoder as RecurrentEncoder
