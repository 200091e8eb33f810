"""Adversarial attention of transformers: closed forms, slow twins by forward passes, causal masks, what stays."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest
import torch
from torch import Generator, Tensor

from heedful.capabilities import LayerInput, LayerTrace
from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound, total_variation
from heedful.models.acceptance import open_layers
from heedful.models.small_transformers import ScalarMix, SmallTransformer, build_network
from heedful.models.transformer import TransformerModel
from heedful.results import Verdict, value_of
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.training.predictions import attention_support
from heedful.training.trainer import Adam, Training
from heedful.trials._adversary_transformer import (
    GRID,
    ReplacedRows,
    TransformerAdversary,
    TransformerAdversarySettings,
    _build_problem,
    _ForwardOutputs,
    _LastLayerOutputs,
    _replaced_rows,
    find_deciding_queries,
    find_text_adversary,
    find_transformer_adversaries,
    pair_divergences,
    unit_divergences,
)
from heedful.trials.adversarial_attention import AdversarialAttention, Solver
from heedful.trials.adversary_search import AdversaryProblem, AdversarySearchSettings, LinearOutputs
from heedful.trials.permutation import Permutation, shuffle_attention
from heedful.types import Architecture, Batch, Model, Task, Trace, UserError
from tests.networks import TinyTransformer, batch_of, texts, tiny
from tests.tiny import subject

FEW_STEPS = AdversarySearchSettings(num_adversaries=2, steps=20)


def settings(
    epsilon: float = 0.02, layer: int | None = -1, head: int | None = None, *, exact: bool = True
) -> TransformerAdversarySettings:
    return TransformerAdversarySettings(epsilon, layer, head, FEW_STEPS, 0, exact)


def one(batch: Batch, row: int) -> Batch:
    return batch.rows(torch.tensor([row]))


@dataclass(frozen=True)
class Given(Architecture):
    """A model that is there already."""

    model: TransformerModel

    def build(self, task: Task, embeddings: Tensor | None, generator: Generator) -> TransformerModel:
        return self.model


def causal(kind: Literal["class", "last", "mean"]) -> TransformerModel:
    """A BERT that attends to the past only and reads the first or the last token, or the mean of all in all layers."""
    plan, task, generator = TinyTransformer(), MulticlassClassification(3), Generator().manual_seed(1)
    config = plan.config(task)
    config.is_decoder = True
    model = TransformerModel(open_layers(build_network(config, generator), "interface"), task).eval().double()
    if kind == "mean":
        return ScalarMix(Given(model)).build(task, None, generator)
    if kind == "class":
        return model
    pooler = model.network.base_model.get_submodule("pooler")
    dense = pooler.get_submodule("dense")
    vars(pooler)["forward"] = lambda states: torch.tanh(dense(states[:, -1]))
    return model


def random_rows(rows: int = 3, units: int = 5) -> tuple[Tensor, Tensor]:
    """Attention rows and their support; the last row does not see the last unit, and one weight is 0."""
    weights = torch.rand(rows, units, generator=Generator().manual_seed(0), dtype=torch.float64)
    weights[0, 1] = 0.0
    support = torch.ones(rows, units, dtype=torch.bool)
    support[-1, -1] = False
    weights = weights.masked_fill(~support, 0.0)
    return weights / weights.sum(-1, keepdim=True), support


def test_divergences_of_units_and_pairs_in_closed_form_are_those_of_the_distributions() -> None:
    attention, support = random_rows()
    assert float(unit_divergences(torch.full((1, 5), 0.2).double(), torch.ones(1, 5).bool())[0, 0]) == pytest.approx(
        0.422810, abs=1e-6
    )
    single = torch.eye(5, dtype=torch.float64)
    for unit in range(5):
        expected = jensen_shannon(single[unit], attention) * support[:, unit]
        torch.testing.assert_close(unit_divergences(attention, support)[:, unit], expected)
    for weight, (u, v) in itertools.product((0.1, 0.5, 0.8), itertools.permutations(range(5), 2)):
        mixture = weight * single[u] + (1 - weight) * single[v]
        rows = jensen_shannon(mixture, attention) * (support[:, u] & support[:, v])
        assert float(pair_divergences(attention, support, weight)[u, v]) == pytest.approx(float(rows.mean()), abs=1e-12)


def test_the_queries_that_decide_are_read_from_the_head() -> None:
    for family in ("bert", "distilbert", "roberta", "electra", "vit"):
        model, batch = tiny(family), batch_of(family)
        found = find_deciding_queries(model, batch, model(batch).embeddings)
        assert found.sum(1).tolist() == [1, 1, 1]
        assert found[:, 0].all()
    batch = texts()
    mix = ScalarMix(TinyTransformer()).build(MulticlassClassification(3), None, Generator().manual_seed(1))
    assert torch.equal(find_deciding_queries(mix, batch, mix(batch).embeddings), batch.mask)
    model, batch = causal("last"), one(batch, 0)
    assert find_deciding_queries(model, batch, model(batch).embeddings).tolist() == [[False] * 6 + [True]]


def test_opposite_outputs_do_not_hide_the_token_that_decides() -> None:
    model, batch = tiny("bert"), texts()
    head = model.network.get_submodule("classifier")
    with torch.no_grad():
        head.get_parameter("weight")[1:] = torch.stack([-head.get_parameter("weight")[0], torch.zeros(16)])
    assert find_deciding_queries(model, batch, model(batch).embeddings).sum().item() == 3


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra", "vit"])
def test_running_from_a_layer_on_equals_the_whole_forward_pass(family: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        model, batch = tiny(family).to(dtype), batch_of(family)
        with torch.no_grad():
            trace = model(batch)
            inputs = model.read_layers(batch, trace.embeddings).inputs
            for layer in range(2):
                again = model.layers_from(layer)(batch, embeddings=inputs[layer], attention=trace.attention[:, layer:])
                torch.testing.assert_close(again.logits, trace.logits, rtol=0, atol=tolerance)
            upper = model.layers_from(1).read_values(batch, embeddings=inputs[1])
            torch.testing.assert_close(upper.projections[0], model.read_values(batch).projections[1], rtol=0, atol=0)
            values = model.read_values(batch, with_projections=False).values[1]
            attended = torch.einsum("bhu,bhud->bhd", trace.attention[:, 1, :, 0], values).unsqueeze(2)
            first = replace(
                batch, inputs=batch.inputs[:, :1], mask=batch.mask[:, :1], segments=batch.segments[:, :1],
                words=batch.words[:, :1],
            )  # fmt: skip
            logits = model.layers_from(1).decode_attended(first, inputs[1][:, :1], attended)
        torch.testing.assert_close(logits, trace.logits, rtol=0, atol=tolerance)
    with pytest.raises(ValueError, match="one layer"):
        model.decode_attended(first, inputs[1][:, :1], attended)


def output_changes(
    model: Model, batch: Batch, candidates: Tensor, queries: Tensor, layer: int | None, head: int | None
) -> Tensor:
    """Slow twin: full forward passes with the rows of these queries replaced by `[count layer head query unit]`."""
    with torch.no_grad():
        trace = model(batch)
        given = trace.attention.repeat(len(candidates), 1, 1, 1, 1)
        for count, layers, heads, (place, query) in itertools.product(
            range(len(candidates)),
            range(given.shape[1]) if layer is None else [layer % given.shape[1]],
            range(given.shape[2]) if head is None else [head],
            enumerate(queries.tolist()),
        ):
            row = candidates[count, 0 if layer is not None else layers, 0 if head is not None else heads, place]
            given[count, layers, heads, query] = row
        logits = model(batch.repeat(len(candidates)), attention=given).logits
        return total_variation(model.task.probabilities(logits), model.task.probabilities(trace.logits))


def brute_force(
    model: Model, batch: Batch, epsilon: float, layer: int | None, head: int | None
) -> tuple[list[int], float, float]:
    """The units that suffice alone, and the largest divergences of units and of pairs, by full forward passes."""
    with torch.no_grad():
        trace = model(batch)
    queries = find_deciding_queries(model, batch, trace.embeddings)[0].nonzero()[:, 0]
    pick = (
        slice(None) if layer is None else slice(layer % trace.attention.shape[1], layer % trace.attention.shape[1] + 1),
        slice(None) if head is None else slice(head, head + 1),
        queries,
    )
    own, seen = (
        each[0][pick].detach()
        for each in (trace.attention, attention_support(model, batch, trace.attention, trace.scores))
    )
    units = own.shape[-1]
    mixtures = torch.eye(units, dtype=own.dtype)
    pairs = [
        weight * mixtures[u] + (1 - weight) * mixtures[v]
        for u, v in itertools.combinations(range(units), 2)
        for weight in GRID
    ]
    every = torch.stack([*mixtures, *pairs])
    fits = ~((every > 0)[:, None, None, None] & ~seen).any(-1, keepdim=True)
    candidates = torch.where(fits, every[:, None, None, None], own)
    kept = output_changes(model, batch, candidates, queries, layer, head) <= epsilon
    values = jensen_shannon(candidates, own).mean((1, 2, 3)).masked_fill(~kept, 0.0)
    return kept[:units].nonzero()[:, 0].tolist(), float(values[:units].max()), float(values.max())


@pytest.mark.parametrize(("layer", "head"), [(-1, None), (-1, 1), (1, 0)])
@pytest.mark.parametrize("family", ["bert", "electra", "vit", "causal"])
def test_the_last_layer_alone_gives_the_outputs_of_the_whole_model(family: str, layer: int, head: int | None) -> None:
    model, batch = (causal("last"), texts()) if family == "causal" else (tiny(family).double(), batch_of(family))
    with torch.no_grad():
        batch = one(batch, 0)
        trace = model(batch)
        rows = _replaced_rows(model, batch, trace, settings(0.02, layer, head))
        problem = _build_problem(model, model.layers_from(1), batch, trace, rows)
        assert isinstance(problem.outputs, _LastLayerOutputs)
        mass = rows.select(trace.attention[0]).sum(-1, keepdim=True)
        whole = _ForwardOutputs(model, batch, trace.embeddings, trace.attention[0], rows, 0, mass)
        shape = (1, 4, *problem.attention.shape[1:])
        weights = torch.rand(shape, generator=Generator().manual_seed(3), dtype=torch.float64) * rows.support
        weights = weights / weights.sum(-1, keepdim=True)
        torch.testing.assert_close(problem.outputs(weights), whole(weights), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "head", "epsilon"),
    [(-1, None, 0.005), (-1, None, 0.05), (-1, 1, 0.02), (0, None, 0.02), (None, None, 0.02)],
)
def test_single_units_and_pairs_are_those_of_brute_force_by_whole_forward_passes(
    layer: int | None, head: int | None, epsilon: float
) -> None:
    model, batch = tiny("bert"), texts()
    found = find_transformer_adversaries(model, batch, settings(epsilon, layer, head))
    for row, each in enumerate(found):
        alone, single, pair = brute_force(model, one(batch, row), epsilon, layer, head)
        assert each.sufficient_units.nonzero()[:, 0].tolist() == alone
        assert each.single_divergence == pytest.approx(single, abs=1e-9)
        assert each.pair_divergence == pytest.approx(pair, abs=1e-9)
        check_found(model, one(batch, row), each, epsilon, layer, head)


def check_found(
    model: Model, batch: Batch, found: TransformerAdversary, epsilon: float, layer: int | None, head: int | None
) -> None:
    """Put back into the model the adversary keeps the output; it is never below what else was tried."""
    with torch.no_grad():
        trace = model(batch)
    queries = find_deciding_queries(model, batch, trace.embeddings)[0].nonzero()[:, 0]
    layers, heads = (1 if layer is not None else trace.attention.shape[1], 1 if head is not None else 2)
    shaped = found.adversary.reshape(1, layers, heads, len(queries), -1)
    change = output_changes(model, batch, shaped, queries, layer, head)
    assert float(change) == pytest.approx(found.change, abs=1e-9)
    assert found.change <= epsilon + 1e-9
    assert found.divergence >= max(found.pair_divergence, found.permuted_divergence) - 1e-9
    assert not found.search_divergence > found.divergence + 1e-9
    assert found.divergence == pytest.approx(float(jensen_shannon(found.adversary, found.attention).mean()), abs=1e-9)
    bound = jensen_shannon_bound(found.attention, found.support).mean()
    assert found.bound == pytest.approx(float(bound), abs=1e-12)
    assert found.divergence <= found.bound + 1e-9
    torch.testing.assert_close(found.adversary.sum(-1), torch.ones(len(found.adversary), dtype=torch.float64))
    assert float(found.adversary[~found.support].sum()) == 0


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_causal_models_attend_to_the_past_only(kind: Literal["last", "mean"]) -> None:
    model, batch = causal(kind), one(texts(), 1)
    with torch.no_grad():
        trace = model(batch)
    past = torch.ones(5, 5).tril().bool()
    assert torch.equal(attention_support(model, batch, trace.attention, trace.scores)[0], past.expand(2, 2, 5, 5))
    (found,) = find_transformer_adversaries(model, batch, settings(0.03))
    assert found.queries == (1 if kind == "last" else 5)
    assert torch.equal(found.support, (past[-1:] if kind == "last" else past).repeat(2, 1))
    alone, single, pair = brute_force(model, batch, 0.03, -1, None)
    assert found.sufficient_units.nonzero()[:, 0].tolist() == alone
    assert (found.single_divergence, found.pair_divergence) == pytest.approx((single, pair), abs=1e-9)
    check_found(model, batch, found, 0.03, -1, None)
    shuffled = shuffle_attention(
        trace.attention, attention_support(model, batch, trace.attention, trace.scores), torch.tensor([3]), range(20)
    )
    assert float(shuffled[..., ~past].abs().sum()) == 0
    assert not torch.equal(shuffled[0, 0], trace.attention[0])


def test_a_token_that_sees_only_itself_has_no_other_attention() -> None:
    """The class token of a causal model is the first: nothing can be permuted or replaced."""
    model, batch = causal("class"), texts()
    assert Permutation(subject(), 20).rows(model, batch)["median_change"].tolist() == pytest.approx(
        [0, 0, 0], abs=1e-12
    )
    found = AdversarialAttention(subject(), search=FEW_STEPS).rows(model, batch)
    assert found["bound"].tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert found["share"].isna().all()
    (finding,) = AdversarialAttention.findings(AdversarialAttention.summary(found))
    assert finding.verdict is Verdict.UNDECIDED


def test_permutations_of_a_bidirectional_model_reach_all_real_units() -> None:
    model, batch = tiny("bert"), texts()
    with torch.no_grad():
        trace = model(batch)
    real = batch.mask[:, None, None, None] & batch.mask[:, None, None, :, None]
    assert torch.equal(
        attention_support(model, batch, trace.attention, trace.scores), real.expand(trace.attention.shape)
    )


def linear_problem(scores: tuple[float, ...], weights: tuple[float, ...]) -> tuple[AdversaryProblem, ReplacedRows]:
    logits = torch.tensor([scores], dtype=torch.float64).unsqueeze(-1)
    outputs = LinearOutputs(torch.cat([torch.zeros_like(logits), logits], -1), torch.zeros(1, 2, dtype=torch.float64))
    attention = torch.tensor([[weights]], dtype=torch.float64)
    support = torch.ones_like(attention, dtype=torch.bool)
    problem = AdversaryProblem(attention, support, outputs, outputs(attention.unsqueeze(1))[:, 0], 0.5)
    return problem, ReplacedRows(range(1), range(1), torch.tensor([0]), support[0])


def test_behind_a_linear_decoder_what_is_found_is_known_and_below_the_exact_answer() -> None:
    """The known answer of the specification is 0.272221, at (0.110, 0.890, 0, 0): between two points of the grid."""
    problem, rows = linear_problem((2.0, 1.0, -1.0, -3.0), (0.7, 0.2, 0.05, 0.05))
    chosen = TransformerAdversarySettings(0.05, -1, None, AdversarySearchSettings(steps=50), 0, exact=True)
    found = find_text_adversary(problem, rows, chosen, torch.tensor([1]))
    on_grid = torch.tensor([0.2, 0.8, 0.0, 0.0], dtype=torch.float64)
    assert found.pair_divergence == pytest.approx(float(jensen_shannon(on_grid, problem.attention[0, 0])), abs=1e-9)
    assert not found.sufficient_units.any()
    assert found.pair_divergence <= found.divergence <= 0.272222
    assert not math.isnan(found.search_divergence)
    few = replace(chosen, search=replace(chosen.search, candidates=3))
    assert find_text_adversary(problem, rows, few, torch.tensor([1])).pair_divergence == 0


def test_attention_without_influence_reaches_the_bound_which_is_proof() -> None:
    model, batch = tiny("bert"), texts()
    with torch.no_grad():
        for weight in model.network.get_submodule("bert.encoder.layer.1.attention.output.dense").parameters():
            weight.zero_()
    found = AdversarialAttention(subject(), epsilon=0.001).rows(model, batch)
    assert found["share"].tolist() == pytest.approx([1, 1, 1])
    assert found["certified"].all()
    assert found["singles"].tolist() == [7, 5, 3]
    assert found["permuted_change"].tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert found["search_max"].isna().all()
    (finding,) = AdversarialAttention.findings(AdversarialAttention.summary(found))
    assert finding.verdict is Verdict.NOT_SUPPORTED


@pytest.mark.parametrize("solver", ["exact", "search"])
def test_the_search_in_all_weights_is_never_below_single_units_and_pairs(solver: Solver) -> None:
    trial = AdversarialAttention(subject(), 0.002, solver, FEW_STEPS)
    found = trial.rows(tiny("bert"), texts())
    assert (found["epsilon_max"] >= found["pair_max"] - 1e-12).all()
    assert (found["pair_max"] >= found["single_max"]).all()
    assert (found["change"] <= 0.002 + 1e-9).all()
    searched = found["search_max"].notna()
    assert searched.all() or solver == "exact"
    assert (found["share"] < 0.9)[searched & (solver == "search")].any() or solver == "exact"
    assert (found["epsilon_max"] >= found["search_max"].fillna(0.0) - 1e-12).all()


class Opaque(Model):
    """A model that can only be run as a whole."""

    def __init__(self, inner: TransformerModel) -> None:
        super().__init__()
        self.inner, self.task = inner, inner.task

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        return self.inner(batch, embeddings=embeddings, attention=attention)

    def read_layers(self, batch: Batch, embeddings: Tensor, replacement: LayerInput | None = None) -> LayerTrace:
        return self.inner.read_layers(batch, embeddings, replacement)


@pytest.mark.parametrize("layer", [-1, None])
def test_a_model_that_cannot_be_cut_gives_the_same_rows(layer: int | None) -> None:
    model, batch = tiny("bert"), texts().rows(torch.tensor([1, 2]))
    trial = AdversarialAttention(subject(), 0.01, search=FEW_STEPS, layer=layer)
    cut, whole = (trial.rows(network, batch) for network in (model, Opaque(model)))
    pd.testing.assert_frame_equal(cut, whole, rtol=1e-6, atol=1e-8)


def test_a_text_has_the_same_row_in_any_company_and_under_any_padding() -> None:
    model, batch = tiny("bert"), texts()
    trial = AdversarialAttention(subject(), 0.01, search=FEW_STEPS)
    together = trial.rows(model, batch)
    for row in range(3):
        pd.testing.assert_frame_equal(
            trial.rows(model, one(batch, row)), together.iloc[[row]].reset_index(drop=True), rtol=1e-9, atol=1e-12
        )


def test_the_model_is_left_as_it_was_found() -> None:
    model, batch = tiny("bert"), texts()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modules, generator = list(model.modules()), torch.get_rng_state()
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in modules]
    trial = AdversarialAttention(subject(), 0.002, search=FEW_STEPS, layer=0)
    trial.rows(model, batch)
    with pytest.raises(UserError, match="layer 7"):
        replace(trial, layer=7).rows(model, batch)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(model.modules()) == modules
    assert all(part.training for part in modules)
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in modules] == hooks
    assert model.network.config.num_hidden_layers == 2
    assert torch.equal(torch.get_rng_state(), generator)


def test_one_output_of_two_classes_images_and_what_cannot_be_done() -> None:
    plan = TinyTransformer()
    binary = plan.build(BinaryClassification(), None, Generator().manual_seed(1)).double()
    trial = AdversarialAttention(subject(), 0.01, search=FEW_STEPS)
    assert (trial.rows(binary, texts())["change"] <= 0.01 + 1e-9).all()
    pictures = trial.rows(tiny("vit"), batch_of("vit"))
    assert pictures["units"].map(len).tolist() == [5, 5, 5]
    with pytest.raises(UserError, match="classifier"):
        trial.rows(plan.build(Regression(), None, Generator().manual_seed(1)), texts())
    with pytest.raises(UserError, match="head 2"):
        replace(trial, head=2).rows(binary, texts())


def test_the_summary_says_what_was_replaced_and_what_simpler_weights_reach() -> None:
    trial = AdversarialAttention(subject(), 0.01, search=FEW_STEPS, head=1)
    found = trial.rows(tiny("bert"), texts())
    summary = AdversarialAttention.summary(found)
    assert [value_of(summary, name) for name in ("layer", "head", "layers", "heads", "queries")] == [1, 1, 2, 2, 1]
    ratio = (found["permuted_max"] / found["bound"]).mean()
    assert value_of(summary, "share_of_bound", "permuted weights") == pytest.approx(ratio)
    assert value_of(summary, "epsilon_max", "single unit") == pytest.approx(found["single_max"].median())
    assert value_of(summary, "share_of_bound") == pytest.approx((found["epsilon_max"] / found["bound"]).mean())
    words = AdversarialAttention.interpretation(summary)
    assert all(part in words for part in ("layer 1", "head 1", f"{ratio:.0%}", "0.01"))
    whole = replace(trial, layer=None, head=None).rows(tiny("bert"), texts())
    assert "all 2 layers and all 2 heads" in AdversarialAttention.interpretation(AdversarialAttention.summary(whole))


@pytest.mark.slow
def test_the_trial_of_a_trained_transformer_is_stored(tmp_path: Path) -> None:
    trained = replace(subject(), architecture=SmallTransformer(2, 2, 8), training=Training(2, 8, Adam(lr=0.01)))
    trial = AdversarialAttention(trained, search=FEW_STEPS, limit=5)
    made = Workspace(tmp_path).get(trial)
    again = Workspace(tmp_path).get(trial)
    assert made.table["epsilon_max"].tolist() == again.table["epsilon_max"].tolist()
    assert value_of(again.summary, "layers") == 2
    assert len(AdversarialAttention.figures(again.table)) == 2
