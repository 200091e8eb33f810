"""What a workspace holds about the texts of each subject, found by recipe.

Whatever attributions, adversaries and shufflings of one subject are on disk belong together, each in its newest
revision and on the most texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from heedful.core.recipe import compact
from heedful.core.sealed import Finished, named
from heedful.core.workspace import Json

FOLDER = "texts"
"""Where the pages about texts are, beside the report."""
VECTORS = {"RandomVectors": "random", "PackagedGlove": "GloVe 6B, 50 numbers a word"}
"""Word vectors by the names that readers know."""
_NAMED = ("corpus", "encoder", "attention")
NEEDED = frozenset({"uid", "units", "scores"})
"""What an attribution must have to be shown; artefacts of old revisions may lack some of it."""


@dataclass(frozen=True)
class Shelf:
    """What is on disk about the texts of one subject on one split.

    Args:
        about: corpus, encoder, attention, seed, and what else tells subjects apart.
        methods: attributions that have the words of the texts, attention first; none where the words are missing.
        trials: adversaries and shufflings, which know texts by uid only.
    """

    subject: str
    split: str
    about: Mapping[str, str | float]
    methods: tuple[Finished, ...]
    trials: tuple[Finished, ...]
    model: Finished | None

    @property
    def address(self) -> str:
        """Where the page about these texts is, seen from the report: the same whatever else is in the workspace."""
        words = [str(self.about[name]) for name in _NAMED if name in self.about]
        parts = [*words, f"seed {self.about.get('seed', 0)}", *([] if self.split == "test" else [self.split])]
        stem = re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")
        return f"{FOLDER}/{stem}-{self.subject.rpartition('-')[2]}.html"


def shelves(finished: Sequence[Finished]) -> list[Shelf]:
    """All subjects with attributions on disk, by address."""
    by_name = {each.name: each for each in finished}
    methods: dict[tuple[str, str], list[Finished]] = {}
    trials: dict[str, list[Finished]] = {}
    for each in finished:
        if each.kind == "Attributed":
            methods.setdefault((_subject(each), str(each.recipe.get("split", "test"))), []).append(each)
        elif each.kind in ("Adversary", "Permutation"):
            trials.setdefault(_subject(each), []).append(each)
    found = []
    for (subject, split), several in methods.items():
        tried = tuple(newest(trials.get(subject, []))) if split == "test" else ()
        readable = tuple(sorted(newest(several), key=lambda each: (method_of(each) != "RawAttention", each.name)))
        about, readable = _readable(readable)
        about = {**about, **training(several[0].recipe["subject"])}
        found.append(Shelf(subject, split, about, readable, tried, by_name.get(subject)))
    return sorted(found, key=lambda each: natural(each.address))


def _readable(methods: tuple[Finished, ...]) -> tuple[Mapping[str, str | float], tuple[Finished, ...]]:
    """What the subject is, and the methods from the first on that has the words: one is enough to show texts."""
    about: Mapping[str, str | float] = {}
    for place, each in enumerate(methods):
        artefact = each.open()
        told = artefact.notes.get("about")
        about = _facts(told) if isinstance(told, dict) else about
        if set(artefact.table.columns) >= NEEDED:
            return about, methods[place:]
    return about, ()


def _facts(told: Mapping[str, Json]) -> dict[str, str | float]:
    names = [name for name in (*_NAMED, "seed") if name in told] + sorted(set(told) - {*_NAMED, "seed"})
    return {name: value for name in names if isinstance(value := told[name], str | int | float)}


def training(subject: Json) -> dict[str, str]:
    """The word vectors of a subject, and what it was trained for where that is not the labels alone."""
    assert isinstance(subject, dict)
    vectors, objective = subject.get("vectors"), subject.get("objective")
    found: dict[str, str] = {}
    if isinstance(vectors, dict):
        found["vectors"] = str(vectors.get("source", VECTORS.get(str(vectors["type"]), vectors["type"])))
    if isinstance(objective, dict) and objective["type"] != "Supervised":
        options = [f"{name} {value}" for name, value in objective.items() if name != "type" and _is_plain(value)]
        found["objective"] = ", ".join([str(objective["type"]).lower(), *options])
    return found


def _is_plain(value: Json) -> bool:
    return isinstance(value, str | int | float)


def _subject(each: Finished) -> str:
    recipe = each.recipe["subject"]
    assert isinstance(recipe, dict)
    return named(recipe)


def method_of(each: Finished) -> str:
    """The class name of an attribution's method."""
    method = each.recipe["method"]
    assert isinstance(method, dict)
    return str(method["type"])


def newest(several: Iterable[Finished]) -> list[Finished]:
    """One of each kind: of those that differ in revision and limit only, the newest, and of these the largest."""
    best: dict[str, tuple[tuple[float, float], Finished]] = {}
    for each in several:
        key = compact({name: value for name, value in each.recipe.items() if name not in ("limit", "revision")})
        rank = (_number(each.recipe.get("revision"), 0.0), _number(each.recipe.get("limit"), math.inf))
        if key not in best or rank > best[key][0]:
            best[key] = rank, each
    return [each for _, each in best.values()]


def _number(value: Json, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts numbers in names by their size.

    >>> sorted(["sst-10", "sst-9"], key=natural)
    ['sst-9', 'sst-10']
    """
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((int(part), "") if part.isascii() and part.isdigit() else (0, part) for part in parts)
