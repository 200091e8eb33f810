"""Corpora with a known truth keep their laws, and are told apart by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.synthetic import GROUND_TRUTH_CORPORA, GroundTruthCorpus
from heedful.testing.toy_models import SHORTCUT_WORDS, Shortcut
from heedful.types import Example, UserError
from tests.corpus_laws import lawful
from tests.tiny import Sentences

NOWHERE = Path("nowhere")
SMALL = {"train": 200, "dev": 20, "test": 60}


def small(law: str) -> GroundTruthCorpus:
    return GroundTruthCorpus(GROUND_TRUTH_CORPORA[f"known-{law}"].rule, **SMALL)


def words(example: Example) -> list[str]:
    return str(example.parts[0]).split()


@pytest.mark.parametrize("name", GROUND_TRUTH_CORPORA)
def test_every_example_has_a_truth_and_a_rationale_per_word_and_classes_are_balanced(name: str) -> None:
    splits = GroundTruthCorpus(GROUND_TRUTH_CORPORA[name].rule, **SMALL).read(NOWHERE)
    for example in splits.test:
        assert lawful(example, splits)
        assert example.ground_truth is not None
        assert example.rationale is not None
        assert len(example.ground_truth) == len(words(example))
        assert [bool(value) for value in example.ground_truth] == list(example.rationale)
        assert any(example.rationale)
    assert sum(int(example.label or 0) for example in splits.test) == 30


def test_additive_labels_are_the_sign_of_the_sum_of_the_words_own_weights() -> None:
    corpus = small("additive")
    for example in corpus.read(NOWHERE).train:
        total = sum(corpus.weights[word] for word in words(example))
        assert abs(total) >= 1
        assert (total > 0) == bool(example.label)
        assert len(set(words(example))) == len(words(example))
    assert len(set(corpus.weights.values())) == 60


def test_a_majority_of_signs_decides() -> None:
    for example in small("majority").read(NOWHERE).train:
        assert example.ground_truth is not None
        assert (sum(example.ground_truth) > 0) == bool(example.label)
        told = [word for word, value in zip(words(example), example.ground_truth, strict=True) if value]
        assert all(word.startswith(("plus", "minus")) for word in told)


def test_neither_word_of_an_exclusive_or_tells_anything_alone() -> None:
    examples = small("xor").read(NOWHERE).train
    for side in ("left", "right"):
        for kind in "01":
            labels = [example.label for example in examples if f"{side}{kind}" in words(example)]
            assert 0.35 < sum(int(label or 0) for label in labels) / len(labels) < 0.65
    for example in examples:
        left, right = (next(int(w[-1]) for w in words(example) if w.startswith(side)) for side in ("left", "right"))
        assert left ^ right == example.label


def test_the_same_words_stand_in_texts_of_both_orders() -> None:
    for example in small("order").read(NOWHERE).train:
        found = words(example)
        assert (found.index("before") < found.index("after")) == bool(example.label)


def test_hints_are_right_more_often_than_not_and_the_telling_word_always() -> None:
    right = []
    for example in small("hint").read(NOWHERE).train:
        assert f"tell{example.label}" in words(example)
        right += [word[4] == str(example.label) for word in words(example) if word.startswith("hint")]
    assert 0.6 < sum(right) / len(right) < 0.8


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


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UserError, match="reliable"):
        Shortcut(Sentences(), reliability=0.5)
    with pytest.raises(UserError, match="at least 5 words"):
        GroundTruthCorpus(shortest=2)
