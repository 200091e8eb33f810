"""Adversarial attention (Jain & Wallace 2019, algorithm 3): how different could attention be for the same prediction?

For each text the trial finds the attention farthest from the model's own while the output changes by at most epsilon.
Hidden states are projected once to what each unit adds to each class, so that the solvers need no network. For two
classes behind a linear decoder the solution is exact (`_adversary_exact`). Elsewhere the paper's search
(`adversary_search`) is run and then improved. Of a transformer the weights of the tokens that the prediction is read
from are replaced (`_adversary_transformer`). Only the weights change; whether a trained attention module could give
them is tested by `adversarial_training`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import pandas as pd
import torch
from torch import Tensor

from heedful.attributions.attention import ATTENTION_WEIGHTS
from heedful.attributions.method import MethodTags, example_seeds, name_by_fields
from heedful.capabilities import ExposesLayers, check_attention
from heedful.figures import Axis, Figure, Histogram, Series
from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound
from heedful.models.attentive import Attentive, AttentiveModel, LinearBagOfWords, WordWeightSum
from heedful.models.input_forms import LinearReadout
from heedful.option_bounds import Bounds, check_options
from heedful.results import Finding, Statistic, Verdict, get_statistic, value_of
from heedful.store.recipe import Artefact
from heedful.store.workspace import Workspace
from heedful.training.model_recipe import ModelRecipe
from heedful.training.predictions import attention_support
from heedful.trials._adversary_climb import climb_from, sparse_starts
from heedful.trials._adversary_exact import (
    EquivalentOutputs,
    Slab,
    build_slab,
    find_exact_adversary,
    search_supports,
    walk_to_vertex,
)
from heedful.trials._adversary_transformer import (
    PERMUTATIONS,
    TransformerAdversarySettings,
    find_transformer_adversaries,
)
from heedful.trials.adversary_search import (
    EPSILON_TOLERANCE,
    AdversaryProblem,
    AdversarySearchSettings,
    LinearOutputs,
    OutputChange,
    initial_logits,
    search_adversaries,
    select_best_candidate,
    stretch_to_boundary,
)
from heedful.trials.trial import (
    ATTENTION_BIN_LABELS,
    LARGE_SHARE,
    SMALL_SHARE,
    Trial,
    attention_violins,
    bin_subset,
    split_by_class_and_attention,
    text_columns,
)
from heedful.types import (
    Architecture,
    Attribution,
    Batch,
    Method,
    Model,
    NotApplicable,
    Trace,
    UserError,
    evaluation_mode,
)

CERTIFIED_GAP = 1e-9
"""A divergence this near to its upper bound is the maximum."""
LINEAR_TOLERANCE = 1e-4
"""Rounding, relative to the largest logit, up to which logits count as linear in attention."""
FAR_JSD = 0.595
"""Divergence from which a text counts as far: the last six of the forty bins of the paper's figure 4."""
LINEAR_STARTS = 24
"""Random starts of sequential linear programs behind a linear decoder with three or more classes."""
_MAX_ELEMENTS = 1 << 22

Solver = Literal["exact", "search"]


