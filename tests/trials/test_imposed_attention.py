"""Is attention needed: both arms from the same seeds, Student's interval by hand, and a verdict for each case."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from scipy import stats

from heedful.figures import Bars
from heedful.report.charts import svg
from heedful.runner import topological_order
from heedful.store.workspace import Workspace
from heedful.tasks import MulticlassClassification, Regression
from heedful.training.attention_sources import UniformAttention
from heedful.training.objectives import ImposedAttention, Supervised
from heedful.training.trained_model import TrainedModel
from heedful.trials.imposed_attention import UniformBaseline, paired_seed_difference
from heedful.types import Splits, Task, UserError
from tests.tiny import Sentences, subject

T_4 = 2.7764451051977987
"""The .975 quantile of Student's t with four degrees of freedom, from a printed table: 2.776."""


@dataclass(frozen=True)
class Otherwise(Sentences):
    """The same sentences, asked for one of three classes or for a number."""

    task: Task = MulticlassClassification(3)

    def read(self, data: Path) -> Splits:
        found = super().read(data)
        number = isinstance(self.task, Regression)
        train, dev, test = (
            tuple(replace(e, label=float(e.label or 0) + 0.5 if number else e.label) for e in found[split])
            for split in ("train", "dev", "test")
        )
        return Splits(self.task, () if number else ("a", "b", "c"), train, dev, test)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


def table(learned: list[float], uniform: list[float], margin: float = 0.01) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "seed": range(len(learned)),
            "margin": margin,
            "accuracy.learned": learned,
            "f1.learned": learned,
            "accuracy.uniform": uniform,
            "f1.uniform": uniform,
        }
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
    assert artefact.table["seed"].tolist() == [0, 1]
    assert artefact.notes["n"] == artefact.notes["of"] == 40
    for need, (place, arm) in zip(
        quick().dependencies, [(0, "learned"), (1, "learned"), (0, "uniform"), (1, "uniform")], strict=True
    ):
        scores = workspace.get(need).notes["scores"]
        assert isinstance(scores, dict)
        assert isinstance(scores["test"], dict)
        for name, value in scores["test"].items():
            assert artefact.table[f"{name}.{arm}"][place] == value


def test_the_uniform_arm_attends_uniformly(workspace: Workspace) -> None:
    last = quick().dependencies[-1]
    assert isinstance(last, TrainedModel)
    trained = last.restore(workspace)
    batch = trained.batch("test")
    attention = trained.model(batch).attention[:, 0, 0, 0]
    assert torch.allclose(attention, batch.content_mask / batch.content_mask.sum(1, keepdim=True))


def test_the_interval_is_students_over_paired_seeds() -> None:
    learned, uniform = [0.80, 0.82, 0.84, 0.81, 0.83], [0.79, 0.80, 0.81, 0.81, 0.79]
    summary = UniformBaseline.flat_summary(table(learned, uniform))
    # Differences .01, .02, .03, .00, .04: mean .02, squared deviations sum to .001, deviation sqrt(.001 / 4).
    half = T_4 * math.sqrt(0.001 / 4) / math.sqrt(5)
    assert summary["difference"] == pytest.approx(0.02)
    assert summary["low"] == pytest.approx(0.02 - half)
    assert summary["high"] == pytest.approx(0.02 + half)
    paired = [one - other for one, other in zip(learned, uniform, strict=True)]
    low, high = stats.t.interval(0.95, 4, loc=0.02, scale=stats.sem(paired))
    assert [summary["low"], summary["high"]] == pytest.approx([low, high])
    assert summary["f1.learned"] == pytest.approx(0.82)
    assert summary["deviation.learned"] == pytest.approx(math.sqrt(0.001 / 4))
    assert summary["f1.uniform"] == pytest.approx(0.80)


def test_the_order_of_rows_does_not_matter_because_seeds_are_paired() -> None:
    rows = table([0.8, 0.9, 0.7], [0.7, 0.9, 0.6])
    assert UniformBaseline.flat_summary(rows) == UniformBaseline.flat_summary(rows.iloc[::-1])


