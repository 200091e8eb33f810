"""Summaries of finished trials as plain values, for `--json` and for the screen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

from heedful.core.workspace import Json, Workspace
from heedful.runner import Outcome
from heedful.trials.trial import Trial


def summaries(outcomes: Iterable[Outcome], workspace: Workspace) -> list[dict[str, Json]]:
    """One entry per finished trial: trial, corpus, encoder, attention, seed, n, settings and a flat summary.

    Settings are the trial's own plain fields, such as an adversary's epsilon: they tell apart what else is alike.
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
        "settings": settings(trial),
        "summary": {name: number if math.isfinite(number) else None for name, number in summary.items()},
    }


def settings(trial: Trial) -> dict[str, Json]:
    """The fields of a trial that are plain values or tuples of them: neither its subject nor other recipes."""
    assert is_dataclass(trial)
    values = {field.name: getattr(trial, field.name) for field in fields(trial)}
    return {name: _jsonable(value) for name, value in values.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def _jsonable(value: object) -> Json:
    if isinstance(value, tuple):
        return [_jsonable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    assert value is None or isinstance(value, bool | int | float | str)
    return value


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