@dataclass(frozen=True)
class AdversarialAttention(Trial):
    """The largest divergence of attention at nearly equal output (epsilon-max JSD), one row per text.

    Args:
        epsilon: total variation of the output up to which a prediction counts as the same (.05 in the released code,
            which made the figures; .01 in the paper's text).
        solver: "exact" is certified for two classes behind a linear decoder. For three or four classes all supports of
            as many units are searched, for more all pairs, then improved by linear programs, and an upper bound gives
            the `gap` that is left. Behind other decoders the paper's search is improved, without a bound. "search" is
            the paper's algorithm alone; of a transformer, beside single units and pairs.
        limit: at most this many test examples.
        layer: of a transformer, counted from 0, or from the last with -1 (the default); None replaces all layers.
        head: of a transformer, one head of each replaced layer; None, the default, replaces all heads together.

    What is replaced in a transformer: the attention rows of the tokens whose last states the head reads (the class
    token, the last token, or all tokens of a mean), in the chosen layers and heads, over all units that these tokens
    may attend to, special tokens included. All other attention stays as it was. The divergence is the mean over the
    replaced rows. What is found is a lower bound, and proven only where it reaches the bound of all weights.
    """

    revision: ClassVar[int] = 2
    name: ClassVar[str] = "adversarial-attention"
    paper: ClassVar[str] = "jain-wallace"
    title: ClassVar[str] = "Could very different attention have produced the same prediction?"
    claim: ClassVar[str] = (
        "If attention explains a prediction, very different attention should not lead to the same prediction."
    )
    source: ClassVar[str] = "Jain & Wallace 2019, section 4.2.2, figures 4 and 5"
    limits: ClassVar[str] = (
        "If other weights lead to the same prediction, the model's own weights are not wrong, but only one of "
        "several explanations. A trained attention module may be unable to produce the weights found here. In a "
        "transformer, the layers below have already mixed the states that attention weighs."
    )

    subject: ModelRecipe
    epsilon: Annotated[float, Bounds(above=0, at_most=1)] = 0.05
    solver: Solver = "exact"
    search: AdversarySearchSettings = AdversarySearchSettings()
    seed: int = 0
    limit: int | None = None
    layer: int | None = -1
    head: int | None = None

    def __post_init__(self) -> None:
        check_options(self)

    def make(self, workspace: Workspace) -> Artefact:
        """A row per text, with both attentions over the units that can be attended to."""
        # Small batches stay in the processor's cache during the search.
        return self.tabulate_texts(workspace, self.rows, self.limit, min(64, workspace.batch_size))

    def rows(self, model: Model, batch: Batch) -> pd.DataFrame:
        """The trial's rows for one batch.

        `epsilon_max` is the divergence, `bound` the largest one that any attention on these units can have, `share`
        their ratio (NaN for a single unit). `alone` lists the units that keep the output with all the weight, `singles`
        is their number.
        """
        if isinstance(model, ExposesLayers):
            return self._transformer_rows(model, batch)
        check_attention(model)
        with torch.no_grad():
            trace = model(batch)
            if isinstance(model, AttentiveModel):
                problem = build_adversary_problem(model, batch, trace)
            else:
                problem = probe_problem(model, batch, trace)
        seeds = example_seeds("adversary", self.seed, batch)
        solution = find_adversary(problem, self.epsilon, self.search, seeds, exact=self.solver == "exact")
        support = problem.support.any(1)
        divergence = jensen_shannon(solution.adversary, problem.attention).mean(-1)
        bound = jensen_shannon_bound(problem.attention, problem.support).mean(-1)
        undefined, alone = torch.full_like(bound, torch.nan), solution.sufficient_units
        return pd.DataFrame(
            {
                **text_columns(model.task, batch, trace),
                "epsilon": self.epsilon,
                "epsilon_max": divergence.tolist(),
                "bound": bound.tolist(),
                "share": torch.where(bound > 0, divergence / bound, undefined).tolist(),
                "change": problem.output_change(solution.adversary[:, None])[:, 0].tolist(),
                "certified": (solution.upper_bound - divergence <= CERTIFIED_GAP).tolist(),
                "gap": (solution.upper_bound - divergence).clamp(min=0.0).tolist(),
                "singles": (undefined if alone is None else alone.sum(-1).double()).tolist(),
                "units": _indices_on_support(support, torch.ones_like(support)),
                "attention": _values_on_support(problem.attention.sum(1), support),
                "adversary": _values_on_support(solution.adversary.sum(1), support),
                "alone": _indices_on_support(alone, support),
            }
        )

    def _transformer_rows(self, model: Model, batch: Batch) -> pd.DataFrame:
        """The rows of a transformer: weights are means over the replaced rows.

        `single_max` and `pair_max` are the divergences that one unit, and one or two units, reach in all rows alike,
        `search_max` that of the paper's search by itself, `permuted_max` that of permuted weights, all at epsilon.
        """
        exact = self.solver == "exact"
        settings = TransformerAdversarySettings(self.epsilon, self.layer, self.head, self.search, self.seed, exact)
        adversaries = find_transformer_adversaries(model, batch, settings)
        with torch.no_grad(), evaluation_mode(model):
            trace = model(batch)
        layers, heads = trace.attention.shape[1:3]
        rows = [
            {
                "epsilon": self.epsilon,
                "epsilon_max": adversary.divergence,
                "bound": adversary.bound,
                "share": adversary.divergence / adversary.bound if adversary.bound > 0 else math.nan,
                "change": adversary.change,
                "certified": adversary.bound - adversary.divergence <= CERTIFIED_GAP,
                "gap": max(0.0, adversary.bound - adversary.divergence),
                "singles": float(adversary.sufficient_units.sum()),
                "units": (support := adversary.support.any(0)).nonzero()[:, 0].tolist(),
                "attention": adversary.attention.mean(0)[support].tolist(),
                "adversary": adversary.adversary.mean(0)[support].tolist(),
                "alone": adversary.sufficient_units[support].nonzero()[:, 0].tolist(),
                "maximum_attention": _largest_content_weight(adversary.attention.mean(0), batch.content_mask[row]),
                "single_max": adversary.single_divergence,
                "pair_max": adversary.pair_divergence,
                "search_max": adversary.search_divergence,
                "permuted_max": adversary.permuted_divergence,
                "permuted_change": adversary.permuted_change,
                "layer": math.nan if self.layer is None else float(self.layer % layers),
                "head": math.nan if self.head is None else float(self.head % heads),
                "layers": layers,
                "heads": heads,
                "queries": adversary.queries,
            }
            for row, adversary in enumerate(adversaries)
        ]
        return pd.DataFrame(text_columns(model.task, batch, trace)).assign(**pd.DataFrame(rows))

    @classmethod
    def statistics(cls, table: pd.DataFrame) -> Iterable[Statistic]:
        """Median, mean and share of far divergences, overall and by predicted class; medians by maximum attention."""
        overall = {
            "epsilon": table["epsilon"].max(),
            "share_of_bound": table["share"].mean(),
            "certified": table["certified"].mean(),
            "gap": table["gap"].mean(),
            "max_gap": table["gap"].max(),
            "singles": table["singles"].median(),
            "with_single": (table["singles"].dropna() > 0).mean(),
            "single_share": (table["singles"] / table["attention"].map(len)).mean(),
        }
        for name, value in overall.items():
            yield Statistic(name, value=float(value), n=len(table))
        subsets = dict(split_by_class_and_attention(table))
        in_bins = {bin_subset(subset, label) for subset in subsets for label in ATTENTION_BIN_LABELS}
        for subset, rows in subsets.items():
            values = rows["epsilon_max"]
            yield Statistic("epsilon_max", subset=subset, value=float(values.median()), n=len(rows))
            if subset not in in_bins:
                yield Statistic("mean_epsilon_max", subset=subset, value=float(values.mean()), n=len(rows))
                yield Statistic("far", subset=subset, value=float((values >= FAR_JSD).mean()), n=len(rows))
        if "queries" in table:
            yield from _transformer_statistics(table)

    @staticmethod
    def figures(table: pd.DataFrame) -> tuple[Figure, ...]:
        """Figures 4 and 5 of the paper: the distribution of the divergence, and the same by maximum attention."""
        axis = Axis("largest divergence at equal output", (0.0, 0.7))
        classes = table.groupby("predicted")
        series = tuple(Series(f"class {predicted}", tuple(rows["epsilon_max"])) for predicted, rows in classes)
        return (
            Histogram("How far attention can move without changing the output", axis, series, 40, source="epsilon_max"),
            attention_violins("The same by maximum attention", axis, table, "epsilon_max"),
        )

    @classmethod
    def findings(cls, summary: pd.DataFrame) -> tuple[Finding, ...]:
        """Not supported where a distant attention exists; supported only where a certificate excludes one."""
        evidence = share, certified = get_statistic(summary, "share_of_bound"), get_statistic(summary, "certified")
        if math.isnan(share.value):
            return (Finding(Verdict.UNDECIDED, "", evidence, "no text has more than one word"),)
        if share.value >= LARGE_SHARE:
            return (Finding(Verdict.NOT_SUPPORTED, "", evidence),)
        if share.value < SMALL_SHARE and certified.value == 1:
            return (Finding(Verdict.SUPPORTED, "", evidence),)
        missed = f"the search may have missed more distant weights; certified for {certified.value:.0%} of the texts"
        reason = "the divergence is moderate" if certified.value == 1 else missed
        return (Finding(Verdict.UNDECIDED, "", evidence, reason),)

    @classmethod
    def interpretation(cls, summary: pd.DataFrame) -> str:
        (finding,) = cls.findings(summary)
        share, certified = finding.evidence
        if math.isnan(share.value):
            return "No text has more than one word, so no other attention exists."
        searched = round((1 - certified.value) * certified.n)
        gap = value_of(summary, "gap")
        limit = "" if math.isnan(gap) else f", by at most {gap:.2g} (JSD) on average"
        certainty = (
            f"These weights are proven to be the most distant ones for {certified.value:.0%} of the texts. For the "
            f"other {searched:.0f} of {certified.n:.0f}, they come from a search, so even more distant weights may "
            f"exist{limit}."
        )
        single = value_of(summary, "with_single")
        alone = "" if math.isnan(single) else f" In {single:.0%} of the texts, all the weight can go to a single word."
        certainty = certainty if searched else "It is proven that no weights are more distant."
        return (
            f"{_describe_replacement(summary)}On average, attention weights can move {share.value:.0%} of the "
            "largest possible distance from the model's own while the output changes by at most "
            f"{value_of(summary, 'epsilon'):g}.{alone}{_describe_permuted(summary)} {certainty}"
        )


