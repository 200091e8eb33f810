"""Summaries of finished trials as plain values, for `--json` and for the screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

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


def lines(found: Sequence[Mapping[str, Json]]) -> list[str]:
    """A line per trial for the screen: what it was about and its first few numbers."""
    return [_line(entry) for entry in found]


def _line(entry: Mapping[str, Json]) -> str:
    summary = entry["summary"]
    assert isinstance(summary, Mapping)
    about = " ".join(str(entry[key]) for key in ("corpus", "encoder", "attention") if key in entry)
    numbers = [f"{name} {value:.3f}" for name, value in summary.items() if isinstance(value, float) and name != "n"]
    return f"{entry['trial']:12} {about} seed {entry['seed']}, n {entry['n']}: " + ", ".join(numbers[:5])
