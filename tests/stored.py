"""Artefacts as they lie in a workspace, written by hand: old revisions, missing columns and markup included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from heedful.store.recipe import Artefact, Json, artefact_name
from heedful.store.workspace import write_artefact

HOSTILE = "</script><img src=x onerror=alert(1)>"
COMMENT = "<!--<script>"
SUBJECT: dict[str, Json] = {
    "type": "Subject",
    "seed": 0,
    "vectors": {"type": "RandomVectors", "width": 6},
    "objective": {"type": "Supervised", "weighted": True},
}
ATTENTION: dict[str, Json] = {"type": "RawAttention", "layer": None, "head": None}
GRADIENT: dict[str, Json] = {"type": "Gradient", "cut": True}
LEAVE_ONE_OUT: dict[str, Json] = {"type": "LeaveOneOut", "output": "probability"}
ABOUT: dict[str, Json] = {"corpus": "films", "encoder": "bilstm", "attention": "additive", "seed": 0}
TEXTS: Mapping[str, tuple[str, ...]] = {
    "t-10": ("a", "fine", "film"),
    "t-2": ("not", "a", "good", "film", HOSTILE),
    f"t-3 {HOSTILE}": ("dull", COMMENT, "&amp;", "café"),
}
SCORES: Mapping[str, tuple[float, ...]] = {
    "t-10": (0.2, 0.5, 0.3),
    "t-2": (0.7, 0.1, 0.1, 0.05, 0.05),
    f"t-3 {HOSTILE}": (0.25, 0.25, 0.25, 0.25),
}
PREDICTED = {"t-10": 1, "t-2": 1, f"t-3 {HOSTILE}": 0}
LABELS = {"t-10": 1, "t-2": 0, f"t-3 {HOSTILE}": 0}


def attributed(sign: float = 1.0) -> pd.DataFrame:
    """What an attribution stores of the texts: a symbol that cannot be scored before and behind each."""
    return pd.DataFrame(
        {
            "uid": uid,
            "units": ["<sos>", *units, "<eos>"],
            "scores": [0.0, *(value * sign**place for place, value in enumerate(SCORES[uid])), 0.0],
            "scored": [False, *(True for _ in units), False],
            "segments": [0] * (len(units) + 2),
            "predicted": PREDICTED[uid],
            "probability": 0.9,
            "label": LABELS[uid],
        }
        for uid, units in TEXTS.items()
    )


def adversary() -> pd.DataFrame:
    """What an adversary stores: all weight on the last word."""
    return pd.DataFrame(
        {
            "uid": uid,
            "units": list(range(1, len(units) + 1)),
            "attention": list(SCORES[uid]),
            "adversary": [0.0] * (len(units) - 1) + [1.0],
            "epsilon_max": 0.1 * len(units),
            "bound": 0.6,
            "change": 0.0123,
            "certified": uid != "t-2",
        }
        for uid, units in TEXTS.items()
    )


def shuffled() -> pd.DataFrame:
    """What a permutation stores: one text is missing."""
    return pd.DataFrame({"uid": ["t-10", "t-2"], "median_change": [0.3, 0.02]})


def shelve(root: Path, recipe: Mapping[str, Json], table: pd.DataFrame, *, seed: int = 0) -> Path:
    """Writes an artefact about the subject of this seed, as a workspace would."""
    subject: Json = {**SUBJECT, "seed": seed}
    description: dict[str, Json] = {"revision": 1, "limit": None, "subject": subject, **recipe}
    return seal(root, description, table, {"about": {**ABOUT, "seed": seed}, "n": len(table), "of": len(table)})


def seal(root: Path, description: Mapping[str, Json], table: pd.DataFrame, notes: Mapping[str, Json]) -> Path:
    """Writes any artefact under its name."""
    folder = root / artefact_name(description)
    folder.mkdir(parents=True)
    write_artefact(folder, description, Artefact({}, table, dict(notes)))
    return folder


def films(root: Path, *, seed: int = 0) -> Path:
    """A workspace with all that the paper stores about one subject, and the subject itself."""
    seal(root, {**SUBJECT, "seed": seed}, pd.DataFrame(), {"classes": ["bad", f"good {HOSTILE}"]})
    for method, sign in ((ATTENTION, 1.0), (GRADIENT, -1.0), (LEAVE_ONE_OUT, 1.0)):
        shelve(root, {"type": "Attributed", "split": "test", "method": method}, attributed(sign), seed=seed)
    for solver, epsilon in (("exact", 0.05), ("exact", 0.01), ("search", 0.05)):
        shelve(root, {"type": "Adversary", "solver": solver, "epsilon": epsilon}, adversary(), seed=seed)
    shelve(root, {"type": "Permutation", "layer": None}, shuffled(), seed=seed)
    return root
