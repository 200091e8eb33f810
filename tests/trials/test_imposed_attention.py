"""Imposed attention: paired arms, Student's interval by hand, a verdict for each case, guides and controls."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor

from heedful.attributions.attention import RawAttention
from heedful.data.words import Words
from heedful.execution.runner import topological_order
from heedful.figures import Bars
from heedful.measures.intervals import paired_seed_difference
from heedful.models.attentive import Additive, Attentive
from heedful.models.encoders import Perceptron
from heedful.report.charts import svg
from heedful.results import Verdict, find_statistic, value_of
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification, Regression
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
from heedful.training.objectives import ImposedAttention, Supervised
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, Training
from heedful.trials.imposed_attention import GuidedModel, UniformBaseline
from heedful.types import SPLITS, Batch, Model, Splits, Task, UserError
from tests.tiny import Sentences, subject
from tests.trials.summaries import values

T_4 = 2.7764451051977987
"""The .975 quantile of Student's t with four degrees of freedom, from a printed table: 2.776."""


@dataclass(frozen=True)
class Otherwise(Sentences):
    """The same sentences, labelled with one of three classes or a number."""

    task: Task = MulticlassClassification(3)

    def read(self, data: Path) -> Splits:
        found = super().read(data)
        number = isinstance(self.task, Regression)
        train, dev, test = (
            tuple(replace(e, label=float(e.label or 0) + 0.5 if number else e.label) for e in found[split])
            for split in ("train", "dev", "test")
        )
        return Splits(self.task, () if number else ("a", "b", "c"), train, dev, test)


def table(learned: list[float], uniform: list[float], margin: float = 0.01) -> pd.DataFrame:
    arms = {"learned": learned, "uniform": uniform}
    return pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "margin": margin, "accuracy": score, "f1": score}
            for arm, scores in arms.items()
            for seed, score in enumerate(scores)
        ]
    )


def quick(seeds: tuple[int, ...] = (0, 1)) -> UniformBaseline:
    return UniformBaseline(subject(epochs=2), seeds)


def test_both_arms_are_trained_from_the_same_seeds_and_differ_in_attention_alone() -> None:
    trial = UniformBaseline(replace(subject(seed=9), objective=Supervised(balance_classes=False)), seeds=(3, 5))
    learned = [replace(trial.subject, seed=seed) for seed in (3, 5)]
    uniform = [replace(each, objective=ImposedAttention(UniformAttention(), balance_classes=False)) for each in learned]
    assert trial.dependencies == (*learned, *uniform)
    assert topological_order([trial]) == [*learned, *uniform, trial]


def test_the_table_has_the_scores_that_the_trainings_wrote_down(workspace: Workspace) -> None:
    artefact = workspace.get(quick())
    assert artefact.notes["n"] == artefact.notes["of"] == 40
    assert artefact.table["arm"].tolist() == ["learned", "learned", "uniform", "uniform"]
    for row, need in zip(artefact.table.to_dict("records"), quick().dependencies, strict=True):
        assert isinstance(need, TrainedModel)
        assert row["seed"] == need.seed
        scores = workspace.get(need).notes["scores"]
        assert isinstance(scores, dict)
        assert isinstance(scores["test"], dict)
        assert {name: row[name] for name in scores["test"]} == scores["test"]


def test_the_uniform_arm_attends_uniformly(workspace: Workspace) -> None:
    last = quick().dependencies[-1]
    assert isinstance(last, TrainedModel)
    trained = last.restore(workspace)
    batch = trained.batch("test")
    attention = trained.model(batch).attention[:, 0, 0, 0]
    assert torch.allclose(attention, batch.content_mask / batch.content_mask.sum(1, keepdim=True))


def test_the_interval_is_students_over_paired_seeds() -> None:
    learned, uniform = [0.80, 0.82, 0.84, 0.81, 0.83], [0.79, 0.80, 0.81, 0.81, 0.79]
    summary = UniformBaseline.summary(table(learned, uniform))
    # Differences .01, .02, .03, .00, .04: mean .02, squared deviations sum to .001, deviation sqrt(.001 / 4).
    half = T_4 * math.sqrt(0.001 / 4) / math.sqrt(5)
    gain = find_statistic(summary, "difference", "learned")
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.02, 0.02 - half, 0.02 + half))
    assert gain.n == 5
    paired = [one - other for one, other in zip(learned, uniform, strict=True)]
    assert (gain.low, gain.high) == pytest.approx(stats.t.interval(0.95, 4, loc=0.02, scale=stats.sem(paired)))
    assert value_of(summary, "f1", "learned") == pytest.approx(0.82)
    assert value_of(summary, "std", "learned") == pytest.approx(math.sqrt(0.001 / 4))
    assert value_of(summary, "f1", "uniform") == pytest.approx(0.80)


