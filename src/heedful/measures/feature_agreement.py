"""Do explanations name the same units? The measures of the disagreement problem (Krishna et al. 2022).

All pairs of methods at once, on the sizes of scores: the *top* of a method are its k units with the largest |score|.
Ties are broken by lot, in each method by itself, and every number is the exact mean over all lots: a method that gives
all units the same score agrees with any other as chance has it. So the diagonal is below 1 where a method has ties.
There are no p-values. Nothing is undefined but a row without units.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from heedful.measures.rank_correlation import Correlation, dense_ranks, kendall_matrix, validate_mask

TopKAgreement = Literal["feature", "rank", "sign", "signed-rank"]

_BLOCK = 2**20
"""Units of pairs of methods held at a time."""


def top_k_agreement_matrix(
    kind: TopKAgreement, scores: Tensor, k: int | Tensor, mask: Tensor | None = None
) -> Correlation:
    """The share of their k largest units on which each two methods agree, `[... method method]`, from 0 to 1.

    "feature": `|top(x) & top(y)| / k`. "rank": only units that stand on the same place in both count. "sign": only
    units whose scores have the same sign in both; a score of 0 has the sign of 0 only. "signed-rank": both. Larger is
    more agreement; where k reaches the number of units, "feature" is 1 whatever the scores.

    Args:
        scores: `[... method unit]`, with their signs.
        k: units, for all or for each pair of methods `[... method method]` (`units_in_share`, `units_not_zero`); at
            least 1 and at most the row's units are taken.
        mask: `[... unit]`.

    >>> scores = torch.tensor([[0.5, -0.4, 0.3, 0.0], [-0.1, -0.4, 0.3, 0.2]])
    >>> for kind in ("feature", "rank", "sign", "signed-rank"):
    ...     print(kind, top_k_agreement_matrix(kind, scores, 2).value[0, 1].item())
    feature 0.5
    rank 0.0
    sign 0.5
    signed-rank 0.0
    """
    if kind not in get_args(TopKAgreement):
        raise ValueError(
            f"there is no agreement {kind!r} of the top: choose one of {', '.join(get_args(TopKAgreement))}"
        )
    real = validate_mask(scores, mask)
    methods = scores.shape[-2]
    sizes = torch.as_tensor(k, device=scores.device).expand(*scores.shape[:-1], methods)
    sizes = torch.minimum(sizes, real.sum(-1)[..., None, None]).clamp(min=1).double()
    value = _top_k_agreement(kind, _tie_blocks(scores, real, sizes)).reshape(sizes.shape)
    return _without_p_value(value, real.any(-1)[..., None, None].expand(value.shape))


def pairwise_rank_agreement_matrix(scores: Tensor, mask: Tensor | None = None) -> Correlation:
    """The share of pairs of units that each two methods put in the same order, `[... method method]`, from 0 to 1.

    Larger |scores| rank first; a pair that either method ties counts one half, as by lot. It is `(1 + tau_a) / 2`. The
    mask may choose the units of interest. With fewer than two units it is undefined.

    Args:
        scores: `[... method unit]`.
        mask: `[... unit]`.

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
    return _without_p_value(value, (pairs >= 1).expand(value.shape))


class WordScores(NamedTuple):
    """Scores of words `[... method word]`, zero off the mask `[... word]` of words that have a scored unit."""

    scores: Tensor
    mask: Tensor


