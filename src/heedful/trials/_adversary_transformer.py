"""Adversarial attention of transformers: other weights for the tokens that the prediction is read from.

A head reads the class token, the last token or the mean of all tokens. The attention rows of these tokens are replaced
in some layers and heads, and all other attention stays as it was. What lies below the lowest replaced layer is computed
once; of the last layer only the tokens that the head reads are computed again.

The divergence is the mean over the replaced rows and convex in the weights, so distant weights are found at vertices.
All single units and all pairs on a grid, the same in every head, are tried from the farthest on, until one keeps the
output; then single heads are moved to other units, and where much is left, the paper's search runs in all weights.
Nothing is proven, except where the divergence reaches the bound that no weights exceed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heedful.attributions._base import evaluation_mode, example_seeds
from heedful.attributions.attention import index_slice, is_self_attention
from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound, total_variation
from heedful.trials._adversary_search import (
    EPSILON_TOLERANCE,
    AdversaryProblem,
    AdversarySearchSettings,
    OutputChange,
    initial_logits,
    search_adversaries,
    select_best_candidate,
    stretch_to_boundary,
)
from heedful.trials.permutation import MAX_WEIGHTS_AT_ONCE, attention_support, shuffle_attention
from heedful.types import (
    Batch,
    ExposesLayers,
    ExposesValues,
    Model,
    SupportsPartialRun,
    Task,
    Trace,
    UserError,
    check_attention_not_imposed,
)

GRID = tuple(step / 10 for step in range(1, 10))
"""Weights of the first unit of a pair."""
PERMUTATIONS = 100
NEAR_BOUND = 0.9
"""From this share of the bound on the paper's search is left out: it could add at most a tenth."""
_ROUNDING = 1e-12
_FIRST_CHUNK, _LARGEST_CHUNK = 32, 512
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
class TransformerAdversaryTask:
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
    model: Model, batch: Batch, task: TransformerAdversaryTask
) -> Iterator[TransformerAdversary]:
    """The adversary of each text of a batch, each by itself: neither padding nor its company plays a part."""
    if not isinstance(model, ExposesLayers):
        raise UserError("adversarial attention needs an attentive model or a transformer; choose another trial")
    if model.task.num_classes < 2:
        raise UserError("adversarial attention needs a classifier: epsilon is a change of probability")
    check_attention_not_imposed(model)
    with evaluation_mode(model):
        lowest: Model | None = None
        for row in range(len(batch)):
            alone = batch.rows(torch.tensor([row], device=batch.mask.device))
            trace = model(alone)
            if not is_self_attention(trace.attention, alone):
                raise UserError("adversarial attention of a transformer needs its self-attention; choose another trial")
            rows = _replaced_rows(model, alone, trace, task)
            lowest = _model_from(model, rows.layers.start) if lowest is None else lowest
            problem = _build_problem(model, lowest, alone, trace, rows)
            seeds = example_seeds("adversary", task.seed, alone)
            yield find_text_adversary(problem, rows, task, seeds)


def find_deciding_queries(model: Model, batch: Batch) -> Tensor:
    """The real units whose state in the last layer has an influence on the logits, `[batch unit]`.

    That is the class token, the last token or all tokens, whatever the head of the model reads.
    """
    with torch.enable_grad():
        embeddings = model(batch).embeddings.detach().requires_grad_()
        trace = model(batch, embeddings=embeddings)
        # Uneven weights: the plain sum of two opposite logits has no slope.
        weights = torch.arange(1, trace.logits.shape[1] + 1, device=trace.logits.device).sqrt().to(trace.logits.dtype)
        (slope,) = torch.autograd.grad((trace.logits * weights).sum(), trace.hidden, allow_unused=True)
    if slope is None:
        return batch.mask
    read = (slope != 0).any(-1) & batch.mask
    # A head that reads the states of several layers, or none at this point, may have no slope here.
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


def _replaced_rows(model: Model, batch: Batch, trace: Trace, task: TransformerAdversaryTask) -> ReplacedRows:
    layers, heads = trace.attention.shape[1:3]
    chosen = ReplacedRows(
        range(layers)[index_slice(task.layer, layers, "layer")],
        range(heads)[index_slice(task.head, heads, "head")],
        find_deciding_queries(model, batch)[0].nonzero()[:, 0],
        torch.empty(0),
    )
    return replace(chosen, support=chosen.select(attention_support(trace, batch)[0]))


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
        given = self.attention.repeat(count, 1, 1, 1, 1)
        new = self.rows.shaped((candidates * self.mass).to(given.dtype))
        places = self.rows.queries[:, None].expand(new.shape)
        replaced = given[:, layers.start - self.first : layers.stop - self.first, heads.start : heads.stop]
        replaced.scatter_(3, places, new)
        embeddings = self.embeddings.repeat(count, 1, 1)
        logits = self.model(self.batch.repeat(count), embeddings=embeddings, attention=given).logits
        return self.model.task.probabilities(logits.double())


