"""Pools and summaries, computed by hand."""

import pytest
import torch

from lapse.encoders import Features, Observations
from lapse.models.pooling import POOLS, Pooling
from lapse.models.summaries import latest_observed, summaries
from lapse.rows import Rows


def observations() -> Observations:
    return Observations(
        values=torch.tensor([[1.0, 0.0], [3.0, 8.0], [2.0, 0.0], [5.0, 6.0]]),
        observed=torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]),
        timespans=torch.ones(4),
        rows=Rows.flat([3, 1]),
    )


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("last", [[7.0], [9.0]]),
        ("mean", [[2.0], [-5.0]]),
        ("max", [[3.0], [-5.0]]),
        ("attention", [[2.0], [-5.0]]),
    ],
)
def test_pools(word, expected):
    steps = torch.tensor([[1.0], [3.0], [2.0], [-5.0]])
    features = Features(steps, torch.tensor([[7.0], [9.0]]))
    assert Pooling(word, 1)(features, observations()).tolist() == expected


def test_every_pool_is_tested():
    assert list(POOLS) == ["last", "mean", "max", "attention"]


def test_summaries():
    last, mean, least, largest = range(4)
    found = summaries(observations())
    per_feature, count = found[:, :8].view(2, 2, 4), found[:, 8:]
    assert per_feature[0, 0, [last, mean, least, largest]].tolist() == [2, 2, 1, 3]
    assert per_feature[0, 1].tolist() == [8, 8, 8, 8]
    assert per_feature[1, 0].tolist() == [0, 0, 0, 0]  # never observed
    assert per_feature[1, 1].tolist() == [6, 6, 6, 6]
    torch.testing.assert_close(count, torch.tensor([[3.0, 1.0], [0.0, 1.0]]).log1p())


def test_attention_weighs_events_by_their_score():
    torch.manual_seed(0)
    pool, rows, steps = POOLS["attention"](3), Rows.flat([4, 1, 2]), 50 * torch.randn(7, 3)
    torch.nn.init.normal_(pool.score.weight)
    found = pool(Features(steps, torch.zeros(3, 3)), rows)
    for row, own in zip(found, steps.split([4, 1, 2]), strict=True):
        torch.testing.assert_close(row, (own * pool.score(own).softmax(0)).sum(0))


def test_the_latest_observed_value_is_one_of_the_same_sequence():
    observed = torch.tensor([[0, 1], [1, 0], [0, 0], [0, 0], [0, 1], [1, 0]]).bool()
    expected = [[0, 0], [1, 0], [1, 0], [3, 3], [3, 4], [5, 4]]
    assert latest_observed(observed, Rows.flat([3, 3])).tolist() == expected
