"""Rows of `--json` with published numbers, and which of them are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.cli.recipe_run import summary_record
from heedful.papers import published
from heedful.papers.jain_wallace import JainWallaceOptions
from heedful.papers.wiegreffe_pinter import WiegreffePinterOptions
from heedful.results import Statistic, summary_frame
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.trials.agreement import Agreement
from heedful.trials.performance import Performance
from heedful.trials.trial import Trial

SST = {"corpus": "sst", "encoder": "bilstm", "attention": "additive"}


def first(recipes: list[Recipe], kind: type[Trial]) -> Trial:
    return next(recipe for recipe in recipes if isinstance(recipe, kind))


def rows(
    trial: Trial, summary: list[Statistic], monkeypatch: pytest.MonkeyPatch, paper: str
) -> list[dict[str, object]]:
    """The rows of `--json` for a trial with this summary."""
    artefact = Artefact(summary=summary_frame(summary), notes={"n": 1})
    monkeypatch.setattr(Workspace, "get", lambda workspace, recipe: artefact)
    record = summary_record(trial, Workspace(Path("unused")), paper)["summary"]
    assert isinstance(record, list)
    return [{**row} for row in record if isinstance(row, dict)]


def test_rows_have_the_published_number_its_tolerance_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = published.find_published("performance", SST, "jain-wallace")[1]["f1", "", ""]
    trial = first(JainWallaceOptions(corpora=("sst",), encoders=("bilstm",)).recipes(), Performance)
    near, far, other = rows(
        trial,
        [Statistic("f1", value=theirs + 0.019), Statistic("f1", subset="x", value=1.0), Statistic("brier", value=0.2)],
        monkeypatch,
        "jain-wallace",
    )
    assert (near["published"], near["tolerance"], near["verdict"]) == (theirs, 0.02, "inside")
    assert not {"published", "tolerance", "verdict"} & (far.keys() | other.keys())
    [miss] = rows(trial, [Statistic("f1", value=theirs - 0.021)], monkeypatch, "jain-wallace")
    assert miss["verdict"] == "outside"


def test_another_protocol_has_no_published_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = first(JainWallaceOptions(corpora=("sst",), encoders=("bilstm",), quick=True).recipes(), Performance)
    [row] = rows(trial, [Statistic("f1", value=0.8)], monkeypatch, "jain-wallace")
    assert "published" not in row
    dev = first(WiegreffePinterOptions(corpora=("sst",), select="dev").recipes(), Performance)
    [row] = rows(dev, [Statistic("f1", value=0.8)], monkeypatch, "wiegreffe-pinter")
    assert "published" not in row


def test_means_are_judged_and_standard_deviations_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = first(JainWallaceOptions(corpora=("sst",), encoders=("bilstm",)).recipes(), Agreement)
    statistics = [
        Statistic(metric, "attention~gradient", "class 0", value=0.3) for metric in ("mean", "significant", "std")
    ]
    judged = {
        row["metric"]: (row["tolerance"], row["verdict"] is not None)
        for row in rows(trial, statistics, monkeypatch, "jain-wallace")
    }
    assert judged == {"mean": (0.1, True), "significant": (0.13, True), "std": (None, False)}