@pytest.mark.parametrize(
    ("gains", "verdict", "words"),
    [
        ([0.050, 0.052, 0.054], "helps", "Attention helps."),
        ([0.004, 0.005, 0.006], "helps", "Attention helps, if by less than 0.01."),
        ([-0.001, 0.000, 0.001], "does_not_help", "a gain of 0.01 or more can be ruled out."),
        ([0.0, 0.0, 0.0], "does_not_help", "Attention does not help"),
        ([-0.050, -0.052, -0.054], "does_not_help", "the model is better without it."),
        ([-0.05, 0.01, 0.09], "undecided", "Undecided: no gain is possible, and so is one of 0.01 or more; train more"),
        ([0.05], "undecided", "with fewer than two seeds nothing is known about chance; train more seeds."),
    ],
)
def test_the_verdict_follows_from_the_interval(gains: list[float], verdict: str, words: str) -> None:
    summary = UniformBaseline.flat_summary(table([0.5 + gain for gain in gains], [0.5] * len(gains)))
    verdicts = ("helps", "does_not_help", "undecided")
    assert {name: summary[name] for name in verdicts} == {name: float(name == verdict) for name in verdicts}
    assert words in UniformBaseline.flat_interpretation(summary)
    assert "F1 of class 1" in UniformBaseline.flat_interpretation(summary)


def test_the_margin_decides_what_counts_as_help() -> None:
    gains = [0.5, 0.52, 0.48]
    assert UniformBaseline.flat_summary(table(gains, [0.5] * 3, margin=0.06))["does_not_help"] == 1
    assert UniformBaseline.flat_summary(table(gains, [0.5] * 3, margin=0.03))["undecided"] == 1


def test_pairs_with_an_undefined_score_are_left_out() -> None:
    found = paired_seed_difference([0.5, math.nan, 0.7], [0.4, 0.4, 0.4])
    assert found == paired_seed_difference([0.5, 0.7], [0.4, 0.4])
    assert found.mean == pytest.approx(0.2)
    assert math.isnan(paired_seed_difference([math.nan], [0.4]).mean)


@pytest.mark.parametrize(
    ("task", "score"), [(MulticlassClassification(3), "accuracy"), (Regression(), "correlation with the truth")]
)
def test_other_tasks_are_decided_by_their_own_score(task: Task, score: str, workspace: Workspace) -> None:
    trial = UniformBaseline(replace(subject(epochs=2), corpus=Otherwise(task=task)), (0, 1))
    artefact = workspace.get(trial)
    summary = UniformBaseline.flat_summary(artefact.table)
    assert score in UniformBaseline.flat_interpretation(summary)
    assert artefact.notes["n"] == 40
    name = "accuracy" if isinstance(task, MulticlassClassification) else "pearson"
    gain = artefact.table[f"{name}.learned"] - artefact.table[f"{name}.uniform"]
    assert summary["difference"] == pytest.approx(gain.mean(), nan_ok=True)


def test_the_figure_has_both_arms_with_their_deviations() -> None:
    (figure,) = UniformBaseline.figures(table([0.8, 0.9], [0.7, 0.7]))
    assert isinstance(figure, Bars)
    assert figure.labels == ("accuracy", "F1 of class 1")
    assert figure.series[0].values == pytest.approx((0.85, 0.85))
    assert figure.errors[0].values == pytest.approx((0.1 / math.sqrt(2),) * 2)
    assert figure.errors[1].values == (0.0, 0.0)
    assert svg(figure).startswith("<svg")


def test_equal_recipes_give_equal_tables(workspace: Workspace, tmp_path: Path) -> None:
    again = Workspace(tmp_path, batch_size=7).get(quick()).table
    pd.testing.assert_frame_equal(workspace.get(quick()).table, again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": ()}, "at least one seed"),
        ({"seeds": (1, 1)}, "a seed stands twice"),
        ({"margin": -0.1}, "cannot be negative"),
    ],
)
def test_nonsense_is_refused(change: dict[str, tuple[int, ...] | float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(quick(), **change)  # type: ignore[arg-type]


def test_a_subject_whose_attention_is_given_cannot_be_the_learned_arm() -> None:
    with pytest.raises(UserError, match="no objective to compare guides on"):
        UniformBaseline(replace(subject(), objective=ImposedAttention(UniformAttention())))
