"""The exact adversary: known answers, a literal twin, oracles, saturation, ties, and properties on random problems."""

from __future__ import annotations

import itertools
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound, total_variation
from heedful.trials import _adversary_exact
from heedful.trials._adversary_exact import (
    EquivalentOutputs,
    Slab,
    build_slab,
    find_exact_adversary,
    search_supports,
    walk_to_vertex,
)

WEIGHTS = (0.7, 0.2, 0.05, 0.05)
STEEP = (2.0, 1.0, -1.0, -3.0)
FLAT = (2.0, 1.9, 1.5, 1.45)


def problem(scores: tuple[float, ...], weights: tuple[float, ...], epsilon: float) -> Slab:
    """One instance without padding."""
    values = torch.tensor([scores], dtype=torch.float64)
    return build_slab(
        values, torch.tensor([weights], dtype=torch.float64), torch.ones_like(values, dtype=torch.bool), epsilon
    )


def divergence(within: Slab) -> Tensor:
    """Epsilon-max JSD."""
    return jensen_shannon(find_exact_adversary(within), within.attention)


def moved(within: Slab, attention: Tensor) -> Tensor:
    """|p' - p| on the probabilities themselves."""
    scores = within.scores.nan_to_num()
    logits = [(weights * scores).sum(-1) for weights in (attention, within.attention)]
    return (torch.sigmoid(logits[0]) - torch.sigmoid(logits[1])).abs()


@pytest.mark.parametrize(
    ("scores", "epsilon", "expected", "at"),
    [
        (STEEP, 0.01, 0.132104, (0.338, 0.662, 0, 0)),
        (STEEP, 0.05, 0.272221, (0.110, 0.890, 0, 0)),
        (STEEP, 1.0, 0.592639, (0, 0, 1, 0)),
        (FLAT, 0.01, 0.422810, (0, 1, 0, 0)),
        (FLAT, 0.05, 0.504270, None),
    ],
)
def test_the_known_answers_of_the_specification_come_out(
    scores: tuple[float, ...], epsilon: float, expected: float, at: tuple[float, ...] | None
) -> None:
    within = problem(scores, WEIGHTS, epsilon)
    assert divergence(within).item() == pytest.approx(expected, abs=1e-6)
    assert moved(within, find_exact_adversary(within)).item() <= epsilon + 1e-9
    if at is not None:
        assert find_exact_adversary(within)[0].tolist() == pytest.approx(at, abs=1e-3)


def test_all_weight_on_the_lightest_unit_is_the_bound_when_everything_is_allowed() -> None:
    within = problem(STEEP, WEIGHTS, 1.0)
    assert divergence(within).item() == pytest.approx(jensen_shannon_bound(within.attention).item(), abs=1e-12)


def random_problem(seed: int, batch: int, units: int, epsilon: float, *, scale: float = 2.0) -> Slab:
    """Rows of 1 to `units` real units that stand anywhere; some scores and weights are equal, some weights zero."""
    generator = Generator().manual_seed(seed)
    support = torch.rand(batch, units, generator=generator) < 0.7
    support[torch.arange(batch), torch.randint(units, (batch,), generator=generator)] = True
    scores = (torch.randn(batch, units, generator=generator, dtype=torch.float64) * scale).round(decimals=1)
    weights = torch.rand(batch, units, generator=generator, dtype=torch.float64).round(decimals=1) + 1e-3
    weights = torch.where(torch.rand(batch, units, generator=generator) < 0.1, 1e-12, weights) * support
    scores = scores.masked_fill(~support, 1e6)
    return build_slab(scores, weights / weights.sum(-1, keepdim=True), support, epsilon)


