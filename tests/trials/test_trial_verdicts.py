"""Verdicts from intervals, and from the intervals of several seeds."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import pandas as pd
import pytest
import torch

from heedful.tasks import MulticlassClassification
from heedful.trials._trial import (
    Finding,
    Statistic,
    Verdict,
    combine_seeds,
    excess_metric,
    interval_finding,
    interval_verdict,
    summary_frame,
    text_columns,
)
from heedful.trials.faithfulness import Faithfulness
from heedful.types import Trace
from tests.trials.test_permutation import some_batch


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


def test_statistics_and_findings_are_values() -> None:
    row = Statistic("auc", "lime", value=0.5)
    assert len({row, Statistic("auc", "lime", value=0.5)}) == 1
    with pytest.raises(FrozenInstanceError):
        row.value = 1.0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        Finding(Verdict.SUPPORTED).reason = "changed"  # type: ignore[misc]


def test_each_text_is_described_by_its_own_prediction() -> None:
    batch = some_batch((2, 3, 1))
    attention = torch.tensor([[0.0, 0.4, 0.6, 0.0, 0.0], [0.0, 0.2, 0.3, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]])
    trace = Trace(torch.zeros(3, 5, 1), torch.zeros(3, 5, 1), attention[:, None, None, None], torch.eye(3).flip(0))
    found = text_columns(MulticlassClassification(3), batch, trace)
    assert (found["length"], found["predicted"]) == ([2, 3, 1], [2, 1, 0])
    assert found["maximum_attention"] == pytest.approx([0.6, 0.5, 1.0])
    skewed = replace(trace, logits=torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.5, 0.1], [0.0, 0.1, 0.2]]))
    assert text_columns(MulticlassClassification(3), batch, skewed)["predicted"] == [2, 1, 2]
