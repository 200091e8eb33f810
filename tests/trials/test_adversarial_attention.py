"""Adversarial attention as a trial: known answers through a model, planted truths, all shapes, rows and sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Generator, Tensor

from heedful.attributions.attention import RawAttention
from heedful.figures import Histogram, Violin
from heedful.measures.divergence import jensen_shannon, jensen_shannon_bound, total_variation
from heedful.models.attentive import Additive, Attentive, AttentiveModel, LinearBagOfWords, WordWeightSum, random_texts
from heedful.models.encoders import Average, initialize_weights
from heedful.models.input_forms import InputFormat, PairInput, QuestionAnswering
from heedful.results import Statistic, Verdict, find_statistic, summary_frame, value_of
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, MulticlassClassification, Regression
from heedful.trials.adversarial_attention import AdversarialAttention, AdversarialWeights, Solver, adversarial_methods
from heedful.trials.adversary_search import AdversarySearchSettings
from heedful.types import Batch, Model, NotApplicable, Task, Trace, UserError
from tests.networks import TinyTransformer, batch_of, tiny
from tests.small_models import some_batch
from tests.tiny import subject
from tests.trials.summaries import values

WEIGHTS = (0.7, 0.2, 0.05, 0.05)
STEEP = (2.0, 1.0, -1.0, -3.0)


def trial(epsilon: float = 0.05, *, search: bool = False, steps: int = 150) -> AdversarialAttention:
    solver: Solver = "search" if search else "exact"
    return AdversarialAttention(subject(), epsilon, solver, AdversarySearchSettings(steps=steps))


def some_model(task: Task | None = None, shape: InputFormat | None = None, *, sharpness: float = 8.0) -> AttentiveModel:
    """A token-wise model with uneven attention and outputs that depend on it."""
    generator = Generator().manual_seed(0)
    plan = Attentive(Average(6), Additive()) if shape is None else Attentive(Average(6), Additive(), input_format=shape)
    model = plan.build(task or BinaryClassification(), torch.randn(30, 5, generator=generator), generator).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("attention.", "decoder.output_layer")):
                parameter.mul_(sharpness)
    return model


class Planted(AttentiveModel):
    """Identity hidden states and a decoder with given scores, under a given attention."""

    def plant(self, scores: Tensor, weights: Sequence[float]) -> None:
        answer = self.decoder.output_layer
        assert isinstance(answer, torch.nn.Linear)
        with torch.no_grad():
            answer.weight.copy_(scores)
            answer.bias.zero_()
        units = len(weights)
        self.states = torch.zeros(1, units + 2, units)
        self.states[0, 1:-1] = torch.eye(units)
        self.weights = torch.zeros(1, 1, 1, 1, units + 2)
        self.weights[0, 0, 0, 0, 1:-1] = torch.tensor(weights)

    def forward(
        self,
        batch: Batch,
        *,
        embeddings: Tensor | None = None,
        hidden: Tensor | None = None,
        attention: Tensor | None = None,
    ) -> Trace:
        attention = self.weights if attention is None else attention
        return super().forward(batch, hidden=self.states, attention=attention)


def planted(scores: Sequence[Sequence[float]], weights: Sequence[float], task: Task | None = None) -> pd.DataFrame:
    """Rows of the exact trial for one text with these scores, by class."""
    plan = Attentive(Average(len(weights)), Additive())
    model = initialize_weights(Planted(task or BinaryClassification(), plan, (30, 5)), Generator().manual_seed(0))
    model.plant(torch.tensor(scores), weights)
    return trial().rows(model, some_batch((len(weights),)))


def test_the_known_answer_of_the_specification_comes_out_of_a_model() -> None:
    row = planted([STEEP], WEIGHTS).iloc[0]
    assert row["epsilon_max"] == pytest.approx(0.272221, abs=1e-6)
    assert row["adversary"] == pytest.approx([0.110, 0.890, 0, 0], abs=1e-3)
    assert row["attention"] == pytest.approx(WEIGHTS, abs=1e-7)
    assert row["bound"] == pytest.approx(0.592639, abs=1e-6)
    assert row["share"] == pytest.approx(0.272221 / 0.592639, abs=1e-5)
    assert row["change"] == pytest.approx(0.05, abs=1e-9)
    assert row["certified"]
    assert (row["singles"], row["alone"], row["units"]) == (0, [], [1, 2, 3, 4])


def test_two_logits_of_which_only_the_difference_counts_are_as_certain_as_one() -> None:
    shift = (0.3, -2.0, 5.0, 1.0)
    two = [shift, tuple(score + more for score, more in zip(STEEP, shift, strict=True))]
    row = planted(two, WEIGHTS, MulticlassClassification(2)).iloc[0]
    assert row["epsilon_max"] == pytest.approx(0.272221, abs=1e-6)
    assert row["certified"]


def test_a_third_class_that_never_comes_up_leaves_the_answer_but_not_the_certificate() -> None:
    three = [(0.0,) * 4, STEEP, (-60.0,) * 4]
    row = planted(three, WEIGHTS, MulticlassClassification(3)).iloc[0]
    assert row["epsilon_max"] <= 0.272222
    assert row["epsilon_max"] > 0.13
    assert row["change"] <= 0.05 + 1e-9
    assert not row["certified"]


@pytest.mark.parametrize("task", [BinaryClassification(), MulticlassClassification(2), MulticlassClassification(4)])
def test_identical_hidden_states_reach_the_bound_with_every_unit_alone(task: Task) -> None:
    model = some_model(task)
    with torch.no_grad():
        for table in model.embedding_tables:
            assert isinstance(table, torch.nn.Embedding)
            table.weight[4:] = table.weight[4].clone()
    found = trial(0.01, steps=5).rows(model, some_batch((5, 3, 9)))
    assert found["epsilon_max"].tolist() == pytest.approx([0.422810, 0.318258, 0.512546], abs=1e-5)
    assert found["share"].tolist() == pytest.approx([1.0, 1.0, 1.0], abs=1e-6)
    assert found["singles"].tolist() == [5, 3, 9]
    assert found["alone"].tolist()[1] == [0, 1, 2]


SHAPES = [
    (BinaryClassification(), None, 1),
    (MulticlassClassification(3), None, 1),
    (MulticlassClassification(3), QuestionAnswering(), 2),
    (BinaryClassification(), QuestionAnswering(), 2),
    (MulticlassClassification(3), PairInput(), 2),
]


@pytest.mark.parametrize(("task", "shape", "parts"), SHAPES)
def test_put_back_into_the_model_the_adversary_keeps_the_output(
    task: Task, shape: InputFormat | None, parts: int
) -> None:
    model, batch = some_model(task, shape), some_batch((6, 3, 8), parts=parts)
    found = trial().rows(model, batch)
    with torch.no_grad():
        trace = model(batch)
        support = model.input_format.support(batch)
        weights = torch.zeros_like(trace.attention)
        for row, (places, values) in enumerate(zip(found["units"], found["adversary"], strict=True)):
            flat = torch.zeros(support.shape[-1])
            flat[places] = torch.tensor(values)
            weights[row, 0, 0] = flat * support[row]
        after = model.task.probabilities(model(batch, attention=weights).logits)
    assert torch.allclose(weights.sum(-1), torch.ones_like(weights.sum(-1)), atol=1e-6)
    change = total_variation(after, model.task.probabilities(trace.logits))
    assert found["change"].tolist() == pytest.approx(change.tolist(), abs=1e-5)
    assert (found["change"] <= 0.05 + 1e-9).all()
    apart = jensen_shannon(weights[:, 0, 0], trace.attention[:, 0, 0]).mean(-1)
    assert found["epsilon_max"].tolist() == pytest.approx(apart.tolist(), abs=1e-5)
    bound = jensen_shannon_bound(trace.attention[:, 0, 0], support).mean(-1)
    assert found["bound"].tolist() == pytest.approx(bound.tolist(), abs=1e-5)
    assert (found["epsilon_max"] <= found["bound"] + 1e-9).all()
    if shape is None and task == BinaryClassification():
        assert found["certified"].all()
    assert (found["gap"][found["certified"]] <= 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize(("task", "shape", "parts"), SHAPES)
def test_the_exact_solver_is_at_least_the_search_on_every_model(
    task: Task, shape: InputFormat | None, parts: int
) -> None:
    model, batch = some_model(task, shape), some_batch((6, 3, 8, 12, 5), parts=parts)
    exact, search = (trial(search=search).rows(model, batch) for search in (False, True))
    assert (exact["epsilon_max"] >= search["epsilon_max"] - 1e-9).all()
    # Behind two rows of attention there is nothing to improve on the search with.
    assert exact["epsilon_max"].sum() > search["epsilon_max"].sum() or isinstance(shape, PairInput)
    assert not search["certified"].any()
    assert (search["change"] <= 0.05).all()


@pytest.mark.parametrize(("task", "shape", "parts"), SHAPES[:4])
def test_a_unit_alone_keeps_the_output_if_and_only_if_the_model_says_so(
    task: Task, shape: InputFormat | None, parts: int
) -> None:
    model, batch = some_model(task, shape), some_batch((6, 3, 8), parts=parts)
    found = trial(0.1, steps=1).rows(model, batch)
    with torch.no_grad():
        trace = model(batch)
        before = model.task.probabilities(trace.logits)
        for row in range(3):
            expected = []
            for place, unit in enumerate(found["units"][row]):
                weights = torch.zeros_like(trace.attention)
                weights[..., unit] = 1.0
                after = model.task.probabilities(model(batch, attention=weights).logits)
                expected += [place] if total_variation(after, before)[row] <= 0.1 else []
            assert found["alone"][row] == expected
            assert found["singles"][row] == len(expected)


def test_an_adversary_is_found_under_candidate_answers() -> None:
    batch = some_batch((6, 4))
    batch = replace(batch, candidates=torch.tensor([[True, True, False], [True, False, True]]))
    found = trial().rows(some_model(MulticlassClassification(3)), batch)
    assert (found["change"] <= 0.05 + 1e-9).all()
    assert (found["epsilon_max"] > 0).all()


def test_a_text_of_one_word_has_no_share_and_no_other_attention() -> None:
    found = trial().rows(some_model(), some_batch((1, 4)))
    assert found["epsilon_max"][0] == 0
    assert math.isnan(found["share"][0])
    assert found["adversary"][0] == [1.0]
    (single,) = AdversarialAttention.findings(AdversarialAttention.summary(found.head(1)))
    assert single.verdict is Verdict.UNDECIDED
    assert value_of(AdversarialAttention.summary(found), "share_of_bound") == pytest.approx(found["share"][1])


def test_a_smaller_epsilon_gives_less_on_every_text() -> None:
    model, batch = some_model(sharpness=20.0), some_batch((6, 3, 8, 12, 5))
    small, large = (trial(epsilon).rows(model, batch) for epsilon in (0.01, 0.05))
    assert (small["epsilon_max"] <= large["epsilon_max"]).all()
    assert small["epsilon_max"].sum() < large["epsilon_max"].sum()


def test_the_search_depends_on_its_seed_and_not_on_other_rows() -> None:
    model, batch = some_model(), some_batch((6, 3, 8))
    one, two = (replace(trial(search=True), seed=seed).rows(model, batch) for seed in (0, 1))
    assert not one["epsilon_max"].equals(two["epsilon_max"])
    alone = trial(search=True).rows(model, batch.rows(torch.tensor([1])))
    assert alone["epsilon_max"][0] == pytest.approx(one["epsilon_max"][1], abs=1e-6)


class Attentionless(Model):
    """A model that hides its attention."""

    task = BinaryClassification()
    attention_refusal = "it is hidden"

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        raise AssertionError("must not be called")


def test_what_cannot_be_done_is_said() -> None:
    batch = some_batch((3,))
    with pytest.raises(NotApplicable, match="hidden"):
        trial().rows(Attentionless(), batch)
    with pytest.raises(UserError, match="classifier"):
        trial().rows(some_model(Regression()), batch)


class Own(Model):
    """Somebody's network, of which nothing is known but its forward pass."""

    def __init__(self, inner: Model, bend: float = 0.0, heads: int = 1) -> None:
        super().__init__()
        self.inner, self.task, self.bend, self.heads = inner, inner.task, bend, heads

    def forward(self, batch: Batch, *, embeddings: Tensor | None = None, attention: Tensor | None = None) -> Trace:
        imposed = None if attention is None else attention[:, :, :1]
        trace = self.inner(batch, embeddings=embeddings, attention=imposed)
        logits = trace.logits + self.bend * trace.logits**2
        return replace(trace, logits=logits, attention=trace.attention.expand(-1, -1, self.heads, -1, -1))


