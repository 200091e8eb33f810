"""Claims of papers: the verdict of a number, of a model and of all models, and what each paper claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import pytest
from scipy import stats

from heedful.measures.intervals import share_interval, spread_interval
from heedful.papers import PAPERS
from heedful.papers.chapter import Result
from heedful.papers.claims import (
    CLAIM_VERDICTS,
    Criterion,
    Evidence,
    Extent,
    PaperClaim,
    cautious_difference,
    claim_table,
)
from heedful.papers.published import NumberKey
from heedful.results import Statistic, Verdict
from tests.papers.results import Number, named, plain, result
from tests.papers.test_attefa import ours as attefa
from tests.papers.test_scaffold_chapter import RIGHT, plausibility, simulability, student_rows

LEFT_OUT = "leave-one-out(distribution)"
NAN = math.nan


def verdicts(paper: str, *results: Result) -> dict[str, str]:
    """The verdict on each claim of a paper."""
    return {claim.name: CLAIM_VERDICTS[claim.judge(claim.find(results))] for claim in PAPERS[paper].claims}


def decided(paper: str, *results: Result) -> dict[str, str]:
    """The verdicts on the claims that were tested."""
    return {name: verdict for name, verdict in verdicts(paper, *results).items() if verdict != "not tested"}


@pytest.mark.parametrize(
    ("criterion", "value", "interval", "verdict"),
    [
        (Criterion("x", "below", 0.5), 0.4, (0.3, 0.49), Verdict.SUPPORTED),
        (Criterion("x", "below", 0.5), 0.4, (0.3, 0.5), Verdict.UNDECIDED),
        (Criterion("x", "below", 0.5), 0.6, (0.5, 0.7), Verdict.NOT_SUPPORTED),
        (Criterion("x", "below", 0.5), 0.5, (NAN, NAN), Verdict.NOT_SUPPORTED),
        (Criterion("x", "at most", 0.5), 0.5, (NAN, NAN), Verdict.SUPPORTED),
        (Criterion("x", "above", 0.0), 0.0, (0.0, 0.0), Verdict.NOT_SUPPORTED),
        (Criterion("x", "above", 0.0), 0.1, (-0.1, 0.3), Verdict.UNDECIDED),
        (Criterion("x", "above", 0.0), NAN, (NAN, NAN), Verdict.UNDECIDED),
        # A decimal difference has a rounding error: .83 - .822 is above .008.
        (Criterion("x", "at most", 0.008), 0.83 - 0.822, (NAN, NAN), Verdict.SUPPORTED),
        (Criterion("x", "below", 0.1, 0.5), 0.2, (NAN, NAN), Verdict.UNDECIDED),
        (Criterion("x", "below", 0.1, 0.5), 0.5, (NAN, NAN), Verdict.NOT_SUPPORTED),
        (Criterion("x", "above", 0.5, 0.1), 0.1, (NAN, NAN), Verdict.NOT_SUPPORTED),
    ],
)
def test_a_number_decides_by_its_interval(
    criterion: Criterion, value: float, interval: tuple[float, float], verdict: Verdict
) -> None:
    assert criterion.judge(Statistic("x", value=value, low=interval[0], high=interval[1])) is verdict


def claim(extent: Extent, *metrics: str) -> PaperClaim:
    """A claim that numbers are positive, measured on results whose trial is called "trial"."""

    def measure(results: Sequence[Result]) -> Evidence:
        return {
            one.corpus: tuple(Statistic(metric, value=one.value(metric) or NAN) for metric in metrics)
            for one in results
        }

    return PaperClaim(
        "positive",
        "Numbers are positive.",
        "table 1",
        {metric: Criterion(metric, "above", 0.0) for metric in metrics},
        measure,
        "anything",
        extent,
    )


@pytest.mark.parametrize(
    ("extent", "values", "verdict"),
    [
        ("all", (1, 1, 1), Verdict.SUPPORTED),
        ("all", (1, 1, -1), Verdict.NOT_SUPPORTED),
        ("most", (1, 1, -1), Verdict.SUPPORTED),
        ("most", (1, -1), Verdict.NOT_SUPPORTED),
        ("most", (1, -1, -1), Verdict.NOT_SUPPORTED),
        ("some", (1, -1, -1), Verdict.SUPPORTED),
        ("some", (-1, -1), Verdict.NOT_SUPPORTED),
        ("all", (), Verdict.NOT_TESTED),
        ("all", (NAN,), Verdict.NOT_TESTED),
    ],
)
def test_models_are_counted_as_the_rule_says(extent: Extent, values: tuple[float, ...], verdict: Verdict) -> None:
    positive = claim(extent, "x")
    results = [result("attefa", "trial", plain({"x": value}), f"corpus-{at}") for at, value in enumerate(values)]
    assert positive.judge(positive.find(results)) is verdict
    assert positive.find([replace(one, quick=True) for one in results]) == []


@pytest.mark.parametrize(
    ("counts", "all_of_them", "most", "some"),
    [
        ((2, 0, 1), "undecided", "true", "true"),
        ((1, 0, 1), "undecided", "undecided", "true"),
        ((0, 1, 1), *["false"] * 2, "undecided"),
    ],
)
def test_undecided_models_leave_open_what_they_could_change(
    counts: tuple[int, int, int], all_of_them: str, most: str, some: str
) -> None:
    values = [value for value, count in zip((1.0, -1.0, NAN), counts, strict=True) for _ in range(count)]
    found = [claim("all", "x").judge_model(str(at), [Statistic("x", value=value)]) for at, value in enumerate(values)]
    extents: tuple[Extent, ...] = ("all", "most", "some")
    assert [CLAIM_VERDICTS[claim(extent, "x").judge(found)] for extent in extents] == [all_of_them, most, some]


def test_a_model_needs_every_number_and_is_contradicted_by_one() -> None:
    both = claim("all", "x", "y")
    rows = {"x": Statistic("x", value=1.0), "y": Statistic("y", value=1.0), "bad": Statistic("y", value=-1.0)}
    assert both.judge_model("m", [rows["x"], rows["y"]]).verdict is Verdict.SUPPORTED
    assert both.judge_model("m", [rows["x"]]).verdict is Verdict.UNDECIDED
    assert both.judge_model("m", [rows["x"], rows["y"], rows["bad"]]).verdict is Verdict.NOT_SUPPORTED


def test_the_table_names_the_model_that_contradicts_and_what_is_missing() -> None:
    given = [result("attefa", "trial", plain({"x": value}), name) for name, value in (("good", 0.25), ("bad", -0.5))]
    (row,) = claim_table([claim("all", "x")], given).rows
    assert row[1] == "false"
    assert "bad: \N{MINUS SIGN}0.500" in str(row[3])
    assert "good: 0.250" in str(row[3])
    assert claim_table([claim("all", "x")], []).rows == ()
    second = claim_table([claim("all", "x"), claim("all", "y")], given).rows[1]
    assert second[1] == "not tested"
    assert "anything" in str(second[3])


def test_intervals_of_shares_and_means_are_those_of_the_textbook() -> None:
    for hits, count in ((0, 12), (5, 40), (40, 40)):
        exact = stats.binomtest(hits, count).proportion_ci(method="exact")
        assert share_interval(hits / count, count)[1:] == pytest.approx((exact.low, exact.high))
    values = [0.1, 0.4, 0.2, 0.7]
    expected = stats.t.interval(0.95, 3, loc=0.35, scale=stats.sem(values))
    assert spread_interval(0.35, stats.tstd(values), 4)[1:] == pytest.approx(expected)
    assert all(map(math.isnan, (*spread_interval(0.5, 0.1, 1)[1:], *share_interval(NAN, 5)[1:])))
    wide = cautious_difference(Statistic("x", "a", "", 0.5, 0.4, 0.6), Statistic("x", "b", "", 0.2, 0.1, 0.4), "d")
    assert (wide.value, wide.low, wide.high) == pytest.approx((0.3, 0.0, 0.5))


def test_every_claim_has_a_name_of_its_own_and_a_sentence() -> None:
    for paper in PAPERS.values():
        names = [one.name for one in paper.claims]
        assert len(names) == len(set(names)) >= 3
        for one in paper.claims:
            assert one.text.endswith(".")
            assert one.source
            assert one.needed
            assert str(next(iter(one.criteria.values())).relation) in one.rule


def agreement(gradient: float, left_out: float, encoder: str = "bilstm", gap: float = 0.3) -> Result:
    """Agreement on 400 texts with a standard deviation of .2: intervals are ± .0197."""
    numbers: Mapping[NumberKey, Number] = {
        ("mean", "attention~gradient", ""): gradient,
        ("std", "attention~gradient", ""): 0.2,
        ("mean", f"attention~{LEFT_OUT}", ""): left_out,
        ("std", f"attention~{LEFT_OUT}", ""): 0.2,
        ("excess", f"gradient~{LEFT_OUT} over attention~{LEFT_OUT}", ""): gap,
        ("excess_std", f"gradient~{LEFT_OUT} over attention~{LEFT_OUT}", ""): 0.2,
    }
    given = result("jain-wallace", "agreement", numbers, encoder=encoder)
    return replace(given, summary=given.summary.assign(n=400.0))


def adversarial(far: float, epsilon: float = 0.05, solver: str = "exact") -> Result:
    given = result("jain-wallace", "adversarial-attention", plain({"epsilon": epsilon, "far": far}))
    return replace(given, settings={"solver": solver})


def test_the_claims_of_jain_and_wallace() -> None:
    permuted = result("jain-wallace", "permutation", plain({"median_change": 0.04}))
    paper = (agreement(0.36, 0.3), agreement(0.7, 0.6, "average"), permuted, adversarial(0.8))
    assert set(verdicts("jain-wallace", *paper).values()) == {"true"}
    contrary = (
        agreement(0.6, 0.51, gap=-0.1),
        agreement(0.7, 0.4, "average"),
        replace(permuted, summary=permuted.summary.assign(value=0.3)),
        adversarial(0.2),
    )
    assert verdicts("jain-wallace", *contrary) == {
        "weak-gradients": "false",
        # .51 with an interval down to .4903.
        "weak-leave-one-out": "undecided",
        "token-wise-agrees-more": "false",
        "gradients-agree-more": "false",
        "permutation-is-harmless": "false",
        "distant-attention-exists": "false",
    }
    # Of two runs, that on more texts is compared with the other encoder.
    part = replace(contrary[1], summary=contrary[1].summary.assign(n=100.0))
    assert verdicts("jain-wallace", paper[0], paper[1], part)["token-wise-agrees-more"] == "true"
    # Other epsilons and token-wise models say nothing about BiLSTMs; the search is a lower bound only.
    assert decided("jain-wallace", adversarial(0.8, epsilon=0.01), agreement(0.7, 0.6, "average")) == {}
    for both in (
        (adversarial(0.8), adversarial(0.2, solver="search")),
        (adversarial(0.2, solver="search"), adversarial(0.8)),
    ):
        assert decided("jain-wallace", *both) == {"distant-attention-exists": "true"}


def difference(trial: str, arms: Mapping[str, tuple[float, float, float]], encoder: str = "bilstm") -> Result:
    return result("wiegreffe-pinter", trial, named("difference", {**arms}), encoder=encoder)


def tradeoff(jsd: float, f1: float) -> tuple[Result, Result]:
    """A trade-off with one lambda, and the base model with an F1 of .83."""
    chosen = 0.001 if jsd > 0.4 else NAN
    numbers: dict[NumberKey, Number] = {
        ("reached_jsd", "", ""): jsd,
        ("chosen_lambda", "", ""): chosen,
        ("lambda", "lambda 0.001", ""): 0.001,
        ("f1", "lambda 0.001", ""): f1,
    }
    base = result("wiegreffe-pinter", "uniform-baseline", named("f1", {"learned": 0.83}))
    return result("wiegreffe-pinter", "adversarial-tradeoff", numbers), base


def test_the_claims_of_wiegreffe_and_pinter() -> None:
    paper = "wiegreffe-pinter"
    seeds = result(paper, "seed-variance", plain({"share_of_bound": 0.05}))
    guides = difference("guided-model", {"base": (0.02, 0.01, 0.03), "adversary": (-0.2, -0.3, -0.1)}, "average")
    needless = difference("uniform-baseline", {"learned": (0.002, -0.004, 0.008)})
    curve, base = tradeoff(0.6, 0.81)
    both = replace(base, summary=pd.concat([needless.summary, base.summary], ignore_index=True))
    assert set(verdicts(paper, seeds, guides, curve, both).values()) == {"true"}
    useful = difference("uniform-baseline", {"learned": (0.05, 0.02, 0.08)})
    assert decided(paper, useful) == {"unsuitable-corpora": "false"}
    assert decided(paper, replace(useful, corpus="imdb"), needless) == {"unsuitable-corpora": "true"}
    assert decided(paper, difference("uniform-baseline", {"learned": (0.01, -0.01, 0.03)})) == {
        "unsuitable-corpora": "undecided"
    }
    swapped = difference("guided-model", {"adversary": (0.02, 0.01, 0.03), "base": (-0.2, -0.3, -0.1)}, "average")
    assert decided(paper, swapped) == {"attention-guides": "false", "adversaries-mislead": "false"}
    assert decided(paper, replace(seeds, corpus="imdb")) == {}
    assert decided(paper, *tradeoff(0.3, 0.83))["adversaries-imitate"] == "false"
    assert decided(paper, *tradeoff(0.6, 0.79))["adversaries-imitate"] == "false"
    assert decided(paper, curve)["adversaries-imitate"] == "undecided"


def test_the_claims_of_attefa() -> None:
    low, high = [0.05, 0.06, 0.07], [0.4, 0.42, 0.41]
    assert decided("attefa", attefa("sst", "bilstm", low), attefa("sst", "average", high)) == {
        "context-is-less-faithful": "true",
        "real-corpora-unfaithful": "true",
    }
    assert decided("attefa", attefa("sst", "bilstm", high), attefa("sst", "average", low)) == {
        "context-is-less-faithful": "false",
        "real-corpora-unfaithful": "undecided",
    }
    # By seed .35, -.55 and .34: no clear difference. A synthetic corpus says nothing about real ones.
    mixed = (attefa("mock-1", "bilstm", [0.05, 0.95, 0.06]), attefa("mock-1", "average", [0.4, 0.4, 0.4]))
    assert decided("attefa", *mixed) == {"context-is-less-faithful": "undecided"}
    corpora = ("mock-1", "mock-2", "mock-5", "mock-10")
    for values, verdict in (((0.8, 0.5, 0.4, 0.1), "true"), ((0.1, 0.4, 0.5, 0.8), "false")):
        given = [attefa(corpus, "average", [value]) for corpus, value in zip(corpora, values, strict=True)]
        assert decided("attefa", *given) == {"more-sources-less-faithful": verdict}
        assert decided("attefa", *given[:3]) == {}


def test_the_claims_of_learning_to_scaffold() -> None:
    # Students with learned explanations repeat 18 to 20 of 20 predictions, all others 9 to 13.
    assert decided("scaffold", simulability(student_rows(RIGHT))) == {
        "learned-explanations-help": "true",
        "learned-explanations-help-more": "true",
    }
    same = simulability(student_rows({**RIGHT, "SMaT": RIGHT["no explanation"], "attention": (18, 19, 20)}))
    assert decided("scaffold", same) == {
        "learned-explanations-help": "false",
        "learned-explanations-help-more": "false",
    }
    without = simulability(student_rows({arm: RIGHT[arm] for arm in RIGHT if arm != "SMaT"}))
    assert decided("scaffold", without) == {}
    # An AUC of .8 for the learned explanation, of .6 and .5 for static ones, and of .9 for the oracle.
    plausible = plausibility("eraser-movies")
    assert decided("scaffold", plausible) == {"learned-explanations-are-plausible": "true"}
    worse = plausible.summary.assign(low=plausible.summary["low"] - 0.3, value=plausible.summary["value"] - 0.3)
    learned = plausible.summary["method"] == "mine"
    summary = plausible.summary.where(~learned, worse)
    assert decided("scaffold", replace(plausible, summary=summary)) == {
        "learned-explanations-are-plausible": "undecided"
    }
