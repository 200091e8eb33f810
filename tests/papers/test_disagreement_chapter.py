"""The chapter of A Song of (Dis)agreement: tables, claims, bands, and the ground-truth evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pandas as pd
import pytest

from heedful.figures import Bars, Matrix
from heedful.papers import PAPERS
from heedful.papers.chapter import Result
from heedful.papers.disagreement import PAPER_METHODS, pair_order_agreement
from heedful.papers.published import NumberKey
from heedful.results import excess_metric
from heedful.table_view import Cell, Comparison
from tests.papers.results import Number, named, plain, result, summary, table

PAPER = "disagreement"
CHAPTER = PAPERS[PAPER]


def ours(trial: str, numbers: dict[NumberKey, Number], corpus: str = "sst", encoder: str = "bilstm") -> Result:
    return result(PAPER, trial, numbers, corpus, encoder, "additive" if encoder == "bilstm" else "self")


def agreement(corpus: str = "sst", encoder: str = "bilstm", **changed: float) -> Result:
    """The published numbers, except for the given pairs, with `__` for the tilde and `_` for hyphens."""
    empty = ours("agreement", {}, corpus, encoder)
    other = {"~".join(part.replace("_", "-") for part in pair.split("__")): value for pair, value in changed.items()}
    return replace(empty, summary=summary({**empty.published, **named("mean", other)}, n=500.0))


def uniform_baseline(learned: float, uniform: float, corpus: str = "sst") -> Result:
    return ours("uniform-baseline", named("accuracy", {"learned": learned, "uniform": uniform}), corpus)


def verdicts(*results: Result) -> list[Cell]:
    return [row[1] for row in table(PAPER, "What the paper claims", *results).rows]


def rounded(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    return tuple(round(cell, 9) if isinstance(cell, float) else cell for cell in cells)


def extended(given: Result, numbers: dict[NumberKey, Number]) -> Result:
    """The result with more numbers."""
    return replace(given, summary=pd.concat([given.summary, summary(numbers)], ignore_index=True))


def test_table_2_judges_each_pair_by_its_own_band_and_no_cell_of_a_known_artefact() -> None:
    second = table(PAPER, "Table 2", agreement(attention__lime=0.3, lime__deep_lift=0.58))
    cells = {row[1]: row[2] for row in second.rows}
    assert len(cells) == 15
    assert cells["attention and lime"] == Comparison(0.3, 0.1326, 0.1)
    assert cells["lime and deep-lift"] == Comparison(0.58, 0.4734, 0.12)
    assert cells["integrated-gradients and gradient-shap"] == Comparison(0.9707, 0.9707, 0.03)
    assert cells["integrated-gradients and deep-lift"] == Comparison(0.8683, 0.8683, 0.07)
    assert cells["deep-lift and deep-shap"] == Comparison(0.8729, 0.8729)
    assert second.rows[0][3] == Comparison(0.2372, 0.2372)
    quick = table(PAPER, "Table 2", replace(agreement(), quick=True))
    assert quick.rows[0][:3] == ("sst (quick)", "attention and lime", Comparison(0.1326, None))


def test_tables_1_and_4_compare_a_transformer_with_distilbert_without_judging_it() -> None:
    given = agreement("qqp", "model", rollout__lime=0.5)
    first, fourth = table(PAPER, "Table 1", given), table(PAPER, "Table 4", given)
    assert len(first.rows) == 15
    assert first.rows[0][:3] == ("qqp, model", "rollout and lime", Comparison(0.5, 0.1622))
    assert fourth.rows[1] == ("qqp, model", "integrated-gradients", Comparison(0.2426, 0.2426))


def test_table_3_has_uniform_weights_where_they_were_trained_and_otherwise_the_performance() -> None:
    transformer = ours("performance", plain({"accuracy": 0.9}), encoder="model")
    synthetic = ours("performance", plain({"accuracy": 0.99}), "known-xor")
    given = (uniform_baseline(0.83, 0.80), ours("performance", plain({"accuracy": 0.82})), transformer, synthetic)
    assert table(PAPER, "Table 3", *given).rows == (
        ("sst", "learned", Comparison(0.83, 0.826, 0.02)),
        ("sst", "uniform", Comparison(0.80, 0.823, 0.02)),
        ("sst, model", "learned", Comparison(0.9, 0.842)),
    )


def test_all_claims_hold_on_the_published_numbers() -> None:
    corpora = ("qqp", "snli", "imdb", "sst", "mnli")
    given = [agreement(corpus, encoder) for encoder in ("bilstm", "model") for corpus in corpora]
    for corpus in corpora:
        cells = ours("uniform-baseline", {}, corpus).published
        given.append(uniform_baseline(cells["accuracy", "learned", ""], cells["accuracy", "uniform", ""], corpus))
    found = table(PAPER, "What the paper claims", *given)
    assert [row[1] for row in found.rows] == ["true"] * 5
    numbers = [str(row[3]) for row in found.rows]
    # Means over all pairs: sst .515 and .153, imdb .549 and .187 on the transformer, snli .290.
    assert "snli, attention: 0.316" in numbers[0]
    assert "sst, model: 0.362; imdb, model: 0.362" in numbers[1]
    assert "sst over snli: 0.225" in numbers[2]
    assert "sst, model: 0.451, 0.286" in numbers[3]
    for cost in ("sst: 0.003", "imdb: \N{MINUS SIGN}0.002", "snli: 0.003", "mnli: 0.008", "qqp: 0.001"):
        assert cost in numbers[4]


def test_each_claim_is_false_if_one_number_contradicts_it() -> None:
    both = (agreement(), agreement("snli"), agreement(encoder="model"), uniform_baseline(0.83, 0.825))
    assert verdicts(*both) == ["true"] * 5
    assert verdicts(agreement(attention__deep_shap=0.33), *both[1:])[0] == "false"
    pairs = [f"{one}~{other}" for one, other in combinations(("attention", *PAPER_METHODS), 2)]
    low = ours("agreement", named("mean", dict.fromkeys(pairs, 0.1)))
    assert verdicts(low, *both[1:]) == ["true", "false", "false", "true", "true"]
    assert verdicts(*both[:2], agreement(encoder="model", lime__deep_lift=0.34), both[3])[3] == "false"
    assert verdicts(*both[:2], agreement(encoder="model", deep_lift__deep_shap=0.3), both[3])[3] == "false"
    assert verdicts(*both[:3], uniform_baseline(0.83, 0.82))[4] == "false"
    assert verdicts(agreement(encoder="model", flow__lime=0.4))[0] == "false"


def test_claims_without_numbers_are_not_tested_and_quick_versions_test_none() -> None:
    assert verdicts(agreement()) == ["true", "not tested", "not tested", "not tested", "not tested"]
    assert verdicts(uniform_baseline(0.8, 0.8)) == ["not tested"] * 4 + ["true"]
    captions = [each.caption for each in CHAPTER.tables([replace(agreement(), quick=True)])]
    assert captions == ["Table 2: BiLSTM"]
    some = (agreement(attention__lime=math.nan), agreement("snli"), uniform_baseline(0.8, 0.8))
    assert verdicts(*some)[2] == "not tested"


def test_one_pair_can_contradict_the_first_claim_but_not_support_it() -> None:
    one, high = (ours("agreement", named("mean", {"attention~lime": tau})) for tau in (0.1, 0.5))
    assert verdicts(one)[0] == "undecided"
    assert verdicts(high)[0] == "false"


def test_a_transformer_is_known_by_its_attention_whatever_its_folder_is_called() -> None:
    named = replace(agreement(encoder="model"), encoder="bilstm")
    assert table(PAPER, "Table 1", named).rows[0][0] == "sst, bilstm"
    assert not any(each.caption.startswith("Table 2") for each in CHAPTER.tables([named]))
    assert verdicts(named)[3] == "true"
    assert replace(named, encoder="average").model_label == "sst, average"


def test_a_claim_without_numbers_says_what_it_needs() -> None:
    some = ours("agreement", named("mean", {"rollout~lime": 0.1}), encoder="mine")
    rows = table(PAPER, "What the paper claims", some, uniform_baseline(0.8, 0.8)).rows
    assert rows[3][1] == "not tested"
    assert "rollout" in str(rows[3][3])
    assert "transformer" in str(rows[1][3])


def test_check_11_is_judged_as_the_specification_says() -> None:
    given = agreement(
        integrated_gradients__gradient_shap=0.94,
        integrated_gradients__deep_lift=0.79,
        lime__integrated_gradients=0.63,
        attention__lime=0.04,
    )
    rows = table(PAPER, "What was expected", given, uniform_baseline(0.846, 0.83), agreement("imdb")).rows
    assert {row[0]: row[3] for row in rows} == {
        "accuracy": "inside",
        "accuracy with uniform attention minus that with learned": "outside",
        "tau of integrated-gradients and gradient-shap": "inside",
        "tau of integrated-gradients and deep-lift": "outside",
        "tau of lime and integrated-gradients": "outside",
        "tau of attention and lime": "outside",
        **{f"tau of attention and {method}": "inside" for method in PAPER_METHODS[1:]},
    }
    alone = table(PAPER, "What was expected", ours("performance", plain({"accuracy": 0.8})))
    assert [row[3] for row in alone.rows] == ["outside"]


def test_of_runs_on_fewer_and_more_texts_only_the_larger_is_shown() -> None:
    few = agreement(attention__lime=0.9)
    few = replace(few, summary=few.summary.assign(n=60.0))
    for given in ((few, agreement()), (agreement(), few)):
        assert table(PAPER, "Table 2", *given).rows[0][2] == Comparison(0.1326, 0.1326, 0.1)
        assert len(table(PAPER, "Table 2", *given).rows) == 15


def test_a_larger_run_of_other_methods_does_not_hide_the_paper_s_methods() -> None:
    """Else a given transformer with all six methods counts as none."""
    other = ours("agreement", named("mean", {"attention~gradient": 0.3}), encoder="model")
    other = replace(other, summary=other.summary.assign(n=900.0))
    for given in ((other, agreement(encoder="model")), (agreement(encoder="model"), other)):
        assert len(table(PAPER, "Table 1", *given).rows) == 15
        assert verdicts(*given)[3] == "true"


@pytest.mark.parametrize("settings", [{"measure": "feature"}, {"level": "word"}, {"special_tokens": True}])
def test_other_measures_and_units_have_no_row_beside_the_published_numbers(settings: dict[str, str | bool]) -> None:
    usual, other = agreement(attention__lime=0.2), agreement(attention__lime=0.9)
    other = replace(other, settings=settings, summary=other.summary.assign(n=900.0))
    for given in ((usual, other), (other, usual)):
        assert table(PAPER, "Table 2", *given).rows == table(PAPER, "Table 2", usual).rows
        assert verdicts(*given) == verdicts(usual)


def test_embeddings_are_named_only_where_they_distinguish_two_runs() -> None:
    one, other = (replace(agreement(), embeddings=name) for name in ("glove", "random"))
    assert {row[0] for row in table(PAPER, "Table 2", one, agreement(encoder="model")).rows} == {"sst"}
    labels = {row[0] for row in table(PAPER, "Table 2", one, other).rows}
    assert labels == {"sst (glove vectors)", "sst (random vectors)"}


def test_chapters_do_not_show_each_others_results() -> None:
    theirs = ours("agreement", {("mean", "attention~gradient", "class 0"): 0.3})
    theirs = replace(theirs, paper="jain-wallace")
    assert PAPERS["jain-wallace"].tables([agreement(), uniform_baseline(0.8, 0.8)]) == ()
    assert PAPERS["wiegreffe-pinter"].tables([uniform_baseline(0.8, 0.8)]) == ()
    captions = [each.caption for each in PAPERS["jain-wallace"].tables([agreement(), theirs])]
    assert captions == ["Table 2: attention and other measures"]
    assert CHAPTER.tables([theirs, replace(uniform_baseline(0.8, 0.8), paper="wiegreffe-pinter")]) == ()


def truth(corpus: str, suffix: str = "", random: float = 0.2, **found: float) -> Result:
    """A ground-truth trial in which random scores find a fifth; half-widths of intervals are .1."""
    numbers: dict[NumberKey, Number] = plain({"texts": 40.0, "used": 40.0})
    for name, value in ({f"{name}{suffix}": value for name, value in found.items()} | {"random": random}).items():
        numbers |= {("precision", name, ""): (value, value - 0.1, value + 0.1), ("auc", name, ""): value}
    return ours("ground-truth", numbers, corpus)


def faithfulness(corpus: str, **means: float) -> Result:
    """One measure; its excess is over random's .1, with a half-width of .05. Another measure has the opposite sign."""
    everything = means | {"random": 0.1}
    excess = {name: (value - 0.1, value - 0.15, value - 0.05) for name, value in means.items()}
    numbers = named("aopc_comprehensiveness", everything)
    numbers |= named("deletion_auc", {name: 1 - value for name, value in everything.items()})
    return ours("faithfulness", {**numbers, **named(excess_metric("aopc_comprehensiveness"), excess)}, corpus)


