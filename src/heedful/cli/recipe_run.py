"""Running recipes from a command: the plan, the results and the failures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.cli.console import check_files, complain, progress_of, say, screen, write_file

if TYPE_CHECKING:
    from heedful.cli.options import PoolOptions
    from heedful.execution.outcome import Outcome
    from heedful.store.recipe import Json, Recipe
    from heedful.store.workspace import Workspace
    from heedful.trials.trial import Trial
    from heedful.types import Corpus

MODEL_FACTS = ("corpus", "encoder", "attention", "seed", "training")
"""The facts about a model that are printed with a result; a model that was trained elsewhere has no seed."""


def say_columns(corpus: Corpus, data_dir: Path) -> None:
    """Say which columns of the user's table are read, and what is assumed about them."""
    from heedful.data.table import ASSUMED, COLUMNS

    notes = corpus.read(data_dir).notes
    say(f"Data: {corpus.name}; columns: {notes[COLUMNS]}.")
    if ASSUMED in notes:
        say(f"Assumption: {notes[ASSUMED]}.")


def print_plan(recipes: Sequence[Recipe], workspace: Workspace) -> None:
    """Print how many recipes of each kind are left to run."""
    from collections import Counter

    from heedful.devices import arithmetic_notes
    from heedful.execution import runner

    for note in arithmetic_notes(workspace.device):
        say(f"Arithmetic: {note}.")
    plan = runner.topological_order(recipes)
    waiting = Counter(recipe.kind for recipe in plan if not workspace.has(recipe))
    if not waiting:
        say(f"All {len(plan)} recipes are finished.")
        return
    kinds = ", ".join(_counted(count, kind) for kind, count in waiting.items())
    say(f"To run: {kinds}; {len(plan) - waiting.total()} of {len(plan)} recipes are finished.")


def _counted(count: int, kind: str) -> str:
    """A number of recipes of a kind.

    >>> _counted(1, "attributions"), _counted(2, "model"), _counted(3, "head plausibility")
    ('1 attribution', '2 models', '3 head plausibilities')
    """
    one = kind.removesuffix("s")
    several = f"{one.removesuffix('y')}ies" if one.endswith("y") else f"{one}s"
    return f"{count} {one if count == 1 else several}"


def run_recipes(
    recipes: Sequence[Recipe],
    workspace: Workspace,
    pool: PoolOptions,
    json_file: Path | None = None,
    *,
    show_results: bool = True,
) -> int:
    """Run the recipes, write the JSON file, print results and failures; the exit code."""
    from heedful.execution import runner
    from heedful.trials.trial import Trial

    check_files({"--json": json_file})
    with progress_of(workspace):
        outcomes = runner.run(recipes, workspace, where=pool.where, workers=pool.workers)
    trials = [outcome.recipe for outcome in outcomes if outcome.error is None and isinstance(outcome.recipe, Trial)]
    if json_file is not None:
        results = {"results": [summary_record(trial, workspace) for trial in trials]}
        write_file(json_file, json.dumps(results, indent=1) + "\n")
    for trial in trials if show_results and not screen.quiet else ():
        facts = trial.describe()
        model = ", ".join(f"{'seed ' * (name == 'seed')}{facts[name]}" for name in MODEL_FACTS if name in facts)
        say(f"{trial.name} ({model}): {trial.interpretation(workspace.get(trial).summary)}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for line in failure_lines(failed, workspace):
        complain(f"failed: {line}")
    return 1 if failed else 0


def failure_lines(failed: Sequence[Outcome], workspace: Workspace) -> list[str]:
    """One line per cause: the first recipe that failed, how many others failed, and how many were skipped."""
    causes: dict[str, list[Outcome]] = {}
    for outcome in failed:
        if outcome.cause is None:
            name = workspace.artefact_name(outcome.recipe)
            causes.setdefault(" ".join(str(outcome.error).replace(name, "it").split()), []).append(outcome)
    lines = []
    for error, outcomes in causes.items():
        recipes = [outcome.recipe for outcome in outcomes]
        skipped = sum(outcome.cause in recipes for outcome in failed)
        more = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
        file = outcomes[0].traceback_file
        where = f" (traceback: {file})" if file else ""
        after = f"; skipped because of it: {skipped}" if skipped else ""
        lines.append(f"{workspace.artefact_name(recipes[0])}{more}: {error}{where}{after}")
    return lines


def summary_record(trial: Trial, workspace: Workspace) -> dict[str, Json]:
    """A finished trial for `--json`: its facts, its settings and the tidy rows of its summary; undefined is null."""
    from heedful.store.recipe import plain_settings
    from heedful.store.shown_path import shown_settings

    artefact = workspace.get(trial)
    rows: list[Json] = [
        {str(name): None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
        for row in artefact.summary.to_dict("records")
    ]
    return {
        **trial.describe(),
        "n": artefact.notes["n"],
        "settings": shown_settings(plain_settings(trial)),
        "summary": rows,
    }
