"""Attention sources: distributions over the support, controls, and scores by word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from heedful.attributions.attention import RawAttention
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.subwords import Subwords
from heedful.data.words import Words
from heedful.models.attentive import Additive, Attentive, Sparsemax
from heedful.models.encoders import Perceptron
from heedful.models.input_forms import PairInput
from heedful.store.recipe import derive_seed
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.training.attention_sources import (
    AttentionSource,
    FromModel,
    FromScores,
    RandomAttention,
    ShuffledAttention,
    UniformAttention,
    _unit_shares,
    word_magnitudes,
)
from heedful.training.attribution_tables import AttributionTable
from heedful.training.objectives import ImposedAttention
from heedful.training.predictions import Predictions
from heedful.training.trained_model import TrainedModel
from heedful.types import SPLITS, Attribution, Batch, Example, Model, UserError
from tests.networks import TinyTransformer
from tests.subword_tokenizers import save_two_pieces
from tests.tiny import WORDS, Sentences, subject

PERCEPTRON = Attentive(Perceptron(4), Additive())


@dataclass(frozen=True)
class Places:
    """Scores that can be worked out by hand: minus the unit's place, zero or undefined for some texts."""

    revision: ClassVar[int] = 1

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        scores = -torch.arange(batch.mask.shape[1]).double().expand(batch.mask.shape).clone()
        for row, uid in enumerate(batch.uids):
            scores[row] *= 0.0 if uid.endswith("-7") else 1.0
            scores[row, 2] = torch.nan if uid.endswith("-8") else scores[row, 2]
        return Attribution(scores.masked_fill(~batch.content_mask, 0), batch.content_mask)


SOURCES: dict[str, AttentionSource] = {
    "uniform": UniformAttention(),
    "from a model": FromModel(subject()),
    "shuffled": ShuffledAttention(FromModel(subject()), seed=3),
    "shuffled scores": ShuffledAttention(FromScores(subject(), Places()), seed=3),
    "scattered": RandomAttention(seed=3),
    "scored": FromScores(subject(), Places()),
}


@pytest.fixture(scope="module")
def batch(workspace: Workspace) -> Batch:
    return subject().restore(workspace).batch("test")


def pooled(plan: Attentive = PERCEPTRON) -> Model:
    return plan.build(BinaryClassification(), torch.zeros(40, 6), Generator().manual_seed(0))


def pairs() -> Batch:
    """Two compared pairs of 3 + 2 and 2 + 4 words."""
    texts = [("pair-1", ("the film is", "a plot")), ("pair-2", ("very dull", "a very long scene"))]
    examples = [Example(uid, parts, 0) for uid, parts in texts]
    return Words().fit(examples)(examples)


@pytest.mark.parametrize("name", SOURCES)
def test_weights_are_a_distribution_on_the_words_and_zero_elsewhere(
    name: str, workspace: Workspace, batch: Batch
) -> None:
    found = SOURCES[name].attention_function(pooled(), workspace)(batch)
    assert found.shape == (40, 1, 1, 1, batch.mask.shape[1])
    assert found.dtype == torch.float32
    assert torch.allclose(found.sum(-1), torch.ones(40, 1, 1, 1), atol=1e-6)
    assert (found >= 0).all()
    assert not found[:, 0, 0, 0][~batch.content_mask].any()


@pytest.mark.parametrize("name", SOURCES)
def test_the_rest_of_a_batch_and_the_epoch_change_nothing(name: str, workspace: Workspace, batch: Batch) -> None:
    weights = SOURCES[name].attention_function(pooled(), workspace)
    together = weights(batch)
    assert torch.equal(together, weights(batch))
    for row in (0, 7, 8, 21):
        alone = weights(batch.rows(torch.tensor([row])))
        assert torch.equal(alone[0], together[row, ..., : alone.shape[-1]])


