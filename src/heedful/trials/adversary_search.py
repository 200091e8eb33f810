"""The search of Jain & Wallace 2019 (algorithm 3) for attention far from the model's that keeps the output.

A few adversaries per text start at random and are optimized together by Adam (AMSGrad): they are pushed away from
attention and from each other, and penalized when the output changes by more than the hinge. The result depends on the
start, so it is a lower bound. The gradient is written out, which is several times faster than autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from heedful.measures.divergence import jensen_shannon, total_variation
from heedful.option_bounds import Bounds, check_options
from heedful.seeding import sample_uniform

_MASKED_LOGIT = -1e4
"""Logit of a unit off the support: weight exactly 0, without infinities in products."""

_BISECTION_STEPS = 40
EPSILON_TOLERANCE = 1e-9
"""What rounding may add to epsilon."""


@dataclass(frozen=True)
class AdversarySearchSettings:
    """Hyper-parameters of the search; the defaults are those of the released code.

    Args:
        hinge: change of the output without penalty during the search (.01; results are judged by epsilon).
        penalty: weight of a change beyond the hinge, for each adversary.
        init_std: standard deviation of the initial logits.
        candidates: of a transformer, most pairs of units and most moves of single heads that are tried for each text,
            the farthest first; 20 000 are all pairs of 67 units.
    """

    num_adversaries: Annotated[int, Bounds(1)] = 5
    steps: Annotated[int, Bounds(0)] = 500
    hinge: float = 0.01
    lr: float = 0.01
    penalty: float = 500.0
    init_std: float = 3.0
    candidates: Annotated[int, Bounds(0)] = 20_000

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class AdversaryProblem:
    """A batch in the form that the solvers need.

    Args:
        attention: the model's own `[batch query unit]`, each row a distribution in float64.
        outputs: probabilities `[batch count class]` of attentions `[batch count query unit]`.
        original_probabilities: under the model's own attention `[batch class]`.
        hinge_scale: ½ where the paper's hinge is on one probability, 1 where it is on the L1 norm over classes.
    """

    attention: Tensor
    support: Tensor
    outputs: Callable[[Tensor], Tensor]
    original_probabilities: Tensor
    hinge_scale: float

    def output_change(self, candidates: Tensor) -> Tensor:
        """Total variation of the output `[batch count]` under candidates `[batch count query unit]`."""
        return total_variation(self.outputs(candidates), self.original_probabilities[:, None])


@dataclass(frozen=True)
class LinearOutputs:
    """Probabilities behind a linear decoder, `softmax(a·scores + offset)`.

    Args:
        scores: contribution of each unit to each class logit `[batch unit class]`.
        offset: bias `[batch class]`, -inf for excluded classes.
    """

    scores: Tensor
    offset: Tensor

    def __call__(self, attention: Tensor) -> Tensor:
        """Probabilities `[batch count class]` of attentions `[batch count query unit]`."""
        return torch.softmax(torch.bmm(attention[:, :, 0], self.scores) + self.offset[:, None], -1)


@dataclass(frozen=True)
class OutputChange:
    """`scale · Σ_c |outputs(a) - original|` and its gradient: written out for linear outputs, else from autograd.

    Args:
        outputs: probabilities `[batch count class]` of attentions `[batch count query unit]`.
        original_probabilities: under the model's own attention `[batch class]`.
        scale: 1 for the paper's L1 norm over classes, ½ for its one probability of two classes.
    """

    outputs: Callable[[Tensor], Tensor]
    original_probabilities: Tensor
    scale: float

    def __call__(self, attention: Tensor) -> tuple[Tensor, Tensor]:
        """Changes `[batch count]` of attentions `[batch count query unit]`, and gradients of that shape."""
        if isinstance(self.outputs, LinearOutputs):
            after = self.outputs(attention)
            moved = after - self.original_probabilities[:, None]
            sign = moved.sign()
            slope = after * (sign - (after * sign).sum(-1, keepdim=True)) * self.scale
            return moved.abs().sum(-1) * self.scale, torch.bmm(slope, self.outputs.scores.mT).unsqueeze(2)
        with torch.enable_grad():
            attention = attention.detach().requires_grad_()
            change = (self.outputs(attention) - self.original_probabilities[:, None]).abs().sum(-1) * self.scale
            (gradient,) = torch.autograd.grad(change.sum(), attention)
        return change.detach(), gradient


def initial_logits(support: Tensor, seeds: Tensor, settings: AdversarySearchSettings) -> Tensor:
    """Random initial logits `[batch adversary query unit]`, each row from its own seed.

    The paper's log(1/length) is omitted: softmax ignores constants.
    """
    batch, queries, units = support.shape
    uniform = sample_uniform(seeds, settings.num_adversaries * queries, units) + 2.0**-54
    normal: Tensor = torch.special.ndtri(uniform).reshape(batch, settings.num_adversaries, queries, units)
    return (normal * settings.init_std).masked_fill(~support[:, None], _MASKED_LOGIT)


@torch.no_grad()
def search_adversaries(
    attention: Tensor, change: OutputChange, logits: Tensor, settings: AdversarySearchSettings
) -> Tensor:
    """Adversaries `[batch adversary query unit]` after optimization from these logits.

    For every text, `Σ_i (-D(a_i, a) + penalty · relu(change_i - hinge)) - mean_ij D(a_i, a_j)` is minimized, where D is
    the mean over queries and the last mean includes the zeros i = j.

    Args:
        attention: the model's own `[batch query unit]`.
    """
    logits = logits.to(attention.dtype).clone()
    # Fused: one pass over memory instead of eight.
    optimizer = torch.optim.Adam([logits], lr=settings.lr, amsgrad=True, fused=True)
    # All pairs of adversaries and attention, which has the last index, repel each other. With
    # dD(p, q)/dp = ½ (ln p - ln (p + q)) + constant, and softmax ignoring the constant, an adversary's gradient weighs
    # ln(p + q) of its pairs by `pair_weights` `[adversary pair]`, and its own logarithm by `self_weight`.
    count, queries, device = settings.num_adversaries, attention.shape[1], attention.device
    first, second = torch.triu_indices(count + 1, count + 1, 1, device=device)
    member = torch.arange(count, device=device)[:, None]
    weight = torch.where(second == count, 0.5, 1 / count**2).to(attention.dtype) / queries
    pair_weights = ((first == member) | (second == member)) * weight
    self_weight = (0.5 + (count - 1) / count**2) / queries
    for _ in range(settings.steps):
        logarithm = torch.log_softmax(logits, -1)
        weights = logarithm.exp()
        points = torch.cat([weights, attention.unsqueeze(1)], 1)
        sums = points[:, first] + points[:, second]
        sums = sums.clamp_(min=torch.finfo(sums.dtype).tiny).log_()
        slope = torch.matmul(pair_weights, sums.flatten(2)).view_as(weights).sub_(logarithm, alpha=self_weight)
        changed, gradient = change(weights)
        slope += (changed > settings.hinge)[:, :, None, None] * gradient * settings.penalty
        logits.grad = weights * (slope - (weights * slope).sum(-1, keepdim=True))
        optimizer.step()
    return torch.softmax(logits, -1)


def stretch_to_boundary(
    candidates: Tensor, attention: Tensor, output_change: Callable[[Tensor], Tensor], epsilon: float
) -> Tensor:
    """Each candidate `[batch count query unit]` moved along its ray from attention, as far as the output allows.

    The divergence grows along the ray. Bisection stays where the output changes by at most epsilon, and may stop early
    where that set has gaps.

    Args:
        output_change: change of the output `[batch count]` under attentions of the candidates' shape.
    """
    start = attention.unsqueeze(1)
    ray = candidates - start
    # The ray leaves the simplex where the first weight becomes zero; absent units never do.
    room = torch.where(ray < 0, start / -ray, torch.inf).flatten(2).amin(-1)
    high = torch.where(room.isfinite(), room, 0.0)
    low = torch.zeros_like(high)

    def at(step: Tensor) -> Tensor:
        return (start + step[:, :, None, None] * ray).clamp(min=0.0)

    low = torch.where(output_change(at(high)) <= epsilon, high, low)
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        kept = output_change(at(middle)) <= epsilon
        low, high = torch.where(kept, middle, low), torch.where(kept, high, middle)
    return at(low)


def candidate_divergences(candidates: Tensor, attention: Tensor) -> Tensor:
    """Jensen-Shannon divergence of candidates `[batch count query unit]` from attention, the mean over queries."""
    return jensen_shannon(candidates, attention.unsqueeze(1)).mean(-1)


def select_best_candidate(candidates: Tensor, attention: Tensor, change: Tensor, epsilon: float) -> Tensor:
    """The farthest candidate `[batch query unit]` whose change `[batch count]` is at most epsilon; the first of equals.

    Attention itself is always a candidate.
    """
    candidates = torch.cat([attention.unsqueeze(1), candidates], 1)
    change = torch.cat([torch.zeros_like(change[:, :1]), change], 1)
    value = candidate_divergences(candidates, attention).masked_fill(change > epsilon, -torch.inf)
    return candidates[torch.arange(len(candidates), device=value.device), value.argmax(1)]
