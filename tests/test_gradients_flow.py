"""Error flow of any model, and the callback that watches it in training."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

import lapse
from lapse.gradients import ErrorFlow, StateRecorder, error_flow
from lapse.gradients.surfaces import filter_normalised, loss_surface
from lapse.heads import Classes
from lapse.models import Column, ModelConfig, Schema, SequenceModel
from lapse.models.registry import layers
from lapse.sequences import Batch, Sequences

LENGTHS = [7, 3, 1, 5]


def batch(rows: int = 4, steps: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    input = torch.randn(rows, steps, 2, generator=generator, dtype=torch.float64)
    return input, torch.rand(rows, steps, generator=generator, dtype=torch.float64)


def layer(name: str, **options: object) -> lapse.RNN:
    torch.manual_seed(0)
    return layers()[name](2, 4, dtype=torch.float64, **options)


@pytest.mark.parametrize("name", layers())
def test_flow_is_the_gradient_at_the_state_that_a_sequence_is_continued_from(name):
    """|dL/ds_t| is that of the state handed over at t, as ``hx`` of the rest of the sequence."""
    model, (input, gaps) = layer(name), batch(1)
    unit = torch.randn(4, dtype=torch.float64)
    flow = error_flow(
        model, {"input": input, "timespans": gaps}, loss=lambda out: (out[0][:, -1] * unit).sum()
    )
    for t in range(1, 7):
        _, state = model(input[:, :t], timespans=gaps[:, :t])
        state = tuple(s.detach().requires_grad_() for s in (state if isinstance(state, tuple) else (state,)))
        hx = state if len(state) > 1 else state[0]
        output, _ = model(input[:, t:], hx, timespans=gaps[:, t:])
        grads = torch.autograd.grad((output[:, -1] * unit).sum(), state, allow_unused=True)
        for key, grad in zip(model.state_names, grads, strict=True):
            got = flow.norms.get(f"cells.0.{key}")
            if got is not None:
                expected = 0.0 if grad is None else float(grad.norm())
                assert float(got[0, t - 1]) == pytest.approx(expected, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2}, {"bidirectional": True}, {"batch_first": False}], ids=str
)
def test_padding_changes_nothing_and_comes_back_as_nan(options):
    model, (input, gaps) = layer("ode-lstm", **options), batch()
    padded = input.clone()
    for row, length in enumerate(LENGTHS):
        padded[row, length:] = math.nan
    turn = (lambda x: x) if model.batch_first else (lambda x: x.transpose(0, 1))

    def flow_of(rows: Tensor, spans: Tensor, lengths: list[int] | None) -> ErrorFlow:
        arguments = {"input": turn(rows), "timespans": turn(spans), "lengths": lengths}
        return error_flow(model, arguments, loss=lambda out: sum(s.sum() for s in out[1]))

    flow = flow_of(padded, gaps, LENGTHS)
    assert flow.lengths.tolist() == LENGTHS
    for row, length in enumerate(LENGTHS):
        alone = flow_of(input[row : row + 1, :length], gaps[row : row + 1, :length], None)
        for name, norm in flow.norms.items():
            torch.testing.assert_close(norm[row, :length], alone.norms[name][0])
            assert norm[row, length:].isnan().all()


def test_packed_and_unbatched_input_and_a_tuple_of_arguments():
    model, (input, _) = layer("lstm"), batch()
    packed = pack_padded_sequence(input, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    padded = error_flow(
        model, {"input": input, "lengths": LENGTHS}, generator=torch.Generator().manual_seed(1)
    )
    again = error_flow(model, packed, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(again.total, padded.total, equal_nan=True)
    assert error_flow(model, (input[0],)).total.shape == (1, 7)


def test_lags_are_counted_from_each_rows_last_step_and_start_at_1():
    model, (input, gaps) = layer("ct-rnn"), batch()
    flow = error_flow(model, {"input": input, "timespans": gaps, "lengths": LENGTHS})
    lags = flow.by_lag()
    torch.testing.assert_close(lags[:, 0], torch.ones(4, dtype=torch.float64))
    assert [int((~row.isnan()).sum()) for row in lags] == LENGTHS
    torch.testing.assert_close(flow.ratio[0], flow.total[0, 0])
    torch.testing.assert_close(flow.factor[0] ** 6, flow.ratio[0])
    torch.testing.assert_close(flow.by_lag("cells.0.h"), lags, equal_nan=True)
    assert float(flow.ratio[2]) == 1.0  # one step only


def test_the_second_direction_is_kept_apart_from_the_total():
    model, (input, _) = layer("rnn-decay", bidirectional=True), batch(steps=60)
    flow = error_flow(model, input)
    assert flow.reverse == {"cells.1.h"}
    torch.testing.assert_close(flow.total, flow.norms["cells.0.h"])
    assert flow.behaviour() == "vanishes"


def test_behaviour_of_made_up_flows():
    def flow(*norms: float) -> ErrorFlow:
        return ErrorFlow({"h": torch.tensor([norms])}, torch.tensor([len(norms)]))

    assert flow(1e-9, 1.0).behaviour() == "vanishes"
    assert flow(1e9, 1.0).behaviour() == "explodes"
    assert flow(math.inf, 1.0).behaviour() == flow(math.nan, 1.0).behaviour() == "explodes"
    assert flow(0.1, 1.0).behaviour() == "steady"
    assert flow(0.1, 1.0).behaviour(vanishing=0.5) == "vanishes"


def test_recording_leaves_no_trace():
    model, (input, _) = layer("lstm"), batch()
    expected, _ = model(input)
    error_flow(model, input)
    assert "step" not in model.cells[0].__dict__
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert all(p.grad is None for p in model.parameters())
    with lapse.backend("fused"):  # the fused path is back
        torch.testing.assert_close(model(input)[0], expected)


def test_a_recorder_reads_a_loss_of_its_own_in_a_larger_model():
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.readout = layer("gru-d"), nn.Linear(4, 1).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.readout(self.rnn(x)[0])

    model, (input, _) = Head(), batch()
    with StateRecorder(model) as recorder:
        loss = model(input).square().mean()
    flow = recorder.error_flow(loss, retain_graph=True)
    assert list(flow.norms) == ["rnn.cells.0.h"]
    loss.backward()  # the graph is still there


@pytest.mark.parametrize(("name", "missing"), [("ode-lstm", False), ("gru-d", True)])
def test_a_sequence_model_takes_its_batch_as_it_is(name, missing):
    torch.manual_seed(0)
    rows = Batch(
        values=torch.randn(11, 2),
        timespans=torch.rand(11),
        times=torch.rand(11),
        rows=lapse.Rows.flat([5, 2, 4]),
        observed=torch.rand(11, 2) > 0.3 if missing else None,
        targets=torch.tensor([0, 1, 2]),
        static=None,
        static_observed=None,
        index=torch.arange(3),
    )
    columns = (Column("a", optional=missing), Column("b"))
    model = SequenceModel(Schema(columns), Classes("xyz"), ModelConfig(name, 8))
    flow = error_flow(model, rows, loss=lambda logits: nn.functional.cross_entropy(logits, rows.targets))
    assert flow.lengths.tolist() == [5, 2, 4]
    assert (flow.by_lag()[:, :2] > 0).all()


def test_the_python_of_the_theory_page_runs():
    page = (Path(__file__).parent.parent / "docs" / "theory.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


@pytest.mark.parametrize(
    ("model", "call", "message"),
    [
        (nn.LSTM(2, 4), {}, "LSTM holds no lapse layer"),
        (lapse.CTRNN(2, 4), {"loss": lambda out: out[0]}, r"one number, got shape \(1, 3, 4\)"),
        (lapse.CTRNN(2, 4).requires_grad_(False), {}, r"model.requires_grad_\(\)"),
    ],
)
def test_error_flow_refuses(model, call, message):
    with pytest.raises(ValueError, match=message):
        error_flow(model, torch.zeros(1, 3, 2), **call)


def test_a_recorder_needs_a_call():
    with StateRecorder(lapse.CTRNN(2, 4)) as recorder:
        pass
    with pytest.raises(ValueError, match="call the model inside"):
        recorder.error_flow(torch.zeros((), requires_grad=True))


def test_filters_are_normalised_and_vectors_stay_put():
    model = nn.Linear(3, 2)
    direction = filter_normalised(model)
    torch.testing.assert_close(direction["weight"].norm(dim=1), model.weight.detach().norm(dim=1))
    assert not direction["bias"].any()


def test_the_surface_of_a_parabola_is_known_and_the_weights_come_back():
    model = nn.Linear(2, 1, bias=False).double()
    before = model.weight.detach().clone()
    surface = loss_surface(model, lambda: (model.weight - before).square().sum(), points=41)
    size = float(before.norm())
    assert float(surface.losses[20, 20]) == pytest.approx(0.0, abs=1e-30)
    assert float(surface.losses[40, 20]) == pytest.approx(size**2)  # one filter's length away
    assert surface.relief > 0
    flat = loss_surface(model, lambda: torch.zeros(()), points=3)
    assert flat.mean_slope == flat.relief == 0.0
    torch.testing.assert_close(model.weight, before, rtol=0, atol=0)
    with pytest.raises(ValueError, match="points must be at least 2"):
        loss_surface(model, lambda: torch.zeros(()), points=1)


def test_the_slope_of_a_plane():
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(2.0)
    # With one weight a filter-normalised direction is ±2: the loss changes by 2 per unit of either, √8 together.
    surface = loss_surface(model, lambda: model.weight.sum(), points=5)
    assert surface.mean_slope == pytest.approx(math.sqrt(8))


# Lightning 2.6 asks torch's pytree for a class that torch 2.13 has deprecated.
lightning = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def trainer_with(callback: object, steps: int, folder: Path):
    import lightning.pytorch as pl

    return pl.Trainer(
        max_steps=steps,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=folder,
    )


def module(model: lapse.RNN):
    import lightning.pytorch as pl

    class LastStep(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            x, gaps = batch
            return self.model(x, timespans=gaps)[0][:, -1].square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    return LastStep()


def fit(folder: Path, callback: object, model: lapse.RNN, *, gap: float = 1.0, steps: int = 2):
    x = torch.randn(8, 40, 2, generator=torch.Generator().manual_seed(0))
    data = DataLoader(TensorDataset(x, torch.full((8, 40), gap)), batch_size=4)
    trainer = trainer_with(callback, steps, folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module(model), data)
    from lapse.gradients import ErrorFlowWarning

    return trainer, [str(w.message) for w in caught if issubclass(w.category, ErrorFlowWarning)]


@lightning
def test_the_callback_logs_and_warns_once_with_what_to_change(tmp_path):
    from lapse.gradients import ErrorFlowCallback

    trainer, messages = fit(tmp_path, ErrorFlowCallback(every_n_steps=1), lapse.RNNDecay(2, 8))
    assert trainer.callback_metrics["error_flow/ratio"] < 1e-4
    assert set(trainer.callback_metrics) >= {f"error_flow/{key}" for key in ("last", "first", "factor")}
    (message,) = messages
    assert "the gradient vanishes on its way back through 40 steps" in message
    assert "RNNDecay has no memory that time leaves alone: try lapse.ODELSTM(..., forget_bias=2.8)" in message


@lightning
def test_the_callback_suggests_a_forget_bias_to_an_lstm_and_says_nothing_when_steady(tmp_path):
    from lapse.gradients import ErrorFlowCallback

    _, (message,) = fit(tmp_path, ErrorFlowCallback(vanishing=0.5), lapse.AugmentedLSTM(2, 8))
    assert "Start the forget gate higher: forget_bias=2.8 keeps a tenth over 40 steps" in message
    _, messages = fit(tmp_path, ErrorFlowCallback(), lapse.PhasedLSTM(2, 8))
    assert messages == []


@lightning
def test_the_callback_warns_of_an_explosion(tmp_path):
    from lapse.gradients import ErrorFlowCallback

    model = lapse.ODERNN(2, 8)
    with torch.no_grad():  # dh/dt = tanh(h + 1e-10): a factor of e^½ a step for as long as h is small
        model.cells[0].field.gates.weight_hh.copy_(torch.eye(8))
        model.cells[0].field.gates.weight_ih.zero_()
        model.cells[0].field.gates.bias.fill_(1e-10)
    _, (message,) = fit(tmp_path, ErrorFlowCallback(every_n_steps=1), model, gap=0.5, steps=1)
    assert "the gradient explodes" in message
    assert "gradient_clip_val" in message


@lightning
def test_the_callback_in_the_librarys_own_training():
    from lapse.gradients import ErrorFlowCallback, ErrorFlowWarning
    from lapse.training import TrainConfig
    from lapse.training import fit as train

    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(30, 2, generator=generator).numpy() for _ in range(8)]
    times = [torch.arange(30.0).numpy()] * 8
    data = Sequences.from_arrays(values, times, targets=[0, 1] * 4)
    model = SequenceModel(Schema.of(data), Classes("ab"), ModelConfig("rnn-decay", 8))
    config = TrainConfig(epochs=1, batch_size=8)
    with pytest.warns(ErrorFlowWarning, match="the gradient vanishes on its way back through 30 steps"):
        train(model, data, data, config, callbacks=[ErrorFlowCallback()])


def test_the_callback_skips_a_step_in_which_no_layer_ran():
    from lapse.gradients import ErrorFlowCallback

    model, trainer = module(lapse.CTRNN(2, 8)), type("T", (), {"global_step": 0})()
    callback = ErrorFlowCallback()
    callback.on_train_batch_start(trainer, model, None, 0)
    callback.on_before_backward(trainer, model, torch.zeros((), requires_grad=True))
    assert "step" not in model.model.cells[0].__dict__


def test_the_callback_lets_go_after_a_failure():
    from lapse.gradients import ErrorFlowCallback

    model = lapse.CTRNN(2, 8)
    callback = ErrorFlowCallback(every_n_steps=1)
    callback.on_train_batch_start(type("T", (), {"global_step": 0})(), module(model), None, 0)
    assert "step" in model.cells[0].__dict__
    callback.on_exception()
    assert "step" not in model.cells[0].__dict__


def test_advice_for_a_steady_flow_is_none_and_settings_are_checked():
    from lapse.gradients import ErrorFlowCallback
    from lapse.gradients.callback import advice

    flow = ErrorFlow({"h": torch.ones(1, 2)}, torch.tensor([2]))
    assert advice(lapse.CTRNN(1, 1), flow, "steady") == ""
    with pytest.raises(ValueError, match="every_n_steps must be at least 1"):
        ErrorFlowCallback(0)
    with pytest.raises(ValueError, match="vanishing must lie between 0 and 1"):
        ErrorFlowCallback(vanishing=2.0)


def test_unknown_names_of_the_package():
    with pytest.raises(AttributeError, match="has no attribute 'flow_error'"):
        lapse.gradients.flow_error  # noqa: B018