@pytest.mark.parametrize("task", [BinaryClassification(), MulticlassClassification(2), MulticlassClassification(3)])
def test_a_network_of_ones_own_has_the_adversaries_that_its_decoder_gives_away(task: Task) -> None:
    model, batch = some_model(task), some_batch((3, 6, 4))
    known, probed = trial().rows(model, batch), trial().rows(Own(model), batch)
    assert probed["units"].tolist() == known["units"].tolist()
    for column in ("epsilon_max", "change", "bound", "gap"):
        assert probed[column].tolist() == pytest.approx(known[column].tolist(), abs=1e-5, nan_ok=True)
    assert probed["epsilon_max"].gt(0.01).all()


def test_a_network_whose_attention_does_not_add_up_to_its_logits_is_refused() -> None:
    model, batch = some_model(), some_batch((3, 6, 4))
    with pytest.raises(NotApplicable, match="linear"):
        trial().rows(Own(model, bend=0.5), batch)
    with pytest.raises(NotApplicable, match=r"\[batch 1 1 1 unit\]"):
        trial().rows(Own(model, heads=2), batch)
    with pytest.raises(NotApplicable, match="classifier"):
        trial().rows(Own(some_model(Regression())), batch)


def test_the_trial_has_a_row_for_each_test_instance_and_survives_the_disk(tmp_path: Path) -> None:
    exact, search = trial(), trial(search=True, steps=30)
    found = {each.solver: Workspace(tmp_path).get(each) for each in (exact, search)}
    kept = Workspace(tmp_path).get(exact).table
    made = found["exact"].table
    assert sorted(made["uid"]) == sorted(f"test-{number}" for number in range(40))
    assert [list(value) for value in kept["adversary"]] == [list(value) for value in made["adversary"]]
    assert all(len(kept["attention"][row]) == kept["length"][row] for row in range(40))
    assert made["uid"].tolist() == found["search"].table["uid"].tolist()
    assert (made["epsilon_max"] >= found["search"].table["epsilon_max"] - 1e-9).all()
    assert Workspace(tmp_path).get(replace(exact, limit=7)).notes["n"] == 7