@pytest.mark.parametrize("name", ["uniform", "scattered"])
def test_both_texts_of_a_compared_pair_have_a_distribution_of_their_own(name: str, workspace: Workspace) -> None:
    model = pooled(Attentive(Perceptron(4), Additive(), input_format=PairInput()))
    batch = pairs()
    found = SOURCES[name].attention_function(model, workspace)(batch)[:, 0, 0]
    assert torch.allclose(found.sum(-1), torch.ones(2, 2), atol=1e-6)
    for part in (0, 1):
        assert not found[:, part][batch.segments != part].any()
        assert (found[:, part] > 0).sum(1).tolist() == [[3, 2], [2, 4]][part]
    dealt = ShuffledAttention(SOURCES[name], seed=1).attention_function(model, workspace)(batch)[:, 0, 0]
    assert torch.equal(dealt.sort(-1).values, found.sort(-1).values)
    assert torch.equal(dealt > 0, found > 0)


def test_shuffling_keeps_the_weights_of_each_text_and_moves_them(workspace: Workspace, batch: Batch) -> None:
    model = pooled()
    given = FromModel(subject()).attention_function(model, workspace)(batch)
    dealt = [
        ShuffledAttention(FromModel(subject()), seed=seed).attention_function(model, workspace)(batch)
        for seed in (0, 1)
    ]
    for found in dealt:
        assert torch.equal(found.sort(-1).values, given.sort(-1).values)
        moved = (found != given).flatten(1).any(1)
        assert int(moved.sum()) >= 38
    assert not torch.equal(dealt[0], dealt[1])


def test_every_place_is_equally_likely_for_a_shuffled_weight(workspace: Workspace) -> None:
    uids = tuple(f"text-{number}" for number in range(4000))
    mask = torch.ones(4000, 4, dtype=torch.bool)
    words = torch.arange(4).expand(4000, 4)
    batch = Batch(uids, torch.ones(4000, 4, dtype=torch.long), mask, torch.zeros(4000, 4, dtype=torch.long), words)

    @dataclass(frozen=True)
    class First(AttentionSource):
        def attention_function(self, model: Model, workspace: Workspace) -> Callable[[Batch], Tensor]:
            return lambda batch: torch.eye(4)[0].expand(len(batch), 1, 1, 1, 4)

    places = ShuffledAttention(First()).attention_function(pooled(), workspace)(batch).sum((0, 1, 2, 3))
    assert places.sum() == 4000
    # Five standard deviations of a binomial count with p = 1/4.
    assert ((places - 1000).abs() < 5 * (4000 * 0.25 * 0.75) ** 0.5).all()


def test_scattered_weights_are_the_softmax_of_standard_normal_numbers(workspace: Workspace) -> None:
    uids = tuple(f"text-{number}" for number in range(500))
    mask = torch.ones(500, 40, dtype=torch.bool)
    words = torch.arange(40).expand(500, 40)
    batch = Batch(uids, torch.ones(500, 40, dtype=torch.long), mask, torch.zeros_like(words), words)
    found = RandomAttention().attention_function(pooled().double(), workspace)(batch)[:, 0, 0, 0]
    # Logarithms of a softmax are the numbers themselves but for a constant of each row.
    logarithms = found.log()
    normal = (logarithms - logarithms.mean(1, keepdim=True)).flatten() * (40 / 39) ** 0.5
    assert normal.std().item() == pytest.approx(1.0, abs=0.02)
    assert normal.pow(3).mean().item() == pytest.approx(0.0, abs=0.06)
    assert normal.pow(4).mean().item() == pytest.approx(3.0, abs=0.15)
    assert not torch.equal(
        found, RandomAttention(1).attention_function(pooled().double(), workspace)(batch)[:, 0, 0, 0]
    )


def test_controls_are_marked_as_controls(workspace: Workspace) -> None:
    assert [name for name, source in SOURCES.items() if source.is_control] == [
        "shuffled",
        "shuffled scores",
        "scattered",
    ]


def test_scored_weights_are_those_worked_out_by_hand(workspace: Workspace, batch: Batch) -> None:
    found = FromScores(subject(), Places()).attention_function(pooled().double(), workspace)(batch)[:, 0, 0, 0]
    for row, uid in enumerate(batch.uids):
        count = int(batch.content_mask[row].sum())
        # The first word stands at place 1, behind the opening symbol.
        raw = np.arange(1, count + 1, dtype=float)
        expected = np.full(count, 1 / count) if uid.endswith(("-7", "-8")) else raw / raw.sum()
        assert found[row, 1 : count + 1].tolist() == pytest.approx(expected.tolist())


