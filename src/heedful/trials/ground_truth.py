"""Do measures of explanations know the truth? The planted truth itself is measured, beside scores that are wrong.

Wrong are random scores, and attention that an adversary chose. A measure that is worth anything ranks the truth above
both. Measures are those of faithfulness, and agreement: how much an explanation agrees with what other methods say.

A court that knows the truth (the Song's future work): do methods find the words that are known to decide?

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
from torch import Generator, Tensor

from heedful.attributions.controls import Random
from heedful.figures import Axis, Bars, Figure, Series
from heedful.measures.bootstrap import bootstrap_interval
from heedful.measures.erasure import FAITHFULNESS_MEASURES
from heedful.measures.rank_correlation import kendall_matrix
from heedful.store.recipe import Artefact, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable, sample_rows
from heedful.training.model_recipe import LoadedModel, ModelRecipe
from heedful.training.trainer import inference_batches
from heedful.trials._trial import Trial
from heedful.trials.adversarial_attention import adversarial_methods
from heedful.trials.agreement import correlate_attributions
from heedful.trials.faithfulness import RESOLUTION, ErasureEvaluator, scores_from_tables
from heedful.types import Batch, Example, Method, Model, UserError, method_name

TRUTH, RANDOM, ADVERSARIAL = "truth", "random", "adversarial-attention"
CONTROL_LABELS = {RANDOM: "random", ADVERSARIAL: "adversarial"}
"""Explanations that are wrong, and what they are called in summaries."""
ERASURE_MEASURES = tuple(name for name, measure in FAITHFULNESS_MEASURES.items() if measure.has_random_control)
AGREEMENT_MEASURES = ("agreement", "agreement_with_attention")
ALL_MEASURES = (*ERASURE_MEASURES, *AGREEMENT_MEASURES)
"""All measures that are judged: sensitivity is not, because the truth does not move at all."""
MIN_TEXTS = 10
"""With fewer texts than this there is no interval."""
_MAX_BATCH_SIZE = 64


def measure_sign(measure: str) -> int:
    """1 where higher is better, -1 where lower is; agreement is better the higher it is."""
    return FAITHFULNESS_MEASURES[measure].sign if measure in FAITHFULNESS_MEASURES else 1


def ground_truth_table(table: pd.DataFrame, examples: Mapping[str, Example]) -> pd.DataFrame:
    """The truth as a method would tell it, in the form of a table of attributions for the same texts.

    It speaks for the predicted class; a word's number is shared evenly by its pieces. Where the corpus knows no
    negative number it knows sizes only, and they speak for whatever is predicted.
    """
    signed = any(value < 0 for example in examples.values() for value in example.ground_truth or ())
    columns = (table[name].tolist() for name in ("uid", "words", "scored", "predicted"))
    scores = []
    for uid, words, scored, predicted in zip(*columns, strict=True):
        truth = np.asarray(examples[uid].ground_truth, dtype=np.float64)
        told = (truth if predicted == 1 else -truth) if signed else np.abs(truth)
        scores.append(_spread_over_units(told, np.asarray(words), np.asarray(scored, dtype=bool)).tolist())
    return table.assign(scores=scores)


def _spread_over_units(
    by_word: NDArray[np.float64], words: NDArray[np.int64], scored: NDArray[np.bool_]
) -> NDArray[np.float64]:
    pieces = np.bincount(words[scored], minlength=len(by_word))
    return np.where(
        scored, by_word[np.where(scored, words, 0)] / np.maximum(pieces[np.where(scored, words, 0)], 1), 0.0
    )


def measure_explanations(
    loaded: LoadedModel,
    explanations: Mapping[str, pd.DataFrame],
    methods: Mapping[str, pd.DataFrame],
    workspace: Workspace,
) -> pd.DataFrame:
    """A row per text and explanation with every measure of it: `uid`, `method`, then `MEASURED`.

    Args:
        explanations: the truth and its rivals, as tables of attributions by name.
        methods: what explanations are to agree with; attention, if it is among them, is called `attention`.
    """
    faithful = _faithfulness_rows(loaded, explanations, workspace)
    return faithful.merge(_agreement_rows(explanations, methods), on=["uid", "method"], how="left")


def _faithfulness_rows(
    loaded: LoadedModel, explanations: Mapping[str, pd.DataFrame], workspace: Workspace
) -> pd.DataFrame:
    texts = next(iter(explanations.values()))
    batch = sample_rows(loaded.batch("test"), len(texts))
    tables = {name: table.set_index("uid") for name, table in explanations.items()}
    target = dict(zip(texts["uid"], texts["predicted"], strict=True))
    parts = []
    for _, some in inference_batches(batch, min(_MAX_BATCH_SIZE, workspace.batch_size)):
        part = some.to(workspace.device)
        said = torch.tensor([target[uid] for uid in part.uids], device=part.mask.device)
        parts.append(_erasure_rows(loaded.model, part, said, scores_from_tables(tables, part), tuple(explanations)))
    return pd.concat(parts, ignore_index=True)


def _erasure_rows(model: Model, batch: Batch, target: Tensor, scores: Tensor, names: Sequence[str]) -> pd.DataFrame:
    evidence = ErasureEvaluator()(model, batch, target, scores)
    known = {"uid": batch.uids * len(names), "method": np.repeat(np.array(names, dtype=object), len(batch))}
    return pd.DataFrame(
        {**known, **{name: FAITHFULNESS_MEASURES[name].compute(evidence).tolist() for name in ERASURE_MEASURES}}
    )


def _agreement_rows(explanations: Mapping[str, pd.DataFrame], methods: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The mean of Kendall's tau with the methods, sizes alone, by text and explanation; and that with attention."""
    tables = {f"explanation {name}": table for name, table in explanations.items()}
    table = correlate_attributions({**tables, **methods}, kendall_matrix, absolute=True, resolution=RESOLUTION)
    across = table[table["first"].isin(list(tables)) & table["second"].isin(list(methods)) & table["defined"]]
    across = across.assign(method=across["first"].str.removeprefix("explanation "))
    everybody, alone = (each.groupby(["uid", "method"])["value"].mean() for each in (across, _attention_rows(across)))
    return pd.DataFrame({"agreement": everybody, "agreement_with_attention": alone}).reset_index()


