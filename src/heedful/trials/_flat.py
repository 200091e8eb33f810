"""Transitional: tidy summaries under their old flat names, for chapters that are not ported yet."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from heedful.trials._trial import Statistic, Verdict

_BOUNDS = ("low", "high")


def flatten(trial: str, rows: list[Statistic], verdicts: dict[tuple[str, str], Verdict]) -> dict[str, float]:
    """The statistics of a trial by the names that its flat summary had."""
    found: dict[str, float] = {}
    for row in rows:
        found |= _RULES.get(trial, _plain)(row)
    for (method, subset), verdict in verdicts.items():
        place = {"necessity": "", "simulability": f".{method}.{subset.removesuffix(' examples')}"}.get(trial)
        if place is not None:
            names = {Verdict.SUPPORTED: "helps", Verdict.NOT_SUPPORTED: "does_not_help", Verdict.UNDECIDED: "undecided"}
            found |= {f"{name}{place}": float(verdict is each) for each, name in names.items()}
    return found


def statistics_of(summary: pd.DataFrame) -> list[Statistic]:
    return [Statistic(*row) for row in summary[list(Statistic.__dataclass_fields__)].itertuples(index=False)]


def _key(*parts: str) -> str:
    words = [piece.replace(" ", "_") for part in parts[2:] for piece in part.split(", ")]
    return ".".join(filter(None, [*parts[:2], *words]))


def _plain(row: Statistic) -> dict[str, float]:
    return {_key(row.metric, row.method, row.subset): row.value}


def _with_n(row: Statistic) -> dict[str, float]:
    name = {"lambda": ""}.get(row.metric, row.metric)
    method = row.method.replace(" ", "_")
    found = {_key(name, method, row.subset): row.value} if name else {}
    counted = row.metric in ("median_change", "epsilon_max", "jsd") and not row.method
    if row.metric == "certified":
        found["not_certified"] = float(round((1 - row.value) * row.n)) if row.n else 0.0
    return found | ({_key("n", "", row.subset): row.n} if counted else {})


def _attefa(row: Statistic) -> dict[str, float]:
    return {row.metric: row.value} | ({"adversaries": row.n} if row.metric == "attefa" else {})


def _arms(row: Statistic) -> dict[str, float]:
    if row.metric == "control":
        return {f"null.{row.method}": row.value}
    if row.metric == "difference":
        place = f".{row.method}"
        return {f"difference{place}": row.value, f"low{place}": row.low, f"high{place}": row.high, "seeds": row.n}
    name = {"std": "deviation", "uniform_fallbacks": "silent"}.get(row.metric, row.metric)
    found = {_key(name, row.method): row.value}
    return found | ({f"null.{row.method}": 0.0} if row.metric == "std" else {})


def _necessity(row: Statistic) -> dict[str, float]:
    if row.metric == "difference":
        return {"difference": row.value, "low": row.low, "high": row.high, "seeds": row.n}
    return {_key({"std": "deviation"}.get(row.metric, row.metric), row.method): row.value}


def _agreement(row: Statistic) -> dict[str, float]:
    if row.metric == "control":
        return {}
    if row.metric == "texts":
        return {"n": row.value}
    found = {_key(row.metric, row.method, row.subset): row.value}
    return found | ({_key("n", row.method, row.subset): row.n} if row.metric == "mean" else {})


def _faithfulness(row: Statistic) -> dict[str, float]:
    if row.metric in ("control", "texts"):
        return {"n": row.value} if row.metric == "texts" else {}
    if not row.metric.endswith("_excess"):
        return {_key(row.metric, row.method): row.value}
    place = f"{row.metric.removesuffix('_excess')}.{row.method}"
    return {f"excess.{place}": row.value, f"low.{place}": row.low, f"high.{place}": row.high}


def _truth(row: Statistic) -> dict[str, float]:
    if row.metric in ("control", "texts"):
        return {"n": row.value} if row.metric == "texts" else {}
    found = {_key(row.metric, row.method): row.value}
    if row.metric == "precision":
        found |= {f"low.{row.method}": row.low, f"high.{row.method}": row.high}
    if row.metric in ("above_random", "above_adversarial"):
        ends = {"low": row.low, "high": row.high, "texts": row.n}
        found |= {f"{row.metric}_{end}.{row.method}": value for end, value in ends.items()}
    return found


def _simulability(row: Statistic) -> dict[str, float]:
    if row.metric in ("size", "control"):
        return {} if row.metric == "size" else {f"control.{row.method}": 1.0}
    place = _key("", row.method, row.subset.removesuffix(" examples"))
    name = row.metric.replace("over_control", "over_null")
    found = {_key(name, place): row.value}
    prefix = {"mean": "", "difference": "difference_", "over_null": "over_null_"}.get(name)
    if prefix is not None:
        found |= {f"{prefix}{end}.{place}": getattr(row, end) for end in _BOUNDS}
    return found


def _plausibility(row: Statistic) -> dict[str, float]:
    if row.metric == "texts":
        return {"n": row.value}
    if row.metric.startswith("ranked_by_"):
        return {row.metric.replace("ranked_by_", "ranked."): row.value}
    if not row.method:
        return {_key(row.metric, "", row.subset): row.value}
    method = f"{row.method} ({row.subset})" if row.subset else row.method
    name = {"control": "null", "held_out": "elsewhere"}.get(row.metric, row.metric)
    if name in ("null", "oracle", "elsewhere"):
        return {f"{name}.{method}": row.value}
    if name.endswith("_excess"):
        place = f"{name.removesuffix('_excess')}.{method}"
        return {f"excess.{place}": row.value, f"excess_low.{place}": row.low, f"excess_high.{place}": row.high}
    return {f"{name}.{method}": row.value, f"low.{name}.{method}": row.low, f"high.{name}.{method}": row.high}


_RULES = {
    "permutation": _with_n,
    "adversary": _with_n,
    "seeds": _with_n,
    "tradeoff": _with_n,
    "necessity": _necessity,
    "guided": _arms,
    "attefa": _attefa,
    "agreement": _agreement,
    "faithfulness": _faithfulness,
    "truth": _truth,
    "simulability": _simulability,
    "plausibility": _plausibility,
}


def add_missing_flags(trial: str, flat: dict[str, float]) -> dict[str, float]:
    """Old summaries had a flag 0 where the tidy one has no row."""
    found = dict(flat)
    if trial == "simulability":
        for name in flat:
            if name.startswith("median."):
                place = name.removeprefix("median.")
                found[f"null.{place}"] = flat.get(f"control.{place.rpartition('.')[0]}", 0.0)
    if trial == "plausibility":
        for name in flat:
            if name.startswith("auc."):
                for flag in ("null", "oracle", "elsewhere"):
                    found.setdefault(f"{flag}.{name.removeprefix('auc.')}", 0.0)
    return {name: float(value) if value is not None else math.nan for name, value in found.items()}


def flat_measure_verdicts(summary: Mapping[str, float]) -> dict[str, dict[str, bool | None]]:
    """Transitional: `measure_verdicts` of a flat summary."""
    from heedful.trials.ground_truth import ALL_MEASURES, CONTROL_LABELS

    found: dict[str, dict[str, bool | None]] = {}
    for measure in ALL_MEASURES:
        for rival in CONTROL_LABELS.values():
            low = summary.get(f"above_{rival}_low.{measure}")
            if low is not None:
                found.setdefault(measure, {})[rival] = None if math.isnan(low) else low > 0
    return found
