"""Seed variance: divergences from the base against a slow twin, bins and seeds by hand, and the floor in words."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from heedful.data.words import Words
from heedful.execution.runner import topological_order
from heedful.figures import Scatter, Violin
from heedful.models.attentive import Additive, Attentive, UniformWeights
from heedful.models.encoders import Perceptron
from heedful.report.charts import svg
from heedful.results import Statistic, Verdict, find_statistic, summary_frame, value_of
from heedful.store.workspace import Workspace
from heedful.training.predictions import BatchPredictions, Predictions
from heedful.trials.seed_variance import SeedVariance
from heedful.types import UserError
from tests.networks import TinyTransformer
from tests.small_models import some_batch
from tests.tiny import subject
from tests.trials.summaries import values
from tests.trials.test_permutation import some_model

TRIAL = SeedVariance(subject(), (1, 2, 3))


def table() -> pd.DataFrame:
    """Four instances of two classes under two seeds."""
    return pd.DataFrame(
        {
            "uid": ["a", "b", "c", "d"],
            "length": 5,
            "predicted": [0, 0, 1, 0],
            "probability": 0.9,
            "maximum_attention": [0.1, 0.2, 0.75, 1.0],
            "jsd": [0.1, 0.3, 0.2, 0.4],
            "bound": [0.4, 0.6, 0.5, 0.0],
            "seeds": [[4, 7]] * 4,
            "jsd_by_seed": [[0.0, 0.2], [0.2, 0.4], [0.1, 0.3], [0.3, 0.5]],
            "tvd_by_seed": [[0.00, 0.10], [0.02, 0.10], [0.04, 0.10], [0.06, 0.10]],
        }
    )


def test_every_divergence_equals_the_slow_one(workspace: Workspace) -> None:
    artefact = workspace.get(TRIAL)
    rows = artefact.table.set_index("uid")
    base, *others = (replace(subject(), seed=seed).restore(workspace) for seed in (0, 1, 2, 3))
    with torch.no_grad():
        for example in base.examples("test")[:6]:
            batch = base.tokenizer([example])
            traces = [each.model(batch) for each in (base, *others)]
            weights = [trace.attention[0, 0, 0, 0, 1:-1].double().numpy() for trace in traces]
            positive = [float(base.model.task.probabilities(trace.logits)[0, 1]) for trace in traces]
            row = rows.loc[example.uid].to_dict()
            # SciPy gives the square root.
            jsd = [float(jensenshannon(weights[0], other)) ** 2 for other in weights[1:]]
            assert row["jsd_by_seed"] == pytest.approx(jsd, abs=1e-6)
            assert row["jsd"] == pytest.approx(float(np.median(jsd)), abs=1e-6)
            # W&P's scale for one sigmoid output: half of |Δp|.
            assert row["tvd_by_seed"] == pytest.approx([0.5 * abs(positive[0] - p) for p in positive[1:]], abs=1e-6)
            assert row["predicted"] == round(positive[0])
            assert row["probability"] == pytest.approx(max(positive[0], 1 - positive[0]), abs=1e-6)
            assert row["maximum_attention"] == pytest.approx(weights[0].max(), abs=1e-6)
            lightest = np.eye(len(weights[0]))[weights[0].argmin()]
            assert row["bound"] == pytest.approx(float(jensenshannon(weights[0], lightest)) ** 2, abs=1e-6)
            assert row["length"] == len(weights[0])


def test_all_trainings_and_their_answers_come_first() -> None:
    plan = topological_order([TRIAL])
    subjects = [replace(subject(), seed=seed) for seed in (0, 1, 2, 3)]
    assert set(plan) == {TRIAL, *subjects, *(Predictions(each, "test") for each in subjects)}
    assert plan[-1] == TRIAL


def test_a_model_whose_weights_are_always_uniform_has_no_variance_of_attention(workspace: Workspace) -> None:
    fixed = replace(subject(epochs=2), architecture=Attentive(Perceptron(4), Additive(), UniformWeights()))
    summary = SeedVariance.summary(workspace.get(SeedVariance(fixed, (1, 2))).table)
    assert value_of(summary, "jsd") == value_of(summary, "median_jsd") == value_of(summary, "share_of_bound") == 0
    assert value_of(summary, "tvd") > 0
    assert SeedVariance.findings(summary)[0].verdict is Verdict.SUPPORTED


def test_the_summary_is_that_worked_out_by_hand() -> None:
    summary = SeedVariance.summary(table())
    expected = {
        ("jsd", "", ""): 0.25,
        ("median_jsd", "", ""): 0.25,
        ("jsd", "", "class 0"): 0.8 / 3,
        ("median_jsd", "", "class 0"): 0.3,
        ("jsd", "", "class 1"): 0.2,
        ("jsd", "", "class 0, attention 0.00 to 0.25"): 0.2,
        # A maximum of .75 and one of 1 both belong to the last bin.
        ("jsd", "", "class 0, attention 0.75 to 1.00"): 0.4,
        ("jsd", "", "class 1, attention 0.75 to 1.00"): 0.2,
        ("jsd", "seed 4", ""): 0.15,
        ("jsd", "seed 7", ""): 0.35,
        ("tvd", "seed 4", ""): 0.03,
        ("tvd", "seed 7", ""): 0.10,
        ("tvd", "", ""): 0.065,
        # The instance without another possible attention does not count: (1/4 + 1/2 + 2/5) / 3.
        ("share_of_bound", "", ""): 1.15 / 3,
    }
    found = values(summary)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert math.isnan(found["jsd", "", "class 0, attention 0.25 to 0.50"])
    low = find_statistic(summary, "jsd", subset="class 0, attention 0.00 to 0.25")
    assert low is not None
    assert low.n == 2


def test_the_size_of_the_noise_floor_decides() -> None:
    assert SeedVariance.findings(SeedVariance.summary(table()))[0].verdict is Verdict.UNDECIDED
    words = SeedVariance.interpretation(SeedVariance.summary(table()))
    assert all(number in words for number in ("0.250", "38%", "0.130"))
    far = table().assign(bound=0.3)
    assert SeedVariance.findings(SeedVariance.summary(far))[0].verdict is Verdict.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (math.nextafter(0.1, 0), Verdict.SUPPORTED),
        (0.1, Verdict.UNDECIDED),
        (math.nextafter(0.4, 0), Verdict.UNDECIDED),
        (0.4, Verdict.NOT_SUPPORTED),
    ],
)
def test_a_share_of_the_bound_is_small_below_01_and_large_from_04_on(share: float, verdict: Verdict) -> None:
    (finding,) = SeedVariance.findings(summary_frame([Statistic("share_of_bound", value=share)]))
    assert finding.verdict is verdict


def test_the_figures_are_violins_by_maximum_attention_and_a_point_per_seed() -> None:
    violin, scatter = SeedVariance.figures(table())
    assert isinstance(violin, Violin)
    assert [[series.values for series in group] for group in violin.groups] == [
        [(0.1, 0.3), ()],
        [(), ()],
        [(), ()],
        [(0.4,), (0.2,)],
    ]
    assert isinstance(scatter, Scatter)
    ((jsd, tvd),) = scatter.points
    assert jsd.values == pytest.approx((0.15, 0.35))
    assert tvd.values == pytest.approx((0.03, 0.10))
    assert all(svg(figure).startswith("<svg") for figure in (violin, scatter))


def test_texts_of_one_word_decide_nothing() -> None:
    single = table().assign(bound=0.0, jsd=0.0)
    assert SeedVariance.findings(SeedVariance.summary(single))[0].verdict is Verdict.UNDECIDED


@pytest.mark.slow
def test_numbers_do_not_depend_on_the_batch_size_and_a_limit_takes_fewer(workspace: Workspace, tmp_path: Path) -> None:
    other = Workspace(tmp_path, batch_size=7)
    one, two = workspace.get(TRIAL).table, other.get(TRIAL).table
    assert one.sort_values("uid")["jsd"].tolist() == pytest.approx(two.sort_values("uid")["jsd"].tolist(), abs=1e-6)
    limited = workspace.get(replace(TRIAL, limit=5))
    assert (limited.notes["n"], limited.notes["of"], len(limited.table)) == (5, 40, 5)


def test_predictions_of_other_seeds_are_half_a_total_variation_away_and_numbers_are_not() -> None:
    model, batch = some_model(), some_batch((3, 4))
    attention = model(batch).attention.detach()

    def rows(base: list[list[float]], other: list[list[float]]) -> pd.DataFrame:
        given = [BatchPredictions(torch.tensor(each), attention) for each in (base, other)]
        return SeedVariance(subject(), (1,))._rows([lambda _: given[0], lambda _: given[1]], model, batch)

    classes = rows([[0.6, 0.4], [0.2, 0.8]], [[0.5, 0.5], [0.2, 0.8]])
    assert np.array(classes["tvd_by_seed"].tolist()) == pytest.approx(np.array([[0.05], [0.0]]), abs=1e-7)
    assert classes["jsd"].tolist() == [0.0, 0.0]
    assert np.isnan(rows([[0.5], [0.7]], [[0.1], [0.2]])["tvd_by_seed"].tolist()).all()


def test_regression_has_divergent_attention_but_no_total_variation() -> None:
    numbers = table()
    numbers["tvd_by_seed"] = pd.Series([[math.nan, math.nan]] * 4)
    summary = SeedVariance.summary(numbers)
    assert math.isnan(value_of(summary, "tvd"))
    assert "output" not in SeedVariance.interpretation(summary)
    assert len(SeedVariance.figures(numbers)) == 1


@pytest.mark.slow
def test_a_transformer_is_compared_head_by_head(workspace: Workspace) -> None:
    # Words as ids do for a transformer too; its layers, heads and query rows are what matters here.
    tiny = replace(subject(epochs=2, count=8), tokenization=Words(), architecture=TinyTransformer(), embeddings=None)
    rows = workspace.get(SeedVariance(tiny, (1,))).table
    assert rows["jsd"].between(0.0, math.log(2)).all()
    assert (rows["jsd"] > 0).all()
    assert (rows["jsd"] <= rows["bound"]).all()


@pytest.mark.parametrize(("seeds", "message"), [((0, 1), "seed 0"), ((), "at least one"), ((2, 2), "duplicate seed")])
def test_nonsense_is_refused(seeds: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SeedVariance(subject(), seeds)
