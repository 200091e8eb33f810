"""Published numbers under the names of our summaries."""

from __future__ import annotations

import csv
import json
import math
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from heedful import catalogue
from heedful.papers import PAPERS
from heedful.papers.attefa import AttefaOptions
from heedful.papers.chapter import flat_settings
from heedful.papers.disagreement import PAPER_METHODS
from heedful.papers.published import (
    NumberKey,
    attefa_seed_rows,
    find_published,
    protocol_differences,
    published_distributions,
    published_sizes,
    published_tradeoff,
)
from heedful.results import value_of
from heedful.store.recipe import Json
from heedful.trials.adversarial_training import DIFFERENT_JSD, PAPER_SEEDS, AdversarialTradeoff, AtteFa, attefa
from heedful.trials.trial import Trial
from tests.papers import derive_published
from tests.papers.derive_published import (
    DATASET_NAMES,
    DISAGREEMENT_LABELS,
    corpus_row,
    published_table,
    recomputed_figure,
)
from tests.papers.results import named, plain, to_stored


def raw(name: str) -> dict:
    content: dict = json.loads((Path(__file__).parent / "published_tables" / f"{name}.json").read_text("utf-8"))
    return content


def published_numbers(trial: str, about: dict[str, str], paper: str = "") -> dict[NumberKey, float]:
    """What a paper, by default that of the trial, has published about it."""
    return dict(find_published(trial, about, paper or catalogue.TRIALS[trial].paper)[1])


SST = {"corpus": "sst", "encoder": "bilstm", "attention": "additive"}


def test_correlations_are_those_of_table_2_to_the_printed_digit() -> None:
    for row in published_table("jw_table2"):
        corpus = next(ours for ours, theirs in DATASET_NAMES.items() if theirs == row["dataset"])
        for key, encoder, pair in (
            ("grad_bilstm", "bilstm", "attention~gradient"),
            ("grad_average", "average", "attention~gradient"),
            ("loo_bilstm", "bilstm", "attention~leave-one-out(distribution)"),
        ):
            found = published_numbers("agreement", {"corpus": corpus, "encoder": encoder, "attention": "additive"})
            subset = "" if row["class"] == "Overall" else f"class {row['class']}"
            assert found["mean", pair, subset] == pytest.approx(row[key]["mean"], abs=0.0051), (corpus, pair, subset)
            assert found["significant", pair, subset] == pytest.approx(row[key]["sig"], abs=0.0051)


def test_differences_are_those_recomputed_from_the_released_rows() -> None:
    found = published_numbers("agreement", SST)
    for method, figure in (
        ("leave-one-out(distribution)", "grad_loo_minus_attn_loo"),
        ("gradient", "grad_loo_minus_attn_grad"),
    ):
        excess = found["excess", f"gradient~leave-one-out(distribution) over attention~{method}", ""]
        assert excess == pytest.approx(recomputed_figure(figure)["SST"])


def test_adversaries_are_those_of_figures_4_and_5() -> None:
    found = published_numbers("adversarial-attention", SST)
    assert found["epsilon_max", "", "class 0, attention 0.00 to 0.25"] == 0.4992
    assert found["epsilon_max", "", "class 1, attention 0.50 to 0.75"] == 0.3862
    shares = raw("jw_online_figures")["sst+lstm+tanh"]["fig4_emaxjsd_hist"][0]["frac"]
    centres = np.linspace(0, 0.7, 41)[:-1] + 0.7 / 80
    assert found["mean_epsilon_max", "", "class 0"] == pytest.approx(np.average(centres, weights=shares))
    assert found["far", "", "class 0"] == pytest.approx(0.0425 + 0.051 + 0.0274 + 0.0123 + 0.0009, abs=1e-3)


def test_an_empty_cell_of_the_authors_stays_empty() -> None:
    found = published_numbers("agreement", {"corpus": "imdb", "encoder": "average", "attention": "dot"})
    assert ("mean", "attention~gradient", "") not in found
    assert ("mean", "attention~leave-one-out(distribution)", "") in found


