"""Sentences and segments: hand values, Unicode's own properties, and slow literal twins; methods that explain them."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from heedful import catalogue
from heedful.attributions.lime import Lime
from heedful.attributions.method import Feature, feature_index, feature_owners, on_features, option_values
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.words import Words
from heedful.models.transformer import TransformerModel
from heedful.segmentation import (
    FULL_STOPS,
    MAX_WORDS,
    SEGMENTS,
    SENTENCE_ENDS,
    Break,
    group_words,
    read_breaks,
    texts_of_groups,
    word_breaks,
)
from heedful.tasks import BinaryClassification
from heedful.types import Batch, Example, Method, UserError
from tests.networks import TinyTransformer, images

REVIEW = (
    "Dr. No is a film of 1962, and it shows. The music (by John Barry) is good! “Is the plot, too?” No... it is not; "
    "the actors do what they can, but nobody asked them to. I left.\n\nMy friend stayed until the end because he had "
    "paid for it. He said that it was worse than what I saw, much worse. Avoid it"
)


def sentences(text: str) -> list[str]:
    groups: list[int] = group_words(torch.tensor([word_breaks(text)]), "sentence")[0].tolist()
    return texts_of_groups(text.split(), groups)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It works. Really? Yes!", ["It works.", "Really?", "Yes!"]),
        ("Mr. J. R. Smith paid, e.g. on Friday.", ["Mr. J. R. Smith paid, e.g. on Friday."]),
        ("Wait... what? No… Yes", ["Wait... what?", "No…", "Yes"]),
        ("he left. nobody saw it. fine", ["he left.", "nobody saw it.", "fine"]),
        ("He left approx. now. Then", ["He left approx. now.", "Then"]),
        ("“Go.” (He went.) [So.] End", ["“Go.”", "(He went.)", "[So.]", "End"]),
        ("it was dull . '' so ( he ) left ! ! bye", ["it was dull . ''", "so ( he ) left ! !", "bye"]),
        ("One\nand two\nThree\n\nfour", ["One and two", "Three", "four"]),
        ("Good.<br /><br />The end<br />Bad", ["Good.<br /><br", "/>The end<br", "/>Bad"]),
        ("Good. <br /><br /> The end", ["Good. <br /><br />", "The end"]),
        ("很 好 。 真的 吗？ 是！ 对", ["很 好 。", "真的 吗？", "是！", "对"]),
        ("हाँ ठीक है। और क्या", ["हाँ ठीक है।", "और क्या"]),
        ("هل هذا جيد؟ نعم", ["هل هذا جيد؟", "نعم"]),
        ("word", ["word"]),
        (". . .", [". . ."]),
    ],
)
def test_sentences_end_where_a_reader_says(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_text_without_words_has_no_sentence() -> None:
    assert word_breaks("") == word_breaks(" \n ") == []
    assert group_words(torch.zeros(2, 0, dtype=torch.int8), "segment").shape == (2, 0)


def test_sentence_ends_are_those_of_unicode() -> None:
    regex = pytest.importorskip("regex")
    ends = {chr(code) for code in range(1 << 16) if regex.fullmatch(r"[\p{SB=ST}\p{SB=AT}]", chr(code))}
    assert {*SENTENCE_ENDS, *FULL_STOPS} == ends | {"…"}


def test_every_word_has_one_break_whatever_the_text() -> None:
    draw, marks = random.Random(0), "ab Z.,!?()\"'“”。\n\t\x1c\u2028<br>"
    for _ in range(2000):
        text = "".join(draw.choices(marks, k=draw.randint(0, 30)))
        breaks = word_breaks(text)
        assert len(breaks) == len(text.split())
        assert breaks[-1:] in ([], [Break.PART])


def random_breaks(draw: random.Random, count: int) -> list[int]:
    share = draw.choice([0, 0.01, 0.05, 0.2, 0.5])
    breaks = draw.choices([0, 1, 2], [1 - 1.5 * share, share, share / 2], k=count)
    if draw.random() < 0.5:
        breaks[draw.randrange(count)] = int(Break.PART)
    return [*breaks[:-1], int(Break.PART)]


def test_a_long_text_has_twenty_segments_of_similar_size_and_a_short_one_its_words() -> None:
    draw = random.Random(1)
    for count in [*range(1, 60), *(draw.randint(60, 500) for _ in range(150))]:
        breaks = random_breaks(draw, count)
        groups: list[int] = group_words(torch.tensor([breaks]), "segment")[0].tolist()
        if count <= MAX_WORDS:
            assert groups == list(range(count))
            continue
        assert groups == sorted(groups)
        assert [*dict.fromkeys(groups)] == list(range(SEGMENTS))
        assert max(map(groups.count, groups)) <= 2 * count / SEGMENTS
        borders = [place for place in range(count - 1) if breaks[place] == Break.PART]
        assert all(groups[place] != groups[place + 1] for place in borders)


def test_segments_end_where_sentences_end_if_they_can() -> None:
    five = (" ".join(["one two three four"] * 2) + ". End now. ") * 12
    groups: list[int] = group_words(torch.tensor([word_breaks(five)]), "segment")[0].tolist()
    runs = texts_of_groups(five.split(), groups)
    assert len(runs) == SEGMENTS
    ends = [place for place, strength in enumerate(word_breaks(five)) if strength >= Break.SENTENCE]
    cuts = [place for place in range(len(groups) - 1) if groups[place] != groups[place + 1]]
    assert sum(cut in ends for cut in cuts) >= 11


def test_words_that_are_not_read_join_their_neighbors() -> None:
    breaks = torch.tensor([[-1, 0, 2, -1, 3, -1], [-1] * 6])
    assert group_words(breaks, "sentence").tolist() == [[0, 0, 0, 0, 1, 1], [-1] * 6]
    assert read_breaks(["", "a b"], {0, 1}) == [0, int(Break.PART)]
    assert read_breaks(["a b", "c"], {2}) == [-1, -1, int(Break.PART)]


# Feature indices


TEXTS = (
    (REVIEW,),
    ("Is it good? He says so.", "Yes. It is (very) good!"),
    ("", "One. Two."),
    ("很 好 。 真的 吗？ 是！", "对 。"),
    ("Donaudampfschifffahrtsgesellschaft",),
    ("One two, three. Four five",),
)


def batch_of(texts: Sequence[tuple[str, ...]]) -> Batch:
    examples = tuple(Example(f"t{place}", parts) for place, parts in enumerate(texts))
    return Words("english").fit(examples)(examples)


def literal_index(text: tuple[str, ...], words: Sequence[int], feature: Feature) -> list[int]:
    """The feature of each unit, one word after the other."""
    owner_of_word: list[tuple[int, int]] = []
    for part, content in enumerate(text):
        sentence = 0
        for strength in word_breaks(content):
            owner_of_word.append((part, sentence) if feature == "sentence" else (part, len(owner_of_word)))
            sentence += strength >= Break.SENTENCE
    seen: list[tuple[int, int]] = []
    index = []
    for word in words:
        if word >= 0 and owner_of_word[word] not in seen:
            seen.append(owner_of_word[word])
        index.append(seen.index(owner_of_word[word]) if word >= 0 else -1)
    return index


@pytest.mark.parametrize("feature", ["sentence", "word"])
def test_the_index_is_that_of_a_slow_literal_twin(feature: Feature) -> None:
    batch = batch_of(TEXTS)
    expected = [literal_index(text, batch.words[row].tolist(), feature) for row, text in enumerate(TEXTS)]
    assert feature_index(batch, feature).tolist() == expected
    for row in range(len(TEXTS)):
        alone = batch.rows(torch.tensor([row]))
        assert feature_index(alone, feature)[0].tolist() == expected[row][: alone.mask.shape[1]]


def test_segments_of_short_texts_are_their_words_and_special_tokens_stay_alone() -> None:
    batch = batch_of(TEXTS[1:])
    for special in (False, True):
        assert torch.equal(
            feature_index(batch, "segment", special_tokens=special),
            feature_index(batch, "word", special_tokens=special),
        )
    index = feature_index(batch_of(TEXTS), "segment", special_tokens=True)
    assert int(index[0].max()) + 1 == SEGMENTS + 2


def test_features_are_kept_where_units_are_removed_and_rows_repeated() -> None:
    batch = batch_of(TEXTS)
    kept = batch.keep_units(batch.words % 2 == 0)
    for row in range(len(batch)):
        whole = dict(zip(batch.words[row].tolist(), feature_owners(batch, "segment")[row].tolist(), strict=True))
        rest = zip(kept.words[row].tolist(), feature_owners(kept, "segment")[row].tolist(), strict=True)
        assert all(whole[word] == owner for word, owner in rest)
    assert torch.equal(feature_index(batch.repeat(2), "segment")[::2], feature_index(batch, "segment"))


def test_patches_are_sentences_and_unknown_sentences_are_refused() -> None:
    assert torch.equal(feature_index(images(), "sentence"), feature_index(images(), "word"))
    with pytest.raises(UserError, match="sentence"):
        feature_index(replace(batch_of(TEXTS), breaks=None), "sentence")


# Methods


LONG = " ".join(REVIEW.split()[:30])
FEWER: dict[str, Method] = {"lime": Lime(60), "layer-mix": catalogue.METHODS["layer-mix"]()}


@pytest.fixture(scope="module")
def case() -> tuple[TransformerModel, Batch]:
    """A transformer with random weights, a text of 66 words, a pair of 50, and a short text."""
    texts = ((REVIEW,), (LONG, "It is good. He says so, and he knows. " + " ".join(REVIEW.split()[:12])), (LONG,))
    batch = batch_of(texts)
    model = TinyTransformer(max_positions=128, vocab_size=int(batch.inputs.max()) + 1)
    return model.build(BinaryClassification(), None, torch.Generator().manual_seed(1)).double(), batch


def scores_of(method: Method, model: TransformerModel, batch: Batch) -> Tensor:
    return method(copy.deepcopy(model), batch, torch.ones(len(batch), dtype=torch.long)).scores


@pytest.mark.parametrize("name", sorted(catalogue.METHODS))
def test_every_method_explains_segments(name: str, case: tuple[TransformerModel, Batch]) -> None:
    model, batch = case
    plain = FEWER.get(name) or catalogue.METHODS[name]()
    method = on_features(plain, "segment")
    if name == "shapley":
        with pytest.raises(UserError, match="12"):
            scores_of(method, model, batch)
        return
    short = batch.rows(torch.tensor([2]))
    assert torch.equal(scores_of(method, model, short), scores_of(on_features(plain, "word"), model, short))
    together = scores_of(method, model, batch)
    assert bool(torch.isfinite(together).all())
    for row in reversed(range(len(batch))):
        alone = scores_of(method, model, batch.rows(torch.tensor([row])))[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, rtol=0, atol=1e-8)
    if [*option_values(method, "feature")] == ["segment"]:
        index = feature_index(batch, "segment")
        assert int(index[0].max()) + 1 == SEGMENTS
        for row in range(len(batch)):
            values = [together[row][index[row] == number] for number in range(int(index[row].max()) + 1)]
            assert all(bool((run == run[0]).all()) for run in values)


def test_leaving_out_a_sentence_is_the_change_without_its_words(case: tuple[TransformerModel, Batch]) -> None:
    model, batch = case
    text = batch.rows(torch.tensor([2]))
    scores = scores_of(LeaveOneOut(feature="sentence"), model, text)[0]
    index = feature_index(text, "sentence")[0]
    with torch.no_grad():
        whole = torch.sigmoid(model(text).logits)[0]
        for number in range(int(index.max()) + 1):
            without = torch.sigmoid(model(text.keep_units((index != number).unsqueeze(0))).logits)[0]
            assert float(scores[index == number].sum()) == pytest.approx(float(whole - without), abs=1e-9)
