"""From scores to evidence: which units are taken away in which order, and the model's answers to all of it at once.

The answers come from the one engine of everything that perturbs, `attributions.asking`: what curves of several methods
ask alike is read once.

A model whose word vectors are a little off: what a steady explanation should not care about.

Scores that have no signs: they say how much a word matters, not for which answer.

Where words are taken away by their scores, such a method may take the word first that speaks against the prediction.

Faithfulness: take the words away that an explanation calls important, and see whether the prediction goes with them.

Agreement of explanations says nothing about their truth; here the model itself is asked. Every number stands beside
that of random scores on the same texts, with an interval: a method that does not beat them explains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from heedful.attributions._base import Baseline, check_baseline
from heedful.attributions.controls import Random, RandomizedModel, randomize_weights
from heedful.attributions.perturbation import LeaveOneOut, logits_keeping
from heedful.figures import Axis, Bars, Figure, Lines, Series
from heedful.measures.bootstrap import bootstrap_interval
from heedful.measures.erasure import (
    FAITHFULNESS_MEASURES,
    Direction,
    ErasureOutputs,
    FaithfulnessMeasure,
    bin_counts,
    score_ranks,
    step_counts,
)
from heedful.seeding import sample_uniform
from heedful.store.recipe import Artefact, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable, sample_rows
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import inference_batches
from heedful.trials._trial import Trial
from heedful.trials.agreement import quantize_scores
from heedful.types import (
    Attribution,
    Batch,
    ExposesValues,
    LayerInput,
    LayerTrace,
    Method,
    Model,
    Split,
    Trace,
    UserError,
    ValueTrace,
    method_name,
    read_layers,
)

RESOLUTION = 1e-9
"""Scores closer than this share of the largest are ties, as in agreement."""


@dataclass(frozen=True)
class ErasureEvaluator:
    """How a model is asked.

    Args:
        remove: what becomes of a unit that is taken away: another symbol, the zero vector, or the gap is closed.
        steps: points of a curve beside its beginning.
        samples: random removals, each unit with a chance of one half, the same ones for every method.
        seed: of the random removals and of the order of ties, together with each text's uid.
    """

    baseline: Baseline = "delete"
    steps: int = 20
    samples: int = 32
    seed: int = 0

    def __call__(self, model: Model, batch: Batch, target: Tensor, scores: Tensor) -> ErasureOutputs:
        """Evidence for scores `[method batch unit]` of the outputs `target` `[batch]`; rows method after method."""
        questions = self._perturbations(batch, scores)
        said = model.task.probabilities(logits_keeping(model, batch, questions.keep_masks, self.baseline).double())
        values = said.gather(2, target.reshape(-1, 1, 1).expand(-1, said.shape[1], 1)).squeeze(2)
        answers = questions.split_outputs(values)
        decisions = said.argmax(-1)
        flipped = (
            questions.split_outputs(decisions != decisions[:, -1:]).deletion_outputs if said.shape[2] > 1 else None
        )
        methods, units = len(scores), batch.content_mask.sum(1, keepdim=True)
        return ErasureOutputs(
            scores=scores.double().masked_fill(~batch.content_mask, 0.0).flatten(0, 1),
            mask=batch.content_mask.repeat(methods, 1),
            full_output=values[:, -1].repeat(methods),
            fractions=(questions.steps.double() / units.clamp(min=1)).repeat(methods, 1),
            deletion_outputs=answers.deletion_outputs,
            insertion_outputs=answers.insertion_outputs,
            decision_changed=flipped,
            comprehensiveness_outputs=answers.comprehensiveness_outputs,
            sufficiency_outputs=answers.sufficiency_outputs,
            removal_masks=questions.removal_masks.repeat(methods, 1, 1),
            removal_outputs=answers.removal_outputs.repeat(methods, 1),
        )

    def _perturbations(self, batch: Batch, scores: Tensor) -> _Perturbations:
        units, seeds = batch.content_mask.sum(1), _seeds_by_text("ties", self.seed, batch)
        ranked = quantize_scores(scores.transpose(0, 1), batch.content_mask, RESOLUTION).transpose(0, 1)
        # The lot that orders ties is the same for every method.
        places = torch.stack([score_ranks(each, batch.content_mask, seeds) for each in ranked])
        drawn = sample_uniform(_seeds_by_text("removed", self.seed, batch), self.samples, batch.mask.shape[1])
        removed = (drawn < 0.5) & batch.content_mask.unsqueeze(1)
        return _Perturbations(places, step_counts(units, self.steps), bin_counts(units), removed)


@dataclass(frozen=True)
class _PerturbedOutputs:
    """Answers to deletions and insertions, `[method * batch ...]`, and to random removals `[batch sample]`."""

    deletion_outputs: Tensor
    insertion_outputs: Tensor
    comprehensiveness_outputs: Tensor
    sufficiency_outputs: Tensor
    removal_outputs: Tensor


@dataclass(frozen=True)
class _Perturbations:
    """What a model is asked about a batch.

    Args:
        places: `[method batch unit]`, 0 for the unit that goes first.
        steps: units taken at each step of a curve `[batch step]`.
        bins: units in each bin `[batch bin]`.
        removed: units taken away by chance `[batch sample unit]`.
    """

    ranks: Tensor
    steps: Tensor
    bins: Tensor
    removal_masks: Tensor

    @property
    def keep_masks(self) -> Tensor:
        """All methods' questions in one `[batch question unit]`, so that what coincides is asked once.

        Deletions and insertions of each method, at steps and bins; random removals; the whole text.
        """
        counts = torch.cat((self.steps, self.bins), dim=1)
        top = self.ranks.unsqueeze(2) < counts.unsqueeze(-1)
        asked = torch.stack((~top, top), dim=2).transpose(0, 1).flatten(1, 3)
        return torch.cat((asked, ~self.removal_masks, torch.ones_like(self.removal_masks[:, :1])), dim=1)

    def split_outputs(self, values: Tensor) -> _PerturbedOutputs:
        """The answers `[batch question]`, told apart."""
        methods, steps, samples = len(self.ranks), self.steps.shape[1], self.removal_masks.shape[1]
        by_method, after = values[:, : -samples - 1], values[:, -samples - 1 : -1]
        apart = by_method.reshape(len(values), methods, 2, -1).permute(2, 1, 0, 3).flatten(1, 2)
        (deleted, without), (inserted, only) = (each.tensor_split([steps], dim=1) for each in apart)
        return _PerturbedOutputs(deleted, inserted, without, only, after)


@dataclass(frozen=True)
class FaithfulnessMetric:
    """A measure of faithfulness as one question: how good is this explanation of this model?

    `heedful.testing.checks.check_measure` puts it to the test; a measure of one's own needs no more than these two: a
    `direction`, and the call.
    """

    measure: FaithfulnessMeasure = FAITHFULNESS_MEASURES["aopc_comprehensiveness"]
    evaluator: ErasureEvaluator = ErasureEvaluator()

    @property
    def direction(self) -> Direction:
        """Which numbers are better."""
        return self.measure.direction

    def __call__(self, model: Model, batch: Batch, target: Tensor, attribution: Attribution) -> Tensor:
        """One number per text `[batch]`; NaN where undefined."""
        evidence = self.evaluator(model, batch, target, attribution.scores.unsqueeze(0))
        return self.measure.compute(evidence)


def scores_from_tables(tables: Mapping[str, pd.DataFrame], batch: Batch) -> Tensor:
    """The scores of each method's table, indexed by uid, for the texts of a batch: `[method batch unit]`."""
    scores = torch.zeros(len(tables), *batch.mask.shape, dtype=torch.float64)
    for place, (name, table) in enumerate(tables.items()):
        for row, values in enumerate(table.loc[list(batch.uids), "scores"]):
            scores[place, row, : len(values)] = torch.as_tensor(values, dtype=torch.float64)
        odd = (~scores[place].isfinite()).sum(1)
        if bool(odd.any()):
            row = int(odd.argmax())
            raise UserError(
                f"{name} gave scores of {batch.uids[row]!r} that are no finite numbers ({int(odd[row])} of them): mend "
                "the method or leave it out"
            )
    return scores.to(batch.mask.device)


