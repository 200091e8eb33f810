"""Attention scores and normalisers against slow re-derivations of their formulas."""

from __future__ import annotations

from math import exp, sqrt, tanh

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

from heedful.models.attentive import (
    Additive,
    Attention,
    AttentionModule,
    Dot,
    Entmax,
    Normalizer,
    Softmax,
    Sparsemax,
    UniformWeights,
)
from heedful.models.encoders import initialize_weights
from heedful.types import UserError

NORMALISERS: tuple[Normalizer, ...] = (
    Softmax(),
    Softmax(0.3),
    Sparsemax(),
    Entmax(),
    Entmax(1.2),
    Entmax(2.0),
    UniformWeights(),
)


def built(plan: Attention, dim: int, *, asked: bool) -> AttentionModule:
    return initialize_weights(plan.build(dim, with_question=asked), Generator().manual_seed(5)).double()


def states(dim: int) -> tuple[Tensor, Tensor]:
    """Hidden states of two rows, and a question for each."""
    generator = Generator().manual_seed(9)
    hidden = torch.randn(2, 5, dim, generator=generator, dtype=torch.float64)
    return hidden, torch.randn(2, dim, generator=generator, dtype=torch.float64)


def layer(module: nn.Module, name: str) -> nn.Linear:
    found = module.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found


def product(first: Tensor, second: Tensor) -> float:
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    return sum(float(a) * float(b) for a, b in pairs)


@pytest.mark.parametrize(
    ("plan", "dim", "asked", "count"),
    [
        (Additive(), 256, False, 33_024),
        (Additive(), 128, False, 8_320),
        (Additive(), 256, True, 33_024 + 256 * 128 + 128),
        (Dot(), 256, False, 256),
        (Dot(), 256, True, 0),
    ],
)
def test_attention_has_the_published_size(plan: Attention, dim: int, *, asked: bool, count: int) -> None:
    assert sum(parameter.numel() for parameter in plan.build(dim, with_question=asked).parameters()) == count


@pytest.mark.parametrize("asked", [False, True])
def test_additive_scores_follow_the_formula(*, asked: bool) -> None:
    module = built(Additive(), 6, asked=asked)
    hidden, question = states(6)
    scores = module(hidden, question if asked else None)
    unit, score = layer(module, "hidden_projection"), layer(module, "score")
    assert score.bias is None
    for row in range(2):
        for t in range(5):
            total = 0.0
            for k in range(3):
                inner = product(unit.weight[k], hidden[row, t]) + float(unit.bias.detach()[k])
                if asked:
                    other = layer(module, "question_projection")
                    inner += product(other.weight[k], question[row]) + float(other.bias.detach()[k])
                total += float(score.weight.detach()[0, k]) * tanh(inner)
            assert float(scores.detach()[row, t]) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("asked", [False, True])
def test_dot_scores_follow_the_formula(*, asked: bool) -> None:
    module = built(Dot(), 6, asked=asked)
    hidden, question = states(6)
    scores = module(hidden, question if asked else None)
    for row in range(2):
        for t in range(5):
            key = question[row] if asked else layer(module, "score").weight[0]
            assert float(scores.detach()[row, t]) == pytest.approx(product(key, hidden[row, t]) / sqrt(6), abs=1e-12)


def test_an_attention_built_for_questions_wants_one() -> None:
    with pytest.raises(ValueError, match="question"):
        built(Dot(), 4, asked=True)(states(4)[0])


def test_additive_attention_on_one_dimension_is_refused() -> None:
    with pytest.raises(UserError, match="at least 2"):
        Additive().build(1, with_question=False)


