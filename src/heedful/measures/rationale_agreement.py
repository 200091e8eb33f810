"""Plausibility: how well scores put the words first that people marked as evidence, for many texts at once.

All functions take scores `[... word]`, and the rationale (True on marked words) and the mask (True on words that are
there) in a shape that broadcasts to it. A text says something only where some words are marked and some are not;
numbers of other texts are NaN, and whoever asks counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.measures.rank_correlation import DenseRanks, dense_ranks
from heedful.types import UserError

Pooling = Literal["sum", "mean", "max"]
"""How a word's score comes from its pieces; the sum is Fernandes et al.'s."""

RankBy = Literal["score", "size", "against"]
"""Words by their score, by its size without sign, or those first that speak most against the prediction."""

TopK = int | float | Literal["rationale"]
"""How many words are picked: a whole number, a share of the words, or as many as people marked."""

PLAUSIBILITY_MEASURES: Mapping[str, str] = {
    "auc": "chance that a marked word is scored above another word (ROC-AUC)",
    "average_precision": "average precision of the ranking",
    "f1": "F1 of the words that are picked",
    "iou": "marked and picked words, of those that are either",
    "recall": "share of the marked words among as many words with the highest scores",
}


def pool_by_word(
    scores: Tensor, words: Tensor, pooling: Pooling = "sum", count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Scores of words `[batch ... word]` from scores of their units `[batch ... unit]`, and which words are there.

    Args:
        words: the word of each unit `[batch unit]`; -1 belongs to none.
        count: words of the longest text; by default as many as have a unit.

    >>> scores, words = torch.tensor([[0.5, 0.2, 0.1, 9.0]]), torch.tensor([[0, 0, 2, -1]])
    >>> pool_by_word(scores, words)
    (tensor([[0.7000, 0.0000, 0.1000]]), tensor([[ True, False,  True]]))
    """
    check_pooling(pooling)
    width = max(1, int(words.max()) + 1 if words.numel() else 0) if count is None else count
    # What belongs to no word goes to one more slot, which is then cut off.
    slot = torch.where(words >= 0, words, width)
    places = slot.reshape(len(words), *[1] * (scores.dim() - 2), words.shape[1]).expand(scores.shape)
    reduce = {"sum": "sum", "mean": "mean", "max": "amax"}[pooling]
    empty = scores.new_zeros(*scores.shape[:-1], width + 1)
    found = empty.scatter_reduce(-1, places, scores, reduce, include_self=False)
    present = torch.zeros(len(words), width + 1, dtype=torch.bool, device=words.device).scatter(1, slot, True)
    return found[..., :width], present[:, :width]


def check_pooling(pooling: str) -> None:
    """Refuses a way from pieces to words that there is not."""
    known = get_args(Pooling)
    if pooling not in known:
        raise UserError(f"there is no way {pooling!r} from pieces to words; choose one of {', '.join(known)}")


def check_top_k(top: TopK) -> None:
    """Refuses a number of words that cannot be picked."""
    wrong = top != "rationale" if isinstance(top, str) else not top > 0 or (isinstance(top, float) and top > 1)
    if wrong:
        raise UserError(f"{top!r} is no number of words to pick: give a whole number, a share up to 1.0, 'rationale'")


def check_rank_by(rank: str) -> None:
    """Refuses an order of words that there is not."""
    if rank not in get_args(RankBy):
        raise UserError(f"words cannot be ranked by {rank!r}; choose one of {', '.join(get_args(RankBy))}")


def ranking_key(scores: Tensor, rank: RankBy) -> Tensor:
    """What words are ranked by: their scores, the sizes of them, or the scores turned round.

    >>> [ranking_key(torch.tensor([2.0, -3.0]), rank).tolist() for rank in ("score", "size", "against")]
    [[2.0, -3.0], [2.0, 3.0], [-2.0, 3.0]]
    """
    return {"score": scores, "size": scores.abs(), "against": -scores}[rank]


def has_partial_rationale(rationale: Tensor, mask: Tensor) -> Tensor:
    """True where some words of a text are marked and some are not, `[...]`."""
    marked = (rationale & mask).any(-1)
    unmarked = (~rationale & mask).any(-1)
    return marked & unmarked


def plausibility_metrics(scores: Tensor, rationale: Tensor, mask: Tensor, top: TopK = "rationale") -> dict[str, Tensor]:
    """Every measure by name, `[...]` in float64; NaN where nothing can be judged.

    Args:
        top: how many words are picked for F1 and IOU. With as many as people marked, F1 is the recall.
    """
    real = mask.expand(scores.shape)
    marked = (rationale & mask).expand(scores.shape)
    _check_finite(scores, real)
    ranks, sizes = dense_ranks(scores, real), marked.sum(-1)
    as_many = _top_membership(ranks, real, sizes)
    picked = as_many if top == "rationale" else _top_membership(ranks, real, num_top_words(real, top))
    found = {
        "auc": _roc_auc(ranks, marked, real),
        "average_precision": _average_precision(ranks, marked),
        "f1": rationale_f1(picked, marked),
        "iou": rationale_iou(picked, marked),
        "recall": rationale_recall(as_many, marked),
    }
    says_nothing = ~has_partial_rationale(marked, real)
    return {name: values.masked_fill(says_nothing, torch.nan) for name, values in found.items()}


