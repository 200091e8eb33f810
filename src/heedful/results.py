"""Summaries of finished trials as plain values, for `--json` and for the screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from heedful.core.workspace import Json, Workspace
from heedful.runner import Outcome
from heedful.trials.trial import Trial


def summaries(outcomes: Iterable[Outcome], workspace: Workspace) -> list[dict[str, Json]]:
    """One entry per finished trial: trial, corpus, encoder, attention, seed, n and a flat summary of name: number.

    Numbers that are undefined are null, never left out.
    """
    return [
        summarised(outcome.recipe, workspace)
        for outcome in outcomes
        if outcome.error is None and isinstance(outcome.recipe, Trial)
    ]


def summarised(trial: Trial, workspace: Workspace) -> dict[str, Json]:
    """One finished trial's entry."""
    artefact = workspace.get(trial)
    about = artefact.notes["about"]
    assert isinstance(about, Mapping)
    summary = trial.summary(artefact.table)
    return {
        "trial": trial.name,
        **about,
        "n": artefact.notes["n"],
        "summary": {name: number if math.isfinite(number) else None for name, number in summary.items()},
    }


def lines(outcomes: Iterable[Outcome], workspace: Workspace) -> list[str]:
    """A line per finished trial for the screen: what it was about, and what came out in plain words."""
    return [
        _line(outcome.recipe, workspace)
        for outcome in outcomes
        if outcome.error is None and isinstance(outcome.recipe, Trial)
    ]


def _line(trial: Trial, workspace: Workspace) -> str:
    artefact = workspace.get(trial)
    about = artefact.notes["about"]
    assert isinstance(about, Mapping)
    where = f"{about['corpus']}, {about['encoder']}, {about['attention']}, seed {about['seed']}"
    return f"{trial.name} ({where}): {trial.reading(trial.summary(artefact.table))}"