def hand_made() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "predicted": [0, 0, 0, 1],
            "maximum_attention": [0.1, 0.25, 0.3, 1.0000001],
            "epsilon": [0.05] * 4,
            "epsilon_max": [0.1, 0.2, 0.6, 0.595],
            "share": [0.5, math.nan, 1.0, 0.9],
            "certified": [True, True, True, False],
            "gap": [0.0, 0.0, 0.0, 0.08],
            "singles": [0.0, 1.0, 2.0, 4.0],
            "attention": [[0.5, 0.5], [1.0], [0.5, 0.5], [0.25] * 4],
        }
    )


def test_the_summary_is_by_class_and_by_bin() -> None:
    summary = AdversarialAttention.summary(hand_made())
    expected = {
        ("epsilon", "", ""): 0.05,
        ("epsilon_max", "", ""): 0.3975,
        ("mean_epsilon_max", "", ""): 1.495 / 4,
        ("far", "", ""): 0.5,
        ("share_of_bound", "", ""): 0.8,
        ("certified", "", ""): 0.75,
        ("gap", "", ""): 0.02,
        ("max_gap", "", ""): 0.08,
        ("singles", "", ""): 1.5,
        ("with_single", "", ""): 0.75,
        ("single_share", "", ""): 0.75,
        ("epsilon_max", "", "class 0"): 0.2,
        ("mean_epsilon_max", "", "class 0"): 0.3,
        ("far", "", "class 0"): 1 / 3,
        ("epsilon_max", "", "class 0, attention 0.00 to 0.25"): 0.1,
        ("epsilon_max", "", "class 0, attention 0.25 to 0.50"): 0.4,
        ("epsilon_max", "", "class 1, attention 0.75 to 1.00"): 0.595,
    }
    found = values(summary)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert math.isnan(found["epsilon_max", "", "class 1, attention 0.00 to 0.25"])
    counted = find_statistic(summary, "epsilon_max", subset="class 0, attention 0.25 to 0.50")
    assert counted is not None
    assert counted.n == 2