def test_methods_are_ranked_by_what_they_find_beyond_chance() -> None:
    given = (truth("known-additive", "(logit)", lime=1.0), truth("known-xor", attention=0.3, lime=0.6))
    faithful = faithfulness("known-xor", attention=0.12, lime=0.3)
    rows = {row[0]: rounded(row[1:]) for row in table(PAPER, "Methods by ground truth", *given, faithful).rows}
    assert list(rows.items()) == [
        ("lime", ("2 of 2", 0.8, 0.8, "", 0.75, "none", 0.2, "", "1 of 1")),
        ("attention", ("1 of 2", 0.3, 0.3, "", 0.125, "known-xor", 0.02, "", "0 of 1")),
        ("random", ("2 of 2", 0.2, 0.2, "", "", "", "", "", "")),
    ]


def test_a_model_that_uses_no_deciding_word_tests_nothing() -> None:
    unused = ours("ground-truth", {**plain({"used": 0.0}), ("precision", "lime", ""): 0.6}, "known-xor")
    assert CHAPTER.tables([unused]) == ()
    assert CHAPTER.figures([unused]) == ()


def test_a_method_that_was_not_tried_on_the_hard_corpus_gains_nothing_by_it() -> None:
    given = truth("known-xor", lime=1.0, shap=1.0), truth("known-hint", random=0.6, lime=1.0)
    rows = table(PAPER, "Methods by ground truth", *given).rows
    assert [(row[0], row[1], row[5]) for row in rows[:2]] == [("lime", "2 of 2", 1.0), ("shap", "1 of 2", 1.0)]


