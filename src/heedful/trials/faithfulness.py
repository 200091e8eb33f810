"""Faithfulness: take the words away that an explanation calls important, and see whether the prediction goes with them.

Agreement of explanations says nothing about their truth; here the model itself is asked. Every number stands beside
that of random scores on the same texts, with an interval: a method that does not beat them explains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.attributions.asking import Baselines, check_baselines
from heedful.attributions.perturbation import Random
from heedful.core.bootstrap import paired_bootstrap
from heedful.core.faithfulness import MEASURES, Evidence
from heedful.core.figures import Axis, Bars, Figure, Lines, Series
from heedful.core.types import Batch, Method, Model, Split, UserError
from heedful.core.workspace import Artefact, Recipe, Workspace, derived_seed
from heedful.recipes.attributed import Attributed, sampled
from heedful.recipes.subject import Subject
from heedful.recipes.training import inference_batches
from heedful.trials.agreement import named
from heedful.trials.evidence import Probing, looked_up
from heedful.trials.shaking import shaken_scores
from heedful.trials.signs import UNSIGNED, told, unsigned, without_signs
from heedful.trials.trial import Trial

FEWEST = 10
"""With fewer texts than this there is no interval."""

RESAMPLES = 1000
_TEXTS = 32
_GRID = np.linspace(0.0, 1.0, 21)
_SHOWN = (("aopc_comprehensiveness", "aopc_sufficiency"), ("deletion_auc", "insertion_auc", "decision_flip"))


@dataclass(frozen=True)
class Faithfulness(Trial):
    """All measures of faithfulness for all methods, one row per instance and method; random scores are the null.

    Args:
        remove: what becomes of a unit that is taken away: "delete" closes the gap (an image's patch is blanked),
            "pad", "unk", "mask" put that symbol in its place, "zero" the zero vector.
        seed: of the null, of random removals, and of the order of tied units.
        limit: at most this many test instances.
        absolute: rank units by the size of their score; else by the score itself, so that what speaks against the
            prediction goes last. Methods without signs (attention, `LeaveOneOut` on the probability) cannot do so;
            the reading names them. `trials.signs.signed` gives methods in their form with signs, where they have one.
        steps: points of the deletion and insertion curves; a text with fewer units has a point for each.
        samples: random removals for infidelity.
        changes: small changes of the input for sensitivity, for each of which every method runs again; 0 leaves it out.
    """

    name: ClassVar[str] = "faithfulness"
    paper: ClassVar[str] = "disagreement"
    title: ClassVar[str] = "Does the prediction depend on the words that an explanation names?"
    claim: ClassVar[str] = (
        "If an explanation is faithful, the prediction should fall when the words that it ranks highest are taken "
        "away, and hold when only these are left, more so than with words picked at random."
    )
    source: ClassVar[str] = "DeYoung et al. 2020 (ERASER); Petsiuk et al. 2018; Yeh et al. 2019; named by Neely et al."
    not_meaning: ClassVar[str] = (
        "A text with words taken away is no text that the model was trained on: part of every fall is mere surprise, "
        "which is why random words are taken away too. Methods that themselves take words away have an advantage "
        "here. To beat random scores is the least that can be asked; among many methods and measures one in twenty "
        "intervals misses by chance."
    )

    subject: Subject
    methods: tuple[Method, ...]
    remove: Baselines = "delete"
    seed: int = 0
    limit: int | None = None
    absolute: bool = False
    steps: int = 20
    samples: int = 32
    changes: int = 0
    split: Split = "test"

    def __post_init__(self) -> None:
        check_baselines(self.remove)
        if not self.methods:
            raise UserError("faithfulness needs a method at least")
        if len({named(method) for method in self.methods}) < len(self.methods):
            raise UserError("a method is given twice to faithfulness: leave one of them out, or give it another seed")
        if self.steps < 1 or self.samples < 1 or self.changes < 0:
            raise UserError("faithfulness needs at least one step and one sample, and no negative number of changes")

    @property
    def null(self) -> Random:
        """Scores that know nothing."""
        return Random(self.seed)

    @property
    def _methods(self) -> dict[str, Method]:
        """All methods by name, the null last."""
        found = {named(method): method for method in self.methods if method != self.null}
        return found | {named(self.null): self.null}

    @property
    def needs(self) -> tuple[Recipe, ...]:
        """The attributions, which other trials and the report share."""
        return tuple(Attributed(self.subject, each, self.split, self.limit) for each in self._methods.values())

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance and method: all measures, the falls by bin, and both curves on a common grid."""
        needs = zip(self._methods, self.needs, strict=True)
        tables = {name: workspace.get(recipe).table.set_index("uid") for name, recipe in needs}
        trained = self.subject.restore(workspace)
        whole = trained.batch(self.split)
        batch = sampled(whole, self.limit)
        probing = Probing(self.remove, self.steps, self.samples, self.seed)
        rows: list[pd.DataFrame] = []
        with workspace.progress.task(f"faithfulness {self.subject.about['corpus']}", len(batch)) as step:
            for _, part in inference_batches(batch, min(_TEXTS, workspace.batch_size)):
                part = part.to(workspace.device)
                given = _Given(part, *_looked_up(tables, part))
                rows.append(self._rows(trained.model, given, probing))
                step(len(part))
        table = pd.concat(rows, ignore_index=True)
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": len(batch), "of": len(whole)})

    def _rows(self, model: Model, given: _Given, probing: Probing) -> pd.DataFrame:
        names, batch = list(self._methods), given.batch
        evidence = probing(model, batch, given.target, self._sized(given.scores))
        if self.changes:
            evidence = replace(evidence, shaken=self._sized(self._shaken(model, given)))
        known = {
            "uid": batch.uids * len(names),
            "length": batch.scored.sum(1).tolist() * len(names),
            "predicted": given.target.tolist() * len(names),
            "method": np.repeat(np.array(names, dtype=object), len(batch)),
            "place": np.repeat(np.arange(len(names)), len(batch)),
            "null": np.repeat(np.array(names) == named(self.null), len(batch)),
        }
        if not self.absolute:
            known[UNSIGNED] = without_signs(given.scores).flatten().tolist()
        return pd.DataFrame({**known, **_columns(evidence)})

    def _sized(self, scores: Tensor) -> Tensor:
        return scores.abs() if self.absolute else scores

    def _shaken(self, model: Model, given: _Given) -> Tensor:
        seeds = tuple(derived_seed("change", self.seed, number) for number in range(self.changes))
        found = [shaken_scores(each, model, given.batch, given.target, seeds) for each in self._methods.values()]
        return torch.cat(found)

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """Means by method, and how much better than random each is: `excess`, with `low` and `high` of its interval.

        `excess.measure.method` is above 0 where the method is better than random, whatever the measure's direction;
        the 95 % interval is from resampled instances, and undefined for fewer than ten. `undefined` counts instances
        where the measure says nothing about the method or about the null. Sensitivity is not compared: random scores
        are the steadiest of all. `unsigned.method` is 1 for methods that gave no score below zero.
        """
        found = {"n": float(table["uid"].nunique())}
        for measure in _present(table):
            for method, values, _ in _beside_null(table, measure):
                found[f"{measure}.{method}"] = float(np.nanmean(values)) if np.isfinite(values).any() else math.nan
        for measure in (each for each in _present(table) if MEASURES[each].against_null):
            for method, values, null in _beside_null(table, measure):
                if values is not null:
                    found |= _excess(measure, method, values, null)
        return found | unsigned(table)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Deletion and insertion curves by method, and how much better than random each method is."""
        summary = Faithfulness.summary(table)
        share = Axis("share of the units", (0.0, 1.0))
        curves = tuple(
            Lines(title, share, Axis("mean output for the predicted class"), _curves(table, column))
            for title, column in (
                ("Output while units are taken away, highest first", "deletion"),
                ("Output while units are put in, highest first", "insertion"),
            )
        )
        return (*curves, *(_bars(summary, measures) for measures in _SHOWN))

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """Which methods beat random scores beyond doubt, on which measures, and which do not."""
        verdicts = _verdicts(summary)
        if not verdicts:
            return "There are only random scores here, so nothing can be said."
        if all(each.unknown == each.all for each in verdicts.values()):
            return f"With fewer than {FEWEST} texts there is no interval, so nothing can be said: measure more texts."
        sentences = [f"{name[0].upper()}{name[1:]} {each.told()}." for name, each in verdicts.items()]
        return " ".join([*sentences, *filter(None, [told(summary)])])


@dataclass(frozen=True)
class _Given:
    """Texts, the classes explained `[batch]`, and all methods' scores `[method batch unit]`."""

    batch: Batch
    target: Tensor
    scores: Tensor


def _looked_up(tables: Mapping[str, pd.DataFrame], batch: Batch) -> tuple[Tensor, Tensor]:
    first = next(iter(tables.values()))
    target = torch.tensor(first.loc[list(batch.uids), "predicted"].tolist())
    return target.to(batch.mask.device), looked_up(tables, batch)


def _columns(evidence: Evidence) -> dict[str, list[float] | list[list[float]]]:
    """Every measure that was asked for; the falls of each bin; the curves on a common grid."""
    asked = [each for each in MEASURES.values() if each.name != "sensitivity" or evidence.shaken is not None]
    whole = evidence.whole.unsqueeze(1)
    return {
        **{measure.name: measure.of(evidence).tolist() for measure in asked},
        "comprehensiveness": (whole - evidence.without).tolist(),
        "sufficiency": (whole - evidence.only).tolist(),
        "deletion": _on_grid(evidence.shares, evidence.deleted),
        "insertion": _on_grid(evidence.shares, evidence.inserted),
    }


def _on_grid(shares: Tensor, values: Tensor) -> list[list[float]]:
    rows = zip(shares.cpu().numpy(), values.cpu().numpy(), strict=True)
    return [np.interp(_GRID, share, value).tolist() for share, value in rows]


def _present(table: pd.DataFrame) -> list[str]:
    return [name for name in MEASURES if name in table.columns]


_Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def _beside_null(table: pd.DataFrame, measure: str) -> Iterator[tuple[str, _Values, _Values]]:
    """Each method's numbers and the null's, over the same instances in the order of their uids; the null comes last."""
    ordered = table.sort_values(["place", "uid"])
    places = [(rows, rows[measure].to_numpy(np.float64)) for _, rows in ordered.groupby("place")]
    null = next(values for rows, values in places if bool(rows["null"].iloc[0]))
    for rows, values in places:
        yield str(rows["method"].iloc[0]), values, null


def _excess(measure: str, method: str, values: _Values, null: _Values) -> dict[str, float]:
    both = np.isfinite(values) & np.isfinite(null)
    sign = MEASURES[measure].sign
    better, chance = (torch.from_numpy(sign * each[both]) for each in (values, null))
    place = f"{measure}.{method}"
    excess, low, high = (float((better - chance).mean()) if both.any() else math.nan), math.nan, math.nan
    if both.sum() >= FEWEST:
        generator = Generator().manual_seed(derived_seed("faithfulness", measure, method))
        interval = paired_bootstrap(better, chance, resamples=RESAMPLES, generator=generator).interval
        low, high = interval.low, interval.high
    found = {"excess": excess, "low": low, "high": high, "undefined": float((~both).sum())}
    return {f"{name}.{place}": value for name, value in found.items()}


def _curves(table: pd.DataFrame, column: str) -> tuple[tuple[Series, Series], ...]:
    share = Series("share", tuple(_GRID.tolist()))
    found = []
    for _, rows in table.groupby("place"):
        mean = np.mean(np.stack([np.asarray(row, dtype=np.float64) for row in rows[column]]), axis=0)
        found.append((share, Series(_label(rows), tuple(mean.tolist()))))
    return tuple(found)


def _label(rows: pd.DataFrame) -> str:
    return f"{rows['method'].iloc[0]} (null)" if bool(rows["null"].iloc[0]) else str(rows["method"].iloc[0])


def _bars(summary: Mapping[str, float], measures: Sequence[str]) -> Bars:
    methods = tuple(_verdicts(summary))
    series, errors = [], []
    for measure in measures:
        numbers = [[summary.get(f"{n}.{measure}.{m}", math.nan) for n in ("excess", "low", "high")] for m in methods]
        series.append(Series(measure.replace("_", " "), tuple(excess for excess, _, _ in numbers)))
        errors.append(Series(measure.replace("_", " "), tuple((high - low) / 2 for _, low, high in numbers)))
    title = f"Better than random scores: {', '.join(measure.replace('_', ' ') for measure in measures)}"
    return Bars(title, Axis("better than random by, with 95 % interval"), methods, tuple(series), tuple(errors))


@dataclass(frozen=True)
class _Verdict:
    """The measures on which a method is beyond doubt better than random, worse, or neither; unknown has no interval."""

    better: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    neither: tuple[str, ...] = ()
    unknown: int = 0

    @property
    def all(self) -> int:
        return len(self.better) + len(self.worse) + len(self.neither) + self.unknown

    def told(self) -> str:
        """The verdict in words that go behind a method's name."""
        known = self.all - self.unknown
        if not known:
            return "could not be judged"
        if len(self.better) == known:
            return f"beats random scores on all {known} measures"
        if not self.better:
            found = f"beats random scores on none of {known} measures"
        else:
            found = f"beats random scores on {len(self.better)} of {known} measures"
            found += f", not on {_spoken(self.neither)}" if self.neither else ""
        return f"{found}, and is worse than them on {_spoken(self.worse)}" if self.worse else found


def _spoken(measures: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in measures)


def _verdicts(summary: Mapping[str, float]) -> dict[str, _Verdict]:
    found: dict[str, _Verdict] = {}
    for name in summary:
        if not name.startswith("excess."):
            continue
        _, measure, method = name.split(".", 2)
        low, high = (summary[f"{bound}.{measure}.{method}"] for bound in ("low", "high"))
        before = found.get(method, _Verdict())
        if math.isnan(low):
            found[method] = replace(before, unknown=before.unknown + 1)
        elif low > 0:
            found[method] = replace(before, better=(*before.better, measure))
        elif high < 0:
            found[method] = replace(before, worse=(*before.worse, measure))
        else:
            found[method] = replace(before, neither=(*before.neither, measure))
    return found
