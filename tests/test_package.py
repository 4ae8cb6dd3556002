"""The package as a whole: what it exports, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import lapse

ELEVEN = {
    "ode-rnn": lapse.ODERNN,
    "ct-rnn": lapse.CTRNN,
    "lstm": lapse.AugmentedLSTM,
    "ct-gru": lapse.CTGRU,
    "rnn-decay": lapse.RNNDecay,
    "bidirectional": lapse.CoupledLSTMODERNN,
    "gru-d": lapse.GRUD,
    "phased-lstm": lapse.PhasedLSTM,
    "gru-ode": lapse.GRUODE,
    "ct-lstm": lapse.CTLSTM,
    "ode-lstm": lapse.ODELSTM,
}


def test_the_registry_begins_with_the_papers_table():
    assert list(lapse.MODELS.items())[: len(ELEVEN)] == list(ELEVEN.items())


def test_import_is_light():
    """At most 0.3 s beside torch, whose objects are not searched for garbage meanwhile; heavy libraries load later."""
    code = (
        "import gc, time, sys, torch; gc.disable(); began = time.process_time(); import lapse; "
        "took = time.process_time() - began; "
        "heavy = {'pandas', 'sklearn', 'lightning', 'matplotlib', 'scipy'} & set(sys.modules); "
        "print(took, *heavy)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert all(len(run) == 1 for run in runs), f"imported with lapse: {runs}"
    assert min(float(run[0]) for run in runs) < 0.3
