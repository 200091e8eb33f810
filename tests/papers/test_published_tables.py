"""AtteFa's and Wiegreffe & Pinter's printed tables follow from their printed rows by our own functions.

Tolerances are intervals of rounding: a number printed with three digits stands for all numbers within .0005 of it.
"""

from __future__ import annotations

import math

import pandas as pd
import pytest

from heedful.papers.published import (
    ATTEFA_TABLE_CORPORA,
    attefa_seed_rows,
    corpus_row,
    published_numbers,
    published_tradeoff,
)
from heedful.trials.adversarial_training import DIFFERENT_JSD, PAPER_SEEDS, AdversarialTradeoff, AtteFa, attefa

ROUNDED = 0.0005
"""How far a number may be from its three printed digits."""
FACTOR = 0.6931
"""What the paper divides JSD by, where we take ln 2."""
UNITS = {"epoch": 1.0, "f1": 0.001, "tvd": 0.001, "jsd": 0.001, "attefa": 0.0001}
"""The last printed digit of table 3's cells."""
EXACT = 1e-9
MODELS = [(corpus, encoder) for corpus in ATTEFA_TABLE_CORPORA for encoder in ("bilstm", "average")]


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
        summary = AtteFa.flat_summary(adversaries(corpus, encoder))
        print_cells = published_numbers("attefa", {"corpus": corpus, "encoder": encoder, "attention": "additive"})
        for name, unit in UNITS.items():
            within = (0.0 if name == "epoch" else ROUNDED) + unit / 2 + EXACT
            for cell in (name, f"population_std_{name}"):
                assert abs(summary[cell] - print_cells[cell]) <= within, (corpus, encoder, cell)
                checked += 1
    assert checked == 280


def test_printed_deviations_are_those_of_the_population_and_not_of_a_sample() -> None:
    sample = []
    for corpus, encoder in MODELS:
        summary = AtteFa.flat_summary(adversaries(corpus, encoder))
        print_cells = published_numbers("attefa", {"corpus": corpus, "encoder": encoder, "attention": "additive"})
        # Epochs are printed exactly in the rows: only the cell is rounded.
        sample.append(abs(summary["sample_std_epoch"] - print_cells["population_std_epoch"]) <= 0.5)
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
    summary = AdversarialTradeoff.flat_summary(curve_as_instances(corpus))
    row = corpus_row("wp_table4", corpus)
    assert row["jsd"] > DIFFERENT_JSD
    assert summary["chosen_lambda"] == row["lambda"]
    place = f"lambda_{row['lambda']:g}"
    assert [summary[f"{name}.{place}"] for name in ("f1", "tvd", "jsd")] == pytest.approx(
        [row[name] for name in ("f1", "tvd", "jsd")]
    )


@pytest.mark.parametrize("corpus", ["diabetes", "anemia", "sst", "imdb"])
def test_the_published_curve_bears_the_names_of_our_summary(corpus: str) -> None:
    summary = AdversarialTradeoff.flat_summary(curve_as_instances(corpus))
    found = published_numbers("tradeoff", {"corpus": corpus, "encoder": "bilstm", "attention": "additive"})
    found = {name: value for name, value in found.items() if not name.endswith(".uniform")}
    assert len(found) == 3 * len(published_tradeoff(corpus)) + 1
    assert {name: summary[name] for name in found} == pytest.approx(found)
