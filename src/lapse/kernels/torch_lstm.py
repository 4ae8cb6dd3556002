"""Torch's own fused LSTM, for a cell whose program is one LSTM on the input and the gap."""

from __future__ import annotations

import torch
from torch import Tensor

from lapse.kernels.contract import CellLike, State
from lapse.kernels.programs import program_of
from lapse.kernels.reference import initial_state
from lapse.rows import Rows
from lapse.torch_private import lstm, ordinary_call


class TorchLSTM:
    """The kernel of `nn.LSTM`, fed the gap as one more input.

    It serves a cell whose program has three tensors: the weights of the input, those of the state, and the bias.
    """

    def __call__(
        self,
        cell: CellLike,
        input: Tensor,
        state: State | None,
        timespans: Tensor,
        rows: Rows,
    ) -> tuple[Tensor, State] | None:
        written, parts = program_of(cell)
        tensors = written.tensors(parts)
        if not ordinary_call() or tensors is None:
            return None
        x = torch.cat([rows.gather(input), rows.gather(timespans).unsqueeze(-1)], -1)
        batch_sizes = rows.batch_sizes
        weight_ih, weight_hh, bias = tensors
        weights = [weight_ih, weight_hh, bias, torch.zeros_like(bias)]
        hx = [s.unsqueeze(0) for s in rows.sort(state or initial_state(cell, input, rows))]
        rest = weights, True, 1, 0.0, cell.training, False  # biases, layers, dropout, training, bidirectional
        if batch_sizes[0] == batch_sizes[-1]:  # all rows of one length: torch has a faster kernel for that
            x = x.unflatten(0, (len(batch_sizes), -1))  # (T, B, I + 1)
            found = lstm(x, hx, *rest, False)
        else:
            found = lstm(x, torch.tensor(batch_sizes), hx, *rest)
        if found is None:
            return None
        output, h, c = found
        return rows.scatter(output.flatten(0, -2)), rows.unsort((h.squeeze(0), c.squeeze(0)))
