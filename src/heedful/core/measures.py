"""Every measure in one place: pure batched functions from numbers to numbers, each with an oracle to test it.

Distances of distributions, correlations of scores, scores of predictions and bootstrap intervals stand in
files of their own; this one gives their public names.
"""

from __future__ import annotations

from heedful.core.bootstrap import Interval, PairedDifference, bootstrap_interval, paired_bootstrap
from heedful.core.correlations import (
    Average,
    Correlation,
    mean_defined,
    pearson,
    pearson_matrix,
    spearman,
    spearman_matrix,
)
from heedful.core.divergences import (
    entropy,
    jensen_shannon,
    jensen_shannon_bound,
    kullback_leibler,
    total_variation,
)
from heedful.core.kendall import kendall_matrix, kendall_tau
from heedful.core.ranks import midranks
from heedful.core.scores import (
    accuracy,
    average_precision,
    f1,
    f1_macro,
    f1_micro,
    mean_squared_error,
    roc_auc,
    roc_auc_macro,
)
from heedful.core.topk import (
    top_k_kendall,
    top_k_kendall_matrix,
    units_in_share,
    units_not_zero,
    weighted_kendall,
    weighted_kendall_matrix,
)

__all__ = [
    "Average",
    "Correlation",
    "Interval",
    "PairedDifference",
    "accuracy",
    "average_precision",
    "bootstrap_interval",
    "entropy",
    "f1",
    "f1_macro",
    "f1_micro",
    "jensen_shannon",
    "jensen_shannon_bound",
    "kendall_matrix",
    "kendall_tau",
    "kullback_leibler",
    "mean_defined",
    "mean_squared_error",
    "midranks",
    "paired_bootstrap",
    "pearson",
    "pearson_matrix",
    "roc_auc",
    "roc_auc_macro",
    "spearman",
    "spearman_matrix",
    "top_k_kendall",
    "top_k_kendall_matrix",
    "total_variation",
    "units_in_share",
    "units_not_zero",
    "weighted_kendall",
    "weighted_kendall_matrix",
]
