"""The units that take part in attention: words, not symbols without weight, whoever wrote the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn

from heedful.measures.divergence import jensen_shannon_bound
from heedful.models.acceptance import open_layers
from heedful.models.small_transformers import build_network
from heedful.models.transformer import TransformerModel
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification
from heedful.training.attention_sources import AttentionSource, RandomAttention, ShuffledAttention, UniformAttention
from heedful.training.objectives import ImposedAttention
from heedful.training.predictions import attention_support, compare_predictions
from heedful.trials.permutation import Permutation, output_changes
from heedful.trials.seed_variance import SeedVariance
from heedful.types import Architecture, Batch, Model, Task, Trace
from tests.networks import TinyTransformer
from tests.small_models import some_batch
from tests.tiny import subject


class UserModel(Model):
    """A model as users write them: attention over the words only, whose values pooled give the logit.

    Args:
        values: what each id adds to the logit.
        keys: the score of each id.
        shows_scores: whether traces have the scores, of the symbols too, whose weight is 0.
    """

    def __init__(self, task: Task, values: Tensor, keys: Tensor, *, shows_scores: bool = False) -> None:
        super().__init__()
        self.task = task
        self.values, self.keys = nn.Parameter(values), nn.Parameter(keys)
        self.shows_scores = shows_scores

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        embeddings = self.values[batch.inputs].unsqueeze(-1) if embeddings is None else embeddings
        scores = self.keys[batch.inputs]
        if attention is None:
            weights = scores.masked_fill(~batch.content_mask, -math.inf).softmax(-1)
            attention = weights[:, None, None, None]
        logits = torch.einsum("bu,bud->bd", attention[:, 0, 0, 0], embeddings)
        shown = scores[:, None, None, None] if self.shows_scores else None
        return Trace(embeddings, embeddings, attention, logits, shown)


@dataclass(frozen=True)
class UserArchitecture(Architecture):
    """Random values and keys; those of the start and end symbols are large, so that weight on them would show."""

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> UserModel:
        values, keys = torch.randn(2, 40, generator=generator).unbind()
        values[[2, 3]] = 20.0
        return UserModel(task, values, keys)


def user_model(*, shows_scores: bool = False) -> UserModel:
    values, keys = torch.randn(2, 30, generator=Generator().manual_seed(0), dtype=torch.float64).unbind()
    values[[2, 3]] = 20.0
    return UserModel(BinaryClassification(), values, keys, shows_scores=shows_scores)


def causal_bert() -> TransformerModel:
    plan, task = TinyTransformer(), MulticlassClassification(2)
    config = plan.config(task)
    config.is_decoder = True
    network = build_network(config, Generator().manual_seed(1))
    return TransformerModel(open_layers(network, "interface"), task).eval()


@pytest.mark.parametrize("shows_scores", [False, True])
def test_permutation_moves_no_weight_onto_symbols_without_weight(*, shows_scores: bool) -> None:
    model, batch = user_model(shows_scores=shows_scores), some_batch((4, 2))
    with torch.no_grad():
        trace = model(batch)
    assert torch.equal(attention_support(model, batch, trace.attention, trace.scores)[:, 0, 0, 0], batch.content_mask)
    # With two words there are two permutations: the model's own weights and the swapped ones.
    swapped = trace.attention[1, 0, 0, 0].clone()
    swapped[[1, 2]] = swapped[[2, 1]]
    logit = float(swapped @ trace.embeddings[1, :, 0])
    before, after = torch.sigmoid(trace.logits[1, 0]).item(), 1 / (1 + math.exp(-logit))
    changes = output_changes(model, batch, trace, 40)[1].tolist()
    assert {round(change, 9) for change in changes} == {0.0, round(abs(after - before), 9)}


def test_permutation_of_a_users_uniform_attention_changes_nothing() -> None:
    model, batch = user_model(), some_batch((4, 2))
    with torch.no_grad():
        model.keys.zero_()
    rows = Permutation(subject(), 20).rows(model, batch)
    assert rows["median_change"].tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


def test_seed_variance_and_adversaries_bound_the_divergence_by_words_alone(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    own = replace(subject(epochs=2, count=8), architecture=UserArchitecture(), embeddings=None)
    other = replace(own, seed=1)
    batch = own.restore(workspace).batch("test")
    with torch.no_grad():
        attention = own.restore(workspace).model(batch).attention.double()[:, 0, 0, 0]
    bounds = dict(zip(batch.uids, jensen_shannon_bound(attention, batch.content_mask).tolist(), strict=True))
    for table in (workspace.get(SeedVariance(own, (1,))).table, compare_predictions(other, own, workspace)):
        found = dict(zip(table["uid"], table["bound"], strict=True))
        assert found == pytest.approx(bounds, abs=1e-7)


SOURCES = [UniformAttention(), RandomAttention(), ShuffledAttention(RandomAttention())]


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: type(each).__name__)
def test_imposed_attention_of_a_users_model_is_on_its_words(source: AttentionSource, tmp_path: Path) -> None:
    model, batch = user_model(), some_batch((4, 2))
    ImposedAttention(source).prepare_model(model, Workspace(tmp_path))
    attention = model(batch).attention
    assert attention.shape == (2, 1, 1, 1, 6)
    torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention.sum(-1)))
    assert not attention[:, 0, 0, 0][~batch.content_mask].any()


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: type(each).__name__)
def test_imposed_attention_of_a_causal_model_is_on_the_past(source: AttentionSource, tmp_path: Path) -> None:
    model, batch = causal_bert(), some_batch((4, 2))
    ImposedAttention(source).prepare_model(model, Workspace(tmp_path))
    attention = model(batch).attention.detach()
    past = torch.ones(6, 6, dtype=torch.bool).tril() & batch.mask[:, None]
    assert not attention[~past[:, None, None].expand_as(attention)].any()
    sums = attention.sum(-1)[batch.mask[:, None, None].expand(attention.shape[:-1])]
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("hidden", [-math.inf, -1e9, 0.0, 195.0])
def test_a_hidden_unit_of_self_attention_is_known_by_its_score_or_its_weight(hidden: float) -> None:
    """Units 0 to 3: one with nearly all the weight, one with some, one whose weight underflows, one that is hidden."""
    batch = some_batch((2,))
    scores = torch.tensor([200.0, 190.0, -10.0, hidden]).expand(1, 1, 1, 4, 4)
    attention = torch.tensor([200.0, 190.0, -10.0, -math.inf]).softmax(0).expand(1, 1, 1, 4, 4)
    assert attention[0, 0, 0, 0].gt(0).tolist() == [True, True, False, False]
    support = attention_support(user_model(), batch, attention, scores)
    assert support[0, 0, 0].tolist() == [[True, True, True, False]] * 4


def test_words_of_sparse_attention_take_part_and_the_other_text_of_a_pair_does_not() -> None:
    batch = some_batch((5,))
    batch = replace(batch, segments=torch.tensor([[0, 0, 0, 0, 1, 1, 1]]))
    attention = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0]])
    support = attention_support(user_model(), batch, attention[None, None, None])[0, 0, 0]
    assert support.nonzero().tolist() == [[0, 1], [0, 2], [0, 3], [1, 0], [1, 4], [1, 5]]
