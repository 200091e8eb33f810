"""The paper's search: a slow literal twin, its starts, the choice among candidates, and what it can never exceed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from heedful.measures.divergence import jensen_shannon
from heedful.trials._adversary_exact import build_slab, find_exact_adversary
from heedful.trials.adversary_search import (
    AdversarySearchSettings,
    LinearOutputs,
    OutputChange,
    candidate_divergences,
    initial_logits,
    search_adversaries,
    select_best_candidate,
    stretch_to_boundary,
)

Outputs = Callable[[Tensor], Tensor]


def some_attention(batch: int, units: int, queries: int = 1) -> tuple[Tensor, Tensor]:
    """Attention `[batch query unit]` and its support, the last units of odd rows absent."""
    support = torch.ones(batch, queries, units, dtype=torch.bool)
    support[1::2, :, -2:] = False
    scores = torch.randn(batch, queries, units, generator=Generator().manual_seed(1), dtype=torch.float64)
    return torch.softmax(scores.masked_fill(~support, -math.inf), -1), support


def linear(batch: int, units: int, classes: int) -> tuple[Tensor, Outputs]:
    scores = torch.randn(batch, units, classes, generator=Generator().manual_seed(2), dtype=torch.float64) * 2
    return scores, lambda attention: torch.softmax(attention[:, :, 0] @ scores + 0.1, -1)


def literal(
    attention: Tensor, outputs: Outputs, logits: Tensor, descent: AdversarySearchSettings, scale: float
) -> Tensor:
    """The algorithm as the specification words it, by autograd and PyTorch's plain Adam."""
    real = logits > -1e4
    free = logits.clone().requires_grad_()
    optimiser = torch.optim.Adam([free], lr=descent.lr, amsgrad=True)
    before = outputs(attention[:, None])[:, 0]
    k = descent.num_adversaries
    for _ in range(descent.steps):
        weights = torch.softmax(free.masked_fill(~real, -math.inf), -1)
        loss = torch.zeros((), dtype=torch.float64)
        change = (outputs(weights) - before[:, None]).abs().sum(-1) * scale
        for row in range(len(logits)):
            for i in range(k):
                loss = loss - jensen_shannon(weights[row, i], attention[row]).mean()
                loss = loss + 500 * torch.relu(change[row, i] - descent.hinge)
            square = [jensen_shannon(weights[row, i], weights[row, j]).mean() for i in range(k) for j in range(k)]
            loss = loss - torch.stack(square).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return torch.softmax(free.masked_fill(~real, -math.inf), -1).detach()


@pytest.mark.parametrize(
    ("classes", "scale", "adversaries"), [pytest.param(2, 0.5, 5, marks=pytest.mark.slow), (3, 1.0, 3), (2, 0.5, 1)]
)
def test_the_search_equals_its_literal_twin(classes: int, scale: float, adversaries: int) -> None:
    attention, support = some_attention(3, 6)
    scores, outputs = linear(3, 6, classes)
    descent = AdversarySearchSettings(adversaries, steps=25)
    logits = initial_logits(support, torch.arange(3), descent)
    before = outputs(attention[:, None])[:, 0]
    linear_outputs = LinearOutputs(scores, torch.full((3, classes), 0.1, dtype=torch.float64))
    change = OutputChange(linear_outputs, before, scale)
    found = search_adversaries(attention, change, logits, descent)
    expected = literal(attention, outputs, logits, descent, scale)
    assert torch.allclose(found, expected, atol=1e-9)
    assert not torch.allclose(found, torch.softmax(logits, -1), atol=1e-2)


