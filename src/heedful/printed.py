"""The numbers that papers printed, under the names of our summaries.

Jain & Wallace released far more than they printed: the tables and figures of all 72 combinations stand in
`published/jw_online_*.json`, decoded from the files of their repository.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_CORPUS = {"20news": "20News_sports", "babi-1": "babi_1", "babi-2": "babi_2", "babi-3": "babi_3", "adr": "tweet"}
_CORPUS |= {"diabetes": "diab"}
_ENCODER = {"bilstm": "lstm", "convolution": "cnn(1,3,5,7)", "average": "average"}
_ATTENTION = {"additive": "tanh", "dot": "dot"}
_SCORES = {
    "f1": "1/f1-score",
    "f1_micro": "micro avg/f1-score",
    "f1_macro": "macro avg/f1-score",
    "accuracy": "accuracy",
    "roc_auc": "roc_auc",
}
_TAUS = {"attention~gradient": "tau_attn_grad", "attention~leave-one-out": "tau_attn_loo"}
_STATISTICS = {"mean": "mean", "std": "std", "significant": "pval_sig"}
_BETWEEN = "gradient~leave-one-out"
_EXCESSES = {"attention~leave-one-out": "gl_minus_attnloo", "attention~gradient": "gl_minus_attngrad"}
_CENTRES = {0.3: 0, 0.7: 1}
"""Violins of class 0 stand at .3 of their bin, those of class 1 at .7."""


FAR_BIN = 34
"""Bins from .595 on are called far."""


def published(trial: str, about: Mapping[str, str]) -> dict[str, float]:
    """The authors' numbers for this trial, under the names of our summary; empty where they have none."""
    corpus = _CORPUS.get(about["corpus"], about["corpus"])
    encoder = _ENCODER.get(about["encoder"], about["encoder"])
    key = f"{corpus}+{encoder}+{_ATTENTION.get(about['attention'], about['attention'])}"
    tables, figures = _file("jw_online_tables").get(key, {}), _file("jw_online_figures").get(key, {})
    if trial == "performance":
        return _numbers(tables.get("evaluate", {}), _SCORES)
    if trial == "permutation":
        return _violins(figures.get("fig3_permutation_violin", {}), "median_change")
    if trial == "adversary":
        histograms = figures.get("fig4_emaxjsd_hist", [])
        return _violins(figures.get("fig5_emaxjsd_violin", {}), "epsilon_max") | _histograms(histograms)
    return _agreement(tables) if trial == "agreement" else {}


def _agreement(tables: Mapping[str, dict]) -> dict[str, float]:  # type: ignore[type-arg]
    found: dict[str, float] = {}
    for pair, key in _TAUS.items():
        for group, numbers in tables.get(key, {}).items():
            place = pair if group == "Overall" else f"{pair}.class_{group}"
            found |= {f"{name}.{place}": value for name, value in _numbers(numbers, _STATISTICS).items()}
    between = tables.get("corr_stats", {}).get("grad_loo(file label gl)", {})
    found |= {f"{name}.{_BETWEEN}": value for name, value in _numbers(between, _STATISTICS).items()}
    for pair, key in _EXCESSES.items():
        overall = tables.get(key, {}).get("Overall", {})
        found |= {f"{name}.{_BETWEEN} over {pair}": v for name, v in _numbers(overall, {"excess": "mean"}).items()}
    return found


def _numbers(given: Mapping[str, float | None], names: Mapping[str, str]) -> dict[str, float]:
    """The numbers under our names; an empty cell of the authors' (an undefined tau spoilt their mean) is left out."""
    return {ours: float(given[theirs]) for ours, theirs in names.items() if given.get(theirs) is not None}  # type: ignore[arg-type]


def _violins(bins: Mapping[str, list[dict]], name: str) -> dict[str, float]:  # type: ignore[type-arg]
    """Medians of the violins in each bin of maximum attention."""
    found: dict[str, float] = {}
    for label, violins in bins.items():
        low, high = label.strip("[)").split(",")
        for violin in violins:
            predicted = _CENTRES.get(violin["centre"])
            if predicted is not None:
                found[f"{name}.class_{predicted}.attention_{low}_to_{high}"] = float(violin["q25_q50_q75"][1])
    return found


def _histograms(series: list[dict]) -> dict[str, float]:  # type: ignore[type-arg]
    """Means of the histograms of figure 4: 40 bins on [0, .7], so each bin counts at its centre."""
    found: dict[str, float] = {}
    for predicted, histogram in enumerate(series):
        shares = histogram["frac"]
        if sum(shares) > 0:
            mean = sum(share * (place + 0.5) * 0.0175 for place, share in enumerate(shares)) / sum(shares)
            found[f"mean_epsilon_max.class_{predicted}"] = mean
            found[f"far.class_{predicted}"] = sum(shares[FAR_BIN:]) / sum(shares)
    return found


def table(name: str) -> list[dict]:  # type: ignore[type-arg]
    """The rows of a published table."""
    rows: list[dict] = _file(name)["rows"]  # type: ignore[type-arg, assignment]
    return rows


@cache
def _file(name: str) -> dict[str, dict]:  # type: ignore[type-arg]
    text = files("heedful").joinpath("published", f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, dict] = json.loads(text)  # type: ignore[type-arg]
    return found


def recomputed(name: str) -> dict[str, float]:
    """Figures 6 to 8 by dataset, recomputed from the authors' released rows."""
    found: dict[str, float] = _file("jw_fig6_7_8")["recomputed"][name]
    return found