def test_the_second_paper_is_found_under_the_names_of_our_summaries() -> None:
    assert published_numbers("uniform-baseline", SST) == {("f1", "learned", ""): 0.831, ("f1", "uniform", ""): 0.822}
    guided = published_numbers("guided-model", {**SST, "corpus": "imdb", "encoder": "average"})
    assert guided == named("f1", {"uniform": 0.863, "trained": 0.888, "base": 0.905, "adversary": 0.7})
    tradeoff = published_numbers("adversarial-tradeoff", SST)
    assert [tradeoff[name, "lambda 0.000525", ""] for name in ("f1", "tvd", "jsd")] == [0.823, 0.036, 0.514]
    assert tradeoff["jsd", "lambda 1e-05", ""] == 0.042
    assert tradeoff["chosen_lambda", "", ""] == 0.000525
    assert published_numbers("adversarial-tradeoff", {**SST, "corpus": "agnews"}) == {("f1", "uniform", ""): 0.96}


def test_the_third_paper_is_found_under_the_names_of_our_summaries() -> None:
    found = published_numbers("attefa", {**SST, "corpus": "imdb", "encoder": "average"})
    values = {metric: value for (metric, _, _), value in found.items()}
    assert (values["attefa"], values["population_std_attefa"]) == (0.3826, 0.0019)
    assert (values["epoch"], values["jsd"], values["f1"]) == (21, 0.689, 0.158)
    assert values["base_f1"] == 0.882
    assert published_numbers("attefa", {**SST, "corpus": "mock-2q"})["population_std_jsd", "", ""] == 0.004


def test_other_models_and_variants_of_planted_corpora_have_no_published_number() -> None:
    for trial in ("uniform-baseline", "guided-model", "adversarial-tradeoff", "attefa"):
        for about in ({"encoder": "gru"}, {"attention": "dot"}, {"corpus": "cnn"}, {"corpus": "mock-5-fillers-10"}):
            assert published_numbers(trial, {**SST, **about}) == {}, (trial, about)
    assert published_numbers("seed-variance", SST) == {}


def test_base_models_have_the_scores_of_the_paper_whose_chapter_shows_them() -> None:
    """SST has a published F1 in each of three chapters, from three protocols."""
    papers = ("jain-wallace", "wiegreffe-pinter", "attefa")
    assert [published_numbers("performance", SST, paper)["f1", "", ""] for paper in papers] == [0.78352, 0.831, 0.83]
    mock = {**SST, "corpus": "mock-1", "encoder": "average"}
    assert published_numbers("performance", mock, "attefa") == plain({"f1": 0.975})
    assert published_numbers("performance", mock, "jain-wallace") == {}
    assert published_numbers("performance", {**mock, "attention": "dot"}, "attefa") == {}
    assert published_numbers("agreement", SST, "attefa") == {}


TEST, DEV = ({"subject.training.selection.split": split} for split in ("test", "dev"))
BY_LOSS = {"adversary_training.selection.metric": "training_loss", "adversary_training.selection.split": "dev"}
BY_DEV = {**BY_LOSS, "adversary_training.selection.metric": "deception"}
BY_TEST = {**BY_DEV, "adversary_training.selection.split": "test"}


@pytest.mark.parametrize(
    ("trial", "recipe", "is_shown"),
    [
        ("adversarial-attention", {"epsilon": 0.05, "solver": "search"}, True),
        ("adversarial-attention", {"epsilon": 0.01, "solver": "search"}, False),
        ("adversarial-attention", {"epsilon": 0.05, "solver": "exact"}, False),
        ("permutation", {"permutations": 100, "error": None}, True),
        ("permutation", {"permutations": 100, "error": 0.01}, False),
        ("performance", {**DEV, "subject.training.selection.first_epoch": 2}, True),
        ("performance", {**DEV, "subject.training.selection.first_epoch": 1}, False),
        ("performance", TEST, False),
        ("uniform-baseline", TEST, True),
        ("uniform-baseline", DEV, False),
        ("adversarial-tradeoff", {**TEST, **BY_LOSS}, True),
        ("adversarial-tradeoff", {**TEST, **BY_TEST}, True),
        ("adversarial-tradeoff", {**TEST, **BY_DEV}, False),
        ("attefa", {**TEST, **BY_TEST}, True),
        ("attefa", {**TEST, **BY_LOSS}, False),
        ("attefa", {**DEV, **BY_DEV}, False),
    ],
)
def test_numbers_stand_only_beside_results_of_their_own_protocol(
    trial: str, recipe: dict[str, Json], *, is_shown: bool
) -> None:
    _, numbers = find_published(trial, SST, catalogue.TRIALS[trial].paper, recipe)
    assert bool(numbers) == is_shown