def test_adversarial_attention_and_random_scores_come_last() -> None:
    given = truth("known-xor", attention=0.3, lime=0.9)
    numbers: dict[NumberKey, Number] = {("precision", "adversarial-attention", ""): (0.95, 0.95, 0.95)}
    wrong = extended(given, numbers)
    rows = table(PAPER, "Methods by ground truth", wrong).rows
    assert [row[0] for row in rows[:2]] == ["lime", "attention"]
    assert {(row[0], *row[5:7]) for row in rows[2:]} == {("adversarial-attention", "", ""), ("random", "", "")}


def test_measures_are_judged_by_the_order_of_methods_that_the_ground_truth_separates() -> None:
    # Intervals reach .1 to either side: attention and random, gradient and attention overlap.
    trial = truth("known-xor", attention=0.3, lime=0.9, gradient=0.5)
    right = faithfulness("known-xor", attention=0.2, lime=0.4, gradient=0.3)
    caption = "Faithfulness measures"
    rows = {row[0]: row[1:] for row in table(PAPER, caption, trial, right).rows}
    for measure in ("aopc comprehensiveness", "deletion auc"):
        assert rows[measure] == (1, 4, 1.0, 1.0, 1.0, "known-xor", "follows the ground truth")
    swapped = faithfulness("known-xor", attention=0.4, lime=0.3, gradient=0.1)
    assert pair_order_agreement("aopc_comprehensiveness", trial, swapped) == {
        ("lime", "attention"): 0.0,
        ("lime", "gradient"): 1.0,
        ("lime", "random"): 1.0,
        ("gradient", "random"): 0.5,
    }
    other = truth("known-hint", attention=0.3, lime=0.9, gradient=0.5)
    wrong = faithfulness("known-hint", attention=0.05, lime=0.02, gradient=0.03)
    (row,) = [row for row in table(PAPER, caption, trial, right, other, wrong).rows if row[0] == "deletion auc"]
    assert row[1:] == (2, 8, 0.5, 0.5, 0.0, "known-hint", "fails")
    half = faithfulness("known-hint", attention=0.4, lime=0.5, gradient=0.05)
    (row,) = [row for row in table(PAPER, caption, trial, right, other, half).rows if row[0] == "deletion auc"]
    assert row[1:] == (2, 8, 0.875, 0.75, 0.75, "known-hint", "in part")