def _build_problem(model: Model, lowest: Model, batch: Batch, trace: Trace, rows: ReplacedRows) -> AdversaryProblem:
    """The problem of one text, with the cheapest way to its outputs that gives the model's own output."""
    own = rows.select(trace.attention[0]).double()
    mass = own.sum(-1, keepdim=True)
    attention = torch.where(rows.support, own / mass, 0.0).unsqueeze(0)
    before = model.task.probabilities(trace.logits.double())
    outputs: Callable[[Tensor], Tensor] = _ForwardOutputs(
        model, batch, trace.embeddings, trace.attention[0], rows, 0, mass
    )
    for build in (_last_layer_outputs, _upper_layer_outputs):
        try:
            quicker = build(model, lowest, batch, trace, rows, mass)
            if quicker is not None and _is_same(quicker(attention.unsqueeze(1))[:, 0], before, trace.logits.dtype):
                outputs = quicker
                break
        except _FAILURES:
            continue
    before = outputs(attention.unsqueeze(1))[:, 0]
    scale = 0.5 if model.task.num_outputs == 1 else 1.0
    return AdversaryProblem(attention, rows.support.unsqueeze(0), outputs, before, scale)


def _is_same(after: Tensor, before: Tensor, dtype: torch.dtype) -> bool:
    return bool((total_variation(after, before) <= _SAME_OUTPUT.get(dtype, 2e-2)).all())


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
    found = lowest.read_values(batch, embeddings=states, with_projections=False).values[0][0]
    attention = trace.attention[0, last, :, rows.queries[0]]
    values = found.repeat_interleave(len(attention) // len(found), 0)  # heads may share values
    unit = slice(int(rows.queries[0]), int(rows.queries[0]) + 1)
    token = replace(
        batch,
        inputs=batch.inputs[:, unit],
        mask=batch.mask[:, unit],
        segments=batch.segments[:, unit],
        words=batch.words[:, unit],
    )
    own = torch.einsum("hu,hud->hd", attention, values)
    return _LastLayerOutputs(lowest, model.task, token, states[:, unit], values, own, rows.heads, mass)


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
    problem: AdversaryProblem, rows: ReplacedRows, task: TransformerAdversaryTask, seeds: Tensor
) -> TransformerAdversary:
    """The adversary of a problem of one text."""
    attention, support = problem.attention[0], problem.support[0]
    bound = float(jensen_shannon_bound(attention, support).mean())
    epsilon, budget = task.epsilon, task.search.candidates

    singles = _single_units(attention, support)
    moved = problem.output_change(singles.unsqueeze(0))[0]
    reachable = support.any(0)
    sufficient = (moved <= epsilon) & reachable
    single_values = unit_divergences(attention, support).mean(0)
    single = float(single_values.masked_fill(~sufficient, 0.0).max())
    pair, pair_value = _farthest_pair(problem, single, epsilon, budget)

    permuted = _permutations(attention, support, rows, seeds)
    shifts = problem.output_change(permuted.unsqueeze(0))[0]
    kept = permuted[shifts <= epsilon]

    chosen = singles[single_values.masked_fill(~sufficient, -1.0).argmax()]
    best = _select(problem, torch.stack([chosen, *([] if pair is None else [pair])]), epsilon)
    searched = math.nan
    if task.exact:
        lightest = _one_hot(attention.masked_fill(~support, torch.inf).argmin(-1), attention)
        best = _select(problem, torch.cat([torch.stack([best, lightest]), kept]), epsilon)
        best = _move_heads(problem, best, rows.per_head, epsilon, budget)
    if not task.exact or _divergence(best, attention) < NEAR_BOUND * bound:
        found = _run_search(problem, task, seeds)
        searched = _divergence(_select(problem, found, epsilon), attention)
        if task.exact:
            stretched = stretch_to_boundary(found.unsqueeze(0), problem.attention, problem.output_change, epsilon)
            found = torch.cat([found, stretched[0]])
        best = _select(problem, torch.cat([best.unsqueeze(0), found]), epsilon)
        best = _move_heads(problem, best, rows.per_head, epsilon, budget) if task.exact else best
    return TransformerAdversary(
        attention=attention,
        support=support,
        adversary=best,
        divergence=_divergence(best, attention),
        bound=bound,
        change=float(problem.output_change(best[None, None])),
        sufficient_units=sufficient,
        single_divergence=single,
        pair_divergence=max(single, pair_value),
        search_divergence=searched,
        permuted_divergence=max([0.0, *jensen_shannon(kept, attention).mean(-1).tolist()]),
        permuted_change=float(shifts.quantile(0.5)),
        queries=rows.per_head,
    )


