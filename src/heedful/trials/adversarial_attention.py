"""Attention that opposes the model's own: one batch of a pooled model, put so that either solver can answer.

Hidden states are projected once to what each unit adds to each class; from there on no network is needed. The exact
solver applies to two classes behind a linear decoder. Elsewhere the search is made, then improved: what was found is
pulled outwards until the output moves by epsilon, a walk leads from there to a vertex (linear decoder), and the
lightest unit that keeps the output alone is tried.

Adversarial attention (Jain & Wallace, algorithm 3): how different could attention be for the same prediction?

For each instance the attention is sought that is farthest from the model's own while the output moves by at most
epsilon: exactly where that is possible, by the paper's search elsewhere. Only weights change; what a real attention
module could learn to give is the question of another trial (trained adversaries, Wiegreffe & Pinter).

Adversarial attention as an explanation: weights that the model would have predicted the same with, and that are not
its own.

What such weights say is wrong as far as they differ from what decides; a measure of explanations that likes them as
much as the truth cannot tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import pandas as pd
import torch
from torch import Tensor

from heedful.figures import Axis, Figure, Histogram, Series, Violin
from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound, total_variation
from heedful.models.attentive import Attentive, AttentiveModel
from heedful.models.bag_of_words import LinearBagOfWords, WordWeightSum
from heedful.models.input_forms import LinearReadout
from heedful.store.recipe import Artefact, derive_seed
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import sample_rows
from heedful.training.model_recipe import ModelRecipe
from heedful.training.trainer import inference_batches
from heedful.trials._adversary_exact import Slab, build_slab, find_exact_adversary, walk_to_vertex
from heedful.trials._adversary_search import (
    AdversarySearchSettings,
    AutogradOutputChange,
    LinearOutputChange,
    OutputChange,
    initial_logits,
    search_adversaries,
    select_best_candidate,
    stretch_to_boundary,
)
from heedful.trials._trial import Trial
from heedful.trials.permutation import ATTENTION_BINS
from heedful.types import Architecture, Attribution, Batch, Method, Model, Trace, UserError

EPSILON_TOLERANCE = 1e-9
"""What rounding may add to epsilon."""

_MAX_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class _LinearOutputs:
    """Class logits as a weighted mean: `a·scores + offset`, `[batch unit class]` and `[batch class]`."""

    scores: Tensor
    offset: Tensor

    def __call__(self, attention: Tensor) -> Tensor:
        return torch.softmax(torch.bmm(attention[:, :, 0], self.scores) + self.offset[:, None], -1)

    @property
    def binary_scores(self) -> Tensor | None:
        """One score per unit `[batch unit]`, bias included, where two classes are all there is."""
        if self.scores.shape[-1] != 2 or not self.offset.isfinite().all():
            return None
        both = self.scores + self.offset[:, None]
        return both[..., 1] - both[..., 0]


@dataclass(frozen=True)
class AdversaryProblem:
    """A batch as the solvers see it.

    Args:
        attention: the model's own `[batch query unit]`, each row a distribution in float64.
        outputs: probabilities `[batch count class]` of attentions `[batch count query unit]`.
        before: probabilities under the model's own attention `[batch class]`.
        scale: ½ where the paper's hinge is on one probability, 1 where it is on the L1 norm over classes.
    """

    attention: Tensor
    support: Tensor
    outputs: Callable[[Tensor], Tensor]
    original_probabilities: Tensor
    hinge_scale: float

    def output_change(self, candidates: Tensor) -> Tensor:
        """Total variation of the output `[batch count]` under candidates `[batch count query unit]`."""
        return total_variation(self.outputs(candidates), self.original_probabilities[:, None])

    @property
    def change(self) -> OutputChange:
        """The change that the search holds against its hinge."""
        if isinstance(self.outputs, _LinearOutputs):
            return LinearOutputChange(
                self.outputs.scores, self.outputs.offset, self.original_probabilities, self.hinge_scale
            )
        return AutogradOutputChange(self.outputs, self.original_probabilities, self.hinge_scale)


@dataclass(frozen=True)
class AdversarySolution:
    """What a solver found.

    Args:
        adversary: `[batch query unit]`.
        certified: proven to be the farthest `[batch]`; False means a lower bound.
        alone: units that keep the output by themselves `[batch unit]`; None where attention has several rows.
        within: the slab of all equivalent attentions, where the exact solver applies.
    """

    problem: AdversaryProblem
    adversary: Tensor
    certified: Tensor
    sufficient_units: Tensor | None
    slab: Slab | None

    @property
    def output_change(self) -> Tensor:
        """Total variation of the output under the adversary `[batch]`."""
        return self.problem.output_change(self.adversary[:, None])[:, 0]


@torch.no_grad()
def find_adversary(
    problem: AdversaryProblem, epsilon: float, descent: AdversarySearchSettings, seeds: Tensor, *, exact: bool
) -> AdversarySolution:
    """The attention farthest from the model's own that moves the output by at most epsilon, by the wanted solver."""
    within = _equivalence_slab(problem, epsilon)
    alone = _find_sufficient_units(problem, epsilon) if within is None else within.inside_mask
    if exact and within is not None:
        adversary = find_exact_adversary(within).unsqueeze(1)
        certified = problem.output_change(adversary.unsqueeze(1))[:, 0] <= epsilon + EPSILON_TOLERANCE
        return AdversarySolution(problem, adversary, certified, alone, within)
    found = search_adversaries(
        problem.attention, problem.change, initial_logits(problem.support, seeds, descent), descent
    )
    adversary = select_best_candidate(found, problem.attention, problem.output_change(found), epsilon)
    if exact:
        adversary = _improve_adversary(problem, found, alone, epsilon)
    return AdversarySolution(problem, adversary, torch.zeros_like(seeds, dtype=torch.bool), alone, within)


