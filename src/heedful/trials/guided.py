"""Guided MLP (Wiegreffe & Pinter, section 3.4): do these scores help a model that cannot look at context?

A token-wise perceptron is trained and tested under imposed weights. What it gains over uniform weights must come from
the guide. Two guides that the paper lacks, permuted and random weights, know nothing and must gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pandas as pd

from heedful.core.figures import Axis, Bars, Figure, Series
from heedful.core.types import UserError
from heedful.core.workspace import Artefact, Recipe, Workspace
from heedful.models.encoders import Average
from heedful.models.pooled import Pooled
from heedful.recipes.guides import Borrowed, Guide, Shuffled, Uniform
from heedful.recipes.scored import Scored
from heedful.recipes.subject import Subject
from heedful.trials.arms import (
    check_seeds,
    decisive,
    deviation,
    difference,
    imposed,
    mean,
    scored_on,
    scores,
    signed,
    spoken,
)
from heedful.trials.trial import Trial

TRAINED, UNIFORM = "trained", "uniform"
_FACTS = ("guide", "seed", "null", "silent")


@dataclass(frozen=True)
class Guided(Trial):
    """Test scores of a token-wise model under each guide, one row per guide and seed; its own seed plays no part.

    Args:
        subject: a token-wise model with attention of its own, which is the arm "trained".
        guides: named; "uniform" is added where it is missing, for all others are compared with it.
    """

    name: ClassVar[str] = "guided"
    paper: ClassVar[str] = "wiegreffe-pinter"
    title: ClassVar[str] = "Do these weights help a model that cannot look at context?"
    claim: ClassVar[str] = (
        "If weights tell which words matter, a simple model that sees each word by itself should do better when its "
        "words are weighted so than when all are weighted alike."
    )
    source: ClassVar[str] = "Wiegreffe & Pinter 2019, section 3.4, table 3"
    not_meaning: ClassVar[str] = (
        "Weights that help another model are useful, but need not be the reasons of the model that they come from. "
        "They may also help because they give away what that model would have answered."
    )

    subject: Subject
    guides: tuple[tuple[str, Guide], ...]
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        imposed(self.subject, Uniform())
        model, names = self.subject.model, [name for name, _ in self.guides]
        if not isinstance(model, Pooled) or not isinstance(model.encoder, Average):
            raise UserError("guides are tried on a model that sees each word by itself: give Pooled(Perceptron(), ...)")
        if TRAINED in names or len(set(names)) < len(names):
            raise UserError(f"give each guide a name of its own, and none the name {TRAINED!r}: {', '.join(names)}")
        if not isinstance(dict(self.guides).get(UNIFORM, Uniform()), Uniform):
            raise UserError(f"the guide named {UNIFORM!r} must be Uniform(): the others are compared with it")
        for name, guide in self.guides:
            _check_source(name, guide, self.subject)

    @property
    def arms(self) -> dict[str, Guide | None]:
        """Each guide by name; None stands for the model's own attention."""
        return {UNIFORM: Uniform(), TRAINED: None, **dict(self.guides)}

    @property
    def needs(self) -> tuple[Recipe, ...]:
        """Every training; what guides need, these need in turn."""
        return tuple(self._arm(guide, seed) for guide in self.arms.values() for seed in self.seeds)

    def _arm(self, guide: Guide | None, seed: int) -> Subject:
        own = replace(self.subject, seed=seed)
        return own if guide is None else imposed(own, guide)

    def make(self, workspace: Workspace) -> Artefact:
        """A row per guide and seed with all test scores, as the trainings wrote them down.

        `silent` counts the texts, of all splits, that a guide has nothing to say about.
        """
        rows: list[dict[str, float | int | str | bool]] = []
        for name, guide in self.arms.items():
            null, silent = (False, 0) if guide is None else (guide.null, guide.silent(workspace))
            for seed in self.seeds:
                found = scores(workspace, self._arm(guide, seed))
                rows.append({"guide": name, "seed": seed, "null": null, "silent": silent, **found})
        count = scored_on(workspace, self._arm(None, self.seeds[0]))
        return Artefact(table=pd.DataFrame(rows), notes={"about": dict(self.subject.about), "n": count, "of": count})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """Means over seeds by guide; the paired difference from uniform weights with its 95 % interval (`low`, `high`).

        `deviation`, `difference`, `low` and `high` are of F1 of class 1, of accuracy where there are more classes, of
        Pearson's correlation for numbers; `null` is 1 for guides that know nothing.
        """
        names = [str(column) for column in table.columns if column not in _FACTS]
        score = decisive(names)
        arms = {str(guide): rows.sort_values("seed") for guide, rows in table.groupby("guide", sort=False)}
        found = {"seeds": float(table["seed"].nunique())}
        found |= {f"{name}.{guide}": mean(rows[name]) for name in names for guide, rows in arms.items()}
        for guide, rows in arms.items():
            found[f"deviation.{guide}"] = deviation(rows[score])
            found[f"null.{guide}"] = float(rows["null"].max())
            found[f"silent.{guide}"] = float(rows["silent"].max())
            if guide != UNIFORM:
                gain = difference(rows[score].tolist(), arms[UNIFORM][score].tolist())
                found |= {f"difference.{guide}": gain.mean, f"low.{guide}": gain.low, f"high.{guide}": gain.high}
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """The deciding score under each guide, with its deviation over seeds."""
        score = decisive([str(column) for column in table.columns])
        arms = {str(guide): rows[score] for guide, rows in table.groupby("guide", sort=False)}
        bars = Series(spoken(score), tuple(mean(values) for values in arms.values()))
        errors = Series(spoken(score), tuple(deviation(values) for values in arms.values()))
        axis = Axis(f"{spoken(score)}, mean over seeds, on test")
        return (Bars("A token-wise model under each guide", axis, tuple(arms), (bars,), (errors,)),)

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """A verdict for each guide, nulls named as such."""
        score = decisive([name.split(".")[0] for name in summary])
        uniform = summary[f"{score}.{UNIFORM}"]
        guides = [name.removeprefix("difference.") for name in summary if name.startswith("difference.")]
        # Guides that know nothing come last: they are what the others are measured by.
        guides.sort(key=lambda guide: summary[f"null.{guide}"])
        words = ["The model sees each word by itself.", f"With all words alike its {spoken(score)} is {uniform:.3f}."]
        words += [_told(guide, summary) for guide in guides]
        words += [
            f"{guide} had nothing to say about {summary[f'silent.{guide}']:.0f} texts, which were weighted alike."
            for guide in guides
            if summary[f"silent.{guide}"]
        ]
        if any(summary[f"null.{guide}"] and summary[f"low.{guide}"] > 0 for guide in guides):
            words.append("A guide that knows nothing helps here, so the gains of the others are no evidence.")
        return " ".join(words)


