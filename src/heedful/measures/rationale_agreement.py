"""Plausibility: how well word scores agree with human rationales, for many texts at once.

Functions take scores `[... word]`, and the rationale (True on marked words) and the mask (True on existing words) in
shapes that broadcast to them. A text counts only if some of its words are marked and some are not; the values of other
texts are NaN, and callers report their number. Batched, because all heads of a model are evaluated on all texts: one
call of scikit-learn per head and text would take minutes.

Names are those of ERASER (DeYoung et al. 2020) and ferret (Attanasio et al. 2023), with their definitions:
`average_precision` is the sum over steps of recall and `auprc` the area under the lines between the same points, which
is smaller; `token_iou` is the overlap of words (ferret), and ERASER's `iou_f1` counts spans that overlap by one half.
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

PickedWords = int | float | Literal["rationale"]
"""How many words are selected: a number, a share of the words, or as many as the rationale has."""

MATCHING_IOU = 0.5
"""Intersection over union from which ERASER counts two spans as a match."""

PLAUSIBILITY_MEASURES: Mapping[str, str] = {
    "auc": "ROC-AUC: chance that a rationale word outranks another word",
    "average_precision": "average precision of the ranking",
    "auprc": "area under the precision-recall curve, by trapezoids",
    "f1": "F1 of the selected words",
    "token_iou": "intersection over union of rationale and selected words",
    "iou_precision": "share of the selected spans that match one of the rationale",
    "iou_recall": "number of matching spans over that of the rationale",
    "recall": "share of the rationale among as many top-ranked words",
}


def check_top_k(top: PickedWords) -> None:
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


def plausibility_metrics(
    scores: Tensor, rationale: Tensor, mask: Tensor, top: PickedWords = "rationale"
) -> dict[str, Tensor]:
    """Every measure by name, `[...]` in float64; NaN for texts without a partial rationale.

    Words tied at the edge of the selection are selected in equal shares, so F1 and recall are means over all ways to
    break the tie; the token IOU, which is convex, is the one of the mean hits and never above that mean. Spans, the
    longest runs of adjacent selected or marked words, need a decision: there the first of tied words are selected.

    Args:
        top: how many words are selected for F1 and both kinds of IOU. With "rationale", F1 equals recall.
    """
    real = mask.expand(scores.shape)
    marked = (rationale & mask).expand(scores.shape)
    wrong = ~torch.isfinite(scores) & real
    if bool(wrong.any()):
        raise UserError(f"{int(wrong.sum())} scores are not finite: words cannot be ranked by them")
    ranks, count = dense_ranks(scores, real), marked.sum(-1)
    as_many = _top_membership(ranks, real, count)
    number = count if top == "rationale" else num_top_words(real, top)
    selected = as_many if top == "rationale" else _top_membership(ranks, real, number)
    matches, spans, marked_spans = _matching_spans(_first_highest(scores, real, number), marked)
    hits, total = (selected * marked).sum(-1), selected.sum(-1) + count
    metrics = {
        "auc": _roc_auc(ranks, marked, real),
        "average_precision": _average_precision(ranks, marked),
        "auprc": _trapezoidal_auprc(ranks, marked),
        "f1": 2 * hits / total.masked_fill(total == 0, 1.0),
        "token_iou": hits / (total - hits).masked_fill(total == 0, 1.0),
        "iou_precision": matches / spans.clamp(min=1),
        "iou_recall": matches / marked_spans.clamp(min=1),
        "recall": (as_many * marked).sum(-1) / count,
    }
    undefined = ~has_partial_rationale(marked, real)
    return {name: values.masked_fill(undefined, torch.nan) for name, values in metrics.items()}


def iou_f1(precision: float, recall: float) -> float:
    """ERASER's IOU-F1: the harmonic mean of the means over texts of `iou_precision` and `iou_recall`; 0 if both are.

    >>> iou_f1(0.25, 0.75)
    0.375
    """
    return 2 * precision * recall / (precision + recall) if precision + recall != 0 else 0.0


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
    as_high, hits_as_high = (_cumulative_from_top(sizes).gather(-1, slots) for sizes in (ranks.tie_sizes, hits_by_rank))
    return (hits * hits_as_high.double() / as_high.clamp(min=1)).sum(-1) / hits.sum(-1)


def _trapezoidal_auprc(ranks: DenseRanks, marked: Tensor) -> Tensor:
    """`Σ (R_k - R_{k-1}) (P_k + P_{k-1}) / 2` over the distinct scores with P_0 = 1, `[...]`: ties enter together."""
    hits_by_rank = torch.zeros_like(ranks.tie_sizes).scatter_add_(-1, ranks.slots, marked.long())
    as_high, hits_as_high = (_cumulative_from_top(sizes) for sizes in (ranks.tie_sizes, hits_by_rank))
    precision = torch.where(as_high > 0, hits_as_high.double() / as_high.clamp(min=1), 1.0)
    before = torch.nn.functional.pad(precision[..., 1:], (0, 1), value=1.0)
    return (hits_by_rank * (precision + before) / 2).sum(-1) / marked.sum(-1)


def _first_highest(scores: Tensor, mask: Tensor, count: Tensor) -> Tensor:
    """The `count` `[...]` words of highest score, the first of equals, `[... word]`."""
    order = scores.masked_fill(~mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    positions = torch.arange(order.shape[-1], device=order.device).expand(order.shape)
    return (torch.empty_like(order).scatter_(-1, order, positions) < count.unsqueeze(-1)) & mask


def _matching_spans(selected: Tensor, marked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many selected spans match a marked one, how many selected and how many marked spans there are, `[...]` each.

    Two spans have one stretch of words in common at most, so that the overlap of a pair is the length of a stretch.
    """
    both = selected & marked
    (span, selected_length), (_, marked_length), (_, common) = (_runs(flags) for flags in (selected, marked, both))
    overlap = common.double() / (selected_length + marked_length - common).clamp(min=1)
    matching = (both & (overlap >= MATCHING_IOU)).long()
    matches = torch.zeros_like(span).scatter_reduce_(-1, span, matching, "amax").sum(-1)
    return matches.double(), _num_runs(selected), _num_runs(marked)


def _runs(flags: Tensor) -> tuple[Tensor, Tensor]:
    """For each word the number of the latest run of flagged words, and how many flagged words it has, `[... word]`."""
    run = (_run_starts(flags).cumsum(-1) - 1).clamp(min=0)
    return run, torch.zeros_like(run).scatter_add_(-1, run, flags.long()).gather(-1, run)


def _run_starts(flags: Tensor) -> Tensor:
    return flags & ~torch.nn.functional.pad(flags[..., :-1], (1, 0))


def _num_runs(flags: Tensor) -> Tensor:
    return _run_starts(flags).sum(-1)


def _top_membership(ranks: DenseRanks, mask: Tensor, count: Tensor) -> Tensor:
    """The share `[... word]` of each word in the `count` `[...]` highest: 1, 0, or a fraction for ties at the edge."""
    tie_sizes = ranks.tie_sizes.gather(-1, ranks.slots)
    higher = _cumulative_from_top(ranks.tie_sizes).gather(-1, ranks.slots) - tie_sizes
    left = (count.unsqueeze(-1) - higher).clamp(min=0).double()
    return (left / tie_sizes.clamp(min=1)).clamp(max=1.0).masked_fill(~mask, 0.0)


def _cumulative_from_top(sizes: Tensor) -> Tensor:
    """How many have each rank or a higher one."""
    return sizes.flip(-1).cumsum(-1).flip(-1)
