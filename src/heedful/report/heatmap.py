"""Token heat-maps: the text with each token shaded by its weight, and the choice of example texts.

A shade is the share of the heaviest weight of its row in twentieths, given as a class (`p20` ... `p01` for positive,
`n01` ... `n20` for negative weights), so that no style attribute is needed and text keeps its contrast in both themes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from numpy.typing import NDArray

from heedful.figures import Heatmap, Series
from heedful.papers._chapter import MAX_EXAMPLE_TOKENS, MIN_EXAMPLE_TOKENS, readable_texts
from heedful.report.html import format_number
from heedful.trials.permutation import SMALL_CHANGE

SHADES = 20
_NEGATIVE_SHADES, _POSITIVE_SHADES = (("", *(f"{sign}{step:02d}" for step in range(1, SHADES + 1))) for sign in "np")
_FOLD_AFTER = 90
"""Tokens of a long text that are visible at first."""
_ALIGNED_UP_TO = 30
"""Tokens up to which rows stand one below the other."""
_WORD_STARTS = ("Ġ", "▁", " ")


@dataclass(frozen=True)
class HeatmapRow:
    """The text under one row of weights, in a visible and a folded part."""

    name: str
    head: Markup
    rest: Markup
    peak: str
    is_signed: bool


@dataclass(frozen=True)
class HeatmapView:
    """A heat-map for the templates."""

    figure: Heatmap
    rows: tuple[HeatmapRow, ...]
    folded: int
    """Number of tokens in the folded part."""

    @property
    def layout(self) -> str:
        """CSS class: rows below each other for short texts, side by side for long ones."""
        if len(self.rows) < 2:
            return ""
        return "aligned" if len(self.figure.units) <= _ALIGNED_UP_TO else "beside"


def heatmap_view(figure: Heatmap, marked: Collection[int] = ()) -> HeatmapView:
    """Tokens, gaps and shades of a heat-map.

    Args:
        marked: numbers of the units that are underlined in the first row.
    """
    spaced = [(f"{gap}<span", f'">{escape(text)}</span>') for gap, text in token_spacing(figure.units)]
    cut = _FOLD_AFTER if len(spaced) > _FOLD_AFTER * 4 // 3 else len(spaced)
    rows = []
    for place, row in enumerate(figure.rows):
        weights = [value for value in row.values if value is not None and math.isfinite(value)]
        peak = max(map(abs, weights), default=0.0)
        hits = marked if place == 0 else ()
        spans = []
        for unit, ((start, end), value) in enumerate(zip(spaced, row.values, strict=True)):
            shade = shade_class(value, peak)
            if unit in hits:
                shade = f"{shade} hit".lstrip()
            style = f' class="{shade}" title="' if shade else ' title="'
            spans.append(start + style + format_number(value) + end)
        head, rest = (Markup("".join(part)) for part in (spans[:cut], spans[cut:]))  # safe: the text is escaped
        rows.append(HeatmapRow(row.name, head, rest, format_number(peak), min(weights, default=0.0) < 0))
    return HeatmapView(figure, tuple(rows), len(spaced) - cut)


def token_spacing(units: Sequence[str]) -> list[tuple[str, str]]:
    """The space before each token and its text: pieces of one word stand together.

    Pieces are recognised by the marks of their tokenizer: `##` continues a word; `Ġ`, `▁` or a space starts one.

    >>> token_spacing(("play", "##ing", "well")) == token_spacing(("Ġplay", "ing", "Ġwell"))
    True
    >>> token_spacing(("play", "##ing", "well"))
    [('', 'play'), ('', 'ing'), (' ', 'well')]
    """
    marked = any(unit.startswith(_WORD_STARTS) and len(unit) > 1 for unit in units)
    pairs = []
    for unit in units:
        if len(unit) > 2 and unit.startswith("##"):
            pairs.append(("", unit[2:]))
        elif marked:
            starts = unit.startswith(_WORD_STARTS)
            pairs.append((" " if starts else "", unit[1:] if starts and len(unit) > 1 else unit))
        else:
            pairs.append((" ", unit))
    return [("" if place == 0 else gap, text) for place, (gap, text) in enumerate(pairs)]


def shade_class(value: float, peak: float) -> str:
    """The class of a shade; empty for no shade, "u" for an undefined weight.

    >>> shade_class(0.5, 0.5), shade_class(-0.1, 0.5), shade_class(0.001, 0.5), shade_class(float("nan"), 0.5)
    ('p20', 'n04', '', 'u')
    """
    if value is None or not math.isfinite(value):
        return "u"
    step = round(SHADES * abs(value) / peak) if peak else 0
    return _NEGATIVE_SHADES[step] if value < 0 else _POSITIVE_SHADES[step]


EXAMPLE_COLUMNS = frozenset({"uid", "length", "maximum_attention"})
"""Columns of a trial whose texts are shown as examples."""


def example_heatmaps(
    table: pd.DataFrame, attributions: Mapping[str, Mapping[str, list[object]]], classes: Sequence[str]
) -> tuple[Heatmap, ...]:
    """Texts on which a trial is seen best, for tables with permuted (`median_change`) or adversarial attention.

    Args:
        table: the trial, one row per text.
        attributions: columns of attributions on the same texts by method; "attention" is needed, "gradient" is shown.
    """
    places = {
        name: {uid: place for place, uid in enumerate(columns["uid"])}
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
    lengths = (
        f" (of texts with {MIN_EXAMPLE_TOKENS} to {MAX_EXAMPLE_TOKENS} tokens)" if len(chosen) < len(table) else ""
    )
    found: list[tuple[str, pd.Series]] = []
    if "median_change" in table:
        found = _permutation_examples(chosen)
    elif {"epsilon_max", "adversary"} <= {*table.columns}:
        found = _adversary_examples(chosen)

    def text(method: str, uid: str) -> pd.Series:
        row = places[method][uid]
        return pd.Series({name: cells[row] for name, cells in attributions[method].items()}, dtype=object)

    return tuple(
        _example(title + lengths, row, {method: text(method, row["uid"]) for method in places}, classes)
        for title, row in found
    )


def _permutation_examples(table: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    ordered, peaked = _order(table, "median_change")
    found = [("Permutation changes this output most", table.iloc[ordered[-1]])]
    if len(peaked):
        row = table.iloc[peaked[0]]
        little = ", permutation changes little" if row["median_change"] < SMALL_CHANGE else ""
        found.append((f"One token has most of the attention{little}", row))
    return [*found, ("Median text", table.iloc[ordered[len(ordered) // 2]])]


def _adversary_examples(table: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    ordered, peaked = _order(table, "epsilon_max")
    chosen = [("Peaked attention with the most distant alternative", peaked[-1])] if len(peaked) else []
    chosen += [("Median text", ordered[len(ordered) // 2]), ("Smallest divergence", ordered[0])]
    return [(title, table.iloc[place]) for title, place in chosen]


def _order(table: pd.DataFrame, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows by a column and then by uid, and those of them with one token that has half of the attention."""
    ordered = np.lexsort((table["uid"].to_numpy(str), table[column].to_numpy(float)))
    return ordered, ordered[(table["maximum_attention"].to_numpy(float) >= 0.5)[ordered]]


