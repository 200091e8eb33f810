"""Published numbers under our names, and the tables and figures that set them beside ours."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest

from heedful.core.figures import Bars
from heedful.printed import published, recomputed, table
from heedful.report.content import Pair
from heedful.report.tabulating import DATASETS, Told, figures, tables

SST = {"corpus": "sst", "encoder": "bilstm", "attention": "additive"}


def told(trial: str, encoder: str, summary: dict[str, float]) -> Told:
    facts = {"vocabulary": 13826.0, "length": 19.2, "train": 6355.0, "dev": 821.0, "test": 1725.0}
    return Told(trial, "sst", encoder, "additive", summary, facts)


def test_correlations_are_those_of_table_2_to_the_printed_digit() -> None:
    for row in table("jw_table2"):
        corpus = next(ours for ours, theirs in DATASETS.items() if theirs == row["dataset"])
        for key, encoder, pair in (
            ("grad_bilstm", "bilstm", "attention~gradient"),
            ("grad_average", "average", "attention~gradient"),
            ("loo_bilstm", "bilstm", "attention~leave-one-out"),
        ):
            found = published("agreement", {"corpus": corpus, "encoder": encoder, "attention": "additive"})
            place = pair if row["class"] == "Overall" else f"{pair}.class_{row['class']}"
            assert found[f"mean.{place}"] == pytest.approx(row[key]["mean"], abs=0.0051), (corpus, place)
            assert found[f"significant.{place}"] == pytest.approx(row[key]["sig"], abs=0.0051)


def test_differences_are_those_recomputed_from_the_released_rows() -> None:
    found = published("agreement", SST)
    over = "excess.gradient~leave-one-out over attention~"
    assert found[f"{over}leave-one-out"] == pytest.approx(recomputed("grad_loo_minus_attn_loo")["SST"])
    assert found[f"{over}gradient"] == pytest.approx(recomputed("grad_loo_minus_attn_grad")["SST"])


def test_adversaries_are_those_of_figures_4_and_5() -> None:
    found = published("adversary", SST)
    assert found["epsilon_max.class_0.attention_0.00_to_0.25"] == 0.4992
    assert found["epsilon_max.class_1.attention_0.50_to_0.75"] == 0.3862
    raw = json.loads(files("heedful").joinpath("published", "jw_online_figures.json").read_text(encoding="utf-8"))
    shares = raw["sst+lstm+tanh"]["fig4_emaxjsd_hist"][0]["frac"]
    centres = np.linspace(0, 0.7, 41)[:-1] + 0.7 / 80
    assert found["mean_epsilon_max.class_0"] == pytest.approx(np.average(centres, weights=shares))
    assert found["far.class_0"] == pytest.approx(0.0425 + 0.051 + 0.0274 + 0.0123 + 0.0009, abs=1e-3)


def test_an_empty_cell_of_the_authors_stays_empty() -> None:
    found = published("agreement", {"corpus": "imdb", "encoder": "average", "attention": "dot"})
    assert "mean.attention~gradient" not in found
    assert "mean.attention~leave-one-out" in found


def test_table_1_sets_sizes_and_scores_beside_print() -> None:
    (first,) = tables([told("performance", "bilstm", {"f1": 0.80})])
    assert first.caption.startswith("Table 1")
    assert first.rows[0] == (
        "sst",
        Pair(13826, 16175),
        Pair(19.2, 19),
        Pair(6355, 6355),
        Pair(1725, 1725),
        Pair(0.80, 0.81, 0.02),
    )


def test_table_2_has_a_row_for_every_cell_that_we_have() -> None:
    summary = {f"{name}.attention~gradient.class_{c}": 0.3 for name in ("mean", "std", "significant") for c in (0, 1)}
    (second,) = tables([told("agreement", "average", summary)])
    assert second.caption.startswith("Table 2")
    cells = {(row[0], row[1]): row[2] for row in second.rows}
    assert len(cells) == 6
    assert cells["sst: gradient, average, mean", "0"] == Pair(0.3, 0.61, 0.1)
    assert cells["sst: gradient, average, significant", "1"] == Pair(0.3, 0.83, 0.13)


def test_figures_6_to_8_set_print_beside_ours() -> None:
    over = "excess.gradient~leave-one-out over attention~"
    loo = "mean.attention~leave-one-out"
    bilstm = told("agreement", "bilstm", {f"{over}leave-one-out": 0.3, f"{over}gradient": 0.2, loo: 0.25})
    average = told("agreement", "average", {loo: 0.6})
    found = figures([bilstm, average])
    assert all(isinstance(figure, Bars) for figure in found)
    values = [tuple(series.values for series in figure.series) for figure in found if isinstance(figure, Bars)]
    assert [number for series in values[0] for number in series] == pytest.approx([0.3, 0.36453])
    assert [number for series in values[2] for number in series] == pytest.approx([0.35, 0.331], abs=1e-3)
    assert figures([]) == ()