def _told(guide: str, summary: Mapping[str, float]) -> str:
    gain, low, high = (summary[f"{name}.{guide}"] for name in ("difference", "low", "high"))
    called = f"{guide} (which knows nothing)" if summary[f"null.{guide}"] else guide
    called = "Its own trained attention" if guide == TRAINED else called
    if math.isnan(low):
        return f"{called}: {signed(gain)}, undecided with fewer than two seeds; train more."
    verdict = "helps" if low > 0 else "harms" if high < 0 else "cannot be told from uniform weights"
    return f"{called} {verdict}: {signed(gain)} (95 % interval {signed(low)} to {signed(high)})."


def _check_source(name: str, guide: Guide, learner: Subject) -> None:
    """Refuses weights of other texts, and borrowed attention over units whose ids mean other words to the learner."""
    if isinstance(guide, Shuffled):
        _check_source(name, guide.guide, learner)
    if isinstance(guide, Borrowed | Scored) and guide.subject.corpus != learner.corpus:
        raise UserError(f"the guide {name!r} was trained on another corpus than the learner: give both the same")
    if isinstance(guide, Borrowed) and guide.subject.batching != learner.batching:
        raise UserError(
            f"the guide {name!r} lends attention over other units than the learner reads: give both the same "
            "preprocessing, or take its scores by word: Scored(subject, RawAttention())"
        )
