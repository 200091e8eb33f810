"""Objectives: losses of adversaries by hand, stored predictions, warm starts and epoch selection."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from heedful.data.words import Words
from heedful.measures.divergence import AttentionDistance, jensen_shannon, kullback_leibler, total_variation
from heedful.models.attentive import Additive, Attentive, AttentiveModel
from heedful.models.encoders import GRU, Average, BiLSTM, Encoder
from heedful.store.workspace import Workspace
from heedful.tasks import Regression
from heedful.training.objectives import AdversarialTraining, TrainedAdversary, adversary_distance, class_weights
from heedful.training.predictions import BatchPredictions, Predictions, load_predictor
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.types import Batch, UserError
from tests.networks import TinyTransformer
from tests.tiny import Sentences, subject

BY_DECEPTION = Training(3, 8, Adam(lr=0.02), EpochSelection(metric="deception"))


def adversary(base: TrainedModel, objective: AdversarialTraining | TrainedAdversary, *, seed: int = 1) -> TrainedModel:
    return replace(base, seed=seed, objective=objective, training=BY_DECEPTION)


def test_stored_predictions_are_those_of_the_model_in_any_batch(workspace: Workspace) -> None:
    base = subject()
    trained = base.restore(workspace)
    ask = load_predictor(base, "train", workspace)
    batch = trained.batch("train").rows(torch.tensor([7, 3, 30]))
    with torch.no_grad():
        trace = trained.model(batch)
    predictions = ask(batch)
    assert predictions.attention.shape == trace.attention.shape
    torch.testing.assert_close(predictions.attention, trace.attention, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        predictions.probabilities, trained.model.task.probabilities(trace.logits), atol=1e-6, rtol=0
    )
    assert workspace.has(Predictions(base, "train"))


def test_losses_by_hand() -> None:
    distance = (
        torch.tensor([0.3, 0.0]),
        AttentionDistance(kl=torch.tensor([2.0, 1.0]), jsd=torch.tensor([0.384349, 0.0])),
    )
    base = subject()
    assert AdversarialTraining(base, kl_weight=0.01).example_losses(*distance).tolist() == pytest.approx(
        [0.15 - 0.02, -0.01]
    )
    assert TrainedAdversary(base).example_losses(*distance).tolist() == pytest.approx(
        [0.3 - 0.384349 / math.log(2), 0.0]
    )


def test_the_loss_is_the_sum_over_instances_of_half_the_variation_minus_lambda_kl(workspace: Workspace) -> None:
    base = subject()
    other = replace(base, seed=5).restore(workspace)
    batch = other.batch("train").rows(torch.arange(6))
    objective = AdversarialTraining(base, kl_weight=0.05)
    losses = objective.loss(other.batch("train"), other.model.task, workspace)(other.model, batch)
    trained = base.restore(workspace).model
    for row in range(6):
        one = batch.rows(torch.tensor([row]))
        mine, theirs = other.model(one), trained(one)
        task = other.model.task
        variation = total_variation(task.probabilities(mine.logits), task.probabilities(theirs.logits))
        kl = kullback_leibler(mine.attention[:, 0, 0, 0], theirs.attention[:, 0, 0, 0])
        assert losses[row].item() == pytest.approx((0.5 * variation - 0.05 * kl).item(), abs=1e-5)


def test_at_the_base_with_lambda_0_loss_and_gradient_are_zero(workspace: Workspace) -> None:
    base = subject()
    trained = base.restore(workspace)
    train = trained.batch("train")
    loss = (
        AdversarialTraining(base, kl_weight=0.0).loss(train, trained.model.task, workspace)(trained.model, train).sum()
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss) == pytest.approx(0.0, abs=1e-5)
    # Stored answers differ from fresh ones by rounding, so that the sign of a difference near 1e-8 may show: float64
    # would be exactly zero. Far from the base the same gradient is of order one.
    double = trained.model.double()
    with torch.no_grad():
        trace = double(train)
    double.zero_grad()
    predictions = BatchPredictions(double.task.probabilities(trace.logits), trace.attention)
    exact = (
        AdversarialTraining(base, kl_weight=0.0)
        .example_losses(*adversary_distance(double.task, double(train), predictions, train.mask))
        .sum()
    )
    exact.backward()  # type: ignore[no-untyped-call]
    assert float(exact) == 0.0
    assert all(p.grad is None or float(p.grad.abs().max()) == 0.0 for p in double.parameters())


def test_rescaling_multiplies_each_batch_by_its_class_weights(workspace: Workspace) -> None:
    base = subject()
    other = replace(base, seed=5).restore(workspace)
    train = other.batch("train")
    batch = train.rows(torch.arange(5))
    plain, rescaled = (
        AdversarialTraining(base, kl_weight=0.01, rescale_by_class_weights=flag).loss(
            train, other.model.task, workspace
        )(other.model, batch)
        for flag in (False, True)
    )
    weights = class_weights(train, other.model.task)
    assert weights is not None
    assert batch.labels is not None
    torch.testing.assert_close(rescaled, plain * weights[batch.labels].sum().float())


@pytest.mark.slow
def test_an_adversary_is_farther_from_its_base_than_another_seed(workspace: Workspace) -> None:
    base = subject(count=80, epochs=5)
    rival = replace(adversary(base, TrainedAdversary(base)), training=replace(BY_DECEPTION, epochs=8, reduction="mean"))
    scores = workspace.get(rival).notes["scores"]
    assert isinstance(scores, dict)
    test = scores["test"]
    assert isinstance(test, dict)
    honest = replace(base, seed=1)
    ask, other = load_predictor(base, "test", workspace), load_predictor(honest, "test", workspace)
    batch = base.restore(workspace).batch("test")
    between_seeds = float(jensen_shannon(ask(batch).attention, other(batch).attention).mean())
    assert float(str(test["jsd"])) > between_seeds + 0.1
    assert float(str(test["deception"])) == pytest.approx(
        float(str(test["jsd"])) / math.log(2) - 2 * float(str(test["tvd"])), abs=1e-6
    )


def test_the_epoch_with_the_largest_deception_is_kept(workspace: Workspace) -> None:
    base = subject()
    artefact = workspace.get(adversary(base, AdversarialTraining(base, kl_weight=0.1)))
    history = artefact.table
    assert artefact.notes["best_epoch"] == 1 + history["deception"].tolist().index(history["deception"].max())


def test_the_epoch_of_lowest_training_loss_can_be_kept(workspace: Workspace) -> None:
    base = subject()
    by_loss = replace(BY_DECEPTION, selection=EpochSelection(metric="training_loss"))
    artefact = workspace.get(replace(adversary(base, AdversarialTraining(base, kl_weight=0.1)), training=by_loss))
    losses = artefact.table["loss"].tolist()
    assert artefact.notes["best_epoch"] == 1 + losses.index(min(losses))


def test_a_warm_start_copies_everything_but_the_attention(workspace: Workspace) -> None:
    base = subject()
    weights = workspace.get(base).tensors
    model = base.restore(workspace).model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    AdversarialTraining(base, "base").prepare_model(model, workspace)
    assert isinstance(model, AttentiveModel)
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]) == (not name.startswith("attention.")), name


def test_a_warm_start_does_not_undo_training_when_the_adversary_is_loaded_again(workspace: Workspace) -> None:
    base = subject()
    warm = adversary(base, AdversarialTraining(base, "base", kl_weight=0.1))
    kept = workspace.get(warm).tensors
    for name, value in warm.restore(workspace).model.state_dict().items():
        assert torch.equal(value, kept[name])


@pytest.mark.slow
def test_adversaries_of_one_seed_are_bit_identical_and_of_two_seeds_differ(tmp_path: Path) -> None:
    base = subject()
    one, again = (Workspace(tmp_path / name).get(adversary(base, TrainedAdversary(base))) for name in "ab")
    other = Workspace(tmp_path / "a").get(adversary(base, TrainedAdversary(base), seed=2))
    assert all(torch.equal(one.tensors[name], again.tensors[name]) for name in one.tensors)
    assert any(not torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


@pytest.mark.slow
def test_a_transformer_with_several_heads_has_an_adversary(workspace: Workspace) -> None:
    plan = TinyTransformer(layers=1, heads=2, width=8, vocab_size=40, max_positions=16)
    base = replace(subject(count=24), architecture=plan, embeddings=None)
    scores = workspace.get(adversary(base, TrainedAdversary(base))).notes["scores"]
    assert isinstance(scores, dict)
    test = scores["test"]
    assert isinstance(test, dict)
    assert 0 < float(str(test["jsd"])) <= math.log(2)


def test_regression_has_no_adversary(workspace: Workspace) -> None:
    base = subject()
    train: Batch = base.restore(workspace).batch("train")
    with pytest.raises(UserError, match="classifiers"):
        TrainedAdversary(base).loss(train, Regression(), workspace)


@pytest.mark.parametrize(
    ("own", "base", "words"),
    [
        (BiLSTM(4), GRU(4), "has another shape"),
        (BiLSTM(4), Average(8), r"only the adversary has encoders\.0\.\S+$"),
        (Average(8), BiLSTM(4), r"only the base has encoders\.0\.\S+$"),
    ],
)
def test_a_warm_start_from_another_architecture_is_refused(
    own: Encoder, base: Encoder, words: str, workspace: Workspace
) -> None:
    other = replace(subject(), architecture=Attentive(base, Additive()))
    model = replace(subject(), architecture=Attentive(own, Additive())).restore(workspace).model
    with pytest.raises(UserError, match=f"a warm start needs the base's architecture; .*{words}"):
        AdversarialTraining(other, "base").prepare_model(model, workspace)


def test_a_warm_start_from_a_part_of_the_weights_is_refused(workspace: Workspace) -> None:
    base = subject()
    model = base.restore(workspace).model
    model.register_parameter("more", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(UserError, match=r"only the adversary has more$"):
        AdversarialTraining(base, "base").prepare_model(model, workspace)


def test_an_adversary_needs_the_corpus_and_tokenization_of_its_base() -> None:
    base = subject()
    with pytest.raises(UserError, match="another corpus"):
        replace(base, corpus=Sentences(41), objective=TrainedAdversary(base))
    with pytest.raises(UserError, match="another tokenization"):
        replace(base, tokenization=Words(lowercase=True), objective=AdversarialTraining(base))
