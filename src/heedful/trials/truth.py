"""A court that knows the truth (the Song's future work): do methods find the words that are known to decide?

The corpus says for each word what it adds. A text counts only if the model really uses its telling words: without them
it must say something else. Then a method is right as far as its scores put those words first, and a measure of
explanations as far as it ranks the truth above random scores and above adversarial attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata

from heedful.attributions.perturbation import Random
from heedful.core.bootstrap import bootstrap_interval
from heedful.core.figures import Axis, Bars, Figure, Series
from heedful.core.types import Batch, Example, Method, UserError
from heedful.core.workspace import Artefact, Recipe, Workspace
from heedful.recipes.attributed import Attributed, sampled
from heedful.recipes.subject import Subject, Trained
from heedful.recipes.training import inference_batches
from heedful.trials.agreement import named
from heedful.trials.measuring import ADVERSARIAL, RANDOM, TRUTH, measured, told, truth_table, verdicts
from heedful.trials.rivals import opponents
from heedful.trials.trial import Trial

USED = 0.2
"""A text counts if its prediction moves by so much when the telling words are taken out."""
TOP = 3
"""Words that are looked for where every word adds something."""
MEASURES = {
    "precision": "share of the telling words among the first",
    "auc": "chance that a telling word is scored above another",
    "tau": "agreement of sizes with the true order (Kendall)",
    "signed_tau": "agreement of signed scores with the true order (Kendall)",
}
CHANCE = RANDOM
CONTROLS = (ADVERSARIAL, CHANCE)
"""Explanations that are wrong on purpose."""


@dataclass(frozen=True)
class Truth(Trial):
    """How well each method finds the words that are known to decide; one row per instance and method.

    The truth itself has rows too. On these and on those of its rivals stands what each measure says of them.

    Args:
        subject: trained on a corpus whose examples have a `truth`.
        methods: the methods on trial; random scores, and adversarial attention where the model has it, are added.
    """

    revision: ClassVar[int] = 2

    name: ClassVar[str] = "truth"
    paper: ClassVar[str] = "disagreement"
    title: ClassVar[str] = "Who finds the words that are known to decide?"
    claim: ClassVar[str] = (
        "If a method tells which words a model uses, it should find them where they are known because the text was "
        "made so, and the model was seen to use them."
    )
    source: ClassVar[str] = "Neely et al. 2022, section 6 (future work: data with a known ranking)"
    not_meaning: ClassVar[str] = (
        "A method that finds planted words may still fail on real texts, where many words decide together. A method "
        "that fails here, where the answer is known, should not be trusted there."
    )

    subject: Subject
    methods: tuple[Method, ...]
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.methods:
            raise UserError("the court needs at least one method on trial")
        if len({named(method) for method in self.methods}) < len(self.methods):
            raise UserError("a method is given twice to the court: leave one of them out, or give it another seed")

    @property
    def columns(self) -> dict[str, Attributed]:
        """The attributions by the method's name, adversarial attention and random scores last."""
        wrong = (*opponents(self.subject.model), Random())
        methods = [method for method in self.methods if method not in wrong]
        return {named(method): Attributed(self.subject, method, limit=self.limit) for method in (*methods, *wrong)}

    @property
    def needs(self) -> tuple[Recipe, ...]:
        """The attributions, which other trials share."""
        return tuple(self.columns.values())

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance and method."""
        trained = self.subject.restore(workspace)
        known = {example.uid: example for example in trained.examples("test")}
        if any(example.truth is None for example in known.values()):
            raise UserError(
                f"{self.subject.corpus.name}: the truth about these texts is not known; take a Known corpus"
            )
        used = _used(trained, known, self.limit, workspace)
        tables = {name: workspace.get(recipe).table for name, recipe in self.columns.items()}
        explanations = {TRUTH: truth_table(tables[CHANCE], known)}
        explanations |= {name: tables[name] for name in CONTROLS if name in tables}
        rows = [
            {"method": name, "used": used[uid], **row}
            for name, table in {**tables, TRUTH: explanations[TRUTH]}.items()
            for uid, row in _rows(table, known)
        ]
        methods = {name: table for name, table in tables.items() if name not in CONTROLS}
        numbers = measured(trained, explanations, methods, workspace)
        table = pd.DataFrame(rows).merge(numbers, on=["uid", "method"], how="left")
        n = int(table["uid"].nunique())
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": n, "of": len(known)})

    @staticmethod
    def summary(table: pd.DataFrame) -> dict[str, float]:
        """Means over the texts whose telling words are used, for each method; how many texts those are.

        `above_random.measure` and `above_adversarial.measure` tell how much better the measure finds the truth than
        these on the texts where they are wrong, with the `_low` and `_high` of its interval, the `_share` of `_texts`
        where it does so.
        """
        judged = table[table["used"]]
        found = {"n": float(table["uid"].nunique()), "used": float(judged["uid"].nunique())}
        for method, rows in judged[judged["method"] != TRUTH].groupby("method", sort=False):
            for measure in MEASURES:
                values = rows[measure].dropna().to_numpy(dtype=np.float64)
                found[f"{measure}.{method}"] = float(values.mean()) if len(values) else math.nan
            values = rows["precision"].dropna().to_numpy(dtype=np.float64)
            low, high = _interval(values)
            found |= {f"low.{method}": low, f"high.{method}": high}
        return found | told(judged)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Each number that is defined, a bar per method; and for each measure how often it puts the truth first."""
        summary = Truth.summary(table)
        methods = [name.removeprefix("precision.") for name in summary if name.startswith("precision.")]
        values = {measure: tuple(summary[f"{measure}.{method}"] for method in methods) for measure in MEASURES}
        found = tuple(
            Bars(meaning.capitalize(), Axis(measure), tuple(methods), (Series(measure, values[measure]),))
            for measure, meaning in MEASURES.items()
            if any(math.isfinite(value) for value in values[measure])
        )
        return (*found, *_measures_drawn(summary))

    @staticmethod
    def reading(summary: Mapping[str, float]) -> str:
        """Who finds them, who does no better than chance."""
        if not summary["used"]:
            return "The model uses the telling words of no text, so nothing can be said about any method."
        methods = [name.removeprefix("precision.") for name in summary if name.startswith("precision.")]
        chance = summary[f"high.{CHANCE}"]
        ranked = sorted((m for m in methods if m not in CONTROLS), key=lambda m: -summary[f"precision.{m}"])
        good = [f"{m} ({summary[f'precision.{m}']:.2f})" for m in ranked if summary[f"low.{m}"] > chance]
        bad = [f"{m} ({summary[f'precision.{m}']:.2f})" for m in ranked if summary[f"low.{m}"] <= chance]
        found = (
            f"On {summary['used']:.0f} of {summary['n']:.0f} texts the model uses the words that are known to decide. "
            f"Random scores find {summary[f'precision.{CHANCE}']:.2f} of them."
        )
        found += f" Better than chance: {', '.join(good)}." if good else " No method is better than chance."
        found += f" Not to be told from chance: {', '.join(bad)}." if bad else ""
        return found + _measures_told(summary)


