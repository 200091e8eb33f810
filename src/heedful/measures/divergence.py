"""Distances between distributions along the last axis: total variation, Kullback-Leibler, Jensen-Shannon.

Logarithms are natural (nats) and zeros are exact (J&W, W&P and AtteFa add 1e-10 inside their logarithms, which moves a
Jensen-Shannon divergence by about 1e-10 per token). Values off the mask, even NaN, neither count nor get a gradient.
Leading axes are batch axes and broadcast.

`attention_distance` compares the attention of two models under the best matching of their heads. Permuting the heads of
a layer does not change what a transformer computes, so each head is compared with the head of the base model that it
matches: one matching per layer, the same for all examples of a batch, that minimises the mean divergence. Attention is
`[batch layer head query unit]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.capabilities import real_queries


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance `½ Σ|p - q|` of two class distributions, in [0, 1].

    For a two-class distribution `[1 - p, p]` this is `|Δp|`, the scale of J&W for one sigmoid output; W&P and AtteFa
    print half of it for the same pair.

    >>> total_variation(torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.1, 0.6, 0.3]))
    tensor(0.6000)
    """
    return 0.5 * (p - q).abs().sum(-1)


def kullback_leibler(p: Tensor, q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Kullback-Leibler divergence in nats, `Σ p ln(p / q)`: `+inf` where `q = 0 < p`.

    Entries with `p = 0` (where the true gradient is infinite) or `q = 0 < p` get no gradient: all gradients are finite.

    >>> kullback_leibler(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.25, 0.5]))
    tensor(0.6931)
    >>> kullback_leibler(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    tensor(inf)
    """
    p, q = _zero_off_mask(p, mask), _zero_off_mask(q, mask)
    terms = p * (torch.log(_replace_zeros(p)) - torch.log(_replace_zeros(q)))
    terms = terms.masked_fill((p == 0) & (q >= 0), 0.0)
    return terms.masked_fill((q == 0) & (p > 0), math.inf).sum(-1)


def jensen_shannon(p: Tensor, q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Jensen-Shannon divergence in nats, `½ KL(p‖m) + ½ KL(q‖m)` with `m = (p + q) / 2`, in [0, ln 2].

    This is the divergence, not its square root. An entry with `p = 0` sends no gradient to p through its own logarithm,
    so gradients are finite.

    >>> jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    p, q = _zero_off_mask(p, mask), _zero_off_mask(q, mask)
    both = _replace_zeros(p + q)
    return 0.5 * (_terms_against_mixture(p, both) + _terms_against_mixture(q, both)).sum(-1)


def jensen_shannon_bound(attention: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest Jensen-Shannon divergence of any distribution on the same tokens from this one.

    The divergence is convex in the other distribution, so it is largest at a single token, the one with the lowest
    weight `a`: `ln 2 + a/2 ln a - (1 + a)/2 ln(1 + a)`; 0 for one token and for none.

    >>> jensen_shannon_bound(torch.full((5,), 0.2))
    tensor(0.4228)
    """
    if mask is not None:
        attention = torch.where(mask, attention, torch.ones_like(attention))
    if not attention.shape[-1]:
        return attention.sum(-1)
    lowest = attention.amin(-1)
    logarithm = torch.log(_replace_zeros(lowest))
    return math.log(2) + 0.5 * (lowest * logarithm - (1 + lowest) * torch.log1p(lowest))


def _zero_off_mask(p: Tensor, mask: Tensor | None) -> Tensor:
    return p if mask is None else torch.where(mask, p, torch.zeros_like(p))


def _replace_zeros(p: Tensor) -> Tensor:
    # The logarithm of a zero is never used: 1 in its place gives 0 and cuts the gradient. NaN stays NaN.
    return torch.where(p == 0, torch.ones_like(p), p)


def _terms_against_mixture(p: Tensor, both: Tensor) -> Tensor:
    # A quotient, not a difference of logarithms: exactly ½ where p = q, and no mean that underflows to 0.
    terms = p * torch.log(2 * (_replace_zeros(p) / both))
    return torch.where(p == 0, torch.zeros_like(p), terms)


MIN_WEIGHT = torch.finfo(torch.float32).tiny
"""Floor of weights in a logarithm: a divergence can be large (87 nats), never infinite."""

MATCHING_BATCH_SIZE = 256
"""Examples per matching, independent of the workspace: heads are matched within a batch."""


@dataclass(frozen=True)
class AttentionDistance:
    """Distance of attention from a base model's, per example `[batch]`: means over layers, heads and real query rows.

    Args:
        kl: Kullback-Leibler divergence of the attention from the base's, in nats.
        jsd: Jensen-Shannon divergence, in nats.
    """

    kl: Tensor
    jsd: Tensor


def attention_distance(
    attention: Tensor, base: Tensor, mask: Tensor, matching: Tensor | None = None
) -> AttentionDistance:
    """The distance from a base model's attention under the best matching of heads.

    Args:
        mask: real tokens `[batch unit]`; where attention has a query row per token, only rows of real tokens count.
        matching: `[layer head]` from `match_heads`, if computed on more examples than these.
    """
    if attention.shape[2] > 1:
        matching = match_heads(head_matching_costs(attention, base, mask)) if matching is None else matching
        base = base[:, torch.arange(base.shape[1]).unsqueeze(1), matching]
    divergences = kullback_leibler(attention.clamp(min=MIN_WEIGHT), base.clamp(min=MIN_WEIGHT))
    return AttentionDistance(
        _mean_per_example(divergences, mask), _mean_per_example(jensen_shannon(attention, base), mask)
    )


@torch.no_grad()
def head_matching_costs(attention: Tensor, base: Tensor, mask: Tensor) -> Tensor:
    """Mean divergence of each head from each head of the base, summed over examples, `[layer head head]`."""
    rows = _query_rows(attention[..., 0], mask)
    # One head at a time: all pairs at once would need heads times the memory of attention.
    costs = []
    for head in range(attention.shape[2]):
        divergences = jensen_shannon(attention[:, :, head, None], base)
        costs.append(((divergences * rows).sum(3) / rows.sum(3)).sum(0))
    return torch.stack(costs, 1).double()


def match_heads(costs: Tensor) -> Tensor:
    """For each layer and head the matched head of the base, `[layer head]`, at the least total cost."""
    from scipy.optimize import linear_sum_assignment  # its import costs 30 MB, and reports do without it

    return torch.stack([torch.from_numpy(linear_sum_assignment(cost)[1]) for cost in costs.cpu().numpy()])


def attention_jsd_bound(attention: Tensor, support: Tensor, mask: Tensor) -> Tensor:
    """The largest Jensen-Shannon divergence of any attention on the same tokens from this one, `[batch]`.

    Args:
        support: the units that take part in attention, `[batch layer head query unit]` or what broadcasts to it.
    """
    return _mean_per_example(jensen_shannon_bound(attention, support), mask)


def scaled_jsd(jsd: Tensor) -> Tensor:
    """The divergence as a share of its maximum, `JSD / ln 2` (AtteFa's sJSD)."""
    return jsd / math.log(2)


def _query_rows(values: Tensor, mask: Tensor) -> Tensor:
    """1 on the query rows that count, `[batch 1 1 query]`, for values `[batch layer head query]`."""
    return real_queries(mask, values.shape[3])[:, None, None].to(values.dtype)


def _mean_per_example(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of `[batch layer head query]` over layers, heads and real query rows, `[batch]`."""
    rows = _query_rows(values, mask)
    return (values * rows).sum((1, 2, 3)) / (rows.sum((1, 2, 3)) * values.shape[1] * values.shape[2])
