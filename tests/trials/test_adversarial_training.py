"""The trade-off of trained adversaries: its points, its curve, and several adversaries side by side."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from heedful.models.transformer import SmallTransformer
from heedful.store.workspace import Workspace
from heedful.training.attention_sources import UniformAttention
from heedful.training.objectives import ImposedAttention
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.adversarial_training import AdversarialTradeoff, accuracy_and_f1, area_under_curve, pareto_frontier
from heedful.types import UserError
from tests.tiny import subject

SHORT = Training(8, 8, Adam(lr=0.02), EpochSelection(metric="deception"))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("tradeoff"))


@pytest.fixture(scope="module")
def table(workspace: Workspace) -> pd.DataFrame:
    return workspace.get(AdversarialTradeoff(subject(), (0.0, 2.0), (1, 2), adversary_training=SHORT)).table


def test_every_point_has_every_instance_once(table: pd.DataFrame) -> None:
    counts = table.groupby(["kind", "setting"])["uid"].agg(["size", "nunique"])
    assert (counts == 40).all().all()
    assert set(table["kind"]) == {"lambda", "seed", "uniform", "search", "exact"}


def test_a_larger_lambda_goes_farther(table: pd.DataFrame) -> None:
    summary = AdversarialTradeoff.flat_summary(table)
    assert summary["jsd.lambda_2"] > summary["jsd.lambda_0"] + 0.05


def test_points_are_means_over_instances_on_the_papers_scale(table: pd.DataFrame) -> None:
    summary = AdversarialTradeoff.flat_summary(table)
    rows = table[(table["kind"] == "lambda") & (table["setting"] == 2.0)]
    assert summary["jsd.lambda_2"] == pytest.approx(rows["jsd"].mean())
    assert summary["tvd.lambda_2"] == pytest.approx(rows["stvd"].mean() / 2)
    of_class = rows[rows["predicted"] == 1]
    assert summary["jsd.lambda_2.class_1"] == pytest.approx(of_class["jsd"].mean())
    hits = ((rows["answered"] == 1) & (rows["label"] == 1)).sum()
    f1 = 2 * hits / ((rows["answered"] == 1).sum() + (rows["label"] == 1).sum())
    assert summary["f1.lambda_2"] == pytest.approx(f1)


def test_free_weights_are_those_of_the_other_papers_trial(table: pd.DataFrame, workspace: Workspace) -> None:
    summary = AdversarialTradeoff.flat_summary(table)
    free = workspace.get(AdversarialAttention(subject())).table
    assert summary["jsd.exact"] == pytest.approx(free["epsilon_max"].mean())
    assert summary["jsd.exact"] >= summary["jsd.search"] - 1e-9
    assert summary["tvd.exact"] <= 0.025 + 1e-9


def test_a_transformer_has_a_curve_without_free_weights() -> None:
    layered = replace(subject(), architecture=SmallTransformer(layers=1, heads=2, width=8))
    assert len(AdversarialTradeoff(subject()).free_adversaries) == 2
    assert AdversarialTradeoff(layered).free_adversaries == ()
    assert not any(isinstance(need, AdversarialAttention) for need in AdversarialTradeoff(layered).dependencies)


def test_the_uniform_model_is_trained_under_uniform_attention() -> None:
    trial = AdversarialTradeoff(replace(subject(), seed=4))
    assert trial.uniform_model.objective == ImposedAttention(UniformAttention(), balance_classes=True)
    assert trial.uniform_model.seed == 4


def test_the_frontier_leaves_out_what_is_beaten_and_begins_at_the_least_change() -> None:
    points = [(0.5, 0.2), (0.3, 0.25), (0.9, 0.6), (0.2, 0.05)]
    assert pareto_frontier(points) == [(0.0, 0.05), (0.2, 0.05), (0.5, 0.2), (0.9, 0.6)]


def test_area_and_shape_by_hand() -> None:
    assert area_under_curve([(0.0, 0.0), (0.5, 0.0), (1.0, 1.0)]) == pytest.approx(0.25)
    assert area_under_curve([(0.0, 0.0), (1.0, 1.0)]) == pytest.approx(0.5)


def made_up(points: dict[float, tuple[float, float]]) -> pd.DataFrame:
    """A table with one row per class and lambda: mean divergence and total variation as given."""
    rows = [
        {"kind": "lambda", "setting": strength, "jsd": jsd, "stvd": 2 * tvd, "bound": 0.69, "best_epoch": 1}
        | {"uid": f"u{label}", "label": label, "answered": label, "predicted": label}
        for strength, (jsd, tvd) in points.items()
        for label in (0, 1)
    ]
    return pd.DataFrame(rows)


def test_a_sagging_curve_is_called_easily_manipulated_and_a_bulging_one_not() -> None:
    sagging = AdversarialTradeoff.flat_summary(made_up({0.0: (0.0, 0.0), 1e-3: (0.6, 0.01), 1.0: (0.69, 0.4)}))
    bulging = AdversarialTradeoff.flat_summary(made_up({0.0: (0.0, 0.0), 1e-3: (0.1, 0.35), 1.0: (0.69, 0.4)}))
    assert sagging["convexity"] < 0.3
    assert bulging["convexity"] > 1.5
    assert "sags" in AdversarialTradeoff.flat_interpretation(sagging)
    assert "bulges" in AdversarialTradeoff.flat_interpretation(bulging)
    assert math.isnan(sagging["seed_jsd"])


def test_a_copy_that_costs_something_is_not_held_against_the_distance() -> None:
    flat = AdversarialTradeoff.flat_summary(made_up({0.0: (0.02, 0.02), 1e-3: (0.4, 0.022), 1e-2: (0.66, 0.03)}))
    assert flat["least_tvd"] == pytest.approx(0.02)
    assert "distance is cheap" in AdversarialTradeoff.flat_interpretation(flat)


def test_one_lambda_makes_no_curve_whatever_it_reached() -> None:
    for reached in (0.02, 0.6):
        told = AdversarialTradeoff.flat_interpretation(
            AdversarialTradeoff.flat_summary(made_up({0.0: (reached, 0.01)}))
        )
        assert told.endswith("The curve has one point only: give more lambdas to see its shape.")


def test_distance_is_not_called_cheap_where_nobody_went_far() -> None:
    near = AdversarialTradeoff.flat_summary(made_up({0.0: (0.02, 0.01), 1e-4: (0.05, 0.012)}))
    assert AdversarialTradeoff.flat_interpretation(near).endswith(
        "But no adversary went far (JSD 0.05): give larger lambdas."
    )
    still = AdversarialTradeoff.flat_summary(made_up({0.0: (0.0, 0.3), 1e-4: (0.0, 0.01)}))
    assert AdversarialTradeoff.flat_interpretation(still).endswith(
        "But no adversary went far (JSD 0.00): give larger lambdas."
    )


def test_a_text_of_one_word_has_no_share_of_the_bound() -> None:
    rows = made_up({0.0: (0.23, 0.0)})
    alone = rows.iloc[:1].assign(uid="alone", jsd=1e-17, bound=0.0)
    summary = AdversarialTradeoff.flat_summary(pd.concat([rows, alone], ignore_index=True))
    assert summary["share_of_bound.lambda_0"] == pytest.approx(0.23 / 0.69)


def test_the_chosen_lambda_has_the_best_f1_among_those_that_are_different() -> None:
    rows = made_up({1e-4: (0.1, 0.0), 1e-3: (0.45, 0.03), 1e-2: (0.6, 0.1)})
    rows.loc[(rows["setting"] == 1e-2) & (rows["label"] == 1), "answered"] = 0
    assert AdversarialTradeoff.flat_summary(rows)["chosen_lambda"] == 1e-3


def test_a_negative_lambda_is_refused() -> None:
    with pytest.raises(UserError, match="lambda"):
        AdversarialTradeoff(subject(), (-0.1,))


def test_scores_of_classes_agree_with_hand_counts() -> None:
    found = accuracy_and_f1(pd.Series([1, 1, 0, 0]), pd.Series([1, 0, 1, 0]))
    assert found == {"accuracy": 0.5, "f1": 0.5}
    assert math.isnan(accuracy_and_f1(pd.Series([2, 1]), pd.Series([1, 1]))["f1"])
