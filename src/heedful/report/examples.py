"""Texts that show what a trial found: where shuffling matters most, and what another attention looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from heedful.figures import Heatmap, Series

TRIALS_WITH_EXAMPLES = ("permutation", "adversary")
"""Trials that are shown on texts."""
EXAMPLE_METHODS = ("RawAttention", "Gradient")
"""Attributions that stand beside each other there."""
MIN_EXAMPLE_WORDS = 6
"""Words that a text needs to be shown, if there are such texts."""


@dataclass(frozen=True)
class ExampleScores:
    """What was attributed to the units of the same texts: attention, and the gradient where it was computed."""

    attention: pd.DataFrame
    gradient: pd.DataFrame | None
    classes: Sequence[str]


def example_heatmaps(trial: str, table: pd.DataFrame, scores: ExampleScores) -> tuple[Heatmap, ...]:
    """The chosen texts, each with attention, the adversary where there is one, and the gradient."""
    column = "median_change" if trial == "permutation" else "epsilon_max"
    kept = ["uid", "units", "scores", "scored", "probability", "label"]
    merged = table.merge(scores.attention[kept], on="uid", suffixes=("", "_shown"))
    if scores.gradient is not None:
        merged = merged.merge(scores.gradient[["uid", "scores"]], on="uid", suffixes=("", "_gradient"))
    chosen = _permutation_examples(merged) if trial == "permutation" else _adversary_examples(merged)
    return tuple(_example_heatmap(title, row, scores.classes, column) for title, row in chosen)


def _drop_short_texts(table: pd.DataFrame) -> pd.DataFrame:
    """In a text of a few words there is hardly anything to shuffle."""
    return table[table["length"] >= MIN_EXAMPLE_WORDS] if (table["length"] >= MIN_EXAMPLE_WORDS).any() else table


def _permutation_examples(table: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    ordered = _drop_short_texts(table).sort_values(["median_change", "uid"]).reset_index(drop=True)
    sharp = ordered[ordered["maximum_attention"] >= 0.5]
    chosen = [("Shuffling matters most here", ordered.iloc[-1]), ("A typical text", ordered.iloc[len(ordered) // 2])]
    if len(sharp):
        chosen.insert(1, ("One word holds most of the attention, yet shuffling hardly matters", sharp.iloc[0]))
    return chosen


def _adversary_examples(table: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    ordered = _drop_short_texts(table).sort_values(["epsilon_max", "uid"]).reset_index(drop=True)
    sharp = ordered[ordered["maximum_attention"] >= 0.5]
    chosen = [("A typical text", ordered.iloc[len(ordered) // 2]), ("Hardest to explain otherwise", ordered.iloc[0])]
    if len(sharp):
        chosen.insert(0, ("Attention is sharp, yet quite other weights would do", sharp.iloc[-1]))
    return chosen


def _example_heatmap(title: str, row: pd.Series, classes: Sequence[str], column: str) -> Heatmap:
    shown = "units_shown" if "units_shown" in row else "units"
    kept = [index for index, scored in enumerate(row["scored"]) if scored]
    rows = [Series("attention", tuple(float(row["scores"][index]) for index in kept))]
    if column == "epsilon_max":
        places = {int(place): weight for place, weight in zip(row["units"], row["adversary"], strict=True)}
        rows.append(Series("other weights, same output", tuple(float(places.get(index, 0.0)) for index in kept)))
    if "scores_gradient" in row:
        sizes = [abs(float(row["scores_gradient"][index])) for index in kept]
        rows.append(Series("gradient", tuple(size / (sum(sizes) or 1.0) for size in sizes)))
    return Heatmap(
        title, tuple(str(row[shown][index]) for index in kept), tuple(rows), _example_caption(row, classes, column)
    )


def _example_caption(row: pd.Series, classes: Sequence[str], column: str) -> str:
    known = row["label"] is not None and row["label"] == row["label"]
    label = f", truly {classes[int(row['label'])]}" if known else ""
    told = f"predicted {classes[int(row['predicted'])]} ({row['probability']:.2f}){label}"
    largest = f"largest weight {row['maximum_attention']:.2f}"
    if column == "median_change":
        return f"{told}; {largest}; median change when shuffled {row['median_change']:.3f}"
    moved = f"the other weights change the output by {row['change']:.3f}"
    return f"{told}; {largest}; divergence {row['epsilon_max']:.3f} of at most {row['bound']:.3f}; {moved}"
