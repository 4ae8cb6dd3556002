"""A trained model as a file that runs without lapse: one step with its states, or whole sequences."""

from __future__ import annotations

from pathlib import Path

from lapse.arguments import check_choice
from lapse.export.formats import FORMATS as FORMATS
from lapse.export.formats import Format as Format
from lapse.export.formats import Onnx as Onnx
from lapse.export.formats import Run as Run
from lapse.export.formats import TorchProgram as TorchProgram
from lapse.export.forms import FORMS as FORMS
from lapse.export.forms import Form as Form
from lapse.export.forms import sequence_form as sequence_form
from lapse.export.forms import step_form as step_form
from lapse.export.parity import largest_difference as largest_difference
from lapse.export.sequence import WholeSequence as WholeSequence
from lapse.export.triton import triton_config as triton_config
from lapse.models import SequenceModel, Steppable
from lapse.models.step import stepper_of
from lapse.models.storage import format_of
from lapse.sequences.storage import write_atomically

TOLERANCE = 1e-5  # of an answer, or of its size where that is above 1


class NotTheSame(RuntimeError):
    """An exported file answers differently from its model, so that it was not written."""


def load(folder: str | Path) -> Steppable:
    """A stored model that can be exported.

    Args:
        folder: what `lapse fit`, `lapse train` or `SequenceModel.save` wrote.
    """
    if not str(format_of(Path(folder))).startswith("lapse.Ensemble/"):
        return SequenceModel.load(folder)
    from lapse.estimators import Ensemble  # needs more than the core

    return Ensemble.load(folder)


def save(model: Steppable, file: str | Path, *, format: str = "onnx", form: str = "sequence") -> float:
    """Write a model as a file that runs without lapse.

    The file is run on random sequences first, and written only if its answers are those of the model.

    Args:
        model: the model.
        file: where to.
        format: "onnx", or "torch" for `torch.export.load`.
        form: "step" for one event per call, with the states as further inputs and outputs, or "sequence" for whole
            padded sequences.

    Returns:
        The largest difference from an answer of the model.
    """
    for name, given, names in (("format", format, FORMATS), ("form", form, FORMS)):
        check_choice(name, given, names)
    step = stepper_of(model)
    exported, kind = FORMS[form](step), FORMATS[format]
    content = kind.write(exported)
    difference = largest_difference(step, exported, kind.read(content, exported))
    if not difference <= TOLERANCE:
        raise NotTheSame(
            f"the answers of the exported file differ by {difference:.2g} from those of the model"
        )
    write_atomically(Path(file), lambda stream: stream.write(content))
    return difference
