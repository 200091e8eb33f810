"""Generated corpora: the evidence is where and as often as the controls say, and the labels follow the rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.data.synthetic import GROUND_TRUTH_CORPORA, MOCK_CORPORA, GroundTruthCorpus, Mock, Position, vader_lexicon
from heedful.testing.checks import check_corpus
from heedful.types import SPLITS, Corpus, Example, UserError

NOWHERE = Path("nowhere")
SMALL = Mock(train=200, dev=40, test=60)


def text_of(example: Example, part: int = 0) -> str:
    text = example.parts[part]
    assert isinstance(text, str)
    return text


def marked_words(example: Example) -> list[str]:
    assert example.rationale is not None
    return [word for word, mark in zip(text_of(example).split(), example.rationale, strict=False) if mark]


def marked_places(example: Example) -> list[int]:
    assert example.rationale is not None
    return [index for index, mark in enumerate(example.rationale) if mark]


@pytest.mark.parametrize("corpus", [SMALL, replace(SMALL, informative_share=0.5)], ids=lambda c: c.name)
def test_mock_corpora_obey_the_laws_of_corpora(corpus: Corpus) -> None:
    assert check_corpus(corpus, NOWHERE)
    assert all(example.rationale for split in SPLITS for example in corpus.read(NOWHERE)[split])


def test_one_seed_gives_one_corpus_and_another_seed_another() -> None:
    corpus, twin, other = SMALL, replace(SMALL), replace(SMALL, seed=1)
    assert twin.digest(NOWHERE) == corpus.digest(Path("elsewhere"))
    assert other.digest(NOWHERE) != corpus.digest(NOWHERE)
    assert other.read(NOWHERE).train != corpus.read(NOWHERE).train


def test_the_size_of_train_changes_nothing_in_test() -> None:
    assert replace(SMALL, train=10).read(NOWHERE).test == SMALL.read(NOWHERE).test


def test_the_eight_mock_corpora_of_the_paper_have_their_names_and_sizes() -> None:
    assert list(MOCK_CORPORA) == [
        "mock-1",
        "mock-2",
        "mock-5",
        "mock-10",
        "mock-1q",
        "mock-2q",
        "mock-3q",
        "mock-4q",
    ]
    splits = MOCK_CORPORA["mock-5"].read(NOWHERE)
    assert Counter(example.label for example in splits.train) == {0: 4000, 1: 4000}
    assert Counter(example.label for example in splits.test) == {0: 500, 1: 500}
    lengths = [len(text_of(example).split()) for example in splits.train]
    assert (min(lengths), max(lengths)) == (50, 100)
    # 8 000 draws from 50..100 have a mean of 75 with a standard error of .165.
    assert abs(sum(lengths) / len(lengths) - 75) < 0.7


def test_a_control_that_is_turned_shows_in_the_name() -> None:
    assert Mock(informative=2, position="end", noise=0.1).name == "mock-2-position-end-noise-0.1"
    assert Mock(informative_share=0.4, train=10).name == "mock-0.4"


@pytest.mark.parametrize(
    ("name", "count", "share"),
    [
        *((f"mock-{count}", count, 0.0) for count in (1, 2, 5, 10)),
        *((f"mock-{quarters}q", 0, quarters / 4) for quarters in (1, 2, 3, 4)),
    ],
)
def test_mock_corpora_have_so_many_informative_words_and_only_fillers_besides(
    name: str, count: int, share: float
) -> None:
    for example in replace(MOCK_CORPORA[name], train=50, dev=2, test=2).read(NOWHERE).train:
        words = text_of(example).split()
        assert len(marked_words(example)) == len(words) - words.count("something") == count + round(share * len(words))


def test_marked_words_have_the_sign_of_their_label_and_the_strength_asked_for() -> None:
    for example in replace(SMALL, informative=5, strength=2.5).read(NOWHERE).train:
        valences = [vader_lexicon()[word] for word in marked_words(example)]
        assert all(value >= 2.5 for value in valences) if example.label else all(value <= -2.5 for value in valences)


def test_the_lexicon_holds_known_words_and_no_emoticons() -> None:
    assert vader_lexicon()["good"] == 1.9
    assert vader_lexicon()["horrible"] == -2.5
    assert all(re.fullmatch("[a-z]+", word) for word in vader_lexicon())
    assert "something" not in vader_lexicon()


@given(
    position=st.sampled_from(["start", "middle", "end", "clustered"]),
    count=st.integers(1, 12),
    length=st.integers(12, 40),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_informative_words_are_at_the_given_position(position: Position, count: int, length: int, seed: int) -> None:
    corpus = Mock(informative=count, shortest=length, longest=length, train=3, dev=2, test=2, seed=seed)
    for example in replace(corpus, position=position).read(NOWHERE).train:
        places = marked_places(example)
        room = max(count, length // 3)
        first = {"start": 0, "middle": (length - room) // 2, "end": length - room, "clustered": places[0]}[position]
        last = first + (count if position == "clustered" else room)
        assert first <= places[0] <= places[-1] < last
        assert len(places) == count


def test_uniform_positions_reach_every_third_of_the_text() -> None:
    thirds = Counter(
        3 * index // len(example.rationale or ())
        for example in replace(SMALL, train=900).read(NOWHERE).train
        for index in marked_places(example)
    )
    assert all(abs(count - 300) < 75 for count in thirds.values())  # 5 standard deviations of a binomial


def test_noise_turns_exactly_its_share_of_train_labels_and_none_of_test() -> None:
    clean = SMALL.read(NOWHERE)
    noisy = replace(SMALL, noise=0.1).read(NOWHERE)

    def wrong(examples: Sequence[Example]) -> int:
        return sum((vader_lexicon()[marked_words(example)[0]] > 0) != bool(example.label) for example in examples)

    assert [wrong(clean.train), wrong(noisy.train), wrong(noisy.dev), wrong(noisy.test)] == [0, 20, 4, 0]
    assert noisy.notes == {"labels flipped in train and dev": 24}


def test_balance_and_fillers_are_what_was_asked_for() -> None:
    splits = replace(SMALL, balance=0.2, fillers=100, train=400).read(NOWHERE)
    assert sum(int(example.label or 0) for example in splits.train) == 80
    fillers = {
        word
        for example in splits.train
        for word, mark in zip(text_of(example).split(), example.rationale or (), strict=True)
        if not mark
    }
    assert len(fillers) == 100
    assert not fillers & set(vader_lexicon())


def test_the_vocabulary_of_a_mock_corpus_covers_every_split() -> None:
    splits = replace(SMALL, informative=10, fillers=3).read(NOWHERE)
    words = {word for split in SPLITS for example in splits[split] for word in text_of(example).split()}
    assert words <= set(replace(SMALL, informative=10, fillers=3).vocabulary)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"informative": 2, "informative_share": 0.5}, "not both"),
        ({"informative": 60}, "between 1 and shortest"),
        ({"informative": 0}, "between 1 and shortest"),
        ({"informative_share": 0.0}, "informative_share must"),
        ({"informative_share": 1.5}, "informative_share must"),
        ({"noise": 0.6}, "noise"),
        ({"balance": 1.0}, "balance"),
        ({"fillers": 0}, "fillers"),
        ({"test": 1}, "at least 2 examples"),
    ],
)
def test_impossible_controls_are_refused_in_plain_words(fields: dict[str, float], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        Mock(**fields)  # type: ignore[arg-type]


def test_a_strength_beyond_the_lexicon_is_refused() -> None:
    with pytest.raises(UserError, match="lower strength"):
        replace(SMALL, strength=4.5).read(NOWHERE)


SIZES = {"train": 200, "dev": 20, "test": 60}


def small(law: str) -> GroundTruthCorpus:
    return GroundTruthCorpus(GROUND_TRUTH_CORPORA[f"known-{law}"].rule, **SIZES)


@pytest.mark.parametrize("name", GROUND_TRUTH_CORPORA)
def test_every_example_has_a_truth_and_a_rationale_per_word_and_classes_are_balanced(name: str) -> None:
    corpus = GroundTruthCorpus(GROUND_TRUTH_CORPORA[name].rule, **SIZES)
    assert check_corpus(corpus, NOWHERE)
    splits = corpus.read(NOWHERE)
    for example in splits.test:
        assert example.ground_truth is not None
        assert example.rationale is not None
        assert len(example.ground_truth) == len(text_of(example).split())
        assert [bool(value) for value in example.ground_truth] == list(example.rationale)
        assert any(example.rationale)
    assert sum(int(example.label or 0) for example in splits.test) == 30


def test_additive_labels_are_the_sign_of_the_sum_of_the_words_own_weights() -> None:
    corpus = small("additive")
    for example in corpus.read(NOWHERE).train:
        total = sum(corpus.weights[word] for word in text_of(example).split())
        assert abs(total) >= 1
        assert (total > 0) == bool(example.label)
        assert len(set(text_of(example).split())) == len(text_of(example).split())
    assert len(set(corpus.weights.values())) == 60


def test_a_majority_of_signs_decides() -> None:
    for example in small("majority").read(NOWHERE).train:
        assert example.ground_truth is not None
        assert (sum(example.ground_truth) > 0) == bool(example.label)
        decisive = [word for word, value in zip(text_of(example).split(), example.ground_truth, strict=True) if value]
        assert all(word.startswith(("plus", "minus")) for word in decisive)


def test_neither_word_of_an_exclusive_or_is_informative_alone() -> None:
    examples = small("xor").read(NOWHERE).train
    for side in ("left", "right"):
        for kind in "01":
            labels = [example.label for example in examples if f"{side}{kind}" in text_of(example).split()]
            assert 0.35 < sum(int(label or 0) for label in labels) / len(labels) < 0.65
    for example in examples:
        left, right = (
            next(int(w[-1]) for w in text_of(example).split() if w.startswith(side)) for side in ("left", "right")
        )
        assert left ^ right == example.label


def test_the_same_words_stand_in_texts_of_both_orders() -> None:
    for example in small("order").read(NOWHERE).train:
        words = text_of(example).split()
        assert (words.index("before") < words.index("after")) == bool(example.label)


def test_hints_are_right_more_often_than_not_and_the_deciding_word_always() -> None:
    right = []
    for example in small("hint").read(NOWHERE).train:
        assert f"tell{example.label}" in text_of(example).split()
        right += [word[4] == str(example.label) for word in text_of(example).split() if word.startswith("hint")]
    assert 0.6 < sum(right) / len(right) < 0.8


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UserError, match="at least 5 words"):
        GroundTruthCorpus(shortest=2)
