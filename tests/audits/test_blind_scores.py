"""Orders of words that ignore the model: hand values, whatever the tokens of a word are."""

from __future__ import annotations

import math

import pytest
import torch

from heedful.attributions.method import tags_of
from heedful.audits.blind_scores import BLIND_RULES, BlindScores
from heedful.models.attentive import LinearBagOfWords
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Example, NotApplicable

MODEL = LinearBagOfWords(BinaryClassification(), torch.zeros(2, 1), torch.ones(1))
EXAMPLES = (Example("a", ("The film sings",), 0), Example("b", ("the end",), 1))
EXPECTED = {
    "word length": [[3.0, 4.0, 5.0], [3.0, 3.0, 0.0]],
    "word rarity": [[-math.log(2), 0.0, 0.0], [-math.log(2), 0.0, 0.0]],
    "word position": [[0.0, -1.0, -2.0], [0.0, -1.0, 0.0]],
}


@pytest.mark.parametrize("rule", BLIND_RULES)
def test_every_token_has_the_score_of_its_word(rule: str) -> None:
    words = torch.tensor([[-1, 0, 1, 2, 2, -1], [-1, 0, 1, -1, -1, -1]])
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    batch = Batch(("a", "b"), torch.ones_like(words), mask, torch.zeros_like(words), words)
    method = BlindScores(rule)
    result = method.of_texts(EXAMPLES)(MODEL, batch, torch.zeros(2, dtype=torch.long))
    rows = [
        [EXPECTED[rule][row][word] if word >= 0 else 0.0 for word in numbers]
        for row, numbers in enumerate(words.tolist())
    ]
    assert result.scores.tolist() == [pytest.approx(row) for row in rows]
    assert result.mask.tolist() == (words >= 0).tolist()
    assert (tags_of(method).reads, tags_of(method).pooling) == ("nothing", "mean")
    with pytest.raises(NotApplicable):
        method(MODEL, batch, torch.zeros(2, dtype=torch.long))