def test_the_default_of_every_paper_is_the_published_protocol(tmp_path: Path) -> None:
    """Nothing that a paper's command makes by default is refused its published numbers but other variants of it."""
    for name in ("jain-wallace", "wiegreffe-pinter", "attefa", "disagreement"):
        options = PAPERS[name].options(corpora=("sst",), data_dir=tmp_path)
        refused = {
            each.name: differing
            for each in options.recipes()
            if isinstance(each, Trial)
            and (differing := protocol_differences(each.name, name, flat_settings(to_stored(each))))
        }
        variants = {"adversarial-attention"} if name == "jain-wallace" else set()
        assert refused.keys() == variants, name


def test_the_sentence_about_published_numbers_is_that_of_their_paper() -> None:
    assert "nine adversaries" in find_published("attefa", SST, "attefa")[0]
    assert "test split" in find_published("adversarial-tradeoff", SST, "wiegreffe-pinter")[0]
    assert "no seed" in find_published("agreement", SST, "jain-wallace")[0]
    assert "three seeds" in find_published("agreement", SST, "disagreement")[0]
    assert find_published("agreement", {**SST, "corpus": "mine"}, "jain-wallace") == ("", {})


def test_every_row_of_the_file_follows_from_the_printed_tables_and_released_files() -> None:
    text = files("heedful.papers").joinpath("published_tables", "numbers.csv").read_text(encoding="utf-8")
    header, *rows = csv.reader(text.splitlines())
    assert tuple(header) == derive_published.COLUMNS
    assert [(*about, float(value)) for *about, value in rows] == list(derive_published.rows())


def test_sizes_are_those_of_each_papers_table_1() -> None:
    assert published_sizes("jain-wallace", "sst")["train", "", ""] == 3034 + 3321
    assert published_sizes("wiegreffe-pinter", "sst")["train", "", "class 1"] == 3321
    assert published_sizes("attefa", "mock-5") == published_sizes("attefa", "mock-5-fillers-7") != {}
    assert published_sizes("attefa", "mine") == published_sizes("wiegreffe-pinter", "mock-5") == {}


def test_the_song_is_found_where_a_trial_is_told_under_it_and_the_first_paper_elsewhere() -> None:
    ours, first = published_numbers("agreement", SST, "disagreement"), published_numbers("agreement", SST)
    gradient = ("mean", "attention~gradient", "")
    assert ours["mean", "attention~lime", ""] == 0.1326
    assert ours["std", "integrated-gradients~gradient-shap", ""] == 0.0382
    assert gradient not in ours
    assert ("mean", "attention~lime", "") not in first
    assert first[gradient] == published_numbers("agreement", SST, "jain-wallace")[gradient]
    assert published_numbers("performance", SST, "disagreement") == plain({"accuracy": 0.826})
    arms = published_numbers("uniform-baseline", SST, "disagreement")
    assert arms == named("accuracy", {"learned": 0.826, "uniform": 0.823})
    assert published_numbers("faithfulness", SST, "disagreement") == {}


def test_transformers_are_set_beside_distilbert_with_rollout_and_flow() -> None:
    quora = {"corpus": "qqp", "encoder": "some-checkpoint", "attention": "self"}
    found = published_numbers("agreement", quora, "disagreement")
    assert found["mean", "rollout~deep-lift", ""] == 0.2267
    assert found["mean", "flow~integrated-gradients", ""] == 0.2426
    assert not any("attention" in pair for _, pair, _ in found)
    assert published_numbers("performance", quora, "disagreement") == plain({"accuracy": 0.888})
    imdb = published_numbers("agreement", {**quora, "corpus": "imdb"}, "disagreement")
    assert not any("flow" in pair for _, pair, _ in imdb)


@pytest.mark.parametrize("attention", ["additive", "self"])
def test_every_pair_of_tables_1_and_2_has_our_name(attention: str) -> None:
    number, encoder, called = (2, "bilstm", "attention") if attention == "additive" else (1, "checkpoint", "rollout")
    printed = raw(f"disagreement_table{number}")["values"]
    for corpus, theirs in DISAGREEMENT_LABELS.items():
        about = {"corpus": corpus, "encoder": encoder, "attention": attention}
        found = published_numbers("agreement", about, "disagreement")
        pairs = [f"{one}~{other}" for one, other in combinations((called, *PAPER_METHODS), 2)]
        assert [found["mean", pair, ""] for pair in pairs] == list(printed[theirs].values())