def _seeds_by_text(kind: str, seed: int, batch: Batch) -> Tensor:
    numbers = [derive_seed(kind, seed, uid) for uid in batch.uids]
    return torch.tensor(numbers, device=batch.mask.device)


NOISE_RADIUS = 0.02
"""How far each number of an embedding may move (captum's default)."""


class NoisyModel(Model):
    """The same model with noise, uniform within `radius`, on its embeddings; given embeddings are taken as they are.

    The noise belongs to a word, not to its place: a text that lost a unit, or stands in other company, has the same.
    """

    def __init__(self, model: Model, seed: int, radius: float = NOISE_RADIUS) -> None:
        super().__init__()
        self.model, self.seed, self.radius = model, seed, radius
        self.task, self.notes, self.has_imposed_attention = model.task, model.notes, model.has_imposed_attention
        self.training = model.training

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        """What happened under the noise."""
        embeddings = self.noisy_embeddings(batch) if embeddings is None else embeddings
        return self.model(batch, embeddings=embeddings, attention=attention)

    def noisy_embeddings(self, batch: Batch) -> Tensor:
        """The embeddings with their noise."""
        plain = self.model(batch).embeddings
        return plain + self._noise(batch, plain.shape[-1]).to(plain)

    def _noise(self, batch: Batch, width: int) -> Tensor:
        """`[batch unit width]`; patches of an image have no name but their place."""
        images = batch.inputs.dim() > 2
        names = torch.arange(batch.mask.shape[1]).expand_as(batch.mask) if images else batch.inputs
        drawn = sample_uniform(names.flatten().to(batch.mask.device) + (self.seed >> 1), 1, width)
        noise = self.radius * (2 * drawn.reshape(*batch.mask.shape, width) - 1)
        return noise * batch.mask.unsqueeze(-1)