def build_adversary_problem(model: AttentiveModel, batch: Batch, trace: Trace) -> AdversaryProblem:
    """The batch as a case for the solvers."""
    if model.task.num_classes < 2:
        raise UserError("adversarial attention is for classifiers: epsilon is a change of probability")
    readout, support = model.readout(batch, trace.hidden), model.input_format.support(batch)
    attention = torch.where(support, trace.attention[:, 0, 0].double(), 0.0)
    attention = attention / attention.sum(-1, keepdim=True)
    dtype = trace.hidden.dtype

    def through_decoder(candidates: Tensor) -> Tensor:
        return model.task.probabilities(readout(candidates.to(dtype))).double()

    outputs = _linear_outputs(readout) if isinstance(readout, LinearReadout) else through_decoder
    before = outputs(attention.unsqueeze(1))[:, 0]
    return AdversaryProblem(attention, support, outputs, before, 0.5 if model.task.num_outputs == 1 else 1.0)


def _linear_outputs(readout: LinearReadout) -> _LinearOutputs:
    scores = readout.scores.double()
    offset = readout.inputs.mask_candidates(readout.offset.double().expand(len(scores), 1, -1)).squeeze(1)
    if scores.shape[-1] == 1:
        # One logit is the second of two classes; that of the first is zero.
        scores, offset = (torch.cat([torch.zeros_like(each), each], -1) for each in (scores, offset))
    return _LinearOutputs(scores, offset)


def _equivalence_slab(problem: AdversaryProblem, epsilon: float) -> Slab | None:
    scalar = problem.outputs.binary_scores if isinstance(problem.outputs, _LinearOutputs) else None
    return None if scalar is None else build_slab(scalar, problem.attention[:, 0], problem.support[:, 0], epsilon)


