"""The work of an audit on a small transformer: one sample for all, edits, scores of words, blocks that stand alone."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest
import torch

from heedful.attributions.attention import RawAttention
from heedful.attributions.controls import Random, randomize_weights
from heedful.attributions.integrated_gradients import IntegratedGradients
from heedful.attributions.lime import Lime
from heedful.attributions.method import Baseline, Feature
from heedful.attributions.perturbation import LeaveOneOut
from heedful.attributions.shapley import KernelShap
from heedful.audits import evidence
from heedful.audits.best_explanation import search_best_erasure, word_erasure
from heedful.audits.evidence import (
    MAX_EDIT_CHANGE,
    MIN_WORDS,
    BlockAttention,
    BlockAttributions,
    BlockEdits,
    BlockErasure,
    BlockSearch,
    TextSample,
    block_range,
    concatenate,
    read_block,
    stratify,
    text_edits,
)
from heedful.data.words import Words
from heedful.explainer import Explainer, load, word_scores
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.types import Batch, Corpus, Example, Method, Splits, UserError, pool_by_word
from tests.given import CLASSES, PIECES, Verdicts, save_model, save_untrained

IG = IntegratedGradients(n_steps=3)
METHODS: tuple[Method, ...] = (
    RawAttention(),
    IG,
    LeaveOneOut(feature="word"),
    Lime(20, feature="word"),
    Random(seed=4),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("evidence") / "model")


@pytest.fixture(scope="module")
def explainer(folder: Path) -> Explainer:
    given = load(str(folder))
    return load((given.model, given.tokenizer), class_names=CLASSES)


@pytest.fixture(scope="module")
def sample(explainer: Explainer) -> TextSample:
    return TextSample(explainer.recipe(Verdicts(40)))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


# The sample


@pytest.mark.parametrize("sizes", [(20, 25, 15), (50, 1, 9), (3, 3), (7,)])
def test_every_beginning_has_the_classes_in_proportion(sizes: tuple[int, ...]) -> None:
    predicted = torch.cat([torch.full((size,), place) for place, size in enumerate(sizes)])
    predicted = predicted[torch.randperm(len(predicted), generator=torch.Generator().manual_seed(0))]
    table = pd.DataFrame({"predicted": predicted.tolist(), "place": range(len(predicted))})
    ordered = stratify(table)
    assert sorted(ordered["place"]) == list(range(len(table)))
    for count in range(1, len(ordered) + 1):
        found = ordered["predicted"][:count].value_counts()
        for place, size in enumerate(sizes):
            assert abs(int(found.get(place, 0)) - count * size / sum(sizes)) <= 1.5
    for _, own in ordered.groupby("predicted"):
        assert own["place"].is_monotonic_increasing  # the order of the draw


def test_the_blocks_are_the_sample_from_the_first_text_to_the_last() -> None:
    places = [place for block in range(70) for place in block_range(block)]
    assert places == list(range(len(places)))


def test_all_methods_see_the_same_texts(sample: TextSample, workspace: Workspace) -> None:
    table = workspace.get(sample).table
    for method in (RawAttention(), Random(seed=4)):
        found = concatenate([BlockAttributions(sample, method, block) for block in range(5)], workspace)
        assert found["uid"].tolist() == table["uid"].tolist()[:12]
        assert found["predicted"].tolist() == table["predicted"].tolist()[:12]


def test_a_sample_is_drawn_by_its_seed_and_knows_the_predictions(
    explainer: Explainer, sample: TextSample, workspace: Workspace, tmp_path: Path
) -> None:
    found, again = workspace.get(sample), Workspace(tmp_path).get(sample)
    assert found.table.equals(again.table)
    other = workspace.get(replace(sample, seed=1)).table
    assert sorted(other["uid"]) == sorted(found.table["uid"])
    assert other["uid"].tolist() != found.table["uid"].tolist()
    examples = {example.uid: example for example in Verdicts(40).read(tmp_path).test}
    for uid, predicted, probability, words, label in zip(
        *(found.table[name] for name in ("uid", "predicted", "probability", "words", "label")), strict=True
    ):
        shown = explainer.explain(str(examples[uid].parts[0]), methods="random")
        assert shown.target_index == predicted
        assert shown.probability == pytest.approx(probability, abs=1e-5)
        assert len(shown.words) == words
        assert examples[uid].label == label


@dataclass(frozen=True)
class Given(Corpus):
    """Texts of three classes, all in the test split."""

    texts: tuple[str | tuple[str, str], ...]
    name: ClassVar[str] = "given"
    tokenization: ClassVar[Words] = Words()

    def read(self, data: Path) -> Splits:
        pairs = (text if isinstance(text, tuple) else (text,) for text in self.texts)
        test = tuple(Example(f"t{place}", parts) for place, parts in enumerate(pairs))
        return Splits(Verdicts().read(data).task, CLASSES, (), (), test)

    def digest(self, data: Path) -> str:
        return "given"


def given_sample(explainer: Explainer, *texts: str | tuple[str, str]) -> TextSample:
    return TextSample(explainer.recipe(Given(texts)))


def test_short_texts_are_left_out_and_counted(explainer: Explainer, tmp_path: Path) -> None:
    found = Workspace(tmp_path).get(given_sample(explainer, "film", "a film", "the long film", "a very long film"))
    assert sorted(found.table["uid"]) == ["t2", "t3"]
    assert (found.notes["too short"], found.notes["read"], found.notes["rows"]) == (2, 4, 4)


@pytest.mark.parametrize(
    ("texts", "message"), [(("film", "plot"), f"{MIN_WORDS} words"), ((), "no text"), (("", " "), "no text")]
)
def test_a_sample_without_texts_is_refused(
    explainer: Explainer, texts: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        Workspace(tmp_path).get(given_sample(explainer, *texts))


def test_a_model_that_gives_no_numbers_is_refused(explainer: Explainer, tmp_path: Path) -> None:
    broken = load((randomize_weights(explainer.model, 0), explainer.tokenizer), class_names=CLASSES)
    with torch.no_grad():
        next(broken.model.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="not a number"):
        Workspace(tmp_path).get(given_sample(broken, "a very long film"))


# Edits


def test_edits_by_hand() -> None:
    example = Example("a", ("the  actor was wonderful .", "so what"))
    edits = text_edits(example, 0)
    assert edits[0] == ("the actor was wonderful ..", "so what")
    assert {*edits[1:]} == {("the acotr was wonderful .", "so what"), ("the actor was wodnerful .", "so what")}
    assert text_edits(Example("b", ("it was a good film.",)), 0) == [("it was a good film",)]
    assert text_edits(Example("c", ("a good fiilm",)), 0) == [("a good fiilm.",), ("a good filim",)]
    assert text_edits(Example("d", ("good eeeee",)), 0) == [("good eeeee.",)]
    assert text_edits(Example("e", ("", "a second text")), 0) == []
    assert text_edits(Example("f", (torch.zeros(1, 2, 2),)), 0) == []
    assert all(text_edits(example, seed) for seed in range(3))


def test_an_edit_keeps_the_words_and_the_prediction(
    explainer: Explainer, sample: TextSample, workspace: Workspace
) -> None:
    examples = {example.uid: example for example in Verdicts(40).read(Path()).test}
    table, count = workspace.get(sample).table.set_index("uid"), 0
    for block in range(5):
        for uid, parts, change in workspace.get(BlockEdits(sample, block)).table.itertuples(index=False):
            before, after = str(examples[uid].parts[0]).split(), parts[0].split()
            assert len(before) == len(after)
            assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
            shown = explainer.explain(parts[0], methods="random")
            assert shown.target_index == table["predicted"][uid]
            assert abs(shown.probability - table["probability"][uid]) == pytest.approx(change, abs=1e-5)
            assert change <= MAX_EDIT_CHANGE
            count += 1
    assert count > 6


def test_texts_that_every_edit_changes_have_no_scores_under_edits(explainer: Explainer, tmp_path: Path) -> None:
    """All words are unknown to the tokenizer, so that it sees no edit."""
    workspace, sample = Workspace(tmp_path), given_sample(explainer, "xx yy zz", "xx xx xx xx")
    assert not len(workspace.get(BlockEdits(sample, 0)).table)
    found = workspace.get(BlockAttributions(sample, RawAttention(), 0, "edited"))
    assert not len(found.table)
    assert not len(concatenate([BlockAttributions(sample, RawAttention(), 0, "edited")], workspace))


# Scores


def batch_of(explainer: Explainer, uids: Sequence[str]) -> Batch:
    examples = {example.uid: example for example in Verdicts(40).read(Path()).test}
    return explainer.tokenizer([examples[uid] for uid in uids])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_scores_of_words_are_those_of_an_explanation_of_the_text_alone(
    method: Method, explainer: Explainer, sample: TextSample, workspace: Workspace
) -> None:
    found = workspace.get(BlockAttributions(sample, method, 5)).table
    several_tokens = 0
    for uid, scores, numbers, predicted in zip(
        *(found[name] for name in ("uid", "word_scores", "word_numbers", "predicted")), strict=True
    ):
        batch = batch_of(explainer, [uid])
        expected = word_scores(method, method(explainer.model, batch, torch.tensor([predicted])), batch)
        assert list(numbers) == expected.mask[0].nonzero().flatten().tolist()
        assert list(scores) == pytest.approx(expected.scores[0][expected.mask[0]].tolist(), abs=1e-5)
        several_tokens += int(batch.mask.sum()) - 2 > len(numbers)
    assert several_tokens > 5


def test_a_randomized_copy_is_explained_for_the_class_that_the_model_predicts(
    explainer: Explainer, sample: TextSample, workspace: Workspace
) -> None:
    before = [weight.clone() for weight in explainer.model.parameters()]
    found = workspace.get(BlockAttributions(sample, IG, 3, randomized=7)).table
    own = workspace.get(BlockAttributions(sample, IG, 3)).table.iloc[3:]
    assert block_range(3) == range(4, 8)
    assert found["uid"].tolist() == own["uid"].tolist()
    assert found["predicted"].tolist() == own["predicted"].tolist()
    assert found["scores"].tolist() != own["scores"].tolist()
    copy = randomize_weights(explainer.model, 7)
    batch = batch_of(explainer, found["uid"].tolist())
    expected = IG(copy, batch, torch.tensor(found["predicted"].tolist()))
    for row, scores in enumerate(found["scores"]):
        assert list(scores) == pytest.approx(expected.scores[row][batch.mask[row]].tolist(), abs=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(before, explainer.model.parameters(), strict=True))
    beyond = len(workspace.get(sample).table)
    assert workspace.get(BlockAttributions(sample, IG, 3, randomized=beyond)).table.empty


def test_kernel_shap_draws_two_samples_per_word_of_a_long_text(explainer: Explainer, tmp_path: Path) -> None:
    long = " ".join(["film plot very wonderful the a scene actor"] * 2)
    workspace, sample = Workspace(tmp_path), given_sample(explainer, long, "a very wonderful film")
    method = KernelShap(n_samples=20, feature="word")
    found = concatenate([BlockAttributions(sample, method, block) for block in (0, 1)], workspace).set_index("uid")
    for place, text in enumerate((long, "a very wonderful film")):
        batch = explainer.tokenizer([Example(f"t{place}", (text,))])
        enough = replace(method, n_samples=32 if text == long else 20)
        expected = enough(explainer.model, batch, torch.tensor([found["predicted"][f"t{place}"]]))
        assert list(found["scores"][f"t{place}"]) == pytest.approx(expected.scores[0].tolist(), abs=1e-5)


# Erasure, search and attention


def test_erasure_and_search_of_a_block_are_those_of_its_texts(
    explainer: Explainer, sample: TextSample, workspace: Workspace
) -> None:
    ways: tuple[Baseline, ...] = ("delete", "unk")
    erased = workspace.get(BlockErasure(BlockAttributions(sample, IG, 3), ways)).table
    searched = workspace.get(BlockSearch(sample, 3, ways)).table
    scores = workspace.get(BlockAttributions(sample, IG, 3)).table.set_index("uid")
    assert len(erased) == len(searched) == 8
    for way in ways:
        own, best = (table[table["deletion"] == way].set_index("uid") for table in (erased, searched))
        for uid in own.index[:4]:
            batch, target = batch_of(explainer, [uid]), torch.tensor([scores["predicted"][uid]])
            ranking = torch.tensor([[[*scores["word_scores"][uid]]]])
            one = word_erasure(way)(explainer.model, batch, target, ranking)
            counts = one.bins[0].tolist()
            most = search_best_erasure(explainer.model, batch, target, way)
            for measure in ("comprehensiveness", "sufficiency", "flip"):
                assert own[measure][uid] == pytest.approx(float(getattr(one, measure)), abs=1e-5)
                assert best[measure][uid] == pytest.approx(float(getattr(most, measure)), abs=1e-5)
            assert list(own["counts"][uid]) == counts
            ranked = sorted(range(len(scores["word_scores"][uid])), key=lambda word: -scores["word_scores"][uid][word])
            assert list(own["order"][uid]) == ranked[: max(counts)]
            assert own["full"][uid] == pytest.approx(float(one.full_output), abs=1e-5)
        assert (best["comprehensiveness"] >= own["comprehensiveness"] - 1e-5).all()


def test_the_attention_of_a_block_token_by_token(
    explainer: Explainer, sample: TextSample, workspace: Workspace
) -> None:
    artefact = workspace.get(BlockAttention(sample, 0))
    found, maps = artefact.table, artefact.tensors["head_maps"]
    batch = batch_of(explainer, found["uid"].tolist())
    with torch.no_grad():
        attention = explainer.model(batch).attention
    for row in range(len(batch)):
        length, owners = int(batch.lengths[row]), batch.words[row].tolist()
        received = [float(attention[row, :, :, :length, unit].mean()) for unit in range(length)]
        special = sum(received[unit] for unit in range(length) if owners[unit] < 0)
        assert found["special_share"][row] == pytest.approx(special, abs=1e-5)
        assert found["first_share"][row] == pytest.approx(received[0], abs=1e-5)
        for word in range(max(owners) + 1):
            tokens = [unit for unit in range(length) if owners[unit] == word]
            expected = attention[row, :, :, :length][..., tokens].mean((2, 3))
            torch.testing.assert_close(maps[row, :, :, word].float(), expected, atol=1e-3, rtol=1e-3)
        assert not maps[row, :, :, max(owners) + 1 :].any()
    assert (found["median_change"] >= 0).all()
    own = AdversarialAttention(sample.subject, search=evidence.TRANSFORMER_SEARCH).rows(explainer.model, batch)
    assert found["adversary_share"].tolist() == pytest.approx(own["share"].tolist(), abs=1e-5)


# Blocks


def recipes(sample: TextSample) -> list[Recipe]:
    original = [BlockAttributions(sample, method, 1) for method in (RawAttention(), Lime(20, feature="word"))]
    return [
        *original,
        *(BlockErasure(each, ("delete", "unk")) for each in original),
        BlockSearch(sample, 1, ("delete",)),
        BlockAttributions(sample, RawAttention(), 1, "edited"),
        BlockAttributions(sample, RawAttention(), 1, randomized=0),
        BlockAttention(sample, 1),
    ]


def test_the_order_of_the_work_and_who_does_it_change_nothing(
    sample: TextSample, workspace: Workspace, tmp_path: Path
) -> None:
    """A worker process has a workspace of its own, keeps models in memory, and gets its recipes as bytes."""
    worker = Workspace(tmp_path)
    worker.model_cache = {}
    for recipe in reversed(recipes(sample)):
        sent = pickle.loads(pickle.dumps(recipe))  # noqa: S301
        assert sent == recipe
        worker.get(sent)
    for recipe in recipes(sample):
        pd.testing.assert_frame_equal(workspace.get(recipe).table, worker.get(recipe).table)


def test_the_cut_into_blocks_changes_nothing(
    sample: TextSample, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def erasure(block: int) -> BlockErasure:
        return BlockErasure(BlockAttributions(sample, RawAttention(), block), ("delete", "unk"))

    whole = concatenate([erasure(block) for block in range(5)], workspace)
    # The first twelve texts in blocks of up to four, or of five and seven.
    monkeypatch.setattr(evidence, "FIRST_BLOCKS", (5,))
    monkeypatch.setattr(evidence, "BLOCK_TEXTS", 7)
    found = concatenate([erasure(block) for block in range(2)], Workspace(tmp_path))
    whole, found = (table.sort_values(["deletion", "uid"], ignore_index=True) for table in (whole, found))
    assert whole["uid"].tolist() == found["uid"].tolist()
    for measure in ("comprehensiveness", "sufficiency", "flip", "full"):
        assert whole[measure].tolist() == pytest.approx(found[measure].tolist(), abs=1e-5)


def test_the_last_block_holds_what_is_left(sample: TextSample, workspace: Workspace) -> None:
    last = read_block(sample, 8, workspace)
    assert len(last.examples) == 40 - 36
    assert workspace.get(sample).table["uid"].tolist()[36:] == [*last.examples]


def test_words_are_pooled_over_their_tokens_only() -> None:
    units, words = torch.tensor([[9.0, 1, 2, 4, 9]]), torch.tensor([[-1, 0, 0, 2, -1]])
    table = pd.DataFrame({"scores": units.tolist(), "words": words.tolist()})
    assert evidence.words_of_rows(table, LeaveOneOut()) == ([[3.0, 4.0]], [[0, 2]])
    assert evidence.words_of_rows(table, RawAttention()) == ([[1.5, 4.0]], [[0, 2]])
    assert pool_by_word(units, words, "sum")[0].tolist() == [[3, 0, 4]]


# Long texts


SHORT_WORDS = ("film", "plot", "very", "the", "a", "long", "end")


def long_text(words: int, sentence: int) -> str:
    """A text of so many words that ends a sentence after so many."""
    draw = torch.randint(len(SHORT_WORDS), (words,), generator=torch.Generator().manual_seed(words)).tolist()
    ends = ["." if place % sentence == sentence - 1 else "" for place in range(words)]
    return " ".join(SHORT_WORDS[index] + end for index, end in zip(draw, ends, strict=True))


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Explainer:
    """A network with random weights that reads 100 tokens."""
    folder = save_untrained(tmp_path_factory.mktemp("patient") / "model", (*PIECES, *SHORT_WORDS), CLASSES, 100)
    return load(str(folder))


def test_long_texts_are_explained_and_erased_by_segments(patient: Explainer, tmp_path: Path) -> None:
    texts = (long_text(90, 9), "a very wonderful film", long_text(50, 7))
    workspace, sample = Workspace(tmp_path), given_sample(patient, *texts)
    table = workspace.get(sample).table.set_index("uid")
    assert table.loc[["t0", "t1", "t2"], ["words", "features"]].to_numpy().tolist() == [[90, 20], [4, 4], [50, 20]]
    for method in (RawAttention(), LeaveOneOut(feature="segment"), Lime(30, feature="segment"), Random(seed=4)):
        blocks = [BlockAttributions(sample, method, block) for block in range(3)]
        found = concatenate(blocks, workspace).set_index("uid")
        erased = concatenate([BlockErasure(block, ("delete",)) for block in blocks], workspace).set_index("uid")
        by_word = dict(zip(found.index, zip(*evidence.plain_word_scores(found, method), strict=True), strict=True))
        for uid, text in zip(("t0", "t1", "t2"), texts, strict=True):
            batch, target = patient.tokenizer([Example(uid, (text,))]), torch.tensor([found["predicted"][uid]])
            starts, scores = list(found["word_numbers"][uid]), list(found["word_scores"][uid])
            assert len(scores) == table["features"][uid]
            expected = word_scores(method, method(patient.model, batch, target), batch, "segment")
            assert scores == pytest.approx(expected.scores[0][expected.mask[0]].tolist(), abs=1e-5)
            # Without the first step of the order: the words from one start to the next.
            first = int(erased["order"][uid][0])
            assert scores[first] == max(scores)
            end = [*starts, len(text.split())][first + 1]
            kept = batch.keep_units((batch.words < starts[first]) | (batch.words >= end))
            with torch.no_grad():
                output = torch.softmax(patient.model(kept).logits, -1)[0, target]
            step = list(erased["counts"][uid]).index(1)
            assert erased["removed"][uid][step] == pytest.approx(float(output), abs=1e-5)
            words, numbers = by_word[uid]
            assert numbers == list(range(len(text.split())))
            if isinstance(method, RawAttention):
                plain = word_scores(method, method(patient.model, batch, target), batch)
                assert words == pytest.approx(plain.scores[0].tolist(), abs=1e-5)
            elif isinstance(method, LeaveOneOut):
                assert words == [scores[sum(start <= word for start in starts) - 1] for word in numbers]


def test_an_edit_moves_no_segment_even_if_another_word_is_cut_off(patient: Explainer, tmp_path: Path) -> None:
    """A typing error in the one long word, which has two tokens, makes it one unknown token."""
    texts = [f"wonderful {long_text(count, 9)}" for count in (104, 105, 106)]
    sample, workspace = given_sample(patient, *texts), Workspace(tmp_path)
    assert (workspace.get(sample).table["words"] < 105).all()
    own, other = (
        concatenate([BlockAttributions(sample, IG, block, text) for block in range(3)], workspace).set_index("uid")
        for text in ("original", "edited")
    )
    assert len(other) > 0
    for uid in other.index:
        assert max(other["words"][uid]) == max(own["words"][uid]) + 1
        assert list(other["word_numbers"][uid]) == list(own["word_numbers"][uid])
        assert len(own["word_numbers"][uid]) == 20


def test_sentences_may_be_audited_and_words_too(patient: Explainer, tmp_path: Path) -> None:
    sample = given_sample(patient, long_text(90, 9), long_text(12, 4))
    expected: tuple[tuple[Feature, list[int]], ...] = (("word", [90, 12]), ("sentence", [10, 3]))
    for feature, counts in expected:
        chosen = replace(sample, feature=feature)
        assert Workspace(tmp_path).get(chosen).table.set_index("uid")["features"][["t0", "t1"]].tolist() == counts
