"""Adversarial attention as an explanation: the trial's own adversary, put back in, and brute force on a sum."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Generator, Tensor

from heedful.attributions.attention import RawAttention
from heedful.measures.divergence import jensen_shannon
from heedful.models.bag_of_words import LinearBagOfWords, WordWeightSum, random_texts
from heedful.models.transformer import TinyTransformer
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.trials.adversarial_attention import AdversarialAttention, AdversarialWeights, adversarial_methods
from heedful.types import Batch, UserError
from tests.networks import batch_of, tiny
from tests.tiny import subject


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


def test_its_scores_are_the_adversary_of_the_trial_and_keep_the_prediction(workspace: Workspace) -> None:
    trained = subject(epochs=6).restore(workspace)
    model, batch = trained.model.eval(), trained.batch("test")
    found = AdversarialWeights()(model, batch, torch.zeros(len(batch), dtype=torch.int64))
    table = workspace.get(AdversarialAttention(subject(epochs=6))).table
    told = dict(zip(table["uid"], table["adversary"], strict=True))
    for row, uid in enumerate(batch.uids):
        assert found.scores[row, batch.content_mask[row]].tolist() == pytest.approx(list(told[uid]), abs=1e-6)
    weights = found.scores[:, None, None, None].float()
    before, after = (model.task.probabilities(model(batch, **given).logits) for given in ({}, {"attention": weights}))
    assert float((before - after).abs().amax().detach()) <= 0.05 + 1e-5
    own = RawAttention()(model, batch, torch.zeros(len(batch), dtype=torch.int64)).scores
    assert float((found.scores - own).abs().sum(1).min()) > 0.1


def sums() -> tuple[LinearBagOfWords, Batch]:
    table = torch.randn(60, 1, generator=Generator().manual_seed(1))
    return WordWeightSum().build(BinaryClassification(), table, Generator()), random_texts((5, 7, 3), seed=2)


def probability(model: LinearBagOfWords, batch: Batch, attention: Tensor) -> Tensor:
    return torch.sigmoid(model(batch, attention=attention[:, None, None, None]).logits[:, 0]).detach()


def test_for_a_model_that_adds_no_mix_of_two_words_that_keeps_the_prediction_is_farther() -> None:
    model, batch = sums()
    found = AdversarialWeights()(model, batch, torch.zeros(3, dtype=torch.int64)).scores
    own = model(batch).attention[:, 0, 0, 0].double()
    before = probability(model, batch, own.float())
    assert (probability(model, batch, found.float()) - before).abs().max() <= 0.05 + 1e-5
    for row in range(3):
        units = batch.content_mask[row].nonzero().flatten().tolist()
        best = 0.0
        for one, other in combinations(units, 2):
            shares = torch.linspace(0, 1, 201)
            mixes = torch.zeros(201, batch.mask.shape[1])
            mixes[:, one], mixes[:, other] = shares, 1 - shares
            texts = batch.rows(torch.full((201,), row))
            mixes = mixes[:, : texts.mask.shape[1]]
            kept = (probability(model, texts, mixes) - before[row]).abs() <= 0.05
            far = jensen_shannon(mixes.double(), own[row, : mixes.shape[1]].expand(201, -1))
            best = max(best, float(far[kept].max())) if kept.any() else best
        reached = float(jensen_shannon(found[row], own[row]))
        assert best <= reached + 1e-9
        assert reached == pytest.approx(best, abs=0.01)


def test_a_transformer_has_none() -> None:
    assert adversarial_methods(TinyTransformer()) == ()
    assert (
        adversarial_methods(WordWeightSum()) == adversarial_methods(subject().architecture) == (AdversarialWeights(),)
    )
    with pytest.raises(UserError, match="attentive model"):
        AdversarialWeights()(tiny("bert"), batch_of("bert"), torch.zeros(3, dtype=torch.int64))