class NoisyTransformer(NoisyModel):
    """A shaken model of self-attention layers, which still shows what they carry."""

    def read_values(self, batch: Batch, *, embeddings: Tensor | None = None) -> ValueTrace:
        """What each layer carries under the noise."""
        assert isinstance(self.model, ExposesValues)
        return self.model.read_values(
            batch, embeddings=self.noisy_embeddings(batch) if embeddings is None else embeddings
        )

    def read_layers(self, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
        """What flows into each layer from these embeddings, which are taken as they are."""
        return read_layers(self.model, batch, embeddings, replacement)


def add_embedding_noise(model: Model, seed: int, radius: float = NOISE_RADIUS) -> NoisyModel:
    """The model with noise on its embeddings, which still shows the layers that the model shows."""
    return (NoisyTransformer if isinstance(model, ExposesValues) else NoisyModel)(model, seed, radius)


def scores_under_noise(method: Method, model: Model, batch: Batch, target: Tensor, seeds: tuple[int, ...]) -> Tensor:
    """The method's scores `[batch change unit]` under one small change for each seed."""
    if isinstance(method, RandomizedModel):
        # The redrawn model is shaken: weights are drawn by their names, and those of a shaken one have others.
        model, method = randomize_weights(model, method.seed), method.method
    found = [
        _attribution_scores(method, add_embedding_noise(model, derive_seed("shaken", seed)), batch, target)
        for seed in seeds
    ]
    return torch.stack(found, dim=1)


def _attribution_scores(method: Method, model: Model, batch: Batch, target: Tensor) -> Tensor:
    found: Attribution = method(model, batch, target)
    return found.scores.double()


UNSIGNED = "unsigned"
"""The column of a table and the name in a summary."""


def signed_methods(methods: Iterable[Method]) -> tuple[Method, ...]:
    """The same methods, each once; those that have a form with signs take it: leaving one out looks at the logit.

    Of two classes the loss of the logit ranks words as the signed loss of the probability does.

    >>> signed_methods((LeaveOneOut(),))
    (LeaveOneOut(output='logit'),)
    """
    found = (replace(each, output="logit") if isinstance(each, LeaveOneOut) else each for each in methods)
    return tuple(dict.fromkeys(found))


def is_unsigned(scores: Tensor) -> Tensor:
    """Whether no score of a text is below zero, `[...]` for scores `[... unit]`."""
    return (scores >= 0).all(-1)


def unsigned_flags(table: pd.DataFrame) -> dict[str, float]:
    """`unsigned.method` is 1 for every method, the null left out, that gave no text a score below zero.

    Tables that were made before this was asked say nothing.
    """
    if UNSIGNED not in table.columns:
        return {}
    by_method = table[~table["null"]].groupby("method", sort=False)[UNSIGNED].all()
    return {f"{UNSIGNED}.{method}": 1.0 for method, so in by_method.items() if so}


def unsigned_sentence(summary: Mapping[str, float]) -> str:
    """Which methods these are, as a sentence; nothing where there are none."""
    start = f"{UNSIGNED}."
    names = [name.removeprefix(start) for name in summary if name.startswith(start)]
    if not names:
        return ""
    return f"Without signs are the scores of {', '.join(names)}: what speaks against the prediction may go first there."


MIN_TEXTS = 10
"""With fewer texts than this there is no interval."""

RESAMPLES = 1000
_MAX_BATCH_SIZE = 32
_GRID = np.linspace(0.0, 1.0, 21)
_FIGURE_MEASURES = (("aopc_comprehensiveness", "aopc_sufficiency"), ("deletion_auc", "insertion_auc", "decision_flip"))


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
    limits: ClassVar[str] = (
        "A text with words taken away is no text that the model was trained on: part of every fall is mere surprise, "
        "which is why random words are taken away too. Methods that themselves take words away have an advantage "
        "here. To beat random scores is the least that can be asked; among many methods and measures one in twenty "
        "intervals misses by chance."
    )

    subject: ModelRecipe
    methods: tuple[Method, ...]
    baseline: Baseline = "delete"
    seed: int = 0
    limit: int | None = None
    absolute: bool = False
    steps: int = 20
    samples: int = 32
    sensitivity_samples: int = 0
    split: Split = "test"

    def __post_init__(self) -> None:
        check_baseline(self.baseline)
        if not self.methods:
            raise UserError("faithfulness needs a method at least")
        if len({method_name(method) for method in self.methods}) < len(self.methods):
            raise UserError("a method is given twice to faithfulness: leave one of them out, or give it another seed")
        if self.steps < 1 or self.samples < 1 or self.sensitivity_samples < 0:
            raise UserError("faithfulness needs at least one step and one sample, and no negative number of changes")

    @property
    def control(self) -> Random:
        """Scores that know nothing."""
        return Random(self.seed)

    @property
    def _methods_by_name(self) -> dict[str, Method]:
        """All methods by name, the null last."""
        found = {method_name(method): method for method in self.methods if method != self.control}
        return found | {method_name(self.control): self.control}

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        """The attributions, which other trials and the report share."""
        return tuple(
            AttributionTable(self.subject, each, self.split, self.limit) for each in self._methods_by_name.values()
        )

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance and method: all measures, the falls by bin, and both curves on a common grid."""
        needs = zip(self._methods_by_name, self.dependencies, strict=True)
        tables = {name: workspace.get(recipe).table.set_index("uid") for name, recipe in needs}
        trained = self.subject.restore(workspace)
        whole = trained.batch(self.split)
        batch = sample_rows(whole, self.limit)
        probing = ErasureEvaluator(self.baseline, self.steps, self.samples, self.seed)
        rows: list[pd.DataFrame] = []
        with workspace.progress.task(f"faithfulness {self.subject.about['corpus']}", len(batch)) as step:
            for _, part in inference_batches(batch, min(_MAX_BATCH_SIZE, workspace.batch_size)):
                part = part.to(workspace.device)
                given = _ScoredBatch(part, *_targets_and_scores(tables, part))
                rows.append(self._rows(trained.model, given, probing))
                step(len(part))
        table = pd.concat(rows, ignore_index=True)
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": len(batch), "of": len(whole)})

    def _rows(self, model: Model, inputs: _ScoredBatch, evaluator: ErasureEvaluator) -> pd.DataFrame:
        names, batch = list(self._methods_by_name), inputs.batch
        evidence = evaluator(model, batch, inputs.target, self._apply_absolute(inputs.scores))
        if self.sensitivity_samples:
            evidence = replace(evidence, perturbed_scores=self._apply_absolute(self._perturbed_scores(model, inputs)))
        known = {
            "uid": batch.uids * len(names),
            "length": batch.content_mask.sum(1).tolist() * len(names),
            "predicted": inputs.target.tolist() * len(names),
            "method": np.repeat(np.array(names, dtype=object), len(batch)),
            "place": np.repeat(np.arange(len(names)), len(batch)),
            "null": np.repeat(np.array(names) == method_name(self.control), len(batch)),
        }
        if not self.absolute:
            known[UNSIGNED] = is_unsigned(inputs.scores).flatten().tolist()
        return pd.DataFrame({**known, **_measure_columns(evidence)})

    def _apply_absolute(self, scores: Tensor) -> Tensor:
        return scores.abs() if self.absolute else scores

    def _perturbed_scores(self, model: Model, inputs: _ScoredBatch) -> Tensor:
        seeds = tuple(derive_seed("change", self.seed, number) for number in range(self.sensitivity_samples))
        found = [
            scores_under_noise(each, model, inputs.batch, inputs.target, seeds)
            for each in self._methods_by_name.values()
        ]
        return torch.cat(found)

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """Means by method, and how much better than random each is: `excess`, with `low` and `high` of its interval.

        `excess.measure.method` is above 0 where the method is better than random, whatever the measure's direction;
        the 95 % interval is from resampled instances, and undefined for fewer than ten. `undefined` counts instances
        where the measure says nothing about the method or about the null. Sensitivity is not compared: random scores
        are the steadiest of all. `unsigned.method` is 1 for methods that gave no score below zero.
        """
        found = {"n": float(table["uid"].nunique())}
        for measure in _present_measures(table):
            for method, values, _ in _values_with_control(table, measure):
                found[f"{measure}.{method}"] = float(np.nanmean(values)) if np.isfinite(values).any() else math.nan
        for measure in (each for each in _present_measures(table) if FAITHFULNESS_MEASURES[each].has_random_control):
            for method, values, null in _values_with_control(table, measure):
                if values is not null:
                    found |= _excess_over_control(measure, method, values, null)
        return found | unsigned_flags(table)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Deletion and insertion curves by method, and how much better than random each method is."""
        summary = Faithfulness.flat_summary(table)
        share = Axis("share of the units", (0.0, 1.0))
        curves = tuple(
            Lines(title, share, Axis("mean output for the predicted class"), _mean_curves(table, column))
            for title, column in (
                ("Output while units are taken away, highest first", "deletion"),
                ("Output while units are put in, highest first", "insertion"),
            )
        )
        return (*curves, *(_excess_bars(summary, measures) for measures in _FIGURE_MEASURES))

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """Which methods beat random scores beyond doubt, on which measures, and which do not."""
        verdicts = _verdicts_by_method(summary)
        if not verdicts:
            return "There are only random scores here, so nothing can be said."
        if all(each.unknown == each.count for each in verdicts.values()):
            return (
                f"With fewer than {MIN_TEXTS} texts there is no interval, so nothing can be said: measure more texts."
            )
        sentences = [f"{name[0].upper()}{name[1:]} {each.sentence()}." for name, each in verdicts.items()]
        return " ".join([*sentences, *filter(None, [unsigned_sentence(summary)])])


@dataclass(frozen=True)
class _ScoredBatch:
    """Texts, the classes explained `[batch]`, and all methods' scores `[method batch unit]`."""

    batch: Batch
    target: Tensor
    scores: Tensor


def _targets_and_scores(tables: Mapping[str, pd.DataFrame], batch: Batch) -> tuple[Tensor, Tensor]:
    first = next(iter(tables.values()))
    target = torch.tensor(first.loc[list(batch.uids), "predicted"].tolist())
    return target.to(batch.mask.device), scores_from_tables(tables, batch)


def _measure_columns(evidence: ErasureOutputs) -> dict[str, list[float] | list[list[float]]]:
    """Every measure that was asked for; the falls of each bin; the curves on a common grid."""
    asked = [
        each
        for each in FAITHFULNESS_MEASURES.values()
        if each.name != "sensitivity" or evidence.perturbed_scores is not None
    ]
    whole = evidence.full_output.unsqueeze(1)
    return {
        **{measure.name: measure.compute(evidence).tolist() for measure in asked},
        "comprehensiveness": (whole - evidence.comprehensiveness_outputs).tolist(),
        "sufficiency": (whole - evidence.sufficiency_outputs).tolist(),
        "deletion": _interpolate_on_grid(evidence.fractions, evidence.deletion_outputs),
        "insertion": _interpolate_on_grid(evidence.fractions, evidence.insertion_outputs),
    }


def _interpolate_on_grid(shares: Tensor, values: Tensor) -> list[list[float]]:
    rows = zip(shares.cpu().numpy(), values.cpu().numpy(), strict=True)
    return [np.interp(_GRID, share, value).tolist() for share, value in rows]


def _present_measures(table: pd.DataFrame) -> list[str]:
    return [name for name in FAITHFULNESS_MEASURES if name in table.columns]


_Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def _values_with_control(table: pd.DataFrame, measure: str) -> Iterator[tuple[str, _Values, _Values]]:
    """Each method's numbers and the null's, over the same instances in the order of their uids; the null comes last."""
    ordered = table.sort_values(["place", "uid"])
    places = [(rows, rows[measure].to_numpy(np.float64)) for _, rows in ordered.groupby("place")]
    null = next(values for rows, values in places if bool(rows["null"].iloc[0]))
    for rows, values in places:
        yield str(rows["method"].iloc[0]), values, null


def _excess_over_control(measure: str, method: str, values: _Values, control: _Values) -> dict[str, float]:
    both = np.isfinite(values) & np.isfinite(control)
    sign = FAITHFULNESS_MEASURES[measure].sign
    better, chance = (torch.from_numpy(sign * each[both]) for each in (values, control))
    place = f"{measure}.{method}"
    excess, low, high = (float((better - chance).mean()) if both.any() else math.nan), math.nan, math.nan
    if both.sum() >= MIN_TEXTS:
        generator = Generator().manual_seed(derive_seed("faithfulness", measure, method))
        interval = bootstrap_interval(better - chance, resamples=RESAMPLES, generator=generator)
        low, high = interval.low, interval.high
    found = {"excess": excess, "low": low, "high": high, "undefined": float((~both).sum())}
    return {f"{name}.{place}": value for name, value in found.items()}


def _mean_curves(table: pd.DataFrame, column: str) -> tuple[tuple[Series, Series], ...]:
    share = Series("share", tuple(_GRID.tolist()))
    found = []
    for _, rows in table.groupby("place"):
        mean = np.mean(np.stack([np.asarray(row, dtype=np.float64) for row in rows[column]]), axis=0)
        found.append((share, Series(_method_label(rows), tuple(mean.tolist()))))
    return tuple(found)


def _method_label(rows: pd.DataFrame) -> str:
    return f"{rows['method'].iloc[0]} (null)" if bool(rows["null"].iloc[0]) else str(rows["method"].iloc[0])


def _excess_bars(summary: Mapping[str, float], measures: Sequence[str]) -> Bars:
    methods = tuple(_verdicts_by_method(summary))
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
    inconclusive: tuple[str, ...] = ()
    unknown: int = 0

    @property
    def count(self) -> int:
        return len(self.better) + len(self.worse) + len(self.inconclusive) + self.unknown

    def sentence(self) -> str:
        """The verdict in words that go behind a method's name."""
        known = self.count - self.unknown
        if not known:
            return "could not be judged"
        if len(self.better) == known:
            return f"beats random scores on all {known} measures"
        if not self.better:
            found = f"beats random scores on none of {known} measures"
        else:
            found = f"beats random scores on {len(self.better)} of {known} measures"
            found += f", not on {_format_measures(self.inconclusive)}" if self.inconclusive else ""
        return f"{found}, and is worse than them on {_format_measures(self.worse)}" if self.worse else found


def _format_measures(measures: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in measures)


def _verdicts_by_method(summary: Mapping[str, float]) -> dict[str, _Verdict]:
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
            found[method] = replace(before, inconclusive=(*before.inconclusive, measure))
    return found