def _roc_auc(ranks: DenseRanks, marked: Tensor, mask: Tensor) -> Tensor:
    """The chance that a marked word is scored above an unmarked one, ties counting one half, `[...]`.

    `(Σ midranks of the marked - P (P + 1) / 2) / (P N)`; NaN where one kind is missing.
    """
    middle = ranks.tie_sizes.cumsum(-1).double() - (ranks.tie_sizes - 1).double() / 2
    positives, words = marked.sum(-1).double(), mask.sum(-1).double()
    ranked = (middle.gather(-1, _rank_slots(ranks)) * marked).sum(-1)
    return (ranked - positives * (positives + 1) / 2) / (positives * (words - positives))


def _average_precision(ranks: DenseRanks, marked: Tensor) -> Tensor:
    """The mean over marked words of the precision among all words scored as high or higher, `[...]`.

    This is `Σ (R_k - R_{k-1}) P_k` over the distinct scores: ties enter together. NaN where no word is marked.
    """
    slots, hits = _rank_slots(ranks), marked.long()
    by_place = torch.zeros_like(ranks.tie_sizes).scatter_add_(-1, slots, hits)
    as_high, hits_as_high = (_cumulative_from_top(each).gather(-1, slots) for each in (ranks.tie_sizes, by_place))
    return (hits * hits_as_high.double() / as_high.clamp(min=1)).sum(-1) / hits.sum(-1)


def _top_membership(ranks: DenseRanks, mask: Tensor, count: Tensor) -> Tensor:
    """The part of each word `[... word]` in the `count` `[...]` highest: 1, 0, or its share where ties cross the edge.

    Words that tie for the last places share them evenly. Hits, and with them F1 and recall, are then the means over all
    ways to break the tie; IOU, which is convex in them, is that of the mean hits and never above the mean.
    """
    slots = _rank_slots(ranks)
    own = ranks.tie_sizes.gather(-1, slots)
    higher = _cumulative_from_top(ranks.tie_sizes).gather(-1, slots) - own
    left = (count.unsqueeze(-1) - higher).clamp(min=0).double()
    return (left / own.clamp(min=1)).clamp(max=1.0).masked_fill(~mask, 0.0)


def num_top_words(mask: Tensor, top: int | float) -> Tensor:
    """How many words are picked of each text `[...]`: `top` of them, or that share rounded; one at least, at most all.

    >>> num_top_words(torch.ones(1, 8, dtype=torch.bool), 0.3), num_top_words(torch.ones(1, 8, dtype=torch.bool), 10)
    (tensor([2]), tensor([8]))
    """
    check_top_k(top)
    count = mask.sum(-1)
    wanted = torch.full_like(count, top) if isinstance(top, int) else (count * top).round().long()
    return torch.minimum(wanted.clamp(min=1), count)


def rationale_f1(picked: Tensor, rationale: Tensor) -> Tensor:
    """`2 |picked ∩ marked| / (|picked| + |marked|)`, `[...]`; 0 where no word is either."""
    hits, both = _intersection_and_total(picked, rationale)
    return 2 * hits / both.masked_fill(both == 0, 1.0)


def rationale_iou(picked: Tensor, rationale: Tensor) -> Tensor:
    """`|picked ∩ marked| / |picked ∪ marked|` (IOU), `[...]`; 0 where no word is either.

    Of words picked in part, because they tie, it is the IOU of the mean hits: never above the mean over all ways.
    """
    hits, both = _intersection_and_total(picked, rationale)
    return hits / (both - hits).masked_fill(both == 0, 1.0)


def rationale_recall(picked: Tensor, rationale: Tensor) -> Tensor:
    """`|picked ∩ marked| / |marked|`, `[...]`; NaN where no word is marked."""
    hits, _ = _intersection_and_total(picked, rationale)
    return hits / rationale.sum(-1)


def _intersection_and_total(picked: Tensor, rationale: Tensor) -> tuple[Tensor, Tensor]:
    """Size of the intersection, and the two sizes together."""
    marked = rationale.double()
    return (picked * marked).sum(-1), picked.sum(-1) + marked.sum(-1)


def _rank_slots(ranks: DenseRanks) -> Tensor:
    """The place of each word; for words that are not there, which stand behind all, a place that is not used."""
    return ranks.ranks.clamp(max=max(ranks.tie_sizes.shape[-1] - 1, 0))


def _cumulative_from_top(sizes: Tensor) -> Tensor:
    """How many stand on each place or higher."""
    return sizes.flip(-1).cumsum(-1).flip(-1)


def _check_finite(scores: Tensor, mask: Tensor) -> None:
    wrong = ~torch.isfinite(scores) & mask
    if bool(wrong.any()):
        raise UserError(f"{int(wrong.sum())} scores are no finite numbers, so that words cannot be ranked by them")