def literal(scores: list[float], weights: list[float], low: float, high: float) -> float:
    """The best vertex by plain loops over units, pairs and bounds."""
    tensor, size = torch.tensor(weights, dtype=torch.float64), len(weights)
    found = [0.0]

    def put(*mix: tuple[int, float]) -> None:
        adversary = torch.zeros(size, dtype=torch.float64)
        for unit, weight in mix:
            adversary[unit] = weight
        found.append(jensen_shannon(adversary, tensor).item())

    for i in range(size):
        if low <= scores[i] <= high:
            put((i, 1.0))
        for j in range(size):
            for bound in (low, high):
                if scores[i] < bound < scores[j]:
                    share = (bound - scores[i]) / (scores[j] - scores[i])
                    put((i, 1 - share), (j, share))
    return max(found)


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.3])
def test_the_solver_equals_a_loop_over_all_vertices(epsilon: float) -> None:
    within = random_problem(3, 40, 9, epsilon)
    found = divergence(within)
    for row in range(40):
        real = ~within.scores[row].isnan()
        numbers = (within.scores[row][real].tolist(), within.attention[row][real].tolist())
        expected = literal(*numbers, within.low[row].item(), within.high[row].item())
        assert found[row].item() == pytest.approx(expected, abs=1e-12)


def test_a_fine_grid_over_the_simplex_finds_nothing_better_and_nearly_as_much() -> None:
    steps = 400
    grid = torch.tensor(
        [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)], dtype=torch.float64
    )
    for seed in range(5):
        generator = Generator().manual_seed(seed)
        weights = torch.rand(3, generator=generator, dtype=torch.float64)
        scores = torch.randn(3, generator=generator, dtype=torch.float64)
        within = problem(tuple(scores.tolist()), tuple((weights / weights.sum()).tolist()), 0.05)
        allowed = grid[moved(within, grid / steps) <= 0.05] / steps
        best = jensen_shannon(allowed, within.attention).max().item()
        assert best <= divergence(within).item() + 1e-12
        assert best == pytest.approx(divergence(within).item(), abs=0.01)