_REACHED_BY = {
    "single unit": "single_max",
    "one or two units": "pair_max",
    "paper's search": "search_max",
    "permuted weights": "permuted_max",
}
"""Other ways to adversaries of a transformer, with their columns."""


def _transformer_statistics(table: pd.DataFrame) -> Iterable[Statistic]:
    """What simpler weights and permuted weights reach at epsilon, and which attention is replaced."""
    for method, column in _REACHED_BY.items():
        reached, share = table[column].dropna(), (table[column] / table["bound"]).replace(math.inf, math.nan).dropna()
        yield Statistic("epsilon_max", method, value=float(reached.median()), n=len(reached))
        yield Statistic("share_of_bound", method, value=float(share.mean()), n=len(share))
    changes = table["permuted_change"]
    yield Statistic("change", "permuted weights", value=float(changes.median()), n=len(changes))
    for name in ("layer", "head", "layers", "heads", "queries"):
        yield Statistic(name, value=float(table[name].median()), n=len(table))


def _describe_replacement(summary: pd.DataFrame) -> str:
    """Which attention of a transformer is replaced, as a sentence; empty for other models."""
    layer, head, layers, heads, queries = (
        value_of(summary, name) for name in ("layer", "head", "layers", "heads", "queries")
    )
    if math.isnan(queries):
        return ""
    where = f"all {layers:.0f} layers" if math.isnan(layer) else f"layer {layer:.0f} (of {layers:.0f}, from 0)"
    which = f"all {heads:.0f} heads" if math.isnan(head) else f"head {head:.0f} (of {heads:.0f}, from 0)"
    token = "token" if queries == 1 else "tokens"
    return (
        f"The weights of the {token} from which the prediction is read were replaced in {where} and {which}; all "
        "other attention was left unchanged. "
    )