def _divergence(weights: Tensor, attention: Tensor) -> float:
    return float(jensen_shannon(weights, attention).mean())


def _select(problem: AdversaryProblem, candidates: Tensor, epsilon: float) -> Tensor:
    """The farthest of the candidates `[count row unit]` that keeps the output; attention itself if none does."""
    change = problem.output_change(candidates.unsqueeze(0))
    return select_best_candidate(candidates.unsqueeze(0), problem.attention, change, epsilon + EPSILON_TOLERANCE)[0]


def _run_search(problem: AdversaryProblem, task: TransformerAdversaryTask, seeds: Tensor) -> Tensor:
    """The adversaries of the paper's search in all weights `[count row unit]`."""
    change = OutputChange(problem.outputs, problem.original_probabilities, problem.hinge_scale)
    start = initial_logits(problem.support, seeds, task.search)
    return search_adversaries(problem.attention, change, start, task.search)[0]


def _one_hot(units: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter(-1, units.unsqueeze(-1), 1.0)


def _single_units(attention: Tensor, support: Tensor) -> Tensor:
    """All weight on each unit in turn `[unit row unit]`; rows that may not attend to it keep their attention."""
    units = attention.shape[-1]
    single = torch.eye(units, dtype=attention.dtype, device=attention.device)
    return torch.where(support.mT.unsqueeze(-1), single.unsqueeze(1), attention)


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
    first, second = (_entropy_term(each, attention) * seen for each in (weight, 1.0 - weight))
    total = first.mT @ seen + seen.mT @ second + math.log(2) * (seen.mT @ seen)
    return 0.5 * total / len(attention)


def _farthest_pair(problem: AdversaryProblem, floor: float, epsilon: float, budget: int) -> tuple[Tensor | None, float]:
    """The farthest pair of units on the grid that keeps the output and exceeds the floor, and its divergence."""
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

    found, _ = _first_equivalent(problem, values, build, floor, epsilon, budget)
    if found is None:
        return None, 0.0
    return build(torch.tensor([found], device=one.device))[0], float(values[found])


def _first_equivalent(
    problem: AdversaryProblem,
    values: Tensor,
    build: Callable[[Tensor], Tensor],
    floor: float,
    epsilon: float,
    budget: int,
) -> tuple[int | None, int]:
    """The candidate of largest value above the floor that keeps the output, and how many were tried.

    Candidates are tried from the largest value on, so that the first one that is found is the best of all.

    Args:
        build: candidates `[count row unit]` of these numbers.
    """
    order = values.argsort(descending=True, stable=True)
    order = order[values[order] > floor + _ROUNDING][:budget]
    tried, size = 0, _FIRST_CHUNK
    while tried < len(order):
        chosen = order[tried : tried + size]
        kept = problem.output_change(build(chosen).unsqueeze(0))[0] <= epsilon
        tried, size = tried + len(chosen), min(2 * size, _LARGEST_CHUNK)
        if bool(kept.any()):
            return int(chosen[kept.int().argmax()]), tried
    return None, tried


def _move_heads(problem: AdversaryProblem, start: Tensor, per_head: int, epsilon: float, budget: int) -> Tensor:
    """Move one head after the other to a single unit, each time as far as the output allows, until none can move.

    Args:
        start: weights that keep the output `[row unit]`; the `per_head` rows of a head of a layer move together.
        budget: most candidates that are tried.
    """
    attention, support = problem.attention[0], problem.support[0]
    units, heads = attention.shape[-1], len(attention) // per_head
    singles = _single_units(attention, support)
    reach = unit_divergences(attention, support).reshape(heads, per_head, units).mean(1)
    head = torch.arange(heads, device=start.device).repeat_interleave(per_head)
    current = start
    while budget > 0:
        own = jensen_shannon(current, attention).reshape(heads, per_head).mean(1)
        gains = (reach - own[:, None]).flatten()

        def build(chosen: Tensor, current: Tensor = current) -> Tensor:
            moved = head == (chosen // units)[:, None]
            return torch.where(moved.unsqueeze(-1), singles[chosen % units], current)

        found, tried = _first_equivalent(problem, gains, build, 0.0, epsilon, budget)
        if found is None:
            break
        budget -= tried
        current = build(torch.tensor([found], device=start.device))[0]
    return current


def _permutations(attention: Tensor, support: Tensor, rows: ReplacedRows, seeds: Tensor) -> Tensor:
    """Random permutations `[count row unit]` of the weights in each row."""
    weights, seen = (rows.shaped(each).unsqueeze(0) for each in (attention, support))
    return shuffle_attention(weights, seen, seeds, range(PERMUTATIONS))[0].flatten(1, 3)
