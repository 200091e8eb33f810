"""Distance between the attention of two models, under the best matching of their heads.

Permuting the heads of a layer does not change what a transformer computes, so each head is compared with the head of
the base model that it matches: one matching per layer, the same for all examples of a batch, that minimises the mean
divergence. Attention is `[batch layer head query unit]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound, kullback_leibler
from heedful.types import real_queries

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
        base = permute_heads(base, matching)
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
    return torch.stack([torch.from_numpy(linear_sum_assignment(cost)[1]) for cost in costs.cpu().numpy()])


def permute_heads(attention: Tensor, matching: Tensor) -> Tensor:
    """Attention with the heads of each layer in the order `[layer head]`."""
    layers = torch.arange(attention.shape[1]).unsqueeze(1)
    return attention[:, layers, matching]


def attention_jsd_bound(attention: Tensor, support: Tensor, mask: Tensor) -> Tensor:
    """The largest Jensen-Shannon divergence of any attention on the same tokens from this one, `[batch]`.

    Args:
        support: where attention may be, `[batch query unit]` or anything that broadcasts to it.
    """
    return _mean_per_example(jensen_shannon_bound(attention, support[:, None, None]), mask)


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
