"""The layers by name."""

from __future__ import annotations

from lapse import layers

# The eleven of the paper's tables, in their order; ours last.
MODELS: dict[str, type[layers.RNN]] = {
    "ode-rnn": layers.ODERNN,
    "ct-rnn": layers.CTRNN,
    "lstm": layers.AugmentedLSTM,
    "ct-gru": layers.CTGRU,
    "rnn-decay": layers.RNNDecay,
    "bidirectional": layers.CoupledLSTMODERNN,
    "gru-d": layers.GRUD,
    "phased-lstm": layers.PhasedLSTM,
    "gru-ode": layers.GRUODE,
    "ct-lstm": layers.CTLSTM,
    "ode-lstm": layers.ODELSTM,
}
