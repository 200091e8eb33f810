"""Sequential linear programs: never below a grid over the simplex, nor below SLSQP from many starts."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Generator, Tensor

from heedful.attributions.method import example_seeds
from heedful.measures.divergence import jensen_shannon
from heedful.models.acceptance import open_layers
from heedful.models.small_transformers import build_network
from heedful.models.transformer import TransformerModel
from heedful.tasks import MulticlassClassification
from heedful.trials._adversary_climb import MOST_UNITS, climb_from, sparse_starts
from heedful.trials._adversary_transformer import (
    TransformerAdversarySettings,
    _build_problem,
    _model_from,
    _replaced_rows,
    find_text_adversary,
)
from heedful.trials.adversarial_attention import find_adversary
from heedful.trials.adversary_search import AdversaryProblem, AdversarySearchSettings, LinearOutputs
from tests.networks import TinyTransformer
from tests.small_models import some_batch

Array = NDArray[np.float64]
Case = tuple[int, tuple[int, int, int | None, int], tuple[int, float]]
SHAPES: tuple[tuple[int, int, int | None, int], ...] = ((1, 1, -1, 3), (1, 2, -1, 2), (2, 1, None, 2), (2, 1, -1, 3))
"""Layers, heads, replaced layer and words: one or two rows of four or five units."""
CASES: list[Case] = list(itertools.product(range(4), SHAPES, ((2, 0.01), (2, 0.05), (3, 0.02))))
IS_SWEEP = bool(os.environ.get("HEEDFUL_SWEEP"))
"""All cases take two minutes: `make sweep` runs them, the usual tests every seventh."""
HARD: list[Case] = [(2, SHAPES[1], (3, 0.02)), (2, SHAPES[2], (3, 0.02)), (1, SHAPES[0], (2, 0.01))]
"""Without the programs .065, .064 and .031 below the grid."""


def tiny_problem(case: Case) -> tuple[AdversaryProblem, float, float]:
    """The problem of a tiny transformer, epsilon, and the divergence that is found."""
    seed, (layers, heads, layer, words), (classes, epsilon) = case
    task = MulticlassClassification(classes)
    network = build_network(TinyTransformer(layers=layers, heads=heads).config(task), Generator().manual_seed(seed))
    model = TransformerModel(open_layers(network, "interface"), task).eval().double()
    batch = some_batch((words,))
    batch = replace(batch, inputs=batch.inputs + seed, uids=(f"t{seed}",))
    settings = TransformerAdversarySettings(epsilon, layer, None, AdversarySearchSettings(), 0, exact=True)
    with torch.no_grad():
        trace = model(batch)
        rows = _replaced_rows(model, batch, trace, settings)
        problem = _build_problem(model, _model_from(model, rows.layers.start), batch, trace, rows)
        found = find_text_adversary(problem, rows, settings, example_seeds("adversary", 0, batch))
        assert float(problem.output_change(found.adversary[None, None])) <= epsilon
    return problem, epsilon, found.divergence


def grid_maximum(problem: AdversaryProblem, epsilon: float) -> float:
    """The largest divergence of a grid over all rows that keeps the output."""
    attention = problem.attention[0]
    rows, units = attention.shape
    parts = 20 if rows == 1 else 8
    cuts = itertools.combinations(range(parts + units - 1), units - 1)
    ends = [(-1, *cut, parts + units - 1) for cut in cuts]
    single = (
        torch.tensor([[high - low - 1 for low, high in itertools.pairwise(each)] for each in ends]).double() / parts
    )
    best = 0.0
    for chosen in torch.cartesian_prod(*[torch.arange(len(single))] * rows).reshape(-1, rows).chunk(4):
        with torch.no_grad():
            kept = problem.output_change(single[chosen].unsqueeze(0))[0] <= epsilon
        values = jensen_shannon(single[chosen], attention).mean(-1)[kept]
        best = max([best, *values.max().reshape(-1).tolist()]) if len(values) else best
    return best


@pytest.mark.parametrize("case", HARD, ids=str)
def test_a_tiny_transformer_is_not_below_a_coarse_grid(case: Case) -> None:
    problem, epsilon, found = tiny_problem(case)
    assert found >= grid_maximum(problem, epsilon) - 1e-6


@pytest.mark.slow
def test_no_tiny_transformer_is_below_a_coarse_grid() -> None:
    below = []
    for case in CASES[:: 1 if IS_SWEEP else 7]:
        problem, epsilon, found = tiny_problem(case)
        below += [(case, gap)] if (gap := grid_maximum(problem, epsilon) - found) > 1e-6 else []
    assert not below


def linear_problem(number: int) -> tuple[AdversaryProblem, float]:
    """Four classes behind a linear decoder, five to ten units, and epsilon."""
    generator = Generator().manual_seed(1000 + number)
    units = 5 + number % 6
    scores = torch.randn(1, units, 4, generator=generator, dtype=torch.float64) * (1.0, 3.0)[number % 2]
    attention = torch.softmax(torch.randn(1, 1, units, generator=generator, dtype=torch.float64) * 1.5, -1)
    outputs = LinearOutputs(scores, torch.zeros(1, 4, dtype=torch.float64))
    support = torch.ones(1, 1, units, dtype=torch.bool)
    before = outputs(attention.unsqueeze(1))[:, 0]
    return AdversaryProblem(attention, support, outputs, before, 1.0), (0.01, 0.05)[number // 2 % 2]


def slsqp_maximum(problem: AdversaryProblem, epsilon: float, starts: int = 24) -> float:
    """The largest divergence that scipy's SLSQP reaches from all units and random starts."""
    assert isinstance(problem.outputs, LinearOutputs)
    own, scores = problem.attention[0, 0].numpy(), problem.outputs.scores[0].numpy()
    before, count = problem.original_probabilities[0].numpy(), len(own)

    def probabilities(weights: Array) -> Array:
        powers = np.exp(weights @ scores - (weights @ scores).max())
        return np.asarray(powers / powers.sum())

    def room(weights: Array) -> float:
        return float(epsilon - 0.5 * np.abs(probabilities(weights) - before).sum())

    def room_slope(weights: Array) -> Array:
        after = probabilities(weights)
        sign = np.sign(after - before)
        return np.asarray(-0.5 * scores @ (after * (sign - (after * sign).sum())))

    def loss(weights: Array) -> float:
        positive = np.maximum(weights, 1e-300)
        both = positive + own
        return -0.5 * float((positive * np.log(2 * positive / both) + own * np.log(2 * own / both)).sum())

    def loss_slope(weights: Array) -> Array:
        positive = np.maximum(weights, 1e-12)
        return np.asarray(-0.5 * (np.log(positive) - np.log(positive + own)))

    drawn = np.random.default_rng(0).dirichlet(np.full(count, 0.5), starts)
    best = 0.0
    for start in [*(0.9 * np.eye(count) + 0.1 * own), *drawn]:
        result = minimize(
            loss,
            start,
            jac=loss_slope,
            method="SLSQP",
            bounds=[(0, 1)] * count,
            constraints=[
                {"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": lambda weights: np.ones(count)},
                {"type": "ineq", "fun": room, "jac": room_slope},
            ],
            options={"maxiter": 200},
        )
        weights = np.clip(result.x, 0, None) / np.clip(result.x, 0, None).sum()
        best = max(best, -loss(weights)) if room(weights) >= -1e-9 else best
    return best


