"""A random part of a corpus."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data.splitting import SubsampledCorpus
from heedful.types import UserError
from tests.tiny import Sentences

NOWHERE = Path("nowhere")


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