def test_texts_without_scores_are_counted(workspace: Workspace) -> None:
    # In each of three splits text 7, whose scores are zero, and text 8, one of whose scores is undefined.
    scored = FromScores(subject(), Places())
    assert scored.count_uniform_fallbacks(workspace) == 3 * 2
    assert ShuffledAttention(scored).count_uniform_fallbacks(workspace) == 6
    assert (
        UniformAttention().count_uniform_fallbacks(workspace)
        == FromModel(subject()).count_uniform_fallbacks(workspace)
        == 0
    )


def test_a_recipe_under_scores_needs_them_on_all_splits() -> None:
    learner = replace(
        subject(),
        architecture=PERCEPTRON,
        objective=ImposedAttention(ShuffledAttention(FromScores(subject(), Places()))),
    )
    assert {need.split for need in learner.dependencies if isinstance(need, AttributionTable)} == set(SPLITS)
    assert subject() in learner.dependencies


def test_equal_sources_are_equal_values_and_share_an_artefact(workspace: Workspace) -> None:
    one, other = (
        replace(subject(), objective=ImposedAttention(FromScores(subject(), RawAttention(layer))))
        for layer in (None, None)
    )
    assert one == other
    assert hash(one) == hash(other)
    assert workspace.artefact_name(one) == workspace.artefact_name(other)
    assert workspace.artefact_name(one) != workspace.artefact_name(
        replace(one, objective=ImposedAttention(FromScores(subject(seed=1), RawAttention())))
    )


def test_a_words_score_is_the_sum_over_its_units_shared_by_the_learners_units() -> None:
    words = word_magnitudes([9.0, -1.0, 2.0, 5.0, 9.0], [-1, 0, 0, 2, -1], [False, True, True, True, False])
    assert words.tolist() == pytest.approx([3.0, np.nan, 5.0], nan_ok=True)


def test_the_units_of_a_word_share_its_weight() -> None:
    words = torch.tensor([[-1, 0, 0, 1, -1], [-1, 1, -1, -1, -1]])
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    batch = Batch(("a", "b"), words, mask, torch.zeros_like(words), words)
    shares = _unit_shares({"a": np.array([3.0, 5.0]), "b": np.array([np.nan, 2.0, 7.0])}, batch)
    assert shares.tolist() == [[0.0, 1.5, 1.5, 5.0, 0.0], [0.0, 2.0, 0.0, 0.0, 0.0]]


@dataclass(frozen=True)
class Renamed(Sentences):
    """The same sentences under other names, or with a word more."""

    prefix: str = ""
    more: str = ""

    def _part(self, split: str, seed: int) -> tuple[Example, ...]:
        plain = super()._part(split, seed)
        return tuple(replace(e, uid=self.prefix + e.uid, parts=(f"{e.parts[0]}{self.more}",)) for e in plain)


def learner_batch(corpus: Sentences) -> Batch:
    splits = corpus.read(Path("unused"))
    return Words().fit(splits.train)(splits.test)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (Renamed(prefix="new-"), "no scores of example 'new-test-0'"),
        (Renamed(more=" again"), "of example 'test-0' has no score"),
    ],
)
def test_a_text_without_scores_is_refused(corpus: Sentences, message: str, workspace: Workspace) -> None:
    weights = FromScores(subject(), Places()).attention_function(pooled(), workspace)
    with pytest.raises(UserError, match=message):
        weights(learner_batch(corpus))


def test_a_deleted_word_leaves_its_weight_to_the_others(workspace: Workspace, batch: Batch) -> None:
    weights = FromScores(subject(), Places()).attention_function(pooled().double(), workspace)
    without = batch.keep_units(batch.words != 1)
    found = weights(without)[0, 0, 0, 0]
    count = int(batch.content_mask[0].sum())
    raw = np.array([place for place in range(1, count + 1) if place != 2], dtype=float)
    assert found[1:count].tolist() == pytest.approx((raw / raw.sum()).tolist())


def test_attention_from_a_pooled_model_is_looked_up(workspace: Workspace, batch: Batch) -> None:
    weights = FromModel(subject()).attention_function(pooled(), workspace)
    stored = workspace.get(Predictions(subject(), "test"))
    assert stored.table["uid"].tolist() == list(batch.uids)
    assert torch.equal(weights(batch), stored.tensors["attention"])