def test_figures_four_and_five_are_drawn_from_the_rows() -> None:
    histogram, violin = AdversarialAttention.figures(hand_made())
    assert isinstance(histogram, Histogram)
    assert (histogram.bins, histogram.x.limits) == (40, (0.0, 0.7))
    assert [(each.name, each.values) for each in histogram.series] == [
        ("class 0", (0.1, 0.2, 0.6)),
        ("class 1", (0.595,)),
    ]
    assert isinstance(violin, Violin)
    assert [group[0].values for group in violin.groups] == [(0.1,), (0.2, 0.6), (), ()]
    assert violin.groups[3][1].values == (0.595,)


def test_distant_weights_contradict_the_claim_and_near_ones_support_it_only_with_a_certificate() -> None:
    table = hand_made()

    def verdict(rows: pd.DataFrame) -> Verdict:
        (finding,) = AdversarialAttention.findings(AdversarialAttention.summary(rows))
        return finding.verdict

    assert verdict(table) is Verdict.NOT_SUPPORTED
    near = table.assign(share=0.05)
    assert verdict(near.head(3)) is Verdict.SUPPORTED
    assert verdict(near) is Verdict.UNDECIDED
    assert verdict(table.assign(share=0.2)) is Verdict.UNDECIDED
    words = AdversarialAttention.interpretation(AdversarialAttention.summary(table))
    assert all(number in words for number in ("80%", "0.05", "75%", "1 of 4", "at most 0.02"))
    without = AdversarialAttention.interpretation(AdversarialAttention.summary(table.assign(gap=math.nan)))
    assert "0.02" not in without


