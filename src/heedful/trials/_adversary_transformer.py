"""Adversarial attention of transformers: other weights for the tokens that the prediction is read from.

A head reads the class token, the last token or the mean of all tokens. The attention rows of these tokens are replaced
in some layers and heads, and all other attention stays as it was. What lies below the lowest replaced layer is computed
once; of the last layer only the tokens that the head reads are computed again.

The divergence is the mean over the replaced rows and convex in the weights, so distant weights are found at vertices.
All single units and all pairs on a grid, the same in every head, are tried from the farthest on, until one keeps the
output; then single heads are moved to other units, and where much is left, the paper's search runs in all weights.
Sequential linear programs go on from what was found and from random starts (`_adversary_climb`). Nothing is proven,
except where the divergence reaches the bound that no weights exceed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heedful.attributions.attention import index_slice, is_self_attention
from heedful.attributions.method import example_seeds
from heedful.capabilities import (
    ExposesLayers,
    ExposesValues,
    SupportsPartialRun,
    check_attention,
    check_attention_not_imposed,
    check_embeddings,
)
from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound, total_variation
from heedful.training.predictions import attention_support
from heedful.trials._adversary_climb import climb_from, sparse_starts
from heedful.trials.adversary_search import (
    AdversaryProblem,
    AdversarySearchSettings,
    OutputChange,
    initial_logits,
    search_adversaries,
    stretch_to_boundary,
)
from heedful.trials.permutation import MAX_WEIGHTS_AT_ONCE, shuffle_attention
from heedful.types import Batch, Model, Task, Trace, UserError, evaluation_mode

GRID = tuple(step / 10 for step in range(1, 10))
"""Weights of the first unit of a pair."""
PERMUTATIONS = 100
NEAR_BOUND = 0.9
"""From this share of the bound on the paper's search is left out: it could add at most a tenth."""
STARTS, LEAST_STARTS, STARTS_NEAR_BOUND = 48, 8, 2
"""Random starts of sequential linear programs: of short texts, of long ones, and from that share of the bound on."""
_MAX_PROGRAM_WEIGHTS = 1 << 13
"""Weights of all starts of a text together; more would take longer than the paper's search."""
_ROUNDING = 1e-12
_FIRST_CHUNK, _LARGEST_CHUNK = 32, 512
_MAX_CANDIDATE_WEIGHTS = 1 << 23
_MAX_STATES_AT_ONCE = 1 << 14
_SAME_OUTPUT = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Largest difference of probabilities between two ways to compute the same; coarser types may differ by more."""
_FAILURES = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, UserError)
"""What a network raises that cannot be run from a layer on; whole forward passes are the way out."""


@dataclass(frozen=True)
class TransformerAdversary:
    """What was found for one text; rows of attention are those of the replaced layers, heads and queries in order.

    Args:
        attention: the model's own, in the replaced rows `[row unit]`.
        support: the units that each row may attend to `[row unit]`.
        adversary: the most distant weights that were found to keep the output `[row unit]`.
        divergence: the mean Jensen-Shannon divergence of its rows from attention.
        bound: the largest divergence that any weights on these units can have.
        change: total variation of the output under the adversary.
        sufficient_units: units that keep the output with all the weight in all rows `[unit]`.
        single_divergence: the largest divergence of one such unit; 0 if there is none.
        pair_divergence: the largest divergence of a single unit or a pair.
        search_divergence: the largest divergence that the paper's search reached by itself; NaN where it did not run.
        permuted_divergence: the largest divergence of a permutation of the weights that keeps the output.
        permuted_change: the median change of the output over all permutations.
        queries: number of tokens whose rows are replaced.
    """

    attention: Tensor
    support: Tensor
    adversary: Tensor
    divergence: float
    bound: float
    change: float
    sufficient_units: Tensor
    single_divergence: float
    pair_divergence: float
    search_divergence: float
    permuted_divergence: float
    permuted_change: float
    queries: int


@dataclass(frozen=True)
class TransformerAdversarySettings:
    """Which attention is replaced, and how adversaries are searched.

    Args:
        layer: counted from 0, or from the last with -1; None replaces all layers.
        head: None replaces all heads.
        exact: move single heads too, and run the paper's search only where less than `NEAR_BOUND` is reached; False
            runs it for every text, beside single units and pairs.
    """

    epsilon: float
    layer: int | None
    head: int | None
    search: AdversarySearchSettings
    seed: int
    exact: bool


@torch.no_grad()
def find_transformer_adversaries(
    model: Model, batch: Batch, settings: TransformerAdversarySettings
) -> list[TransformerAdversary]:
    """The adversary of each text of a batch, each by itself: neither padding nor its company plays a part."""
    if not isinstance(model, ExposesLayers):
        raise UserError("adversarial attention needs an attentive model or a transformer; choose another trial")
    if model.task.num_classes < 2:
        raise UserError("adversarial attention needs a classifier: epsilon is a change of probability")
    check_attention_not_imposed(model)
    check_attention(model)
    check_embeddings(model)
    adversaries = []
    lowest: Model | None = None
    with evaluation_mode(model):
        for row in range(len(batch)):
            alone = batch.rows(torch.tensor([row], device=batch.mask.device))
            trace = model(alone)
            if not is_self_attention(trace.attention, alone):
                raise UserError("adversarial attention of a transformer needs its self-attention; choose another trial")
            rows = _replaced_rows(model, alone, trace, settings)
            lowest = _model_from(model, rows.layers.start) if lowest is None else lowest
            problem = _build_problem(model, lowest, alone, trace, rows)
            adversaries.append(
                find_text_adversary(problem, rows, settings, example_seeds("adversary", settings.seed, alone))
            )
    return adversaries


def find_deciding_queries(model: Model, batch: Batch, embeddings: Tensor) -> Tensor:
    """The real units whose state in the last layer has an influence on the logits, `[batch unit]`.

    That is the class token, the last token or all tokens, whatever the head of the model reads.
    """
    with torch.enable_grad():
        trace = model(batch, embeddings=embeddings.detach().requires_grad_())
        # Uneven weights: the plain sum of two opposite logits has no slope.
        weights = torch.arange(1, trace.logits.shape[1] + 1, device=trace.logits.device).sqrt().to(trace.logits.dtype)
        (slope,) = torch.autograd.grad((trace.logits * weights).sum(), trace.hidden, allow_unused=True)
    if slope is None:
        return batch.mask
    read = (slope != 0).any(-1) & batch.mask
    # A head that reads the states of several layers may have no slope here.
    return torch.where(read.any(1, keepdim=True), read, batch.mask)


@dataclass(frozen=True)
class ReplacedRows:
    """The replaced rows of attention `[layer head query unit]` of one text."""

    layers: range
    heads: range
    queries: Tensor
    support: Tensor

    @property
    def per_head(self) -> int:
        return len(self.queries)

    def select(self, attention: Tensor) -> Tensor:
        """The rows of attention `[layer head query unit]`, as `[row unit]`."""
        chosen = attention[self.layers.start : self.layers.stop, self.heads.start : self.heads.stop]
        return chosen[:, :, self.queries].flatten(0, 2)

    def shaped(self, rows: Tensor) -> Tensor:
        """Rows `[... row unit]` as `[... layer head query unit]`."""
        return rows.reshape(*rows.shape[:-2], len(self.layers), len(self.heads), self.per_head, rows.shape[-1])


def _replaced_rows(model: Model, batch: Batch, trace: Trace, settings: TransformerAdversarySettings) -> ReplacedRows:
    layers, heads = trace.attention.shape[1:3]
    chosen = ReplacedRows(
        range(layers)[index_slice(settings.layer, layers, "layer")],
        range(heads)[index_slice(settings.head, heads, "head")],
        find_deciding_queries(model, batch, trace.embeddings)[0].nonzero()[:, 0],
        torch.empty(0),
    )
    support = attention_support(model, batch, trace.attention, trace.scores)
    return replace(chosen, support=chosen.select(support[0]))


def _model_from(model: Model, layer: int) -> Model:
    """The layers from this one on, or the model itself if they cannot be separated."""
    if not layer or not isinstance(model, SupportsPartialRun):
        return model
    try:
        return model.layers_from(layer)
    except _FAILURES:
        return model


# The output as a function of the replaced rows


@dataclass(frozen=True)
class _LastLayerOutputs:
    """Outputs by running the rest of the last layer, and the head, for the one token that the head reads.

    Args:
        top: the last layer as a model.
        batch: that token alone.
        states: the input of the last layer at that token `[1 1 width]`.
        values: of all units and heads `[head unit dim]`.
        own: what the heads attend to by themselves `[head dim]`.
        mass: the sum of each replaced row `[row 1]`; below 1 where a part of attention goes to no unit.
    """

    top: SupportsPartialRun
    task: Task
    batch: Batch
    states: Tensor
    values: Tensor
    own: Tensor
    heads: range
    mass: Tensor

    def __call__(self, candidates: Tensor) -> Tensor:
        parts = torch.split(candidates[0], _MAX_STATES_AT_ONCE)
        return torch.cat([self._probabilities(part) for part in parts]).unsqueeze(0)

    def _probabilities(self, candidates: Tensor) -> Tensor:
        """Probabilities `[count class]` of candidates `[count head unit]`."""
        count, heads = len(candidates), self.heads
        weights = (candidates * self.mass).to(self.values.dtype)
        replaced = torch.einsum("chu,hud->chd", weights, self.values[heads.start : heads.stop])
        own = self.own.expand(count, -1, -1)
        attended = torch.cat([own[:, : heads.start], replaced, own[:, heads.stop :]], 1).unsqueeze(2)
        batch, states = self.batch.repeat(count), self.states.repeat(count, 1, 1)
        return self.task.probabilities(self.top.decode_attended(batch, states, attended).double())


@dataclass(frozen=True)
class _ForwardOutputs:
    """Outputs by forward passes of a model, or of its upper layers, with attention passed in.

    Args:
        embeddings: the input of the lowest layer of the model `[1 unit width]`.
        attention: of its layers `[layer head query unit]`.
        first: number of its lowest layer.
    """

    model: Model
    batch: Batch
    embeddings: Tensor
    attention: Tensor
    rows: ReplacedRows
    first: int
    mass: Tensor

    def __call__(self, candidates: Tensor) -> Tensor:
        units = self.attention.shape[-1]
        size = max(1, min(MAX_WEIGHTS_AT_ONCE // self.attention.numel(), _MAX_STATES_AT_ONCE // units))
        return torch.cat([self._probabilities(part) for part in torch.split(candidates[0], size)]).unsqueeze(0)

    def _probabilities(self, candidates: Tensor) -> Tensor:
        """Probabilities `[count class]` of candidates `[count row unit]`."""
        count, layers, heads = len(candidates), self.rows.layers, self.rows.heads
        imposed = self.attention.repeat(count, 1, 1, 1, 1)
        new = self.rows.shaped((candidates * self.mass).to(imposed.dtype))
        places = self.rows.queries[:, None].expand(new.shape)
        replaced = imposed[:, layers.start - self.first : layers.stop - self.first, heads.start : heads.stop]
        replaced.scatter_(3, places, new)
        embeddings = self.embeddings.repeat(count, 1, 1)
        logits = self.model(self.batch.repeat(count), embeddings=embeddings, attention=imposed).logits
        return self.model.task.probabilities(logits.double())


def _build_problem(model: Model, lowest: Model, batch: Batch, trace: Trace, rows: ReplacedRows) -> AdversaryProblem:
    """The problem of one text, with the cheapest way to its outputs that gives the model's own output."""
    observed = rows.select(trace.attention[0]).double()
    mass = observed.sum(-1, keepdim=True)
    attention = torch.where(rows.support, observed / mass, 0.0).unsqueeze(0)
    before = model.task.probabilities(trace.logits.double())
    outputs: Callable[[Tensor], Tensor] = _ForwardOutputs(
        model, batch, trace.embeddings, trace.attention[0], rows, 0, mass
    )
    for build in (_last_layer_outputs, _upper_layer_outputs):
        try:
            quicker = build(model, lowest, batch, trace, rows, mass)
            if quicker is None:
                continue
            change = total_variation(quicker(attention.unsqueeze(1))[:, 0], before)
            if bool((change <= _SAME_OUTPUT.get(trace.logits.dtype, 2e-2)).all()):
                outputs = quicker
                break
        except _FAILURES:
            continue
    before = outputs(attention.unsqueeze(1))[:, 0]
    scale = 0.5 if model.task.num_outputs == 1 else 1.0
    return AdversaryProblem(attention, rows.support.unsqueeze(0), outputs, before, scale)


