"""Shapley values: known games, captum's permutations, and regressions that meet them with all coalitions."""

from __future__ import annotations

from itertools import permutations
from math import comb

import numpy as np
import pytest
import torch
from captum.attr import KernelShap as CaptumKernelShap
from captum.attr import ShapleyValues
from sklearn.linear_model import LinearRegression
from torch import Generator, Tensor

from heedful.attributions.method import background_of, example_seeds, expand_to_units, feature_index, target_output
from heedful.attributions.perturbation import logits_keeping
from heedful.attributions.registry import METHODS
from heedful.attributions.shapley import (
    KernelShap,
    Shapley,
    _sample_coalitions,
    all_coalitions,
    kernel_coalitions,
    marginal_weights,
)
from heedful.models.input_forms import PairInput, SingleInput
from heedful.seeding import random_permutations, sample_uniform
from heedful.types import Batch, Model, UserError
from tests.attributions.test_perturbation import pairs, pooled
from tests.games import Game, words
from tests.networks import images, tiny

TARGET = torch.tensor([0, 2, 1])
WORTH = torch.randn(40, generator=Generator().manual_seed(2)).index_fill(0, torch.tensor([0]), 0.0)


def by_orders(game: Game, batch: Batch) -> list[float]:
    """The mean gain of each word over all orders in which the words of one text can join, in plain Python."""
    count = int(batch.lengths[0])
    gains = [0.0] * count
    orders = list(permutations(range(count)))
    for order in orders:
        there = torch.zeros(1, count, dtype=torch.bool)
        before = game(words_kept(batch, there)).logits.item()
        for unit in order:
            there[0, unit] = True
            after = game(words_kept(batch, there)).logits.item()
            gains[unit] += (after - before) / len(orders)
            before = after
    return gains


def words_kept(batch: Batch, kept: Tensor) -> Batch:
    return words(tuple((batch.inputs * kept)[0].tolist()))


@pytest.mark.parametrize("method", [Shapley(), KernelShap(30)])
def test_values_are_mean_gains_over_all_orders(method: Shapley | KernelShap) -> None:
    game, batch = Game(WORTH, bond=1.5, bias=2.0), words((1, 2, 3, 4, 5))
    found = method(game, batch, torch.tensor([0])).scores[0].tolist()
    assert found == pytest.approx(by_orders(game, batch), abs=1e-12)
    # A bond between neighbours is shared equally by both.
    hand = [WORTH[k].item() + (0.75 if k in (1, 5) else 1.5) for k in range(1, 6)]
    assert found == pytest.approx(hand, abs=1e-6)


@pytest.mark.parametrize("name", [name for name, make in METHODS.items() if background_of(make()).adds_up])
def test_methods_that_add_up_by_construction_sum_to_the_difference_from_no_words(name: str) -> None:
    game, batch = Game(WORTH, bond=1.5, bias=2.0), words((1, 2, 3, 4, 5))
    difference = game(batch).logits.item() - game(words_kept(batch, torch.zeros(1, 5, dtype=torch.bool))).logits.item()
    scores = METHODS[name]()(game, batch, torch.tensor([0])).scores
    assert scores.sum().item() == pytest.approx(difference, abs=1e-9)


@pytest.mark.parametrize("baselines", ["pad", "zero", "delete"])
def test_on_words_that_add_up_the_values_are_the_weights(baselines: str) -> None:
    batch = words(tuple(range(1, 13)), tuple(range(3, 10)))
    for method in (Shapley(baselines), KernelShap(100, baselines)):  # type: ignore[arg-type]
        found = method(Game(WORTH, bias=2.0), batch, torch.zeros(2).long()).scores
        assert torch.allclose(found, WORTH.double()[batch.inputs] * batch.mask, atol=1e-10)


@pytest.mark.parametrize("shape", [SingleInput(), pytest.param(PairInput(), marks=pytest.mark.slow)])
def test_values_are_those_of_captums_permutations(shape: SingleInput | PairInput) -> None:
    model, whole = pooled(shape), pairs()
    found = Shapley()(model, whole, TARGET).scores
    for row in (1, 2):
        batch = whole.rows(torch.tensor([row]))
        expected = captum_scores(ShapleyExactly(), model, batch, int(TARGET[row]))
        assert torch.allclose(found[row, : len(expected)], expected, atol=1e-7)


class ShapleyExactly:
    """captum walks through permutations: here through all of them."""

    def __call__(self, probability: object, vectors: Tensor, empty: Tensor, mask: Tensor) -> Tensor:
        explainer = ShapleyValues(probability)
        found: Tensor = explainer.attribute(vectors, baselines=empty, feature_mask=mask)
        return found