def _describe_permuted(summary: pd.DataFrame) -> str:
    """What permuted weights of a transformer reach, as a sentence; empty for other models."""
    share = value_of(summary, "share_of_bound", "permuted weights")
    if math.isnan(share):
        return ""
    change = value_of(summary, "change", "permuted weights")
    return (
        f" Among {PERMUTATIONS} random permutations of the weights, the most distant one within this tolerance "
        f"reaches {share:.0%}; for half of the texts, a permutation changes the output by {change:.3f} or less."
    )


def _largest_content_weight(weights: Tensor, content: Tensor) -> float:
    """The largest weight of a content unit in the attention of one text, whose units may be padded in the batch."""
    return float(weights.masked_fill(~content[: len(weights)], 0.0).max())


def _values_on_support(values: Tensor, support: Tensor) -> list[list[float]]:
    return [row[real].tolist() for row, real in zip(values, support, strict=True)]


def _indices_on_support(selected: Tensor | None, support: Tensor) -> list[list[int]]:
    """The selected units of each row, counted among its supported ones; empty lists where nothing is known."""
    if selected is None:
        return [[] for _ in support]
    return [row[real].nonzero().squeeze(1).tolist() for row, real in zip(selected, support, strict=True)]


@dataclass(frozen=True)
class AdversarySolution:
    """The result of a solver.

    Args:
        adversary: `[batch query unit]`.
        upper_bound: divergence that no equivalent attention exceeds `[batch]`, NaN where none is known.
        sufficient_units: units that keep the output with all the weight `[batch unit]`; None for several queries.
    """

    adversary: Tensor
    upper_bound: Tensor
    sufficient_units: Tensor | None


