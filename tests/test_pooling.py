"""Pools and summaries, computed by hand."""

import pytest
import torch

from lapse.encoders import Features, Observations
from lapse.models.pooling import POOLS, Pooling
from lapse.models.summaries import summaries


def observations() -> Observations:
    return Observations(
        values=torch.tensor([[[1.0, 0.0], [3.0, 8.0], [2.0, 0.0]], [[5.0, 6.0], [0.0, 0.0], [0.0, 0.0]]]),
        observed=torch.tensor([[[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]]),
        timespans=torch.ones(2, 3),
        lengths=torch.tensor([3, 1]),
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
    steps = torch.tensor([[[1.0], [3.0], [2.0]], [[-5.0], [100.0], [100.0]]])
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