def test_measures_of_another_model_or_of_inseparable_methods_are_not_judged() -> None:
    trial = truth("known-xor", attention=0.3, lime=0.9, gradient=0.5)
    elsewhere = faithfulness("sst", attention=0.2, lime=0.4, gradient=0.3)
    for given in (elsewhere, faithfulness("known-xor", attention=0.2)):
        assert not any(each.caption.startswith("Faithfulness measures") for each in CHAPTER.tables([trial, given]))


def controls(corpus: str, **lows: tuple[float, float]) -> Result:
    """A ground-truth trial of forty texts: for each measure the lower bounds against random and adversarial scores."""
    numbers: dict[NumberKey, Number] = {}
    for measure, bounds in lows.items():
        for control, low in zip(("random", "adversarial"), bounds, strict=True):
            numbers[f"above_{control}", measure, ""] = (low + 0.1, low, low + 0.2)
            numbers[f"above_{control}_share", measure, ""] = 0.9 if low > 0 else 0.45
    given = truth(corpus, lime=0.9)
    return extended(given, numbers)


def test_measures_are_tested_on_whether_they_rank_the_ground_truth_above_wrong_explanations() -> None:
    good, bad = (0.1, 0.2), (-0.5, -0.6)
    given = (
        controls("known-xor", deletion_auc=good, agreement=good, normalized_infidelity=bad, monotonicity=(-0.5, 0.2)),
        controls("known-hint", deletion_auc=good, agreement=(0.1, -0.5), normalized_infidelity=bad, monotonicity=good),
    )
    rows = {row[0]: row[1:] for row in table(PAPER, "Does each measure", *given).rows}
    everywhere = "known-xor (random), known-hint (random), known-xor (adversarial), known-hint (adversarial)"
    assert rows == {
        "deletion auc": ("2 of 2", "72 of 80", "2 of 2", "72 of 80", "none", "recognizes the ground truth"),
        "monotonicity": ("1 of 2", "54 of 80", "2 of 2", "72 of 80", "known-xor (random)", "only above adversarial"),
        "normalized infidelity": ("0 of 2", "36 of 80", "0 of 2", "36 of 80", everywhere, "fails"),
        "agreement": ("2 of 2", "72 of 80", "1 of 2", "54 of 80", "known-hint (adversarial)", "only above random"),
    }


