"""Verdicts from intervals, and from the intervals of several seeds."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, is_dataclass, replace

import pandas as pd
import pytest
import torch

from heedful import catalogue
from heedful.results import (
    Statistic,
    Verdict,
    combine_seeds,
    excess_metric,
    interval_finding,
    interval_verdict,
    summary_frame,
)
from heedful.tasks import MulticlassClassification
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.trial import text_columns
from heedful.types import Trace
from tests.small_models import some_batch


def test_a_verdict_over_seeds_rests_on_the_outermost_bounds() -> None:
    def seed(low: float, high: float) -> pd.DataFrame:
        middle = (low + high) / 2
        return summary_frame([Statistic(excess_metric("deletion_auc"), "lime", "", middle, low, high, 20)])

    def verdict(*seeds: pd.DataFrame) -> Verdict:
        (finding,) = Faithfulness.findings(combine_seeds(seeds))
        return finding.verdict

    # One seed far above zero does not outweigh two that are not.
    assert verdict(seed(0.5, 0.6), seed(-0.1, 0.1), seed(-0.1, 0.1)) is Verdict.UNDECIDED
    assert verdict(seed(0.5, 0.6), seed(0.1, 0.2)) is Verdict.SUPPORTED
    together = combine_seeds([seed(0.5, 0.6), seed(-0.1, 0.1)])
    assert together[["value", "low", "high", "seeds"]].iloc[0].tolist() == pytest.approx([0.275, -0.1, 0.6, 2])


@pytest.mark.parametrize(
    ("low", "high", "margin", "verdict"),
    [
        (math.ulp(0.0), 1.0, 0.0, Verdict.SUPPORTED),
        (0.0, 1.0, 0.0, Verdict.UNDECIDED),
        (-1.0, 0.0, 0.0, Verdict.UNDECIDED),
        (-1.0, -math.ulp(0.0), 0.0, Verdict.NOT_SUPPORTED),
        (-1.0, 0.25, 0.25, Verdict.UNDECIDED),
        (0.0, math.nextafter(0.25, 0), 0.25, Verdict.NOT_SUPPORTED),
        (0.125, 0.2, 0.25, Verdict.SUPPORTED),
        (math.nan, math.nan, 0.25, Verdict.UNDECIDED),
    ],
)
def test_an_interval_decides_above_zero_and_below_the_margin(
    low: float, high: float, margin: float, verdict: Verdict
) -> None:
    assert interval_verdict(low, high, margin) is verdict
    found = interval_finding(Statistic("gain", "lime", "", 0.1, low, high), margin, no_interval="no interval")
    assert (found.verdict, found.method, found.reason) == (verdict, "lime", "no interval" if math.isnan(low) else "")


def test_seeds_are_combined_with_their_sample_deviation() -> None:
    seeds = [summary_frame([Statistic("auc", "lime", "", value, n=20)]) for value in (0.1, 0.2, 0.6, math.nan)]
    together = combine_seeds(seeds)
    assert together[["value", "std", "seeds", "n"]].iloc[0].tolist() == pytest.approx([0.3, math.sqrt(0.07), 3, 20])
    alone = combine_seeds(seeds[:1])
    assert alone["std"].isna().all()
    assert alone["value"].tolist() == [0.1]


def test_each_text_is_described_by_its_own_prediction() -> None:
    batch = some_batch((2, 3, 1))
    attention = torch.tensor([[0.0, 0.4, 0.6, 0.0, 0.0], [0.0, 0.2, 0.3, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]])
    trace = Trace(torch.zeros(3, 5, 1), torch.zeros(3, 5, 1), attention[:, None, None, None], torch.eye(3).flip(0))
    found = text_columns(MulticlassClassification(3), batch, trace)
    assert (found["length"], found["predicted"]) == ([2, 3, 1], [2, 1, 0])
    assert found["maximum_attention"] == pytest.approx([0.6, 0.5, 1.0])
    skewed = replace(trace, logits=torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.5, 0.1], [0.0, 0.1, 0.2]]))
    assert text_columns(MulticlassClassification(3), batch, skewed)["predicted"] == [2, 1, 2]


SEARCH = (
    "AdversarySearchSettings(num_adversaries=5, steps=500, hinge=0.01, lr=0.01, penalty=500.0, init_std=3.0, "
    "candidates=20000)"
)
ADVERSARY = (
    "Training(epochs=80, batch_size=32, optimizer=Adam(lr=0.001, weight_decay=1e-05, amsgrad=True, "
    "no_decay=('attention',)), selection=EpochSelection(split='dev', metric='deception', first_epoch=1), patience=10, "
    "max_grad_norm=None, reduction='{}')"
)
DEFAULTS = {
    "performance": {},
    "agreement": {
        "controls": "None", "other_seed_model": "None", "measure": "'kendall'", "absolute": "True", "k": "10",
        "limit": "None", "split": "'test'", "level": "'unit'", "special_tokens": "False",
    },
    "permutation": {
        "permutations": "100", "seed": "0", "limit": "None", "layer": "None", "head": "None", "error": "None",
    },
    "adversarial-attention": {
        "epsilon": "0.05", "solver": "'exact'", "search": SEARCH, "seed": "0", "limit": "None", "layer": "-1",
        "head": "None",
    },
    "uniform-baseline": {"seeds": "(0, 1, 2, 3, 4)", "margin": "0.01"},
    "seed-variance": {"seeds": "(1, 2, 3, 4, 5, 6, 7, 8)", "limit": "None"},
    "adversarial-tradeoff": {
        "lambdas": "(0.0, 0.0001, 0.0005, 0.001, 0.01)", "seeds": "()", "adversary_seed": "0",
        "adversary_training": ADVERSARY.format("sum"), "start": "'fresh'", "rescale_class_weights": "False",
    },
    "guided-model": {"seeds": "(0, 1, 2)"},
    "attefa": {
        "adversary_seeds": "(10, 50, 257, 500231, 100078, 12504, 90754789, 8988812, 2)", "base_seeds": "()",
        "adversary_training": ADVERSARY.format("mean"), "start": "'fresh'",
    },
    "faithfulness": {
        "baseline": "'delete'", "seed": "0", "limit": "None", "steps": "20", "samples": "32", "split": "'test'",
        "error": "None",
    },
    "ground-truth": {"limit": "None"},
    "simulability": {"controls": "('random',)", "margin": "0.01"},
    "plausibility": {
        "learned_explainers": "()", "parts": "()", "pooling": "'mean'", "rank": "'score'", "oracles": "True",
        "limit": "None", "split": "'test'", "target": "'predicted'",
    },
}  # fmt: skip
"""The protocol of each trial where the user says nothing: that of its paper, and part of the name of its artefact."""


@pytest.mark.parametrize("name", catalogue.TRIALS)
def test_a_trial_has_the_settings_of_its_paper_by_default(name: str) -> None:
    kind = catalogue.TRIALS[name]
    found: dict[str, str] = {}
    assert is_dataclass(kind)
    for each in fields(kind):
        if each.default is not MISSING:
            found[each.name] = repr(each.default)
        elif each.default_factory is not MISSING:
            found[each.name] = repr(each.default_factory())
    assert found == DEFAULTS[name]