def _attention_rows(across: pd.DataFrame) -> pd.DataFrame:
    return across[across["second"] == "attention"]


@dataclass(frozen=True)
class ControlComparison:
    """How often and by how much a measure puts the truth above a rival, over texts.

    Args:
        share: of the texts where it does so, ties counting half.
        excess: mean difference, above 0 where the truth is better whatever the measure's direction.
        low: of the 95 % interval of `excess`; undefined for fewer than ten texts, as is `high`.
    """

    n_texts: int
    win_rate: float
    excess: float
    low: float
    high: float


def compare_with_control(measure: str, truth: NDArray[np.float64], control: NDArray[np.float64]) -> ControlComparison:
    """What the measure says of the truth and of a rival on the same texts; what is undefined for one is left out."""
    both = np.isfinite(truth) & np.isfinite(control)
    better, worse = (measure_sign(measure) * torch.from_numpy(each[both]) for each in (truth, control))
    gap = better - worse
    if not len(gap):
        return ControlComparison(0, math.nan, math.nan, math.nan, math.nan)
    share = float(((gap > 0).double() + 0.5 * (gap == 0)).mean())
    if len(gap) < MIN_TEXTS:
        return ControlComparison(len(gap), share, float(gap.mean()), math.nan, math.nan)
    generator = Generator().manual_seed(derive_seed("measuring", measure))
    interval = bootstrap_interval(gap, generator=generator)
    return ControlComparison(len(gap), share, interval.estimate, interval.low, interval.high)


