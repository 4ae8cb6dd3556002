"""Files that run without lapse: ONNX, or a program of torch."""

from __future__ import annotations

import json
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, ClassVar

import torch
from torch import Tensor

from lapse.export.forms import Form
from lapse.extras import extra

Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""From inputs to outputs by name."""


class Format(ABC):
    """A kind of file.

    Attributes:
        suffix: how the name of such a file ends.
    """

    suffix: ClassVar[str]

    @abstractmethod
    def write(self, form: Form) -> bytes:
        """The content of a file.

        Args:
            form: what to export.
        """

    @abstractmethod
    def read(self, content: bytes, form: Form) -> Run:
        """A function that runs a file, for comparisons with the model.

        Args:
            content: what `write` returned.
            form: what it was made of.
        """


class TorchProgram(Format):
    """A file for `torch.export.load`; what a reader must know is in its extra file `lapse.json`."""

    suffix = ".pt2"

    def write(self, form: Form) -> bytes:
        file = BytesIO()
        torch.export.save(form.program, file, extra_files={"lapse.json": json.dumps(form.facts)})
        return file.getvalue()

    def read(self, content: bytes, form: Form) -> Run:
        module = torch.export.load(BytesIO(content)).module()

        def run(given: dict[str, Tensor]) -> dict[str, Tensor]:
            nested = {
                name: {inner: given[inner] for inner in part} if isinstance(part, dict) else given[name]
                for name, part in form.arguments.items()
            }
            found = module(**nested)
            answer, state = found if isinstance(found, tuple) else (found, {})
            return dict(zip(form.outputs, (answer, *state.values()), strict=True))

        return run


class Onnx(Format):
    """An ONNX file; what a reader must know is in its metadata, under names that begin with "lapse."."""

    suffix = ".onnx"

    def write(self, form: Form) -> bytes:
        with extra("export"):
            import onnx_ir
            import onnxscript  # noqa: F401 - torch's exporter needs it
            from onnx_ir.passes import common

        with _quiet():
            made: Any = torch.onnx.export(
                form.program,
                input_names=list(form.inputs),
                output_names=list(form.outputs),
                dynamic_shapes=form.dynamic,
                dynamo=True,
                verbose=False,
            )
        made.model.graph.name = "lapse"
        # The exporter leaves constants that nothing uses, and paths of this machine.
        for tidy in (common.RemoveUnusedNodesPass(), common.ClearMetadataAndDocStringPass()):
            tidy(made.model)
        made.model.metadata_props.update(form.metadata)
        content: bytes = onnx_ir.to_proto(made.model).SerializeToString()
        return content

    def read(self, content: bytes, form: Form) -> Run:
        with extra("export"):
            import onnxruntime

        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

        def run(given: dict[str, Tensor]) -> dict[str, Tensor]:
            found = session.run(None, {name: part.numpy() for name, part in given.items()})
            return dict(zip(form.outputs, map(torch.from_numpy, found), strict=True))

        return run


FORMATS: dict[str, Format] = {"onnx": Onnx(), "torch": TorchProgram()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter says of itself: that torchvision is absent, and that its own code is old."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
