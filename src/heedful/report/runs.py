"""Finished trials as the report sees them: the trial, its subject, and what is stored about the same texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from heedful import catalogue
from heedful.report.examples import EXAMPLE_METHODS, TRIALS_WITH_EXAMPLES
from heedful.report.shelves import ModelArtefacts, describe_training, group_by_model, method_type
from heedful.report.tabulating import ResultRow
from heedful.store.recipe import Artefact, Json, artefact_name, dump_compact_json
from heedful.store.workspace import IndexEntry
from heedful.trials._trial import Trial
from heedful.types import SPLITS


@dataclass(frozen=True)
class Run:
    """One finished trial with the subject it was about."""

    trial: type[Trial]
    finished: IndexEntry
    artefact: Artefact
    subject: Artefact | None
    attributions: Mapping[str, Artefact]
    model_artefacts: ModelArtefacts | None = None

    @property
    def recipe(self) -> Mapping[str, Json]:
        """What the trial was asked to do."""
        return self.finished.recipe

    @property
    def quick(self) -> bool:
        """Whether the subject was trained on a part of its corpus only."""
        return json_object(json_object(self.recipe["subject"])["corpus"])["type"] == "SubsampledCorpus"

    @property
    def about(self) -> Mapping[str, Json]:
        """Corpus, encoder, attention, seed."""
        return json_object(self.artefact.notes["about"])

    @property
    def seed(self) -> int:
        """The subject's seed."""
        return int(str(self.about["seed"]))

    @property
    def measure(self) -> str:
        """The trial's measure, and on what it was taken where that is not as usual; Kendall's tau where it has none."""
        words = [str(self.recipe.get("measure", "kendall"))]
        words += ["by word"] if self.recipe.get("level") == "word" else []
        words += ["with special symbols"] if self.recipe.get("special_tokens") is True else []
        return " ".join(words)

    @property
    def group_key(self) -> str:
        """The same for runs that differ in seeds only: the subject's, and that of the subject it is compared with."""
        subjects = {name: self.recipe.get(name) for name in ("subject", "other_seed_model")}
        seedless = {name: {**subject, "seed": None} for name, subject in subjects.items() if isinstance(subject, dict)}
        return dump_compact_json({**self.recipe, **seedless})


def finished_runs(finished: Sequence[IndexEntry]) -> Iterable[Run]:
    """Every finished trial, with its subject and the texts that it was tested on."""
    by_name = {each.name: each for each in finished}
    by_subject = {shelf.subject: shelf for shelf in group_by_model(finished) if shelf.split == "test"}
    for each in finished:
        trial = catalogue.find_trial(each.recipe_class)
        if trial is not None:
            name = artefact_name(json_object(each.recipe["subject"]))
            shelf = by_subject.get(name)
            shown = shelf.attributions if shelf is not None and trial.name in TRIALS_WITH_EXAMPLES else ()
            scores = {
                method_type(found): found.load() for found in reversed(shown) if method_type(found) in EXAMPLE_METHODS
            }
            yield Run(trial, each, each.load(), _open_if_stored(by_name.get(name)), scores, shelf)


def _open_if_stored(finished: IndexEntry | None) -> Artefact | None:
    return None if finished is None else finished.load()


def json_object(value: Json) -> dict[str, Json]:
    """The value, which is a JSON object."""
    assert isinstance(value, dict)
    return value


def result_row(runs: Sequence[Run], summary: Mapping[str, float], paper: str) -> ResultRow:
    """What the tables over all corpora need of runs that differ in seeds only.

    Args:
        summary: the mean over seeds.
        paper: the one under which they are told.
    """
    first = runs[0]
    return ResultRow(
        first.trial.name,
        corpus=str(first.about["corpus"]),
        encoder=str(first.about["encoder"]),
        attention=str(first.about["attention"]),
        summary=summary,
        corpus_statistics=_corpus_statistics(first),
        embeddings=describe_training(first.recipe["subject"]).get("vectors", ""),
        table=pd.concat([run.artefact.table for run in runs], ignore_index=True)
        if first.trial.paper in ("attefa", "scaffold")
        else None,
        quick=first.quick,
        paper=paper,
        measure=first.measure,
        recipe=first.recipe,
    )


def _corpus_statistics(run: Run) -> dict[str, float]:
    """Sizes of the corpus and its vocabulary; the mean length of test texts where the trial kept it."""
    if run.subject is None:
        return {}
    facts = {"vocabulary": json_number(run.subject.notes["vocabulary"])}
    for split in SPLITS:
        counts = [json_number(count) for count in json_object(json_object(run.subject.notes["sizes"])[split]).values()]
        facts |= {split: sum(counts), **{f"{split}.{place}": count for place, count in enumerate(counts)}}
    if "length" in run.artefact.table:
        facts["length"] = float(run.artefact.table["length"].mean())
    return facts


def json_number(value: Json) -> float:
    """The value, which is a number."""
    assert isinstance(value, int | float)
    return float(value)