def compare_with_controls(table: pd.DataFrame) -> Iterable[tuple[str, str, ControlComparison]]:
    """Rival, measure and what came out, from the rows of the truth and its rivals for texts that count.

    A text counts against a rival that does not name the telling words itself: there it is wrong.
    """
    by_method = {str(name): rows.set_index("uid") for name, rows in table.groupby("method")}
    if TRUTH not in by_method:
        return
    for rival in (name for name in CONTROL_LABELS if name in by_method):
        wrong = by_method[rival][by_method[rival]["precision"] < 1]
        right = by_method[TRUTH].loc[wrong.index]
        for measure in (name for name in ALL_MEASURES if name in table.columns):
            values = (rows[measure].to_numpy(np.float64) for rows in (right, wrong))
            yield rival, measure, compare_with_control(measure, *values)


def comparison_numbers(table: pd.DataFrame) -> dict[str, float]:
    """The comparisons as flat numbers: `above_random.measure` and its `_low`, `_high`, `_share` and `_texts`."""
    found: dict[str, float] = {}
    for rival, measure, each in compare_with_controls(table):
        start = f"above_{CONTROL_LABELS[rival]}"
        numbers = {
            "": each.excess,
            "_low": each.low,
            "_high": each.high,
            "_share": each.win_rate,
            "_texts": each.n_texts,
        }
        found |= {f"{start}{end}.{measure}": float(number) for end, number in numbers.items()}
    return found


def measure_verdicts(summary: Mapping[str, float]) -> dict[str, dict[str, bool | None]]:
    """For each measure and rival, whether the truth is beyond doubt above it; None where there is no interval."""
    found: dict[str, dict[str, bool | None]] = {}
    for measure in ALL_MEASURES:
        for rival in CONTROL_LABELS.values():
            low = summary.get(f"above_{rival}_low.{measure}")
            if low is not None:
                found.setdefault(measure, {})[rival] = None if math.isnan(low) else low > 0
    return found


USED_THRESHOLD = 0.2
"""A text counts if its prediction moves by so much when the telling words are taken out."""
TOP_K = 3
"""Words that are looked for where every word adds something."""
RECOVERY_MEASURES = {
    "precision": "share of the telling words among the first",
    "auc": "chance that a telling word is scored above another",
    "tau": "agreement of sizes with the true order (Kendall)",
    "signed_tau": "agreement of signed scores with the true order (Kendall)",
}
CHANCE = RANDOM
CONTROLS = (ADVERSARIAL, CHANCE)
"""Explanations that are wrong on purpose."""