class KernelSampled:
    """captum's KernelSHAP with many samples."""

    def __call__(self, probability: object, vectors: Tensor, empty: Tensor, mask: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            explainer = CaptumKernelShap(probability)
            found: Tensor = explainer.attribute(vectors, baselines=empty, feature_mask=mask, n_samples=800)
        return found


def captum_scores(oracle: ShapleyExactly | KernelSampled, model: Model, batch: Batch, target: int) -> Tensor:
    """Scores `[unit]` of one text by captum; content tokens are features, special tokens one of value 0."""
    index = feature_index(batch, "unit")
    mask = torch.where(index < 0, int(index.max()) + 1, index).unsqueeze(-1)

    def probability(vectors: Tensor) -> Tensor:
        return model(batch.repeat(len(vectors)), embeddings=vectors).logits.softmax(-1)[:, target]

    with torch.no_grad():
        vectors = model(batch).embeddings
        empty = model(batch).embeddings * ~batch.content_mask.unsqueeze(-1)
        return oracle(probability, vectors, empty, mask)[0, :, 0].double() * batch.content_mask[0]


@pytest.mark.slow
def test_the_regression_agrees_with_captums_and_with_the_exact_values() -> None:
    model, whole = tiny("bert"), pairs()
    exact = Shapley("zero")(model, whole, TARGET).scores
    found = KernelShap(62, "zero")(model, whole, TARGET).scores
    assert torch.allclose(found, exact, atol=1e-10)
    batch = whole.rows(torch.tensor([1]))
    captums = captum_scores(KernelSampled(), model, batch, 2)
    size = exact[1].norm()
    assert (captums - exact[1, : len(captums)]).norm() < 0.05 * size


@pytest.mark.parametrize("samples", [24, 60, 200])
def test_sampled_values_are_the_least_squares_of_their_samples_and_sum_exactly(samples: int) -> None:
    model, batch = Game(WORTH, bond=1.5, bias=2.0), words(tuple(range(1, 13)))
    found = KernelShap(samples)(model, batch, torch.tensor([0])).scores[0]
    whole, empty = model(batch).logits.item(), 2.0
    assert found.sum().item() == pytest.approx(whole - empty, abs=1e-12)
    coalitions, weights = kernel_coalitions(example_seeds("kernel", 0, batch), torch.tensor([12]), samples)
    values = logits_keeping(model, batch, expand_to_units(coalitions, feature_index(batch, "unit")), "pad")
    values = target_output(model.task, values, torch.tensor([0]), "probability")[0].detach() - empty
    ends = np.concatenate((coalitions[0].double().numpy(), np.ones((1, 12))))
    # The constraint as a sample of enormous weight, as captum has it.
    fitted = LinearRegression(fit_intercept=False).fit(
        ends, np.append(values.numpy(), whole - empty), np.append(weights[0].numpy(), 1e7)
    )
    assert np.abs(found.numpy() - fitted.coef_).max() < 1e-5


@pytest.mark.slow
def test_more_samples_come_closer() -> None:
    model, batch = tiny("bert"), words(*(tuple(range(4 + row, 16 + row)) for row in range(4)))
    target = torch.zeros(4).long()
    exact = Shapley()(model, batch, target).scores
    errors = [float((KernelShap(n)(model, batch, target).scores - exact).norm()) for n in (24, 100, 400, 1600)]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.1 * float(exact.norm())
    assert errors[-1] < 0.03 * float(exact.norm())


def test_a_single_word_and_two_words_are_exact() -> None:
    game, batch = Game(WORTH, bond=1.0), words((1,), (2, 3))
    for method in (Shapley(), KernelShap(2)):
        found = method(game, batch, torch.zeros(2).long()).scores
        assert found[0].tolist() == pytest.approx([WORTH[1].item(), 0])
        assert found[1].tolist() == pytest.approx([WORTH[2].item() + 0.5, WORTH[3].item() + 0.5])


def test_patches_of_an_image_have_values_too() -> None:
    model, batch = tiny("vit"), images()
    exact = Shapley("delete", output="logit")(model, batch, TARGET).scores
    assert torch.allclose(KernelShap(14, "delete", output="logit")(model, batch, TARGET).scores, exact, atol=1e-9)
    blank = batch.keep_units(~batch.content_mask)
    gap = (model(batch).logits - model(blank).logits).gather(1, TARGET.unsqueeze(1)).squeeze(1)
    assert torch.allclose(exact.sum(1), gap, atol=1e-10)


def test_too_many_units_are_refused_with_the_remedy_and_too_few_samples_are_raised_to_two_per_unit() -> None:
    batch = words((1, 2), tuple(range(1, 14)))
    with pytest.raises(UserError, match=r"13 features.*at most 12.*KernelShap"):
        Shapley()(Game(WORTH), batch, torch.zeros(2).long())
    few, enough = (KernelShap(count)(Game(WORTH), batch, torch.zeros(2).long()) for count in (3, 26))
    assert torch.equal(few.scores, enough.scores)
    assert torch.equal(few.mask, enough.mask)


def test_weights_of_marginal_gains_are_factorials() -> None:
    matrix = marginal_weights(all_coalitions(3, torch.device("cpu")), torch.tensor([3, 2]))
    # Coalitions in the order {}, 0, 1, 01, 2, 02, 12, 012.
    assert matrix[0, 0].mul(6).tolist() == pytest.approx([-2, 2, -1, 1, -1, 1, -2, 2])
    assert matrix[1, 1].mul(2).tolist() == pytest.approx([-1, -1, 1, 1, 0, 0, 0, 0])
    assert (matrix[1, 2] == 0).all()


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
def test_with_room_enough_every_coalition_occurs_once_with_its_kernel_weight(count: int) -> None:
    total = 2**count - 2
    coalitions, weights = kernel_coalitions(torch.tensor([5]), torch.tensor([count]), total + 3)
    used = weights[0] > 0
    assert int(used.sum()) == total == len({tuple(row) for row in coalitions[0][used].tolist()})
    sizes = coalitions[0][used].sum(1)
    kernel = torch.tensor([(count - 1) / (comb(count, k) * k * (count - k)) for k in sizes.tolist()])
    assert torch.allclose(weights[0][used], (kernel / kernel.sum()).double())
    assert coalitions[0][~used].all()


@pytest.mark.parametrize("samples", [20, 21])
def test_weights_sum_to_one_where_nothing_is_left_to_be_drawn(samples: int) -> None:
    coalitions, weights = kernel_coalitions(torch.tensor([5]), torch.tensor([10]), samples)
    assert sorted(coalitions[0, :20].sum(1).tolist()) == [1] * 10 + [9] * 10
    assert weights[0, :20].tolist() == pytest.approx([1 / 20] * 20)
    assert not weights[0, 20:].any()


def test_draws_come_with_their_complements_and_follow_the_kernel() -> None:
    count = 10
    seeds = torch.arange(3)
    small, weights = kernel_coalitions(seeds, torch.tensor([count, 4, count]), 61)
    assert not torch.equal(small[0], small[2])
    assert torch.allclose(weights.sum(1), torch.ones(3).double())
    level = small[0, :20].sum(1)  # the twenty coalitions of sizes 1 and 9 come first
    assert sorted(level.tolist()) == [1] * 10 + [9] * 10
    drawn = small[0, 20:60]
    assert torch.equal(drawn[:20], ~drawn[20:])
    assert weights[0, 60] == 0
    alone, _ = kernel_coalitions(seeds[2:], torch.tensor([count]), 61)
    assert torch.equal(alone[0], small[2])
    # Sizes beyond those taken whole, in proportion to 1 / (k (n - k)); each feature as often as any other.
    many, heavy = kernel_coalitions(torch.arange(100, 500), torch.full((400,), 12), 50)
    sizes = many[:, 24:].sum(2)
    shares = torch.tensor([float((sizes == k).double().mean()) for k in range(2, 11)])
    expected = torch.tensor([1 / (k * (12 - k)) for k in range(2, 11)])
    assert (shares - expected / expected.sum()).abs().max() < 0.01
    assert (many[:, 24:].double().mean((0, 1)) - 0.5).abs().max() < 0.01
    assert torch.allclose(heavy.sum(1), torch.ones(400).double())


def test_sampled_coalitions_have_drawn_sizes_and_the_first_of_a_random_order() -> None:
    seeds, mass = torch.tensor([3, 4]), torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64)
    found = _sample_coalitions(seeds, 6, mass)
    orders = random_permutations(seeds + 1, 6, torch.ones(2, 5, dtype=torch.bool))
    drawn = sample_uniform(seeds, 6, 1)[..., 0]
    for row in range(2):
        for pair in range(6):
            members = set(orders[row, pair, : 2 if drawn[row, pair] < 0.5 else 3].tolist())
            assert set(found[row, pair].nonzero().flatten().tolist()) == members
            assert torch.equal(found[row, pair + 6], ~found[row, pair])