@torch.no_grad()
def find_adversary(
    problem: AdversaryProblem, epsilon: float, descent: AdversarySearchSettings, seeds: Tensor, *, exact: bool
) -> AdversarySolution:
    """The attention farthest from the model's own that changes the output by at most epsilon."""
    within = _equivalence_slab(problem, epsilon)
    alone = _find_sufficient_units(problem, epsilon) if within is None else within.inside_mask
    if exact and within is not None:
        adversary = find_exact_adversary(within).unsqueeze(1)
        exceeded = problem.output_change(adversary.unsqueeze(1))[:, 0] > epsilon + EPSILON_TOLERANCE
        upper_bound = jensen_shannon(adversary[:, 0], problem.attention[:, 0]).masked_fill(exceeded, torch.nan)
        return AdversarySolution(adversary, upper_bound, alone)
    change = OutputChange(problem.outputs, problem.original_probabilities, problem.hinge_scale)
    searched = search_adversaries(problem.attention, change, initial_logits(problem.support, seeds, descent), descent)
    adversary = select_best_candidate(searched, problem.attention, problem.output_change(searched), epsilon)
    texts = _equivalent_outputs(problem, epsilon)
    if exact:
        adversary = _improve_adversary(problem, searched, alone, texts, epsilon, seeds)
    bounds = [text.divergence_bound for text in texts] or [math.nan] * len(seeds)
    return AdversarySolution(adversary, problem.attention.new_tensor(bounds), alone)


def build_adversary_problem(model: AttentiveModel, batch: Batch, trace: Trace) -> AdversaryProblem:
    """Project the hidden states of a batch to the problem that the solvers need."""
    if model.task.num_classes < 2:
        raise UserError("adversarial attention needs a classifier, because epsilon is a change in probability")
    readout, support = model.readout(batch, trace.hidden), model.input_format.support(batch)
    attention = torch.where(support, trace.attention[:, 0, 0].double(), 0.0)
    attention = attention / attention.sum(-1, keepdim=True)
    dtype = trace.hidden.dtype

    def through_decoder(candidates: Tensor) -> Tensor:
        return model.task.probabilities(readout(candidates.to(dtype))).double()

    outputs = _linear_outputs(readout) if isinstance(readout, LinearReadout) else through_decoder
    before = outputs(attention.unsqueeze(1))[:, 0]
    return AdversaryProblem(attention, support, outputs, before, 0.5 if model.task.num_outputs == 1 else 1.0)


@torch.no_grad()
def probe_problem(model: Model, batch: Batch, trace: Trace) -> AdversaryProblem:
    """The problem of any model with one attention distribution per text and a linear decoder: one pass per unit.

    `logits(a) = sum_t a_t logits(e_t)`, where e_t gives all the weight to unit t. NotApplicable for other models: for
    uniform weights, or for its own, the logits are not this sum.
    """
    if model.task.num_classes < 2:
        raise NotApplicable("adversarial attention needs a classifier: epsilon is a change of probability")
    if trace.attention.shape[1:4] != (1, 1, 1):
        raise NotApplicable(
            "adversarial attention of a model of your own needs one attention distribution per text, "
            f"[batch 1 1 1 unit], not {list(trace.attention.shape)}"
        )
    support = attention_support(model, batch, trace.attention)[:, 0, 0]
    alone = torch.eye(support.shape[-1], dtype=trace.attention.dtype, device=support.device)
    logits = [model(batch, attention=weights.expand_as(trace.attention)).logits.double() for weights in alone]
    scores = torch.where(support[:, 0, :, None], torch.stack(logits, 1), 0.0)
    uniform = support.double() / support.sum(-1, keepdim=True)
    attention = torch.where(support, trace.attention[:, 0, 0].double(), 0.0)
    attention = attention / attention.sum(-1, keepdim=True)
    moved = model(batch, attention=uniform[:, None, None].to(trace.attention.dtype)).logits
    for weights, expected in ((attention, trace.logits), (uniform, moved)):
        difference = (torch.bmm(weights, scores)[:, 0] - expected.double()).abs().max()
        if not difference <= LINEAR_TOLERANCE * max(1.0, float(scores.abs().max())):
            raise NotApplicable("its logits are not linear in its attention, which adversarial attention needs here")
    if scores.shape[-1] == 1:
        scores = torch.cat([torch.zeros_like(scores), scores], -1)
    outputs = LinearOutputs(scores, torch.zeros_like(scores[:, 0]))
    before = outputs(attention.unsqueeze(1))[:, 0]
    return AdversaryProblem(attention, support, outputs, before, 0.5 if model.task.num_outputs == 1 else 1.0)


