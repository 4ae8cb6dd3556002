"""Whole models, from a table of events to predictions, and the registry of what they are built of."""

from lapse.models.base import Model as Model
from lapse.models.config import ModelConfig as ModelConfig
from lapse.models.forecaster import Forecaster as Forecaster
from lapse.models.model import SequenceModel as SequenceModel
from lapse.models.predictions import Predictions as Predictions
from lapse.models.preprocessing import Preprocessing as Preprocessing
from lapse.models.registry import MODELS as MODELS
from lapse.models.schema import Column as Column
from lapse.models.schema import Schema as Schema
from lapse.models.schema import SchemaWarning as SchemaWarning
from lapse.models.step import Step as Step
from lapse.models.step import Steppable as Steppable
from lapse.models.step import Stepper as Stepper
