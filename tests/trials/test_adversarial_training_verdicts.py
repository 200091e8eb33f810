"""Trained adversaries: the curve of the trade-off, AtteFa and their verdicts from numbers set by hand."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import Generator

from heedful.figures import Bars, Scatter
from heedful.models.small_transformers import SmallTransformer
from heedful.results import Statistic, Verdict, find_statistic, summary_frame, value_of
from heedful.training.attention_sources import UniformAttention
from heedful.training.objectives import ImposedAttention
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.adversarial_training import (
    ATTEFA_TRAINING,
    LAMBDAS,
    PAPER_SEEDS,
    TRADEOFF_TRAINING,
    AdversarialTradeoff,
    AtteFa,
    _pair_numbers,
    accuracy_and_f1,
    attefa,
    distance_to_best_constant,
    pareto_frontier,
)
from heedful.types import UserError
from tests.tiny import subject


def test_a_transformer_has_a_curve_without_free_weights() -> None:
    layered = replace(subject(), architecture=SmallTransformer(layers=1, heads=2, width=8))
    assert len(AdversarialTradeoff(subject()).free_adversaries) == 2
    assert AdversarialTradeoff(layered).free_adversaries == ()
    assert not any(isinstance(need, AdversarialAttention) for need in AdversarialTradeoff(layered).dependencies)


def test_the_uniform_model_is_trained_under_uniform_attention() -> None:
    kind, _, model = AdversarialTradeoff(replace(subject(), seed=4)).compared_models[-1]
    assert kind == "uniform"
    assert model.objective == ImposedAttention(UniformAttention(), balance_classes=True)
    assert model.seed == 4


def test_the_frontier_leaves_out_what_is_beaten_and_begins_at_the_least_change() -> None:
    points = [(0.5, 0.2), (0.3, 0.25), (0.9, 0.6), (0.2, 0.05)]
    assert pareto_frontier(points) == [(0.0, 0.05), (0.2, 0.05), (0.5, 0.2), (0.9, 0.6)]


def made_up(points: dict[float, tuple[float, float]]) -> pd.DataFrame:
    """A table with one row per class and lambda: mean divergence and total variation as given."""
    rows = [
        {"kind": "lambda", "setting": strength, "jsd": jsd, "stvd": 2 * tvd, "bound": 0.69, "best_epoch": 1}
        | {"uid": f"u{label}", "label": label, "answered": label, "predicted": label}
        for strength, (jsd, tvd) in points.items()
        for label in (0, 1)
    ]
    return pd.DataFrame(rows)


def verdict_of(points: dict[float, tuple[float, float]]) -> Verdict:
    (finding,) = AdversarialTradeoff.findings(AdversarialTradeoff.summary(made_up(points)))
    return finding.verdict


def test_the_convexity_separates_curves_below_and_above_the_straight_line() -> None:
    sagging, bulging = {0.0: (0.0, 0.0), 1e-3: (0.6, 0.01), 1.0: (0.69, 0.4)}, {0.0: (0.0, 0.0), 1e-3: (0.1, 0.35)}
    bulging[1.0] = (0.69, 0.4)
    assert value_of(AdversarialTradeoff.summary(made_up(sagging)), "convexity") < 0.3
    assert value_of(AdversarialTradeoff.summary(made_up(bulging)), "convexity") > 1.5
    # Divergence in units of ln 2, change on the scale from 0 to 1: two trapezoids.
    widths, heights = (0.6 / math.log(2), 0.09 / math.log(2)), (0.02, 0.82)
    area = sum(width * height / 2 for width, height in zip(widths, heights, strict=True))
    assert value_of(AdversarialTradeoff.summary(made_up(sagging)), "area") == pytest.approx(area)
    assert verdict_of(sagging) is verdict_of(bulging) is Verdict.NOT_SUPPORTED
    assert math.isnan(value_of(AdversarialTradeoff.summary(made_up(sagging)), "seed_jsd"))


def test_the_cost_of_a_copy_is_not_held_against_the_distance() -> None:
    flat = {0.0: (0.02, 0.02), 1e-3: (0.4, 0.022), 1e-2: (0.66, 0.03)}
    assert value_of(AdversarialTradeoff.summary(made_up(flat)), "least_tvd") == pytest.approx(0.02)
    assert verdict_of(flat) is Verdict.SUPPORTED


@pytest.mark.parametrize(
    "points",
    [
        {0.0: (0.02, 0.01)},
        {0.0: (0.6, 0.01)},
        {0.0: (0.02, 0.01), 1e-4: (0.05, 0.012)},
        {0.0: (0.0, 0.3), 1e-4: (0.0, 0.01)},
    ],
)
def test_one_lambda_or_a_short_distance_decides_nothing(points: dict[float, tuple[float, float]]) -> None:
    assert verdict_of(points) is Verdict.UNDECIDED


def curve_summary(jsd: float, tvd: float, convexity: float = 1.0, points: int = 2) -> pd.DataFrame:
    """The summary of a curve from a perfect copy of the base to this point."""
    numbers = {"reached_jsd": jsd, "reached_tvd": tvd, "least_tvd": 0.0, "convexity": convexity}
    rows = [Statistic(name, value=value) for name, value in numbers.items()]
    for point in range(points):
        rows += [Statistic(name, f"lambda {point}", value=float(point)) for name in ("lambda", "jsd", "tvd")]
    return summary_frame(rows)


@pytest.mark.parametrize(
    ("jsd", "tvd", "verdict"),
    [
        (0.4, math.nextafter(0.025, 0), Verdict.SUPPORTED),
        (0.4, 0.025, Verdict.NOT_SUPPORTED),
        (math.nextafter(0.4, 0), 0.0, Verdict.UNDECIDED),
        (math.nextafter(0.4, 0), 0.025, Verdict.NOT_SUPPORTED),
    ],
)
def test_distance_from_04_on_is_free_below_a_change_of_005(jsd: float, tvd: float, verdict: Verdict) -> None:
    (finding,) = AdversarialTradeoff.findings(curve_summary(jsd, tvd))
    assert finding.verdict is verdict
    (single,) = AdversarialTradeoff.findings(curve_summary(jsd, tvd, points=1))
    assert single.verdict is Verdict.UNDECIDED


def test_a_curve_is_straight_with_a_convexity_from_09_to_11() -> None:
    words = {
        convexity: AdversarialTradeoff.interpretation(curve_summary(0.6, 0.2, convexity))
        for convexity in (0.0, math.nextafter(0.9, 0), 0.9, 1.0, 1.1, math.nextafter(1.1, 2), 2.0)
    }
    below, just_below, low, straight, high, just_above, above = words.values()
    assert below == just_below
    assert low == straight == high
    assert just_above == above
    assert len({below, straight, above}) == 3


def test_the_words_on_a_curve_have_its_numbers_on_the_scale_of_the_summary() -> None:
    rows = [Statistic(name, value=value) for name, value in (("seed_jsd", 0.25), ("seed_tvd", 0.05))]
    summary = pd.concat([curve_summary(0.6, 0.2), summary_frame(rows)], ignore_index=True)
    summary.loc[summary["metric"] == "least_tvd", "value"] = 0.03
    words = AdversarialTradeoff.interpretation(summary)
    # With the largest JSD and TVD beside the first of each.
    assert re.findall(r"\d\.\d+", words) == ["0.60", "0.69", "0.200", "0.5", "0.030", "0.25", "0.050"]


def test_a_lambda_is_chosen_among_those_that_diverge_by_more_than_04() -> None:
    for jsd, chosen in ((0.4, 1.0), (math.nextafter(0.4, 1), 0.5)):
        table = made_up({0.5: (jsd, 0.0), 1.0: (0.6, 0.1)})
        table.loc[(table["setting"] == 1.0) & (table["label"] == 1), "answered"] = 0
        assert value_of(AdversarialTradeoff.summary(table), "chosen_lambda") == chosen


def test_a_text_of_one_word_has_no_share_of_the_bound() -> None:
    rows = made_up({0.0: (0.23, 0.0)})
    alone = rows.iloc[:1].assign(uid="alone", jsd=1e-17, bound=0.0)
    summary = AdversarialTradeoff.summary(pd.concat([rows, alone], ignore_index=True))
    assert value_of(summary, "share_of_bound", "lambda 0") == pytest.approx(0.23 / 0.69)


def test_the_chosen_lambda_has_the_best_f1_among_those_that_are_different() -> None:
    rows = made_up({1e-4: (0.1, 0.0), 1e-3: (0.45, 0.03), 1e-2: (0.6, 0.1)})
    rows.loc[(rows["setting"] == 1e-2) & (rows["label"] == 1), "answered"] = 0
    assert value_of(AdversarialTradeoff.summary(rows), "chosen_lambda") == 1e-3


def test_scores_of_classes_agree_with_hand_counts() -> None:
    found = accuracy_and_f1(pd.Series([1, 1, 0, 0]), pd.Series([1, 0, 1, 0]))
    assert found == {"accuracy": 0.5, "f1": 0.5}
    assert math.isnan(accuracy_and_f1(pd.Series([2, 1]), pd.Series([1, 1]))["f1"])


def test_the_ratio_of_means_by_hand() -> None:
    assert attefa(0.3, 0.384349 / math.log(2)) == pytest.approx(0.541029, abs=1e-6)
    assert attefa(0.9, 0.3) == 1.0
    assert math.isnan(attefa(0.0, 0.0))


def test_the_best_constant_for_two_classes_is_the_median() -> None:
    second = torch.tensor([0.1, 0.2, 0.9, 0.95, 0.99], dtype=torch.float64)
    both = torch.stack([1 - second, second], 1)
    tried = [float((second - constant / 1000).abs().mean()) for constant in range(1001)]
    assert distance_to_best_constant(both) == pytest.approx(min(tried), abs=1e-9)


def test_the_best_constant_for_three_classes_is_no_worse_than_one_class_or_the_mean() -> None:
    some = torch.randn(50, 3, generator=Generator().manual_seed(1), dtype=torch.float64).mul(3).softmax(1)
    candidates = [some.mean(0), *torch.eye(3, dtype=torch.float64)]
    assert (
        distance_to_best_constant(some)
        <= min(float(0.5 * (some - each).abs().sum(1).mean()) for each in candidates) + 1e-12
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # One text of each class: every constant is wrong by 2/3 on average, and medians of 0 are no prediction.
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], 2 / 3),
        ([[1, 1e-20, 1e-20], [1e-20, 1, 1e-20], [1e-20, 1e-20, 1]], 2 / 3),
        # Half of the texts are of class 0: that class alone is best.
        ([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], 1 / 2),
    ],
)
def test_the_best_constant_for_confident_predictions_is_one_class(rows: list[list[float]], expected: float) -> None:
    assert distance_to_best_constant(torch.tensor(rows, dtype=torch.float64)) == pytest.approx(expected, abs=1e-12)


def test_means_and_both_deviations_and_the_floor_by_hand() -> None:
    rows = {"kind": ["adversary"] * 2 + ["honest"], "base": [10, 10, 10], "seed": [1, 2, 50], "epoch": [3, 5, 8]}
    numbers = {"attefa": [0.2, 0.4, 0.05], "tvd": [0.1, 0.2, 0.01], "jsd": [0.6, 0.6, 0.1], "f1": [0.8, 0.7, 0.9]}
    others = ("accuracy", "constant", "collapse", "share_of_bound", "attefa_of_bound", "base_f1", "base_accuracy")
    table = pd.DataFrame({**rows, **numbers, **{name: [0.5] * 3 for name in others}})
    summary = AtteFa.summary(table)
    assert value_of(summary, "attefa") == pytest.approx(0.3)
    assert value_of(summary, "population_std_attefa") == pytest.approx(0.1)
    assert value_of(summary, "sample_std_attefa") == pytest.approx(0.1 * math.sqrt(2))
    assert value_of(summary, "floor") == pytest.approx(0.05)
    assert value_of(summary, "epoch") == 4
    assert summary.set_index("metric")["n"][["attefa", "floor"]].tolist() == [2, 1]
    assert AtteFa.findings(summary)[0].verdict is Verdict.UNDECIDED
    one = AtteFa.summary(table.drop(index=1))
    assert value_of(one, "attefa") == pytest.approx(0.2)
    assert math.isnan(value_of(one, "population_std_attefa"))
    assert math.isnan(value_of(one, "sample_std_attefa"))
    costly = AtteFa.summary(table.assign(attefa=0.8, collapse=1.0))
    assert AtteFa.findings(costly)[0].verdict is Verdict.SUPPORTED
    still = AtteFa.summary(table.assign(attefa=math.nan, collapse=math.nan, jsd=0.0))
    assert AtteFa.findings(still)[0].verdict is Verdict.UNDECIDED


def test_the_numbers_of_a_pair_of_models_by_hand() -> None:
    table = pd.DataFrame(
        {
            "stvd": [0.2, 0.4],
            "jsd": [0.3, 0.5],
            "bound": [0.5, 0.6],
            "probabilities": [[0.8, 0.2], [0.2, 0.8]],
            "answered": [1, 0],
            "predicted": [1, 1],
            "label": [1, 1],
        }
    )
    scaled = 0.4 / math.log(2)
    expected = {
        "accuracy": 0.5,
        "f1": 2 / 3,
        "base_accuracy": 1.0,
        "base_f1": 1.0,
        "tvd": 0.15,
        "jsd": 0.4,
        "stvd": 0.3,
        "sjsd": scaled,
        "attefa": 0.3 / scaled,
        "constant": 0.3,
        "collapse": 0.3 / scaled,
        "share_of_bound": 0.4 / 0.55,
        "attefa_of_bound": 0.3 / (0.4 / 0.55),
    }
    assert _pair_numbers(table) == pytest.approx(expected)
    alone = _pair_numbers(table.assign(bound=0.0))
    assert math.isnan(alone["share_of_bound"])
    assert math.isnan(alone["attefa_of_bound"])


def test_the_bars_of_attefa_are_those_of_adversaries() -> None:
    rows = {"kind": ["adversary", "honest", "adversary"], "base": [10, 10, 10], "seed": [1, 50, 2]}
    numbers = {"attefa": [0.2, 0.05, 0.4], "collapse": [0.9, 0.8, 0.7], "jsd": [0.6, 0.1, 0.5], "tvd": [0.1, 0.01, 0.2]}
    scatter, bars = AtteFa.figures(pd.DataFrame({**rows, **numbers}))
    assert isinstance(bars, Bars)
    assert bars.labels == ("base 10, adversary 1", "base 10, adversary 2")
    assert [series.values for series in bars.series] == [(0.2, 0.4), (0.9, 0.7)]
    assert isinstance(scatter, Scatter)
    assert [(x.values, y.values) for x, y in scatter.points] == [((0.6, 0.5), (0.1, 0.2)), ((0.1,), (0.01,))]
    assert scatter.x.limits == (0.0, math.log(2))


def test_the_floor_is_the_mean_over_honest_pairs() -> None:
    others = ("epoch", "f1", "accuracy", "constant", "collapse", "share_of_bound", "attefa_of_bound")
    numbers = {"attefa": [0.3, 0.05, 0.1, 0.3], "tvd": [0.1, 0.01, 0.02, 0.06], "jsd": [0.6, 0.1, 0.2, 0.6]}
    rest = dict.fromkeys((*others, "base_f1", "base_accuracy"), 0.5)
    table = pd.DataFrame({"kind": ["adversary", "honest", "honest", "honest"], **numbers, **rest})
    summary = AtteFa.summary(table)
    for name, expected in {"floor": 0.15, "floor_tvd": 0.03, "floor_jsd": 0.3}.items():
        found = find_statistic(summary, name)
        assert found is not None
        assert found.value == pytest.approx(expected)
        assert found.n == 3


def attefa_summary(attefa: float, collapse: float = 1.0, constant: float = 0.3, tvd: float = 0.1) -> pd.DataFrame:
    numbers = {"attefa": attefa, "collapse": collapse, "constant": constant, "tvd": tvd, "jsd": 0.5}
    floor = {"floor": 0.1, "floor_tvd": 0.1, "floor_jsd": 0.2}
    return summary_frame(Statistic(name, value=value) for name, value in (numbers | floor).items())


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ((math.nextafter(0.1, 0),), Verdict.NOT_SUPPORTED),
        ((0.1,), Verdict.UNDECIDED),
        ((math.nextafter(0.5, 0),), Verdict.UNDECIDED),
        ((0.5,), Verdict.SUPPORTED),
        # From .95 of the collapse on an adversary has given up; a base within .05 of a constant decides nothing.
        ((math.nextafter(0.95, 0),), Verdict.SUPPORTED),
        ((0.95,), Verdict.UNDECIDED),
        ((0.6, 1.0, 0.05), Verdict.SUPPORTED),
        ((0.6, 1.0, math.nextafter(0.05, 0)), Verdict.UNDECIDED),
    ],
)
def test_attefa_is_low_below_01_and_high_from_05_on(numbers: tuple[float, ...], verdict: Verdict) -> None:
    (finding,) = AtteFa.findings(attefa_summary(*numbers))
    assert finding.verdict is verdict
    assert bool(finding.reason) == (verdict is Verdict.UNDECIDED)


def test_up_to_one_and_a_half_times_the_change_of_a_retraining_is_no_more_than_it() -> None:
    limit = 1.5 * 0.1
    for change, no_more in ((limit, True), (math.nextafter(limit, 1), False)):
        words = AtteFa.interpretation(attefa_summary(0.3, tvd=change))
        assert (", no more in predictions" in words) == no_more


def test_the_words_on_attefa_have_its_numbers_on_the_scale_of_the_summary() -> None:
    summary = attefa_summary(0.3, tvd=0.12)
    numbers = ["0.300", "1.000", "0.120", "0.500", "0.100", "0.200", "0.100"]
    assert re.findall(r"\d\.\d{3}", AtteFa.interpretation(summary)) == numbers
    alone = summary[~summary["metric"].str.startswith("floor")]
    spread = summary_frame([Statistic("sample_std_attefa", value=0.025)])
    words = AtteFa.interpretation(pd.concat([alone, spread], ignore_index=True))
    assert re.findall(r"\d\.\d{3}", words) == ["0.300", "0.025", "1.000"]


def test_every_adversary_attacks_the_base_and_all_bases_are_compared() -> None:
    trial = AtteFa(subject(), (1, 2), (7,))
    fought = [(base.seed, other.seed) for base, other, kind in trial.model_pairs if kind == "adversary"]
    assert fought == [(0, 1), (0, 2)]
    assert len(trial.dependencies) == 2 + 2
    assert [(b.seed, o.seed) for b, o, kind in trial.model_pairs if kind == "honest"] == [(0, 7), (7, 0)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AdversarialTradeoff(subject(), (-0.1,)), "lambda"),
        (lambda: AtteFa(subject(), ()), "at least one adversary"),
        (lambda: AtteFa(subject(), (1, 1)), "duplicate seed"),
        (lambda: AtteFa(subject(), (1,), (2, 2)), "duplicate seed"),
    ],
)
def test_impossible_lambdas_and_seeds_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()


def test_seeds_lambdas_and_trainings_are_those_of_the_papers() -> None:
    assert PAPER_SEEDS == (10, 50, 257, 500231, 100078, 12504, 90754789, 8988812, 2)
    assert LAMBDAS == (0.0, 1e-4, 5e-4, 1e-3, 1e-2)
    for training in (TRADEOFF_TRAINING, ATTEFA_TRAINING):
        assert (training.epochs, training.patience) == (80, 10)
