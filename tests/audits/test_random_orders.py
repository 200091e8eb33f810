"""The null of an audit: expectations over all orders against every order, and means over orders and their reverses."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from heedful.attributions.method import Baseline
from heedful.audits.best_explanation import word_erasure
from heedful.audits.random_orders import ORDER_PAIRS, random_erasure
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Model
from tests.audits.test_best_explanation import predicted, sharp, texts
from tests.games import Game, words
from tests.networks import tiny


def every_order(model: Model, batch: Batch, target: Tensor, deletion: Baseline, count: int) -> list[float]:
    """The mean of each measure over every order of the words of one text."""
    orders = torch.tensor([*itertools.permutations(range(count))], dtype=torch.float64).unsqueeze(1)
    outputs = word_erasure(deletion)(model, batch, target, orders)
    return [float(values.mean()) for values in (outputs.comprehensiveness, outputs.sufficiency, outputs.flip)]


@pytest.mark.parametrize("deletion", ["delete", "mask"])
def test_the_expectation_is_the_mean_over_every_order(deletion: Baseline) -> None:
    model, batch = sharp(1), texts(3, 6, 4, 1, 5)
    target = predicted(model, batch)
    found = random_erasure(model, batch, target, deletion)
    assert found.orders.tolist() == [0] * 5
    flips = []
    for row, count in enumerate((3, 6, 4, 1, 5)):
        own = batch.rows(torch.tensor([row]))
        values = [float(each[row]) for each in (found.comprehensiveness, found.sufficiency, found.flip)]
        assert values == pytest.approx(every_order(model, own, target[row : row + 1], deletion, count), abs=1e-9)
        flips.append(values[2])
    assert len({*flips}) > 2


def test_the_expectation_by_hand() -> None:
    """The sum of 3, -1 and -1 is positive: without the 3 it is not, and without 3 and -1 it is not either."""
    model = Game(torch.tensor([0.0, 3, -1, -1]), task=BinaryClassification())
    batch, target = words((1, 2, 3)), torch.tensor([1])
    found = random_erasure(model, batch, target, "pad")

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    one, two = (sigmoid(-2) + 2 * sigmoid(2)) / 3, (sigmoid(3) + 2 * sigmoid(-1)) / 3
    assert found.comprehensiveness.item() == pytest.approx(sigmoid(1) - (one + two) / 2)
    assert found.sufficiency.item() == pytest.approx(sigmoid(1) - (one + two) / 2)
    # The 3 is first in a third of the orders, second in a third, and else two words do not change the decision.
    assert found.flip.item() == pytest.approx((1 / 3 + 2 / 3 + 1) / 3)


def test_a_longer_text_has_the_mean_over_orders_and_their_reverses() -> None:
    model, batch = sharp(2), texts(9, 14, 5)
    target = predicted(model, batch)
    found = random_erasure(model, batch, target, "delete")
    assert found.orders.tolist() == [2 * ORDER_PAIRS, 2 * ORDER_PAIRS, 0]
    # Over many seeds the mean is the expectation: eight words, once enumerated and once drawn.
    short = texts(8)
    target = predicted(model, short)
    exact = random_erasure(model, short, target, "delete")
    drawn = [random_erasure(model, short, target, "delete", seed, exact=0) for seed in range(200)]
    for name in ("comprehensiveness", "sufficiency", "flip"):
        values = torch.stack([getattr(each, name)[0] for each in drawn])
        error = float(values.std()) / math.sqrt(len(values))
        assert error > 0
        assert abs(float(values.mean() - getattr(exact, name)[0])) < 4 * error


def test_pairs_vary_less_than_independent_orders() -> None:
    model, batch = sharp(3), texts(12)
    target = predicted(model, batch)
    pairs = torch.cat([random_erasure(model, batch, target, "delete", s, pairs=1).sufficiency for s in range(100)])
    draw = Generator().manual_seed(0)
    scores = torch.rand(400, 1, 12, generator=draw, dtype=torch.float64)
    single = word_erasure("delete")(model, batch, target, scores).sufficiency
    assert float(pairs.var()) < 0.8 * float(single.var()) / 2


def test_a_number_has_no_flip_and_a_text_without_words_loses_nothing() -> None:
    model, batch = Game(torch.arange(9.0)), words((1, 2, 3), (4, 5))
    assert random_erasure(model, batch, torch.zeros(2).long(), "pad").flip.isnan().all()
    network, pair = tiny("bert"), words((5, 6), (7, 8))
    pair = replace(pair, words=pair.words.index_fill(0, torch.tensor([1]), -1))
    found = random_erasure(network, pair, predicted(network, pair), "delete")
    assert [float(each[1]) for each in (found.comprehensiveness, found.sufficiency, found.flip)] == [0, 0, 1]


def test_the_company_of_a_text_changes_nothing() -> None:
    model, batch = sharp(), texts(9, 4, 13, 6)
    target = predicted(model, batch)
    together = random_erasure(model, batch, target, "delete")
    for row in range(4):
        alone = random_erasure(model, batch.rows(torch.tensor([row])), target[row : row + 1], "delete")
        for name in ("comprehensiveness", "sufficiency", "flip"):
            torch.testing.assert_close(getattr(alone, name)[0], getattr(together, name)[row])