def test_the_order_of_rows_does_not_matter_because_seeds_are_paired() -> None:
    rows = table([0.8, 0.9, 0.7], [0.7, 0.9, 0.6])
    assert values(UniformBaseline.summary(rows)) == pytest.approx(values(UniformBaseline.summary(rows.iloc[::-1])))


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.050, 0.052, 0.054], Verdict.SUPPORTED),
        ([0.004, 0.005, 0.006], Verdict.SUPPORTED),
        ([-0.001, 0.000, 0.001], Verdict.NOT_SUPPORTED),
        ([0.0, 0.0, 0.0], Verdict.NOT_SUPPORTED),
        ([-0.050, -0.052, -0.054], Verdict.NOT_SUPPORTED),
        ([-0.05, 0.01, 0.09], Verdict.UNDECIDED),
        ([0.05], Verdict.UNDECIDED),
    ],
)
def test_the_verdict_follows_from_the_interval(gains: list[float], verdict: Verdict) -> None:
    summary = UniformBaseline.summary(table([0.5 + gain for gain in gains], [0.5] * len(gains)))
    (finding,) = UniformBaseline.findings(summary)
    assert (finding.verdict, finding.method) == (verdict, "learned")
    assert "F1 of class 1" in UniformBaseline.interpretation(summary)


def test_the_margin_decides_what_counts_as_help() -> None:
    for margin, verdict in ((0.06, Verdict.NOT_SUPPORTED), (0.03, Verdict.UNDECIDED)):
        summary = UniformBaseline.summary(table([0.5, 0.52, 0.48], [0.5] * 3, margin=margin))
        assert UniformBaseline.findings(summary)[0].verdict is verdict


def test_pairs_with_an_undefined_score_are_left_out() -> None:
    found = paired_seed_difference([0.5, math.nan, 0.7], [0.4, 0.4, 0.4])
    assert found == paired_seed_difference([0.5, 0.7], [0.4, 0.4])
    assert found[0] == pytest.approx(0.2)
    assert math.isnan(paired_seed_difference([math.nan], [0.4])[0])


@pytest.mark.parametrize(("task", "score"), [(MulticlassClassification(3), "accuracy"), (Regression(), "correlation")])
def test_other_tasks_are_decided_by_their_own_score(task: Task, score: str, workspace: Workspace) -> None:
    trial = UniformBaseline(replace(subject(epochs=2), corpus=Otherwise(task=task)), (0, 1))
    artefact = workspace.get(trial)
    summary = UniformBaseline.summary(artefact.table)
    assert score in UniformBaseline.interpretation(summary)
    assert artefact.notes["n"] == 40
    name = "accuracy" if isinstance(task, MulticlassClassification) else "pearson"
    by_arm = artefact.table.pivot(index="seed", columns="arm", values=name)
    gain = (by_arm["learned"] - by_arm["uniform"]).mean()
    assert value_of(summary, "difference", "learned") == pytest.approx(gain, nan_ok=True)


def test_the_figure_has_both_arms_with_their_deviations() -> None:
    (figure,) = UniformBaseline.figures(table([0.8, 0.9], [0.7, 0.7]))
    assert isinstance(figure, Bars)
    assert figure.labels == ("accuracy", "F1 of class 1")
    assert figure.series[0].values == pytest.approx((0.85, 0.85))
    assert figure.errors[0].values == pytest.approx((0.1 / math.sqrt(2),) * 2)
    assert figure.errors[1].values == (0.0, 0.0)
    assert svg(figure).startswith("<svg")


