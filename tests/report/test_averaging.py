"""Several seeds told as one: verdicts hold on every seed, warnings of every seed are told, promises are checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd
import pytest

from heedful.attributions.attention import RawAttention
from heedful.attributions.deeplift import DeepLift
from heedful.attributions.integrated_gradients import GradientShap, IntegratedGradients
from heedful.store.workspace import IndexEntry, Workspace
from heedful.models.attentive import Additive, Sparsemax
from heedful.models.encoders import BiLSTM
from heedful.models.attentive import Attentive
from heedful.training.attribution_tables import AttributionTable
from heedful.training.attribution_tables import completeness_error
from heedful.report import gathering
from heedful.report.averaging import combine_seeds, interval_caveat
from heedful.report.content import Section
from heedful.report.gathering import build_page
from heedful.report.runs import Run, finished_runs
from heedful.runner import run
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from tests.tiny import subject


def of_lime(low: float, high: float) -> dict[str, float]:
    """What the trial of faithfulness tells of one seed."""
    name = "deletion_auc.lime"
    return {f"excess.{name}": (low + high) / 2, f"low.{name}": low, f"high.{name}": high}


def test_one_seed_far_above_zero_does_not_carry_two_that_are_not() -> None:
    lows = (0.10, -0.04, -0.04)
    together = combine_seeds([of_lime(low, low + 0.1) for low in lows])
    assert together["low.deletion_auc.lime"] == -0.04
    assert together["high.deletion_auc.lime"] == pytest.approx(0.2)
    assert together["excess.deletion_auc.lime"] == pytest.approx(sum(lows) / 3 + 0.05)
    alike = combine_seeds([of_lime(low, low + 0.1) for low in (0.1, 0.02, 0.03)])


def test_a_number_that_the_first_seed_lacks_is_told_and_an_undefined_one_is_left_out_of_the_mean() -> None:
    found = combine_seeds([{"a": 1.0}, {"a": math.nan, "b": 2.0}, {"a": 4.0, "b": 3.0}])
    assert found == {"a": 2.5, "b": 2.5}
    assert math.isnan(combine_seeds([{"a": math.nan}])["a"])


def test_verdicts_of_several_seeds_are_said_to_hold_on_each_only_where_there_are_bounds() -> None:
    words = "A verdict that rests on an interval counts only where it holds on each of the 2 seeds."
    assert interval_caveat([{"above_random_low.auc": 0.1}] * 2) == words
    assert interval_caveat([{"above_random_low.auc": 0.1}]) == ""
    assert interval_caveat([{"lowest": 0.0, "mean.low": 1.0}] * 2) == ""


def test_what_is_missed_is_a_share_of_the_mean_difference() -> None:
    table = pd.DataFrame({"scores": [[1.0, 1.5], [-1.0, -1.0]], "gap": [0.5, 0.0]})
    assert completeness_error(table) == {"missed": {"largest": 0.25, "mean": 0.125}}
    assert completeness_error(table.drop(columns="gap")) == {}
    nothing = pd.DataFrame({"scores": [[0.25], [0.0]], "gap": [0.25, 0.0]})
    assert completeness_error(nothing) == {"missed": {"largest": 1.0, "mean": 0.5}}
    assert completeness_error(table.assign(gap=math.nan)) == {"missed": {"largest": None, "mean": None}}


METHODS = (RawAttention(), DeepLift(), DeepLift(output="logit"), IntegratedGradients(), GradientShap())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Two seeds of a model whose attention no rule of DeepLIFT covers, and one of a model that it does cover."""
    found = Workspace(tmp_path_factory.mktemp("workspace"))
    sparse = replace(subject(), architecture=Attentive(BiLSTM(4), Additive(), Sparsemax()))
    trials = [Faithfulness(replace(sparse, seed=seed), METHODS, limit=12) for seed in (0, 1)]
    run([*trials, Agreement(subject(), METHODS, limit=12)], found)
    return found


def section(workspace: Workspace, trial: str) -> Section:
    (found,) = [each for chapter in build_page(workspace).papers for each in chapter.sections if each.experiment == trial]
    return found


def test_a_method_that_is_not_complete_is_named_with_what_it_misses_at_most(workspace: Workspace) -> None:
    sparse = replace(subject(), architecture=Attentive(BiLSTM(4), Additive(), Sparsemax()))
    largest = 0.0
    for seed in (0, 1):
        stored = workspace.get(AttributionTable(replace(sparse, seed=seed), DeepLift(), limit=12))
        shares = [abs(gap) for gap in stored.table["gap"]]
        differences = [abs(sum(row["scores"]) - row["gap"]) for _, row in stored.table.iterrows()]
        largest = max(largest, max(shares) / (sum(differences) / 12))
        assert isinstance(stored.notes["missed"], dict)
        assert stored.notes["missed"]["mean"] == pytest.approx(sum(shares) / sum(differences))
    warnings = [each for each in section(workspace, "faithfulness").warnings if "complete" in each]
    assert largest > 1e-3
    assert warnings[0] == (
        f"deep-lift is not complete on this model: it misses up to {100 * largest:.2g} % of the mean difference "
        "between a text and its reference, which its scores should add up to."
    )
    assert [each.split(" ")[0] for each in warnings][:2] == ["deep-lift", "deep-lift(logit)"]
    assert not any("shap" in each for each in warnings)


def test_complete_methods_are_not_warned_of(workspace: Workspace) -> None:
    told_of = section(workspace, "agreement")
    assert told_of.warnings == ("Measured on 12 of 40 test instances.",)


def test_the_section_says_how_verdicts_of_two_seeds_are_reached(workspace: Workspace) -> None:
    found = section(workspace, "faithfulness")
    assert found.interpretation.endswith("counts only where it holds on each of the 2 seeds.")
    assert found.tables[0].caption == "Summary (mean of 2 seeds; of intervals, the outermost bounds)"
    assert [each for each in found.warnings if "instances" in each] == ["Measured on 12 of 40 test instances."]


def test_a_warning_of_the_second_seed_alone_is_told(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def altered(finished: Sequence[IndexEntry]) -> Iterator[Run]:
        for each in finished_runs(finished):
            notes = {**each.artefact.notes, **({"n": 11} if each.seed == 1 else {})}
            yield replace(each, artefact=replace(each.artefact, notes=notes))

    monkeypatch.setattr(gathering, "finished_runs", altered)
    told_of = [each for each in section(workspace, "faithfulness").warnings if "instances" in each]
    assert told_of == [f"Measured on {n} of 40 test instances." for n in (12, 11)]
