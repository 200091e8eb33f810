"""The court that knows the truth: its numbers by hand, and methods on a model whose workings are known in full."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from heedful.attributions.attention import RawAttention
from heedful.attributions.deletion import LeaveOneOut
from heedful.attributions.gradient import Gradient
from heedful.core.types import UserError
from heedful.core.workspace import Workspace
from heedful.data.truths import Known, PlantedWeights, Shortcut
from heedful.data.vectors import RandomVectors
from heedful.models.attention import Additive
from heedful.models.encoders import Average
from heedful.models.pooled import Pooled
from heedful.models.tally import Tally
from heedful.recipes.fit import Adam, Fit, Select
from heedful.recipes.subject import Subject
from heedful.trials.truth import Truth, recovered
from tests.tiny import Sentences, subject

ADDITIVE = Known("additive", train=100, dev=30, test=60)
AS_IT_IS = Fit(1, 32, Adam(rate=0.0, decay=0.0), Select())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("truth"))


def adding() -> Subject:
    return Subject(ADDITIVE, ADDITIVE.batching, Tally(), AS_IT_IS, vectors=PlantedWeights(ADDITIVE))


def test_recovery_by_hand() -> None:
    found = recovered(np.array([0.1, -5.0, 0.2, 0.3]), np.array([0.0, 1.0, 0.0, 1.0]))
    assert found["precision"] == 1.0
    assert found["auc"] == 1.0
    assert math.isnan(found["tau"])
    half = recovered(np.array([0.9, 0.1, 0.2, 0.8]), np.array([0.0, 0.0, 1.0, 1.0]))
    assert half["precision"] == 0.5
    assert half["auc"] == 0.5
    tied = recovered(np.zeros(4), np.array([1.0, 0.0, 0.0, 0.0]))
    assert tied["precision"] == 0.25
    assert tied["auc"] == 0.5


def test_where_every_word_adds_something_the_order_is_judged_and_the_heaviest_three_are_looked_for() -> None:
    truth = np.array([3.0, -2.0, 1.0, -0.5, 0.1])
    assert recovered(truth, truth)["signed_tau"] == pytest.approx(1.0)
    reverse = recovered(-truth, truth)
    assert (reverse["signed_tau"], reverse["tau"], reverse["precision"]) == pytest.approx((-1.0, 1.0, 1.0))
    assert recovered(np.array([0.0, 0.1, 0.2, 3.0, 4.0]), truth)["precision"] == pytest.approx(1 / 3)


def test_the_tally_is_the_sum_of_the_words_own_weights(workspace: Workspace) -> None:
    trained = adding().restore(workspace)
    batch = trained.batch("test")
    logits = trained.model(batch).logits[:, 0]
    truth = torch.tensor([sum(example.truth or ()) for example in trained.examples("test")])
    torch.testing.assert_close(logits.detach(), truth, atol=1e-5, rtol=0)


def test_slopes_and_deletions_recover_what_each_word_adds_and_random_scores_do_not(workspace: Workspace) -> None:
    methods = (Gradient(), LeaveOneOut(output="logit"), RawAttention())
    table = workspace.get(Truth(adding(), methods)).table
    summary = Truth.summary(table)
    names = [name.removeprefix("tau.") for name in summary if name.startswith("tau.")]
    assert summary[f"tau.{names[0]}"] > 0.99
    assert summary[f"signed_tau.{names[0]}"] > 0.99
    assert summary[f"tau.{names[1]}"] > 0.99
    assert abs(summary["tau.random"]) < 0.15
    assert "random" not in Truth.reading(summary).split("Better than chance")[1].split(".")[0]


def test_texts_whose_telling_word_is_not_used_do_not_count(workspace: Workspace) -> None:
    corpus = Shortcut(Sentences(80))
    base = replace(subject(epochs=6), corpus=corpus, model=Pooled(Average(8), Additive()), vectors=RandomVectors(8))
    table = workspace.get(Truth(base, (Gradient(),))).table
    summary = Truth.summary(table)
    # The sentences have two telling words of their own, so that some texts are decided by those.
    assert 0 < summary["used"] <= summary["n"] == 80
    assert summary["precision.gradient"] > summary["precision.random"] + 0.3


def test_without_a_known_truth_there_is_no_trial(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="truth about these texts is not known"):
        workspace.get(Truth(subject(), (Gradient(),)))
    with pytest.raises(UserError, match="at least one method"):
        Truth(subject(), ())