@pytest.mark.parametrize(
    ("share", "certified", "verdict"),
    [
        (0.4, 0.0, Verdict.NOT_SUPPORTED),
        (math.nextafter(0.4, 0), 1.0, Verdict.UNDECIDED),
        (0.1, 1.0, Verdict.UNDECIDED),
        (math.nextafter(0.1, 0), 1.0, Verdict.SUPPORTED),
        (math.nextafter(0.1, 0), math.nextafter(1, 0), Verdict.UNDECIDED),
    ],
)
def test_weights_are_distant_from_04_of_the_bound_on_and_near_below_01(
    share: float, certified: float, verdict: Verdict
) -> None:
    rows = [Statistic("share_of_bound", value=share), Statistic("certified", value=certified)]
    (finding,) = AdversarialAttention.findings(summary_frame(rows))
    assert finding.verdict is verdict


def test_a_divergence_at_its_upper_bound_is_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.trials.adversarial_attention.CERTIFIED_GAP", 0.0)
    row = planted([STEEP], WEIGHTS).iloc[0]
    assert (row["certified"], row["gap"]) == (True, 0.0)


def test_a_divergence_is_far_from_0595_on() -> None:
    table = hand_made().assign(epsilon_max=[0.595, math.nextafter(0.595, 0), 0.0, 0.69])
    assert value_of(AdversarialAttention.summary(table), "far") == 0.5