def _linear_outputs(readout: LinearReadout) -> LinearOutputs:
    scores = readout.scores.double()
    offset = readout.inputs.mask_candidates(readout.offset.double().expand(len(scores), 1, -1)).squeeze(1)
    if scores.shape[-1] == 1:
        # A single logit is that of class 1; class 0 has logit zero.
        scores, offset = (torch.cat([torch.zeros_like(tensor), tensor], -1) for tensor in (scores, offset))
    return LinearOutputs(scores, offset)


def _equivalence_slab(problem: AdversaryProblem, epsilon: float) -> Slab | None:
    """All attentions that keep the output; None unless there are exactly two classes behind a linear decoder."""
    outputs = problem.outputs
    if not isinstance(outputs, LinearOutputs) or outputs.scores.shape[-1] != 2 or not outputs.offset.isfinite().all():
        return None
    both = outputs.scores + outputs.offset[:, None]
    return build_slab(both[..., 1] - both[..., 0], problem.attention[:, 0], problem.support[:, 0], epsilon)


def _find_sufficient_units(problem: AdversaryProblem, epsilon: float) -> Tensor | None:
    """Units that keep the output with all the weight, by trying each."""
    batch, queries, units = problem.attention.shape
    if queries > 1:
        return None
    size = max(1, _MAX_ELEMENTS // max(1, batch * units))
    single = torch.eye(units, dtype=problem.attention.dtype, device=problem.attention.device)[None, :, None]
    chunks = torch.split(single.expand(batch, -1, -1, -1), size, dim=1)
    moved = torch.cat([problem.output_change(candidates) for candidates in chunks], 1)
    return (moved <= epsilon) & problem.support[:, 0]


def _equivalent_outputs(problem: AdversaryProblem, epsilon: float) -> list[EquivalentOutputs]:
    """The problem of each text, without padding and excluded classes; empty where the decoder is not linear."""
    if not isinstance(problem.outputs, LinearOutputs):
        return []
    scores = problem.outputs.scores + problem.outputs.offset[:, None]
    texts = zip(scores, problem.outputs.offset.isfinite(), problem.attention[:, 0], problem.support[:, 0], strict=True)
    return [
        EquivalentOutputs(logits[real][:, admitted], attention[real], epsilon)
        for logits, admitted, attention, real in texts
    ]


def _improve_adversary(
    problem: AdversaryProblem,
    adversary: Tensor,
    sufficient_units: Tensor | None,
    texts: Sequence[EquivalentOutputs],
    epsilon: float,
    seeds: Tensor,
) -> Tensor:
    """The best of the candidates found, their extensions to the boundary, nearby vertices and single units."""
    rays = torch.cat([adversary, _lightest_unit_attention(problem, adversary.shape[1])], 1)
    candidates = [adversary, stretch_to_boundary(rays, problem.attention, problem.output_change, epsilon)]
    if isinstance(problem.outputs, LinearOutputs):
        candidates.append(_walk_to_vertices(problem, problem.outputs, torch.cat(candidates, 1)))
        supported = torch.cat([_climb_on(text, seed) for text, seed in zip(texts, seeds, strict=True)])
        candidates.append(torch.zeros_like(problem.attention).masked_scatter(problem.support, supported).unsqueeze(1))
    if sufficient_units is not None:
        # All weight on the least attended unit that keeps the output; attention itself if none does.
        unit = problem.attention[:, 0].masked_fill(~sufficient_units, torch.inf).argmin(-1)
        single = torch.zeros_like(problem.attention).scatter(2, unit[:, None, None], 1.0)
        single = torch.where(sufficient_units.any(-1)[:, None, None], single, problem.attention)
        candidates.append(single.unsqueeze(1))
    everything = torch.cat(candidates, 1)
    return select_best_candidate(
        everything, problem.attention, problem.output_change(everything), epsilon + EPSILON_TOLERANCE
    )


def _climb_on(text: EquivalentOutputs, seed: Tensor) -> Tensor:
    """The farthest equivalent attention on few units, and what sequential linear programs make of it `[unit]`."""
    adversary = search_supports(text)
    if text.scores.shape[1] <= 2 or len(text.attention) < 2:
        return adversary
    outputs = LinearOutputs(text.scores.unsqueeze(0), text.scores.new_zeros(1, text.scores.shape[1]))
    attention = text.attention[None, None]
    support = torch.ones_like(attention, dtype=torch.bool)
    problem = AdversaryProblem(attention, support, outputs, text.probabilities.unsqueeze(0), 1.0)
    starts = torch.cat([adversary[None, None], sparse_starts(support, seed.unsqueeze(0), LINEAR_STARTS)])
    climbed = torch.cat([climb_from(problem, starts, text.epsilon)[:, 0], adversary.unsqueeze(0)])
    return climbed[jensen_shannon(climbed, text.attention).argmax()]


def _lightest_unit_attention(problem: AdversaryProblem, count: int) -> Tensor:
    """All weight of each query on one of its units with the least attention, `[batch count query unit]`."""
    ordered = problem.attention.masked_fill(~problem.support, torch.inf).argsort(-1)
    last = problem.support.sum(-1, keepdim=True) - 1
    places = torch.minimum(torch.arange(count, device=ordered.device), last)
    units = ordered.gather(-1, places).transpose(1, 2)[..., None]
    return torch.zeros_like(problem.attention).unsqueeze(1).repeat(1, count, 1, 1).scatter(3, units, 1.0)


def _walk_to_vertices(problem: AdversaryProblem, outputs: LinearOutputs, points: Tensor) -> Tensor:
    """A vertex of equal output for each point and for attention itself, `[batch count 1 unit]`."""
    points = torch.cat([problem.attention.unsqueeze(1), points], 1)[:, :, 0]
    count = points.shape[1]
    scores, attention = (
        tensor.unsqueeze(1).expand(-1, count, *tensor.shape[1:]).flatten(0, 1)
        for tensor in (outputs.scores, problem.attention[:, 0])
    )
    ends = walk_to_vertex(points.flatten(0, 1), scores, attention)
    return ends.reshape(-1, count, 1, ends.shape[-1])


@dataclass(frozen=True)
class AdversarialWeights:
    """The attention weights farthest from the model's own that keep its prediction, as a negative control.

    A measure that rates them as high as the true attribution cannot tell the two apart.

    Args:
        epsilon: total variation of the output up to which a prediction counts as the same.
        seed: seed of the search.
    """

    revision: ClassVar[int] = 2

    epsilon: float = 0.05
    seed: int = 0

    tags: ClassVar[MethodTags] = replace(ATTENTION_WEIGHTS, is_control=True)

    @property
    def display_name(self) -> str:
        """The trial's name for its weights."""
        return name_by_fields(self, "adversarial-attention")

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        """Weights in float64, whatever the target."""
        with torch.no_grad():
            trace = model(batch)
        if isinstance(model, LinearBagOfWords):
            # A sum over words is the attention-weighted mean of each word's score times their number.
            count = batch.content_mask.sum(1, keepdim=True).clamp(min=1)
            scores, attention = (
                (trace.embeddings @ model.direction).double() * count,
                trace.attention[:, 0, 0, 0].double(),
            )
            weights = find_exact_adversary(build_slab(scores, attention, batch.content_mask, self.epsilon))
        elif isinstance(model, AttentiveModel):
            problem, settings = build_adversary_problem(model, batch, trace), AdversarySearchSettings()
            seeds = example_seeds("adversary", self.seed, batch)
            weights = find_adversary(problem, self.epsilon, settings, seeds, exact=True).adversary.sum(1)
        else:
            raise UserError("adversarial attention needs an attentive model; choose another method for a transformer")
        return Attribution(weights.masked_fill(~batch.content_mask, 0.0), batch.content_mask)


def adversarial_methods(architecture: Architecture) -> tuple[Method, ...]:
    """Adversarial attention where the architecture has one; empty for others."""
    return (AdversarialWeights(),) if isinstance(architecture, Attentive | WordWeightSum) else ()
