"""Training: a frozen config, Lightning's loop around a model, and checkpoints from which it goes on after a kill."""

from lapse.heads import NonFiniteError as NonFiniteError
from lapse.training.causality import SeesTheFuture as SeesTheFuture
from lapse.training.causality import check_causality as check_causality
from lapse.training.checkpoints import DamagedCheckpoint as DamagedCheckpoint
from lapse.training.checkpoints import DamagedCheckpointWarning as DamagedCheckpointWarning
from lapse.training.checkpoints import OtherTraining as OtherTraining
from lapse.training.config import TrainConfig as TrainConfig
from lapse.training.fit import Fitted as Fitted
from lapse.training.fit import evaluate as evaluate
from lapse.training.fit import fit as fit
