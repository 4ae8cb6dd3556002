"""What single layers promise beyond the contract that all of them share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import lapse
from lapse.recurrent import RNNDecayCell


def test_an_lstm_without_gaps_is_torchs():
    torch.manual_seed(0)
    layer, reference = lapse.AugmentedLSTM(3, 5), nn.LSTM(4, 5, batch_first=True)
    gates = layer.cells[0].gates
    reference.load_state_dict(
        {
            "weight_ih_l0": gates.weight_ih,
            "weight_hh_l0": gates.weight_hh,
            "bias_ih_l0": gates.bias,
            "bias_hh_l0": torch.zeros(20),
        }
    )
    input, gaps = torch.randn(2, 6, 3), torch.rand(2, 6)
    expected, _ = reference(torch.cat([input, gaps.unsqueeze(-1)], -1))
    for path in ("reference", "fused"):
        with lapse.backend(path):
            torch.testing.assert_close(layer(input, timespans=gaps)[0], expected)


def test_gru_d_never_looks_at_what_was_not_observed():
    torch.manual_seed(0)
    layer = lapse.GRUD(3, 5, input_mean=torch.tensor([1.0, -1.0, 0.5]), dtype=torch.float64)
    input, gaps = torch.randn(4, 6, 3, dtype=torch.float64), torch.rand(4, 6, dtype=torch.float64)
    observed = torch.rand(4, 6, 3) < 0.5
    results = []
    for filler in (0.0, 7.0, torch.nan):
        x = torch.where(observed, input, filler).requires_grad_()
        output, _ = layer(x, timespans=gaps, observed=observed)
        grads = torch.autograd.grad(output.sum(), [x, *layer.parameters()])
        assert bool((grads[0][~observed] == 0).all())
        results.append((output, *grads[1:]))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_gru_d_fades_a_missing_feature_from_its_last_value_to_its_mean():
    layer = lapse.GRUD(1, 2, input_mean=torch.tensor([10.0]))
    cell = layer.cells[0]
    state = cell.initial_state(1)
    step = torch.tensor([[3.0, 1.0]])
    _, state = cell.step(step, state, torch.zeros(1))
    assert state[1].item() == 3.0
    _, state = cell.step(torch.tensor([[0.0, 0.0]]), state, torch.ones(1))
    assert state[1].item() == 3.0
    assert state[2].item() == 1.0
    _, state = cell.step(torch.tensor([[0.0, 0.0]]), state, torch.ones(1))
    assert state[2].item() == 2.0


def test_gru_d_checks_its_mean():
    with pytest.raises(ValueError, match=r"input_mean must have shape \(3,\), got \(2,\)"):
        lapse.GRUD(3, 5, input_mean=torch.zeros(2))


def test_any_cell_can_be_stacked():
    layer = lapse.RNN(3, 5, 2, cell=RNNDecayCell, bidirectional=True)
    output, h_n = layer(torch.randn(2, 4, 3))
    assert output.shape == (2, 4, 10)
    assert h_n.shape == (4, 2, 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "drivn"}, "form must be one of 'driven', 'autonomous', 'jump', got 'drivn'"),
        ({"solver": "rk5"}, "solver must be one of 'euler'.*got 'rk5'"),
        ({"num_layers": 0}, "num_layers must be a whole number of at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
    ],
)
def test_wrong_settings_say_what_is_right(settings, message):
    with pytest.raises(ValueError, match=message):
        lapse.ODELSTM(3, 5, **settings)


def test_solvers_go_by_name():
    assert lapse.ODELSTM(3, 5, solver="rk4").cells[0].solver == lapse.FixedStep(lapse.RK4, 3)
    assert lapse.GRUODE(3, 5, solver=lapse.Exponential(2)).cells[0].solver == lapse.Exponential(2)


def test_a_solver_error_names_the_callers_row():
    torch.manual_seed(0)
    layer = lapse.CTRNN(1, 4, solver=lapse.FixedStep(lapse.EULER, 400))
    gaps = torch.ones(3, 4)
    gaps[2, 1] = 1e6  # rows are walked 1, 2, 0: the error must still say 2
    with pytest.raises(
        lapse.SolverError, match=r"row 2, step 1: the state is not finite.*Exponential"
    ) as caught:
        layer(torch.randn(3, 4, 1), timespans=gaps, lengths=[2, 4, 3])
    assert caught.value.timespan == 1e6


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_a_solver_error_of_the_way_back_names_the_callers_step(backend):
    """The gap before step 2 is passed on the way from step 2 to step 1."""
    torch.manual_seed(0)
    layer = lapse.CTRNN(1, 4, solver=lapse.FixedStep(lapse.EULER, 400), bidirectional=True)
    with torch.no_grad():
        layer.cells[0].field.decay.fill_(-1e3)  # no damping, so that the way there arrives
        layer.cells[0].field.scale.zero_()
    gaps = torch.ones(3, 4)
    gaps[2, 2] = 1e6
    with lapse.backend(backend), pytest.raises(lapse.SolverError, match="row 2, step 1: "):
        layer(torch.randn(3, 4, 1), timespans=gaps, lengths=[2, 4, 3])


def test_the_backend_can_be_chosen_and_is_put_back():
    layer, input = lapse.RNN(3, 5, cell=_Subclass), torch.randn(2, 4, 3)
    with (
        lapse.backend("fused"),
        pytest.raises(RuntimeError, match="no fused kernel covers this call of _Subclass"),
    ):
        layer(input)
    layer(input)
    reference = lapse.backend("reference")
    for _ in range(2):
        with reference:
            pass
        with pytest.raises(RuntimeError, match="no fused kernel"), lapse.backend("fused"):
            layer(input)
    layer(input)
    with pytest.raises(ValueError, match="backend must be 'auto', 'fused' or 'reference', got 'fast'"):
        lapse.backend("fast")


def test_the_backend_holds_for_every_thread():
    layer, input = lapse.RNN(3, 5, cell=_Subclass), torch.randn(2, 4, 3)
    with ThreadPoolExecutor(1) as pool, lapse.backend("fused"):
        with pytest.raises(RuntimeError, match="no fused kernel"):
            pool.submit(layer, input).result()
        with lapse.backend("reference"):
            pool.submit(layer, input).result()


def test_backends_of_overlapping_blocks_end_alone():
    """Blocks of two threads need not end in the order in which they began."""
    layer, input = lapse.RNN(3, 5, cell=_Subclass), torch.randn(2, 4, 3)
    first, second = lapse.backend("reference"), lapse.backend("fused")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="no fused kernel"):
        layer(input)
    second.__exit__(None, None, None)
    layer(input)


def test_a_block_holds_whatever_was_chosen_since_it_was_made():
    layer, input = lapse.RNN(3, 5, cell=_Subclass), torch.randn(2, 4, 3)
    fused = lapse.backend("fused")
    lapse.backend("auto")
    with fused, pytest.raises(RuntimeError, match="no fused kernel"):
        layer(input)
    layer(input)


def test_a_lasting_choice_outlives_the_block_it_was_made_in():
    layer, input = lapse.RNN(3, 5, cell=_Subclass), torch.randn(2, 4, 3)
    try:
        with lapse.backend("auto"):
            for _ in range(3):
                lapse.backend("fused")
        with pytest.raises(RuntimeError, match="no fused kernel"):
            layer(input)
    finally:
        lapse.backend("auto")
    layer(input)


def packed(lengths=(4, 3, 3)):
    rows = torch.randn(len(lengths), max(lengths), 2), torch.rand(len(lengths), max(lengths))
    return [pack_padded_sequence(r, list(lengths), batch_first=True, enforce_sorted=False) for r in rows]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p._replace(data=p.data[:4]), "add up to 10 steps, but its data have 4"),
        (lambda p: p._replace(data=torch.cat([p.data, p.data])), "add up to 10 steps, but its data have 20"),
        (lambda p: p._replace(batch_sizes=torch.tensor([1, 3, 3, 3])), "never grow, got \\[1, 3, 3, 3\\]"),
        (lambda p: p._replace(batch_sizes=torch.tensor([10, 0])), "at least 1"),
        (lambda p: p._replace(batch_sizes=torch.tensor([], dtype=torch.int64)), "at least 1"),
        (lambda p: p._replace(sorted_indices=torch.tensor([0, 0, 1])), "each other's inverse"),
        (lambda p: p._replace(sorted_indices=None), "each other's inverse"),
        (lambda p: p._replace(sorted_indices=torch.arange(4), unsorted_indices=torch.arange(4)), "per row"),
        (lambda p: p._replace(unsorted_indices=torch.tensor([0, 1, 9])), "each other's inverse"),
        (
            lambda p: p._replace(batch_sizes=torch.tensor([3.5, 3.5, 3.0])),
            "one axis of int64, got \\(3,\\) of",
        ),
        (lambda p: p._replace(batch_sizes=torch.tensor([[3], [3], [3], [1]])), "one axis of int64"),
    ],
)
@pytest.mark.parametrize("which", ["input", "timespans"])
def test_a_packed_sequence_whose_parts_do_not_fit_is_refused(damage, message, which):
    """Compiled code would read past its end."""
    input, gaps = packed()
    layer = lapse.ODELSTM(2, 3)
    layer(input, timespans=gaps)
    given = {"input": input, "timespans": gaps}
    given[which] = damage(given[which])
    with pytest.raises(ValueError, match=f"{which} is a damaged PackedSequence: .*{message}"):
        layer(**given)


@pytest.mark.parametrize("shape", [(4, 2, 3), (4, 0, 3), (12,)])
def test_packed_data_have_two_axes(shape):
    """The compiled loop would read some of the numbers for others."""
    sizes = torch.tensor([1] * shape[0])
    with pytest.raises(ValueError, match=r"the data of a PackedSequence must be \(N, 3\), got"):
        lapse.CTRNN(3, 4)(PackedSequence(torch.randn(shape), sizes))


class _Subclass(RNNDecayCell):
    """A subclass may compute something else, so no kernel of its parent may serve it."""


def test_packed_input_knows_its_lengths():
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 2), torch.randn(2, 2)])
    other = nn.utils.rnn.pack_sequence([torch.rand(3), torch.rand(1)])
    layer = lapse.RNNDecay(2, 4)
    with pytest.raises(ValueError, match="a PackedSequence knows its lengths"):
        layer(packed, lengths=[3, 2])
    with pytest.raises(ValueError, match="timespans is packed with other lengths than input"):
        layer(packed, timespans=other)
    with pytest.raises(
        ValueError, match=r"packed timespans must hold one gap per step, \(N,\), got \(5, 2\)"
    ):
        layer(packed, timespans=packed)


def test_a_layer_shows_its_sizes():
    layer = lapse.ODELSTM(3, 5, 2, dropout=0.1, bidirectional=True, batch_first=False)
    expected = "3, 5, num_layers=2, batch_first=False, dropout=0.1, bidirectional=True"
    assert layer.extra_repr() == expected
    assert "Gates(3, 5, count=4)" in repr(layer)
    assert repr(layer.cells[0]).startswith("AutonomousODELSTMCell(")


def test_long_gaps_do_not_explode_by_default():
    """One patient who comes back after a week: Euler fails, the default does not notice."""
    torch.manual_seed(0)
    gaps = torch.tensor([[0.0, 1.0, 168.0, 1.0]])
    input = torch.randn(1, 4, 3)
    output, _ = lapse.ODELSTM(3, 16, form="driven")(input, timespans=gaps)
    assert float(output.detach().abs().max()) <= 1.0
    euler, _ = lapse.ODELSTM(3, 16, form="driven", solver="euler")(input, timespans=gaps)
    assert float(euler.detach().abs().max()) > 1e3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_layer_trains_like_an_eager_one():
    torch.manual_seed(0)
    layer, input, gaps = lapse.ODELSTM(3, 8), torch.randn(4, 5, 3), torch.rand(4, 5)
    compiled = torch.compile(layer)
    eager = torch.autograd.grad(layer(input, timespans=gaps)[0].sum(), layer.parameters())
    traced = torch.autograd.grad(compiled(input, timespans=gaps)[0].sum(), layer.parameters())
    torch.testing.assert_close(traced, eager)


def test_packed_gaps_follow_their_rows_however_ties_were_sorted():
    """torch sorts equal lengths as it likes; gaps must still meet the rows they were given for."""
    torch.manual_seed(0)
    lengths = torch.tensor([3, 5] * 12)
    layer, input, gaps = lapse.CTRNN(2, 4), torch.randn(24, 5, 2), torch.rand(24, 5)
    expected, _ = layer(input, timespans=gaps, lengths=lengths)
    order = torch.argsort(lengths + torch.rand(24) * 0.5, descending=True)
    pack = nn.utils.rnn.pack_padded_sequence(gaps[order], lengths[order], batch_first=True)
    packed = nn.utils.rnn.PackedSequence(pack.data, pack.batch_sizes, order, torch.argsort(order))
    torch.testing.assert_close(layer(input, timespans=packed, lengths=lengths)[0], expected)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: lapse.CTRNN(2, 4, solver=lapse.RK4), TypeError, r"rk4 is a tableau.*FixedStep\(RK4, 3\)"),
        (lambda: lapse.CTRNN(2, 4, solver=lapse.FixedStep), TypeError, "solver must be a solver such as"),
        (lambda: lapse.ODERNN(2, 4, solver="exponential"), ValueError, "Exponential needs a damped field"),
        (lambda: lapse.PhasedLSTM(2, 4, periods=(0.0, 1.0)), ValueError, "periods must be positive"),
        (lambda: lapse.CTGRU(2, 4, timescales=0), ValueError, "timescales must be at least 1, got 0"),
        (
            lambda: lapse.RNN(2, 4, cell=nn.GRUCell)(torch.randn(1, 2, 2)),
            TypeError,
            "must make a lapse.Cell",
        ),
    ],
)
def test_what_cannot_run_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_padded_gaps_beside_a_packed_input_of_single_steps() -> None:
    """Their shape is that of packed ones: (3, 1) for three rows of one step."""
    torch.manual_seed(0)
    x, spans = torch.randn(3, 1, 2), torch.rand(3, 1)
    layer = lapse.CTRNN(2, 3)
    packed = pack_padded_sequence(x, [1, 1, 1], batch_first=True)
    expected, _ = layer(x, timespans=spans)
    torch.testing.assert_close(layer(packed, timespans=spans)[0].data, expected[:, 0])
    layer.batch_first = False
    packed = pack_padded_sequence(x.transpose(0, 1).reshape(3, 1, 2), [3])
    expected, _ = layer(x.reshape(3, 1, 2), timespans=spans)
    torch.testing.assert_close(layer(packed, timespans=spans)[0].data, expected[:, 0])


def test_packed_extras_must_fit() -> None:
    x = pack_padded_sequence(torch.randn(3, 2, 2), [1, 2, 2], batch_first=True, enforce_sorted=False)
    fewer = pack_padded_sequence(torch.rand(2, 2), [2, 1], batch_first=True)
    with pytest.raises(ValueError, match="other lengths"):
        lapse.CTRNN(2, 3)(x, timespans=fewer)
    narrow = pack_padded_sequence(torch.ones(3, 2, 1), [1, 2, 2], batch_first=True, enforce_sorted=False)
    with pytest.raises(ValueError, match="one flag per feature"):
        lapse.GRUD(2, 3)(x, observed=narrow)