def test_the_paper_prints_nothing_for_other_measures_models_and_corpora() -> None:
    for change in ({"measure": "feature"}, {"attention": "dot"}, {"encoder": "gru"}, {"corpus": "known-xor"}):
        assert published_numbers("agreement", {**SST, **change}, "disagreement") == {}, change
    assert published_numbers("agreement", {**SST, "measure": "spearman"}) == {}
    assert published_numbers("agreement", {**SST, "measure": "kendall"}) == published_numbers("agreement", SST)


def test_published_scores_are_those_behind_table_2() -> None:
    found = published_numbers("performance", {"corpus": "sst", "encoder": "bilstm", "attention": "additive"})
    scores = {"f1": 0.78352, "f1_micro": 0.80812, "f1_macro": 0.80561, "accuracy": 0.80812, "roc_auc": 0.90244}
    assert found == pytest.approx(plain(scores))


def test_published_permutation_medians_are_those_of_figure_3() -> None:
    found = published_numbers("permutation", {"corpus": "sst", "encoder": "bilstm", "attention": "additive"})
    bins = ("0.00 to 0.25", "0.25 to 0.50", "0.50 to 0.75", "0.75 to 1.00")
    medians = [found["median_change", "", f"class 0, attention {each}"] for each in bins]
    assert medians == [0.0271, 0.0472, 0.0793, 0.107]
    assert ("median_change", "", f"class 1, attention {bins[3]}") not in found


def test_nothing_is_published_about_a_users_own_corpus() -> None:
    assert published_numbers("permutation", {"corpus": "mine", "encoder": "gru", "attention": "dot"}) == {}


# The printed tables of AtteFa and Wiegreffe & Pinter follow from their printed rows by our functions. A number printed
# with three digits stands for all numbers within .0005 of it.

ROUNDED = 0.0005
"""How far a number may be from its three printed digits."""
FACTOR = 0.6931
"""What the paper divides JSD by, where we take ln 2."""
UNITS = {"epoch": 1.0, "f1": 0.001, "tvd": 0.001, "jsd": 0.001, "attefa": 0.0001}
"""The last printed digit of table 3's cells."""
EXACT = 1e-9
MODELS = [(corpus, encoder) for corpus in AttefaOptions.known_corpora for encoder in ("bilstm", "average")]


def adversaries(corpus: str, encoder: str) -> pd.DataFrame:
    """The printed rows as `AtteFa.summary` reads them; what print lacks is undefined."""
    lacking = ("accuracy", "constant", "collapse", "share_of_bound", "attefa_of_bound", "base_f1", "base_accuracy")
    undefined = dict.fromkeys(lacking, math.nan)
    return pd.DataFrame(
        [{"kind": "adversary", "base": 10, **row, **undefined} for row in attefa_seed_rows(corpus, encoder)]
    )


def possible(row: dict[str, float], scale: float) -> tuple[float, float]:
    """The least and the largest AtteFa of numbers that print as this row's TVD and JSD; JSD is at most ln 2."""
    tvd, jsd = row["tvd"], row["jsd"]
    least = attefa(max(tvd - ROUNDED, 0.0) / 0.5, min(jsd + ROUNDED, math.log(2)) / scale)
    return least, attefa((tvd + ROUNDED) / 0.5, (jsd - ROUNDED) / scale)


@pytest.mark.parametrize("scale", [FACTOR, math.log(2)], ids=["by their factor", "by ln 2"])
def test_all_252_ratios_follow_from_tvd_and_jsd(scale: float) -> None:
    rows = [row for corpus, encoder in MODELS for row in attefa_seed_rows(corpus, encoder)]
    assert len(rows) == 252
    for row in rows:
        least, most = possible(row, scale)
        assert least - ROUNDED - EXACT <= row["attefa"] <= most + ROUNDED + EXACT, row


def test_a_ratio_that_does_not_follow_would_be_noticed() -> None:
    # Half of the TVD, that is the other scale of total variation, must fall out of nearly every interval.
    rows = [row for corpus, encoder in MODELS for row in attefa_seed_rows(corpus, encoder)]
    halved = [(row, possible({**row, "tvd": row["tvd"] / 2}, FACTOR)) for row in rows if row["tvd"] >= 0.01]
    assert len(halved) > 100
    assert all(not least - ROUNDED <= row["attefa"] <= most + ROUNDED for row, (least, most) in halved)


def test_every_model_has_the_nine_seeds_of_the_paper_and_they_are_ours() -> None:
    for corpus, encoder in MODELS:
        assert tuple(int(row["seed"]) for row in attefa_seed_rows(corpus, encoder)) == PAPER_SEEDS, (corpus, encoder)