@dataclass(frozen=True)
class GroundTruth(Trial):
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
    limits: ClassVar[str] = (
        "A method that finds planted words may still fail on real texts, where many words decide together. A method "
        "that fails here, where the answer is known, should not be trusted there."
    )

    subject: ModelRecipe
    methods: tuple[Method, ...]
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.methods:
            raise UserError("the court needs at least one method on trial")
        if len({method_name(method) for method in self.methods}) < len(self.methods):
            raise UserError("a method is given twice to the court: leave one of them out, or give it another seed")

    @property
    def attribution_tables(self) -> dict[str, AttributionTable]:
        """The attributions by the method's name, adversarial attention and random scores last."""
        wrong = (*adversarial_methods(self.subject.architecture), Random())
        methods = [method for method in self.methods if method not in wrong]
        return {
            method_name(method): AttributionTable(self.subject, method, limit=self.limit)
            for method in (*methods, *wrong)
        }

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """The attributions, which other trials share."""
        return tuple(self.attribution_tables.values())

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance and method."""
        trained = self.subject.restore(workspace)
        known = {example.uid: example for example in trained.examples("test")}
        if any(example.ground_truth is None for example in known.values()):
            raise UserError(
                f"{self.subject.corpus.name}: the truth about these texts is not known; take a Known corpus"
            )
        used = _uses_relevant_words(trained, known, self.limit, workspace)
        tables = {name: workspace.get(recipe).table for name, recipe in self.attribution_tables.items()}
        explanations = {TRUTH: ground_truth_table(tables[CHANCE], known)}
        explanations |= {name: tables[name] for name in CONTROLS if name in tables}
        rows = [
            {"method": name, "used": used[uid], **row}
            for name, table in {**tables, TRUTH: explanations[TRUTH]}.items()
            for uid, row in _recovery_rows(table, known)
        ]
        methods = {name: table for name, table in tables.items() if name not in CONTROLS}
        numbers = measure_explanations(trained, explanations, methods, workspace)
        table = pd.DataFrame(rows).merge(numbers, on=["uid", "method"], how="left")
        n = int(table["uid"].nunique())
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": n, "of": len(known)})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """Means over the texts whose telling words are used, for each method; how many texts those are.

        `above_random.measure` and `above_adversarial.measure` tell how much better the measure finds the truth than
        these on the texts where they are wrong, with the `_low` and `_high` of its interval, the `_share` of `_texts`
        where it does so.
        """
        judged = table[table["used"]]
        found = {"n": float(table["uid"].nunique()), "used": float(judged["uid"].nunique())}
        for method, rows in judged[judged["method"] != TRUTH].groupby("method", sort=False):
            for measure in RECOVERY_MEASURES:
                values = rows[measure].dropna().to_numpy(dtype=np.float64)
                found[f"{measure}.{method}"] = float(values.mean()) if len(values) else math.nan
            values = rows["precision"].dropna().to_numpy(dtype=np.float64)
            low, high = _interval(values)
            found |= {f"low.{method}": low, f"high.{method}": high}
        return found | comparison_numbers(judged)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Each number that is defined, a bar per method; and for each measure how often it puts the truth first."""
        summary = GroundTruth.flat_summary(table)
        methods = [name.removeprefix("precision.") for name in summary if name.startswith("precision.")]
        values = {measure: tuple(summary[f"{measure}.{method}"] for method in methods) for measure in RECOVERY_MEASURES}
        found = tuple(
            Bars(meaning.capitalize(), Axis(measure), tuple(methods), (Series(measure, values[measure]),))
            for measure, meaning in RECOVERY_MEASURES.items()
            if any(math.isfinite(value) for value in values[measure])
        )
        return (*found, *_measure_bars(summary))

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
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
        return found + _measures_sentence(summary)


def _measures_sentence(summary: Mapping[str, float]) -> str:
    """Which measures rank the truth above what is wrong, which do not, and which cannot be judged."""
    good, bad, unknown = [], [], []
    for name, found in measure_verdicts(summary).items():
        beaten = [rival for rival, above in found.items() if above is False]
        if beaten:
            bad.append(f"{_format_measure(name)} (not above {' and '.join(beaten)})")
        elif None in found.values():
            unknown.append(_format_measure(name))
        else:
            good.append(_format_measure(name))
    words = {"rank the truth above all that is wrong": good, "do not, beyond doubt": bad, "cannot be judged": unknown}
    return "".join(f" Measures that {what}: {', '.join(names)}." for what, names in words.items() if names)


def _measure_bars(summary: Mapping[str, float]) -> tuple[Bars, ...]:
    names = {name: _format_measure(name) for name in measure_verdicts(summary)}
    shares = {
        rival: tuple(summary.get(f"above_{rival}_share.{name}", math.nan) for name in names)
        for rival in ("random", "adversarial")
    }
    series = tuple(
        Series(f"above {rival}", values) for rival, values in shares.items() if any(map(math.isfinite, values))
    )
    title = "How often each measure ranks the truth above what is wrong"
    return (Bars(title, Axis("share of texts", (0.0, 1.0)), tuple(names.values()), series),) if series else ()


def _format_measure(measure: str) -> str:
    return measure.replace("_", " ")


