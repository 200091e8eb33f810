"""Published numbers under our names, and the tables and figures that set them beside ours."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from heedful.figures import Bars
from heedful.papers._chapter import Comparison
from heedful.papers.published import (
    DISAGREEMENT_LABELS,
    DISAGREEMENT_METHODS,
    provenance,
    published_numbers,
    published_table,
    recomputed_figure,
)
from heedful.report.tabulating import DATASET_NAMES, ResultRow, jain_wallace_figures, jain_wallace_tables

SST = {"corpus": "sst", "encoder": "bilstm", "attention": "additive"}


def told(trial: str, encoder: str, summary: dict[str, float]) -> ResultRow:
    facts = {"vocabulary": 13826.0, "length": 19.2, "train": 6355.0, "dev": 821.0, "test": 1725.0}
    return ResultRow(trial, "sst", encoder, "additive", summary, facts)


def test_correlations_are_those_of_table_2_to_the_printed_digit() -> None:
    for row in published_table("jw_table2"):
        corpus = next(ours for ours, theirs in DATASET_NAMES.items() if theirs == row["dataset"])
        for key, encoder, pair in (
            ("grad_bilstm", "bilstm", "attention~gradient"),
            ("grad_average", "average", "attention~gradient"),
            ("loo_bilstm", "bilstm", "attention~leave-one-out"),
        ):
            found = published_numbers("agreement", {"corpus": corpus, "encoder": encoder, "attention": "additive"})
            place = pair if row["class"] == "Overall" else f"{pair}.class_{row['class']}"
            assert found[f"mean.{place}"] == pytest.approx(row[key]["mean"], abs=0.0051), (corpus, place)
            assert found[f"significant.{place}"] == pytest.approx(row[key]["sig"], abs=0.0051)


def test_differences_are_those_recomputed_from_the_released_rows() -> None:
    found = published_numbers("agreement", SST)
    over = "excess.gradient~leave-one-out over attention~"
    assert found[f"{over}leave-one-out"] == pytest.approx(recomputed_figure("grad_loo_minus_attn_loo")["SST"])
    assert found[f"{over}gradient"] == pytest.approx(recomputed_figure("grad_loo_minus_attn_grad")["SST"])


def test_adversaries_are_those_of_figures_4_and_5() -> None:
    found = published_numbers("adversary", SST)
    assert found["epsilon_max.class_0.attention_0.00_to_0.25"] == 0.4992
    assert found["epsilon_max.class_1.attention_0.50_to_0.75"] == 0.3862
    raw = json.loads(files("heedful").joinpath("published", "jw_online_figures.json").read_text(encoding="utf-8"))
    shares = raw["sst+lstm+tanh"]["fig4_emaxjsd_hist"][0]["frac"]
    centres = np.linspace(0, 0.7, 41)[:-1] + 0.7 / 80
    assert found["mean_epsilon_max.class_0"] == pytest.approx(np.average(centres, weights=shares))
    assert found["far.class_0"] == pytest.approx(0.0425 + 0.051 + 0.0274 + 0.0123 + 0.0009, abs=1e-3)


def test_an_empty_cell_of_the_authors_stays_empty() -> None:
    found = published_numbers("agreement", {"corpus": "imdb", "encoder": "average", "attention": "dot"})
    assert "mean.attention~gradient" not in found
    assert "mean.attention~leave-one-out" in found


def test_table_1_sets_sizes_and_scores_beside_print() -> None:
    (first,) = jain_wallace_tables([told("performance", "bilstm", {"f1": 0.80})])
    assert first.caption.startswith("Table 1")
    assert first.rows[0] == (
        "sst",
        Comparison(13826, 16175),
        Comparison(19.2, 19),
        Comparison(6355, 6355),
        Comparison(1725, 1725),
        Comparison(0.80, 0.81, 0.02),
    )


def test_table_2_has_a_row_for_every_cell_that_we_have() -> None:
    summary = {f"{name}.attention~gradient.class_{c}": 0.3 for name in ("mean", "std", "significant") for c in (0, 1)}
    (second,) = jain_wallace_tables([told("agreement", "average", summary)])
    assert second.caption.startswith("Table 2")
    cells = {(row[0], row[1]): row[2] for row in second.rows}
    assert len(cells) == 6
    assert cells["sst: gradient, average, mean", "0"] == Comparison(0.3, 0.61, 0.1)
    assert cells["sst: gradient, average, significant", "1"] == Comparison(0.3, 0.83, 0.13)


def test_figures_6_to_8_set_print_beside_ours() -> None:
    over = "excess.gradient~leave-one-out over attention~"
    loo = "mean.attention~leave-one-out"
    bilstm = told("agreement", "bilstm", {f"{over}leave-one-out": 0.3, f"{over}gradient": 0.2, loo: 0.25})
    average = told("agreement", "average", {loo: 0.6})
    found = jain_wallace_figures([bilstm, average])
    assert all(isinstance(figure, Bars) for figure in found)
    values = [tuple(series.values for series in figure.series) for figure in found if isinstance(figure, Bars)]
    assert [number for series in values[0] for number in series] == pytest.approx([0.3, 0.36453])
    assert [number for series in values[2] for number in series] == pytest.approx([0.35, 0.331], abs=1e-3)
    assert jain_wallace_figures([]) == ()


def test_the_second_paper_is_found_under_the_names_of_our_summaries() -> None:
    assert published_numbers("necessity", SST) == {"f1.learned": 0.831, "f1.uniform": 0.822}
    guided = published_numbers("guided", {**SST, "corpus": "imdb", "encoder": "average"})
    assert guided == {"f1.uniform": 0.863, "f1.trained": 0.888, "f1.base": 0.905, "f1.adversary": 0.7}
    tradeoff = published_numbers("tradeoff", SST)
    assert [tradeoff[f"{name}.lambda_0.000525"] for name in ("f1", "tvd", "jsd")] == [0.823, 0.036, 0.514]
    assert tradeoff["jsd.lambda_1e-05"] == 0.042
    assert tradeoff["chosen_lambda"] == 0.000525
    assert published_numbers("tradeoff", {**SST, "corpus": "agnews"}) == {"f1.uniform": 0.96}


def test_the_third_paper_is_found_under_the_names_of_our_summaries() -> None:
    found = published_numbers("attefa", {**SST, "corpus": "imdb", "encoder": "average"})
    assert (found["attefa"], found["population_std_attefa"]) == (0.3826, 0.0019)
    assert (found["epoch"], found["jsd"], found["f1"]) == (21, 0.689, 0.158)
    assert found["base_f1"] == 0.882
    assert published_numbers("attefa", {**SST, "corpus": "mock-2q"})["population_std_jsd"] == 0.004


def test_other_models_and_variants_of_planted_corpora_have_no_published_number() -> None:
    for trial in ("necessity", "guided", "tradeoff", "attefa"):
        for about in ({"encoder": "gru"}, {"attention": "dot"}, {"corpus": "cnn"}, {"corpus": "mock-5-fillers-10"}):
            assert published_numbers(trial, {**SST, **about}) == {}, (trial, about)
    assert published_numbers("seeds", SST) == {}


def test_bases_on_planted_corpora_have_the_scores_of_attefa_and_others_keep_those_of_jain_and_wallace() -> None:
    assert published_numbers("performance", {**SST, "corpus": "mock-1", "encoder": "average"}) == {"f1": 0.975}
    assert published_numbers("performance", {**SST, "corpus": "mock-1", "attention": "dot"}) == {}
    assert published_numbers("performance", SST)["f1"] == pytest.approx(0.7835, abs=1e-4)


def test_the_sentence_about_published_numbers_is_that_of_their_paper() -> None:
    assert "nine adversaries" in provenance("attefa")
    assert "test split" in provenance("tradeoff")
    assert "no seed" in provenance("agreement")


def test_quick_versions_of_the_first_paper_are_not_judged_either() -> None:
    (first,) = jain_wallace_tables([replace(told("performance", "bilstm", {"f1": 0.5}), quick=True)])
    assert first.rows[0][0] == "sst (quick)"
    assert first.rows[0][-1] == Comparison(0.5, 0.81)


def test_the_song_is_found_where_a_trial_is_told_under_it_and_the_first_paper_elsewhere() -> None:
    ours, first = published_numbers("agreement", SST, "disagreement"), published_numbers("agreement", SST)
    assert ours["mean.attention~lime"] == 0.1326
    assert ours["std.integrated-gradients~gradient-shap"] == 0.0382
    assert "mean.attention~gradient" not in ours
    assert "mean.attention~lime" not in first
    assert (
        first["mean.attention~gradient"]
        == published_numbers("agreement", SST, "jain-wallace")["mean.attention~gradient"]
    )
    assert published_numbers("performance", SST, "disagreement") == {"accuracy": 0.826}
    assert published_numbers("necessity", SST, "disagreement") == {"accuracy.learned": 0.826, "accuracy.uniform": 0.823}
    assert published_numbers("faithfulness", SST, "disagreement") == {}


def test_transformers_are_set_beside_distilbert_with_rollout_and_flow() -> None:
    quora = {"corpus": "qqp", "encoder": "some-checkpoint", "attention": "self"}
    found = published_numbers("agreement", quora, "disagreement")
    assert found["mean.rollout~deep-lift"] == 0.2267
    assert found["mean.flow~integrated-gradients"] == 0.2426
    assert not any("attention" in name for name in found)
    assert published_numbers("performance", quora, "disagreement") == {"accuracy": 0.888}
    assert not any(
        "flow" in name for name in published_numbers("agreement", {**quora, "corpus": "imdb"}, "disagreement")
    )


@pytest.mark.parametrize("attention", ["additive", "self"])
def test_every_pair_of_tables_1_and_2_has_our_name(attention: str) -> None:
    number, encoder, called = (2, "bilstm", "attention") if attention == "additive" else (1, "checkpoint", "rollout")
    name = f"court_table{number}.json"
    raw = json.loads(files("heedful").joinpath("published", name).read_text(encoding="utf-8"))["values"]
    for corpus, theirs in DISAGREEMENT_LABELS.items():
        about = {"corpus": corpus, "encoder": encoder, "attention": attention}
        found = published_numbers("agreement", about, "disagreement")
        means = [found[f"mean.{one}~{other}"] for one, other in combinations((called, *DISAGREEMENT_METHODS), 2)]
        assert means == list(raw[theirs].values())


def test_print_says_nothing_about_other_measures_models_and_corpora() -> None:
    for change in ({"measure": "feature"}, {"attention": "dot"}, {"encoder": "gru"}, {"corpus": "known-xor"}):
        assert published_numbers("agreement", {**SST, **change}, "disagreement") == {}, change
    assert published_numbers("agreement", {**SST, "measure": "spearman"}) == {}
    assert published_numbers("agreement", {**SST, "measure": "kendall"}) == published_numbers("agreement", SST)
    assert "three seeds" in provenance("agreement", "disagreement")


def test_table_2_of_the_first_paper_has_no_other_measure_than_tau() -> None:
    given = told("agreement", "average", {"mean.attention~gradient.class_0": 0.3})
    assert jain_wallace_tables([given])
    assert jain_wallace_tables([replace(given, measure="feature")]) == ()


def test_published_scores_are_those_behind_table_2() -> None:
    found = published_numbers("performance", {"corpus": "sst", "encoder": "bilstm", "attention": "additive"})
    assert found == pytest.approx(
        {"f1": 0.78352, "f1_micro": 0.80812, "f1_macro": 0.80561, "accuracy": 0.80812, "roc_auc": 0.90244}
    )


def test_published_permutation_medians_are_those_of_figure_3() -> None:
    found = published_numbers("permutation", {"corpus": "sst", "encoder": "bilstm", "attention": "additive"})
    bins = ("0.00_to_0.25", "0.25_to_0.50", "0.50_to_0.75", "0.75_to_1.00")
    assert [found[f"median_change.class_0.attention_{b}"] for b in bins] == [0.0271, 0.0472, 0.0793, 0.107]
    assert f"median_change.class_1.attention_{bins[3]}" not in found


def test_nothing_is_published_about_a_users_own_corpus() -> None:
    assert published_numbers("permutation", {"corpus": "mine", "encoder": "gru", "attention": "dot"}) == {}
