"""What a workspace holds about the texts of each subject, found by recipe.

Whatever attributions, adversaries and shufflings of one subject are on disk belong together, each in its newest
revision and on the most texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from heedful.store.recipe import Json, artefact_name, dump_compact_json
from heedful.store.workspace import IndexEntry

TEXTS_FOLDER = "texts"
"""Where the pages about texts are, beside the report."""
EMBEDDING_NAMES = {"RandomEmbeddings": "random", "PackagedGloveEmbeddings": "GloVe 6B, 50 numbers a word"}
"""Word vectors by the names that readers know."""
_MODEL_FACTS = ("corpus", "encoder", "attention")
REQUIRED_COLUMNS = frozenset({"uid", "units", "scores"})
"""What an attribution must have to be shown; artefacts of old revisions may lack some of it."""


@dataclass(frozen=True)
class ModelArtefacts:
    """What is on disk about the texts of one subject on one split.

    Args:
        about: corpus, encoder, attention, seed, and what else tells subjects apart.
        methods: attributions that have the words of the texts, attention first; none where the words are missing.
        trials: adversaries and shufflings, which know texts by uid only.
    """

    subject: str
    split: str
    about: Mapping[str, str | float]
    attributions: tuple[IndexEntry, ...]
    trials: tuple[IndexEntry, ...]
    model: IndexEntry | None

    @property
    def address(self) -> str:
        """Where the page about these texts is, seen from the report: the same whatever else is in the workspace."""
        words = [str(self.about[name]) for name in _MODEL_FACTS if name in self.about]
        parts = [*words, f"seed {self.about.get('seed', 0)}", *([] if self.split == "test" else [self.split])]
        stem = re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")
        return f"{TEXTS_FOLDER}/{stem}-{self.subject.rpartition('-')[2]}.html"


def group_by_model(finished: Sequence[IndexEntry]) -> list[ModelArtefacts]:
    """All subjects with attributions on disk, by address."""
    by_name = {each.name: each for each in finished}
    methods: dict[tuple[str, str], list[IndexEntry]] = {}
    trials: dict[str, list[IndexEntry]] = {}
    for each in finished:
        if each.recipe_class == "AttributionTable":
            methods.setdefault((_subject_name(each), str(each.recipe.get("split", "test"))), []).append(each)
        elif each.recipe_class in ("AdversarialAttention", "Permutation"):
            trials.setdefault(_subject_name(each), []).append(each)
    found = []
    for (subject, split), several in methods.items():
        tried = tuple(newest_artefacts(trials.get(subject, []))) if split == "test" else ()
        readable = tuple(
            sorted(newest_artefacts(several), key=lambda each: (method_type(each) != "RawAttention", each.name))
        )
        about, readable = _attributions_with_words(readable)
        about = {**about, **describe_training(several[0].recipe["subject"])}
        found.append(ModelArtefacts(subject, split, about, readable, tried, by_name.get(subject)))
    return sorted(found, key=lambda each: natural_sort_key(each.address))


def _attributions_with_words(
    methods: tuple[IndexEntry, ...],
) -> tuple[Mapping[str, str | float], tuple[IndexEntry, ...]]:
    """What the subject is, and the methods from the first on that has the words: one is enough to show texts."""
    about: Mapping[str, str | float] = {}
    for place, each in enumerate(methods):
        artefact = each.load()
        told = artefact.notes.get("about")
        about = _model_facts(told) if isinstance(told, dict) else about
        if set(artefact.table.columns) >= REQUIRED_COLUMNS:
            return about, methods[place:]
    return about, ()


def _model_facts(told: Mapping[str, Json]) -> dict[str, str | float]:
    names = [name for name in (*_MODEL_FACTS, "seed") if name in told] + sorted(set(told) - {*_MODEL_FACTS, "seed"})
    return {name: value for name in names if isinstance(value := told[name], str | int | float)}


def describe_training(subject: Json) -> dict[str, str]:
    """The word vectors of a subject, and what it was trained for where that is not the labels alone."""
    assert isinstance(subject, dict)
    vectors, objective = subject.get("embeddings"), subject.get("objective")
    found: dict[str, str] = {}
    if isinstance(vectors, dict):
        found["vectors"] = str(vectors.get("source", EMBEDDING_NAMES.get(str(vectors["type"]), vectors["type"])))
    if isinstance(objective, dict) and objective["type"] != "Supervised":
        options = [f"{name} {value}" for name, value in objective.items() if name != "type" and _is_scalar(value)]
        found["objective"] = ", ".join([str(objective["type"]).lower(), *options])
    return found


def _is_scalar(value: Json) -> bool:
    return isinstance(value, str | int | float)


def _subject_name(each: IndexEntry) -> str:
    recipe = each.recipe["subject"]
    assert isinstance(recipe, dict)
    return artefact_name(recipe)


def method_type(each: IndexEntry) -> str:
    """The class name of an attribution's method."""
    method = each.recipe["method"]
    assert isinstance(method, dict)
    return str(method["type"])


def newest_artefacts(several: Iterable[IndexEntry]) -> list[IndexEntry]:
    """One of each kind: of those that differ in revision and limit only, the newest, and of these the largest."""
    best: dict[str, tuple[tuple[float, float], IndexEntry]] = {}
    for each in several:
        key = dump_compact_json(
            {name: value for name, value in each.recipe.items() if name not in ("limit", "revision")}
        )
        rank = (_number_or(each.recipe.get("revision"), 0.0), _number_or(each.recipe.get("limit"), math.inf))
        if key not in best or rank > best[key][0]:
            best[key] = rank, each
    return [each for _, each in best.values()]


def _number_or(value: Json, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise


def natural_sort_key(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts numbers in names by their size.

    >>> sorted(["sst-10", "sst-9"], key=natural_sort_key)
    ['sst-9', 'sst-10']
    """
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((int(part), "") if part.isascii() and part.isdigit() else (0, part) for part in parts)
