"""Faithfulness: measures by hand and against captum, evidence against a literal twin, the trial's rows and words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.metrics import auc
from torch import Generator, Tensor

from heedful.attributions.attention import RawAttention
from heedful.attributions.controls import Random
from heedful.attributions.perturbation import LeaveOneOut, leave_one_out_logits
from heedful.figures import Bars, Lines
from heedful.measures.erasure import AOPC_FRACTIONS, FAITHFULNESS_MEASURES, normalized_infidelity_error, step_counts
from heedful.models.attentive import Additive, Attentive, LinearBagOfWords, random_texts
from heedful.models.encoders import BiLSTM
from heedful.results import (
    Statistic,
    Verdict,
    excess_metric,
    find_statistic,
    select_statistics,
    summary_frame,
    value_of,
)
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification, Regression
from heedful.training.attribution_tables import AttributionTable
from heedful.trials.faithfulness import MAX_REMOVALS, ErasureEvaluator, Faithfulness, FaithfulnessMetric, signed_methods
from heedful.types import Attribution, Batch, Model, UserError
from tests.networks import batch_of, tiny
from tests.tiny import subject

NAN = math.nan


def recurrent() -> Model:
    generator = Generator().manual_seed(0)
    table = 2 * torch.randn(30, 5, generator=generator)
    return Attentive(BiLSTM(3), Additive()).build(BinaryClassification(), table, generator).double().eval()


def read(model: Model, batch: Batch, row: int, kept: set[int]) -> list[float]:
    """What the model says of one text with these scored units only, read by itself."""
    real = int(batch.lengths[row])
    units = [unit for unit in range(real) if not batch.content_mask[row, unit] or unit in kept]
    inputs = batch.inputs[row, units]
    words = batch.words[row, units]
    if not kept:
        inputs, words = torch.tensor([inputs[0], 0, *inputs[1:]]), torch.tensor([-1, 0, -1])
    text = Batch(
        ("x",), inputs[None], torch.ones(1, len(inputs), dtype=torch.bool), torch.zeros_like(inputs[None]), words[None]
    )
    with torch.no_grad():
        found: list[float] = model.task.probabilities(model(text).logits)[0].tolist()
    return found


def test_evidence_equals_the_models_output_on_each_changed_text_alone() -> None:
    model, batch = recurrent(), random_texts((4, 7, 1, 12))
    target = torch.tensor([0, 1, 1, 0])
    scores = torch.randn(2, *batch.mask.shape, generator=Generator().manual_seed(3), dtype=torch.float64)
    evidence = ErasureEvaluator(steps=5, samples=3)(model, batch, target, scores)
    assert evidence.deletion_outputs.shape == (8, 6)
    for method in range(2):
        for row, label in enumerate(target.tolist()):
            place = method * 4 + row
            units = batch.content_mask[row].nonzero().flatten().tolist()
            ranked = sorted(units, key=lambda unit: -scores[method, row, unit].item())
            everything = read(model, batch, row, set(units))
            assert evidence.full_output[place].item() == pytest.approx(everything[label])
            for step in range(6):
                count = int(step_counts(torch.tensor([len(units)]), 5)[0, step])
                rest = read(model, batch, row, set(ranked[count:]))
                assert evidence.fractions[place, step].item() == pytest.approx(count / len(units))
                assert evidence.deletion_outputs[place, step].item() == pytest.approx(rest[label])
                assert evidence.decision_changed is not None
                assert bool(evidence.decision_changed[place, step]) == (np.argmax(rest) != np.argmax(everything))
                only = read(model, batch, row, set(ranked[:count]))
                assert evidence.insertion_outputs[place, step].item() == pytest.approx(only[label])
            for number, share in enumerate(AOPC_FRACTIONS):
                count = math.ceil(share * len(units))
                assert evidence.comprehensiveness_outputs[place, number].item() == pytest.approx(
                    read(model, batch, row, set(ranked[count:]))[label]
                )
                assert evidence.sufficiency_outputs[place, number].item() == pytest.approx(
                    read(model, batch, row, set(ranked[:count]))[label]
                )
            for sample in range(3):
                out = set(evidence.removal_masks[place, sample].nonzero().flatten().tolist())
                assert out <= set(units)
                left = read(model, batch, row, set(units) - out)
                assert evidence.removal_outputs[place, sample].item() == pytest.approx(left[label])


def test_other_rows_change_no_measure() -> None:
    model, batch = recurrent(), random_texts((4, 7, 12))
    target, scores = torch.tensor([0, 1, 0]), Random()(recurrent(), batch, torch.zeros(3)).scores
    metrics = [FaithfulnessMetric(measure) for measure in FAITHFULNESS_MEASURES.values()]
    for metric in metrics:
        together = metric(model, batch, target, Attribution(scores, batch.content_mask))
        for row in range(3):
            index = torch.tensor([row])
            one = batch.rows(index)
            alone = metric(model, one, target[index], Attribution(scores[index, : one.mask.shape[1]], one.content_mask))
            assert alone.item() == pytest.approx(together[row].item(), abs=1e-9, nan_ok=True)


def test_removals_are_drawn_until_infidelity_is_as_accurate_as_asked_for() -> None:
    model, batch = recurrent(), random_texts((4, 9, 12, 15))
    target = torch.tensor([0, 1, 0, 1])
    scores = torch.randn(2, *batch.mask.shape, generator=Generator().manual_seed(3), dtype=torch.float64)
    found = ErasureEvaluator(error=0.02, samples=10)(model, batch, target, scores)
    assert found.removal_counts is not None
    errors, counts = normalized_infidelity_error(found).reshape(2, 4), found.removal_counts.reshape(2, 4)
    assert torch.equal(counts[0], counts[1])
    assert counts[0, 0] == 16, "all removals of a short text"
    assert (errors <= 0.02).all()
    assert (counts[0, 2:] > 10).any()
    values = FAITHFULNESS_MEASURES["normalized_infidelity"].compute(found).reshape(2, 4)
    for row in range(4):
        index = torch.tensor([row])
        one = batch.rows(index)
        part = scores[:, index, : one.mask.shape[1]]
        alone = ErasureEvaluator(error=0.02, samples=10)(model, one, target[index], part)
        assert alone.removal_counts is not None
        assert alone.removal_counts.tolist() == counts[:, row].tolist()
        again = FAITHFULNESS_MEASURES["normalized_infidelity"].compute(alone)
        assert again.tolist() == pytest.approx(values[:, row].tolist(), abs=1e-9)
    # Of a text of nine units all 512 removals are the truth; each is read by itself.
    units, whole = batch.content_mask[1].nonzero().flatten().tolist(), found.full_output[1].item()
    sums, changes = [], []
    for number in range(512):
        out = [unit for bit, unit in enumerate(units) if number >> bit & 1]
        sums.append(scores[0, 1, out].sum().item())
        changes.append(whole - read(model, batch, 1, set(units) - {*out})[1])
    along = max(0.0, float(np.dot(sums, changes)))
    exact = 1 - along**2 / float(np.dot(sums, sums)) / float(np.dot(changes, changes))
    assert values[0, 1].item() == pytest.approx(exact, abs=4 * errors[0, 1].item() + 1e-9)


def test_an_error_out_of_reach_ends_at_the_largest_number_of_removals_and_is_exact_for_short_texts() -> None:
    model, batch = recurrent(), random_texts((5, 12))
    scores = torch.randn(1, *batch.mask.shape, generator=Generator().manual_seed(3), dtype=torch.float64)
    found = ErasureEvaluator(error=1e-6)(model, batch, torch.tensor([0, 1]), scores)
    assert found.removal_counts is not None
    assert found.removal_counts.tolist() == [32, MAX_REMOVALS]
    errors = normalized_infidelity_error(found)
    assert errors[0] == 0
    assert 1e-6 < errors[1] < 0.02


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_pairs_and_images_are_measured_and_other_rows_change_nothing(family: str) -> None:
    model, batch = tiny(family), batch_of(family)
    target = model(batch).logits.argmax(1)
    scores = Random()(model, batch, target).scores
    evidence = ErasureEvaluator(steps=4, samples=3)(model, batch, target, scores.unsqueeze(0))
    with torch.no_grad():
        whole = model.task.probabilities(model(batch).logits).amax(1)
    assert torch.allclose(evidence.deletion_outputs[:, 0], whole)
    assert torch.allclose(evidence.insertion_outputs[:, -1], whole)
    assert torch.allclose(evidence.deletion_outputs[:, -1], evidence.insertion_outputs[:, 0])
    one = batch.rows(torch.tensor([2]))
    alone = ErasureEvaluator(steps=4, samples=3)(model, one, target[2:], scores[2:, : one.mask.shape[1]].unsqueeze(0))
    for curve in (
        "deletion_outputs",
        "insertion_outputs",
        "removal_outputs",
        "comprehensiveness_outputs",
        "sufficiency_outputs",
    ):
        assert torch.allclose(getattr(alone, curve)[0], getattr(evidence, curve)[2])


def test_the_truth_about_an_additive_model_has_the_values_that_its_weights_say() -> None:
    model, batch = LinearBagOfWords.random(Regression()).double().eval(), random_texts((10, 20))
    target = torch.zeros(2, dtype=torch.int64)
    truth = model.ground_truth(batch, target)
    evidence = ErasureEvaluator(steps=20)(model, batch, target, truth.scores.unsqueeze(0))
    found = {name: measure.compute(evidence) for name, measure in FAITHFULNESS_MEASURES.items()}
    for row, units in enumerate((10, 20)):
        weights = sorted(truth.scores[row, 1 : units + 1].tolist(), reverse=True)
        falls = [sum(weights[: math.ceil(share * units)]) for share in AOPC_FRACTIONS]
        total = sum(weights)
        assert found["aopc_comprehensiveness"][row].item() == pytest.approx(sum(falls) / 5)
        assert found["aopc_sufficiency"][row].item() == pytest.approx(total - sum(falls) / 5)
        curve = [total - sum(weights[:count]) for count in range(units + 1)]
        shares = [count / units for count in range(units + 1)]
        assert found["deletion_auc"][row].item() == pytest.approx(auc(shares, curve))
        assert found["insertion_auc"][row].item() == pytest.approx(total - auc(shares, curve))
    assert found["monotonicity"].tolist() == pytest.approx([1.0, 1.0])
    assert found["normalized_infidelity"].tolist() == pytest.approx([0.0, 0.0], abs=1e-9)
    assert found["decision_flip"].isnan().all()


RANGES = {
    "aopc_comprehensiveness": (-1.0, 1.0),
    "aopc_sufficiency": (-1.0, 1.0),
    "decision_flip": (0.0, 1.0),
    "deletion_auc": (0.0, 1.0),
    "insertion_auc": (0.0, 1.0),
    "monotonicity": (-1.0, 1.0),
    "normalized_infidelity": (0.0, 1.0),
}


def test_measures_of_probabilities_lie_in_their_ranges() -> None:
    model, batch = recurrent(), random_texts(range(2, 22))
    target = torch.arange(20) % 2
    scores = torch.randn(3, *batch.mask.shape, generator=Generator().manual_seed(5))
    evidence = ErasureEvaluator()(model, batch, target, scores)
    for measure in FAITHFULNESS_MEASURES.values():
        values = measure.compute(evidence)
        defined = values[~values.isnan()]
        assert len(defined) >= 40
        low, high = RANGES[measure.name]
        assert ((defined >= low - 1e-9) & (defined <= high + 1e-9)).all()


@dataclass(frozen=True)
class Opposite:
    """Leaving one out turned round: what matters most comes last."""

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        found = LeaveOneOut("logit")(model, batch, target)
        return Attribution(-found.scores, found.mask)


SUBJECT = subject(epochs=8, count=30)
METHODS = (RawAttention(), LeaveOneOut("logit"), Opposite())
TRIAL = Faithfulness(SUBJECT, METHODS, steps=10, samples=8)


@pytest.fixture(scope="module")
def table(workspace: Workspace) -> pd.DataFrame:
    return workspace.get(TRIAL).table


def test_there_is_a_row_for_each_instance_and_method_and_random_scores_stand_last(table: pd.DataFrame) -> None:
    assert len(table) == 30 * 4
    assert not table.duplicated(["uid", "method"]).any()
    names = table.drop_duplicates("place").sort_values("place")
    assert names["method"].tolist() == ["attention", "leave-one-out(logit)", "opposite", "random"]
    assert names["control"].tolist() == [False, False, False, True]
    assert set(FAITHFULNESS_MEASURES) <= set(table.columns)


def test_rows_are_what_the_measures_say_of_the_stored_scores(table: pd.DataFrame, workspace: Workspace) -> None:
    trained = SUBJECT.restore(workspace)
    whole = trained.batch("test")
    stored = workspace.get(AttributionTable(SUBJECT, RawAttention())).table.set_index("uid")
    rows = table[table["method"] == "attention"].set_index("uid")
    for row in (0, 11, 29):
        batch, uid = whole.rows(torch.tensor([row])), whole.uids[row]
        scores = torch.tensor([stored.loc[uid, "scores"]], dtype=torch.float64)
        target = torch.tensor(rows.loc[[uid], "predicted"].tolist())
        for name in ("aopc_comprehensiveness", "aopc_sufficiency", "normalized_infidelity", "insertion_auc"):
            metric = FaithfulnessMetric(FAITHFULNESS_MEASURES[name], ErasureEvaluator(steps=10, samples=8))
            found = metric(trained.model, batch, target, Attribution(scores, batch.content_mask))
            assert rows.loc[uid, name] == pytest.approx(found.item(), abs=1e-6)


def excess(summary: pd.DataFrame, measure: str, method: str) -> Statistic:
    found = find_statistic(summary, excess_metric(measure), method)
    assert found is not None
    return found


def test_excess_is_the_mean_gain_over_random_and_its_interval_that_of_resampled_instances(table: pd.DataFrame) -> None:
    summary = Faithfulness.summary(table)
    wide = table.pivot(index="uid", columns="method", values="aopc_sufficiency")
    gain = wide["random"] - wide["attention"]
    assert value_of(summary, "aopc_sufficiency", "attention") == pytest.approx(wide["attention"].mean())
    found = excess(summary, "aopc_sufficiency", "attention")
    assert found.value == pytest.approx(gain.mean())
    drawn = stats.bootstrap((gain.to_numpy(),), np.mean, n_resamples=4000, method="percentile", rng=0)
    assert (found.low, found.high) == pytest.approx(tuple(drawn.confidence_interval), abs=0.15 * gain.std())
    assert found.n == 30
    assert find_statistic(summary, excess_metric("aopc_sufficiency"), "random") is None


def test_infidelity_as_peers_define_it_is_reported_and_not_judged(table: pd.DataFrame, workspace: Workspace) -> None:
    """The mean squared difference of scores and changes; scores of another scale would be judged by their scale."""
    summary = Faithfulness.summary(table)
    rows = table[table["method"] == "attention"].set_index("uid")
    found = find_statistic(summary, "infidelity", "attention")
    assert found is not None
    assert [found.value, found.n] == pytest.approx([rows["infidelity"].mean(), 30])
    assert find_statistic(summary, excess_metric("infidelity"), "attention") is None
    trained = SUBJECT.restore(workspace)
    batch = trained.batch("test").rows(torch.tensor([4]))
    stored = workspace.get(AttributionTable(SUBJECT, RawAttention())).table.set_index("uid")
    scores = torch.tensor([stored.loc[batch.uids[0], "scores"]])
    target = torch.tensor(rows.loc[list(batch.uids), "predicted"].tolist())
    outputs = ErasureEvaluator(steps=10, samples=8)(trained.model, batch, target, scores.double().unsqueeze(0))
    squares = [
        (float(scores[0, removed].sum()) - float(whole - after)) ** 2
        for removed, whole, after in zip(
            outputs.removal_masks[0], outputs.full_output.expand(8), outputs.removal_outputs[0], strict=True
        )
    ]
    assert rows.loc[batch.uids[0], "infidelity"] == pytest.approx(sum(squares) / 8, abs=1e-6)


def test_what_the_model_needs_beats_random_and_its_reverse_is_worse(table: pd.DataFrame) -> None:
    summary = Faithfulness.summary(table)
    for name in FAITHFULNESS_MEASURES:
        assert excess(summary, name, "leave-one-out(logit)").low > 0
        assert excess(summary, name, "opposite").high < 0
    verdicts = {each.method: each.verdict for each in Faithfulness.findings(summary)}
    assert verdicts.keys() == {"attention", "leave-one-out(logit)", "opposite"}
    assert verdicts["leave-one-out(logit)"] is Verdict.SUPPORTED
    assert verdicts["opposite"] is Verdict.NOT_SUPPORTED
    assert "on 7 of 7 measures" in Faithfulness.interpretation(summary)


def test_undefined_numbers_are_left_out_of_means_and_counts(table: pd.DataFrame) -> None:
    holed = table.copy()
    first = (holed["uid"] == "test-0") & (holed["method"] == "attention")
    holed.loc[first, "monotonicity"] = NAN
    summary = Faithfulness.summary(holed)
    rows = holed[(holed["method"] == "attention") & ~first]
    defined = int(math.isfinite(table.loc[first, "monotonicity"].item()))
    before = excess(Faithfulness.summary(table), "monotonicity", "attention")
    assert excess(summary, "monotonicity", "attention").n == before.n - defined
    assert value_of(summary, "monotonicity", "attention") == pytest.approx(rows["monotonicity"].mean())


def test_few_texts_give_no_interval_and_no_verdict(table: pd.DataFrame) -> None:
    few = table[table["uid"].isin([f"test-{number}" for number in range(9)])]
    summary = Faithfulness.summary(few)
    found = excess(summary, "deletion_auc", "attention")
    assert math.isnan(found.low)
    assert math.isfinite(found.value)
    assert {each.verdict for each in Faithfulness.findings(summary)} == {Verdict.UNDECIDED}


def test_figures_show_curves_from_the_whole_text_and_gains_with_their_intervals(table: pd.DataFrame) -> None:
    deletion, insertion, *bars = Faithfulness.figures(table)
    assert isinstance(deletion, Lines)
    assert isinstance(insertion, Lines)
    names = [values.name for _, values in deletion.curves]
    assert names == ["attention", "leave-one-out(logit)", "opposite", "random (control)"]
    # All curves begin with the whole text and end with none of it.
    assert len({round(values.values[0], 9) for _, values in deletion.curves}) == 1
    assert len({round(values.values[-1], 9) for _, values in deletion.curves}) == 1
    assert deletion.curves[0][1].values[0] == pytest.approx(insertion.curves[0][1].values[-1])
    summary = Faithfulness.summary(table)
    assert isinstance(bars[0], Bars)
    assert bars[0].labels == ("attention", "leave-one-out(logit)", "opposite")
    assert bars[0].series[0].values[1] == excess(summary, "aopc_comprehensiveness", "leave-one-out(logit)").value
    interval = excess(summary, "aopc_comprehensiveness", "opposite")
    assert [end.values[2] for end in bars[0].intervals[0]] == [interval.low, interval.high]


def test_a_random_method_is_not_its_own_opponent_and_other_seeds_are(workspace: Workspace) -> None:
    trial = Faithfulness(SUBJECT, (Random(), Random(1)), steps=4, samples=2)
    found = workspace.get(trial)
    assert found.table["method"].drop_duplicates().tolist() == ["random(seed-1)", "random"]
    summary = trial.summary(found.table)
    assert excess(summary, "aopc_comprehensiveness", "random(seed-1)").low < 0
    assert excess(summary, "deletion_auc", "random(seed-1)").high > 0
    alone = workspace.get(Faithfulness(SUBJECT, (Random(),), steps=4, samples=2)).table
    assert Faithfulness.findings(Faithfulness.summary(alone)) == ()


def test_a_trial_with_an_error_tells_what_its_removals_took_and_reached(
    workspace: Workspace, table: pd.DataFrame
) -> None:
    found = workspace.get(replace(TRIAL, error=0.05))
    assert (found.table["normalized_infidelity_error"].fillna(0.0) <= 0.05).all()
    assert found.table["accurate"].all()
    others = [name for name in table.columns if "infidelity" not in name]
    pd.testing.assert_frame_equal(found.table[others], table[others])
    assert not {"removals", "normalized_infidelity_error", "accurate"} & {*table.columns}
    texts = found.table.drop_duplicates("uid")
    assert value_of(found.summary, "removals") == pytest.approx(texts["removals"].mean())
    largest = found.table[found.table["method"] == "opposite"]["normalized_infidelity_error"].max()
    assert value_of(found.summary, "normalized_infidelity_error", "opposite") == pytest.approx(largest)
    assert value_of(found.summary, "inaccurate") == 0
    before = Faithfulness.interpretation(found.summary)
    late = found.table.assign(accurate=found.table["uid"] != "test-4")
    summary = Faithfulness.summary(late)
    assert value_of(summary, "inaccurate") == 1
    assert "1 of 30 texts" in Faithfulness.interpretation(summary).removeprefix(before)


@dataclass(frozen=True)
class Odd:
    """Attention, but for one word of one text."""

    value: float

    def __call__(self, model: Model, batch: Batch, target: Tensor) -> Attribution:
        found = RawAttention()(model, batch, target)
        scores = found.scores.clone()
        scores[[uid == "test-3" for uid in batch.uids], 1] = self.value
        return Attribution(scores, found.mask)


@pytest.mark.parametrize("value", [math.inf, NAN])
def test_a_score_that_is_no_finite_number_is_refused_with_the_name_of_its_method(
    value: float, workspace: Workspace
) -> None:
    trial = Faithfulness(SUBJECT, (RawAttention(), Odd(value)), steps=2, samples=2)
    with pytest.raises(UserError, match=r"^odd.* gave 1 scores of 'test-3' that are not finite"):
        workspace.get(trial)


@pytest.mark.parametrize("remove", ["pad", "unk", "zero"])
def test_other_ways_to_take_units_away_give_other_numbers_for_the_same_texts(
    remove: str, workspace: Workspace, table: pd.DataFrame
) -> None:
    trial = replace(TRIAL, baseline=remove, limit=12)  # type: ignore[arg-type]
    found = workspace.get(trial)
    assert (found.notes["n"], found.notes["of"]) == (12, 30)
    both = found.table.merge(table, on=["uid", "method"], suffixes=("", "_deleted"))
    assert len(both) == 12 * 4
    assert not np.allclose(both["aopc_comprehensiveness"], both["aopc_comprehensiveness_deleted"])


def test_methods_without_signs_are_named_and_the_signed_form_of_leaving_one_out_is_not(
    table: pd.DataFrame, workspace: Workspace
) -> None:
    def unsigned(rows: pd.DataFrame) -> list[str]:
        return [each.method for each in select_statistics(Faithfulness.summary(rows), "unsigned")]

    assert unsigned(table) == ["attention"]
    trial = Faithfulness(SUBJECT, (RawAttention(), LeaveOneOut("distribution")), steps=4, samples=2)
    assert unsigned(workspace.get(trial).table) == ["attention", "leave-one-out(distribution)"]


def test_methods_with_signs_rank_evidence_against_the_prediction_last(workspace: Workspace) -> None:
    assert signed_methods((RawAttention(), LeaveOneOut("distribution"), LeaveOneOut("logit"))) == (
        RawAttention(),
        LeaveOneOut("logit"),
    )
    (method,) = signed_methods((LeaveOneOut("distribution"),))
    trained = SUBJECT.restore(workspace)
    batch = trained.batch("test")
    with torch.no_grad():
        whole = trained.model.task.probabilities(trained.model(batch).logits.double())
        left = trained.model.task.probabilities(leave_one_out_logits(trained.model, batch).double())
    target = whole.argmax(1)
    sizes, losses = (each(trained.model, batch, target).scores for each in (LeaveOneOut("distribution"), method))
    falls = [whole[row, label] - left[row, :, label] for row, label in enumerate(target.tolist())]
    fall = torch.stack(falls).masked_fill(~batch.deletable_mask, 0.0)
    assert torch.allclose(sizes, fall.abs(), atol=1e-6)
    clear = fall.abs() > 1e-5
    assert torch.equal(losses.sign()[clear], fall.sign()[clear])
    assert torch.equal(losses.argmax(1), fall.argmax(1))
    # By magnitude, a word that counts against the prediction would come first.
    assert (fall.gather(1, sizes.argmax(1, keepdim=True)) < 0).any()


def test_mistakes_are_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="twice"):
        Faithfulness(SUBJECT, (RawAttention(), RawAttention()))
    with pytest.raises(UserError, match="at least one method"):
        Faithfulness(SUBJECT, ())
    with pytest.raises(UserError, match="mask token"):
        Workspace(tmp_path).get(Faithfulness(subject(count=8, epochs=2), (RawAttention(),), baseline="mask"))


@pytest.mark.parametrize(
    ("bounds", "verdict", "reason"),
    [
        (((0.1, 0.3), (0.1, 0.3)), Verdict.SUPPORTED, ""),
        (((0.1, 0.3), (NAN, NAN)), Verdict.SUPPORTED, ""),
        (((0.1, 0.3), (0.0, 0.2)), Verdict.UNDECIDED, "better than random only on some measures"),
        (((0.1, 0.3), (-0.2, -0.1)), Verdict.UNDECIDED, "better than random only on some measures"),
        (((-0.2, -0.1), (0.0, 0.2)), Verdict.NOT_SUPPORTED, ""),
        (((-0.2, 0.0), (0.0, 0.2)), Verdict.UNDECIDED, "not clearly different from random"),
    ],
)
def test_a_method_is_faithful_that_is_better_than_random_on_every_measure(
    bounds: tuple[tuple[float, float], ...], verdict: Verdict, reason: str
) -> None:
    names = [excess_metric(name) for name in FAITHFULNESS_MEASURES]
    rows = [Statistic(name, "lime", "", 0.1, low, high) for name, (low, high) in zip(names, bounds, strict=False)]
    (finding,) = Faithfulness.findings(summary_frame(rows))
    assert (finding.method, finding.verdict, finding.reason) == ("lime", verdict, reason)


def test_the_words_on_faithfulness_name_the_methods_without_signs() -> None:
    rows = [Statistic(excess_metric("deletion_auc"), "lime", "", 0.1, 0.05, 0.2)]
    unsigned = Statistic("unsigned", "attention", value=1.0)
    with_signs, without = (Faithfulness.interpretation(summary_frame(each)) for each in (rows, [*rows, unsigned]))
    assert without.startswith(with_signs)
    assert "attention" in without.removeprefix(with_signs)
    assert "lime" in with_signs