def _measures_told(summary: Mapping[str, float]) -> str:
    """Which measures rank the truth above what is wrong, which do not, and which cannot be judged."""
    good, bad, unknown = [], [], []
    for name, found in verdicts(summary).items():
        beaten = [rival for rival, above in found.items() if above is False]
        if beaten:
            bad.append(f"{_spoken(name)} (not above {' and '.join(beaten)})")
        elif None in found.values():
            unknown.append(_spoken(name))
        else:
            good.append(_spoken(name))
    words = {"rank the truth above all that is wrong": good, "do not, beyond doubt": bad, "cannot be judged": unknown}
    return "".join(f" Measures that {what}: {', '.join(names)}." for what, names in words.items() if names)


def _measures_drawn(summary: Mapping[str, float]) -> tuple[Bars, ...]:
    names = {name: _spoken(name) for name in verdicts(summary)}
    shares = {
        rival: tuple(summary.get(f"above_{rival}_share.{name}", math.nan) for name in names)
        for rival in ("random", "adversarial")
    }
    series = tuple(
        Series(f"above {rival}", values) for rival, values in shares.items() if any(map(math.isfinite, values))
    )
    title = "How often each measure ranks the truth above what is wrong"
    return (Bars(title, Axis("share of texts", (0.0, 1.0)), tuple(names.values()), series),) if series else ()


