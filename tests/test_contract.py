"""Every layer is held to every promise of `lapse.testing`."""

from __future__ import annotations

from functools import partial

import pytest

import lapse
from lapse.models import registry
from lapse.testing import layer_checks

LAYERS = {
    f"{name} {form}".strip(): partial(layer, **({"form": form} if form else {}))
    for name, layer in registry.layers().items()
    for form in layer.forms or ("",)
}
PROMISES = [
    pytest.param(check, id=f"{promise}-{name}")
    for name, make in LAYERS.items()
    for promise, check in layer_checks(make).items()
]


@pytest.mark.parametrize("check", PROMISES)
def test_contract(check):
    check()


def test_gru_d_without_a_bias_for_the_gap_keeps_its_output_over_no_time():
    class Unbiased(lapse.recurrent.GRUDCell):
        flow_starts_at_output = True

        def flow(self, state, timespan):
            self.hidden_decay.bias.data.fill_(-1.0)
            return super().flow(state, timespan)

    checks = layer_checks(lambda *sizes, **options: lapse.RNN(*sizes, cell=Unbiased, **options))
    checks["flow_over_no_time_keeps_the_output"]()
