"""Plausibility: how well word scores agree with human rationales, for many texts at once.

Functions take scores `[... word]`, and the rationale (True on marked words) and the mask (True on existing words) in
shapes that broadcast to them. A text counts only if some of its words are marked and some are not; the values of other
texts are NaN, and callers report their number. Batched, because all heads of a model are evaluated on all texts: one
call of scikit-learn per head and text would take minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from heedful.measures.rank_correlation import DenseRanks, dense_ranks
from heedful.types import UserError

RankBy = Literal["score", "size", "against"]
"""Rank words by score, by absolute score, or by negated score (evidence against the prediction first)."""

TopK = int | float | Literal["rationale"]
"""How many words are selected: a number, a share of the words, or as many as the rationale has."""

PLAUSIBILITY_MEASURES: Mapping[str, str] = {
    "auc": "ROC-AUC: chance that a rationale word outranks another word",
    "average_precision": "average precision of the ranking",
    "f1": "F1 of the selected words",
    "iou": "intersection over union of rationale and selected words",
    "recall": "share of the rationale among as many top-ranked words",
}


def check_top_k(top: TopK) -> None:
    """Raise a `UserError` for a number of words that cannot be selected."""
    wrong = top != "rationale" if isinstance(top, str) else not top > 0 or (isinstance(top, float) and top > 1)
    if wrong:
        raise UserError(f"top={top!r} is not a number of words: give an integer, a share up to 1.0 or 'rationale'")


def ranking_key(scores: Tensor, rank: RankBy) -> Tensor:
    """The values by which words are ranked: scores, absolute scores or negated scores.

    >>> [ranking_key(torch.tensor([2.0, -3.0]), rank).tolist() for rank in ("score", "size", "against")]
    [[2.0, -3.0], [2.0, 3.0], [-2.0, 3.0]]
    """
    return {"score": scores, "size": scores.abs(), "against": -scores}[rank]


def has_partial_rationale(rationale: Tensor, mask: Tensor) -> Tensor:
    """True where some words of a text are marked and some are not, `[...]`."""
    return (rationale & mask).any(-1) & (~rationale & mask).any(-1)


def plausibility_metrics(scores: Tensor, rationale: Tensor, mask: Tensor, top: TopK = "rationale") -> dict[str, Tensor]:
    """Every measure by name, `[...]` in float64; NaN for texts without a partial rationale.

    Words tied at the edge of the selection are selected in equal shares, so F1 and recall are means over all ways to
    break the tie; IOU, which is convex, is the one of the mean hits and never above that mean.

    Args:
        top: how many words are selected for F1 and IOU. With "rationale", F1 equals recall.
    """
    real = mask.expand(scores.shape)
    marked = (rationale & mask).expand(scores.shape)
    wrong = ~torch.isfinite(scores) & real
    if bool(wrong.any()):
        raise UserError(f"{int(wrong.sum())} scores are not finite: words cannot be ranked by them")
    ranks, count = dense_ranks(scores, real), marked.sum(-1)
    as_many = _top_membership(ranks, real, count)
    selected = as_many if top == "rationale" else _top_membership(ranks, real, num_top_words(real, top))
    hits, total = (selected * marked).sum(-1), selected.sum(-1) + count
    metrics = {
        "auc": _roc_auc(ranks, marked, real),
        "average_precision": _average_precision(ranks, marked),
        "f1": 2 * hits / total.masked_fill(total == 0, 1.0),
        "iou": hits / (total - hits).masked_fill(total == 0, 1.0),
        "recall": (as_many * marked).sum(-1) / count,
    }
    undefined = ~has_partial_rationale(marked, real)
    return {name: values.masked_fill(undefined, torch.nan) for name, values in metrics.items()}


def num_top_words(mask: Tensor, top: int | float) -> Tensor:
    """How many words of each text are selected `[...]`: `top`, or that share rounded; at least 1, at most all.

    >>> num_top_words(torch.ones(1, 8, dtype=torch.bool), 0.3), num_top_words(torch.ones(1, 8, dtype=torch.bool), 10)
    (tensor([2]), tensor([8]))
    """
    check_top_k(top)
    count = mask.sum(-1)
    wanted = torch.full_like(count, top) if isinstance(top, int) else (count * top).round().long()
    return torch.minimum(wanted.clamp(min=1), count)


def _roc_auc(ranks: DenseRanks, marked: Tensor, mask: Tensor) -> Tensor:
    """`(Σ midranks of marked words - P (P + 1) / 2) / (P N)`, `[...]`: ties count one half."""
    positives, words = marked.sum(-1).double(), mask.sum(-1).double()
    ranked = (ranks.midranks() * marked).sum(-1)
    return (ranked - positives * (positives + 1) / 2) / (positives * (words - positives))


def _average_precision(ranks: DenseRanks, marked: Tensor) -> Tensor:
    """`Σ (R_k - R_{k-1}) P_k` over the distinct scores, `[...]`: ties enter together."""
    slots, hits = ranks.slots, marked.long()
    hits_by_rank = torch.zeros_like(ranks.tie_sizes).scatter_add_(-1, slots, hits)
    as_high, hits_as_high = (_cumulative_from_top(each).gather(-1, slots) for each in (ranks.tie_sizes, hits_by_rank))
    return (hits * hits_as_high.double() / as_high.clamp(min=1)).sum(-1) / hits.sum(-1)


def _top_membership(ranks: DenseRanks, mask: Tensor, count: Tensor) -> Tensor:
    """The share `[... word]` of each word in the `count` `[...]` highest: 1, 0, or a fraction for ties at the edge."""
    own = ranks.tie_sizes.gather(-1, ranks.slots)
    higher = _cumulative_from_top(ranks.tie_sizes).gather(-1, ranks.slots) - own
    left = (count.unsqueeze(-1) - higher).clamp(min=0).double()
    return (left / own.clamp(min=1)).clamp(max=1.0).masked_fill(~mask, 0.0)


def _cumulative_from_top(sizes: Tensor) -> Tensor:
    """How many have each rank or a higher one."""
    return sizes.flip(-1).cumsum(-1).flip(-1)