@pytest.mark.slow
def test_equal_recipes_give_equal_tables(workspace: Workspace, tmp_path: Path) -> None:
    again = Workspace(tmp_path, batch_size=7).get(quick()).table
    pd.testing.assert_frame_equal(workspace.get(quick()).table, again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": ()}, "at least one seed"),
        ({"seeds": (1, 1)}, "duplicate seed"),
    ],
)
def test_nonsense_is_refused(change: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(quick(), **change)  # type: ignore[arg-type]


def test_a_subject_whose_attention_is_given_cannot_be_the_learned_arm() -> None:
    with pytest.raises(UserError, match="cannot be imposed"):
        UniformBaseline(replace(subject(), objective=ImposedAttention(UniformAttention())))


LEARNER = replace(subject(), architecture=Attentive(Perceptron(4), Additive()))


@dataclass(frozen=True)
class DecidingWord(AttentionSource):
    """Planted truth: all the weight on the word that decides the class."""

    def attention_function(self, model: Model, workspace: Workspace) -> AttentionFunction:
        """One on good and bad."""
        splits = Sentences(200).read(Path("unused"))
        vocabulary = Words().fit(splits.train).vocabulary
        deciding = torch.tensor([vocabulary.index("good"), vocabulary.index("bad")])

        def attention(batch: Batch) -> Tensor:
            return torch.isin(batch.inputs, deciding).float()[:, None, None, None]

        return attention


def guided() -> GuidedModel:
    guides = (
        ("base", FromModel(subject())),
        ("scores", FromScores(subject(), RawAttention())),
        ("shuffled", ShuffledAttention(FromModel(subject()))),
        ("scattered", RandomAttention()),
    )
    return GuidedModel(LEARNER, guides, seeds=(0, 1))


def guided_table() -> pd.DataFrame:
    """Three seeds; the base gains .02, .03 and .04, the control -.01, .00 and .01, own attention loses."""
    scores = {
        "uniform": [0.80, 0.82, 0.81],
        "trained": [0.70, 0.72, 0.72],
        "base": [0.82, 0.85, 0.85],
        "shuffled": [0.79, 0.82, 0.82],
    }
    return pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "control": arm == "shuffled", "uniform_fallbacks": 0, "accuracy": f1, "f1": f1}
            for arm, by_seed in scores.items()
            for seed, f1 in enumerate(by_seed)
        ]
    )


def test_uniform_and_the_models_own_attention_are_always_there() -> None:
    arms = guided().arms
    assert list(arms) == ["uniform", "trained", "base", "scores", "shuffled", "scattered"]
    assert arms["uniform"][0].objective == ImposedAttention(UniformAttention())
    assert arms["trained"] == (LEARNER, replace(LEARNER, seed=1))
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


@pytest.mark.slow
def test_the_guided_table_has_the_scores_of_the_trainings(workspace: Workspace) -> None:
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
    controls = artefact.table.groupby("arm")["control"].max()
    assert set(controls[controls].index) == {"shuffled", "scattered"}


def test_gains_are_paired_with_uniform_by_seed() -> None:
    summary = GuidedModel.summary(guided_table())
    gain = find_statistic(summary, "difference", "base")
    assert gain is not None
    # Student's t with two degrees of freedom: 4.3027; the gains deviate by .01.
    half = 4.302652729911275 * 0.01 / math.sqrt(3)
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.03, 0.03 - half, 0.03 + half))
    assert value_of(summary, "f1", "base") == pytest.approx(0.84)
    assert value_of(summary, "std", "base") == pytest.approx(math.sqrt(0.0006 / 2))
    assert find_statistic(summary, "difference", "uniform") is None
    assert summary.loc[summary["metric"] == "control", "method"].tolist() == ["shuffled"]
    shuffled = GuidedModel.summary(guided_table().sample(frac=1, random_state=3))
    assert values(shuffled) == pytest.approx(values(summary))


def test_each_attention_source_gets_a_verdict_and_controls_come_last() -> None:
    summary = GuidedModel.summary(guided_table())
    assert [(each.method, each.verdict) for each in GuidedModel.findings(summary)] == [
        ("trained", Verdict.NOT_SUPPORTED),
        ("base", Verdict.SUPPORTED),
        ("shuffled", Verdict.UNDECIDED),
    ]
    words = GuidedModel.interpretation(summary)
    assert all(part in words for part in ("0.810", "+0.030 (95 % interval +0.005 to +0.055)", "-0.097", "+0.000"))