def word_scores(scores: Tensor, mask: Tensor, words: Tensor, *, signed: bool) -> WordScores:
    """The sum over each word's units of their scores, or of the sizes of their scores.

    Args:
        scores: `[... method unit]`.
        mask: scored units `[... unit]`.
        words: the word of each unit `[... unit]`, negative where it has none.
        signed: units of opposite sign cancel each other; else |scores| are summed, and no sign is left.

    >>> scores, words = torch.tensor([[1.0, -2.0, 4.0]]), torch.tensor([0, 0, 1])
    >>> mask = torch.ones(3, dtype=torch.bool)
    >>> word_scores(scores, mask, words, signed=True).scores, word_scores(scores, mask, words, signed=False).scores
    (tensor([[-1.,  4.]]), tensor([[3., 4.]]))
    """
    count = max(0, int(words.max()) + 1) if words.numel() else 0
    inside = mask & (words >= 0)
    slot = words.clamp(min=0)
    parts = (scores if signed else scores.abs()).masked_fill(~inside.unsqueeze(-2), 0)
    total = scores.new_zeros(*scores.shape[:-1], count)
    present = torch.zeros(*words.shape[:-1], count, dtype=torch.int64, device=words.device)
    if count:
        total = total.scatter_add(-1, slot.unsqueeze(-2).expand(parts.shape), parts)
        present = present.scatter_add(-1, slot, inside.long())
    return WordScores(total, present > 0)


class _TieBlocks(NamedTuple):
    """Tied blocks of units `[row method unit]`, and k `[row method method]`.

    Args:
        before: places before the block that a unit stands in; infinity off the mask, so that no top has it.
        size: units in the block.
        sign: of the unit's score; 2 off the mask.
    """

    offset: Tensor
    size: Tensor
    sign: Tensor
    k: Tensor


def _tie_blocks(scores: Tensor, real: Tensor, k: Tensor) -> _TieBlocks:
    methods, width = scores.shape[-2:]
    inside = real.unsqueeze(-2)
    values = (-scores.double().abs()).masked_fill(~inside, math.inf)
    places, sizes = dense_ranks(values, inside)
    slot = places.clamp(max=max(width - 1, 0))
    before = (sizes.cumsum(-1) - sizes).gather(-1, slot).double().masked_fill(~inside, math.inf)
    size = sizes.gather(-1, slot).double().masked_fill(~inside, 1.0)
    sign = scores.double().sign().masked_fill(~inside, 2.0)
    before, size, sign = (each.reshape(-1, methods, width) for each in (before, size, sign))
    return _TieBlocks(before, size, sign, k.reshape(-1, methods, methods))


def _top_k_agreement(kind: TopKAgreement, rows: _TieBlocks) -> Tensor:
    """The share of the top that agrees, `[row method method]`, in blocks that bound the memory."""
    value = torch.empty_like(rows.k)
    step = max(1, _BLOCK // max(1, rows.k[:1].numel() * rows.size.shape[-1]))
    for start in range(0, len(value), step):
        value[start : start + step] = _top_k_agreement_block(
            kind, _TieBlocks(*(each[start : start + step] for each in rows))
        )
    return value


def _top_k_agreement_block(kind: TopKAgreement, rows: _TieBlocks) -> Tensor:
    """The mean number of agreeing units over all lots, by k, `[row method method]`."""
    k = rows.k.unsqueeze(-1)
    before = (rows.offset.unsqueeze(2), rows.offset.unsqueeze(1))
    size = (rows.size.unsqueeze(2), rows.size.unsqueeze(1))
    if kind in ("feature", "sign"):
        # A block that straddles the k-th place sends (k - before) of its units into the top.
        inside = [((k - first) / many).clamp(0.0, 1.0) for first, many in zip(before, size, strict=True)]
        agreeing = inside[0] * inside[1]
    else:
        ends = [first + many for first, many in zip(before, size, strict=True)]
        last = torch.minimum(torch.minimum(ends[0], ends[1]), k)
        agreeing = (last - torch.maximum(*before)).clamp(min=0.0) / (size[0] * size[1])
    if kind in ("sign", "signed-rank"):
        agreeing = agreeing * (rows.sign.unsqueeze(2) == rows.sign.unsqueeze(1))
    return agreeing.sum(-1) / rows.k


def _without_p_value(value: Tensor, defined: Tensor) -> Correlation:
    return Correlation(value.masked_fill(~defined, math.nan), torch.full_like(value, math.nan), defined)