def _spoken(measure: str) -> str:
    return measure.replace("_", " ")


def recovered(scores: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, float]:
    """Precision among the first, ROC-AUC and Kendall's tau of one text's scores; NaN where one is not defined.

    Signs count for `signed_tau` alone. Ties are broken evenly: a tied word counts with its share of the places.
    """
    sizes, telling = np.abs(scores), np.abs(truth) > 0
    everything = bool(telling.all())
    if everything:
        telling = rankdata(-np.abs(truth), method="ordinal") <= TOP
    found = {"precision": _precision(sizes, telling), "auc": _auc(sizes, telling)}
    # Where every word adds something the whole order is known; else only which words tell.
    taus = {"tau": (sizes, np.abs(truth)), "signed_tau": (scores, truth)}
    return found | {name: _tau(*pair) if everything else math.nan for name, pair in taus.items()}


def _tau(scores: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return float(kendalltau(scores, truth).statistic) if len(scores) > 1 and np.ptp(scores) > 0 else math.nan


def _precision(sizes: NDArray[np.float64], telling: NDArray[np.bool_]) -> float:
    count = int(telling.sum())
    edge = np.sort(sizes)[-count]
    above, tied = sizes > edge, sizes == edge
    share = (count - above.sum()) / tied.sum()
    return float((telling[above].sum() + share * telling[tied].sum()) / count)


def _auc(sizes: NDArray[np.float64], telling: NDArray[np.bool_]) -> float:
    positive, negative = int(telling.sum()), int((~telling).sum())
    if not positive or not negative:
        return math.nan
    return float((rankdata(sizes)[telling].sum() - positive * (positive + 1) / 2) / (positive * negative))


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    if len(values) < 2:
        return math.nan, math.nan
    found = bootstrap_interval(torch.tensor(values), generator=torch.Generator().manual_seed(0))
    return found.low, found.high


def _rows(table: pd.DataFrame, known: Mapping[str, Example]) -> Iterable[tuple[str, dict[str, object]]]:
    """The numbers of each text under one method: scores by word, for class 1, against the truth."""
    columns = ("uid", "scores", "words", "scored", "predicted")
    for uid, scores, words, scored, predicted in zip(*(table[name].tolist() for name in columns), strict=True):
        truth = np.asarray(known[uid].truth, dtype=np.float64)
        kept = np.asarray(scored, dtype=bool)
        by_word = np.zeros(len(truth))
        np.add.at(by_word, np.asarray(words)[kept], np.asarray(scores, dtype=np.float64)[kept])
        sign = 1.0 if predicted == 1 else -1.0
        row: dict[str, object] = {"uid": uid, "length": len(truth), "predicted": predicted}
        yield uid, {**row, **recovered(sign * by_word, truth)}


@torch.no_grad()
def _used(trained: Trained, known: Mapping[str, Example], limit: int | None, workspace: Workspace) -> dict[str, bool]:
    """Whether each text's prediction moves when its telling words are taken out; always where every word tells."""
    found: dict[str, bool] = {}
    for _, part in inference_batches(sampled(trained.batch("test"), limit), workspace.batch_size):
        batch = part.to(workspace.device)
        telling = _telling(batch, [known[uid] for uid in batch.uids])
        every = (telling == batch.scored).all(1)
        left = batch.keep(batch.mask & ~(telling & ~every.unsqueeze(1)))
        before, after = (trained.model.task.probabilities(trained.model(each).logits) for each in (batch, left))
        moved = 0.5 * (before - after).abs().sum(1) >= USED
        found |= dict(zip(batch.uids, (moved | every).tolist(), strict=True))
    return found


def _telling(batch: Batch, examples: Sequence[Example]) -> torch.Tensor:
    """The units whose words tell something, `[batch unit]`."""
    width = max(len(example.truth or ()) for example in examples)
    truth = torch.zeros(len(batch), max(1, width), device=batch.mask.device)
    for row, example in enumerate(examples):
        values = torch.tensor(example.truth or ())
        truth[row, : len(values)] = values
    return (truth.gather(1, batch.words.clamp(min=0)) != 0) & batch.scored