def test_attention_on_a_changed_text_is_computed(workspace: Workspace, batch: Batch) -> None:
    other = subject().restore(workspace).model
    weights = FromModel(subject()).attention_function(pooled(), workspace)
    without = batch.keep_units(batch.words != 1)
    blanked = replace(batch, inputs=batch.inputs.masked_fill(batch.words == 1, 1))
    with torch.no_grad():
        for changed in (without, blanked):
            assert torch.equal(weights(changed), other(changed).attention)
    assert not torch.equal(weights(blanked), weights(batch))


def test_zero_weights_of_a_sparse_base_stay_zero(workspace: Workspace) -> None:
    sparse = replace(subject(), architecture=Attentive(Perceptron(4), Additive(), Sparsemax()))
    base = sparse.restore(workspace)
    batch = base.batch("dev")
    with torch.no_grad():
        attention = base.model(batch).attention
    assert torch.allclose(FromModel(sparse).attention_function(pooled(), workspace)(batch), attention, atol=1e-7)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """A tiny transformer that reads most words in two pieces."""
    tokenization = Subwords(save_two_pieces(tmp_path_factory.mktemp("tokenizer"), WORDS), 32)
    base = subject(epochs=2, count=12)
    return replace(base, tokenization=tokenization, architecture=TinyTransformer(), embeddings=None)


@pytest.mark.slow
def test_scores_of_a_transformer_become_attention_of_a_word_level_model(
    transformer: TrainedModel, workspace: Workspace
) -> None:
    source = FromScores(transformer, LeaveOneOut())
    trained = replace(subject(epochs=2, count=12), architecture=PERCEPTRON, objective=ImposedAttention(source)).restore(
        workspace
    )
    batch = trained.batch("test")
    found = trained.model(batch).attention[:, 0, 0, 0]
    table = workspace.get(AttributionTable(transformer, LeaveOneOut())).table
    scored = dict(zip(table["uid"], zip(table["scores"], table["words"], strict=True), strict=True))
    for row, uid in enumerate(batch.uids):
        count = int(batch.content_mask[row].sum())
        sums = [0.0] * count
        scores, words = scored[uid]
        for score, word in zip(scores, words, strict=True):
            if word >= 0:
                sums[word] += abs(score)
        assert len(words) > count + 2
        assert found[row, 1 : count + 1].tolist() == pytest.approx([each / sum(sums) for each in sums], abs=1e-6)


@pytest.mark.parametrize(
    "source",
    [UniformAttention(), RandomAttention(), ShuffledAttention(RandomAttention())],
    ids=lambda g: type(g).__name__,
)
def test_a_transformer_can_be_the_learner(
    source: AttentionSource, transformer: TrainedModel, workspace: Workspace
) -> None:
    model = transformer.restore(workspace).model
    batch = transformer.restore(workspace).batch("test")
    given = source.attention_function(model, workspace)
    ImposedAttention(source).prepare_model(model, workspace)
    attention = model(batch).attention
    assert torch.equal(attention, given(batch))
    assert torch.allclose(attention.sum(-1), torch.ones(()), atol=1e-6)
    assert not attention[batch.mask[:, None, None, None].logical_not().expand_as(attention)].any()


def test_attention_of_another_shape_is_refused(transformer: TrainedModel, workspace: Workspace) -> None:
    batch = transformer.restore(workspace).batch("test")
    with pytest.raises(UserError, match=r"cannot be imposed on a model whose own is .* FromScores"):
        FromModel(transformer).attention_function(pooled(), workspace)(batch)


def test_a_control_draws_from_seed_and_uid_alone(workspace: Workspace, batch: Batch) -> None:
    weights = RandomAttention(seed=5).attention_function(pooled(), workspace)
    other = weights(replace(batch, uids=("stranger", *batch.uids[1:])))
    assert derive_seed("scattered", 5, "stranger") != derive_seed("scattered", 5, batch.uids[0])
    assert not torch.equal(other[0], weights(batch)[0])
    assert torch.equal(other[1:], weights(batch)[1:])