def test_two_rows_of_attention_behind_a_crooked_decoder_equal_the_literal_twin() -> None:
    attention, support = some_attention(2, 5, queries=2)
    inner = torch.randn(2, 5, 4, generator=Generator().manual_seed(3), dtype=torch.float64)

    def outputs(candidates: Tensor) -> Tensor:
        contexts = torch.einsum("bkqu,bud->bkqd", candidates, inner)
        return torch.softmax(torch.tanh(contexts[:, :, 0]) * contexts[:, :, 1], -1)

    descent = AdversarySearchSettings(3, steps=25)
    logits = initial_logits(support, torch.arange(2), descent)
    change = OutputChange(outputs, outputs(attention[:, None])[:, 0], 1.0)
    found = search_adversaries(attention, change, logits, descent)
    assert torch.allclose(found, literal(attention, outputs, logits, descent, 1.0), atol=1e-9)


def test_the_written_derivative_of_the_change_equals_the_recorded_one() -> None:
    attention, _ = some_attention(4, 7)
    scores, outputs = linear(4, 7, 3)
    before = outputs(attention[:, None])[:, 0]
    candidates = attention.flip(0)[:, None].repeat(1, 2, 1, 1)
    written = OutputChange(LinearOutputs(scores, torch.full((4, 3), 0.1, dtype=torch.float64)), before, 0.5)
    recorded = OutputChange(outputs, before, 0.5)
    for one, other in zip(written(candidates), recorded(candidates), strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_starts_are_normal_with_the_wanted_spread_and_absent_units_have_no_weight() -> None:
    support = torch.ones(50, 1, 200, dtype=torch.bool)
    support[:, :, 150:] = False
    found = initial_logits(support, torch.arange(50), AdversarySearchSettings())
    real = found[..., :150]
    assert found.shape == (50, 5, 1, 200)
    assert real.mean().item() == pytest.approx(0, abs=5 * 3 / math.sqrt(real.numel()))
    assert real.std().item() == pytest.approx(3, abs=0.05)
    assert (real.abs() < 6).double().mean().item() == pytest.approx(0.9545, abs=0.01)
    assert (torch.softmax(found, -1)[..., 150:] == 0).all()


def test_a_start_is_the_normal_quantile_of_a_uniform_number_times_the_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    # .8413 is the share of a standard normal variable below 1.
    uniform = torch.tensor([[[0.5, 0.8413447460685429, 0.0, 0.5]]], dtype=torch.float64)
    monkeypatch.setattr("heedful.trials.adversary_search.sample_uniform", lambda seeds, draws, units: uniform)
    support = torch.tensor([[[True, True, True, False]]])
    found = initial_logits(support, torch.tensor([0]), AdversarySearchSettings(num_adversaries=1)).flatten()
    assert found[:2].tolist() == pytest.approx([0, 3], abs=1e-9)
    assert -30 < float(found[2]) < -20
    assert found[3] == -1e4


def test_other_rows_change_neither_start_nor_result() -> None:
    attention, support = some_attention(4, 6)
    scores, outputs = linear(4, 6, 2)
    before = outputs(attention[:, None])[:, 0]
    descent = AdversarySearchSettings(steps=50)
    numbers = torch.tensor([5, 6, 7, 8])

    def found(rows: slice) -> Tensor:
        offset = torch.full((4, 2), 0.1, dtype=torch.float64)
        change = OutputChange(LinearOutputs(scores[rows], offset[rows]), before[rows], 0.5)
        return search_adversaries(
            attention[rows], change, initial_logits(support[rows], numbers[rows], descent), descent
        )

    assert torch.allclose(found(slice(None))[2:3], found(slice(2, 3)), atol=1e-10)


def test_the_best_candidate_is_the_farthest_of_those_that_keep_the_output() -> None:
    attention = torch.tensor([[[0.7, 0.2, 0.1]]], dtype=torch.float64)
    candidates = torch.eye(3, dtype=torch.float64)[None, :, None]
    assert select_best_candidate(candidates, attention, torch.tensor([[0.0, 0.01, 0.06]]), 0.05).tolist() == [
        [[0, 1, 0]]
    ]
    assert select_best_candidate(candidates, attention, torch.tensor([[0.0, 0.01, 0.05]]), 0.05).tolist() == [
        [[0, 0, 1]]
    ]
    nothing = select_best_candidate(candidates, attention, torch.ones(1, 3), 0.05)
    assert torch.equal(nothing, attention)
    two = torch.cat([attention, attention.flip(-1)])
    assert torch.equal(select_best_candidate(candidates.repeat(2, 1, 1, 1), two, torch.ones(2, 3), 0.05), two)


@pytest.mark.slow
def test_the_search_beats_its_random_starts_and_never_exceeds_the_exact_maximum() -> None:
    generator = Generator().manual_seed(7)
    batch, units = 96, 6
    attention, support = some_attention(batch, units)
    size = torch.rand(batch, 1, generator=generator, dtype=torch.float64)
    scores = torch.randn(batch, units, generator=generator, dtype=torch.float64) * size
    both = torch.stack([torch.zeros_like(scores), scores], -1)
    before = torch.softmax((attention @ both)[:, 0], -1)
    change = OutputChange(LinearOutputs(both, torch.zeros(batch, 2, dtype=torch.float64)), before, 0.5)

    def reached(steps: int) -> Tensor:
        descent = AdversarySearchSettings(steps=steps)
        found = search_adversaries(attention, change, initial_logits(support, torch.arange(batch), descent), descent)
        return jensen_shannon(select_best_candidate(found, attention, change(found)[0], 0.05), attention)[:, 0]

    maximum = jensen_shannon(
        find_exact_adversary(build_slab(scores, attention[:, 0], support[:, 0], 0.05)), attention[:, 0]
    )
    assert (reached(500) <= maximum + 1e-12).all()
    assert (reached(0) >= 0).all()
    assert reached(500).mean() > reached(0).mean()


@pytest.mark.parametrize(
    ("candidate", "epsilon", "expected"),
    [
        ((0.6, 0.4), 0.2, 0.7),
        ((1.0, 0.0), 0.2, 0.7),
        ((0.4, 0.6), 0.2, 0.3),
        ((0.6, 0.4), 1.0, 1.0),
        ((0.5, 0.5), 1.0, 0.5),
    ],
)
def test_a_candidate_is_pulled_until_the_output_or_a_weight_stops_it(
    candidate: tuple[float, float], epsilon: float, expected: float
) -> None:
    """The output moves as much as the first weight does."""
    attention = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)
    start = torch.tensor([[[candidate]]], dtype=torch.float64)
    found = stretch_to_boundary(start, attention, lambda weights: (weights[:, :, 0, 0] - 0.5).abs(), epsilon)
    assert found.flatten().tolist() == pytest.approx([expected, 1 - expected], abs=1e-9)


