"""Finished trials as the report sees them: the trial, its subject, and what is stored about the same texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from heedful import catalogue
from heedful.core.recipe import compact
from heedful.core.sealed import named
from heedful.core.types import SPLITS
from heedful.core.workspace import Artefact, Finished, Json
from heedful.report.examples import EXAMPLES, SHOWN
from heedful.report.shelves import Shelf, method_of, shelves, training
from heedful.report.tabulating import Told
from heedful.trials.trial import Trial


@dataclass(frozen=True)
class Run:
    """One finished trial with the subject it was about."""

    trial: type[Trial]
    finished: Finished
    artefact: Artefact
    subject: Artefact | None
    attributed: Mapping[str, Artefact]
    shelf: Shelf | None = None

    @property
    def recipe(self) -> Mapping[str, Json]:
        """What the trial was asked to do."""
        return self.finished.recipe

    @property
    def quick(self) -> bool:
        """Whether the subject was trained on a part of its corpus only."""
        return mapping(mapping(self.recipe["subject"])["corpus"])["type"] == "Sampled"

    @property
    def about(self) -> Mapping[str, Json]:
        """Corpus, encoder, attention, seed."""
        return mapping(self.artefact.notes["about"])

    @property
    def seed(self) -> int:
        """The subject's seed."""
        return int(str(self.about["seed"]))

    @property
    def measure(self) -> str:
        """The trial's measure, and on what it was taken where that is not as usual; Kendall's tau where it has none."""
        words = [str(self.recipe.get("measure", "kendall"))]
        words += ["by word"] if self.recipe.get("level") == "word" else []
        words += ["with special symbols"] if self.recipe.get("specials") is True else []
        return " ".join(words)

    @property
    def group(self) -> str:
        """The same for runs that differ in seeds only: the subject's, and that of the subject it is compared with."""
        subjects = {name: self.recipe.get(name) for name in ("subject", "other")}
        seedless = {name: {**subject, "seed": None} for name, subject in subjects.items() if isinstance(subject, dict)}
        return compact({**self.recipe, **seedless})


def finished_runs(finished: Sequence[Finished]) -> Iterable[Run]:
    """Every finished trial, with its subject and the texts that it was tested on."""
    by_name = {each.name: each for each in finished}
    by_subject = {shelf.subject: shelf for shelf in shelves(finished) if shelf.split == "test"}
    for each in finished:
        trial = catalogue.trial_named(each.kind)
        if trial is not None:
            name = named(mapping(each.recipe["subject"]))
            shelf = by_subject.get(name)
            shown = shelf.methods if shelf is not None and trial.name in EXAMPLES else ()
            scores = {method_of(found): found.open() for found in reversed(shown) if method_of(found) in SHOWN}
            yield Run(trial, each, each.open(), _opened(by_name.get(name)), scores, shelf)


def _opened(finished: Finished | None) -> Artefact | None:
    return None if finished is None else finished.open()


def mapping(value: Json) -> dict[str, Json]:
    """The value, which is a JSON object."""
    assert isinstance(value, dict)
    return value


def told(runs: Sequence[Run], summary: Mapping[str, float], paper: str) -> Told:
    """What the tables over all corpora need of runs that differ in seeds only.

    Args:
        summary: the mean over seeds.
        paper: the one under which they are told.
    """
    first = runs[0]
    return Told(
        first.trial.name,
        corpus=str(first.about["corpus"]),
        encoder=str(first.about["encoder"]),
        attention=str(first.about["attention"]),
        summary=summary,
        facts=_facts(first),
        vectors=training(first.recipe["subject"]).get("vectors", ""),
        rows=pd.concat([run.artefact.table for run in runs], ignore_index=True)
        if first.trial.paper in ("attefa", "scaffold")
        else None,
        quick=first.quick,
        paper=paper,
        measure=first.measure,
        recipe=first.recipe,
    )


def _facts(run: Run) -> dict[str, float]:
    """Sizes of the corpus and its vocabulary; the mean length of test texts where the trial kept it."""
    if run.subject is None:
        return {}
    facts = {"vocabulary": number(run.subject.notes["vocabulary"])}
    for split in SPLITS:
        counts = [number(count) for count in mapping(mapping(run.subject.notes["sizes"])[split]).values()]
        facts |= {split: sum(counts), **{f"{split}.{place}": count for place, count in enumerate(counts)}}
    if "length" in run.artefact.table:
        facts["length"] = float(run.artefact.table["length"].mean())
    return facts


def number(value: Json) -> float:
    """The value, which is a number."""
    assert isinstance(value, int | float)
    return float(value)
