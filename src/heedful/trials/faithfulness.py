"""Faithfulness: does the prediction depend on the words that an attribution ranks highest?

Units are removed and inserted in the order of their scores, and the model's outputs give the measures of
`measures.erasure`. Every number is compared with that of random scores on the same texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from heedful.attributions.controls import Random
from heedful.attributions.infill import Infill, infilled_probabilities
from heedful.attributions.method import (
    Baseline,
    Feature,
    example_seeds,
    expand_to_units,
    feature_counts,
    feature_index,
    method_name,
)
from heedful.attributions.perturbation import LeaveOneOut, logits_keeping
from heedful.figures import Axis, Figure, Lines, Series
from heedful.measures.erasure import (
    AOPC_FRACTIONS,
    FAITHFULNESS_MEASURES,
    INFIDELITY,
    Direction,
    ErasureOutputs,
    FaithfulnessMeasure,
    bin_counts,
    normalized_infidelity_error,
    paired_removals,
    removal_pairs,
    removal_sizes,
    score_ranks,
    step_counts,
)
from heedful.measures.intervals import paired_excess
from heedful.option_bounds import Bounds, check_options
from heedful.results import (
    NO_INTERVAL,
    Finding,
    Statistic,
    Verdict,
    excess_metric,
    get_statistic,
    group_by_verdict,
    interval_verdict,
    select_statistics,
)
from heedful.seeding import sample_uniform
from heedful.store.recipe import Artefact, Recipe, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable
from heedful.training.model_recipe import ModelRecipe
from heedful.trials.agreement import quantize_scores
from heedful.trials.trial import ShardedTrial, check_distinct_methods, interval_bars
from heedful.types import Attribution, Batch, Method, Model, Split, UserError

MAX_REMOVALS = 1024
"""Random removals of a text for normalized infidelity of a given standard error."""
_GROWTH = 1.5
"""Factor from one number of removals to the next, between which the errors are looked at."""
_MAX_BATCH_SIZE = 32
_GRID = np.linspace(0.0, 1.0, 21)
_FIGURE_MEASURES = (("aopc_comprehensiveness", "aopc_sufficiency"), ("deletion_auc", "insertion_auc", "decision_flip"))


@dataclass(frozen=True)
class Faithfulness(ShardedTrial):
    """All measures of faithfulness for all methods, one row per text and method; random scores are the control.

    Args:
        baseline: what replaces a removed unit: "delete" closes the gap (the patch of an image is blanked), "pad",
            "unk" and "mask" put that token there, "zero" the zero vector.
        seed: of the control, the random removals, and the order of tied units.
        limit: at most this many examples.
        steps: points of the deletion and insertion curves; a shorter text has a point per unit.
        samples: random removals for both kinds of infidelity; with `error` the least number.
        error: draw further removals of a text, up to 1024, until the standard error of the normalized infidelity of
            every method is at most this. The column `normalized_infidelity_error` has what was reached and `removals`
            what it took.
    """

    revision: ClassVar[int] = 3
    name: ClassVar[str] = "faithfulness"
    paper: ClassVar[str] = "disagreement"
    title: ClassVar[str] = "Does the prediction depend on the words that an explanation highlights?"
    claim: ClassVar[str] = (
        "If an explanation is faithful, the prediction should change when the words that it ranks highest are "
        "removed, and stay the same when only these are kept, more so than with random words."
    )
    source: ClassVar[str] = (
        "DeYoung et al. 2020 (ERASER); Petsiuk et al. 2018; Yeh et al. 2019; suggested by Neely et al."
    )
    limits: ClassVar[str] = (
        "A text with words removed is unlike the training data, which accounts for part of every change; this is "
        "why random words are also removed. Methods that remove words themselves have an advantage. Being better "
        "than random is a minimal requirement; with many methods and measures, one interval in twenty misses by "
        "chance."
    )

    statistics_columns: ClassVar[tuple[str, ...]] = (
        *("uid", "method", "place", "control", "unsigned", *FAITHFULNESS_MEASURES, INFIDELITY.name),
        *("removals", "normalized_infidelity_error", "accurate"),
    )

    subject: ModelRecipe
    methods: tuple[Method, ...]
    baseline: Baseline = "delete"
    seed: int = 0
    limit: int | None = None
    steps: Annotated[int, Bounds(1)] = 20
    samples: Annotated[int, Bounds(1)] = 32
    split: Split = "test"
    error: Annotated[float, Bounds(above=0, below=1)] | None = None

    def __post_init__(self) -> None:
        check_options(self)
        check_distinct_methods(self.methods)

    @property
    def _attribution_tables(self) -> dict[str, AttributionTable]:
        """The attributions by the method's name, the control last."""
        control = Random(self.seed)
        methods = (*(method for method in self.methods if method != control), control)
        return {
            method_name(method): AttributionTable(self.subject, method, self.split, self.limit) for method in methods
        }

    @property
    def dependencies(self) -> tuple[Recipe, ...]:
        return tuple(self._attribution_tables.values())

    def tabulate(self, workspace: Workspace, block: range) -> Artefact:
        """The rows of `ErasureEvaluator` for these texts."""
        recipes = self._attribution_tables
        tables = {name: recipe.read_block(workspace, block).set_index("uid") for name, recipe in recipes.items()}
        evaluate = ErasureEvaluator(self.baseline, self.steps, self.samples, self.seed, self.error)
        size = min(_MAX_BATCH_SIZE, workspace.batch_size)
        return self.tabulate_texts(workspace, partial(evaluate.rows, tables), self.limit, size, self.split, block)

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Mean of each measure by method, and how much better than random: above 0 whatever the measure's direction.

        `infidelity` as peers define it depends on the scale of scores and has a mean only. Where removals were drawn
        until normalized infidelity was accurate: their mean number, the largest standard error of each
        method, and the number of texts in which the largest number of removals did not make it as small as asked for.
        """
        yield Statistic("texts", value=float(table["uid"].nunique()))
        ordered = table.sort_values(["place", "uid"])
        methods = [(str(rows["method"].iloc[0]), rows) for _, rows in ordered.groupby("place")]
        control, random = next((name, rows) for name, rows in methods if bool(rows["control"].iloc[0]))
        yield Statistic("control", control, value=1.0)
        for measure in FAITHFULNESS_MEASURES.values():
            chance = measure.sign * random[measure.name].to_numpy(np.float64)
            for method, rows in methods:
                values = rows[measure.name].to_numpy(np.float64)
                mean, n = float(rows[measure.name].mean()), int(np.isfinite(values).sum())
                yield Statistic(measure.name, method, value=mean, n=n)
                if method != control:
                    seed = derive_seed("faithfulness", measure.name, method)
                    excess = paired_excess(measure.sign * values, chance, seed)
                    yield Statistic(excess_metric(measure.name), method, "", *excess)
        for method, rows in methods:
            mean, n = float(rows[INFIDELITY.name].mean()), int(rows[INFIDELITY.name].count())
            yield Statistic(INFIDELITY.name, method, value=mean, n=n)
        for method, rows in methods:
            if method != control and rows["unsigned"].all():
                yield Statistic("unsigned", method, value=1.0)
        if "normalized_infidelity_error" in table:
            texts = ordered.groupby("uid")
            yield Statistic("removals", value=float(texts["removals"].first().mean()), n=len(texts))
            for method, rows in methods:
                errors = rows["normalized_infidelity_error"]
                yield Statistic(str(errors.name), method, value=float(errors.max()), n=int(errors.count()))
            inaccurate = int((~texts["accurate"].all()).sum())
            yield Statistic("inaccurate", value=float(inaccurate), n=len(texts))

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Deletion and insertion curves by method, and how much better than random each method is."""
        summary = Faithfulness.summary(table)
        methods = [finding.method for finding in Faithfulness.findings(summary)]
        axis, bars = Axis("better than random by, with 95 % interval"), []
        for measures in _FIGURE_MEASURES:
            rows = {
                measure.replace("_", " "): [
                    get_statistic(summary, excess_metric(measure), method) for method in methods
                ]
                for measure in measures
            }
            bars.append(interval_bars(f"Better than random scores: {', '.join(rows)}", axis, methods, rows))
        share, output = Axis("share of the units", (0.0, 1.0)), Axis("mean output for the predicted class")
        return (
            Lines("Output while units are removed, highest first", share, output, _mean_curves(table, "deletion")),
            Lines("Output while units are inserted, highest first", share, output, _mean_curves(table, "insertion")),
            *bars,
        )

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Supported: better than random on all measures; not supported: worse on some and better on none."""
        measures = [excess_metric(name) for name in FAITHFULNESS_MEASURES]
        excesses = [excess for measure in measures for excess in select_statistics(summary, measure)]
        findings = []
        for method in dict.fromkeys(excess.method for excess in excesses):
            evidence = tuple(excess for excess in excesses if excess.method == method)
            verdicts = {interval_verdict(excess.low, excess.high) for excess in evidence if not math.isnan(excess.low)}
            verdict, reason = Verdict.UNDECIDED, "not clearly different from random"
            if not verdicts:
                reason = NO_INTERVAL
            elif verdicts == {Verdict.SUPPORTED}:
                verdict, reason = Verdict.SUPPORTED, ""
            elif Verdict.SUPPORTED in verdicts:
                reason = "better than random only on some measures"
            elif Verdict.NOT_SUPPORTED in verdicts:
                verdict, reason = Verdict.NOT_SUPPORTED, ""
            findings.append(Finding(verdict, method, evidence, reason))
        return tuple(findings)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        findings = cls.findings(summary)
        if not findings:
            return "Only random scores were measured, so there is nothing to compare."
        labels = {excess_metric(name): name.replace("_", " ") for name in FAITHFULNESS_MEASURES}
        words = []
        for finding in findings:
            known = [statistic for statistic in finding.evidence if not math.isnan(statistic.low)]
            groups = group_by_verdict(
                (interval_verdict(statistic.low, statistic.high), labels[statistic.metric]) for statistic in known
            )
            better, unclear, worse = groups[Verdict.SUPPORTED], groups[Verdict.UNDECIDED], groups[Verdict.NOT_SUPPORTED]
            sentence = f"{finding.method} is better than random scores on {len(better)} of {len(known)} measures"
            sentence += f", not clearly on {', '.join(unclear)}" if better and unclear else ""
            sentence += f", and worse on {', '.join(worse)}" if worse else ""
            words.append(f"{sentence}." if known else f"{finding.method}: {finding.reason}.")
        unsigned = [statistic.method for statistic in select_statistics(summary, "unsigned")]
        if unsigned:
            note = "evidence against the prediction may be removed first"
            words.append(f"The scores of {', '.join(unsigned)} have no signs: {note}.")
        for statistic in select_statistics(summary, "inaccurate"):
            if statistic.value > 0:
                count = f"{statistic.value:.0f} of {statistic.n:.0f} texts"
                note = f"has a larger error than requested after {MAX_REMOVALS} random removals"
                words.append(f"In {count}, the normalized infidelity of some method {note}.")
        return " ".join(words)


class FeatureOutputs:
    """Outputs for the explained classes on texts with only some of their units or words.

    Args:
        target: the explained classes `[batch]`.
        baseline: what replaces a removed feature.
    """

    def __init__(
        self, model: Model, batch: Batch, target: Tensor, baseline: Baseline | Infill, feature: Feature
    ) -> None:
        self.model, self.batch, self.target, self.baseline = model, batch, target, baseline
        self.index = None if feature == "unit" else feature_index(batch, feature)

    def __call__(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Output in float64 and predicted class `[batch sample]` with the features `kept` `[batch sample feature]`."""
        width = self.batch.mask.shape[1]
        units = kept[:, :, :width] if self.index is None else expand_to_units(kept, self.index)
        if isinstance(self.baseline, Infill):
            probabilities = infilled_probabilities(self.model, self.batch, units, self.baseline)
        else:
            logits = logits_keeping(self.model, self.batch, units, self.baseline).double()
            probabilities = self.model.task.probabilities(logits)
        chosen = self.target.reshape(-1, 1, 1).expand(-1, kept.shape[1], 1)
        return probabilities.gather(2, chosen).squeeze(2), probabilities.argmax(-1)