def test_all_280_cells_of_table_3_follow_from_the_rows_of_tables_4_and_5() -> None:
    # Mean and population deviation move by no more than the largest change of a row: the mean is an average of the
    # rows, the deviation the length of their centred vector over sqrt(9), and centring lengthens no vector.
    checked = 0
    for corpus, encoder in MODELS:
        ours = AtteFa.summary(adversaries(corpus, encoder))
        theirs = published_numbers("attefa", {"corpus": corpus, "encoder": encoder, "attention": "additive"})
        for name, unit in UNITS.items():
            within = (0.0 if name == "epoch" else ROUNDED) + unit / 2 + EXACT
            for cell in (name, f"population_std_{name}"):
                assert abs(value_of(ours, cell) - theirs[cell, "", ""]) <= within, (corpus, encoder, cell)
                checked += 1
    assert checked == 280


def test_printed_deviations_are_those_of_the_population_and_not_of_a_sample() -> None:
    sample = []
    for corpus, encoder in MODELS:
        ours = AtteFa.summary(adversaries(corpus, encoder))
        theirs = published_numbers("attefa", {"corpus": corpus, "encoder": encoder, "attention": "additive"})
        # Epochs are printed exactly in the rows: only the cell is rounded.
        sample.append(abs(value_of(ours, "sample_std_epoch") - theirs["population_std_epoch", "", ""]) <= 0.5)
    assert not all(sample)


def curve_as_instances(corpus: str) -> pd.DataFrame:
    """Instances whose means are the printed rows of table 5: of 1000 positive and 1000 claimed, 1000 F1 are hits."""
    parts = []
    for strength, f1, tvd, jsd in published_tradeoff(corpus):
        hits = round(1000 * f1)
        part = pd.DataFrame(
            {"label": [1] * 1000 + [0] * 1000, "predicted": 0, "jsd": jsd, "stvd": 2 * tvd, "bound": 1.0}
        )
        part["answered"] = [1] * hits + [0] * (1000 - hits) + [1] * (1000 - hits) + [0] * hits
        parts.append(part.assign(kind="lambda", setting=strength, best_epoch=1))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("corpus", ["diabetes", "anemia", "sst", "imdb"])
def test_table_4_is_what_its_rule_chooses_from_table_5(corpus: str) -> None:
    summary = AdversarialTradeoff.summary(curve_as_instances(corpus))
    row = corpus_row("wp_table4", corpus)
    assert row["jsd"] > DIFFERENT_JSD
    assert value_of(summary, "chosen_lambda") == row["lambda"]
    ours = [value_of(summary, metric, f"lambda {row['lambda']:g}") for metric in ("f1", "tvd", "jsd")]
    assert ours == pytest.approx([row[name] for name in ("f1", "tvd", "jsd")])


@pytest.mark.parametrize("corpus", ["diabetes", "anemia", "sst", "imdb"])
def test_the_published_curve_bears_the_names_of_our_summary(corpus: str) -> None:
    summary = AdversarialTradeoff.summary(curve_as_instances(corpus))
    found = published_numbers("adversarial-tradeoff", {"corpus": corpus, "encoder": "bilstm", "attention": "additive"})
    found = {key: value for key, value in found.items() if key[1] != "uniform"}
    assert len(found) == 3 * len(published_tradeoff(corpus)) + 1
    assert {key: value_of(summary, *key) for key in found} == pytest.approx(found)


def test_published_distributions_are_those_of_the_decoded_figures() -> None:
    theirs = published_distributions("sst", "bilstm", "additive")
    decoded = json.loads((Path(__file__).parent / "published_tables" / "jw_online_figures.json").read_text())[
        "sst+lstm+tanh"
    ]
    for name, key in (("attention~gradient", "fig2_tau_grad_hist"), ("epsilon_max", "fig4_emaxjsd_hist")):
        for ours, drawn in zip(theirs.shares[name], decoded[key], strict=True):
            assert ours == pytest.approx(drawn["frac"], abs=5e-5)
            assert sum(ours) == pytest.approx(1, abs=5e-3)
    first = decoded["fig3_permutation_violin"]["[0.00,0.25)"]
    assert theirs.quartiles["median_change"][0] == tuple(
        pytest.approx(violin["q25_q50_q75"], abs=5e-5) for violin in first
    )
    assert published_distributions("rotten-tomatoes", "bilstm", "additive") == ({}, {})