def test_bounds_are_the_logits_of_the_probability_plus_and_minus_epsilon() -> None:
    within = problem((0.4, 0.4), (0.5, 0.5), 0.05)
    p = 1 / (1 + math.exp(-0.4))
    assert within.low.item() == pytest.approx(math.log((p - 0.05) / (1.05 - p)), abs=1e-12)
    assert within.high.item() == pytest.approx(math.log((p + 0.05) / (0.95 - p)), abs=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_probability_within_epsilon_of_its_end_opens_that_side(sign: int) -> None:
    within = problem((sign * 3.5, sign * 3.5), (0.5, 0.5), 0.05)
    closed, opened = (within.low, within.high) if sign > 0 else (within.high, within.low)
    assert opened.item() == sign * math.inf
    p = 1 / (1 + math.exp(-3.5))
    assert closed.item() == pytest.approx(sign * math.log((p - 0.05) / (1.05 - p)), abs=1e-12)


def test_outputs_saturated_beyond_floating_point_are_solved() -> None:
    """At logit 800 the sigmoid is exactly 1; any unit above logit(.95) = 2.944 will do."""
    within = problem((900.0, 800.0, 3.0, 2.9), (0.4, 0.3, 0.2, 0.1), 0.05)
    assert within.high.item() == math.inf
    assert within.low.item() == pytest.approx(math.log(19), abs=1e-9)
    assert within.inside_mask.tolist() == [[True, True, True, False]]
    assert moved(within, find_exact_adversary(within)).item() <= 0.05 + 1e-9
    negative = problem((-900.0, -800.0, -3.0, -2.9), (0.4, 0.3, 0.2, 0.1), 0.05)
    assert divergence(negative).item() == pytest.approx(divergence(within).item(), abs=1e-12)


def test_equal_scores_reach_the_bound() -> None:
    within = problem((1.3,) * 5, (0.4, 0.3, 0.1, 0.1, 0.1), 0.01)
    assert divergence(within).item() == pytest.approx(jensen_shannon_bound(within.attention).item(), abs=1e-12)
    assert find_exact_adversary(within)[0].tolist() == [0, 0, 1, 0, 0]


def test_a_single_unit_has_no_other_attention() -> None:
    within = problem((1.3,), (1.0,), 0.01)
    assert find_exact_adversary(within).tolist() == [[1.0]]
    assert divergence(within).item() == 0


def test_attention_itself_is_given_back_where_rounding_leaves_no_vertex() -> None:
    attention = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    nothing = Slab(attention, torch.ones(1, 2, dtype=torch.float64), torch.tensor([2.0]), torch.tensor([3.0]))
    assert find_exact_adversary(nothing).tolist() == [[0.5, 0.5]]


def test_no_instances_give_no_adversaries() -> None:
    empty = torch.zeros(0, 4, dtype=torch.float64)
    assert find_exact_adversary(build_slab(empty, empty, empty.bool(), 0.05)).shape == (0, 4)


def test_padding_other_rows_and_chunks_do_not_change_the_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    within = random_problem(5, 30, 12, 0.05)
    together = find_exact_adversary(within)
    monkeypatch.setattr(_adversary_exact, "_CHUNK", 7)
    assert torch.equal(find_exact_adversary(within), together)
    for row in range(30):
        real = ~within.scores[row].isnan()
        alone = Slab(
            within.attention[row : row + 1, real],
            within.scores[row : row + 1, real],
            within.low[row : row + 1],
            within.high[row : row + 1],
        )
        assert find_exact_adversary(alone)[0].tolist() == pytest.approx(together[row, real].tolist(), abs=1e-12)
        assert together[row, ~real].abs().sum() == 0


seeds = st.integers(0, 10_000)
epsilons = st.sampled_from([0.001, 0.01, 0.05, 0.2, 0.7, 1.0])
scales = st.sampled_from([0.0, 0.1, 2.0, 50.0])


@settings(max_examples=60, deadline=None)
@given(seed=seeds, epsilon=epsilons, scale=scales)
def test_the_adversary_is_a_distribution_on_the_support_that_keeps_the_output(
    seed: int, epsilon: float, scale: float
) -> None:
    within = random_problem(seed, 8, 7, epsilon, scale=scale)
    adversary = find_exact_adversary(within)
    assert (adversary >= 0).all()
    assert adversary[within.scores.isnan()].eq(0).all()
    assert torch.allclose(adversary.sum(-1), torch.ones(8, dtype=torch.float64), atol=1e-12)
    assert (moved(within, adversary) <= epsilon + 1e-9).all()
    assert ((adversary > 0).sum(-1) <= 2).all()
    bound = jensen_shannon_bound(within.attention, ~within.scores.isnan())
    assert (jensen_shannon(adversary, within.attention) <= bound + 1e-12).all()


@settings(max_examples=60, deadline=None)
@given(seed=seeds, epsilon=epsilons, scale=scales)
def test_no_random_feasible_attention_is_farther(seed: int, epsilon: float, scale: float) -> None:
    within = random_problem(seed, 8, 7, epsilon, scale=scale)
    generator = np.random.default_rng(seed)
    support = ~within.scores.isnan()
    rivals = torch.from_numpy(generator.gamma(0.3, size=(50, 8, 7))) * support + 1e-30 * support
    rivals = rivals / rivals.sum(-1, keepdim=True)
    scores = within.scores.nan_to_num()
    start, end = (within.attention * scores).sum(-1), (rivals * scores).sum(-1)
    # As far from attention towards the rival as the slab allows.
    room = torch.where(end > start, (within.high - start) / (end - start), (within.low - start) / (end - start))
    step = torch.where(end == start, 1.0, room).clamp(0, 1)[..., None]
    rivals = within.attention + step * (rivals - within.attention)
    assert (moved(within, rivals) <= epsilon + 1e-9).all()
    assert (jensen_shannon(rivals, within.attention) <= divergence(within) + 1e-9).all()


@settings(max_examples=40, deadline=None)
@given(seed=seeds, scale=scales)
def test_a_larger_epsilon_never_gives_less(seed: int, scale: float) -> None:
    found = [divergence(random_problem(seed, 8, 7, epsilon, scale=scale)) for epsilon in (0.001, 0.01, 0.05, 0.3, 1.0)]
    for smaller, larger in itertools.pairwise(found):
        assert (larger >= smaller - 1e-12).all()


def logits(weights: Tensor, scores: Tensor) -> Tensor:
    found = torch.einsum("ru,ruc->rc", weights, scores)
    return found - found[:, :1]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_walk_keeps_the_output_ends_on_few_units_and_is_never_nearer(classes: int) -> None:
    generator = Generator().manual_seed(classes)
    scores = torch.randn(200, 9, classes, generator=generator, dtype=torch.float64) * 3
    points, attention = (torch.rand(2, 200, 9, generator=generator, dtype=torch.float64) ** 4).unbind()
    points, attention = (each / each.sum(-1, keepdim=True) for each in (points, attention))
    points = torch.where(torch.arange(200)[:, None] < 20, attention, points)
    found = walk_to_vertex(points, scores, attention)
    assert (found >= 0).all()
    assert torch.allclose(found.sum(-1), torch.ones(200, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(logits(found, scores), logits(points, scores), atol=1e-9)
    assert ((found > 0).sum(-1) <= classes).all()
    assert (jensen_shannon(found, attention) >= jensen_shannon(points, attention) - 1e-12).all()
    assert (jensen_shannon(found, attention) > jensen_shannon(points, attention) + 1e-3).double().mean() > 0.95


def test_a_walk_keeps_zero_weights_and_does_not_move_on_few_units() -> None:
    scores = torch.randn(1, 6, 3, generator=Generator().manual_seed(0), dtype=torch.float64)
    attention = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    few = torch.tensor([[0.0, 0.5, 0.0, 0.3, 0.2, 0.0]], dtype=torch.float64)
    assert torch.equal(walk_to_vertex(few, scores, attention), few)
    four = torch.tensor([[0.0, 0.4, 0.1, 0.3, 0.2, 0.0]], dtype=torch.float64)
    assert walk_to_vertex(four, scores, attention)[0, [0, 5]].tolist() == [0, 0]


def test_a_walk_among_equal_scores_still_ends_on_few_units() -> None:
    """Conditions of rank one: every direction keeps the output."""
    scores, attention = torch.ones(1, 6, 3, dtype=torch.float64), torch.full((1, 6), 1 / 6, dtype=torch.float64)
    found = walk_to_vertex(attention, scores, attention)
    assert (found > 0).sum() <= 3
    assert found.sum().item() == pytest.approx(1, abs=1e-9)


def several_classes(seed: int, classes: int, units: int | None = None) -> EquivalentOutputs:
    """A random text with weak to saturated outputs and three sizes of epsilon."""
    generator = Generator().manual_seed(seed)
    count = units or int(torch.randint(2, 9, (1,), generator=generator))
    scale, epsilon = (0.5, 2.0, 6.0, 15.0)[seed % 4], (0.05, 0.01, 0.2)[seed % 3]
    scores = torch.randn(count, classes, generator=generator, dtype=torch.float64) * scale
    attention = torch.softmax(torch.randn(count, generator=generator, dtype=torch.float64) * 2, 0)
    return EquivalentOutputs(scores, attention, epsilon)


def output_changes(outputs: EquivalentOutputs, attention: Tensor) -> Tensor:
    return total_variation(torch.softmax(attention @ outputs.scores, -1), outputs.probabilities)


def grid_maximum(outputs: EquivalentOutputs, steps: int) -> float:
    """The largest divergence among all mixtures of three units in steps of 1 / `steps`."""
    shares = [(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]
    points, units = torch.tensor(shares, dtype=torch.float64) / steps, len(outputs.scores)
    if units < 3:
        return 0.0
    supports = torch.combinations(torch.arange(units), 3)
    mixed = torch.zeros(len(supports), len(points), units, dtype=torch.float64)
    mixed.scatter_(2, supports[:, None].expand(-1, len(points), -1), points.expand(len(supports), -1, -1))
    kept = mixed[output_changes(outputs, mixed) <= outputs.epsilon]
    return float(jensen_shannon(kept, outputs.attention).max()) if len(kept) else 0.0


LONG = pytest.mark.skipif("HEEDFUL_LONG" not in os.environ, reason="two minutes; set HEEDFUL_LONG=1 to run it")


@pytest.mark.parametrize(
    "seeds",
    [range(12), pytest.param(range(12, 60), marks=pytest.mark.slow), pytest.param(range(60, 1000), marks=LONG)],
    ids=["some", "sixty", "a thousand"],
)
def test_with_three_classes_no_grid_over_triples_finds_a_farther_attention(seeds: range) -> None:
    for seed in seeds:
        outputs = several_classes(seed, 3)
        found = search_supports(outputs)
        assert found.sum().item() == pytest.approx(1.0)
        assert output_changes(outputs, found).item() <= outputs.epsilon + 1e-9
        assert jensen_shannon(found, outputs.attention).item() >= grid_maximum(outputs, 40) - 1e-9, seed


@pytest.mark.slow
@pytest.mark.parametrize("classes", [3, 4, 6])
def test_no_equivalent_attention_is_above_the_bound_nor_above_what_is_found(classes: int) -> None:
    for seed in range(6):
        outputs = several_classes(seed, classes, units=5)
        found = jensen_shannon(search_supports(outputs), outputs.attention).item()
        drawn = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.full(5, 0.4), 20_000))
        near = torch.cat([drawn, 0.3 * drawn + 0.7 * outputs.attention])
        near = near[output_changes(outputs, near) <= outputs.epsilon]
        most = max([0.0, *jensen_shannon(near, outputs.attention).tolist()])
        assert found <= outputs.divergence_bound + 1e-9
        assert most <= (found if classes <= 4 else outputs.divergence_bound) + 1e-3


def test_two_admitted_classes_are_solved_exactly_and_one_reaches_the_bound() -> None:
    scores, attention = torch.tensor([STEEP], dtype=torch.float64), torch.tensor(WEIGHTS, dtype=torch.float64)
    two = EquivalentOutputs(torch.cat([torch.zeros_like(scores), scores]).T, attention, 0.05)
    assert jensen_shannon(search_supports(two), attention).item() == pytest.approx(0.272221, abs=1e-6)
    assert two.divergence_bound == pytest.approx(0.272221, abs=1e-6)
    one = EquivalentOutputs(scores.T, attention, 0.05)
    bound = jensen_shannon_bound(attention, torch.ones(4, dtype=torch.bool)).item()
    assert jensen_shannon(search_supports(one), attention).item() == pytest.approx(bound)
    assert one.divergence_bound == pytest.approx(bound)


def test_mixtures_of_two_units_are_where_the_output_leaves_the_region() -> None:
    outputs = several_classes(1, 3, units=6)
    mixtures = _adversary_exact._pair_boundaries(outputs)
    assert len(mixtures) > 0
    assert bool(outputs.contains(mixtures @ outputs.scores).all())
    first, second = mixtures.topk(2).indices.T
    step = torch.nn.functional.one_hot(first, 6) - torch.nn.functional.one_hot(second, 6)
    beside = [outputs.contains((mixtures + sign * 1e-9 * step) @ outputs.scores) for sign in (1, -1)]
    assert bool((beside[0] != beside[1]).all())


def test_beyond_the_budget_the_most_attended_units_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = several_classes(1, 3, units=6)
    every, _ = _adversary_exact._best_supports(outputs)
    monkeypatch.setattr(_adversary_exact, "_MAX_MIXTURES", 4 * 192)
    supports, _ = _adversary_exact._best_supports(outputs)
    least = set(outputs.attention.argsort()[:4].tolist())
    assert set(supports.flatten().tolist()) <= least
    assert not set(every.flatten().tolist()) <= least