@dataclass(frozen=True)
class ErasureEvaluator:
    """Batched forward passes on texts with units or words removed or kept in the order of their scores.

    Args:
        baseline: what replaces a removed feature.
        steps: points of a curve after its first; None takes the bins of comprehensiveness as its points.
        samples: random removals, each feature with probability one half, the same ones for every method.
        seed: of the random removals and of the order of ties, together with each text's uid.
        error: draw removals in pairs of complements, at least `samples` and at most `MAX_REMOVALS` of a text, until the
            standard error of the normalized infidelity of every method is at most this; a text of up to ten features
            has no more than 1024 removals, after which the value is exact.
        feature: what is removed together: a unit, whose scores stand where it stands in the batch, or a word, numbered
            in text order from 0 as by `feature_index`.
        quantized: whether scores that differ by rounding only are tied.
        bins: shares of the features over which comprehensiveness and sufficiency are means, by default those of ERASER;
            None takes equally weighted numbers of features (`removal_sizes`).
    """

    baseline: Baseline = "delete"
    steps: int | None = 20
    samples: int = 32
    seed: int = 0
    error: float | None = None
    feature: Feature = "unit"
    quantized: bool = True
    bins: tuple[float, ...] | None = AOPC_FRACTIONS

    def sizes(self, features: Tensor) -> Tensor:
        """How many features each bin of a text of so many features holds `[batch bin]`."""
        return removal_sizes(features) if self.bins is None else bin_counts(features, self.bins)

    def _mask(self, batch: Batch, width: int) -> Tensor:
        """The features of each text `[batch feature]`."""
        if self.feature == "unit":
            return batch.content_mask
        counts = feature_counts(feature_index(batch, self.feature))
        return torch.arange(width, device=counts.device) < counts.unsqueeze(1)

    def ranks(self, batch: Batch, scores: Tensor) -> Tensor:
        """The rank of each feature by its score, 0 for the highest `[method batch feature]`; ties in random order."""
        mask, tie_seeds = self._mask(batch, scores.shape[-1]), example_seeds("ties", self.seed, batch)
        if self.quantized:
            scores = quantize_scores(scores.transpose(0, 1), mask).transpose(0, 1)
        # Ties are broken alike for every method.
        return torch.stack([score_ranks(method_scores, mask, tie_seeds) for method_scores in scores])

    def __call__(self, model: Model, batch: Batch, target: Tensor, scores: Tensor) -> ErasureOutputs:
        """Outputs of the classes `target` `[batch]` for scores `[method batch feature]`; rows method after method."""
        methods, mask = len(scores), self._mask(batch, scores.shape[-1])
        features = mask.sum(1)
        bins = self.sizes(features)
        steps = bins if self.steps is None else step_counts(features, self.steps)
        removal_seeds = example_seeds("removed", self.seed, batch)
        if self.error is None:
            removed = (sample_uniform(removal_seeds, self.samples, mask.shape[1]) < 0.5) & mask.unsqueeze(1)
        else:
            removed = paired_removals(removal_seeds, mask, 0, min(MAX_REMOVALS, 2 * -(-self.samples // 2)))
        counts = bins if self.steps is None else torch.cat((steps, bins), dim=1)
        top = self.ranks(batch, scores).unsqueeze(2) < counts.unsqueeze(-1)
        # All methods in one call, so that equal perturbations are computed once: without and with the top features of
        # each method, random removals, the whole text.
        erased = torch.stack((~top, top), dim=2).transpose(0, 1).flatten(1, 3)
        keep_masks = torch.cat((erased, ~removed, torch.ones_like(erased[:, :1])), dim=1)
        values, decisions = FeatureOutputs(model, batch, target, self.baseline, self.feature)(keep_masks)

        def split(outputs: Tensor) -> Tensor:
            """Outputs `[batch perturbation]` as `[without/with method*batch count]`."""
            by_method = outputs[:, : erased.shape[1]].reshape(len(batch), methods, 2, -1)
            return by_method.permute(2, 1, 0, 3).flatten(1, 2)

        # The first counts are the steps, the last ones the bins.
        (deleted, inserted), (without, only) = (
            split(values)[..., part] for part in (slice(steps.shape[1]), slice(-bins.shape[1], None))
        )
        flipped = split(decisions != decisions[:, -1:])[0, :, : steps.shape[1]]
        outputs = ErasureOutputs(
            scores=scores.double().masked_fill(~mask, 0.0).flatten(0, 1),
            mask=mask.repeat(methods, 1),
            full_output=values[:, -1].repeat(methods),
            fractions=(steps.double() / features.clamp(min=1).unsqueeze(1)).repeat(methods, 1),
            deletion_outputs=deleted,
            insertion_outputs=inserted,
            decision_changed=flipped if model.task.num_classes > 1 else None,
            bins=bins.repeat(methods, 1),
            comprehensiveness_outputs=without,
            sufficiency_outputs=only,
            removal_masks=removed.repeat(methods, 1, 1),
            removal_outputs=values[:, erased.shape[1] : -1].repeat(methods, 1),
        )
        return outputs if self.error is None else self._draw_until(self.error, outputs, model, batch, target)

    def _draw_until(
        self, error: float, outputs: ErasureOutputs, model: Model, batch: Batch, target: Tensor
    ) -> ErasureOutputs:
        """The outputs with as many random removals of each text as its normalized infidelity needs."""
        seeds, texts = example_seeds("removed", self.seed, batch), len(batch)
        mask = outputs.mask[:texts]
        methods, most = len(outputs.scores) // texts, 2 * removal_pairs(mask.sum(1))
        masks, values = outputs.removal_masks[:texts], outputs.removal_outputs[:texts]
        whole, known = outputs.full_output[:texts], masks.shape[1]
        counts = most.clamp(max=known).long()
        while True:
            outputs = replace(
                outputs,
                removal_masks=masks.repeat(methods, 1, 1),
                removal_outputs=values.repeat(methods, 1),
                removal_counts=counts.repeat(methods),
            )
            is_open = (normalized_infidelity_error(outputs).reshape(methods, texts) > error).any(0)
            if known == MAX_REMOVALS or not bool(is_open.any()):
                return outputs
            rows, count = is_open.nonzero().flatten(), min(MAX_REMOVALS, 2 * (int(known * _GROWTH) // 2)) - known
            drawn = paired_removals(seeds[rows], mask[rows], known, count)
            read_part = FeatureOutputs(model, batch.rows(rows), target[rows], self.baseline, self.feature)
            without, _ = read_part(~drawn)
            # A text that has enough removals has nothing removed, and an output that does not change.
            further = torch.zeros_like(masks[:, :1]).repeat(1, count, 1)
            further[rows] = drawn
            read = whole.unsqueeze(1).repeat(1, count)
            read[rows] = torch.where(drawn.any(2), without, whole[rows].unsqueeze(1))
            masks, values, known = torch.cat((masks, further), 1), torch.cat((values, read), 1), known + count
            counts = torch.where(is_open, most.clamp(max=known).long(), counts)

    def rows(self, tables: Mapping[str, pd.DataFrame], model: Model, batch: Batch) -> pd.DataFrame:
        """A row per method and text: all measures, the output changes by bin, and both curves on a common grid.

        Args:
            tables: tables of `AttributionTable`, indexed by uid, by the method's name; the last one is the control.
        """
        names, uids = list(tables), list(batch.uids)
        predicted = tables[names[0]].loc[uids, "predicted"].tolist()
        target, scores = torch.tensor(predicted, device=batch.mask.device), scores_from_tables(tables, batch)
        outputs = self(model, batch, target, scores)
        whole = outputs.full_output.unsqueeze(1)
        sampled: dict[str, object] = {}
        if outputs.removal_counts is not None and self.error is not None:
            errors = normalized_infidelity_error(outputs)
            sampled = {
                "removals": outputs.removal_counts.tolist(),
                "normalized_infidelity_error": errors.tolist(),
                "accurate": (~(errors > self.error)).tolist(),
            }
        return pd.DataFrame(
            {
                "uid": uids * len(names),
                "length": batch.content_mask.sum(1).tolist() * len(names),
                "predicted": predicted * len(names),
                "method": np.repeat(np.array(names, dtype=object), len(batch)),
                "place": np.repeat(np.arange(len(names)), len(batch)),
                "control": np.repeat(np.array(names) == names[-1], len(batch)),
                # Whether no score of a text is negative.
                "unsigned": (scores >= 0).all(-1).flatten().tolist(),
                **{name: measure.compute(outputs).tolist() for name, measure in FAITHFULNESS_MEASURES.items()},
                INFIDELITY.name: INFIDELITY.compute(outputs).tolist(),
                "comprehensiveness": (whole - outputs.comprehensiveness_outputs).tolist(),
                "sufficiency": (whole - outputs.sufficiency_outputs).tolist(),
                "deletion": _interpolate_on_grid(outputs.fractions, outputs.deletion_outputs),
                "insertion": _interpolate_on_grid(outputs.fractions, outputs.insertion_outputs),
                **sampled,
            }
        )


@dataclass(frozen=True)
class FaithfulnessMetric:
    """One measure of faithfulness as a function of model and attribution, for `heedful.testing.check_measure`."""

    measure: FaithfulnessMeasure = FAITHFULNESS_MEASURES["aopc_comprehensiveness"]
    evaluator: ErasureEvaluator = ErasureEvaluator()

    @property
    def direction(self) -> Direction:
        """Whether higher or lower values are better."""
        return self.measure.direction

    def __call__(self, model: Model, batch: Batch, target: Tensor, attribution: Attribution) -> Tensor:
        """One value per text `[batch]`; NaN where undefined."""
        evidence = self.evaluator(model, batch, target, attribution.scores.unsqueeze(0))
        return self.measure.compute(evidence)


def scores_from_tables(tables: Mapping[str, pd.DataFrame], batch: Batch) -> Tensor:
    """The scores of each method's table, indexed by uid, for the texts of a batch: `[method batch unit]`."""
    scores = torch.zeros(len(tables), *batch.mask.shape, dtype=torch.float64)
    for number, (name, table) in enumerate(tables.items()):
        for row, values in enumerate(table.loc[list(batch.uids), "scores"]):
            scores[number, row, : len(values)] = torch.as_tensor(values, dtype=torch.float64)
        odd = (~scores[number].isfinite()).sum(1)
        if bool(odd.any()):
            row = int(odd.argmax())
            raise UserError(
                f"{name} gave {int(odd[row])} scores of {batch.uids[row]!r} that are not finite; fix or omit the method"
            )
    return scores.to(batch.mask.device)


def signed_methods(methods: Iterable[Method]) -> tuple[Method, ...]:
    """The methods without duplicates, with the signed loss of the logit for unsigned `LeaveOneOut`.

    For two classes, the change of the logit ranks words as the signed change of the probability does.

    >>> signed_methods((LeaveOneOut("distribution"),))
    (LeaveOneOut(output='logit', feature='unit'),)
    """
    unsigned, signed = LeaveOneOut("distribution"), LeaveOneOut("logit")
    return tuple(dict.fromkeys(signed if method == unsigned else method for method in methods))


def _interpolate_on_grid(shares: Tensor, values: Tensor) -> list[list[float]]:
    rows = zip(shares.cpu().numpy(), values.cpu().numpy(), strict=True)
    return [np.interp(_GRID, share, value).tolist() for share, value in rows]


def _mean_curves(table: pd.DataFrame, column: str) -> tuple[tuple[Series, Series], ...]:
    share = Series("share", tuple(_GRID.tolist()))
    curves = []
    for _, rows in table.groupby("place"):
        label = str(rows["method"].iloc[0]) + (" (control)" if bool(rows["control"].iloc[0]) else "")
        curves.append((share, Series(label, tuple(np.stack(rows[column].map(np.asarray).tolist()).mean(0).tolist()))))
    return tuple(curves)