def test_pulling_keeps_distributions_on_their_support_and_never_brings_a_feasible_one_nearer() -> None:
    attention, support = some_attention(8, 7, queries=2)
    inner = torch.randn(8, 7, 3, generator=Generator().manual_seed(4), dtype=torch.float64) * 3

    def moved(candidates: Tensor) -> Tensor:
        outputs = [
            torch.softmax(torch.einsum("bkqu,bud->bkd", each, inner), -1) for each in (candidates, attention[:, None])
        ]
        return 0.5 * (outputs[0] - outputs[1]).abs().sum(-1)

    candidates = torch.softmax(initial_logits(support, torch.arange(8), AdversarySearchSettings()), -1)
    near = attention[:, None] + 0.02 * (candidates - attention[:, None])
    for some in (candidates, near):
        found = stretch_to_boundary(some, attention, moved, 0.05)
        assert (found >= 0).all()
        assert (found.masked_select(~support[:, None].expand_as(found)) == 0).all()
        assert torch.allclose(found.sum(-1), torch.ones_like(found.sum(-1)), atol=1e-12)
        assert (moved(found) <= 0.05).all()
        feasible = moved(some) <= 0.05
        assert (candidate_divergences(found, attention) >= candidate_divergences(some, attention) - 1e-12)[
            feasible
        ].all()
    assert (moved(near) <= 0.05).any()
