"""Orders of words that ignore the model: hand values, whatever the tokens of a word are."""

from __future__ import annotations

import math

import pytest
import torch

from heedful.attributions.method import tags_of
from heedful.audits.blind_scores import BLIND_RULES, BlindScores, document_counts
from heedful.data.words import Words
from heedful.models.attentive import LinearBagOfWords
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Example, NotApplicable

MODEL = LinearBagOfWords(BinaryClassification(), torch.zeros(2, 1), torch.ones(1))
EXAMPLES = (Example("a", ("The film sings",), 0), Example("b", ("the end",), 1))
EXPECTED = {
    "word length": [[3.0, 4.0, 5.0], [3.0, 3.0, 0.0]],
    "word rarity": [[-math.log(2), 0.0, 0.0], [-math.log(2), 0.0, 0.0]],
    "word position": [[0.0, -1.0, -2.0], [0.0, -1.0, 0.0]],
    "reversed position": [[0.0, 1.0, 2.0], [0.0, 1.0, 0.0]],
}


@pytest.mark.parametrize("rule", BLIND_RULES)
def test_every_token_has_the_score_of_its_word(rule: str) -> None:
    words = torch.tensor([[-1, 0, 1, 2, 2, -1], [-1, 0, 1, -1, -1, -1]])
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    batch = Batch(("a", "b"), torch.ones_like(words), mask, torch.zeros_like(words), words)
    method = BlindScores(rule)
    result = method.of_texts(EXAMPLES, document_counts(EXAMPLES))(MODEL, batch, torch.zeros(2, dtype=torch.long))
    rows = [
        [EXPECTED[rule][row][word] if word >= 0 else 0.0 for word in numbers]
        for row, numbers in enumerate(words.tolist())
    ]
    assert result.scores.tolist() == [pytest.approx(row) for row in rows]
    assert result.mask.tolist() == (words >= 0).tolist()
    assert (tags_of(method).reads, tags_of(method).pooling) == ("nothing", "mean")
    with pytest.raises(NotApplicable):
        method(MODEL, batch, torch.zeros(2, dtype=torch.long))


def test_a_sentence_has_the_letters_of_its_words_and_their_mean_rarity_and_position() -> None:
    text, other = Example("a", ("The film sings. The end",), 0), Example("b", ("the film",), 0)
    batch = Words().fit([text])([text])
    expected = {"word length": [13.0, 6.0], "word rarity": [-2 * math.log(2) / 3, -math.log(2) / 2]}
    expected |= {"word position": [-1.0, -3.5], "reversed position": [1.0, 3.5]}
    for rule in BLIND_RULES:
        method = BlindScores(rule, "sentence").of_texts([text], document_counts([text, other]))
        scores = method(MODEL, batch, torch.zeros(1, dtype=torch.long)).scores[0].tolist()
        first, second = expected[rule]
        assert scores == pytest.approx([0.0, first, first, first, second, second, 0.0])
        assert tags_of(method).pooling == "mean"
