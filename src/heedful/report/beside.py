"""Free weights beside learned ones: what a trained attention module reached, where an adversary of the subject exists.

Jain & Wallace choose weights freely for each text; whether any model could learn to give them is another question,
which the trained adversaries of the later papers answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heedful.papers._chapter import Cell, TableView
from heedful.report.runs import Run, json_object
from heedful.store.workspace import IndexEntry
from heedful.trials.adversarial_training import AdversarialTradeoff, AtteFa


def trained_adversary_table(run: Run, finished: Sequence[IndexEntry]) -> tuple[TableView, ...]:
    """For a trial of free weights, a table with the trained adversaries of the same subject; else nothing."""
    if run.trial.name != "adversary":
        return ()
    same = [each for each in finished if each.recipe.get("subject") == run.recipe["subject"]]
    trained = [row for each in same for row in _trained_adversary_rows(each)]
    if not trained:
        return ()
    table = run.artefact.table
    free: tuple[Cell, ...] = (
        f"free weights for each text ({run.recipe['solver']})",
        float(table["epsilon_max"].mean()),
        float(table["change"].mean()),
    )
    columns = ("attention", "mean divergence (JSD)", "mean change of output (0 to 1)")
    note = (
        "Free weights are chosen for each text by itself, at a change of at most epsilon; a trained adversary is one "
        "model that must do for all texts, also for those that it never saw."
    )
    return (TableView("What a trained attention module reaches beside free weights", columns, (free, *trained), note),)


def _trained_adversary_rows(each: IndexEntry) -> Iterator[tuple[Cell, ...]]:
    if each.recipe_class == AdversarialTradeoff.__name__:
        table = each.load().table
        for strength, rows in table[table["kind"] == "lambda"].groupby("setting"):
            name = f"trained adversary, lambda {float(str(strength)):g}"
            yield name, float(rows["jsd"].mean()), float(rows["stvd"].mean())
    if each.recipe_class == AtteFa.__name__:
        table, seed = each.load().table, json_object(each.recipe["subject"])["seed"]
        rows = table[(table["kind"] == "adversary") & (table["base"] == seed)]
        yield f"trained adversary of AtteFa, mean of {len(rows)}", float(rows["jsd"].mean()), float(rows["stvd"].mean())
