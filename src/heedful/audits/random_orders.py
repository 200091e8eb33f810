"""What random orders of words reach on a text: the null of every measure of faithfulness.

Up to `MAX_ENUMERATED_WORDS` words every set of words is read, and the null is the expectation over all orders. In a
longer text it is the mean over a few orders in pairs of one and its reverse (antithetic sampling, Hammersley & Morton
1956): what one of them removes first the other keeps longest. On sentences of film reviews (9 to 45 words, MiniLM) the
mean of two pairs has about half of the variance of four independent orders, for each of the measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.attributions.method import Baseline, Feature, example_seeds, feature_counts, feature_index
from heedful.audits.best_explanation import MAX_ENUMERATED_WORDS, word_erasure
from heedful.seeding import random_permutations
from heedful.trials.faithfulness import FeatureOutputs
from heedful.types import Batch, Model

ORDER_PAIRS = 2
"""Pairs of an order and its reverse whose mean is the null of a longer text."""

_Outputs = Mapping[int, tuple[float, int]]
"""Output and predicted class by the set of words that was kept, a number whose bits are the words."""


@dataclass(frozen=True)
class RandomErasure:
    """The mean of each measure over random orders of the words of each text, `[batch]` in float64.

    Args:
        flip: NaN for regression.
        orders: how many were read; 0 where the mean is the exact expectation over all orders.
    """

    comprehensiveness: Tensor
    sufficiency: Tensor
    flip: Tensor
    orders: Tensor


def random_erasure(
    model: Model,
    batch: Batch,
    target: Tensor,
    deletion: Baseline,
    seed: int = 0,
    *,
    exact: int = MAX_ENUMERATED_WORDS,
    pairs: int = ORDER_PAIRS,
    feature: Feature = "word",
) -> RandomErasure:
    """What random orders reach on every text.

    Args:
        exact: texts of at most so many words are enumerated.
        pairs: of an order and its reverse, for the others.
        feature: what is removed together; "word" in the other descriptions stands for it.
    """
    words = feature_counts(feature_index(batch, feature))
    values = torch.full((4, len(batch)), torch.nan, dtype=torch.float64, device=target.device)
    for rows, mean_of in (
        ((words <= exact).nonzero().flatten(), _expectations),
        ((words > exact).nonzero().flatten(), _sampled_means),
    ):
        if len(rows):
            values[:, rows] = mean_of(model, batch.rows(rows), target[rows], deletion, seed, pairs, feature)
    if model.task.num_classes <= 1:
        values[2] = torch.nan
    comprehensiveness, sufficiency, flip, orders = values
    return RandomErasure(comprehensiveness, sufficiency, flip, orders.long())


def _sampled_means(
    model: Model, batch: Batch, target: Tensor, deletion: Baseline, seed: int, pairs: int, feature: Feature
) -> Tensor:
    """Comprehensiveness, sufficiency, flip and number of orders `[value batch]`, over orders and their reverses."""
    outputs = word_erasure(deletion, seed, feature)(
        model, batch, target, random_order_scores(batch, seed, pairs, feature)
    )
    means = [
        values.reshape(2 * pairs, -1).mean(0)
        for values in (outputs.comprehensiveness, outputs.sufficiency, outputs.flip)
    ]
    return torch.stack([*means, torch.full_like(means[0], 2 * pairs)])


def random_order_scores(batch: Batch, seed: int, pairs: int = ORDER_PAIRS, feature: Feature = "word") -> Tensor:
    """Scores `[order batch word]` of random orders, and then of the reverse of each of them."""
    words = feature_counts(feature_index(batch, feature))
    support = torch.arange(max(1, int(words.max())), device=words.device) < words.unsqueeze(1)
    # The places of the words in an order are scores of which any order is as likely as any other.
    scores = random_permutations(example_seeds("null", seed, batch), pairs, support).argsort(2).double()
    return torch.cat((scores, -scores), 1).transpose(0, 1)


def _expectations(
    model: Model, batch: Batch, target: Tensor, deletion: Baseline, seed: int, pairs: int, feature: Feature
) -> Tensor:
    """The same `[value batch]` over all orders, from the outputs of all sets of words."""
    counts = feature_counts(feature_index(batch, feature))
    width = max(1, int(counts.max()))
    # Sets that differ in words that a text does not have are one and are read once.
    every = torch.arange(1 << width, device=target.device)
    kept = ((every.unsqueeze(1) >> torch.arange(width, device=target.device)) & 1).bool()
    outputs = FeatureOutputs(model, batch, target, deletion, feature)(kept.expand(len(batch), -1, -1))
    sizes = word_erasure(deletion).sizes(counts).tolist()
    rows = [
        _expectation(words, [size for size in row if size], dict(enumerate(zip(values, decisions, strict=True))))
        for words, row, values, decisions in zip(
            counts.tolist(), sizes, *(part.tolist() for part in outputs), strict=True
        )
    ]
    return torch.tensor(rows, dtype=torch.float64, device=target.device).T


def _expectation(words: int, sizes: Sequence[int], outputs: _Outputs) -> tuple[float, float, float, float]:
    """The mean of each measure over all orders of the words of one text.

    After k steps of a random order every set of k words is equally likely. A text is unflipped with a set removed if
    it is with one word less and the decision is still the same: the probability of that is passed on from set to set.
    """
    if not sizes:
        return 0.0, 0.0, 1.0, 0.0
    whole = (1 << words) - 1
    full, decision = outputs[whole]
    removed: dict[int, list[int]] = {}
    for chosen in range(whole + 1):
        removed.setdefault(chosen.bit_count(), []).append(chosen)
    drops = [_mean([full - outputs[whole ^ chosen][0] for chosen in removed[size]]) for size in sizes]
    losses = [_mean([full - outputs[chosen][0] for chosen in removed[size]]) for size in sizes]
    unflipped, share, flip = {0: 1.0}, 1.0, 0.0
    for size in range(1, max(sizes) + 1):
        left = words - size + 1
        before, unflipped = unflipped, {}
        for chosen in removed[size]:
            if size not in sizes or outputs[whole ^ chosen][1] == decision:
                ways = [before.get(chosen ^ 1 << word, 0.0) for word in range(words) if chosen >> word & 1]
                unflipped[chosen] = sum(ways) / left
        now = sum(unflipped.values())
        share, flip = now, flip + (share - now) * size / words
    return _mean(drops), _mean(losses), flip + share, 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