def linear_gap(number: int) -> float:
    """How far what is found is below SLSQP."""
    problem, epsilon = linear_problem(number)
    found = find_adversary(problem, epsilon, AdversarySearchSettings(), torch.tensor([number]), exact=True)
    assert float(problem.output_change(found.adversary[:, None])) <= epsilon + 1e-9
    value = float(jensen_shannon(found.adversary[0], problem.attention[0]))
    assert value <= float(found.upper_bound) + 1e-9
    return slsqp_maximum(problem, epsilon) - value


@pytest.mark.parametrize("number", [18, 43, 54])
def test_four_classes_are_not_below_slsqp(number: int) -> None:
    """Without the programs .022, .038 and .002 below."""
    assert linear_gap(number) <= 1e-6


@pytest.mark.slow
def test_no_problem_of_four_classes_is_below_slsqp() -> None:
    assert max(linear_gap(number) for number in range(0, 80, 1 if IS_SWEEP else 7)) <= 1e-3


def test_random_starts_are_distributions_on_up_to_three_units_of_the_support() -> None:
    support = torch.tensor([[[True, True, False, True, True], [False, True, False, False, False]]])
    starts = sparse_starts(support, torch.tensor([3]), 200)
    torch.testing.assert_close(starts.sum(-1), torch.ones(200, 2, dtype=torch.float64))
    assert not starts[:, ~support[0]].any()
    assert set((starts[:, 0] > 0).sum(-1).tolist()) == set(range(1, MOST_UNITS + 1))
    assert torch.equal(starts[:, 1, 1], torch.ones(200, dtype=torch.float64))
    assert not torch.equal(starts, sparse_starts(support, torch.tensor([4]), 200))


def test_a_climb_keeps_the_output_and_is_never_nearer_than_a_start_that_keeps_it() -> None:
    problem, epsilon = linear_problem(5)
    starts = torch.cat([problem.attention, sparse_starts(problem.support, torch.tensor([0]), 12)])
    ends = climb_from(problem, starts, epsilon)
    assert bool((problem.output_change(ends.unsqueeze(0)) <= epsilon).all())
    assert float(ends.min()) >= 0
    torch.testing.assert_close(ends.sum(-1), torch.ones_like(ends.sum(-1)))
    near = climb_from(problem, ends, epsilon)

    def values(points: Tensor) -> Tensor:
        return jensen_shannon(points, problem.attention[0]).mean(-1)

    assert bool((values(near) >= values(ends) - 1e-12).all())
    assert float(values(ends)[0]) > 0
