"""Top-k and pairwise rank agreement of attribution methods: the measures of the disagreement problem.

Krishna et al. (2022), for all pairs of methods at once, on absolute scores: the *top* of a method is its k units with
the largest |score|. Ties are broken uniformly at random, independently in each method, and values are exact
expectations: a method with constant scores agrees with any other at chance level, and the diagonal is below 1 where a
method has ties. There are no p-values. Only a row without units is undefined.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from heedful.measures.rank_correlation import Correlation, chunk_slices, dense_ranks, kendall_matrix, validate_mask
from heedful.types import check_choice

TopKAgreement = Literal["feature", "rank", "sign", "signed-rank"]


def top_k_agreement_matrix(
    kind: TopKAgreement, scores: Tensor, k: int | Tensor, mask: Tensor | None = None
) -> Correlation:
    """The share of their top k on which each two methods agree, `[... method method]`, from 0 to 1.

    "feature": `|top(x) & top(y)| / k`. "rank": only units at the same rank in both count. "sign": only units with the
    same sign in both (0 equals only 0). "signed-rank": both conditions. Where k reaches the number of units, "feature"
    is 1 for any scores.

    Args:
        scores: signed scores `[... method unit]`.
        k: units, for all or for each pair of methods `[... method method]` (`k_from_fraction`, `k_from_nonzero`);
            clipped to between 1 and the number of real units.

    >>> scores = torch.tensor([[0.5, -0.4, 0.3, 0.0], [-0.1, -0.4, 0.3, 0.2]])
    >>> for kind in ("feature", "rank", "sign", "signed-rank"):
    ...     print(kind, top_k_agreement_matrix(kind, scores, 2).value[0, 1].item())
    feature 0.5
    rank 0.0
    sign 0.5
    signed-rank 0.0
    """
    check_choice("agreement", kind, TopKAgreement)
    real = validate_mask(scores, mask)
    methods, width = scores.shape[-2:]
    inside = real.unsqueeze(-2)
    counts = torch.as_tensor(k, device=scores.device).expand(*scores.shape[:-1], methods)
    counts = torch.minimum(counts, real.sum(-1)[..., None, None]).clamp(min=1).double()
    # Each unit lies in a block of `size` tied units with `offset` units before it; off the mask in no top at all.
    ranks = dense_ranks((-scores.double().abs()).masked_fill(~inside, math.inf), inside)
    before = ranks.tie_sizes.cumsum(-1) - ranks.tie_sizes
    offset = before.gather(-1, ranks.slots).double().masked_fill(~inside, math.inf)
    size = ranks.tie_sizes.gather(-1, ranks.slots).double().masked_fill(~inside, 1.0)
    sign = scores.double().sign().masked_fill(~inside, 2.0)
    offset, size, sign = (tensor.reshape(-1, methods, width) for tensor in (offset, size, sign))
    flat_k = counts.reshape(-1, methods, methods)
    value = torch.empty_like(flat_k)
    for rows in chunk_slices(len(value), methods * methods * width):
        value[rows] = _top_k_agreement(kind, offset[rows], size[rows], sign[rows], flat_k[rows])
    value = value.reshape(counts.shape)
    return Correlation.without_p_value(value, real.any(-1)[..., None, None].expand(value.shape))


def pairwise_rank_agreement_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """The share of pairs of units that each two methods rank in the same order, `[... method method]`, from 0 to 1.

    Larger |scores| rank first; a pair that either method ties counts one half. The value is `(1 + tau_a) / 2`;
    undefined for fewer than two units. The mask can select the units of interest.

    >>> scores = torch.tensor([[3.0, -2.0, 1.0], [1.0, 5.0, 0.5], [2.0, 2.0, 2.0]])
    >>> pairwise_rank_agreement_matrix(scores).value[0]
    tensor([1.0000, 0.6667, 0.5000], dtype=torch.float64)
    """
    real = validate_mask(scores, mask)
    sizes = dense_ranks(scores.abs(), real.unsqueeze(-2)).tie_sizes.double()
    count = real.sum(-1).double()[..., None, None]
    pairs = count * (count - 1) / 2
    untied = pairs.squeeze(-1) - (sizes * (sizes - 1) / 2).sum(-1)
    # tau-b divides by the untied pairs of both; multiplied back, this is concordant minus discordant.
    tau = kendall_matrix(scores.abs(), real).value.nan_to_num(0.0)
    surplus = tau * (untied.unsqueeze(-1) * untied.unsqueeze(-2)).sqrt()
    value = (1 + surplus / pairs.clamp(min=1)) / 2
    return Correlation.without_p_value(value, (pairs >= 1).expand(value.shape))


def _top_k_agreement(kind: TopKAgreement, offset: Tensor, size: Tensor, sign: Tensor, k: Tensor) -> Tensor:
    """The expected number of agreeing units over k, `[row method method]`, from blocks of ties `[row method unit]`."""
    (before, other_before), (ties, other_ties) = (
        (tensor.unsqueeze(2), tensor.unsqueeze(1)) for tensor in (offset, size)
    )
    last = k.unsqueeze(-1)
    if kind in ("feature", "sign"):
        # A block that straddles rank k has (k - offset) of its units in the top.
        agreeing = ((last - before) / ties).clamp(0.0, 1.0) * ((last - other_before) / other_ties).clamp(0.0, 1.0)
    else:
        end = torch.minimum(torch.minimum(before + ties, other_before + other_ties), last)
        agreeing = (end - torch.maximum(before, other_before)).clamp(min=0.0) / (ties * other_ties)
    if kind in ("sign", "signed-rank"):
        agreeing = agreeing * (sign.unsqueeze(2) == sign.unsqueeze(1))
    return agreeing.sum(-1) / k