def _class_name(number: float, classes: Sequence[str]) -> str:
    return classes[int(number)] if int(number) < len(classes) else f"class {int(number)}"


def _example(title: str, row: pd.Series, texts: Mapping[str, pd.Series], classes: Sequence[str]) -> Heatmap:
    text = texts["attention"]
    kept = [place for place, scored in enumerate(text["scored"]) if scored]
    weights = [float(text["scores"][place]) for place in kept]
    if "queries" in row:  # of a transformer: the weights that are replaced, not the mean of all attention
        own = dict(zip(row["units"], row["attention"], strict=True))
        weights = [float(own.get(place, 0.0)) for place in kept]
    rows = [Series("attention", tuple(weights))]
    caption = [f"predicted {_class_name(row['predicted'], classes)} ({text['probability']:.2f})"]
    if text["label"] is not None and text["label"] == text["label"]:
        caption.append(f"label {_class_name(text['label'], classes)}")
    caption.append(f"largest weight {max(weights, default=0.0):.2f}")
    if "median_change" in row:
        caption.append(f"median change under permutation {row['median_change']:.3f}")
    else:
        adversary = dict(zip(row["units"], row["adversary"], strict=True))
        rows.append(Series("adversarial attention", tuple(float(adversary.get(place, 0.0)) for place in kept)))
        caption.append(f"divergence {row['epsilon_max']:.3f} of at most {row['bound']:.3f}")
        caption.append(f"output changes by {row['change']:.3f}")
    if "gradient" in texts:
        sizes = np.abs([float(texts["gradient"]["scores"][place]) for place in kept])
        rows.append(Series("|gradient|, normalised", tuple((sizes / (sizes.sum() or 1.0)).tolist())))
    return Heatmap(title, tuple(str(text["units"][place]) for place in kept), tuple(rows), "; ".join(caption))
