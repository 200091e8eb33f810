"""Guided MLP: every arm from the same seeds, gains over uniform weights by hand, and nulls that must gain nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from heedful.attributions.attention import RawAttention
from heedful.data.tokenization import Words
from heedful.figures import Bars
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Perceptron
from heedful.report.charts import svg
from heedful.runner import topological_order
from heedful.store.workspace import Workspace
from heedful.training.attention_sources import (
    AttentionFunction,
    AttentionSource,
    FromModel,
    FromScores,
    RandomAttention,
    ShuffledAttention,
    UniformAttention,
)
from heedful.training.attribution_tables import AttributionTable
from heedful.training.objectives import ImposedAttention
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, Training
from heedful.trials.imposed_attention import GuidedModel
from heedful.types import SPLITS, Batch, Model, UserError
from tests.tiny import Sentences, subject

LEARNER = replace(subject(), architecture=Attentive(Perceptron(4), Additive()))


@dataclass(frozen=True)
class Telling(AttentionSource):
    """Planted truth: all the weight on the word that decides the class."""

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """One on good and bad."""
        splits = Sentences(200).read(Path("unused"))
        vocabulary = Words().fit(splits.train).vocabulary
        telling = torch.tensor([vocabulary.index("good"), vocabulary.index("bad")])

        def told(batch: Batch) -> Tensor:
            return torch.isin(batch.inputs, telling).float()[:, None, None, None]

        return told


def guided() -> GuidedModel:
    guides = (
        ("base", FromModel(subject())),
        ("scores", FromScores(subject(), RawAttention())),
        ("shuffled", ShuffledAttention(FromModel(subject()))),
        ("scattered", RandomAttention()),
    )
    return GuidedModel(LEARNER, guides, seeds=(0, 1))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


def table() -> pd.DataFrame:
    """Three seeds; the base gains .02, .03 and .04, the null -.01, .00 and .01, own attention loses."""
    scores = {
        "uniform": [0.80, 0.82, 0.81],
        "trained": [0.70, 0.72, 0.72],
        "base": [0.82, 0.85, 0.85],
        "shuffled": [0.79, 0.82, 0.82],
    }
    return pd.DataFrame(
        [
            {"guide": guide, "seed": seed, "null": guide == "shuffled", "silent": 0, "accuracy": f1, "f1": f1}
            for guide, values in scores.items()
            for seed, f1 in enumerate(values)
        ]
    )


def test_uniform_and_the_models_own_attention_are_always_there() -> None:
    arms = guided().arms
    assert list(arms) == ["uniform", "trained", "base", "scores", "shuffled", "scattered"]
    assert arms["uniform"] == UniformAttention()
    assert arms["trained"] is None
    assert list(replace(guided(), guides=(("uniform", UniformAttention()),)).arms) == ["uniform", "trained"]


def test_each_arm_is_the_learner_under_its_guide_from_each_seed() -> None:
    needs = guided().dependencies
    assert len(needs) == 6 * 2
    assert needs[0] == replace(LEARNER, objective=ImposedAttention(UniformAttention()))
    assert needs[3] == replace(LEARNER, seed=1)
    assert needs[5] == replace(LEARNER, seed=1, objective=ImposedAttention(FromModel(subject())))


def test_what_guides_need_is_made_before_the_trainings_under_them() -> None:
    plan = topological_order([guided()])
    assert {need.split for need in plan if isinstance(need, AttributionTable)} == set(SPLITS)
    last = max(plan.index(AttributionTable(subject(), RawAttention(), split)) for split in SPLITS)
    under = replace(LEARNER, objective=ImposedAttention(FromScores(subject(), RawAttention())))
    assert plan.index(subject()) < last < plan.index(under) < plan.index(guided())


def test_the_table_has_the_scores_that_the_trainings_wrote_down(workspace: Workspace) -> None:
    artefact = workspace.get(guided())
    assert len(artefact.table) == 12
    assert artefact.notes["n"] == artefact.notes["of"] == 40
    assert artefact.notes["about"] == LEARNER.about
    for row, need in zip(artefact.table.to_dict("records"), guided().dependencies, strict=True):
        assert isinstance(need, TrainedModel)
        assert row["seed"] == need.seed
        scores = workspace.get(need).notes["scores"]
        assert isinstance(scores, dict)
        assert isinstance(scores["test"], dict)
        assert {name: row[name] for name in scores["test"]} == scores["test"]
    nulls = artefact.table.groupby("guide")["null"].max()
    assert set(nulls[nulls].index) == {"shuffled", "scattered"}


def test_gains_are_paired_with_uniform_by_seed() -> None:
    summary = GuidedModel.flat_summary(table())
    assert summary["f1.base"] == pytest.approx(0.84)
    assert summary["deviation.base"] == pytest.approx(math.sqrt(0.0006 / 2))
    assert summary["difference.base"] == pytest.approx(0.03)
    # Student's t with two degrees of freedom: 4.3027; the gains deviate by .01.
    half = 4.302652729911275 * 0.01 / math.sqrt(3)
    assert summary["low.base"] == pytest.approx(0.03 - half)
    assert summary["high.base"] == pytest.approx(0.03 + half)
    assert "difference.uniform" not in summary
    assert (summary["null.shuffled"], summary["null.base"]) == (1, 0)
    assert GuidedModel.flat_summary(table().sample(frac=1, random_state=3)) == pytest.approx(summary)


def test_each_guide_gets_a_verdict_and_nulls_are_named() -> None:
    reading = GuidedModel.flat_interpretation(GuidedModel.flat_summary(table()))
    assert "With all words alike its F1 of class 1 is 0.810." in reading
    assert "base helps: +0.030 (95 % interval +0.005 to +0.055)." in reading
    assert "Its own trained attention harms: -0.097" in reading
    assert "shuffled (which knows nothing) cannot be told from uniform weights: +0.000" in reading
    assert "no evidence" not in reading
    assert reading.index("base helps") < reading.index("shuffled (which")


def test_a_null_that_helps_takes_away_the_evidence() -> None:
    rows = table()
    rows.loc[rows["guide"] == "shuffled", "f1"] += 0.1
    assert "A guide that knows nothing helps here" in GuidedModel.flat_interpretation(GuidedModel.flat_summary(rows))


def test_texts_without_scores_are_told() -> None:
    rows = table()
    rows.loc[rows["guide"] == "base", "silent"] = 7
    assert "base had nothing to say about 7 texts" in GuidedModel.flat_interpretation(GuidedModel.flat_summary(rows))


def test_one_seed_decides_nothing() -> None:
    reading = GuidedModel.flat_interpretation(GuidedModel.flat_summary(table().query("seed == 0")))
    assert "base: +0.020, undecided with fewer than two seeds; train more." in reading


def test_the_figure_has_a_bar_for_each_guide_with_its_deviation() -> None:
    (figure,) = GuidedModel.figures(table())
    assert isinstance(figure, Bars)
    assert figure.labels == ("uniform", "trained", "base", "shuffled")
    assert figure.series[0].values == pytest.approx((0.81, 2.14 / 3, 0.84, 0.81))
    assert figure.errors[0].values[0] == pytest.approx(0.01)
    assert svg(figure).startswith("<svg")


def test_weights_that_tell_help_and_weights_that_know_nothing_do_not(workspace: Workspace) -> None:
    # Three epochs: with all words alike the model has not yet found all the telling ones.
    learner = replace(LEARNER, corpus=Sentences(200), training=Training(3, 16, Adam(lr=0.01)))
    guides = (("telling", Telling()), ("shuffled", ShuffledAttention(Telling())), ("scattered", RandomAttention()))
    found = workspace.get(GuidedModel(learner, guides, seeds=(0, 1, 2))).table
    by_seed = found.pivot(index="seed", columns="guide", values="f1")
    assert by_seed["telling"].tolist() == [1.0, 1.0, 1.0]
    assert (by_seed["uniform"] < 0.95).all()
    summary = GuidedModel.flat_summary(found)
    # The specification's control: nulls do not beat uniform weights by more than .01.
    assert summary["difference.shuffled"] <= 0.01
    assert summary["difference.scattered"] <= 0.01


def test_equal_recipes_give_equal_tables(workspace: Workspace, tmp_path: Path) -> None:
    again = Workspace(tmp_path, batch_size=7).get(guided()).table
    found = workspace.get(guided()).table
    # Scores stored at another batch size may differ in their last bits, and with them everything trained on them.
    exact = found["guide"].isin(["uniform", "trained", "scattered"])
    pd.testing.assert_frame_equal(found[exact], again[exact])
    assert found["accuracy"].tolist() == pytest.approx(again["accuracy"].tolist(), abs=0.051)


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (lambda: GuidedModel(subject(), ()), "sees each word by itself"),
        (lambda: GuidedModel(LEARNER, (("trained", UniformAttention()),)), "none the name 'trained'"),
        (lambda: GuidedModel(LEARNER, (("a", UniformAttention()), ("a", RandomAttention()))), "a name of its own"),
        (lambda: GuidedModel(LEARNER, (("uniform", RandomAttention()),)), "must be Uniform"),
        (lambda: GuidedModel(LEARNER, (), ()), "at least one seed"),
        (
            lambda: GuidedModel(replace(LEARNER, objective=ImposedAttention(UniformAttention())), ()),
            "no objective to compare guides on",
        ),
        (lambda: GuidedModel(LEARNER, (("b", FromModel(subject(count=50))),)), "'b' was trained on another corpus"),
        (
            lambda: GuidedModel(
                LEARNER, (("b", ShuffledAttention(FromModel(replace(subject(), tokenization=Words(lowercase=True))))),)
            ),
            "'b' lends attention over other units",
        ),
    ],
)
def test_nonsense_is_refused_before_anything_is_trained(trial: object, message: str) -> None:
    assert callable(trial)
    with pytest.raises(UserError, match=message):
        trial()
