"""From a batch of raw events to predictions: preprocessing, a layer, a readout."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lapse.heads import Head, from_config
from lapse.models.config import ModelConfig
from lapse.models.registry import find, stored_options
from lapse.recurrent import Hidden
from lapse.sequences import Batch, Sequences, Standardizer


class SequenceModel(nn.Module):
    """Preprocessing + layer + readout, so that what is saved takes raw batches: ``model(batch)``.

    Preprocessing is measured on the training split by :meth:`measure` and stored with the weights: features are
    shifted and scaled, missing ones are set to their mean, and gaps are counted in ``time_unit``. If features were
    missing in training, GRU-D is told which, and every other layer gets that as additional inputs. Static
    features join at the readout. Returns (B, output_size), or (B, T, output_size) when every step is read out.
    """

    input_fill: Tensor
    input_mean: Tensor
    input_scale: Tensor
    static_mean: Tensor
    static_scale: Tensor
    time_unit: Tensor

    def __init__(self, config: ModelConfig, head: Head | None = None) -> None:
        super().__init__()
        self.config = config
        self._head = head
        layer_type = find(config.model)
        self._mask_as_input = config.missing and not layer_type.takes_missing
        width = config.input_size * (2 if self._mask_as_input else 1)
        self.layer = layer_type(width, config.hidden_size, config.num_layers, **config.options)
        directions = 2 if self.layer.bidirectional else 1
        # Static features come with a flag each for whether they are known.
        self.readout = nn.Linear(config.hidden_size * directions + 2 * config.static_size, config.output_size)
        self.register_buffer("input_fill", torch.zeros(config.input_size))
        self.register_buffer("input_mean", torch.zeros(config.input_size))
        self.register_buffer("input_scale", torch.ones(config.input_size))
        self.register_buffer("static_mean", torch.zeros(config.static_size))
        self.register_buffer("static_scale", torch.ones(config.static_size))
        self.register_buffer("time_unit", torch.ones(()))

    @property
    def head(self) -> Head:
        """What the model is asked; training and evaluation need it."""
        if self._head is None:
            raise ValueError("this model has no head: build it with SequenceModel(config, head)")
        return self._head

    def measure(self, train: Sequences, *, standardize: bool, median_gap: bool) -> None:
        """Take shift, scale and unit of time from the training split, and from nothing else."""
        scaler = Standardizer.fit(train)
        mean = torch.as_tensor(scaler.mean)
        self.input_fill.copy_(mean)
        if standardize:
            self.input_mean.copy_(mean)
            self.input_scale.copy_(torch.as_tensor(scaler.scale))
            if scaler.static_mean is not None:
                self.static_mean.copy_(torch.as_tensor(scaler.static_mean))
                self.static_scale.copy_(torch.as_tensor(scaler.static_scale))
        elif self.layer.takes_missing:
            self.layer.set_input_mean(mean)  # what its missing features fade to
        if self._head is not None:
            self._head.measure(train)
        if median_gap:
            self.time_unit.fill_(train.median_gap)

    def forward(self, batch: Batch) -> Tensor:
        raw = batch.values
        if batch.observed is not None:
            raw = torch.where(batch.observed, raw, self.input_fill)
        values = (raw - self.input_mean) / self.input_scale
        arguments: dict[str, Any] = {}
        if self.config.missing:
            observed = torch.ones_like(values) if batch.observed is None else batch.observed.to(values.dtype)
            if self._mask_as_input:
                values = torch.cat([values, observed], -1)
            else:
                arguments["observed"] = observed
        timespans = batch.timespans / self.time_unit
        output, h_n = self.layer(values, timespans=timespans, lengths=batch.lengths, **arguments)
        features = self._last(h_n) if self.config.readout == "last" else output
        prediction: Tensor = self.readout(self._with_static(features, batch))
        return prediction

    def _last(self, h_n: Hidden) -> Tensor:
        """The top layer's output after each row's last step, both directions side by side: (B, H · directions)."""
        h = h_n[0] if isinstance(h_n, tuple) else h_n
        top = h[-2:] if self.layer.bidirectional else h[-1:]
        return top.transpose(0, 1).flatten(1)

    def _with_static(self, features: Tensor, batch: Batch) -> Tensor:
        if not self.config.static_size:
            return features
        assert batch.static is not None
        static = (batch.static - self.static_mean) / self.static_scale
        known = torch.ones_like(static) if batch.static_observed is None else batch.static_observed.to(static)
        static = torch.cat([static.masked_fill(known == 0, 0.0), known], -1)
        if features.dim() == 3:
            static = static.unsqueeze(1).expand(-1, features.shape[1], -1)
        return torch.cat([features, static], -1)

    def save(self, path: str | Path) -> None:
        """Write weights, preprocessing and config to one safetensors file, whole or not at all."""
        from safetensors.torch import save

        from lapse.sequences.storage import write_atomically

        metadata = {"lapse": json.dumps(dataclasses.asdict(self.config))}
        if self._head is not None:
            metadata["head"] = json.dumps(self._head.config())
        data = save({k: v.contiguous() for k, v in self.state_dict().items()}, metadata=metadata)
        write_atomically(Path(path), lambda file: file.write(data))

    @staticmethod
    def load(path: str | Path) -> SequenceModel:
        """The model that :meth:`save` wrote."""
        from safetensors import safe_open

        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if "lapse" not in metadata:
                raise ValueError(
                    f"{path} holds no lapse model; expected a file written by SequenceModel.save"
                )
            names = list(file.keys())
            weights = {name: file.get_tensor(name) for name in names}
        config = json.loads(metadata["lapse"])
        config["options"] = stored_options(config["model"], config["options"])
        head = from_config(json.loads(metadata["head"])) if "head" in metadata else None
        model = SequenceModel(ModelConfig(**config), head)
        model.load_state_dict(weights)
        return model
