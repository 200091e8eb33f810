"""A small workspace about one film model, made by real recipes without any training; texts contain markup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd

from heedful.attributions.method import method_name, tags_of
from heedful.catalogue import METHODS
from heedful.store.recipe import Artefact, Json, Recipe, to_json
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import TAGS_NOTE

HOSTILE = "</script><img src=x onerror=alert(1)>"
COMMENT = "<!--<script>"
THIRD = f"t-3 {HOSTILE}"
TEXTS: Mapping[str, tuple[str, ...]] = {
    "t-10": ("a", "fine", "film"),
    "t-2": ("not", "a", "good", "film", HOSTILE),
    THIRD: ("dull", COMMENT, "&amp;", "café"),
}
SCORES: Mapping[str, tuple[float, ...]] = {
    "t-10": (0.2, 0.5, 0.3),
    "t-2": (0.7, 0.1, 0.1, 0.05, 0.05),
    THIRD: (0.25, 0.25, 0.25, 0.25),
}
PREDICTED = {"t-10": 1, "t-2": 1, THIRD: 0}
LABELS = {"t-10": 1, "t-2": 0, THIRD: 0}


@dataclass(frozen=True)
class FilmModel(Recipe):
    """A model whose artefact holds its notes only."""

    kind: ClassVar[str] = "model"
    seed: int = 0
    corpus: str = "films"

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(notes={"classes": ["bad", f"good {HOSTILE}"], "selected_on": "dev"})

    def describe(self) -> dict[str, Json]:
        return {"corpus": self.corpus, "encoder": "bilstm", "attention": "additive", "seed": self.seed, "quick": False}


@dataclass(frozen=True)
class FilmScores(Recipe):
    """Attributions with one special token before and one after each text.

    Args:
        sign: scores are multiplied by its powers, so that -1 gives alternating signs.
        texts: how many of the texts have a row.
        cut: how many tokens at the end have no score, as if they belonged to another text.
    """

    kind: ClassVar[str] = "attributions"
    subject: FilmModel
    method: str = "attention"
    split: str = "test"
    limit: int | None = None
    sign: float = 1.0
    texts: int = 3
    cut: int = 0
    total: int = 3

    def make(self, workspace: Workspace) -> Artefact:
        rows = [self._row(uid, tokens) for uid, tokens in list(TEXTS.items())[: self.texts]]
        methods = {method_name(method): method for method in (make() for make in METHODS.values())}
        tags = to_json(asdict(tags_of(methods.get(self.method))))
        return Artefact(table=pd.DataFrame(rows), notes={"n": self.texts, "of": self.total, TAGS_NOTE: tags})

    def _row(self, uid: str, tokens: tuple[str, ...]) -> dict[str, object]:
        scores = [0.0, *(value * self.sign**place for place, value in enumerate(SCORES[uid])), 0.0]
        return {
            "uid": uid,
            "units": ["<sos>", *tokens, "<eos>"],
            "scores": scores[: len(scores) - self.cut],
            "scored": [False, *(True for _ in tokens), False],
            "segments": [0] * (len(tokens) + 2),
            "predicted": PREDICTED[uid],
            "probability": 0.9,
            "label": LABELS[uid],
        }

    def describe(self) -> dict[str, Json]:
        return {**self.subject.describe(), "method": self.method, "split": self.split, "limit": self.limit}


@dataclass(frozen=True)
class FilmAdversary(Recipe):
    """Adversarial attention with all weight on the last token; of a transformer if it names a layer."""

    kind: ClassVar[str] = "trial"
    subject: FilmModel
    solver: str = "exact"
    epsilon: float = 0.05
    layer: int | None = None

    def make(self, workspace: Workspace) -> Artefact:
        rows = [
            {
                "uid": uid,
                "units": list(range(1, len(tokens) + 1)),
                "attention": list(SCORES[uid]),
                "adversary": [0.0] * (len(tokens) - 1) + [1.0],
                "epsilon_max": 0.1 * len(tokens),
                "bound": 0.6,
                "change": 0.0123,
                "certified": uid != "t-2",
                **({} if self.layer is None else {"queries": 1}),
            }
            for uid, tokens in TEXTS.items()
        ]
        return Artefact(table=pd.DataFrame(rows), notes={"n": 3, "of": 3})

    def describe(self) -> dict[str, Json]:
        return {**self.subject.describe(), "trial": "film-adversary", "paper": "films"}


@dataclass(frozen=True)
class FilmPermutation(Recipe):
    """Permuted attention; one text is missing."""

    kind: ClassVar[str] = "trial"
    subject: FilmModel

    def make(self, workspace: Workspace) -> Artefact:
        return Artefact(table=pd.DataFrame({"uid": ["t-10", "t-2"], "median_change": [0.3, 0.02]}), notes={"of": 3})

    def describe(self) -> dict[str, Json]:
        return {**self.subject.describe(), "trial": "film-permutation", "paper": "films"}


def stored(root: Path, *recipes: Recipe) -> Workspace:
    """A workspace with the artefacts of these recipes."""
    workspace = Workspace(root, data_dir=root)
    for recipe in recipes:
        workspace.get(recipe)
    return workspace


def film_recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """All that is stored about one model."""
    model = FilmModel(seed)
    return (
        *(model, FilmScores(model), FilmScores(model, "gradient", sign=-1.0), FilmScores(model, "leave-one-out")),
        *(FilmAdversary(model, "exact", 0.05), FilmAdversary(model, "exact", 0.01), FilmAdversary(model, "search")),
        FilmPermutation(model),
    )


def films(root: Path, *, seed: int = 0) -> Workspace:
    """A workspace with all that is stored about one model."""
    return stored(root, *film_recipes(seed))