def _layer_input(model: Model, batch: Batch, trace: Trace, layer: int) -> Tensor:
    """The states `[1 unit width]` that a layer reads."""
    assert isinstance(model, ExposesLayers)
    return model.read_layers(batch, trace.embeddings).inputs[layer]


def _last_layer_outputs(
    model: Model, lowest: Model, batch: Batch, trace: Trace, rows: ReplacedRows, mass: Tensor
) -> _LastLayerOutputs | None:
    last = trace.attention.shape[1] - 1
    if rows.layers.start != last or rows.per_head > 1:
        return None
    if not isinstance(lowest, SupportsPartialRun) or not isinstance(lowest, ExposesValues):
        return None
    states = _layer_input(model, batch, trace, last)
    last_values = lowest.read_values(batch, embeddings=states, with_projections=False).values[0][0]
    attention = trace.attention[0, last, :, rows.queries[0]]
    values = last_values.repeat_interleave(len(attention) // len(last_values), 0)  # heads may share values
    unit = slice(int(rows.queries[0]), int(rows.queries[0]) + 1)
    token = replace(
        batch,
        inputs=batch.inputs[:, unit],
        mask=batch.mask[:, unit],
        segments=batch.segments[:, unit],
        words=batch.words[:, unit],
    )
    context = torch.einsum("hu,hud->hd", attention, values)
    return _LastLayerOutputs(lowest, model.task, token, states[:, unit], values, context, rows.heads, mass)


def _upper_layer_outputs(
    model: Model, lowest: Model, batch: Batch, trace: Trace, rows: ReplacedRows, mass: Tensor
) -> _ForwardOutputs | None:
    first = rows.layers.start
    if lowest is model:
        return None
    states = _layer_input(model, batch, trace, first)
    return _ForwardOutputs(lowest, batch, states, trace.attention[0, first:], rows, first, mass)


# The search


def find_text_adversary(
    problem: AdversaryProblem, rows: ReplacedRows, settings: TransformerAdversarySettings, seeds: Tensor
) -> TransformerAdversary:
    """The adversary of a problem of one text."""
    attention, support = problem.attention[0], problem.support[0]
    bound = float(jensen_shannon_bound(attention, support).mean())
    single, sufficient = _farthest_unit(problem, settings.epsilon)
    pair = _farthest_pair(problem, settings, single.divergence)
    best = max(single, pair, key=_by_divergence)
    permuted, permuted_change = _farthest_permutation(problem, rows, settings.epsilon, seeds)
    searched: Candidate | None = None
    starts: list[Tensor] = []
    if settings.exact:
        lightest = _one_hot(attention.masked_fill(~support, torch.inf).argmin(-1), attention)
        best = max(best, permuted, _farthest(problem, lightest.unsqueeze(0), settings.epsilon), key=_by_divergence)
        best = _move_heads(problem, best, rows.per_head, settings)
    if not settings.exact or best.divergence < NEAR_BOUND * bound:
        candidate = _run_search(problem, settings, seeds)
        searched = _farthest(problem, candidate, settings.epsilon)
        best = max(best, searched, key=_by_divergence)
        if settings.exact:
            start, change = candidate.unsqueeze(0), problem.output_change
            stretched = stretch_to_boundary(start, problem.attention, change, settings.epsilon)[0]
            best = max(best, _farthest(problem, stretched, settings.epsilon), key=_by_divergence)
            best = _move_heads(problem, best, rows.per_head, settings)
            starts.append(candidate)
    if settings.exact and best.divergence < bound - _ROUNDING:
        count = STARTS_NEAR_BOUND
        if searched is not None:
            count = min(STARTS, max(LEAST_STARTS, _MAX_PROGRAM_WEIGHTS // support.numel()))
        starts += [best.weights.unsqueeze(0), sparse_starts(problem.support, seeds, count)]
        climbed = climb_from(problem, torch.cat(starts), settings.epsilon)
        best = max(best, _farthest(problem, climbed, settings.epsilon), key=_by_divergence)
        best = _move_heads(problem, best, rows.per_head, settings)
    return TransformerAdversary(
        attention=attention,
        support=support,
        adversary=best.weights,
        divergence=best.divergence,
        bound=bound,
        change=float(problem.output_change(best.weights[None, None])),
        sufficient_units=sufficient,
        single_divergence=single.divergence,
        pair_divergence=max(single.divergence, pair.divergence),
        search_divergence=math.nan if searched is None else searched.divergence,
        permuted_divergence=permuted.divergence,
        permuted_change=permuted_change,
        queries=rows.per_head,
    )


@dataclass(frozen=True)
class Candidate:
    """Weights `[row unit]` that keep the output, and their divergence from attention."""

    weights: Tensor
    divergence: float


def _by_divergence(candidate: Candidate) -> float:
    return candidate.divergence


def _farthest(problem: AdversaryProblem, candidates: Tensor, epsilon: float) -> Candidate:
    """The farthest of the candidates `[count row unit]` that keeps the output; attention itself if none does."""
    return _farthest_kept(problem, candidates, problem.output_change(candidates.unsqueeze(0))[0] <= epsilon)


def _farthest_kept(problem: AdversaryProblem, candidates: Tensor, kept: Tensor) -> Candidate:
    attention = problem.attention[0]
    values = jensen_shannon(candidates, attention).mean(-1).masked_fill(~kept, -1.0)
    if not len(values) or float(values.max()) <= 0:
        return Candidate(attention, 0.0)
    return Candidate(candidates[values.argmax()], float(values.max()))


def _run_search(problem: AdversaryProblem, settings: TransformerAdversarySettings, seeds: Tensor) -> Tensor:
    """The adversaries of the paper's search in all weights `[count row unit]`."""
    change = OutputChange(problem.outputs, problem.original_probabilities, problem.hinge_scale)
    start = initial_logits(problem.support, seeds, settings.search)
    return search_adversaries(problem.attention, change, start, settings.search)[0]


def _one_hot(units: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter(-1, units.unsqueeze(-1), 1.0)


def _put_on_units(problem: AdversaryProblem, units: Tensor) -> Tensor:
    """All weight on each of these units `[count row unit]`; rows that may not attend to it keep their attention."""
    attention, support = problem.attention[0], problem.support[0]
    single = _one_hot(units, attention.new_zeros(len(units), attention.shape[-1]))
    return torch.where(support[:, units].mT.unsqueeze(-1), single.unsqueeze(1), attention)


def _largest_chunk(problem: AdversaryProblem) -> int:
    return max(1, min(_LARGEST_CHUNK, _MAX_CANDIDATE_WEIGHTS // problem.attention.numel()))


def _entropy_term(weight: float, attention: Tensor) -> Tensor:
    """φ(t, a) = t ln 2 + t ln t + a ln a - (t + a) ln(t + a): what a unit of weight t adds to twice a divergence."""
    both = attention + weight
    constant = weight * math.log(2) + (weight * math.log(weight) if weight else 0.0)
    return constant + torch.xlogy(attention, attention) - torch.xlogy(both, both)


def unit_divergences(attention: Tensor, support: Tensor) -> Tensor:
    """Jensen-Shannon divergence of all weight on one unit from each row `[row unit]`; 0 off the support."""
    return (0.5 * (math.log(2) + _entropy_term(1.0, attention))).masked_fill(~support, 0.0)


def pair_divergences(attention: Tensor, support: Tensor, weight: float) -> Tensor:
    """The mean divergence `[unit unit]` of weight t on the first and 1 - t on the second unit in all rows.

    It is ½ (ln 2 + φ(t, a_u) + φ(1 - t, a_v)) in a row that may attend to both units, and 0 in others, which keep their
    attention.
    """
    seen = support.to(attention.dtype)
    first, second = (_entropy_term(share, attention) * seen for share in (weight, 1.0 - weight))
    total = first.mT @ seen + seen.mT @ second + math.log(2) * (seen.mT @ seen)
    return 0.5 * total / len(attention)


def _farthest_unit(problem: AdversaryProblem, epsilon: float) -> tuple[Candidate, Tensor]:
    """The farthest single unit that keeps the output, and all that do `[unit]`."""
    attention, support = problem.attention[0], problem.support[0]
    units = torch.arange(attention.shape[-1], device=attention.device)
    parts = torch.split(units, _largest_chunk(problem))
    changes = [problem.output_change(_put_on_units(problem, part).unsqueeze(0))[0] for part in parts]
    sufficient = (torch.cat(changes) <= epsilon) & support.any(0)
    values = unit_divergences(attention, support).mean(0).masked_fill(~sufficient, -1.0)
    if not bool(sufficient.any()):
        return Candidate(attention, 0.0), sufficient
    best = values.argmax()
    return Candidate(_put_on_units(problem, best.unsqueeze(0))[0], float(values[best])), sufficient


def _farthest_pair(problem: AdversaryProblem, settings: TransformerAdversarySettings, floor: float) -> Candidate:
    """The farthest pair of units on the grid that keeps the output and exceeds the floor."""
    attention, support = problem.attention[0], problem.support[0]
    units = attention.shape[-1]
    one, two = torch.triu_indices(units, units, 1, device=attention.device)
    values = torch.cat([pair_divergences(attention, support, weight)[one, two] for weight in GRID])
    weights = attention.new_tensor(GRID).repeat_interleave(len(one))
    one, two = one.repeat(len(GRID)), two.repeat(len(GRID))

    def build(chosen: Tensor) -> Tensor:
        u, v, share = one[chosen, None], two[chosen, None], weights[chosen, None]
        mixture = attention.new_zeros(len(chosen), units).scatter(1, u, share).scatter(1, v, 1 - share)
        both = (support[:, u[:, 0]] & support[:, v[:, 0]]).mT
        return torch.where(both.unsqueeze(-1), mixture.unsqueeze(1), attention)

    candidate, _ = _first_equivalent(problem, values, build, settings.epsilon, floor, settings.search.candidates)
    if candidate is None:
        return Candidate(attention, 0.0)
    return Candidate(build(candidate)[0], float(values[candidate]))


def _farthest_permutation(
    problem: AdversaryProblem, rows: ReplacedRows, epsilon: float, seeds: Tensor
) -> tuple[Candidate, float]:
    """The farthest of the random permutations of all rows that keeps the output, and the median change of all."""
    weights, seen = (rows.shaped(tensor) for tensor in (problem.attention, problem.support))
    best, changes = Candidate(problem.attention[0], 0.0), []
    size = _largest_chunk(problem)
    for first in range(0, PERMUTATIONS, size):
        draws = range(first, min(first + size, PERMUTATIONS))
        permuted = shuffle_attention(weights, seen, seeds, draws)[0].flatten(1, 3)
        changes.append(problem.output_change(permuted.unsqueeze(0))[0])
        best = max(best, _farthest_kept(problem, permuted, changes[-1] <= epsilon), key=_by_divergence)
    return best, float(torch.cat(changes).quantile(0.5))


def _first_equivalent(
    problem: AdversaryProblem,
    values: Tensor,
    build: Callable[[Tensor], Tensor],
    epsilon: float,
    floor: float,
    budget: int,
) -> tuple[Tensor | None, int]:
    """The number `[1]` of the candidate of largest value above the floor that keeps the output; how many were tried.

    Candidates are tried from the largest value on, so that the first one that is found is the best of all.

    Args:
        build: candidates `[count row unit]` of these numbers.
    """
    order = values.argsort(descending=True, stable=True)
    order = order[values[order] > floor + _ROUNDING][:budget]
    tried, largest = 0, _largest_chunk(problem)
    size = min(_FIRST_CHUNK, largest)
    while tried < len(order):
        chosen = order[tried : tried + size]
        kept = problem.output_change(build(chosen).unsqueeze(0))[0] <= epsilon
        tried, size = tried + len(chosen), min(2 * size, largest)
        if bool(kept.any()):
            return chosen[kept][:1], tried
    return None, tried


def _move_heads(
    problem: AdversaryProblem, start: Candidate, per_head: int, settings: TransformerAdversarySettings
) -> Candidate:
    """Move one head after the other to a single unit, each time as far as the output allows, until none can move.

    Args:
        per_head: rows of a head of a layer, which move together.
    """
    attention, support = problem.attention[0], problem.support[0]
    units, heads = attention.shape[-1], len(attention) // per_head
    reach = unit_divergences(attention, support).reshape(heads, per_head, units).mean(1)
    head = torch.arange(heads, device=attention.device).repeat_interleave(per_head)
    current, budget = start.weights, settings.search.candidates
    while budget > 0:
        divergences = jensen_shannon(current, attention).reshape(heads, per_head).mean(1)

        def build(chosen: Tensor, current: Tensor = current) -> Tensor:
            moved = head == (chosen // units)[:, None]
            return torch.where(moved.unsqueeze(-1), _put_on_units(problem, chosen % units), current)

        gains = (reach - divergences[:, None]).flatten()
        candidate, tried = _first_equivalent(problem, gains, build, settings.epsilon, 0.0, budget)
        if candidate is None:
            break
        budget -= tried
        current = build(candidate)[0]
    return Candidate(current, float(jensen_shannon(current, attention).mean()))