def softmax_by_hand(scores: list[float], temperature: float) -> list[float]:
    top = max(scores)
    powers = [exp((score - top) / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


def entmax_by_hand(scores: list[float], alpha: float) -> list[float]:
    """p_t = max(0, (alpha-1) u_t - tau)^(1/(alpha-1)), tau bisected until the weights sum to one."""
    raised = [(alpha - 1) * score for score in scores]
    low, high = max(raised) - 1, max(raised)
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(max(0.0, score - middle) ** (1 / (alpha - 1)) for score in raised)
        low, high = (middle, high) if total > 1 else (low, middle)
    return [max(0.0, score - low) ** (1 / (alpha - 1)) for score in raised]


def weights_by_hand(normaliser: Normalizer, scores: list[float]) -> list[float]:
    if isinstance(normaliser, Softmax):
        return softmax_by_hand(scores, normaliser.temperature)
    if isinstance(normaliser, UniformWeights):
        return [1 / len(scores)] * len(scores)
    return entmax_by_hand(scores, normaliser.alpha if isinstance(normaliser, Entmax) else 2.0)


Scores = st.lists(st.floats(-50, 50), min_size=1, max_size=7)


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=str)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(real=Scores, hidden=Scores)
def test_weights_follow_the_formula_whatever_stands_off_the_mask(
    normaliser: Normalizer, real: list[float], hidden: list[float]
) -> None:
    scores = torch.tensor([hidden + real + hidden], dtype=torch.float64)
    mask = torch.tensor([[False] * len(hidden) + [True] * len(real) + [False] * len(hidden)])
    weights = normaliser(scores, mask)
    assert int(torch.count_nonzero(weights[~mask])) == 0
    assert float(weights.sum()) == pytest.approx(1, abs=1e-9)
    assert weights[mask].tolist() == pytest.approx(weights_by_hand(normaliser, real), abs=1e-7)


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=str)
def test_infinities_and_nan_off_the_mask_touch_neither_weights_nor_gradients(normaliser: Normalizer) -> None:
    scores = torch.tensor([[0.1, torch.inf, 0.4, torch.nan, -torch.inf]]).requires_grad_()
    mask = torch.tensor([[True, False, True, False, False]])
    weights = normaliser(scores, mask)
    expected = weights_by_hand(normaliser, [0.1, 0.4])
    assert weights[mask].tolist() == pytest.approx(expected, abs=1e-6)
    assert int(torch.count_nonzero(weights[~mask])) == 0
    if weights.requires_grad:
        (gradient,) = torch.autograd.grad(weights[0, 0], scores)
        assert bool(torch.isfinite(gradient).all())
        assert int(torch.count_nonzero(gradient[~mask])) == 0


@pytest.mark.parametrize("normaliser", NORMALISERS[:-1], ids=str)
def test_gradients_of_the_weights_agree_with_finite_differences(normaliser: Normalizer) -> None:
    scores = torch.tensor([[0.3, -0.2, 9.0, 0.15], [0.1, 0.5, 0.4, -9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True], [True, True, True, False]])
    assert torch.autograd.gradcheck(lambda u: normaliser(u, mask), (scores.requires_grad_(),), atol=1e-4)


def test_sparse_weights_have_exact_zeros_where_softmax_has_none() -> None:
    scores, mask = torch.tensor([[0.0, 3.0, 2.9]]), torch.ones(1, 3, dtype=torch.bool)
    zeros = {type(n): int((n(scores, mask) == 0).sum()) for n in (Softmax(), Sparsemax(), Entmax())}
    assert zeros == {Softmax: 0, Sparsemax: 1, Entmax: 1}
    assert Sparsemax()(scores, mask).tolist()[0] == pytest.approx([0.0, 0.55, 0.45])


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=str)
def test_a_row_without_a_real_unit_is_refused(normaliser: Normalizer) -> None:
    mask = torch.tensor([[True, True], [False, False]])
    with pytest.raises(UserError, match=r"row \[1\].*remove"):
        normaliser(torch.zeros(2, 2), mask)


def test_impossible_normalisers_are_refused() -> None:
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="temperature"):
            Softmax(temperature)
    with pytest.raises(UserError, match="Softmax"):
        Entmax(1.0)
