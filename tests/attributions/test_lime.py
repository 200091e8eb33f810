"""LIME against scikit-learn and captum on the same samples, and on weights known by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from captum._utils.models.linear_model import SkLearnRidge
from captum.attr import Lime as CaptumLime
from sklearn.linear_model import LinearRegression, Ridge
from torch import Generator, Tensor

from heedful.attributions.lime import Lime, centered_moments, solve_ridge, solve_sum_constrained
from heedful.attributions.method import expand_to_units, feature_index
from heedful.attributions.perturbation import logits_keeping
from heedful.measures.rank_correlation import pearson
from heedful.models.input_forms import PairInput, SingleInput
from heedful.types import Batch, Model, Trace
from tests.attributions.test_perturbation import pairs, pooled
from tests.games import Game, words
from tests.networks import tiny

TARGET = torch.tensor([0, 2, 1])


def some_systems(samples: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    draw = Generator().manual_seed(0)
    features = (torch.rand(3, samples, 6, generator=draw) < 0.5).double()
    features[1, :, 4:] = 0
    return features, torch.randn(3, samples, generator=draw).double(), torch.rand(3, samples, generator=draw).double()


@pytest.mark.parametrize("ridge", [1.0, 0.01, 30.0])
def test_all_systems_at_once_are_those_of_scikit_learn_one_by_one(ridge: float) -> None:
    features, values, weights = some_systems()
    found = solve_ridge(*centered_moments(features, values, weights), ridge)
    for row in range(3):
        fitted = Ridge(alpha=ridge, solver="svd").fit(features[row], values[row], sample_weight=weights[row])
        assert np.abs(found[row].numpy() - fitted.coef_).max() < 1e-8
    assert (found[1, 4:] == 0).all()


def test_without_a_ridge_the_shortest_solution_is_found() -> None:
    features, values, weights = some_systems(samples=4)
    found = solve_ridge(*centered_moments(features, values, weights), 0)
    for row in range(3):
        fitted = LinearRegression().fit(features[row], values[row], sample_weight=weights[row])
        assert np.abs(found[row].numpy() - fitted.coef_).max() < 1e-8


def test_a_given_sum_is_kept_and_the_rest_is_least_squares() -> None:
    features, values, weights = some_systems()
    present = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 6])
    gram = torch.einsum("bsf,bs,bsg->bfg", features, weights, features)
    cross = torch.einsum("bsf,bs,bs->bf", features, weights, values)
    total = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)
    found = solve_sum_constrained(gram, cross, total, present)
    assert torch.allclose(found.sum(1), total, atol=1e-12)
    assert (found[1, 4:] == 0).all()
    for row, count in enumerate(present.sum(1).tolist()):
        # The last coefficient is the total minus the others: regress on differences to the last feature.
        last = features[row, :, count - 1]
        apart = features[row, :, : count - 1] - last.unsqueeze(1)
        fitted = LinearRegression(fit_intercept=False).fit(apart, values[row] - total[row] * last, weights[row])
        assert np.abs(found[row, : count - 1].numpy() - fitted.coef_).max() < 1e-8


def test_scores_are_scikit_learns_on_the_samples_drawn() -> None:
    lime = Lime(200, kernel_width=0.3, ridge=0.5)
    model, batch = pooled(PairInput()), pairs()
    scores = lime(model, batch, TARGET).scores
    index = feature_index(batch, "unit")
    kept = lime.coalitions(batch, index)
    weights = lime.sample_weights(model, batch, index, kept)
    logits = logits_keeping(model, batch, expand_to_units(kept, index), "pad")
    for row in range(3):
        values = logits[row].softmax(-1)[:, TARGET[row]].detach()
        fitted = Ridge(alpha=0.5, solver="svd").fit(kept[row].double(), values, weights[row])
        count = int(batch.content_mask[row].sum())
        assert np.abs(scores[row][batch.content_mask[row]].numpy() - fitted.coef_[:count]).max() < 1e-8


@pytest.mark.parametrize("kind", ["pooled", pytest.param("transformer", marks=pytest.mark.slow)])
def test_coefficients_are_captums_on_the_same_samples(kind: str) -> None:
    model: Model = pooled(PairInput()) if kind == "pooled" else tiny("bert")
    whole = pairs()
    lime = Lime(120)
    found = lime(model, whole, TARGET).scores
    for row in range(3):
        batch = whole.rows(torch.tensor([row]))
        expected = captum_scores(lime, model, batch, int(TARGET[row]), feature_index(batch, "unit"))
        assert torch.allclose(found[row, : len(expected)], expected * batch.content_mask[0], atol=2e-6)


def captum_scores(lime: Lime, model: Model, batch: Batch, target: int, index: Tensor) -> Tensor:
    """captum's LIME on embeddings; special tokens are a last feature that every sample keeps."""
    samples = lime.coalitions(batch, index)[0]
    mask = torch.where(index < 0, samples.shape[1], index).unsqueeze(-1)
    drawn = torch.cat((samples, torch.ones(len(samples), 1).bool()), dim=1).long()

    def given(*_: object, **__: object) -> Iterator[Tensor]:
        yield from drawn.unsqueeze(1)

    def probability(vectors: Tensor) -> Tensor:
        return model(batch.repeat(len(vectors)), embeddings=vectors).logits.softmax(-1)[:, target]

    with torch.no_grad():
        vectors = model(batch).embeddings
        empty = model(replace(batch, inputs=batch.inputs.masked_fill(batch.content_mask, 0))).embeddings
        explainer = CaptumLime(probability, interpretable_model=SkLearnRidge(alpha=lime.ridge), perturb_func=given)
        scores: Tensor = explainer.attribute(vectors, baselines=empty, feature_mask=mask, n_samples=len(drawn))
    return scores[0].mean(-1).double()