def test_what_could_not_be_tested_is_no_failure_and_without_an_adversary_the_verdict_is_open() -> None:
    nan = math.nan
    given = (controls("known-xor", agreement=(nan, nan)), controls("known-hint", agreement=(0.1, 0.1)))
    ((name, *cells),) = table(PAPER, "Does each measure", *given).rows
    assert (name, cells[0], cells[2], cells[-1]) == ("agreement", "1 of 1", "1 of 1", "recognizes the ground truth")
    alone = controls("known-xor", agreement=(0.1, 0.1))
    alone = replace(alone, summary=alone.summary[~alone.summary["metric"].str.startswith("above_adversarial")])
    assert table(PAPER, "Does each measure", alone).rows == (
        ("agreement", "1 of 1", "36 of 40", "", "", "none", "above random, adversarial not tested"),
    )
    assert not any(each.caption.startswith("Does each") for each in CHAPTER.tables(given[:1]))


def test_figures_show_the_means_over_all_pairs_and_the_precision_of_methods() -> None:
    bars, matrix = CHAPTER.figures(
        [agreement(), agreement(encoder="model"), truth("known-xor", attention=0.3, lime=0.9)]
    )
    assert isinstance(bars, Bars)
    assert bars.labels == ("sst", "sst, model")
    assert [series.values for series in bars.series] == [pytest.approx((0.515, 0.153), abs=1e-3)] * 2
    assert isinstance(matrix, Matrix)
    assert (matrix.rows, matrix.columns, matrix.limits) == (("lime", "attention", "random"), ("known-xor",), (0.0, 1.0))
    assert matrix.values == ((0.9,), (0.3,), (0.2,))
