"""Whole models, from raw batches to predictions, and the layers that they are built of by name."""

from lapse.models.config import ModelConfig as ModelConfig
from lapse.models.model import SequenceModel as SequenceModel
from lapse.models.registry import MODELS as MODELS
