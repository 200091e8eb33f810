"""What the metrics of summaries are called on pages, and what they mean.

Stored summaries and published numbers keep the short names. A trial whose metric differs from that of others has an
entry of its own, as "TRIAL/METRIC".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class MetricName(NamedTuple):
    """A heading, and a phrase that explains it; an empty heading is that of the short name without underscores."""

    label: str
    meaning: str


MARKS = frozenset({"control", "oracle", "held_out", "form_of_attention", "variants", "unsigned"})
"""Metrics that mark the kind of a method in a summary and are not numbers to read."""
_NAMES: Mapping[str, MetricName] = {
    "agreement/mean": MetricName("", "mean agreement of the two methods over texts"),
    "agreement/std": MetricName("", "standard deviation of the agreement over texts"),
    "significant": MetricName("", "share of texts with a two-sided p-value of at most .05"),
    "significant_positive": MetricName("", "share of texts with a significant agreement above 0"),
    "significant_negative": MetricName("", "share of texts with a significant agreement below 0"),
    "tied": MetricName("", "share of words whose score another word of the text has too, in either method"),
    "undefined": MetricName("", "texts whose agreement is undefined, for instance because all scores are equal"),
    "excess": MetricName("agrees more by", "mean over texts of how much more the first pair agrees than the second"),
    "excess_std": MetricName("std of agrees more by", "standard deviation of that difference over texts"),
    "median_change": MetricName("", "median over texts of the median change of the output under permutations"),
    "epsilon_max": MetricName(
        "median divergence", "median over texts of the largest divergence (JSD) at an output change of at most epsilon"
    ),
    "mean_epsilon_max": MetricName("mean divergence", "mean over texts of the same divergence"),
    "far": MetricName(
        "share of distant attention", "share of texts whose divergence is at least .595, the last bins of figure 4"
    ),
    "share_of_bound": MetricName(
        "share of largest divergence", "mean divergence as a share of the largest that any attention could have"
    ),
    "share_of_mean_bound": MetricName(
        "share of mean largest divergence", "mean divergence divided by the mean of the largest possible divergences"
    ),
    "bound": MetricName("largest possible divergence", "mean over texts of the largest divergence any attention has"),
    "certified": MetricName("share proven", "share of texts for which no attention can be more distant"),
    "gap": MetricName("mean unproven rest", "mean distance (JSD) between the divergence reached and its proven limit"),
    "max_gap": MetricName("largest unproven rest", "the same distance for the text where it is largest"),
    "singles": MetricName(
        "sufficient single words", "median number of words of a text that keep the output with all the attention"
    ),
    "with_single": MetricName("texts with a sufficient word", "share of texts that have at least one such word"),
    "single_share": MetricName("share of sufficient words", "mean share of the words of a text that are such words"),
    "commonest": MetricName(
        "share of the most frequent class", "score of a student that always predicts the teacher's most frequent class"
    ),
    "paper_helps": MetricName(
        "helps by the paper's rule", "1 if the lower quartile over seeds is above the upper one without explanations"
    ),
    "paper_harms": MetricName(
        "harms by the paper's rule", "1 if the upper quartile over seeds is below the lower one without explanations"
    ),
    "simulability/mean": MetricName("", "mean over seeds of the student's agreement with its teacher"),
    "simulability/difference": MetricName("gain", "mean difference from students without explanations"),
    "over_control": MetricName("gain over the control", "mean difference from students with a control's"),
    "uniform_fallbacks": MetricName("", "texts on which the guide has no weight, so that uniform attention was used"),
    "margin": MetricName("margin of equality", "scores that differ by less than this count as equal"),
    "jsd": MetricName("JSD", "Jensen-Shannon divergence of attention, between 0 and .693"),
    "median_jsd": MetricName("median JSD", "the same divergence, as the median over texts"),
    "tvd": MetricName("TVD", "mean difference of predictions, as half the total variation"),
    "area": MetricName("area under the curve", "area below the lower envelope of the points, in shares of both axes"),
    "convexity": MetricName("", "area relative to that of a straight line: below 1, other attention is cheap"),
    "least_tvd": MetricName("least TVD", "difference of predictions of the adversary closest to the base"),
    "reached_jsd": MetricName("reached JSD", "divergence of the most distant adversary"),
    "reached_tvd": MetricName("reached TVD", "difference of predictions of that adversary"),
    "chosen_lambda": MetricName("", "lambda of the adversary with the best score among those that attend differently"),
    "attefa": MetricName(
        "AtteFa",
        "mean TVD divided by mean JSD, at most 1; 0: attending elsewhere costs nothing",
    ),
    "attefa_of_bound": MetricName("AtteFa of bounded JSD", "AtteFa with JSD as a share of the largest possible"),
    "collapse": MetricName("AtteFa of a constant", "AtteFa of a model that always predicts the same"),
    "constant": MetricName("distance from a constant", "mean total variation between the base and its best constant"),
    "floor": MetricName("noise floor", "AtteFa of other trainings of the base, which are not adversarial"),
    "floor_jsd": MetricName("noise floor of JSD", "divergence of such trainings"),
    "floor_tvd": MetricName("noise floor of TVD", "difference of predictions of such trainings"),
    "removals": MetricName("", "mean number of random removals per text"),
    "inaccurate": MetricName("texts above the error", "texts whose error is larger than requested"),
    "used": MetricName("texts with ground truth", "texts whose deciding words are known and that could be judged"),
}


def metric_name(trial: str, metric: str) -> MetricName:
    """The heading of a metric, and its meaning, empty where the heading says it.

    >>> metric_name("adversarial-attention", "far").label, metric_name("performance", "roc_auc")
    ('share of distant attention', MetricName(label='roc auc', meaning=''))
    """
    label, meaning = _NAMES.get(f"{trial}/{metric}") or _NAMES.get(metric) or MetricName("", "")
    return MetricName(label or metric.replace("_", " "), meaning)