def test_a_control_that_helps_takes_away_the_evidence() -> None:
    rows = guided_table()
    rows.loc[rows["arm"] == "shuffled", "f1"] += 0.1
    assert GuidedModel.findings(GuidedModel.summary(rows))[-1].verdict is Verdict.SUPPORTED
    warned, plain = (GuidedModel.interpretation(GuidedModel.summary(table)) for table in (rows, guided_table()))
    assert warned.count(". ") == plain.count(". ") + 1


def test_texts_without_scores_are_counted() -> None:
    rows = guided_table()
    rows.loc[rows["arm"] == "base", "uniform_fallbacks"] = 7
    summary = GuidedModel.summary(rows)
    assert value_of(summary, "uniform_fallbacks", "base") == 7
    assert "7 texts" in GuidedModel.interpretation(summary)


def test_one_seed_decides_nothing() -> None:
    findings = GuidedModel.findings(GuidedModel.summary(guided_table().query("seed == 0")))
    assert {each.verdict for each in findings} == {Verdict.UNDECIDED}


def test_the_figure_has_a_bar_for_each_guide_with_its_deviation() -> None:
    (figure,) = GuidedModel.figures(guided_table())
    assert isinstance(figure, Bars)
    assert figure.labels == ("uniform", "trained", "base", "shuffled")
    assert figure.series[0].values == pytest.approx((0.81, 2.14 / 3, 0.84, 0.81))
    assert figure.errors[0].values[0] == pytest.approx(0.01)
    assert svg(figure).startswith("<svg")


@pytest.mark.slow
def test_informative_weights_help_and_uninformative_weights_do_not(workspace: Workspace) -> None:
    # Three epochs: with all words alike the model has not yet found all the deciding ones.
    learner = replace(LEARNER, corpus=Sentences(200), training=Training(3, 16, Adam(lr=0.01)))
    guides = (
        ("telling", DecidingWord()),
        ("shuffled", ShuffledAttention(DecidingWord())),
        ("scattered", RandomAttention()),
    )
    found = workspace.get(GuidedModel(learner, guides, seeds=(0, 1, 2))).table
    by_seed = found.pivot(index="seed", columns="arm", values="f1")
    assert by_seed["telling"].tolist() == [1.0, 1.0, 1.0]
    assert (by_seed["uniform"] < 0.95).all()
    summary = GuidedModel.summary(found)
    # The specification's control: controls do not beat uniform weights by more than .01.
    assert value_of(summary, "difference", "shuffled") <= 0.01
    assert value_of(summary, "difference", "scattered") <= 0.01


@pytest.mark.slow
def test_equal_guided_recipes_give_equal_tables(workspace: Workspace, tmp_path: Path) -> None:
    again = Workspace(tmp_path, batch_size=7).get(guided()).table
    found = workspace.get(guided()).table
    # Scores stored at another batch size may differ in their last bits, and with them everything trained on them.
    exact = found["arm"].isin(["uniform", "trained", "scattered"])
    pd.testing.assert_frame_equal(found[exact], again[exact])
    assert found["accuracy"].tolist() == pytest.approx(again["accuracy"].tolist(), abs=0.051)


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (lambda: GuidedModel(subject(), ()), "token-wise"),
        (lambda: GuidedModel(LEARNER, (("trained", UniformAttention()),)), "other than 'trained'"),
        (lambda: GuidedModel(LEARNER, (("a", UniformAttention()), ("a", RandomAttention()))), "name.* a, a"),
        (lambda: GuidedModel(LEARNER, (("uniform", RandomAttention()),)), "must be UniformAttention"),
        (lambda: GuidedModel(LEARNER, (), ()), "at least one seed"),
        (
            lambda: GuidedModel(replace(LEARNER, objective=ImposedAttention(UniformAttention())), ()),
            "cannot be imposed",
        ),
        (lambda: GuidedModel(LEARNER, (("b", FromModel(subject(count=50))),)), "'b'.* corpus"),
        (
            lambda: GuidedModel(
                LEARNER, (("b", ShuffledAttention(FromModel(replace(subject(), tokenization=Words(lowercase=True))))),)
            ),
            "'b'.* tokenization",
        ),
    ],
)
def test_invalid_options_are_refused_before_anything_is_trained(trial: object, message: str) -> None:
    assert callable(trial)
    with pytest.raises(UserError, match=message):
        trial()
