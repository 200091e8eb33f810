"""Held-out splits are deterministic, stratified and keep equal texts together; subsamples are fixed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from heedful.data.splitting import SubsampledCorpus, hold_out, normalized_content
from heedful.types import Example, UserError
from tests.invented_corpora import SENTENCES
from tests.tiny import Sentences

NOWHERE = Path("nowhere")


def test_the_order_of_rows_does_not_change_a_split_and_equal_texts_stay_together() -> None:
    heap = [Example(str(n), (text,), n % 2) for n, text in enumerate(SENTENCES)]
    heap += [Example(f"{n}, again", (f" {text.upper()}",), n % 2) for n, text in enumerate(SENTENCES[:8])]
    rest, part = hold_out(heap, 0.25)
    assert not {normalized_content(example) for example in rest} & {normalized_content(example) for example in part}
    assert [example.uid for example in sorted((*rest, *part), key=heap.index)] == [example.uid for example in heap]
    # 20 rows of each class: 5 wanted, and a pair of equal texts at the end may bring one more.
    assert all(count in (5, 6) for count in Counter(example.label for example in part).values())
    assert set(hold_out(heap[::-1], 0.25)[1]) == set(part)
    assert set(hold_out(heap, 0.25, seed=1)[1]) != set(part)


def test_every_class_gives_and_keeps_an_example() -> None:
    heap = [Example("a", ("one",), 0), Example("b", ("two",), 0), Example("c", ("three",), 1)]
    rest, part = hold_out(heap, 0.01)
    assert [example.label for example in part] == [0]
    assert {example.label for example in rest} == {0, 1}
    assert hold_out(heap, 0.0)[1] == ()


def test_a_text_with_two_labels_is_in_one_split() -> None:
    heap = [Example(f"{n}{label}", (f"text {n}",), label) for n in range(40) for label in (0, 1)]
    rest, part = hold_out(heap, 0.5)
    assert not {normalized_content(example) for example in rest} & {normalized_content(example) for example in part}
    assert len(part) == 40


def test_a_part_has_the_wanted_sizes_and_only_examples_of_the_whole_in_their_order() -> None:
    whole, part = Sentences().read(NOWHERE), SubsampledCorpus(Sentences(), 10, 5, 7).read(NOWHERE)
    assert [len(part[split]) for split in ("train", "dev", "test")] == [10, 5, 7]
    places = [whole.train.index(example) for example in part.train]
    assert places == sorted(set(places))
    assert places != list(range(10))


def test_a_part_is_always_the_same_and_says_from_what_it_was_drawn() -> None:
    one, again = (SubsampledCorpus(Sentences(), 10, 5, 7).read(NOWHERE) for _ in range(2))
    assert one.train == again.train
    assert one.notes["a random part only"] == "10 of 40 train, 5 of 40 dev, 7 of 40 test"


def test_a_small_corpus_is_taken_whole_and_keeps_its_name() -> None:
    corpus = SubsampledCorpus(Sentences(), 100, 100, 100)
    assert corpus.read(NOWHERE).test == Sentences().read(NOWHERE).test
    assert corpus.name == "sentences"


def test_an_empty_part_is_refused() -> None:
    with pytest.raises(UserError, match="at least one"):
        SubsampledCorpus(Sentences(), 0)
