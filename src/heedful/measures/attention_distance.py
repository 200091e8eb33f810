"""Comparing the attention of two models whose heads have no common order.

Heads of one layer may be exchanged without changing what a transformer computes, so a head of one model is compared
with the head of the other that it fits best: the matching of heads, the same for all examples of a batch, that makes
the mean divergence least. Attention is `[batch layer head query unit]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound

MIN_WEIGHT = torch.finfo(torch.float32).tiny
"""Weights that underflowed count as this in a logarithm: a divergence may be large (87 nats), never infinite."""

MATCHING_BATCH_SIZE = 256
"""Examples compared at once, whatever the workspace says: heads are matched within a batch, always the same one."""


@dataclass(frozen=True)
class AttentionDistance:
    """How far attention is from a base's, per example `[batch]`: means over layers, heads and real query rows.

    Args:
        kl: Kullback-Leibler divergence of the attention from the base's, in nats.
        jsd: Jensen-Shannon divergence, in nats.
    """

    kl: Tensor
    jsd: Tensor


def attention_distance(
    attention: Tensor, base: Tensor, mask: Tensor, matching: Tensor | None = None
) -> AttentionDistance:
    """The distance from a base's attention under the best matching of heads.

    Args:
        mask: real units `[batch unit]`; where attention has a query row per unit, only rows of real units count.
        order: a matching `[layer head]` found on more examples than these; None matches on these.
    """
    if attention.shape[2] > 1:
        matching = match_heads(head_matching_costs(attention, base, mask)) if matching is None else matching
        base = permute_heads(base, matching)
    rows = _query_mask(attention, mask)
    logarithms = attention.clamp(min=MIN_WEIGHT).log() - base.clamp(min=MIN_WEIGHT).log()
    return AttentionDistance(
        _mean_of_row_sums(attention * logarithms, rows), _mean_over_rows(jensen_shannon(attention, base), rows)
    )


@torch.no_grad()
def head_matching_costs(attention: Tensor, base: Tensor, mask: Tensor) -> Tensor:
    """Mean divergence of each head from each of the base's heads, `[layer head head]`: a sum over examples."""
    rows = _query_mask(attention, mask)
    # One head at a time: all pairs at once would need heads times the memory of attention.
    pairs = [
        _sum_over_examples(jensen_shannon(attention[:, :, head, None], base), rows)
        for head in range(attention.shape[2])
    ]
    return torch.stack(pairs, 1).double()


def match_heads(costs: Tensor) -> Tensor:
    """For each layer and head the base's head that it is matched with, `[layer head]`, at the least total cost."""
    return torch.stack([torch.from_numpy(linear_sum_assignment(cost)[1]) for cost in costs.cpu().numpy()])


def permute_heads(attention: Tensor, matching: Tensor) -> Tensor:
    """Attention with the heads of each layer in another order `[layer head]`."""
    layers = torch.arange(attention.shape[1]).unsqueeze(1)
    return attention[:, layers, matching]


def attention_jsd_bound(attention: Tensor, support: Tensor, mask: Tensor) -> Tensor:
    """The largest Jensen-Shannon divergence that any attention on the same units has to this one `[batch]`.

    Args:
        support: where attention may be, `[batch query unit]` or anything that broadcasts to it.
    """
    return _mean_over_rows(jensen_shannon_bound(attention, support[:, None, None]), _query_mask(attention, mask))


def scaled_jsd(jsd: Tensor) -> Tensor:
    """The divergence as a share of the largest possible, `JSD / ln 2` (AtteFa's sJSD)."""
    return jsd / math.log(2)


def _query_mask(attention: Tensor, mask: Tensor) -> Tensor:
    """Which query rows count, `[batch 1 1 query]`."""
    queries = attention.shape[3]
    real = mask if queries == mask.shape[1] else torch.ones_like(mask[:, :1]).expand(-1, queries)
    return real[:, None, None].to(attention.dtype)


def _mean_of_row_sums(terms: Tensor, rows: Tensor) -> Tensor:
    return _mean_over_rows(terms.sum(-1), rows)


def _mean_over_rows(values: Tensor, rows: Tensor) -> Tensor:
    """The mean of `[batch layer head query]` over all rows that count, `[batch]`."""
    total = (values * rows).sum((1, 2, 3))
    return total / (rows.sum((1, 2, 3)) * values.shape[1] * values.shape[2])


def _sum_over_examples(values: Tensor, rows: Tensor) -> Tensor:
    """The mean over query rows of `[batch layer head query]`, summed over examples, `[layer head]`."""
    return ((values * rows).sum(3) / rows.sum(3)).sum(0)
