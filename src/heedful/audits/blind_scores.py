"""Scores that ignore the model: orders of words that an explanation must beat to say anything about this model.

Long and rare words carry more content than others, whatever the model. An explanation that ranks them first is better
than random orders without knowing the model at all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from heedful.attributions.method import MethodTags
from heedful.types import Attribution, Batch, Example, Method, Model, NotApplicable

_Score = Callable[[Sequence[str], Counter[str]], list[float]]

BLIND_RULES: Mapping[str, _Score] = {
    "word length": lambda words, _: [float(len(word)) for word in words],
    "word rarity": lambda words, counts: [-math.log(counts[word.lower()]) for word in words],
    "word position": lambda words, _: [-float(place) for place in range(len(words))],
}
"""Scores of the words of a text, the highest first: the longest, the rarest in the data, the first."""


@dataclass(frozen=True)
class BlindScores:
    """The scores of one of these rules; each token has the score of its word.

    Args:
        rule: a name in `BLIND_RULES`.
    """

    tags: ClassVar[MethodTags] = MethodTags(signed=False, pooling="mean", reads="nothing", target_specific=False)

    rule: str

    @property
    def display_name(self) -> str:
        """The name of the rule."""
        return self.rule

    def of_texts(self, examples: Sequence[Example]) -> Method:
        """The method that knows these texts; words are rare if few of them contain them."""
        words = {example.uid: _words(example) for example in examples}
        counts = Counter(word for text in words.values() for word in {word.lower() for word in text})
        return _BoundScores(self.tags, {uid: BLIND_RULES[self.rule](text, counts) for uid, text in words.items()})

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Refused: a batch does not hold the texts; call the method that `of_texts` returns."""
        raise NotApplicable(f"scores by {self.rule} need the texts themselves")


@dataclass(frozen=True)
class _BoundScores:
    """Known scores of the words of each text, by uid."""

    tags: MethodTags
    scores: Mapping[str, Sequence[float]]

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        scores, mask = torch.zeros(batch.words.shape, dtype=torch.float64), batch.content_mask.cpu()
        for row, uid in enumerate(batch.uids):
            of_words = torch.tensor(self.scores[uid], dtype=torch.float64)
            scores[row, mask[row]] = of_words[batch.words[row].cpu()[mask[row]]]
        return Attribution(scores.to(batch.words.device), batch.content_mask)


def _words(example: Example) -> list[str]:
    return [word for part in example.parts if isinstance(part, str) for word in part.split()]
