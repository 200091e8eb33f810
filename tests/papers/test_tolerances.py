"""The table of tolerances against the values that were fixed when the checks were written."""

from __future__ import annotations

import pytest

from heedful.papers.published_cells import published_cells
from heedful.papers.tolerances import expectations
from heedful.table_view import Band

LIMITS = {
    paper: {cell.id.removeprefix(f"{paper}/"): cell.limit for cell in published_cells(paper)}
    for paper in ("jain-wallace", "wiegreffe-pinter", "attefa", "disagreement")
}
PATH_METHODS = "mean/integrated-gradients~gradient-shap"


@pytest.mark.parametrize(
    ("paper", "cell", "tolerance"),
    [
        ("jain-wallace", "agreement-table-2/imdb/average/additive/mean/attention~gradient/class 1", 0.1),
        ("jain-wallace", "agreement-table-2/babi-1/bilstm/additive/significant/attention~gradient", 0.13),
        ("jain-wallace", "performance/20news/bilstm/additive/f1", 0.02),
        ("jain-wallace", "performance/babi-2/bilstm/additive/accuracy", 0.02),
        ("jain-wallace", "performance/sst/bilstm/additive/accuracy", None),
        ("jain-wallace", "performance/sst/bilstm/dot/f1", None),
        ("jain-wallace", "agreement-table-2/sst/bilstm/additive/std/attention~gradient/class 0", None),
        ("wiegreffe-pinter", "uniform-baseline/imdb/bilstm/additive/f1/uniform", 0.025),
        ("wiegreffe-pinter", "guided-model/imdb/average/additive/f1/trained", 0.025),
        ("wiegreffe-pinter", "adversarial-tradeoff/sst/bilstm/additive/f1/lambda 0.001", 0.025),
        ("wiegreffe-pinter", "adversarial-tradeoff/sst/bilstm/additive/tvd/lambda 0.001", 0.01),
        ("wiegreffe-pinter", "adversarial-tradeoff/sst/bilstm/additive/jsd/lambda 0.001", 0.1),
        ("wiegreffe-pinter", "adversarial-tradeoff/sst/bilstm/additive/jsd/lambda 1e-05", 0.1),
        ("wiegreffe-pinter", "adversarial-tradeoff/sst/bilstm/additive/jsd/lambda 0.000525", None),
        ("attefa", "attefa/sst/bilstm/additive/attefa", 0.03),
        ("attefa", "attefa/imdb/average/additive/attefa", 0.06),
        ("attefa", "attefa/imdb/average/additive/jsd", 0.04),
        ("attefa", "attefa/mock-5/average/additive/attefa", 0.03),
        ("attefa", "attefa/mock-5/average/additive/jsd", None),
        ("attefa", "attefa/mock-1q/average/additive/attefa", None),
        ("attefa", "attefa/mock-1/bilstm/additive/base_f1", 0.025),
        ("disagreement", "agreement/snli/bilstm/additive/mean/attention~lime", 0.1),
        ("disagreement", "agreement/snli/bilstm/additive/mean/lime~deep-lift", 0.12),
        ("disagreement", f"agreement/sst/bilstm/additive/{PATH_METHODS}", 0.03),
        ("disagreement", "agreement/sst/bilstm/additive/mean/integrated-gradients~deep-lift", 0.07),
        ("disagreement", "agreement/sst/bilstm/additive/mean/attention~deep-shap", None),
        ("disagreement", f"agreement/sst/transformer/self/{PATH_METHODS}", None),
        ("disagreement", "uniform-baseline/qqp/bilstm/additive/accuracy/uniform", 0.02),
    ],
)
def test_tolerances_are_those_of_the_specification(paper: str, cell: str, tolerance: float | None) -> None:
    assert LIMITS[paper][cell].tolerance == tolerance
    assert bool(LIMITS[paper][cell].source) == LIMITS[paper][cell].is_judged


@pytest.mark.parametrize(
    ("paper", "cell", "band"),
    [
        ("jain-wallace", "performance/sst/bilstm/additive/f1_micro", Band(0.8, 0.84)),
        ("jain-wallace", "agreement/sst/average/additive/significant/attention~gradient", Band(0.75)),
        ("wiegreffe-pinter", "guided-model/sst/average/additive/f1/adversary", Band(high=-0.1)),
        # In print, this adversary's guide is not far below uniform weights either.
        ("wiegreffe-pinter", "guided-model/anemia/average/additive/f1/adversary", None),
        ("attefa", "attefa/mock-1/bilstm/additive/attefa", Band(high=0.12)),
        ("attefa", "attefa/mock-3q/average/additive/attefa", Band(high=0.02)),
    ],
)
def test_bands_stand_where_there_is_no_tolerance(paper: str, cell: str, band: Band | None) -> None:
    assert LIMITS[paper][cell].band == band


@pytest.mark.parametrize("paper", LIMITS)
def test_every_band_has_the_printed_number_inside(paper: str) -> None:
    """A band that the authors' own number misses would have been set for something else."""
    for cell in published_cells(paper):
        if cell.limit.band is not None and not cell.limit.minus:
            assert cell.limit.band.verdict(cell.printed) == "inside", cell.id


def test_the_notes_of_chapters_find_their_tolerances() -> None:
    assert expectations("jain-wallace").tolerance("tau") == 0.1
    assert expectations("disagreement").tolerance("lime") == 0.12
    assert expectations("scaffold").cells == ()
