"""Running recipes from a command: the plan, the results and the failures."""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.cli.console import check_files, command_start, complain, progress_of, say, screen, write_file
from heedful.cli.options import DEFAULT_WORKSPACE

if TYPE_CHECKING:
    from heedful.cli.options import PoolOptions
    from heedful.execution.estimate import PlanRow
    from heedful.execution.outcome import Outcome
    from heedful.papers.chapter import Result
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


def print_plan(recipes: Sequence[Recipe], workspace: Workspace, *, in_detail: bool = False) -> None:
    """Print how many recipes of each kind are left to run; in detail, also on which models and how long they take."""
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
    if in_detail:
        from heedful.execution.estimate import plan_rows

        _print_rows(plan_rows(plan, workspace))


def _print_rows(rows: Sequence[PlanRow]) -> None:
    """Print a table of what a run would make, and the time that it would take."""
    from heedful.terminal import TableRow, print_table

    columns = ("what", "corpus", "model", "to run", "finished", "time")
    cells = [
        TableRow((row.what, row.corpus, row.model, str(row.waiting), str(row.finished), _expected_time([row])))
        for row in rows
    ]
    note = "Time: computed one after the other, judged by what similar artefacts of this workspace took."
    print_table((f"Expected time: {_expected_time(rows) or 'none'}",), columns, cells, (note,))


def _expected_time(rows: Sequence[PlanRow]) -> str:
    """The expected time of what is left to run, as far as it is known; empty if nothing is left."""
    from heedful.formatting import format_duration

    waiting, unknown = (sum(getattr(row, name) for row in rows) for name in ("waiting", "unknown"))
    known = format_duration(sum(row.seconds for row in rows))
    if not waiting or unknown == waiting:
        return "unknown" if waiting else ""
    return f"{known}, and unknown for {unknown} of {waiting}" if unknown else known


def say_end(workspace: Workspace) -> None:
    """Print how long the command took, and the command that shows the results."""
    from heedful.formatting import format_duration

    took = time.monotonic() - (command_start.get() or time.monotonic())
    is_default = str(workspace.place) == (os.environ.get("HEEDFUL_WORKSPACE") or DEFAULT_WORKSPACE)
    place = "" if is_default else f" --workspace {shlex.quote(str(workspace.place))}"
    say(f"Finished in {format_duration(took)}. Next: heedful report{place}")


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
    paper: str = "",
) -> int:
    """Run the recipes, write the JSON file, print results and failures; the exit code.

    Args:
        paper: the paper whose published numbers are in the JSON file; by default the one that each trial comes from.
    """
    from heedful.execution import runner
    from heedful.trials.trial import Trial

    check_files({"--json": json_file})
    with progress_of(workspace):
        outcomes = runner.run(recipes, workspace, where=pool.where, workers=pool.workers)
    trials = [outcome.recipe for outcome in outcomes if outcome.error is None and isinstance(outcome.recipe, Trial)]
    if json_file is not None:
        results = {"results": [summary_record(trial, workspace, paper or trial.paper) for trial in trials]}
        write_file(json_file, json.dumps(results, indent=1) + "\n")
    if show_results and not screen.quiet:
        for label, trial in zip(trial_labels(trials), trials, strict=True):
            say(f"{label}: {trial.interpretation(workspace.get(trial).summary)}")
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for line in failure_lines(failed, workspace):
        complain(f"failed: {line}")
    return 1 if failed else 0


def trial_labels(trials: Sequence[Trial]) -> list[str]:
    """Each trial with its model, and the settings in which it differs from others on the same model."""
    from heedful.papers.chapter import flat_settings
    from heedful.papers.published import setting_label
    from heedful.store.recipe import canonical_json

    labels, settings = [], [flat_settings(canonical_json(trial, None)) for trial in trials]
    rivals: dict[str, list[int]] = {}
    for number, trial in enumerate(trials):
        facts = trial.describe()
        model = ", ".join(f"{'seed ' * (name == 'seed')}{facts[name]}" for name in MODEL_FACTS if name in facts)
        labels.append(f"{trial.name} ({model}")
        rivals.setdefault(labels[-1], []).append(number)
    for numbers in rivals.values():
        paths = dict.fromkeys(path for number in numbers for path in settings[number])
        differing = [path for path in paths if len({repr(settings[number].get(path)) for number in numbers}) > 1]
        for number in numbers:
            labels[number] += "".join(f", {setting_label(path, settings[number].get(path))}" for path in differing)
    return [f"{label})" for label in labels]


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


def _published_fields(result: Result, metric: str, method: str, subset: str) -> dict[str, Json]:
    """The published number of a row of a summary, its tolerance and the verdict; empty where nothing is published."""
    from heedful.papers.published_cells import judged_twin

    cell = result.cell_name(metric, method, subset)
    twin = judged_twin(cell)
    number = result.judge(metric, method, subset, trial=twin.trial if twin and twin.key == cell.key else "")
    if number.published is None:
        return {}
    return {"published": number.published, "tolerance": number.tolerance, "verdict": number.judgement}


def summary_record(trial: Trial, workspace: Workspace, paper: str) -> dict[str, Json]:
    """A finished trial for `--json`: its facts, its settings and the tidy rows of its summary; undefined is null.

    Rows with a published number of this paper have it as well, with the tolerance and whether ours is within it.
    """
    from heedful.papers import trial_result
    from heedful.store.recipe import plain_settings
    from heedful.store.shown_path import shown_settings

    artefact = workspace.get(trial)
    result = trial_result(trial, artefact, paper)
    rows: list[Json] = [
        {
            **{
                str(name): None if isinstance(value, float) and math.isnan(value) else value
                for name, value in row.items()
            },
            **_published_fields(result, *(str(row[name]) for name in ("metric", "method", "subset"))),
        }
        for row in artefact.summary.to_dict("records")
    ]
    return {
        **trial.describe(),
        "n": artefact.notes["n"],
        "settings": shown_settings(plain_settings(trial)),
        "summary": rows,
    }