def test_weights_that_add_up_are_recovered() -> None:
    """Check F.7: Pearson above .99 at 1000 samples."""
    worth = torch.randn(40, generator=Generator().manual_seed(2))
    worth[0] = 0
    batch = words(tuple(range(1, 31)), tuple(range(5, 20)))
    for baselines in ("pad", "zero", "delete"):
        scores = Lime(baselines=baselines)(Game(worth, bias=3.0), batch, torch.zeros(2).long()).scores
        for row, ids in enumerate((torch.arange(1, 31), torch.arange(5, 20))):
            found = scores[row, : len(ids)]
            assert pearson(found, worth[ids].double()).value > 0.99
            assert (found - worth[ids]).abs().max() < 0.06


def test_the_sign_follows_the_target_and_the_output_may_be_a_logit() -> None:
    model, batch = pooled(SingleInput()), pairs()
    logit = Lime(300, output="logit")(model, batch, TARGET).scores
    index = feature_index(batch, "unit")
    kept = Lime(300).coalitions(batch, index)
    values = logits_keeping(model, batch, expand_to_units(kept, index), "pad")[1, :, 2].detach()
    fitted = Ridge(alpha=1.0).fit(kept[1].double(), values, Lime(300).sample_weights(model, batch, index, kept)[1])
    assert np.abs(logit[1][batch.content_mask[1]].numpy() - fitted.coef_[:4]).max() < 1e-8


def test_the_kernel_is_that_of_the_distance_by_hand() -> None:
    model, batch = Game(torch.tensor([1.0, 3, 4, 12])), words((1, 2, 3), (2, 3))
    index = feature_index(batch, "unit")
    kept = torch.tensor([[[True, False, True], [True, True, True]], [[False, True, False], [False, False, False]]])
    # Vectors 3 4 12 (length 13) against 3 1 12; a removed word's vector is that of the pad token, 1.
    far = 1 - (9 + 4 + 144) / (13 * math.sqrt(154))
    found = Lime(kernel_width=0.1).sample_weights(model, batch, index, kept)
    assert found[0].tolist() == pytest.approx([math.exp(-(far**2) / 0.02), 1])
    empty = 1 - (4 + 12) / (math.sqrt(160) * math.sqrt(2))
    assert found[1, 1].item() == pytest.approx(math.exp(-(empty**2) / 0.02))
    away = 1 - (9 + 144) / (13 * math.sqrt(153))
    assert Lime(baselines="delete").sample_weights(model, batch, index, kept)[0, 0].item() == pytest.approx(
        math.exp(-(away**2) / 2)
    )