def _find_sufficient_units(problem: AdversaryProblem, epsilon: float) -> Tensor | None:
    """Units that keep the output by themselves, each tried."""
    batch, queries, units = problem.attention.shape
    if queries > 1:
        return None
    size = max(1, _MAX_ELEMENTS // max(1, batch * units))
    single = torch.eye(units, dtype=problem.attention.dtype, device=problem.attention.device)[None, :, None]
    some = torch.split(single.expand(batch, -1, -1, -1), size, dim=1)
    moved = torch.cat([problem.output_change(candidates) for candidates in some], 1)
    return (moved <= epsilon) & problem.support[:, 0]


def _improve_adversary(
    problem: AdversaryProblem, found: Tensor, sufficient_units: Tensor | None, epsilon: float
) -> Tensor:
    """The best of what was found, of what lies beyond it on the rays and walks, and of single units."""
    rays = torch.cat([found, _lightest_unit_attention(problem, found.shape[1])], 1)
    candidates = [found, stretch_to_boundary(rays, problem.attention, problem.output_change, epsilon)]
    if isinstance(problem.outputs, _LinearOutputs):
        candidates.append(_walk_to_vertices(problem, problem.outputs, torch.cat(candidates, 1)))
    if sufficient_units is not None:
        candidates.append(_lightest_sufficient_unit(problem.attention, sufficient_units).unsqueeze(1))
    everything = torch.cat(candidates, 1)
    return select_best_candidate(
        everything, problem.attention, problem.output_change(everything), epsilon + EPSILON_TOLERANCE
    )


def _lightest_unit_attention(problem: AdversaryProblem, count: int) -> Tensor:
    """All weight of each query on one of its lightest units, `[batch count query unit]`; the heaviest where few are."""
    ordered = problem.attention.masked_fill(~problem.support, torch.inf).argsort(-1)
    last = problem.support.sum(-1, keepdim=True) - 1
    places = torch.minimum(torch.arange(count, device=ordered.device), last)
    units = ordered.gather(-1, places).transpose(1, 2)[..., None]
    return torch.zeros_like(problem.attention).unsqueeze(1).repeat(1, count, 1, 1).scatter(3, units, 1.0)


def _lightest_sufficient_unit(attention: Tensor, sufficient_units: Tensor) -> Tensor:
    """All weight on the lightest of the units that keep the output, `[batch 1 unit]`; attention where there is none."""
    unit = attention[:, 0].masked_fill(~sufficient_units, torch.inf).argmin(-1)
    single = torch.zeros_like(attention).scatter(2, unit[:, None, None], 1.0)
    return torch.where(sufficient_units.any(-1)[:, None, None], single, attention)


def _walk_to_vertices(problem: AdversaryProblem, outputs: _LinearOutputs, points: Tensor) -> Tensor:
    """A vertex of equal output for each point and for attention itself, `[batch count 1 unit]`."""
    points = torch.cat([problem.attention.unsqueeze(1), points], 1)[:, :, 0]
    count = points.shape[1]
    scores, attention = (
        each.unsqueeze(1).expand(-1, count, *each.shape[1:]).flatten(0, 1)
        for each in (outputs.scores, problem.attention[:, 0])
    )
    ends = walk_to_vertex(points.flatten(0, 1), scores, attention)
    return ends.reshape(-1, count, 1, ends.shape[-1])


Solver = Literal["exact", "search"]

FAR_JSD = 0.595
"""Divergence from which an instance counts as far: the last six of the forty bins of the paper's figure 4."""

JSD_RANGE = (0.0, 0.7)
"""Divergences are at most ln 2 = .693."""


@dataclass(frozen=True)
class AdversarialAttention(Trial):
    """The largest divergence of attention at nearly equal output (epsilon-max JSD), one row per instance.

    Args:
        epsilon: change of the output, as total variation, up to which a prediction counts as the same (.05 in the
            released code, which made the figures; the text says .01).
        hinge: change that the search does not punish (.01 in the released code); the exact solver has no use for it.
        solver: "exact" is certified for two classes behind a linear decoder; for any other model it searches and then
            improves what it found, marked as not certified. "search" is the paper's algorithm and nothing else.
        adversaries: how many the search tries at once for each instance.
        limit: at most this many test instances.
    """

    name: ClassVar[str] = "adversary"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "Could quite another attention have given the same prediction?"
    claim: ClassVar[str] = (
        "If attention is the explanation of a prediction, no very different attention should lead to the same "
        "prediction."
    )
    source: ClassVar[str] = "Jain & Wallace 2019, section 4.2.2, figures 4 and 5"
    limits: ClassVar[str] = (
        "That other weights lead to the same prediction does not make the model's own weights wrong: it makes them one "
        "explanation of several. Nor could a trained attention module necessarily give the weights found here."
    )

    subject: ModelRecipe
    epsilon: float = 0.05
    hinge: float = 0.01
    solver: Solver = "exact"
    adversaries: int = 5
    steps: int = 500
    seed: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.solver not in ("exact", "search"):
            raise UserError(f"solver {self.solver!r} is not known: choose exact or search")
        if not 0 < self.epsilon <= 1:
            raise UserError(f"epsilon is a change of probability: choose it above 0 and up to 1, not {self.epsilon}")
        if self.adversaries < 1 or self.steps < 0:
            raise UserError("the search needs at least one adversary and no negative number of steps")

    def make(self, workspace: Workspace) -> Artefact:
        """A row per instance, with both attentions over the units that may be attended to."""
        trained = self.subject.restore(workspace)
        whole = trained.batch("test")
        batch = sample_rows(whole, self.limit)
        rows: list[pd.DataFrame] = []
        with workspace.progress.task(f"adversary {self.subject.about['corpus']}", len(batch)) as step:
            # Small batches stay in the processor's cache, which the search visits once per step.
            for _, part in inference_batches(batch, min(64, workspace.batch_size)):
                rows.append(self.rows(trained.model, part.to(workspace.device)))
                step(len(part))
        table = pd.concat(rows, ignore_index=True)
        return Artefact(table=table, notes={"about": dict(self.subject.about), "n": len(table), "of": len(whole)})

    def rows(self, model: Model, batch: Batch) -> pd.DataFrame:
        """The trial's rows for one batch.

        `epsilon_max` is the divergence found, `bound` what any attention on these units could reach, `share` their
        quotient (undefined for a single unit). `alone` are places, in the lists over units, of the units that keep the
        output by themselves, `singles` their number, `pairs` how many pairs of units have a mix that does (undefined
        off the exact solver's reach, as is `reach`: the largest weight that an equivalent attention gives each unit).
        """
        if not isinstance(model, AttentiveModel):
            raise UserError("adversarial attention is for pooled models; for a transformer choose another trial")
        with torch.no_grad():
            trace = model(batch)
            case = build_adversary_problem(model, batch, trace)
        seeds = [derive_seed("adversary", self.seed, uid) for uid in batch.uids]
        descent = AdversarySearchSettings(self.adversaries, self.steps, self.hinge)
        exact = self.solver == "exact"
        found = find_adversary(
            case, self.epsilon, descent, torch.tensor(seeds, device=trace.logits.device), exact=exact
        )
        known = {
            "uid": batch.uids,
            "length": batch.content_mask.sum(1).tolist(),
            "predicted": model.task.probabilities(trace.logits).argmax(1).tolist(),
            "maximum_attention": trace.attention.amax((1, 2, 3, 4)).tolist(),
            "epsilon": self.epsilon,
        }
        return pd.DataFrame({**known, **_result_columns(found)})

    @staticmethod
    def flat_summary(table: pd.DataFrame) -> dict[str, float]:
        """Medians and means of the divergence, overall and by predicted class; medians by class and attention bin."""
        found = {
            "n": float(len(table)),
            "epsilon": float(table["epsilon"].max()),
            **_divergence_statistics(table["epsilon_max"], ""),
            "share_of_bound": float(table["share"].mean()),
            "certified": float(table["certified"].mean()),
            "not_certified": float((~table["certified"].astype(bool)).sum()),
            "singles": float(table["singles"].median()),
            "with_single": float((table["singles"].dropna() > 0).mean()),
            "single_share": float((table["singles"] / table["attention"].map(len)).mean()),
        }
        for predicted, of_class in table.groupby("predicted"):
            found |= _divergence_statistics(of_class["epsilon_max"], f".class_{predicted}")
            for (low, high), inside in _divergences_by_bin(of_class):
                key = f"class_{predicted}.attention_{low:.2f}_to_{high:.2f}"
                found[f"n.{key}"] = float(len(inside))
                found[f"epsilon_max.{key}"] = float(inside.median())
        return found

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figures 4 and 5 of the paper: how often each divergence occurs, and how it goes with maximum attention."""
        axis = Axis("largest divergence at equal output", JSD_RANGE)
        classes = table.groupby("predicted")
        series = tuple(Series(f"class {predicted}", tuple(rows["epsilon_max"])) for predicted, rows in classes)
        by_class = [
            (f"class {predicted}", [inside for _, inside in _divergences_by_bin(rows)]) for predicted, rows in classes
        ]
        groups = tuple(
            tuple(Series(name, tuple(bins[b])) for name, bins in by_class) for b in range(len(ATTENTION_BINS))
        )
        labels = tuple(f"{low:.2f} to {high:.2f}" for low, high in ATTENTION_BINS)
        return (
            Histogram("How far attention can go without changing the output", axis, series, bins=40),
            Violin("The same by maximum attention", axis, Axis("maximum attention"), labels, groups),
        )

    @staticmethod
    def flat_interpretation(summary: Mapping[str, float]) -> str:
        """How far attention can go, and how sure that is."""
        share, single = summary["share_of_bound"], summary["with_single"]
        if math.isnan(share):
            return "There was no text of more than one word: no other weights exist."
        found = f"On average, weights that are {share:.0%} as far from the model's own as any weights could be leave "
        within = f"the prediction within {summary['epsilon']:g} of what it was."
        alone = f" In {single:.0%} of the texts it is enough to give all the weight to one word."
        return found + within + ("" if math.isnan(single) else alone) + _certainty_sentence(summary)


def _result_columns(
    found: AdversarySolution,
) -> dict[str, list[float] | list[bool] | list[list[float]] | list[list[int]]]:
    case = found.problem
    support = case.support.any(1)
    divergence = jensen_shannon(found.adversary, case.attention).mean(-1)
    bound = jensen_shannon_bound(case.attention, case.support).mean(-1)
    undefined = torch.full_like(bound, torch.nan)
    return {
        "epsilon_max": divergence.tolist(),
        "bound": bound.tolist(),
        "share": torch.where(bound > 0, divergence / bound, undefined).tolist(),
        "change": found.output_change.tolist(),
        "certified": found.certified.tolist(),
        "singles": (undefined if found.sufficient_units is None else found.sufficient_units.sum(-1).double()).tolist(),
        "pairs": (undefined if found.slab is None else found.slab.num_feasible_pairs.double()).tolist(),
        "units": _indices_on_support(support, torch.ones_like(support)),
        "attention": _values_on_support(case.attention.sum(1), support),
        "adversary": _values_on_support(found.adversary.sum(1), support),
        "reach": _values_on_support(None if found.slab is None else found.slab.max_weights, support),
        "alone": _indices_on_support(found.sufficient_units, support),
    }


def _certainty_sentence(summary: Mapping[str, float]) -> str:
    if not summary["not_certified"]:
        return " These are proven to be the farthest."
    if summary["not_certified"] == summary["n"]:
        return " They were found by search: even farther ones may exist."
    return f" For {summary['not_certified']:.0f} texts they were found by search, and even farther ones may exist."


def _divergence_statistics(values: pd.Series[float], of: str) -> dict[str, float]:
    return {
        f"epsilon_max{of}": float(values.median()),
        f"mean_epsilon_max{of}": float(values.mean()),
        f"far{of}": float((values >= FAR_JSD).mean()),
    }


def _divergences_by_bin(table: pd.DataFrame) -> Iterator[tuple[tuple[float, float], pd.Series[float]]]:
    """The divergences in each bin of maximum attention; rounding may put a maximum above 1."""
    for low, high in ATTENTION_BINS:
        inside = (table["maximum_attention"] >= low) & (
            (table["maximum_attention"] < high) | (high == ATTENTION_BINS[-1][1])
        )
        yield (low, high), table["epsilon_max"][inside]


def _values_on_support(values: Tensor | None, support: Tensor) -> list[list[float]]:
    """Each row's values on its supported units; empty lists where there are none."""
    if values is None:
        return [[] for _ in support]
    return [row[real].tolist() for row, real in zip(values, support, strict=True)]


def _indices_on_support(selected: Tensor | None, support: Tensor) -> list[list[int]]:
    if selected is None:
        return [[] for _ in support]
    return [row[real].nonzero().squeeze(1).tolist() for row, real in zip(selected, support, strict=True)]


@dataclass(frozen=True)
class AdversarialWeights:
    """The weights farthest from the model's own that leave its prediction as it is (Jain & Wallace, algorithm 3).

    Exact for two classes behind a linear decoder, searched and improved for other pooled models.

    Args:
        epsilon: change of the output, as total variation, up to which a prediction counts as the same.
        seed: of the search.
    """

    epsilon: float = 0.05
    seed: int = 0

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights in float64; which class is explained makes no difference to them."""
        with torch.no_grad():
            trace = model(batch)
        if isinstance(model, LinearBagOfWords):
            weights = self._weights_of_bag_of_words(model, batch, trace)
        elif isinstance(model, AttentiveModel):
            weights = self._weights_of_attentive_model(model, batch, trace)
        else:
            raise UserError("adversarial attention is for pooled models; for a transformer choose another method")
        return Attribution(weights.masked_fill(~batch.content_mask, 0.0), batch.content_mask)

    def _weights_of_attentive_model(self, model: AttentiveModel, batch: Batch, trace: Trace) -> Tensor:
        seeds = [derive_seed("adversary", self.seed, uid) for uid in batch.uids]
        given = torch.tensor(seeds, device=trace.logits.device)
        return find_adversary(
            build_adversary_problem(model, batch, trace), self.epsilon, AdversarySearchSettings(), given, exact=True
        ).adversary.sum(1)

    def _weights_of_bag_of_words(self, model: LinearBagOfWords, batch: Batch, trace: Trace) -> Tensor:
        """A sum over words is a mean weighted by attention, of each word's number times their count."""
        count = batch.content_mask.sum(1, keepdim=True).clamp(min=1)
        scores = (trace.embeddings @ model.direction).double() * count
        return find_exact_adversary(
            build_slab(scores, trace.attention[:, 0, 0, 0].double(), batch.content_mask, self.epsilon)
        )


def adversarial_methods(architecture: Architecture) -> tuple[Method, ...]:
    """Adversarial attention for models that have one, nothing for others."""
    return (AdversarialWeights(),) if isinstance(architecture, Attentive | WordWeightSum) else ()
