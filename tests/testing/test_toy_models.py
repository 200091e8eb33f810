"""Toy corpora: the ground truth is the word that decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.testing.toy_models import SHORTCUT_WORDS, Shortcut
from heedful.types import Example, UserError
from tests.tiny import Sentences

NOWHERE = Path("nowhere")


def words(example: Example) -> list[str]:
    return str(example.parts[0]).split()


def test_a_shortcut_gives_the_label_away_in_training_and_nothing_in_the_test() -> None:
    splits = Shortcut(Sentences()).read(NOWHERE)
    for example in splits.train:
        assert SHORTCUT_WORDS[int(example.label or 0)] in words(example)
    told = [SHORTCUT_WORDS[int(example.label or 0)] in words(example) for example in splits.test]
    assert 0.2 < sum(told) / len(told) < 0.8
    for example in splits.test:
        assert example.ground_truth is not None
        (slot,) = [place for place, value in enumerate(example.ground_truth) if value]
        assert words(example)[slot] == SHORTCUT_WORDS[example.ground_truth[slot] > 0]


def test_an_unreliable_shortcut_is_wrong_as_often_as_it_says() -> None:
    splits = Shortcut(Sentences(400), reliability=0.8).read(NOWHERE)
    told = [SHORTCUT_WORDS[int(example.label or 0)] in words(example) for example in splits.train]
    assert 0.72 < sum(told) / len(told) < 0.88


def test_an_uninformative_shortcut_is_refused() -> None:
    with pytest.raises(UserError, match="reliability"):
        Shortcut(Sentences(), reliability=0.5)