def test_coins_are_fair_and_belong_to_the_seed_and_the_example() -> None:
    batch = words(tuple(range(1, 13)), tuple(range(1, 9)))
    index = feature_index(batch, "unit")
    kept = Lime(4000).coalitions(batch, index)
    assert kept[0].double().mean(0).sub(0.5).abs().max() < 0.03
    assert not kept[1, :, 8:].any()
    together = torch.corrcoef(kept[0].double().T) - torch.eye(12)
    assert together.abs().max() < 0.06
    assert not torch.equal(kept[0, :, :8], kept[1, :, :8])
    assert not torch.equal(kept, Lime(4000, seed=1).coalitions(batch, index))
    assert torch.equal(kept[1:, :, :8], Lime(4000).coalitions(batch.rows(torch.tensor([1])), index[1:, :8]))


@pytest.mark.parametrize("samples", [2, 7, 60])
def test_paired_samples_are_followed_by_their_complements(samples: int) -> None:
    batch = words(tuple(range(1, 13)), tuple(range(1, 9)))
    index = feature_index(batch, "unit")
    paired, single = (Lime(samples, paired=paired).coalitions(batch, index) for paired in (True, False))
    assert paired.shape == (2, samples, 12)
    for row, count in enumerate((12, 8)):
        kept = paired[row, :, :count]
        # The first of each pair are the first of the plain samples, and a last one may stay alone.
        assert torch.equal(kept[::2], single[row, : -(-samples // 2), :count])
        assert torch.equal(kept[1::2], ~kept[::2][: samples // 2])
        assert not paired[row, :, count:].any()
    alone = Lime(samples, paired=True).coalitions(batch.rows(torch.tensor([1])), index[1:, :8])
    assert torch.equal(alone[0], paired[1, :, :8])


def test_an_output_that_is_the_same_for_a_text_and_the_rest_of_it_says_nothing_about_words() -> None:
    # Bonds: 1 with both words or none (both pad tokens weigh 1), 0 with one. No word has an effect of its own.
    weights = torch.tensor([0.0, 1.0, 1.0])

    class Even(Game):
        def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
            trace = super().forward(batch, embeddings=embeddings, attention=attention)
            return replace(trace, logits=(trace.logits - 1).square())

    batch, target = words((1, 2)), torch.zeros(1).long()
    wide = Lime(20, kernel_width=1e6, seed=5)
    assert replace(wide, paired=True)(Even(weights), batch, target).scores[0].tolist() == pytest.approx([0, 0])
    assert wide(Even(weights), batch, target).scores.abs().max() > 0.01


def test_with_an_error_out_of_reach_all_paired_samples_are_read() -> None:
    lime = Lime(40, paired=True)
    model, batch = pooled(SingleInput()), pairs()
    expected = lime(model, batch, TARGET).scores
    torch.testing.assert_close(replace(lime, error=1e-9)(model, batch, TARGET).scores, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("error", [None, 1e-9])
def test_a_long_text_has_two_samples_per_word_whatever_is_beside_it(error: float | None) -> None:
    game, batch = Game(torch.arange(14.0)), words((1, 2), tuple(range(1, 14)))
    few, enough = (Lime(count, paired=True, error=error)(game, batch, torch.zeros(2).long()) for count in (3, 26))
    torch.testing.assert_close(few.scores[1], enough.scores[1])
    assert few.mask.tolist() == enough.mask.tolist()
    short = Lime(4, paired=True)(game, batch.rows(torch.tensor([0])), torch.zeros(1).long())
    torch.testing.assert_close(few.scores[0, :2], short.scores[0])
    assert len({*few.scores[1].tolist()}) > 7, "three samples tell no more than four groups of words apart"


def test_two_samples_no_ridge_and_a_narrow_kernel_are_enough() -> None:
    smallest = Lime(n_samples=2, kernel_width=1e-3, ridge=0.0)
    model, batch = Game(torch.tensor([0.0, 3.0, 4.0])), words((1, 2))
    assert smallest.coalitions(batch, feature_index(batch, "unit")).shape == (1, 2, 2)
    assert bool(smallest(model, batch, torch.zeros(1).long()).scores.isfinite().all())
    assert Lime(2)(Game(torch.ones(9)), words((1, 2), (3,)), torch.zeros(2).long()).mask.tolist() == [
        [True, True],
        [True, False],
    ]


def test_a_single_feature_gets_the_whole_sum() -> None:
    gram = torch.tensor([[[2.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    cross, total = torch.tensor([[5.0, 0.0], [0.0, 0.0]]).double(), torch.tensor([3.0, -4.0]).double()
    present = torch.tensor([[True, False], [True, False]])
    assert solve_sum_constrained(gram, cross, total, present).tolist() == [[3.0, 0.0], [-4.0, 0.0]]
