"""Models of a user's own whose behavior is in no weight: a pipeline of scikit-learn behind heedful's `Model`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from torch import Tensor

from heedful.data.words import Words
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Corpus, Example, Model, Splits, Tokenizer, Trace

GOOD, BAD = ("good", "fine", "great"), ("bad", "dull", "awful")
OTHERS = ("film", "plot", "scene", "actor", "music", "story", "end", "cast")


@dataclass(frozen=True)
class Opinions(Corpus):
    """Texts of seven words of which one tells the class."""

    count: int = 40
    name: ClassVar[str] = "opinions"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        return Splits(BinaryClassification(), ("negative", "positive"), (), (), self.examples())

    def examples(self) -> tuple[Example, ...]:
        found = []
        for number in range(self.count):
            words = [OTHERS[(number * 3 + place) % len(OTHERS)] for place in range(6)]
            words.insert(number % 7, (GOOD if number % 2 else BAD)[number % 3])
            found.append(Example(f"t{number}", (" ".join(words),), number % 2))
        return tuple(found)

    def digest(self, data: Path) -> str:
        return "generated"


class TextModel(Model):
    """A model without weights: a function from texts to the probability of the second class."""

    attention_refusal = "it has no attention"
    embedding_refusal = "it reads texts"

    def __init__(self, tokenizer: Tokenizer, scorer: object = None) -> None:
        super().__init__()
        self.task = BinaryClassification()
        self.tokenizer = tokenizer
        self.scorer = scorer

    def score(self, texts: list[str]) -> list[float]:
        assert isinstance(self.scorer, Pipeline)
        return [float(row[1]) for row in self.scorer.predict_proba(texts)]

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        units = self.tokenizer.unit_texts(batch)
        kept = batch.content_mask.tolist()
        texts = [
            " ".join(word for word, is_kept in zip(row, mask, strict=False) if is_kept)
            for row, mask in zip(units, kept, strict=True)
        ]
        logits = torch.logit(torch.tensor(self.score(texts), dtype=torch.float32), eps=1e-6).unsqueeze(1)
        rows, width = batch.mask.shape
        empty = torch.zeros(rows, width, 0)
        return Trace(empty, empty, torch.zeros(rows, 0, 1, width, width), logits)


class RuleModel(TextModel):
    """A model whose rule is a plain attribute: any callable from a text to a probability."""

    def score(self, texts: list[str]) -> list[float]:
        assert callable(self.scorer)
        return [float(self.scorer(text)) for text in texts]


def word_tokenizer() -> Tokenizer:
    return Words().fit(Opinions().examples())


def pipeline(*, inverted: bool) -> Pipeline:
    """Fitted on the texts, or on the texts with inverted labels."""
    examples = Opinions().examples()
    labels = [int(bool(example.label) != inverted) for example in examples]
    return make_pipeline(CountVectorizer(), LogisticRegression()).fit([str(each.parts[0]) for each in examples], labels)


def captured_rule(strength: float) -> Callable[[str], float]:
    """A rule that holds its strength in a closure."""
    return lambda text: strength if any(word in text.split() for word in GOOD) else 1 - strength
