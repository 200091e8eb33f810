"""Attributions of a model under imposed attention, compared with one shortened text at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from heedful.attributions.attention import KobayashiNorm, RawAttention, Relevance, ValueNorm
from heedful.attributions.head_mix import StaticAttention
from heedful.attributions.layer_mix import LayerMix
from heedful.attributions.lime import Lime
from heedful.attributions.perturbation import LeaveOneOut, Occlusion
from heedful.attributions.shapley import KernelShap
from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import GRU, Average, BiLSTM, Convolution, Encoder
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.training.attention_sources import (
    AttentionSource,
    FromModel,
    FromScores,
    RandomAttention,
    ShuffledAttention,
    UniformAttention,
    impose_attention,
)
from heedful.types import Batch, Method, UserError
from tests.small_models import subject as layered
from tests.tiny import subject

ENCODERS: tuple[Encoder, ...] = (BiLSTM(3), GRU(3), Convolution(2, (1, 3)), Average(4))
GUIDES: tuple[AttentionSource | None, ...] = (
    None,
    UniformAttention(),
    RandomAttention(),
    FromModel(subject()),
    ShuffledAttention(FromModel(subject())),
    FromScores(subject(), RawAttention()),
)


@pytest.fixture(scope="module")
def batch(workspace: Workspace) -> Batch:
    return subject().restore(workspace).batch("test").rows(torch.arange(4))


def learner(encoder: Encoder, guide: AttentionSource | None, workspace: Workspace) -> AttentiveModel:
    generator = Generator().manual_seed(1)
    vectors = torch.randn(40, 6, generator=generator)
    model = Attentive(encoder, Additive()).build(BinaryClassification(), vectors, generator).double().eval()
    if guide is not None:
        impose_attention(model, guide.attention_function(model, workspace))
    return model


@torch.no_grad()
def without_one(model: AttentiveModel, batch: Batch, row: int, unit: int) -> Tensor:
    """The logits of one text from which one unit was taken, read alone."""
    text = batch.rows(torch.tensor([row]))
    return model(text.keep_units(torch.arange(text.mask.shape[1]).unsqueeze(0) != unit)).logits[0]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: type(guide).__name__)
@pytest.mark.parametrize(
    "encoder",
    [ENCODERS[0], *(pytest.param(encoder, marks=pytest.mark.slow) for encoder in ENCODERS[1:])],
    ids=lambda encoder: type(encoder).__name__,
)
def test_leaving_one_out_reads_each_shortened_text_under_its_imposed_attention(
    encoder: Encoder, guide: AttentionSource | None, workspace: Workspace, batch: Batch
) -> None:
    model = learner(encoder, guide, workspace)
    found = LeaveOneOut("logit")(model, batch, torch.ones(4, dtype=torch.int64)).scores
    with torch.no_grad():
        whole = model(batch).logits
    for row, unit in batch.deletable_mask.nonzero().tolist():
        expected = whole[row] - without_one(model, batch, row, unit)
        # The subject that lends its attention counts in single precision.
        assert float(found[row, unit]) == pytest.approx(expected.item(), abs=1e-6)


def test_the_shortcut_refuses_a_model_whose_attention_is_imposed(workspace: Workspace, batch: Batch) -> None:
    model = learner(BiLSTM(3), UniformAttention(), workspace)
    with pytest.raises(ValueError, match="attention"):
        model.leave_one_out_logits(batch)


@pytest.mark.parametrize("method", [Occlusion(), Occlusion(1, "delete"), KernelShap(30), Lime(30)], ids=repr)
@pytest.mark.parametrize(
    "guide", [guide for guide in GUIDES if guide is not None], ids=lambda each: type(each).__name__
)
def test_one_text_under_several_uids_has_the_scores_that_each_has_alone(
    guide: AttentionSource, method: Method, workspace: Workspace, batch: Batch
) -> None:
    model = learner(BiLSTM(3), guide, workspace)
    rows = [row for row in range(len(batch)) if int(batch.lengths[row]) >= int(batch.lengths[0])]
    same = replace(batch.rows(torch.zeros(len(rows), dtype=torch.int64)), uids=tuple(batch.uids[row] for row in rows))
    target = torch.ones(len(rows), dtype=torch.int64)
    together = method(model, same, target).scores
    for row in range(len(rows)):
        alone = method(model, same.rows(torch.tensor([row])), target[:1]).scores[0]
        assert torch.allclose(together[row], alone, rtol=0, atol=1e-6)


def test_equal_words_of_a_text_are_distinguished_by_attention_imposed_by_word_number(
    workspace: Workspace, batch: Batch
) -> None:
    model = learner(Average(4), FromScores(subject(), RawAttention()), workspace)
    text = batch.rows(torch.tensor([0]))
    twice = replace(text, inputs=torch.where(text.words == 1, text.inputs[:, 1:2], text.inputs))
    assert twice.words[0, 1:3].tolist() == [0, 1]
    found = Occlusion(1, "delete", output="logit")(model, twice, torch.tensor([1])).scores[0]
    for unit in (1, 2):
        with torch.no_grad():
            expected = model(twice).logits[0] - without_one(model, twice, 0, unit)
        assert float(found[unit]) == pytest.approx(expected.item(), abs=1e-9)
    assert abs(float(found[1] - found[2])) > 1e-4


@pytest.mark.parametrize(
    "method", [KobayashiNorm(), ValueNorm(), Relevance(), StaticAttention(), LayerMix()], ids=lambda m: type(m).__name__
)
def test_methods_that_read_a_transformers_own_layers_refuse_imposed_attention(
    method: Method, workspace: Workspace
) -> None:
    model, batch = layered("bert")
    target = torch.zeros(len(batch), dtype=torch.int64)
    method(model, batch, target)
    impose_attention(model, UniformAttention().attention_function(model, workspace))
    with pytest.raises(UserError, match="attention is imposed"):
        method(model, batch, target)
    weights = RawAttention()(model, batch, target).scores
    assert all(len(set(row[real].tolist())) == 1 for row, real in zip(weights, batch.content_mask, strict=True))
