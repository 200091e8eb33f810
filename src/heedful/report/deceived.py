"""Figure 2 of Wiegreffe & Pinter: texts with the base's attention, free weights for the same output, and the attention
that an adversary was really trained to give.

Only what is stored is shown: words come from an attribution of the base, the adversary's weights from its answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from heedful.figures import Heatmap, Series
from heedful.report.examples import MIN_EXAMPLE_WORDS
from heedful.report.shelves import REQUIRED_COLUMNS, method_type
from heedful.store.recipe import Artefact, Json, artefact_name
from heedful.store.workspace import IndexEntry
from heedful.trials.adversarial_training import AdversarialTradeoff

MAX_EXAMPLE_WORDS = 60
"""Words of the longest text that is shown, if there are shorter ones."""
SAME_OUTPUT_TOLERANCE = 0.05
"""A change of probability up to which an answer counts as the same: Jain & Wallace's epsilon."""


@dataclass(frozen=True)
class _AdversaryExamples:
    """One trained adversary, and what is stored about the texts that it was tested on."""

    strength: float
    words: pd.DataFrame
    free_weights: pd.DataFrame | None
    predictions: Artefact
    classes: Sequence[str]


def tradeoff_heatmaps(tradeoff: IndexEntry, finished: Sequence[IndexEntry]) -> tuple[Heatmap, ...]:
    """Two texts of a finished trade-off; none where the base's words or the adversary's answers are not stored."""
    table = tradeoff.load().table
    strength = _choose_lambda(table)
    found = _find_adversary(tradeoff.recipe, strength, finished)
    if found is None:
        return ()
    fought = table[(table["kind"] == "lambda") & (table["setting"] == strength)]
    rows = fought.merge(found.words, on="uid", suffixes=("", "_shown"))
    return tuple(_adversary_heatmap(title, row, found) for title, row in _choose_texts(rows))


def _choose_lambda(table: pd.DataFrame) -> float:
    """Table 4's lambda, or that of the farthest adversary where none is far enough for table 4."""
    chosen = AdversarialTradeoff.flat_summary(table)["chosen_lambda"]
    means = table[table["kind"] == "lambda"].groupby("setting")["jsd"].mean()
    return chosen if chosen == chosen else float(str(means.idxmax()))


def _find_adversary(
    recipe: Mapping[str, Json], strength: float, finished: Sequence[IndexEntry]
) -> _AdversaryExamples | None:
    subject = _recipe_name(recipe["subject"])
    stored = [each for each in finished if _is_about_subject(each, subject)]
    words = [
        each.load().table
        for each in stored
        if each.recipe_class == "AttributionTable" and method_type(each) == "RawAttention"
    ]
    words = [table for table in words if set(table.columns) >= REQUIRED_COLUMNS]
    answers = [
        each
        for each in finished
        if each.recipe_class == "Predictions" and _is_adversary_prediction(each, recipe, strength)
    ]
    if not words or not answers:
        return None
    free = [
        each.load().table
        for each in stored
        if each.recipe_class == "AdversarialAttention" and each.recipe["solver"] == "search"
    ]
    trained = [each.load().notes["classes"] for each in finished if each.name == subject]
    classes = trained[0] if trained and isinstance(trained[0], list) else []
    return _AdversaryExamples(
        strength, words[0], free[0] if free else None, answers[0].load(), [str(name) for name in classes]
    )


def _recipe_name(description: Json) -> str:
    assert isinstance(description, dict)
    return artefact_name(description)


def _is_about_subject(each: IndexEntry, subject: str) -> bool:
    """Whether an attribution or trial is about the test texts of this subject."""
    if (
        each.recipe_class not in ("AttributionTable", "AdversarialAttention")
        or each.recipe.get("split", "test") != "test"
    ):
        return False
    return _recipe_name(each.recipe["subject"]) == subject


def _is_adversary_prediction(each: IndexEntry, recipe: Mapping[str, Json], strength: float) -> bool:
    """Whether these are the test answers of the trade-off's adversary at this lambda."""
    asked, base = each.recipe["subject"], recipe["subject"]
    assert isinstance(asked, dict)
    assert isinstance(base, dict)
    objective = asked["objective"]
    if not isinstance(objective, dict) or objective["type"] != "AdversarialTraining" or each.recipe["split"] != "test":
        return False
    told = {
        "base": base,
        "kl_weight": strength,
        "initialization": recipe["initialization"],
        "rescale_by_class_weights": recipe["rescale_by_class_weights"],
    }
    trained = {"seed": recipe["adversary_seed"], "training": recipe["training"], "objective": objective}
    return asked == {**base, **trained} and all(objective[name] == value for name, value in told.items())


def _choose_texts(rows: pd.DataFrame) -> Iterable[tuple[str, pd.Series]]:
    """The text on which a trained adversary attends farthest elsewhere for the same answer, and a typical one."""
    shown = rows[rows["length"].between(MIN_EXAMPLE_WORDS, MAX_EXAMPLE_WORDS)]
    ordered = (shown if len(shown) else rows).sort_values(["jsd", "uid"]).reset_index(drop=True)
    if not len(ordered):
        return
    same = ordered[ordered["stvd"] <= SAME_OUTPUT_TOLERANCE]
    if len(same):
        yield "Figure 2: a trained model attends quite elsewhere and answers the same", same.iloc[-1]
    yield "Figure 2: a typical text", ordered.iloc[len(ordered) // 2]


def _adversary_heatmap(title: str, row: pd.Series, found: _AdversaryExamples) -> Heatmap:
    kept = [index for index, scored in enumerate(row["scored"]) if scored]
    rows = [Series("base", tuple(float(row["scores"][index]) for index in kept))]
    told = []
    free = None if found.free_weights is None else found.free_weights[found.free_weights["uid"] == row["uid"]]
    if free is not None and len(free):
        other = free.iloc[0]
        places = {int(place): float(weight) for place, weight in zip(other["units"], other["adversary"], strict=True)}
        rows.append(Series("free weights (Jain & Wallace)", tuple(places.get(index, 0.0) for index in kept)))
        told.append(f"free weights: divergence {other['epsilon_max']:.3f}, change {other['change']:.3f}")
    place = found.predictions.table["uid"].tolist().index(row["uid"])
    attention = found.predictions.tensors["attention"][place].sum((0, 1, 2)).tolist()
    rows.append(Series(f"trained adversary, lambda {found.strength:g}", tuple(attention[index] for index in kept)))
    told.append(f"trained adversary: divergence {row['jsd']:.3f}, change {row['stvd']:.3f}")
    caption = "; ".join([_prediction_caption(row, found.classes), *told])
    return Heatmap(title, tuple(str(row["units"][index]) for index in kept), tuple(rows), caption)


def _prediction_caption(row: pd.Series, classes: Sequence[str]) -> str:
    predicted = int(row["predicted"])
    name = classes[predicted] if predicted < len(classes) else f"class {predicted}"
    return f"the base predicts {name} ({row['probability']:.3f})"
