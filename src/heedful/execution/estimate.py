"""What a run would make, and how long that takes by what similar artefacts of the workspace took."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from heedful.store.recipe import Json, Recipe, plain_settings, seed_group
from heedful.store.workspace import Workspace


@dataclass(frozen=True)
class PlanRow:
    """Recipes of one kind on one model.

    Args:
        what: a trial, or a kind of artefact.
        waiting: how many are not finished.
        seconds: the expected time of those of them for which there is an estimate.
        unknown: how many have none.
    """

    what: str
    corpus: str
    model: str
    finished: int = 0
    waiting: int = 0
    seconds: float = 0.0
    unknown: int = 0


def plan_rows(plan: Sequence[Recipe], workspace: Workspace) -> list[PlanRow]:
    """The recipes of a plan in rows, in its order, with the expected time of what is left."""
    times, missing = RecordedTimes(workspace), {*workspace.find_missing(plan)}
    rows: dict[tuple[str, ...], PlanRow] = {}
    for recipe in plan:
        facts = recipe.describe()
        model = ", ".join(str(facts[name]) for name in ("encoder", "attention") if facts.get(name))
        key = (str(facts.get("trial") or recipe.kind), str(facts.get("corpus", "")), model)
        row = rows.get(key, PlanRow(*key))
        if recipe not in missing:
            rows[key] = replace(row, finished=row.finished + 1)
            continue
        seconds = times.expect(recipe)
        rows[key] = replace(
            row,
            waiting=row.waiting + 1,
            seconds=row.seconds + (seconds or 0.0),
            unknown=row.unknown + (seconds is None),
        )
    return list(rows.values())


class RecordedTimes:
    """How long the artefacts of a workspace took on this kind of device, by what they have in common with others."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.seconds: dict[Hashable, list[float]] = {}
        device, records = workspace.device.partition(":")[0], workspace.read_all_made()
        for entry in workspace.scan()[0] if records else ():
            if entry.name in records and entry.device == device:
                for key in _keys(entry.recipe_class, entry.group, entry.facts, entry.settings):
                    self.seconds.setdefault(key, []).append(records[entry.name].seconds)

    def expect(self, recipe: Recipe) -> float | None:
        """The median of the most similar artefacts: other seeds, else other settings, else other encoders.

        Only artefacts of the same corpus with the same limit count; None where there are none.
        """
        name, group = type(recipe).__name__, seed_group(recipe, self.workspace.data_dir)
        keys = _keys(name, group, recipe.describe(), plain_settings(recipe))
        return next((median(self.seconds[key]) for key in keys if key in self.seconds), None)


def _keys(recipe_class: str, group: str, facts: Mapping[str, Json], settings: Mapping[str, Json]) -> Iterable[Hashable]:
    """What similar artefacts share, the most similar first."""
    task = (recipe_class, *(str(facts.get(name)) for name in ("trial", "method", "corpus", "quick")))
    task += (str(settings.get("limit")),)
    yield recipe_class, group
    yield *task, str(facts.get("encoder")), str(facts.get("attention"))
    yield task
