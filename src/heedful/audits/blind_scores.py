"""Scores that ignore the model: orders of words that an explanation must beat to say anything about this model.

Long and rare words carry more content than others, whatever the model. An explanation that ranks them first is better
than random orders without knowing the model at all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from heedful.attributions.method import Feature, MethodTags, feature_owners
from heedful.types import Attribution, Batch, Example, Method, Model, NotApplicable, Pooling, pool_by_word

_Score = Callable[[Sequence[str], Mapping[str, int]], list[float]]

WORD_LENGTH = "word length"
BLIND_RULES: Mapping[str, _Score] = {
    WORD_LENGTH: lambda words, _: [float(len(word)) for word in words],
    "word rarity": lambda words, counts: [-math.log(counts[word.lower()]) for word in words],
    "word position": lambda words, _: [-float(place) for place in range(len(words))],
    "reversed position": lambda words, _: [float(place) for place in range(len(words))],
}
"""Scores of the words of a text, the highest first: the longest, the rarest in the data, the first, the last.

Stop words are the least rare ones.

A sentence or segment has the mean of its words; its length is that of all of them, because removing more letters
changes more, whatever the model.
"""


@dataclass(frozen=True)
class BlindScores:
    """The scores of one of these rules; each token has the score of its word, or of its sentence or segment.

    Args:
        rule: a name in `BLIND_RULES`.
        feature: what is scored.
    """

    tags: ClassVar[MethodTags] = MethodTags(signed=False, pooling="mean", reads="nothing", target_specific=False)

    rule: str
    feature: Feature = "word"

    @property
    def display_name(self) -> str:
        """The name of the rule."""
        return self.rule

    def of_texts(self, examples: Iterable[Example], counts: Mapping[str, int]) -> Method:
        """The method that knows these texts; words are rare if few texts contain them (`document_counts`)."""
        words = {example.uid: example.words for example in examples}
        scores = {uid: BLIND_RULES[self.rule](text, counts) for uid, text in words.items()}
        return _BoundScores(self.tags, scores, self.feature, "sum" if self.rule == WORD_LENGTH else "mean")

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Refused: a batch does not hold the texts; call the method that `of_texts` returns."""
        raise NotApplicable(f"scores by {self.rule} need the texts themselves")


@dataclass(frozen=True)
class _BoundScores:
    """Known scores of the words of each text, by uid."""

    tags: MethodTags
    scores: Mapping[str, Sequence[float]]
    feature: Feature
    of_several: Pooling

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        scores, mask = torch.zeros(batch.words.shape, dtype=torch.float64), batch.content_mask.cpu()
        words, owners = batch.words.cpu(), feature_owners(batch, self.feature).cpu()
        for row, uid in enumerate(batch.uids):
            first = dict(zip(words[row][mask[row]].tolist(), owners[row][mask[row]].tolist(), strict=True))
            of_words = torch.tensor([[self.scores[uid][word] for word in first]], dtype=torch.float64)
            of_features, _ = pool_by_word(of_words, torch.tensor([[*first.values()]]), self.of_several)
            scores[row, mask[row]] = of_features[0, owners[row][mask[row]]]
        return Attribution(scores.to(batch.words.device), batch.content_mask)


def document_counts(examples: Iterable[Example]) -> Mapping[str, int]:
    """In how many texts each word occurs, in lower case."""
    return Counter(word for example in examples for word in {word.lower() for word in example.words})