def test_an_empty_table_is_summed_and_drawn() -> None:
    empty = hand_made().head(0)
    summary = AdversarialAttention.summary(empty)
    assert set(summary["n"]) == {0}
    assert AdversarialAttention.findings(summary)[0].verdict is Verdict.UNDECIDED
    assert len(AdversarialAttention.figures(empty)) == 2


def test_its_scores_are_the_adversary_of_the_trial_and_keep_the_prediction(workspace: Workspace) -> None:
    trained = subject(epochs=6).restore(workspace)
    model, batch = trained.model.eval(), trained.batch("test")
    found = AdversarialWeights()(model, batch, torch.zeros(len(batch), dtype=torch.int64))
    table = workspace.get(AdversarialAttention(subject(epochs=6))).table
    adversary = dict(zip(table["uid"], table["adversary"], strict=True))
    for row, uid in enumerate(batch.uids):
        assert found.scores[row, batch.content_mask[row]].tolist() == pytest.approx(list(adversary[uid]), abs=1e-6)
    weights = found.scores[:, None, None, None].float()
    before, after = (model.task.probabilities(model(batch, **given).logits) for given in ({}, {"attention": weights}))
    assert float((before - after).abs().amax().detach()) <= 0.05 + 1e-5
    own = RawAttention()(model, batch, torch.zeros(len(batch), dtype=torch.int64)).scores
    assert float((found.scores - own).abs().sum(1).min()) > 0.1


def sums() -> tuple[LinearBagOfWords, Batch]:
    table = torch.randn(60, 1, generator=Generator().manual_seed(1))
    return WordWeightSum().build(BinaryClassification(), table, Generator()), random_texts((5, 7, 3), seed=2)


def probability(model: LinearBagOfWords, batch: Batch, attention: Tensor) -> Tensor:
    return torch.sigmoid(model(batch, attention=attention[:, None, None, None]).logits[:, 0]).detach()


def test_for_a_model_that_adds_no_mix_of_two_words_that_keeps_the_prediction_is_farther() -> None:
    model, batch = sums()
    found = AdversarialWeights()(model, batch, torch.zeros(3, dtype=torch.int64)).scores
    own = model(batch).attention[:, 0, 0, 0].double()
    before = probability(model, batch, own.float())
    assert (probability(model, batch, found.float()) - before).abs().max() <= 0.05 + 1e-5
    for row in range(3):
        units = batch.content_mask[row].nonzero().flatten().tolist()
        best = 0.0
        for one, other in combinations(units, 2):
            shares = torch.linspace(0, 1, 201)
            mixes = torch.zeros(201, batch.mask.shape[1])
            mixes[:, one], mixes[:, other] = shares, 1 - shares
            texts = batch.rows(torch.full((201,), row))
            mixes = mixes[:, : texts.mask.shape[1]]
            kept = (probability(model, texts, mixes) - before[row]).abs() <= 0.05
            far = jensen_shannon(mixes.double(), own[row, : mixes.shape[1]].expand(201, -1))
            best = max(best, float(far[kept].max())) if kept.any() else best
        reached = float(jensen_shannon(found[row], own[row]))
        assert best <= reached + 1e-9
        assert reached == pytest.approx(best, abs=0.01)


def test_a_transformer_has_none() -> None:
    assert adversarial_methods(TinyTransformer()) == ()
    assert (
        adversarial_methods(WordWeightSum()) == adversarial_methods(subject().architecture) == (AdversarialWeights(),)
    )
    with pytest.raises(UserError, match="attentive model"):
        AdversarialWeights()(tiny("bert"), batch_of("bert"), torch.zeros(3, dtype=torch.int64))