def recovery_scores(scores: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, float]:
    """Precision among the first, ROC-AUC and Kendall's tau of one text's scores; NaN where one is not defined.

    Signs count for `signed_tau` alone. Ties are broken evenly: a tied word counts with its share of the places.
    """
    sizes, telling = np.abs(scores), np.abs(truth) > 0
    everything = bool(telling.all())
    if everything:
        telling = rankdata(-np.abs(truth), method="ordinal") <= TOP_K
    found = {"precision": _precision(sizes, telling), "auc": _auc(sizes, telling)}
    # Where every word adds something the whole order is known; else only which words tell.
    taus = {"tau": (sizes, np.abs(truth)), "signed_tau": (scores, truth)}
    return found | {name: _tau(*pair) if everything else math.nan for name, pair in taus.items()}


def _tau(scores: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return float(kendalltau(scores, truth).statistic) if len(scores) > 1 and np.ptp(scores) > 0 else math.nan


def _precision(sizes: NDArray[np.float64], relevant: NDArray[np.bool_]) -> float:
    count = int(relevant.sum())
    edge = np.sort(sizes)[-count]
    above, tied = sizes > edge, sizes == edge
    share = (count - above.sum()) / tied.sum()
    return float((relevant[above].sum() + share * relevant[tied].sum()) / count)


def _auc(sizes: NDArray[np.float64], relevant: NDArray[np.bool_]) -> float:
    positive, negative = int(relevant.sum()), int((~relevant).sum())
    if not positive or not negative:
        return math.nan
    return float((rankdata(sizes)[relevant].sum() - positive * (positive + 1) / 2) / (positive * negative))


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    if len(values) < 2:
        return math.nan, math.nan
    found = bootstrap_interval(torch.tensor(values), generator=torch.Generator().manual_seed(0))
    return found.low, found.high


def _recovery_rows(table: pd.DataFrame, examples: Mapping[str, Example]) -> Iterable[tuple[str, dict[str, object]]]:
    """The numbers of each text under one method: scores by word, for class 1, against the truth."""
    columns = ("uid", "scores", "words", "scored", "predicted")
    for uid, scores, words, scored, predicted in zip(*(table[name].tolist() for name in columns), strict=True):
        truth = np.asarray(examples[uid].ground_truth, dtype=np.float64)
        kept = np.asarray(scored, dtype=bool)
        by_word = np.zeros(len(truth))
        np.add.at(by_word, np.asarray(words)[kept], np.asarray(scores, dtype=np.float64)[kept])
        sign = 1.0 if predicted == 1 else -1.0
        row: dict[str, object] = {"uid": uid, "length": len(truth), "predicted": predicted}
        yield uid, {**row, **recovery_scores(sign * by_word, truth)}


@torch.no_grad()
def _uses_relevant_words(
    loaded: LoadedModel, examples: Mapping[str, Example], limit: int | None, workspace: Workspace
) -> dict[str, bool]:
    """Whether each text's prediction moves when its telling words are taken out; always where every word tells."""
    found: dict[str, bool] = {}
    for _, part in inference_batches(sample_rows(loaded.batch("test"), limit), workspace.batch_size):
        batch = part.to(workspace.device)
        telling = _relevant_units(batch, [examples[uid] for uid in batch.uids])
        every = (telling == batch.content_mask).all(1)
        left = batch.keep_units(batch.mask & ~(telling & ~every.unsqueeze(1)))
        before, after = (loaded.model.task.probabilities(loaded.model(each).logits) for each in (batch, left))
        moved = 0.5 * (before - after).abs().sum(1) >= USED_THRESHOLD
        found |= dict(zip(batch.uids, (moved | every).tolist(), strict=True))
    return found


def _relevant_units(batch: Batch, examples: Sequence[Example]) -> torch.Tensor:
    """The units whose words tell something, `[batch unit]`."""
    width = max(len(example.ground_truth or ()) for example in examples)
    truth = torch.zeros(len(batch), max(1, width), device=batch.mask.device)
    for row, example in enumerate(examples):
        values = torch.tensor(example.ground_truth or ())
        truth[row, : len(values)] = values
    return (truth.gather(1, batch.words.clamp(min=0)) != 0) & batch.content_mask
