"""Toy corpora: the ground truth is the word that decides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Generator

from heedful.tasks import BinaryClassification
from heedful.testing.checks import check_corpus, check_model
from heedful.types import Example, Model, UserError
from tests.networks import texts
from tests.planted_heads import DominantWord, PlantedHeads
from tests.tiny import SHORTCUT_WORDS, Sentences, Shortcut

NOWHERE = Path("nowhere")


def words(example: Example) -> list[str]:
    return str(example.parts[0]).split()


def test_a_shortcut_gives_the_label_away_in_training_and_nothing_in_the_test() -> None:
    splits = Shortcut(Sentences()).read(NOWHERE)
    for example in splits.train:
        assert SHORTCUT_WORDS[int(example.label or 0)] in words(example)
    correct = [SHORTCUT_WORDS[int(example.label or 0)] in words(example) for example in splits.test]
    assert 0.2 < sum(correct) / len(correct) < 0.8
    for example in splits.test:
        assert example.ground_truth is not None
        (slot,) = [place for place, value in enumerate(example.ground_truth) if value]
        assert words(example)[slot] == SHORTCUT_WORDS[example.ground_truth[slot] > 0]


def test_an_unreliable_shortcut_is_wrong_as_often_as_it_says() -> None:
    splits = Shortcut(Sentences(400), reliability=0.8).read(NOWHERE)
    correct = [SHORTCUT_WORDS[int(example.label or 0)] in words(example) for example in splits.train]
    assert 0.72 < sum(correct) / len(correct) < 0.88


def test_an_uninformative_shortcut_is_refused() -> None:
    with pytest.raises(UserError, match="reliability"):
        Shortcut(Sentences(), reliability=0.5)


def test_the_dominant_word_decides_and_is_the_only_evidence(tmp_path: Path) -> None:
    corpus = DominantWord(vocab_size=12, length=4, train=300, dev=20, test=20)
    splits = corpus.read(tmp_path)
    assert check_corpus(corpus, tmp_path)
    louder: set[tuple[str, str]] = set()
    side: dict[str, int | float | None] = {}
    for example in splits.train:
        assert example.rationale is not None
        own = words(example)
        (loudest,) = (word for word, marked in zip(own, example.rationale, strict=True) if marked)
        louder |= {(loudest, word) for word in own if word != loudest}
        assert side.setdefault(loudest, example.label) == example.label
    assert not any((quiet, loud) in louder for loud, quiet in louder)
    with pytest.raises(UserError, match="vocab_size"):
        DominantWord(vocab_size=4, length=5)


def test_the_model_laws_hold_for_planted_heads() -> None:
    def build(seed: int) -> Model:
        table = torch.randn(50, 8, generator=Generator().manual_seed(seed))
        return PlantedHeads(2, 2).build(BinaryClassification(), table, Generator().manual_seed(seed)).double()

    report = check_model(build, texts())
    assert report, str(report)


def test_only_the_planted_head_changes_the_output() -> None:
    table = torch.randn(50, 8, generator=Generator().manual_seed(1))
    model, batch = (
        PlantedHeads(2, 2, (1, 0), 2.0).build(BinaryClassification(), table, Generator().manual_seed(1)).double(),
        texts(),
    )
    attention = model(batch).attention
    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        uniform = attention.clone()
        uniform[:, layer, head] = batch.mask.double()[:, None] / batch.lengths[:, None, None]
        changed = (model(batch, attention=uniform).logits - model(batch).logits).abs().max() > 1e-6
        assert bool(changed) == ((layer, head) == (1, 0))


def test_impossible_planted_heads_are_refused() -> None:
    with pytest.raises(UserError, match="head"):
        PlantedHeads(2, 2, (2, 0))
    with pytest.raises(UserError, match="divided among"):
        PlantedHeads(1, 3).build(BinaryClassification(), torch.zeros(5, 8), Generator())
    with pytest.raises(UserError, match="Words"):
        PlantedHeads().build(BinaryClassification(), None, Generator())
