"""Seconds of CPU and peak memory of a report on 3 000 artefacts: `python -m benchmarks.report [FOLDER]`.

One small model is trained and examined, and its artefacts are stored again under 100 learning rates and 3 seeds. This
takes some minutes; with a FOLDER the workspace is kept there and used again. It is not one of the rows of
results.json: there is no peer to compare with.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.timing import peak_megabytes
from heedful.data.splitting import SubsampledCorpus
from heedful.execution.runner import topological_order
from heedful.papers import demo
from heedful.papers.jain_wallace import single_model_trials
from heedful.report import write_report
from heedful.store.recipe import Artefact, Recipe
from heedful.store.workspace import Workspace
from heedful.training.trained_model import TrainedModel
from heedful.training.trainer import Adam
from heedful.trials.performance import Performance

RATES, SEEDS = 100, 3


def fill(place: Workspace) -> None:
    """Store copies of the artefacts of one model, each under a recipe of its own."""
    subject = next(trial.subject for trial in demo() if isinstance(trial, Performance))
    assert isinstance(subject, TrainedModel)
    small = replace(subject, corpus=SubsampledCorpus(subject.corpus, 600, 200, 200))
    with tempfile.TemporaryDirectory() as folder:
        first = Workspace(Path(folder))
        recipes = topological_order(single_model_trials(small))
        found = {_role(recipe): replace(first.get(recipe), tensors={}) for recipe in recipes}

    def copied(recipe: Recipe, workspace: Workspace) -> Artefact:
        return found[_role(recipe)]

    for kind in {type(recipe) for recipe in recipes}:
        kind.make = copied  # type: ignore[assignment, method-assign]
    for rate in range(RATES):
        for seed in range(SEEDS):
            training = replace(small.training, optimizer=Adam(lr=0.001 * (1 + rate)))
            for recipe in topological_order(single_model_trials(replace(small, training=training, seed=seed))):
                place.get(recipe)


def _role(recipe: Recipe) -> str:
    return f"{type(recipe).__name__} {vars(recipe).get('method')}"


def main(root: Path) -> None:
    """Print the cost of a first and of a second report."""
    torch.set_num_threads(1)
    place = Workspace(root / "workspace")
    if not place.root.exists():
        fill(place)
    count = len(place.entries())
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first", "second"):
            start = time.process_time()
            write_report(place, Path(folder))
            seconds = time.process_time() - start
            print(
                f"{name} report on {count} artefacts: {seconds:.1f} s of CPU, {peak_megabytes():.0f} MB peak",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
