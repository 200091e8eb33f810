"""Example texts: those that can be read, and those on which a trial is seen best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heedful.figures import Heatmap
from heedful.papers.chapter import class_name, token_heatmap, weights_by_unit
from heedful.trials.permutation import SMALL_CHANGE

MIN_EXAMPLE_TOKENS, MAX_EXAMPLE_TOKENS = 6, 60
"""Lengths of the texts that heat-maps prefer."""
EXAMPLE_COLUMNS = frozenset({"uid", "length", "maximum_attention"})
"""Columns of a trial whose texts are shown as examples."""


def readable_texts(table: pd.DataFrame, lengths: pd.Series) -> pd.DataFrame:
    """The rows of texts that are neither very short nor long; all rows if there are none."""
    chosen = table[lengths.between(MIN_EXAMPLE_TOKENS, MAX_EXAMPLE_TOKENS)]
    return chosen if len(chosen) else table


def example_heatmaps(
    table: pd.DataFrame, attributions: Mapping[str, Mapping[str, list[object]]], classes: Sequence[str]
) -> tuple[Heatmap, ...]:
    """Texts on which a trial is seen best, for tables with permuted (`median_change`) or adversarial attention.

    Args:
        table: the trial, one row per text.
        attributions: columns of attributions on the same texts by method; "attention" is needed, "gradient" is shown.
    """
    places = {
        name: {uid: row for row, uid in enumerate(columns["uid"])}
        for name, columns in attributions.items()
        if {"uid", "scores"} <= columns.keys()
    }
    if "attention" not in places or not {*table.columns} >= EXAMPLE_COLUMNS:
        return ()
    known = set.intersection(*({*rows} for rows in places.values()))
    table = table[[uid in known for uid in table["uid"]]]
    if table.empty:
        return ()
    chosen = readable_texts(table, table["length"])
    span = f" (of texts with {MIN_EXAMPLE_TOKENS} to {MAX_EXAMPLE_TOKENS} tokens)" if len(chosen) < len(table) else ""
    examples: list[tuple[str, pd.Series]] = []
    if "median_change" in table:
        examples = _permutation_examples(chosen)
    elif {"epsilon_max", "adversary"} <= {*table.columns}:
        examples = _adversary_examples(chosen)

    def text(method: str, uid: str) -> pd.Series:
        row = places[method][uid]
        return pd.Series({name: cells[row] for name, cells in attributions[method].items()}, dtype=object)

    return tuple(
        _example(title + span, row, {method: text(method, row["uid"]) for method in places}, classes)
        for title, row in examples
    )


def _permutation_examples(table: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    ordered, peaked = _order(table, "median_change")
    examples = [("Permutation changes this output most", table.iloc[ordered[-1]])]
    if len(peaked):
        row = table.iloc[peaked[0]]
        little = ", permutation changes little" if row["median_change"] < SMALL_CHANGE else ""
        examples.append((f"One token has most of the attention{little}", row))
    return [*examples, ("Median text", table.iloc[ordered[len(ordered) // 2]])]


def _adversary_examples(table: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    ordered, peaked = _order(table, "epsilon_max")
    chosen = [("Peaked attention with the most distant alternative", peaked[-1])] if len(peaked) else []
    chosen += [("Median text", ordered[len(ordered) // 2]), ("Smallest divergence", ordered[0])]
    return [(title, table.iloc[row]) for title, row in chosen]


def _order(table: pd.DataFrame, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows by a column and then by uid, and those of them with one token that has half of the attention."""
    ordered = np.lexsort((table["uid"].to_numpy(str), table[column].to_numpy(float)))
    return ordered, ordered[(table["maximum_attention"].to_numpy(float) >= 0.5)[ordered]]


def _example(title: str, row: pd.Series, texts: Mapping[str, pd.Series], classes: Sequence[str]) -> Heatmap:
    text = texts["attention"]
    weights: Sequence[float] = text["scores"]
    if "queries" in row:  # of a transformer: the weights that are replaced, not the mean of all attention
        weights = weights_by_unit(row, "attention", len(text["units"]))
    scores: dict[str, Sequence[float]] = {"attention": weights}
    caption = [f"predicted {class_name(row['predicted'], classes)} ({text['probability']:.2f})"]
    if text["label"] is not None and text["label"] == text["label"]:
        caption.append(f"label {class_name(text['label'], classes)}")
    largest = max((weight for weight, scored in zip(weights, text["scored"], strict=True) if scored), default=0.0)
    caption.append(f"largest weight {largest:.2f}")
    if "median_change" in row:
        caption.append(f"median change under permutation {row['median_change']:.3f}")
    else:
        scores["adversarial attention"] = weights_by_unit(row, "adversary", len(text["units"]))
        caption.append(f"divergence {row['epsilon_max']:.3f} of at most {row['bound']:.3f}")
        caption.append(f"output changes by {row['change']:.3f}")
    if "gradient" in texts:
        sizes = np.abs(np.asarray(texts["gradient"]["scores"], dtype=float))
        scores["|gradient|, normalized"] = sizes / (sizes[np.asarray(text["scored"], dtype=bool)].sum() or 1.0)
    return token_heatmap(title, text, scores, "; ".join(caption))
