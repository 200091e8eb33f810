"""The ground-truth trial: its numbers by hand, and methods on models whose ground truth is known."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest
import torch

from heedful.attributions.attention import RawAttention
from heedful.attributions.controls import Random
from heedful.attributions.gradient import Gradient
from heedful.attributions.perturbation import LeaveOneOut
from heedful.data.embeddings import RandomEmbeddings
from heedful.data.synthetic import GroundTruthCorpus, GroundTruthEmbeddings
from heedful.figures import Bars
from heedful.measures.erasure import FAITHFULNESS_MEASURES
from heedful.models.attentive import Additive, Attentive, WordWeightSum
from heedful.models.encoders import Average
from heedful.results import Statistic, Verdict, find_statistic, summary_frame, value_of
from heedful.store.workspace import Workspace
from heedful.tasks import BinaryClassification
from heedful.training.model_recipe import LoadedModel
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam, EpochSelection, Training
from heedful.trials import ground_truth
from heedful.trials.adversarial_attention import AdversarialWeights
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.ground_truth import (
    GroundTruth,
    compare_with_control,
    compare_with_controls,
    ground_truth_table,
    measure_verdicts,
    recovery_scores,
)
from heedful.types import Example, UserError
from tests.games import Game, words
from tests.tiny import Sentences, Shortcut, subject

ADDITIVE = GroundTruthCorpus("additive", train=100, dev=30, test=60)
AS_IT_IS = Training(1, 32, Adam(lr=0.0, weight_decay=0.0), EpochSelection())


def adding() -> TrainedModel:
    return TrainedModel(
        ADDITIVE, ADDITIVE.tokenization, WordWeightSum(), AS_IT_IS, embeddings=GroundTruthEmbeddings(ADDITIVE)
    )


def test_recovery_by_hand() -> None:
    found = recovery_scores(np.array([0.1, -5.0, 0.2, 0.3]), np.array([0.0, 1.0, 0.0, 1.0]))
    assert found["precision"] == 1.0
    assert found["auc"] == 1.0
    assert math.isnan(found["tau"])
    half = recovery_scores(np.array([0.9, 0.1, 0.2, 0.8]), np.array([0.0, 0.0, 1.0, 1.0]))
    assert half["precision"] == 0.5
    assert half["auc"] == 0.5
    tied = recovery_scores(np.zeros(4), np.array([1.0, 0.0, 0.0, 0.0]))
    assert tied["precision"] == 0.25
    assert tied["auc"] == 0.5


def test_where_every_word_adds_something_the_order_is_judged_and_the_heaviest_three_are_looked_for() -> None:
    truth = np.array([3.0, -2.0, 1.0, -0.5, 0.1])
    assert recovery_scores(truth, truth)["signed_tau"] == pytest.approx(1.0)
    reverse = recovery_scores(-truth, truth)
    assert (reverse["signed_tau"], reverse["tau"], reverse["precision"]) == pytest.approx((-1.0, 1.0, 1.0))
    assert recovery_scores(np.array([0.0, 0.1, 0.2, 3.0, 4.0]), truth)["precision"] == pytest.approx(1 / 3)


def test_the_tally_is_the_sum_of_the_words_own_weights(workspace: Workspace) -> None:
    trained = adding().restore(workspace)
    batch = trained.batch("test")
    logits = trained.model(batch).logits[:, 0]
    truth = torch.tensor([sum(example.ground_truth or ()) for example in trained.examples("test")])
    torch.testing.assert_close(logits.detach(), truth, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_slopes_and_deletions_recover_what_each_word_adds_and_random_scores_do_not(workspace: Workspace) -> None:
    methods = (Gradient(), LeaveOneOut(output="logit"), RawAttention())
    table = workspace.get(GroundTruth(adding(), methods)).table
    summary = GroundTruth.summary(table)
    assert value_of(summary, "tau", "gradient") > 0.99
    assert value_of(summary, "signed_tau", "gradient") > 0.99
    assert value_of(summary, "tau", "leave-one-out(logit)") > 0.99
    assert abs(value_of(summary, "tau", "random")) < 0.15
    verdicts = {each.method: each.verdict for each in GroundTruth.findings(summary)}
    assert verdicts["gradient"] is verdicts["leave-one-out(logit)"] is Verdict.SUPPORTED
    assert verdicts["attention"] is not Verdict.SUPPORTED
    assert "random" not in verdicts


@pytest.mark.slow
def test_texts_whose_deciding_word_is_not_used_do_not_count(workspace: Workspace) -> None:
    corpus = Shortcut(Sentences(80))
    base = replace(
        subject(epochs=6), corpus=corpus, architecture=Attentive(Average(8), Additive()), embeddings=RandomEmbeddings(8)
    )
    table = workspace.get(GroundTruth(base, (Gradient(),))).table
    summary = GroundTruth.summary(table)
    # The sentences have two deciding words of their own, so that some texts are decided by those.
    assert 0 < value_of(summary, "used") <= value_of(summary, "texts") == 80
    assert value_of(summary, "precision", "gradient") > value_of(summary, "precision", "random") + 0.3


def test_methods_of_one_name_are_refused_and_other_random_scores_are_on_trial() -> None:
    with pytest.raises(UserError, match="twice"):
        GroundTruth(adding(), (Gradient(), Gradient()))
    assert list(GroundTruth(adding(), (Gradient(), Random(seed=3), Random())).attribution_tables) == [
        "gradient",
        "random(seed-3)",
        "adversarial-attention",
        "random",
    ]


def test_without_a_known_truth_there_is_no_trial(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="no ground truth"):
        workspace.get(GroundTruth(subject(), (Gradient(),)))
    with pytest.raises(UserError, match="at least one method"):
        GroundTruth(subject(), ())


def attributed(scores: list[list[float]], words: list[list[int]], predicted: list[int]) -> pd.DataFrame:
    """A table of attributions for the texts a, b, ..."""
    scored = [[word >= 0 for word in row] for row in words]
    rows = {"uid": list("abcdefgh")[: len(scores)], "scores": scores, "words": words, "scored": scored}
    return pd.DataFrame({**rows, "predicted": predicted})


def known(*truths: tuple[float, ...]) -> dict[str, Example]:
    return {
        uid: Example(uid, ("some text",), 0, ground_truth=truth) for uid, truth in zip("abcdefgh", truths, strict=False)
    }


def test_the_truth_speaks_for_what_is_predicted_and_a_word_shares_it_among_its_pieces() -> None:
    table = attributed([[0.0] * 4] * 2, [[-1, 0, 0, 1]] * 2, [1, 0])
    found = ground_truth_table(table, known((2.0, -1.0), (2.0, -1.0)))
    assert found["scores"].tolist() == [[0.0, 1.0, 1.0, -1.0], [0.0, -1.0, -1.0, 1.0]]


def test_a_truth_without_signs_supports_the_predicted_class() -> None:
    table = attributed([[0.0] * 2] * 2, [[0, 1]] * 2, [1, 0])
    assert ground_truth_table(table, known((1.0, 0.0), (0.0, 1.0)))["scores"].tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_a_comparison_by_hand_goes_by_the_measures_direction_and_leaves_out_what_is_undefined() -> None:
    truth, control = np.array([0.5, 0.4, math.nan, 0.2]), np.array([0.1, 0.4, 0.0, 0.5])
    excess, share = compare_with_control("aopc_comprehensiveness", truth, control, "random")
    assert (excess.metric, share.metric, excess.method) == (
        "above_random",
        "above_random_share",
        "aopc_comprehensiveness",
    )
    assert (excess.n, share.value) == (3, 0.5)
    assert excess.value == pytest.approx((0.4 + 0.0 - 0.3) / 3)
    assert math.isnan(excess.low)
    lower, _ = compare_with_control("aopc_sufficiency", truth, control, "random")
    assert lower.value == pytest.approx(-excess.value)
    assert compare_with_control("agreement", truth, control, "random")[0].value == excess.value
    many, share = compare_with_control("agreement", np.linspace(1, 2, 30), np.zeros(30), "random")
    assert (many.n, share.value) == (30, 1.0)
    assert 1.3 < many.low < many.value < many.high < 1.7
    assert compare_with_control("agreement", truth[:0], control[:0], "random")[0].n == 0


def test_a_control_that_names_the_relevant_words_itself_is_not_wrong_there() -> None:
    rows = [
        {"uid": uid, "method": method, "used": True, "precision": precision, "agreement": value}
        for uid, method, precision, value in (
            ("a", "truth", 1.0, 0.3),
            ("b", "truth", 1.0, 0.3),
            ("a", "random", 1.0, 0.9),
            ("b", "random", 0.5, 0.1),
        )
    ]
    excess, share = compare_with_controls(pd.DataFrame(rows))
    assert (excess.metric, excess.method, excess.n, share.value) == ("above_random", "agreement", 1, 1.0)
    assert excess.value == pytest.approx(0.2)
    assert list(compare_with_controls(pd.DataFrame(rows[2:]))) == []


@pytest.mark.slow
def test_on_a_model_that_adds_every_measure_of_faithfulness_puts_the_truth_first(workspace: Workspace) -> None:
    trial = GroundTruth(adding(), (RawAttention(), LeaveOneOut(output="logit")))
    table = workspace.get(trial).table
    assert list(trial.attribution_tables)[-2:] == ["adversarial-attention", "random"]
    assert set(table["method"]) == {*trial.attribution_tables, "truth"}
    assert table[table["method"] == "leave-one-out(logit)"]["deletion_auc"].isna().all()
    summary = GroundTruth.summary(table)
    assert find_statistic(summary, "precision", "truth") is None
    assert value_of(summary, "precision", "adversarial-attention") < 0.5
    found = measure_verdicts(summary)
    above_both = dict.fromkeys(("random", "adversarial"), Verdict.SUPPORTED)
    assert all(found[name] == above_both for name in (*FAITHFULNESS_MEASURES, "agreement"))
    # Attention is uniform here: nothing can agree with it.
    assert set(found["agreement_with_attention"].values()) == {Verdict.UNDECIDED}
    verdicts = {each.method: each.verdict for each in GroundTruth.findings(summary)}
    assert verdicts["deletion_auc"] is Verdict.SUPPORTED
    assert verdicts["agreement_with_attention"] is Verdict.UNDECIDED
    assert "adversarial-attention" not in verdicts
    *_, bars = GroundTruth.figures(table)
    assert isinstance(bars, Bars)
    assert [series.name for series in bars.series] == ["above random", "above adversarial"]
    assert bars.series[0].values[0] == value_of(summary, "above_random_share", "aopc_comprehensiveness") == 1.0


@pytest.mark.slow
def test_what_each_measure_says_of_the_truth_is_what_the_trial_of_faithfulness_would_say(workspace: Workspace) -> None:
    table = workspace.get(GroundTruth(adding(), (RawAttention(), LeaveOneOut(output="logit")))).table
    faithful = workspace.get(Faithfulness(adding(), (AdversarialWeights(),))).table
    for name in ("adversarial-attention", "random"):
        ours, theirs = (each[each["method"] == name].set_index("uid").sort_index() for each in (table, faithful))
        for measure in FAITHFULNESS_MEASURES:
            assert ours[measure].tolist() == pytest.approx(theirs[measure].tolist(), abs=1e-6, nan_ok=True)


def test_a_measure_that_does_not_separate_the_truth_from_a_control_is_not_supported() -> None:
    rows = [Statistic("texts", value=40), Statistic("used", value=40)]
    rows.append(Statistic("precision", "random", "", 0.2, 0.1, 0.3))
    bounds = {"agreement": (0.2, -0.1), "deletion_auc": (-0.2, -0.1), "normalized_infidelity": (0.2, 0.1)}
    for measure, lows in bounds.items():
        for metric, low in zip(("above_random", "above_adversarial"), lows, strict=True):
            rows.append(Statistic(metric, measure, "", low + 0.15, low, low + 0.3))
    summary = summary_frame(rows)
    assert {each.method: each.verdict for each in GroundTruth.findings(summary)} == {
        "agreement": Verdict.NOT_SUPPORTED,
        "deletion_auc": Verdict.NOT_SUPPORTED,
        "normalized_infidelity": Verdict.SUPPORTED,
    }
    assert measure_verdicts(summary)["agreement"] == {
        "random": Verdict.SUPPORTED,
        "adversarial": Verdict.NOT_SUPPORTED,
    }


def test_a_word_is_used_where_the_prediction_changes_by_02_without_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = words((1, 2), (2, 1), (1, 1))
    truths = dict(zip(texts.uids, ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)), strict=True))
    examples = {uid: Example(uid, ("some text",), 0, ground_truth=truth) for uid, truth in truths.items()}

    def used(probability: float) -> list[bool]:
        """The relevant word raises the probability of class 1 from one half to this; the last text has no other."""
        weight = math.log(probability / (1 - probability))
        model = Game(torch.tensor([0.0, weight, 0.0]), task=BinaryClassification())
        loaded = cast("LoadedModel", SimpleNamespace(model=model, batch=lambda split: texts))
        found = ground_truth._uses_relevant_words(loaded, examples, None, workspace)
        return [found[uid] for uid in texts.uids]

    assert used(0.69) == [False, False, True]
    assert used(0.71) == [True, True, True]
    changed = float(BinaryClassification().probabilities(torch.tensor([[math.log(3)]]).double())[0, 1]) - 0.5
    monkeypatch.setattr(ground_truth, "USED_THRESHOLD", changed)
    assert used(0.75) == [True, True, True]
    monkeypatch.setattr(ground_truth, "USED_THRESHOLD", changed + 1e-9)
    assert used(0.75) == [False, False, True]


def test_ties_with_a_control_count_half() -> None:
    _, share = compare_with_control("agreement", np.ones(3), np.array([0.0, 1.0, 1.0]), "random")
    assert share.value == pytest.approx(2 / 3)
    assert share.n == 3


def test_recovery_compares_scores_for_class_1_with_the_truth() -> None:
    table = attributed([[3.0, -2.0, 1.0], [-3.0, 2.0, -1.0]], [[0, 1, 2]] * 2, [1, 0])
    rows = dict(ground_truth._recovery_rows(table, known((3.0, -2.0, 1.0), (3.0, -2.0, 1.0))))
    assert [rows[uid]["signed_tau"] for uid in "ab"] == [pytest.approx(1.0)] * 2


def test_the_words_on_ground_truth_begin_with_the_texts_that_count() -> None:
    rows = [Statistic("texts", value=40.0), Statistic("precision", "random", "", 0.2, n=30)]
    some, none = (GroundTruth.interpretation(summary_frame([*rows, Statistic("used", value=n)])) for n in (30.0, 0.0))
    for number in ("30", "40", "0.20"):
        assert number in some
    assert not any(digit in none for digit in "0123456789")
