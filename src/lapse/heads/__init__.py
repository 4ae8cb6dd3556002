"""Heads: what a model is asked, one file per kind of answer.

A head owns the width of the answer, its targets, loss, metrics and trivial baseline, and what `predict` returns.
Nothing else in lapse asks which kind of answer it is.
"""

from lapse.heads.base import Head as Head
from lapse.heads.base import NonFiniteError as NonFiniteError
from lapse.heads.base import Scores as Scores
from lapse.heads.base import Summary as Summary
from lapse.heads.base import Targets as Targets
from lapse.heads.classes import Classes as Classes
from lapse.heads.gaussian import Gaussian as Gaussian
from lapse.heads.labels import Labels as Labels
from lapse.heads.metrics import Metric as Metric
from lapse.heads.numbers import Numbers as Numbers
from lapse.heads.quantiles import Quantiles as Quantiles
from lapse.heads.registry import HEADS as HEADS
from lapse.heads.registry import find as find
from lapse.heads.registry import for_data as for_data
from lapse.heads.registry import from_config as from_config
